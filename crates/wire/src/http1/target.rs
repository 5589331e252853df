//! Turns a request target into a path: unescapes it and resolves `.`, `..` and `//` in one pass, as nginx does
//! (`ngx_http_parse_complex_uri`). Also the other readings of a URI: of HTTP/2's `:path`, of internal redirects, of
//! arguments.

use super::escape::{self, Unescape};
use super::scan::{self, hex_digit};
use crate::span::Span;

/// The target is refused: `client sent invalid request`, status 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadTarget;

/// A normalised target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Normalized {
    /// The path (`$uri`), in the output.
    pub path: Span,
    /// What follows the `?` up to a `#` (`$args`), in the raw target.
    pub args: Option<Span>,
    /// What follows the last dot of the last segment, in the output.
    pub exten: Option<Span>,
    /// The path had escapes.
    pub quoted: bool,
    /// The path has a `+`, escaped or not.
    pub plus: bool,
}

/// Normalises `raw`, a path with or without a query, or a query alone (then the path is `/`); the path is appended to
/// `out`. With `merge_slashes` runs of slashes become one.
///
/// # Errors
/// A path that climbs above the root, a broken escape, a NUL, escaped or not. Other control characters are refused by
/// the request line and by [`split`].
pub fn normalize(raw: &[u8], merge_slashes: bool, out: &mut Vec<u8>) -> Result<Normalized, BadTarget> {
    let mut path = PathWriter { base: out.len(), out, exten: None, place: Place::Segment, merge_slashes };
    let mut found = Normalized::default();
    if raw.first() == Some(&b'?') {
        path.out.push(b'/');
    }
    let mut at = 0;
    while let Some(&byte) = raw.get(at) {
        at += 1;
        match byte {
            b'%' => {
                let decoded = decode(raw, at)?;
                at += 2;
                found.quoted = true;
                found.plus |= decoded == b'+';
                match decoded {
                    0 => return Err(BadTarget),
                    b'%' | b'#' | b'?' => path.literal(decoded),
                    _ => path.byte(decoded)?,
                }
            }
            b'?' => {
                let end = memchr::memchr(b'#', &raw[at..]).map_or(raw.len(), |hash| at + hash);
                found.args = Some(Span::new(at, end));
                break;
            }
            b'#' => break,
            0 => return Err(BadTarget),
            _ => {
                found.plus |= byte == b'+';
                path.byte(byte)?;
                at += path.usual_run(&raw[at..]);
            }
        }
    }
    path.leave_dots()?;
    found.path = Span::new(path.base, path.out.len());
    found.exten = path.exten.map(|start| Span::new(start, path.out.len()));
    Ok(found)
}

fn decode(raw: &[u8], at: usize) -> Result<u8, BadTarget> {
    let [high, low] = raw.get(at..at + 2).ok_or(BadTarget)? else { return Err(BadTarget) };
    match (hex_digit(*high), hex_digit(*low)) {
        (Some(high), Some(low)) => Ok(high << 4 | low),
        _ => Err(BadTarget),
    }
}

/// Where in the path the writer stands. The dots themselves are written and taken back when a slash shows what they mean.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Within a segment.
    Segment,
    /// After a slash.
    Slash,
    /// After `/.`
    Dot,
    /// After `/..`
    DotDot,
}

struct PathWriter<'a> {
    out: &'a mut Vec<u8>,
    base: usize,
    exten: Option<usize>,
    place: Place,
    merge_slashes: bool,
}

