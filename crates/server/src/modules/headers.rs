//! `add_header`, `add_trailer`, `expires` (nginx's `ngx_http_headers_filter_module`).

use crate::config::complex::Complex;
use crate::config::setters::{self, duplicate, invalid};
use crate::config::setting::Setting;
use crate::config::{Directive, Scope, http};
use crate::request::chunk::Chunk;
use crate::request::filter::{BodyFilter, Rest};
use crate::request::headers::{HeaderOut, KnownHeader as K};
use crate::request::respond::Filtered;
use crate::request::{Request, Text};
use crate::text;
use conf::{Node, Problem, value};
use runtime::clock;
use std::sync::Arc;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    http("add_header", |s, n| add(s, n, |c| &mut c.headers)),
    http("add_trailer", |s, n| add(s, n, |c| &mut c.trailers)),
    http("add_header_inherit", |s, n| setters::one_of(&mut s.level.conf.headers.headers.inherit, n, INHERIT)),
    http("add_trailer_inherit", |s, n| setters::one_of(&mut s.level.conf.headers.trailers.inherit, n, INHERIT)),
    http("expires", expires),
];

const INHERIT: &[(&str, Inherit)] = &[("off", Inherit::Off), ("on", Inherit::On), ("merge", Inherit::Merge)];
const EPOCH: &str = "Thu, 01 Jan 1970 00:00:01 GMT";
const LATEST: &str = "Thu, 31 Dec 2037 23:55:55 GMT";
const SECONDS_A_DAY: i64 = 24 * 60 * 60;

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    headers: Lines,
    trailers: Lines,
    expires: Setting<Expires>,
}

impl Conf {
    /// A level with lines of its own has none of its parent's, unless `..._inherit merge` says so.
    pub fn merge(&mut self, parent: &Conf) {
        self.headers.merge(&parent.headers);
        self.trailers.merge(&parent.trailers);
        self.expires.inherit(&parent.expires);
    }

    /// Whether nothing is added.
    pub fn is_empty(&self) -> bool {
        self.headers.all.is_empty() && self.trailers.all.is_empty() && self.expires.kind == Kind::Off
    }
}

/// What `add_header` and `add_trailer` said on one level.
#[derive(Clone, Debug, Default)]
struct Lines {
    all: Arc<Vec<Line>>,
    inherit: Setting<Inherit>,
}

impl Lines {
    fn merge(&mut self, parent: &Lines) {
        self.inherit.inherit(&parent.inherit);
        if *self.inherit == Inherit::Off {
            return;
        }
        if self.all.is_empty() {
            self.all = parent.all.clone();
        } else if *self.inherit == Inherit::Merge {
            Arc::make_mut(&mut self.all).extend(parent.all.iter().cloned());
        }
    }
}

/// One header or trailer.
#[derive(Clone, Debug)]
struct Line {
    name: Box<[u8]>,
    known: K,
    value: Complex,
    always: bool,
}

/// `add_header_inherit`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Inherit {
    Off,
    #[default]
    On,
    Merge,
}

/// `expires`
#[derive(Clone, Debug, Default)]
struct Expires {
    kind: Kind,
    /// After the moment that `kind` names; may be negative.
    seconds: i64,
    /// The value, where it has variables.
    value: Option<Complex>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Off,
    Epoch,
    Max,
    /// After now.
    Access,
    /// After the last change of the file.
    Modified,
    /// At a time of day.
    Daily,
}

fn add(scope: &mut Scope<'_, '_>, node: &Node, lines: fn(&mut Conf) -> &mut Lines) -> Result<(), Problem> {
    let [name, value, rest @ ..] = node.args.as_slice() else { unreachable!("the table says two or three") };
    if let Some(word) = rest.first().filter(|w| **w != "always") {
        return Err(node.problem(format!("invalid parameter \"{}\"", word.as_str())));
    }
    let line = Line {
        name: name.text.clone().into(),
        known: K::find(&name.text),
        value: Complex::compile_field(scope.build, node, &value.text)?,
        always: !rest.is_empty(),
    };
    Arc::make_mut(&mut lines(&mut scope.level.conf.headers).all).push(line);
    Ok(())
}

