//! One try at one peer: a connection, the request out, the answer's head in. After: `relay`, or `retry` with another peer.

use super::choose::Chosen;
use super::connect;
use super::fastcgi::Records;
use super::group::Group;
use super::http2;
use super::layer::Layer;
use super::pool::{self, Connection, InUse};
use super::send::send;
use super::settings::{UpstreamSettings, next};
use crate::connection::{Session, doing, pool as buffers};
use crate::health::cause::Cause;
use crate::health::passive;
use crate::log_error;
use crate::request::Request;
use crate::request::body::Stored;
use crate::tls::client::Secure;
use crate::worker::clock;
use crate::worker::timer::Timer;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use wire::http1::response::{ResponseHead, ResponseParser};
use wire::http1::{Parsed, Version};

/// Heads of the 1xx kind before an answer's own together have at most so many times `proxy_buffer_size`.
const INTERIM_HEADS: u64 = 16;

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

    /// The peer took too long. `sent`: something of the request went out.
    pub(super) fn timed_out(r: &Request, sent: bool) -> Failure {
        log_error!(r, Error, "upstream timed out (110: Connection timed out)");
        Failure::of(next::TIMEOUT, sent, false)
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
                let shaken = Box::pin(super::secure::shake(r, conf, &timer, socket, secure, chosen)).await;
                socket = shaken.inspect_err(|_| {
                    passive::note(&chosen.peer, Cause::Tls("see the error log".into()));
                })?;
            }
            r.attempts.current().connect_ms = Some(clock::monotonic_ms() - started_ms);
            Ok(Connection::new(socket, timer, job.identity().cloned()))
        }
        Event::Done(Err(f)) => Err(connect_failed(r, job, chosen, &f)),
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

/// What a look at a connection came to while the answer's head is waited for.
enum Heard {
    Bytes(io::Result<usize>),
    /// The rest of the request could not be sent.
    Failed(Failure),
}

fn connect_failed(r: &Request, job: &Job, chosen: &Chosen, f: &connect::Failed) -> Failure {
    passive::not_connected(&chosen.peer, f);
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
                    if start as u64 > *conf.buffer_size * INTERIM_HEADS {
                        break Err(too_big(r));
                    }
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
                break Err(Failure::timed_out(r, true));
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
