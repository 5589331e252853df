//! What is sent to an HTTP upstream: the head and the body of a request (`ngx_http_proxy_create_request`,
//! `ngx_http_proxy_v2_create_request`, `ngx_http_grpc_create_request`).

use super::{Conf, Ready, Target, cache};
use crate::log_error;
use crate::request::headers::KnownHeader as K;
use crate::request::phases::Verdict;
use crate::request::respond::ends_line;
use crate::request::status::write_decimal;
use crate::request::{Method, Request, Text, Version, body};
use crate::upstream::cached;
use crate::upstream::http2::fields;
use crate::upstream::job::JobBody;
use crate::upstream::request_body::{self, RequestBody, Wanted};
use std::rc::Rc;
use wire::http1::escape::{Escape, escape_uri};
use wire::http1::values::parse_content_length;

/// Room for a usual request head.
const HEAD_ROOM: usize = 1024;

/// Headers that are never passed on, whatever is set.
const NOT_PASSED: [&[u8]; 9] = [
    b"host",
    b"connection",
    b"proxy-connection",
    b"content-length",
    b"transfer-encoding",
    b"te",
    b"keep-alive",
    b"expect",
    b"upgrade",
];

/// Reads the client's body, or leaves it to be streamed. What is to be said of it in the head is noted with the request.
pub(in crate::modules) async fn request_body(r: &mut Request, conf: &Conf) -> Result<JobBody, Verdict> {
    let passed = *conf.upstream.pass_request_body && conf.set_body.is_none();
    let wanted = Wanted { passed, of_any_length: *conf.http_version >= Version::HTTP11 };
    let RequestBody { body, length, chunked } = request_body::take(r, &conf.upstream, wanted).await?;
    (r.ctx.proxy.body_length, r.ctx.proxy.chunked) = (length, chunked);
    Ok(body)
}

/// The body that a program may have given the request meanwhile; none: there is none that was read whole, or it is not passed.
pub(super) fn stored_body(r: &mut Request, conf: &Conf) -> Option<JobBody> {
    let passed = *conf.upstream.pass_request_body && conf.set_body.is_none();
    let stored = r.body.stored.clone().filter(|_| passed)?;
    (r.ctx.proxy.body_length, r.ctx.proxy.chunked) = (Some(stored.len), false);
    Some(JobBody::Stored(stored))
}

/// A head that is being written: lines of text, or with HTTP/2 fields that the connection will pack.
pub(super) struct Head {
    out: Vec<u8>,
    packed: bool,
}

impl Head {
    /// Adds a header.
    pub(super) fn line(&mut self, name: &[u8], value: &[u8]) {
        let Head { out, packed } = self;
        if *packed {
            return fields::push(name, value, out);
        }
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }

    /// Adds a header that the configuration sets, perhaps from variables: what would end its line is not sent to anybody.
    fn own_line(&mut self, r: &Request, name: &[u8], value: Text) -> Result<(), Verdict> {
        let value = r.get(value);
        if ends_line(value) {
            let name = String::from_utf8_lossy(name);
            log_error!(r, Error, "header \"{name}\" for the upstream is not sent: there is CR, LF or NUL in its value");
            return Err(Verdict::Status(500));
        }
        self.line(name, value);
        Ok(())
    }

    /// Adds a header whose value is a number.
    fn number(&mut self, name: &[u8], n: u64) {
        let Head { out, packed } = self;
        if *packed {
            fields::push(name, b"", out);
            let start = out.len();
            write_decimal(n, out);
            return fields::close(start, out);
        }
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        write_decimal(n, out);
        out.extend_from_slice(b"\r\n");
    }
}

/// A request as it is sent.
pub(in crate::modules) struct Built {
    /// See [`crate::upstream::job::Job`].
    pub head: Vec<u8>,
    /// Its method is HEAD.
    pub is_head: bool,
    /// The body that the configuration gives, if it does not stand in the head.
    pub body: Option<JobBody>,
    /// What the head announces is not what follows it, as far as is known: whatever the peer takes for the rest of the body would be the next
    /// request's bytes.
    pub is_uneven: bool,
}

