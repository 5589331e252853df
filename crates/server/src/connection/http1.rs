//! The HTTP/1 session: reads heads, hands requests on, frames their answers, decides what becomes of the connection.
//! Before: `connection`. Around: `request`. RFC 9112; nginx's `ngx_http_request.c` where the RFC leaves a choice.

use super::output::Output;
use super::socket::Socket;
use super::{Client, Session, doing, pool};
use crate::log::error::Level;
use crate::log_error;
use crate::modules::core::Lingering;
use crate::request::filter::Chunk;
use crate::request::headers::{HeaderLine, RequestHead};
use crate::request::{Request, Version, head, phases};
use crate::snapshot::Shot;
use crate::status::requests;
use crate::worker::timer::Timer;
use crate::worker::{clock, counters};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use wire::http1::Parsed;
use wire::http1::request::{RequestError, RequestParser, Rules};

/// Answers to pipelined requests are written together up to this many bytes.
const PIPELINE_FLUSH: u64 = 64 * 1024;
/// A connection that waits longer than this for its next request gives back what it holds.
const STAY_READY: Duration = Duration::from_millis(20);
/// How much of a header line that is too long is shown in the log (nginx: `NGX_MAX_ERROR_STR` less 300).
const SHOWN_HEADER: usize = 2048 - 300;
/// CR LF.
const LINE_END: usize = 2;
/// How much a lingering close reads at once.
const LINGER_BUFFER: usize = 4096;

/// One HTTP/1 connection.
pub struct Http1 {
    /// The way to the client.
    pub socket: Socket,
    /// The deadline of whatever is waited for.
    pub timer: Timer,
    /// Bytes that came and are not used yet start at `at`.
    pub input: Vec<u8>,
    /// See `input`.
    pub at: usize,
    /// Bytes on their way out.
    pub output: Output,
    /// The answer is sent in chunks.
    pub chunked: bool,
    /// `output.queued` when the answer began.
    pub answer_start: u64,
    /// Bytes of the answer's head.
    pub header_size: u64,
    /// When a rate limit began to count, ms.
    pub rate_start_ms: u64,
    /// `keepalive_min_timeout`: until then (monotonic ms) a shutdown leaves the idle connection alone.
    stay_until_ms: u64,
    /// TCP_NODELAY is set.
    nodelay: bool,
}

/// What becomes of a connection after a request or a wait.
pub enum Next {
    /// It is idle: wait for bytes without holding anything.
    Idle(Box<Http1>),
    /// The client speaks HTTP/2.
    Http2(Box<Http1>),
    /// It is closed, or belongs to somebody else now.
    Gone,
}

impl Drop for Http1 {
    fn drop(&mut self) {
        crate::log::lines::close_after_lines(std::mem::replace(&mut self.socket, Socket::none()));
    }
}

enum HeadRead {
    Complete,
    /// What came is the beginning of HTTP/2.
    Http2,
    /// The client went away or timed out before it said anything of use.
    Nothing,
    /// The head is refused: answer with this status and close.
    Refused(u16),
}

impl Http1 {
    /// A session on a new connection.
    pub fn new(socket: Socket) -> Box<Http1> {
        Box::new(Http1 {
            socket,
            timer: Timer::new(),
            input: Vec::new(),
            at: 0,
            output: Output::default(),
            chunked: false,
            answer_start: 0,
            header_size: 0,
            rate_start_ms: 0,
            stay_until_ms: 0,
            nodelay: false,
        })
    }

    /// Takes what was read from the connection before the session began.
    pub fn push_back(&mut self, early: Vec<u8>) {
        self.input = early;
    }

    /// Bytes that came and are not used yet.
    pub fn unread(&self) -> &[u8] {
        &self.input[self.at..]
    }

    /// Marks `n` unread bytes as used.
    pub fn consume(&mut self, n: usize) {
        self.at += n;
        if self.at == self.input.len() {
            self.input.clear();
            self.at = 0;
        }
    }

