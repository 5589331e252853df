//! The variables that nginx has without any module (`ngx_http_variables.c`).

use crate::config::variables::{Builtin, Prefix};
use crate::connection::Address;
use crate::modules::root;
use crate::otel::identifier;
use crate::request::headers::KnownHeader as K;
use crate::request::{Request, Text, Version, flow};
use crate::text;
use crate::worker::counters;
use runtime::clock;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use wire::proxy_protocol::TlvValue;

type Get = fn(&mut Request) -> Option<Text>;

/// A value that may change while the request goes on.
const fn volatile(name: &'static str, evaluate: Get) -> Builtin {
    Builtin { name, evaluate, volatile: true, assign: None }
}

/// A value that stays.
const fn fixed(name: &'static str, evaluate: Get) -> Builtin {
    Builtin { name, evaluate, volatile: false, assign: None }
}

/// The variables.
pub const VARIABLES: &[Builtin] = &[
    fixed("host", host),
    volatile("content_length", |r| match r.head.headers.find(K::ContentLength) {
        Some(text) => Some(text),
        // A chunked body that has been read has a length.
        None => r.head.headers.content_length.or_else(|| measured(r)).map(|n| text!(r, "{n}")),
    }),
    fixed("content_type", |r| request_header(r, "content_type")),
    fixed("binary_remote_addr", binary_remote_addr),
    volatile("remote_addr", remote_addr),
    volatile("remote_port", |r| port(r, r.client.clone().remote.borrow().port())),
    fixed("proxy_protocol_addr", |r| proxied(r, |h| h.source.to_string())),
    fixed("proxy_protocol_port", |r| proxied(r, |h| h.source_port.to_string())),
    fixed("proxy_protocol_server_addr", |r| proxied(r, |h| h.destination.to_string())),
    fixed("proxy_protocol_server_port", |r| proxied(r, |h| h.destination_port.to_string())),
    fixed("server_addr", server_addr),
    fixed("server_port", server_port),
    fixed("server_protocol", server_protocol),
    fixed("scheme", |r| Some(Text::from(if super::ssl::is_encrypted(r) { "https" } else { "http" }))),
    fixed("https", |r| Some(if super::ssl::is_encrypted(r) { Text::from("on") } else { Text::EMPTY })),
    fixed("request_port", |r| r.head.port.filter(|p| *p > 0).map_or(Some(Text::EMPTY), |p| port(r, p))),
    fixed("is_request_port", |r| Some(Text::from(if r.head.port.is_some_and(|p| p > 0) { ":" } else { "" }))),
    fixed("request_uri", |r| said(r.head.target)),
    volatile("uri", |r| said(r.head.uri)),
    volatile("document_uri", |r| said(r.head.uri)),
    fixed("request", |r| said(r.head.line)),
    volatile("document_root", |r| Some(root::document_root(r))),
    volatile("realpath_root", realpath_root),
    volatile("query_string", |r| said(r.head.args)),
    Builtin {
        name: "args",
        evaluate: |r| said(r.head.args),
        volatile: true,
        // The target as it was sent has the old ones (`ngx_http_variable_set_args`).
        assign: Some(|r, v| (r.head.args, r.head.valid_target) = (v, false)),
    },
    volatile("is_args", |r| Some(Text::from(if r.get(r.head.args).is_empty() { "" } else { "?" }))),
    volatile("request_filename", |r| {
        if !root::check_alias(r) {
            return None;
        }
        let path = root::path_of(r);
        Some(r.text(&path))
    }),
    fixed("server_name", |r| {
        let name = r.server().name.clone();
        Some(r.text(&name))
    }),
    // A subrequest asks with a method of its own; what the client asked with is the request's (`r->main->method_name`).
    volatile("request_method", |r| {
        let main = if r.is_main() { None } else { r.flow.lineage.as_ref().and_then(|lineage| lineage.method.get()) };
        said(main.unwrap_or(r.head.method_name))
    }),
    fixed("remote_user", remote_user),
    volatile("bytes_sent", |r| Some(text!(r, "{}", r.bytes_sent()))),
    volatile("body_bytes_sent", |r| Some(text!(r, "{}", r.body_bytes_sent()))),
    fixed("pipe", |r| Some(Text::from(if r.flow.pipelined { "p" } else { "." }))),
    volatile("request_completion", |r| Some(Text::from(if r.answer.done && !r.flow.aborted { "OK" } else { "" }))),
    fixed("request_body", request_body),
    fixed("request_body_file", request_body_file),
    volatile("request_length", |r| Some(text!(r, "{}", r.request_length))),
    volatile("request_time", |r| {
        let ms = clock::wall_ms().saturating_sub(r.started_ms);
        Some(text!(r, "{}.{:03}", ms / 1000, ms % 1000))
    }),
    fixed("request_id", request_id),
    volatile("status", |r| Some(text!(r, "{:03}", r.status()))),
    volatile("sent_http_content_type", sent_content_type),
    volatile("sent_http_content_length", |r| r.answer.headers.content_length.map(|n| text!(r, "{n}"))),
    volatile("sent_http_last_modified", |r| {
        if let Some(text) = r.answer.headers.find(K::LastModified) {
            return Some(text);
        }
        let t = r.answer.headers.last_modified?;
        Some(r.text(&wire::date::format_http(t)))
    }),
    volatile("sent_http_location", |r| r.answer.headers.find(K::Location).or_else(|| sent_header(r, "location"))),
    volatile("sent_http_connection", |r| {
        Some(Text::from(match (r.answer.headers.status, r.flow.keepalive) {
            (101, _) => "upgrade",
            (_, true) => "keep-alive",
            (_, false) => "close",
        }))
    }),
    volatile("sent_http_keep_alive", |r| {
        let seconds = *r.conf().core.keepalive_header;
        (r.flow.keepalive && seconds > 0).then(|| text!(r, "timeout={seconds}"))
    }),
    volatile("sent_http_transfer_encoding", |r| r.downstream.is_chunked().then_some(Text::from("chunked"))),
    Builtin {
        name: "limit_rate",
        evaluate: |r| {
            let (rate, _) = flow::rate(r);
            Some(text!(r, "{rate}"))
        },
        volatile: true,
        assign: Some(set_limit_rate),
    },
    fixed("connection", |r| Some(text!(r, "{}", r.client.number))),
    fixed("connection_requests", |r| {
        let number = if r.flow.number > 0 { r.flow.number } else { r.client.requests.get() };
        Some(text!(r, "{number}"))
    }),
    volatile("connection_time", |r| {
        let ms = clock::wall_ms().saturating_sub(r.client.started_ms);
        Some(text!(r, "{}.{:03}", ms / 1000, ms % 1000))
    }),
    fixed("nginx_version", |_| Some(Text::from(crate::NGINX_VERSION))),
    fixed("hostname", |r| Some(r.text(crate::log::hostname().as_bytes()))),
    fixed("pid", |r| Some(text!(r, "{}", std::process::id()))),
    volatile("msec", |r| {
        let ms = clock::wall_ms();
        Some(text!(r, "{}.{:03}", ms / 1000, ms % 1000))
    }),
    volatile("time_iso8601", |r| Some(r.text(&crate::log::local_time().iso8601))),
    volatile("time_local", |r| Some(r.text(&crate::log::local_time().common))),
    volatile("tcpinfo_rtt", |r| tcp_info(r, |i| i.rtt)),
    volatile("tcpinfo_rttvar", |r| tcp_info(r, |i| i.rttvar)),
    volatile("tcpinfo_snd_cwnd", |r| tcp_info(r, |i| i.snd_cwnd)),
    volatile("tcpinfo_rcv_space", |r| tcp_info(r, |i| i.rcv_space)),
    volatile("connections_active", |r| Some(text!(r, "{}", counters::sum().active))),
    volatile("connections_reading", |r| Some(text!(r, "{}", counters::sum().reading))),
    volatile("connections_writing", |r| Some(text!(r, "{}", counters::sum().writing))),
    volatile("connections_waiting", |r| Some(text!(r, "{}", counters::sum().waiting))),
];

