//! What a client sends after the head: read into memory or a file, streamed to a handler, or thrown away.
//! From: `phases`. Around: a content handler that wants it. Nobody reads a body that is not asked for.

use super::Request;
use super::phases::Verdict;
use crate::connection::Downstream;
use crate::connection::http1::Http1;
use crate::connection::incoming::{Filled, Incoming};
use crate::connection::slow::{self, Watch};
use crate::log_error;
use crate::status::spent::Part;
use crate::temp::write_file;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use wire::http1::chunked::{Decoder, Event};

/// A body that nobody wants is read for at most this long before the connection is given up (`lingering_time` holds
/// after the answer).
const DISCARD_AT_MOST: u64 = 10 * 1024 * 1024;

/// How the body is framed, and how much of it is still to come.
#[derive(Clone, Debug, Default)]
enum Framing {
    #[default]
    None,
    Length(u64),
    Chunked(Decoder),
    /// A stream of HTTP/2 or HTTP/3, which has its own end; the length that was announced.
    Stream(Option<u64>),
    Ended,
}

/// The body of a request.
#[derive(Debug, Default)]
pub struct Body {
    framing: Framing,
    /// The whole body, once it has been read.
    pub stored: Option<Rc<Stored>>,
    /// Bytes of the body so far.
    pub received: u64,
    /// Bytes taken off the connection for it, chunks' heads among them, that `$request_length` does not count yet.
    uncounted: u64,
    discarded: bool,
    /// The handler reads it piece by piece.
    pub streamed: bool,
    /// `client_body_min_rate`
    watch: Option<Box<Watch>>,
    /// What [`poll_all`] has of it so far.
    gathered: Option<Box<Gathered>>,
}

/// The first part of a body that is read whole.
#[derive(Debug, Default)]
struct Gathered {
    memory: Vec<u8>,
    file: Option<BodyFile>,
    /// Bytes in the file.
    written: u64,
    /// The clock runs for what is waited for now.
    armed: bool,
}

/// A body that has been read whole.
#[derive(Debug, Default)]
pub struct Stored {
    /// The bytes, unless they are in `file`.
    pub memory: Vec<u8>,
    /// The file that holds the body.
    pub file: Option<BodyFile>,
    /// Its length.
    pub len: u64,
}

/// A body in a temporary file.
#[derive(Debug)]
pub struct BodyFile {
    /// Open for reading and writing.
    pub fd: Rc<OwnedFd>,
    /// Its path, for `$request_body_file`.
    pub path: PathBuf,
    /// Removed with the request.
    pub remove: bool,
}

