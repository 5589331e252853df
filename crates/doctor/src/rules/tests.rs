use super::judge;
use crate::facts::Facts;
use crate::finding::{Finding, Weight};
use machine::cgroup::{Cgroup, Counted, Pressure};
use machine::counters::{Conntrack, Softnet};
use machine::kernel_log::Line;
use machine::links::{Link, LinkCounts};
use machine::processes::Process;
use machine::sockets::{Destination, Listener};

/// A machine that nothing is wrong with.
fn healthy() -> Facts {
    let mut facts = Facts::default();
    let m = &mut facts.machine;
    (m.seconds, m.up_s, m.cpus, m.memory) = (1.0, 5_000.0, 4, (8 << 30, 6 << 30));
    for (name, value) in [
        ("fs.file-nr", "900 0 800000"),
        ("net.core.somaxconn", "4096"),
        ("net.ipv4.ip_local_port_range", "32768 60999"),
        ("net.ipv4.tcp_keepalive_time", "7200"),
        ("net.ipv4.tcp_max_orphans", "32768"),
        ("net.ipv4.tcp_max_tw_buckets", "32768"),
        ("net.ipv4.tcp_mem", "90000 120000 180000"),
    ] {
        m.settings.insert(name.into(), value.into());
    }
    let listener = Listener { address: "0.0.0.0:80".into(), port: 80, backlog: 511, inode: 7, ..Listener::default() };
    m.sockets.listeners = vec![listener];
    m.processes = vec![Process {
        pid: 40,
        name: "nginx".into(),
        state: 'S',
        descriptors: Some(30),
        descriptor_limit: Some(1024),
        listens: vec![7],
        ..Process::default()
    }];
    (m.before.counters, m.now.counters) = ([("Tcp.OutSegs".into(), 10)].into(), [("Tcp.OutSegs".into(), 9_010)].into());
    m.now.softnet = vec![Softnet { processed: 100, ..Softnet::default() }];
    m.before.softnet = vec![Softnet::default()];
    m.conntrack = Some(Conntrack { count: 5, max: 65_536, established_s: 432_000 });
    m.pressure = Some(Pressure::default());
    facts
}

/// What is found after one change.
fn after(change: impl FnOnce(&mut machine::Facts)) -> Vec<Finding> {
    let mut facts = healthy();
    change(&mut facts.machine);
    judge(&facts)
}

fn count(m: &mut machine::Facts, name: &str, value: u64) {
    m.now.counters.insert(name.into(), value);
}

/// The only finding.
fn only(findings: Vec<Finding>) -> (&'static str, Weight) {
    assert_eq!(findings.len(), 1, "{findings:#?}");
    let f = &findings[0];
    assert!(!f.evidence.is_empty() && !f.why.is_empty() && f.what.ends_with('.'), "{f:?}");
    (f.id, f.weight)
}

#[test]
fn nothing_is_wrong() {
    assert_eq!(judge(&healthy()), []);
}

#[test]
fn a_server_that_found_no_local_port_is_believed() {
    let mut facts = healthy();
    let refused = [("10.0.0.2:80".to_owned(), 7)].into();
    facts.serving = Some(crate::serving::Serving { without_port: refused, ..Default::default() });
    let found = judge(&facts);
    assert!(found[0].what.contains("7 connections to 10.0.0.2:80"), "{found:?}");
    assert_eq!(only(found), ("local-ports-used-up", Weight::Critical));
    let destination = Destination { to: "10.0.0.2:80".into(), total: 24_000, ..Destination::default() };
    facts.machine.sockets.destinations = vec![destination];
    let found = judge(&facts);
    assert!(found[0].evidence.iter().any(|e| e.from == "/api/9/ironweir/ports"), "{found:?}");
    assert_eq!(only(found), ("local-ports-used-up", Weight::Critical), "both say the same");
}

