//! Which of the last requests of the access logs would go elsewhere. A line is cut by its `log_format`, made a request again, and routed
//! under both configurations by the request's own functions. What a line does not say (cookies, other headers, bodies) nobody knows here.

use super::line::{Part, cut};
use crate::config::Matching;
use crate::connection::{Address, Client, Downstream};
use crate::modules::log::{Readable, Shape, readable};
use crate::process_settings::{ListenAddress, SocketKind};
use crate::request::{Request, head, phases};
use crate::snapshot::{Location, Snapshot, ThreadSnapshot};
use serde::Serialize;
use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use wire::http1::Parsed;
use wire::http1::request::{RequestParser, Rules};

/// So much of the end of each log is read, bytes.
const TAIL: u64 = 8 << 20;
/// So many of the last lines of each log are looked at.
const MOST_LINES: usize = 20_000;
/// Logs that are read.
const MOST_LOGS: usize = 64;
/// Different requests that are routed; more are not told apart by anything that matters, mostly.
const MOST_REQUESTS: usize = 100_000;

/// Where a request is answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Where {
    /// The server's first name; `-`: it has none.
    pub server: String,
    /// The location as it is written.
    pub location: String,
    /// Who answers: a directive, `return 404`, `files in /path`.
    pub handler: String,
}

/// Requests that go from one place to another.
#[derive(Debug, Serialize)]
pub struct Detour {
    /// How many of the lines.
    pub count: u64,
    /// One of them.
    pub example: String,
    /// Under the configuration that runs.
    pub was: Where,
    /// Under the new one.
    pub becomes: Where,
}

/// What was found.
#[derive(Debug, Default, Serialize)]
pub struct Requests {
    /// The logs that were read.
    pub logs: Vec<String>,
    /// Lines that are requests.
    pub read: u64,
    /// Lines that do not have the form of their format.
    pub unread: u64,
    /// Lines of which the host is not known.
    pub without_host: u64,
    /// Lines whose requests pass programs, which were not run.
    pub with_programs: u64,
    /// Lines that go elsewhere.
    pub elsewhere: u64,
    /// Where from and to, the most frequent first.
    pub detours: Vec<Detour>,
}

/// What a line says of a request, as far as it matters for its way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Asked {
    method: Vec<u8>,
    target: Vec<u8>,
    host: Vec<u8>,
    port: Option<u16>,
    is_tls: Option<bool>,
    agent: Vec<u8>,
    referer: Vec<u8>,
    client: Option<IpAddr>,
}

/// Reads the logs of the old configuration, and routes.
pub(super) fn compare(old: Arc<Snapshot>, new: Arc<Snapshot>) -> Requests {
    let mut found = Requests::default();
    let mut asked: HashMap<Asked, u64> = HashMap::new();
    for log in readable(&old).iter().take(MOST_LOGS) {
        let Some(lines) = tail(&log.path).filter(|_| says_request(&log.shape)) else { continue };
        found.logs.push(log.path.display().to_string());
        let lines: Vec<&[u8]> = lines.split(|b| *b == b'\n').filter(|l| !l.is_empty()).collect();
        for line in &lines[lines.len().saturating_sub(MOST_LINES)..] {
            match read_line(log, line) {
                Some(request) => {
                    found.read += 1;
                    found.without_host += u64::from(request.host.is_empty());
                    if asked.len() < MOST_REQUESTS || asked.contains_key(&request) {
                        *asked.entry(request).or_default() += 1;
                    }
                }
                None => found.unread += 1,
            }
        }
    }
    let (old, new) = (view(old), view(new));
    let mut detours: HashMap<(Where, Where), (u64, String)> = HashMap::new();
    for (request, count) in &asked {
        let ((was, program), (becomes, another)) = (route(&old, request), route(&new, request));
        found.with_programs += if program || another { *count } else { 0 };
        if was == becomes {
            continue;
        }
        found.elsewhere += count;
        let text = |b: &[u8]| String::from_utf8_lossy(b).escape_debug().to_string();
        let shown = format!("{} {}{}", text(&request.method), text(&request.host), text(&request.target));
        let known = detours.entry((was, becomes)).or_insert_with(|| (0, shown.clone()));
        known.0 += count;
        // The same example each time.
        known.1 = shown.min(std::mem::take(&mut known.1));
    }
    let detour = |((was, becomes), (count, example))| Detour { count, example, was, becomes };
    found.detours = detours.into_iter().map(detour).collect();
    found.detours.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.example.cmp(&b.example)));
    found
}

