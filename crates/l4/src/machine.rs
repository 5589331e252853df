//! What this machine lacks for a plan: interfaces, addresses, forwarding, routes, rights. Each with its cure.

use crate::kernel;
use crate::plan::{Mode, Plan};
use crate::routes::Routes;
use crate::runner::Reports;
use std::collections::BTreeSet;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;

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

/// The interfaces that a plan's packets come by, where the plan names none: those of the routes to its virtual servers, to
/// everywhere (clients) and to its real servers. Without the loopback interface, which no packet of theirs comes by.
pub fn interfaces(plan: &Plan) -> Vec<String> {
    if !plan.interfaces.is_empty() {
        return plan.interfaces.clone();
    }
    let routes = Routes::read();
    let mut found = BTreeSet::new();
    for service in &plan.services {
        let ip = service.address.ip();
        found.extend(routes.to(ip).into_iter().chain(routes.default_of(ip.is_ipv6())).map(|r| r.device.clone()));
        found.extend(service.reals.iter().filter_map(|r| routes.to(r.address.ip())).map(|r| r.device.clone()));
    }
    found.into_iter().filter(|name| name != "lo").collect()
}

/// The address of this machine that packets to another have as their source.
pub fn source_to(address: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = if address.is_ipv6() { [0u16; 8].into() } else { [0u8; 4].into() };
    // Nothing is sent: the kernel only looks for the route.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((address, 9)).ok()?;
    socket.local_addr().ok().map(|a| a.ip())
}

/// Virtual servers' addresses that this machine does not have, so that nobody would bring their packets here.
pub fn foreign(plan: &Plan) -> Vec<IpAddr> {
    let all: BTreeSet<IpAddr> = plan.services.iter().map(|s| s.address.ip()).collect();
    all.into_iter().filter(|a| !is_ours(*a)).collect()
}

/// Why program and maps cannot be pinned in a folder.
pub fn unfit_pins(pins: &Path) -> Option<String> {
    kernel::unfit_for_pins(pins).map(|why| format!("xdp_pins {why}"))
}

/// Reports of accept queues cannot be heard at an address that is another machine's.
pub fn foreign_reports(reports: &Reports) -> Option<String> {
    let ip = reports.address.ip();
    (!is_ours(ip))
        .then(|| format!("xdp_reports {}: {ip} is no address of this machine (see: ip addr)", reports.address))
}

/// Source addresses of full NAT that something else uses as well, so that both may take the same port: warnings.
pub fn shared_sources(plan: &Plan) -> Vec<String> {
    let mut found = Vec::new();
    let sources: BTreeSet<IpAddr> = plan.services.iter().flat_map(|s| &s.sources).copied().collect();
    for source in sources {
        if let Some(service) = plan.services.iter().find(|s| s.address.ip() == source) {
            let text = format!("clients connect to it (listen {})", service.address);
            found.push(format!("xdp_source {source}: {text}: give full NAT an address that nothing else uses"));
            continue;
        }
        let users = plan.services.iter().filter(|s| s.sources.contains(&source));
        if let Some(real) = users.flat_map(|s| &s.reals).find(|r| source_to(r.address.ip()) == Some(source)) {
            let text = format!("connections of this machine to {} have it (health checks, the proxy)", real.address);
            found.push(format!("xdp_source {source}: {text}: give full NAT an address that nothing else uses"));
        }
    }
    found
}

/// Why the kernel takes no program of ours; none if it does. A program that does nothing is loaded and forgotten.
pub fn refusal() -> Option<String> {
    kernel::try_out().err()
}

/// What routes do not allow: problems, and what is only worth a warning.
pub fn routes(plan: &Plan) -> (Vec<String>, Vec<String>) {
    let (mut problems, mut warnings) = (Vec::new(), Vec::new());
    let routes = Routes::read();
    for service in &plan.services {
        for real in &service.reals {
            let (at, ip) = (real.address, real.address.ip());
            let name = format!("{}: real server {at}", service.address);
            if stays_here(ip) {
                problems.push(format!(
                    "{name} is an address of this machine, where packets do not leave to: take \"xdp\" away, or name another machine"
                ));
                continue;
            }
            match routes.to(ip) {
                None => warnings.push(format!("{name} cannot be reached: no route (see: ip route get {ip})")),
                Some(route) if route.gateway && service.mode == Mode::Direct => problems.push(format!(
                    "{name} is behind a gateway, so \"direct\" cannot bring it a frame: take \"ipip\" or \"gue\" (see: ip route get {ip})"
                )),
                Some(route) if route.gateway && service.mode == Mode::Nat => warnings.push(format!(
                    "{name} is behind a gateway: its answers must come back through this machine, or take \"full_nat\""
                )),
                Some(_) => {}
            }
        }
    }
    (problems, warnings)
}

/// `/sys` may be that of another network namespace; `/proc/net` is not.
fn is_there(interface: &str) -> bool {
    let text = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    text.lines().any(|line| line.trim_start().strip_prefix(interface).is_some_and(|rest| rest.starts_with(':')))
}

/// Packets to it do not leave. To be bound is not enough: `ip_nonlocal_bind`, for addresses that keepalived brings, lets any be.
fn stays_here(address: IpAddr) -> bool {
    source_to(address) == Some(address)
}

fn is_ours(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}
