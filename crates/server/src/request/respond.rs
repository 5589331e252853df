//! Sends an answer: head through the header filters, body through the body filters, both into the session's queue.
//! Nothing waits here: `flow` does.

use super::filter;
use super::headers::KnownHeader as K;
use super::pending::Pending;
use super::phases::Verdict;
pub use super::steps::{Filtered, HeaderFilter};
use super::{Request, Text};
use crate::config::complex::Complex;
use crate::connection::slow::TooSlow;
use crate::connection::{Downstream, http1, http2, http3};
use crate::modules;
use crate::modules::core::ServerTokens;
use crate::request::chunk::Chunk;
use runtime::clock;
use std::io;

/// Why a body filter ends an answer whose head is held, or has not left yet: this is answered instead.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The status.
    pub status: u16,
    /// Where the client is sent.
    pub location: Option<Box<[u8]>>,
}

/// A body filter cannot make its part of the answer, and has logged why: the client is to get 500 as long as it has nothing of it.
pub fn refused(r: &mut Request) -> io::Error {
    r.take_fault();
    io::Error::other(Refused { status: 500, location: None })
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "refused with status {}", self.status)
    }
}

impl std::error::Error for Refused {}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> io::Error {
        io::Error::other(refused)
    }
}

/// Whether a text would end the line of a header that it stands in, or the whole for some who read it (RFC 9110 section 5.5).
pub fn ends_line(text: &[u8]) -> bool {
    /// No byte of them is below this: a word of those, less this of each, borrows nothing.
    const ABOVE: u64 = u64::from_ne_bytes([b'\r' + 1; 8]);
    const HIGHEST: u64 = u64::from_ne_bytes([0x80; 8]);
    let has_control = |word: &[u8; 8]| {
        let word = u64::from_ne_bytes(*word);
        word.wrapping_sub(ABOVE) & !word & HIGHEST != 0
    };
    // Most values are so short that setting up a search for vectors of them takes longer than the look.
    let may_end = match text.last_chunk() {
        Some(last) => text.as_chunks().0.iter().chain([last]).any(has_control),
        None => true,
    };
    may_end && text.iter().any(|b| matches!(b, b'\r' | b'\n' | 0))
}

/// The header that says how urgent an answer is.
const PRIORITY: &[u8] = b"priority";

/// `Server` of answers, by `server_tokens`.
pub const SERVER: &str = "ironweir";
/// `Server` with the version.
pub const SERVER_VERSION: &str = concat!("ironweir/", env!("CARGO_PKG_VERSION"));

impl Request {
    /// Sends the head. On `Err` the verdict is what the handler has to return.
    pub fn send_header(&mut self) -> Result<(), Verdict> {
        if self.answer.header_sent {
            return Ok(());
        }
        if self.flow.error_status != 0 {
            self.answer.headers.status = self.flow.error_status;
            self.answer.headers.status_line = None;
        }
        let snapshot = self.snapshot.clone();
        for filter in &snapshot.location(self.location).participants.header_filters {
            match filter(self) {
                Filtered::Next => {}
                Filtered::Replace(status) => return Err(super::finish::replace(self, status)),
                Filtered::Refuse(status) => {
                    self.answer.body_filters.clear();
                    self.answer.in_memory = false;
                    return Err(Verdict::Status(status));
                }
                Filtered::Instead(verdict) => return Err(verdict),
                Filtered::Broken => return Err(Verdict::Broken),
            }
        }
        if self.has_fault() || (self.is_main() && self.unsendable().is_some()) {
            self.refuse_head()?;
        }
        if self.head.purpose == super::Purpose::WebSocket && (200..300).contains(&self.answer.headers.status) {
            self.refuse_protocol()?;
        }
        self.answer.header_sent = true;
        self.final_head();
        Ok(())
    }

