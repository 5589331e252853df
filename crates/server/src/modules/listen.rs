//! `listen` and `server_name`: which sockets there are and which servers stand behind them.

use crate::config::pattern::Pattern;
use crate::config::{Build, ConfigLevel, Scope, Subsystem};
use crate::process_settings::{Keepalive, ListenAddress, ListenSpec, SocketKind};
use crate::request::route::{Port, Site};
use crate::snapshot::ServerId;
use conf::{Node, Problem, value};
use hashbrown::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// One `listen` of a server.
#[derive(Clone, Debug)]
pub struct Listen {
    /// The socket it asks for.
    pub spec: ListenSpec,
    /// `default_server`
    pub default: bool,
    /// `proxy_protocol`
    pub proxy_protocol: bool,
    /// `ssl`
    pub ssl: bool,
    /// `http2`
    pub http2: bool,
    /// `mqtt`
    pub mqtt: bool,
    /// `deferred` was written.
    pub deferred: bool,
    /// Socket options were given.
    pub options: bool,
    /// For messages.
    pub node: Node,
}

/// One `server_name` of a server.
#[derive(Clone, Debug)]
pub enum Name {
    /// `a.b`
    Exact(Vec<u8>),
    /// `*.a.b` as `.a.b`
    Head(Vec<u8>),
    /// `.a.b`: with and without something before.
    HeadOrExact(Vec<u8>),
    /// `a.*` as `a.`
    Tail(Vec<u8>),
    /// `~...`
    Pattern(Pattern),
}

/// `listen address[:port] [parameters]`
pub fn listen(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let word = node.args[0].as_str();
    let subsystem = scope.build.subsystem;
    let addresses = parse_address(&word, subsystem)
        .map_err(|e| node.problem(format!("{e} in \"{word}\" of the \"listen\" directive")))?;
    for address in addresses {
        let mut listen = Listen {
            // In `stream` the server may be the one that speaks first.
            spec: ListenSpec { deferred: !subsystem.is_stream(), ..ListenSpec::new(address) },
            default: false,
            proxy_protocol: false,
            ssl: false,
            http2: false,
            mqtt: false,
            deferred: false,
            options: false,
            node: node.clone(),
        };
        for word in &node.args[1..] {
            let word = word.as_str();
            if word == "http2" {
                let text = "the \"listen ... http2\" directive is deprecated, use the \"http2\" directive instead";
                scope.build.problems.push(node.warning(text.to_owned()));
            }
            parameter(&mut listen, subsystem, node, &word)?;
        }
        if listen.mqtt && (listen.http2 || listen.spec.quic) {
            let other = if listen.http2 { "http2" } else { "quic" };
            let text = format!("\"listen\" directive \"mqtt\" parameter is incompatible with \"{other}\"");
            return Err(node.problem(text));
        }
        if let Some(text) = unfit_for_datagrams(&listen) {
            return Err(node.problem(text));
        }
        if listen.spec.quic {
            if let ListenAddress::Unix(_) = listen.spec.address {
                return Err(node.problem("the \"quic\" parameter needs an address with a port".to_owned()));
            }
            listen.spec.deferred = false;
        }
        if scope.level.listens.iter().any(|l| l.spec.is_same_socket(&listen.spec)) {
            return Err(node.problem(format!("a duplicate listen {}", listen.spec.address)));
        }
        scope.level.listens.push(listen);
    }
    Ok(())
}

