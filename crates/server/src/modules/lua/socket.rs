//! `ngx.socket.tcp`: connections of programs. They are the thread's, known by number to Lua, which owns a guard that closes them; those
//! that a program gives back (`setkeepalive`) wait in pools for the next. What is read is in `socket_read`.

use super::current::{ANSWERING, Phase, connection, machine, need, phase, request, request_in};
use super::operation::{Item, Operation, number};
use super::run::log;
use super::socket_pool::{self, Entry, Grant, Idle, Seat};
use super::{current, raw, socket_read, socket_tls};
use crate::connection::Address;
use crate::connection::socket::Socket;
use crate::log::error::Level;
use crate::modules::LocationConf;
use crate::request::{Request, body};
use crate::tls::client::Context;
use crate::upstream::connect;
use crate::upstream::settings::UpstreamSettings;
use ::lua::Fault;
use ::lua::machine::{add as add_function, made_text};
use ::lua::quick::{self, Guards, Kind};
use hashbrown::HashMap;
use mlua::{Lua, LuaString, MultiValue, Table, Value};
use resolve::ResolverConfig;
use runtime::timer::Timer;
use rustix::net::{SocketType, sockopt};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

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
    /// It is the request's own connection.
    pub raw: bool,
    /// Somebody waits: to connect, to send, to read.
    busy: [bool; 3],
    /// Each send and receive is a datagram.
    pub datagrams: bool,
    /// The other side has said its last, or reading has failed: nothing more is read.
    pub ended: bool,
    /// Whose it is: nobody else may use it.
    owner: u64,
    /// The client's request that that is a part of.
    root: current::Root,
    /// Whom it is connected to, for the log: `localhost:80(127.0.0.1)`.
    peer: String,
    /// `bind`
    local: Option<SocketAddr>,
    /// `setclientcert`
    pub(super) certificate: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    /// What holds where it was made.
    pub conf: Conf,
    pool: String,
    /// Its place in the pool.
    seat: Option<Seat>,
    reused: u64,
}

/// What holds where the socket was made.
#[derive(Clone)]
pub struct Conf {
    resolver: Option<Arc<ResolverConfig>>,
    resolver_timeout: Duration,
    pool_size: usize,
    keepalive_timeout: Duration,
    log_errors: bool,
    nodelay: bool,
    /// What handshakes need.
    pub tls: Option<Arc<Context>>,
    /// `lua_ssl_key_log`
    pub key_log: Option<usize>,
}

/// A connection as operations and Lua share it.
pub type Shared = Rc<RefCell<Connection>>;

thread_local! {
    static ALL: RefCell<HashMap<u32, Shared>> = RefCell::default();
    static LAST: Cell<u32> = const { Cell::new(0) };
    /// Which each owner has, so that they end with it.
    static OWNED: RefCell<HashMap<u64, Vec<u32>>> = RefCell::default();
}

/// Lua has let go of it.
fn let_go(number: u32) {
    // The thread's storage may be gone already when a thread ends.
    let gone = ALL.try_with(|all| all.borrow_mut().remove(&number));
    if let Ok(Some(connection)) = gone {
        let owner = connection.try_borrow().map(|c| c.owner);
        owner.into_iter().for_each(|owner| disown(owner, number));
    }
}

/// A request, or a program without one, is over: connections that its programs have not closed are closed.
pub(super) fn end_of(owner: u64) {
    let numbers = OWNED.try_with(|owned| owned.borrow_mut().remove(&owner));
    for number in numbers.into_iter().flatten().flatten() {
        let connection = ALL.try_with(|all| all.borrow().get(&number).cloned());
        if let Ok(Some(connection)) = &connection
            && let Ok(mut connection) = connection.try_borrow_mut()
        {
            connection.close();
        }
    }
}

fn own(owner: u64, number: u32) {
    OWNED.with_borrow_mut(|owned| owned.entry(owner).or_default().push(number));
}

fn disown(owner: u64, number: u32) {
    let _ = OWNED.try_with(|owned| {
        let mut owned = owned.borrow_mut();
        let Some(numbers) = owned.get_mut(&owner) else { return };
        numbers.retain(|other| *other != number);
        if numbers.is_empty() {
            owned.remove(&owner);
        }
    });
}

