//! Fields become a request, and an answer's head becomes fields: what HTTP/2 and HTTP/3 have in common. Pseudo-headers, header
//! lines, cookies (`ngx_http_v2_state_process_header` and what follows it). What is wrong is a status; the meaning of the
//! headers is `request::head`'s.

use super::{Client, Downstream, action, pool};
use crate::log_error;
use crate::modules::core::server::ServerSettings;
use crate::request::arena::Span;
use crate::request::headers::{HeaderLine, KnownHeader as K};
use crate::request::status::write_decimal;
use crate::request::{Method, Purpose, Request, Text, Version, head};
use crate::snapshot::ThreadSnapshot;
use runtime::clock;
use std::rc::Rc;
use wire::http1::target;
use wire::http2::hpack::HeaderBlock;

/// A head that has come.
pub struct Arrived<'a> {
    /// The protocol's version.
    pub version: Version,
    /// No body follows.
    pub end: bool,
    /// Bytes of the block as it was sent.
    pub len: usize,
    /// Its fields, or why they are none.
    pub block: Result<&'a HeaderBlock, Refused>,
}

/// What is no head that could be read.
#[derive(Clone, Copy)]
pub struct Refused {
    /// To answer with.
    pub status: u16,
    /// What the log says.
    pub text: &'static str,
}

/// What follows the target in the request line that these protocols do not have.
fn line_end(version: Version) -> &'static [u8] {
    match version {
        Version::HTTP30 => b" HTTP/3.0",
        Version::HTTP09 => b"",
        _ => b" HTTP/2.0",
    }
}

/// The pseudo-headers, of which a request line is made.
#[derive(Clone, Copy, Default)]
struct LineSpans {
    method: Option<Span>,
    path: Option<Span>,
    scheme: Option<Span>,
    authority: Option<Span>,
    protocol: Option<Span>,
}

/// What was found among the fields.
#[derive(Default)]
struct FieldSpans {
    line: LineSpans,
    cookies: Vec<Span>,
    /// A header that is no pseudo-header has been seen.
    regular: bool,
}

/// Makes a request. The error is the status to answer with.
pub fn open(
    way: Downstream,
    client: &Rc<Client>,
    snapshot: Rc<ThreadSnapshot>,
    arrived: &Arrived<'_>,
) -> (Box<Request>, Result<(), u16>) {
    let mut r = pool::take_request(snapshot, client.clone(), way);
    r.started_ms = clock::wall_ms();
    r.request_length = arrived.len as u64;
    r.head.version = arrived.version;
    r.head.headers.head.version = arrived.version;
    let server = head::default_server(&r);
    r.server = server;
    r.location = r.snapshot.server(server).root;
    r.flow.number = r.client.requests.get() + 1;
    r.client.requests.set(r.flow.number);
    r.action = action::READING_HEADERS;
    let result = read(&mut r, arrived);
    (r, result)
}

fn read(r: &mut Request, arrived: &Arrived<'_>) -> Result<(), u16> {
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.server(r.server).conf.core;
    let block = arrived.block.map_err(|refused| {
        log_error!(r, Info, "{}", refused.text);
        refused.status
    })?;
    if block.nameless {
        log_error!(r, Info, "client sent zero header name length");
        return Err(400);
    }
    let mut found = FieldSpans::default();
    if let Err(status) = fields(r, conf, block, &mut found) {
        known_part(r, &found.line);
        return Err(status);
    }
    join_cookies(r, &found.cookies);
    head::accept_stream(r, found.line.authority, arrived.end)?;
    if let Some(stream) = r.downstream.stream() {
        stream.expect(r.head.headers.content_length);
    }
    Ok(())
}

/// The fields of a head one by one.
fn fields(r: &mut Request, conf: &ServerSettings, block: &HeaderBlock, found: &mut FieldSpans) -> Result<(), u16> {
    let base = r.arena.push(&block.bytes).start;
    let moved = |s: Span| Span { start: s.start + base, end: s.end + base };
    for field in &block.fields {
        let (name, value) = (moved(field.name), moved(field.value));
        let odd = check_field(r, conf, name, value)?;
        if r.arena.span(name)[0] == b':' {
            pseudo(r, found, name, value)?;
            continue;
        }
        if !std::mem::replace(&mut found.regular, true) {
            request_line(r, &found.line)?;
        }
        if odd && *conf.ignore_invalid_headers {
            log_error!(r, Info, "client sent invalid header: \"{}\"", lossy(r, name));
            continue;
        }
        let known = K::find(r.arena.span(name));
        if known == K::Other
            && r.arena.span(name) == b"priority"
            && let (Some(stream), Some(priority)) = (r.downstream.stream(), wire::priority::parse(r.arena.span(value)))
        {
            stream.prioritize(priority);
        }
        if known == K::Cookie {
            found.cookies.push(value);
            continue;
        }
        if r.head.headers.head.headers.len() >= *conf.max_headers as usize {
            log_error!(r, Info, "client sent too many header lines");
            return Err(494);
        }
        r.head.headers.head.headers.push(HeaderLine { name, value, known });
    }
    if !found.regular {
        request_line(r, &found.line)?;
    }
    Ok(())
}

