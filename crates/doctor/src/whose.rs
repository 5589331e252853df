//! Of what is seen of a machine that part which has to do with one server: its own processes and queues, and those of its peers that run on the same
//! machine. A machine has other servers, whose troubles are not in this one's way. From: `why`.

use crate::facts::Facts;
use machine::cgroup::Groups;
use machine::processes::{self, Process};
use machine::sockets::Listener;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// Whether a server with this process number runs here and answers at one of these addresses. An address of this machine may lead elsewhere: a
/// tunnel, a container's port, a proxy.
pub(crate) fn is_here(facts: &Facts, addresses: &[SocketAddr], pid: u32) -> bool {
    if !addresses.iter().any(|a| machine::own::is_local(a.ip())) {
        return false;
    }
    let m = &facts.machine;
    let at = |l: &&Listener| addresses.iter().any(|a| is_at(l, *a));
    let listeners: Vec<u64> = m.sockets.listeners.iter().filter(at).map(|l| l.inode).collect();
    let mut holders = m.processes.iter().filter(|p| p.listens.iter().any(|i| listeners.contains(i))).peekable();
    if holders.peek().is_none() {
        // Another user's process: its descriptors may not be seen.
        return std::path::Path::new(&format!("/proc/{pid}")).exists();
    }
    holders.any(|p| p.pid == pid || p.parent == pid)
}

/// Whether a listener takes connections to an address.
fn is_at(l: &Listener, address: SocketAddr) -> bool {
    let host = l.address.rsplit_once(':').map_or("", |(host, _)| host).trim_matches(['[', ']']);
    let host = host.parse::<IpAddr>().map(|ip| ip.to_canonical());
    l.port == address.port() && host.is_ok_and(|ip| ip.is_unspecified() || ip == address.ip().to_canonical())
}

/// The server's own process and what it holds, where the facts have none.
pub(crate) fn add_process(facts: &mut Facts, pid: u32, groups: &Groups) {
    let m = &mut facts.machine;
    let inodes: BTreeSet<u64> = m.sockets.listeners.iter().map(|l| l.inode).collect();
    m.processes.extend(processes::with_sockets(pid, &inodes, groups));
}

/// Leaves out what belongs to others.
pub(crate) fn only_the_servers(facts: &mut Facts) {
    let Some(s) = &facts.serving else { return };
    let m = &mut facts.machine;
    if let Some(own) = &s.connects_to {
        m.sockets.destinations.retain(|d| own.contains(&d.to) || s.peers.iter().any(|p| p.server == d.to));
    }
    let Some(own) = m.processes.iter().find(|p| p.pid == s.pid) else { return };
    let (pid, parent) = (own.pid, own.parent);
    // Its workers; its master, if it is a worker, and that one's others. A parent without a socket in common is a shell.
    let of_master = m.processes.iter().any(|p| p.pid == parent && p.listens.iter().any(|i| own.listens.contains(i)));
    let is_own = |p: &Process| p.pid == pid || p.parent == pid || of_master && (p.pid == parent || p.parent == parent);
    let owns: BTreeSet<u64> =
        m.processes.iter().filter(|p| is_own(p)).flat_map(|p| p.listens.iter().copied()).collect();
    if owns.is_empty() {
        // Nothing can be said of who owns what.
        return;
    }
    let peers: Vec<&str> = s.peers.iter().map(|p| p.server.as_str()).collect();
    let is_kept = |l: &Listener| owns.contains(&l.inode) || peers.iter().any(|p| is_peer(p, l));
    let (kept, others): (Vec<Listener>, Vec<Listener>) = m.sockets.listeners.drain(..).partition(is_kept);
    m.sockets.listeners = kept;
    // The kernel counts overflows of all queues together: where another one is full, they are its.
    if others.iter().any(|l| l.port != 0 && l.backlog > 0 && l.queue >= l.backlog) {
        for counter in ["TcpExt.ListenOverflows", "TcpExt.ListenDrops"] {
            let now = m.now.count(counter);
            m.before.counters.insert(counter.to_owned(), now);
        }
    }
    let kept: BTreeSet<u64> = m.sockets.listeners.iter().map(|l| l.inode).collect();
    m.processes.retain(|p| p.listens.iter().any(|i| kept.contains(i)));
    if m.processes.iter().any(|p| p.pid == pid && p.cgroup.is_some()) {
        // Whoever asks may be in another group.
        m.cgroup = None;
    }
}

