//! Sends an answer: head through the header filters, body through the body filters, both into the session's queue.
//! Nothing waits here but the two `flush` functions.

use super::filter::{self, Chunk};
use super::headers::KnownHeader as K;
use super::phases::Verdict;
use super::{Request, Text};
use crate::config::complex::Complex;
use crate::connection::stream::Stream;
use crate::connection::{Session, http1, http2, http3};
use crate::modules;
use crate::modules::core::ServerTokens;
use crate::worker::clock;
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

/// What a header filter says.
pub enum Filtered {
    /// The next filter.
    Next,
    /// Send this status's page instead (`ngx_http_filter_finalize_request`).
    Replace(u16),
    /// Send this status's page with the head as it is now.
    Refuse(u16),
    /// Nothing can be sent.
    Broken,
}

/// A header filter.
pub type HeaderFilter = fn(&mut Request) -> Filtered;

/// `Server` of answers, by `server_tokens`.
pub const SERVER: &str = "ironweir";
/// `Server` with the version.
pub const SERVER_VERSION: &str = concat!("ironweir/", env!("CARGO_PKG_VERSION"));

impl Request {
    /// Sends the head. On `Err` the verdict is what the handler has to return.
    pub fn send_header(&mut self) -> Result<(), Verdict> {
        if self.header_sent {
            return Ok(());
        }
        if self.error_status != 0 {
            self.headers_out.status = self.error_status;
            self.headers_out.status_line = None;
        }
        for f in modules::HEADER_FILTERS {
            match f(self) {
                Filtered::Next => {}
                Filtered::Replace(status) => return Err(super::finish::replace(self, status)),
                Filtered::Refuse(status) => {
                    self.body_filters.clear();
                    self.in_memory = false;
                    return Err(Verdict::Status(status));
                }
                Filtered::Broken => return Err(Verdict::Broken),
            }
        }
        self.header_sent = true;
        self.final_head();
        Ok(())
    }

    /// What the head of an answer implies, then its bytes (`ngx_http_chunked_filter`, `ngx_http_header_filter`).
    fn final_head(&mut self) {
        let h = &mut self.headers_out;
        if self.method == super::Method::Head {
            self.header_only = true;
        }
        if h.last_modified.is_some() && !matches!(h.status, 200 | 206 | 304) {
            h.last_modified = None;
        }
        match h.status {
            204 => {
                self.header_only = true;
                h.content_type = None;
                h.content_length = None;
                h.last_modified = None;
            }
            304 => {
                self.header_only = true;
                h.content_type = None;
                h.content_length = None;
            }
            _ => {}
        }
        if !self.is_main() {
            return;
        }
        let token = match *self.conf().core.server_tokens {
            ServerTokens::On | ServerTokens::Build => SERVER_VERSION.as_bytes(),
            ServerTokens::Off => SERVER.as_bytes(),
        };
        match self.session {
            Session::Http1(_) => self.http1_head(token),
            Session::Http2(_) => {
                self.absolute_location();
                http2::write_head(self, token);
            }
            Session::Http3(_) => {
                self.absolute_location();
                http3::write_head(self, token);
            }
            Session::Sub(_) | Session::None => {}
        }
    }

    fn http1_head(&mut self, token: &'static [u8]) {
        if self.version < super::Version::HTTP10 {
            // HTTP/0.9 has no head.
            self.keepalive = false;
            if let Session::Http1(http) = &mut self.session {
                http.answer_start = http.output.queued;
                http.header_size = 0;
            }
            return;
        }
        let bodiless = matches!(self.headers_out.status, 304 | 204) || self.headers_out.status < 200;
        let mut chunked = false;
        let h = &self.headers_out;
        if (h.content_length.is_none() || h.expect_trailers) && !bodiless && self.method != super::Method::Head {
            chunked = http1::may_chunk(self);
            if chunked {
                self.headers_out.content_length = None;
            } else if self.headers_out.content_length.is_none() {
                self.keepalive = false;
            }
        }
        self.absolute_location();
        let Session::Http1(mut http) = std::mem::take(&mut self.session) else { unreachable!("asked above") };
        http.chunked = chunked;
        http.rate_start_ms = clock::monotonic_ms();
        http1::write_head(self, &mut http, token);
        self.session = Session::Http1(http);
    }