/// What can be said of a head that is malformed: method and target, where they came before the fault. Its error page and the log know them.
fn known_part(r: &mut Request, found: &LineSpans) {
    let (Some(method), Some(path)) = (found.method, found.path) else { return };
    if r.arena.span(path).is_empty() || !take_target(r, method, path) {
        return;
    }
    if let Some(authority) = found.authority {
        let (name, value) = (r.arena.push(b"host"), authority);
        r.head.headers.head.headers.push(HeaderLine { name, value, known: K::Host });
    }
    head::accept_part(r);
    if r.head.headers.head.line.is_empty() {
        r.head.line = Text::EMPTY;
    }
}

/// Takes the parts of a target apart. False: it is none.
fn take_target(r: &mut Request, method: Span, path: Span) -> bool {
    let Ok(parts) = target::split(r.arena.span(path)) else { return false };
    let within = |s: Span| Span { start: s.start + path.start, end: s.end + path.start };
    let id = Method::of(r.arena.span(method));
    let head = &mut r.head.headers.head;
    (head.method, head.method_id, head.target) = (method, id, path);
    (head.path, head.args) = (within(parts.path), parts.args.map(within));
    (head.complex, head.quoted, head.plus) = (parts.complex, parts.quoted, parts.plus);
    true
}

fn lossy(r: &Request, span: Span) -> String {
    String::from_utf8_lossy(r.arena.span(span)).into_owned()
}

/// Names are lower case tokens, values have no line ends (RFC 9113 section 8.2.1). True: the name has odd bytes.
fn check_field(r: &Request, conf: &ServerSettings, name: Span, value: Span) -> Result<bool, u16> {
    let bytes = r.arena.span(name);
    let mut odd = false;
    for &byte in &bytes[usize::from(bytes[0] == b':')..] {
        match byte {
            b'a'..=b'z' | b'-' | b'0'..=b'9' => {}
            b'_' if *conf.underscores_in_headers => {}
            0..=b' ' | 0x7f | b':' | b'A'..=b'Z' => {
                log_error!(r, Info, "client sent invalid header name: \"{}\"", lossy(r, name));
                return Err(400);
            }
            _ => odd = true,
        }
    }
    if r.arena.span(value).iter().any(|byte| matches!(byte, 0 | b'\n' | b'\r')) {
        let (name, value) = (lossy(r, name), lossy(r, value));
        log_error!(r, Info, "client sent header \"{name}\" with invalid value: \"{value}\"");
        return Err(400);
    }
    Ok(odd)
}

/// What is wrong with trailers, if anything is: they are held to the rules of headers (RFC 9113 sections 8.1 and 8.2).
pub fn trailers_fault(block: &HeaderBlock) -> Option<&'static str> {
    if block.nameless {
        return Some("client sent zero header name length in trailers");
    }
    block.iter().find_map(|(name, value)| {
        if name[0] == b':' {
            return Some("client sent pseudo-header in trailers");
        }
        if name.iter().any(|b| matches!(b, 0..=b' ' | 0x7f.. | b':' | b'A'..=b'Z')) {
            return Some("client sent invalid header name in trailers");
        }
        if value.iter().any(|b| matches!(b, 0 | b'\n' | b'\r')) {
            return Some("client sent header with invalid value in trailers");
        }
        let of_connection = [K::Connection, K::KeepAlive, K::ProxyConnection, K::Te, K::TransferEncoding, K::Upgrade];
        of_connection.contains(&K::find(name)).then_some("client sent header of a connection in trailers")
    })
}

fn pseudo(r: &mut Request, found: &mut FieldSpans, name: Span, value: Span) -> Result<(), u16> {
    if found.regular {
        log_error!(r, Info, "client sent out of order pseudo-headers");
        return Err(400);
    }
    let (slot, shown) = match r.arena.span(name) {
        b":method" => (&mut found.line.method, ":method"),
        b":path" => (&mut found.line.path, ":path"),
        b":scheme" => (&mut found.line.scheme, ":scheme"),
        b":authority" => (&mut found.line.authority, "\":authority\""),
        b":protocol" if *r.conf().http2.extended_connect => (&mut found.line.protocol, ":protocol"),
        _ => {
            log_error!(r, Info, "client sent unknown pseudo-header \"{}\"", lossy(r, name));
            return Err(400);
        }
    };
    if slot.is_some() {
        log_error!(r, Info, "client sent duplicate {shown} header");
        return Err(400);
    }
    *slot = Some(value);
    if shown != "\":authority\"" && value.is_empty() {
        log_error!(r, Info, "client sent empty {shown} header");
        return Err(400);
    }
    let text = r.arena.span(value);
    let valid = match shown {
        ":method" => text.iter().all(|b| matches!(b, b'A'..=b'Z' | b'_' | b'-')),
        ":scheme" => is_scheme(text),
        _ => return Ok(()),
    };
    if !valid {
        let what = if shown == ":method" { "method" } else { ":scheme header" };
        log_error!(r, Info, "client sent invalid {what}: \"{}\"", lossy(r, value));
        return Err(400);
    }
    Ok(())
}

