//! From a parsed head to a request: target, host, server, framing. From: `connection::http1`. To: `phases`.
//! What is wrong with a head is a status; nothing has been done for the request then.

use super::arena::{Span, Text};
use super::headers::KnownHeader as K;
use super::{Method, Purpose, Request, Version};
use crate::connection::action;
use crate::log_error;
use crate::snapshot::ServerId;
use wire::encoding::{Alphabet, base64_encode};
use wire::http1::{target, values};

/// The server that stands for an address before the name is known.
pub fn default_server(r: &Request) -> ServerId {
    r.snapshot.ports[crate::worker::port_of(&r.snapshot, r.client.listener)].site(&r.client).default
}

/// Takes over what the parser found and checks it as nginx does (`ngx_http_process_request_header`).
pub fn accept(r: &mut Request) -> Result<(), u16> {
    request_line(r)?;
    let chosen = choose_server(r);
    log_ignored(r);
    let secured = chosen?;
    host_is_said(r)?;
    framing(r)?;
    check_server(r, secured)?;
    refuse_methods(r)?;
    if r.head.version < Version::HTTP11 {
        r.flow.keepalive = r.head.headers.connection_keep_alive && !r.head.headers.connection_close;
    } else {
        r.flow.keepalive = !r.head.headers.connection_close;
    }
    Ok(())
}

/// The same as far as it tells whose a request is: its target and its host. For who only wants to know (`plan`).
pub fn accept_for_way(r: &mut Request) -> Result<(), u16> {
    request_line(r)?;
    choose_server(r).map(drop)
}

/// What can be said of a head that went wrong after its first line. The server that answers is the host's, if that came before.
pub fn accept_part(r: &mut Request) {
    if request_line(r).is_err() {
        return;
    }
    let host = r.head.headers.host.or(r.head.headers.find(K::Host));
    if host.is_some_and(|host| set_host(r, host, "client sent invalid host header").is_ok()) {
        // It is refused in any case.
        let _ = find_server(r);
    }
}

/// The same for a head that came in an HTTP/2 stream (`ngx_http_v2_run_request`). `ended`: no body follows.
pub fn accept_stream(r: &mut Request, authority: Option<Span>, ended: bool) -> Result<(), u16> {
    request_line(r)?;
    if let Some(authority) = authority {
        set_host(r, authority.into(), "client sent invalid \":authority\" header")?;
    }
    let secured = choose_server(r)?;
    if r.head.headers.host.is_none() {
        log_error!(r, Info, "client sent neither \":authority\" nor \"Host\" header");
        return Err(400);
    }
    host_is_said(r)?;
    let port = &r.snapshot.ports[crate::worker::port_of(&r.snapshot, r.client.listener)];
    let (http2, http3) = (&r.conf().http2, &r.conf().http3);
    let enabled = match r.head.version {
        Version::HTTP30 => *http3.http3,
        Version::HTTP09 => *http3.http3_hq,
        _ => *http2.http2 || port.site(&r.client).http2,
    };
    if !enabled {
        let text = "client attempted to request the server name for which the negotiated protocol is disabled";
        log_error!(r, Info, "{text}");
        return Err(421);
    }
    connection_headers(r)?;
    match (authority, r.head.headers.find(K::Host)) {
        (Some(authority), Some(host)) if r.get(host) != r.get(authority) => {
            log_error!(r, Info, "client sent \":authority\" and \"Host\" headers with different values");
            return Err(400);
        }
        (Some(value), None) => {
            let name = r.arena.push(b"host");
            r.head.headers.head.headers.push(super::headers::HeaderLine { name, value, known: K::Host });
        }
        _ => {}
    }
    if r.head.purpose != Purpose::Answer {
        check_server(r, secured)?;
        return accept_tunnel(r);
    }
    if r.head.headers.content_length.is_some_and(|n| n > 0) && ended {
        log_error!(r, Info, "client prematurely closed stream");
        return Err(400);
    }
    if !ended {
        r.head.headers.chunked = r.head.headers.content_length.is_none();
        r.body.expect_stream(r.head.headers.content_length);
    }
    check_server(r, secured)?;
    refuse_methods(r)
}

