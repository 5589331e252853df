//! `listen ... xdp=MODE` and `xdp_*`: a server of `stream` whose packets the kernel balances. Here words are read, and what cannot
//! be done in the kernel is named; what becomes of them: `balancer`.

use crate::balancer::load::ReportTo;
use crate::balancer::plan::choice_of;
use crate::config::setters::{self, duplicate, invalid};
use crate::config::{Build, ConfigLevel, Directive, Scope, stream};
use crate::merged_values;
use crate::process_settings::{ListenAddress, SocketKind};
use crate::snapshot::VariableId;
use conf::{Node, Problem, value};
use l4::plan::Mode;
use l4::runner::Reports;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Flows that fit into the table unless `xdp_flows` says otherwise: 80 MB.
const FLOWS: u32 = 1 << 18;

/// Between two reports of accept queues.
const INTERVAL: Duration = Duration::from_millis(5);
/// A key is not to be guessed.
const SHORTEST_KEY: usize = 16;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    stream("xdp_interfaces", interfaces),
    stream("xdp_generic", |s, n| {
        let generic = &mut s.build.main.xdp.generic;
        let on = n.args[0].text.eq_ignore_ascii_case(b"on");
        if generic.replace(on).is_some() { Err(duplicate(n)) } else { Ok(()) }
    }),
    stream("xdp_flows", |s, n| {
        let flows = value::number(&n.args[0].text).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
        let flows = flows.ok_or_else(|| Problem::invalid_number(n))?;
        if s.build.main.xdp.flows.replace(flows).is_some() { Err(duplicate(n)) } else { Ok(()) }
    }),
    stream("xdp_pins", |s, n| {
        let path = s.build.full_path(&n.args[0].text);
        if s.build.main.xdp.pins.replace(path).is_some() { Err(duplicate(n)) } else { Ok(()) }
    }),
    stream("xdp_reports", reports),
    stream("xdp_report_to", report_to),
    stream("xdp_source", source),
    stream("xdp_timeout_reset", |s, n| setters::flag(&mut s.level.conf.xdp.timeout_reset, n)),
    stream("xdp_affinity", affinity),
    stream("xdp_syn_cookies", syn_cookies),
    stream("xdp_quic_ids", |s, n| setters::flag(&mut s.level.conf.xdp.quic_ids, n)),
    stream("xdp_gue_port", |s, n| {
        let port = value::number(&n.args[0].text).and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0);
        setters::value(&mut s.level.conf.xdp.gue_port, n, port.ok_or_else(|| invalid(n))?)
    }),
];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// Source addresses of our own, for full NAT and tunnels.
        source: Arc<Vec<IpAddr>> = Arc::default(),
        /// A flow that was idle for `proxy_timeout` is reset at both ends by its next packet, not forgotten in silence.
        timeout_reset: bool = false,
        /// How long a client's new flows go where its last one went; zero: they go where the method says.
        affinity: Duration = Duration::ZERO,
        /// SYN cookies: 0 none, 1 for each SYN, else while there are more SYNs a second.
        syn_cookies: u32 = 0,
        /// Connection ids of QUIC name the real server.
        quic_ids: bool = false,
        /// Where real servers take GUE.
        gue_port: u16 = 6080,
    }
}

crate::inherited!(Conf, |_| true);

/// Values that there are once.
#[derive(Debug, Default)]
pub struct Main {
    /// Interfaces that the program is attached to; empty: those of the routes.
    pub interfaces: Vec<String>,
    interfaces_set: bool,
    /// Generic XDP is wanted.
    pub generic: Option<bool>,
    /// Where real servers' reports of their accept queues are heard.
    pub reports: Option<Reports>,
    /// Where this server's accept queues are reported to.
    pub report_to: Vec<ReportTo>,
    flows: Option<u32>,
    pins: Option<PathBuf>,
}

impl Main {
    /// Flows that the table is to have room for.
    pub fn flows(&self) -> u32 {
        self.flows.unwrap_or(FLOWS)
    }

