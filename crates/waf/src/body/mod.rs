//! Request bodies as arguments. Pure functions from bytes to names and values; what is wrong with a body is a value too.

pub(crate) mod json;
pub(crate) mod multipart;
pub(crate) mod urlencoded;
pub(crate) mod xml;
