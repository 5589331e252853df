//! `upstream` blocks: their directives, and the groups made of them (nginx's `ngx_http_upstream` and its balancing modules).
//! Their `server` lines are read in `upstream_server`.

use super::listen::place;
use super::upstream_server::resolve;
use super::{ignored, tengine_check};
use crate::config::complex::Complex;
use crate::config::setters::{duplicate, invalid};
use crate::config::{Build, Directive, Scope, both, upstream, upstream_of_both};
use crate::connection::Address;
use crate::health::outlier::Outliers;
use crate::modules::lua::chunk::Program;
use crate::upstream::group::{Better, Group, GroupId, Keepalive, Method, Timing, Until, key_of, number_of};
use crate::upstream::live::Live;
use crate::upstream::peer::PeerSettings;
use crate::upstream::queue::{Line, Queue};
use crate::upstream::servers::{MAX_SERVERS, Servers};
use crate::upstream::shed::{self, Shed};
use conf::{Contexts, Node, Problem, value};
use resolve::{RESOLVER_TIMEOUT, ResolverConfig};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long a request waits in a `queue` unless it says otherwise (as in nginx Plus).
const QUEUE_TIMEOUT: Duration = Duration::from_secs(60);

/// What a server takes of a `zone`, bytes: near to what one takes in nginx's shared memory (a peer, its address and its names).
const BYTES_OF_SERVER: u64 = 512;

/// The peer of a group that has none but those of its program (as in OpenResty).
const NOWHERE: &str = "0.0.0.1";

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    both("upstream", block),
    upstream_of_both("least_conn", |s, n| method(s, n, Method::LeastConn)),
    Directive { name: "maglev", within: Contexts::STREAM_UPSTREAM, set: |s, n| method(s, n, Method::Maglev) },
    upstream("ip_hash", |s, n| method(s, n, Method::IpHash)),
    upstream_of_both("hash", hash),
    // Tengine's name for `hash ... consistent`.
    upstream("consistent_hash", |s, n| {
        let key = Complex::compile(s.build, &n.args[0])?;
        method(s, n, Method::Hash { key, consistent: true })
    }),
    upstream_of_both("random", random),
    upstream_of_both("least_time", least_time),
    upstream("queue", queue),
    upstream("outlier_ejection", outlier_ejection),
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
        ignored::once(s, n)?;
        let v = value::number(&n.args[0].text).ok_or_else(|| Problem::invalid_number(n))?;
        current(s).keepalive.requests = v;
        Ok(())
    }),
    upstream("keepalive_time", |s, n| time(s, n, |k, d| k.time = d)),
    upstream("keepalive_timeout", |s, n| time(s, n, |k, d| k.timeout = d)),
];

/// One `upstream` block while it is read.
#[derive(Debug, Default)]
pub struct Block {
    name: String,
    pub(super) method: Option<Method>,
    keepalive: Keepalive,
    keepalive_set: bool,
    /// `zone`: states are shared by all threads in any case.
    zone: Option<Box<str>>,
    resolver: Option<Arc<ResolverConfig>>,
    resolver_timeout: Option<Duration>,
    pub(super) sticky: Option<crate::upstream::sticky::Sticky>,
    pub(super) check: tengine_check::Given,
    queue: Option<(usize, Duration)>,
    outliers: Option<Outliers>,
    pub(super) shed: shed::Settings,
    pub(super) state_file: Option<PathBuf>,
    pub(super) servers: Servers,
    /// `nchan_redis_server` and its companions.
    pub(super) redis: Option<super::nchan::redis::given::Given>,
    /// `balancer_by_lua*`
    pub(super) balancer: Option<Program>,
    node: Option<Node>,
}

/// `upstream` blocks.
#[derive(Debug, Default)]
pub struct Main {
    blocks: Vec<Block>,
    /// Zones of `sticky learn` and the groups that use them.
    pub(super) sticky_zones: Vec<(Box<[u8]>, Box<str>)>,
}

fn block(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let name = node.args[0].as_str().into_owned();
    if scope.build.main.upstream.blocks.iter().any(|b| b.name == name) {
        return Err(node.problem(format!("duplicate upstream \"{name}\"")));
    }
    let servers = Servers::new(&key_of(scope.build.subsystem, &name));
    let block = Block { name: name.clone(), node: Some(node.clone()), servers, ..Block::default() };
    scope.build.main.upstream.blocks.push(block);
    let context = if scope.build.subsystem.is_stream() { Contexts::STREAM_UPSTREAM } else { Contexts::UPSTREAM };
    let mut level = scope.build.level(context);
    let before = scope.build.problems.len();
    scope.fill(node, &mut level);
    if let Some(given) = current(scope).redis.take() {
        if !current(scope).servers.lines.is_empty() {
            return Err(node.problem(format!("upstream \"{name}\" has servers of both HTTP and Redis")));
        }
        scope.build.main.upstream.blocks.pop();
        return super::nchan::redis::conf::finish(scope, node, given, &name);
    }
    let block = current(scope);
    let empty = block.servers.lines.is_empty() && block.state_file.is_none();
    if empty && block.balancer.is_some() {
        // Where a program says nothing, nobody is asked.
        block.servers.add_fixed(NOWHERE, Address::Inet(([0, 0, 0, 1], 80).into()), PeerSettings::default(), false);
        return Ok(());
    }
    if empty && !scope.build.problems[before..].iter().any(|p| p.level.is_fatal()) {
        return Err(Problem::emerg(node.close, "no servers are inside upstream"));
    }
    Ok(())
}