impl Drop for BodyFile {
    fn drop(&mut self) {
        if self.remove {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Body {
    /// Takes over the framing that the head announced.
    pub fn expect(&mut self, length: Option<u64>, chunked: bool) {
        self.framing = match (length, chunked) {
            (_, true) => Framing::Chunked(Decoder::of_request()),
            (Some(0) | None, false) => Framing::None,
            (Some(n), false) => Framing::Length(n),
        };
    }

    /// The same for a body that comes in a stream.
    pub fn expect_stream(&mut self, length: Option<u64>) {
        self.framing = Framing::Stream(length);
    }

    /// Whether bytes of the body may still be on the way.
    pub fn is_pending(&self) -> bool {
        matches!(self.framing, Framing::Length(_) | Framing::Chunked(_) | Framing::Stream(_))
    }

    /// Has a body of which nothing has been taken end before its time: the rest is nobody's, and no request can follow it. False: it is not longer.
    pub fn shorten(&mut self, length: u64) -> bool {
        let Framing::Length(left) = &mut self.framing else { return false };
        if self.received > 0 || *left <= length {
            return false;
        }
        if length == 0 {
            self.framing = Framing::Ended;
        } else {
            *left = length;
        }
        true
    }

    /// Whether the request came with a body at all.
    pub fn is_present(&self) -> bool {
        !matches!(self.framing, Framing::None)
    }

    /// The length of a body that said none: known once it has been read, and 0 when nobody wanted it (`$content_length`).
    pub fn measured(&self) -> Option<u64> {
        match (&self.framing, &self.stored) {
            (Framing::None | Framing::Length(_), _) => None,
            (_, Some(stored)) => Some(stored.len),
            (_, None) if self.discarded => Some(0),
            // It went on as it came.
            (Framing::Ended, None) => Some(self.received),
            (_, None) => None,
        }
    }

    /// Whether it is being thrown away.
    pub fn is_discarded(&self) -> bool {
        self.discarded
    }

    /// Moves body bytes from the connection's input to `out`. `Ok(true)`: the body is complete.
    fn take(&mut self, http: &mut Http1, out: Option<&mut Vec<u8>>) -> Result<bool, ()> {
        let mut sink = out;
        match &mut self.framing {
            Framing::None | Framing::Ended | Framing::Stream(_) => return Ok(true),
            Framing::Length(left) => {
                let n = http.unread().len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                if let Some(out) = &mut sink {
                    out.extend_from_slice(&http.unread()[..n]);
                }
                http.consume(n);
                self.received += n as u64;
                self.uncounted += n as u64;
                *left -= n as u64;
                if *left > 0 {
                    return Ok(false);
                }
            }
            Framing::Chunked(decoder) => {
                let mut at = 0;
                let ended = loop {
                    match decoder.decode(http.unread(), &mut at) {
                        Ok(Event::Data(span)) => {
                            if let Some(out) = &mut sink {
                                out.extend_from_slice(span.of(http.unread()));
                            }
                            self.received += span.len() as u64;
                        }
                        Ok(Event::More) => break false,
                        Ok(Event::End | Event::Trailers) => break true,
                        Err(_) => return Err(()),
                    }
                };
                http.consume(at);
                self.uncounted += at as u64;
                if !ended {
                    return Ok(false);
                }
            }
        }
        self.framing = Framing::Ended;
        Ok(true)
    }
}

mod stream_body;

/// Why a body could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// Answer with this status.
    Status(u16),
    /// The client is gone.
    Gone,
}

impl From<BodyError> for Verdict {
    fn from(e: BodyError) -> Verdict {
        match e {
            BodyError::Status(s) => Verdict::Status(s),
            BodyError::Gone => Verdict::Broken,
        }
    }
}

/// Sends `100 Continue` when the client waits for it (`ngx_http_test_expect`).
pub fn confirm_expectation(r: &mut Request) {
    use super::headers::KnownHeader as K;
    if r.flow.expect_tested || r.head.version < super::Version::HTTP11 {
        return;
    }
    let Some(expect) = r.head.headers.find(K::Expect) else { return };
    r.flow.expect_tested = true;
    if !r.get(expect).eq_ignore_ascii_case(b"100-continue") {
        return;
    }
    // The client has not waited (RFC 9110 section 10.1.1).
    if r.downstream.stream().is_some_and(|stream| stream.has_ended()) {
        return;
    }
    r.downstream.informational(100, "Continue", &mut std::iter::empty());
}

/// Waits for body bytes; they are appended to `out`. `Ok(true)`: the body is complete. Each wait has
/// `client_body_timeout`.
pub async fn read_some(r: &mut Request, out: &mut Vec<u8>) -> Result<bool, BodyError> {
    let timeout = *r.conf().core.client_body_timeout;
    arm(r, timeout);
    let before = r.spent.enter(Part::Body);
    let read = poll_fn(|cx| poll_some(r, cx, out)).await;
    r.spent.enter(before);
    read
}

/// Takes the body bytes that came with the head, without waiting. `Ok(true)`: the body is complete.
pub fn take_preread(r: &mut Request, out: &mut Vec<u8>) -> Result<bool, BodyError> {
    let before = r.body.received;
    if r.downstream.stream().is_some() {
        return stream_body::take(r, out).and_then(|complete| finish_read(r, before, complete));
    }
    let Downstream::Http1(http) = &mut r.downstream else { return Ok(true) };
    match r.body.take(http, Some(out)) {
        Ok(complete) => finish_read(r, before, complete),
        Err(()) => {
            log_error!(r, Error, "client sent invalid chunked body");
            Err(BodyError::Status(400))
        }
    }
}

/// Starts the clock for [`poll_some`].
pub fn arm(r: &mut Request, timeout: Duration) {
    match &mut r.downstream {
        Downstream::Http1(http) => http.incoming.timer.set(timeout),
        other => {
            if let Some(stream) = other.stream() {
                stream.arm(timeout);
            }
        }
    }
}

/// See [`read_some`]; the caller arms the clock.
pub fn poll_some(r: &mut Request, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<Result<bool, BodyError>> {
    if let Poll::Ready(read) = poll_patiently(r, cx, out) {
        r.client.works();
        match &mut r.body.watch {
            Some(watch) if matches!(read, Ok(false)) => watch.pause(),
            watch => *watch = None,
        }
        return Poll::Ready(read);
    }
    if poll_too_slow(r, cx).is_ready() {
        log_error!(r, Info, "{}", slow::TOO_SLOW);
        return Poll::Ready(Err(if r.downstream.stream().is_some() {
            stream_body::end(r)
        } else {
            BodyError::Status(408)
        }));
    }
    match &mut r.downstream {
        Downstream::Http1(_) if r.client.is_taken() => {
            r.broken(&io::ErrorKind::QuotaExceeded.into());
            Poll::Ready(Err(BodyError::Gone))
        }
        Downstream::Http1(http) => {
            r.client.owes(http.output.written);
            http.incoming.timer.poll_expired(cx).map(|()| Err(BodyError::Status(408)))
        }
        _ => stream_body::poll_clock(r, cx).map(Err),
    }
}

/// `client_body_min_rate`: ready when it has been too little for too long. A stream's body is judged by all that its connection brings.
fn poll_too_slow(r: &mut Request, cx: &mut Context<'_>) -> Poll<()> {
    let conf = &r.conf().slow;
    let (rule, places) = (*conf.client_body_min_rate, conf.places());
    if !rule.is_set() {
        return Poll::Pending;
    }
    let of_stream = r.downstream.stream().is_some();
    let begin = || Watch::new(rule, places).map(|watch| if of_stream { watch } else { watch.of_all() });
    let Some(mut watch) = r.body.watch.take().or_else(begin) else { return Poll::Pending };
    let received = r.body.received;
    let (client, stream) = (&r.client, r.downstream.stream());
    let bytes = || match stream {
        None => received,
        Some(stream) => stream.moved().map(|(came, _)| came).or_else(|| client.progress()).unwrap_or(received),
    };
    let judged = watch.poll(client, cx, bytes);
    r.body.watch = Some(watch);
    judged
}

/// The same without a clock.
pub fn poll_patiently(r: &mut Request, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<Result<bool, BodyError>> {
    let before = r.body.received;
    if r.downstream.stream().is_some() {
        let complete = std::task::ready!(stream_body::poll(r, out));
        return Poll::Ready(complete.and_then(|complete| finish_read(r, before, complete)));
    }
    let Downstream::Http1(http) = &mut r.downstream else { return Poll::Ready(Ok(true)) };
    loop {
        match r.body.take(http, Some(out)) {
            Ok(true) => return Poll::Ready(finish_read(r, before, true)),
            Ok(false) if r.body.received > before => return Poll::Ready(finish_read(r, before, false)),
            Ok(false) => {}
            Err(()) => {
                log_error!(r, Error, "client sent invalid chunked body");
                return Poll::Ready(Err(BodyError::Status(400)));
            }
        }
        // The client may be waiting for `100 Continue`.
        if !http.output.is_empty() {
            let Http1 { incoming: Incoming { socket, .. }, output, .. } = &mut **http;
            if let Poll::Ready(Err(e)) = output.poll_write(socket, cx, u64::MAX) {
                r.broken(&e);
                return Poll::Ready(Err(BodyError::Gone));
            }
        }
        match http.poll_fill(cx) {
            Poll::Ready(Ok(0)) => {
                log_error!(r, Info, "client prematurely closed connection");
                r.flow.aborted = true;
                return Poll::Ready(Err(BodyError::Status(400)));
            }
            Poll::Ready(Ok(_)) => {}
            Poll::Ready(Err(e)) => {
                log_error!(r, Info, "{}", crate::log::read_error("recv()", &e));
                r.flow.aborted = true;
                return Poll::Ready(Err(BodyError::Status(400)));
            }
            Poll::Pending => return Poll::Pending,
        }
    }
}

fn finish_read(r: &mut Request, before: u64, complete: bool) -> Result<bool, BodyError> {
    r.request_length += std::mem::take(&mut r.body.uncounted);
    let max = *r.conf().core.client_max_body_size;
    if max > 0 && r.body.received > max {
        let more = r.body.received - before;
        log_error!(r, Error, "client intended to send too large chunked body: {before}+{more} bytes");
        discard_arrived(r).map_err(BodyError::Status)?;
        // Where all of it is here as well: an error page has no part in it.
        r.body.discarded = true;
        return Err(BodyError::Status(413));
    }
    Ok(complete)
}

/// Reads the whole body, into memory up to `client_body_buffer_size`, else into a file. Does it once.
pub async fn read_all(r: &mut Request) -> Result<Rc<Stored>, BodyError> {
    if let Some(stored) = &r.body.stored {
        return Ok(stored.clone());
    }
    let before = r.spent.enter(Part::Body);
    let read = poll_fn(|cx| poll_all(r, cx)).await;
    r.spent.enter(before);
    read
}

/// The same for whoever does something else meanwhile. What has come is the request's: another call goes on with it.
pub fn poll_all(r: &mut Request, cx: &mut Context<'_>) -> Poll<Result<Rc<Stored>, BodyError>> {
    if let Some(stored) = &r.body.stored {
        return Poll::Ready(Ok(stored.clone()));
    }
    let known = r.body.gathered.take();
    let is_new = known.is_none();
    let mut gathered = known.unwrap_or_default();
    // What is thrown away is nobody's: an error page may ask for it.
    if r.is_main() && r.body.is_present() && !r.body.discarded {
        if is_new {
            confirm_expectation(r);
        }
        let timeout = *r.conf().core.client_body_timeout;
        loop {
            if !std::mem::replace(&mut gathered.armed, true) {
                arm(r, timeout);
            }
            let Poll::Ready(read) = poll_some(r, cx, &mut gathered.memory) else {
                r.body.gathered = Some(gathered);
                return Poll::Pending;
            };
            gathered.armed = false;
            let complete = read?;
            gathered.spill(r, complete)?;
            if complete {
                break;
            }
        }
    }
    let Gathered { memory, file, written, .. } = *gathered;
    let len = written + memory.len() as u64;
    let stored = Rc::new(Stored { memory, file, len });
    r.body.stored = Some(stored.clone());
    Poll::Ready(Ok(stored))
}

/// Whether a part of the body has been read by somebody who has not waited for the rest.
pub fn is_gathered_in_part(r: &Request) -> bool {
    r.body.gathered.is_some()
}

impl Gathered {
    /// Writes what is too much for memory to the file.
    fn spill(&mut self, r: &Request, complete: bool) -> Result<(), BodyError> {
        let conf = &r.conf().core;
        let always_file = conf.client_body_in_file_only.wanted();
        let is_much = self.memory.len() as u64 > *conf.client_body_buffer_size;
        if !is_much && !(complete && (always_file || self.file.is_some())) {
            return Ok(());
        }
        if self.file.is_none() {
            let file = create_file(r)?;
            if !always_file {
                let path = file.path.display();
                log_error!(r, Warn, "a client request body is buffered to a temporary file {path}");
            }
            self.file = Some(file);
        }
        let file = self.file.as_ref().expect("a file was just made");
        if let Err(e) = write_file(&file.fd, &self.memory, self.written) {
            log_error!(r, Crit, "pwrite() \"{}\" failed ({})", file.path.display(), crate::log::os_error(&e));
            return Err(BodyError::Status(500));
        }
        self.written += self.memory.len() as u64;
        self.memory.clear();
        Ok(())
    }
}

/// Puts bytes that become a request's body into a file of their own. None: it cannot be made, which was logged.
pub fn in_file(r: &Request, bytes: &[u8]) -> Option<BodyFile> {
    let file = create_file(r).ok()?;
    log_error!(r, Warn, "a client request body is buffered to a temporary file {}", file.path.display());
    match write_file(&file.fd, bytes, 0) {
        Ok(()) => Some(file),
        Err(e) => {
            log_error!(r, Crit, "pwrite() \"{}\" failed ({})", file.path.display(), crate::log::os_error(&e));
            None
        }
    }
}

fn create_file(r: &Request) -> Result<BodyFile, BodyError> {
    let conf = &r.conf().core;
    match crate::temp::create(&conf.client_body_temp_path) {
        Ok((fd, path)) => {
            let remove = !conf.client_body_in_file_only.kept();
            if remove && !conf.client_body_in_file_only.wanted() {
                // Nobody is told the name: the file goes with its last descriptor.
                let _ = std::fs::remove_file(&path);
            }
            Ok(BodyFile { fd: Rc::new(fd), path, remove })
        }
        Err((path, e)) => {
            log_error!(r, Crit, "open() \"{}\" failed ({})", path.display(), crate::log::os_error(&e));
            Err(BodyError::Status(500))
        }
    }
}

/// Before an answer that does not need the body: throws away what has come of it (`ngx_http_discard_request_body`).
/// The error is a status: what came is no body.
pub fn discard_arrived(r: &mut Request) -> Result<(), u16> {
    if !r.body.is_pending() || r.body.discarded || !r.is_main() {
        return Ok(());
    }
    r.body.discarded = true;
    if let Some(stream) = r.downstream.stream() {
        stream.skip_body();
    }
    let Downstream::Http1(http) = &mut r.downstream else { return Ok(()) };
    r.body.take(http, None).map(|_| ()).map_err(|()| 400)
}

/// After the answer: takes what is left of the body off a connection that is to be kept. False: it cannot be kept.
pub async fn discard(r: &mut Request) -> bool {
    if !r.body.is_pending() {
        return true;
    }
    if !r.flow.expect_tested && r.head.headers.find(super::headers::KnownHeader::Expect).is_some() {
        // It was never told to send the body, and may not.
        return false;
    }
    r.body.discarded = true;
    let timeout = *r.conf().core.lingering_timeout;
    let start = r.body.received;
    loop {
        let Downstream::Http1(http) = &mut r.downstream else { return false };
        match r.body.take(http, None) {
            Ok(true) => return true,
            Ok(false) if r.body.received - start > DISCARD_AT_MOST => return false,
            Ok(false) => {}
            Err(()) => return false,
        }
        // The answer goes out first: the client may be waiting for it before it sends on.
        if super::flow::flush_rest(r).await.is_err() {
            return false;
        }
        let Downstream::Http1(http) = &mut r.downstream else { return false };
        http.incoming.timer.set(timeout);
        if !matches!(http.fill(&r.client).await, Filled::Read(Ok(n)) if n > 0) {
            return false;
        }
    }
}
