//! One try at one peer: a connection, the request out, the answer's head in. After: `relay`, or `retry` with another peer.

use super::choose::Chosen;
use super::connect;
use super::fastcgi::Records;
use super::group::Group;
use super::http2;
use super::layer::Layer;
use super::pool::{self, Connection, InUse};
use super::settings::{UpstreamSettings, next};
use crate::connection::{Session, doing, pool as buffers};
use crate::log_error;
use crate::request::Request;
use crate::request::body::{self, BodyError, Stored};
use crate::tls::client::Secure;
use crate::worker::clock;
use crate::worker::timer::Timer;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use wire::http1::response::{ResponseHead, ResponseParser};
use wire::http1::{Parsed, Version};

/// How much of a body file is sent at once.
const FILE_CHUNK: usize = 512 * 1024;

/// What is asked of the peers of a group.
pub struct Job {
    /// Whom to ask.
    pub group: Arc<Group>,
    /// The request's head, and a body that the configuration gives.
    pub head: Vec<u8>,
    /// The client's body.
    pub body: JobBody,
    /// The answer has no body whatever its head says.
    pub is_head: bool,
    /// The connection may be used again.
    pub keepalive: bool,
    /// Where to connect from.
    pub local: Option<SocketAddr>,
    /// What the peers speak.
    pub protocol: Protocol,
}

impl Job {
    /// TLS, if it is spoken.
    fn secure(&self) -> Option<&Secure> {
        match &self.protocol {
            Protocol::Http1(secure) | Protocol::Http2(secure) => secure.as_deref(),
            Protocol::FastCgi(_) => None,
        }
    }

    /// What a connection must have been made for.
    pub(super) fn identity(&self) -> Option<&Arc<[u8]>> {
        self.secure().map(|s| &s.identity)
    }

    /// `fastcgi_catch_stderr`
    pub(super) fn caught(&self) -> &[Box<[u8]>] {
        match &self.protocol {
            Protocol::FastCgi(f) => &f.caught,
            _ => &[],
        }
    }
}

/// What peers speak, with TLS below it or not.
pub enum Protocol {
    /// HTTP/1.0 or HTTP/1.1.
    Http1(Option<Box<Secure>>),
    /// HTTP/2: the head is a list of `http2::fields`.
    Http2(Option<Box<Secure>>),
    /// FastCGI.
    FastCgi(FastCgi),
}

/// What is different with FastCGI.
#[derive(Clone, Debug)]
pub struct FastCgi {
    /// The application leaves the connection open.
    pub keep: bool,
    /// `fastcgi_catch_stderr`
    pub caught: Arc<Vec<Box<[u8]>>>,
}

/// The body that goes with a job.
pub enum JobBody {
    /// None, or part of `head`.
    None,
    /// Read whole before.
    Stored(Rc<Stored>),
    /// Sent on as it comes; in chunks where its length is unknown.
    Stream {
        /// Chunks.
        chunked: bool,
        /// What came with the head: whoever sends nonsense there is refused before a peer hears of it.
        first: Vec<u8>,
        /// That is all.
        complete: bool,
    },
}

/// A peer's answer, its head read.
pub struct Answer {
    /// The connection.
    pub connection: Connection,
    /// Bytes read; the body begins at `at`.
    pub input: Vec<u8>,
    /// See `input`.
    pub at: usize,
    /// The peer.
    pub chosen: Chosen,
    /// All of the request has been sent.
    pub request_sent: bool,
    /// When the try began, ms.
    pub started_ms: u64,
    _in_use: InUse,
}

/// Why a try gave no answer.
pub struct Failure {
    /// A bit of [`next`].
    pub kind: u32,
    /// Something of the request went out.
    pub request_sent: bool,
    /// The connection was an idle one that turned out to be dead: no fault of the peer.
    pub stale: bool,
    /// The client is to blame: its status.
    pub client: Option<u16>,
}

