//! Reads header lines: of requests, of upstream answers and of trailers. Resumable at every byte.
//!
//! The rules are nginx's (`ngx_http_parse_header_line`), which differ from RFC 9112 section 5: a line may end in a bare
//! LF, a name without a colon is a header with an empty value, only spaces (no tabs) are taken off a value, and folded
//! lines are refused.

use super::known::KnownHeader;
use super::{Parsed, scan};
use crate::span::Span;

/// One header line. Both spans point into the buffer that was parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderLine {
    /// The name, in the case it was sent.
    pub name: Span,
    /// The value without surrounding spaces.
    pub value: Span,
    /// Which of the headers the server acts on this is.
    pub known: KnownHeader,
}

/// A line that is no header line: `line` is what nginx quotes of it in the log, the byte at its end is the offender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidLine {
    /// From the start of the line up to the byte that spoiled it.
    pub line: Span,
}

impl InvalidLine {
    /// Appends the line the way nginx quotes it: `"name\x01..."`, quotes included.
    pub fn quote(self, buf: &[u8], out: &mut Vec<u8>) {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let offender = buf.get(self.line.end as usize).copied().unwrap_or(0);
        out.push(b'"');
        out.extend_from_slice(self.line.of(buf));
        out.extend_from_slice(b"\\x");
        out.push(HEX[usize::from(offender >> 4)]);
        out.push(HEX[usize::from(offender & 15)]);
        out.extend_from_slice(b"...\"");
    }
}

/// Reads the header lines of a trailer section, which ends as a head does, with an empty line.
///
/// For what follows [`super::chunked::Event::Trailers`]. Lines are bounded by the caller's buffer.
#[derive(Clone, Debug, Default)]
pub struct TrailerParser {
    lines: LineReader,
}

impl TrailerParser {
    /// Reads on; `buf` begins with the first byte after the last chunk's line, on every call. Found lines are appended
    /// to `fields`.
    ///
    /// # Errors
    /// A line that nginx logs as `upstream sent invalid trailer: ...`.
    pub fn parse(&mut self, buf: &[u8], fields: &mut Vec<HeaderLine>) -> Result<Parsed, InvalidLine> {
        const UPSTREAM: LineRules = LineRules { underscores: true, skip_status_lines: true };
        loop {
            match self.lines.next(buf, UPSTREAM) {
                Line::Partial => return Ok(Parsed::Partial),
                Line::Field { field, .. } => fields.push(field),
                Line::End => return Ok(Parsed::Complete { len: self.lines.position() }),
                Line::Invalid(invalid) => return Err(invalid),
            }
        }
    }
}

/// What differs between the readers of header lines.
#[derive(Clone, Copy)]
pub(super) struct LineRules {
    /// Underscores are as good as hyphens in a name.
    pub(super) underscores: bool,
    /// A further `HTTP/1.1 ...` line among the headers is passed over, as some upstreams send two.
    pub(super) skip_status_lines: bool,
}

/// What [`LineReader::next`] found.
pub(super) enum Line {
    /// The buffer ends within the line.
    Partial,
    /// A header line; `odd` if its name has bytes other than letters, digits and hyphens.
    Field { field: HeaderLine, odd: bool },
    /// The empty line.
    End,
    /// Not a header line.
    Invalid(InvalidLine),
}

/// Reads one header line after the other. Keeps its place, so that no byte is looked at twice, save those of the one
/// line that the quick way gave up on.
///
/// ```text
/// Start -> Name -> BeforeValue -> Value -> LineFeed -> Start
///   |        '--> SkipLine -> Start
///   '-> LastLineFeed -> done
/// ```
#[derive(Clone, Debug, Default)]
pub(super) struct LineReader {
    state: State,
    position: usize,
    start: usize,
    name_end: usize,
    value: Span,
    odd: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Start,
    Name,
    BeforeValue,
    Value,
    LineFeed,
    SkipLine,
    LastLineFeed,
}

impl LineReader {
    /// A reader whose first line begins at offset `position`.
    pub(super) fn at(position: usize) -> Self {
        Self { position, start: position, ..Self::default() }
    }

    /// Offset of the next byte to read.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// Offset of the first byte of the line being read.
    pub(super) fn line_start(&self) -> usize {
        if self.state == State::Start { self.position } else { self.start }
    }

    /// Reads up to the end of one line.
    #[inline]
    pub(super) fn next(&mut self, buf: &[u8], rules: LineRules) -> Line {
        if self.state == State::Start
            && let Some((field, next)) = whole_line(buf, self.position)
        {
            self.position = next;
            return Line::Field { field, odd: false };
        }
        self.step(buf, rules)
    }

    fn step(&mut self, buf: &[u8], rules: LineRules) -> Line {
        while let Some(&byte) = buf.get(self.position) {
            let found = match self.state {
                State::Start => self.first_byte(byte, rules),
                State::Name => self.name_byte(buf, byte, rules),
                State::BeforeValue => self.byte_before_value(buf, byte),
                State::Value => self.value_byte(buf),
                State::LineFeed => self.line_feed(buf, byte),
                State::LastLineFeed if byte == b'\n' => Some(Line::End),
                State::LastLineFeed => Some(self.invalid(self.start)),
                State::SkipLine => {
                    if byte == b'\n' {
                        self.state = State::Start;
                    }
                    None
                }
            };
            match found {
                Some(invalid @ Line::Invalid(_)) => return invalid,
                Some(line) => {
                    self.position += 1;
                    self.state = State::Start;
                    return line;
                }
                None => self.position += 1,
            }
        }
        Line::Partial
    }

