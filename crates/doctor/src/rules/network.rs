//! Memory of TCP, what is lost on the way, connection tracking.

use super::{part, percent};
use crate::facts::Facts;
use crate::finding::{Finding, Sure, Weight};
use crate::text::{bytes, number};
use machine::links::added;
use std::collections::BTreeSet;

/// Segments sent again, of all: above this it shows in latencies.
const LOSS: f64 = 0.02;
/// Fewer segments than this are no sample.
const LOSS_LEAST: u64 = 20;
/// An interface this full drops.
const FULL: f64 = 0.9;
/// Turns of a CPU's network work that ended with packets left, a second: fewer are bursts.
const SQUEEZED: f64 = 100.0;
/// One CPU takes this part of all packets, and there are so many a second.
const ONE_CPU: f64 = 0.9;
const MANY_PACKETS: f64 = 50_000.0;
/// A table this full is about to drop.
const NEAR: f64 = 0.8;

/// So many SYNs with old timestamps between two looks are no stray packets.
const TURNED_AWAY: u64 = 3;

/// TCP has used up its memory.
pub(super) fn tcp_memory(facts: &Facts) -> Vec<Finding> {
    let m = &facts.machine;
    let [low, pressure, high] = m.numbers("net.ipv4.tcp_mem")[..] else { return Vec::new() };
    let used = m.sockstat.memory_pages;
    let aborted = m.added("TcpExt.TCPAbortOnMemory");
    let pruned = m.added("TcpExt.PruneCalled") + m.added("TcpExt.RcvPruned");
    let is_tight = used >= pressure && pressure > 0;
    if !is_tight && aborted == 0 {
        return Vec::new();
    }
    let weight = if used >= high || aborted > 0 { Weight::Critical } else { Weight::Warning };
    let page = 4096;
    let what = format!("TCP's memory is used up: {} of {}.", bytes(used * page), bytes(high * page));
    let wanted = high.saturating_mul(4);
    vec![
        Finding::new("tcp-memory", weight, what)
            .seen(format!("{} pages", number(used)), "/proc/net/sockstat, mem")
            .seen(format!("{low} {pressure} {high} (pages of 4 kB, not bytes)"), "net.ipv4.tcp_mem")
            .seen(format!("{aborted} connections ended for want of it, {pruned} queues cut, in {:.1} s", m.seconds), "TcpExt.TCPAbortOnMemory, PruneCalled")
            .because("Above the second number windows shrink and everything slows down; above the third, connections are reset and the \
                      kernel says \"out of memory -- consider tuning tcp_mem\".")
            .cure(format!("sysctl -w net.ipv4.tcp_mem=\"{} {} {wanted}\" (at most a quarter of the machine's memory)", wanted / 2, wanted / 4 * 3))
            .cure("smaller buffers for many idle connections: net.ipv4.tcp_rmem and tcp_wmem with 4096 in the first two places")
    ]
}

/// Too many sockets belong to nobody.
pub(super) fn orphans(facts: &Facts) -> Vec<Finding> {
    let m = &facts.machine;
    let Some(max) = m.number("net.ipv4.tcp_max_orphans").filter(|m| *m > 0) else { return Vec::new() };
    let count = m.sockstat.orphans;
    if part(count, max) < NEAR {
        return Vec::new();
    }
    let what = format!("Connections without a process are near their limit: {} of {}.", number(count), number(max));
    vec![
        Finding::new("orphans", Weight::Warning, what)
            .seen(format!("{} sockets without a process", number(count)), "/proc/net/sockstat, orphan")
            .seen(max.to_string(), "net.ipv4.tcp_max_orphans")
            .because("A server closed them while their clients had not taken everything. Above the limit (under memory pressure above half or a \
                      quarter of it) the kernel resets them: clients lose the ends of answers.")
            .cure(format!("sysctl -w net.ipv4.tcp_max_orphans={}", max.saturating_mul(4)))
            .cure("sysctl -w net.ipv4.tcp_fin_timeout=15; sysctl -w net.ipv4.tcp_orphan_retries=2; in nginx: reset_timedout_connection on;")
    ]
}

