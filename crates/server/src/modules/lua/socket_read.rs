//! What programs read of their sockets: lines, so many bytes, all, what is there, up to a text. What came too early waits in the
//! connection's buffer. And what they get of a socket without waiting at all.

use super::operation::{Item, Operation, number};
use super::run::{log, log_is_on};
use super::socket::{self, Connection, Shared, complain, failed, kind_of, reason};
use super::{current, raw, socket_pool};
use crate::log::error::Level;
use crate::request::body;
use ::lua::Fault;
use ::lua::quick::{self, Call, Kind};
use memchr::memmem;
use mlua::{Lua, MultiValue, Table, Value};
use runtime::timer::Timer;
use std::borrow::Cow;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsRawFd;
use std::task::{Context, Poll, Waker, ready};

/// The largest datagram.
const MAX_DATAGRAM: usize = 65_536;

/// What is wanted.
enum Wanted {
    /// A line without its end.
    Line,
    /// So many bytes.
    Count(usize),
    /// Everything until the other side has said its last.
    All,
    /// What is there, but no more than that.
    Any(usize),
    /// So many bytes, which stay: the next read gets them too.
    Peek(usize),
    /// Up to a text, which is left out or not; in pieces of a size if one is given.
    Until { text: Vec<u8>, inclusive: bool, size: Option<usize> },
}

/// What a look at the buffer said.
enum Look {
    /// There: the bytes to give, how many are taken off the buffer, and whether the text that ends it was found.
    Found { give: usize, take: usize, over: bool },
    /// More has to come.
    More,
}

/// Begins a read.
///
/// # Errors
/// There is no such read.
pub fn start(kind: &str, shared: Shared, values: &MultiValue) -> Result<Operation, Fault> {
    let count = |at: usize| values.get(at).and_then(number).map(|n| n as usize);
    let wanted = match (kind, values.get(1)) {
        ("receive", Some(Value::String(text))) if &*text.as_bytes() == b"*a" => Wanted::All,
        ("receive", Some(Value::String(_))) => Wanted::Line,
        ("receive", _) => Wanted::Count(count(1).unwrap_or(0)),
        ("peek", _) => Wanted::Peek(count(1).unwrap_or(1)),
        ("receiveany", _) => {
            let most = count(1).unwrap_or(1);
            if !shared.borrow().datagrams {
                let line = format_args!("lua tcp socket calling receiveany() method to read at most {most} bytes");
                log(Level::Debug, line);
            }
            Wanted::Any(most)
        }
        ("receiveuntil", Some(Value::String(text))) => Wanted::Until {
            text: text.as_bytes().to_vec(),
            inclusive: matches!(values.get(2), Some(Value::Boolean(true))),
            size: count(3).filter(|n| *n > 0),
        },
        _ => return Err(Fault(format!("unknown operation \"{kind}\""))),
    };
    Ok(Box::pin(read(shared, wanted)))
}

impl Wanted {
    /// `seen`: bytes that were looked at before.
    fn look(&self, buffer: &[u8], seen: usize) -> Look {
        match self {
            Wanted::Line => match memchr::memchr(b'\n', &buffer[seen.min(buffer.len())..]) {
                Some(at) => Look::Found { give: seen + at, take: seen + at + 1, over: true },
                None => Look::More,
            },
            Wanted::Count(count) if buffer.len() >= *count => Look::Found { give: *count, take: *count, over: true },
            Wanted::Any(most) if !buffer.is_empty() => {
                let count = buffer.len().min(*most);
                Look::Found { give: count, take: count, over: true }
            }
            Wanted::Peek(count) if buffer.len() >= *count => Look::Found { give: *count, take: 0, over: true },
            Wanted::Count(_) | Wanted::All | Wanted::Any(_) | Wanted::Peek(_) => Look::More,
            Wanted::Until { text, inclusive, size: None } => {
                let from = seen.saturating_sub(text.len());
                match memmem::find(&buffer[from..], text).map(|at| from + at) {
                    Some(at) => {
                        let take = at + text.len();
                        Look::Found { give: if *inclusive { take } else { at }, take, over: true }
                    }
                    None => Look::More,
                }
            }
            Wanted::Until { text, inclusive, size: Some(size) } => {
                look_for_piece(text, *inclusive, *size, buffer, seen.saturating_sub(text.len()))
            }
        }
    }