    /// `absolute_redirect`, `server_name_in_redirect`, `port_in_redirect`.
    fn absolute_location(&mut self) {
        let shot = self.shot.clone();
        let conf = &shot.location(self.location).conf.core;
        let Some(location) = self.headers_out.find(K::Location) else { return };
        if !*conf.absolute_redirect || self.get(location).first() != Some(&b'/') {
            return;
        }
        let local = crate::worker::local_address(&self.client);
        let (scheme, usual_port) =
            if crate::modules::ssl::is_encrypted(self) { ("https://", 443) } else { ("http://", 80) };
        let mut url = scheme.as_bytes().to_vec();
        if *conf.server_name_in_redirect {
            url.extend_from_slice(&self.server().name);
        } else if let Some(host) = self.headers_in.host {
            url.extend_from_slice(self.get(host));
        } else if let crate::connection::Address::Inet(a) = &local {
            match a.ip() {
                std::net::IpAddr::V4(ip) => url.extend_from_slice(ip.to_string().as_bytes()),
                std::net::IpAddr::V6(ip) => url.extend_from_slice(format!("[{ip}]").as_bytes()),
            }
        }
        if let crate::connection::Address::Inet(a) = &local
            && *conf.port_in_redirect
            && a.port() != usual_port
        {
            url.extend_from_slice(format!(":{}", a.port()).as_bytes());
        }
        url.extend_from_slice(self.get(location));
        let url = self.text(&url);
        self.headers_out.set(K::Location, "Location", url);
    }

    /// Sends a piece of the body through the filters. `last` ends the answer.
    pub fn send_body(&mut self, chunk: Chunk<'_>, last: bool) -> Result<(), Verdict> {
        if self.response_done {
            return Ok(());
        }
        if last {
            self.response_done = true;
        }
        if self.header_only {
            return Ok(());
        }
        self.output_begun |= !chunk.is_empty();
        let now = match chunk {
            Chunk::File { file, offset, len } if last && self.in_memory && len > filter::PIECE => {
                let (offset, len) = (offset + filter::PIECE, len - filter::PIECE);
                self.pending = Some(filter::Pending { file: file.clone(), offset, len });
                chunk.cut(0, filter::PIECE)
            }
            whole => whole,
        };
        let last = last && self.pending.is_none();
        filter::run(self, now, last).map_err(|e| self.broken(&e))
    }

    /// The answer is no longer the file byte for byte: `"x"` becomes `W/"x"` (`ngx_http_weak_etag`).
    pub fn weaken_etag(&mut self) {
        let Some(etag) = self.headers_out.find(K::Etag) else { return };
        match self.get(etag) {
            [b'W', b'/', _, ..] => {}
            [b'"', ..] => {
                let weak = [b"W/", self.get(etag)].concat();
                let weak = self.text(&weak);
                self.headers_out.set(K::Etag, "ETag", weak);
            }
            _ => self.headers_out.remove(K::Etag),
        }
    }