/// Segments are lost.
pub(super) fn loss(facts: &Facts) -> Vec<Finding> {
    let m = &facts.machine;
    let (again, sent) = (m.added("Tcp.RetransSegs"), m.added("Tcp.OutSegs"));
    let syns = m.added("TcpExt.TCPSynRetrans");
    if again < LOSS_LEAST || part(again, sent) < LOSS {
        return Vec::new();
    }
    let share = part(again, sent);
    let finding = if syns * 2 > again {
        Finding::new("syns-lost", Weight::Warning, format!("{} SYNs had to be sent again: somebody does not answer.", number(syns)))
            .because("A backend's accept queue is full, its host is down, or a firewall drops. Each costs its request a second or more.")
            .cure("ironweir doctor backend HOST:PORT for each upstream")
    } else {
        Finding::new("loss", Weight::Warning, format!("{} of sent segments had to be sent again.", percent(share)))
            .because("A lost segment costs its request at least 200 ms.")
            .cure("look for drops on the way: ironweir nic, then the switch; a path with less MTU; a cap on bandwidth")
    };
    let what =
        format!("{} of {} segments in {:.1} s, {} of them SYNs", number(again), number(sent), m.seconds, number(syns));
    vec![finding.seen(what, "Tcp.RetransSegs, Tcp.OutSegs, TcpExt.TCPSynRetrans").sure(Sure::Likely)]
}

/// SYNs that were turned away since their timestamps go back: clients behind one address.
pub(super) fn timestamps(facts: &Facts) -> Vec<Finding> {
    let m = &facts.machine;
    let turned = m.added("TcpExt.PAWSTimewait");
    if turned < TURNED_AWAY {
        return Vec::new();
    }
    let what = format!("{} SYNs were turned away since their timestamps go back.", number(turned));
    let finding = Finding::new("timestamps-behind-nat", Weight::Warning, what)
        .seen(format!("{} in {:.1} s", number(turned), m.seconds), "TcpExt.PAWSTimewait")
        .because(
            "Clients behind one NAT address have clocks of their own. The server closed first, remembers the last client of the port for a minute, and takes \
             the next one's SYN for an old packet: its connection takes a second longer, of a Linux client that hears the server's ACK some milliseconds.",
        )
        .cure("let clients close first: keepalive_timeout longer than theirs; the NAT should not use a port again within a minute")
        .cure("sysctl -w net.ipv4.tcp_timestamps=0 on the server, if neither can be had: it costs round-trip measurement and protection at high rates")
        .sure(Sure::Likely);
    vec![finding]
}

/// CPUs that cannot keep up with packets.
pub(super) fn softnet(facts: &Facts) -> Vec<Finding> {
    let m = &facts.machine;
    let mut found = Vec::new();
    let per_cpu: Vec<(u64, u64, u64)> = m
        .before
        .softnet
        .iter()
        .zip(&m.now.softnet)
        .map(|(a, b)| (added(a.processed, b.processed), added(a.dropped, b.dropped), added(a.squeezed, b.squeezed)))
        .collect();
    let sum = |pick: fn(&(u64, u64, u64)) -> u64| per_cpu.iter().map(pick).sum::<u64>();
    let (all, dropped, squeezed) = (sum(|c| c.0), sum(|c| c.1), sum(|c| c.2));
    if dropped > 0 {
        let max = m.number("net.core.netdev_max_backlog").unwrap_or(1000);
        found.push(
            Finding::new(
                "backlog-drops",
                Weight::Critical,
                format!("{} packets found a CPU's backlog full.", number(dropped)),
            )
            .seen(
                format!("{dropped} dropped of {} in {:.1} s", number(all), m.seconds),
                "/proc/net/softnet_stat, column 2",
            )
            .seen(max.to_string(), "net.core.netdev_max_backlog")
            .because("They are lost as if the wire had lost them.")
            .cure(format!("sysctl -w net.core.netdev_max_backlog={}", max.saturating_mul(4)))
            .cure("spread packets over CPUs: more queues (ethtool -L), or RPS (/sys/class/net/*/queues/rx-*/rps_cpus)"),
        );
    }
    if squeezed as f64 / m.seconds.max(0.1) > SQUEEZED {
        let budget = m.number("net.core.netdev_budget").unwrap_or(300);
        found.push(
            Finding::new("budget", Weight::Note, "CPUs leave packets for their next turn.")
                .seen(format!("{squeezed} turns in {:.1} s", m.seconds), "/proc/net/softnet_stat, column 3")
                .because("Packets wait longer than they need to, up to a scheduler's tick.")
                .cure(format!("sysctl -w net.core.netdev_budget={}", budget.saturating_mul(2)))
                .sure(Sure::Possible),
        );
    }
    let most = per_cpu.iter().map(|c| c.0).max().unwrap_or(0);
    // What the loopback carries is handled where it was sent: no queue or RPS spreads that.
    let cards = m
        .now
        .links
        .iter()
        .filter(|l| l.name != "lo")
        .filter_map(|l| Some((l, m.before.links.iter().find(|b| b.name == l.name)?)));
    let received: u64 = cards.map(|(now, before)| now.counts.since(&before.counts).rx_packets).sum();
    let many = all.min(received) as f64 / m.seconds.max(0.1) > MANY_PACKETS;
    if per_cpu.len() > 1 && many && part(most, all) > ONE_CPU {
        found.push(
            Finding::new("one-cpu", Weight::Warning, format!("One of {} CPUs takes {} of all packets.", per_cpu.len(), percent(part(most, all))))
                .seen(format!("{} of {} packets in {:.1} s", number(most), number(all), m.seconds), "/proc/net/softnet_stat, column 1")
                .seen_of_cards(m)
                .because("That CPU is the limit while others are idle.")
                .cure("more queues (ethtool -L IF combined N) with an interrupt each, or RPS: a mask of all CPUs into /sys/class/net/IF/queues/rx-0/rps_cpus")
                .sure(Sure::Likely),
        );
    }
    found
}

