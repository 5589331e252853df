//! Reads the head of a request into its arena, and says what is wrong with those that are not answered as they ask.

use super::{Filled, Http1, flush_before_head, reset_on_close};
use crate::connection::slow::{self, Watch};
use crate::connection::{Client, Downstream, action, http2, pool};
use crate::log::error::Level;
use crate::log_error;
use crate::request::headers::{HeaderLine, RequestHead};
use crate::request::{Request, Version, end, head};
use crate::status::requests;
use crate::worker::counters;
use runtime::clock;
use std::future::{Future, poll_fn};
use std::io;
use std::rc::Rc;
use std::task::Poll;
use wire::http1::Parsed;
use wire::http1::request::{RequestError, RequestParser, Rules};

/// How much of a header line that is too long is shown in the log (nginx: `NGX_MAX_ERROR_STR` less 300).
const SHOWN_HEADER: usize = 2048 - 300;
/// CR LF.
const LINE_END: usize = 2;
/// What came of reading a head.
pub(super) enum HeadRead {
    Complete,
    /// What came is the beginning of HTTP/2.
    Http2,
    /// The client went away or timed out before it said anything of use.
    Nothing,
    /// The head is refused: answer with this status and close.
    Refused(u16),
}

/// Reads the next head into the request's arena.
pub(super) async fn read_head(r: &mut Request) -> HeadRead {
    let snapshot = r.snapshot.clone();
    let server = head::default_server(r);
    let conf = &snapshot.server(server).conf.core;
    r.server = server;
    r.location = snapshot.server(server).root;
    let rules = Rules {
        ignore_invalid_headers: *conf.ignore_invalid_headers,
        underscores_in_headers: *conf.underscores_in_headers,
        max_headers: *conf.max_headers as usize,
        pause_at_host: false,
    };
    let mut parser = RequestParser::default();
    r.action = if r.client.requests.get() > 0 { action::KEPT } else { action::WAITING };
    let mut waiting = false;
    let mut watch = watch_of(r);
    loop {
        let Downstream::Http1(http) = &mut r.downstream else { unreachable!("heads are read from HTTP/1 sessions") };
        let preface = begins_http2(http.unread(), &r.client);
        if preface == Some(true) {
            return HeadRead::Http2;
        }
        if !http.unread().is_empty() && preface.is_some() {
            if r.started_ms == 0 {
                r.started_ms = clock::wall_ms();
                counters::request();
                r.client.requests.set(r.client.requests.get() + 1);
                let line = if r.flow.pipelined { action::READING_PIPELINED_LINE } else { action::READING_LINE };
                r.action = line;
            }
            match parser.parse(http.unread(), &rules, &mut r.head.headers.head) {
                Ok(Parsed::Complete { len }) => {
                    r.action = action::READING_HEADERS;
                    if let Some(status) = oversized(&r.head.headers.head, len, conf) {
                        let (number, size) = *conf.large_client_header_buffers;
                        let room = *conf.client_header_buffer_size as usize + number * size;
                        let long = |h: &&HeaderLine| {
                            (h.value.end - h.name.start) as usize >= size || h.value.end as usize >= room
                        };
                        let line = r.head.headers.head.headers.iter().find(long).map(|h| h.name.start as usize);
                        return refuse_large(r, status, line.filter(|_| status == 494));
                    }
                    let Downstream::Http1(http) = &mut r.downstream else { unreachable!("taken above") };
                    r.arena.push(&http.unread()[..len]);
                    r.request_length = len as u64;
                    http.consume(len);
                    http.head_armed = false;
                    return HeadRead::Complete;
                }
                Ok(_) => {
                    if parser.is_line_complete() {
                        r.action = action::READING_HEADERS;
                    }
                    let skip = parser.empty_lines();
                    if skip > 0 {
                        http.consume(skip);
                        parser = RequestParser::default();
                    }
                    if let Some(status) = too_large(http.unread().len(), &parser, &r.head.headers.head, conf) {
                        let at = parser.line_start();
                        let line = (status == 494 && at < http.unread().len()).then_some(at);
                        return refuse_large(r, status, line);
                    }
                }
                Err(error) => {
                    let mut text = Vec::new();
                    error.log(http.unread(), &mut text);
                    if parser.is_line_complete() {
                        r.action = action::READING_HEADERS;
                    }
                    keep_line(r, parser.is_line_complete());
                    if error == RequestError::InvalidMethodHttp09 {
                        // Whoever speaks HTTP/0.9 cannot read a head.
                        r.head.version = Version::HTTP09;
                    }
                    log_error!(r, Info, "{}", String::from_utf8_lossy(&text));
                    return HeadRead::Refused(error.status());
                }
            }
        }
        if !waiting {
            waiting = true;
            // Answers to pipelined requests before this incomplete one must not wait for its rest.
            if r.downstream.has_output()
                && let Err(e) = Box::pin(flush_before_head(r)).await
            {
                r.broken(&e);
                return HeadRead::Nothing;
            }
        }
        let Downstream::Http1(http) = &mut r.downstream else { unreachable!("heads are read from HTTP/1 sessions") };
        let got = match poll_fn(|cx| Poll::Ready(http.poll_fill(cx))).await {
            Poll::Ready(read) => Some(Filled::Read(read)),
            Poll::Pending => {
                if !std::mem::replace(&mut http.head_armed, true) {
                    http.incoming.timer.set(*conf.client_header_timeout);
                }
                let state = if http.unread().is_empty() { counters::waiting } else { counters::reading };
                state(1);
                let got = match &mut watch {
                    Some(watch) if !http.unread().is_empty() => Box::pin(fill_watched(http, &r.client, watch)).await,
                    _ => Some(http.fill(&r.client).await),
                };
                state(-1);
                got
            }
        };
        let Downstream::Http1(http) = &mut r.downstream else { unreachable!("heads are read from HTTP/1 sessions") };
        let began = r.started_ms != 0 || !http.unread().is_empty();
        let got = match got {
            Some(got) => got,
            None => {
                keep_line(r, parser.is_line_complete());
                log_error!(r, Info, "{}", slow::TOO_SLOW);
                return time_out(r, true);
            }
        };
        match got {
            Filled::Read(Ok(n)) if n > 0 => {}
            Filled::Read(end) => {
                ended(r, &parser, end.err());
                if r.started_ms != 0 {
                    end_unanswered(r, 400);
                }
                return HeadRead::Nothing;
            }
            Filled::Taken if !began => return HeadRead::Nothing,
            late => {
                r.started_ms = if r.started_ms == 0 { clock::wall_ms() } else { r.started_ms };
                keep_line(r, parser.is_line_complete());
                match late {
                    Filled::Taken => log_error!(r, Info, "client is too slow, its connection makes room for another"),
                    _ => log_error!(r, Info, "client timed out ({}: {})", 110, "Connection timed out"),
                }
                return time_out(r, began);
            }
        }
    }
}

