//! The way of an answer's body from its handler to the session: a chain of filters, each of which may change,
//! hold back or add. Nothing here waits; the handler flushes between pieces.

use super::Request;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// A piece of a body.
#[derive(Clone, Copy)]
pub enum Chunk<'a> {
    /// Bytes in memory.
    Bytes(&'a [u8]),
    /// A stretch of an open file.
    File {
        /// The file.
        file: &'a Rc<OwnedFd>,
        /// Where it starts.
        offset: u64,
        /// How long it is.
        len: u64,
    },
}

impl<'a> Chunk<'a> {
    /// The bytes `from..to` of it; what lies behind its end is left out.
    pub fn cut(self, from: u64, to: u64) -> Chunk<'a> {
        let to = to.min(self.len());
        let from = from.min(to);
        match self {
            Chunk::Bytes(b) => Chunk::Bytes(&b[from as usize..to as usize]),
            Chunk::File { file, offset, .. } => Chunk::File { file, offset: offset + from, len: to - from },
        }
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Chunk::Bytes(b) => b.len() as u64,
            Chunk::File { len, .. } => *len,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One filter, with its state for one answer.
pub trait BodyFilter {
    /// Takes a piece and hands what becomes of it to `rest`. `last`: nothing follows.
    fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool, rest: Rest<'_>) -> std::io::Result<()>;
}

/// The filters that follow, and the session behind them.
pub struct Rest<'a>(&'a mut [Box<dyn BodyFilter>]);

impl Rest<'_> {
    /// Hands a piece on.
    pub fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool) -> std::io::Result<()> {
        match self.0.split_first_mut() {
            Some((filter, rest)) => filter.push(r, chunk, last, Rest(rest)),
            None => r.queue(chunk, last),
        }
    }
}

/// Sends a piece through all filters of the answer.
pub fn run(r: &mut Request, chunk: Chunk<'_>, last: bool) -> std::io::Result<()> {
    if r.body_filters.is_empty() {
        return r.queue(chunk, last);
    }
    let mut filters = std::mem::take(&mut r.body_filters);
    let result = Rest(&mut filters).push(r, chunk, last);
    r.body_filters = filters;
    result
}