fn is_scheme(text: &[u8]) -> bool {
    text[0].is_ascii_alphabetic() && text.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
}

/// A CONNECT has no path: the server's root stands for it, as with HTTP/1.1. With `:protocol` it is what it stands for (RFC 8441 section 4).
fn connect(r: &mut Request, found: &mut LineSpans) -> Result<(), u16> {
    let is_connect = found.method.is_some_and(|method| r.arena.span(method) == b"CONNECT");
    match found.protocol {
        Some(_) if !is_connect || found.authority.is_none() => {
            log_error!(r, Info, "client sent :protocol header without CONNECT or \":authority\"");
            return Err(400);
        }
        Some(protocol) if !r.arena.span(protocol).eq_ignore_ascii_case(b"websocket") => {
            log_error!(r, Info, "client asked for the protocol \"{}\"", lossy(r, protocol));
            return Err(501);
        }
        Some(_) => {
            r.head.purpose = Purpose::WebSocket;
            found.method = Some(r.arena.push(b"GET"));
        }
        None if is_connect && found.path.is_none() && found.scheme.is_none() && found.authority.is_some() => {
            r.head.purpose = Purpose::Tunnel;
            found.path = Some(r.arena.push(b"/"));
            found.scheme = found.path;
        }
        None => {}
    }
    Ok(())
}

/// The line that `$request` and the logs show, and the target's parts (`ngx_http_v2_construct_request_line`).
fn request_line(r: &mut Request, found: &LineSpans) -> Result<(), u16> {
    let mut found = *found;
    connect(r, &mut found)?;
    let (Some(method), Some(_), Some(path)) = (found.method, found.scheme, found.path) else {
        let missing = [(found.method, ":method"), (found.scheme, ":scheme"), (found.path, ":path")];
        let name = missing.iter().find(|(value, _)| value.is_none()).map_or("", |(_, name)| name);
        log_error!(r, Info, "client sent no {name} header");
        return Err(400);
    };
    let start = r.arena.mark();
    r.arena.append(Text::Own(method));
    r.arena.buffer().push(b' ');
    r.arena.append(Text::Own(if r.head.purpose == Purpose::Tunnel { found.authority.unwrap_or(path) } else { path }));
    let end = line_end(r.head.version);
    r.arena.buffer().extend_from_slice(end);
    let line = r.arena.since(start);
    if !take_target(r, method, path) {
        log_error!(r, Info, "client sent invalid :path header: \"{}\"", lossy(r, path));
        return Err(400);
    }
    let head = &mut r.head.headers.head;
    head.line = line;
    head.protocol = (!end.is_empty()).then(|| Span { start: line.end - end.len() as u32 + 1, end: line.end });
    Ok(())
}

/// Cookies may come in pieces; everybody else knows one header (RFC 9113 section 8.2.3).
fn join_cookies(r: &mut Request, cookies: &[Span]) {
    let value = match cookies {
        [] => return,
        [one] => *one,
        _ => {
            let start = r.arena.mark();
            for (i, cookie) in cookies.iter().enumerate() {
                if i > 0 {
                    r.arena.buffer().extend_from_slice(b"; ");
                }
                r.arena.append(Text::Own(*cookie));
            }
            r.arena.since(start)
        }
    };
    let name = r.arena.push(b"cookie");
    r.head.headers.head.headers.push(HeaderLine { name, value, known: K::Cookie });
}

/// The fields of an answer's head behind its status, in their order.
pub fn head_fields(r: &Request, server_token: &[u8], mut field: impl FnMut(&[u8], &[u8])) {
    let h = &r.answer.headers;
    if !h.has(K::Server) {
        field(b"server", server_token);
    }
    if !h.has(K::Date) {
        field(b"date", &crate::worker::date::http_date());
    }
    if let Some(kind) = h.content_type.filter(|t| !r.arena.get(*t).is_empty()) {
        match h.charset {
            Some(_) => {
                let mut value = Vec::new();
                h.write_content_type(&r.arena, &mut value);
                field(b"content-type", &value);
            }
            None => field(b"content-type", r.arena.get(kind)),
        }
    }
    if let Some(n) = h.content_length {
        let mut digits = Vec::with_capacity(20);
        write_decimal(n, &mut digits);
        field(b"content-length", &digits);
    }
    if let Some(t) = h.last_modified.filter(|_| !h.has(K::LastModified)) {
        field(b"last-modified", &wire::date::format_http(t));
    }
    for l in h.lines.iter().filter(|l| l.known == K::Location) {
        field(b"location", r.arena.get(l.value));
    }
    for l in h.lines.iter().filter(|l| l.known != K::Location) {
        let value = r.arena.get(l.value);
        // As with HTTP/1: an empty one of these only keeps the server from its own.
        if !(value.is_empty() && matches!(l.known, K::Date | K::Server)) {
            field(r.arena.get(l.name), value);
        }
    }
}
