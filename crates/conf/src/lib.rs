//! nginx.conf: text to a tree of words with their places, checked against the table of known directives; problems in
//! nginx's wording; parsers of single values.
//!
//! Before: the command line (which file, which prefix, `-g`). After: the modules, which turn nodes into configurations.
//! Knows no socket, clock or thread. Bytes, not `str`: paths, patterns and header values need not be UTF-8.

pub mod diagnostic;
pub mod directives;
pub mod lexer;
mod load;
mod lua;
pub mod source;
pub mod tree;
pub mod value;

pub use diagnostic::{Level, Problem};
pub use directives::{Arity, Contexts, Known, check, lookup};
pub use load::{MAX_INCLUDE_DEPTH, MAX_NESTING, MAX_PROBLEMS, load};
pub use source::{Bundle, Disk, Files, Recorder};
pub use tree::{Body, FileId, Node, Source, Span, Tree, Word};
