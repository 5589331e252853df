//! `more_set_headers` and its kin: headers of answers and requests are set, replaced and removed, the server's own ones
//! included (OpenResty's `ngx_headers_more_module`). Answers of every status are meant, unless `-s` or `-t` say otherwise.

use crate::config::complex::Complex;
use crate::config::{Directive, Scope, http};
use crate::request::headers::{HeaderLine, HeaderOut, KnownHeader as K};
use crate::request::phases::Verdict;
use crate::request::respond::{Filtered, ends_line};
use crate::request::{Request, Text};
use crate::{inherited, log_error};
use conf::{Node, Problem, Word, value};
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("more_set_headers", |s, n| add(s, n, Side::Answer, Action::Set)),
    http("more_clear_headers", |s, n| add(s, n, Side::Answer, Action::Clear)),
    http("more_set_input_headers", |s, n| add(s, n, Side::Request, Action::Set)),
    http("more_clear_input_headers", |s, n| add(s, n, Side::Request, Action::Clear)),
];

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    /// Commands for the answer, in order.
    answer: Arc<Vec<Command>>,
    /// Commands for the request.
    request: Arc<Vec<Command>>,
}

impl Conf {
    /// The parent's commands run first, then the level's own.
    pub fn merge(&mut self, parent: &Conf) {
        for (own, around) in [(&mut self.answer, &parent.answer), (&mut self.request, &parent.request)] {
            if own.is_empty() {
                *own = around.clone();
            } else if !around.is_empty() {
                *own = Arc::new(around.iter().chain(own.iter()).cloned().collect());
            }
        }
    }

    /// Whether the answer's headers are changed.
    pub fn changes_answer(&self) -> bool {
        !self.answer.is_empty()
    }

    /// Whether the request's headers are changed.
    pub fn changes_request(&self) -> bool {
        !self.request.is_empty()
    }
}

inherited!(Conf, |_| true);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Answer,
    Request,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Set,
    Clear,
}

/// One directive.
#[derive(Clone, Debug)]
struct Command {
    /// `-s`: statuses of the answer; all if empty.
    statuses: Vec<u16>,
    /// `-t`: types of the answer or of the request's body; all if empty.
    types: Vec<Box<[u8]>>,
    /// `-r`: only a header that is there is set.
    replace: bool,
    /// `-a`: beside those of the same name that are there.
    append: bool,
    headers: Vec<Header>,
}

/// A header that is set, or removed where its value is empty.
#[derive(Clone, Debug)]
struct Header {
    name: Box<[u8]>,
    known: K,
    /// The name ended in `*` and there is no value: all names that begin so are removed.
    wildcard: bool,
    value: Complex,
}

fn add(scope: &mut Scope<'_, '_>, node: &Node, side: Side, action: Action) -> Result<(), Problem> {
    let mut command = Command { statuses: vec![], types: vec![], replace: false, append: false, headers: vec![] };
    let mut words = node.args.iter();
    while let Some(word) = words.next() {
        match (word.text.as_slice(), side, action) {
            (b"-t", ..) => {
                let list = words.next().ok_or_else(|| node.problem("option \"-t\" takes an argument".to_owned()))?;
                let types = list.text.split(u8::is_ascii_whitespace).filter(|t| !t.is_empty());
                command.types.extend(types.map(|t| t.to_ascii_lowercase().into_boxed_slice()));
            }
            (b"-s", Side::Answer, _) => {
                let list = words.next().ok_or_else(|| node.problem("option \"-s\" takes an argument".to_owned()))?;
                statuses(node, list, &mut command.statuses)?;
            }
            (b"-r", Side::Request, Action::Set) => command.replace = true,
            (b"-a", Side::Answer, Action::Set) => command.append = true,
            ([b'-', ..], ..) => return Err(node.problem(format!("invalid option name: \"{}\"", word.as_str()))),
            (text, _, action) => command.headers.push(header(scope, node, text, action)?),
        }
    }
    if command.headers.is_empty() {
        return Err(node.problem("no header is named".to_owned()));
    }
    let conf = &mut scope.level.conf.headers_more;
    let list = if side == Side::Answer { &mut conf.answer } else { &mut conf.request };
    Arc::make_mut(list).push(command);
    Ok(())
}

