//! Reads the request line. Part of [`super::request`]; resumable at every byte, and no byte is looked at twice.
//!
//! The rules are nginx's (`ngx_http_parse_request_line`): leading empty lines are passed over, a line may end in a bare
//! LF, a line without a version is an HTTP/0.9 request.

use super::request::{Method, RequestError, RequestHead};
use super::{Version, scan};
use crate::span::Span;

/// ```text
/// Start -> Method -> BeforeTarget ------------------> AfterSlash <-> Path -> Rest -> AfterTarget
///             |         '-> Scheme -> ... -> HostStart -> Host/Literal -> Port --^       |
///             '-> BeforeHost (CONNECT) ---------^                        (CONNECT) ------+
///                                                                                        v
///                     Done <- LineFeed <- AfterVersion <- Minor <- ... <- Major <- Protocol
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Start,
    Method,
    BeforeTarget,
    Scheme,
    SchemeSlash,
    SchemeSlashSlash,
    BeforeHost,
    HostStart,
    Host,
    Literal,
    HostEnd,
    PortStart,
    Port,
    AfterSlash,
    Path,
    Rest,
    AfterTarget,
    Protocol,
    MajorFirst,
    Major,
    MinorFirst,
    Minor,
    AfterVersion,
    LineFeed,
    Done,
}

/// Where the reading of a request line stands.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestLine {
    state: State,
    position: usize,
    start: usize,
    /// Start of what is being read: scheme, host, target or protocol.
    mark: usize,
    /// Offset after the scheme's colon.
    scheme_end: usize,
    /// Offset after the last dot of the last path segment; 0 if there is none (offset 0 is the method's).
    exten: usize,
    /// Offset after the `?`; 0 if there is none.
    args: usize,
    major: u16,
    minor: u16,
}

/// Result of a step: nothing, or the refusal.
type Step = Result<(), RequestError>;

/// Protocol name that must precede the version.
const PROTOCOL: &[u8] = b"HTTP/";
/// A minor version above this may not get a further digit (nginx allows 0 to 999).
const LARGEST_MINOR_BEFORE_DIGIT: u16 = 99;

impl RequestLine {
    /// Offset of the next byte to read.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// Offset of the first byte of the line: while only empty lines were read, of the next byte.
    pub(super) fn start(&self) -> usize {
        if self.state == State::Start { self.position } else { self.start }
    }

    /// Whether the line has not begun, so that all bytes up to [`Self::position`] are empty lines.
    pub(super) fn is_before_start(&self) -> bool {
        self.state == State::Start
    }

    /// Reads on. True if the line is complete and its parts stand in `head`.
    pub(super) fn read(&mut self, buf: &[u8], head: &mut RequestHead) -> Result<bool, RequestError> {
        while self.state != State::Done {
            if self.position >= buf.len() {
                return Ok(false);
            }
            match self.state {
                State::Start | State::Method => self.method(buf, head)?,
                State::BeforeTarget | State::Scheme | State::SchemeSlash | State::SchemeSlashSlash => {
                    self.scheme(buf, head)?;
                }
                State::BeforeHost
                | State::HostStart
                | State::Host
                | State::Literal
                | State::HostEnd
                | State::PortStart
                | State::Port => self.authority(buf, head)?,
                State::AfterSlash | State::Path | State::Rest => self.target(buf, head)?,
                State::AfterTarget | State::Protocol => self.protocol(buf, head)?,
                _ => self.version(buf, head)?,
            }
        }
        Ok(true)
    }

    fn method(&mut self, buf: &[u8], head: &mut RequestHead) -> Step {
        if self.state == State::Start {
            while matches!(buf.get(self.position), Some(b'\r' | b'\n')) {
                self.position += 1;
            }
            let Some(&byte) = buf.get(self.position) else { return Ok(()) };
            if !scan::is(byte, scan::METHOD) {
                return Err(RequestError::InvalidMethod);
            }
            self.start = self.position;
            self.state = State::Method;
        }
        while let Some(&byte) = buf.get(self.position) {
            if byte == b' ' {
                head.method = Span::new(self.start, self.position);
                head.method_id = Method::of(head.method.of(buf));
                let connect = head.method_id == Method::Connect;
                self.state = if connect { State::BeforeHost } else { State::BeforeTarget };
                self.position += 1;
                return Ok(());
            }
            if !scan::is(byte, scan::METHOD) {
                return Err(RequestError::InvalidMethod);
            }
            self.position += 1;
        }
        Ok(())
    }

