//! Two connections as one pipe: WebSocket and other upgrades. Bytes go both ways until one side ends. Where both have said nothing for a
//! while they are parked (`parked`), and go on here when one of them says something. Both go on in another process as well (`travel`).

mod parked;
mod streamed;
mod travel;

pub use parked::arrive;

use super::exchange::Answer;
use super::settings::UpstreamSettings;
use crate::connection::socket::Socket;
use crate::connection::{action, pool as buffers};
use crate::log_error;
use crate::request::Request;
use crate::request::held::{Kept, hold};
use crate::request::phases::{Back, GoOn, Released, Verdict};
use crate::worker::departure;
use runtime::clock;
use runtime::timer::Timer;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// A tunnel in which nobody has said anything for so long is parked. Most that say something have said it by then.
const SILENT: Duration = Duration::from_secs(1);

/// How long the two sides may take nothing of what waits for them, ms. Kept with tunnels that are parked, so in few bytes: 49 days at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    client_ms: u32,
    peer_ms: u32,
}

impl Patience {
    /// `send_timeout` and `proxy_send_timeout`.
    pub fn of(r: &Request, conf: &UpstreamSettings) -> Patience {
        Patience { client_ms: millis(*r.conf().core.send_timeout), peer_ms: millis(r.attempts.send_timeout(conf)) }
    }

    /// Both sides have the same time.
    pub fn both(time: Duration) -> Patience {
        Patience { client_ms: millis(time), peer_ms: millis(time) }
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// Since when a side has not taken what waits for it, and how long that may last.
struct Stall {
    /// Monotonic ms; none: nothing waits.
    since_ms: Option<u64>,
    patience_ms: u32,
}

impl Stall {
    fn new(patience_ms: u32) -> Stall {
        Stall { since_ms: None, patience_ms }
    }

    /// Something waits. `took`: a part of it was taken just now.
    fn waits(&mut self, took: bool) {
        if took || self.since_ms.is_none() {
            self.since_ms = Some(clock::monotonic_ms());
        }
    }

    /// Nothing does.
    fn clear(&mut self) {
        self.since_ms = None;
    }

    /// When it has lasted too long, monotonic ms.
    fn until_ms(&self) -> u64 {
        self.since_ms.map_or(u64::MAX, |since| since.saturating_add(self.patience_ms.into()))
    }

    fn is_over(&self) -> bool {
        clock::monotonic_ms() >= self.until_ms()
    }
}

/// The client of a tunnel takes nothing. A peer that does is one that has timed out.
#[derive(Debug)]
struct ClientTimedOut;

impl std::fmt::Display for ClientTimedOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("client timed out (110: Connection timed out)")
    }
}

impl std::error::Error for ClientTimedOut {}

/// What a tunnel ends with whose times are over; none: they are not. `until_ms`: when it has been silent for too long.
fn timed_out(until_ms: u64, client: &Stall, peer: &Stall) -> Option<io::Error> {
    if client.is_over() {
        return Some(io::Error::other(ClientTimedOut));
    }
    (peer.is_over() || clock::monotonic_ms() >= until_ms).then(|| io::ErrorKind::TimedOut.into())
}

/// One direction.
struct Pipe {
    buffer: Vec<u8>,
    sent: usize,
    ended: bool,
    total: u64,
    stall: Stall,
}

impl Pipe {
    fn new(first: &[u8], patience_ms: u32) -> Pipe {
        let mut buffer = buffers::take_buffer();
        buffer.extend_from_slice(first);
        Pipe { buffer, ..Pipe::after(0, patience_ms) }
    }