    fn is_line(&self) -> bool {
        matches!(self, Wanted::Line)
    }
}

/// The next piece of what comes up to a text: as soon as so many bytes cannot be a part of that text, all of which that is known, as ngx_lua
/// has it. What may be its beginning waits for what follows. `from`: what is before cannot reach into it.
fn look_for_piece(text: &[u8], inclusive: bool, size: usize, buffer: &[u8], from: usize) -> Look {
    let shorter = borders(text);
    let mut matched = 0;
    for (at, byte) in buffer.iter().enumerate().skip(from) {
        while matched > 0 && text.get(matched) != Some(byte) {
            matched = shorter[matched - 1];
        }
        matched += usize::from(text.get(matched) == Some(byte));
        let (end, known) = (at + 1, at + 1 - matched);
        if matched == text.len() {
            return Look::Found { give: if inclusive { end } else { known }, take: end, over: true };
        }
        if known >= size {
            return Look::Found { give: known, take: known, over: false };
        }
    }
    Look::More
}

/// For each beginning of a text, how long the longest of its own beginnings is that it also ends with (Knuth, Morris and Pratt).
fn borders(text: &[u8]) -> Vec<usize> {
    let mut all = vec![0; text.len()];
    let mut length = 0;
    for at in 1..text.len() {
        while length > 0 && text[length] != text[at] {
            length = all[length - 1];
        }
        length += usize::from(text[length] == text[at]);
        all[at] = length;
    }
    all
}

/// Reads more of the request's body.
fn poll_body(c: &mut Connection, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    if c.body == Some(true) {
        return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
    }
    let polled = current::request(|r| Ok(body::poll_some(r, cx, &mut c.buffer)));
    match polled {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(Ok(complete))) => {
            c.body = Some(complete);
            Poll::Ready(Ok(()))
        }
        Ok(Poll::Ready(Err(_))) => Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
        Err(_) => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
    }
}

async fn read(shared: Shared, wanted: Wanted) -> Vec<Item> {
    let timer = Timer::new();
    let timeout = shared.borrow().timeouts[2];
    timer.set(timeout);
    match &wanted {
        Wanted::Any(size) if shared.borrow().datagrams => {
            log(Level::Debug, format_args!("lua udp socket receive buffer size: {size}"));
        }
        _ => log(Level::Debug, format_args!("lua tcp socket read timeout: {}", timeout.as_millis())),
    }
    if shared.borrow().body.is_some() {
        let _ = current::request(|r| {
            body::arm(r, timeout);
            Ok(())
        });
    }
    let mut seen = 0;
    let result = poll_fn(|cx| {
        loop {
            let mut shared = shared.borrow_mut();
            let c = &mut *shared;
            if let Look::Found { give, take, over } = wanted.look(&c.buffer, seen) {
                let mut given = c.buffer[..give].to_vec();
                if wanted.is_line() {
                    given.retain(|b| *b != b'\r');
                }
                // Of a datagram what does not fit is lost.
                match c.datagrams {
                    true => c.buffer.clear(),
                    false => drop(c.buffer.drain(..take)),
                }
                return Poll::Ready(Ok((given, over)));
            }
            seen = c.buffer.len();
            if c.body.is_some() {
                match ready!(poll_body(c, cx)) {
                    Ok(()) => continue,
                    Err(e) => return Poll::Ready(Err(e)),
                }
            }
            if c.raw {
                c.buffer.reserve(c.piece);
                let polled = current::request(|r| Ok(raw::poll_read(r, cx, &mut c.buffer)));
                match polled.unwrap_or_else(|_| Poll::Ready(Err(io::ErrorKind::NotConnected.into()))) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                    Poll::Ready(Ok(_)) => {
                        timer.set(timeout);
                        continue;
                    }
                    Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                    Poll::Pending => return timer.poll_expired(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
                }
            }
            if c.ended {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            let Some(socket) = &mut c.socket else { return Poll::Ready(Err(io::ErrorKind::NotConnected.into())) };
            c.buffer.reserve(if c.datagrams { MAX_DATAGRAM } else { c.piece });
            match socket.poll_read(cx, &mut c.buffer) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(Ok(_)) => timer.set(timeout),
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending => {
                    return timer.poll_expired(cx).map(|()| Err(io::ErrorKind::TimedOut.into()));
                }
            }
        }
    })
    .await;
    if result.is_ok() {
        let mut c = shared.borrow_mut();
        if c.raw {
            // Whoever reads the connection next goes on where this ended.
            let rest = std::mem::take(&mut c.buffer);
            let _ = current::request(|r| {
                raw::put_back(r, &rest);
                Ok(())
            });
        }
    }
    let error = match result {
        Ok((given, over)) if matches!(wanted, Wanted::Until { size: Some(_), .. }) => {
            return vec![Item::Text(given), Item::Nil, Item::Nil, Item::Flag(over)];
        }
        Ok((given, _)) => return vec![Item::Text(given)],
        Err(error) => error,
    };
    let kind = kind_of(&shared);
    let is_timeout = error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none();
    let partial = {
        let mut c = shared.borrow_mut();
        // What is written may still get there.
        c.ended |= !is_timeout;
        std::mem::take(&mut c.buffer)
    };
    let why = match error.kind() {
        io::ErrorKind::UnexpectedEof if matches!(wanted, Wanted::All) => return vec![Item::Text(partial)],
        io::ErrorKind::UnexpectedEof | io::ErrorKind::NotConnected => b"closed".to_vec(),
        io::ErrorKind::ConnectionAborted if shared.borrow().body.is_some() => b"client aborted".to_vec(),
        _ if is_timeout => {
            complain(&shared, format_args!("lua {kind} socket read timed out"));
            b"timeout".to_vec()
        }
        _ => {
            complain(&shared, format_args!("recv() failed ({})", crate::log::os_error(&error)));
            reason(&error).into_bytes()
        }
    };
    let mut items = failed(why);
    items.push(Item::Text(partial));
    items
}

