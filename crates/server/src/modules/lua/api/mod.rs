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
use ::lua::Fault;
use ::lua::machine::{add as add_function, compile};
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
    super::socket_read::add(lua, raw)?;
    super::socket_tls::add(lua, raw)?;
    super::pipe::add(lua, raw)?;
    super::balancer::add(lua, raw)?;
    upstream::add(lua, raw)?;
    ssl::add(lua, raw)?;
    ocsp::add(lua, raw)?;
    add_libraries(lua, raw, snapshot)?;
    dict::add(lua, raw, &snapshot.main.lua.dicts)
}

/// Libraries of OpenResty that are written in Lua over the functions here, made when a program asks for them (`require`): their names and texts.
/// Each gets the tools of `prelude.lua` and gives back the library.
const LIBRARIES: &[(&str, &[u8])] = &[
    ("ngx.balancer", include_bytes!("../library/balancer.lua")),
    ("ngx.upstream", include_bytes!("../library/upstream.lua")),
    ("ngx.pipe", include_bytes!("../library/pipe.lua")),
    ("ngx.ocsp", include_bytes!("../library/ocsp.lua")),
    ("ngx.ssl", include_bytes!("../library/ssl.lua")),
    ("ngx.ssl.clienthello", include_bytes!("../library/clienthello.lua")),
    ("resty.core.base", include_bytes!("../library/base.lua")),
    ("ngx.ssl.session", include_bytes!("../library/ssl_session.lua")),
    ("ngx.proxyssl", include_bytes!("../library/proxyssl.lua")),
    ("ngx.ssl.proxysslcert", include_bytes!("../library/proxysslcert.lua")),
    ("ngx.ssl.proxysslverify", include_bytes!("../library/proxysslverify.lua")),
];

fn add_libraries(lua: &Lua, raw: &Table, snapshot: &Rc<ThreadSnapshot>) -> mlua::Result<()> {
    raw.raw_set("subsystem", if snapshot.is_stream() { "stream" } else { "http" })?;
    raw.raw_set("library_names", lua.create_sequence_from(LIBRARIES.iter().map(|(name, _)| *name))?)?;
    add_function(lua, raw, "library", |lua, name: String| {
        let found = LIBRARIES.iter().find(|(known, _)| *known == name);
        let (name, text) = found.ok_or_else(|| Fault(format!("no library \"{name}\"")))?;
        compile(lua, text, &format!("={name}")).map_err(Fault)
    })
}