    /// Notes why nothing more can be sent.
    pub fn broken(&mut self, error: &io::Error) -> Verdict {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            crate::log_error!(self, Alert, "{error}");
        } else if error.kind() == io::ErrorKind::FileTooLarge {
            crate::log_error!(self, Error, "{error}");
        } else if error.kind() == io::ErrorKind::TimedOut {
            crate::log_error!(self, Info, "client timed out (110: Connection timed out)");
        } else if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) {
            let text = crate::log::os_error(error);
            crate::log_error!(self, Info, "client prematurely closed connection ({text})");
        } else {
            crate::log_error!(self, Info, "writev() failed ({})", crate::log::os_error(error));
        }
        self.aborted = true;
        Verdict::Broken
    }

    /// Where filtered pieces go.
    pub(crate) fn queue(&mut self, chunk: Chunk<'_>, last: bool) -> io::Result<()> {
        if !self.tail.is_empty() {
            return filter::run_tail(self, chunk);
        }
        match &mut self.session {
            // An include's end is not the answer's.
            Session::Http1(_) => http1::queue(self, chunk, last && self.depth == 0),
            Session::Http2(_) => http2::queue(self, chunk, last && self.depth == 0),
            Session::Http3(_) => http3::queue(self, chunk, last && self.depth == 0),
            Session::Sub(_) => super::subrequest::queue(self, chunk),
            Session::None => Ok(()),
        }
    }

    /// The answer's body is made anew, so its length is not known.
    pub fn clear_content_length(&mut self) {
        self.headers_out.content_length = None;
        self.headers_out.remove(K::ContentLength);
    }

    /// There are no parts of it.
    pub fn clear_accept_ranges(&mut self) {
        self.allow_ranges = false;
        self.headers_out.remove(K::AcceptRanges);
    }

    /// What an answer made anew is identified by: nothing, unless its last change is that of its parts.
    pub fn clear_validators(&mut self, keep_last_modified: bool) {
        if keep_last_modified {
            return self.weaken_etag();
        }
        self.headers_out.last_modified = None;
        self.headers_out.remove(K::LastModified);
        self.headers_out.remove(K::Etag);
    }

    /// Whether nobody will see the answer's body: subrequests that ask for a status.
    pub fn is_body_unwanted(&self) -> bool {
        matches!(&self.session, Session::Sub(s) if s.mode == super::subrequest::Mode::Discard)
    }

    /// Bytes that wait for the client.
    pub fn unsent_bytes(&self) -> u64 {
        match &self.session {
            Session::Http1(http) => http.output.waiting(),
            other => other.stream().map_or(0, |stream| stream.waiting()),
        }
    }

    /// A whole answer from memory: `return`, error pages, status pages.
    pub fn respond(&mut self, status: u16, body: &[u8]) -> Verdict {
        self.headers_out.status = status;
        self.headers_out.content_length = Some(body.len() as u64);
        if let Err(v) = self.send_header() {
            return v;
        }
        match self.send_body(Chunk::Bytes(body), true) {
            Ok(()) => Verdict::Answered,
            Err(v) => v,
        }
    }

    /// `return`'s answer: a redirect, or a text with the location's type or `kind` (`ngx_http_send_response`).
    pub fn respond_complex(&mut self, status: u16, kind: Option<Text>, text: &Complex) -> Verdict {
        if let Err(status) = super::body::discard_arrived(self) {
            return Verdict::Status(status);
        }
        if matches!(status, 301 | 302 | 303 | 307 | 308) {
            let to = text.eval(self);
            self.headers_out.set(K::Location, "Location", to);
            return Verdict::Status(status);
        }
        match kind {
            Some(kind) => self.headers_out.content_type = Some(kind),
            None => modules::core::set_content_type(self),
        }
        if let Some(fixed) = text.as_fixed() {
            return self.respond(status, fixed);
        }
        let mut body = std::mem::take(&mut self.scratch);
        body.clear();
        text.write(self, &mut body);
        let verdict = self.respond(status, &body);
        self.scratch = body;
        verdict
    }

    /// Bytes of the answer handed to the session: `$bytes_sent`.
    pub fn bytes_sent(&self) -> u64 {
        match &self.session {
            Session::Http1(h) if self.header_sent => h.output.queued - h.answer_start - self.unsent(h),
            other => other.stream().map_or(0, |stream| stream.sent().0),
        }
    }

    /// Without the head: `$body_bytes_sent`.
    pub fn body_bytes_sent(&self) -> u64 {
        match &self.session {
            Session::Http1(h) => self.bytes_sent().saturating_sub(h.header_size),
            Session::Sub(s) => s.length,
            other => other.stream().map_or(0, |stream| {
                let (all, head) = stream.sent();
                all - head
            }),
        }
    }

    fn unsent(&self, http: &http1::Http1) -> u64 {
        if self.aborted { http.output.waiting().min(http.output.queued - http.answer_start) } else { 0 }
    }
}

/// Waits until what is queued is written, within `limit_rate` and `send_timeout`. For answers in pieces.
pub async fn flush(r: &mut Request) -> Result<(), Verdict> {
    if r.deferred.is_some() {
        Box::pin(super::include::drive(r)).await?;
    }
    flush_now(r).await
}

/// The same without the answer's includes.
pub async fn flush_now(r: &mut Request) -> Result<(), Verdict> {
    if let Session::Sub(_) = r.session {
        return super::subrequest::flush(r).await;
    }
    let result = flush_rest(r).await;
    result.map_err(|_| {
        // Why was logged by `flush_rest`.
        r.aborted = true;
        Verdict::Broken
    })
}

/// The rate in bytes per second that holds for the answer, 0 for none, and how many bytes are free of it.
pub fn rate(r: &mut Request) -> (u64, u64) {
    let shot = r.shot.clone();
    let conf = &shot.location(r.location).conf.core;
    let rate = match r.limit_rate {
        Some(rate) => rate,
        None if conf.limit_rate.is_empty() => return (0, 0),
        None => {
            let rate = modules::core::size_of(r, &conf.limit_rate);
            r.limit_rate = Some(rate);
            rate
        }
    };
    if rate == 0 {
        return (0, 0);
    }
    let after = match r.limit_rate_after {
        Some(after) => after,
        None if conf.limit_rate_after.is_empty() => 0,
        None => {
            let after = modules::core::size_of(r, &conf.limit_rate_after);
            r.limit_rate_after = Some(after);
            after
        }
    };
    (rate, after)
}

/// The queue on its way out while something else goes on: rate and timeout included.
pub struct Flow {
    rate: u64,
    after: u64,
    timeout: Duration,
    rest: Option<crate::worker::timer::Timer>,
    armed: bool,
    /// What was written when the clock began to run.
    seen: u64,
}

fn gone<V>() -> Poll<io::Result<V>> {
    Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
}

impl Flow {
    /// For an answer with this rate.
    pub fn new(r: &Request, rate: u64, after: u64) -> Flow {
        Flow { rate, after, timeout: *r.conf().core.send_timeout, rest: None, armed: false, seen: 0 }
    }

