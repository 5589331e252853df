//! `ngx.socket.tcp`: connections of programs. They are the thread's, known by number to Lua, which owns a guard that closes them; those
//! that a program gives back (`setkeepalive`) wait in pools for the next. What is read is in `socket_read`.

use super::current::{ANSWERING, machine, request, request_in};
use super::run::{Item, Operation, log, number};
use super::socket_read;
use crate::connection::Address;
use crate::connection::socket::Socket;
use crate::connection::tls::Tls;
use crate::log::error::Level;
use crate::modules::LocationConf;
use crate::request::body;
use crate::resolve::ResolverConfig;
use crate::tls::client::Context;
use crate::upstream::connect;
use crate::upstream::settings::UpstreamSettings;
use ::lua::Fault;
use ::lua::machine::{add as add_function, made_text};
use mlua::{Lua, MultiValue, Table, Value};
use runtime::timer::Timer;
use rustix::net::SocketType;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// Idle connections of one thread, over all pools.
const MAX_IDLE: usize = 4096;

/// One connection of a program.
pub struct Connection {
    /// The connection, if there is one.
    pub socket: Option<Socket>,
    /// What has been read and nobody has asked for.
    pub buffer: Vec<u8>,
    /// For connecting, sending, reading.
    pub timeouts: [Duration; 3],
    /// Bytes that one read asks for.
    pub piece: usize,
    /// It is the request's own body that is read, and whether all of it came.
    pub body: Option<bool>,
    /// Each send and receive is a datagram.
    pub datagrams: bool,
    conf: Conf,
    pool: String,
    reused: u64,
}

/// What holds where the socket was made.
#[derive(Clone)]
struct Conf {
    resolver: Option<Arc<ResolverConfig>>,
    resolver_timeout: Duration,
    pool_size: usize,
    keepalive_timeout: Duration,
    log_errors: bool,
    tls: Option<Arc<Context>>,
}

/// A connection as operations and Lua share it.
pub type Shared = Rc<RefCell<Connection>>;

struct Idle {
    socket: Socket,
    reused: u64,
    until: u64,
}

thread_local! {
    static ALL: RefCell<HashMap<u32, Shared>> = RefCell::default();
    static LAST: Cell<u32> = const { Cell::new(0) };
    static POOLS: RefCell<HashMap<String, VecDeque<Idle>>> = RefCell::default();
    static IDLE: Cell<usize> = const { Cell::new(0) };
}

/// Owned by Lua: the connection goes with it.
struct Guard(u32);

impl mlua::UserData for Guard {}

impl Drop for Guard {
    fn drop(&mut self) {
        // The thread's storage may be gone already when a thread ends.
        let gone = ALL.try_with(|all| all.borrow_mut().remove(&self.0));
        drop(gone);
    }
}

/// See the module's head.
pub fn add(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    add_function(lua, raw, "socket", |lua, kind: String| {
        let number = make()?;
        with(number, |c| c.datagrams = kind == "udp");
        let guard = lua.create_userdata(Guard(number)).map_err(|e| Fault(e.to_string()))?;
        Ok((number, guard))
    })?;
    add_function(lua, raw, "req_socket", |lua, all: Option<bool>| of_request(lua, all == Some(true)))?;
    add_function(
        lua,
        raw,
        "socket_timeouts",
        |_, (number, connect, send, read): (u32, Value, Value, Value)| -> Result<_, Fault> {
            let given = [connect, send, read];
            with(number, |c| {
                for (timeout, value) in c.timeouts.iter_mut().zip(&given) {
                    if let Some(ms) = super::run::number(value).filter(|ms| *ms > 0.0) {
                        *timeout = Duration::from_millis(ms as u64);
                    }
                }
            });
            Ok(())
        },
    )?;
    add_function(
        lua,
        raw,
        "socket_keep",
        |_, (number, ms, size): (u32, Option<f64>, Option<f64>)| -> Result<_, Fault> {
            Ok(match with(number, |c| keep(c, ms, size)) {
                Some(Ok(())) => (Some(1), None),
                Some(Err(text)) => (None, Some(text)),
                None => (None, Some("closed")),
            })
        },
    )?;
    add_function(lua, raw, "socket_reused", |_, number: u32| -> Result<_, Fault> {
        Ok(match with(number, |c| c.socket.is_some().then_some(c.reused)).flatten() {
            Some(times) => (Some(times), None),
            None => (None, Some("closed")),
        })
    })?;
    add_function(lua, raw, "socket_close", |_, number: u32| -> Result<_, Fault> {
        let closed = with(number, |c| {
            c.buffer.clear();
            c.socket.take()
        });
        Ok(if closed.flatten().is_some() { (Some(1), None) } else { (None, Some("closed")) })
    })?;
    add_function(lua, raw, "socket_fd", |_, number: u32| -> Result<_, Fault> {
        Ok(match with(number, |c| c.socket.as_ref().map(|s| s.as_raw_fd())).flatten() {
            Some(fd) => (Some(fd), None),
            None => (None, Some("closed")),
        })
    })
}