#[test]
fn each_fault_alone_is_found_and_nothing_else() {
    use Weight::{Critical, Note, Warning};
    assert_eq!(only(after(|m| m.sockets.listeners[0].queue = 512)), ("accept-queue-full", Critical));
    assert_eq!(only(after(|m| m.sockets.listeners[0].queue = 450)), ("accept-queue-full", Warning));
    let small = |m: &mut machine::Facts| (m.sockets.listeners[0].queue, m.sockets.listeners[0].backlog) = (1, 1);
    assert_eq!(after(small), [], "one connection that waits is no queue");
    let overflows = |m: &mut machine::Facts| count(m, "TcpExt.ListenOverflows", 9);
    assert_eq!(only(after(overflows)), ("accept-queue-overflowed", Critical));
    let long_ago = |m: &mut machine::Facts| {
        overflows(m);
        m.before.counters.insert("TcpExt.ListenOverflows".into(), 9);
    };
    assert_eq!(only(after(long_ago)), ("accept-queue-overflowed", Note));
    let unix = |m: &mut machine::Facts| {
        let l = Listener { address: "/run/php.sock".into(), queue: 8, backlog: 8, inode: 9, ..Listener::default() };
        m.sockets.listeners.push(l);
    };
    assert_eq!(only(after(unix)), ("unix-queue-full", Critical));
    assert_eq!(only(after(|m| count(m, "TcpExt.TCPReqQFullDrop", 3))), ("syn-queue-full", Critical));
    assert_eq!(only(after(|m| m.processes[0].state = 'T')), ("server-stopped", Critical));
    assert_eq!(only(after(|m| m.processes[0].stopped_threads = 1)), ("server-stopped", Critical));
    let ports = |total| Destination {
        from: "10.0.0.1".into(),
        to: "10.0.0.2:80".into(),
        total,
        established: 2,
        time_wait: total - 2,
    };
    assert_eq!(only(after(|m| m.sockets.destinations = vec![ports(28_232)])), ("local-ports-used-up", Critical));
    assert_eq!(only(after(|m| m.sockets.destinations = vec![ports(24_000)])), ("local-ports-used-up", Warning));
    assert_eq!(after(|m| m.sockets.destinations = vec![ports(14_000)]), []);
    assert_eq!(only(after(|m| m.sockstat.time_wait = 32_700)), ("time-wait-full", Warning));
    assert_eq!(only(after(|m| m.sockstat.memory_pages = 130_000)), ("tcp-memory", Warning));
    assert_eq!(only(after(|m| m.sockstat.memory_pages = 190_000)), ("tcp-memory", Critical));
    assert_eq!(only(after(|m| m.sockstat.orphans = 30_000)), ("orphans", Warning));
    assert_eq!(only(after(|m| count(m, "Tcp.RetransSegs", 400))), ("loss", Warning));
    let syns = |m: &mut machine::Facts| {
        m.now.counters.extend([("Tcp.RetransSegs".into(), 400), ("TcpExt.TCPSynRetrans".into(), 390)]);
    };
    assert_eq!(only(after(syns)), ("syns-lost", Warning));
    assert_eq!(only(after(|m| count(m, "TcpExt.PAWSTimewait", 9))), ("timestamps-behind-nat", Warning));
    assert_eq!(after(|m| count(m, "TcpExt.PAWSTimewait", 2)), []);
    assert_eq!(only(after(|m| m.now.softnet[0].dropped = 4)), ("backlog-drops", Critical));
    let full = Conntrack { count: 65_536, max: 65_536, established_s: 432_000 };
    assert_eq!(only(after(|m| m.conntrack = Some(full))), ("conntrack-full", Critical));
    let short = Conntrack { count: 5, max: 65_536, established_s: 90 };
    assert_eq!(only(after(|m| m.conntrack = Some(short))), ("idle-reset", Warning));
    assert_eq!(only(after(|m| m.processes[0].descriptors = Some(1_020))), ("descriptors", Critical));
    assert_eq!(
        only(after(|m| drop(m.settings.insert("fs.file-nr".into(), "790000 0 800000".into())))),
        ("file-max", Critical)
    );
    let just_now = |periods, throttled, oom_kills| Some(Counted { periods, throttled, oom_kills });
    let group = Cgroup { cpus: Some(0.1), recent: just_now(10, 6, 0), ..Cgroup::default() };
    assert_eq!(only(after(|m| m.processes[0].cgroup = Some(group))), ("cpu-limit", Warning));
    let group = Cgroup { memory: Some((99, 100)), oom_kills: 1, recent: just_now(0, 0, 1), ..Cgroup::default() };
    assert_eq!(only(after(|m| m.processes[0].cgroup = Some(group))), ("memory-limit", Warning));
    let long_ago = Cgroup {
        cpus: Some(0.1),
        memory: Some((7, 60)),
        periods: 10_000,
        throttled: 9_000,
        oom_kills: 1,
        recent: just_now(10, 0, 0),
        ..Cgroup::default()
    };
    assert_eq!(after(|m| m.processes[0].cgroup = Some(long_ago)), [], "counters begin when a group is made");
    assert_eq!(
        only(after(|m| m.pressure = Some(Pressure { io_full: 50.0, ..Pressure::default() }))),
        ("disk", Warning)
    );
    assert_eq!(only(after(|m| m.memory.1 = 1 << 20)), ("memory", Critical));
    let line = |text: &str| vec![Line { at_s: 4_990.0, text: text.into() }];
    let said = |text: &str| only(after(|m| m.kernel_log = line(text)));
    assert_eq!(said("TCP: out of memory -- consider tuning tcp_mem"), ("kernel-tcp-memory", Warning));
    assert_eq!(said("TCP: too many orphaned sockets"), ("kernel-orphans", Warning));
    assert_eq!(said("nf_conntrack: nf_conntrack: table full, dropping packet"), ("kernel-conntrack", Warning));
    assert_eq!(
        said("request_sock_TCP: Possible SYN flooding on port 80. Sending cookies."),
        ("kernel-syn-flood", Warning)
    );
}