    /// Makes room and reads once.
    pub fn poll_fill(&mut self, cx: &mut std::task::Context<'_>) -> Poll<io::Result<usize>> {
        self.make_room();
        self.socket.poll_read(cx, &mut self.input)
    }

    fn make_room(&mut self) {
        if self.input.capacity() == 0 {
            self.input = pool::take_buffer();
        }
        if self.at > 0 && self.input.capacity() - self.input.len() < pool::BUFFER / 4 {
            self.input.drain(..self.at);
            self.at = 0;
        }
        if self.input.capacity() == self.input.len() {
            self.input.reserve(pool::BUFFER);
        }
    }

    /// Writes all that is queued. The deadline is the caller's.
    pub async fn flush(&mut self) -> io::Result<()> {
        let Http1 { socket, output, .. } = self;
        while !output.is_empty() {
            poll_fn(|cx| output.poll_write(socket, cx, u64::MAX)).await?;
        }
        Ok(())
    }

    /// Whether a shutdown closes the connection while it is idle.
    pub fn may_drain(&self) -> bool {
        self.stay_until_ms == 0 || self.stay_until_ms <= clock::monotonic_ms()
    }

    /// Makes an idle connection end as soon as a shutdown may close it.
    pub fn end_when_drained(&self) {
        let left = Duration::from_millis(self.stay_until_ms.saturating_sub(clock::monotonic_ms()));
        self.timer.shorten(left);
    }

    /// `tcp_nodelay`: what is written leaves at once. Asks the kernel once a connection.
    pub fn set_nodelay(&mut self) {
        if !std::mem::replace(&mut self.nodelay, true) {
            // A unix socket has no such option, and needs none.
            let _ = rustix::net::sockopt::set_tcp_nodelay(self.socket.as_fd(), true);
        }
    }

    /// Gives an empty input buffer back while somebody else is waited for.
    pub fn lend_input(&mut self) {
        if self.input.capacity() > 0 && self.unread().is_empty() {
            pool::give_buffer(std::mem::take(&mut self.input));
            self.at = 0;
        }
    }

    /// Gives back what an idle connection does not need.
    fn rest(&mut self) {
        self.lend_input();
        if self.output.is_empty() {
            pool::give_buffer(self.output.take_buffer());
        }
    }
}

/// Serves requests on a connection until it is idle or gone.
pub async fn serve(mut http: Box<Http1>, client: Rc<Client>) -> Next {
    loop {
        let shot = crate::worker::shot();
        let mut r = pool::take_request(shot, client.clone(), Session::None);
        r.pipelined = client.requests.get() > 0 && !http.unread().is_empty();
        r.session = Session::Http1(http);
        let (keep, mut back) = one_request(&mut r).await;
        pool::give_request(r);
        let Some(h) = back.take() else { return Next::Gone };
        http = h;
        let Some(wait) = keep else {
            return Next::Http2(http);
        };
        if !http.unread().is_empty() && http.output.waiting() < PIPELINE_FLUSH {
            continue;
        }
        if !http.output.is_empty() && http.flush().await.is_err() {
            return Next::Gone;
        }
        if !http.unread().is_empty() {
            continue;
        }
        counters::waiting(1);
        http.rest();
        http.timer.set(wait.min(STAY_READY));
        let woken = poll_fn(|cx| {
            if let Poll::Ready(r) = http.socket.poll_readable(cx) {
                return Poll::Ready(r.is_ok());
            }
            if crate::worker::draining() && http.may_drain() {
                return Poll::Ready(false);
            }
            http.timer.poll_expired(cx).map(|()| false)
        })
        .await;
        counters::waiting(-1);
        if !woken {
            http.timer.set(wait.saturating_sub(STAY_READY));
            return Next::Idle(http);
        }
    }
}