/// The values that hold for a program: the request's, or without one those of the first server.
fn with_conf<T>(show: impl FnOnce(&LocationConf) -> T) -> Result<T, Fault> {
    let mut show = Some(show);
    let of_request = request(|r| Ok(show.take().map(|show| show(r.conf()))));
    if let Ok(Some(shown)) = of_request {
        return Ok(shown);
    }
    let snapshot = machine()?.snapshot.upgrade();
    let snapshot = snapshot.ok_or_else(|| Fault("the configuration is gone".to_owned()))?;
    let root = snapshot.servers.first().map(|s| s.root).unwrap_or_default();
    let show = show.ok_or_else(|| Fault("the configuration is gone".to_owned()))?;
    Ok(show(&snapshot.location(root).conf))
}

fn make() -> Result<u32, Fault> {
    let connection = with_conf(|conf| Connection {
        socket: None,
        buffer: Vec::new(),
        timeouts: [*conf.lua.socket_connect_timeout, *conf.lua.socket_send_timeout, *conf.lua.socket_read_timeout],
        piece: (*conf.lua.socket_buffer_size as usize).max(1),
        conf: Conf {
            resolver: (*conf.core.resolver).clone(),
            resolver_timeout: *conf.core.resolver_timeout,
            pool_size: *conf.lua.socket_pool_size as usize,
            keepalive_timeout: *conf.lua.socket_keepalive_timeout,
            log_errors: *conf.lua.socket_log_errors,
            tls: conf.lua.tls.clone(),
        },
        body: None,
        datagrams: false,
        pool: String::new(),
        reused: 0,
    })?;
    let number = LAST.get().wrapping_add(1);
    LAST.set(number);
    ALL.with_borrow_mut(|all| all.insert(number, Rc::new(RefCell::new(connection))));
    Ok(number)
}

/// `ngx.req.socket()`: the request's body, read by the program itself.
fn of_request(lua: &Lua, all: bool) -> Result<(Value, Value), Fault> {
    let refuse = |why: &str| -> Result<(Value, Value), Fault> {
        Ok((Value::Nil, Value::String(made_text(lua, why.as_bytes())?)))
    };
    if all {
        return refuse("ngx.req.socket(true) is not supported yet");
    }
    let refused = request_in(ANSWERING, |r| {
        if r.body.stored.is_some() || r.body.is_discarded() {
            return Ok(Some("request body already exists"));
        }
        if !r.is_main() || !r.body.is_present() {
            return Ok(Some("no body"));
        }
        if std::mem::replace(&mut r.body.streamed, true) {
            return Ok(Some("duplicate call"));
        }
        body::confirm_expectation(r);
        Ok(None)
    })?;
    if let Some(why) = refused {
        return refuse(why);
    }
    let number = make()?;
    with(number, |c| c.body = Some(false));
    let guard = lua.create_userdata(Guard(number)).map_err(|e| Fault(e.to_string()))?;
    Ok((Value::Integer(i64::from(number)), Value::UserData(guard)))
}

