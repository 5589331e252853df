//! What this machine lacks for a plan: interfaces, addresses, forwarding. Each with its cure.

use crate::plan::{Mode, Plan};
use std::net::{IpAddr, UdpSocket};

/// Problems of a plan on this machine, in the network namespace of this process.
pub fn problems(plan: &Plan) -> Vec<String> {
    let mut found = Vec::new();
    for interface in &plan.interfaces {
        if !is_there(interface) {
            found.push(format!("{interface}: there is no such interface (see: ip link)"));
        }
    }
    for (v6, file) in [(false, "/proc/sys/net/ipv4/ip_forward"), (true, "/proc/sys/net/ipv6/conf/all/forwarding")] {
        let wanted = plan
            .services
            .iter()
            .any(|s| s.address.is_ipv6() == v6 || s.reals.iter().any(|r| r.address.is_ipv6() == v6));
        if wanted && std::fs::read_to_string(file).is_ok_and(|text| text.trim() == "0") {
            found.push(format!("the kernel's routes are asked only while it forwards: echo 1 > {file}"));
        }
    }
    for service in plan.services.iter().filter(|s| s.mode == Mode::FullNat) {
        let foreign = service.sources.iter().filter(|a| !is_ours(**a));
        found.extend(
            foreign.map(|a| format!("{}: source {a} is no address of this machine (see: ip addr)", service.address)),
        );
    }
    let foreign = plan.tunnel_sources.iter().filter(|a| !is_ours(**a));
    found.extend(foreign.map(|a| format!("tunnel source {a} is no address of this machine (see: ip addr)")));
    found
}

/// `/sys` may be that of another network namespace; `/proc/net` is not.
fn is_there(interface: &str) -> bool {
    let text = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    text.lines().any(|line| line.trim_start().strip_prefix(interface).is_some_and(|rest| rest.starts_with(':')))
}

fn is_ours(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}