/// Reads and answers one request. Gives back the session, if it lives on, and how long to wait for the next request (none:
/// HTTP/2 begins).
async fn one_request(r: &mut Request) -> (Option<Duration>, Option<Box<Http1>>) {
    match read_head(r).await {
        HeadRead::Nothing => {
            let Session::Http1(mut http) = std::mem::take(&mut r.session) else { return (None, None) };
            let _ = http.flush().await;
            return (None, None);
        }
        HeadRead::Http2 => {
            let Session::Http1(http) = std::mem::take(&mut r.session) else { return (None, None) };
            return (None, Some(http));
        }
        HeadRead::Refused(status) => {
            requests::begin(r);
            r.keepalive = false;
            phases::answer_status(r, status).await;
        }
        HeadRead::Complete => {
            let accepted = head::accept(r);
            requests::begin(r);
            match accepted {
                Ok(()) => phases::process(r).await,
                Err(status) => phases::answer_status(r, status).await,
            }
        }
    }
    finish(r).await
}

/// Reads the next head into the request's arena.
async fn read_head(r: &mut Request) -> HeadRead {
    let shot = r.shot.clone();
    let server = head::default_server(r);
    let conf = &shot.server(server).conf.core;
    r.server = server;
    r.location = shot.server(server).root;
    let rules = Rules {
        ignore_invalid_headers: *conf.ignore_invalid_headers,
        underscores_in_headers: *conf.underscores_in_headers,
        max_headers: *conf.max_headers as usize,
        pause_at_host: false,
    };
    let mut parser = RequestParser::default();
    r.doing = if r.client.requests.get() > 0 { doing::KEPT } else { doing::WAITING };
    let (mut waiting, mut armed) = (false, false);
    loop {
        let Session::Http1(http) = &mut r.session else { unreachable!("heads are read from HTTP/1 sessions") };
        let preface = begins_http2(http.unread(), &r.client);
        if preface == Some(true) {
            return HeadRead::Http2;
        }
        if !http.unread().is_empty() && preface.is_some() {
            if r.started_ms == 0 {
                r.started_ms = clock::wall_ms();
                counters::request();
                let line = if r.pipelined { doing::READING_PIPELINED_LINE } else { doing::READING_LINE };
                r.doing = line;
            }
            match parser.parse(http.unread(), &rules, &mut r.headers_in.head) {
                Ok(Parsed::Complete { len }) => {
                    r.doing = doing::READING_HEADERS;
                    if let Some(status) = oversized(&r.headers_in.head, len, conf) {
                        let (number, size) = *conf.large_client_header_buffers;
                        let room = *conf.client_header_buffer_size as usize + number * size;
                        let long = |h: &&HeaderLine| {
                            (h.value.end - h.name.start) as usize >= size || h.value.end as usize >= room
                        };
                        let line = r.headers_in.head.headers.iter().find(long).map(|h| h.name.start as usize);
                        return refuse_large(r, status, line.filter(|_| status == 494));
                    }
                    let Session::Http1(http) = &mut r.session else { unreachable!("taken above") };
                    r.arena.push(&http.unread()[..len]);
                    r.request_length = len as u64;
                    http.consume(len);
                    return HeadRead::Complete;
                }
                Ok(_) => {
                    if parser.is_line_complete() {
                        r.doing = doing::READING_HEADERS;
                    }
                    let skip = parser.empty_lines();
                    if skip > 0 {
                        http.consume(skip);
                        parser = RequestParser::default();
                    }
                    if let Some(status) = too_large(http.unread().len(), &parser, conf) {
                        let at = parser.line_start();
                        let line = (status == 494 && at < http.unread().len()).then_some(at);
                        return refuse_large(r, status, line);
                    }
                }
                Err(error) => {
                    let mut text = Vec::new();
                    error.log(http.unread(), &mut text);
                    if parser.is_line_complete() {
                        r.doing = doing::READING_HEADERS;
                    }
                    keep_line(r, parser.is_line_complete());
                    if error == RequestError::InvalidMethodHttp09 {
                        // Whoever speaks HTTP/0.9 cannot read a head.
                        r.version = Version::HTTP09;
                    }
                    log_error!(r, Info, "{}", String::from_utf8_lossy(&text));
                    return HeadRead::Refused(error.status());
                }
            }
        }
        if !waiting {
            waiting = true;
            let Session::Http1(http) = &mut r.session else { unreachable!("heads are read from HTTP/1 sessions") };
            // Answers to pipelined requests before this incomplete one must not wait for its rest.
            if !http.output.is_empty() && http.flush().await.is_err() {
                return HeadRead::Nothing;
            }
        }
        let Session::Http1(http) = &mut r.session else { unreachable!("heads are read from HTTP/1 sessions") };
        let state = if http.unread().is_empty() { counters::waiting } else { counters::reading };
        let mut counted = false;
        let got = poll_fn(|cx| {
            if let Poll::Ready(n) = http.poll_fill(cx) {
                return Poll::Ready(Some(n));
            }
            if !std::mem::replace(&mut counted, true) {
                state(1);
            }
            if !std::mem::replace(&mut armed, true) {
                http.timer.set(*conf.client_header_timeout);
            }
            http.timer.poll_expired(cx).map(|()| None)
        })
        .await;
        if counted {
            state(-1);
        }
        let began = !http.unread().is_empty();
        match got {
            Some(Ok(n)) if n > 0 => {}
            Some(end) => {
                ended(r, &parser, end.err());
                return HeadRead::Nothing;
            }
            None => {
                r.started_ms = if r.started_ms == 0 { clock::wall_ms() } else { r.started_ms };
                keep_line(r, parser.is_line_complete());
                log_error!(r, Info, "client timed out ({}: {})", 110, "Connection timed out");
                return time_out(r, began);
            }
        }
    }
}