fn parameter(listen: &mut Listen, subsystem: Subsystem, node: &Node, text: &str) -> Result<(), Problem> {
    let bad = |what: &str, value: &str| node.problem(format!("invalid {what} \"{value}\""));
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    let spec = &mut listen.spec;
    match (name, value) {
        ("udp", "") if subsystem.is_stream() => {
            spec.kind = SocketKind::Datagram;
            return Ok(());
        }
        ("default", "") if subsystem.is_stream() => return Err(node.problem(format!("invalid parameter \"{text}\""))),
        ("default_server" | "default", "") => {
            listen.default = true;
            return Ok(());
        }
        ("proxy_protocol", "") => {
            listen.proxy_protocol = true;
            return Ok(());
        }
        ("http2" | "quic" | "mqtt", "") if subsystem.is_stream() => {
            return Err(node.problem(format!("invalid parameter \"{text}\"")));
        }
        ("ssl", "") => {
            listen.ssl = true;
            return Ok(());
        }
        ("http2", "") => {
            listen.http2 = true;
            return Ok(());
        }
        ("mqtt", "") => {
            listen.mqtt = true;
            return Ok(());
        }
        ("bind", "") => spec.bind = true,
        ("reuseport", "") => spec.reuseport = true,
        ("deferred", "" | "on") => (spec.deferred, listen.deferred) = (true, true),
        ("deferred", "off") => (spec.deferred, listen.deferred) = (false, true),
        ("accept_filter", _) => {
            return Err(node.problem(format!("accept filters \"{text}\" are not supported on this platform, ignored")));
        }
        ("multipath", "") => spec.multipath = true,
        ("backlog", v) => match v.parse::<i32>() {
            Ok(n) if n != 0 => spec.backlog = n,
            _ => return Err(bad("backlog", v)),
        },
        ("fastopen", v) => spec.fastopen = Some(v.parse().map_err(|_| bad("fastopen", v))?),
        ("rcvbuf", v) => spec.rcvbuf = Some(value::size(v.as_bytes()).ok_or_else(|| bad("rcvbuf", v))? as usize),
        ("sndbuf", v) => spec.sndbuf = Some(value::size(v.as_bytes()).ok_or_else(|| bad("sndbuf", v))? as usize),
        ("ipv6only", v) => {
            if !matches!(spec.address, ListenAddress::Inet(SocketAddr::V6(_))) {
                let address = spec.address.to_string();
                return Err(node.problem(format!("ipv6only is not supported on addr \"{address}\", ignored")));
            }
            spec.ipv6only = match v {
                "on" => true,
                "off" => false,
                other => return Err(node.problem(format!("invalid ipv6only flags \"{other}\""))),
            };
        }
        ("so_keepalive", v) => {
            spec.keepalive =
                Some(keepalive(v).ok_or_else(|| node.problem(format!("invalid so_keepalive value: \"{v}\"")))?);
        }
        ("xdp", word) if subsystem.is_stream() => {
            let known = l4::plan::Mode::WORDS.iter().find(|(name, _)| *name == word);
            let (_, mode) = known.ok_or_else(|| {
                let words: Vec<_> = l4::plan::Mode::WORDS.iter().map(|(name, _)| *name).collect();
                bad("xdp", word).with_help(Some(format!("there is {}", words.join(", "))))
            })?;
            spec.xdp = Some(*mode);
        }
        ("quic", "") => {
            (spec.kind, spec.quic) = (SocketKind::Datagram, true);
            return Ok(());
        }
        _ => return Err(node.problem(format!("invalid parameter \"{text}\""))),
    }
    listen.options = true;
    spec.bind = true;
    Ok(())
}

/// A parameter that has no meaning for datagrams (`ngx_stream_core_listen`, `ngx_http_core_listen`).
fn unfit_for_datagrams(listen: &Listen) -> Option<String> {
    let spec = &listen.spec;
    if spec.kind != SocketKind::Datagram {
        return None;
    }
    let name = match () {
        () if spec.fastopen.is_some() => "fastopen",
        () if spec.backlog != crate::process_settings::DEFAULT_BACKLOG => "backlog",
        () if listen.deferred => "deferred",
        () if listen.ssl => "ssl",
        () if listen.http2 => "http2",
        () if spec.keepalive.is_some() => "so_keepalive",
        () if listen.proxy_protocol => "proxy_protocol",
        () => return None,
    };
    let protocol = if spec.quic { "quic" } else { "udp" };
    Some(format!("\"listen\" directive \"{name}\" parameter is incompatible with \"{protocol}\""))
}

/// `on`, `off`, or `[idle]:[interval]:[count]`
fn keepalive(text: &str) -> Option<Keepalive> {
    match text {
        "on" => return Some(Keepalive { on: true, ..Keepalive::default() }),
        "off" => return Some(Keepalive::default()),
        _ => {}
    }
    let parts: Vec<&str> = text.split(':').collect();
    let [idle, interval, count] = parts.as_slice() else { return None };
    let seconds = |t: &str| match t {
        "" => Some(None),
        t => value::seconds(t.as_bytes()).filter(|s| *s > 0).map(|s| Some(Duration::from_secs(s))),
    };
    let count = match *count {
        "" => None,
        t => Some(t.parse::<u32>().ok().filter(|n| *n > 0)?),
    };
    if idle.is_empty() && interval.is_empty() && count.is_none() {
        return None;
    }
    Some(Keepalive { on: true, idle: seconds(idle)?, interval: seconds(interval)?, count })
}