/// The request's head. `location`: the name that the target's path replaces. `body_sent`: the client's body, as it will follow.
pub(in crate::modules) fn build(
    r: &mut Request,
    conf: &Conf,
    location: &[u8],
    target: &Target<'_>,
    body_sent: &JobBody,
) -> Result<Built, Verdict> {
    // The request's own room: what needs it meanwhile makes its own.
    let mut out = std::mem::take(&mut r.scratch);
    out.clear();
    out.reserve(HEAD_ROOM);
    let packed = *conf.http_version >= Version::HTTP20;
    let mut head = Head { out, packed };
    let cacheable = r.ctx.cache.as_ref().is_some_and(|c| c.cacheable);
    let method = match &*conf.method {
        _ if r.head.method == Method::Head && r.ctx.cache.is_some() && *conf.upstream.cache.convert_head => {
            Text::from("GET")
        }
        own if own.is_empty() => r.head.method_name,
        own => own.eval(r),
    };
    if r.get(method).iter().any(|b| *b <= b' ' || *b == 0x7f) {
        log_error!(r, Error, "the method for the upstream has white space or control characters in it");
        return Err(Verdict::Status(500));
    }
    let is_head = r.get(method).eq_ignore_ascii_case(b"HEAD");
    if packed {
        head.line(b":method", r.get(method));
        head.line(b":scheme", if target.secure { b"https" } else { b"http" });
        head.out.extend_from_slice(fields::PATH);
    } else {
        head.out.extend_from_slice(r.get(method));
        head.out.push(b' ');
    }
    let uri_start = head.out.len();
    write_uri(r, location, target, &mut head.out);
    if head.out.len() == uri_start {
        log_error!(r, Error, "zero length URI to proxy");
        return Err(Verdict::Status(500));
    }
    if head.out[uri_start..].iter().any(u8::is_ascii_control) {
        // `$uri` is decoded: what it carries would end the request line, and begin another request for some.
        log_error!(r, Error, "the URI for the upstream has control characters in it");
        return Err(Verdict::Status(500));
    }
    let uri = r.text(&head.out[uri_start..]);
    r.attempts.uri = Some(uri);
    let own_body = conf.set_body.as_ref().map(|b| b.eval(r));
    if let Some(b) = own_body {
        r.ctx.proxy.body_length = Some(r.get(b).len() as u64);
    }
    let v11 = *conf.http_version >= Version::HTTP11;
    if packed {
        fields::close(uri_start, &mut head.out);
    } else {
        head.out.extend_from_slice(if v11 { b" HTTP/1.1\r\n" } else { b" HTTP/1.0\r\n" });
    }
    let ready = &conf.ready;
    let mut host = ready.host.as_ref().map(|h| h.eval(r));
    if host.is_none_or(|h| v11 && r.get(h).is_empty()) {
        // `set` may have given `$proxy_host` another value.
        host = ready.host_variable.map_or(r.ctx.proxy.host, |id| r.variable(id));
    }
    if let Some(host) = host.filter(|h| !r.get(*h).is_empty()) {
        head.own_line(r, if packed { b":authority" } else { b"Host" }, host)?;
    }
    let mut announced = r.ctx.proxy.body_length.filter(|_| !ready.own_length);
    for (name, value) in &ready.headers {
        let value = value.eval(r);
        if ready.own_length && name.eq_ignore_ascii_case(b"Content-Length") && !r.get(value).is_empty() {
            announced = Some(parse_content_length(r.get(value)).unwrap_or(u64::MAX));
        }
        let is_dropped = packed && is_of_connection(name);
        if !is_dropped && !r.get(value).is_empty() {
            head.own_line(r, name, value)?;
        }
    }
    if let Some(n) = r.ctx.proxy.body_length.filter(|_| !ready.own_length) {
        head.number(b"Content-Length", n);
    }
    if r.ctx.proxy.chunked && !ready.own_coding && !packed {
        head.line(b"Transfer-Encoding", b"chunked");
    }
    if packed && ready.passes_te && asks_for_trailers(r) {
        head.line(b"te", b"trailers");
    }
    if cacheable {
        cache::write_conditions(r, &ready.replaced, &mut head);
    }
    if *conf.upstream.pass_request_headers {
        pass_headers(r, ready, cacheable, &mut head);
    }
    let mut body = None;
    if packed {
        body = own_body.map(|b| {
            let memory = r.get(b).to_vec();
            let len = memory.len() as u64;
            JobBody::Stored(Rc::new(body::Stored { memory, file: None, len }))
        });
    } else {
        head.out.extend_from_slice(b"\r\n");
        if let Some(b) = own_body {
            head.out.extend_from_slice(r.get(b));
        }
    }
    let follows = match (own_body, body_sent) {
        (Some(own), _) => Some(r.get(own).len() as u64),
        (None, JobBody::None) => Some(0),
        (None, JobBody::Stored(stored)) => Some(stored.len),
        (None, JobBody::Stream { .. }) => r.ctx.proxy.body_length,
    };
    let is_uneven = announced.is_some_and(|announced| follows != Some(announced));
    Ok(Built { head: head.out, is_head, body, is_uneven })
}

