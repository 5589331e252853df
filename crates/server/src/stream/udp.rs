//! Sessions of datagrams: what one client sends within `proxy_timeout`, and what a peer answers (the datagram half of
//! nginx's `ngx_stream_proxy_module`). From: `listen::datagram`. Each datagram is passed on whole or lost.

use super::relay::Pace;
use super::{begin, checks, close, content_handler, proxy};
use crate::connection::Client;
use crate::listen::datagram::Flow;
use crate::log::error::Level;
use crate::log_error;
use crate::modules::core::size_of;
use crate::modules::lua;
use crate::modules::stream_core::Handler;
use crate::modules::stream_proxy::Conf;
use crate::request::Request;
use crate::stream::facts::{Totals, facts, note};
use crate::upstream::choose;
use runtime::clock;
use runtime::io::{Interest, Registration};
use runtime::timer::Timer;
use rustix::net::{RecvFlags, SendFlags};
use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};

/// Serves one session.
pub async fn serve(flow: Rc<Flow>, client: Rc<Client>) {
    flow.adopt();
    // A session answers for its first datagram, whatever becomes of it.
    let Some(first) = flow.next() else { return };
    if let Some(mut r) = begin(client, true) {
        facts(&mut r).received = first.len() as u64;
        let status = match checks(&mut r) {
            Ok(()) => content(&mut r, &flow, first).await,
            Err(status) => status,
        };
        flow.release();
        close(r, status);
    }
    flow.release();
}

async fn content(r: &mut Request, flow: &Rc<Flow>, first: Box<[u8]>) -> u16 {
    let mut first = Some(first);
    if r.conf().lua.preread.is_some() {
        facts(r).action = "prereading client data";
        if let Err(status) = Box::pin(lua::stream::preread_datagrams(r, flow, &mut first)).await {
            return status;
        }
    }
    match content_handler(r) {
        Handler::Return => {
            let snapshot = r.snapshot.clone();
            let text = snapshot.location(r.location).conf.stream_core.text.eval(r);
            if r.has_fault() {
                return 500;
            }
            if !r.get(text).is_empty()
                && let Ok(n) = flow.send(r.get(text))
            {
                facts(r).sent += n as u64;
            }
            200
        }
        Handler::Proxy => proxied(r, flow, first).await,
        Handler::Lua => Box::pin(lua::stream::handle_datagrams(r, flow, first)).await,
        Handler::Pass | Handler::ZoneSync | Handler::None => 500,
    }
}

/// `proxy_pass`
async fn proxied(r: &mut Request, flow: &Flow, first: Option<Box<[u8]>>) -> u16 {
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.stream_proxy;
    let began_ms = clock::wall_ms();
    let mut found = match proxy::find(r, conf).await {
        Ok(found) => found,
        Err(status) => return status,
    };
    let fd = std::mem::replace(&mut found.socket, crate::connection::socket::Socket::none()).into_fd();
    let fd = fd.expect("a socket for datagrams has no TLS and one owner");
    let Ok(registration) = Registration::new(fd.as_fd(), Interest::Read) else { return 500 };
    facts(r).action = "proxying connection";
    let started_ms = clock::monotonic_ms();
    let mut header = Vec::new();
    proxy::write_header(r, *conf.own.proxy_protocol, &mut header);
    let version = Cell::new(None);
    let mut exchange = Exchange {
        flow,
        first,
        conf,
        peer: Peer { fd, registration },
        header,
        requests: 0,
        responses: 0,
        received: 0,
        sent: 0,
        upstream: (0, 0),
        first_ms: None,
        buffer: Vec::with_capacity(conf.own.buffer_size.max(1) as usize),
        peer_is_gone: &|| proxy::is_gone(&found.group, &found.chosen, &version),
        upload: Pace::new(size_of(r, &conf.own.upload_rate), began_ms),
        download: Pace::new(size_of(r, &conf.own.download_rate), began_ms),
    };
    let end = exchange.run().await;
    let expects_more = exchange.expects_more();
    let Exchange { received, sent, upstream, requests, responses, first_ms, .. } = exchange;
    let facts = facts(r);
    (facts.received, facts.sent, facts.upstream) = (received, sent, upstream);
    let attempt = r.attempts.current();
    attempt.response_ms = Some(clock::monotonic_ms() - started_ms);
    attempt.header_ms = first_ms.map(|ms| ms.saturating_sub(started_ms));
    (attempt.received, attempt.sent) = upstream;
    let (status, failed) = tell(r, &end, (requests, responses), expects_more);
    if failed {
        found.failed(r);
    } else {
        choose::succeeded(&found.chosen, r.attempts.current());
    }
    status
}

/// Writes how it ended; gives the status, and whether the peer has failed.
fn tell(r: &Request, end: &End, (requests, responses): (u64, u64), expects_more: bool) -> (u16, bool) {
    let line = |what: &str| {
        if let Some(facts) = r.ctx.stream.as_deref() {
            let totals = Totals(facts);
            note(r, Level::Info, format_args!("{what}, packets from/to client:{requests}/{responses}{totals}"));
        }
    };
    match end {
        End::Done => line("udp done"),
        End::Quiet => line("udp timed out"),
        End::Dropped => log_error!(r, Info, "{}", proxy::DROPPED),
        End::Shutdown => note(r, Level::Info, format_args!("disconnected on shutdown")),
        End::Unanswered => {
            log_error!(r, Error, "upstream timed out (110: Connection timed out)");
            return (502, true);
        }
        End::Failed(call, e) => {
            log_error!(r, Error, "{call} failed ({})", crate::log::os_error(e));
            return (if expects_more { 502 } else { 200 }, true);
        }
    }
    (200, false)
}

