//! Programs as the configuration names them: nothing is compiled here, and nothing runs.

use crate::config::complex::Complex;
use std::sync::Arc;

/// A program of the configuration.
#[derive(Debug)]
pub struct Chunk {
    /// Which one it is.
    pub number: usize,
    /// What messages call it: `content_by_lua(nginx.conf:40)`.
    pub name: Box<str>,
    /// Where it is.
    pub source: Source,
}

impl Chunk {
    /// What the name of its directive ends with.
    pub fn suffix(&self) -> &'static str {
        match self.source {
            Source::Text(_) => "",
            Source::File(_) => "_file",
        }
    }
}

/// Where a program is.
#[derive(Debug)]
pub enum Source {
    /// In the configuration.
    Text(Box<[u8]>),
    /// In a file, whose name may have variables.
    File(Complex),
}

/// A group's program.
#[derive(Debug)]
pub struct Program {
    /// What chooses.
    pub chunk: Arc<Chunk>,
    /// `balancer_keepalive`
    pub kept: usize,
}
