//! Reads one request head. From: bytes from a connection. To: choice of the server, checks of header values.
//!
//! The parser is fed the same buffer again as it grows. It never looks at a byte twice and allocates nothing: header
//! lines go into the head's `Vec`, which the next request on the connection uses again.

use super::field::{HeaderLine, InvalidLine, Line, LineReader, LineRules};
use super::known::KnownHeader;
use super::request_line::RequestLine;
use super::{Parsed, Version};
use crate::span::{MAX_BUFFER, Span};

/// What the configuration of the server has to say about heads.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// `ignore_invalid_headers`: header lines with unusual bytes in the name are dropped; else they are kept.
    pub ignore_invalid_headers: bool,
    /// `underscores_in_headers`: underscores are usual bytes of a name.
    pub underscores_in_headers: bool,
    /// `max_headers`: how many header lines a head may have.
    pub max_headers: usize,
    /// Stop once with [`Parsed::Host`] when the host is known, as these rules belong to a server and the host chooses it.
    pub pause_at_host: bool,
}

impl Default for Rules {
    /// nginx's defaults.
    fn default() -> Self {
        Self { ignore_invalid_headers: true, underscores_in_headers: false, max_headers: 1000, pause_at_host: false }
    }
}

/// Methods that nginx knows by name; the name of any other stands in [`RequestHead::method`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the methods")]
pub enum Method {
    #[default]
    Other,
    Get,
    Head,
    Post,
    Put,
    Delete,
    Mkcol,
    Copy,
    Move,
    Options,
    Propfind,
    Proppatch,
    Lock,
    Unlock,
    Patch,
    Trace,
    Connect,
}

impl Method {
    /// The method called `name`; methods are case-sensitive.
    #[inline]
    pub fn of(name: &[u8]) -> Self {
        match name {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"MKCOL" => Self::Mkcol,
            b"COPY" => Self::Copy,
            b"MOVE" => Self::Move,
            b"OPTIONS" => Self::Options,
            b"PROPFIND" => Self::Propfind,
            b"PROPPATCH" => Self::Proppatch,
            b"LOCK" => Self::Lock,
            b"UNLOCK" => Self::Unlock,
            b"PATCH" => Self::Patch,
            b"TRACE" => Self::Trace,
            b"CONNECT" => Self::Connect,
            _ => Self::Other,
        }
    }
}

/// A request head as found in the buffer; all spans point there. Use it again for the next request: it keeps its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHead {
    /// The method as sent.
    pub method: Span,
    /// The method, if nginx knows it.
    pub method_id: Method,
    /// The request line without its line end (`$request`).
    pub line: Span,
    /// Path and query as sent, without scheme and host (`$request_uri`). After `http://host` and for CONNECT it is a
    /// `/` borrowed from elsewhere in the line; after `http://host?args` it begins with the `?`.
    pub target: Span,
    /// Scheme of an absolute target, without the colon.
    pub scheme: Option<Span>,
    /// Host of an absolute target or of CONNECT, with its port. Not yet checked: see [`super::values::validate_host`].
    pub absolute_host: Option<Span>,
    /// The path. Only meaningful if not [`Self::needs_normalizing`].
    pub path: Span,
    /// What follows the `?`, perhaps nothing. Only meaningful if not [`Self::needs_normalizing`].
    pub args: Option<Span>,
    /// What follows the last dot of the last path segment. Only meaningful if not [`Self::needs_normalizing`].
    pub exten: Option<Span>,
    /// The target has `//`, a segment that begins with a dot, or a `#`.
    pub complex: bool,
    /// The path has a `%`.
    pub quoted: bool,
    /// The path has a `+`.
    pub plus: bool,
    /// `?` stands directly after the host.
    pub empty_path: bool,
    /// The version; HTTP/0.9 has no header lines.
    pub version: Version,
    /// The version as sent (`$server_protocol`), trailing spaces included; none with HTTP/0.9.
    pub protocol: Option<Span>,
    /// The header lines, in order.
    pub headers: Vec<HeaderLine>,
    /// The lines that were dropped for an unusual name, without line ends, for the log
    /// (`client sent invalid header line: "..."`).
    pub ignored: Vec<Span>,
}

impl RequestHead {
    /// Whether path, args and extension have to be made by [`super::target::normalize`] from the target.
    #[inline]
    pub fn needs_normalizing(&self) -> bool {
        self.complex || self.quoted || self.empty_path
    }

    /// The first header line that is `known`.
    pub fn header(&self, known: KnownHeader) -> Option<&HeaderLine> {
        self.headers.iter().find(|line| line.known == known)
    }

    /// Empties it in place: the room of its lists is kept. Names every field, so that none is forgotten.
    pub fn clear(&mut self) {
        let Self {
            method,
            method_id,
            line,
            target,
            scheme,
            absolute_host,
            path,
            args,
            exten,
            complex,
            quoted,
            plus,
            empty_path,
            version,
            protocol,
            headers,
            ignored,
        } = self;
        for span in [method, line, target, path] {
            *span = Span::default();
        }
        for part in [scheme, absolute_host, args, exten, protocol] {
            *part = None;
        }
        for flag in [complex, quoted, plus, empty_path] {
            *flag = false;
        }
        (*method_id, *version) = (Method::default(), Version::default());
        headers.clear();
        ignored.clear();
    }
}