    /// Writes what the kernel and the rate take. Ready when the queue is empty. Error `TimedOut`: `send_timeout` passed
    /// without a byte taken.
    pub fn poll(&mut self, r: &mut Request, cx: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
        let http = match &mut r.session {
            Session::Http1(http) => http,
            other => return other.stream().map_or(Poll::Ready(Ok(())), |stream| self.poll_stream(stream, cx)),
        };
        loop {
            if http.output.is_empty() {
                self.armed = false;
                return Poll::Ready(Ok(()));
            }
            if let Some(rest) = &self.rest {
                std::task::ready!(rest.poll_expired(cx));
                self.rest = None;
            }
            let mut limit = u64::MAX;
            if self.rate > 0 {
                let sent = http.output.written.saturating_sub(http.answer_start);
                let seconds = (clock::monotonic_ms() - http.rate_start_ms) / 1000 + 1;
                let due = self.rate * seconds + self.after;
                if sent >= due {
                    self.pause((sent - due) * 1000 / self.rate + 1);
                    continue;
                }
                limit = due - sent;
            }
            let http1::Http1 { socket, output, timer, .. } = &mut **http;
            let before = output.written;
            match output.poll_write(socket, cx, limit) {
                Poll::Ready(Ok(_)) => self.armed = false,
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending => {
                    if !std::mem::replace(&mut self.armed, true) {
                        timer.set(self.timeout);
                    }
                    std::task::ready!(timer.poll_expired(cx));
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
            let took = output.written - before;
            if self.rate > 0 && !output.is_empty() {
                self.pause((took * 1000 / self.rate).min(1000) + 1);
            }
        }
    }

    /// The same for a stream: what the rate lets out goes as the windows let it.
    fn poll_stream(&mut self, stream: &dyn Stream, cx: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if stream.waiting() == 0 {
                self.armed = false;
                return if stream.is_gone() { gone() } else { Poll::Ready(Ok(())) };
            }
            if let Some(rest) = &self.rest {
                if stream.poll_gone().is_ready() {
                    return gone();
                }
                std::task::ready!(rest.poll_expired(cx));
                self.rest = None;
            }
            let written = stream.written();
            let mut limit = u64::MAX;
            if self.rate > 0 {
                let seconds = (clock::monotonic_ms() - stream.rate_start_ms()) / 1000 + 1;
                let due = self.rate * seconds + self.after;
                if written >= due {
                    self.pause((written - due) * 1000 / self.rate + 1);
                    continue;
                }
                limit = due - written;
            }
            if !self.armed || self.seen != written {
                stream.arm(self.timeout);
                (self.armed, self.seen) = (true, written);
            }
            if let Poll::Ready(done) = stream.poll_write(limit) {
                return Poll::Ready(done);
            }
            std::task::ready!(stream.poll_expired(cx));
            stream.time_out();
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
    }

    fn pause(&mut self, ms: u64) {
        let timer = crate::worker::timer::Timer::new();
        timer.set(Duration::from_millis(ms));
        self.rest = Some(timer);
    }
}

/// Writes the queue. Errors: `TimedOut`, `send_timeout` passed without a byte taken; `ConnectionAborted`, the client has
/// closed while it was waited for (nginx's `ngx_http_test_reading`).
pub async fn flush_rest(r: &mut Request) -> io::Result<()> {
    let (rate, after) = rate(r);
    let mut flow = Flow::new(r, rate, after);
    poll_fn(|cx| match flow.poll(r, cx) {
        Poll::Pending if is_client_gone(r, cx) => {
            crate::log_error!(r, Info, "client prematurely closed connection{}", crate::upstream::client_error(r));
            Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
        }
        Poll::Ready(Err(e)) => {
            r.broken(&e);
            Poll::Ready(Err(e))
        }
        other => other,
    })
    .await
}

fn is_client_gone(r: &mut Request, cx: &mut std::task::Context<'_>) -> bool {
    match &mut r.session {
        Session::Http1(http) => http.socket.poll_closed(cx).is_ready(),
        other => other.stream().is_some_and(|stream| stream.poll_gone().is_ready()),
    }
}

/// Appends a number in decimal.
pub fn write_decimal(mut n: u64, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends `404 Not Found`. Codes without a text of nginx's get the number alone.
pub fn write_status(status: u16, out: &mut Vec<u8>) {
    write_decimal(status as u64, out);
    out.push(b' ');
    out.extend_from_slice(reason(status).as_bytes());
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        206 => "Partial Content",
        301 => "Moved Permanently",
        302 => "Moved Temporarily",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Time-out",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Request Entity Too Large",
        414 => "Request-URI Too Large",
        415 => "Unsupported Media Type",
        416 => "Requested Range Not Satisfiable",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Temporarily Unavailable",
        504 => "Gateway Time-out",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        _ => "",
    }
}