impl Failure {
    pub(super) fn of(kind: u32, sent: bool, stale: bool) -> Failure {
        Failure { kind, request_sent: sent, stale, client: None }
    }

    pub(super) fn client(status: u16) -> Failure {
        Failure { kind: next::ERROR, request_sent: false, stale: false, client: Some(status) }
    }
}

/// Whether the client has gone away.
pub fn poll_client_gone(r: &mut Request, cx: &mut Context<'_>) -> Poll<()> {
    match &mut r.session {
        Session::Http1(http) => http.socket.poll_closed(cx),
        other => other.stream().map_or(Poll::Pending, |stream| stream.poll_gone()),
    }
}

/// Whether the peer is given up when the client goes away: not where the answer is for a cache too.
pub(super) fn watches_client(r: &Request, conf: &UpstreamSettings) -> bool {
    !*conf.ignore_client_abort && r.ctx.cache.as_ref().is_none_or(|c| !c.cacheable)
}

/// Asks one peer. `fresh`: no idle connection may be used.
pub async fn ask(
    r: &mut Request,
    job: &Job,
    conf: &UpstreamSettings,
    chosen: Chosen,
    fresh: bool,
) -> Result<Answer, (Failure, Chosen)> {
    let started_ms = clock::monotonic_ms();
    let in_use = pool::begin(&job.group);
    let shared = matches!(job.protocol, Protocol::Http2(_));
    let usable = !fresh && !shared && job.keepalive;
    let idle = if usable { pool::take(&job.group, &chosen.peer, job.identity()) } else { None };
    let reused = idle.is_some();
    let opened = match idle {
        Some(c) => {
            r.attempts.current().connect_ms = Some(0);
            Ok(c)
        }
        None if shared => Box::pin(http2::open(r, job, conf, &chosen, fresh, started_ms)).await,
        None => open(r, job, conf, &chosen, started_ms).await,
    };
    let mut connection = match opened {
        Ok(c) => c,
        Err(f) => return Err((f, chosen)),
    };
    connection.requests += 1;
    if let Protocol::FastCgi(f) = &job.protocol {
        connection.layer = Layer::Records(Box::new(Records::new(f.keep)));
    }
    r.doing = doing::SENDING_REQUEST;
    let mut input = Vec::new();
    // The head of a stream is out already; its body goes while the answer is waited for.
    let sent = if shared { Ok(true) } else { send(r, job, conf, &mut connection, &mut input, reused).await };
    let sent = match sent {
        Ok(sent) => sent,
        Err(f) => {
            buffers::give_buffer(input);
            return Err((f, chosen));
        }
    };
    match read_head(r, job, conf, &mut connection, &mut input, reused).await {
        Ok(at) => {
            r.attempts.current().header_ms = Some(clock::monotonic_ms() - started_ms);
            Ok(Answer { connection, input, at, chosen, request_sent: sent, started_ms, _in_use: in_use })
        }
        Err(f) => {
            buffers::give_buffer(input);
            Err((f, chosen))
        }
    }
}