fn statuses(node: &Node, list: &Word, out: &mut Vec<u16>) -> Result<(), Problem> {
    for word in list.text.split(u8::is_ascii_whitespace).filter(|t| !t.is_empty()) {
        let status = value::number(word).and_then(|n| u16::try_from(n).ok()).filter(|n| *n <= 999);
        out.push(status.ok_or_else(|| {
            node.problem(format!("invalid status \"{}\" in option \"-s\"", String::from_utf8_lossy(word)))
        })?);
    }
    Ok(())
}

/// `Name: value`; without a value, and for `more_clear_...` whatever it is, the header is removed.
fn header(scope: &mut Scope<'_, '_>, node: &Node, text: &[u8], action: Action) -> Result<Header, Problem> {
    let (name, value) = match memchr::memchr(b':', text) {
        Some(colon) => (&text[..colon], text[colon + 1..].trim_ascii_start()),
        None => (text, &b""[..]),
    };
    let name = name.trim_ascii();
    let value = if action == Action::Set { value } else { b"" };
    // Where something is set, the `*` is a letter of the name, as in the module.
    let (name, wildcard) = match name.strip_suffix(b"*").filter(|_| value.is_empty()) {
        Some(start) => (start, true),
        None => (name, false),
    };
    if name.is_empty() && !wildcard || name.iter().any(|b| *b <= b' ' || *b == 0x7f) {
        return Err(node.problem(format!("invalid header name \"{}\"", String::from_utf8_lossy(text))));
    }
    let value = Complex::compile_field(scope.build, node, value)?;
    let known = if wildcard { K::Other } else { K::find(name) };
    Ok(Header { name: name.into(), known, wildcard, value })
}

impl Header {
    fn is_named(&self, name: &[u8]) -> bool {
        match self.wildcard {
            true => name.get(..self.name.len()).is_some_and(|start| start.eq_ignore_ascii_case(&self.name)),
            false => name.eq_ignore_ascii_case(&self.name),
        }
    }
}

impl Command {
    fn fits_type(&self, kind: Option<&[u8]>) -> bool {
        if self.types.is_empty() {
            return true;
        }
        let Some(kind) = kind else { return false };
        let kind = kind[..memchr::memchr(b';', kind).unwrap_or(kind.len())].trim_ascii();
        self.types.iter().any(|t| t.eq_ignore_ascii_case(kind))
    }
}

/// The header filter.
pub fn filter(r: &mut Request) -> Filtered {
    let commands = r.conf().headers_more.answer.clone();
    for command in commands.iter() {
        let status = r.answer.headers.status;
        let kind = r.answer.headers.content_type.map(|t| r.get(t));
        if command.fits_type(kind) && (command.statuses.is_empty() || command.statuses.contains(&status)) {
            for header in &command.headers {
                change_answer(r, header, command.append);
            }
        }
    }
    Filtered::Next
}