/// Why a head is refused. The client's fault in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// The method has a byte that may not stand there. Also what TLS on a plain port looks like.
    InvalidMethod,
    /// The request line is malformed.
    InvalidRequest,
    /// The major version is above 1.
    InvalidVersion,
    /// A request without a version may only be a GET.
    InvalidMethodHttp09,
    /// A header line is malformed.
    InvalidHeaderLine(InvalidLine),
    /// More header lines than `max_headers`.
    TooManyHeaders,
}

impl RequestError {
    /// The status to answer with. 494 is nginx's own, for `error_page`; clients are shown 400.
    pub fn status(self) -> u16 {
        match self {
            Self::InvalidVersion => 505,
            Self::TooManyHeaders => 494,
            _ => 400,
        }
    }

    /// Appends nginx's log message, without `while reading client request ...`. `buf` is the buffer that was parsed.
    pub fn log(self, buf: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(match self {
            Self::InvalidMethod => b"client sent invalid method",
            Self::InvalidRequest => b"client sent invalid request",
            Self::InvalidVersion => b"client sent invalid version",
            Self::InvalidMethodHttp09 => b"client sent invalid method in HTTP/0.9 request",
            Self::TooManyHeaders => b"client sent too many header lines",
            Self::InvalidHeaderLine(_) => b"client sent invalid header line: ",
        });
        if let Self::InvalidHeaderLine(invalid) = self {
            invalid.quote(buf, out);
        }
    }
}

/// Reads one request head; make a new one for each request.
#[derive(Clone, Debug, Default)]
pub struct RequestParser {
    stage: Stage,
    paused: bool,
    line: RequestLine,
    lines: LineReader,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Fresh,
    Line,
    Headers,
}

impl RequestParser {
    /// Reads on. `buf` begins with the same bytes on every call, `head` is the same until the head is complete.
    ///
    /// # Errors
    /// See [`RequestError`]; an error is found at the first byte that makes it certain. Do not call again after one.
    ///
    /// # Panics
    /// If `buf` is longer than [`MAX_BUFFER`].
    pub fn parse(&mut self, buf: &[u8], rules: &Rules, head: &mut RequestHead) -> Result<Parsed, RequestError> {
        assert!(buf.len() <= MAX_BUFFER, "the buffer of a head is limited by large_client_header_buffers");
        if self.stage == Stage::Fresh {
            head.clear();
            self.stage = Stage::Line;
        }
        if self.stage == Stage::Line {
            if !self.line.read(buf, head)? {
                return Ok(Parsed::Partial);
            }
            if head.version < Version::HTTP10 {
                return Ok(Parsed::Complete { len: self.line.position() });
            }
            self.stage = Stage::Headers;
            self.lines = LineReader::at(self.line.position());
            if head.absolute_host.is_some() && self.pauses(rules) {
                return Ok(Parsed::Host);
            }
        }
        self.headers(buf, rules, head)
    }

    fn headers(&mut self, buf: &[u8], rules: &Rules, head: &mut RequestHead) -> Result<Parsed, RequestError> {
        let line_rules = LineRules { underscores: rules.underscores_in_headers, skip_status_lines: false };
        loop {
            match self.lines.next(buf, line_rules) {
                Line::Partial => return Ok(Parsed::Partial),
                Line::End => return Ok(Parsed::Complete { len: self.lines.position() }),
                Line::Invalid(invalid) => return Err(RequestError::InvalidHeaderLine(invalid)),
                Line::Field { field, odd: true } if rules.ignore_invalid_headers => {
                    head.ignored.push(Span { start: field.name.start, end: field.value.end });
                }
                Line::Field { field, .. } => {
                    if head.headers.len() >= rules.max_headers {
                        return Err(RequestError::TooManyHeaders);
                    }
                    head.headers.push(field);
                    if field.known == KnownHeader::Host && self.pauses(rules) {
                        return Ok(Parsed::Host);
                    }
                }
            }
        }
    }

    fn pauses(&mut self, rules: &Rules) -> bool {
        rules.pause_at_host && !std::mem::replace(&mut self.paused, true)
    }

    /// Whether the request line is complete: a head that is too long from here on is 494, before it is 414.
    pub fn is_line_complete(&self) -> bool {
        self.stage == Stage::Headers
    }

    /// Offset where the line that is being read began. With the length of the buffer it tells how long the line is, for
    /// `large_client_header_buffers`.
    pub fn line_start(&self) -> usize {
        if self.is_line_complete() { self.lines.line_start() } else { self.line.start() }
    }

    /// Bytes at the start of the buffer that are empty lines, while nothing else has come. They may be dropped from the
    /// buffer, with a new parser for the rest.
    pub fn empty_lines(&self) -> usize {
        if !self.is_line_complete() && self.line.is_before_start() { self.line.position() } else { 0 }
    }
}