/// Rules for variables with a prefix.
pub const PREFIXES: &[Prefix] = &[
    Prefix { name: "http_", evaluate: request_header, volatile: false },
    Prefix { name: "sent_http_", evaluate: sent_header, volatile: true },
    Prefix { name: "sent_trailer_", evaluate: sent_trailer, volatile: true },
    Prefix { name: "cookie_", evaluate: cookie, volatile: false },
    Prefix { name: "arg_", evaluate: argument, volatile: true },
    Prefix { name: "proxy_protocol_tlv_", evaluate: tlv, volatile: false },
];

/// A part of the request line; not found if the client did not send it. `/?` has arguments, empty ones.
fn said(text: Text) -> Option<Text> {
    (!matches!(text, Text::Fixed(b""))).then_some(text)
}

fn set_limit_rate(r: &mut Request, value: Text) {
    match conf::value::size(r.get(value)) {
        Some(rate) => r.answer.limit_rate = Some(rate),
        None => {
            crate::log_error!(r, Error, "invalid $limit_rate \"{}\"", String::from_utf8_lossy(r.get(value)));
        }
    }
}

fn host(r: &mut Request) -> Option<Text> {
    if let Some(host) = r.head.headers.host {
        return Some(host);
    }
    let name = r.server().name.clone();
    Some(r.text(&name))
}