fn expires(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if scope.level.conf.headers.expires.is_set() {
        return Err(duplicate(node));
    }
    let (kind, word) = match node.args.as_slice() {
        [value] => (Kind::Access, value),
        [modified, value] if *modified == "modified" => (Kind::Modified, value),
        _ => return Err(invalid(node)),
    };
    let text = Complex::compile(scope.build, word)?;
    let expires = if text.as_fixed().is_none() {
        Expires { kind, seconds: 0, value: Some(text) }
    } else {
        let (kind, seconds) =
            parse(&word.text, kind).map_err(|e| node.problem(format!("\"expires\" directive {e}")))?;
        Expires { kind, seconds, value: None }
    };
    scope.level.conf.headers.expires.force(expires);
    Ok(())
}

/// Reads a value of `expires`; `kind` is what was said before it (`ngx_http_parse_expires`).
fn parse(text: &[u8], kind: Kind) -> Result<(Kind, i64), &'static str> {
    if kind != Kind::Modified {
        match text {
            b"epoch" => return Ok((Kind::Epoch, 0)),
            b"max" => return Ok((Kind::Max, 0)),
            b"off" => return Ok((Kind::Off, 0)),
            _ => {}
        }
    }
    let (kind, minus, text) = match text {
        [b'@', ..] if kind == Kind::Modified => {
            return Err("daily time cannot be used with \"modified\" parameter");
        }
        [b'@', rest @ ..] => (Kind::Daily, false, rest),
        [b'+', rest @ ..] => (kind, false, rest),
        [b'-', rest @ ..] => (kind, true, rest),
        _ => (kind, false, text),
    };
    let seconds = value::seconds(text).ok_or("invalid value")? as i64;
    if kind == Kind::Daily && seconds > SECONDS_A_DAY {
        return Err("daily time value must be less than 24 hours");
    }
    Ok((kind, if minus { -seconds } else { seconds }))
}

/// Statuses whose answers get headers without `always`.
fn is_safe(status: u16) -> bool {
    matches!(status, 200 | 201 | 204 | 206 | 301 | 302 | 303 | 304 | 307 | 308)
}

/// The header filter.
pub fn filter(r: &mut Request) -> Filtered {
    if !r.is_main() {
        return Filtered::Next;
    }
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.headers;
    let safe = is_safe(r.answer.headers.status);
    if safe && conf.expires.kind != Kind::Off {
        set_expires(r, &conf.expires);
    }
    for line in conf.headers.all.iter().filter(|l| safe || l.always) {
        set_header(r, line);
    }
    if conf.trailers.all.iter().any(|l| safe || l.always) {
        r.answer.headers.expect_trailers = true;
        r.answer.body_filters.insert(0, Box::new(Trailers));
    }
    Filtered::Next
}

fn set_header(r: &mut Request, line: &Line) {
    let value = line.value.eval(r);
    let bytes = r.get(value);
    let empty = bytes.is_empty();
    match line.known {
        K::LastModified => {
            let time = wire::date::parse_http(bytes);
            r.answer.headers.last_modified = time;
            r.answer.headers.remove(K::LastModified);
        }
        K::Etag => r.answer.headers.remove(K::Etag),
        _ => {}
    }
    if empty {
        return;
    }
    // Other names do not touch what the server itself sets: nginx sends both.
    let known = match line.known {
        k @ (K::LastModified | K::Etag | K::CacheControl | K::Link) => k,
        _ => K::Other,
    };
    let name = r.text(&line.name);
    r.answer.headers.lines.push(HeaderOut { name, value, known });
}

