//! The head of a peer's answer: waited for, read, checked. Part of `exchange`; after: the body (`relay`).

use super::cgi;
use super::exchange::{Event, Try, client_gone, poll_client_gone, watches_client};
use super::failure::Failure;
use super::framing::Complaint;
use super::job::Protocol;
use super::settings::next;
use crate::cache::caching;
use crate::connection::http1::Http1;
use crate::connection::incoming::Incoming;
use crate::connection::{action, pool as buffers};
use crate::log_error;
use crate::request::Request;
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use wire::http1::field::HeaderLine;
use wire::http1::known::KnownHeader as K;
use wire::http1::response::{ResponseHead, ResponseParser};
use wire::http1::{Parsed, Version};

/// Heads of the 1xx kind before an answer's own together have at most so many times `proxy_buffer_size`.
const INTERIM_HEADS: u64 = 16;
/// A buffer with less room than this grows before it is read into.
pub(super) const LEAST_ROOM: usize = 1024;

/// Whether another head follows one with this status (RFC 9110 section 15.2).
pub(super) fn is_interim(status: u16) -> bool {
    matches!(status, 100 | 102..=199)
}

/// How far the head has been read.
struct Reading {
    parser: ResponseParser,
    head: ResponseHead,
    /// Where it begins, after heads of the 1xx kind.
    start: usize,
}

