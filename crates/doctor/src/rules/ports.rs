//! Local ports: those that run out, and those that somebody else has.

use super::{part, percent};
use crate::facts::{Facts, Taker};
use crate::finding::{Finding, Sure, Weight};
use crate::local_ports::{Range, parts};
use crate::text::number;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// So much of the ports to one destination in use is near the end: the kernel's search slows down, then fails.
const NEAR: f64 = 0.8;
/// So much is the end.
const GONE: f64 = 0.97;

/// The range of local ports.
pub(crate) fn range(facts: &Facts) -> Option<Range> {
    let text = |name: &str| facts.machine.settings.get(name).map(String::as_str).unwrap_or_default();
    Range::of(text("net.ipv4.ip_local_port_range"), text("net.ipv4.ip_local_reserved_ports"))
}

/// The ports from this machine to one destination are used up, by the kernel's count or by what a server was told.
pub(super) fn local_ports(facts: &Facts) -> Vec<Finding> {
    let m = &facts.machine;
    let Some(Range { first, last, usable }) = range(facts) else { return Vec::new() };
    let refused = refused(facts);
    let ranges = |f: Finding| {
        f.seen(format!("{first} to {last}: {} ports", number(usable)), "net.ipv4.ip_local_port_range, ip_local_reserved_ports")
            .because("Each connection from one address to one address and port needs a local port of its own. Without one, connect() fails \
                      with EADDRNOTAVAIL (\"Cannot assign requested address\"), and the proxy answers 502.")
    };
    let cured = |finding: Finding| {
        let finding = match usable < 50_000 {
            true => finding.cure("sysctl -w net.ipv4.ip_local_port_range=\"1024 65535\", with what listens there in ip_local_reserved_ports (ironweir doctor ports)"),
            false => finding,
        };
        finding.cure("more addresses: proxy_bind, or more addresses or ports of the upstream")
    };
    let said = |n: u64| (format!("{} connects failed for want of a port", number(n)), "/api/9/ironweir/ports");
    let full: Vec<_> = m.sockets.destinations.iter().filter(|d| part(d.total, usable) >= NEAR).collect();
    let seen = |d: &&machine::sockets::Destination| {
        let (used, failed) = (part(d.total, usable), refused.get(d.to.as_str()).copied().unwrap_or(0));
        let (weight, state) = if used >= GONE || failed > 0 {
            (Weight::Critical, "are used up")
        } else {
            (Weight::Warning, "are nearly used up")
        };
        let what = format!("The local ports for connections from {} to {} {state} ({}).", d.from, d.to, percent(used));
        let mut finding = Finding::new("local-ports-used-up", weight, what).seen(
            format!("{} connections, {} of them in TIME_WAIT", number(d.total), number(d.time_wait)),
            "sock_diag",
        );
        if failed > 0 {
            let (what, from) = said(failed);
            finding = finding.seen(what, from);
        }
        finding = ranges(finding);
        if d.time_wait * 2 > d.total {
            finding = finding
                .cure("keep connections instead of closing them: upstream { keepalive 64; } with proxy_http_version 1.1 and an empty Connection header")
                .cure("sysctl -w net.ipv4.tcp_tw_reuse=1");
        }
        cured(finding)
    };
    // What was short between the looks need not be when the sockets are counted.
    let told = refused.iter().filter(|(to, _)| !full.iter().any(|d| d.to == **to)).map(|(to, n)| {
        let what = format!("There was no local port for {} connections to {to}.", number(*n));
        let (seen, from) = said(*n);
        cured(ranges(Finding::new("local-ports-used-up", Weight::Critical, what).seen(seen, from)))
    });
    full.iter().map(seen).chain(told).collect()
}

/// Connects of servers that failed for want of a port, by destination.
fn refused(facts: &Facts) -> BTreeMap<&str, u64> {
    let mut all = BTreeMap::new();
    for (to, n) in facts.serving.iter().chain(&facts.others).flat_map(|s| &s.without_port) {
        *all.entry(to.as_str()).or_default() += n;
    }
    all
}