enum End {
    /// As many answers as were expected.
    Done,
    /// The timeout of a session without expectations.
    Quiet,
    /// The timeout, and answers are missing.
    Unanswered,
    /// The peer is not there.
    Failed(&'static str, io::Error),
    /// The server ends.
    Shutdown,
    /// The peer is no longer one of the group, or no longer serves.
    Dropped,
}

struct Peer {
    fd: OwnedFd,
    registration: Registration,
}

struct Exchange<'s> {
    flow: &'s Flow,
    /// The datagram that the session began with.
    first: Option<Box<[u8]>>,
    conf: &'s Conf,
    peer: Peer,
    /// The PROXY header, until the first datagram has taken it along.
    header: Vec<u8>,
    requests: u64,
    responses: u64,
    received: u64,
    sent: u64,
    upstream: (u64, u64),
    first_ms: Option<u64>,
    buffer: Vec<u8>,
    /// `proxy_session_drop`
    peer_is_gone: &'s dyn Fn() -> bool,
    upload: Option<Pace>,
    download: Option<Pace>,
}

impl Exchange<'_> {
    async fn run(&mut self) -> End {
        let timer = Timer::new();
        timer.set(*self.conf.own.timeout);
        let mut paused = false;
        poll_fn(|cx| {
            if crate::worker::draining() {
                return Poll::Ready(End::Shutdown);
            }
            let moved = match self.step(cx) {
                Ok(moved) => moved,
                Err(end) => return Poll::Ready(end),
            };
            if self.is_complete() {
                return Poll::Ready(End::Done);
            }
            if moved && *self.conf.own.session_drop && (self.peer_is_gone)() {
                return Poll::Ready(End::Dropped);
            }
            let mut waits = |pace: &mut Option<Pace>| pace.as_mut().is_some_and(|pace| pace.is_waiting(cx));
            let pauses = waits(&mut self.upload) | waits(&mut self.download);
            let was_paused = std::mem::replace(&mut paused, pauses);
            if paused {
                timer.clear();
            } else if moved || was_paused {
                timer.set(*self.conf.own.timeout);
            }
            timer.poll_expired(cx).map(|()| if self.expects_more() { End::Unanswered } else { End::Quiet })
        })
        .await
    }

    /// Passes on what there is, both ways.
    fn step(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let mut moved = false;
        while is_open(&mut self.upload, cx)
            && let Some(bytes) = self.first.take().or_else(|| self.flow.next())
        {
            moved = true;
            self.forward(&bytes)?;
        }
        while self.peer.registration.poll_readable().is_ready()
            && is_open(&mut self.download, cx)
            && runtime::may_go_on()
        {
            moved |= self.answer()?;
        }
        Ok(moved)
    }

    fn forward(&mut self, bytes: &[u8]) -> Result<(), End> {
        self.requests += 1;
        self.received += bytes.len() as u64;
        if let Some(pace) = &mut self.upload {
            pace.read(bytes.len() as u64);
        }
        let own = &self.conf.own;
        if *own.requests > 0 && self.requests >= *own.requests {
            self.flow.release();
        }
        let sent = if self.header.is_empty() {
            rustix::net::send(&self.peer.fd, bytes, SendFlags::NOSIGNAL)
        } else {
            let mut whole = std::mem::take(&mut self.header);
            whole.extend_from_slice(bytes);
            rustix::net::send(&self.peer.fd, &whole, SendFlags::NOSIGNAL)
        };
        match sent {
            Ok(n) => self.upstream.1 += n as u64,
            // Lost, as datagrams are when there is no room for them.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS | rustix::io::Errno::INTR) => {}
            Err(e) => return Err(End::Failed("send()", e.into())),
        }
        Ok(())
    }

    /// True when there was a datagram.
    fn answer(&mut self) -> Result<bool, End> {
        self.buffer.clear();
        let room = rustix::buffer::spare_capacity(&mut self.buffer);
        match rustix::net::recv(&self.peer.fd, room, RecvFlags::empty()) {
            Ok((n, _)) => {
                self.first_ms.get_or_insert_with(clock::monotonic_ms);
                self.responses += 1;
                self.upstream.0 += n as u64;
                if let Some(pace) = &mut self.download {
                    pace.read(n as u64);
                }
                if let Ok(n) = self.flow.send(&self.buffer) {
                    self.sent += n as u64;
                }
                Ok(true)
            }
            Err(rustix::io::Errno::AGAIN) => {
                self.peer.registration.clear_readable();
                Ok(false)
            }
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(e) => Err(End::Failed("recv()", e.into())),
        }
    }

    fn expects_more(&self) -> bool {
        let each = *self.conf.own.responses;
        each != u64::MAX && self.responses < each.saturating_mul(self.requests)
    }

    /// `ngx_stream_proxy_test_finalize` for datagrams.
    fn is_complete(&self) -> bool {
        let own = &self.conf.own;
        let all_asked = *own.requests == 0 || self.requests >= *own.requests;
        all_asked && *own.responses != u64::MAX && !self.expects_more()
    }
}

fn is_open(pace: &mut Option<Pace>, cx: &mut Context<'_>) -> bool {
    pace.as_mut().is_none_or(|p| matches!(p.poll_room(cx), Poll::Ready(room) if room > 0))
}