/// The client closed before its head was whole.
fn ended(r: &mut Request, parser: &RequestParser, error: Option<io::Error>) {
    if !r.logs(Level::Info) {
        return;
    }
    let began = matches!(&r.session, Session::Http1(http) if !http.unread().is_empty());
    if began {
        keep_line(r, parser.is_line_complete());
    }
    match error {
        // A record that makes no sense is no way to close.
        Some(e) if e.kind() == io::ErrorKind::InvalidData => log_error!(r, Info, "{}", crate::log::read_error("", &e)),
        error if r.doing == doing::KEPT => {
            let text = error.map_or_else(String::new, |e| format!(" ({})", crate::log::os_error(&e)));
            let client = r.client.remote.borrow();
            let line = format_args!("client {} closed keepalive connection{text}", client.host());
            r.error_log().write(Level::Info, Some(r.client.number), line);
        }
        Some(e) => log_error!(r, Info, "{}", crate::log::read_error("recv()", &e)),
        None if began => log_error!(r, Info, "client prematurely closed connection"),
        None => log_error!(r, Info, "client closed connection"),
    }
}

/// Whether the first bytes of a connection are HTTP/2. None: they may become it.
#[inline]
fn begins_http2(unread: &[u8], client: &Client) -> Option<bool> {
    if unread.first() != Some(&wire::http2::PREFACE[0]) || client.requests.get() > 0 {
        return Some(false);
    }
    match super::http2::is_preface(unread) {
        Some(false) => Some(false),
        maybe if super::http2::is_wanted(client) => maybe,
        _ => Some(false),
    }
}

/// A head that stays incomplete is not answered; only the log line says 408.
fn time_out(r: &mut Request, began: bool) -> HeadRead {
    if began {
        r.headers_out.status = 408;
        r.aborted = true;
        requests::begin(r);
        requests::end(r);
        crate::modules::log::write(r);
    }
    if *r.conf().core.reset_timedout_connection
        && let Session::Http1(http) = &r.session
    {
        reset_on_close(&http.socket);
    }
    HeadRead::Nothing
}

/// Makes the bytes of a refused head part of the request, for the log.
fn keep_line(r: &mut Request, line_complete: bool) {
    let Session::Http1(http) = &mut r.session else { return };
    r.arena.push(http.unread());
    r.request_length = http.unread().len() as u64;
    let head = &r.headers_in.head;
    if line_complete {
        r.line = head.line.into();
        r.method_name = head.method.into();
        r.target = head.target.into();
    } else {
        let all = r.arena.since(0);
        let end = memchr::memchr2(b'\r', b'\n', r.arena.span(all)).unwrap_or(all.len());
        r.line = arena_span(0, end).into();
    }
    let n = http.unread().len();
    http.consume(n);
}