    /// Where program and maps are pinned.
    pub fn pins(&self) -> PathBuf {
        self.pins.clone().unwrap_or_else(|| l4::kernel::PINS.into())
    }
}

/// `xdp_interfaces auto | NAME ...`
fn interfaces(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let main = &mut scope.build.main.xdp;
    if std::mem::replace(&mut main.interfaces_set, true) {
        return Err(duplicate(node));
    }
    let names: Vec<String> = node.args.iter().map(|w| w.as_str().into_owned()).collect();
    if names != ["auto"] {
        main.interfaces = names;
    }
    Ok(())
}

/// `key=TEXT`, and other parameters of the form; the key is a must.
fn key_and(node: &Node, mut other: impl FnMut(&str, &str) -> bool) -> Result<String, Problem> {
    let mut key = String::new();
    for word in &node.args[1..] {
        let text = word.as_str();
        match text.split_once('=') {
            Some(("key", value)) if !value.is_empty() => key = value.to_owned(),
            Some((name, value)) if other(name, value) => {}
            _ => return Err(Problem::invalid_parameter(word)),
        }
    }
    if key.len() < SHORTEST_KEY {
        let text = format!("\"{}\" needs \"key=\" with at least {SHORTEST_KEY} characters", node.name.as_str());
        return Err(node.problem(text));
    }
    Ok(key)
}

fn place(node: &Node) -> Result<SocketAddr, Problem> {
    let word = node.args[0].as_str();
    let place = word.parse::<SocketAddr>().ok().filter(|a| a.port() > 0);
    place.ok_or_else(|| node.problem(format!("invalid address and port \"{word}\"")))
}

/// `xdp_reports ADDRESS:PORT key=TEXT`
fn reports(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let reports = Reports { address: place(node)?, key: key_and(node, |_, _| false)? };
    if scope.build.main.xdp.reports.replace(reports).is_some() { Err(duplicate(node)) } else { Ok(()) }
}

/// `xdp_report_to ADDRESS:PORT key=TEXT [interval=TIME]`, for each balancer
fn report_to(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let mut interval = Some(INTERVAL);
    let key = key_and(node, |name, value| {
        interval = value::milliseconds(value.as_bytes()).map(Duration::from_millis);
        name == "interval"
    })?;
    let interval = interval.filter(|t| (Duration::from_millis(1)..=Duration::from_secs(10)).contains(t));
    let one = ReportTo { to: place(node)?, key, interval: interval.ok_or_else(|| invalid(node))? };
    scope.build.main.xdp.report_to.push(one);
    Ok(())
}

/// `xdp_source ADDRESS ...`
fn source(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let address = |w: &conf::Word| {
        w.as_str().parse::<IpAddr>().map_err(|_| node.problem(format!("invalid address \"{}\"", w.as_str())))
    };
    let all = node.args.iter().map(address).collect::<Result<Vec<_>, _>>()?;
    setters::value(&mut scope.level.conf.xdp.source, node, Arc::new(all))
}

/// `xdp_affinity off | TIME`
fn affinity(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let time = match &*node.args[0].text {
        b"off" => Duration::ZERO,
        text => Duration::from_secs(value::seconds(text).ok_or_else(|| invalid(node))?),
    };
    setters::value(&mut scope.level.conf.xdp.affinity, node, time)
}

/// `xdp_syn_cookies off | on | NUMBERr/s`
fn syn_cookies(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let cookies = match &*node.args[0].text {
        b"off" => 0,
        b"on" => 1,
        text => {
            let number = text.strip_suffix(b"r/s").and_then(value::number).and_then(|n| u32::try_from(n).ok());
            number.filter(|n| *n > 1).ok_or_else(|| invalid(node))?
        }
    };
    setters::value(&mut scope.level.conf.xdp.syn_cookies, node, cookies)
}