pub(super) async fn open(
    r: &mut Request,
    job: &Job,
    conf: &UpstreamSettings,
    chosen: &Chosen,
    started_ms: u64,
) -> Result<Connection, Failure> {
    let timer = Timer::new();
    let connecting = match connect::begin(&chosen.peer.address, job.local, conf) {
        Ok(c) => c,
        Err(f) => return Err(connect_failed(r, job, chosen, &f)),
    };
    timer.set(*conf.connect_timeout);
    let watch = watches_client(r, conf);
    let mut wait = std::pin::pin!(connect::finish(connecting));
    let event = poll_fn(|cx| {
        use std::future::Future;
        if let Poll::Ready(result) = wait.as_mut().poll(cx) {
            return Poll::Ready(Event::Done(result));
        }
        if timer.poll_expired(cx).is_ready() {
            return Poll::Ready(Event::TimedOut);
        }
        if watch && poll_client_gone(r, cx).is_ready() {
            return Poll::Ready(Event::ClientGone);
        }
        Poll::Pending
    })
    .await;
    match event {
        Event::Done(Ok(mut socket)) => {
            if let Some(secure) = job.secure() {
                socket = Box::pin(super::secure::shake(r, conf, &timer, socket, secure, chosen)).await?;
            }
            r.attempts.current().connect_ms = Some(clock::monotonic_ms() - started_ms);
            Ok(Connection::new(socket, timer, job.identity().cloned()))
        }
        Event::Done(Err(f)) => Err(connect_failed(r, job, chosen, &f)),
        Event::TimedOut => {
            log_error!(r, Error, "upstream timed out (110: Connection timed out)");
            Err(Failure::of(next::TIMEOUT, false, false))
        }
        Event::ClientGone => Err(client_gone(r)),
    }
}

enum Event<T> {
    Done(T),
    TimedOut,
    ClientGone,
}

/// What a look at a connection came to while the answer's head is waited for.
enum Heard {
    Bytes(io::Result<usize>),
    /// The rest of the request could not be sent.
    Failed(Failure),
}

fn connect_failed(r: &Request, job: &Job, chosen: &Chosen, f: &connect::Failed) -> Failure {
    // What the operator can do about it stands in the same line.
    let hint = match f.error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => ": no free local port or address; see net.ipv4.ip_local_port_range and proxy_bind",
        Some(libc::EAGAIN) => ": the peer's accept queue is full; see its backlog and net.core.somaxconn",
        Some(libc::EMFILE | libc::ENFILE) => ": out of descriptors; see worker_rlimit_nofile",
        _ => "",
    };
    let what = match (f.at_once, f.call, job.local) {
        (true, "connect()", _) => format!("connect() to {}", chosen.peer.name),
        (_, "bind()", Some(local)) => format!("bind({local})"),
        (_, call, _) => call.to_owned(),
    };
    let text = crate::log::os_error(&f.error);
    if f.at_once && !is_network(&f.error) {
        log_error!(r, Crit, "{what} failed ({text}){hint}");
    } else {
        log_error!(r, Error, "{what} failed ({text}){hint}");
    }
    Failure::of(next::ERROR, false, false)
}

/// What the network does; anything else that makes a connection fail at once is this machine's fault.
fn is_network(e: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    let unreachable = matches!(e.kind(), Kind::NetworkDown | Kind::NetworkUnreachable | Kind::HostUnreachable);
    unreachable || matches!(e.kind(), Kind::ConnectionRefused | Kind::ConnectionReset | Kind::WouldBlock)
}

pub(super) fn client_gone(r: &mut Request) -> Failure {
    log_error!(
        r,
        Info,
        "epoll_wait() reported that client prematurely closed connection, so upstream connection is closed too{}",
        super::client_error(r)
    );
    Failure::client(499)
}

/// Sends the request. True when all of it went out; false when the peer answered before that.
async fn send(
    r: &mut Request,
    job: &Job,
    conf: &UpstreamSettings,
    connection: &mut Connection,
    input: &mut Vec<u8>,
    reused: bool,
) -> Result<bool, Failure> {
    // What came with the client's head leaves with ours.
    let mut framed = Vec::new();
    let memory: &[u8] = match &job.body {
        JobBody::Stored(s) if s.file.is_none() => &s.memory,
        JobBody::Stream { chunked, first, complete } => {
            keep_for_variable(r, first, *complete);
            frame(first, Framing::of(job, *chunked), *complete, &mut framed);
            &framed
        }
        _ => b"",
    };
    if !write_two(r, conf, connection, &job.head, memory, input, reused).await? {
        return Ok(false);
    }
    match &job.body {
        JobBody::Stored(s) if s.file.is_some() && matches!(job.protocol, Protocol::FastCgi(_)) => {
            send_records(r, conf, connection, s, input, reused).await
        }
        JobBody::Stored(s) if s.file.is_some() => send_file(r, conf, connection, s, input, reused).await,
        JobBody::Stream { chunked, complete: false, .. } => {
            stream(r, conf, connection, Framing::of(job, *chunked), input, reused).await
        }
        _ => Ok(true),
    }
}

