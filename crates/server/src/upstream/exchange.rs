//! One try at one peer: a connection, the request out (`send`), the answer's head in (`head`). To: `relay`, or `retry` with
//! another peer.

use super::choose::SelectedPeer;
use super::connect;
use super::failure::Failure;
use super::fastcgi::Records;
use super::framing::Framing;
use super::http2;
use super::http3;
use super::job::{Job, Protocol};
use super::memcached::Reply;
use super::pool::{self, Connection, InUse};
use super::settings::UpstreamSettings;
use super::streams::{self, Asked};
use crate::connection::{action, pool as buffers};
use crate::health::cause::Cause;
use crate::health::passive;
use crate::log_error;
use crate::request::Request;
use crate::status::spent::Part;
use runtime::clock;
use runtime::timer::Timer;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use wire::http1::response::ResponseHead;

/// A peer's answer, its head read.
pub struct Answer {
    /// The connection.
    pub connection: Box<Connection>,
    /// Bytes read; the body begins at `at`.
    pub input: Vec<u8>,
    /// See `input`.
    pub at: usize,
    /// The peer.
    pub chosen: SelectedPeer,
    /// All of the request has been sent.
    pub request_sent: bool,
    /// When the try began, ms.
    pub started_ms: u64,
    _in_use: InUse,
}

impl Answer {
    /// That of a peer which another process has asked: nothing of it is read yet.
    pub fn arrived(connection: Box<Connection>, chosen: SelectedPeer, started_ms: u64) -> Answer {
        let _in_use = InUse::uncounted();
        Answer { connection, input: Vec::new(), at: 0, chosen, request_sent: true, started_ms, _in_use }
    }
}

/// Whether the client has gone away.
pub fn poll_client_gone(r: &mut Request, cx: &mut Context<'_>) -> Poll<()> {
    r.downstream.poll_gone(cx)
}

/// Whether the peer is given up when the client goes away: not where the answer is for a cache too.
pub(super) fn watches_client(r: &Request, conf: &UpstreamSettings) -> bool {
    !*conf.ignore_client_abort && r.ctx.cache.as_ref().is_none_or(|c| !c.cacheable)
}

/// A request on a connection that it has to itself, or on a stream of one. The steps: `send`, `read_head`.
pub(super) struct Try<'j> {
    pub(super) job: &'j Job,
    pub(super) conf: &'j UpstreamSettings,
    pub(super) connection: Box<Connection>,
    /// What the peer has said.
    pub(super) input: Vec<u8>,
    /// Of a body that is sent on as it comes, what was ready to be sent when the answer came.
    pub(super) unsent: Vec<u8>,
    /// The connection has carried requests before: that it has ended may be no fault of the peer.
    pub(super) reused: bool,
}

/// Asks one peer. `fresh`: no idle connection may be used.
pub async fn ask(
    r: &mut Request,
    job: &Job,
    conf: &UpstreamSettings,
    chosen: SelectedPeer,
    fresh: bool,
) -> Result<Answer, (Failure, SelectedPeer)> {
    let started_ms = clock::monotonic_ms();
    let in_use = pool::begin(&job.group);
    let shared = matches!(job.protocol, Protocol::Http2(_) | Protocol::Http3(_));
    let usable = !fresh && !shared && job.keepalive;
    let idle = if usable { pool::take(&job.group, &chosen.peer, job.identity()) } else { None };
    let reused = idle.is_some();
    let asked = Asked { job, conf, chosen: &chosen, started_ms };
    let opened = match idle {
        Some(c) => {
            r.attempts.current().connect_ms = Some(0);
            Ok(c)
        }
        None if matches!(job.protocol, Protocol::Http3(_)) => {
            Box::pin(streams::open::<http3::Http3PeerConnection>(r, asked, fresh)).await
        }
        None if shared => Box::pin(streams::open::<http2::Http2PeerConnection>(r, asked, fresh)).await,
        None => open(r, job, conf, &chosen, started_ms).await,
    };
    let mut connection = match opened {
        Ok(c) => c,
        Err(f) => return Err((f, chosen)),
    };
    connection.requests += 1;
    match &job.protocol {
        Protocol::FastCgi(f) => connection.framing = Framing::Records(Box::new(Records::new(f.keep))),
        Protocol::Memcached(asked) => connection.framing = Framing::Reply(Box::new(Reply::new(asked.clone()))),
        Protocol::Http1(_) | Protocol::Http2(_) | Protocol::Http3(_) | Protocol::Cgi(_) | Protocol::Tunnel => {}
    }
    if matches!(job.protocol, Protocol::Tunnel) {
        // Nothing is said by us.
        return Ok(Answer {
            connection,
            input: Vec::new(),
            at: 0,
            chosen,
            request_sent: false,
            started_ms,
            _in_use: in_use,
        });
    }
    r.action = action::SENDING_REQUEST;
    r.spent.enter(Part::FirstByte);
    let mut this = Try { job, conf, connection, input: Vec::new(), unsent: Vec::new(), reused };
    // The head of a stream is out already; its body goes while the answer is waited for.
    let sent = if shared { Ok(true) } else { this.send(r).await };
    let result = match sent {
        Ok(request_sent) => this.read_head(r).await.map(|at| (request_sent, at)),
        Err(f) => Err(f),
    };
    match result {
        Ok((request_sent, at)) => {
            r.attempts.current().header_ms = Some(clock::monotonic_ms() - started_ms);
            r.spent.enter(Part::Own);
            let Try { connection, input, .. } = this;
            Ok(Answer { connection, input, at, chosen, request_sent, started_ms, _in_use: in_use })
        }
        Err(f) => {
            buffers::give_buffer(this.input);
            Err((f, chosen))
        }
    }
}