fn port(r: &mut Request, port: u16) -> Option<Text> {
    Some(if port == 0 { Text::EMPTY } else { text!(r, "{port}") })
}

fn remote_addr(r: &mut Request) -> Option<Text> {
    let mut room = std::mem::take(&mut r.room);
    room.clear();
    r.client.remote.borrow().write_host(&mut room);
    let text = r.text(&room);
    r.room = room;
    Some(text)
}

fn binary_remote_addr(r: &mut Request) -> Option<Text> {
    let remote = r.client.remote.borrow().clone();
    Some(match remote {
        Address::Inet(SocketAddr::V4(a)) => r.text(&a.ip().octets()),
        Address::Inet(SocketAddr::V6(a)) => r.text(&a.ip().octets()),
        Address::Unix(_) => Text::from("unix:"),
    })
}

fn proxied(r: &mut Request, pick: fn(&wire::proxy_protocol::Header) -> String) -> Option<Text> {
    let value = r.client.proxy_protocol.get().map(|h| pick(h))?;
    Some(r.text(value.as_bytes()))
}

fn tlv(r: &mut Request, name: &str) -> Option<Text> {
    let client = r.client.clone();
    let header = client.proxy_protocol.get();
    match header?.tlvs.lookup(name.as_bytes()) {
        Ok(Some(TlvValue::Bytes(b))) => Some(r.text(b)),
        Ok(Some(TlvValue::Number(n))) => Some(text!(r, "{n}")),
        Ok(None) | Err(_) => None,
    }
}

fn server_addr(r: &mut Request) -> Option<Text> {
    Some(match crate::worker::local_address(&r.client) {
        // The socket's path belongs to it, as the port does not.
        local @ Address::Unix(_) => text!(r, "{local}"),
        local => text!(r, "{}", local.host()),
    })
}

fn server_port(r: &mut Request) -> Option<Text> {
    let local = crate::worker::local_address(&r.client).port();
    port(r, local)
}

fn server_protocol(r: &mut Request) -> Option<Text> {
    let said = r.head.headers.head.protocol.map(Text::Own);
    // Of a head of these that is malformed no line was made.
    said.or(match r.head.version {
        Version::HTTP20 => Some(Text::from("HTTP/2.0")),
        Version::HTTP30 => Some(Text::from("HTTP/3.0")),
        _ => None,
    })
}

