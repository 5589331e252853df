//! One HTTP exchange of `ngx.fetch`: connections and those that are kept, TLS, the request's bytes, the answer's. From: `fetch`. Every wait
//! and every size is bounded.

use super::fetch::{Call, Keep, note};
use super::proxy::Proxy;
use crate::connection::Address;
use crate::connection::socket::Socket;
use crate::connection::tls::Tls;
use crate::upstream::connect;
use crate::upstream::settings::UpstreamSettings;
use ::js::Item;
use runtime::timer::Timer;
use rustix::net::SocketType;
use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::Poll;
use std::time::Duration;
use wire::http1::chunked::{Decoder, Event, Trailers};
use wire::http1::known::KnownHeader as K;
use wire::http1::response::{ResponseHead, ResponseParser};
use wire::http1::{Parsed, Version};

/// Idle connections of one thread, over all servers.
const MAX_IDLE: usize = 1024;
/// Addresses of a name that are tried.
const MAX_ADDRESSES: usize = 4;
/// Interim answers (1xx) before the answer itself. Who sends more would never end.
const MAX_INTERIM: usize = 16;

struct FetchLink {
    socket: Socket,
    requests: u64,
    began_ms: u64,
}

struct Idle {
    link: FetchLink,
    until_ms: u64,
}

thread_local! {
    static IDLE: RefCell<HashMap<String, Vec<Idle>>> = RefCell::default();
}

/// Why it came to nothing, in the words that the program gets.
pub(super) type Failed = String;

/// Gives up when nothing happens for so long.
async fn within<T>(time: Duration, what: &str, work: impl Future<Output = T>) -> std::result::Result<T, Failed> {
    let timer = Timer::new();
    timer.set(time);
    timer.guard(work).await.ok_or_else(|| format!("{what} timed out"))
}

/// Sends a request and reads the answer: `[status, reason, headers, body]`.
pub(super) async fn exchange(call: Call) -> std::result::Result<Item, Failed> {
    let key = key(&call);
    let mut kept = if call.verify || !call.secure { take(&key, call.keep) } else { None };
    loop {
        let was_kept = kept.is_some();
        let mut link = match kept.take() {
            Some(link) => link,
            None => FetchLink { socket: open(&call).await?, requests: 0, began_ms: runtime::clock::monotonic_ms() },
        };
        let begun = match write(&mut link.socket, &call, &written(&call)).await {
            Ok(()) => read_head(&mut link.socket, &call).await,
            Err(text) => Err(text),
        };
        let (head, buffer) = match begun {
            Ok(begun) => begun,
            // The server has closed a connection that waited: once more on a new one.
            Err(_) if was_kept => continue,
            Err(text) => return Err(text),
        };
        let (item, reusable) = read_answer(&mut link.socket, &call, head, buffer).await?;
        link.requests += 1;
        // Nobody who was not verified is spoken to again.
        if reusable && (call.verify || !call.secure) {
            give(key, link, call.keep);
        }
        return Ok(item);
    }
}

/// What connections can be used for each other. A tunnel belongs to whoever has opened it.
fn key(call: &Call) -> String {
    let own = format!("{}:{}:{}:{}", call.level, call.secure, call.host, call.port);
    match &call.proxy {
        None => own,
        Some(p) => format!("{own} {}:{} {}", p.host, p.port, p.authorization.as_deref().unwrap_or_default()),
    }
}

/// A connection that waits.
fn take(key: &str, keep: Keep) -> Option<FetchLink> {
    if keep.most == 0 {
        return None;
    }
    let now = runtime::clock::monotonic_ms();
    IDLE.with_borrow_mut(|all| {
        let own = all.get_mut(key)?;
        while let Some(mut idle) = own.pop() {
            let mut room = Vec::with_capacity(1);
            let quiet = matches!(idle.link.socket.try_read(&mut room), Err(e) if e.kind() == io::ErrorKind::WouldBlock);
            let young = now - idle.link.began_ms < keep.time.as_millis() as u64;
            if idle.until_ms > now && quiet && young {
                return Some(idle.link);
            }
        }
        all.remove(key);
        None
    })
}