fn shared(number: u32) -> Option<Shared> {
    ALL.with_borrow(|all| all.get(&number).cloned())
}

fn with<T>(number: u32, work: impl FnOnce(&mut Connection) -> T) -> Option<T> {
    let shared = shared(number)?;
    let mut connection = shared.try_borrow_mut().ok()?;
    Some(work(&mut connection))
}

/// Gives a connection to its pool.
fn keep(c: &mut Connection, ms: Option<f64>, size: Option<f64>) -> Result<(), &'static str> {
    let mut socket = c.socket.take().ok_or("closed")?;
    if !c.buffer.is_empty() {
        return Err("unread data in buffer");
    }
    if has_news(&mut socket) {
        return Err("connection in dubious state");
    }
    let lifetime = ms.map_or(c.conf.keepalive_timeout, |ms| Duration::from_millis(ms as u64));
    let until = match lifetime.is_zero() {
        true => u64::MAX,
        false => runtime::clock::monotonic_ms() + lifetime.as_millis() as u64,
    };
    let size = size.map_or(c.conf.pool_size, |s| s as usize);
    POOLS.with_borrow_mut(|pools| {
        if !pools.contains_key(&c.pool) {
            log(Level::Debug, format_args!("lua tcp socket keepalive create connection pool for key \"{}\"", c.pool));
            log(Level::Debug, format_args!("lua tcp socket connection pool size: {size}"));
        }
        let pool = pools.entry(std::mem::take(&mut c.pool)).or_default();
        while pool.len() >= size.max(1) {
            pool.pop_front();
            IDLE.set(IDLE.get() - 1);
        }
        if IDLE.get() < MAX_IDLE {
            pool.push_back(Idle { socket, reused: c.reused + 1, until });
            IDLE.set(IDLE.get() + 1);
        }
    });
    Ok(())
}

/// Whether an idle connection has said something, or has ended.
fn has_news(socket: &mut Socket) -> bool {
    let mut room = Vec::with_capacity(1);
    !matches!(socket.try_read(&mut room), Err(e) if e.kind() == io::ErrorKind::WouldBlock)
}

fn take_idle(pool: &str) -> Option<Idle> {
    let now = runtime::clock::monotonic_ms();
    POOLS.with_borrow_mut(|pools| {
        let found = pools.get_mut(pool)?;
        let mut taken = None;
        while let Some(mut idle) = found.pop_back() {
            IDLE.set(IDLE.get() - 1);
            if idle.until > now && !has_news(&mut idle.socket) {
                taken = Some(idle);
                break;
            }
        }
        if found.is_empty() {
            log(Level::Debug, format_args!("lua tcp socket keepalive: free connection pool for \"{pool}\""));
            pools.remove(pool);
        }
        taken
    })
}

fn text(values: &MultiValue, at: usize) -> Option<Vec<u8>> {
    match values.get(at)? {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        _ => None,
    }
}

/// `nil` and why.
pub fn failed(why: impl Into<Vec<u8>>) -> Vec<Item> {
    vec![Item::Nil, Item::Text(why.into())]
}

/// Begins an operation.
///
/// # Errors
/// What is wrong with the call.
pub fn start(kind: &str, values: &MultiValue) -> Result<Operation, Fault> {
    let Some(shared) = values.front().and_then(number).and_then(|n| shared(n as u32)) else {
        return Err(Fault("bad socket object".to_owned()));
    };
    if kind == "connect" {
        let host = String::from_utf8_lossy(&text(values, 1).unwrap_or_default()).into_owned();
        let port = values.get(2).and_then(number).unwrap_or(0.0) as u16;
        let pool = text(values, 3).map(|p| String::from_utf8_lossy(&p).into_owned());
        let size = values.get(4).and_then(number);
        return Ok(Box::pin(connect(shared, host, port, pool, size)));
    }
    if shared.try_borrow().is_ok_and(|c| c.socket.is_none() && c.body.is_none()) {
        let what = if kind == "send" { "send" } else { "receive" };
        complain(&shared, format_args!("attempt to {what} data on a closed socket: u:0, c:0, ft:0 eof:0"));
        return Ok(Box::pin(std::future::ready(failed("closed"))));
    }
    match kind {
        "send" => Ok(Box::pin(send(shared, text(values, 1).unwrap_or_default()))),
        "handshake" => {
            let name = text(values, 1);
            let verify = matches!(values.get(2), Some(Value::Boolean(true)));
            Ok(Box::pin(handshake(shared, name, verify)))
        }
        _ => socket_read::start(kind, shared, values),
    }
}