/// Names what the kernel would not do of what a server says, so that nothing of it is left out in silence.
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel) {
    if level.listens.iter().all(|l| l.spec.xdp.is_none()) {
        return;
    }
    let mut found = Vec::new();
    let addresses = [build.variables.index(b"remote_addr"), build.variables.index(b"binary_remote_addr")];
    for listen in &level.listens {
        let Some(mode) = listen.spec.xdp else { continue };
        let unfit = unfit(build, level, mode, listen, addresses);
        found.extend(unfit.into_iter().map(|text| {
            let text = format!("\"xdp={}\": {text}", mode.name());
            listen.node.problem(text)
        }));
    }
    build.problems.extend(found);
}

fn unfit(
    build: &Build<'_>,
    level: &ConfigLevel,
    mode: Mode,
    listen: &super::listen::Listen,
    addresses: [VariableId; 2],
) -> Vec<String> {
    let conf = &level.conf;
    let (core, own, upstream) = (&conf.stream_core, &conf.stream_proxy.own, &conf.stream_proxy.upstream);
    let mut found = Vec::new();
    match &listen.spec.address {
        ListenAddress::Unix(_) => found.push("packets have no unix socket".to_owned()),
        ListenAddress::Inet(a) if a.ip().is_unspecified() => {
            found.push(format!("needs an address: write \"listen ADDRESS:{}\"", a.port()));
        }
        ListenAddress::Inet(_) => {}
    }
    // Each would have to read or change what the packets carry, or to see the connection.
    let named: [(bool, &str); 13] = [
        (listen.ssl, "listen ... ssl"),
        (listen.proxy_protocol, "listen ... proxy_protocol"),
        (*own.ssl, "proxy_ssl"),
        (*own.proxy_protocol != super::stream_proxy::ProxyHeader::Off, "proxy_protocol"),
        (*core.ssl_preread, "ssl_preread"),
        (*conf.stream_mqtt.mqtt, "mqtt"),
        (*conf.stream_mqtt.mqtt_preread, "mqtt_preread"),
        (!conf.access.rules.is_empty(), "allow, deny"),
        (!conf.limit_conn.limits.is_empty(), "limit_conn"),
        (own.upload_rate.is_set(), "proxy_upload_rate"),
        (own.download_rate.is_set(), "proxy_download_rate"),
        (upstream.bind.is_set(), "proxy_bind"),
        (*own.requests > 0, "proxy_requests"),
    ];
    let named = named.iter().filter(|(set, _)| *set);
    found.extend(named.map(|(_, name)| format!("\"{name}\" has no effect on packets that the kernel balances")));
    let Some(id) = conf.stream_proxy.group().filter(|_| *core.handler == super::stream_core::Handler::Proxy) else {
        found.push("needs \"proxy_pass\" without variables".to_owned());
        return found;
    };
    let group = &build.groups[id.0 as usize];
    if choice_of(&group.method, |id| addresses.contains(&id)).is_none() {
        found.push(format!(
            "the method of upstream \"{}\" is none of the kernel's: \"maglev\", \"hash $remote_addr\", \"least_conn\", or none for turns",
            group.name
        ));
    }
    if group.sticky.is_some() {
        found.push(format!(
            "\"sticky\" of upstream \"{}\" has no effect on packets: there is \"xdp_affinity\", by the client's address",
            group.name
        ));
    }
    let v6 = matches!(listen.spec.address, ListenAddress::Inet(a) if a.is_ipv6());
    if mode == Mode::FullNat && !conf.xdp.source.iter().any(|a| a.is_ipv6() == v6) {
        let family = if v6 { "IPv6" } else { "IPv4" };
        found.push(format!("needs \"xdp_source\" with {family} addresses of this machine that nothing else uses"));
    }
    if *conf.xdp.syn_cookies > 0 && !mode.rewrites() {
        found.push("\"xdp_syn_cookies\" needs packets both ways: \"nat\" or \"full_nat\"".to_owned());
    }
    if *conf.xdp.timeout_reset && listen.spec.kind == SocketKind::Datagram {
        found.push("\"xdp_timeout_reset\" is for TCP: datagrams have no reset".to_owned());
    }
    if *conf.xdp.quic_ids && listen.spec.kind == SocketKind::Stream {
        found.push("\"xdp_quic_ids\" is for UDP: write \"listen ... udp\"".to_owned());
    }
    found
}