/// Writes two pieces. False: the peer said something first.
#[allow(clippy::too_many_arguments, reason = "the parts of a try; a struct of them would be used here only")]
async fn write_two(
    r: &mut Request,
    conf: &UpstreamSettings,
    connection: &mut Connection,
    first: &[u8],
    second: &[u8],
    input: &mut Vec<u8>,
    reused: bool,
) -> Result<bool, Failure> {
    let total = first.len() + second.len();
    let mut done = 0;
    while done < total {
        let mut armed = false;
        let rest_first = &first[done.min(first.len())..];
        let rest_second = &second[done.saturating_sub(first.len())..];
        let watch = watches_client(r, conf);
        let event = poll_fn(|cx| {
            let write = connection.socket.poll_write_with(cx, |s| {
                if rest_second.is_empty() {
                    s.try_write(rest_first, false)
                } else {
                    s.try_write_two(rest_first, rest_second)
                }
            });
            if let Poll::Ready(n) = write {
                return Poll::Ready(Event::Done(Ok(n)));
            }
            // A peer that answers before it has read all stops reading: what it says counts.
            if input.is_empty()
                && done > 0
                && let Poll::Ready(n) = read_answer(connection, cx, input)
            {
                return Poll::Ready(Event::Done(Err(n)));
            }
            if !std::mem::replace(&mut armed, true) {
                connection.timer.set(*conf.send_timeout);
            }
            if connection.timer.poll_expired(cx).is_ready() {
                return Poll::Ready(Event::TimedOut);
            }
            if watch && poll_client_gone(r, cx).is_ready() {
                return Poll::Ready(Event::ClientGone);
            }
            Poll::Pending
        })
        .await;
        match event {
            Event::Done(Ok(Ok(n))) => {
                done += n;
                r.attempts.current().sent += n as u64;
            }
            Event::Done(Ok(Err(e))) => {
                // A peer may have answered and closed before it had read everything.
                input.reserve(buffers::BUFFER);
                if connection.try_read(input).is_ok_and(|n| n > 0) {
                    r.attempts.current().received += input.len() as u64;
                    return Ok(false);
                }
                log_error!(r, Error, "send() failed ({})", crate::log::os_error(&e));
                return Err(Failure::of(next::ERROR, done > 0, reused));
            }
            Event::Done(Err(Ok(n))) if n > 0 => {
                r.attempts.current().received += n as u64;
                return Ok(false);
            }
            Event::Done(Err(_)) => {
                log_error!(r, Error, "upstream prematurely closed connection");
                return Err(Failure::of(next::ERROR, true, reused));
            }
            Event::TimedOut => {
                log_error!(r, Error, "upstream timed out (110: Connection timed out)");
                return Err(Failure::of(next::TIMEOUT, true, false));
            }
            Event::ClientGone => return Err(client_gone(r)),
        }
    }
    Ok(true)
}

/// What a peer says before it has been sent everything.
fn read_answer(connection: &mut Connection, cx: &mut Context<'_>, input: &mut Vec<u8>) -> Poll<io::Result<usize>> {
    std::task::ready!(connection.socket.poll_readable(cx))?;
    if input.capacity() == 0 {
        *input = buffers::take_buffer();
    }
    connection.poll_read(cx, input)
}