    fn scheme(&mut self, buf: &[u8], head: &mut RequestHead) -> Step {
        while let Some(&byte) = buf.get(self.position) {
            match (self.state, byte) {
                (State::BeforeTarget, b'/') => return self.begin_path(),
                (State::BeforeTarget, b' ') => {}
                (State::BeforeTarget, _) if byte.is_ascii_alphabetic() => {
                    self.mark = self.position;
                    self.state = State::Scheme;
                }
                (State::Scheme, b':') => {
                    head.scheme = Some(Span::new(self.mark, self.position));
                    self.scheme_end = self.position + 1;
                    self.state = State::SchemeSlash;
                }
                (State::Scheme, _) if scan::is(byte, scan::SCHEME) => {}
                (State::SchemeSlash, b'/') => self.state = State::SchemeSlashSlash,
                (State::SchemeSlashSlash, b'/') => {
                    self.state = State::HostStart;
                    self.position += 1;
                    return Ok(());
                }
                _ => return Err(RequestError::InvalidRequest),
            }
            self.position += 1;
        }
        Ok(())
    }

    fn begin_path(&mut self) -> Step {
        self.mark = self.position;
        self.state = State::AfterSlash;
        self.position += 1;
        Ok(())
    }

    fn authority(&mut self, buf: &[u8], head: &mut RequestHead) -> Step {
        while let Some(&byte) = buf.get(self.position) {
            match self.state {
                State::BeforeHost if byte == b' ' => {}
                State::BeforeHost | State::HostStart => {
                    self.mark = self.position;
                    self.state = if byte == b'[' { State::Literal } else { State::Host };
                    if byte != b'[' {
                        continue;
                    }
                }
                State::Host if scan::is(byte, scan::HOST) => {}
                State::Literal if scan::is(byte, scan::LITERAL) => {}
                State::Literal if byte == b']' => self.state = State::HostEnd,
                State::Host | State::HostEnd if byte == b':' => self.state = State::PortStart,
                State::PortStart | State::Port if byte.is_ascii_digit() => self.state = State::Port,
                State::Literal => return Err(RequestError::InvalidRequest),
                _ => return self.after_authority(byte, head),
            }
            self.position += 1;
        }
        Ok(())
    }

    /// At the byte that ends the authority. CONNECT takes `host:port` and a space, nothing else.
    fn after_authority(&mut self, byte: u8, head: &mut RequestHead) -> Step {
        head.absolute_host = Some(Span::new(self.mark, self.position));
        if head.method_id == Method::Connect {
            if self.state != State::Port || byte != b' ' {
                return Err(RequestError::InvalidRequest);
            }
            self.state = State::AfterTarget;
            self.position += 1;
            return Ok(());
        }
        match byte {
            b'/' => return self.begin_path(),
            b'?' => {
                self.mark = self.position;
                self.args = self.position + 1;
                head.empty_path = true;
                self.state = State::Rest;
            }
            b' ' => {
                // The path is "/": the first slash after the scheme stands in for it.
                head.target = Span::new(self.scheme_end, self.scheme_end + 1);
                head.path = head.target;
                self.state = State::AfterTarget;
            }
            _ => return Err(RequestError::InvalidRequest),
        }
        self.position += 1;
        Ok(())
    }

    fn target(&mut self, buf: &[u8], head: &mut RequestHead) -> Step {
        loop {
            let stop = if self.state == State::Rest { scan::REST_STOP } else { scan::PATH_STOP };
            let mut at = self.position;
            while at < buf.len() && !scan::is(buf[at], stop) {
                at += 1;
            }
            if at > self.position && self.state == State::AfterSlash {
                self.state = State::Path;
            }
            self.position = at;
            let Some(&byte) = buf.get(at) else { return Ok(()) };
            match byte {
                b' ' => {
                    self.end_target(head);
                    self.state = State::AfterTarget;
                }
                b'\r' | b'\n' => {
                    self.end_target(head);
                    return self.end_without_version(byte, head);
                }
                b'#' => {
                    head.complex = true;
                    self.state = State::Rest;
                }
                _ if self.state == State::Rest => return Err(RequestError::InvalidRequest),
                b'/' | b'.' if self.state == State::AfterSlash => {
                    head.complex = true;
                    self.state = State::Rest;
                }
                b'/' => {
                    self.exten = 0;
                    self.state = State::AfterSlash;
                }
                b'.' => self.exten = at + 1,
                b'%' => {
                    head.quoted = true;
                    self.state = State::Rest;
                }
                b'?' => {
                    self.args = at + 1;
                    self.state = State::Rest;
                }
                b'+' => head.plus = true,
                _ => return Err(RequestError::InvalidRequest),
            }
            self.position += 1;
            if self.state == State::AfterTarget {
                return Ok(());
            }
        }
    }

