//! What a program in Lua needs that is no server: the machine itself, texts and their encodings, expressions, JSON, dictionaries that
//! threads share. `server` puts requests, phases and sockets around it (docs/lua.md). Knows no request and no clock: times are arguments.

pub mod coroutine;
mod dfa;
pub mod dict;
pub mod interrupt;
pub mod json;
mod json_read;
pub mod machine;
pub mod quick;
pub mod regex;
pub mod shelf;
pub mod text;

/// A mistake in a program's call, in the words that the program gets: it is raised in Lua, at the caller's line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault(pub String);

impl<T: Into<String>> From<T> for Fault {
    fn from(text: T) -> Fault {
        Fault(text.into())
    }
}