#[test]
fn interfaces_and_cpus() {
    use Weight::{Critical, Note, Warning};
    let link = |counts| {
        only(after(|m| {
            let link = Link { name: "eth0".into(), speed: Some(1_000_000_000), is_up: true, ..Link::default() };
            m.before.links = vec![link.clone()];
            m.now.links = vec![Link { counts, ..link }];
        }))
    };
    assert_eq!(link(LinkCounts { rx_missed: 4, ..LinkCounts::default() }), ("interface-drops", Warning));
    assert_eq!(link(LinkCounts { tx_dropped: 4, ..LinkCounts::default() }), ("interface-drops", Warning));
    assert_eq!(link(LinkCounts { rx_errors: 1, ..LinkCounts::default() }), ("interface-errors", Warning));
    assert_eq!(link(LinkCounts { tx_bytes: 120_000_000, ..LinkCounts::default() }), ("interface-full", Critical));
    let packets = |processed, squeezed| Softnet { processed, squeezed, dropped: 0 };
    let cpus = |all: Vec<Softnet>| {
        after(|m| {
            m.before.softnet = vec![Softnet::default(); all.len()];
            let received = all.iter().map(|c| c.processed).sum();
            m.now.softnet = all;
            let card = |rx_packets| Link {
                name: "eth0".into(),
                counts: LinkCounts { rx_packets, ..LinkCounts::default() },
                ..Link::default()
            };
            (m.before.links, m.now.links) = (vec![card(0)], vec![card(received)]);
        })
    };
    assert_eq!(only(cpus(vec![packets(80_000, 0), packets(100, 0)])), ("one-cpu", Warning));
    assert_eq!(cpus(vec![packets(80_000, 0), packets(70_000, 0)]), []);
    assert_eq!(cpus(vec![packets(8_000, 0), packets(100, 0)]), [], "few packets may be one CPU's");
    let card = |change: &dyn Fn(&mut machine::card::Card)| {
        let mut card = machine::card::Card { name: "eth0".into(), rps: (2, 0), ..Default::default() };
        card.offloads.insert("rx-gro".into(), true);
        card.interrupts = [(24, vec![0]), (25, vec![1])].into();
        change(&mut card);
        after(|m| {
            m.cpus = 2;
            m.cards = vec![card.clone()];
        })
    };
    assert_eq!(card(&|_| ()), []);
    assert_eq!(only(card(&|c| _ = c.offloads.insert("rx-gro".into(), false))), ("offload-off", Note));
    assert_eq!(only(card(&|c| _ = c.interrupts.insert(25, vec![0]))), ("interrupts-on-one-cpu", Note));
    assert_eq!(only(cpus(vec![packets(80_000, 500), packets(80_000, 0)])), ("budget", Note));
    let pressed = |p: Pressure| only(after(|m| m.pressure = Some(p)));
    assert_eq!(pressed(Pressure { cpu_some: 90.0, ..Pressure::default() }), ("cpu", Warning));
    assert_eq!(pressed(Pressure { memory_some: 20.0, ..Pressure::default() }), ("memory-pressure", Warning));
    let group = Cgroup { threads: Some((95, 100)), ..Cgroup::default() };
    assert_eq!(only(after(|m| m.cgroup = Some(group))), ("threads-limit", Warning));
    let full = Cgroup { memory: Some((99, 100)), ..Cgroup::default() };
    assert_eq!(only(after(|m| m.cgroup = Some(full))), ("memory-limit", Note), "a page cache fills every limit");
}

#[test]
fn the_heaviest_comes_first() {
    let found = after(|m| {
        m.sockstat.orphans = 30_000;
        m.sockets.listeners[0].queue = 600;
    });
    assert_eq!(found.iter().map(|f| f.id).collect::<Vec<_>>(), ["accept-queue-full", "orphans"]);
}
