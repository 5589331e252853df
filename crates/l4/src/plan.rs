//! What is to be balanced: made by the server's master from its snapshot, or read from a file of JSON. A plan says all there
//! is to say, so that applying it twice changes nothing the second time.

use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Flows that fit into the table unless the plan says otherwise. A flow of NAT takes two entries.
const FLOWS: u32 = 1 << 20;
/// More than this no table is made for: 16 million flows take 6 GB.
const FLOWS_MAX: u32 = 1 << 24;
/// In a smaller table the kernel's lists of what was used least recently have no room to work.
pub const FLOWS_MIN: u32 = 64;
/// Virtual servers: their numbers have 12 bits in the index of recent flows. Each that chooses by hash has a Maglev table (262 kB).
pub const SERVICES_MAX: u32 = 4096;
/// Real servers, those included that only finish what they have: their numbers have 16 bits there.
pub const REALS_MAX: u32 = 65_536;
/// Virtual and real servers that fit into the maps in any case; for more there is room for twice as many as there are at the start.
pub const SERVICES_ROOM: u32 = 64;
/// See [`SERVICES_ROOM`].
pub const REALS_ROOM: u32 = 4096;
/// Source addresses of full NAT that fit into the maps.
pub const SOURCES_MAX: u32 = 1024;
/// Where GUE is received, as Katran and Linux's `ip fou` examples have it.
const GUE_PORT: u16 = 6080;

/// The whole configuration of one balancer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Plan {
    /// Names of the interfaces whose packets are looked at: to clients and, for NAT and full NAT, to real servers.
    pub interfaces: Vec<String>,
    /// Generic XDP (the stack's, slow) instead of the driver's own.
    pub generic: bool,
    /// Flows that fit into the table; the least recently used goes when it is full. Fixed while the maps exist. 0: 1,048,576.
    pub flows: u32,
    /// Outer source addresses of tunnels: one for IPv4, one for IPv6.
    pub tunnel_sources: Vec<IpAddr>,
    /// Virtual servers.
    pub services: Vec<VirtualServer>,
}

/// One address and port that clients connect to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VirtualServer {
    /// Address and port.
    pub address: SocketAddr,
    /// TCP unless it is said.
    #[serde(default)]
    pub protocol: Protocol,
    /// How packets reach real servers.
    pub mode: Mode,
    /// Which real server gets a new flow.
    #[serde(default)]
    pub choice: Choice,
    /// Seconds without a packet after which a flow is forgotten; 0: never.
    #[serde(default = "idle_s")]
    pub idle_s: u64,
    /// The next packet of a forgotten TCP flow resets both ends. Without it, it is dropped in silence.
    #[serde(default)]
    pub reset: bool,
    /// Seconds for which a client's new flows go where its last one went; 0: no affinity.
    #[serde(default)]
    pub affinity_s: u64,
    /// Full NAT: source addresses of our own.
    #[serde(default)]
    pub sources: Vec<IpAddr>,
    /// GUE: the real servers' port.
    #[serde(default = "gue_port")]
    pub gue_port: u16,
    /// NAT: what real servers send without a flow in the table gets the service's address, since the flow began with
    /// another balancer. Only where real servers belong to one service.
    #[serde(default = "yes")]
    pub adopt_return: bool,
    /// UDP: QUIC's connection ids name real servers (`server_id`).
    #[serde(default)]
    pub quic: bool,
    /// SYN cookies (NAT and full NAT, TCP): 0 none; 1 for each SYN; else for each SYN while there are more than so many a second.
    #[serde(default)]
    pub cookies: u32,
    /// Flows of a real server that leaves the plan are reset at their next packet, not left.
    #[serde(default)]
    pub drop_removed: bool,
    /// Real servers.
    pub reals: Vec<RealServer>,
}

/// The real servers of a virtual one, as they are now: what changes while a plan stays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reals {
    /// The virtual server's address and port.
    pub address: SocketAddr,
    /// Its protocol.
    pub protocol: Protocol,
    /// All of its real servers.
    pub reals: Vec<RealServer>,
}

