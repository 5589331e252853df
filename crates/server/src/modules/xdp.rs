//! `listen ... xdp=MODE` and `xdp_*`: a server of `stream` whose packets the kernel balances. Here words are read, and what cannot
//! be done in the kernel is named; what becomes of them: `balancer`.

use crate::balancer::load::ReportTo;
use crate::balancer::plan::choice_of;
use crate::config::setters::{self, duplicate, invalid};
use crate::config::{Build, ConfigLevel, Directive, Scope, stream};
use crate::merged_values;
use crate::process_settings::{ListenAddress, ListenSpec, SocketKind};
use crate::snapshot::VariableId;
use conf::{Node, Problem, value};
use l4::plan::{FLOWS_MIN, Mode};
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
        let flows = value::number(&n.args[0].text).and_then(|n| u32::try_from(n).ok());
        let flows = flows.ok_or_else(|| Problem::invalid_number(n))?;
        if flows < FLOWS_MIN {
            return Err(n.problem(format!("\"xdp_flows\" must be at least {FLOWS_MIN}")));
        }
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

impl Conf {
    /// What this level sets, and the one around it does not, by name.
    fn set_beside(&self, parent: &Conf) -> Vec<&'static str> {
        let named = [
            (self.source.is_set(), parent.source.is_set(), "\"xdp_source\""),
            (self.timeout_reset.is_set(), parent.timeout_reset.is_set(), "\"xdp_timeout_reset\""),
            (self.affinity.is_set(), parent.affinity.is_set(), "\"xdp_affinity\""),
            (self.syn_cookies.is_set(), parent.syn_cookies.is_set(), "\"xdp_syn_cookies\""),
            (self.quic_ids.is_set(), parent.quic_ids.is_set(), "\"xdp_quic_ids\""),
            (self.gue_port.is_set(), parent.gue_port.is_set(), "\"xdp_gue_port\""),
        ];
        named.iter().filter(|(here, around, _)| *here && !around).map(|(_, _, name)| *name).collect()
    }
}

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
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel, parent: &super::LocationConf) {
    if level.listens.iter().all(|l| l.spec.xdp.is_none()) {
        let unused = level.conf.xdp.set_beside(&parent.xdp);
        if let Some(listen) = level.listens.first().filter(|_| !unused.is_empty()) {
            let text = format!("{} without \"xdp=\" at a \"listen\" of the server has no effect", unused.join(", "));
            build.problems.push(listen.node.warning(text));
        }
        return;
    }
    let (mut found, mut proxied) = (Vec::new(), false);
    let addresses = [build.variables.index(b"remote_addr"), build.variables.index(b"binary_remote_addr")];
    let (guards, unheeded) = (guards(build, level), unheeded(level));
    for listen in &level.listens {
        let Some(mode) = listen.spec.xdp else { continue };
        let name = mode.name();
        if !guards.is_empty() && mode == Mode::Nat {
            proxied = true;
            found.push(listen.node.warning(format!(
                "\"xdp={name}\": the ordinary proxy of \"stream\" serves it, not the kernel, which would let in whom {guards} may keep out"
            )));
            continue;
        }
        if !guards.is_empty() {
            found.push(listen.node.problem(format!(
                "\"xdp={name}\": the kernel would let in whom {guards} may keep out, and has no other way but for \"xdp=nat\""
            )));
        }
        let unfit = unfit(build, level, mode, listen, addresses);
        found.extend(unfit.into_iter().map(|text| listen.node.problem(format!("\"xdp={name}\": {text}"))));
        let options = has_options(&listen.spec).then_some("the socket options of \"listen\"".to_owned());
        let unheeded: Vec<String> = unheeded.iter().map(|name| format!("\"{name}\"")).chain(options).collect();
        if !unheeded.is_empty() {
            let text = format!("no effect on packets that the kernel balances have {}", unheeded.join(", "));
            found.push(listen.node.warning(format!("\"xdp={name}\": {text}")));
        }
    }
    build.problems.extend(found);
    if proxied {
        level.listens.iter_mut().filter(|l| l.spec.xdp == Some(Mode::Nat)).for_each(|l| l.spec.xdp = None);
    }
}

/// More is said of the socket than which one it is.
fn has_options(spec: &ListenSpec) -> bool {
    let plain = ListenSpec::new(spec.address.clone());
    *spec != ListenSpec { xdp: spec.xdp, bind: spec.bind, kind: spec.kind, deferred: spec.deferred, ..plain }
}

/// What may turn a client away, by name: the kernel asks none of these. Empty if there is nothing of the kind.
fn guards(build: &Build<'_>, level: &ConfigLevel) -> String {
    let conf = &level.conf;
    let group = conf.stream_proxy.group().map(|id| &build.groups[id.0 as usize]);
    let named = [
        (!conf.access.rules.is_empty(), "\"allow\", \"deny\""),
        (!conf.limit_conn.limits.is_empty(), "\"limit_conn\""),
        (conf.js.access.is_set(), "\"js_access\""),
        (conf.js.preread.is_set(), "\"js_preread\""),
        (conf.js.filter.is_set(), "\"js_filter\""),
        (conf.lua.preread.is_set(), "\"preread_by_lua*\""),
        (group.is_some_and(|g| g.balancer.is_some()), "\"balancer_by_lua*\""),
    ];
    let set: Vec<&str> = named.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect();
    set.join(", ")
}

/// What is about connections that a proxy makes and takes, and keeps nobody out. It counts where the proxy stands in for the kernel.
fn unheeded(level: &ConfigLevel) -> Vec<&'static str> {
    let conf = &level.conf;
    let (core, own, upstream) = (&conf.stream_core, &conf.stream_proxy.own, &conf.stream_proxy.upstream);
    let named = [
        (conf.log.is_on(), "access_log"),
        (conf.lua.log.is_set(), "log_by_lua*"),
        (!conf.realip.from.is_empty(), "set_real_ip_from"),
        (core.assignments.is_set(), "set"),
        (core.tcp_nodelay.is_set(), "tcp_nodelay"),
        (core.preread_buffer_size.is_set(), "preread_buffer_size"),
        (core.preread_timeout.is_set(), "preread_timeout"),
        (own.buffer_size.is_set(), "proxy_buffer_size"),
        (own.responses.is_set(), "proxy_responses"),
        (own.next_upstream.is_set(), "proxy_next_upstream"),
        (upstream.next_upstream_tries.is_set(), "proxy_next_upstream_tries"),
        (upstream.next_upstream_timeout.is_set(), "proxy_next_upstream_timeout"),
        (own.half_close.is_set(), "proxy_half_close"),
        (upstream.connect_timeout.is_set(), "proxy_connect_timeout"),
        (upstream.socket_keepalive.is_set(), "proxy_socket_keepalive"),
        (upstream.socket_rcvbuf.is_set(), "proxy_socket_rcvbuf"),
        (upstream.socket_sndbuf.is_set(), "proxy_socket_sndbuf"),
    ];
    named.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect()
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
    let named: [(bool, &str); 11] = [
        (listen.ssl, "listen ... ssl"),
        (listen.proxy_protocol, "listen ... proxy_protocol"),
        (*own.ssl, "proxy_ssl"),
        (*own.proxy_protocol != super::stream_proxy::ProxyHeader::Off, "proxy_protocol"),
        (*core.ssl_preread, "ssl_preread"),
        (*conf.stream_mqtt.mqtt, "mqtt"),
        (*conf.stream_mqtt.mqtt_preread, "mqtt_preread"),
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
