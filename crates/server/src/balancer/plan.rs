//! From a snapshot to what the kernel is to do. From: `snapshot`. To: `path`, `watch`.

use crate::connection::Address;
use crate::process_settings::{ListenAddress, SocketKind};
use crate::snapshot::{Server, Snapshot, VariableId};
use crate::status::zones::Zone;
use crate::upstream::group::{Group, Method};
use crate::upstream::peer::{Peer, State};
use l4::Plan;
use l4::layout::LEAST_MAX;
use l4::plan::{Choice, Mode, Protocol, REALS_MAX, RealServer, RealState, Reals, VirtualServer};
use l4::runner::Setup;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// A server whose packets the kernel balances.
#[derive(Clone, Debug)]
pub struct Service {
    /// What the kernel does; without its real servers.
    pub server: VirtualServer,
    /// Who the real servers are.
    pub group: Arc<Group>,
    /// `status_zone`
    pub zone: Option<Arc<Zone>>,
    /// `proxy_session_drop`: flows of a peer that is out, or gone, are reset.
    pub session_drop: bool,
}

/// Which of the kernel's choices a group's method is; none of them, perhaps. `is_address`: whether a variable is the client's address.
pub fn choice_of(method: &Method, is_address: impl Fn(VariableId) -> bool) -> Option<Choice> {
    match method {
        Method::Maglev => Some(Choice::Maglev),
        Method::RoundRobin => Some(Choice::RoundRobin),
        Method::LeastConn => Some(Choice::LeastConn),
        Method::Hash { key, .. } => key.as_variable().filter(|id| is_address(*id)).map(|_| Choice::SourceHash),
        Method::IpHash | Method::LeastTime(_) | Method::Random { .. } => None,
    }
}

/// The services of a configuration, and what is wrong with them as a whole.
pub fn services(snapshot: &Snapshot) -> (Vec<Service>, Vec<String>) {
    let (mut all, mut problems) = (Vec::new(), Vec::new());
    let Some(stream) = &snapshot.stream else { return (all, problems) };
    let listens = snapshot.listens.iter().skip(snapshot.ports.len());
    for (listen, port) in listens.zip(&stream.ports) {
        let (Some(mode), ListenAddress::Inet(address)) = (listen.xdp, &listen.address) else { continue };
        if port.any.servers.len() > 1 {
            problems.push(format!("listen {address} xdp={}: an address of packets belongs to one server", mode.name()));
        }
        let protocol = if listen.kind == SocketKind::Stream { Protocol::Tcp } else { Protocol::Udp };
        all.extend(service(stream, stream.server(port.any.default), *address, protocol, mode));
    }
    (all, problems)
}

fn service(stream: &Snapshot, server: &Server, address: SocketAddr, protocol: Protocol, mode: Mode) -> Option<Service> {
    let conf = &stream.location(server.root).conf;
    let group = stream.groups.get(conf.stream_proxy.group()?.0 as usize)?.clone();
    let is_address = |id: VariableId| {
        let name = stream.variables.get(id.0 as usize).map(|v| &*v.name);
        matches!(name, Some("remote_addr" | "binary_remote_addr"))
    };
    let seconds = |time: Duration| time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let (own, xdp) = (&conf.stream_proxy.own, &conf.xdp);
    let session_drop = *own.session_drop;
    let zone = server.conf.zone.clone();
    let server = VirtualServer {
        address,
        protocol,
        mode,
        choice: choice_of(&group.method, is_address)?,
        idle_s: seconds(*own.timeout),
        reset: *xdp.timeout_reset,
        affinity_s: seconds(*xdp.affinity),
        sources: match mode {
            Mode::FullNat => xdp.source.iter().copied().filter(|a| a.is_ipv6() == address.is_ipv6()).collect(),
            _ => Vec::new(),
        },
        gue_port: *xdp.gue_port,
        adopt_return: true,
        quic: *xdp.quic_ids,
        cookies: *xdp.syn_cookies,
        drop_removed: session_drop,
        reals: Vec::new(),
    };
    Some(Service { server, group, zone, session_drop })
}