/// See the module's head.
pub fn add(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    let guards = Guards::new(lua, let_go)?;
    quick::add(lua, raw, "socket", move |call| {
        let number = make(call.argument(1) == Kind::Text(b"udp"))?;
        call.give_number(f64::from(number));
        call.give_guard(&guards, number);
        Ok(())
    })?;
    let guards = Guards::new(lua, let_go)?;
    quick::add(lua, raw, "req_socket", move |call| {
        match of_request(!matches!(call.argument(1), Kind::Nil | Kind::Flag(false)))? {
            Ok((number, datagrams)) => {
                call.give_number(f64::from(number));
                call.give_guard(&guards, number);
                call.give_flag(datagrams);
            }
            Err(why) => {
                call.give_nil();
                call.give_bytes(why.as_bytes());
                call.give_flag(false);
            }
        }
        Ok(())
    })?;
    add_function(
        lua,
        raw,
        "socket_timeouts",
        |_, (number, connect, send, read): (u32, Value, Value, Value)| -> Result<_, Fault> {
            let given = [connect, send, read];
            with(number, |c| {
                for (timeout, value) in c.timeouts.iter_mut().zip(&given) {
                    if let Some(ms) = super::operation::number(value).filter(|ms| *ms > 0.0) {
                        *timeout = Duration::from_millis(ms as u64);
                    }
                }
            })?;
            Ok(())
        },
    )?;
    quick::add(lua, raw, "socket_keep", |call| {
        let number = call.number(1).unwrap_or_default() as u32;
        match with(number, |c| keep(c, call.number(2), call.number(3)))? {
            Ok(()) => call.give_number(1.0),
            Err(text) => {
                call.give_nil();
                call.give_bytes(text.as_bytes());
            }
        }
        Ok(())
    })?;
    add_function(lua, raw, "socket_reused", |_, number: u32| -> Result<_, Fault> {
        Ok(match with(number, |c| (c.socket.is_some() || c.busy[0]).then_some(c.reused))? {
            Some(times) => (Some(times), None),
            None => (None, Some("closed")),
        })
    })?;
    add_function(lua, raw, "socket_bind", |lua, (number, ip, port): (u32, LuaString, u16)| {
        let Ok(ip) = ip.to_string_lossy().parse::<IpAddr>() else {
            return Ok((Value::Nil, Some(Value::String(made_text(lua, b"bad address")?))));
        };
        log(Level::Debug, format_args!("lua tcp socket bind ip: {ip}"));
        with(number, |c| c.local = Some(SocketAddr::new(ip, port)))?;
        Ok((Value::Integer(1), None))
    })?;
    add_function(
        lua,
        raw,
        "socket_option",
        |_, (number, name, value): (u32, String, Option<f64>)| -> Result<_, Fault> {
            with(number, |c| option(c, &name, value))?
        },
    )?;
    add_function(lua, raw, "socket_certificate", |_, (number, chain, key): (u32, Value, Value)| -> Result<_, Fault> {
        if chain.is_nil() {
            with(number, |c| c.certificate = None)?;
            return Ok((Some(true), None));
        }
        match (super::api::ssl::chain_of(&chain)?, super::api::ssl::key_of(&key)?) {
            (Ok(chain), Ok(key)) => {
                with(number, |c| c.certificate = Some((chain, key)))?;
                Ok((Some(true), None))
            }
            (Err(why), _) | (_, Err(why)) => Ok((None, Some(why))),
        }
    })?;
    add_function(lua, raw, "socket_shutdown", |_, number: u32| -> Result<_, Fault> {
        let own = with(number, |c| match (&mut c.socket, c.raw) {
            (Some(socket), _) => {
                socket.shutdown();
                Some(true)
            }
            (None, true) => None,
            (None, false) => Some(false),
        });
        let done = match own? {
            Some(done) => done,
            None => request(|r| Ok(super::raw::shutdown(r)))?,
        };
        Ok(if done { (Some(1), None) } else { (None, Some("closed")) })
    })?;
    add_function(lua, raw, "socket_close", |_, number: u32| -> Result<_, Fault> {
        if with(number, |c| c.raw || c.body.is_some())? {
            return Ok((None, Some("attempt to close a request socket")));
        }
        if with(number, |c| c.busy[1])? {
            return Ok((None, Some("socket busy writing")));
        }
        if with(number, |c| c.busy[2])? {
            return Ok((None, Some("socket busy reading")));
        }
        if with(number, |c| c.busy[0])? {
            return Ok((None, Some("socket busy connecting")));
        }
        let closed = with(number, |c| {
            c.buffer.clear();
            let had = c.socket.is_some();
            c.close();
            had
        })?;
        Ok(if closed { (Some(1), None) } else { (None, Some("closed")) })
    })?;
    add_function(lua, raw, "socket_fd", |_, number: u32| -> Result<_, Fault> {
        let own =
            with(
                number,
                |c| if c.raw || c.body.is_some() { None } else { Some(c.socket.as_ref().map(|s| s.as_raw_fd())) },
            );
        let fd = match own? {
            Some(fd) => fd,
            // That of the request's own connection.
            None => request(|r| Ok(raw::fd(r)))?,
        };
        Ok(match fd {
            Some(fd) => (Some(fd), None),
            None => (None, Some("closed")),
        })
    })
}