/// A line about a failure, unless `lua_socket_log_errors off`.
pub fn complain(shared: &Shared, line: std::fmt::Arguments<'_>) {
    if shared.borrow().conf.log_errors {
        log(Level::Error, line);
    }
}

async fn connect(shared: Shared, host: String, port: u16, pool: Option<String>, size: Option<f64>) -> Vec<Item> {
    let is_unix = host.starts_with("unix:");
    let key = pool.unwrap_or_else(|| if is_unix { host.clone() } else { format!("{host}:{port}") });
    let (conf, timeout, kind) = {
        let mut c = shared.borrow_mut();
        c.socket = None;
        c.buffer.clear();
        c.pool.clone_from(&key);
        c.reused = 0;
        if let Some(size) = size {
            c.conf.pool_size = size as usize;
        }
        let kind = if c.datagrams { SocketType::DGRAM } else { SocketType::STREAM };
        (c.conf.clone(), c.timeouts[0], kind)
    };
    if let Some(idle) = take_idle(&key) {
        log(Level::Debug, format_args!("lua tcp socket get keepalive peer: using connection"));
        let mut c = shared.borrow_mut();
        (c.socket, c.reused) = (Some(idle.socket), idle.reused);
        return vec![Item::Number(1.0)];
    }
    let to = match address(&conf, &host, port).await {
        Ok(to) => to,
        Err(text) => return failed(text),
    };
    let connecting = match connect::begin_as(kind, &to, None, &UpstreamSettings::default()) {
        Ok(connecting) => connecting,
        Err(e) => return refuse(&shared, &e.error),
    };
    log(Level::Debug, format_args!("lua tcp socket connect timeout: {}", timeout.as_millis()));
    let timer = Timer::new();
    timer.set(timeout);
    match timer.guard(connect::finish(connecting)).await {
        Some(Ok(socket)) => {
            shared.borrow_mut().socket = Some(socket);
            vec![Item::Number(1.0)]
        }
        Some(Err(e)) => refuse(&shared, &e.error),
        None => {
            complain(&shared, format_args!("lua tcp socket connect timed out, when connecting to {}", shown(&to)));
            failed("timeout")
        }
    }
}

fn shown(to: &Address) -> String {
    match to {
        Address::Inet(a) => a.to_string(),
        Address::Unix(path) => format!("unix:{}", path.display()),
    }
}

fn refuse(shared: &Shared, error: &io::Error) -> Vec<Item> {
    complain(shared, format_args!("connect() failed ({})", crate::log::os_error(error)));
    failed(reason(error))
}

/// An error as programs know it: the system's text in lower case.
pub fn reason(error: &io::Error) -> String {
    let text = crate::log::os_error(error);
    let text = text.split_once(": ").map_or(text.as_str(), |(_, text)| text).to_owned();
    text.to_ascii_lowercase()
}

async fn address(conf: &Conf, host: &str, port: u16) -> Result<Address, String> {
    if let Some(path) = host.strip_prefix("unix:") {
        return Ok(Address::Unix(path.into()));
    }
    if let Ok(ip) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(Address::Inet(SocketAddr::new(ip, port)));
    }
    let Some(resolver) = &conf.resolver else { return Err(format!("no resolver defined to resolve \"{host}\"")) };
    let found = crate::upstream::names::resolve(resolver, host, conf.resolver_timeout).await;
    let addresses = found.map_err(|text| format!("{host} could not be resolved ({text})"))?;
    let first = addresses.first().ok_or_else(|| format!("{host} could not be resolved"))?;
    Ok(Address::Inet(SocketAddr::new(*first, port)))
}