impl PathWriter<'_> {
    /// Writes a byte that may be a slash or a dot.
    fn byte(&mut self, byte: u8) -> Result<(), BadTarget> {
        match byte {
            b'/' => self.slash()?,
            b'.' => self.dot(),
            _ => self.literal(byte),
        }
        Ok(())
    }

    /// Writes a byte that means nothing but itself.
    fn literal(&mut self, byte: u8) {
        self.place = Place::Segment;
        self.out.push(byte);
    }

    fn dot(&mut self) {
        match self.place {
            Place::Segment => self.exten = Some(self.out.len() + 1),
            Place::Slash => self.place = Place::Dot,
            Place::Dot => self.place = Place::DotDot,
            Place::DotDot => self.place = Place::Segment,
        }
        self.out.push(b'.');
    }

    fn slash(&mut self) -> Result<(), BadTarget> {
        match self.place {
            Place::Segment => {
                self.exten = None;
                self.out.push(b'/');
            }
            Place::Slash if self.merge_slashes => {}
            Place::Slash => self.out.push(b'/'),
            Place::Dot | Place::DotDot => self.leave_dots()?,
        }
        self.place = Place::Slash;
        Ok(())
    }

    /// Takes back a last segment of `.` or `..`, and with the latter the segment before it.
    fn leave_dots(&mut self) -> Result<(), BadTarget> {
        match self.place {
            Place::Dot => self.out.truncate(self.out.len() - 1),
            Place::DotDot => {
                let path = &self.out[self.base..];
                let parent = path.len().checked_sub("/..".len()).ok_or(BadTarget)?;
                let slash = memchr::memrchr(b'/', &path[..parent]).ok_or(BadTarget)?;
                self.out.truncate(self.base + slash + 1);
            }
            Place::Segment | Place::Slash => return Ok(()),
        }
        self.place = Place::Slash;
        Ok(())
    }

    /// Copies the bytes that need no decision, if the writer is within a segment. Gives their number.
    fn usual_run(&mut self, raw: &[u8]) -> usize {
        if self.place != Place::Segment {
            return 0;
        }
        let run = raw.iter().position(|&byte| scan::is(byte, scan::PATH_STOP)).unwrap_or(raw.len());
        self.out.extend_from_slice(&raw[..run]);
        run
    }
}

/// The parts of a target that is already whole, such as HTTP/2's `:path`. Spans point into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetParts {
    /// The path. Only meaningful if not [`Self::needs_normalizing`].
    pub path: Span,
    /// What follows the `?`. Only meaningful if not [`Self::needs_normalizing`].
    pub args: Option<Span>,
    /// What follows the last dot of the last segment. Only meaningful if not [`Self::needs_normalizing`].
    pub exten: Option<Span>,
    /// `//`, a segment that begins with a dot, or a `#`.
    pub complex: bool,
    /// A `%` in the path.
    pub quoted: bool,
    /// A `+` in the path.
    pub plus: bool,
}

impl TargetParts {
    /// Whether path, args and extension have to be made by [`normalize`].
    pub fn needs_normalizing(&self) -> bool {
        self.complex || self.quoted
    }
}

/// Takes a whole target apart, as `ngx_http_parse_uri`.
///
/// # Errors
/// A target that does not begin with a slash, or has a space or a control character.
pub fn split(raw: &[u8]) -> Result<TargetParts, BadTarget> {
    if raw.first() != Some(&b'/') || raw.iter().any(|&byte| byte <= b' ' || byte == 0x7f) {
        return Err(BadTarget);
    }
    let mut parts = TargetParts { path: Span::new(0, raw.len()), ..TargetParts::default() };
    let mut after_slash = true;
    for (at, &byte) in raw.iter().enumerate().skip(1) {
        match byte {
            b'+' => {
                parts.plus = true;
                continue;
            }
            b'%' => parts.quoted = true,
            b'#' => parts.complex = true,
            b'/' | b'.' if after_slash => parts.complex = true,
            b'/' => parts.exten = None,
            b'.' => parts.exten = Some(Span::new(at + 1, raw.len())),
            b'?' => {
                parts.path = Span::new(0, at);
                parts.args = Some(Span::new(at + 1, raw.len()));
                parts.exten = parts.exten.map(|exten| Span { end: at as u32, ..exten });
                parts.complex |= memchr::memchr(b'#', &raw[at..]).is_some();
                return Ok(parts);
            }
            _ => {}
        }
        if parts.needs_normalizing() {
            parts.complex |= memchr::memchr(b'#', &raw[at..]).is_some();
            return Ok(parts);
        }
        after_slash = byte == b'/';
    }
    Ok(parts)
}

/// The URI of an internal redirect, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedirectUri {
    /// The unescaped path, in the output.
    pub path: Span,
    /// What follows the `?`, in the input.
    pub args: Option<Span>,
}

/// The URI is unsafe: nginx logs `unsafe URI "..." was detected`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsafeUri;

