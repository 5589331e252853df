//! `js_fetch_proxy`: the forward proxy of `ngx.fetch`, as the configuration or a variable names it. From: `fetch`, which asks for it before each
//! exchange. Never shows the password: what is said of a wrong URL does not repeat it.

use crate::config::Scope;
use crate::config::complex::Complex;
use crate::config::setters;
use crate::request::Request;
use conf::{Node, Problem};
use std::sync::Arc;
use wire::encoding::{Alphabet, base64_encode};

/// The port of a proxy that names none, as in nginx.
const USUAL_PORT: u16 = 3128;

/// A forward proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// Its name or address, without brackets around an IPv6 one.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The value of `Proxy-Authorization`.
    pub authorization: Option<Arc<str>>,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Proxy({}:{})", self.host, self.port)
    }
}

/// What the directive says.
#[derive(Clone, Debug)]
pub enum Named {
    /// Always this one.
    Fixed(Proxy),
    /// What the value comes to; an empty one is no proxy.
    Value(Complex),
}

/// `js_fetch_proxy`
pub fn directive(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let value = Complex::compile(scope.build, &node.args[0])?;
    let named = match value.as_fixed() {
        None => Named::Value(value),
        Some(url) => {
            let proxy = parse(url).map_err(|why| node.problem(format!("invalid proxy URL: {why}")))?;
            Named::Fixed(proxy.ok_or_else(|| node.problem("proxy host is empty in URL".to_owned()))?)
        }
    };
    setters::value(&mut scope.level.conf.js.fetch_proxy, node, Some(Arc::new(named)))
}

/// The proxy of a request's level, if it has one.
///
/// # Errors
/// A variable's value is no URL of a proxy: why.
pub fn of(r: &mut Request) -> Result<Option<Proxy>, &'static str> {
    match (*r.conf().js.fetch_proxy).clone().as_deref() {
        None => Ok(None),
        Some(Named::Fixed(proxy)) => Ok(Some(proxy.clone())),
        Some(Named::Value(value)) => {
            let text = value.eval(r);
            parse(r.get(text))
        }
    }
}

/// `http://user:password@host:port`; nothing is no proxy.
fn parse(url: &[u8]) -> Result<Option<Proxy>, &'static str> {
    if url.is_empty() {
        return Ok(None);
    }
    let url = std::str::from_utf8(url).map_err(|_| "it is no text")?;
    let rest = url.strip_prefix("http://").ok_or("it must use the http:// scheme")?;
    let (authorization, authority) = match rest.split_once('@') {
        None => (None, rest),
        Some((credentials, authority)) => (Some(basic(credentials)?), authority),
    };
    let (host, port) = match authority.rfind(':').filter(|at| !authority[*at..].contains(']')) {
        Some(at) => {
            let port = authority[at + 1..].parse().ok().filter(|port| *port > 0);
            (&authority[..at], port.ok_or("its port is invalid")?)
        }
        None => (authority, USUAL_PORT),
    };
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let is_host = |b: u8| b > b' ' && b != 0x7f && !b"/?#@[]\\".contains(&b);
    if host.is_empty() || !host.bytes().all(is_host) {
        return Err("its host is invalid");
    }
    Ok(Some(Proxy { host: host.to_owned(), port, authorization }))
}

/// The credentials of a URL, as a header has them.
fn basic(credentials: &str) -> Result<Arc<str>, &'static str> {
    let (user, password) = credentials.rsplit_once(':').ok_or("its credentials must be user:password")?;
    let mut plain = Vec::with_capacity(credentials.len());
    super::phases::unescape(user.as_bytes(), &mut plain);
    if plain.is_empty() {
        return Err("its user is empty");
    }
    plain.push(b':');
    let before = plain.len();
    super::phases::unescape(password.as_bytes(), &mut plain);
    if plain.len() == before {
        return Err("its password is empty");
    }
    let mut encoded = b"Basic ".to_vec();
    base64_encode(&plain, Alphabet::Standard, &mut encoded);
    Ok(String::from_utf8_lossy(&encoded).into())
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_proxy_has_a_host_a_port_and_perhaps_credentials() {
        let of = |url: &str| {
            parse(url.as_bytes()).map(|p| p.map(|p| (p.host, p.port, p.authorization.map(|a| a.to_string()))))
        };
        assert_eq!(of(""), Ok(None));
        assert_eq!(of("http://a"), Ok(Some(("a".into(), 3128, None))));
        assert_eq!(of("http://[::1]:81"), Ok(Some(("::1".into(), 81, None))));
        let encoded = Some("Basic dXNlckBkb21haW46cEBzczp3b3Jk".to_owned());
        assert_eq!(of("http://user%40domain:p%40ss%3Aword@a:1"), Ok(Some(("a".into(), 1, encoded))));
        for bad in [
            "https://a",
            "http://",
            "http://u@a",
            "http://:p@a",
            "http://u:@a",
            "http://a/",
            "http://a:0",
            "http://a b",
            "http://a\r\nX: y",
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