/// Headers that HTTP/2 has no place for (RFC 9113 section 8.2.2); `TE` only says `trailers`, which is for whoever sets it to know.
fn is_of_connection(name: &[u8]) -> bool {
    matches!(K::find(name), K::Connection | K::ProxyConnection | K::KeepAlive | K::TransferEncoding | K::Upgrade)
}

/// `$grpc_internal_trailers`
fn asks_for_trailers(r: &Request) -> bool {
    let te = r.head.headers.find(K::Te).map(|te| r.get(te));
    te.is_some_and(|te| wire::http1::values::contains_ignoring_case(te, b"trailers"))
}

fn pass_headers(r: &Request, ready: &Ready, cacheable: bool, head: &mut Head) {
    for line in r.head.headers.lines() {
        if matches!(
            line.known,
            K::Host
                | K::Connection
                | K::ProxyConnection
                | K::ContentLength
                | K::TransferEncoding
                | K::Te
                | K::KeepAlive
                | K::Expect
                | K::Upgrade
        ) || (cacheable && cached::is_for_client(line.known))
        {
            continue;
        }
        let name = r.arena.span(line.name);
        debug_assert!(line.known != K::Other || !NOT_PASSED.iter().any(|n| n.eq_ignore_ascii_case(name)));
        if !ready.replaced.iter().any(|n| n.eq_ignore_ascii_case(name)) {
            head.line(name, r.arena.span(line.value));
        }
    }
}

/// Scheme and host as they stand in the key of a cache.
pub(super) fn write_origin(r: &Request, target: &Target<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(if target.secure { &b"https://"[..] } else { b"http://" });
    if target.group.name.starts_with("unix:") {
        out.extend_from_slice(target.group.name.as_bytes());
        out.push(b':');
    } else if let Some(host) = r.ctx.proxy.host {
        out.extend_from_slice(r.get(host));
    }
}

/// `location`: the name that the target's path replaces.
pub(super) fn write_uri(r: &Request, location: &[u8], target: &Target<'_>, out: &mut Vec<u8>) {
    if target.whole {
        out.extend_from_slice(&target.uri);
        return;
    }
    if target.uri.is_empty() && r.head.valid_target {
        let raw = r.get(r.head.target);
        if raw.first() == Some(&b'?') {
            out.push(b'/');
        }
        out.extend_from_slice(raw);
        return;
    }
    let uri = r.get(r.head.uri);
    let mut skip = 0;
    if r.flow.valid_location && !target.uri.is_empty() {
        skip = location.len().min(uri.len());
    }
    if r.flow.valid_location {
        out.extend_from_slice(&target.uri);
    }
    if r.head.headers.head.quoted || r.flow.internal || !r.head.plain_uri {
        escape_uri(&uri[skip..], Escape::Uri, out);
    } else {
        out.extend_from_slice(&uri[skip..]);
    }
    if !r.get(r.head.args).is_empty() {
        out.push(b'?');
        out.extend_from_slice(r.get(r.head.args));
    }
}