/// The length of a body that said none. Of one in a stream it is known once it has been read whole.
fn measured(r: &Request) -> Option<u64> {
    if r.head.version >= Version::HTTP20 {
        return r.body.stored.as_ref().map(|stored| stored.len);
    }
    r.body.measured()
}

fn realpath_root(r: &mut Request) -> Option<Text> {
    use std::os::unix::ffi::OsStrExt;
    let root = root::document_root(r);
    let path = std::path::PathBuf::from(std::ffi::OsStr::from_bytes(r.get(root)));
    match std::fs::canonicalize(&path) {
        Ok(real) => Some(r.text(real.as_os_str().as_bytes())),
        Err(e) => {
            crate::log_error!(r, Crit, "realpath() \"{}\" failed ({})", path.display(), crate::log::os_error(&e));
            None
        }
    }
}

/// Where credentials are: for a proxy, which CONNECT makes of this server, in a header of their own (RFC 9110 section 11.7.2).
pub fn authorization(r: &Request) -> Option<Text> {
    let connects = r.head.method == crate::request::Method::Connect;
    r.head.headers.find(if connects { K::ProxyAuthorization } else { K::Authorization })
}

/// User name and password of `Authorization: Basic`, decoded once; an empty name is nobody's (`ngx_http_auth_basic_user`).
pub fn basic_credentials(r: &Request) -> Option<(Vec<u8>, Vec<u8>)> {
    let value = authorization(r)?;
    let value = r.get(value);
    let rest = value.get(..6).filter(|p| p.eq_ignore_ascii_case(b"basic ")).map(|_| &value[6..])?;
    let rest = &rest[rest.iter().take_while(|b| **b == b' ').count()..];
    let mut decoded = Vec::new();
    wire::encoding::base64_decode(rest, wire::encoding::Alphabet::Standard, &mut decoded).ok()?;
    let at = memchr::memchr(b':', &decoded).filter(|at| *at > 0)?;
    Some((decoded[..at].to_vec(), decoded[at + 1..].to_vec()))
}

pub(super) fn remote_user(r: &mut Request) -> Option<Text> {
    let (user, _) = basic_credentials(r)?;
    (!user.is_empty()).then(|| r.text(&user))
}

fn request_body(r: &mut Request) -> Option<Text> {
    let stored = r.body.stored.clone()?;
    let announced = r.head.headers.chunked || r.head.headers.find(K::ContentLength).is_some();
    (stored.file.is_none() && announced).then(|| r.text(&stored.memory))
}

fn request_body_file(r: &mut Request) -> Option<Text> {
    use std::os::unix::ffi::OsStrExt;
    let stored = r.body.stored.clone()?;
    let file = stored.file.as_ref()?;
    Some(r.text(file.path.as_os_str().as_bytes()))
}

/// `$request_id`
pub fn request_id(r: &mut Request) -> Option<Text> {
    if r.id.is_none() {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // Random bytes of the kernel, which is asked for those of many requests at once.
        let bytes: [u8; 16] = identifier::random();
        let mut hex = [0; 32];
        for (pair, byte) in hex.as_chunks_mut().0.iter_mut().zip(bytes) {
            *pair = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
        }
        r.id = Some(r.text(&hex));
    }
    r.id
}

fn sent_content_type(r: &mut Request) -> Option<Text> {
    let kind = r.answer.headers.content_type?;
    if r.answer.headers.charset.is_none() {
        return Some(kind);
    }
    let mut room = std::mem::take(&mut r.room);
    room.clear();
    r.answer.headers.write_content_type(&r.arena, &mut room);
    let text = r.text(&room);
    r.room = room;
    Some(text)
}

#[derive(Clone, Copy)]
struct TcpInfo {
    rtt: u32,
    rttvar: u32,
    snd_cwnd: u32,
    rcv_space: u32,
}