    /// The client would take the answer for the beginning of the WebSocket that it asked for in this stream (RFC 8441 section 5): the
    /// location does not speak it (RFC 9220 section 3).
    fn refuse_protocol(&mut self) -> Result<(), Verdict> {
        const NOT_IMPLEMENTED: u16 = 501;
        if !self.is_main() {
            return Ok(());
        }
        crate::log_error!(self, Info, "client asked for a WebSocket where none is spoken");
        if self.may_refuse() {
            return Err(super::finish::replace(self, NOT_IMPLEMENTED));
        }
        (self.answer.headers.status, self.answer.headers.status_line) = (NOT_IMPLEMENTED, None);
        Ok(())
    }

    /// The first part of the head that would end its own line, or the head: no variable may carry CR, LF or NUL there, whatever
    /// decoded it. Texts of the program have none.
    fn unsendable(&self) -> Option<Text> {
        let bad = |text: Text| matches!(text, Text::Own(span) if ends_line(self.arena.span(span)));
        let h = &self.answer.headers;
        if [h.content_type, h.charset].into_iter().flatten().any(bad) {
            return Some(Text::from("Content-Type"));
        }
        h.lines.iter().find(|l| bad(l.value) || bad(l.name)).map(|l| l.name)
    }

    /// A head that is not to be sent: the answer is 500 instead. `Ok` if even that has such headers (`add_header ... always`):
    /// then it goes without them.
    fn refuse_head(&mut self) -> Result<(), Verdict> {
        self.take_fault();
        if let Some(name) = self.unsendable() {
            let name = String::from_utf8_lossy(self.get(name)).into_owned();
            crate::log_error!(self, Error, "header \"{name}\" is not sent: there is CR, LF or NUL in its value");
        }
        // Who asked for a subrequest sees its status.
        if !self.is_main() || self.may_refuse() {
            return Err(super::finish::replace(self, 500));
        }
        let (arena, h) = (&self.arena, &mut self.answer.headers);
        let good = |text: Text| !ends_line(arena.get(text));
        h.lines.retain(|l| good(l.name) && good(l.value));
        h.content_type = h.content_type.filter(|t| good(*t));
        h.charset = h.charset.filter(|t| good(*t));
        Ok(())
    }

    /// What the head of an answer implies, then its bytes (`ngx_http_chunked_filter`, `ngx_http_header_filter`).
    fn final_head(&mut self) {
        let h = &mut self.answer.headers;
        // A head that is held may say what only the body tells (`image_filter`).
        if self.head.method == super::Method::Head && !self.answer.head_held {
            self.answer.header_only = true;
        }
        if h.last_modified.is_some() && !matches!(h.status, 200 | 206 | 304) {
            h.last_modified = None;
        }
        match h.status {
            204 => {
                self.answer.header_only = true;
                // An upstream's stays, as with nginx.
                if h.status_line.is_none() {
                    h.content_type = None;
                }
                h.content_length = None;
                h.last_modified = None;
            }
            // What an upstream says of the answer that the client has is passed on; ours says nothing (`not_modified`).
            304 => self.answer.header_only = true,
            _ => {}
        }
        if self.answer.header_only {
            // No body comes by that could let it go.
            self.answer.head_held = false;
        }
        if self.is_main() && !self.answer.head_held {
            self.write_head();
        }
    }

    /// For header filters: the head is ready, but the session does not get it before [`Request::release_head`]. Until then a body
    /// filter may end the answer with [`Refused`], and must keep all of the body to itself. How much that may be is its business.
    pub fn hold_head(&mut self) {
        debug_assert!(self.is_main(), "the head of a subrequest goes nowhere");
        self.answer.head_held = true;
    }

    /// Lets a head go that is held.
    pub fn release_head(&mut self) {
        if std::mem::take(&mut self.answer.head_held) && self.answer.header_sent {
            self.answer.header_only |= self.head.method == super::Method::Head;
            self.write_head();
        }
    }