/// A server behind a virtual one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RealServer {
    /// Address and port. Modes other than NAT and full NAT keep the virtual server's port.
    pub address: SocketAddr,
    /// Share of new flows; 0: none.
    #[serde(default = "one")]
    pub weight: u32,
    /// What becomes of it.
    #[serde(default)]
    pub state: RealState,
    /// Its accept queue is full: new flows avoid it while there are others.
    #[serde(default)]
    pub full: bool,
    /// Its number in QUIC's connection ids; without one a client that moves may come to another.
    #[serde(default)]
    pub server_id: Option<u16>,
}

/// Whether a real server gets flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RealState {
    /// Gets new flows.
    #[default]
    Up,
    /// Gets no new flows; those it has go on (`drain`, or a failed check whose flows are left).
    Drain,
    /// Gets no new flows; those it has are reset at their next packet.
    Reset,
}

/// Transport protocol.
#[derive(PartialOrd, Ord, Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Protocol {
    #[default]
    Tcp,
    Udp,
}

/// How packets reach a real server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Destination address and port change; the way back is through us.
    Nat,
    /// Source address and port change, too: the way back needs no routes.
    FullNat,
    /// The frame goes to the real server's link address (IPVS: DR).
    Direct,
    /// IP in IP.
    Ipip,
    /// IP in UDP.
    Gue,
}

/// Which real server gets a new flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// Maglev by source address and port.
    #[default]
    Maglev,
    /// Maglev by source address (IPVS: sh).
    SourceHash,
    /// In turns by weight (IPVS: rr, wrr).
    RoundRobin,
    /// The fewest flows for its weight (IPVS: lc, wlc).
    LeastConn,
}

fn idle_s() -> u64 {
    900
}

fn gue_port() -> u16 {
    GUE_PORT
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

impl Protocol {
    /// `tcp` or `udp`.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        }
    }

    /// IANA's number.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
        }
    }
}

impl Mode {
    /// All of them, by the words that configurations have for them.
    pub const WORDS: [(&'static str, Mode); 5] = [
        ("nat", Mode::Nat),
        ("full_nat", Mode::FullNat),
        ("direct", Mode::Direct),
        ("ipip", Mode::Ipip),
        ("gue", Mode::Gue),
    ];

    /// The word that configurations have for it.
    pub fn name(self) -> &'static str {
        Mode::WORDS[self as usize].0
    }

    /// The mode of a number in a map.
    pub fn of(number: u8) -> Option<Mode> {
        Mode::WORDS.get(usize::from(number)).map(|(_, mode)| *mode)
    }

    /// `enum mode`
    pub fn number(self) -> u8 {
        self as u8
    }

    /// IPVS' word in tables, ours where it has none.
    pub fn word(number: u8) -> &'static str {
        ["Masq", "FullNat", "Route", "Tunnel", "Gue"].get(usize::from(number)).copied().unwrap_or("?")
    }

    /// Addresses and ports change, so both families must be the same.
    pub fn rewrites(self) -> bool {
        matches!(self, Mode::Nat | Mode::FullNat)
    }
}

impl Plan {
    /// Reads a plan from JSON. The error says what is wrong and where.
    pub fn read(text: &str) -> Result<Plan, String> {
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    /// Flows that the table has room for.
    pub fn flow_room(&self) -> u32 {
        if self.flows == 0 { FLOWS } else { self.flows }
    }

    /// What cannot work, each with its cure. Looks at the plan alone, not at the machine.
    pub fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.interfaces.is_empty() {
            found.push("no interface: name those that clients and real servers are reached by".to_owned());
        }
        if self.flows > FLOWS_MAX {
            found.push(format!("flows {}: at most {FLOWS_MAX}", self.flows));
        }
        if (1..FLOWS_MIN).contains(&self.flows) {
            found.push(format!("flows {}: at least {FLOWS_MIN}", self.flows));
        }
        if self.services.len() > SERVICES_MAX as usize {
            found.push(format!("{} virtual servers: at most {SERVICES_MAX}", self.services.len()));
        }
        let reals = self.real_count();
        if reals > REALS_MAX as usize {
            found.push(format!("{reals} real servers: at most {REALS_MAX}"));
        }
        let mut known = HashSet::new();
        for service in &self.services {
            let name = format!("{} {}", service.address, service.protocol.name());
            if !known.insert((service.address, service.protocol)) {
                found.push(format!("{name}: is there twice"));
            }
            found.extend(service.problems(self).into_iter().map(|problem| format!("{name}: {problem}")));
        }
        found
    }