pub(super) fn current<'s>(scope: &'s mut Scope<'_, '_>) -> &'s mut Block {
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
    let is_stream = scope.build.subsystem.is_stream();
    let better = |word: &[u8]| match word.strip_prefix(b"least_time=") {
        Some(until) => until_of(until, is_stream).map(|until| Better::Time(Timing { until, inflight: false })),
        None => (word == b"least_conn").then_some(Better::Conns),
    };
    let two = match node.args.as_slice() {
        [] => None,
        [two] if *two == "two" => Some(Better::Conns),
        [two, word, ..] if *two == "two" => {
            let better = better(&word.text);
            Some(better.ok_or_else(|| node.problem(format!("invalid parameter \"{}\"", word.as_str())))?)
        }
        [other, ..] => return Err(node.problem(format!("invalid parameter \"{}\"", other.as_str()))),
    };
    method(scope, node, Method::Random { two })
}

/// `least_time header|last_byte [inflight]`; in `stream`: `connect|first_byte|last_byte`.
fn least_time(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let inflight = match node.args.get(1) {
        None => false,
        Some(w) if *w == "inflight" => true,
        Some(w) => return Err(node.problem(format!("invalid parameter \"{}\"", w.as_str()))),
    };
    let word = &node.args[0];
    let until = until_of(&word.text, scope.build.subsystem.is_stream());
    let until = until.ok_or_else(|| node.problem(format!("invalid value \"{}\"", word.as_str())))?;
    method(scope, node, Method::LeastTime(Timing { until, inflight }))
}

fn until_of(word: &[u8], is_stream: bool) -> Option<Until> {
    match (word, is_stream) {
        (b"connect", true) => Some(Until::Connect),
        (b"header", false) | (b"first_byte", true) => Some(Until::Header),
        (b"last_byte", _) => Some(Until::LastByte),
        _ => None,
    }
}

/// Peers' states are shared by all threads without a zone: its size is only checked. Names that are followed need it, as in
/// nginx, and so does the API: a group without it is not shown and stays as it was written.
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
    let name = node.args[0].as_str().into();
    if current(scope).zone.replace(name).is_some() { Err(duplicate(node)) } else { Ok(()) }
}

/// `queue NUMBER [timeout=TIME]`, after the method as in nginx Plus.
fn queue(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let most = value::number(&node.args[0].text).filter(|n| *n > 0).ok_or_else(|| invalid(node))?;
    let mut timeout = QUEUE_TIMEOUT;
    if let Some(word) = node.args.get(1) {
        let ms = word.text.strip_prefix(b"timeout=").and_then(value::milliseconds).filter(|ms| *ms > 0);
        timeout = Duration::from_millis(ms.ok_or_else(|| Problem::invalid_parameter(word))?);
    }
    if current(scope).queue.replace((most as usize, timeout)).is_some() { Err(duplicate(node)) } else { Ok(()) }
}

/// `outlier_ejection errors=PERCENT% | latency=FACTOR [requests=] [interval=] [time=] [max=PERCENT%]`
fn outlier_ejection(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let mut rules = Outliers::default();
    for word in &node.args {
        let text = word.as_str();
        let bad = || Problem::invalid_parameter(word);
        let (name, value) = text.split_once('=').ok_or_else(bad)?;
        let number = |n: Option<&str>| n.and_then(|n| n.parse::<u64>().ok()).filter(|n| *n > 0).ok_or_else(bad);
        let percent = || number(value.strip_suffix('%')).and_then(|n| if n <= 100 { Ok(n) } else { Err(bad()) });
        let time = || super::health_check::duration(value.as_bytes()).ok_or_else(bad);
        match name {
            "errors" => rules.errors = Some(percent()?),
            "latency" => rules.latency = Some(number(Some(value))?),
            "requests" => rules.requests = number(Some(value))?,
            "interval" => rules.interval = time()?,
            "time" => rules.time = time()?,
            "max" => rules.most = percent()?,
            _ => return Err(bad()),
        }
    }
    if rules.errors.is_none() && rules.latency.is_none() {
        return Err(node.problem("\"outlier_ejection\" needs \"errors\" or \"latency\"".to_owned()));
    }
    if current(scope).outliers.replace(rules).is_some() { Err(duplicate(node)) } else { Ok(()) }
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
    ignored::once(scope, node)?;
    let ms = value::milliseconds(&node.args[0].text).ok_or_else(|| invalid(node))?;
    apply(&mut current(scope).keepalive, Duration::from_millis(ms));
    Ok(())
}