    /// What a body filter has refused is as if it had never been begun. Gives the verdict that answers in its place.
    pub fn instead(&mut self, refused: Refused) -> Verdict {
        if self.answer.header_sent && !self.answer.head_held && !self.take_head_back() {
            // Its head is out already.
            self.flow.keepalive = false;
            return Verdict::Broken;
        }
        (self.answer.header_sent, self.answer.head_held, self.answer.header_only) = (false, false, false);
        (self.answer.done, self.answer.output_begun) = (false, false);
        (self.answer.pending, self.answer.deferred, self.ctx.slice) = (None, None, None);
        self.answer.allow_ranges = false;
        let verdict = super::finish::replace(self, refused.status);
        if let Some(to) = refused.location {
            let to = self.text(&to);
            self.answer.headers.set(K::Location, "Location", to);
        }
        verdict
    }

    /// Takes the head of an answer back of which the client has nothing yet. Heads of HTTP/2 and 3 are part of their connection's
    /// state as soon as they are written, and stay.
    fn take_head_back(&mut self) -> bool {
        if !self.is_main() || !self.may_refuse() {
            return false;
        }
        match &mut self.downstream {
            Downstream::Http1(http) => http.output.take_back(http.answer_start),
            _ => false,
        }
    }

    fn write_head(&mut self) {
        let token = match *self.conf().core.server_tokens {
            ServerTokens::On | ServerTokens::Build => SERVER_VERSION.as_bytes(),
            ServerTokens::Off => SERVER.as_bytes(),
        };
        match self.downstream {
            Downstream::Http1(_) => self.http1_head(token),
            Downstream::Http2(_) => {
                self.absolute_location();
                self.refine_priority();
                http2::write_head(self, token);
            }
            Downstream::Http3(_) => {
                self.absolute_location();
                self.refine_priority();
                http3::write_head(self, token);
            }
            Downstream::Sub(_) | Downstream::Held(_) | Downstream::None => {}
        }
    }

    /// Who made the answer knows best how urgent it is (RFC 9218 section 8).
    fn refine_priority(&mut self) {
        let is_it = |name: &[u8]| name.len() == PRIORITY.len() && name.eq_ignore_ascii_case(PRIORITY);
        let line = self.answer.headers.lines.iter().find(|l| is_it(self.arena.get(l.name)));
        if let (Some(line), Some(stream)) = (line, self.downstream.stream()) {
            stream.refine_priority(self.arena.get(line.value));
        }
    }

    fn http1_head(&mut self, token: &'static [u8]) {
        if self.head.version < super::Version::HTTP10 {
            // HTTP/0.9 has no head.
            self.flow.keepalive = false;
            if let Downstream::Http1(http) = &mut self.downstream {
                http.answer_start = http.output.queued;
                http.header_size = 0;
            }
            return;
        }
        // RFC 9110 section 9.3.6: what follows a 2xx to CONNECT is no body.
        let tunnels = self.head.method == super::Method::Connect && (200..300).contains(&self.answer.headers.status);
        let bodiless = matches!(self.answer.headers.status, 304 | 204) || self.answer.headers.status < 200 || tunnels;
        let mut chunked = false;
        let h = &self.answer.headers;
        if (h.content_length.is_none() || h.expect_trailers) && !bodiless && self.head.method != super::Method::Head {
            chunked = http1::may_chunk(self);
            if chunked {
                self.answer.headers.content_length = None;
            } else if self.answer.headers.content_length.is_none() {
                self.flow.keepalive = false;
            }
        }
        self.absolute_location();
        let Downstream::Http1(mut http) = std::mem::take(&mut self.downstream) else { unreachable!("asked above") };
        http.chunked = chunked;
        http.rate_start_ms = clock::monotonic_ms();
        http1::write_head(self, &mut http, token);
        self.downstream = Downstream::Http1(http);
    }