/// `client_header_min_rate` of the address's server.
fn watch_of(r: &Request) -> Option<Box<Watch>> {
    let slow = &r.conf().slow;
    Watch::new(*slow.client_header_min_rate, slow.places()).map(Watch::of_all)
}

/// Waits for more of a head that has begun. None: it comes too slowly.
async fn fill_watched(http: &mut Http1, client: &Client, watch: &mut Watch) -> Option<Filled> {
    let bytes = http.unread().len() as u64;
    let mut fill = std::pin::pin!(http.fill(client));
    let filled = poll_fn(|cx| match fill.as_mut().poll(cx) {
        Poll::Ready(filled) => Poll::Ready(Some(filled)),
        Poll::Pending => watch.poll(client, cx, || bytes).map(|()| None),
    })
    .await;
    watch.pause();
    client.works();
    filled
}

/// The client closed before its head was whole.
fn ended(r: &mut Request, parser: &RequestParser, error: Option<io::Error>) {
    let began = r.started_ms != 0;
    if began {
        keep_line(r, parser.is_line_complete());
    }
    match error {
        // A record that makes no sense is no way to close.
        Some(e) if e.kind() == io::ErrorKind::InvalidData => log_error!(r, Info, "{}", crate::log::read_error("", &e)),
        _ if !r.logs(Level::Info) => {}
        error if r.action == action::KEPT => {
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

/// A connection is over before its client has said anything: the log is told, as of a request.
pub(super) fn say_over(http: Box<Http1>, client: &Rc<Client>, filled: Filled) {
    let mut r = pool::take_request(crate::worker::snapshot_for(client), client.clone(), Downstream::Http1(http));
    let snapshot = r.snapshot.clone();
    r.server = head::default_server(&r);
    r.location = snapshot.server(r.server).root;
    r.action = action::WAITING;
    match filled {
        Filled::Taken => {}
        Filled::Read(end) => ended(&mut r, &RequestParser::default(), end.err()),
        Filled::Late => {
            log_error!(r, Info, "client timed out ({}: {})", 110, "Connection timed out");
            let _ = time_out(&mut r, false);
        }
    }
    r.downstream = Downstream::None;
    pool::give_request(r);
}

/// Whether the first bytes of a connection are HTTP/2. None: they may become it.
#[inline]
fn begins_http2(unread: &[u8], client: &Client) -> Option<bool> {
    if unread.first() != Some(&wire::http2::PREFACE[0]) || client.requests.get() > 0 {
        return Some(false);
    }
    match http2::is_preface(unread) {
        Some(false) => Some(false),
        maybe if http2::is_wanted(client) => maybe,
        _ => Some(false),
    }
}

/// A head that stays incomplete is not answered; only the log line says 408.
fn time_out(r: &mut Request, began: bool) -> HeadRead {
    if began {
        end_unanswered(r, 408);
    }
    if *r.conf().core.reset_timedout_connection
        && let Downstream::Http1(http) = &r.downstream
    {
        reset_on_close(&http.incoming.socket);
    }
    HeadRead::Nothing
}

/// Nothing is said to the client, the log line has this status.
fn end_unanswered(r: &mut Request, status: u16) {
    r.answer.headers.status = status;
    r.flow.aborted = true;
    requests::begin(r);
    end(r);
}

/// Makes the bytes of a refused head part of the request, for the log.
fn keep_line(r: &mut Request, line_complete: bool) {
    let Downstream::Http1(http) = &mut r.downstream else { return };
    r.arena.push(http.unread());
    r.request_length = http.unread().len() as u64;
    let n = http.unread().len();
    http.consume(n);
    if line_complete {
        head::accept_part(r);
    } else {
        let all = r.arena.since(0);
        let end = memchr::memchr2(b'\r', b'\n', r.arena.span(all)).unwrap_or(all.len());
        r.head.line = arena_span(0, end).into();
    }
}

fn arena_span(start: usize, end: usize) -> crate::request::arena::Span {
    crate::request::arena::Span { start: start as u32, end: end as u32 }
}

/// `large_client_header_buffers`: 414 for a request line, 494 for a header, that does not fit in one buffer, 494 for a
/// head that does not fit in all of them.
fn too_large(
    len: usize,
    parser: &RequestParser,
    head: &RequestHead,
    conf: &crate::modules::core::server::ServerSettings,
) -> Option<u16> {
    let (number, size) = *conf.large_client_header_buffers;
    let first = *conf.client_header_buffer_size as usize;
    let room = size.max(first);
    // It may have come whole at once, with the beginning of what follows.
    if parser.is_line_complete() && head.line.len() + LINE_END >= room {
        return Some(414);
    }
    if len - parser.line_start() >= room {
        return Some(if parser.is_line_complete() { 494 } else { 414 });
    }
    (len > first + number * size).then_some(494)
}

/// The same limits for a head that came whole: nginx's buffers would not have held it.
fn oversized(head: &RequestHead, len: usize, conf: &crate::modules::core::server::ServerSettings) -> Option<u16> {
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
    let Downstream::Http1(http) = &mut r.downstream else { unreachable!("heads are read from HTTP/1 sessions") };
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
        r.action = action::READING_LINE;
        log_error!(r, Info, "client sent too long URI");
    }
    r.flow.lingering_close = true;
    HeadRead::Refused(status)
}