/// What may spread packets over CPUs, of each card.
trait SeenOfCards {
    fn seen_of_cards(self, m: &machine::Facts) -> Self;
}

impl SeenOfCards for Finding {
    fn seen_of_cards(self, m: &machine::Facts) -> Finding {
        m.cards.iter().fold(self, |finding, card| {
            let cpus: BTreeSet<usize> = card.interrupts.values().flatten().copied().collect();
            let cpus = cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
            let cpus = if cpus.is_empty() { "CPUs that are not known".to_owned() } else { format!("CPU {cpus}") };
            let (queues, spread) = card.rps;
            let what = format!(
                "{}: {queues} queues for receiving, interrupts on {cpus}, RPS for {spread} of the queues",
                card.name
            );
            finding.seen(what, "/sys/class/net, /proc/irq")
        })
    }
}

/// Cards that are set up so that they cost more than they need to.
pub(super) fn cards(facts: &Facts) -> Vec<Finding> {
    let m = &facts.machine;
    let mut found = Vec::new();
    for card in &m.cards {
        let name = &card.name;
        let off: Vec<&str> = card.offloads.iter().filter(|(_, on)| !**on).map(|(n, _)| n.as_str()).collect();
        if !off.is_empty() {
            found.push(
                Finding::new(
                    "offload-off",
                    Weight::Note,
                    format!("{name} could do work that CPUs do: {}.", off.join(", ")),
                )
                .seen(off.join(", ") + " can be switched and are off", "ethtool's netlink, features")
                .because("Without them a CPU cuts, sums and joins each packet of 1,500 bytes itself.")
                .cure(format!(
                    "ethtool -K {name} {}",
                    off.iter().map(|n| format!("{n} on")).collect::<Vec<_>>().join(" ")
                ))
                .sure(Sure::Likely),
            );
        }
        let cpus: BTreeSet<&Vec<usize>> = card.interrupts.values().collect();
        let (queues, spread) = card.rps;
        if m.cpus > 1
            && queues > 1
            && spread == 0
            && card.interrupts.len() > 1
            && cpus.len() == 1
            && cpus.iter().all(|c| c.len() == 1)
        {
            let cpu = cpus.iter().flat_map(|c| c.iter()).next().copied().unwrap_or(0);
            found.push(
                Finding::new(
                    "interrupts-on-one-cpu",
                    Weight::Note,
                    format!("All {queues} queues of {name} interrupt CPU {cpu}."),
                )
                .seen(format!("{} interrupts, CPU {cpu}", card.interrupts.len()), "/proc/irq/N/effective_affinity_list")
                .because("Several queues are there so that several CPUs take packets.")
                .cure("irqbalance, or a CPU for each: echo N > /proc/irq/NUMBER/smp_affinity_list")
                .sure(Sure::Likely),
            );
        }
    }
    found
}

