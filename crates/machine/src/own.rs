//! What a run of the stress tool needs to know of this machine, from `/proc` and `/sys`: cheap enough to read while it is
//! loaded. A file that is not there is a fact that is not known.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use std::fs::read_to_string;
use std::net::{IpAddr, UdpSocket};

/// Counters of the kernel's network stack (of this network namespace).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Segments sent.
    pub out_segments: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Of those, SYNs.
    pub syn_retransmits: u64,
    /// Connections that found a listen queue full.
    pub listen_overflows: u64,
    /// Datagrams that found their socket's buffer full.
    #[serde(default)]
    pub datagram_overflows: u64,
    /// Bytes and drops of the interface towards the target.
    pub interface: InterfaceCounters,
}

/// See [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceCounters {
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets dropped either way.
    pub drops: u64,
}

impl Counters {
    /// Reads them.
    pub fn read(interface: Option<&str>) -> Counters {
        let snmp = proc_net("snmp");
        let netstat = proc_net("netstat");
        let devices = interface.map(|_| proc_net("dev"));
        Counters {
            out_segments: pair(&snmp, "Tcp:", "OutSegs"),
            retransmits: pair(&snmp, "Tcp:", "RetransSegs"),
            syn_retransmits: pair(&netstat, "TcpExt:", "TCPSynRetrans"),
            listen_overflows: pair(&netstat, "TcpExt:", "ListenOverflows"),
            datagram_overflows: pair(&snmp, "Udp:", "RcvbufErrors"),
            interface: interface.zip(devices).map(|(name, text)| device(&text, name)).unwrap_or_default(),
        }
    }

    /// What was added since `before`.
    pub fn since(&self, before: &Counters) -> Counters {
        Counters {
            out_segments: self.out_segments.saturating_sub(before.out_segments),
            retransmits: self.retransmits.saturating_sub(before.retransmits),
            syn_retransmits: self.syn_retransmits.saturating_sub(before.syn_retransmits),
            listen_overflows: self.listen_overflows.saturating_sub(before.listen_overflows),
            datagram_overflows: self.datagram_overflows.saturating_sub(before.datagram_overflows),
            interface: InterfaceCounters {
                rx_bytes: self.interface.rx_bytes.saturating_sub(before.interface.rx_bytes),
                tx_bytes: self.interface.tx_bytes.saturating_sub(before.interface.tx_bytes),
                drops: self.interface.drops.saturating_sub(before.interface.drops),
            },
        }
    }
}

/// A file of `/proc/net`, of the network namespace that this thread is in (`/proc/net` is that of the process's first thread).
pub fn proc_net(name: &str) -> String {
    read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default()
}

/// A value of the two-line form of `/proc/net/snmp`: a line of names, then one of numbers.
fn pair(text: &str, prefix: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter(|l| l.starts_with(prefix));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0 };
    let at = names.split_ascii_whitespace().position(|n| n == name);
    at.and_then(|at| values.split_ascii_whitespace().nth(at)?.parse().ok()).unwrap_or(0)
}

fn device(text: &str, name: &str) -> InterfaceCounters {
    let line = text.lines().find_map(|l| l.trim_start().strip_prefix(name)?.strip_prefix(':'));
    let numbers: Vec<u64> = line.unwrap_or_default().split_ascii_whitespace().map(|n| n.parse().unwrap_or(0)).collect();
    let number = |at: usize| numbers.get(at).copied().unwrap_or(0);
    InterfaceCounters { rx_bytes: number(0), tx_bytes: number(8), drops: number(3) + number(11) }
}

/// The interface towards an IPv4 address, by the routing table; `lo` for this machine's own.
pub fn interface_to(address: IpAddr) -> Option<String> {
    if is_local(address) {
        return Some("lo".to_owned());
    }
    let IpAddr::V4(address) = address else { return None };
    let wanted = u32::from_le_bytes(address.octets());
    let table = proc_net("route");
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let hex = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok();
        let (net, mask) = (hex(1)?, hex(7)?);
        (wanted & mask == net).then(|| (mask.count_ones(), (*fields.first().unwrap_or(&"")).to_owned()))
    };
    table.lines().skip(1).filter_map(route).max().map(|(_, name)| name)
}

/// Whether an address is this machine's own.
pub fn is_local(address: IpAddr) -> bool {
    address.is_loopback() || UdpSocket::bind((address, 0)).is_ok()
}

/// An interface's speed in bits a second, where it has one.
pub fn speed(interface: &str) -> Option<u64> {
    let text = read_to_string(format!("/sys/class/net/{interface}/speed")).ok()?;
    text.trim().parse::<u64>().ok().filter(|&s| s > 0).map(|megabits| megabits * 1_000_000)
}

/// Whether an interface's speed is that of a wire. A veth says 10 Gbit/s and means nothing by it.
pub fn is_physical(interface: &str) -> bool {
    std::path::Path::new(&format!("/sys/class/net/{interface}/device")).exists()
}

/// How many local ports there are for connections to one address from one address.
pub fn local_ports() -> Option<u32> {
    local_port_range().map(|(_, count)| count)
}

/// The first of them, and how many.
pub fn local_port_range() -> Option<(u16, u32)> {
    let text = read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<u16>);
    let (first, last) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some((first, (u32::from(last) + 1).saturating_sub(u32::from(first))))
}

/// `tcp_tw_reuse`: 0 never, 1 always, 2 on loopback.
pub fn time_wait_reuse() -> Option<u32> {
    read_to_string("/proc/sys/net/ipv4/tcp_tw_reuse").ok()?.trim().parse().ok()
}

/// Connections in TIME_WAIT.
pub fn time_waits() -> Option<u64> {
    let text = proc_net("sockstat");
    let line = text.lines().find(|l| l.starts_with("TCP:"))?;
    let mut words = line.split_ascii_whitespace().skip_while(|w| *w != "tw");
    words.nth(1)?.parse().ok()
}

/// Raises the limit of descriptors as far as this process may, and says where it is then.
pub fn raise_descriptor_limit(wanted: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.unwrap_or(u64::MAX);
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    if current >= wanted {
        return current;
    }
    // As root the hard limit can be lifted too.
    if maximum < wanted {
        let lifted = Rlimit { current: Some(wanted), maximum: Some(wanted) };
        if setrlimit(Resource::Nofile, lifted).is_ok() {
            return wanted;
        }
    }
    let raised = wanted.min(maximum);
    let new = Rlimit { current: Some(raised), maximum: limit.maximum };
    if setrlimit(Resource::Nofile, new).is_ok() { raised } else { current }
}

/// User memory of this process, bytes.
pub fn resident_bytes() -> u64 {
    let text = read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_ascii_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables() {
        let text = "Tcp: A RetransSegs B\nTcp: 1 22 3\nUdp: X\nUdp: 9\n";
        assert_eq!((pair(text, "Tcp:", "RetransSegs"), pair(text, "Tcp:", "None")), (22, 0));
        let text = "head\nhead\n  eth0: 10 1 0 4 0 0 0 0 20 2 0 5 0 0 0 0\n";
        assert_eq!(device(text, "eth0"), InterfaceCounters { rx_bytes: 10, tx_bytes: 20, drops: 9 });
        assert_eq!(device(text, "eth1"), InterfaceCounters::default());
    }

    #[test]
    fn this_machine() {
        assert!(is_local([127, 0, 0, 1].into()) && !is_local([192, 0, 2, 1].into()));
        assert_eq!(interface_to([127, 0, 0, 1].into()).as_deref(), Some("lo"));
        assert!(local_ports().unwrap() > 0 && resident_bytes() > 100_000);
    }
}