    /// `absolute_redirect`, `server_name_in_redirect`, `port_in_redirect`.
    fn absolute_location(&mut self) {
        let Some(location) = self.answer.headers.find(K::Location) else { return };
        let snapshot = self.snapshot.clone();
        let conf = &snapshot.location(self.location).conf.core;
        if !*conf.absolute_redirect || self.get(location).first() != Some(&b'/') {
            return;
        }
        let local = crate::worker::local_address(&self.client);
        let (scheme, usual_port) =
            if crate::modules::ssl::is_encrypted(self) { ("https://", 443) } else { ("http://", 80) };
        let mut url = scheme.as_bytes().to_vec();
        if *conf.server_name_in_redirect {
            url.extend_from_slice(&self.server().name);
        } else if let Some(host) = self.head.headers.host {
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
        self.answer.headers.set(K::Location, "Location", url);
    }

    /// Sends a piece of the body through the filters. `last` ends the answer.
    pub fn send_body(&mut self, chunk: Chunk<'_>, last: bool) -> Result<(), Verdict> {
        if self.answer.done {
            return Ok(());
        }
        if last {
            self.answer.done = true;
        }
        if self.answer.header_only {
            return Ok(());
        }
        self.answer.output_begun |= !chunk.is_empty();
        let now = match chunk {
            Chunk::File { len, .. } if last && self.wants_bytes() && len > crate::request::chunk::PIECE => {
                self.answer.pending = Some(Box::new(Pending::rest(chunk.cut(crate::request::chunk::PIECE, u64::MAX))));
                chunk.cut(0, crate::request::chunk::PIECE)
            }
            whole => whole,
        };
        let last = last && self.answer.pending.is_none();
        filter::run(self, now, last).map_err(|e| self.broken(&e))?;
        if self.answer.header_sent && self.take_fault() {
            if self.answer.head_held {
                self.answer.refused = Some(Box::new(Refused { status: 500, location: None }));
                return Err(Verdict::Broken);
            }
            // A part of the body could not be made: the client is not to take it for the whole.
            self.flow.keepalive = false;
            self.flow.aborted = true;
            return Err(Verdict::Broken);
        }
        Ok(())
    }

    /// Whether filters may need the bytes of the body: its own, or those behind the answer that it is a part of.
    pub fn wants_bytes(&self) -> bool {
        self.answer.in_memory || !self.answer.tail.is_empty()
    }

    /// The answer is no longer the file byte for byte: `"x"` becomes `W/"x"` (`ngx_http_weak_etag`).
    pub fn weaken_etag(&mut self) {
        let Some(etag) = self.answer.headers.find(K::Etag) else { return };
        match self.get(etag) {
            [b'W', b'/', _, ..] => {}
            [b'"', ..] => {
                let weak = [b"W/", self.get(etag)].concat();
                let weak = self.text(&weak);
                self.answer.headers.set(K::Etag, "ETag", weak);
            }
            _ => self.answer.headers.remove(K::Etag),
        }
    }

    /// Notes why nothing more can be sent.
    pub fn broken(&mut self, error: &io::Error) -> Verdict {
        if let Some(refused) = error.get_ref().and_then(|e| e.downcast_ref::<Refused>()) {
            // `phases::conclude` answers.
            self.answer.refused = Some(Box::new(refused.clone()));
            return Verdict::Broken;
        }
        if let Some(slow) = error.get_ref().and_then(|e| e.downcast_ref::<TooSlow>()) {
            crate::log_error!(self, Info, "{slow}");
            // What the kernel still has for it is not to stay there as long as it likes.
            if let Downstream::Http1(http) = &self.downstream {
                http1::reset_on_close(&http.incoming.socket);
            }
        } else if error.kind() == io::ErrorKind::UnexpectedEof {
            crate::log_error!(self, Alert, "{error}");
        } else if matches!(error.kind(), io::ErrorKind::FileTooLarge | io::ErrorKind::InvalidData) {
            crate::log_error!(self, Error, "{error}");
        } else if error.kind() == io::ErrorKind::TimedOut {
            crate::log_error!(self, Info, "client timed out (110: Connection timed out)");
        } else if error.kind() == io::ErrorKind::QuotaExceeded {
            crate::log_error!(self, Info, "client is too slow, its connection makes room for another");
        } else if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) {
            let text = crate::log::os_error(error);
            crate::log_error!(self, Info, "client prematurely closed connection ({text})");
        } else {
            crate::log_error!(self, Info, "writev() failed ({})", crate::log::os_error(error));
        }
        self.flow.aborted = true;
        Verdict::Broken
    }