/// The end of a file, from the beginning of a line on.
fn tail(path: &Path) -> Option<Vec<u8>> {
    let mut file = std::fs::File::open(path).ok().filter(|f| f.metadata().is_ok_and(|m| m.is_file()))?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes).ok()?;
    if length > TAIL {
        let first = memchr::memchr(b'\n', &bytes)? + 1;
        bytes.drain(..first);
    }
    Some(bytes)
}

fn says_request(shape: &[Shape]) -> bool {
    let has = |name: &str| shape.iter().any(|s| matches!(s, Shape::Variable(v) if **v == *name));
    has("request") || has("request_uri") || has("uri")
}

fn part(shape: &Shape) -> Part<'_> {
    match shape {
        Shape::Text(text) => Part::Text(text),
        Shape::Variable(name) => Part::Variable(name),
    }
}

/// The request of a line.
fn read_line(log: &Readable, line: &[u8]) -> Option<Asked> {
    let format: Vec<Part<'_>> = log.shape.iter().map(part).collect();
    let mut asked = Asked::default();
    let (mut request, mut uri, mut args) = (None, None, None);
    for (name, value) in cut(&format, line)? {
        let text = || std::str::from_utf8(&value).ok();
        match name {
            "request" => request = Some(value),
            "request_method" => asked.method = value,
            "request_uri" => asked.target = value,
            "uri" | "document_uri" => uri = Some(value),
            "args" | "query_string" => args = Some(value),
            "host" | "http_host" | "ssl_server_name" if !value.is_empty() => asked.host = value,
            "server_name" if asked.host.is_empty() => asked.host = value,
            "server_port" => asked.port = text().and_then(|t| t.parse().ok()),
            "scheme" => asked.is_tls = text().map(|t| t == "https"),
            "http_user_agent" => asked.agent = value,
            "http_referer" => asked.referer = value,
            "remote_addr" => asked.client = text().and_then(|t| t.parse().ok()),
            _ => {}
        }
    }
    if let Some(line) = request {
        let mut words = line.split(|b| *b == b' ');
        (asked.method, asked.target) = (words.next()?.to_vec(), words.next()?.to_vec());
    } else if let Some(uri) = uri.filter(|_| asked.target.is_empty()) {
        // Decoded: what is no part of a target is written as one again.
        wire::http1::escape::escape_uri(&uri, wire::http1::escape::Escape::Uri, &mut asked.target);
        args.filter(|a| !a.is_empty()).iter().for_each(|a| asked.target.extend([b"?", a.as_slice()].concat()));
    }
    if asked.method.is_empty() {
        asked.method = b"GET".to_vec();
    }
    if asked.host.is_empty()
        && let Some(name) = log.server.as_ref().filter(|n| !n.is_empty())
    {
        asked.host = name.to_vec();
    }
    let is_sane = |b: &[u8]| !b.is_empty() && b.iter().all(|b| *b > b' ' && *b != 0x7f);
    (is_sane(&asked.method) && is_sane(&asked.target)).then_some(asked)
}

/// A view whose listeners are its addresses, one by one.
fn view(snapshot: Arc<Snapshot>) -> Rc<ThreadSnapshot> {
    let snapshot = ThreadSnapshot::new(snapshot);
    let _ = snapshot.places.set((0..snapshot.listens.len()).collect());
    Rc::new(snapshot)
}

/// The address that a request most likely came to: that of its port, spoken to as it was; the first one otherwise.
fn address_of(snapshot: &ThreadSnapshot, asked: &Asked) -> Option<usize> {
    let host = String::from_utf8_lossy(&asked.host);
    let port = asked.port.or_else(|| host.rsplit_once(':')?.1.parse().ok());
    let fits = |at: usize| {
        let l = &snapshot.listens[at];
        let same_port = matches!(&l.address, ListenAddress::Inet(a) if Some(a.port()) == port);
        let same_way = asked.is_tls.is_none_or(|tls| tls == snapshot.ports[at].encrypted());
        (u8::from(same_port) * 2 + u8::from(same_way), std::cmp::Reverse(at))
    };
    let all = (0..snapshot.ports.len()).filter(|at| snapshot.listens[*at].kind == SocketKind::Stream);
    all.max_by_key(|at| fits(*at))
}

