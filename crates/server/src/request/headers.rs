//! The headers of a request and of its answer, in the order and case in which they came or were set.

use super::arena::{Arena, Span, Text};
pub use wire::http1::request::RequestHead;
pub use wire::http1::{field::HeaderLine, known::KnownHeader};

/// The request's headers and what the head parser found in them.
#[derive(Debug, Default)]
pub struct HeadersIn {
    /// The head as the parser found it; its spans are offsets into the arena.
    pub head: RequestHead,
    /// The host, lower case and without port: `$host` before it falls back to the server's name.
    pub host: Option<Text>,
    /// The announced length of the body.
    pub content_length: Option<u64>,
    /// The body is chunked.
    pub chunked: bool,
    /// `Connection: close`
    pub connection_close: bool,
    /// `Connection: keep-alive`
    pub connection_keep_alive: bool,
}

/// What a client calls itself, as far as `keepalive_disable`, `gzip_disable`, `msie_padding` and `msie_refresh` ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Browser {
    /// Internet Explorer.
    pub msie: bool,
    /// Internet Explorer 6 or older, before its service pack 2.
    pub msie6: bool,
    /// Safari on a Mac.
    pub safari: bool,
}

impl Browser {
    fn of(agent: &[u8]) -> Browser {
        let has = |text: &[u8]| memchr::memmem::find(agent, text).is_some();
        let version = memchr::memmem::find(agent, b"MSIE ").map(|at| &agent[at + 5..]);
        if let Some(version) = version.filter(|rest| rest.len() > 2 && !has(b"Opera")) {
            let is_old = match version[0] {
                b'4' | b'5' => true,
                b'6' => memchr::memmem::find(version, b"SV1").is_none(),
                _ => false,
            };
            return Browser { msie: true, msie6: version[1] == b'.' && is_old, safari: false };
        }
        Browser { safari: has(b"Safari/") && has(b"Mac OS X") && !has(b"Chrome"), ..Browser::default() }
    }
}

impl HeadersIn {
    /// Empties it, keeping the buffer.
    pub fn clear(&mut self) {
        let HeadersIn { head, host, content_length, chunked, connection_close, connection_keep_alive } = self;
        head.clear();
        (*host, *content_length) = (None, None);
        (*chunked, *connection_close, *connection_keep_alive) = (false, false, false);
    }

    /// The first header of a kind.
    pub fn find(&self, known: KnownHeader) -> Option<Text> {
        self.lines().iter().find(|h| h.known == known).map(|h| Text::Own(h.value))
    }

    /// Which browser it comes from. Looked for in each answer to this: few ask.
    pub fn browser(&self, arena: &Arena) -> Browser {
        let agent = self.lines().iter().find(|h| h.known == KnownHeader::UserAgent);
        agent.map(|line| Browser::of(arena.span(line.value))).unwrap_or_default()
    }

    /// The lines as they came.
    pub fn lines(&self) -> &[HeaderLine] {
        &self.head.headers
    }

    /// All headers with a name.
    pub fn named<'a>(&'a self, arena: &'a Arena, name: &'a [u8]) -> impl Iterator<Item = &'a HeaderLine> {
        self.lines().iter().filter(move |h| arena.span(h.name).eq_ignore_ascii_case(name))
    }
}

/// A header of the answer.
#[derive(Clone, Copy, Debug)]
pub struct HeaderOut {
    /// Its name.
    pub name: Text,
    /// Its value.
    pub value: Text,
    /// What it means to the server.
    pub known: KnownHeader,
}

/// A `Content-Type` with a charset as an upstream wrote it, and what filters see of it.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// All of it.
    whole: Span,
    /// What stands before the charset.
    kind: Span,
    /// The charset, without quotes.
    charset: Span,
    /// What stands behind it.
    rest: Span,
}