/// Reads the URI of `X-Accel-Redirect`, `Destination`, SSI or the like, as `ngx_http_parse_unsafe_uri`; the path is
/// appended to `out`.
///
/// # Errors
/// Nothing before the `?`, a NUL, or `..` as a segment, escaped or not.
pub fn parse_unsafe_uri(uri: &[u8], out: &mut Vec<u8>) -> Result<RedirectUri, UnsafeUri> {
    let mark = memchr::memchr(b'?', uri);
    let path = &uri[..mark.unwrap_or(uri.len())];
    // nginx lets `/..?a` pass, as what follows the dots is neither a slash nor the end. Nobody means that: refused here.
    if path.is_empty() || climbs(path) {
        return Err(UnsafeUri);
    }
    let start = out.len();
    if memchr::memchr(b'%', path).is_none() {
        out.extend_from_slice(path);
    } else {
        escape::unescape(path, Unescape::Plain, out);
        if climbs(&out[start..]) {
            out.truncate(start);
            return Err(UnsafeUri);
        }
    }
    let args = mark.map(|mark| Span::new(mark + 1, uri.len()));
    Ok(RedirectUri { path: Span::new(start, out.len()), args })
}

/// Whether `..` is a segment of the path, or it has a NUL.
fn climbs(path: &[u8]) -> bool {
    memchr::memchr(0, path).is_some() || path.split(|&byte| byte == b'/').any(|segment| segment == b"..")
}

/// What a reference names: `Location`, `Content-Location`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<'r> {
    /// Whose it is, if the reference says so.
    pub authority: Option<&'r [u8]>,
    /// The path, with its query.
    pub target: Vec<u8>,
}

/// Longer references name nothing: nginx's buffers for heads have 4 or 8 kB.
const MAX_REFERENCE: usize = 8192;

/// Resolves a reference against a request's target (RFC 3986 section 5.2). None: it names nothing that HTTP could be asked for.
pub fn resolve<'r>(target: &[u8], reference: &'r [u8]) -> Option<Named<'r>> {
    let reference = reference.trim_ascii();
    let reference = &reference[..memchr::memchr(b'#', reference).unwrap_or(reference.len())];
    if reference.len() > MAX_REFERENCE || target.first() != Some(&b'/') {
        return None;
    }
    let scheme =
        reference.iter().position(|&byte| matches!(byte, b':' | b'/' | b'?')).filter(|&at| reference[at] == b':');
    let rest = match scheme.map(|at| (&reference[..at], &reference[at + 1..])) {
        Some((scheme, rest)) if [&b"http"[..], b"https"].iter().any(|s| s.eq_ignore_ascii_case(scheme)) => {
            rest.starts_with(b"//").then_some(rest)?
        }
        Some(_) => return None,
        None => reference,
    };
    let (authority, rest) = match rest.strip_prefix(b"//") {
        Some(rest) => {
            let end = rest.iter().position(|&byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
            (Some(&rest[..end]), &rest[end..])
        }
        None => (None, rest),
    };
    let own_path = &target[..memchr::memchr(b'?', target).unwrap_or(target.len())];
    let before = match rest.first() {
        Some(b'/') => &[][..],
        _ if authority.is_some() => b"/",
        None => target,
        Some(b'?') => own_path,
        Some(_) => &own_path[..=memchr::memrchr(b'/', own_path)?],
    };
    Some(Named { authority, target: without_dots(&[before, rest].concat()) })
}

/// A target without `.` and `..` as segments of its path; what would climb above the root stays there (RFC 3986 section 5.2.4).
fn without_dots(target: &[u8]) -> Vec<u8> {
    let (path, query) = target.split_at(memchr::memchr(b'?', target).unwrap_or(target.len()));
    let mut out = Vec::with_capacity(target.len());
    let mut segments = path.strip_prefix(b"/").unwrap_or(path).split(|&byte| byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        if segment == b".." {
            out.truncate(memchr::memrchr(b'/', &out).unwrap_or(0));
        }
        let is_dots = matches!(segment, b"." | b"..");
        if !is_dots || segments.peek().is_none() {
            out.push(b'/');
        }
        if !is_dots {
            out.extend_from_slice(segment);
        }
    }
    out.extend_from_slice(query);
    out
}

/// The value of the argument `name` in `args` (`$arg_name`), still escaped; the first one wins. Names are compared
/// without case, as `ngx_http_arg`.
pub fn argument<'a>(args: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    args.split(|&byte| byte == b'&').find_map(|argument| {
        let (start, rest) = argument.split_at_checked(name.len())?;
        if start.eq_ignore_ascii_case(name) { rest.strip_prefix(b"=") } else { None }
    })
}
