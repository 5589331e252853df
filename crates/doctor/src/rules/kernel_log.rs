//! What the kernel said in words.

use crate::facts::Facts;
use crate::finding::{Finding, Sure, Weight};

/// What is in a line, what it is called, what it means, why, and what cures it.
struct Says {
    has: &'static str,
    id: &'static str,
    what: &'static str,
    why: &'static str,
    cure: &'static str,
}

const SAYINGS: &[Says] = &[
    Says {
        has: "out of memory -- consider tuning tcp_mem",
        id: "kernel-tcp-memory",
        what: "The kernel reset connections: TCP's memory was used up.",
        why: "net.ipv4.tcp_mem, counted in pages, is too small for the connections and their buffers.",
        cure: "a larger net.ipv4.tcp_mem (pages); smaller net.ipv4.tcp_rmem and tcp_wmem for many idle connections",
    },
    Says {
        has: "too many orphaned sockets",
        id: "kernel-orphans",
        what: "The kernel reset connections: too many belonged to no process any more.",
        why: "Either net.ipv4.tcp_max_orphans is reached, or TCP's memory is short, which lowers that limit to a half or a quarter.",
        cure: "net.ipv4.tcp_max_orphans; net.ipv4.tcp_mem; reset_timedout_connection on; in the server's configuration",
    },
    Says {
        has: "ossible SYN flooding",
        id: "kernel-syn-flood",
        what: "A queue of half-open connections was full.",
        why: "A flood of SYNs, or a backlog that is too short for the rate of new connections.",
        cure: "listen ... backlog=4096; net.core.somaxconn=4096; net.ipv4.tcp_syncookies=1",
    },
    Says {
        has: "table full, dropping packet",
        id: "kernel-conntrack",
        what: "The table of tracked connections was full.",
        why: "Packets of new connections were dropped.",
        cure: "a larger net.netfilter.nf_conntrack_max, or no tracking for the service's ports",
    },
    Says {
        has: "eighbour table overflow",
        id: "kernel-neighbours",
        what: "The table of neighbours (ARP) was full.",
        why: "Packets to hosts that have no place in it are dropped.",
        cure: "larger net.ipv4.neigh.default.gc_thresh1, gc_thresh2, gc_thresh3",
    },
    Says {
        has: "table overflow!",
        id: "kernel-neighbours",
        what: "The table of neighbours (ARP) was full.",
        why: "Packets to hosts that have no place in it are dropped.",
        cure: "larger net.ipv4.neigh.default.gc_thresh1, gc_thresh2, gc_thresh3",
    },
    Says {
        has: "time wait bucket table overflow",
        id: "kernel-time-wait",
        what: "TIME_WAIT was full.",
        why: "Connections skipped it: late segments can reach the next connection on the same ports.",
        cure: "keep connections; a larger net.ipv4.tcp_max_tw_buckets",
    },
    Says {
        has: "segfault at",
        id: "kernel-segfault",
        what: "A process died of a wrong address.",
        why: "All of its connections died with it.",
        cure: "ironweir doctor exits",
    },
    Says {
        has: "ut of memory: Kill",
        id: "kernel-oom",
        what: "The kernel killed a process for want of memory.",
        why: "All of its connections died with it.",
        cure: "fewer or smaller processes, smaller buffers, more memory; OOMScoreAdjust= in the unit of what must stay",
    },
    Says {
        has: "Memory cgroup out of memory",
        id: "kernel-oom",
        what: "The kernel killed a process for want of memory in its group.",
        why: "All of its connections died with it.",
        cure: "a larger memory limit of the group, or smaller processes",
    },
    Says {
        has: "NETDEV WATCHDOG",
        id: "kernel-interface",
        what: "An interface hung and was reset.",
        why: "Nothing was sent for seconds.",
        cure: "a newer driver or firmware, another port",
    },
    Says {
        has: "ink is Down",
        id: "kernel-link",
        what: "An interface lost its carrier.",
        why: "Nothing is sent or received without one.",
        cure: "cable, port, switch",
    },
    Says {
        has: "I/O error",
        id: "kernel-disk",
        what: "A disk failed to read or write.",
        why: "What is on it may be lost; whoever reads it waits.",
        cure: "smartctl -a; another disk",
    },
    Says {
        has: "blocked for more than",
        id: "kernel-hung",
        what: "A task waited for minutes for a disk or a file system.",
        why: "Whoever waits for it waits too.",
        cure: "the lines below it in dmesg say for what",
    },
    Says {
        has: "fork rejected by pids controller",
        id: "kernel-threads",
        what: "A process could not be started: its group has as many as it may.",
        why: "fork fails with EAGAIN.",
        cure: "TasksMax= in the unit, --pids-limit in the container's start",
    },
];

/// What was said within this time is a warning, before that a note: seconds.
const RECENT_S: f64 = 3_600.0;

/// One finding for each thing that was said, with the last line that said it.
pub(super) fn lines(facts: &Facts) -> Vec<Finding> {
    let all = super::journal::kernel_lines(&facts.machine);
    let of = |says: &Says| {
        let lines: Vec<_> = all.iter().filter(|(text, ..)| text.contains(says.has)).collect();
        let (last, ago, from) = **lines.last()?;
        let weight = if ago <= RECENT_S { Weight::Warning } else { Weight::Note };
        Some(
            Finding::new(says.id, weight, says.what)
                .seen(format!("\"{last}\" {ago:.0} s ago, {} lines in all", lines.len()), from)
                .because(says.why)
                .cure(says.cure)
                .sure(Sure::Certain),
        )
    };
    SAYINGS.iter().filter_map(of).collect()
}
