//! What a program in JavaScript needs that is no server: QuickJS for a thread, programs compiled once, contexts with njs's library in
//! them, operations that are waited for. `server` puts requests, phases and sockets around it (docs/js.md). Knows no request, no
//! socket and no clock but the one that bounds a program's turn.

pub mod engine;
mod library;
pub mod program;
mod runtime;
mod unsafety;
pub mod value;

pub use engine::{Called, Engine, Operation};
pub use program::{Import, Preload, Program, Sources, Wrong};
pub use rquickjs;
pub use value::{Buffer, Bytes, Fault, Item};

/// A part of what every context begins with: its name in tracebacks, and its text. It finds what other parts and natives have made in
/// `import.meta.raw`.
pub type Part = (&'static str, &'static str);

/// Makes ready what contexts with these parts need, so that the first of them need not.
///
/// # Errors
/// A part is not well formed.
pub fn prepare(parts: Parts) -> Result<(), String> {
    library::prepare(parts)
}

/// The server's parts.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// Run in each context before its program.
    pub now: &'static [Part],
    /// Run when `raw.part` asks for them: most programs need few.
    pub later: &'static [Part],
}