/// The answer's head.
#[derive(Debug, Default)]
pub struct HeadersOut {
    /// The status, 0 until there is one.
    pub status: u16,
    /// `502 Bad Gateway` as the upstream wrote it, where it is to be kept.
    pub status_line: Option<Text>,
    /// The length of the body, where known.
    pub content_length: Option<u64>,
    /// The type, without the charset.
    pub content_type: Option<Text>,
    /// The charset that is added to the type.
    pub charset: Option<Text>,
    /// The type as an upstream wrote it, if that says more than these two.
    pub written: Option<Written>,
    /// The charset that an upstream wants the answer to be recoded to: `X-Accel-Charset`.
    pub override_charset: Option<Text>,
    /// Seconds since 1970.
    pub last_modified: Option<i64>,
    /// All other lines.
    pub lines: Vec<HeaderOut>,
    /// Sent after a chunked body.
    pub trailers: Vec<HeaderOut>,
    /// Trailers may follow, so the body is chunked where it can be.
    pub expect_trailers: bool,
}

impl HeadersOut {
    /// Empties it, keeping the buffers.
    pub fn clear(&mut self) {
        let HeadersOut {
            status,
            status_line,
            content_length,
            content_type,
            charset,
            written,
            override_charset,
            last_modified,
            lines,
            trailers,
            expect_trailers,
        } = self;
        lines.clear();
        trailers.clear();
        (*status, *expect_trailers) = (0, false);
        (*content_length, *last_modified, *written) = (None, None, None);
        for text in [status_line, content_type, charset, override_charset] {
            *text = None;
        }
    }

    /// Takes the type that an upstream wrote, which stands in the arena (`ngx_http_upstream_copy_content_type`; with quotes
    /// understood, RFC 9110 section 5.6.6).
    pub fn set_content_type(&mut self, arena: &Arena, value: Text) {
        (self.content_type, self.charset, self.written) = (Some(value), None, None);
        let Text::Own(whole) = value else { return };
        if let Some(found) = wire::http1::values::find_charset(arena.span(whole)) {
            let part = |from: usize, to: usize| Span { start: whole.start + from as u32, end: whole.start + to as u32 };
            let kind = part(0, found.kind_end);
            let charset = part(found.charset.range().start, found.charset.range().end);
            let rest = part(found.end, (whole.end - whole.start) as usize);
            self.written = Some(Written { whole, kind, charset, rest });
            (self.content_type, self.charset) = (Some(kind.into()), Some(charset.into()));
        }
    }

    /// Appends the type with its charset. What nothing has changed is what the upstream wrote, byte for byte.
    pub fn write_content_type(&self, arena: &Arena, out: &mut Vec<u8>) {
        let text = |text: Option<Text>| text.map_or(&b""[..], |t| arena.get(t));
        let (kind, charset) = (text(self.content_type), text(self.charset));
        let written = self.written.as_ref().filter(|w| arena.span(w.kind) == kind);
        match written {
            Some(w) if arena.span(w.charset) == charset => return out.extend_from_slice(arena.span(w.whole)),
            // One that ends with a semicolon has no second one.
            _ if !charset.is_empty() && kind.ends_with(b";") => out.extend_from_slice(&kind[..kind.len() - 1]),
            _ => out.extend_from_slice(kind),
        }
        if !charset.is_empty() {
            out.extend_from_slice(b"; charset=");
            out.extend_from_slice(charset);
        }
        out.extend_from_slice(written.map_or(b"", |w| arena.span(w.rest)));
    }

    /// The first header of a kind.
    pub fn find(&self, known: KnownHeader) -> Option<Text> {
        self.lines.iter().find(|h| h.known == known).map(|h| h.value)
    }

    /// Whether there is a header of a kind.
    pub fn has(&self, known: KnownHeader) -> bool {
        self.find(known).is_some()
    }

    /// Adds a header that the server knows.
    pub fn add(&mut self, known: KnownHeader, name: &'static str, value: impl Into<Text>) {
        self.lines.push(HeaderOut { name: Text::from(name), value: value.into(), known });
    }

    /// Adds any header.
    pub fn push(&mut self, name: Text, value: Text) {
        self.lines.push(HeaderOut { name, value, known: KnownHeader::Other });
    }

    /// Replaces all headers of a kind by one.
    pub fn set(&mut self, known: KnownHeader, name: &'static str, value: impl Into<Text>) {
        self.remove(known);
        self.add(known, name, value);
    }

    /// Takes all headers of a kind away.
    pub fn remove(&mut self, known: KnownHeader) {
        self.lines.retain(|h| h.known != known);
    }
}