/// The values that hold for a program: the request's, or without one those of the first server.
fn with_conf<T>(show: impl FnOnce(&LocationConf) -> T) -> Result<T, Fault> {
    let mut show = Some(show);
    let of_request = connection(|r| Ok(show.take().map(|show| show(r.conf()))));
    if let Ok(Some(shown)) = of_request {
        return Ok(shown);
    }
    let snapshot = machine()?.snapshot.upgrade();
    let snapshot = snapshot.ok_or_else(|| Fault("the configuration is gone".to_owned()))?;
    let root = snapshot.servers.first().map(|s| s.root).unwrap_or_default();
    let show = show.ok_or_else(|| Fault("the configuration is gone".to_owned()))?;
    Ok(show(&snapshot.location(root).conf))
}

fn make(datagrams: bool) -> Result<u32, Fault> {
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
            nodelay: *conf.core.tcp_nodelay,
            tls: conf.lua.tls.clone(),
            key_log: *conf.lua.ssl_key_log,
        },
        body: None,
        raw: false,
        busy: [false; 3],
        ended: false,
        owner: current::owner(),
        root: current::root(),
        peer: String::new(),
        local: None,
        certificate: None,
        seat: None,
        datagrams,
        pool: String::new(),
        reused: 0,
    })?;
    let number = LAST.get().wrapping_add(1);
    LAST.set(number);
    own(connection.owner, number);
    ALL.with_borrow_mut(|all| all.insert(number, Rc::new(RefCell::new(connection))));
    Ok(number)
}

/// `ngx.req.socket()`: the request's body, read by the program itself. Also whether it is of datagrams.
fn of_request(all: bool) -> Result<Result<(u32, bool), &'static str>, Fault> {
    if phase() != Phase::Preread {
        need(ANSWERING)?;
    }
    if phase() == Phase::Preread || request(|r| Ok(r.ctx.stream.is_some()))? {
        let datagrams = request(|r| Ok(r.ctx.stream.as_ref().is_some_and(|facts| facts.datagrams)))?;
        let number = make(datagrams)?;
        with(number, |c| c.raw = true)?;
        return Ok(Ok((number, datagrams)));
    }
    if all {
        if let Some(why) = request_in(ANSWERING, take_over)? {
            return Ok(Err(why));
        }
        let number = make(false)?;
        with(number, |c| c.raw = true)?;
        return Ok(Ok((number, false)));
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
        return Ok(Err(why));
    }
    let number = make(false)?;
    with(number, |c| c.body = Some(false))?;
    Ok(Ok((number, false)))
}

/// The request's connection becomes the program's. The text says why not.
fn take_over(r: &mut Request) -> Result<Option<&'static str>, Fault> {
    if !r.is_main() {
        return Ok(Some("attempt to read the request body in a subrequest"));
    }
    if r.downstream.http1().is_none() {
        return Ok(Some("http v2 not supported yet"));
    }
    let context = r.ctx.lua.get_or_insert_default();
    if context.held.is_some() {
        return Ok(Some("http 1.0 buffering"));
    }
    if std::mem::replace(&mut context.is_raw, true) {
        return Ok(Some("duplicate call"));
    }
    r.body.streamed = true;
    r.flow.keepalive = false;
    body::confirm_expectation(r);
    Ok(None)
}