/// Adds what a program asks of a socket and gets without waiting: a line or so many bytes that have come already, a write that the kernel
/// takes at once, an idle connection of a pool. So most calls need no turn of the coroutine's driver. For all else these functions say that
/// they are not the ones, and the operations do it.
///
/// # Errors
/// Out of memory.
pub(super) fn add(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    quick::add(lua, raw, "socket_read", |call| answer(call, read_at_once))?;
    quick::add(lua, raw, "socket_send", |call| answer(call, send_at_once))?;
    quick::add(lua, raw, "socket_connect", |call| answer(call, connect_at_once))
}

/// Does something with a call's socket if nobody waits for it and it is a plain connection. `work`: whether it has given what was asked for.
fn answer(call: &Call, work: fn(&Call, &mut Connection) -> bool) -> Result<(), Fault> {
    let number = call.number(1).unwrap_or_default() as u32;
    // What is wrong with the socket the other function says.
    let is_given = socket::shared(number)
        .is_ok_and(|shared| shared.try_borrow_mut().is_ok_and(|mut c| c.is_plain() && work(call, &mut c)));
    if !is_given {
        call.give_other();
    }
    Ok(())
}

/// `socket_read(number, what)`
fn read_at_once(call: &Call, c: &mut Connection) -> bool {
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
fn send_at_once(call: &Call, c: &mut Connection) -> bool {
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
fn connect_at_once(call: &Call, c: &mut Connection) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn until(size: Option<usize>, inclusive: bool, buffer: &str) -> Option<(usize, usize, bool)> {
        let wanted = Wanted::Until { text: b"--".to_vec(), inclusive, size };
        match wanted.look(buffer.as_bytes(), 0) {
            Look::Found { give, take, over } => Some((give, take, over)),
            Look::More => None,
        }
    }

    #[test]
    fn reads_up_to_a_text_whole_and_in_pieces() {
        assert_eq!(until(None, false, "abc--d"), Some((3, 5, true)));
        assert_eq!(until(None, true, "abc--d"), Some((5, 5, true)));
        assert_eq!(until(None, false, "abc-"), None);
        assert_eq!(until(Some(2), false, "abc--"), Some((2, 2, false)));
        assert_eq!(until(Some(2), false, "abc"), Some((2, 2, false)));
        assert_eq!(until(Some(2), false, "a-"), None);
        assert_eq!(until(Some(2), false, "a-b"), Some((3, 3, false)));
        assert_eq!(until(Some(2), false, "c--"), Some((1, 3, true)));
        assert_eq!(until(Some(1), false, "--"), Some((0, 2, true)));
    }
}