impl Try<'_> {
    /// Reads the head; its texts land in the arena, its lines in `r.attempts.head`. Gives where the body begins.
    pub(super) async fn read_head(&mut self, r: &mut Request) -> Result<usize, Failure> {
        let kind = r.attempts.head_kind;
        let mut reading = Reading { parser: kind.parser(), head: std::mem::take(&mut r.attempts.head), start: 0 };
        reading.head.clear();
        r.attempts.forbids_caching = false;
        let result = loop {
            let complaint = if self.connection.tells_end() { self.connection.complain(r, self.job) } else { None };
            let caught = match complaint {
                Some(Complaint { failure, after: None }) => break Err(failure),
                Some(Complaint { failure, after: Some(output) }) => Some((failure, output)),
                None => None,
            };
            let mut body = None;
            if self.input.len() > reading.start {
                r.action = action::READING_HEAD;
                match self.parse(r, &mut reading) {
                    Ok(found) => body = found,
                    Err(f) => break Err(f),
                }
            }
            match (body, caught) {
                // What is said after the head spoils nothing.
                (Some(body), Some((failure, output))) if output < body => break Err(failure),
                (Some(body), _) => break Ok(body),
                (None, Some((failure, _))) => break Err(failure),
                (None, None) => {}
            }
            if let Err(f) = self.read_more(r, reading.start).await {
                break Err(f);
            }
        };
        if result.is_err() {
            if r.ctx.cache.is_some() {
                let (head, bytes) = (&reading.head, &self.input[reading.start..]);
                r.attempts.forbids_caching = caching::forbids(head, bytes, *self.conf.ignore_headers);
            }
            // Its texts never got into the arena: no variable may look for them there.
            reading.head.clear();
        }
        r.attempts.head = reading.head;
        result
    }

    /// Where the body begins, if the head is whole.
    fn parse(&self, r: &mut Request, reading: &mut Reading) -> Result<Option<usize>, Failure> {
        let most = *self.conf.buffer_size;
        loop {
            let bytes = &self.input[reading.start..];
            let len = match reading.parser.parse(bytes, &mut reading.head) {
                Ok(Parsed::Complete { len }) => len,
                Ok(_) if bytes.len() as u64 >= most => return Err(too_big(r)),
                Ok(_) => return Ok(None),
                Err(e) => {
                    let mut text = Vec::new();
                    e.log(bytes, &mut text);
                    return Err(invalid(r, &String::from_utf8_lossy(&text)));
                }
            };
            let bytes = &bytes[..len];
            // RFC 9110 section 15.2: an answer of the 1xx kind has no body, and another one follows.
            if !is_interim(reading.head.status) {
                if len as u64 > most {
                    return Err(too_big(r));
                }
                self.accept(r, &mut reading.head, bytes)?;
                return Ok(Some(reading.start + len));
            }
            if reading.head.status == 103 {
                early_hints(r, &reading.head, bytes);
            }
            reading.start += len;
            if reading.start as u64 > most * INTERIM_HEADS {
                return Err(too_big(r));
            }
            reading.parser = r.attempts.head_kind.parser();
            reading.head.clear();
        }
    }

    /// Checks a whole head and puts its texts into the arena.
    fn accept(&self, r: &mut Request, head: &mut ResponseHead, bytes: &[u8]) -> Result<(), Failure> {
        let status = match &self.job.protocol {
            Protocol::Http1(_) | Protocol::Memcached(_) | Protocol::Tunnel => Ok(()),
            Protocol::Http2(_) | Protocol::Http3(_) => {
                super::http2::head::complete(head);
                Ok(())
            }
            Protocol::FastCgi(f) => cgi::complete(head, bytes, f.keep),
            Protocol::Cgi(_) => cgi::complete(head, bytes, false),
        };
        if head.version == Version::HTTP09 {
            log_error!(r, Error, "upstream sent no valid HTTP/1.0 header");
        }
        let status = status.and_then(|()| check_final(r, head));
        status.and_then(|()| check(r, head, bytes)).map_err(|text| invalid(r, &text))?;
        r.attempts.head_base = r.arena.mark() as u32;
        r.attempts.head_len = bytes.len() as u32;
        r.arena.push(bytes);
        Ok(())
    }

    /// Waits for more of the answer. What is left of the request goes out meanwhile.
    async fn read_more(&mut self, r: &mut Request, start: usize) -> Result<(), Failure> {
        let (conf, watch) = (self.conf, watches_client(r, self.conf));
        let (connection, input) = (&mut self.connection, &mut self.input);
        let mut armed = false;
        let event = poll_fn(|cx| {
            let uploading = match connection.poll_upload(r, cx, conf) {
                Poll::Ready(Ok(())) => false,
                Poll::Ready(Err(f)) => return Poll::Ready(Event::Done(Err(f))),
                Poll::Pending => true,
            };
            // Only a peer that speaks gets a buffer: what many requests wait with stays small.
            if connection.poll_news(cx).is_ready() {
                if input.capacity() == 0 {
                    *input = buffers::take_buffer();
                } else if input.capacity() - input.len() < LEAST_ROOM {
                    input.reserve(buffers::BUFFER);
                }
                if let Poll::Ready(n) = connection.poll_read(cx, input) {
                    return Poll::Ready(Event::Done(Ok(n)));
                }
            }
            if !uploading && !std::mem::replace(&mut armed, true) {
                connection.timer.set(r.attempts.read_timeout(conf));
                if let Some(http) = r.downstream.http1_mut() {
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
            if let Some(http) = r.downstream.http1_mut()
                && !http.output.is_empty()
            {
                let Http1 { incoming: Incoming { socket, .. }, output, .. } = http;
                let _ = output.poll_write(socket, cx, u64::MAX);
            }
            Poll::Pending
        })
        .await;
        if !matches!(event, Event::ClientGone) {
            r.action = action::READING_HEAD;
        }
        match event {
            Event::Done(Ok(Ok(n))) if n > 0 => {
                r.attempts.current().received += n as u64;
                Ok(())
            }
            Event::Done(Ok(read)) => Err(self.ended(r, read.err(), start)),
            Event::Done(Err(f)) => Err(f),
            Event::TimedOut => {
                self.connection.note_timeout();
                Err(Failure::timed_out(r, true))
            }
            Event::ClientGone => Err(client_gone(r)),
        }
    }

    /// The peer says no more, and the head is not whole. Of an idle connection that was closed meanwhile nothing is logged.
    fn ended(&mut self, r: &mut Request, error: Option<io::Error>, start: usize) -> Failure {
        if error.is_none() {
            if let Some(complaint) = self.connection.complain(r, self.job) {
                return complaint.failure;
            }
            if self.connection.has_ended() {
                log_error!(r, Error, "upstream prematurely closed {}", self.connection.what_ends());
                return super::fastcgi::failure();
            }
        }
        if !self.reused || self.input.len() > start {
            match error {
                Some(e) => log_error!(r, Error, "{}", crate::log::read_error("recv()", &e)),
                None => log_error!(r, Error, "upstream prematurely closed connection"),
            }
        }
        Failure::of(next::ERROR, true, self.reused && self.input.is_empty())
    }
}

/// Sends 103 on, where `early_hints` allows it.
fn early_hints(r: &mut Request, head: &ResponseHead, bytes: &[u8]) {
    let snapshot = r.snapshot.clone();
    let allowed = &snapshot.location(r.location).conf.core.early_hints;
    if r.head.version < Version::HTTP11 || !r.is_main() || allowed.is_empty() || !allowed.iter().any(|c| c.is_true(r)) {
        return;
    }
    let passed = |known| !matches!(known, K::Connection | K::KeepAlive | K::TransferEncoding | K::ContentLength);
    let lines = head.headers.iter().filter(|l| passed(l.known));
    let mut lines = lines.map(|l| (l.name.of(bytes), l.value.of(bytes)));
    r.downstream.informational(103, "Early Hints", &mut lines);
}

/// Headers of which there may be one, those that frame the body first.
const SINGLE: [K; 10] = [
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
];

/// The head does not fit in `proxy_buffer_size`.
fn too_big(r: &Request) -> Failure {
    invalid(r, "upstream sent too big header")
}

fn invalid(r: &Request, text: &str) -> Failure {
    log_error!(r, Error, "{text}");
    Failure::of(next::INVALID_HEADER, true, false)
}

/// RFC 9110 section 15.2: a status of the 1xx kind ends no answer, whatever protocol it came by; what the client is sent next would
/// be read as the answer. Only who asked for another protocol is told that it is spoken from here on.
fn check_final(r: &Request, head: &ResponseHead) -> Result<(), String> {
    match head.status {
        101 if r.head.headers.find(K::Upgrade).is_none() => {
            Err("upstream switched protocols though nobody asked it to".to_owned())
        }
        100 | 102..=199 => Err(format!("upstream sent status {} for a final answer", head.status)),
        _ => Ok(()),
    }
}

/// Refuses heads whose framing is ambiguous, and drops repeated headers of which there may be one (nginx's
/// `ngx_http_upstream_process_*`).
fn check(r: &Request, head: &mut ResponseHead, bytes: &[u8]) -> Result<(), String> {
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
    let mut seen: [Option<HeaderLine>; SINGLE.len()] = [None; SINGLE.len()];
    let mut problem = None;
    head.headers.retain(|h| {
        let Some(slot) = SINGLE.iter().position(|k| *k == h.known) else { return true };
        let value = h.value.of(bytes);
        let shown = |h: &HeaderLine| {
            format!("{}: {}", String::from_utf8_lossy(h.name.of(bytes)), String::from_utf8_lossy(h.value.of(bytes)))
        };
        if let Some(previous) = &seen[slot] {
            let (line, previous) = (shown(h), shown(previous));
            let text = format!("upstream sent duplicate header line: \"{line}\", previous value: \"{previous}\"");
            if slot < 2 {
                problem.get_or_insert(text);
            } else {
                log_error!(r, Warn, "{text}, ignored");
            }
            return false;
        }
        seen[slot] = Some(*h);
        if slot == 0 && wire::http1::values::parse_content_length(value).is_none() {
            problem.get_or_insert(format!("upstream sent invalid \"Content-Length\" header: \"{}\"", shown(h)));
        }
        if slot == 1 && !value.eq_ignore_ascii_case(b"chunked") {
            let coding = String::from_utf8_lossy(value);
            problem.get_or_insert(format!("upstream sent unknown \"Transfer-Encoding\": \"{coding}\""));
        }
        true
    });
    if seen[0].is_some() && seen[1].is_some() {
        let text = "upstream sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time";
        problem.get_or_insert(text.to_owned());
    }
    problem.map_or(Ok(()), Err)
}