    fn first_byte(&mut self, byte: u8, rules: LineRules) -> Option<Line> {
        self.start = self.position;
        self.odd = false;
        match byte {
            b'\r' => self.state = State::LastLineFeed,
            b'\n' => return Some(Line::End),
            b':' => return Some(self.invalid(self.position)),
            _ if scan::is(byte, scan::NAME_STOP) => return Some(self.invalid(self.position)),
            _ => {
                self.odd = !is_plain(byte, rules);
                self.state = State::Name;
            }
        }
        None
    }

    fn name_byte(&mut self, buf: &[u8], byte: u8, rules: LineRules) -> Option<Line> {
        match byte {
            b':' => {
                self.name_end = self.position;
                self.state = State::BeforeValue;
            }
            b'\r' | b'\n' => {
                self.name_end = self.position;
                return self.value_ends_line(buf, byte, Span::new(self.position, self.position));
            }
            b'/' if rules.skip_status_lines && &buf[self.start..self.position] == b"HTTP" => {
                self.state = State::SkipLine;
            }
            _ if scan::is(byte, scan::NAME_STOP) => return Some(self.invalid(self.position)),
            _ => self.odd |= !is_plain(byte, rules),
        }
        None
    }

    fn byte_before_value(&mut self, buf: &[u8], byte: u8) -> Option<Line> {
        match byte {
            b' ' => None,
            b'\r' | b'\n' => self.value_ends_line(buf, byte, Span::new(self.position, self.position)),
            0 => Some(self.invalid(self.position)),
            _ => {
                self.value = Span::new(self.position, self.position);
                self.state = State::Value;
                None
            }
        }
    }

    /// Runs to the next control character, and takes the spaces off the end of the value if it ends the line.
    fn value_byte(&mut self, buf: &[u8]) -> Option<Line> {
        let stop = scan::control(buf, self.position);
        let Some(&byte) = buf.get(stop) else {
            self.position = buf.len() - 1;
            return None;
        };
        self.position = stop;
        match byte {
            0 => Some(self.invalid(stop)),
            b'\r' | b'\n' => {
                let begin = self.value.start as usize;
                self.value_ends_line(buf, byte, Span::new(begin, trimmed_end(buf, begin, stop)))
            }
            _ => None,
        }
    }

    fn value_ends_line(&mut self, buf: &[u8], line_end: u8, value: Span) -> Option<Line> {
        self.value = value;
        if line_end == b'\n' {
            return Some(self.field(buf));
        }
        self.state = State::LineFeed;
        None
    }

    /// After a CR: nginx lets any number of further CRs pass.
    fn line_feed(&mut self, buf: &[u8], byte: u8) -> Option<Line> {
        match byte {
            b'\n' => Some(self.field(buf)),
            b'\r' => None,
            _ => Some(self.invalid(self.value.end as usize)),
        }
    }

    fn field(&self, buf: &[u8]) -> Line {
        let name = Span::new(self.start, self.name_end);
        let known = if self.odd { KnownHeader::Other } else { KnownHeader::find(name.of(buf)) };
        Line::Field { field: HeaderLine { name, value: self.value, known }, odd: self.odd }
    }

    fn invalid(&self, end: usize) -> Line {
        Line::Invalid(InvalidLine { line: Span::new(self.start, end) })
    }
}

/// The longest name that is read the quick way: no line without a colon costs the search of a whole buffer.
const QUICK_NAME: usize = 64;

/// The usual line, whole in the buffer: a plain name, a colon, a value without control characters, CR LF. Gives the line
/// and the offset after it; nothing if the line is in any way different, for [`LineReader::step`] to decide.
#[inline]
fn whole_line(buf: &[u8], start: usize) -> Option<(HeaderLine, usize)> {
    let colon = scan::colon(&buf[..buf.len().min(start + QUICK_NAME)], start);
    let (name, rest) = (buf.get(start..colon)?, &buf[colon..]);
    let (space, first) = match rest {
        [b':', b' ', first, ..] => (2, *first),
        [b':', first, ..] => (1, *first),
        _ => return None,
    };
    let known = KnownHeader::find(name);
    let is_plain = known != KnownHeader::Other || name.iter().all(|&b| scan::is(b, scan::NAME));
    if first <= b' ' || name.is_empty() || !is_plain {
        return None;
    }
    let at = colon + space;
    let stop = scan::control(buf, at);
    let [b'\r', b'\n', ..] = buf.get(stop..)? else { return None };
    let value = Span::new(at, trimmed_end(buf, at, stop));
    Some((HeaderLine { name: Span::new(start, colon), value, known }, stop + 2))
}

/// Where `start..end` ends without its trailing spaces. Tabs stay, as in nginx.
#[inline]
fn trimmed_end(buf: &[u8], start: usize, end: usize) -> usize {
    let mut value = &buf[start..end];
    while let [rest @ .., b' '] = value {
        value = rest;
    }
    start + value.len()
}

/// Whether `byte` in a name raises no question.
#[inline]
fn is_plain(byte: u8, rules: LineRules) -> bool {
    scan::is(byte, scan::NAME) || (byte == b'_' && rules.underscores)
}