/// How many servers fit into a zone of so many bytes.
fn room(bytes: u64) -> usize {
    usize::try_from(bytes / BYTES_OF_SERVER).map_or(MAX_SERVERS, |n| n.min(MAX_SERVERS))
}

/// Makes groups of the blocks. Call before levels are merged: they look groups up by name.
pub fn finish(build: &mut Build<'_>) {
    for node in std::mem::take(&mut build.main.nchan.redis_named) {
        let name = node.args[0].as_str();
        if !build.main.nchan.redis.iter().any(|(known, _)| **known == *name) {
            build.problems.push(node.problem(format!("there is no upstream \"{name}\" with \"nchan_redis_server\"")));
        }
    }
    for mut block in std::mem::take(&mut build.main.upstream.blocks) {
        let check = tengine_check::take(&mut block);
        let made = group_of(build, block).and_then(|group| {
            let group = Arc::new(group);
            build.groups.push(group.clone());
            tengine_check::finish(build, &group, check)
        });
        if let Err(problem) = made {
            build.problems.push(problem);
        }
    }
}

fn group_of(build: &Build<'_>, block: Block) -> Result<Group, Problem> {
    let node = block.node.as_ref().expect("a block remembers its directive");
    let name = &block.name;
    if block.state_file.is_none() && block.servers.lines.iter().all(|l| l.backup) {
        return Err(node.problem(format!("no servers in upstream \"{name}\"")));
    }
    let method = block.method.unwrap_or_default();
    let mut servers = block.servers;
    if block.zone.is_some() && block.state_file.is_none() {
        servers.take_roles();
    }
    let tiers = Arc::new(servers.assemble(&method, block.sticky.is_some()));
    let core = build.http.as_ref().map(|http| &http.conf.core);
    let timeout = block.resolver_timeout.or_else(|| core.map(|c| *c.resolver_timeout)).unwrap_or(RESOLVER_TIMEOUT);
    let resolver = block.resolver.or_else(|| core.and_then(|c| (*c.resolver).clone())).map(|r| (r, timeout));
    if servers.has_names() {
        if block.zone.is_none() {
            let text = format!("resolving names at run time requires upstream \"{name}\" to be in shared memory");
            return Err(node.problem(text));
        }
        if resolver.is_none() {
            let text = format!("no resolver defined to resolve names at run time in upstream \"{name}\"");
            return Err(node.problem(text));
        }
    }
    if block.state_file.is_some() && block.zone.is_none() {
        return Err(node.problem(format!("\"state\" requires upstream \"{name}\" to have a \"zone\"")));
    }
    let live = block.zone.as_ref().map(|zone| {
        let room = room(build.main.zones.size(zone.as_bytes()));
        Live::new(servers, room, resolver, block.state_file, tiers.clone())
    });
    let number = number_of(&key_of(build.subsystem, name));
    Ok(Group {
        number,
        name: name.as_str().into(),
        method,
        tiers,
        live,
        zone: block.zone,
        balancer: block.balancer,
        sticky: block.sticky,
        queue: block.queue.map(|(most, timeout)| Line { most, timeout, queue: Queue::find(number) }),
        shed: Shed::find(number, block.shed),
        outliers: block.outliers,
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
    if default_port == 0 && !host.starts_with("unix:") {
        let place = place(host, 0).map_err(|e| format!("{e} in upstream \"{host}\""))?;
        if place.port() == 0 {
            return Err(format!("no port in upstream \"{host}\""));
        }
    }
    // One host may stand for two ports.
    let with_port = format!("{host}:{default_port}");
    let bare = default_port != 80 && !has_port(host);
    let host = if bare { &with_port } else { host };
    if let Some(i) = build.groups.iter().position(|g| &*g.name == host) {
        return Ok(GroupId(i as u32));
    }
    let addresses = resolve(host, default_port).map_err(|e| format!("{e} in upstream \"{host}\""))?;
    let mut group = Group::implicit(build.subsystem, host, addresses);
    group.keepalive.connections = None;
    build.groups.push(Arc::new(group));
    Ok(GroupId(build.groups.len() as u32 - 1))
}

fn has_port(host: &str) -> bool {
    host.starts_with("unix:") || host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}