async fn send_file(
    r: &mut Request,
    conf: &UpstreamSettings,
    connection: &mut Connection,
    stored: &Stored,
    input: &mut Vec<u8>,
    reused: bool,
) -> Result<bool, Failure> {
    let file = stored.file.as_ref().expect("asked before");
    let mut offset = 0u64;
    connection.timer.set(*conf.send_timeout);
    while offset < stored.len {
        let len = (stored.len - offset).min(FILE_CHUNK as u64) as usize;
        let mut at = offset;
        let event = poll_fn(|cx| {
            if let Poll::Ready(n) =
                connection.socket.poll_write_with(cx, |s| s.try_sendfile(file.fd.as_fd(), &mut at, len))
            {
                return Poll::Ready(Event::Done(Ok(n)));
            }
            if input.is_empty()
                && let Poll::Ready(n) = read_answer(connection, cx, input)
            {
                return Poll::Ready(Event::Done(Err(n)));
            }
            connection.timer.poll_expired(cx).map(|()| Event::TimedOut)
        })
        .await;
        match event {
            Event::Done(Ok(Ok(n))) if n > 0 => {
                offset += n as u64;
                r.attempts.current().sent += n as u64;
                connection.timer.set(*conf.send_timeout);
            }
            Event::Done(Err(Ok(n))) if n > 0 => {
                r.attempts.current().received += n as u64;
                return Ok(false);
            }
            Event::TimedOut => {
                log_error!(r, Error, "upstream timed out (110: Connection timed out)");
                return Err(Failure::of(next::TIMEOUT, true, false));
            }
            _ => {
                log_error!(r, Error, "sendfile() failed");
                return Err(Failure::of(next::ERROR, true, reused));
            }
        }
    }
    Ok(true)
}

/// How a streamed body is framed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// Its length was announced.
    None,
    /// In chunks.
    Chunks,
    /// In records of FastCGI.
    Records,
}

impl Framing {
    fn of(job: &Job, chunked: bool) -> Framing {
        match (&job.protocol, chunked) {
            (Protocol::FastCgi(_), _) => Framing::Records,
            (_, true) => Framing::Chunks,
            (_, false) => Framing::None,
        }
    }
}

/// Sends a body that is in a file as records of FastCGI.
async fn send_records(
    r: &mut Request,
    conf: &UpstreamSettings,
    connection: &mut Connection,
    stored: &Stored,
    input: &mut Vec<u8>,
    reused: bool,
) -> Result<bool, Failure> {
    let file = stored.file.as_ref().expect("asked before");
    let mut piece = vec![0; wire::fastcgi::MAX_CONTENT];
    let mut framed = Vec::new();
    let mut offset = 0;
    loop {
        let n = match rustix::io::pread(&file.fd, &mut piece, offset) {
            Ok(n) => n,
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => {
                // Less than all of a body must not look like all of it.
                log_error!(r, Crit, "pread() of a request body failed ({})", crate::log::os_error(&e.into()));
                return Err(Failure::of(next::ERROR, true, false));
            }
        };
        framed.clear();
        wire::fastcgi::stdin(&piece[..n], &mut framed);
        if n == 0 {
            wire::fastcgi::end_of_stdin(&mut framed);
        }
        if !write_two(r, conf, connection, &framed, b"", input, reused).await? {
            return Ok(false);
        }
        if n == 0 {
            return Ok(true);
        }
        offset += n as u64;
    }
}