/// Where a request is answered under a configuration, and whether programs are on its way.
fn route(snapshot: &Rc<ThreadSnapshot>, asked: &Asked) -> (Where, bool) {
    let nowhere = |why: &str| (Where { server: "-".into(), location: "-".into(), handler: why.into() }, false);
    let Some(listen) = address_of(snapshot, asked) else { return nowhere("nobody listens") };
    let ip = asked.client.unwrap_or(IpAddr::from([127, 0, 0, 1]));
    let client = Client::new(1, Address::Inet(SocketAddr::new(ip, 1)), listen, Weak::new());
    if let ListenAddress::Inet(address) = &snapshot.listens[listen].address {
        client.local.replace(Some(Box::new(Address::Inet(*address))));
    }
    let mut text = [&asked.method, b" ".as_slice(), &asked.target, b" HTTP/1.0\r\n"].concat();
    for (name, value) in [("Host", &asked.host), ("User-Agent", &asked.agent), ("Referer", &asked.referer)] {
        if !value.is_empty() && !value.iter().any(|b| b"\r\n\0".contains(b)) {
            text.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
    }
    text.extend_from_slice(b"\r\n");
    let mut r = Request::new(snapshot.clone(), client, Downstream::None);
    r.server = head::default_server(&r);
    r.location = r.server().root;
    let rules =
        Rules { ignore_invalid_headers: true, underscores_in_headers: false, max_headers: 8, pause_at_host: false };
    match RequestParser::default().parse(&text, &rules, &mut r.head.headers.head) {
        Ok(Parsed::Complete { .. }) => {}
        _ => return nowhere("no request"),
    }
    r.arena.push(&text);
    if let Err(status) = head::accept_for_way(&mut r) {
        return nowhere(&format!("status {status}"));
    }
    let way = phases::find_way(&mut r);
    (place(&mut r, way.status), way.has_programs)
}

fn place(r: &mut Request, status: Option<u16>) -> Where {
    let snapshot = r.snapshot.clone();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let name = &snapshot.server(r.server).name;
    let location = snapshot.location(r.location);
    let handler = match status {
        Some(status) => {
            let to = r.answer.headers.find(crate::request::headers::KnownHeader::Location);
            let to = to
                .filter(|_| (300..400).contains(&status))
                .map(|to| format!(" {}", text(r.get(to))))
                .unwrap_or_default();
            format!("return {status}{to}")
        }
        None if !location.handler.is_empty() => location.handler.to_string(),
        None if r.flow.content_handler.is_some() => "the handler of the location around".to_owned(),
        None => {
            let root = crate::modules::root::document_root(r);
            format!("files in {}", text(r.get(root)))
        }
    };
    Where { server: if name.is_empty() { "-".to_owned() } else { text(name) }, location: written(location), handler }
}

fn written(location: &Location) -> String {
    let name = String::from_utf8_lossy(&location.name);
    match location.matching {
        Matching::Prefix => name.into_owned(),
        Matching::PrefixFinal => format!("^~ {name}"),
        Matching::Exact => format!("= {name}"),
        Matching::Regex(_) => format!("~ {name}"),
        Matching::Named => format!("@{name}"),
        Matching::Nameless => "(outside of all)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_made_of_lines() {
        let part = |text: &str, name: &str| [Shape::Text(text.as_bytes().into()), Shape::Variable(name.into())];
        let shape =
            [part("IP ", "remote_addr"), part(" \"", "request"), part("\" ", ""), part(" host=", "host")].concat();
        let log = Readable { path: "a.log".into(), shape, server: None };
        let asked = read_line(&log, br#"IP 10.0.0.7 "GET /a\x22b?c=1 HTTP/1.1" 200 host=a.test"#).unwrap();
        assert_eq!((asked.method.as_slice(), asked.target.as_slice()), (&b"GET"[..], &b"/a\"b?c=1"[..]));
        assert_eq!((asked.host.as_slice(), asked.client), (&b"a.test"[..], Some(IpAddr::from([10, 0, 0, 7]))));
        assert_eq!(read_line(&log, br#"IP 10.0.0.7 "" 400 host=-"#), None, "no request");
    }
}
