//! What programs call: the functions that `prelude.lua` makes `ngx` of. Each works on what `current` says.

pub mod answer;
pub mod dict;
pub mod later;
pub mod log;
pub mod ocsp;
pub mod request;
pub mod request_body;
pub mod ssl;
pub mod times;
pub mod upstream;
pub mod variables;

use crate::snapshot::ThreadSnapshot;
use mlua::{Lua, Table};
use std::rc::Rc;

/// Adds them.
///
/// # Errors
/// Out of memory.
pub fn add(lua: &Lua, raw: &Table, snapshot: &Rc<ThreadSnapshot>) -> mlua::Result<()> {
    answer::add(lua, raw)?;
    request::add(lua, raw)?;
    request_body::add(lua, raw)?;
    variables::add(lua, raw)?;
    variables::add_functions(lua, raw)?;
    times::add(lua, raw)?;
    log::add(lua, raw, snapshot)?;
    later::add(lua, raw)?;
    super::socket::add(lua, raw)?;
    super::socket_tls::add(lua, raw)?;
    super::pipe::add(lua, raw)?;
    super::balancer::add(lua, raw)?;
    upstream::add(lua, raw)?;
    ssl::add(lua, raw)?;
    ocsp::add(lua, raw)?;
    super::library::add(lua, raw, snapshot)?;
    dict::add(lua, raw, &snapshot.main.lua.dicts)
}