/// Sends the client's body on as it comes.
#[allow(clippy::too_many_arguments, reason = "the parts of a try; a struct of them would be used here only")]
async fn stream(
    r: &mut Request,
    conf: &UpstreamSettings,
    connection: &mut Connection,
    framing: Framing,
    input: &mut Vec<u8>,
    reused: bool,
) -> Result<bool, Failure> {
    let mut piece = buffers::take_buffer();
    let mut framed = Vec::new();
    let timeout = *r.conf().core.client_body_timeout;
    loop {
        piece.clear();
        body::arm(r, timeout);
        let got = poll_fn(|cx| {
            if let Poll::Ready(x) = body::poll_some(r, cx, &mut piece) {
                return Poll::Ready(Ok(x));
            }
            if input.is_empty()
                && let Poll::Ready(n) = read_answer(connection, cx, input)
            {
                return Poll::Ready(Err(n));
            }
            Poll::Pending
        })
        .await;
        let complete = match got {
            Ok(Ok(complete)) => complete,
            Ok(Err(BodyError::Status(s))) => return Err(Failure::client(s)),
            Ok(Err(BodyError::Gone)) => return Err(Failure::client(499)),
            Err(Ok(n)) if n > 0 => {
                r.attempts.current().received += n as u64;
                return Ok(false);
            }
            Err(_) => {
                log_error!(r, Error, "upstream prematurely closed connection");
                return Err(Failure::of(next::ERROR, true, reused));
            }
        };
        if !send_piece(r, conf, connection, framing, &piece, complete, &mut framed, input, reused).await? {
            return Ok(false);
        }
        if complete {
            buffers::give_buffer(piece);
            return Ok(true);
        }
    }
}

/// Sends one piece of a streamed body in its framing. False: the peer said something first.
#[allow(clippy::too_many_arguments, reason = "the parts of a try; a struct of them would be used here only")]
async fn send_piece(
    r: &mut Request,
    conf: &UpstreamSettings,
    connection: &mut Connection,
    framing: Framing,
    piece: &[u8],
    complete: bool,
    framed: &mut Vec<u8>,
    input: &mut Vec<u8>,
    reused: bool,
) -> Result<bool, Failure> {
    keep_for_variable(r, piece, complete);
    framed.clear();
    if framing != Framing::None {
        frame(piece, framing, complete, framed);
    }
    let out = if matches!(framing, Framing::None) { piece } else { &**framed };
    if out.is_empty() {
        return Ok(true);
    }
    write_two(r, conf, connection, out, b"", input, reused).await
}

/// Appends a piece of a body as it is sent.
fn frame(piece: &[u8], framing: Framing, complete: bool, out: &mut Vec<u8>) {
    match framing {
        Framing::None => out.extend_from_slice(piece),
        Framing::Chunks => {
            if !piece.is_empty() {
                wire::http1::chunked::encode_size(piece.len() as u64, out);
                out.extend_from_slice(piece);
                out.extend_from_slice(b"\r\n");
            }
            if complete {
                out.extend_from_slice(wire::http1::chunked::LAST_CHUNK);
            }
        }
        Framing::Records => {
            wire::fastcgi::stdin(piece, out);
            if complete {
                wire::fastcgi::end_of_stdin(out);
            }
        }
    }
}

/// `$request_body` of a body that came in one piece, where the configuration asks for it.
pub(super) fn keep_for_variable(r: &mut Request, piece: &[u8], complete: bool) {
    let whole = complete && r.body.received == piece.len() as u64;
    if whole && r.shot.uses_request_body && piece.len() as u64 <= *r.conf().core.client_body_buffer_size {
        let stored = Stored { memory: piece.to_vec(), file: None, len: piece.len() as u64 };
        r.body.stored = Some(Rc::new(stored));
    }
}