fn arena_span(start: usize, end: usize) -> crate::request::arena::Span {
    crate::request::arena::Span { start: start as u32, end: end as u32 }
}

/// `large_client_header_buffers`: 414 for a request line, 494 for a header, that does not fit in one buffer, 494 for a
/// head that does not fit in all of them.
fn too_large(len: usize, parser: &RequestParser, conf: &crate::modules::core::ServerSettings) -> Option<u16> {
    let (number, size) = *conf.large_client_header_buffers;
    let first = *conf.client_header_buffer_size as usize;
    let line = len - parser.line_start();
    if line >= size.max(first) {
        return Some(if parser.is_line_complete() { 494 } else { 414 });
    }
    (len > first + number * size).then_some(494)
}

/// The same limits for a head that came whole: nginx's buffers would not have held it.
fn oversized(head: &RequestHead, len: usize, conf: &crate::modules::core::ServerSettings) -> Option<u16> {
    let (number, size) = *conf.large_client_header_buffers;
    let first = *conf.client_header_buffer_size as usize;
    let room = size.max(first);
    if len <= room {
        return None;
    }
    if head.line.len() + LINE_END >= room {
        return Some(414);
    }
    let long = |h: &HeaderLine| (h.value.end - h.name.start) as usize + LINE_END >= room;
    (head.headers.iter().any(long) || len > first + number * size).then_some(494)
}

/// `line`: where the header line begins that is too long.
fn refuse_large(r: &mut Request, status: u16, line: Option<usize>) -> HeadRead {
    let complete = status == 494;
    let Session::Http1(http) = &mut r.session else { unreachable!("heads are read from HTTP/1 sessions") };
    let shown = line.map(|at| {
        let rest = &http.unread()[at..];
        let line = &rest[..memchr::memchr2(b'\r', b'\n', rest).unwrap_or(rest.len())];
        String::from_utf8_lossy(line).chars().take(SHOWN_HEADER).collect::<String>()
    });
    keep_line(r, complete);
    if let Some(shown) = shown {
        log_error!(r, Info, "client sent too long header line: \"{shown}...\"");
    } else if complete {
        log_error!(r, Info, "client sent too large request");
    } else {
        r.doing = doing::READING_LINE;
        log_error!(r, Info, "client sent too long URI");
    }
    r.lingering_close = true;
    HeadRead::Refused(status)
}

/// After the answer: the rest of the body, the last bytes, the log line, and whether the connection lives on.
async fn finish(r: &mut Request) -> (Option<Duration>, Option<Box<Http1>>) {
    let shot = r.shot.clone();
    let conf = &shot.location(r.location).conf.core;
    if !matches!(r.session, Session::Http1(_)) {
        // The connection was handed over: an upgrade or a tunnel has ended with it.
        return (None, None);
    }
    if r.keepalive && !r.aborted && !crate::request::body::discard(r).await {
        r.keepalive = false;
        r.lingering_close = true;
    }
    let keep = r.keepalive && !r.aborted && r.response_done;
    let Session::Http1(http) = &mut r.session else { unreachable!("checked above") };
    // A complete batch leaves in one write: only what nothing follows is written now.
    if !r.aborted && (!keep || http.unread().is_empty()) && crate::request::respond::flush_rest(r).await.is_err() {
        r.aborted = true;
    }
    r.doing = doing::LOGGING;
    requests::end(r);
    crate::modules::log::write(r);
    crate::request::finish::after_log(r).await;
    let keep = keep && !r.aborted;
    // Who sees the connection close finds the cache up to date, as with nginx. A kept connection need not wait for it.
    if !keep && let Some(update) = r.ctx.cache_update.take() {
        let _ = update.await;
    }
    let linger = !r.aborted
        && match *conf.lingering_close {
            Lingering::Off => false,
            Lingering::On => r.lingering_close || has_unread(r),
            Lingering::Always => true,
        };
    let Session::Http1(mut http) = std::mem::take(&mut r.session) else { unreachable!("checked above") };
    http.chunked = false;
    if keep {
        if *conf.tcp_nodelay {
            http.set_nodelay();
        }
        let min = *conf.keepalive_min_timeout;
        http.stay_until_ms = match min.is_zero() {
            true => 0,
            false => clock::monotonic_ms() + min.min(*conf.keepalive_timeout).as_millis() as u64,
        };
        return (Some(*conf.keepalive_timeout), Some(http));
    }
    if linger && !crate::worker::draining() {
        let (time, each) = (*conf.lingering_time, *conf.lingering_timeout);
        crate::engine::spawn(lingering_close(http, time, each));
        return (None, None);
    }
    if r.aborted && *conf.reset_timedout_connection {
        reset_on_close(&http.socket);
    }
    (None, None)
}

