//! The HTTP/1 session: reads heads (`head`), hands requests on (`request_task`), frames their answers (`framing`), decides what becomes
//! of the connection.
//! From: `connection`. Around: `request`. RFC 9112; nginx's `ngx_http_request.c` where the RFC leaves a choice.

mod first;
mod framing;
mod head;
pub mod parked;
mod request_task;

pub use framing::{may_chunk, queue, write_head};

use super::incoming::{Filled, Incoming};
use super::output::Output;
use super::slow::{TooSlow, Watch};
use super::socket::Socket;
use super::tls::Tls;
use super::{Client, Downstream, pool};
use crate::connection::mqtt::Handshake;
use crate::modules::core::Lingering;
use crate::request::phases::{Back, GoOn, Released};
use crate::request::{Request, end, phases};
use crate::status::requests;
use crate::worker::counters;
use crate::worker::handover;
use head::{HeadRead, read_head};
use request_task::{Done, New, Then, Working};
use runtime::clock;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// Answers to pipelined requests are written together up to this many bytes.
const PIPELINE_FLUSH: u64 = 64 * 1024;
/// How much a lingering close reads at once.
const LINGER_BUFFER: usize = 4096;

/// One HTTP/1 connection.
pub struct Http1 {
    /// The connection below.
    pub incoming: Incoming,
    /// Bytes on their way out.
    pub output: Output,
    /// The request is a client's of MQTT: so it is answered.
    pub mqtt: Option<Handshake>,
    /// The answer is sent in chunks.
    pub chunked: bool,
    /// `output.queued` when the answer began.
    pub answer_start: u64,
    /// Bytes of the answer's head.
    pub header_size: u32,
    /// When a rate limit began to count, ms.
    pub rate_start_ms: u64,
    /// `keepalive_min_timeout`: until then (monotonic ms) a shutdown leaves the idle connection alone.
    stay_until_ms: u64,
    /// `client_header_timeout` runs for the head that comes.
    head_armed: bool,
}

impl Drop for Http1 {
    fn drop(&mut self) {
        crate::log::lines::close_after_lines(std::mem::replace(&mut self.incoming.socket, Socket::none()));
    }
}

impl Http1 {
    /// A session on a new connection, or on one that has been read from.
    pub fn new(incoming: Incoming) -> Box<Http1> {
        Box::new(Http1 {
            incoming,
            output: Output::default(),
            mqtt: None,
            chunked: false,
            answer_start: 0,
            header_size: 0,
            rate_start_ms: 0,
            stay_until_ms: 0,
            head_armed: false,
        })
    }

    /// Bytes that came and are not used yet.
    pub fn unread(&self) -> &[u8] {
        self.incoming.unread()
    }

    /// Marks `n` unread bytes as used.
    pub fn consume(&mut self, n: usize) {
        self.incoming.consume(n);
    }

    /// See [`Incoming::poll_fill`].
    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.incoming.poll_fill(cx)
    }

    /// See [`Incoming::fill`].
    pub fn fill(&mut self, client: &Client) -> impl Future<Output = Filled> {
        self.incoming.fill(client)
    }

    /// See [`Incoming::lend_input`].
    pub fn lend_input(&mut self) {
        self.incoming.lend_input();
    }

    /// Writes all that is queued. The deadline is the caller's.
    pub fn flush(&mut self) -> impl Future<Output = io::Result<()>> {
        poll_fn(move |cx| {
            let Http1 { incoming: Incoming { socket, .. }, output, .. } = &mut *self;
            while !output.is_empty() {
                ready!(output.poll_write(socket, cx, u64::MAX))?;
            }
            Poll::Ready(Ok(()))
        })
    }

    /// Whether a shutdown closes the connection while it is idle.
    fn may_drain(&self) -> bool {
        self.stay_until_ms == 0 || self.stay_until_ms <= clock::monotonic_ms()
    }

    /// Makes an idle connection end as soon as a shutdown may close it.
    fn end_when_drained(&self) {
        let left = Duration::from_millis(self.stay_until_ms.saturating_sub(clock::monotonic_ms()));
        self.incoming.timer.shorten(left);
    }

    /// Gives back what an idle connection does not need.
    fn rest(&mut self) {
        self.lend_input();
        if self.output.is_empty() {
            pool::give_buffer(self.output.take_buffer());
        }
    }
}