/// Reads the head; its texts land in the arena, its lines in `r.attempts.head`. Gives where the body begins.
async fn read_head(
    r: &mut Request,
    job: &Job,
    conf: &UpstreamSettings,
    connection: &mut Connection,
    input: &mut Vec<u8>,
    reused: bool,
) -> Result<usize, Failure> {
    let mut parser = ResponseParser::default();
    let mut head = std::mem::take(&mut r.attempts.head);
    if let Protocol::FastCgi(_) = job.protocol {
        parser = ResponseParser::without_status_line();
        head = ResponseHead::default();
    }
    let mut start = 0;
    let result = loop {
        if connection.tells_end()
            && let Some(f) = connection.complain(r, job)
        {
            break Err(f);
        }
        if input.len() > start {
            r.doing = doing::READING_HEAD;
            match parser.parse(&input[start..], &mut head) {
                Ok(Parsed::Complete { len }) if head.status == 103 => {
                    super::relay::early_hints(r, &head, &input[start..start + len]);
                    start += len;
                    parser = ResponseParser::default();
                    continue;
                }
                Ok(Parsed::Complete { len }) if len as u64 > *conf.buffer_size => break Err(too_big(r)),
                Ok(Parsed::Complete { len }) => {
                    let bytes = &input[start..start + len];
                    let status = match &job.protocol {
                        Protocol::Http1(_) => Ok(()),
                        Protocol::Http2(_) => {
                            http2::head::complete(&mut head);
                            Ok(())
                        }
                        Protocol::FastCgi(f) => super::fastcgi::status(&mut head, bytes, f.keep),
                    };
                    if head.version == Version::HTTP09 {
                        log_error!(r, Error, "upstream sent no valid HTTP/1.0 header");
                    }
                    if let Err(text) = status.and_then(|()| check_head(r, &mut head, bytes)) {
                        log_error!(r, Error, "{text}");
                        break Err(Failure::of(next::INVALID_HEADER, true, false));
                    }
                    let base = r.arena.mark();
                    r.arena.push(&input[start..start + len]);
                    r.attempts.head_base = base as u32;
                    r.attempts.head_len = len as u32;
                    break Ok(start + len);
                }
                Ok(_) if (input.len() - start) as u64 >= *conf.buffer_size => break Err(too_big(r)),
                Ok(_) => {}
                Err(e) => {
                    let mut text = Vec::new();
                    e.log(&input[start..], &mut text);
                    let text = String::from_utf8_lossy(&text).into_owned();
                    log_error!(r, Error, "{text}");
                    break Err(Failure::of(next::INVALID_HEADER, true, false));
                }
            }
        }
        let watch = watches_client(r, conf);
        let mut armed = false;
        let event = poll_fn(|cx| {
            let uploading = match connection.poll_upload(r, cx, conf) {
                Poll::Ready(Ok(())) => false,
                Poll::Ready(Err(f)) => return Poll::Ready(Event::Done(Heard::Failed(f))),
                Poll::Pending => true,
            };
            // Only a peer that speaks gets a buffer: what many requests wait with stays small.
            if connection.poll_news(cx).is_ready() {
                if input.capacity() == 0 {
                    *input = buffers::take_buffer();
                } else if input.capacity() - input.len() < 1024 {
                    input.reserve(buffers::BUFFER);
                }
                if let Poll::Ready(n) = connection.poll_read(cx, input) {
                    return Poll::Ready(Event::Done(Heard::Bytes(n)));
                }
            }
            if !uploading && !std::mem::replace(&mut armed, true) {
                connection.timer.set(*conf.read_timeout);
                if let Session::Http1(http) = &mut r.session {
                    http.lend_input();
                }
            }
            if armed && connection.timer.poll_expired(cx).is_ready() {
                return Poll::Ready(Event::TimedOut);
            }
            if watch && poll_client_gone(r, cx).is_ready() {
                return Poll::Ready(Event::ClientGone);
            }
            // What waits for the client (100 Continue) goes out meanwhile.
            if let Session::Http1(http) = &mut r.session
                && !http.output.is_empty()
            {
                let crate::connection::http1::Http1 { socket, output, .. } = &mut **http;
                let _ = output.poll_write(socket, cx, u64::MAX);
            }
            Poll::Pending
        })
        .await;
        if !matches!(event, Event::ClientGone) {
            r.doing = doing::READING_HEAD;
        }
        match event {
            Event::Done(Heard::Bytes(Ok(n))) if n > 0 => r.attempts.current().received += n as u64,
            Event::Done(Heard::Bytes(Ok(_))) => {
                if let Some(f) = connection.complain(r, job) {
                    break Err(f);
                }
                if connection.has_ended() {
                    log_error!(r, Error, "upstream prematurely closed {}", connection.what_ends());
                    break Err(super::fastcgi::failure());
                }
                if !reused || input.len() > start {
                    log_error!(r, Error, "upstream prematurely closed connection");
                }
                break Err(Failure::of(next::ERROR, true, reused && input.is_empty()));
            }
            Event::Done(Heard::Bytes(Err(e))) => {
                let text = crate::log::read_error("recv()", &e);
                if !reused || input.len() > start {
                    log_error!(r, Error, "{text}");
                }
                break Err(Failure::of(next::ERROR, true, reused && input.is_empty()));
            }
            Event::TimedOut => {
                connection.note_timeout();
                log_error!(r, Error, "upstream timed out (110: Connection timed out)");
                break Err(Failure::of(next::TIMEOUT, true, false));
            }
            Event::ClientGone => break Err(client_gone(r)),
            Event::Done(Heard::Failed(f)) => break Err(f),
        }
    };
    r.attempts.head = head;
    result
}