fn has_unread(r: &Request) -> bool {
    let Session::Http1(http) = &r.session else { return false };
    !http.unread().is_empty() || http.socket.tls().is_some_and(|t| t.expects_more())
}

/// Says that nothing more comes and reads what the client still sends, so that it sees the answer before a reset.
async fn lingering_close(mut http: Box<Http1>, time: Duration, each: Duration) {
    http.socket.shutdown();
    let end = clock::monotonic_ms() + time.as_millis() as u64;
    let mut buffer = Vec::with_capacity(LINGER_BUFFER);
    loop {
        let left = end.saturating_sub(clock::monotonic_ms());
        if left == 0 {
            return;
        }
        http.timer.set(each.min(Duration::from_millis(left)));
        buffer.clear();
        let Http1 { socket, timer, .. } = &mut *http;
        match timer.guard(socket.read(&mut buffer)).await {
            Some(Ok(n)) if n > 0 => {}
            _ => return,
        }
    }
}

/// `reset_timedout_connection`: the close sends RST and frees the kernel's memory at once.
pub fn reset_on_close(socket: &Socket) {
    let _ = rustix::net::sockopt::set_socket_linger(socket.as_fd(), Some(Duration::ZERO));
}

impl Output {
    fn put_buffer_from_pool(&mut self) {
        if self.is_empty() && self.buffer().capacity() == 0 {
            self.put_buffer(pool::take_buffer());
        }
    }
}

