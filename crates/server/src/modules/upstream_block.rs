//! `upstream` blocks and `$upstream_*` variables (nginx's `ngx_http_upstream` and its balancing modules).

use crate::config::complex::Complex;
use crate::config::set::{duplicate, invalid};
use crate::config::variables::{Builtin, Prefix};
use crate::config::{Build, Directive, Scope, http, upstream};
use crate::connection::Address;
use crate::request::{Request, Text};
use crate::upstream::Attempt;
use crate::upstream::group::{Group, GroupId, Keepalive, Method, Peer, Tier};
use balance::{Ranges, Ring};
use conf::{Contexts, Node, Problem, value};
use std::sync::Arc;
use std::time::Duration;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("upstream", block),
    upstream("server", server),
    upstream("least_conn", |s, n| method(s, n, Method::LeastConn)),
    upstream("ip_hash", |s, n| method(s, n, Method::IpHash)),
    upstream("hash", hash),
    upstream("random", random),
    upstream("zone", zone),
    upstream("keepalive", keepalive),
    upstream("keepalive_requests", |s, n| {
        let v = value::number(&n.args[0].text).ok_or_else(|| invalid(n))?;
        current(s).keepalive.requests = v;
        Ok(())
    }),
    upstream("keepalive_time", |s, n| time(s, n, |k, d| k.time = d)),
    upstream("keepalive_timeout", |s, n| time(s, n, |k, d| k.timeout = d)),
];

/// The variables.
pub const VARIABLES: &[Builtin] = &[
    row("upstream_addr", |r| {
        list(r, |a| match (&a.peer, &a.group) {
            (Some(p), _) => p.name.to_string(),
            (None, Some(g)) => g.to_string(),
            _ => String::new(),
        })
    }),
    row("upstream_status", |r| list(r, |a| if a.status == 0 { "-".into() } else { format!("{:03}", a.status) })),
    row("upstream_connect_time", |r| list(r, |a| seconds(a.connect_ms))),
    row("upstream_header_time", |r| list(r, |a| seconds(a.header_ms))),
    row("upstream_response_time", |r| list(r, |a| seconds(a.response_ms))),
    row("upstream_response_length", |r| list(r, |a| a.body_bytes.to_string())),
    row("upstream_bytes_received", |r| list(r, |a| a.received.to_string())),
    row("upstream_bytes_sent", |r| list(r, |a| a.sent.to_string())),
];

/// Rules for variables with a prefix.
pub const PREFIXES: &[Prefix] = &[
    Prefix { name: "upstream_http_", evaluate: header, volatile: true },
    Prefix { name: "upstream_trailer_", evaluate: trailer, volatile: true },
    Prefix { name: "upstream_cookie_", evaluate: cookie, volatile: true },
];

/// One `upstream` block while it is read.
#[derive(Debug, Default)]
pub struct Block {
    name: String,
    method: Option<Method>,
    keepalive: Keepalive,
    keepalive_set: bool,
    servers: Vec<ServerLine>,
    node: Option<Node>,
}

#[derive(Debug)]
struct ServerLine {
    peers: Vec<Peer>,
    backup: bool,
}

/// `upstream` blocks.
#[derive(Debug, Default)]
pub struct Main {
    blocks: Vec<Block>,
}

const fn row(name: &'static str, evaluate: fn(&mut Request) -> Option<Text>) -> Builtin {
    Builtin { name, evaluate, volatile: true, assign: None }
}

fn seconds(ms: Option<u64>) -> String {
    ms.map_or_else(|| "-".into(), |ms| format!("{}.{:03}", ms / 1000, ms % 1000))
}

/// `a, b : c`: tries at one location are separated by commas, locations by colons.
fn list(r: &mut Request, show: fn(&Attempt) -> String) -> Option<Text> {
    if r.attempts.all.is_empty() {
        return None;
    }
    let mut out = String::new();
    let mut separator = "";
    for a in &r.attempts.all {
        if a.gap {
            separator = " : ";
            continue;
        }
        out.push_str(separator);
        out.push_str(&show(a));
        separator = ", ";
    }
    Some(r.text(out.as_bytes()))
}

fn header(r: &mut Request, name: &str) -> Option<Text> {
    let base = r.attempts.head_base;
    let mut out: Option<Vec<u8>> = None;
    for line in &r.attempts.head.headers {
        let line_name = crate::upstream::relay::text_of(line.name, base);
        if super::variables::is_named(r.get(line_name), name) {
            let value = r.get(crate::upstream::relay::text_of(line.value, base)).to_vec();
            match &mut out {
                None => out = Some(value),
                Some(all) => {
                    all.extend_from_slice(b", ");
                    all.extend_from_slice(&value);
                }
            }
        }
    }
    out.map(|v| r.text(&v))
}

