//! wrk's scripts: Lua (LuaJIT) with the hooks `setup init delay request response done` and `wrk.format`. Every client thread has
//! a Lua state of its own, as in wrk; `setup` and `done` run in the first state.

use crate::plan::Plan;
use crate::run::Record;
use crate::sample::{Failure, Latencies};
use mlua::{Function, Lua, MetaMethod, Table, UserData, UserDataFields, UserDataMethods, Value, Variadic};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const PRELUDE: &str = include_str!("prelude.lua");
/// How long `wrk.connect` tries.
const CONNECT: Duration = Duration::from_secs(1);
/// Tables within tables that `thread:set` copies.
const MAX_DEPTH: u32 = 16;

/// A script, in one state for each thread.
pub struct Script {
    states: Vec<State>,
    failure: Failed,
}

/// Why a hook failed, the first that did.
type Failed = Arc<Mutex<Option<String>>>;

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Script in {} states", self.states.len())
    }
}

/// A thread's state.
#[derive(Clone)]
pub(crate) struct State {
    lua: Lua,
    request: Option<Function>,
    response: Option<Function>,
    delay: Option<Function>,
    stopped: Arc<AtomicBool>,
    address: Arc<Mutex<Option<SocketAddr>>>,
    failure: Failed,
}

/// What scripts know as `thread`.
struct Thread {
    lua: Lua,
    stopped: Arc<AtomicBool>,
    address: Arc<Mutex<Option<SocketAddr>>>,
}

impl UserData for Thread {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_field_method_get("addr", |_, this| Ok(address(&this.address).map(|a| a.to_string())));
        fields.add_field_method_set("addr", |_, this, text: String| {
            let parsed = text.parse().map_err(|_| mlua::Error::runtime(format!("\"{text}\" is not of wrk.lookup")))?;
            *this.address.lock().unwrap_or_else(PoisonError::into_inner) = Some(parsed);
            Ok(())
        });
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("get", |lua, this, name: mlua::LuaString| {
            copy(&this.lua.globals().get::<Value>(name.to_string_lossy())?, lua, MAX_DEPTH)
        });
        methods.add_method("set", |_, this, (name, value): (mlua::LuaString, Value)| {
            this.lua.globals().set(name.to_string_lossy(), copy(&value, &this.lua, MAX_DEPTH)?)
        });
        methods.add_method("stop", |_, this, ()| {
            this.stopped.store(true, Ordering::Relaxed);
            Ok(())
        });
    }
}