/// There are more TIME_WAITs than the kernel keeps.
pub(super) fn time_waits(facts: &Facts) -> Vec<Finding> {
    let m = &facts.machine;
    let Some(max) = m.number("net.ipv4.tcp_max_tw_buckets") else { return Vec::new() };
    let (waits, lost) = (m.sockstat.time_wait, m.added("TcpExt.TCPTimeWaitOverflow"));
    if lost == 0 && part(waits, max) < NEAR {
        return Vec::new();
    }
    let what = format!("TIME_WAIT is full: {} of {} places.", number(waits), number(max));
    let finding = Finding::new("time-wait-full", Weight::Warning, what)
        .seen(format!("{} connections in TIME_WAIT", number(waits)), "/proc/net/sockstat")
        .seen(format!("{} were ended without it in {:.1} s", number(lost), m.seconds), "TcpExt.TCPTimeWaitOverflow")
        .because("A connection that skips TIME_WAIT can hand its late segments to the next one on the same ports. Where it is full, this \
                  machine closes too many connections that it could keep.")
        .cure("keep connections (keepalive in upstream blocks, keepalive_timeout for clients)")
        .cure(format!("sysctl -w net.ipv4.tcp_max_tw_buckets={}", max.saturating_mul(4).max(262_144)));
    vec![finding]
}

/// A port that a configuration wants to listen on is somebody else's.
pub(super) fn thieves(facts: &Facts) -> Vec<Finding> {
    let m = &facts.machine;
    let mut found = clients(facts);
    for conf in &facts.configurations {
        for listen in conf.listens.iter().filter(|l| l.port != 0) {
            let held = |port: u16, address: &str| listen.has(port) && collides(&listen.address, address);
            let tcp = || {
                let all = m.sockets.listeners.iter().filter(|l| l.port != 0 && held(l.port, &l.address));
                let mut all = all.filter_map(|l| Some((l.address.as_str(), l.port, m.holder(l.inode)?)));
                all.find(|(.., p)| !conf.is_own(&p.name)).map(|(at, port, p)| (at, port, p.pid, p.name.as_str()))
            };
            let udp = || {
                let all = m.sockets.udp.iter().filter(|b| held(b.port, &b.address));
                let holder = |inode| facts.udp_holders.iter().find(|h| h.inode == inode && !conf.is_own(&h.name));
                let mut all = all.filter_map(|b| Some((b, holder(b.inode)?)));
                all.next().map(|(b, h)| (b.address.as_str(), b.port, h.pid, h.name.as_str()))
            };
            let Some((address, port, pid, name)) = (if listen.is_udp { udp() } else { tcp() }) else { continue };
            let protocol = if listen.is_udp { "UDP port" } else { "Port" };
            let what = format!("{protocol} {port} is held by {name} (process {pid}).");
            found.push(
                Finding::new("port-taken", Weight::Critical, what)
                    .seen(format!("{address} {}", if listen.is_udp { "is bound" } else { "listens" }), "sock_diag")
                    .seen(format!("listen {}", listen.address), &listen.place)
                    .because("A start fails with \"bind() failed (98: Address already in use)\".")
                    .cure(format!("end it (kill {pid}), or listen on another port"))
                    .sure(Sure::Likely),
            );
        }
    }
    found
}

/// Whether a `listen` cannot have its port while somebody listens on an address with the same port: one of them is for all addresses, or both are
/// for the same.
fn collides(listen: &str, held: &str) -> bool {
    let host = |address: &str| -> Option<IpAddr> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
    };
    let is_same = |a: IpAddr, b: IpAddr| a == b || a.is_unspecified() || b.is_unspecified();
    // A port alone, or *:80, is for all addresses; a name may be any.
    host(listen).zip(host(held)).is_none_or(|(a, b)| is_same(a, b))
}