/// Writes what answers to pipelined requests have queued while the next head is not whole, as fast as clients have to take answers on this level.
async fn flush_before_head(r: &mut Request) -> io::Result<()> {
    let conf = r.conf();
    let timeout = *conf.core.send_timeout;
    let mut watch = Watch::new(*conf.slow.send_min_rate, conf.slow.places());
    let Downstream::Http1(http) = &mut r.downstream else { return Ok(()) };
    let Http1 { incoming: Incoming { socket, timer, .. }, output, answer_start, head_armed, .. } = &mut **http;
    let client = &r.client;
    // The head's own time begins behind this.
    *head_armed = false;
    timer.set(timeout);
    let flushed = poll_fn(|cx| {
        while !output.is_empty() {
            match output.poll_write(socket, cx, u64::MAX) {
                Poll::Ready(Ok(_)) => timer.set(timeout),
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending if client.is_taken() => return Poll::Ready(Err(io::ErrorKind::QuotaExceeded.into())),
                Poll::Pending => {
                    client.owes(*answer_start);
                    let written = output.written;
                    if let Some(watch) = &mut watch
                        && watch.poll(client, cx, || client.progress().unwrap_or(written)).is_ready()
                    {
                        return Poll::Ready(Err(io::Error::other(TooSlow)));
                    }
                    ready!(timer.poll_expired(cx));
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
        }
        Poll::Ready(Ok(()))
    })
    .await;
    client.works();
    flushed
}

/// Serves requests on a connection until it is gone or parked. Gives the connection back where HTTP/2 begins on it.
///
/// An idle connection is little more than this future, and an `async fn` has room for each of its arguments twice: so what waits for clients
/// is made of blocks instead.
#[allow(clippy::manual_async_fn)]
pub fn serve(http: Box<Http1>, client: &Rc<Client>) -> impl Future<Output = Option<Box<Http1>>> {
    async move {
        let http = first::first_bytes(http, client).await?;
        serve_from(next(http, client), client).await
    }
}

/// Works on the connection's next request, of which bytes have come.
fn next(http: Box<Http1>, client: &Rc<Client>) -> Working {
    let mut r = pool::take_request(crate::worker::snapshot_for(client), client.clone(), Downstream::None);
    r.flow.pipelined = client.requests.get() > 0 && !http.unread().is_empty();
    r.downstream = Downstream::Http1(http);
    request_task::work(New::Request(r))
}

/// Goes on with a request whose connection was parked.
#[allow(clippy::manual_async_fn)]
pub fn go_on_with(back: Back, client: Rc<Client>) -> impl Future<Output = ()> {
    let working = request_task::work(New::Back(back));
    async move {
        // HTTP/2 begins with the first bytes of a connection, which are long past.
        let _ = serve_from(working, &client).await;
    }
}

#[allow(clippy::manual_async_fn)]
fn serve_from(mut working: Working, client: &Rc<Client>) -> impl Future<Output = Option<Box<Http1>>> {
    async move {
        loop {
            let (mut http, wait) = match after((&mut working).await) {
                After::Wait { http, time } => (http, time),
                After::Http2(http) => return Some(http),
                After::Over => return None,
                After::Linger { http, time, each } => {
                    Box::pin(lingering_close(http, client, time, each)).await;
                    return None;
                }
                After::Held(work) => match work.await {
                    Released::Back(back) => {
                        working = request_task::work(New::Back(back));
                        continue;
                    }
                    Released::Parked => return None,
                },
            };
            if runtime::turn_is_spent() {
                runtime::yield_now().await;
            }
            if http.unread().is_empty() || http.output.waiting() >= PIPELINE_FLUSH {
                if !http.output.is_empty() && http.flush().await.is_err() {
                    return None;
                }
                if http.unread().is_empty() {
                    http.rest();
                    http.incoming.timer.set(wait);
                    http = wait_for_next(http, client).await?;
                }
            }
            working = next(http, client);
        }
    }
}

/// What a connection does behind a request.
enum After {
    /// It waits for the next one, so long.
    Wait { http: Box<Http1>, time: Duration },
    /// HTTP/2 begins.
    Http2(Box<Http1>),
    /// It is closed once the client has stopped sending: see [`Then::Linger`].
    Linger { http: Box<Http1>, time: Duration, each: Duration },
    /// A handler has it.
    Held(phases::Work),
    /// It is gone.
    Over,
}

fn after(Done { request, then, session }: Done) -> After {
    pool::give_request(request);
    match (then, session) {
        (Then::Held(work), _) => After::Held(work),
        (_, None) => After::Over,
        (Then::Wait(time), Some(http)) => After::Wait { http, time },
        (Then::Http2, Some(http)) => After::Http2(http),
        (Then::Linger { time, each }, Some(http)) => After::Linger { http, time, each },
    }
}

/// Waits until an idle connection brings something. None: it is closed, another's, or parked.
#[allow(clippy::manual_async_fn)]
fn wait_for_next(mut http: Box<Http1>, client: &Rc<Client>) -> impl Future<Output = Option<Box<Http1>>> {
    async move {
        loop {
            match next_request(&mut http, client).await {
                Awaited::Request => return Some(http),
                Awaited::End => {
                    hand_over(&mut http, client);
                    return None;
                }
                Awaited::Departure => {
                    let wait = http.incoming.timer.left();
                    // One that is somebody else's too ends here, as at a shutdown.
                    let _ = parked::depart(http, client, wait);
                    return None;
                }
                Awaited::Crowd => {
                    let wait = http.incoming.timer.left();
                    http = parked::try_park(http, client, wait).err()?;
                    if http.incoming.socket.tls().is_some() {
                        client.cannot_park();
                    }
                }
            }
        }
    }
}

/// What an idle connection has waited for.
enum Awaited {
    /// It brings something.
    Request,
    /// It is to be closed.
    End,
    /// Another process is to go on with it.
    Departure,
    /// It is silent, and there are many like it: it is better parked.
    Crowd,
}

/// Goes on with an idle connection that another thread has handed over.
#[allow(clippy::manual_async_fn)]
pub fn resume(http: Box<Http1>, client: Rc<Client>, wait: Duration) -> impl Future<Output = ()> {
    http.incoming.timer.set(wait);
    async move {
        if let Some(http) = wait_for_next(http, &client).await {
            // HTTP/2 begins with the first bytes of a connection, which are long past.
            let _ = serve(http, &client).await;
        }
    }
}

/// Where a thread ends before its process, its idle connections go on at others.
fn hand_over(http: &mut Http1, client: &Client) {
    if !handover::is_handed_over(client) || client.is_taken() || http.incoming.timer.expired() {
        return;
    }
    let wait = http.incoming.timer.left();
    let socket = std::mem::replace(&mut http.incoming.socket, Socket::none());
    if let Some((fd, keys)) = socket.into_parts() {
        handover::send(fd, keys, client, wait);
    }
}

fn next_request(http: &mut Http1, client: &Client) -> impl Future<Output = Awaited> {
    counters::waiting(1);
    poll_fn(move |cx| {
        let awaited = poll_next_request(http, client, cx);
        if awaited.is_ready() {
            counters::waiting(-1);
            client.works();
        }
        awaited
    })
}

fn poll_next_request(http: &mut Http1, client: &Client, cx: &mut Context<'_>) -> Poll<Awaited> {
    if client.is_taken() {
        return Poll::Ready(Awaited::End);
    }
    let is_between = || http.unread().is_empty() && http.incoming.socket.tls().is_none_or(Tls::is_at_rest);
    if handover::is_handed_over(client) && http.may_drain() && is_between() {
        // What its client has said meanwhile the other thread reads: one that always has more to ask would hold this one up.
        return Poll::Ready(Awaited::End);
    }
    if let Poll::Ready(r) = http.incoming.socket.poll_readable(cx) {
        return Poll::Ready(if r.is_ok() { Awaited::Request } else { Awaited::End });
    }
    let stays = client.programs.get().is_some();
    if !stays && parked::is_to_depart(http) {
        return Poll::Ready(Awaited::Departure);
    }
    if client.is_to_park() {
        return Poll::Ready(Awaited::Crowd);
    }
    client.rests();
    if crate::worker::draining() {
        if http.may_drain() {
            return Poll::Ready(Awaited::End);
        }
        http.end_when_drained();
    }
    http.incoming.timer.poll_expired(cx).map(|()| Awaited::End)
}

/// Reads and answers one request. Gives back the session, if it lives on, and what becomes of it.
async fn one_request(r: &mut Request) -> (Then, Option<Box<Http1>>) {
    match read_head(r).await {
        HeadRead::Nothing => {
            let Downstream::Http1(mut http) = std::mem::take(&mut r.downstream) else { return (Then::OVER, None) };
            let _ = http.flush().await;
            return (Then::OVER, None);
        }
        HeadRead::Http2 => {
            let Downstream::Http1(http) = std::mem::take(&mut r.downstream) else { return (Then::OVER, None) };
            return (Then::Http2, Some(http));
        }
        HeadRead::Refused(status) => {
            requests::begin(r);
            r.flow.keepalive = false;
            phases::answer_status(r, status).await;
        }
        HeadRead::Complete => {
            let accepted = crate::request::head::accept(r);
            requests::begin(r);
            match accepted {
                Ok(()) => phases::process(r).await,
                Err(status) => phases::answer_status(r, status).await,
            }
        }
    }
    finish(r).await
}

/// Goes on with a request that a handler had put aside.
async fn go_on(r: &mut Request, handler: GoOn) -> (Then, Option<Box<Http1>>) {
    let verdict = handler(r).await;
    phases::conclude(r, verdict).await;
    finish(r).await
}

/// After the answer: the rest of the body, the last bytes, the log line, and whether the connection lives on.
async fn finish(r: &mut Request) -> (Then, Option<Box<Http1>>) {
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.core;
    match std::mem::take(&mut r.downstream) {
        Downstream::Http1(http) => r.downstream = Downstream::Http1(http),
        Downstream::Held(work) => return (Then::Held(work), None),
        // The connection was handed over.
        _ => return (Then::OVER, None),
    }
    if r.flow.keepalive && !r.flow.aborted && r.body.is_pending() && !crate::request::body::discard(r).await {
        r.flow.keepalive = false;
        r.flow.lingering_close = true;
    }
    // The rest of a body is on its way: a close waits for it, lest the client miss the answer.
    r.flow.lingering_close |= !r.flow.keepalive && r.body.is_pending() && r.flow.error_status != 400;
    let keep = r.flow.keepalive && !r.flow.aborted && r.answer.done;
    let Downstream::Http1(http) = &mut r.downstream else { unreachable!("checked above") };
    if !keep && r.answer.done {
        let waiting = http.output.waiting();
        http.incoming.socket.tls_mut().into_iter().for_each(|tls| tls.end_after(waiting));
        // Nothing is waited for between the last byte and the close.
        http.output.last = conf.post_action.is_empty() && r.ctx.cache_update.is_none();
    }
    // A complete batch leaves in one write: only what nothing follows is written now, and what is much. Its own rate and timeouts hold for it.
    let leaves = !keep || http.unread().is_empty() || http.output.waiting() >= PIPELINE_FLUSH;
    if !r.flow.aborted && leaves && crate::request::flow::flush_rest(r).await.is_err() {
        r.flow.aborted = true;
    }
    end::conclude(r).await;
    let keep = keep && !r.flow.aborted;
    // Who sees the connection close finds the cache up to date, as with nginx. A kept connection need not wait for it.
    if !keep && let Some(update) = r.ctx.cache_update.take() {
        let _ = update.await;
    }
    let linger = !r.flow.aborted
        && match *conf.lingering_close {
            Lingering::Off => false,
            Lingering::On => r.flow.lingering_close || has_unread(r),
            Lingering::Always => true,
        };
    let Downstream::Http1(mut http) = std::mem::take(&mut r.downstream) else { unreachable!("checked above") };
    http.chunked = false;
    if keep {
        if *conf.tcp_nodelay {
            http.incoming.set_nodelay();
        }
        let min = *conf.keepalive_min_timeout;
        http.stay_until_ms = match min.is_zero() {
            true => 0,
            false => clock::monotonic_ms() + min.min(*conf.keepalive_timeout).as_millis() as u64,
        };
        return (Then::Wait(*conf.keepalive_timeout), Some(http));
    }
    if linger && !crate::worker::draining() {
        return (Then::Linger { time: *conf.lingering_time, each: *conf.lingering_timeout }, Some(http));
    }
    if r.flow.aborted && *conf.reset_timedout_connection {
        reset_on_close(&http.incoming.socket);
    }
    (Then::OVER, None)
}

fn has_unread(r: &Request) -> bool {
    let Downstream::Http1(http) = &r.downstream else { return false };
    !http.unread().is_empty() || http.incoming.socket.has_unread()
}

/// Says that nothing more comes and reads what the client still sends, so that it sees the answer before a reset.
async fn lingering_close(mut http: Box<Http1>, client: &Client, time: Duration, each: Duration) {
    http.incoming.socket.shutdown();
    let end = clock::monotonic_ms() + time.as_millis() as u64;
    let mut buffer = Vec::with_capacity(LINGER_BUFFER);
    loop {
        let left = end.saturating_sub(clock::monotonic_ms());
        if left == 0 {
            return;
        }
        http.incoming.timer.set(each.min(Duration::from_millis(left)));
        buffer.clear();
        let Incoming { socket, timer, .. } = &mut http.incoming;
        let read = poll_fn(|cx| {
            if client.is_taken() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(read) = socket.poll_read(cx, &mut buffer) {
                return Poll::Ready(read.ok());
            }
            client.rests();
            timer.poll_expired(cx).map(|()| None)
        });
        if !matches!(read.await, Some(n) if n > 0) {
            return;
        }
    }
}

/// `reset_timedout_connection`: the close sends RST and frees the kernel's memory at once.
pub fn reset_on_close(socket: &Socket) {
    let _ = rustix::net::sockopt::set_socket_linger(socket.as_fd(), Some(Duration::ZERO));
}
