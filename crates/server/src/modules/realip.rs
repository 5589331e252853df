//! `set_real_ip_from`, `real_ip_header`, `real_ip_recursive` (nginx's `ngx_http_realip_module`): the address that a
//! trusted proxy names takes the place of the proxy's own.
//!
//! The request then goes on with a `Client` of its own; the connection and its other requests keep theirs.

use crate::config::cidr::{Cidr, Plain, parse_address};
use crate::config::setters::{self, duplicate};
use crate::config::setting::Setting;
use crate::config::variables::Builtin;
use crate::config::{Directive, Scope, both, http};
use crate::connection::reuse::ReuseEntry;
use crate::connection::{Address, Client};
use crate::request::headers::KnownHeader as K;
use crate::request::phases::Verdict;
use crate::request::{Request, Text};
use crate::text;
use conf::{Node, Problem};
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Arc;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    both("set_real_ip_from", set_real_ip_from),
    http("real_ip_header", real_ip_header),
    http("real_ip_recursive", |s, n| setters::flag(&mut s.level.conf.realip.real_ip_recursive, n)),
];

/// The variables of the module.
pub const VARIABLES: &[Builtin] = &[
    Builtin {
        name: "realip_remote_addr",
        evaluate: |r| Some(text!(r, "{}", original(r).host())),
        volatile: true,
        assign: None,
    },
    Builtin {
        name: "realip_remote_port",
        evaluate: |r| match original(r).port() {
            0 => Some(Text::EMPTY),
            port => Some(text!(r, "{port}")),
        },
        volatile: true,
        assign: None,
    },
];

/// The module's values on one level.
#[derive(Clone, Debug)]
pub struct Conf {
    pub(super) from: Arc<Vec<Cidr>>,
    header: Setting<Source>,
    real_ip_recursive: Setting<bool>,
}

/// Where the address stands.
#[derive(Clone, Debug)]
enum Source {
    Known(K),
    Named(Arc<[u8]>),
    ProxyProtocol,
}

/// Proxies whose `X-Forwarded-For` is believed.
#[derive(Clone, Debug, Default)]
pub struct Trusted {
    /// Their addresses.
    pub networks: Vec<Cidr>,
    /// Whether proxies behind proxies are believed too: the last address that is none of theirs counts.
    pub recursive: bool,
}

impl Default for Conf {
    fn default() -> Conf {
        Conf {
            from: Arc::default(),
            header: Setting::unset(Source::Known(K::XRealIp)),
            real_ip_recursive: Setting::unset(false),
        }
    }
}

impl Conf {
    /// Takes from the level around what this one does not set.
    pub fn merge(&mut self, parent: &Conf) {
        if self.from.is_empty() {
            self.from = parent.from.clone();
        }
        self.header.inherit(&parent.header);
        self.real_ip_recursive.inherit(&parent.real_ip_recursive);
    }
}

fn set_real_ip_from(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let text = node.args[0].text.as_slice();
    let found = if text == b"unix:" {
        vec![Cidr::Unix]
    } else if let Some(network) = Cidr::read(&mut scope.build.problems, node, text) {
        vec![network]
    } else {
        let name = node.args[0].as_str();
        let addresses = (&*name, 0).to_socket_addrs();
        let addresses =
            addresses.map_err(|_| node.problem(format!("host not found in set_real_ip_from \"{name}\"")))?;
        addresses.map(|a| Cidr::single(a.ip())).collect()
    };
    Arc::make_mut(&mut scope.level.conf.realip.from).extend(found);
    Ok(())
}

fn real_ip_header(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let setting = &mut scope.level.conf.realip.header;
    if setting.is_set() {
        return Err(duplicate(node));
    }
    let text = node.args[0].text.as_slice();
    setting.force(match (text, K::find(text)) {
        (b"proxy_protocol", _) => Source::ProxyProtocol,
        (_, K::Other) => Source::Named(text.into()),
        (_, known) => Source::Known(known),
    });
    Ok(())
}

/// The post-read and the preaccess handler: the server's values first, then the location's, but only once.
pub fn handler(r: &mut Request) -> Verdict {
    if r.conf().realip.from.is_empty() || r.ctx.realip.is_some() {
        return Verdict::Decline;
    }
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.realip;
    let direct = r.client.remote.borrow().clone();
    let start = Plain::of(&direct);
    let recursive = *conf.real_ip_recursive;
    let address = match &*conf.header {
        Source::Known(K::XForwardedFor) => walk(r, start, &conf.from, recursive),
        Source::Known(known) => {
            r.head.headers.find(*known).and_then(|v| step(r.get(v), start, &conf.from, recursive).0)
        }
        Source::Named(name) => {
            let line = r.head.headers.named(&r.arena, name).next();
            line.and_then(|l| step(r.arena.span(l.value), start, &conf.from, recursive).0)
        }
        Source::ProxyProtocol => r.client.proxy_protocol.get().and_then(|header| {
            let source = header.source.to_string();
            let address = step(source.as_bytes(), start, &conf.from, recursive).0?;
            Some(SocketAddr::new(address.ip(), header.source_port))
        }),
    };
    if let Some(address) = address {
        r.ctx.realip = Some(Rc::new(direct));
        r.client = replaced(&r.client, Address::Inet(address));
    }
    Verdict::Decline
}

