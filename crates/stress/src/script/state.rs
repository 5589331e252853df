//! A thread's Lua state: the prelude, the script, its hooks. It is made on the thread that uses it, and stays there.

use super::thread::Thread;
use super::{Failed, Settings};
use mlua::{Function, Lua, Table, Value, Variadic};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::PoisonError;
use std::time::Duration;

const PRELUDE: &str = include_str!("prelude.lua");
/// How long `wrk.connect` tries.
const CONNECT: Duration = Duration::from_secs(1);

/// See the file's head.
#[derive(Clone)]
pub(crate) struct State {
    pub(super) lua: Lua,
    request: Option<Function>,
    response: Option<Function>,
    delay: Option<Function>,
    own: Thread,
    failure: Failed,
}

/// `wrk.lookup` and `wrk.connect`: addresses are texts such as `127.0.0.1:80`.
fn add_network(lua: &Lua, wrk: &Table) -> mlua::Result<()> {
    let lookup = |_: &Lua, (host, service): (String, Option<String>)| {
        let port = match service.as_deref() {
            None | Some("http") => 80,
            Some("https") => 443,
            Some(port) => port.parse().map_err(|_| mlua::Error::runtime(format!("\"{port}\" is not a port")))?,
        };
        let found = (host.as_str(), port).to_socket_addrs().map_err(mlua::Error::external)?;
        Ok(found.map(|a| a.to_string()).collect::<Vec<_>>())
    };
    let connect = |_: &Lua, text: String| {
        let address = text.parse::<SocketAddr>().ok();
        Ok(address.is_some_and(|a| TcpStream::connect_timeout(&a, CONNECT).is_ok()))
    };
    wrk.set("lookup", lua.create_function(lookup)?)?;
    wrk.set("connect", lua.create_function(connect)?)
}

pub(super) fn hook(lua: &Lua, name: &str) -> mlua::Result<Option<Function>> {
    lua.globals().get(name)
}

/// Makes a state and runs the script in it. `own`: the thread, as scripts know it.
pub(super) fn make(settings: &Settings, own: Thread, failure: Failed) -> mlua::Result<State> {
    let lua = Lua::new();
    let globals = lua.globals();
    let headers = lua.create_table()?;
    for (name, value) in &settings.headers {
        headers.set(name.as_str(), value.as_str())?;
    }
    globals.set("__scheme", settings.url.scheme.name())?;
    globals.set("__host", settings.url.host.as_str())?;
    globals.set("__port", settings.url.port)?;
    globals.set("__path", settings.url.path.as_str())?;
    globals.set("__authority", settings.url.authority.as_str())?;
    globals.set("__method", settings.method.as_str())?;
    globals.set("__headers", headers)?;
    globals.set("__body", settings.body.as_ref().map(|b| lua.create_string(b)).transpose()?)?;
    lua.load(PRELUDE).set_name("=wrk").exec()?;
    let wrk: Table = globals.get("wrk")?;
    wrk.set("thread", lua.create_userdata(own.clone())?)?;
    add_network(&lua, &wrk)?;
    lua.load(&settings.text[..]).set_name(&settings.name).exec()?;
    Ok(State { lua, request: None, response: None, delay: None, own, failure })
}

impl State {
    /// Calls `init`, and then looks which hooks there are: `init` may have made them.
    pub(super) fn begin(&mut self, arguments: &[String]) -> mlua::Result<()> {
        let globals = self.lua.globals();
        let begin: Function = globals.get("__begin")?;
        let arguments = self.lua.create_sequence_from(arguments.iter().map(String::as_str))?;
        let fixed: mlua::LuaString = begin.call(arguments)?;
        globals.set("__fixed", fixed)?;
        self.request = hook(&self.lua, "request")?;
        self.response = hook(&self.lua, "response")?;
        self.delay = hook(&self.lua, "delay")?;
        Ok(())
    }

    /// A hook failed.
    pub(crate) fn fail(&self, text: &str) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| text.to_owned());
    }

    pub(crate) fn has_request(&self) -> bool {
        self.request.is_some()
    }

    pub(crate) fn has_response(&self) -> bool {
        self.response.is_some()
    }

    /// `thread:stop()` was called.
    pub(crate) fn is_stopped(&self) -> bool {
        self.own.is_stopped()
    }

    /// The next request's bytes.
    pub(crate) fn request(&self) -> Result<Vec<u8>, String> {
        let Some(request) = &self.request else { return Ok(Vec::new()) };
        let bytes: mlua::LuaString = request.call(()).map_err(|e| e.to_string())?;
        Ok(bytes.as_bytes().to_vec())
    }

    /// Milliseconds to wait before the next request.
    pub(crate) fn delay_ms(&self) -> Result<f64, String> {
        match &self.delay {
            None => Ok(0.0),
            Some(delay) => delay.call::<Option<f64>>(()).map(|d| d.unwrap_or(0.0)).map_err(|e| e.to_string()),
        }
    }

    /// An answer is there.
    pub(crate) fn response(&self, status: u16, headers: &[(String, String)], body: &[u8]) -> Result<(), String> {
        let Some(response) = &self.response else { return Ok(()) };
        let call = || -> mlua::Result<()> {
            let table = self.lua.create_table()?;
            for (name, value) in headers {
                table.set(name.as_str(), value.as_str())?;
            }
            response.call::<Variadic<Value>>((status, table, self.lua.create_string(body)?)).map(|_| ())
        };
        call().map_err(|e| e.to_string())
    }
}