fn address(place: &Mutex<Option<SocketAddr>>) -> Option<SocketAddr> {
    *place.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The same value in another state; functions and the like become nil.
fn copy(value: &Value, to: &Lua, depth: u32) -> mlua::Result<Value> {
    Ok(match value {
        Value::Boolean(b) => Value::Boolean(*b),
        Value::Integer(i) => Value::Integer(*i),
        Value::Number(n) => Value::Number(*n),
        Value::String(s) => Value::String(to.create_string(s.as_bytes())?),
        Value::Table(table) if depth > 0 => {
            let new = to.create_table()?;
            for pair in table.pairs::<Value, Value>() {
                let (key, value) = pair?;
                new.set(copy(&key, to, depth - 1)?, copy(&value, to, depth - 1)?)?;
            }
            Value::Table(new)
        }
        _ => Value::Nil,
    })
}

impl Script {
    /// Loads a script (`file` is its name, `text` what stands in it) into a state for each thread, and calls `setup` for each.
    ///
    /// # Errors
    /// Lua's own message.
    pub fn load(file: &Path, text: &[u8], arguments: &[String], plan: &Plan) -> Result<Script, String> {
        let load = || -> mlua::Result<Script> {
            let name = format!("@{}", file.display());
            let failure = Failed::default();
            let state = || state(text, &name, plan, failure.clone());
            let states = (0..plan.threads).map(|_| state()).collect::<mlua::Result<Vec<_>>>()?;
            let first = &states[0].lua;
            if let Some(setup) = hook(first, "setup")? {
                for state in &states {
                    let thread = state.thread();
                    setup.call::<()>(first.create_userdata(thread)?)?;
                }
            }
            let states = states.into_iter().map(|s| begin(s, arguments)).collect::<mlua::Result<Vec<_>>>()?;
            Ok(Script { states, failure })
        };
        load().map_err(|e| e.to_string())
    }

    /// Why a hook failed during the run, if one did: the numbers are of something else then.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn state(&self, thread: usize) -> State {
        self.states[thread].clone()
    }

    /// The request of each thread that has no `request` of its own: all threads' first one's.
    pub(crate) fn fixed_request(&self) -> Option<Vec<u8>> {
        self.states[0].lua.globals().get::<mlua::LuaString>("__fixed").ok().map(|s| s.as_bytes().to_vec())
    }

    /// What the script has printed goes out before what is printed next: Lua writes through C's buffer, which is not ours. A script
    /// that has closed its output has nothing there.
    pub fn flush(&self) {
        let _ = self.states[0].lua.load("io.stdout:flush()").exec();
    }

    /// Calls `done`.
    ///
    /// # Errors
    /// Lua's own message.
    pub fn done(&self, record: &Record) -> Result<(), String> {
        let call = || -> mlua::Result<()> {
            let lua = &self.states[0].lua;
            let Some(done) = hook(lua, "done")? else { return Ok(()) };
            let latency = Statistics::new(record.sample.latency.clone(), 1e-3);
            // Rates are whole requests a second; as "nanoseconds" they fit the same histogram.
            let mut rates = Latencies::default();
            record.sample.rates.iter().for_each(|&rate| rates.record(rate as u64));
            done.call((summary(lua, record)?, latency, Statistics::new(rates, 1.0)))
        };
        call().map_err(|e| e.to_string())
    }
}

fn hook(lua: &Lua, name: &str) -> mlua::Result<Option<Function>> {
    lua.globals().get(name)
}

fn state(text: &[u8], name: &str, plan: &Plan, failure: Failed) -> mlua::Result<State> {
    let lua = Lua::new();
    let globals = lua.globals();
    let headers = lua.create_table()?;
    for (name, value) in &plan.headers {
        headers.set(name.as_str(), value.as_str())?;
    }
    globals.set("__scheme", plan.url.scheme.name())?;
    globals.set("__host", plan.url.host.as_str())?;
    globals.set("__port", plan.url.port)?;
    globals.set("__path", plan.url.path.as_str())?;
    globals.set("__authority", plan.url.authority.as_str())?;
    globals.set("__method", plan.method.as_str())?;
    globals.set("__headers", headers)?;
    globals.set("__body", plan.body.as_ref().map(|b| lua.create_string(b)).transpose()?)?;
    lua.load(PRELUDE).set_name("=wrk").exec()?;
    let (stopped, address) = (Arc::default(), Arc::default());
    let state = State { lua: lua.clone(), request: None, response: None, delay: None, stopped, address, failure };
    let wrk: Table = globals.get("wrk")?;
    wrk.set("thread", lua.create_userdata(state.thread())?)?;
    add_network(&lua, &wrk)?;
    lua.load(text).set_name(name).exec()?;
    Ok(state)
}

/// Calls `init`, and then looks which hooks there are: `init` may have made them.
fn begin(state: State, arguments: &[String]) -> mlua::Result<State> {
    let globals = state.lua.globals();
    let begin: Function = globals.get("__begin")?;
    let arguments = state.lua.create_sequence_from(arguments.iter().map(String::as_str))?;
    let fixed: mlua::LuaString = begin.call(arguments)?;
    globals.set("__fixed", fixed)?;
    let (request, response, delay) =
        (hook(&state.lua, "request")?, hook(&state.lua, "response")?, hook(&state.lua, "delay")?);
    Ok(State { request, response, delay, ..state })
}