fn give(key: String, link: FetchLink, keep: Keep) {
    if keep.most == 0 || link.requests >= keep.requests {
        return;
    }
    let until_ms = runtime::clock::monotonic_ms() + keep.timeout.as_millis() as u64;
    IDLE.with_borrow_mut(|all| {
        if all.values().map(Vec::len).sum::<usize>() >= MAX_IDLE {
            let now = runtime::clock::monotonic_ms();
            all.retain(|_, own| {
                own.retain(|idle| idle.until_ms > now);
                !own.is_empty()
            });
            return;
        }
        let own = all.entry(key).or_default();
        if own.len() >= keep.most {
            own.remove(0);
        }
        own.push(Idle { link, until_ms });
    });
}

async fn addresses(call: &Call) -> std::result::Result<Vec<Address>, Failed> {
    let (host, port) = call.connects_to();
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![Address::Inet(SocketAddr::new(ip, port))]);
    }
    let resolver = call.resolver.as_ref().ok_or("no resolver defined")?;
    let found = crate::upstream::names::resolve(resolver, host, call.resolver_timeout).await;
    let found = found.map_err(|text| format!("\"{host}\" could not be resolved ({text})"))?;
    Ok(found.into_iter().take(MAX_ADDRESSES).map(|ip| Address::Inet(SocketAddr::new(ip, port))).collect())
}

async fn open(call: &Call) -> std::result::Result<Socket, Failed> {
    for address in addresses(call).await? {
        let Ok(connecting) = connect::begin_as(SocketType::STREAM, &address, None, &UpstreamSettings::default()) else {
            continue;
        };
        let connected = within(call.timeout, "connect", connect::finish(connecting)).await;
        if let Ok(Ok(mut socket)) = connected {
            if !call.secure {
                return Ok(socket);
            }
            if let Some(proxy) = &call.proxy {
                tunnel(&mut socket, call, proxy).await?;
            }
            return handshake(socket, call).await.map_err(|text| {
                note(&format!("js http SSL {text}"));
                "connect failed".to_owned()
            });
        }
    }
    Err("connect failed".to_owned())
}

/// Asks the proxy for a way to the server.
async fn tunnel(socket: &mut Socket, call: &Call, proxy: &Proxy) -> std::result::Result<(), Failed> {
    let to = format!("{}:{}", call.host, call.port);
    let mut asks = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n");
    if let Some(value) = &proxy.authorization {
        asks.push_str(&format!("{AUTHORIZATION}: {value}\r\n"));
    }
    asks.push_str("\r\n");
    write(socket, call, asks.as_bytes()).await?;
    let (head, rest) = read_head(socket, call).await.map_err(|text| format!("proxy CONNECT: {text}"))?;
    if !(200..300).contains(&head.status) {
        return Err(format!("proxy CONNECT failed with status {}", head.status));
    }
    // A server says nothing before its client does: these bytes would be the proxy's own.
    if rest.is_empty() { Ok(()) } else { Err("proxy CONNECT: unexpected bytes behind the header".to_owned()) }
}

async fn handshake(socket: Socket, call: &Call) -> std::result::Result<Socket, Failed> {
    let context = call.tls.as_ref().ok_or("failed to create ssl connection")?;
    let secure = context.for_checks(call.host.trim_matches(['[', ']']).as_bytes(), &[]);
    let tls = Tls::client(socket, secure.config(), secure.server_name(), 0);
    let mut tls = tls.map_err(|e| format!("failed to create ssl connection ({e})"))?;
    let shaken = within(call.timeout, "SSL handshake", poll_fn(|cx| tls.poll_handshake(cx))).await?;
    shaken.map_err(|e| format!("SSL handshake failed ({e})"))?;
    if call.verify {
        if !context.verifies() {
            return Err("certificate verify error: unable to get local issuer certificate \
                        (js_fetch_trusted_certificate names whom to trust)"
                .to_owned());
        }
        let chain = tls.state().peer_certificates().unwrap_or_default();
        secure.verify(chain, runtime::clock::wall_seconds()).map_err(|d| format!("certificate verify error: {d}"))?;
    }
    Ok(Socket::encrypted(tls))
}

/// What a proxy wants to see.
const AUTHORIZATION: &str = "Proxy-Authorization";

