//! nginx.conf: text to a tree of words with their places, checked against the table of known directives; problems in
//! nginx's wording; parsers of single values.
//!
//! From: the command line (which file, which prefix, `-g`). To: the modules, which turn nodes into configurations.
//! Knows no socket, clock or thread. Bytes, not `str`: paths, patterns and header values need not be UTF-8.
//!
//! ```
//! let mut files = conf::Bundle::default();
//! files.add_file("/etc/nginx.conf", "events {}\nworker_process 4;\n");
//! let (tree, problems) = conf::load(&files, "/etc/nginx.conf".as_ref(), "/etc".as_ref(), b"");
//! assert_eq!(problems[0].render_line(&tree.sources), "unknown directive \"worker_process\" in /etc/nginx.conf:2");
//! ```

pub mod diagnostic;
pub mod directives;
pub mod lexer;
mod load;
mod lua;
pub mod source;
pub mod tree;
pub mod value;

pub use diagnostic::{Problem, Severity};
pub use directives::{Accepts, Arity, Contexts, Inside, Known, check, inside, lookup, nearest, refusal};
pub use load::{
    MAX_INCLUDE_DEPTH, MAX_INCLUSIONS, MAX_NESTING, MAX_PROBLEMS, MAX_TOTAL_BYTES, load, load_accepting, parse,
};
pub use source::{Bundle, Disk, Files, Recorder};
pub use tree::{Body, FileId, Node, Source, Span, Tree, Word};