fn tcp_info(r: &mut Request, pick: fn(TcpInfo) -> u32) -> Option<Text> {
    let socket = r.client.socket.upgrade()?;
    let [rtt, rttvar, snd_cwnd, rcv_space] = crate::master::tcp_info(socket.as_fd())?;
    let value = pick(TcpInfo { rtt, rttvar, snd_cwnd, rcv_space });
    Some(text!(r, "{value}"))
}

/// Whether a variable's name means this header: `a_b` stands for `a-b` in any case.
pub fn is_named(header: &[u8], name: &str) -> bool {
    header.len() == name.len()
        && header.iter().zip(name.bytes()).all(|(h, n)| {
            let h = if *h == b'-' { b'_' } else { h.to_ascii_lowercase() };
            h == n
        })
}

/// Headers of the same name are one list; cookies are joined as browsers do.
fn request_header(r: &mut Request, name: &str) -> Option<Text> {
    let separator: &'static str = if name == "cookie" { "; " } else { ", " };
    let mut found: Option<Text> = None;
    for i in 0..r.head.headers.head.headers.len() {
        let line = r.head.headers.head.headers[i];
        if is_named(r.arena.span(line.name), name) {
            found = Some(joined(r, found, separator, line.value.into()));
        }
    }
    found
}

fn joined(r: &mut Request, first: Option<Text>, separator: &'static str, next: Text) -> Text {
    let Some(first) = first else { return next };
    let mark = r.arena.mark();
    r.arena.append(first);
    r.arena.append(Text::from(separator));
    r.arena.append(next);
    Text::Own(r.arena.since(mark))
}

fn sent_header(r: &mut Request, name: &str) -> Option<Text> {
    let mut found: Option<Text> = None;
    for i in 0..r.answer.headers.lines.len() {
        let line = r.answer.headers.lines[i];
        if is_named(r.get(line.name), name) {
            found = Some(joined(r, found, ", ", line.value));
        }
    }
    found
}

fn sent_trailer(r: &mut Request, name: &str) -> Option<Text> {
    let mut found: Option<Text> = None;
    for i in 0..r.answer.headers.trailers.len() {
        let line = r.answer.headers.trailers[i];
        if is_named(r.get(line.name), name) {
            found = Some(joined(r, found, ", ", line.value));
        }
    }
    found
}

pub(super) fn cookie(r: &mut Request, name: &str) -> Option<Text> {
    if name.is_empty() {
        return None;
    }
    for line in r.head.headers.lines().iter().filter(|l| l.known == K::Cookie) {
        let all = r.arena.span(line.value);
        if let Some(value) = wire::http1::values::find_in_list(all, name.as_bytes(), b';') {
            let value = value.to_vec();
            return Some(r.text(&value));
        }
    }
    None
}

fn argument(r: &mut Request, name: &str) -> Option<Text> {
    if name.is_empty() {
        return None;
    }
    let args = r.get(r.head.args);
    let value = wire::http1::target::argument(args, name.as_bytes())?;
    // A piece of what is there already: nothing is copied, however often it is asked for.
    let start = value.as_ptr().addr() - args.as_ptr().addr();
    let end = start + value.len();
    Some(match r.head.args {
        Text::Fixed(bytes) => Text::Fixed(&bytes[start..end]),
        Text::Own(mut span) => {
            span.end = span.start + end as u32;
            span.start += start as u32;
            span.into()
        }
    })
}

/// The client's address and port as bytes, to be hashed.
pub fn remote_end(r: &Request) -> Vec<u8> {
    match &*r.client.remote.borrow() {
        Address::Inet(std::net::SocketAddr::V4(a)) => [&a.ip().octets()[..], &a.port().to_be_bytes()].concat(),
        Address::Inet(std::net::SocketAddr::V6(a)) => [&a.ip().octets()[..], &a.port().to_be_bytes()].concat(),
        Address::Unix(_) => Vec::new(),
    }
}

/// The client's IP address, if it has one.
pub fn remote_ip(r: &Request) -> Option<IpAddr> {
    match &*r.client.remote.borrow() {
        Address::Inet(a) => Some(a.ip()),
        Address::Unix(_) => None,
    }
}