/// The bytes of a request.
fn written(call: &Call) -> Vec<u8> {
    let mut out = Vec::with_capacity(256 + call.body.as_ref().map_or(0, Vec::len));
    let has = |name: &str| call.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name.as_bytes()));
    out.extend_from_slice(&call.method);
    out.push(b' ');
    let usual = if call.secure { 443 } else { 80 };
    let port = if call.port == usual { String::new() } else { format!(":{}", call.port) };
    if call.reader().is_some() {
        out.extend_from_slice(format!("http://{}{port}", call.host).as_bytes());
    }
    out.extend_from_slice(&call.target);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    if !has("Host") {
        out.extend_from_slice(format!("Host: {}{port}\r\n", call.host).as_bytes());
    }
    if !has("User-Agent") {
        out.extend_from_slice(b"User-Agent: nginx-js\r\n");
    }
    if let Some(value) = call.reader().and_then(|proxy| proxy.authorization.as_deref()) {
        out.extend_from_slice(format!("{AUTHORIZATION}: {value}\r\n").as_bytes());
    }
    for (name, value) in &call.headers {
        let framing = [&b"Content-Length"[..], b"Connection", b"Transfer-Encoding"];
        let is_proxys = call.reader().is_some() && name.eq_ignore_ascii_case(AUTHORIZATION.as_bytes());
        if !is_proxys && !framing.iter().any(|f| f.eq_ignore_ascii_case(name)) {
            out.extend_from_slice(&[name, &b": "[..], value, b"\r\n"].concat());
        }
    }
    let connection: &[u8] = if call.keep.most > 0 { b"keep-alive" } else { b"close" };
    out.extend_from_slice(&[&b"Connection: "[..], connection, b"\r\n"].concat());
    match &call.body {
        Some(body) => {
            out.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
            out.extend_from_slice(body);
        }
        None if matches!(call.method.as_slice(), b"POST" | b"PUT") => {
            out.extend_from_slice(b"Content-Length: 0\r\n\r\n")
        }
        None => out.extend_from_slice(b"\r\n"),
    }
    out
}

async fn write(socket: &mut Socket, call: &Call, bytes: &[u8]) -> std::result::Result<(), Failed> {
    let timer = Timer::new();
    timer.set(call.timeout);
    let mut at = 0;
    poll_fn(|cx| {
        while at < bytes.len() {
            match socket.poll_write_with(cx, |s| s.try_write(&bytes[at..], false)) {
                Poll::Ready(Ok(n)) => {
                    at += n;
                    timer.set(call.timeout);
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Err("write failed".to_owned())),
                Poll::Pending => return timer.poll_expired(cx).map(|()| Err("write timed out".to_owned())),
            }
        }
        Poll::Ready(Ok(()))
    })
    .await
}

/// Reads more; 0 is the end.
async fn read(socket: &mut Socket, call: &Call, buffer: &mut Vec<u8>) -> std::result::Result<usize, Failed> {
    buffer.reserve(call.buffer);
    let got = within(call.timeout, "read", poll_fn(|cx| socket.poll_read(cx, buffer))).await?;
    got.map_err(|_| "read failed".to_owned())
}

/// Reads until an answer's head is whole: the head, and what came with it, from its body on.
async fn read_head(socket: &mut Socket, call: &Call) -> std::result::Result<(Head, Vec<u8>), Failed> {
    let mut buffer = Vec::new();
    for _ in 0..=MAX_INTERIM {
        let (mut parser, mut head) = (ResponseParser::default(), ResponseHead::default());
        // What follows an interim answer may be whole already.
        let mut reads = buffer.is_empty();
        loop {
            if std::mem::replace(&mut reads, true) && read(socket, call, &mut buffer).await? == 0 {
                return Err("prematurely closed connection".to_owned());
            }
            match parser.parse(&buffer, &mut head) {
                Ok(Parsed::Complete { .. }) if head.version < Version::HTTP10 => {
                    return Err("invalid http status line".to_owned());
                }
                Ok(Parsed::Complete { len }) => {
                    let found = Head::of(&head, &buffer)?;
                    buffer.drain(..len);
                    if (100..200).contains(&found.status) && found.status != 101 {
                        break;
                    }
                    return Ok((found, buffer));
                }
                Ok(_) if buffer.len() > call.buffer.max(call.most) => return Err("very large header".to_owned()),
                Ok(_) => {}
                Err(_) => return Err("invalid http header".to_owned()),
            }
        }
    }
    Err("too many interim responses".to_owned())
}

