//! A client's connection as programs have it raw: `ngx.req.socket(true)` of `http`, and every program of a session of `stream`, whose
//! connection is lent to the request while the program runs. From: `socket`, `socket_read`. To: the connection.

use crate::connection::incoming::Incoming;
use crate::connection::socket::Socket;
use crate::listen::datagram::Flow;
use crate::request::Request;
use runtime::timer::Timer;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// What `ngx.say` of a session may hold back until the client has taken it; a program that says more without `ngx.flush(true)` is refused.
pub const MAX_OUT: usize = 4 * 1024 * 1024;

/// What a program of a session of datagrams reads and writes: one datagram at a time.
pub struct Datagrams {
    /// The session.
    pub flow: Rc<Flow>,
    /// The datagram that it began with, until somebody has read it.
    pub first: Option<Box<[u8]>>,
}

/// Lends the connection of a session to its request. The other half gives it back.
pub fn lend(r: &mut Request, incoming: &mut Incoming) {
    let own = std::mem::replace(incoming, Incoming::new(Socket::none()));
    r.ctx.lua.get_or_insert_default().incoming = Some(Box::new(own));
}

/// Takes it back.
pub fn take_back(r: &mut Request, incoming: &mut Incoming) {
    if let Some(own) = r.ctx.lua.as_mut().and_then(|c| c.incoming.take()) {
        *incoming = *own;
    }
}

fn connection(r: &mut Request) -> Option<&mut Incoming> {
    if let Some(lent) = r.ctx.lua.as_mut().and_then(|c| c.incoming.as_mut()) {
        return Some(lent);
    }
    r.downstream.http1_mut().map(|http| &mut http.incoming)
}

fn gone<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
}

/// Reads what has come: first what was read before and nobody has used. 0: the client has said its last.
pub fn poll_read(r: &mut Request, cx: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<io::Result<usize>> {
    if let Some(datagrams) = r.ctx.lua.as_mut().and_then(|c| c.datagrams.as_mut()) {
        // Whoever has the session is woken when there is one more.
        // The session has counted its first.
        let first = datagrams.first.take().map(|bytes| (bytes, 0));
        let mut next = first.into_iter().chain(std::iter::from_fn(|| {
            let bytes = datagrams.flow.next()?;
            let len = bytes.len() as u64;
            Some((bytes, len))
        }));
        let Some((bytes, more)) = next.find(|(bytes, _)| !bytes.is_empty()) else { return Poll::Pending };
        into.extend_from_slice(&bytes);
        if let Some(facts) = &mut r.ctx.stream {
            facts.received += more;
        }
        return Poll::Ready(Ok(bytes.len()));
    }
    let Some(incoming) = connection(r) else { return gone() };
    let early = incoming.unread().len();
    if early > 0 {
        into.extend_from_slice(incoming.unread());
        incoming.consume(early);
        return Poll::Ready(Ok(early));
    }
    let n = ready!(incoming.socket.poll_read(cx, into))?;
    if let Some(facts) = &mut r.ctx.stream {
        facts.received += n as u64;
    }
    Poll::Ready(Ok(n))
}

/// Puts bytes back that were read and not used: they are the next to be read, by whoever it is.
pub fn put_back(r: &mut Request, bytes: &[u8]) {
    if let Some(incoming) = connection(r).filter(|_| !bytes.is_empty()) {
        let rest = incoming.take_unread();
        incoming.put_unread([bytes, &rest].concat());
    }
}

/// Writes some of `bytes`, behind all that the request has said before.
pub fn poll_write(r: &mut Request, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    if r.ctx.lua.as_ref().is_some_and(|c| c.datagrams.is_some()) {
        return Poll::Ready(send_datagram(r, bytes));
    }
    ready!(poll_out(r, cx))?;
    if let Some(http) = r.downstream.http1_mut() {
        while !http.output.is_empty() {
            ready!(http.output.poll_write(&mut http.incoming.socket, cx, u64::MAX))?;
        }
    }
    let Some(incoming) = connection(r) else { return gone() };
    let n = ready!(incoming.socket.poll_write_with(cx, |s| s.try_write(bytes, false)))?;
    if let Some(facts) = &mut r.ctx.stream {
        facts.sent += n as u64;
    }
    Poll::Ready(Ok(n))
}

/// Sends one datagram to the client of a session. One for which there is no room is lost, as datagrams are.
fn send_datagram(r: &mut Request, bytes: &[u8]) -> io::Result<usize> {
    let Some(datagrams) = r.ctx.lua.as_ref().and_then(|c| c.datagrams.as_ref()) else {
        return Err(io::ErrorKind::NotConnected.into());
    };
    match datagrams.flow.send(bytes) {
        Ok(n) => {
            if let Some(facts) = &mut r.ctx.stream {
                facts.sent += n as u64;
            }
            Ok(n)
        }
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(bytes.len()),
        Err(e) => Err(e),
    }
}

/// The connection's descriptor.
pub fn fd(r: &mut Request) -> Option<i32> {
    connection(r).map(|incoming| incoming.socket.as_raw_fd())
}

/// What is written leaves at once.
pub fn set_nodelay(r: &mut Request) {
    if let Some(incoming) = connection(r) {
        incoming.set_nodelay();
    }
}

/// Says that nothing more comes.
pub fn shutdown(r: &mut Request) -> bool {
    connection(r).map(|incoming| incoming.socket.shutdown()).is_some()
}

/// Whether the client of a session has gone, as far as is known.
pub fn is_gone(r: &mut Request, cx: &mut Context<'_>) -> bool {
    let lent = r.ctx.lua.as_mut().and_then(|c| c.incoming.as_mut());
    lent.is_some_and(|incoming| incoming.socket.poll_closed(cx).is_ready())
}

/// Queues what a program of a session says.
///
/// # Errors
/// There is too much of it.
pub fn say(r: &mut Request, bytes: &[u8]) -> Result<(), &'static str> {
    if r.ctx.lua.as_ref().is_some_and(|c| c.datagrams.is_some()) {
        return send_datagram(r, bytes).map(drop).map_err(|_| "the datagram could not be sent");
    }
    let out = &mut r.ctx.lua.get_or_insert_default().out;
    if out.len() + bytes.len() > MAX_OUT {
        return Err("too much output without ngx.flush(true)");
    }
    out.extend_from_slice(bytes);
    Ok(())
}

/// Writes what a session's program has said. Ready when all of it is out.
pub fn poll_out(r: &mut Request, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    loop {
        let Some(context) = r.ctx.lua.as_mut().filter(|c| !c.out.is_empty()) else { return Poll::Ready(Ok(())) };
        let Some(incoming) = context.incoming.as_mut() else { return gone() };
        let out = &context.out;
        let n = ready!(incoming.socket.poll_write_with(cx, |s| s.try_write(out, false)))?;
        context.out.drain(..n);
        if let Some(facts) = &mut r.ctx.stream {
            facts.sent += n as u64;
        }
    }
}

/// Waits until all of it is out, for at most so long between two writes.
pub async fn flush(r: &mut Request, timeout: Duration) -> io::Result<()> {
    let timer = Timer::new();
    timer.set(timeout);
    let mut left = usize::MAX;
    poll_fn(|cx| {
        if let Poll::Ready(done) = poll_out(r, cx) {
            return Poll::Ready(done);
        }
        let now = r.ctx.lua.as_ref().map_or(0, |c| c.out.len());
        if now < left {
            timer.set(timeout);
            left = now;
        }
        timer.poll_expired(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    })
    .await
}