/// `sslhandshake`: from here on what is sent and read is plain above TLS.
async fn handshake(shared: Shared, name: Option<Vec<u8>>, verify: bool) -> Vec<Item> {
    let (socket, context, timeout) = {
        let mut c = shared.borrow_mut();
        if c.socket.as_ref().is_some_and(|s| s.tls().is_some()) {
            // A connection of a pool has it behind it.
            return vec![Item::Flag(true)];
        }
        if !c.buffer.is_empty() {
            return failed("unread data in buffer");
        }
        (c.socket.take(), c.conf.tls.clone(), c.timeouts[0])
    };
    let (Some(socket), Some(context)) = (socket, context) else { return failed("closed") };
    let host = name.unwrap_or_default();
    let secure = context.for_checks(&host, &[]);
    let mut tls = match Tls::client(socket, secure.config(), secure.server_name(), 0) {
        Ok(tls) => tls,
        Err(e) => return failed(format!("handshake failed: {e}")),
    };
    let timer = Timer::new();
    timer.set(timeout);
    match timer.guard(poll_fn(|cx| tls.poll_handshake(cx))).await {
        None => {
            complain(&shared, format_args!("lua ssl handshake timed out"));
            return failed("timeout");
        }
        Some(Err(e)) => {
            complain(&shared, format_args!("SSL_do_handshake() failed (SSL: {e})"));
            let text = if e.kind() == io::ErrorKind::UnexpectedEof {
                "closed".to_owned()
            } else {
                format!("handshake failed: {e}")
            };
            return failed(text);
        }
        Some(Ok(())) => {}
    }
    if verify {
        let chain = tls.state().peer_certificates().unwrap_or_default();
        let distrust = match context.verifies() {
            false => Some("20: unable to get local issuer certificate".to_owned()),
            true => secure.verify(chain, runtime::clock::wall_seconds()).err().map(|d| d.to_string()),
        };
        if let Some(text) = distrust {
            complain(&shared, format_args!("lua ssl certificate verify error: ({text})"));
            return failed(text);
        }
    }
    shared.borrow_mut().socket = Some(Socket::encrypted(tls));
    vec![Item::Flag(true)]
}

async fn send(shared: Shared, bytes: Vec<u8>) -> Vec<Item> {
    let timer = Timer::new();
    let timeout = shared.borrow().timeouts[1];
    timer.set(timeout);
    log(Level::Debug, format_args!("lua tcp socket send timeout: {}", timeout.as_millis()));
    let mut at = 0;
    let result = poll_fn(|cx| {
        while at < bytes.len() {
            let mut c = shared.borrow_mut();
            let Some(socket) = &mut c.socket else { return Poll::Ready(Err(io::ErrorKind::NotConnected.into())) };
            match socket.poll_write_with(cx, |s| s.try_write(&bytes[at..], false)) {
                Poll::Ready(Ok(n)) => {
                    at += n;
                    timer.set(timeout);
                }
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending => return timer.poll_expired(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
            }
        }
        Poll::Ready(Ok(()))
    })
    .await;
    match result {
        Ok(()) => vec![Item::Number(bytes.len() as f64)],
        Err(e) if e.kind() == io::ErrorKind::NotConnected => failed("closed"),
        Err(e) if e.kind() == io::ErrorKind::TimedOut && e.raw_os_error().is_none() => {
            complain(&shared, format_args!("lua tcp socket write timed out"));
            shared.borrow_mut().socket = None;
            failed("timeout")
        }
        Err(e) => {
            complain(&shared, format_args!("send() failed ({})", crate::log::os_error(&e)));
            shared.borrow_mut().socket = None;
            failed(reason(&e))
        }
    }
}