/// An answer's head, on its own.
struct Head {
    status: u16,
    reason: Vec<u8>,
    headers: Vec<(Vec<u8>, Vec<u8>)>,
    length: Option<usize>,
    chunked: bool,
    keeps: bool,
}

impl Head {
    fn of(head: &ResponseHead, buffer: &[u8]) -> std::result::Result<Head, Failed> {
        let line = head.status_line.of(buffer);
        let reason = line.get(4..).unwrap_or_default().to_vec();
        let headers: Vec<_> =
            head.headers.iter().map(|l| (l.name.of(buffer).to_vec(), l.value.of(buffer).to_vec())).collect();
        if headers
            .iter()
            .any(|(name, _)| !name.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b)))
        {
            return Err("invalid http header".to_owned());
        }
        let value = |known: K| head.header(known).map(|l| l.value.of(buffer));
        let length = match value(K::ContentLength) {
            None => None,
            Some(text) => {
                let number = std::str::from_utf8(text).ok().and_then(|t| t.trim().parse::<usize>().ok());
                Some(number.ok_or("invalid http content length")?)
            }
        };
        let chunked = value(K::TransferEncoding).is_some_and(|t| t.eq_ignore_ascii_case(b"chunked"));
        let said = |word: &[u8]| {
            let mut lines = head.headers.iter().filter(|l| l.known == K::Connection);
            lines.any(|l| l.value.of(buffer).trim_ascii().eq_ignore_ascii_case(word))
        };
        let keeps = match head.version {
            Version::HTTP11 => !said(b"close"),
            _ => said(b"keep-alive") && !said(b"close"),
        };
        Ok(Head { status: head.status, reason, headers, length, chunked, keeps })
    }
}

/// Reads an answer's body: what the program gets, and whether the connection can be used again.
async fn read_answer(
    socket: &mut Socket,
    call: &Call,
    head: Head,
    mut buffer: Vec<u8>,
) -> std::result::Result<(Item, bool), Failed> {
    let bodiless = call.method.eq_ignore_ascii_case(b"HEAD") || matches!(head.status, 204 | 304);
    let too_large = || "http response body is too large".to_owned();
    let mut reusable = head.keeps;
    let body = if bodiless {
        Vec::new()
    } else if head.chunked {
        read_chunks(socket, call, buffer).await?
    } else if let Some(length) = head.length {
        if length > call.most {
            return Err(too_large());
        }
        while buffer.len() < length {
            if read(socket, call, &mut buffer).await? == 0 {
                return Err("prematurely closed connection".to_owned());
            }
        }
        if buffer.len() > length {
            return Err("http trailing data".to_owned());
        }
        buffer
    } else {
        reusable = false;
        loop {
            if buffer.len() > call.most {
                return Err(too_large());
            }
            if read(socket, call, &mut buffer).await? == 0 {
                break buffer;
            }
        }
    };
    let pairs = head.headers.into_iter().map(|(n, v)| Item::List(vec![Item::Text(n), Item::Text(v)])).collect();
    let status = Item::Number(f64::from(head.status));
    Ok((Item::List(vec![status, Item::Text(head.reason), Item::List(pairs), Item::Buffer(body)]), reusable))
}

async fn read_chunks(socket: &mut Socket, call: &Call, mut buffer: Vec<u8>) -> std::result::Result<Vec<u8>, Failed> {
    let mut decoder = Decoder::new(Trailers::Drop);
    let mut body = Vec::new();
    loop {
        let mut at = 0;
        loop {
            match decoder.decode(&buffer, &mut at).map_err(|_| "invalid http chunked response".to_owned())? {
                Event::Data(span) => {
                    body.extend_from_slice(span.of(&buffer));
                    if body.len() > call.most {
                        return Err("very large http chunked response".to_owned());
                    }
                }
                Event::End | Event::Trailers => return Ok(body),
                Event::More => break,
            }
        }
        buffer.clear();
        if read(socket, call, &mut buffer).await? == 0 {
            return Err("prematurely closed connection".to_owned());
        }
    }
}