/// Headers of which there may be one, those that frame the body first.
const SINGLE: [wire::http1::known::KnownHeader; 10] = {
    use wire::http1::known::KnownHeader as K;
    [
        K::ContentLength,
        K::TransferEncoding,
        K::ContentType,
        K::Date,
        K::LastModified,
        K::Etag,
        K::Server,
        K::Location,
        K::Expires,
        K::Refresh,
    ]
};

/// The head does not fit in `proxy_buffer_size`.
fn too_big(r: &Request) -> Failure {
    log_error!(r, Error, "upstream sent too big header");
    Failure::of(next::INVALID_HEADER, true, false)
}

/// Refuses heads whose framing is ambiguous, and drops repeated headers of which there may be one (nginx's
/// `ngx_http_upstream_process_*`).
fn check_head(r: &Request, head: &mut ResponseHead, bytes: &[u8]) -> Result<(), String> {
    use wire::http1::known::KnownHeader as K;
    // Most heads have none of these, or one of each.
    let single = SINGLE.iter().fold(0, |set, k| set | k.bit());
    let singles = head.headers.iter().filter(|h| h.known.bit() & single != 0).count();
    let framing = K::TransferEncoding.bit() | K::ContentLength.bit();
    let plain_length = head.present & framing == K::ContentLength.bit()
        && head
            .header(K::ContentLength)
            .is_some_and(|h| wire::http1::values::parse_content_length(h.value.of(bytes)).is_some());
    if singles == (head.present & single).count_ones() as usize && (head.present & framing == 0 || plain_length) {
        return Ok(());
    }
    let mut seen: [Option<K>; SINGLE.len()] = [None; SINGLE.len()];
    let mut problem = None;
    head.headers.retain(|h| {
        let Some(slot) = SINGLE.iter().position(|k| *k == h.known) else { return true };
        let value = h.value.of(bytes);
        let shown = || String::from_utf8_lossy(value).into_owned();
        if seen[slot].replace(h.known).is_some() {
            let name = String::from_utf8_lossy(h.name.of(bytes)).into_owned();
            let text = format!("upstream sent duplicate header line: \"{name}: {}\"", shown());
            if slot < 2 {
                problem.get_or_insert(text);
            } else {
                log_error!(r, Warn, "{text}, ignored");
            }
            return false;
        }
        if slot == 0 && wire::http1::values::parse_content_length(value).is_none() {
            problem.get_or_insert(format!("upstream sent invalid \"Content-Length\" header: \"{}\"", shown()));
        }
        if slot == 1 && !value.eq_ignore_ascii_case(b"chunked") {
            problem.get_or_insert(format!("upstream sent unknown \"Transfer-Encoding\": \"{}\"", shown()));
        }
        true
    });
    if seen[0].is_some() && seen[1].is_some() {
        let text = "upstream sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time";
        problem.get_or_insert(text.to_owned());
    }
    problem.map_or(Ok(()), Err)
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