    /// Where filtered pieces go.
    pub(crate) fn queue(&mut self, chunk: Chunk<'_>, last: bool) -> io::Result<()> {
        if !self.answer.tail.is_empty() {
            return filter::run_tail(self, chunk);
        }
        match &mut self.downstream {
            // An include's end is not the answer's.
            Downstream::Http1(_) => http1::queue(self, chunk, last && self.flow.depth == 0),
            Downstream::Http2(_) => http2::queue(self, chunk, last && self.flow.depth == 0),
            Downstream::Http3(_) => http3::queue(self, chunk, last && self.flow.depth == 0),
            Downstream::Sub(_) => super::subrequest::queue(self, chunk),
            Downstream::Held(_) | Downstream::None => Ok(()),
        }
    }

    /// The answer's body is made anew, so its length is not known.
    pub fn clear_content_length(&mut self) {
        self.answer.headers.content_length = None;
        self.answer.headers.remove(K::ContentLength);
    }

    /// There are no parts of it.
    pub fn clear_accept_ranges(&mut self) {
        self.answer.allow_ranges = false;
        self.answer.headers.remove(K::AcceptRanges);
    }

    /// What an answer made anew is identified by: nothing, unless its last change is that of its parts.
    pub fn clear_validators(&mut self, keep_last_modified: bool) {
        if keep_last_modified {
            return self.weaken_etag();
        }
        self.answer.headers.last_modified = None;
        self.answer.headers.remove(K::LastModified);
        self.answer.headers.remove(K::Etag);
    }

    /// Whether nobody will see the answer's body: subrequests that ask for a status.
    pub fn is_body_unwanted(&self) -> bool {
        matches!(&self.downstream, Downstream::Sub(s) if s.mode == super::subrequest::Mode::Discard)
    }

    /// Bytes that wait for the client.
    pub fn unsent_bytes(&self) -> u64 {
        match &self.downstream {
            Downstream::Http1(http) => http.output.waiting(),
            Downstream::Sub(sub) => sub.aside.as_ref().map_or(0, |aside| aside.waiting()),
            other => other.stream().map_or(0, |stream| stream.waiting()),
        }
    }

    /// A whole answer from memory: `return`, error pages, status pages.
    pub fn respond(&mut self, status: u16, body: &[u8]) -> Verdict {
        self.answer.headers.status = status;
        self.answer.headers.content_length = Some(body.len() as u64);
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
            self.answer.headers.set(K::Location, "Location", to);
            return Verdict::Status(status);
        }
        if self.flow.error_status == 0 {
            // The text may speak of it.
            self.answer.headers.status = status;
        }
        match kind {
            Some(kind) => self.answer.headers.content_type = Some(kind),
            None => modules::root::set_content_type(self),
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
        match &self.downstream {
            Downstream::Http1(h) if self.answer.header_sent && !self.answer.head_held => {
                h.output.queued - h.answer_start - self.unsent(h)
            }
            other => other.stream().map_or(0, |stream| stream.sent().0),
        }
    }

    /// Without the head: `$body_bytes_sent`.
    pub fn body_bytes_sent(&self) -> u64 {
        match &self.downstream {
            Downstream::Http1(h) => self.bytes_sent().saturating_sub(h.header_size.into()),
            Downstream::Sub(s) => s.length,
            other => other.stream().map_or(0, |stream| {
                let (all, head) = stream.sent();
                all - head
            }),
        }
    }

    fn unsent(&self, http: &http1::Http1) -> u64 {
        if self.flow.aborted { http.output.waiting().min(http.output.queued - http.answer_start) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::ends_line;

    #[test]
    fn what_ends_a_line_is_found_wherever_it_stands() {
        for len in 0..40 {
            let plain: Vec<u8> = b"a\t \x0e\xff\x80~Z".iter().copied().cycle().take(len).collect();
            assert!(!ends_line(&plain), "{len}");
            for at in 0..len {
                for byte in *b"\r\n\0" {
                    let mut text = plain.clone();
                    text[at] = byte;
                    assert!(ends_line(&text), "{byte} at {at} of {len}");
                }
            }
        }
    }
}
