//! `ngx.fetch`: one HTTP exchange of a program with somebody else, on the worker's own loop. Every wait and every size is bounded by
//! `js_fetch_*`.

use super::current::with;
use super::exchange::exchange;
use super::proxy::{self, Proxy};
use crate::log_error;
use crate::request::Request;
use crate::tls::client::Context;
use ::js::rquickjs::prelude::Func;
use ::js::rquickjs::{Ctx, Object, Result};
use ::js::{Bytes, Fault, Operation, engine};
use resolve::ResolverConfig;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// What a program asks for, and what holds where it runs.
pub(super) struct Call {
    /// The configuration and its level: each keeps its own connections.
    pub(super) level: String,
    pub(super) method: Vec<u8>,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) target: Vec<u8>,
    pub(super) secure: bool,
    /// Who passes it on.
    pub(super) proxy: Option<Proxy>,
    pub(super) headers: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) body: Option<Vec<u8>>,
    pub(super) verify: bool,
    /// Bytes that one read asks for; an answer's head may have as many.
    pub(super) buffer: usize,
    /// Bytes of an answer's body.
    pub(super) most: usize,
    pub(super) timeout: Duration,
    pub(super) resolver: Option<Arc<ResolverConfig>>,
    pub(super) resolver_timeout: Duration,
    pub(super) tls: Option<Arc<Context>>,
    pub(super) keep: Keep,
}

impl Call {
    /// Where the connection goes: to the proxy, or to the server itself.
    pub(super) fn connects_to(&self) -> (&str, u16) {
        match &self.proxy {
            Some(proxy) => (&proxy.host, proxy.port),
            None => (self.host.trim_matches(['[', ']']), self.port),
        }
    }

    /// The proxy that reads the request itself; with TLS it sees only a tunnel.
    pub(super) fn reader(&self) -> Option<&Proxy> {
        self.proxy.as_ref().filter(|_| !self.secure)
    }
}

/// How connections are kept.
#[derive(Clone, Copy)]
pub(super) struct Keep {
    pub(super) most: usize,
    pub(super) requests: u64,
    pub(super) time: Duration,
    pub(super) timeout: Duration,
}

/// Puts the function in.
pub fn add(_: &Ctx<'_>, raw: &Object<'_>) -> Result<()> {
    // The last of its arguments in one list: verify, buffer size, the most bytes.
    raw.set("fetch_begin", Func::from(begin))
}

fn begin(
    ctx: Ctx<'_>,
    method: Bytes,
    url: String,
    headers: Vec<Bytes>,
    body: Option<Bytes>,
    verify: Option<bool>,
    sizes: Vec<f64>,
) -> Result<u32> {
    with(&ctx, |r| {
        let call = prepare(r, method.0, &url, headers, body.map(|b| b.0), verify, &sizes)?;
        let operation: Operation = Box::pin(async move {
            let name = format!("{}:{}", call.host, call.port);
            exchange(call).await.map_err(|text| {
                note(&format!("js http fetch from {name}: {text}"));
                Fault::plain(text)
            })
        });
        engine::current()?.begin(operation)
    })
}

/// A line about the request that the program runs for.
pub(super) fn note(text: &str) {
    let _ = super::current::request(|r| {
        log_error!(r, Error, "{text}");
        Ok(())
    });
}

/// The parts of a URL.
fn split(url: &str) -> std::result::Result<(bool, String, u16, Vec<u8>), Fault> {
    let bad = || Fault::of_type("invalid url");
    let (secure, rest) = match url {
        u if u.get(..7).is_some_and(|p| p.eq_ignore_ascii_case("http://")) => (false, &u[7..]),
        u if u.get(..8).is_some_and(|p| p.eq_ignore_ascii_case("https://")) => (true, &u[8..]),
        _ => return Err(Fault::of_type("unsupported URL schema (only http or https are supported)")),
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let authority = authority.rsplit('@').next().unwrap_or_default();
    let path = path.split('#').next().unwrap_or_default();
    let colon = authority.rfind(':').filter(|at| !authority[*at..].contains(']'));
    let (host, port) = match colon {
        Some(at) => (&authority[..at], authority[at + 1..].parse().ok().filter(|p| *p > 0).ok_or_else(bad)?),
        None => (authority, if secure { 443 } else { 80 }),
    };
    if host.is_empty() || url.bytes().any(|b| b <= b' ' || b == 0x7f) {
        return Err(bad());
    }
    let target = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    Ok((secure, host.to_owned(), port, target.into_bytes()))
}

fn prepare(
    r: &mut Request,
    method: Vec<u8>,
    url: &str,
    headers: Vec<Bytes>,
    body: Option<Vec<u8>>,
    verify: Option<bool>,
    sizes: &[f64],
) -> std::result::Result<Call, Fault> {
    let (secure, host, port, target) = split(url)?;
    let proxy = proxy::of(r).map_err(|why| {
        log_error!(r, Error, "invalid proxy URL of \"js_fetch_proxy\": {why}");
        Fault::internal("failed to evaluate proxy URL")
    })?;
    let conf = &r.conf().js;
    let size = |at: usize, usual: u64| sizes.get(at).filter(|s| **s >= 1.0).map_or(usual as usize, |s| *s as usize);
    let mut all = Vec::new();
    let mut names = headers.into_iter();
    while let (Some(name), Some(value)) = (names.next(), names.next()) {
        all.push((name.0, value.0));
    }
    let core = &r.conf().core;
    let call = Call {
        level: format!("{}:{}:{}", r.snapshot.generation, r.ctx.stream.is_some(), r.location.0),
        method,
        host,
        port,
        target,
        secure,
        proxy,
        headers: all,
        body,
        verify: verify.unwrap_or(*conf.fetch_verify),
        buffer: size(0, *conf.fetch_buffer_size).max(64),
        most: size(1, *conf.fetch_max_response),
        timeout: *conf.fetch_timeout,
        resolver: (*core.resolver).clone(),
        resolver_timeout: *core.resolver_timeout,
        tls: conf.tls.clone(),
        keep: Keep {
            most: *conf.fetch_keepalive as usize,
            requests: *conf.fetch_keepalive_requests,
            time: *conf.fetch_keepalive_time,
            timeout: *conf.fetch_keepalive_timeout,
        },
    };
    let is_name = call.connects_to().0.parse::<IpAddr>().is_err();
    if is_name && call.resolver.is_none() {
        return Err(Fault::internal("no resolver defined"));
    }
    Ok(call)
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn a_url_has_parts() {
        let of = |url: &str| {
            split(url).map(|(s, h, p, t)| (s, h, p, String::from_utf8_lossy(&t).into_owned())).map_err(|f| f.text)
        };
        assert_eq!(of("http://a"), Ok((false, "a".into(), 80, "/".into())));
        assert_eq!(of("HTTPS://a.b:8443/x?y#z"), Ok((true, "a.b".into(), 8443, "/x?y".into())));
        assert_eq!(of("http://[::1]:81?q"), Ok((false, "[::1]".into(), 81, "/?q".into())));
        assert_eq!(of("http://a:80800/"), Err("invalid url".into()));
        assert_eq!(of("http://a/\r\nb"), Err("invalid url".into()));
        assert!(of("ftp://a").is_err());
    }
}