/// `80`, `*:80`, `1.2.3.4`, `1.2.3.4:80`, `[::]:80`, `name:80`, `unix:/path`; for a port also a range of them, `8000-8010`.
fn parse_address(text: &str, subsystem: Subsystem) -> Result<Vec<ListenAddress>, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        if path.is_empty() {
            return Err("no path in the unix domain socket".into());
        }
        return Ok(vec![ListenAddress::Unix(PathBuf::from(path))]);
    }
    let (text, last) = port_range(text)?;
    let found = if value::number(text.as_bytes()).is_some() {
        vec![(Ipv4Addr::UNSPECIFIED, parse_port(text)?).into()]
    } else {
        resolve(text, if subsystem.is_stream() { 0 } else { 80 })?
    };
    if found.iter().any(|a| a.port() == 0) {
        return Err("no port".into());
    }
    if found.iter().any(|a| last.is_some_and(|last| last < a.port())) {
        return Err("invalid port range".into());
    }
    let range = |a: SocketAddr| (a.port()..=last.unwrap_or(a.port())).map(move |port| SocketAddr::new(a.ip(), port));
    Ok(found.into_iter().flat_map(range).map(ListenAddress::Inet).collect())
}

/// What stands before the last port of a range, and that port.
fn port_range(text: &str) -> Result<(&str, Option<u16>), String> {
    let Some((first, last)) = text.rsplit_once('-') else { return Ok((text, None)) };
    let port = first.rsplit(':').next().unwrap_or(first);
    let is_range = value::number(port.as_bytes()).is_some() && value::number(last.as_bytes()).is_some();
    if is_range { Ok((first, Some(parse_port(last)?))) } else { Ok((text, None)) }
}

/// Addresses of `host[:port]`; `*` is every IPv4 address. Names are looked up while the configuration is read.
pub fn resolve(text: &str, default_port: u16) -> Result<Vec<SocketAddr>, String> {
    let (host, port) = match place(text, default_port)? {
        Place::Address(address) => return Ok(vec![address]),
        Place::Name(host, port) => (host, port),
    };
    let mut found: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(|_| "host not found")?.collect();
    found.dedup();
    if found.is_empty() { Err("host not found".into()) } else { Ok(found) }
}

/// What `host:port` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'t> {
    /// An address.
    Address(SocketAddr),
    /// A name that has to be looked up, and a port.
    Name(&'t str, u16),
}

impl Place<'_> {
    /// The port; 0: none was said, and there is no usual one.
    pub fn port(&self) -> u16 {
        match self {
            Place::Address(address) => address.port(),
            Place::Name(_, port) => *port,
        }
    }
}

/// Takes `host[:port]` apart. Looks nothing up.
pub fn place(text: &str, default_port: u16) -> Result<Place<'_>, String> {
    if text.contains(['/', '?']) {
        return Err("invalid host".into());
    }
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or("invalid host")?;
        let ip: Ipv6Addr = host.parse().map_err(|_| "invalid IPv6 address")?;
        let port = match rest {
            "" => default_port,
            rest => parse_port(rest.strip_prefix(':').ok_or("invalid host")?)?,
        };
        return Ok(Place::Address((ip, port).into()));
    } else {
        match text.split_once(':') {
            Some((host, port)) => (host, parse_port(port)?),
            None => (text, default_port),
        }
    };
    if host == "*" {
        return Ok(Place::Address((Ipv4Addr::UNSPECIFIED, port).into()));
    }
    if host.is_empty() {
        return Err("no host".into());
    }
    Ok(host.parse::<IpAddr>().map_or(Place::Name(host, port), |ip| Place::Address((ip, port).into())))
}

fn parse_port(text: &str) -> Result<u16, String> {
    text.parse::<u16>().ok().filter(|p| *p > 0).ok_or_else(|| "invalid port".into())
}

