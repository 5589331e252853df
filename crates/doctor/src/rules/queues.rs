//! Queues in front of those who should take from them: connections that wait to be accepted, SYNs that wait to be answered.

use super::part;
use crate::facts::Facts;
use crate::finding::{Finding, Sure, Weight};
use crate::text::number;
use machine::sockets::Listener;

/// A queue this full is about to overflow.
const FULL: f64 = 0.8;
/// Fewer connections than this wait in any queue now and then.
const FEW: u32 = 8;
/// A queue with fewer places than this fills in one burst, and its listener is the first to suspect when something overflowed.
const SHORT: u32 = 128;
/// What a backlog should be where nothing speaks against it: nginx's 511 is often too short, and memory is used only when it fills.
const ENOUGH: u64 = 4_096;

/// The queue of a TCP listener is full, or was.
pub(super) fn accept_queues(facts: &Facts) -> Vec<Finding> {
    let m = &facts.machine;
    let overflows = m.added("TcpExt.ListenOverflows");
    let since_start = m.now.count("TcpExt.ListenOverflows");
    let tcp = || m.sockets.listeners.iter().filter(|l| l.port != 0);
    let mut found = Vec::new();
    let is_full =
        |l: &&Listener| l.queue > l.backlog || (l.queue >= FEW && part(l.queue.into(), l.backlog.into()) >= FULL);
    for l in tcp().filter(|l| l.backlog > 0).filter(is_full) {
        // The kernel lets one more in than the backlog says.
        let is_over = l.queue > l.backlog || overflows > 0;
        let weight = if is_over { Weight::Critical } else { Weight::Warning };
        let state = if is_over { "is full: connections are dropped" } else { "is nearly full" };
        let who = m.holder(l.inode).map(|p| format!(" ({}, process {})", p.name, p.pid)).unwrap_or_default();
        let finding =
            Finding::new("accept-queue-full", weight, format!("The accept queue of {}{who} {state}.", l.address))
                .seen(format!("{} connections wait, {} may", l.queue, l.backlog), "sock_diag");
        found.push(backlog_cure(facts, overflow_seen(facts, finding), l.port, l.backlog));
    }
    if found.is_empty() && since_start > 0 {
        let short = tcp().filter(|l| l.backlog < SHORT).min_by_key(|l| l.backlog);
        let (weight, what) = match overflows {
            0 => (Weight::Note, "An accept queue has overflowed since the machine was started.".to_owned()),
            n => (Weight::Critical, format!("An accept queue overflows: {} connections were dropped.", number(n))),
        };
        let mut finding = overflow_seen(facts, Finding::new("accept-queue-overflowed", weight, what));
        if let Some(l) = short {
            finding =
                finding.seen(format!("the shortest queue is that of {}: {} places", l.address, l.backlog), "sock_diag");
            finding = backlog_cure(facts, finding, l.port, l.backlog);
        } else {
            finding = finding.cure("find it while it happens: ironweir doctor, once a second").because(WHY);
        }
        found.push(finding.sure(Sure::Likely));
    }
    found
}

const WHY: &str = "A connection that finds the queue full is dropped without a word: the client sends its SYN again after 1 s, 3 s, 7 s, \
                   and sees a slow or dead server.";

fn overflow_seen(facts: &Facts, finding: Finding) -> Finding {
    let m = &facts.machine;
    let (added, all) = (m.added("TcpExt.ListenOverflows"), m.now.count("TcpExt.ListenOverflows"));
    if all == 0 {
        return finding;
    }
    let what = format!("{} overflows in {:.1} s, {} since the start", number(added), m.seconds, number(all));
    finding.seen(what, "TcpExt.ListenOverflows")
}

/// The backlog is the smaller one of what the server asks for and `net.core.somaxconn`.
fn backlog_cure(facts: &Facts, finding: Finding, port: u16, backlog: u32) -> Finding {
    let somaxconn = facts.machine.number("net.core.somaxconn").unwrap_or(ENOUGH);
    let wanted = ENOUGH.max(u64::from(backlog) * 4);
    let mut finding = finding.because(WHY);
    if somaxconn < wanted {
        finding = finding
            .seen(format!("{somaxconn}, which cuts every backlog"), "net.core.somaxconn")
            .cure(format!("sysctl -w net.core.somaxconn={wanted}"));
    }
    finding
        .cure(format!("in the server's configuration: listen {port} backlog={wanted}; (then a restart: a reload keeps the socket)"))
        .cure("if the queue is full while CPUs are idle, the server is stopped or waits for something: look at the other findings")
}

