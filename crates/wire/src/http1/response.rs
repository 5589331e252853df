//! Reads one head of an upstream's answer. From: bytes from a peer. To: what the headers mean to the proxy.
//!
//! Resumable like [`super::request`]. The rules are nginx's (`ngx_http_parse_status_line`,
//! `ngx_http_proxy_process_header`): header names may have any visible byte.

use super::field::{HeaderLine, InvalidLine, Line, LineReader, LineRules};
use super::known::KnownHeader;
use super::{Parsed, Version, scan};
use crate::span::{MAX_BUFFER, Span};

/// A response head as found in the buffer; all spans point there. Use it again for the next one: it keeps its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseHead {
    /// The version; [`Version::HTTP09`] if there is no status line and the answer is all body.
    pub version: Version,
    /// The status, 0 to 999; 0 without a status line.
    pub status: u16,
    /// Status and reason, as in `404 Not Found`.
    pub status_line: Span,
    /// The header lines, in order.
    pub headers: Vec<HeaderLine>,
    /// The known headers among them, as [`KnownHeader::bit`]s.
    pub present: u64,
}

impl ResponseHead {
    /// The first header line that is `known`.
    pub fn header(&self, known: KnownHeader) -> Option<&HeaderLine> {
        if self.present & known.bit() == 0 {
            return None;
        }
        self.headers.iter().find(|line| line.known == known)
    }

    /// Adds a header line.
    pub fn push(&mut self, line: HeaderLine) {
        self.present |= line.known.bit();
        self.headers.push(line);
    }

    /// Empties it.
    pub fn clear(&mut self) {
        let mut headers = std::mem::take(&mut self.headers);
        headers.clear();
        *self = Self { headers, ..Self::default() };
    }
}

/// Why an answer is refused (502). The upstream's fault in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseError {
    /// A header line is malformed.
    InvalidHeader(InvalidLine),
    /// 103 is unknown to HTTP/1.0.
    EarlyHintsInHttp10,
}

impl ResponseError {
    /// Appends nginx's log message, without `while reading response header from upstream`.
    pub fn log(self, buf: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::InvalidHeader(invalid) => {
                out.extend_from_slice(b"upstream sent invalid header: ");
                invalid.quote(buf, out);
            }
            Self::EarlyHintsInHttp10 => {
                out.extend_from_slice(b"upstream sent HTTP/1.0 response with early hints");
            }
        }
    }
}

/// Reads one response head; make a new one for each, also after a 1xx.
#[derive(Clone, Debug, Default)]
pub struct ResponseParser {
    stage: Stage,
    /// Without a status line there are header lines, and no body yet.
    is_line_optional: bool,
    line: StatusLine,
    lines: LineReader,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Fresh,
    Line,
    Headers,
}

impl ResponseParser {
    /// For answers that begin with header lines, such as FastCGI's. The head must be empty or new.
    pub fn without_status_line() -> Self {
        Self { stage: Stage::Headers, ..Self::default() }
    }

    /// For answers that may begin with a status line, such as those of SCGI and uwsgi. What is none that holds is passed over as header lines are
    /// read: then the head's status is 0.
    pub fn with_optional_status_line() -> Self {
        Self { is_line_optional: true, ..Self::default() }
    }

    /// Reads on. `buf` begins with the same bytes on every call, `head` is the same until the head is complete.
    ///
    /// An answer without a valid status line is complete at length 0 with [`Version::HTTP09`]: the body begins at
    /// once, and nginx logs `upstream sent no valid HTTP/1.0 header`.
    ///
    /// # Errors
    /// See [`ResponseError`]. Do not call again after one.
    ///
    /// # Panics
    /// If `buf` is longer than [`MAX_BUFFER`].
    pub fn parse(&mut self, buf: &[u8], head: &mut ResponseHead) -> Result<Parsed, ResponseError> {
        assert!(buf.len() <= MAX_BUFFER, "the buffer of a head is limited by proxy_buffer_size");
        if self.stage == Stage::Fresh {
            head.clear();
            self.stage = Stage::Line;
        }
        if self.stage == Stage::Line {
            match self.line.read(buf, head) {
                Ok(false) => return Ok(Parsed::Partial),
                Ok(true) => {}
                Err(NoStatusLine) if self.is_line_optional => {
                    head.clear();
                    *self = Self::without_status_line();
                    return self.parse(buf, head);
                }
                Err(NoStatusLine) => {
                    head.clear();
                    head.version = Version::HTTP09;
                    return Ok(Parsed::Complete { len: 0 });
                }
            }
            if head.version < Version::HTTP11 && head.status == EARLY_HINTS {
                return Err(ResponseError::EarlyHintsInHttp10);
            }
            self.stage = Stage::Headers;
            self.lines = LineReader::at(self.line.position);
        }
        const RULES: LineRules = LineRules { underscores: true, skip_status_lines: true };
        loop {
            match self.lines.next(buf, RULES) {
                Line::Partial => return Ok(Parsed::Partial),
                Line::Field { field, .. } => head.push(field),
                Line::End => return Ok(Parsed::Complete { len: self.lines.position() }),
                Line::Invalid(invalid) => return Err(ResponseError::InvalidHeader(invalid)),
            }
        }
    }
}