fn trailer(r: &mut Request, name: &str) -> Option<Text> {
    r.attempts.trailers.iter().find(|(n, _)| super::variables::is_named(r.get(*n), name)).map(|(_, v)| *v)
}

fn cookie(r: &mut Request, name: &str) -> Option<Text> {
    let base = r.attempts.head_base;
    for line in &r.attempts.head.headers {
        if line.known != crate::request::headers::KnownHeader::SetCookie {
            continue;
        }
        let value = r.get(crate::upstream::relay::text_of(line.value, base));
        let pair = &value[..memchr::memchr(b';', value).unwrap_or(value.len())];
        if let Some(at) = memchr::memchr(b'=', pair)
            && pair[..at].trim_ascii().eq_ignore_ascii_case(name.as_bytes())
        {
            let value = pair[at + 1..].trim_ascii().to_vec();
            return Some(r.text(&value));
        }
    }
    None
}

fn block(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let name = node.args[0].as_str().into_owned();
    if scope.build.main.upstream.blocks.iter().any(|b| b.name == name) {
        return Err(node.problem(format!("duplicate upstream \"{name}\"")));
    }
    let block = Block { name: name.clone(), node: Some(node.clone()), ..Block::default() };
    scope.build.main.upstream.blocks.push(block);
    let mut level = scope.build.level(Contexts::UPSTREAM);
    let before = scope.build.problems.len();
    scope.fill(node, &mut level);
    if current(scope).servers.is_empty() && !scope.build.problems[before..].iter().any(|p| p.level.is_fatal()) {
        return Err(Problem::emerg(node.close, "no servers are inside upstream"));
    }
    Ok(())
}

fn current<'s>(scope: &'s mut Scope<'_, '_>) -> &'s mut Block {
    scope.build.main.upstream.blocks.last_mut().expect("directives of a group stand in its block")
}

fn method(scope: &mut Scope<'_, '_>, node: &Node, method: Method) -> Result<(), Problem> {
    let block = current(scope);
    if block.method.is_some() {
        let text = "load balancing method redefined".to_owned();
        block.method = Some(method);
        scope.build.problems.push(node.warning(text));
        return Ok(());
    }
    block.method = Some(method);
    Ok(())
}

fn hash(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let key = Complex::compile(scope.build, &node.args[0])?;
    let consistent = match node.args.get(1) {
        None => false,
        Some(w) if *w == "consistent" => true,
        Some(w) => return Err(node.problem(format!("invalid parameter \"{}\"", w.as_str()))),
    };
    method(scope, node, Method::Hash { key, consistent })
}

fn random(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let two = match node.args.as_slice() {
        [] => false,
        [two, rest @ ..] if *two == "two" => match rest.first() {
            None => true,
            Some(w) if *w == "least_conn" => true,
            Some(w) => return Err(node.problem(format!("invalid parameter \"{}\"", w.as_str()))),
        },
        [other, ..] => return Err(node.problem(format!("invalid parameter \"{}\"", other.as_str()))),
    };
    method(scope, node, Method::Random { two })
}

/// Peers' states are shared by all threads without a zone; its size is checked and nothing else.
fn zone(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if let Some(size) = node.args.get(1) {
        match value::size(&size.text) {
            Some(n) if n >= 32 * 1024 => {}
            Some(_) => return Err(node.problem(format!("zone \"{}\" is too small", node.args[0].as_str()))),
            None => return Err(node.problem(format!("invalid zone size \"{}\"", size.as_str()))),
        }
    }
    scope.build.note(node);
    Ok(())
}

fn keepalive(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let n = value::number(&node.args[0].text).ok_or_else(|| {
        node.problem(format!("invalid value \"{}\" in \"keepalive\" directive", node.args[0].as_str()))
    })?;
    if let Some(w) = node.args.get(1)
        && *w != "local"
    {
        return Err(node.problem(format!("invalid parameter \"{}\"", w.as_str())));
    }
    let block = current(scope);
    if std::mem::replace(&mut block.keepalive_set, true) {
        return Err(duplicate(node));
    }
    block.keepalive.connections = (n > 0).then_some(n as usize);
    Ok(())
}

fn time(scope: &mut Scope<'_, '_>, node: &Node, apply: fn(&mut Keepalive, Duration)) -> Result<(), Problem> {
    let ms = value::milliseconds(&node.args[0].text).ok_or_else(|| invalid(node))?;
    apply(&mut current(scope).keepalive, Duration::from_millis(ms));
    Ok(())
}