/// `server_name a *.b ~c "";`
pub fn server_name(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    for word in &node.args {
        let text = &word.text;
        let shown = word.as_str();
        if scope.level.server_names.is_empty() {
            scope.level.server_name = first_name(text);
        }
        if let Some(pattern) = text.strip_prefix(b"~") {
            if pattern.is_empty() {
                return Err(node.problem(format!("empty regex in server name \"{shown}\"")));
            }
            // Names are matched without regard to case: hosts come in lower case, and so may expressions.
            let caseless = pattern.iter().any(u8::is_ascii_uppercase);
            let pattern = Pattern::compile(scope.build, pattern, caseless).map_err(|t| node.problem(t))?;
            scope.level.server_names.push((Name::Pattern(pattern), node.clone()));
            continue;
        }
        if text.contains(&b'/') {
            let text = format!("server name \"{shown}\" has suspicious symbols");
            scope.build.problems.push(node.warning(text));
        }
        let lower = if text.eq_ignore_ascii_case(b"$hostname") {
            crate::log::hostname().to_ascii_lowercase().into_bytes()
        } else {
            text.to_ascii_lowercase()
        };
        let name = parse_name(&lower)
            .ok_or_else(|| node.problem(format!("invalid server name or wildcard \"{shown}\" on {shown}")))?;
        if text.eq_ignore_ascii_case(b"$hostname") && scope.level.server_names.is_empty() {
            scope.level.server_name.clone_from(&lower);
        }
        scope.level.server_names.push((name, node.clone()));
    }
    Ok(())
}

fn first_name(text: &[u8]) -> Vec<u8> {
    if text.first() == Some(&b'~') {
        return text.to_vec();
    }
    text.strip_prefix(b".").unwrap_or(text).to_ascii_lowercase()
}

fn parse_name(name: &[u8]) -> Option<Name> {
    if let Some(rest) = name.strip_prefix(b"*.") {
        return (!rest.is_empty() && !rest.contains(&b'*')).then(|| Name::Head(name[1..].to_vec()));
    }
    if let Some(rest) = name.strip_prefix(b".") {
        return (!rest.is_empty() && !rest.contains(&b'*')).then(|| Name::HeadOrExact(name.to_vec()));
    }
    if let Some(rest) = name.strip_suffix(b".*") {
        return (!rest.is_empty() && !rest.contains(&b'*')).then(|| Name::Tail(name[..name.len() - 1].to_vec()));
    }
    if name.contains(&b'*') {
        return None;
    }
    Some(Name::Exact(name.strip_suffix(b".").filter(|n| !n.is_empty()).unwrap_or(name).to_vec()))
}

/// One address with the servers behind it, while they are collected.
struct Collected {
    spec: ListenSpec,
    servers: Vec<(ServerId, usize)>,
    default: Option<(ServerId, Node)>,
    proxy_protocol: bool,
    ssl: bool,
    http2: bool,
    mqtt: bool,
    options: bool,
}

/// Makes sockets and sites of all servers' `listen`s and names (`ngx_http_optimize_servers`).
pub fn collect(build: &mut Build<'_>, servers: &[(ServerId, &ConfigLevel)]) -> (Vec<ListenSpec>, Vec<Port>) {
    let mut all: Vec<Collected> = Vec::new();
    for (i, (id, level)) in servers.iter().enumerate() {
        for listen in &level.listens {
            add(build, &mut all, *id, i, listen);
        }
    }
    all.iter_mut().for_each(|c| c.spec.unsteered = c.spec.quic && !build.process.quic_bpf);
    let mut sockets: Vec<(ListenSpec, Port)> = Vec::new();
    let wildcards: Vec<(SocketAddr, SocketKind)> = all
        .iter()
        .filter_map(|c| match c.spec.address {
            ListenAddress::Inet(a) if a.ip().is_unspecified() => Some((a, c.spec.kind)),
            _ => None,
        })
        .collect();
    // Addresses that listen on everything come first, so that single addresses find them.
    let is_any = |c: &Collected| matches!(c.spec.address, ListenAddress::Inet(a) if a.ip().is_unspecified());
    all.sort_by_key(|c| !is_any(c));
    for c in all {
        let site = site(build, &c, servers);
        let under = match c.spec.address {
            ListenAddress::Inet(a) if !a.ip().is_unspecified() && !c.spec.bind => {
                let fits = |(w, kind): &&(SocketAddr, SocketKind)| {
                    w.port() == a.port() && w.is_ipv4() == a.is_ipv4() && *kind == c.spec.kind
                };
                wildcards.iter().find(fits).map(|(w, _)| (*w, a))
            }
            _ => None,
        };
        match under {
            Some((wildcard, address)) => {
                let socket = sockets
                    .iter_mut()
                    .find(|(s, _)| s.address == ListenAddress::Inet(wildcard) && s.kind == c.spec.kind);
                let (_, port) = socket.expect("wildcard addresses come first");
                port.addresses.push((address.ip(), site));
            }
            None => {
                let port = Port { any: site, addresses: Vec::new(), proxy_protocol: c.proxy_protocol };
                sockets.push((c.spec, port));
            }
        }
    }
    sockets.into_iter().unzip()
}