/// A connection, if it is the caller's.
///
/// # Errors
/// `bad request`: it belongs to another request, or timer.
pub(super) fn shared(number: u32) -> Result<Shared, Fault> {
    let found = ALL.with_borrow(|all| all.get(&number).cloned());
    let found = found.ok_or_else(|| Fault("bad socket object".to_owned()))?;
    if let Ok(mut c) = found.try_borrow_mut()
        && c.owner != current::owner()
    {
        if c.root == current::root() || c.busy.contains(&true) {
            return Err(Fault("bad request".to_owned()));
        }
        // The request that it was for is over, and with it the connection.
        c.close();
        c.buffer.clear();
        disown(c.owner, number);
        (c.owner, c.root) = (current::owner(), current::root());
        own(c.owner, number);
    }
    Ok(found)
}

fn with<T>(number: u32, work: impl FnOnce(&mut Connection) -> T) -> Result<T, Fault> {
    let shared = shared(number)?;
    let mut connection = shared.try_borrow_mut().map_err(|_| Fault("bad socket object".to_owned()))?;
    Ok(work(&mut connection))
}

impl Connection {
    /// Whether it is a connection of the program's own for which nobody waits.
    pub(super) fn is_plain(&self) -> bool {
        self.busy == [false; 3] && !self.raw && !self.datagrams && self.body.is_none()
    }

    /// Becomes one that was used before, of the pool of this name.
    pub(super) fn use_idle(&mut self, key: String, idle: Idle) {
        self.close();
        self.buffer.clear();
        self.peer.clone_from(&key);
        self.pool = key;
        (self.socket, self.reused, self.seat) = (Some(idle.socket), idle.reused, Some(idle.seat));
    }

    /// Closes it; its place in the pool is free.
    pub fn close(&mut self) {
        (self.socket, self.ended) = (None, false);
        drop(self.seat.take());
    }
}

/// `setoption` and `getoption` (without a value).
fn option(c: &mut Connection, name: &str, value: Option<f64>) -> Result<(Option<f64>, Option<String>), Fault> {
    let Some(socket) = &c.socket else {
        let is_new = c.peer.is_empty() && !c.raw && c.body.is_none();
        return match is_new {
            true => Err(Fault("socket is never created nor connected".to_owned())),
            false => Ok((None, Some("closed".to_owned()))),
        };
    };
    let result = match (name, value) {
        ("keepalive", Some(on)) => sockopt::set_socket_keepalive(socket, on != 0.0).map(|()| 1.0),
        ("keepalive", None) => sockopt::socket_keepalive(socket).map(|on| f64::from(u8::from(on))),
        ("reuseaddr", Some(on)) => sockopt::set_socket_reuseaddr(socket, on != 0.0).map(|()| 1.0),
        ("reuseaddr", None) => sockopt::socket_reuseaddr(socket).map(|on| f64::from(u8::from(on))),
        ("tcp-nodelay", Some(on)) => sockopt::set_tcp_nodelay(socket, on != 0.0).map(|()| 1.0),
        ("tcp-nodelay", None) => sockopt::tcp_nodelay(socket).map(|on| f64::from(u8::from(on))),
        ("sndbuf", Some(size)) => sockopt::set_socket_send_buffer_size(socket, size as usize).map(|()| 1.0),
        ("sndbuf", None) => sockopt::socket_send_buffer_size(socket).map(|n| n as f64),
        ("rcvbuf", Some(size)) => sockopt::set_socket_recv_buffer_size(socket, size as usize).map(|()| 1.0),
        ("rcvbuf", None) => sockopt::socket_recv_buffer_size(socket).map(|n| n as f64),
        ("keepintvl", Some(s)) => sockopt::set_tcp_keepintvl(socket, Duration::from_secs(s as u64)).map(|()| 1.0),
        ("keepintvl", None) => sockopt::tcp_keepintvl(socket).map(|interval| interval.as_secs_f64()),
        ("keepcnt", Some(count)) => sockopt::set_tcp_keepcnt(socket, count as u32).map(|()| 1.0),
        ("keepcnt", None) => sockopt::tcp_keepcnt(socket).map(f64::from),
        _ => return Ok((None, Some(format!("unsupported option {name}")))),
    };
    Ok(match result {
        Ok(value) => (Some(value), None),
        Err(e) => (None, Some(reason(&e.into()))),
    })
}

