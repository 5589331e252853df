//! What is wrong in a rule set, and where.

use std::fmt;
use std::sync::Arc;

/// A place in a rule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file as it was named to the loader or by `Include`.
    pub file: Arc<str>,
    /// The line a directive begins on, from 1.
    pub line: u32,
}

/// One thing that is wrong with a rule set. The whole set is refused; all problems are reported together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where the directive begins.
    pub place: Place,
    /// What is wrong, a sentence without a full stop.
    pub message: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.message, self.place)
    }
}

impl std::error::Error for Problem {}