    fn end_target(&mut self, head: &mut RequestHead) {
        let end = self.position;
        head.target = Span::new(self.mark, end);
        let path_end = if self.args == 0 { end } else { self.args - 1 };
        head.path = Span::new(self.mark, path_end);
        head.args = (self.args != 0).then(|| Span::new(self.args, end));
        head.exten = (self.exten != 0).then(|| Span::new(self.exten, path_end));
    }

    /// A line end in the place of the version: HTTP/0.9.
    fn end_without_version(&mut self, byte: u8, head: &mut RequestHead) -> Step {
        self.minor = Version::HTTP09.0;
        head.line = Span::new(self.start, self.position);
        self.position += 1;
        if byte == b'\r' {
            self.state = State::LineFeed;
            return Ok(());
        }
        self.finish(head)
    }

    fn protocol(&mut self, buf: &[u8], head: &mut RequestHead) -> Step {
        while let Some(&byte) = buf.get(self.position) {
            if self.state == State::AfterTarget {
                match byte {
                    b' ' => {}
                    b'\r' | b'\n' => return self.end_without_version(byte, head),
                    b'H' => {
                        self.mark = self.position;
                        self.state = State::Protocol;
                        if self.usual_version(buf, head) {
                            return Ok(());
                        }
                    }
                    _ => return Err(RequestError::InvalidRequest),
                }
                self.position += 1;
                continue;
            }
            let done = self.position - self.mark;
            if byte != PROTOCOL[done] {
                return Err(RequestError::InvalidRequest);
            }
            self.position += 1;
            if done + 1 == PROTOCOL.len() {
                if head.method_id == Method::Connect {
                    // The path is "/": the slash of "HTTP/" stands in for it.
                    head.target = Span::new(self.position - 1, self.position);
                    head.path = head.target;
                }
                self.state = State::MajorFirst;
                return Ok(());
            }
        }
        Ok(())
    }

    /// `HTTP/1.1` or `HTTP/1.0` and CR LF, all in the buffer, which is how nearly every request line ends.
    fn usual_version(&mut self, buf: &[u8], head: &mut RequestHead) -> bool {
        let Some(end) = buf.get(self.mark..).and_then(|rest| rest.first_chunk::<10>()) else { return false };
        let [name @ .., minor, b'\r', b'\n'] = end else { return false };
        if name != b"HTTP/1." || !matches!(minor, b'0' | b'1') || head.method_id == Method::Connect {
            return false;
        }
        (self.major, self.minor) = (1, u16::from(minor - b'0'));
        head.line = Span::new(self.start, self.mark + 8);
        head.protocol = Some(Span::new(self.mark, self.mark + 8));
        head.version = Version(1000 + self.minor);
        self.position = self.mark + end.len();
        self.state = State::Done;
        true
    }

    fn version(&mut self, buf: &[u8], head: &mut RequestHead) -> Step {
        while let Some(&byte) = buf.get(self.position) {
            match (self.state, byte) {
                (State::MajorFirst, b'1'..=b'9') => {
                    self.major = u16::from(byte - b'0');
                    self.state = State::Major;
                }
                (State::Major, b'.') => self.state = State::MinorFirst,
                (State::Major, b'0'..=b'9') => self.major = self.major * 10 + u16::from(byte - b'0'),
                (State::MinorFirst, b'0'..=b'9') => {
                    self.minor = u16::from(byte - b'0');
                    self.state = State::Minor;
                }
                (State::Minor, b'0'..=b'9') if self.minor <= LARGEST_MINOR_BEFORE_DIGIT => {
                    self.minor = self.minor * 10 + u16::from(byte - b'0');
                }
                (State::Minor | State::AfterVersion, b' ') => self.state = State::AfterVersion,
                (State::Minor | State::AfterVersion, b'\r' | b'\n') => return self.end_version(byte, head),
                (State::LineFeed, b'\n') => {
                    self.position += 1;
                    return self.finish(head);
                }
                _ => return Err(RequestError::InvalidRequest),
            }
            if self.major > 1 {
                return Err(RequestError::InvalidVersion);
            }
            self.position += 1;
        }
        Ok(())
    }

    fn end_version(&mut self, byte: u8, head: &mut RequestHead) -> Step {
        head.line = Span::new(self.start, self.position);
        head.protocol = Some(Span::new(self.mark, self.position));
        self.position += 1;
        if byte == b'\r' {
            self.state = State::LineFeed;
            return Ok(());
        }
        self.finish(head)
    }

    fn finish(&mut self, head: &mut RequestHead) -> Step {
        head.version = Version(self.major * 1000 + self.minor);
        if head.version == Version::HTTP09 && head.method_id != Method::Get {
            return Err(RequestError::InvalidMethodHttp09);
        }
        self.state = State::Done;
        Ok(())
    }
}