/// Gives a connection to its pool.
fn keep(c: &mut Connection, ms: Option<f64>, size: Option<f64>) -> Result<(), &'static str> {
    if c.ended {
        return Err("closed");
    }
    for (busy, text) in c.busy.iter().zip(BUSY) {
        if *busy {
            return Err(text);
        }
    }
    if c.socket.is_some() && !c.buffer.is_empty() {
        return Err("unread data in buffer");
    }
    let socket = c.socket.take().ok_or("closed")?;
    if machine().is_ok_and(|m| m.exiting.get()) {
        log(Level::Debug, format_args!("lua tcp socket set keepalive while process exiting, closing connection"));
        c.close();
        return Ok(());
    }
    let lifetime = ms.map_or(c.conf.keepalive_timeout, |ms| Duration::from_millis(ms as u64));
    let size = size.map_or(c.conf.pool_size, |s| s as usize);
    let (seat, key) = (c.seat.take(), std::mem::take(&mut c.pool));
    socket_pool::keep(&key, seat, socket, c.reused, lifetime, size)
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
    let shared = shared(values.front().and_then(number).unwrap_or_default() as u32)?;
    let which = match kind {
        "connect" | "handshake" => 0,
        "send" => 1,
        _ => 2,
    };
    let busy = shared.try_borrow().is_ok_and(|c| c.busy[which]).then_some(which);
    let busy = busy.or_else(|| shared.try_borrow().is_ok_and(|c| c.busy[0]).then_some(0));
    let busy = busy.or_else(|| match shared.try_borrow() {
        Ok(c) if which == 0 => c.busy.iter().rposition(|b| *b),
        _ => None,
    });
    if let Some(at) = busy {
        return Ok(Box::pin(std::future::ready(failed(BUSY[at]))));
    }
    let operation = begin(kind, shared.clone(), values)?;
    // From now on, and not from its first turn: who comes meanwhile is refused.
    let busy = Busy::new(shared, which);
    Ok(Box::pin(async move {
        let _busy = busy;
        operation.await
    }))
}

/// What is said of a socket for which somebody waits.
const BUSY: [&str; 3] = ["socket busy connecting", "socket busy writing", "socket busy reading"];

/// Marks a socket as in use as long as somebody waits for it.
struct Busy(Shared, usize);

impl Busy {
    fn new(shared: Shared, which: usize) -> Busy {
        shared.borrow_mut().busy[which] = true;
        Busy(shared, which)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Ok(mut connection) = self.0.try_borrow_mut() {
            connection.busy[self.1] = false;
        }
    }
}

fn begin(kind: &str, shared: Shared, values: &MultiValue) -> Result<Operation, Fault> {
    if kind == "connect" {
        let host = String::from_utf8_lossy(&text(values, 1).unwrap_or_default()).into_owned();
        let port = values.get(2).and_then(number).unwrap_or(0.0) as u16;
        let pool = text(values, 3).map(|p| String::from_utf8_lossy(&p).into_owned());
        let sizes = (values.get(4).and_then(number), values.get(5).and_then(number));
        return Ok(Box::pin(connect(shared, host, port, pool, sizes)));
    }
    let is_read = !matches!(kind, "send" | "handshake");
    let closed = shared
        .try_borrow()
        .is_ok_and(|c| c.socket.is_none() && c.body.is_none() && !c.raw || is_read && c.ended && c.buffer.is_empty());
    if closed {
        let what = if is_read { "receive" } else { "send" };
        complain(&shared, format_args!("attempt to {what} data on a closed socket: u:0, c:0, ft:0 eof:0"));
        return Ok(Box::pin(std::future::ready(failed("closed"))));
    }
    match kind {
        "send" => Ok(Box::pin(send(shared, text(values, 1).unwrap_or_default()))),
        "handshake" => {
            let name = text(values, 1);
            let verify = matches!(values.get(2), Some(Value::Boolean(true)));
            // False: no session is wanted; a number: that one, of before; none: a new one.
            let session = match values.get(3) {
                Some(Value::Boolean(false)) => socket_tls::Downstream::Unwanted,
                other => socket_tls::Downstream::Known(other.and_then(number).map(|n| n as u32)),
            };
            Ok(Box::pin(socket_tls::handshake(shared, name, verify, session)))
        }
        _ => socket_read::start(kind, shared, values),
    }
}

