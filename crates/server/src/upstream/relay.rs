//! The answer's body on its way from the peer to the client: as fast as the peer sends while there is room in memory or in
//! a file, no faster than the client takes otherwise.

use super::exchange::{Answer, is_bodiless, poll_client_gone, release};
use super::job::Job;
use super::settings::{UpstreamSettings, next};
use super::spool::Spool;
use crate::connection::{action, pool as buffers};
use crate::log_error;
use crate::request::chunk::Chunk;
use crate::request::filter;
use crate::request::flow::{self, Flush};
use crate::request::headers::KnownHeader as K;
use crate::request::pending::Pending;
use crate::request::phases::Verdict;
use crate::request::{Method, Request, include};
use crate::status::spent::Part;
use runtime::clock;
use runtime::timer::Timer;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use wire::http1::Parsed;
use wire::http1::chunked::{Decoder, Event, Trailers};
use wire::http1::field::TrailerParser;
use wire::http1::response::ResponseHead;

/// A buffer with less room than this grows before it is read into.
const LEAST_ROOM: usize = 1024;
/// The warning about a peer that goes on after its answer's end.
const SURPLUS: &str = "upstream sent more data than specified in \"Content-Length\" header";
/// Bytes of one answer that are read, and perhaps written to a file, before other requests of the thread get their turn. A peer that
/// sends as fast as they are read would have the thread to itself otherwise, and clients that have just come would wait.
const TURN: u64 = 64 * 1024;
/// Pieces that filters work on before others get their turn.
const PIECES: u32 = 2;

/// How the answer's body ends.
enum Framing {
    None,
    Length(u64),
    Chunked(Decoder),
    /// The last chunk has been seen.
    Trailers,
    Close,
}

/// What is known about the way of an answer.
pub struct Options {
    /// `proxy_buffering`, or what the answer says about it.
    pub buffering: bool,
    /// Bytes a second from the peer, 0: no limit.
    pub rate: u64,
    /// The answer's connection may be used again.
    pub keep: bool,
    /// What `Content-Length` said.
    pub length: Option<u64>,
    /// `proxy_pass_trailers`
    pub trailers: bool,
}

enum Step {
    Read(io::Result<usize>),
    Drained,
    TimedOut,
    ClientFailed(io::Error),
    ClientGone,
    /// The peer does not take the rest of the request; said already.
    UploadTimedOut,
    /// The client does not send it.
    UploadFailed,
}

/// Sends the body after the head has been sent.
pub async fn body(
    r: &mut Request,
    job: &Job,
    conf: &UpstreamSettings,
    mut answer: Answer,
    options: Options,
) -> Verdict {
    let framing = framing(&r.attempts.head, job.is_head, options.length);
    let mut relay = Relay {
        conf,
        memory: conf.buffers.0 * conf.buffers.1 + *conf.buffer_size,
        framing,
        spool: Spool::None,
        backlog: Pending::default(),
        options,
        done: false,
        extra: false,
        alone: false,
        began: clock::monotonic_ms(),
        read: 0,
        turn: 0,
    };
    let verdict = relay.run(r, &mut answer).await;
    r.spent.enter(Part::Own);
    answer.connection.complain(r, job);
    r.action = action::SENDING_TO_CLIENT;
    let now = clock::monotonic_ms();
    let started = answer.started_ms;
    r.attempts.current().response_ms = Some(now - started);
    let keep = answer.connection.is_complete()
        && relay.done
        && !relay.extra
        && relay.options.keep
        && answer.request_sent
        && answer.at == answer.input.len();
    super::ended_well(r, &job.group, &answer.chosen);
    release(job, answer, keep);
    verdict
}

fn framing(head: &ResponseHead, is_head: bool, length: Option<u64>) -> Framing {
    if is_bodiless(head, is_head) {
        return Framing::None;
    }
    if head.header(K::TransferEncoding).is_some() {
        return Framing::Chunked(Decoder::new(Trailers::HandOut));
    }
    length.map_or(Framing::Close, Framing::Length)
}

struct Relay<'c> {
    conf: &'c UpstreamSettings,
    /// So many bytes may wait for the client in memory.
    memory: u64,
    framing: Framing,
    spool: Spool,
    /// What the filters have not been given yet: it waits in a file until there is room with the client. So the queue towards the
    /// client stays short in memory and in number, and filters that need the bytes see them when they can be taken.
    backlog: Pending,
    options: Options,
    done: bool,
    /// The peer sent more than it announced.
    extra: bool,
    /// The client is gone; the rest is for the cache.
    alone: bool,
    began: u64,
    read: u64,
    /// How much of it since others had their turn.
    turn: u64,
}

