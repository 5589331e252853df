//! `upstream` blocks and `$upstream_*` variables (nginx's `ngx_http_upstream` and its balancing modules).

use crate::config::complex::Complex;
use crate::config::set::{duplicate, invalid};
use crate::config::variables::{Builtin, Prefix};
use crate::config::{Build, Directive, Plane, Scope, both, upstream, upstream_of_both};
use crate::connection::Address;
use crate::request::{Request, Text};
use crate::resolve::{RESOLVER_TIMEOUT, ResolverConfig};
use crate::upstream::Attempt;
use crate::upstream::group::{
    Better, Group, GroupId, Keepalive, Line, Method, Peer, Timing, assemble, key_of, number_of,
};
use crate::upstream::live::{Host, Live};
use balance::FailurePolicy;
use conf::{Contexts, Node, Problem, value};
use std::sync::Arc;
use std::time::Duration;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    both("upstream", block),
    upstream_of_both("server", server),
    upstream_of_both("least_conn", |s, n| method(s, n, Method::LeastConn)),
    upstream("ip_hash", |s, n| method(s, n, Method::IpHash)),
    upstream_of_both("hash", hash),
    upstream_of_both("random", random),
    upstream("least_time", least_time),
    upstream_of_both("zone", zone),
    upstream_of_both("resolver", |s, n| {
        let words: Vec<&[u8]> = n.args.iter().map(|w| w.text.as_slice()).collect();
        let config = ResolverConfig::parse(&words).map_err(|t| n.problem(t))?;
        let block = current(s);
        if block.resolver.replace(Arc::new(config)).is_some() { Err(duplicate(n)) } else { Ok(()) }
    }),
    upstream_of_both("resolver_timeout", |s, n| {
        let ms = value::milliseconds(&n.args[0].text).ok_or_else(|| invalid(n))?;
        let block = current(s);
        if block.resolver_timeout.replace(Duration::from_millis(ms)).is_some() { Err(duplicate(n)) } else { Ok(()) }
    }),
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
    /// `zone`: its words are checked; states are shared by all threads in any case.
    zone: bool,
    resolver: Option<Arc<ResolverConfig>>,
    resolver_timeout: Option<Duration>,
    servers: Vec<Line>,
    node: Option<Node>,
}

/// `upstream` blocks.
#[derive(Debug, Default)]
pub struct Main {
    blocks: Vec<Block>,
}

const fn row(name: &'static str, evaluate: fn(&mut Request) -> Option<Text>) -> Builtin {
    Builtin { name, evaluate, volatile: true, assign: None }
}

pub(super) fn seconds(ms: Option<u64>) -> String {
    ms.map_or_else(|| "-".into(), |ms| format!("{}.{:03}", ms / 1000, ms % 1000))
}

/// `a, b : c`: tries at one location are separated by commas, locations by colons.
pub(super) fn list(r: &mut Request, show: fn(&Attempt) -> String) -> Option<Text> {
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
    let context = if scope.build.plane.is_stream() { Contexts::STREAM_UPSTREAM } else { Contexts::UPSTREAM };
    let mut level = scope.build.level(context);
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
    let time = |last_byte| Some(Better::Time(Timing { last_byte, inflight: false }));
    let two = match node.args.as_slice() {
        [] => None,
        [two, rest @ ..] if *two == "two" => match rest.first() {
            None => Some(Better::Conns),
            Some(w) if *w == "least_conn" => Some(Better::Conns),
            Some(w) if *w == "least_time=header" => time(false),
            Some(w) if *w == "least_time=last_byte" => time(true),
            Some(w) => return Err(node.problem(format!("invalid parameter \"{}\"", w.as_str()))),
        },
        [other, ..] => return Err(node.problem(format!("invalid parameter \"{}\"", other.as_str()))),
    };
    method(scope, node, Method::Random { two })
}

/// `least_time header|last_byte [inflight]`
fn least_time(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let inflight = match node.args.get(1) {
        None => false,
        Some(w) if *w == "inflight" => true,
        Some(w) => return Err(node.problem(format!("invalid parameter \"{}\"", w.as_str()))),
    };
    let last_byte = match &node.args[0] {
        w if *w == "header" => false,
        w if *w == "last_byte" => true,
        w => return Err(node.problem(format!("invalid value \"{}\"", w.as_str()))),
    };
    method(scope, node, Method::LeastTime(Timing { last_byte, inflight }))
}