const EARLY_HINTS: u16 = 103;

/// The bytes are not a status line.
struct NoStatusLine;

/// ```text
/// Protocol -> MajorFirst -> Major -> MinorFirst -> Minor -> Status -> AfterStatus -> Text -> LineFeed -> Done
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Protocol,
    MajorFirst,
    Major,
    MinorFirst,
    Minor,
    Status,
    AfterStatus,
    Text,
    LineFeed,
    Done,
}

#[derive(Clone, Debug, Default)]
struct StatusLine {
    state: State,
    position: usize,
    digits: u8,
    major: u16,
    minor: u16,
}

/// Protocol name that must precede the version.
const PROTOCOL: &[u8] = b"HTTP/";
/// A number of the version above this may not get a further digit.
const LARGEST_BEFORE_DIGIT: u16 = 99;
/// Digits of a status.
const STATUS_DIGITS: u8 = 3;

/// The usual line, whole in the buffer, behind `HTTP/1.1 `: three digits, a blank, a reason without control characters, CR LF. Gives the offset
/// after it; nothing if the line is in any way different, for [`StatusLine::byte`] to decide.
fn whole_status_line(buf: &[u8], head: &mut ResponseHead) -> Option<usize> {
    const STATUS: usize = 9;
    let [a, b, c, b' '] = buf[STATUS..].first_chunk::<4>()? else { return None };
    let digits = [a, b, c].map(|byte| byte.wrapping_sub(b'0'));
    if digits.iter().any(|digit| *digit > 9) {
        return None;
    }
    let end = scan::control(buf, STATUS + 4);
    let [b'\r', b'\n', ..] = buf.get(end..)? else { return None };
    head.status = digits.iter().fold(0, |status, digit| status * 10 + u16::from(*digit));
    head.status_line = Span::new(STATUS, end);
    Some(end + 2)
}

impl StatusLine {
    /// Reads on. True if the line is complete and stands in `head`.
    fn read(&mut self, buf: &[u8], head: &mut ResponseHead) -> Result<bool, NoStatusLine> {
        if self.position == 0
            && let Some(b"HTTP/1.1 ") = buf.first_chunk::<9>()
        {
            if let Some(next) = whole_status_line(buf, head) {
                (self.state, self.position) = (State::Done, next);
                head.version = Version::HTTP11;
                return Ok(true);
            }
            (self.state, self.major, self.minor, self.position) = (State::Status, 1, 1, 9);
        }
        while self.state != State::Done {
            let Some(&byte) = buf.get(self.position) else { return Ok(false) };
            if self.state == State::Text {
                let stop = memchr::memchr2(b'\r', b'\n', &buf[self.position..]);
                self.position = stop.map_or(buf.len(), |stop| self.position + stop);
                let Some(&byte) = buf.get(self.position) else { return Ok(false) };
                self.end(byte, head);
            } else {
                self.byte(byte, head)?;
            }
            self.position += 1;
        }
        head.version = Version(self.major.saturating_mul(1000).saturating_add(self.minor));
        Ok(true)
    }

    fn byte(&mut self, byte: u8, head: &mut ResponseHead) -> Result<(), NoStatusLine> {
        let digit = u16::from(byte.wrapping_sub(b'0'));
        match self.state {
            State::Protocol if byte == PROTOCOL[self.position] => {
                if self.position + 1 == PROTOCOL.len() {
                    self.state = State::MajorFirst;
                }
            }
            State::MajorFirst if (1..=9).contains(&digit) => {
                self.major = digit;
                self.state = State::Major;
            }
            State::Major if byte == b'.' => self.state = State::MinorFirst,
            State::Major if digit <= 9 && self.major <= LARGEST_BEFORE_DIGIT => self.major = self.major * 10 + digit,
            State::MinorFirst if digit <= 9 => {
                self.minor = digit;
                self.state = State::Minor;
            }
            State::Minor if byte == b' ' => self.state = State::Status,
            State::Minor if digit <= 9 && self.minor <= LARGEST_BEFORE_DIGIT => self.minor = self.minor * 10 + digit,
            State::Status if byte == b' ' => {}
            State::Status if digit <= 9 => self.status_digit(digit, head),
            // IIS may send 403.1 and the like.
            State::AfterStatus if matches!(byte, b' ' | b'.') => self.state = State::Text,
            State::AfterStatus if matches!(byte, b'\r' | b'\n') => self.end(byte, head),
            State::LineFeed if byte == b'\n' => self.state = State::Done,
            _ => return Err(NoStatusLine),
        }
        Ok(())
    }

    fn status_digit(&mut self, digit: u16, head: &mut ResponseHead) {
        head.status = head.status * 10 + digit;
        self.digits += 1;
        if self.digits == STATUS_DIGITS {
            head.status_line = Span::new(self.position - 2, self.position + 1);
            self.state = State::AfterStatus;
        }
    }

    /// At the CR or LF after status and reason.
    fn end(&mut self, byte: u8, head: &mut ResponseHead) {
        head.status_line = Span::new(head.status_line.start as usize, self.position);
        self.state = if byte == b'\n' { State::Done } else { State::LineFeed };
    }
}