/// A line about a failure, unless `lua_socket_log_errors off`.
pub fn complain(shared: &Shared, line: std::fmt::Arguments<'_>) {
    complain_as(shared, Level::Error, line);
}

fn complain_as(shared: &Shared, level: Level, line: std::fmt::Arguments<'_>) {
    let c = shared.borrow();
    match c.conf.log_errors {
        false => {}
        true if c.peer.is_empty() => log(level, line),
        true => log(level, format_args!("{line}, upstream: {}", c.peer)),
    }
}

/// `tcp` or `udp`, for the log.
pub fn kind_of(shared: &Shared) -> &'static str {
    if shared.borrow().datagrams { "udp" } else { "tcp" }
}

/// A connect under way: given up before its end it leaves its place in the pool.
struct Unfinished(Shared, bool);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.1
            && let Ok(mut connection) = self.0.try_borrow_mut()
        {
            connection.close();
        }
    }
}

async fn connect(
    shared: Shared,
    host: String,
    port: u16,
    pool: Option<String>,
    sizes: (Option<f64>, Option<f64>),
) -> Vec<Item> {
    let is_unix = host.starts_with("unix:");
    let key = pool.unwrap_or_else(|| if is_unix { host.clone() } else { format!("{host}:{port}") });
    let (conf, timeout, datagrams, local) = {
        let mut c = shared.borrow_mut();
        if c.socket.is_some() {
            let kind = if c.datagrams { "udp" } else { "tcp" };
            log(Level::Debug, format_args!("lua {kind} socket reconnect without shutting down"));
            log(Level::Debug, format_args!("lua reuse socket upstream ctx"));
        }
        c.close();
        c.buffer.clear();
        c.pool.clone_from(&key);
        c.reused = 0;
        c.peer = if is_unix { host.clone() } else { format!("{host}:{port}") };
        (c.conf.clone(), c.timeouts[0], c.datagrams, c.local)
    };
    let mut unfinished = Unfinished(shared.clone(), true);
    let timer = Timer::new();
    timer.set(timeout);
    if !datagrams {
        let (size, backlog) = sizes;
        let options = (size.is_some() || backlog.is_some())
            .then(|| (size.map_or(conf.pool_size, |s| s as usize), backlog.map(|b| b as usize)));
        let grant = match socket_pool::enter(&key, options) {
            Entry::None => None,
            Entry::Granted(grant) => Some(grant),
            Entry::Full => return failed("too many waiting connect operations"),
            Entry::Wait(ticket) => match ticket.wait(timeout).await {
                Some(grant) => Some(grant),
                None => {
                    let line = format!(
                        "lua tcp socket queued connect timed out, when trying to connect to {}",
                        shared.borrow().peer
                    );
                    if conf.log_errors {
                        log(Level::Error, format_args!("{line}"));
                    }
                    return failed("timeout");
                }
            },
        };
        match grant {
            None => {}
            Some(Grant::Idle(idle)) => {
                let fd = idle.socket.as_raw_fd();
                log(Level::Debug, format_args!("lua tcp socket get keepalive peer: using connection, fd:{fd}"));
                let mut c = shared.borrow_mut();
                let Idle { socket, reused, seat, .. } = *idle;
                (c.socket, c.reused, c.seat) = (Some(socket), reused, Some(seat));
                unfinished.1 = false;
                return vec![Item::Number(1.0)];
            }
            Some(Grant::Seat(seat)) => shared.borrow_mut().seat = Some(seat),
        }
    }
    let to = match address(&conf, &host, port).await {
        Ok(to) => to,
        Err(text) => {
            shared.borrow_mut().close();
            return failed(text);
        }
    };
    if let Address::Inet(a) = &to {
        shared.borrow_mut().peer = format!("{host}:{port}({})", a.ip());
    }
    let kind = if datagrams { SocketType::DGRAM } else { SocketType::STREAM };
    let connecting = match connect::begin_as(kind, &to, local, &UpstreamSettings::default()) {
        Ok(connecting) => connecting,
        Err(e) => {
            if let (Some(local), true) = (local, e.call == "bind()") {
                let text = crate::log::os_error(&e.error);
                complain_as(&shared, Level::Crit, format_args!("bind({}) failed ({text})", local.ip()));
            }
            return refuse(&shared, &to, &e);
        }
    };
    if !datagrams {
        log(Level::Debug, format_args!("lua tcp socket connect timeout: {}", timeout.as_millis()));
    }
    timer.set(timeout);
    match timer.guard(connect::finish(connecting)).await {
        Some(Ok(socket)) => {
            shared.borrow_mut().socket = Some(socket);
            unfinished.1 = false;
            vec![Item::Number(1.0)]
        }
        Some(Err(e)) => refuse(&shared, &to, &e),
        None => {
            complain(&shared, format_args!("lua tcp socket connect timed out"));
            shared.borrow_mut().close();
            failed("timeout")
        }
    }
}