/// The same for a session of `stream`, where only a PROXY header can name the address (`ngx_stream_realip_module`).
pub fn stream_handler(r: &mut Request) {
    let direct = r.client.remote.borrow().clone();
    let at = Plain::of(&direct);
    if !r.conf().realip.from.iter().any(|n| n.contains(at)) {
        return;
    }
    let header = r.client.proxy_protocol.get().cloned();
    let Some(header) = header else { return };
    if let Some(address) = parse_address(header.source.to_string().as_bytes()) {
        r.ctx.realip = Some(Rc::new(direct));
        r.client = replaced(&r.client, Address::Inet(SocketAddr::new(address.ip(), header.source_port)));
    }
}

/// The client as a request sees it whose address was replaced.
pub fn replaced(client: &Rc<Client>, remote: Address) -> Rc<Client> {
    Rc::new(Client {
        number: client.number,
        remote: remote.into(),
        local: client.local.clone(),
        listener: client.listener,
        started_ms: client.started_ms,
        requests: client.requests.clone(),
        proxy_protocol: client.proxy_protocol.clone(),
        tls: client.tls.clone(),
        debug: client.debug.clone(),
        socket: client.socket.clone(),
        quic: client.quic,
        trial: client.trial.clone(),
        programs: client.programs.clone(),
        reuse_entry: ReuseEntry::beside(client),
    })
}

fn original(r: &Request) -> Rc<Address> {
    r.ctx.realip.clone().unwrap_or_else(|| Rc::new(r.client.remote.borrow().clone()))
}

/// The address that trusted proxies name in `X-Forwarded-For`; none if nobody trusted says anything.
pub fn forwarded(r: &Request, start: Plain, proxies: &Trusted) -> Option<SocketAddr> {
    if proxies.networks.is_empty() {
        return None;
    }
    walk(r, start, &proxies.networks, proxies.recursive)
}

/// Goes through the lines of `X-Forwarded-For` from the last to the first (`ngx_http_get_forwarded_addr`).
fn walk(r: &Request, start: Plain, proxies: &[Cidr], recursive: bool) -> Option<SocketAddr> {
    let mut found: Option<SocketAddr> = None;
    for line in r.head.headers.lines().iter().rev().filter(|l| l.known == K::XForwardedFor) {
        let from = found.map_or(start, |a| Plain::of_ip(a.ip()));
        let (next, whole) = step(r.arena.span(line.value), from, proxies, recursive);
        found = next.or(found);
        if !recursive || !whole {
            break;
        }
    }
    found
}

/// Reads one list from its end as long as the address so far is a proxy's. Tells whether all of it was read.
fn step(list: &[u8], start: Plain, proxies: &[Cidr], recursive: bool) -> (Option<SocketAddr>, bool) {
    let mut found = None;
    let mut at = start;
    let mut rest = list;
    loop {
        if !proxies.iter().any(|p| p.contains(at)) {
            return (found, false);
        }
        let end = rest.iter().rposition(|b| !matches!(b, b' ' | b',')).map_or(0, |i| i + 1);
        rest = &rest[..end];
        let begin = rest.iter().rposition(|b| matches!(b, b' ' | b',')).map_or(0, |i| i + 1);
        let Some(address) = parse_address(&rest[begin..]) else { return (found, false) };
        found = Some(address);
        at = Plain::of_ip(address.ip());
        rest = &rest[..begin];
        if !recursive || rest.is_empty() {
            return (found, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_from_the_end() {
        let (ten, _) = Cidr::parse(b"10.0.0.0/8").expect("a network");
        let proxy = Plain::V4(0x0a00_0001);
        let read = |list: &str, recursive| {
            let (address, whole) = step(list.as_bytes(), proxy, &[ten], recursive);
            (address.map(|a| a.to_string()), whole)
        };
        let is = |a: &str| Some(a.to_owned());
        assert_eq!(read("1.2.3.4, 5.6.7.8", false), (is("5.6.7.8:0"), true));
        assert_eq!(read("1.2.3.4, 10.6.7.8", false), (is("10.6.7.8:0"), true));
        assert_eq!(read("1.2.3.4, 10.6.7.8 , ", true), (is("1.2.3.4:0"), true));
        assert_eq!(read("1.1.1.1,1.2.3.4,10.6.7.8:99", true), (is("1.2.3.4:0"), false));
        assert_eq!(read("x, 10.6.7.8", true), (is("10.6.7.8:0"), false));
        assert_eq!(read("x", true), (None, false));
        assert_eq!(read("", true), (None, false));
        assert_eq!(step(b"1.2.3.4", Plain::V4(1), &[ten], true), (None, false));
    }
}