fn add(build: &mut Build<'_>, all: &mut Vec<Collected>, id: ServerId, index: usize, listen: &Listen) {
    let Some(c) = all.iter_mut().find(|c| c.spec.is_same_socket(&listen.spec)) else {
        all.push(Collected {
            spec: listen.spec.clone(),
            servers: vec![(id, index)],
            default: listen.default.then(|| (id, listen.node.clone())),
            proxy_protocol: listen.proxy_protocol,
            ssl: listen.ssl,
            http2: listen.http2,
            mqtt: listen.mqtt,
            options: listen.options,
        });
        return;
    };
    c.servers.push((id, index));
    c.proxy_protocol |= listen.proxy_protocol;
    c.ssl |= listen.ssl;
    c.http2 |= listen.http2;
    if c.mqtt != listen.mqtt {
        let text = format!("some servers on {} have \"mqtt\" and others have not", listen.spec.address);
        build.problems.push(listen.node.problem(text));
        return;
    }
    if listen.options {
        if c.options && c.spec != listen.spec {
            let text = format!("duplicate listen options for {}", listen.spec.address);
            build.problems.push(listen.node.problem(text));
            return;
        }
        c.options = true;
        c.spec = listen.spec.clone();
    }
    if listen.default {
        if c.default.is_some() {
            let text = format!("a duplicate default server for {}", listen.spec.address);
            build.problems.push(listen.node.problem(text));
            return;
        }
        c.default = Some((id, listen.node.clone()));
    }
}

fn site(build: &mut Build<'_>, c: &Collected, servers: &[(ServerId, &ConfigLevel)]) -> Site {
    let mut site = Site { default: c.default.as_ref().map_or(c.servers[0].0, |d| d.0), ..Site::default() };
    site.named = c.servers.len() > 1;
    site.servers = c.servers.iter().map(|(id, _)| *id).collect();
    (site.ssl, site.http2, site.quic, site.mqtt) = (c.ssl, c.http2, c.spec.quic, c.mqtt);
    for (id, index) in &c.servers {
        let level = servers[*index].1;
        for (name, node) in &level.server_names {
            let taken = match name {
                Name::Exact(n) => put(&mut site.exact, n, *id),
                Name::Head(n) => put(&mut site.heads, n, *id),
                Name::HeadOrExact(n) => put(&mut site.heads, n, *id) | put(&mut site.exact, &n[1..], *id),
                Name::Tail(n) => put(&mut site.tails, n, *id),
                Name::Pattern(p) => {
                    // A pattern's captures are wanted even when there is no other server to choose.
                    site.named = true;
                    site.patterns.push((p.clone(), *id));
                    false
                }
            };
            if taken {
                let shown = node.args.first().map(|w| w.as_str().into_owned()).unwrap_or_default();
                let text = format!("conflicting server name \"{shown}\" on {}, ignored", c.spec.address);
                build.problems.push(node.warning_bare(text));
            }
        }
    }
    site
}

/// True when the name belongs to another server already.
fn put(map: &mut HashMap<Box<[u8]>, ServerId>, name: &[u8], id: ServerId) -> bool {
    match map.get(name) {
        Some(old) => *old != id,
        None => {
            map.insert(name.into(), id);
            false
        }
    }
}