/// What comes on the stream is no body, but goes through (RFC 9113 section 8.5).
fn accept_tunnel(r: &mut Request) -> Result<(), u16> {
    if r.head.headers.content_length.is_some() {
        log_error!(r, Info, "client sent CONNECT request with body");
        return Err(400);
    }
    if r.head.purpose == Purpose::Tunnel {
        if r.head.port.is_none() {
            log_error!(r, Info, "client sent CONNECT request without a port");
            return Err(400);
        }
        return refuse_methods(r);
    }
    // What a client of HTTP/1.1 would say (RFC 6455 section 4.1): who answers need not know of streams.
    let mut key = [0; 16];
    let _ = rustix::rand::getrandom(&mut key[..], rustix::rand::GetRandomFlags::empty());
    let mut nonce = Vec::new();
    base64_encode(&key, Alphabet::Standard, &mut nonce);
    r.head.headers.head.headers.retain(|l| l.known != K::SecWebSocketKey);
    let lines: [(&[u8], &[u8], K); 3] = [
        (b"upgrade", b"websocket", K::Upgrade),
        (b"connection", b"upgrade", K::Connection),
        (b"sec-websocket-key", &nonce, K::SecWebSocketKey),
    ];
    for (name, value, known) in lines {
        let (name, value) = (r.arena.push(name), r.arena.push(value));
        r.head.headers.head.headers.push(super::headers::HeaderLine { name, value, known });
    }
    Ok(())
}

/// What belongs to a connection of HTTP/1 has no place in a stream (RFC 9113 section 8.2.2).
fn connection_headers(r: &Request) -> Result<(), u16> {
    let named = [
        (K::Connection, "Connection"),
        (K::KeepAlive, "Keep-Alive"),
        (K::ProxyConnection, "Proxy-Connection"),
        (K::TransferEncoding, "Transfer-Encoding"),
        (K::Upgrade, "Upgrade"),
    ];
    for (known, name) in named {
        if r.head.headers.find(known).is_some() {
            log_error!(r, Info, "client sent \"{name}\" header");
            return Err(400);
        }
    }
    let mut te = r.head.headers.lines().iter().filter(|l| l.known == K::Te);
    if let Some(first) = te.next()
        && (te.next().is_some() || !r.arena.span(first.value).eq_ignore_ascii_case(b"trailers"))
    {
        log_error!(r, Info, "client sent invalid \"TE\" header");
        return Err(400);
    }
    Ok(())
}

fn refuse_methods(r: &mut Request) -> Result<(), u16> {
    if r.head.method == Method::Trace {
        log_error!(r, Info, "client sent TRACE method");
        r.flow.lingering_close = true;
        return Err(405);
    }
    if r.head.method == Method::Connect {
        let fits = r.head.version == Version::HTTP11 || r.head.purpose == Purpose::Tunnel;
        if !fits || !r.server().conf.allow_connect {
            log_error!(r, Info, "client sent CONNECT method");
            return Err(405);
        }
        if r.head.headers.content_length.is_some_and(|n| n > 0) || r.head.headers.chunked {
            log_error!(r, Info, "client sent CONNECT request with body");
            return Err(400);
        }
    }
    Ok(())
}

fn request_line(r: &mut Request) -> Result<(), u16> {
    let head = &r.head.headers.head;
    r.head.method = head.method_id;
    r.head.method_name = head.method.into();
    r.head.line = head.line.into();
    r.head.target = head.target.into();
    r.head.version = head.version;
    r.head.scheme = head.scheme.map(Text::Own);
    let absolute = head.absolute_host;
    if head.needs_normalizing() {
        let raw = head.target;
        let merge = *r.server().conf.core.merge_slashes;
        let mut path = std::mem::take(&mut r.scratch);
        path.clear();
        let found = target::normalize(r.arena.span(raw), merge, &mut path);
        let result: Result<(), u16> = match found {
            Ok(n) => {
                // The parser saw them only as far as it went.
                (r.head.headers.head.quoted, r.head.headers.head.plus) = (n.quoted, n.plus);
                r.head.uri = r.text(&path[n.path.range()]);
                r.head.args = match n.args.filter(|args| !args.is_empty()) {
                    Some(a) => wire::span::Span { start: raw.start + a.start, end: raw.start + a.end }.into(),
                    None => Text::EMPTY,
                };
                Ok(())
            }
            Err(_) => {
                // As with nginx: the target is none, and its path is empty.
                (r.head.target, r.head.uri) = (Text::EMPTY, r.text(b""));
                r.action = action::READING_LINE;
                log_error!(r, Info, "client sent invalid request");
                Err(400)
            }
        };
        r.scratch = path;
        result?;
    } else {
        r.head.uri = head.path.into();
        r.head.args = head.args.filter(|args| !args.is_empty()).map_or(Text::EMPTY, Text::Own);
        r.head.plain_uri = true;
    }
    if let Some(host) = absolute {
        set_host(r, host.into(), "client sent invalid host in request line")?;
    }
    Ok(())
}