/// The queue of a unix socket is full: php-fpm, mostly.
pub(super) fn unix_queues(facts: &Facts) -> Vec<Finding> {
    let m = &facts.machine;
    let full = m.sockets.listeners.iter().filter(|l| l.port == 0 && l.backlog > 0);
    full.filter(|l| part(l.queue.into(), l.backlog.into()) >= FULL)
        .map(|l| {
            let holder = m.holder(l.inode);
            let name = holder.map_or("its program", |p| p.name.as_str());
            let is_full = l.queue >= l.backlog;
            let weight = if is_full { Weight::Critical } else { Weight::Warning };
            let state = if is_full { "is full: connects fail with EAGAIN" } else { "is nearly full" };
            let what = format!("The queue of the unix socket {} ({name}) {state}.", l.address);
            let finding = Finding::new("unix-queue-full", weight, what)
                .seen(format!("{} connections wait, {} may", l.queue, l.backlog), "sock_diag (unix)")
                .because("A unix socket has no SYN that is sent again: whoever connects to a full queue gets \"Resource temporarily \
                          unavailable\" at once, and nginx answers 502.");
            if name.starts_with("php-fpm") {
                finding
                    .cure("in the pool's file: listen.backlog = 4096, and sysctl -w net.core.somaxconn=4096, which cuts it")
                    .cure("pm.max_children: as many as the memory holds; a queue only hides that there are too few")
            } else {
                finding.cure("a larger backlog in listen(), more workers that accept, sysctl -w net.core.somaxconn=4096")
            }
        })
        .collect()
}

/// SYNs are answered by cookies, or not at all.
pub(super) fn syn_queue(facts: &Facts) -> Vec<Finding> {
    let m = &facts.machine;
    let dropped = m.added("TcpExt.TCPReqQFullDrop");
    let cookies = m.added("TcpExt.TCPReqQFullDoCookies").max(m.added("TcpExt.SyncookiesSent"));
    if dropped == 0 && cookies == 0 {
        return Vec::new();
    }
    let waiting = m.sockets.in_state("syn_recv");
    let (weight, what) = if dropped > 0 {
        (
            Weight::Critical,
            format!("{} SYNs were dropped: the queue of half-open connections is full.", number(dropped)),
        )
    } else {
        (
            Weight::Warning,
            format!("{} SYNs were answered with cookies: the queue of half-open connections is full.", number(cookies)),
        )
    };
    let finding = Finding::new("syn-queue-full", weight, what)
        .seen(format!("{dropped} dropped, {cookies} by cookie, in {:.1} s", m.seconds), "TcpExt.TCPReqQFullDrop, TCPReqQFullDoCookies")
        .seen(format!("{waiting} half-open connections"), "sock_diag")
        .because("A flood of SYNs, or a backlog that is too short for the rate of new connections. Cookies keep the service up; dropped \
                  SYNs do not.")
        .cure("sysctl -w net.ipv4.tcp_syncookies=1")
        .cure("a larger backlog (the queue of half-open connections has the same length): listen ... backlog=4096, net.core.somaxconn");
    vec![finding.sure(Sure::Likely)]
}

/// A server's process is stopped: it holds sockets and takes nothing from them.
pub(super) fn stopped(facts: &Facts) -> Vec<Finding> {
    let halted = facts.machine.processes.iter().filter(|p| p.state == 'T' || p.state == 't' || p.stopped_threads > 0);
    halted
        .map(|p| {
            let what = if p.state == 'T' || p.state == 't' {
                format!("{} (process {}) is stopped.", p.name, p.pid)
            } else {
                format!("{} of {} threads of {} (process {}) are stopped.", p.stopped_threads, p.threads, p.name, p.pid)
            };
            Finding::new("server-stopped", Weight::Critical, what)
                .seen(
                    format!("state {}, {} threads stopped", p.state, p.stopped_threads),
                    format!("/proc/{}/stat", p.pid),
                )
                .because("It holds listening sockets: the kernel goes on completing handshakes, and nobody answers.")
                .cure(format!("kill -CONT {}  (or end the debugger that holds it)", p.pid))
        })
        .collect()
}