/// Peers' states are shared by all threads without a zone: its name and size are checked, and names that are followed
/// need it, as in nginx.
fn zone(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let mut bytes = 0;
    if let Some(size) = node.args.get(1) {
        bytes = match value::size(&size.text) {
            Some(n) if n >= 32 * 1024 => n,
            Some(_) => return Err(node.problem(format!("zone \"{}\" is too small", node.args[0].as_str()))),
            None => return Err(node.problem(format!("invalid zone size \"{}\"", size.as_str()))),
        };
    }
    scope.build.main.zones.add(&node.args[0].text, bytes, "upstream").map_err(|t| node.problem(t))?;
    if std::mem::replace(&mut current(scope).zone, true) { Err(duplicate(node)) } else { Ok(()) }
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

/// What the parameters of a `server` line say.
#[derive(Default)]
struct Parameters {
    weight: Option<u32>,
    max_conns: u32,
    policy: FailurePolicy,
    slow_start_ms: u64,
    backup: bool,
    down: bool,
    resolve: bool,
    service: Option<String>,
}

impl Parameters {
    fn read(node: &Node, method: Option<&Method>) -> Result<Parameters, Problem> {
        let mut p = Parameters::default();
        // nginx knows the methods that stand before the line.
        let plain = matches!(method, Some(Method::IpHash | Method::Hash { .. } | Method::Random { .. }));
        for word in &node.args[1..] {
            let text = word.as_str();
            let bad = || node.problem(format!("invalid parameter \"{text}\""));
            let (name, value) = text.split_once('=').unwrap_or((&text, ""));
            if plain && matches!(name, "backup" | "slow_start") {
                return Err(node.problem(format!("balancing method does not support parameter \"{text}\"")));
            }
            match (name, value) {
                ("weight", v) => p.weight = Some(v.parse().ok().filter(|n| *n > 0).ok_or_else(bad)?),
                ("max_conns", v) => p.max_conns = v.parse().map_err(|_| bad())?,
                ("max_fails", v) => p.policy.max_fails = v.parse().map_err(|_| bad())?,
                ("fail_timeout", v) => p.policy.fail_timeout_s = value::seconds(v.as_bytes()).ok_or_else(bad)?,
                ("slow_start", v) => p.slow_start_ms = value::milliseconds(v.as_bytes()).ok_or_else(bad)?,
                ("backup", "") => p.backup = true,
                ("down", "") => p.down = true,
                ("resolve", "") => p.resolve = true,
                ("service", "") => return Err(node.problem("service is empty".to_owned())),
                ("service", v) => p.service = Some(v.to_owned()),
                ("route" | "drain", _) => {
                    return Err(node.problem(format!("the \"{name}\" parameter of \"server\" is not supported yet")));
                }
                _ => return Err(bad()),
            }
        }
        Ok(p)
    }

    fn apply(&self, peer: Peer) -> Peer {
        Peer {
            weight: self.weight.unwrap_or(1),
            max_conns: self.max_conns,
            policy: self.policy,
            down: self.down,
            slow_start_ms: self.slow_start_ms,
            ..peer
        }
    }
}

fn server(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let word = node.args[0].as_str().into_owned();
    let parameters = Parameters::read(node, current(scope).method.as_ref())?;
    let plane = scope.build.plane;
    let group = key_of(plane, &current(scope).name.clone());
    if let Some(line) = named(&group, &word, &parameters).map_err(|t| node.problem(t))? {
        current(scope).servers.push(line);
        return Ok(());
    }
    let addresses =
        resolve(&word, default_port(plane)).map_err(|e| node.problem(format!("{e} in upstream \"{word}\"")))?;
    let block = current(scope);
    let before = |a: &Address| {
        let fixed = block.servers.iter().filter_map(|l| match l {
            Line::Fixed { peers, .. } => Some(peers),
            Line::Named { .. } => None,
        });
        fixed.flatten().filter(|p| p.address == *a).count()
    };
    let peers = addresses.into_iter().map(|a| {
        let ordinal = before(&a);
        Arc::new(parameters.apply(Peer::new(&group, &word, a, ordinal)))
    });
    let peers = peers.collect();
    block.servers.push(Line::Fixed { peers, backup: parameters.backup });
    Ok(())
}

/// A line with a name that is to be followed; nothing if its address is fixed.
fn named(group: &str, word: &str, parameters: &Parameters) -> Result<Option<Line>, String> {
    let (host, port) = match word.rsplit_once(':') {
        Some((host, port)) if !word.starts_with("unix:") && !word.ends_with(']') => (host, Some(port)),
        _ => (word, None),
    };
    if parameters.service.is_some() {
        if !parameters.resolve {
            return Err(format!("service upstream \"{word}\" requires \"resolve\" parameter"));
        }
        if port.is_some() {
            return Err(format!("service upstream \"{word}\" may not have port"));
        }
    }
    let fixed = word.starts_with("unix:") || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    if fixed && parameters.service.is_some() {
        return Err(format!("service upstream \"{word}\" requires domain name"));
    }
    if fixed || !parameters.resolve {
        return Ok(None);
    }
    if host.is_empty() {
        return Err(format!("no host in upstream \"{word}\""));
    }
    let port = match port {
        None => 80,
        Some(port) => match port.parse::<u16>() {
            Ok(n) if n > 0 => n,
            _ => return Err(format!("invalid port in upstream \"{word}\"")),
        },
    };
    let nowhere = Address::Inet(([0, 0, 0, 0], port).into());
    let like = parameters.apply(Peer::with_state(word, nowhere, Arc::default()));
    let host = Host::find(group, host, parameters.service.as_deref());
    Ok(Some(Line::Named { host, like, backup: parameters.backup }))
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
    let found = super::listen::resolve(text, default_port)?;
    if found.iter().any(|a| a.port() == 0) {
        return Err("no port".into());
    }
    Ok(found.into_iter().map(Address::Inet).collect())
}

/// The port where none is written; 0: there has to be one.
fn default_port(plane: Plane) -> u16 {
    if plane.is_stream() { 0 } else { 80 }
}

/// Makes groups of the blocks. Call before levels are merged: they look groups up by name.
pub fn finish(build: &mut Build<'_>) {
    for block in std::mem::take(&mut build.main.upstream.blocks) {
        match group_of(build, block) {
            Ok(group) => build.groups.push(Arc::new(group)),
            Err(problem) => build.problems.push(problem),
        }
    }
}

fn group_of(build: &Build<'_>, block: Block) -> Result<Group, Problem> {
    let node = block.node.as_ref().expect("a block remembers its directive");
    let name = &block.name;
    let is_first = |l: &Line| matches!(l, Line::Fixed { backup: false, .. } | Line::Named { backup: false, .. });
    if !block.servers.iter().any(is_first) {
        return Err(node.problem(format!("no servers in upstream \"{name}\"")));
    }
    let method = block.method.unwrap_or_default();
    let tiers = Arc::new(assemble(name, &method, &block.servers));
    let mut live = None;
    if block.servers.iter().any(|l| matches!(l, Line::Named { .. })) {
        if !block.zone {
            let text = format!("resolving names at run time requires upstream \"{name}\" to be in shared memory");
            return Err(node.problem(text));
        }
        let core = build.http.as_ref().map(|http| &http.conf.core);
        let resolver = block.resolver.or_else(|| core.and_then(|c| (*c.resolver).clone()));
        let timeout = block.resolver_timeout.or_else(|| core.map(|c| *c.resolver_timeout));
        let Some(resolver) = resolver else {
            let text = format!("no resolver defined to resolve names at run time in upstream \"{name}\"");
            return Err(node.problem(text));
        };
        live = Some(Live::new(block.servers, resolver, timeout.unwrap_or(RESOLVER_TIMEOUT), tiers.clone()));
    }
    Ok(Group {
        number: number_of(&key_of(build.plane, name)),
        name: name.as_str().into(),
        method,
        tiers,
        live,
        keepalive: block.keepalive,
        is_block: true,
        for_one_request: false,
    })
}

/// The group with a name, or a new one for the addresses it stands for.
pub fn group_for(build: &mut Build<'_>, host: &str, default_port: u16) -> Result<GroupId, String> {
    if let Some(i) = build.groups.iter().position(|g| &*g.name == host && g.is_block) {
        return Ok(GroupId(i as u32));
    }
    if default_port == 0 && !has_port(host) {
        return Err(format!("no port in upstream \"{host}\""));
    }
    // One host may stand for two ports.
    let with_port = format!("{host}:{default_port}");
    let bare = default_port != 80 && !has_port(host);
    let host = if bare { &with_port } else { host };
    if let Some(i) = build.groups.iter().position(|g| &*g.name == host) {
        return Ok(GroupId(i as u32));
    }
    let addresses = resolve(host, default_port).map_err(|e| format!("{e} in upstream \"{host}\""))?;
    let mut group = Group::implicit(build.plane, host, addresses);
    group.keepalive.connections = None;
    build.groups.push(Arc::new(group));
    Ok(GroupId(build.groups.len() as u32 - 1))
}

fn has_port(host: &str) -> bool {
    host.starts_with("unix:") || host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}
