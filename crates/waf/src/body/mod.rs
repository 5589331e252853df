//! Request bodies as arguments. Pure functions from bytes to names and values; what is wrong with a body is a value too.

pub(crate) mod json;
pub(crate) mod multipart;
pub(crate) mod urlencoded;
pub(crate) mod xml;

/// Why a text could not be read to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// What is wrong with it, or what it has too much of.
    pub message: String,
    /// It has too much of something: what stands behind may be read by others.
    pub is_limit: bool,
}

impl Problem {
    fn wrong(message: impl ToString) -> Problem {
        Problem { message: message.to_string(), is_limit: false }
    }

    fn limit(message: impl ToString) -> Problem {
        Problem { message: message.to_string(), is_limit: true }
    }
}