    /// Real servers, each as often as virtual ones have it.
    pub fn real_count(&self) -> usize {
        self.services.iter().map(|s| s.reals.len()).sum()
    }

    /// The outer source address for a family.
    pub fn tunnel_source(&self, v6: bool) -> Option<IpAddr> {
        self.tunnel_sources.iter().copied().find(|a| a.is_ipv6() == v6)
    }
}

impl VirtualServer {
    fn problems(&self, plan: &Plan) -> Vec<String> {
        let mut found = Vec::new();
        let v6 = self.address.is_ipv6();
        if self.address.port() == 0 || self.address.ip().is_unspecified() {
            found.push("needs an address and a port".to_owned());
        }
        if self.mode == Mode::FullNat && !self.sources.iter().any(|s| s.is_ipv6() == v6) {
            found.push("full NAT needs \"sources\" of the same family that are addresses of this machine".to_owned());
        }
        if self.sources.iter().any(|s| s.is_ipv6() != v6) {
            found.push("\"sources\" are of another family".to_owned());
        }
        if self.quic && self.protocol != Protocol::Udp {
            found.push("QUIC is UDP".to_owned());
        }
        if self.choice == Choice::LeastConn && self.reals.len() > crate::layout::LEAST_MAX {
            found.push(format!("least_conn looks at {} real servers at most", crate::layout::LEAST_MAX));
        }
        for (i, real) in self.reals.iter().enumerate() {
            let at = real.address;
            if self.reals[..i].iter().any(|r| r.address == at) {
                found.push(format!("real server {at} is there twice"));
            }
            if self.mode.rewrites() && at.is_ipv6() != v6 {
                found.push(format!("real server {at} is of another family: NAT cannot change it, a tunnel can"));
            }
            if at.port() == 0 || at.ip().is_unspecified() {
                found.push(format!("real server {at} needs an address and a port"));
            }
            if !self.mode.rewrites() && at.port() != self.address.port() {
                found
                    .push(format!("real server {at}: this mode keeps the port, so it must be {}", self.address.port()));
            }
            if matches!(self.mode, Mode::Ipip | Mode::Gue) && plan.tunnel_source(at.is_ipv6()).is_none() {
                found.push(format!("real server {at}: \"tunnel_sources\" has no address of its family"));
            }
        }
        found
    }

    /// After this time without a packet a flow is forgotten.
    pub fn idle(&self) -> Duration {
        Duration::from_secs(self.idle_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(service: &str) -> Plan {
        Plan::read(&format!(r#"{{"interfaces": ["eth0"], "services": [{service}]}}"#)).unwrap()
    }

    #[test]
    fn a_small_plan_has_defaults() {
        let plan = plan(r#"{"address": "10.9.0.1:80", "mode": "nat", "reals": [{"address": "10.9.1.2:80"}]}"#);
        assert_eq!(plan.problems(), Vec::<String>::new());
        assert_eq!(plan.services[0].choice, Choice::Maglev);
        assert_eq!(plan.services[0].reals[0].weight, 1);
        assert!(plan.services[0].adopt_return);
    }

    #[test]
    fn what_cannot_work_is_named() {
        let said = |service: &str| plan(service).problems().join("; ");
        let full = r#"{"address": "10.9.0.1:80", "mode": "full_nat", "reals": []}"#;
        assert!(said(full).contains("full NAT needs \"sources\""), "{}", said(full));
        let mixed = r#"{"address": "10.9.0.1:80", "mode": "nat", "reals": [{"address": "[fd00::1]:80"}]}"#;
        assert!(said(mixed).contains("another family"), "{}", said(mixed));
        let port = r#"{"address": "10.9.0.1:80", "mode": "direct", "reals": [{"address": "10.9.1.1:81"}]}"#;
        assert!(said(port).contains("keeps the port"), "{}", said(port));
        let tunnel = r#"{"address": "10.9.0.1:80", "mode": "gue", "reals": [{"address": "10.9.1.1:80"}]}"#;
        assert!(said(tunnel).contains("tunnel_sources"), "{}", said(tunnel));
        let few = Plan { flows: FLOWS_MIN - 1, ..plan(port) };
        assert!(few.problems().join("; ").contains("at least 64"), "{:?}", few.problems());
        assert!(Plan::read(r#"{"interface": "eth0"}"#).unwrap_err().contains("unknown field"));
    }
}