/// Opens a connection to a peer.
pub(super) async fn open(
    r: &mut Request,
    job: &Job,
    conf: &UpstreamSettings,
    chosen: &SelectedPeer,
    started_ms: u64,
) -> Result<Box<Connection>, Failure> {
    let timer = Timer::new();
    let connecting = match connect::begin(&chosen.peer.address, job.local, conf) {
        Ok(c) => c,
        Err(f) => return Err(Failure::connecting(r, chosen, job.local, &f)),
    };
    timer.set(r.attempts.connect_timeout(conf));
    let watch = watches_client(r, conf);
    let mut wait = std::pin::pin!(connect::finish(connecting));
    let event = poll_fn(|cx| {
        use std::future::Future;
        if let Poll::Ready(result) = wait.as_mut().poll(cx) {
            return Poll::Ready(Event::Done(result));
        }
        poll_end(r, cx, &timer, watch)
    })
    .await;
    match event {
        Event::Done(Ok(mut socket)) => {
            if let Some(secure) = job.secure() {
                let shaken = Box::pin(super::secure::shake(r, conf, &timer, socket, secure, chosen)).await;
                socket = shaken.inspect_err(|_| {
                    passive::note(&chosen.peer, Cause::Tls("see the error log".into()));
                })?;
            }
            r.attempts.current().connect_ms = Some(clock::monotonic_ms() - started_ms);
            Ok(Connection::new(socket, timer, job.identity().cloned()))
        }
        Event::Done(Err(f)) => Err(Failure::connecting(r, chosen, job.local, &f)),
        Event::TimedOut => Err(Failure::timed_out(r, false)),
        Event::ClientGone => Err(client_gone(r)),
    }
}

/// How a wait ended.
pub(super) enum Event<T> {
    Done(T),
    TimedOut,
    ClientGone,
}

/// Whether a wait is over though nothing has come: time has passed, or the client has gone if that is watched for.
pub(super) fn poll_end<T>(r: &mut Request, cx: &mut Context<'_>, timer: &Timer, watch: bool) -> Poll<Event<T>> {
    if timer.poll_expired(cx).is_ready() {
        return Poll::Ready(Event::TimedOut);
    }
    if watch && poll_client_gone(r, cx).is_ready() {
        return Poll::Ready(Event::ClientGone);
    }
    Poll::Pending
}

pub(super) fn client_gone(r: &mut Request) -> Failure {
    log_error!(
        r,
        Info,
        "epoll_wait() reported that client prematurely closed connection, so upstream connection is closed too{}",
        super::client_error(r)
    );
    Failure::over(499)
}

/// Whether an answer has no body, whatever its head announces.
pub fn is_bodiless(head: &ResponseHead, is_head: bool) -> bool {
    is_head || matches!(head.status, 204 | 304) || (100..200).contains(&head.status)
}

/// Closes a try's connection, or keeps it for the next request.
pub fn release(job: &Job, answer: Answer, keep: bool) {
    let Answer { connection, input, chosen, .. } = answer;
    buffers::give_buffer(input);
    if keep && job.keepalive && connection.is_complete() {
        pool::give(&job.group, &chosen.peer, connection);
    }
}

/// An error of a read that counts as the end.
pub fn is_reset(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}