/// How many bytes trailers take with the empty line that ends them, whatever stands in them.
fn end_of_trailers(bytes: &[u8]) -> Option<usize> {
    let mut start = 0;
    loop {
        let end = start + memchr::memchr(b'\n', &bytes[start..])? + 1;
        if matches!(&bytes[start..end], b"\n" | b"\r\n") {
            return Some(end);
        }
        start = end;
    }
}

impl Relay<'_> {
    async fn run(&mut self, r: &mut Request, answer: &mut Answer) -> Verdict {
        r.action = action::READING_UPSTREAM;
        let mut rate_timer = None;
        if !self.options.buffering {
            super::client_nodelay(r);
        }
        loop {
            if let Err(v) = self.take(r, answer) {
                return v;
            }
            if self.done {
                answer.connection.keep_trailers(r);
                return self.end(r);
            }
            if r.answer.deferred.is_some()
                && let Err(v) = Box::pin(include::drive(r)).await
            {
                return v;
            }
            let busy = match self.hand_over(r) {
                Ok(busy) => busy,
                Err(v) => return v,
            };
            // What the client still sends has to go on meanwhile: then `room` waits for what is sent here.
            if !self.options.buffering && !answer.connection.is_uploading() {
                r.action = action::SENDING_TO_CLIENT;
                if let Err(v) = flow::flush(r).await {
                    return v;
                }
            }
            if busy || self.turn >= TURN {
                self.turn = 0;
                runtime::yield_now().await;
            }
            if busy {
                continue;
            }
            match self.step(r, answer, &mut rate_timer).await {
                Step::Read(Ok(n)) if n > 0 => {
                    self.read += n as u64;
                    self.turn += n as u64;
                    r.attempts.current().received += n as u64;
                }
                Step::Read(Ok(_)) => return self.closed(r, answer),
                Step::Read(Err(e)) => {
                    // nginx reads into its list of buffers, or into its only one.
                    let call = if self.options.buffering { "readv()" } else { "recv()" };
                    log_error!(r, Error, "{}", crate::log::read_error(call, &e));
                    return self.cut_short(r);
                }
                Step::Drained => {}
                Step::ClientFailed(e) if is_filling(r) => {
                    r.action = action::SENDING_TO_CLIENT;
                    log_error!(r, Info, "writev() failed ({})", crate::log::os_error(&e));
                    r.action = action::READING_UPSTREAM;
                    self.go_alone();
                }
                Step::TimedOut => {
                    answer.connection.note_timeout();
                    log_error!(r, Error, "upstream timed out (110: Connection timed out)");
                    return self.cut_short(r);
                }
                Step::UploadTimedOut => return self.cut_short(r),
                Step::UploadFailed => {
                    r.flow.aborted = true;
                    return Verdict::Broken;
                }
                Step::ClientFailed(e) => {
                    r.action = action::SENDING_TO_CLIENT;
                    return r.broken(&e);
                }
                Step::ClientGone => {
                    log_error!(
                        r,
                        Info,
                        "epoll_wait() reported that client prematurely closed connection, so upstream connection is closed too{}",
                        super::client_error(r)
                    );
                    r.flow.aborted = true;
                    return Verdict::Broken;
                }
            }
        }
    }

    /// Waits until there is more to do: bytes from the peer while there is room, or room.
    async fn step(&mut self, r: &mut Request, answer: &mut Answer, rate_timer: &mut Option<Timer>) -> Step {
        let conf = self.conf;
        let watch = !*conf.ignore_client_abort && !is_filling(r);
        let alone = self.alone;
        let paused = self.pause();
        if let Some(wait) = paused {
            rate_timer.get_or_insert_with(Timer::new).set(wait);
        }
        let Answer { connection, input, .. } = answer;
        if input.capacity() - input.len() < LEAST_ROOM {
            input.reserve(buffers::BUFFER);
        }
        let mut paused = paused.is_some();
        let mut armed = false;
        let hurried = !self.options.buffering && connection.is_uploading();
        let mut outflow = Flush::new(r);
        let step = poll_fn(|cx| {
            let before = waiting(r);
            let client = if alone { Poll::Ready(Ok(())) } else { outflow.poll(r, cx) };
            if let Poll::Ready(Err(e)) = client {
                return Poll::Ready(Step::ClientFailed(e));
            }
            if paused && rate_timer.as_ref().is_none_or(|t| t.poll_expired(cx).is_ready()) {
                paused = false;
            }
            if self.may_hand_over(r) {
                return Poll::Ready(Step::Drained);
            }
            let room = if hurried { waiting(r) == 0 } else { self.room(r) };
            match connection.poll_upload(r, cx, conf) {
                Poll::Ready(Err(f)) if f.kind == next::TIMEOUT => return Poll::Ready(Step::UploadTimedOut),
                Poll::Ready(Err(_)) => return Poll::Ready(Step::UploadFailed),
                _ => {}
            }
            if room && !paused {
                if let Poll::Ready(n) = connection.poll_read(cx, input) {
                    return Poll::Ready(Step::Read(n));
                }
                if !std::mem::replace(&mut armed, true) {
                    connection.timer.set(r.attempts.read_timeout(conf));
                }
                if connection.timer.poll_expired(cx).is_ready() {
                    return Poll::Ready(Step::TimedOut);
                }
            } else if waiting(r) < before {
                return Poll::Ready(Step::Drained);
            }
            if watch && poll_client_gone(r, cx).is_ready() {
                return Poll::Ready(Step::ClientGone);
            }
            r.spent.enter(if room && !paused { Part::Answer } else { Part::Client });
            Poll::Pending
        })
        .await;
        // What the peer does after a wait is about the peer.
        if armed && matches!(step, Step::Read(_) | Step::TimedOut) {
            r.action = action::READING_UPSTREAM;
        }
        step
    }

    /// How long reading has to rest for `proxy_limit_rate`.
    fn pause(&self) -> Option<Duration> {
        if self.options.rate == 0 {
            return None;
        }
        let due = self.read * 1000 / self.options.rate;
        let passed = clock::monotonic_ms() - self.began;
        (due > passed).then(|| Duration::from_millis(due - passed))
    }

    /// Whether more may be read.
    fn room(&self, r: &Request) -> bool {
        if self.alone || is_filling(r) || self.is_clear(r) && waiting(r) < self.memory {
            return true;
        }
        self.may_spool() && self.spool.written() < *self.conf.max_temp_file_size
    }

    /// Whether what the client does not take yet may wait in a file.
    fn may_spool(&self) -> bool {
        self.options.buffering && *self.conf.max_temp_file_size > 0 && self.spool.is_usable()
    }

    /// Whether nothing stands between what comes next and the client's queue.
    fn is_clear(&self, r: &Request) -> bool {
        self.backlog.is_empty() && !filter::is_stuffed(r)
    }

    /// Whether the client has taken so much that it should get more of what waits here.
    fn may_hand_over(&self, r: &Request) -> bool {
        !self.alone && waiting(r) <= self.memory / 2 && !self.is_clear(r)
    }

    /// Gives the filters, and the client's queue, of what waits. True: there is more at once, but others have their turn first.
    fn hand_over(&mut self, r: &mut Request) -> Result<bool, Verdict> {
        let mut pieces = 0;
        while self.may_hand_over(r) {
            if pieces == PIECES {
                return Ok(true);
            }
            pieces += 1;
            let sent = if filter::is_stuffed(r) {
                filter::resume_stuffed(r).map_err(|e| r.broken(&e))
            } else {
                // A file that nobody looks into goes as a whole.
                let most = if r.wants_bytes() { crate::request::chunk::PIECE } else { u64::MAX };
                self.backlog.take(most).map_or(Ok(()), |part| r.send_body(part.chunk(), false))
            };
            self.sent(r, sent)?;
        }
        Ok(false)
    }

    /// What became of a piece for the client. While the answer is for a cache too, it goes on without the client.
    fn sent(&mut self, r: &Request, sent: Result<(), Verdict>) -> Result<(), Verdict> {
        if sent.is_err() && is_filling(r) {
            self.go_alone();
            return Ok(());
        }
        sent
    }

    /// The client is gone; what comes is for the cache.
    fn go_alone(&mut self) {
        self.alone = true;
        self.backlog = Pending::default();
    }

    /// Takes the body's bytes out of what was read and sends them on.
    fn take(&mut self, r: &mut Request, answer: &mut Answer) -> Result<(), Verdict> {
        loop {
            let Answer { input, at, connection, .. } = answer;
            let (start, end) = match &mut self.framing {
                Framing::None => {
                    self.done = true;
                    let more = *at < input.len();
                    if more && !std::mem::replace(&mut self.extra, true) && r.head.method != Method::Head {
                        log_error!(r, Warn, "{SURPLUS}");
                    }
                    break;
                }
                Framing::Length(left) => {
                    let n = ((input.len() - *at) as u64).min(*left);
                    let start = *at;
                    *at += n as usize;
                    *left -= n;
                    if *left == 0 {
                        self.extra = *at < input.len();
                        // Where there are records, the answer ends with the last of them.
                        self.done = self.extra || !connection.awaits_end();
                        if self.extra {
                            log_error!(r, Warn, "{SURPLUS}");
                        }
                    }
                    (start, *at)
                }
                Framing::Close => {
                    let start = *at;
                    *at = input.len();
                    (start, *at)
                }
                Framing::Chunked(decoder) => match decoder.decode(input, at) {
                    Ok(Event::Data(span)) => (span.start as usize, span.end as usize),
                    Ok(Event::More) => break,
                    Ok(Event::Trailers | Event::End) => {
                        self.framing = Framing::Trailers;
                        continue;
                    }
                    Err(_) => {
                        log_error!(r, Error, "upstream sent invalid chunked response");
                        return Err(self.cut_short(r));
                    }
                },
                Framing::Trailers => {
                    self.trailers(r, input, at)?;
                    break;
                }
            };
            if end > start {
                self.send(r, &answer.input[start..end])?;
            }
            if self.done || !matches!(self.framing, Framing::Chunked(_)) {
                break;
            }
        }
        if answer.at == answer.input.len() {
            answer.input.clear();
            answer.at = 0;
        } else if answer.at > buffers::BUFFER / 2 {
            answer.input.drain(..answer.at);
            answer.at = 0;
        }
        Ok(())
    }

    fn trailers(&mut self, r: &mut Request, input: &[u8], at: &mut usize) -> Result<(), Verdict> {
        let mut fields = Vec::new();
        match TrailerParser::default().parse(&input[*at..], &mut fields) {
            Ok(Parsed::Complete { len }) => {
                let base = r.arena.mark() as u32;
                r.arena.push(&input[*at..*at + len]);
                let moved = |s: wire::span::Span| wire::span::Span { start: s.start + base, end: s.end + base };
                for f in fields {
                    r.attempts.trailers.push((moved(f.name).into(), moved(f.value).into()));
                }
                *at += len;
                self.after_chunks(r, *at < input.len());
                Ok(())
            }
            Err(_) if self.options.trailers => {
                log_error!(r, Error, "upstream sent invalid trailer");
                Err(self.cut_short(r))
            }
            // Nobody gets to see invalid ones, and the answer itself is whole.
            unfinished => match end_of_trailers(&input[*at..]).filter(|_| unfinished.is_err()) {
                Some(len) => {
                    *at += len;
                    log_error!(r, Info, "upstream sent invalid trailer");
                    self.after_chunks(r, *at < input.len());
                    Ok(())
                }
                None if input.len() - *at > wire::http1::chunked::MAX_TRAILER as usize => {
                    log_error!(r, Error, "upstream sent too big trailers");
                    Err(self.cut_short(r))
                }
                None => Ok(()),
            },
        }
    }

    /// The answer in chunks is complete.
    fn after_chunks(&mut self, r: &Request, more: bool) {
        self.done = true;
        if more && !std::mem::replace(&mut self.extra, true) {
            log_error!(r, Warn, "upstream sent data after final chunk");
        }
    }

    fn send(&mut self, r: &mut Request, bytes: &[u8]) -> Result<(), Verdict> {
        r.attempts.current().body_bytes += bytes.len() as u64;
        if let Some(store) = &mut r.ctx.store {
            store.write(bytes);
        }
        let room = waiting(r) + bytes.len() as u64 <= self.memory;
        let at_once = self.alone || !self.options.buffering || self.is_clear(r) && (room || !self.may_wait(r));
        let kept = self.keep(r, bytes, !at_once);
        if self.alone {
            return Ok(());
        }
        if at_once {
            let sent = r.send_body(Chunk::Bytes(bytes), false);
            return self.sent(r, sent);
        }
        let directory = &self.conf.temp_path;
        let place = kept.or_else(|| self.may_spool().then(|| self.spool.append(r, directory, bytes)).flatten());
        let len = bytes.len() as u64;
        // What can be written nowhere waits in memory: nothing more is read then.
        let piece =
            place.as_ref().map_or(Chunk::Bytes(bytes), |(file, offset)| Chunk::File { file, offset: *offset, len });
        self.backlog.add(piece);
        Ok(())
    }

    /// Whether there is a file for what the client does not take yet.
    fn may_wait(&self, r: &Request) -> bool {
        is_filling(r) || self.may_spool()
    }

    /// Gives the cache its part. `now`: it is to be in the cache's file at once; gives where, if it could be written.
    fn keep(&mut self, r: &mut Request, bytes: &[u8], now: bool) -> Option<(Rc<OwnedFd>, u64)> {
        let mut caching = r.ctx.cache.take()?;
        let began = caching.is_filling();
        let place = if now { caching.push_through(r, bytes) } else { None };
        if !now {
            caching.push(r, bytes);
        }
        if began && !caching.is_filling() {
            // That was said, and the next file would not fare better.
            self.spool.refuse();
        }
        if self.done {
            // Who has the last byte finds the answer in the cache.
            caching.keep(r);
        } else {
            r.ctx.cache = Some(caching);
        }
        place
    }

    /// The peer closed its connection, or said that it is done.
    fn closed(&mut self, r: &mut Request, answer: &mut Answer) -> Verdict {
        let connection = &mut answer.connection;
        connection.keep_trailers(r);
        match self.framing {
            Framing::Close if !connection.is_cut() => {
                self.done = true;
                // Records tell the end of an answer without the connection's.
                self.options.keep &= connection.tells_end();
                self.end(r)
            }
            // Only the last record was waited for.
            Framing::Length(0) if !connection.is_reset() => {
                self.done = true;
                self.end(r)
            }
            // An answer to HEAD may do without its body. Nothing is kept of it: GET would get nothing.
            Framing::Length(_)
                if connection.has_ended() && r.head.method == Method::Head && r.attempts.current().body_bytes == 0 =>
            {
                self.done = true;
                (r.ctx.store, r.ctx.cache) = (None, None);
                self.end(r)
            }
            _ if connection.is_garbled() => self.cut_short(r),
            _ => {
                log_error!(r, Error, "upstream prematurely closed {}", connection.what_ends());
                self.cut_short(r)
            }
        }
    }

    fn end(&mut self, r: &mut Request) -> Verdict {
        // The answer to a HEAD announces a length and has no body: that is no file.
        if let Some(store) = r.ctx.store.take()
            && self.options.length.is_none_or(|n| n == store.written())
        {
            store.finish(r);
        }
        if let Some(caching) = r.ctx.cache.take() {
            caching.keep(r);
        }
        if self.alone {
            r.flow.aborted = true;
            return Verdict::Broken;
        }
        if self.options.trailers {
            pass_trailers(r);
        }
        self.leave(r, true)
    }

    /// The client gets what there is and then a closed connection: the only way to say that something is missing.
    fn cut_short(&mut self, r: &mut Request) -> Verdict {
        r.flow.keepalive = false;
        r.ctx.store = None;
        r.ctx.cache = None;
        self.leave(r, false)
    }

    /// The peer is not needed any more. What waits goes to the client when it takes it; `last`: the answer ends with it.
    fn leave(&mut self, r: &mut Request, last: bool) -> Verdict {
        let mut backlog = std::mem::take(&mut self.backlog);
        if self.alone {
            return Verdict::Answered;
        }
        if r.wants_bytes() && !backlog.is_empty() {
            backlog.last = last;
            r.answer.done |= last;
            r.answer.pending = Some(Box::new(backlog));
            return Verdict::Answered;
        }
        let mut sent = Ok(());
        while sent.is_ok()
            && let Some(part) = backlog.take(u64::MAX)
        {
            sent = r.send_body(part.chunk(), last && backlog.is_empty());
        }
        if sent.is_ok() && last {
            sent = r.send_body(Chunk::Bytes(b""), true);
        }
        sent.map_or_else(|verdict| verdict, |()| Verdict::Answered)
    }
}

/// `proxy_pass_trailers`
fn pass_trailers(r: &mut Request) {
    for i in 0..r.attempts.trailers.len() {
        let (name, value) = r.attempts.trailers[i];
        r.answer.headers.trailers.push(crate::request::headers::HeaderOut { name, value, known: K::Other });
    }
}

fn waiting(r: &Request) -> u64 {
    r.unsent_bytes()
}

fn is_filling(r: &Request) -> bool {
    r.ctx.cache.as_ref().is_some_and(|c| c.is_filling())
}