/// Writes the answer's head as HTTP/1 has it: nginx's order of lines (`ngx_http_header_filter`).
pub fn write_head(r: &mut Request, http: &mut Http1, server_token: &'static [u8]) {
    http.output.put_buffer_from_pool();
    let before = http.output.buffer().len();
    http.answer_start = http.output.queued;
    r.keepalive &= !crate::worker::draining();
    let conf = &r.shot.location(r.location).conf.core;
    http.output.nopush = *conf.tcp_nopush;
    let out = http.output.buffer();
    let h = &r.headers_out;
    use crate::request::headers::KnownHeader as K;
    let plain = h.status == 200 && h.status_line.is_none_or(|l| r.arena.get(l) == b"200 OK");
    if plain && !h.has(K::Server) && !h.has(K::Date) {
        usual_start(server_token, out);
    } else {
        out.extend_from_slice(b"HTTP/1.1 ");
        match h.status_line {
            Some(line) => out.extend_from_slice(r.arena.get(line)),
            None => crate::request::respond::write_status(h.status, out),
        }
        out.extend_from_slice(b"\r\n");
        if !h.has(K::Server) {
            line(out, b"Server", server_token);
        }
        if !h.has(K::Date) {
            line(out, b"Date", &clock::http_date());
        }
    }
    if let Some(kind) = h.content_type.filter(|t| !r.arena.get(*t).is_empty()) {
        out.extend_from_slice(b"Content-Type: ");
        out.extend_from_slice(r.arena.get(kind));
        if let Some(charset) = h.charset.filter(|c| !r.arena.get(*c).is_empty()) {
            out.extend_from_slice(b"; charset=");
            out.extend_from_slice(r.arena.get(charset));
        }
        out.extend_from_slice(b"\r\n");
    }
    if let Some(n) = h.content_length {
        out.extend_from_slice(b"Content-Length: ");
        crate::request::respond::write_decimal(n, out);
        out.extend_from_slice(b"\r\n");
    }
    if let Some(t) = h.last_modified.filter(|_| !h.has(K::LastModified)) {
        line(out, b"Last-Modified", &wire::date::format_http(t));
    }
    for l in h.lines.iter().filter(|l| l.known == K::Location) {
        line(out, b"Location", r.arena.get(l.value));
    }
    if http.chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if h.status == 101 {
        out.extend_from_slice(b"Connection: upgrade\r\n");
    } else if r.keepalive {
        out.extend_from_slice(b"Connection: keep-alive\r\n");
        let header = *conf.keepalive_header;
        if header > 0 {
            out.extend_from_slice(b"Keep-Alive: timeout=");
            crate::request::respond::write_decimal(header, out);
            out.extend_from_slice(b"\r\n");
        }
    } else {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    for l in h.lines.iter().filter(|l| l.known != K::Location) {
        let value = r.arena.get(l.value);
        // An upstream that is trusted with these and does not send them: the client gets none.
        if !(value.is_empty() && matches!(l.known, K::Date | K::Server)) {
            line(out, r.arena.get(l.name), value);
        }
    }
    out.extend_from_slice(b"\r\n");
    http.header_size = (http.output.buffer().len() - before) as u64;
    http.output.appended(before);
}

/// Status line, `Server` and `Date` of most answers: made once a second for a thread.
fn usual_start(server_token: &'static [u8], out: &mut Vec<u8>) {
    thread_local! {
        static START: RefCell<(i64, &'static [u8], Vec<u8>)> = const { RefCell::new((i64::MIN, b"", Vec::new())) };
    }
    START.with_borrow_mut(|(second, token, bytes)| {
        let now = clock::wall_seconds();
        if *second != now || !std::ptr::eq(*token, server_token) {
            bytes.clear();
            bytes.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
            line(bytes, b"Server", server_token);
            line(bytes, b"Date", &clock::http_date());
            (*second, *token) = (now, server_token);
        }
        out.extend_from_slice(bytes);
    });
}

fn line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Queues a piece of the body in the answer's framing.
pub fn queue(r: &mut Request, chunk: Chunk<'_>, last: bool) -> io::Result<()> {
    let limited = chunk.len() >= super::output::DIRECT as u64 && crate::request::respond::rate(r).0 > 0;
    let Session::Http1(http) = &mut r.session else { return Ok(()) };
    let push = |http: &mut Http1| match chunk {
        // What is offered to the kernel at once would not know the rate.
        Chunk::Bytes(bytes) if limited => {
            http.output.push_bytes(bytes);
            Ok(())
        }
        other => http.output.push(&mut http.socket, other),
    };
    if !http.chunked {
        return if chunk.is_empty() { Ok(()) } else { push(http) };
    }
    if !chunk.is_empty() {
        let before = http.output.buffer().len();
        wire::http1::chunked::encode_size(chunk.len(), http.output.buffer());
        http.output.appended(before);
        push(http)?;
        http.output.push_bytes(b"\r\n");
    }
    if last {
        let before = http.output.buffer().len();
        let out = http.output.buffer();
        out.extend_from_slice(b"0\r\n");
        for t in &r.headers_out.trailers {
            line(out, r.arena.get(t.name), r.arena.get(t.value));
        }
        out.extend_from_slice(b"\r\n");
        http.output.appended(before);
    }
    Ok(())
}

/// Whether the answer of a request may be chunked at all.
pub fn may_chunk(r: &Request) -> bool {
    r.version >= Version::HTTP11 && *r.conf().core.chunked_transfer_encoding
}

/// A view of the shot for callers that wait with the session in hand.
pub fn shot_of(r: &Request) -> Rc<Shot> {
    r.shot.clone()
}