    /// Moves bytes until it would have to wait. True when something moved.
    fn poll(&mut self, cx: &mut Context<'_>, from: &mut Socket, to: &mut Socket) -> io::Result<bool> {
        let (mut moved, mut took) = (false, false);
        loop {
            while self.sent < self.buffer.len() {
                let rest = &self.buffer[self.sent..];
                match to.poll_write_with(cx, |s| s.try_write(rest, false)) {
                    Poll::Ready(n) => {
                        let n = n?;
                        self.sent += n;
                        self.total += n as u64;
                        (moved, took) = (true, true);
                    }
                    Poll::Pending => {
                        self.stall.waits(took);
                        return Ok(moved);
                    }
                }
            }
            self.stall.clear();
            self.buffer.clear();
            self.sent = 0;
            if self.ended {
                return Ok(moved);
            }
            if self.buffer.capacity() == 0 {
                self.buffer = buffers::take_buffer();
            }
            match from.poll_read(cx, &mut self.buffer) {
                Poll::Ready(Ok(0)) => {
                    self.ended = true;
                    moved = true;
                }
                Poll::Ready(Ok(_)) => moved = true,
                Poll::Ready(Err(e)) => return Err(e),
                Poll::Pending => {
                    // An idle tunnel holds no buffers.
                    buffers::give_buffer(std::mem::take(&mut self.buffer));
                    return Ok(moved);
                }
            }
        }
    }

    /// Goes on with what is under way nowhere.
    fn after(total: u64, patience_ms: u32) -> Pipe {
        Pipe { buffer: Vec::new(), sent: 0, ended: false, total, stall: Stall::new(patience_ms) }
    }

    fn is_empty(&self) -> bool {
        !self.ended && self.sent == self.buffer.len()
    }

    fn is_done(&self) -> bool {
        self.ended && self.sent == self.buffer.len()
    }
}

/// What the two sides have sent, and all that is needed for it.
struct Tunnel {
    kept: Box<Kept>,
    socket: Socket,
    /// The peer, which counts as in use as long as this is here.
    answer: Answer,
    down: Pipe,
    up: Pipe,
    timer: Timer,
    timeout: Duration,
    /// When it has been silent for too long, monotonic ms.
    until_ms: u64,
    /// It may be parked once it is silent: not tried since the last byte.
    may_park: bool,
    /// Another process has no place for it.
    stays: bool,
}

/// How a tunnel's task ends.
enum Carried {
    /// One side has ended.
    Over(io::Result<()>),
    /// Nobody says anything, or another process is to go on with it.
    Silent,
}

/// Runs the tunnel; the head of the answer is queued already. The request is put aside meanwhile (`request/held.rs`).
pub async fn run(r: &mut Request, conf: &UpstreamSettings, patience: Patience, mut answer: Answer) -> Verdict {
    super::client_nodelay(r);
    r.action = action::TUNNELING;
    r.spent.stop();
    if r.downstream.stream().is_some() {
        return streamed::run(r, conf, patience, answer).await;
    }
    let down = Pipe::new(&answer.input[answer.at..], patience.client_ms);
    buffers::give_buffer(std::mem::take(&mut answer.input));
    let Some(http) = r.downstream.http1_mut() else { return Verdict::Status(502) };
    if http.flush().await.is_err() {
        return Verdict::Broken;
    }
    let up = Pipe::new(http.unread(), patience.peer_ms);
    let n = http.unread().len();
    http.consume(n);
    let timeout = r.attempts.read_timeout(conf);
    let until_ms = clock::monotonic_ms() + timeout.as_millis() as u64;
    hold(r, |kept, socket| {
        let timer = Timer::new();
        let tunnel = Tunnel { kept, socket, answer, down, up, timer, timeout, until_ms, may_park: true, stays: false };
        Box::pin(carry(Box::new(tunnel)))
    })
}

/// Moves bytes until one side ends, or nothing moves for a while.
async fn carry(mut tunnel: Box<Tunnel>) -> Released {
    tunnel.arm();
    loop {
        match poll_fn(|cx| tunnel.poll(cx)).await {
            Carried::Over(result) => return tunnel.released(result),
            Carried::Silent => match parked::try_park(tunnel) {
                Ok(()) => return Released::Parked,
                Err(mut back) => {
                    // A descriptor of it is somebody else's too.
                    back.stays |= departure::is_open();
                    tunnel = back;
                }
            },
        }
    }
}