fn set_expires(r: &mut Request, expires: &Expires) {
    let (mut kind, mut seconds) = (expires.kind, expires.seconds);
    if let Some(value) = &expires.value {
        let value = value.eval(r);
        match parse(r.get(value), kind) {
            Ok((Kind::Off, _)) | Err(_) => return,
            Ok(parsed) => (kind, seconds) = parsed,
        }
    }
    let now = clock::wall_seconds();
    let (date, cache) = match kind {
        Kind::Epoch => (Text::from(EPOCH), Text::from("no-cache")),
        Kind::Max => (Text::from(LATEST), Text::from("max-age=315360000")),
        _ if seconds == 0 && kind != Kind::Daily => {
            (r.text(&crate::worker::date::http_date()), Text::from("max-age=0"))
        }
        _ => {
            let at = match (kind, r.answer.headers.last_modified) {
                (Kind::Daily, _) => crate::log::next_at(seconds),
                (Kind::Modified, Some(modified)) => modified.saturating_add(seconds),
                _ => now.saturating_add(seconds),
            };
            let date = r.text(&wire::date::format_http(at));
            let age = at - now;
            (date, if expires.seconds < 0 || age < 0 { Text::from("no-cache") } else { text!(r, "max-age={age}") })
        }
    };
    replace(r, K::Expires, "Expires", date);
    replace(r, K::CacheControl, "Cache-Control", cache);
}

/// Gives a header a new value in its old place, and takes others of its kind away.
fn replace(r: &mut Request, known: K, name: &'static str, value: Text) {
    let lines = &mut r.answer.headers.lines;
    let Some(at) = lines.iter().position(|l| l.known == known) else {
        return r.answer.headers.add(known, name, value);
    };
    lines[at].value = value;
    let mut index = 0;
    lines.retain(|l| {
        index += 1;
        l.known != known || index - 1 == at
    });
}

/// Makes the trailers when the last piece of the body passes: their variables may tell of the whole answer.
struct Trailers;

impl BodyFilter for Trailers {
    fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool, mut rest: Rest<'_>) -> std::io::Result<()> {
        if last {
            let snapshot = r.snapshot.clone();
            let safe = is_safe(r.answer.headers.status);
            let lines = &snapshot.location(r.location).conf.headers.trailers.all;
            for line in lines.iter().filter(|l| safe || l.always) {
                let value = line.value.eval(r);
                if crate::request::respond::ends_line(r.get(value)) {
                    let name = String::from_utf8_lossy(&line.name);
                    crate::log_error!(r, Error, "trailer \"{name}\" is not sent: there is CR, LF or NUL in its value");
                } else if !r.get(value).is_empty() {
                    let name = r.text(&line.name);
                    r.answer.headers.trailers.push(HeaderOut { name, value, known: K::Other });
                }
            }
        }
        rest.push(r, chunk, last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_expires() {
        let access = |text: &str| parse(text.as_bytes(), Kind::Access);
        assert_eq!(access("epoch"), Ok((Kind::Epoch, 0)));
        assert_eq!(access("max"), Ok((Kind::Max, 0)));
        assert_eq!(access("off"), Ok((Kind::Off, 0)));
        assert_eq!(access("-1"), Ok((Kind::Access, -1)));
        assert_eq!(access("+1h"), Ok((Kind::Access, 3600)));
        assert_eq!(access("@15h30m"), Ok((Kind::Daily, 55800)));
        assert_eq!(access("@25h"), Err("daily time value must be less than 24 hours"));
        assert_eq!(access(""), Err("invalid value"));
        assert_eq!(parse(b"epoch", Kind::Modified), Err("invalid value"));
        assert_eq!(parse(b"1d", Kind::Modified), Ok((Kind::Modified, 86400)));
        assert!(parse(b"@1h", Kind::Modified).is_err());
    }

    #[test]
    fn lines_are_inherited_whole_or_not_at_all() {
        let line = |name: &str| Line {
            name: name.as_bytes().into(),
            known: K::Other,
            value: Complex::default(),
            always: false,
        };
        let parent = Lines { all: Arc::new(vec![line("a")]), ..Lines::default() };
        let names = |own: &[&str], inherit| {
            let mut lines = Lines { all: Arc::new(own.iter().map(|n| line(n)).collect()), ..Lines::default() };
            lines.inherit.force(inherit);
            lines.merge(&parent);
            lines.all.iter().map(|l| l.name[0] as char).collect::<String>()
        };
        assert_eq!(names(&[], Inherit::On), "a");
        assert_eq!(names(&["b"], Inherit::On), "b");
        assert_eq!(names(&["b"], Inherit::Merge), "ba");
        assert_eq!(names(&[], Inherit::Off), "");
    }
}