fn summary(lua: &Lua, record: &Record) -> mlua::Result<Table> {
    let s = &record.sample;
    let of = |kinds: &[Failure]| kinds.iter().map(|&k| s.failures_of(k)).sum::<u64>();
    use Failure::*;
    let errors = lua.create_table()?;
    errors.set("connect", of(&[Refused, ConnectTimeout, Connect, NoPort, NoDescriptor, Tls]))?;
    errors.set("read", of(&[Reset, Closed, Protocol]))?;
    errors.set("write", of(&[Write]))?;
    errors.set("status", s.statuses.range(400..).map(|(_, c)| c).sum::<u64>())?;
    errors.set("timeout", of(&[Timeout]))?;
    let summary = lua.create_table()?;
    summary.set("duration", (record.seconds * 1e6) as u64)?;
    summary.set("requests", s.answers)?;
    summary.set("bytes", s.bytes_read)?;
    summary.set("errors", errors)?;
    Ok(summary)
}

/// Statistics as `done` gets them: fields, percentiles by call, and each value that occurred with its count.
struct Statistics {
    numbers: Latencies,
    pairs: Vec<(u64, u64)>,
    /// Turns the histogram's unit into the script's.
    scale: f64,
}

impl Statistics {
    fn new(numbers: Latencies, scale: f64) -> Statistics {
        Statistics { pairs: numbers.pairs().collect(), numbers, scale }
    }
}

impl UserData for Statistics {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_field_method_get("min", |_, s| Ok(s.numbers.min() as f64 * s.scale));
        fields.add_field_method_get("max", |_, s| Ok(s.numbers.max() as f64 * s.scale));
        fields.add_field_method_get("mean", |_, s| Ok(s.numbers.mean() * s.scale));
        fields.add_field_method_get("stdev", |_, s| Ok(s.numbers.stdev() * s.scale));
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("percentile", |_, s, p: f64| Ok(s.numbers.quantile(p / 100.0) as f64 * s.scale));
        methods.add_meta_method(MetaMethod::Len, |_, s, ()| Ok(s.pairs.len()));
        methods.add_meta_method(MetaMethod::Call, |_, s, index: usize| {
            let (value, count) = index.checked_sub(1).and_then(|i| s.pairs.get(i)).copied().unwrap_or_default();
            Ok((value as f64 * s.scale, count))
        });
    }
}

impl State {
    fn thread(&self) -> Thread {
        Thread { lua: self.lua.clone(), stopped: self.stopped.clone(), address: self.address.clone() }
    }

    /// A hook failed.
    pub(crate) fn fail(&self, text: &str) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| text.to_owned());
    }

    /// Where the script sends this thread, if not to the URL's host.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        address(&self.address)
    }

    pub(crate) fn has_request(&self) -> bool {
        self.request.is_some()
    }

    pub(crate) fn has_response(&self) -> bool {
        self.response.is_some()
    }

    /// `thread:stop()` was called.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
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

/// The requests that some bytes are: a script may send several at once. At least one.
pub(crate) fn requests_in(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(bytes);
    std::iter::from_fn(move || {
        let (one, left) = take_request(rest?);
        rest = Some(left).filter(|left| !left.is_empty());
        Some(one)
    })
}

/// The first of them, and what follows it.
fn take_request(bytes: &[u8]) -> (&[u8], &[u8]) {
    let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") else { return (bytes, &[]) };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|l| l.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    bytes.split_at((end + 4).saturating_add(length.unwrap_or(0)).min(bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_requests_at_once() {
        let bytes =
            b"GET / HTTP/1.1\r\n\r\nPOST /b HTTP/1.1\r\nContent-Length: 6\r\n\r\n\r\n\r\nabGET /c HTTP/1.1\r\n\r\n";
        let lengths: Vec<usize> = requests_in(bytes).map(<[u8]>::len).collect();
        assert_eq!(lengths, [18, 45, 19]);
        assert_eq!(requests_in(b"").count(), 1);
    }
}