/// An outgoing connection has taken the port of a service that is down.
fn clients(facts: &Facts) -> Vec<Finding> {
    let each = |t: &Taker| {
        let c = &t.connection;
        let who = t
            .holder
            .as_ref()
            .map_or_else(|| format!("nobody any more ({})", c.state), |(pid, name)| format!("{name} (process {pid})"));
        let finding = Finding::new("port-taken", Weight::Critical, format!("Port {} is held by a client: {who}, connected to {}.", c.port, c.to))
            .seen(format!("{} to {}, {}", c.from, c.to, c.state), "sock_diag")
            .seen(format!("port {} and nobody listens there", c.port), "listen in the configuration")
            .because("The kernel gave the port to an outgoing connection while the service was down. A start fails with \"bind() failed (98: \
                      Address already in use)\".")
            .cure(format!("sysctl -w net.ipv4.ip_local_reserved_ports={} keeps it for the service from now on", c.port));
        match &t.holder {
            Some((pid, _)) => finding.cure(format!("end the connection: restart process {pid}; if it closes by itself, TIME_WAIT keeps the port for another minute")),
            None => finding.cure("wait a minute: the connection is closing"),
        }
    };
    facts.takers.iter().map(each).collect()
}

/// Services listen in the range from which the kernel takes local ports.
pub(super) fn unreserved(facts: &Facts) -> Vec<Finding> {
    let Some(Range { first, last, .. }) = range(facts) else { return Vec::new() };
    let text = facts.machine.settings.get("net.ipv4.ip_local_reserved_ports").map(String::as_str).unwrap_or_default();
    let reserved: Vec<(u64, u64)> = parts(text).collect();
    let is_free = |port: u64| !reserved.iter().any(|r| (r.0..=r.1).contains(&port));
    // What was configured, not whatever port the kernel gave to a program that asked for any.
    let wanted = facts.configurations.iter().flat_map(|c| &c.listens).flat_map(|l| l.ports().map(u64::from));
    let mut exposed: Vec<u64> = wanted.filter(|p| (first..=last).contains(p) && is_free(*p)).collect();
    exposed.sort_unstable();
    exposed.dedup();
    if exposed.is_empty() {
        return Vec::new();
    }
    let list = ranges(&exposed);
    let what = format!("A client can take a port that a service needs: {list}.");
    let mut all: Vec<String> = facts
        .machine
        .settings
        .get("net.ipv4.ip_local_reserved_ports")
        .filter(|t| !t.is_empty())
        .cloned()
        .into_iter()
        .collect();
    all.push(list.clone());
    let finding = Finding::new("ports-unreserved", Weight::Note, what)
        .seen(format!("{first} to {last}"), "net.ipv4.ip_local_port_range")
        .seen(format!("ports {list}"), "listen in the configuration")
        .because("While the service is down, the kernel may give its port to an outgoing connection; the service then fails to start.")
        .cure(format!("sysctl -w net.ipv4.ip_local_reserved_ports={}", all.join(",")));
    vec![finding]
}

/// `80,8000-8009`, of numbers that rise.
fn ranges(ports: &[u64]) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &port in ports {
        match runs.last_mut().filter(|run| run.1 + 1 == port) {
            Some(run) => run.1 = port,
            None => runs.push((port, port)),
        }
    }
    let each = |&(from, to): &(u64, u64)| if from == to { from.to_string() } else { format!("{from}-{to}") };
    runs.iter().map(each).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::{collides, ranges};

    #[test]
    fn runs_of_ports() {
        assert_eq!(ranges(&[80, 8000, 8001, 8002, 8004]), "80,8000-8002,8004");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn addresses_that_collide() {
        for (listen, held) in [
            ("80", "127.0.0.1:80"),
            ("*:80", "10.0.0.1:80"),
            ("127.0.0.1:80", "0.0.0.0:80"),
            ("[::]:80", "0.0.0.0:80"),
            ("10.0.0.1:80", "10.0.0.1:80"),
        ] {
            assert!(collides(listen, held), "{listen} {held}");
        }
        assert!(!collides("127.0.0.1:80", "127.0.0.2:80") && !collides("[::1]:80", "127.0.0.1:80"));
    }
}