fn refuse(shared: &Shared, to: &Address, failure: &connect::Failed) -> Vec<Item> {
    let error = &failure.error;
    let text = crate::log::os_error(error);
    match to {
        Address::Unix(path) if failure.at_once => {
            // As nginx: what fails at once is this machine's.
            let path = path.display();
            complain_as(shared, Level::Crit, format_args!("connect() to unix:{path} failed ({text})"));
        }
        _ if failure.at_once && failure.call == "connect()" => {
            complain(shared, format_args!("connect() to {to} failed ({text})"));
        }
        _ => complain(shared, format_args!("connect() failed ({text})")),
    }
    shared.borrow_mut().close();
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
    if host.is_empty() {
        return Err("failed to parse host name \"\": no host".to_owned());
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

/// `tcp_nodelay`, before the first bytes of a connection.
pub(super) fn send_at_once(c: &mut Connection) {
    if !std::mem::take(&mut c.conf.nodelay) {
        return;
    }
    if c.raw {
        log(Level::Debug, format_args!("lua socket tcp_nodelay"));
        let _ = request(|r| {
            raw::set_nodelay(r);
            Ok(())
        });
    } else if let Some(socket) = &c.socket {
        log(Level::Debug, format_args!("lua socket tcp_nodelay"));
        // A unix socket has no such option, and holds nothing back.
        let _ = sockopt::set_tcp_nodelay(socket, true);
    }
}

async fn send(shared: Shared, bytes: Vec<u8>) -> Vec<Item> {
    let timer = Timer::new();
    let timeout = shared.borrow().timeouts[1];
    timer.set(timeout);
    if !shared.borrow().datagrams {
        log(Level::Debug, format_args!("lua tcp socket send timeout: {}", timeout.as_millis()));
        send_at_once(&mut shared.borrow_mut());
    }
    let mut at = 0;
    let result = poll_fn(|cx| {
        while at < bytes.len() {
            let mut c = shared.borrow_mut();
            if c.raw {
                let polled = request(|r| Ok(raw::poll_write(r, cx, &bytes[at..])));
                match polled.unwrap_or_else(|_| Poll::Ready(Err(io::ErrorKind::NotConnected.into()))) {
                    Poll::Ready(Ok(n)) => {
                        at += n;
                        timer.set(timeout);
                        continue;
                    }
                    Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                    Poll::Pending => return timer.poll_expired(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
                }
            }
            let Some(socket) = &mut c.socket else { return Poll::Ready(Err(io::ErrorKind::NotConnected.into())) };
            match socket.poll_write_with(cx, |s| s.try_write(&bytes[at..], false)) {
                Poll::Ready(Ok(n)) => {
                    let (fd, left) = (socket.as_raw_fd(), bytes.len() - at);
                    log(Level::Debug, format_args!("send: fd:{fd} {n} of {left}"));
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
        // One datagram, not so many bytes.
        Ok(()) if shared.borrow().datagrams => vec![Item::Number(1.0)],
        Ok(()) => vec![Item::Number(bytes.len() as f64)],
        Err(e) if e.kind() == io::ErrorKind::NotConnected => failed("closed"),
        Err(e) if e.kind() == io::ErrorKind::TimedOut && e.raw_os_error().is_none() => {
            complain(&shared, format_args!("lua {} socket write timed out", kind_of(&shared)));
            shared.borrow_mut().close();
            failed("timeout")
        }
        Err(e) => {
            complain(&shared, format_args!("send() failed ({})", crate::log::os_error(&e)));
            shared.borrow_mut().close();
            failed(reason(&e))
        }
    }
}