fn change_answer(r: &mut Request, header: &Header, append: bool) {
    let value = header.value.eval(r);
    let empty = r.get(value).is_empty();
    if header.known == K::ContentType {
        return set_type(r, value, empty);
    }
    if header.known == K::ContentLength {
        r.answer.headers.content_length = value::number(r.get(value)).filter(|_| !empty);
        return;
    }
    if header.known == K::LastModified {
        r.answer.headers.last_modified = wire::date::parse_http(r.get(value));
    }
    if header.known == K::AcceptRanges && empty {
        r.answer.allow_ranges = false;
    }
    // The first of those that are there keeps its name and its place, as in nginx.
    let mut place = None;
    if empty || !append {
        let (arena, lines) = (&r.arena, &mut r.answer.headers.lines);
        place = lines.iter().position(|l| header.is_named(arena.get(l.name))).filter(|_| !empty);
        let mut at = 0;
        lines.retain(|l| {
            at += 1;
            place == Some(at - 1) || !header.is_named(arena.get(l.name))
        });
    }
    if let Some(place) = place {
        r.answer.headers.lines[place].value = value;
    } else if !empty {
        let known = if header.known == K::Connection { K::Other } else { header.known };
        let name = r.text(&header.name);
        r.answer.headers.lines.push(HeaderOut { name, value, known });
    } else if let known @ (K::Server | K::Date) = header.known {
        // The server writes these unless there is a line: an empty one keeps it from that.
        r.answer.headers.add(known, known.name(), Text::EMPTY);
    }
}

fn set_type(r: &mut Request, value: Text, empty: bool) {
    let h = &mut r.answer.headers;
    (h.content_type, h.charset, h.written) = (None, None, None);
    if !empty {
        h.set_content_type(&r.arena, value);
    }
}

/// The rewrite phase, behind the level's rewrites.
pub fn handler(r: &mut Request) -> Verdict {
    if !r.conf().headers_more.changes_request() {
        return Verdict::Decline;
    }
    let commands = r.conf().headers_more.request.clone();
    for command in commands.iter() {
        let kind = r.head.headers.find(K::ContentType);
        if command.fits_type(kind.map(|t| r.get(t))) {
            for header in &command.headers {
                change_request(r, header, command.replace);
            }
        }
    }
    Verdict::Decline
}

fn change_request(r: &mut Request, header: &Header, replace: bool) {
    let value = header.value.eval(r);
    let empty = r.get(value).is_empty();
    if ends_line(r.get(value)) {
        let name = String::from_utf8_lossy(&header.name);
        log_error!(r, Error, "request header \"{name}\" is not set: there is CR, LF or NUL in its value");
        return r.fail();
    }
    let arena = &r.arena;
    let place = r.head.headers.lines().iter().position(|l| header.is_named(arena.span(l.name)));
    if place.is_none() && (empty || replace) {
        return;
    }
    let line = (!empty).then(|| HeaderLine {
        name: r.arena.push(&header.name),
        value: match value {
            Text::Own(span) => span,
            Text::Fixed(bytes) => r.arena.push(bytes),
        },
        known: header.known,
    });
    let (arena, lines) = (&r.arena, &mut r.head.headers.head.headers);
    lines.retain(|l| !header.is_named(arena.span(l.name)));
    if let Some(line) = line {
        lines.insert(place.unwrap_or(lines.len()).min(lines.len()), line);
    }
    follow(r, header, value, empty);
}

/// What the server has found in a header that is another one now.
fn follow(r: &mut Request, header: &Header, value: Text, empty: bool) {
    if header.known == K::Host {
        r.head.headers.host = (!empty).then_some(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &str, wildcard: bool) -> Header {
        let known = if wildcard { K::Other } else { K::find(name.as_bytes()) };
        Header { name: name.as_bytes().into(), known, wildcard, value: Complex::default() }
    }

    #[test]
    fn names_with_a_star() {
        assert!(header("X-", true).is_named(b"x-powered-by") && !header("X-", true).is_named(b"X"));
        assert!(header("Server", false).is_named(b"server") && !header("Server", false).is_named(b"x-server"));
    }

    #[test]
    fn types_without_their_parameters() {
        let types = vec![b"text/html".as_slice().into()];
        let command = Command { statuses: vec![], types, replace: false, append: false, headers: vec![] };
        assert!(command.fits_type(Some(b"Text/HTML; charset=utf-8")));
        assert!(!command.fits_type(Some(b"text/plain")) && !command.fits_type(None));
    }
}