/// Interfaces that drop, fail or are full.
pub(super) fn links(facts: &Facts) -> Vec<Finding> {
    let m = &facts.machine;
    let mut found = Vec::new();
    for now in &m.now.links {
        let Some(before) = m.before.links.iter().find(|b| b.name == now.name) else { continue };
        let c = now.counts.since(&before.counts);
        let name = &now.name;
        let from = format!("rtnetlink, {name}");
        let lost = c.rx_missed + c.tx_dropped;
        if lost > 0 {
            let finding =
                Finding::new("interface-drops", Weight::Warning, format!("{name} dropped {} packets.", number(lost)))
                    .seen(
                        format!(
                            "{} found the ring full, {} the queue for sending, in {:.1} s",
                            c.rx_missed, c.tx_dropped, m.seconds
                        ),
                        &from,
                    )
                    .because("Lost packets are sent again after 200 ms or more; lost UDP is lost.");
            let finding = match m.cards.iter().find(|c| c.name == *name).and_then(|c| c.rx_ring) {
                Some((now, most)) if now < most => finding
                    .seen(format!("{now} places of {most} for receiving"), "ethtool's netlink, rings")
                    .cure(format!("ethtool -G {name} rx {most}")),
                Some((now, _)) => finding
                    .seen(format!("{now} places for receiving, which is the most"), "ethtool's netlink, rings")
                    .cure(format!("more queues (ethtool -L {name} combined N): the ring is as long as it can be")),
                None => finding.cure(format!("ethtool -G {name} rx 4096  (ethtool -g {name} says what it can have)")),
            };
            found.push(finding.cure(format!(
                "for sending: ip link set {name} txqueuelen 10000, or less traffic than the queue's discipline lets through"
            )));
        }
        let wrong = c.rx_errors + c.tx_errors;
        if wrong > 0 && !now.is_loopback {
            found.push(
                Finding::new("interface-errors", Weight::Warning, format!("{name} had {} errors.", number(wrong)))
                    .seen(format!("{} received, {} sent, in {:.1} s", c.rx_errors, c.tx_errors, m.seconds), &from)
                    .because("A cable, a port or a driver is bad.")
                    .cure("another cable or port; ethtool -S says which error"),
            );
        }
        if let Some(speed) = now.speed {
            let bits = c.rx_bytes.max(c.tx_bytes) as f64 * 8.0 / m.seconds.max(0.1);
            if bits >= speed as f64 * FULL {
                found.push(
                    Finding::new(
                        "interface-full",
                        Weight::Critical,
                        format!("{name} is full: {:.0} of {:.0} Mbit/s.", bits / 1e6, speed as f64 / 1e6),
                    )
                    .seen(
                        format!("{} received, {} sent, in {:.1} s", bytes(c.rx_bytes), bytes(c.tx_bytes), m.seconds),
                        &from,
                    )
                    .because("No setting gives more than the wire has.")
                    .cure("gzip on; caching nearer to clients; a faster or a second interface"),
                );
            }
        }
    }
    found
}

/// The table of tracked connections is full.
pub(super) fn tracking(facts: &Facts) -> Vec<Finding> {
    let m = &facts.machine;
    let Some(c) = m.conntrack.filter(|c| c.max > 0) else { return Vec::new() };
    let dropped = added(m.before.conntrack_drops, m.now.conntrack_drops);
    if part(c.count, c.max) < NEAR && dropped == 0 {
        return Vec::new();
    }
    let weight = if dropped > 0 || c.count >= c.max { Weight::Critical } else { Weight::Warning };
    let what = format!("The table of tracked connections is {} full.", percent(part(c.count, c.max)));
    vec![
        Finding::new("conntrack-full", weight, what)
            .seen(
                format!("{} of {}", number(c.count), number(c.max)),
                "net.netfilter.nf_conntrack_count, nf_conntrack_max",
            )
            .seen(format!("{dropped} packets dropped in {:.1} s", m.seconds), "/proc/net/stat/nf_conntrack")
            .because("A packet of a connection that finds no place is dropped: new connections hang.")
            .cure(format!("sysctl -w net.netfilter.nf_conntrack_max={}", c.max.saturating_mul(4)))
            .cure("do not track what needs no tracking: a rule in the raw table, ... notrack, for the service's ports"),
    ]
}

/// Connections that idle longer than a NAT remembers them.
pub(super) fn idle_resets(facts: &Facts) -> Vec<Finding> {
    let m = &facts.machine;
    let (Some(c), Some(keepalive)) = (m.conntrack, m.number("net.ipv4.tcp_keepalive_time")) else { return Vec::new() };
    if c.count == 0 || c.established_s >= keepalive {
        return Vec::new();
    }
    let half = (c.established_s / 2).max(1);
    let what = format!(
        "Connections that idle for {} s are forgotten by this machine's connection tracking, before a keepalive shows that they live.",
        c.established_s
    );
    vec![
        Finding::new("idle-reset", Weight::Warning, what)
            .seen(format!("{} s, {} connections tracked", c.established_s, c.count), "net.netfilter.nf_conntrack_tcp_timeout_established")
            .seen(format!("{keepalive} s"), "net.ipv4.tcp_keepalive_time")
            .because("The next packet of a forgotten connection is reset or dropped: held connections break after a silence, always of the same length.")
            .cure(format!("sysctl -w net.ipv4.tcp_keepalive_time={half} for programs that ask for keepalives; in the server's configuration: listen ... so_keepalive={half}s::; proxy_socket_keepalive on;"))
            .cure("or a longer memory: sysctl -w net.netfilter.nf_conntrack_tcp_timeout_established=432000")
            .sure(Sure::Likely)
    ]
}