impl Service {
    /// The real servers as they are now, and why some of the group's cannot be.
    pub fn reals(&self) -> (Vec<RealServer>, Vec<String>) {
        let tiers = self.group.tiers_now();
        let takes = |peer: &Arc<Peer>| peer.state() == State::Up;
        // Backups get flows while nobody before them does.
        let backups = !tiers[0].peers.iter().any(takes);
        let (mut reals, mut unfit) = (Vec::new(), Vec::new());
        let (mut known, mut ids) = (HashSet::new(), HashSet::new());
        let ranked = tiers.iter().zip([true, backups]).flat_map(|(t, used)| t.peers.iter().map(move |p| (p, used)));
        for (peer, used) in ranked {
            let at = match self.place(peer) {
                Ok(at) => at,
                Err(why) => {
                    unfit.push(format!("{}: {why}", peer.name));
                    continue;
                }
            };
            if !known.insert(at) {
                continue;
            }
            let state = match self.state(peer) {
                RealState::Up if !used => RealState::Drain,
                state => state,
            };
            let server_id = match self.server_id(peer) {
                Ok(id) if id.is_none_or(|id| ids.insert(id)) => id,
                Ok(_) => {
                    unfit.push(format!("{}: another server has its number in connection ids (\"route\")", peer.name));
                    None
                }
                Err(why) => {
                    unfit.push(format!("{}: {why}", peer.name));
                    None
                }
            };
            reals.push(RealServer { address: at, weight: peer.settings.weight, state, full: false, server_id });
        }
        let most = if self.server.choice == Choice::LeastConn { LEAST_MAX } else { REALS_MAX as usize };
        if reals.len() > most {
            unfit.push(format!("{} servers: the kernel looks at {most}", reals.len()));
            reals.truncate(most);
        }
        (reals, unfit)
    }

    /// Where a peer is, if packets can be brought there.
    fn place(&self, peer: &Peer) -> Result<SocketAddr, &'static str> {
        let Address::Inet(at) = &peer.address else { return Err("packets have no unix socket") };
        let ip = at.ip();
        if ip.is_multicast() || ip.is_unspecified() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return Err("its address is not that of one machine");
        }
        if self.server.mode.rewrites() && at.is_ipv6() != self.server.address.is_ipv6() {
            return Err("it is of another family than the listener, which NAT cannot change");
        }
        if !self.server.mode.rewrites() && at.port() != self.server.address.port() {
            return Err("its port is not that of the listener, which only NAT can change");
        }
        Ok(*at)
    }

    /// A peer's number in connection ids of QUIC, where they count.
    fn server_id(&self, peer: &Peer) -> Result<Option<u16>, &'static str> {
        if !self.server.quic {
            return Ok(None);
        }
        let number = peer.settings.route.parse::<u16>().map(Some);
        number.map_err(|_| "clients that move are lost to it: it needs \"route=NUMBER\", its own \"quic_server_id\"")
    }

    fn state(&self, peer: &Peer) -> RealState {
        match peer.state() {
            State::Up => RealState::Up,
            State::Draining | State::Unavail | State::Checking => RealState::Drain,
            State::Down | State::Unhealthy if self.session_drop => RealState::Reset,
            State::Down | State::Unhealthy => RealState::Drain,
        }
    }

    /// The same, as the kernel's process is told.
    pub fn news(&self) -> (Reals, Vec<String>) {
        let (reals, unfit) = self.reals();
        (Reals { address: self.server.address, protocol: self.server.protocol, reals }, unfit)
    }
}

/// What the kernel is to do for these services at first.
pub fn setup(snapshot: &Snapshot, services: &[Service]) -> Setup {
    let stream = snapshot.stream.as_ref();
    let own = stream.map(|s| &s.main.xdp);
    let mut plan = Plan {
        interfaces: own.map(|x| x.interfaces.clone()).unwrap_or_default(),
        generic: own.and_then(|x| x.generic).unwrap_or(false),
        flows: own.map_or(0, |x| x.flows()),
        tunnel_sources: Vec::new(),
        services: Vec::new(),
    };
    for service in services {
        let mut server = service.server.clone();
        server.reals = service.reals().0;
        plan.services.push(server);
    }
    plan.tunnel_sources = tunnel_sources(&plan, snapshot);
    let reports = own.and_then(|x| x.reports.clone());
    let retire_s =
        snapshot.process.worker_shutdown_timeout.map(|time| time.as_secs() + u64::from(time.subsec_nanos() > 0));
    Setup { pins: own.map(|x| x.pins()).unwrap_or_default(), plan, reports, retire_s }
}

/// One outer source address of each family that tunnels need: of `xdp_source`, else the one the kernel would take.
fn tunnel_sources(plan: &Plan, snapshot: &Snapshot) -> Vec<std::net::IpAddr> {
    let written = snapshot.stream.iter().flat_map(|s| &s.servers).flat_map(|server| {
        let stream = snapshot.stream.as_ref();
        stream.map(|s| s.location(server.root).conf.xdp.source.to_vec()).unwrap_or_default()
    });
    let written: Vec<_> = written.collect();
    let tunnels = plan.services.iter().filter(|s| matches!(s.mode, Mode::Ipip | Mode::Gue));
    let far: Vec<_> = tunnels.flat_map(|s| &s.reals).map(|r| r.address.ip()).collect();
    let one = |v6: bool| {
        let real = far.iter().find(|a| a.is_ipv6() == v6)?;
        written.iter().copied().find(|a| a.is_ipv6() == v6).or_else(|| l4::machine::source_to(*real))
    };
    [false, true].into_iter().filter_map(one).collect()
}