fn set_host(r: &mut Request, host: Text, complaint: &'static str) -> Result<(), u16> {
    let mark = r.arena.mark();
    r.arena.append(host);
    let all = r.arena.buffer();
    let Ok(parts) = values::lower_host(&mut all[mark..]) else {
        all.truncate(mark);
        log_error!(r, Info, "{complaint}");
        return Err(400);
    };
    all.truncate(mark + parts.name_len);
    r.head.headers.host = Some(Text::Own(r.arena.since(mark)));
    r.head.port = Some(parts.port).filter(|p| *p > 0);
    Ok(())
}

fn log_ignored(r: &mut Request) {
    for i in 0..r.head.headers.head.ignored.len() {
        let line = r.head.headers.head.ignored[i];
        log_error!(r, Info, "client sent invalid header line: \"{}\"", String::from_utf8_lossy(r.arena.span(line)));
    }
}

fn headers(r: &mut Request) -> Result<(), u16> {
    let (mut host_seen, mut length_seen, mut coding_seen) = (false, false, false);
    for i in 0..r.head.headers.head.headers.len() {
        let line = r.head.headers.head.headers[i];
        let value = Text::Own(line.value);
        match line.known {
            K::Host => {
                if host_seen {
                    return Err(duplicate(r, line, "duplicate host header"));
                }
                host_seen = true;
                if r.head.headers.host.is_none() {
                    set_host(r, value, "client sent invalid host header")?;
                } else {
                    // The host of an absolute target wins, but the header has to be a host all the same.
                    let (kept, port) = (r.head.headers.host, r.head.port);
                    set_host(r, value, "client sent invalid host header")?;
                    (r.head.headers.host, r.head.port) = (kept, port);
                }
            }
            K::ContentLength => {
                if length_seen {
                    return Err(duplicate(r, line, "duplicate header line"));
                }
                length_seen = true;
                match values::parse_content_length(r.get(value)) {
                    Some(n) => r.head.headers.content_length = Some(n),
                    None => {
                        log_error!(r, Info, "client sent invalid \"Content-Length\" header");
                        return Err(400);
                    }
                }
            }
            K::TransferEncoding => {
                if coding_seen {
                    return Err(duplicate(r, line, "duplicate header line"));
                }
                coding_seen = true;
            }
            K::Connection => {
                let kind = values::parse_connection(r.arena.span(line.value));
                if let Some(kind) = kind {
                    r.head.headers.connection_close = kind == values::ConnectionType::Close;
                    r.head.headers.connection_keep_alive = kind == values::ConnectionType::KeepAlive;
                }
            }
            // nginx allows these once and calls a second one an error of the client.
            K::IfModifiedSince
            | K::IfUnmodifiedSince
            | K::IfMatch
            | K::IfNoneMatch
            | K::ContentRange
            | K::IfRange
            | K::Expect
            | K::Authorization
            | K::ProxyAuthorization
                if r.head.headers.head.headers[..i].iter().any(|l| l.known == line.known) =>
            {
                return Err(duplicate(r, line, "duplicate header line"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn duplicate(r: &Request, line: super::headers::HeaderLine, what: &str) -> u16 {
    let shown = |line: super::headers::HeaderLine| {
        let (name, value) = (r.arena.span(line.name), r.arena.span(line.value));
        format!("\"{}: {}\"", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
    };
    let first = r.head.headers.lines().iter().find(|l| l.known == line.known).copied().unwrap_or(line);
    log_error!(r, Info, "client sent {what}: {}, previous value: {}", shown(line), shown(first));
    400
}

/// Reads the headers and finds the server that the host names; whether connections to it are secure. What is wrong with a header
/// after the host is answered by that server.
fn choose_server(r: &mut Request) -> Result<bool, u16> {
    let read = headers(r);
    if r.head.headers.host.is_none() {
        read?;
    }
    let secured = find_server(r);
    read.and(secured)
}

/// The error is 500: a pattern among the names gave up, so nobody knows whose the request is.
fn find_server(r: &mut Request) -> Result<bool, u16> {
    // A request without host is for the server called "".
    let host = r.head.headers.host.unwrap_or(Text::EMPTY);
    let snapshot = r.snapshot.clone();
    let site = snapshot.ports[crate::worker::port_of(&snapshot, r.client.listener)].site(&r.client);
    let found = site.find(r, host);
    r.server = found.as_ref().ok().copied().flatten().unwrap_or(site.default);
    r.location = snapshot.server(r.server).root;
    match found {
        Ok(_) => Ok(site.ssl || site.quic),
        Err(_) => {
            r.take_fault();
            Err(500)
        }
    }
}

/// HTTP/1.1 has every request say whose it is.
fn host_is_said(r: &Request) -> Result<(), u16> {
    // RFC 9112 section 3.2: a host in the target does not stand in for the header.
    let missing = match r.head.version {
        Version::HTTP11 => r.head.headers.find(K::Host).is_none(),
        _ => r.head.headers.host.is_none(),
    };
    if missing && r.head.version >= Version::HTTP11 {
        log_error!(r, Info, "client sent HTTP/1.1 request without \"Host\" header");
        return Err(400);
    }
    Ok(())
}

/// What the server that was chosen asks of every request. Asked once it is known how the body comes, so that an error page that is a proxy's
/// gets it, as in nginx.
fn check_server(r: &mut Request, secured: bool) -> Result<(), u16> {
    if !secured {
        return Ok(());
    }
    crate::modules::ssl::check(r, r.head.headers.host.unwrap_or(Text::EMPTY))
}

fn framing(r: &mut Request) -> Result<(), u16> {
    if let Some(coding) = r.head.headers.find(K::TransferEncoding) {
        if r.head.version < Version::HTTP11 {
            log_error!(r, Info, "client sent HTTP/1.0 request with \"Transfer-Encoding\" header");
            return Err(400);
        }
        if !r.get(coding).eq_ignore_ascii_case(b"chunked") {
            let shown = String::from_utf8_lossy(r.get(coding)).into_owned();
            log_error!(r, Info, "client sent unknown \"Transfer-Encoding\": \"{shown}\"");
            return Err(501);
        }
        r.head.headers.chunked = true;
        if r.head.headers.content_length.is_some() {
            log_error!(r, Info, "client sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time");
            return Err(400);
        }
    }
    r.body.expect(r.head.headers.content_length, r.head.headers.chunked);
    Ok(())
}

/// The head as it was sent; of HTTP/2 and HTTP/3 there is none, so it is made of what came. `no_line`: without the request line.
pub fn as_sent(r: &Request, no_line: bool) -> Vec<u8> {
    if r.head.version < Version::HTTP20
        && let Text::Own(line) = r.head.line
    {
        let all = r.arena.span(r.arena.since(0));
        let head = head_of(all.get(line.start as usize..).unwrap_or_default());
        return match memchr::memchr(b'\n', head).filter(|_| no_line) {
            Some(at) => head[at + 1..].to_vec(),
            None => head.to_vec(),
        };
    }
    let mut out = Vec::new();
    if !no_line {
        out.extend_from_slice(r.get(r.head.line));
        out.extend_from_slice(b"\r\n");
    }
    for line in r.head.headers.lines() {
        out.extend_from_slice(r.arena.span(line.name));
        out.extend_from_slice(b": ");
        out.extend_from_slice(r.arena.span(line.value));
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out
}

/// A head with its blank line, at the start of some bytes. One of HTTP/0.9 is a line.
fn head_of(bytes: &[u8]) -> &[u8] {
    for at in memchr::memchr_iter(b'\n', bytes) {
        match &bytes[at + 1..] {
            [b'\r', b'\n', ..] => return &bytes[..at + 3],
            [b'\n', ..] => return &bytes[..at + 2],
            _ => {}
        }
    }
    &bytes[..memchr::memchr(b'\n', bytes).map_or(bytes.len(), |at| at + 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_ends_with_its_blank_line() {
        assert_eq!(head_of(b"GET / HTTP/1.1\r\nA: b\r\n\r\nrest\n\n"), b"GET / HTTP/1.1\r\nA: b\r\n\r\n");
        assert_eq!(head_of(b"GET / HTTP/1.1\nA: b\n\nrest"), b"GET / HTTP/1.1\nA: b\n\n");
        assert_eq!(head_of(b"GET /\r\nrest"), b"GET /\r\n");
    }
}
