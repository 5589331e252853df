//! What a program asks of a socket and gets without waiting: a line or so many bytes that have come already, a write that the kernel takes
//! at once, an idle connection of a pool. So most calls need no turn of the coroutine's driver. For all else these functions say that they
//! are not the ones, and `socket` does it.

use super::run::{log, log_is_on};
use super::socket::{self, Connection};
use super::socket_pool;
use crate::log::error::Level;
use ::lua::Fault;
use ::lua::quick::{self, Call, Kind};
use mlua::{Lua, Table};
use std::borrow::Cow;
use std::os::fd::AsRawFd;
use std::task::{Context, Poll, Waker};

/// See the file's head.
pub(super) fn add(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    quick::add(lua, raw, "socket_read", |call| answer(call, read))?;
    quick::add(lua, raw, "socket_send", |call| answer(call, send))?;
    quick::add(lua, raw, "socket_connect", |call| answer(call, connect))
}

/// Does something with a call's socket if nobody waits for it and it is a plain connection. `work`: whether it has given what was asked for.
fn answer(call: &Call, work: fn(&Call, &mut Connection) -> bool) -> Result<(), Fault> {
    let number = call.number(1).unwrap_or_default() as u32;
    // What is wrong with the socket the other function says.
    let is_given = socket::shared(number).is_ok_and(|shared| {
        let is_given = shared.try_borrow_mut().is_ok_and(|mut c| c.is_plain() && work(call, &mut c));
        is_given
    });
    if !is_given {
        call.give_other();
    }
    Ok(())
}

/// `socket_read(number, what)`
fn read(call: &Call, c: &mut Connection) -> bool {
    let found = match call.argument(2) {
        Kind::Text(b"*l") => memchr::memchr(b'\n', &c.buffer).map(|at| (at, at + 1)),
        Kind::Number(count) if count >= 1.0 && c.buffer.len() >= count as usize => {
            Some((count as usize, count as usize))
        }
        _ => None,
    };
    let Some((give, take)) = found.filter(|_| c.socket.is_some()) else { return false };
    log(Level::Debug, format_args!("lua tcp socket read timeout: {}", c.timeouts[2].as_millis()));
    if give == take {
        call.give_bytes(&c.buffer[..give]);
    } else {
        call.give_bytes(&without_returns(&c.buffer[..give]));
    }
    c.buffer.drain(..take);
    true
}

/// A line without its carriage returns, wherever they are.
fn without_returns(line: &[u8]) -> Cow<'_, [u8]> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match memchr::memchr(b'\r', line) {
        None => Cow::Borrowed(line),
        Some(_) => Cow::Owned(line.iter().copied().filter(|b| *b != b'\r').collect()),
    }
}

/// `socket_send(number, text)`: how many bytes the kernel has taken, which may be a part of them.
fn send(call: &Call, c: &mut Connection) -> bool {
    let Kind::Text(bytes) = call.argument(2) else { return false };
    // Of TLS a part that was taken may have to be given again.
    if bytes.is_empty() || c.socket.as_ref().is_none_or(|s| s.tls().is_some()) {
        return false;
    }
    log(Level::Debug, format_args!("lua tcp socket send timeout: {}", c.timeouts[1].as_millis()));
    socket::send_at_once(c);
    let Some(socket) = &mut c.socket else { return false };
    let mut context = Context::from_waker(Waker::noop());
    match socket.poll_write_with(&mut context, |s| s.try_write(bytes, false)) {
        Poll::Ready(Ok(n)) => {
            log(Level::Debug, format_args!("send: fd:{} {n} of {}", socket.as_raw_fd(), bytes.len()));
            call.give_number(n as f64);
            true
        }
        Poll::Ready(Err(_)) | Poll::Pending => false,
    }
}

/// `socket_connect(number, host, port)`: an idle connection of the pool that has no name of its own.
fn connect(call: &Call, c: &mut Connection) -> bool {
    let (Kind::Text(host), Kind::Number(port)) = (call.argument(2), call.argument(3)) else { return false };
    let Ok(host) = std::str::from_utf8(host) else { return false };
    if c.socket.is_some() || host.starts_with("unix:") {
        return false;
    }
    let key = format!("{host}:{}", port as u16);
    let Some(idle) = socket_pool::take_idle(&key) else { return false };
    if log_is_on(Level::Debug) {
        let fd = idle.socket.as_raw_fd();
        log(Level::Debug, format_args!("lua tcp socket get keepalive peer: using connection, fd:{fd}"));
    }
    c.use_idle(key, idle);
    call.give_number(1.0);
    true
}