/// Whether a peer is this listener: `127.0.0.1:80`, `unix:/run/app.sock`.
fn is_peer(peer: &str, l: &Listener) -> bool {
    match peer.strip_prefix("unix:") {
        Some(path) => l.port == 0 && l.address == path,
        None => peer.parse::<SocketAddr>().is_ok_and(|a| is_at(l, a) && machine::own::is_local(a.ip())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::{Peer, Serving};
    use machine::cgroup::{Cgroup, Counted};

    fn listener(address: &str, inode: u64, queue: u32) -> Listener {
        let port = address.rsplit_once(':').and_then(|(_, p)| p.parse().ok()).unwrap_or(0);
        Listener { address: address.into(), port, queue, backlog: 10, inode, connections: 0 }
    }

    fn process(pid: u32, parent: u32, listens: &[u64]) -> Process {
        Process { pid, parent, name: "x".into(), listens: listens.to_vec(), ..Process::default() }
    }

    /// A server (master 10, worker 11), its peer on this machine (20), and two that have nothing to do with it.
    fn machine() -> Facts {
        let mut facts = Facts::default();
        let m = &mut facts.machine;
        m.sockets.listeners = vec![
            listener("0.0.0.0:80", 1, 0),
            listener("127.0.0.1:9000", 2, 0),
            listener("127.0.0.1:7000", 3, 11),
            listener("/run/app.sock", 4, 0),
        ];
        m.processes = vec![process(10, 1, &[1]), process(11, 10, &[1]), process(20, 1, &[2]), process(30, 1, &[3])];
        let held = Counted { periods: 10, throttled: 10, oom_kills: 0 };
        m.processes[3].cgroup = Some(Cgroup { cpus: Some(0.1), recent: Some(held), ..Cgroup::default() });
        m.now.counters.insert("TcpExt.ListenOverflows".into(), 9);
        let peer = |server: &str| Peer { server: server.into(), ..Peer::default() };
        let peers = vec![peer("127.0.0.1:9000"), peer("unix:/run/app.sock")];
        facts.serving = Some(Serving { pid: 11, peers, ..Serving::default() });
        facts
    }

    #[test]
    fn troubles_of_others_are_not_this_servers() {
        let ids = |facts: &Facts| crate::rules::judge(facts).iter().map(|f| f.id).collect::<Vec<_>>();
        let mut facts = machine();
        assert!(ids(&facts).contains(&"accept-queue-full") && ids(&facts).contains(&"cpu-limit"));
        only_the_servers(&mut facts);
        let left: Vec<u64> = facts.machine.sockets.listeners.iter().map(|l| l.inode).collect();
        assert_eq!((left, facts.machine.processes.len()), (vec![1, 2, 4], 3));
        assert!(!ids(&facts).iter().any(|id| ["accept-queue-full", "cpu-limit"].contains(id)), "{:?}", ids(&facts));
        assert_eq!(facts.machine.added("TcpExt.ListenOverflows"), 0);
        let mut own = machine();
        own.machine.sockets.listeners[1].queue = 11;
        only_the_servers(&mut own);
        assert!(ids(&own).contains(&"accept-queue-full"), "a peer's queue is in the server's way");
    }

    #[test]
    fn ports_that_others_use_up_are_not_this_servers() {
        let mut facts = machine();
        let to = |to: &str| machine::sockets::Destination { to: to.into(), total: 9, ..Default::default() };
        facts.machine.sockets.destinations = ["10.0.0.1:80", "127.0.0.1:9000", "10.0.0.2:5432"].map(to).into();
        only_the_servers(&mut facts);
        assert_eq!(facts.machine.sockets.destinations.len(), 3, "it does not say where it connects to");
        facts.serving.as_mut().unwrap().connects_to = Some(vec!["10.0.0.1:80".into()]);
        only_the_servers(&mut facts);
        let left: Vec<&str> = facts.machine.sockets.destinations.iter().map(|d| d.to.as_str()).collect();
        assert_eq!(left, ["10.0.0.1:80", "127.0.0.1:9000"]);
    }

    #[test]
    fn an_address_of_this_machine_may_lead_elsewhere() {
        let facts = machine();
        let at = |text: &str| [text.parse().unwrap()];
        assert!(is_here(&facts, &at("127.0.0.1:80"), 11) && is_here(&facts, &at("127.0.0.1:80"), 10));
        assert!(!is_here(&facts, &at("127.0.0.1:7000"), 11), "a tunnel");
        assert!(!is_here(&facts, &at("192.0.2.1:80"), 11) && !is_here(&facts, &[], 11));
    }
}
