//! `proxy_connect`: CONNECT in a server whose other requests go their usual way (`ngx_http_proxy_connect_module`, Tengine's too). A CONNECT
//! is none of the locations' business there: the server's own level has its rules. How bytes go is `tunnel`'s.

use super::tunnel;
use crate::config::complex::Complex;
use crate::config::setters::{self, duplicate};
use crate::config::variables::Builtin;
use crate::config::{Build, Directive, Scope, http};
use crate::log_error;
use crate::request::phases::Verdict;
use crate::request::{Method, Request};
use crate::upstream::conf::UpstreamConf;
use crate::upstream::directives::bind_value;
use conf::{Node, Problem, value};
use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("proxy_connect", |s, n| {
        tunnel::pass_to_named(s, n)?;
        s.level.server.get_or_insert_default().allow_connect = true;
        Ok(())
    }),
    http("proxy_connect_allow", allow),
    http("proxy_connect_address", |s, n| {
        if s.level.conf.tunnel.named.address.is_some() {
            return Err(duplicate(n));
        }
        if let Some(word) = n.args.get(1) {
            return Err(word.problem(format!("invalid parameter \"{}\"", word.as_str())));
        }
        if n.args[0] != "off" {
            s.level.conf.tunnel.named.address = Some(Complex::compile(s.build, &n.args[0])?);
        }
        Ok(())
    }),
    http("proxy_connect_bind", |s, n| {
        let bind = bind_value(s, n)?;
        setters::value(&mut upstream(s).bind, n, bind)
    }),
    http("proxy_connect_connect_timeout", |s, n| setters::time(&mut upstream(s).connect_timeout, n)),
    http("proxy_connect_data_timeout", |s, n| setters::time(&mut upstream(s).read_timeout, n)),
    // What `proxy_connect_data_timeout` was called before.
    http("proxy_connect_read_timeout", |s, n| setters::time(&mut upstream(s).read_timeout, n)),
    // `proxy_connect_data_timeout` holds for both directions; in the module this one has no function either.
    http("proxy_connect_send_timeout", |s, n| {
        s.build.note(n);
        Ok(())
    }),
];

/// Variables of a CONNECT, in any server.
pub const VARIABLES: &[Builtin] = &[
    Builtin {
        name: "connect_host",
        evaluate: |r| named(r).then_some(r.head.headers.host).flatten(),
        volatile: false,
        assign: None,
    },
    Builtin {
        name: "connect_port",
        evaluate: |r| r.head.port.filter(|_| named(r)).map(|port| r.text(port.to_string().as_bytes())),
        volatile: false,
        assign: None,
    },
];

/// Ports that clients may name where `proxy_connect_allow` says nothing: https, and nntp over TLS.
const USUAL: [RangeInclusive<u16>; 2] = [443..=443, 563..=563];

/// What clients may name, and where they are led instead.
#[derive(Clone, Debug, Default)]
pub struct Named {
    /// `proxy_connect_allow`; an empty list: all ports.
    ports: Option<Arc<[RangeInclusive<u16>]>>,
    /// `proxy_connect_address`
    address: Option<Complex>,
}

fn upstream<'s>(scope: &'s mut Scope<'_, '_>) -> &'s mut UpstreamConf {
    &mut scope.level.conf.tunnel.upstream
}

fn named(r: &Request) -> bool {
    r.head.method == Method::Connect
}

/// `proxy_connect_allow all | PORT | PORT-PORT ...`
fn allow(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if scope.level.conf.tunnel.named.ports.is_some() {
        return Err(duplicate(node));
    }
    let port = |text: &[u8]| value::number(text).and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0);
    let mut ports = Vec::with_capacity(node.args.len());
    for word in &node.args {
        if *word == "all" {
            ports.clear();
            break;
        }
        let (from, to) = match word.text.iter().position(|b| *b == b'-') {
            Some(at) => (port(&word.text[..at]), port(&word.text[at + 1..])),
            None => (port(&word.text), port(&word.text)),
        };
        match (from, to) {
            (Some(from), Some(to)) if from <= to => ports.push(from..=to),
            _ => return Err(word.problem(format!("invalid port \"{}\"", word.as_str()))),
        }
    }
    scope.level.conf.tunnel.named.ports = Some(ports.into());
    Ok(())
}

impl Named {
    /// Where a CONNECT goes that names this place. Refused: its port is none of those that clients may name.
    pub(super) fn place<'p>(&self, r: &mut Request, place: Cow<'p, [u8]>) -> Result<Cow<'p, [u8]>, Verdict> {
        let port = r.head.port.unwrap_or(0);
        let allowed = self.ports.as_deref().unwrap_or(&USUAL);
        if !allowed.is_empty() && !allowed.iter().any(|ports| ports.contains(&port)) {
            log_error!(
                r,
                Info,
                "client wants to be connected to port {port}, which \"proxy_connect_allow\" does not name"
            );
            return Err(Verdict::Status(403));
        }
        let Some(address) = &self.address else { return Ok(place) };
        let text = address.eval(r);
        let text = r.get(text);
        let has_port = text.iter().rposition(|b| *b == b':').is_some_and(|at| !text[at..].contains(&b']'));
        Ok(match (text, has_port) {
            (b"" | b"off", _) => place,
            (_, true) => Cow::Owned(text.to_vec()),
            (_, false) => Cow::Owned([text, b":", port.to_string().as_bytes()].concat()),
        })
    }
}

/// Where clients name the place, and nothing says who may.
pub(super) fn warn_of_open(build: &mut Build<'_>, name: &str, place: Option<conf::Span>) {
    let text = format!(
        "\"{name}\" lets every client reach every address: there is no \"allow\", \"deny\" or authentication here"
    );
    if !build.problems.iter().any(|p| p.message == text) {
        build.problems.push(Problem::warn(place.or(build.http_end), text));
    }
}
