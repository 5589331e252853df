//! Libraries of OpenResty that are written in Lua over the functions of `api`: made when a program asks for them (`require`).

use crate::snapshot::ThreadSnapshot;
use ::lua::Fault;
use ::lua::machine::{add as add_function, compile};
use mlua::{Lua, Table};
use std::rc::Rc;

/// Their names and texts. Each gets the tools of `prelude.lua` and gives back the library.
const LIBRARIES: &[(&str, &[u8])] = &[
    ("ngx.balancer", include_bytes!("library/balancer.lua")),
    ("ngx.upstream", include_bytes!("library/upstream.lua")),
    ("ngx.pipe", include_bytes!("library/pipe.lua")),
    ("ngx.ocsp", include_bytes!("library/ocsp.lua")),
    ("ngx.ssl", include_bytes!("library/ssl.lua")),
    ("ngx.ssl.clienthello", include_bytes!("library/clienthello.lua")),
    ("ngx.ssl.session", include_bytes!("library/ssl_session.lua")),
    ("ngx.ssl.proxysslcert", include_bytes!("library/proxysslcert.lua")),
    ("ngx.ssl.proxysslverify", include_bytes!("library/proxysslverify.lua")),
];

/// See the module's head.
pub fn add(lua: &Lua, raw: &Table, snapshot: &Rc<ThreadSnapshot>) -> mlua::Result<()> {
    raw.raw_set("subsystem", if snapshot.is_stream() { "stream" } else { "http" })?;
    raw.raw_set("library_names", lua.create_sequence_from(LIBRARIES.iter().map(|(name, _)| *name))?)?;
    add_function(lua, raw, "library", |lua, name: String| {
        let found = LIBRARIES.iter().find(|(known, _)| *known == name);
        let (name, text) = found.ok_or_else(|| Fault(format!("no library \"{name}\"")))?;
        compile(lua, text, &format!("={name}")).map_err(Fault)
    })
}