impl Tunnel {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Carried> {
        let Tunnel { socket, answer, down, up, .. } = self;
        let moved_down = down.poll(cx, &mut answer.connection.socket, socket);
        let moved_up = up.poll(cx, socket, &mut answer.connection.socket);
        match (moved_down, moved_up) {
            (Err(e), _) | (_, Err(e)) => return Poll::Ready(Carried::Over(Err(e))),
            (Ok(a), Ok(b)) if a || b => {
                self.until_ms = clock::monotonic_ms() + self.timeout.as_millis() as u64;
                self.may_park = true;
                self.arm();
            }
            _ => {}
        }
        if self.down.is_done() || self.up.is_done() {
            return Poll::Ready(Carried::Over(Ok(())));
        }
        if self.is_to_depart() {
            return Poll::Ready(Carried::Silent);
        }
        ready!(self.timer.poll_expired(cx));
        if let Some(over) = timed_out(self.until_ms, &self.down.stall, &self.up.stall) {
            return Poll::Ready(Carried::Over(Err(over)));
        }
        // It is tried once for each silence.
        let is_silent = std::mem::replace(&mut self.may_park, false) && self.down.is_empty() && self.up.is_empty();
        self.arm();
        if is_silent {
            return Poll::Ready(Carried::Silent);
        }
        let _ = self.timer.poll_expired(cx);
        Poll::Pending
    }

    /// Whether another process is to go on with it, and can: nothing is under way, and nobody but the two sockets knows of the bytes.
    fn is_to_depart(&mut self) -> bool {
        departure::is_open()
            && !self.stays
            && self.down.is_empty()
            && self.up.is_empty()
            && self.kept.may_go()
            && self.answer.connection.socket.can_freeze()
            && self.socket.may_freeze()
            && self.answer.connection.socket.may_freeze()
    }

    /// Waits until it is silent, or for the end of its time or of a side's patience.
    fn arm(&self) {
        let until_ms = self.until_ms.min(self.down.stall.until_ms()).min(self.up.stall.until_ms());
        let left = Duration::from_millis(until_ms.saturating_sub(clock::monotonic_ms()).max(1));
        self.timer.set(if self.may_park { left.min(SILENT) } else { left });
    }

    /// Goes back to its request, whose end is the tunnel's.
    fn released(self: Box<Tunnel>, result: io::Result<()>) -> Released {
        let Tunnel { mut kept, socket, answer, down, up, .. } = *self;
        kept.sent += down.total;
        kept.request_length += up.total;
        let (sent, received) = (up.total, down.total);
        let go_on: GoOn = Box::new(move |r| Box::pin(async move { conclude(r, answer, sent, received, result) }));
        Released::Back(Back { request: kept.back(socket), go_on })
    }
}

/// The tunnel is over: so many bytes went up and came down.
fn conclude(r: &mut Request, answer: Answer, sent: u64, received: u64, result: io::Result<()>) -> Verdict {
    let attempt = r.attempts.current();
    attempt.response_ms = Some(clock::monotonic_ms() - answer.started_ms);
    attempt.received += received;
    attempt.sent += sent;
    attempt.body_bytes += received;
    drop(answer);
    r.answer.done = true;
    ended(r, result);
    Verdict::Answered
}

fn ended(r: &Request, result: io::Result<()>) {
    match result {
        Err(e) if e.get_ref().is_some_and(|e| e.is::<ClientTimedOut>()) => log_error!(r, Info, "{e}"),
        Err(e) if e.kind() == io::ErrorKind::TimedOut => {
            log_error!(r, Error, "upstream timed out (110: Connection timed out)");
        }
        Err(e) if !super::exchange::is_reset(&e) => {
            log_error!(r, Info, "{}", crate::log::read_error("recv()", &e));
        }
        _ => {}
    }
}