fn server(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let word = node.args[0].as_str().into_owned();
    let addresses = resolve(&word, 80).map_err(|e| node.problem(format!("{e} in upstream \"{word}\"")))?;
    let group = current(scope).name.clone();
    let before = |a: &Address| {
        let blocks = &scope.build.main.upstream.blocks;
        let lines = blocks.last().map_or(&[][..], |b| &b.servers);
        lines.iter().flat_map(|l| &l.peers).filter(|p| p.address == *a).count()
    };
    let made = addresses.into_iter().map(|a| {
        let ordinal = before(&a);
        Peer::new(&group, &word, a, ordinal)
    });
    let mut peers: Vec<Peer> = made.collect();
    let mut backup = false;
    for word in &node.args[1..] {
        let text = word.as_str();
        let bad = || node.problem(format!("invalid parameter \"{text}\""));
        let (name, value) = text.split_once('=').unwrap_or((&text, ""));
        match (name, value) {
            ("weight", v) => {
                let n: u32 = v.parse().ok().filter(|n| *n > 0).ok_or_else(bad)?;
                peers.iter_mut().for_each(|p| p.weight = n);
            }
            ("max_conns", v) => {
                let n: u32 = v.parse().map_err(|_| bad())?;
                peers.iter_mut().for_each(|p| p.max_conns = n);
            }
            ("max_fails", v) => {
                let n: u32 = v.parse().map_err(|_| bad())?;
                peers.iter_mut().for_each(|p| p.policy.max_fails = n);
            }
            ("fail_timeout", v) => {
                let s = value::seconds(v.as_bytes()).ok_or_else(bad)?;
                peers.iter_mut().for_each(|p| p.policy.fail_timeout_s = s);
            }
            ("backup", "") => backup = true,
            ("down", "") => peers.iter_mut().for_each(|p| p.down = true),
            ("resolve" | "service" | "slow_start" | "route" | "drain", _) => {
                return Err(node.problem(format!("the \"{name}\" parameter of \"server\" is not supported yet")));
            }
            _ => return Err(bad()),
        }
    }
    let block = current(scope);
    if backup && matches!(block.method, Some(Method::IpHash | Method::Hash { .. } | Method::Random { .. })) {
        return Err(node.problem("balancing method does not support parameter \"backup\"".to_owned()));
    }
    block.servers.push(ServerLine { peers, backup });
    Ok(())
}

/// Addresses of `host[:port]` or `unix:path`. Names are looked up while the configuration is read.
pub fn resolve(text: &str, default_port: u16) -> Result<Vec<Address>, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return if path.is_empty() {
            Err("no path in the unix domain socket".into())
        } else {
            Ok(vec![Address::Unix(path.into())])
        };
    }
    Ok(super::listen::resolve(text, default_port)?.into_iter().map(Address::Inet).collect())
}

/// Makes groups of the blocks. Call before levels are merged: they look groups up by name.
pub fn finish(build: &mut Build<'_>) {
    for block in std::mem::take(&mut build.main.upstream.blocks) {
        let mut tiers = [Tier::default(), Tier::default()];
        for line in block.servers {
            tiers[line.backup as usize].peers.extend(line.peers.into_iter().map(Arc::new));
        }
        if tiers[0].peers.is_empty() {
            if let Some(node) = &block.node {
                build.problems.push(node.problem(format!("no servers in upstream \"{}\"", block.name)));
            }
            continue;
        }
        let method = block.method.unwrap_or_default();
        tiers[0].alone = tiers[1].peers.is_empty();
        for tier in &mut tiers {
            tier.prepare(&method);
        }
        build.groups.push(Arc::new(Group {
            number: crate::upstream::group::number_of(&block.name),
            name: block.name.into(),
            method,
            tiers,
            keepalive: block.keepalive,
            is_block: true,
            for_one_request: false,
        }));
    }
}

impl Tier {
    /// Builds what the method looks peers up in.
    fn prepare(&mut self, method: &Method) {
        struct All<'t>(&'t [Arc<Peer>]);
        impl balance::Peers for All<'_> {
            fn len(&self) -> usize {
                self.0.len()
            }
            fn weight(&self, i: usize) -> u32 {
                self.0[i].weight
            }
            fn conns(&self, _: usize) -> u32 {
                0
            }
            fn enabled(&self, i: usize) -> bool {
                !self.0[i].down
            }
        }
        match method {
            Method::Random { .. } => self.ranges = Some(Ranges::new(&All(&self.peers))),
            Method::Hash { consistent: true, .. } => {
                self.ring = Some(Ring::new(self.peers.iter().map(|p| (p.server.as_bytes(), p.weight))));
            }
            _ => {}
        }
    }
}

/// The group with a name, or a new one for the addresses it stands for.
pub fn group_for(build: &mut Build<'_>, host: &str, default_port: u16) -> Result<GroupId, String> {
    if let Some(i) = build.groups.iter().position(|g| &*g.name == host) {
        return Ok(GroupId(i as u32));
    }
    let addresses = resolve(host, default_port).map_err(|e| format!("{e} in upstream \"{host}\""))?;
    let mut group = Group::implicit(host, addresses);
    group.keepalive.connections = None;
    build.groups.push(Arc::new(group));
    Ok(GroupId(build.groups.len() as u32 - 1))
}
