//! What the kernel counts: `/proc/net/snmp`, `netstat`, `softnet_stat`, `sockstat`, connection tracking. All of this thread's network
//! namespace, but for `softnet_stat`, which is the machine's.

use crate::links::{self, Link};
use crate::own::proc_net;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::read_to_string;

/// CPUs with greater numbers are left out.
const MOST_CPUS: usize = 4_096;

/// What moves: two of these make rates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moving {
    /// `TcpExt.ListenOverflows` and the like; zeros are left out.
    pub counters: BTreeMap<String, u64>,
    /// Each CPU's work for the network.
    pub softnet: Vec<Softnet>,
    /// Interfaces.
    pub links: Vec<Link>,
    /// Connections that tracking had no room for, and inserts that failed.
    pub conntrack_drops: u64,
    /// CPU time, clock ticks: spent, and there was in all.
    pub cpu: (u64, u64),
    /// The same of each CPU, by its number; one that is offline has had no time.
    #[serde(default)]
    pub cpus: Vec<(u64, u64)>,
}

/// A line of `/proc/net/softnet_stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Softnet {
    /// Packets that the CPU took.
    pub processed: u64,
    /// Packets that found its backlog full (`net.core.netdev_max_backlog`).
    pub dropped: u64,
    /// Turns that ended with packets left (`net.core.netdev_budget`).
    pub squeezed: u64,
}

impl Moving {
    /// Reads them.
    pub fn read() -> Moving {
        let mut counters = BTreeMap::new();
        let stat = read_to_string("/proc/stat").unwrap_or_default();
        for file in ["snmp", "netstat"] {
            tables(&proc_net(file), &mut counters);
        }
        Moving {
            counters,
            softnet: softnet(&proc_net("softnet_stat")),
            links: links::read().unwrap_or_default(),
            conntrack_drops: conntrack_drops(&proc_net("stat/nf_conntrack")),
            cpu: cpu(stat.lines().next().unwrap_or_default()),
            cpus: cpus(&stat),
        }
    }

    /// A counter.
    pub fn count(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
}

/// The two-line form: a line of names, then one of numbers, both after the table's name. Negative numbers are no counters.
fn tables(text: &str, into: &mut BTreeMap<String, u64>) {
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let (Some((table, names)), Some((again, values))) = (names.split_once(':'), values.split_once(':')) else {
            return;
        };
        if table != again {
            return;
        }
        for (name, value) in names.split_ascii_whitespace().zip(values.split_ascii_whitespace()) {
            if let Some(value) = value.parse().ok().filter(|v| *v > 0) {
                into.insert(format!("{table}.{name}"), value);
            }
        }
    }
}

fn softnet(text: &str) -> Vec<Softnet> {
    let line = |line: &str| {
        let mut fields = line.split_ascii_whitespace().map(|f| u64::from_str_radix(f, 16).unwrap_or(0));
        Some(Softnet { processed: fields.next()?, dropped: fields.next()?, squeezed: fields.next()? })
    };
    text.lines().filter_map(line).collect()
}

/// The sum over CPUs of `drop` and `insert_failed`, whose columns the first line names.
fn conntrack_drops(text: &str) -> u64 {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split_ascii_whitespace().collect();
    let of = |line: &str| {
        let fields = line.split_ascii_whitespace().zip(&names).filter(|(_, n)| ["drop", "insert_failed"].contains(n));
        fields.filter_map(|(f, _)| u64::from_str_radix(f, 16).ok()).sum::<u64>()
    };
    lines.map(of).sum()
}

/// Each CPU's line of `/proc/stat`: `cpu3 10 0 5 ...`.
fn cpus(text: &str) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    for line in text.lines().skip(1).take_while(|line| line.starts_with("cpu")) {
        let number = line[3..].split_ascii_whitespace().next().and_then(|n| n.parse::<usize>().ok());
        if let Some(number) = number.filter(|n| *n < MOST_CPUS) {
            all.resize(all.len().max(number + 1), (0, 0));
            all[number] = cpu(line);
        }
    }
    all
}

/// A line of `/proc/stat`: spent, and there was in all.
fn cpu(line: &str) -> (u64, u64) {
    let fields: Vec<u64> = line.split_ascii_whitespace().skip(1).take(8).filter_map(|f| f.parse().ok()).collect();
    let all: u64 = fields.iter().sum();
    // The fourth is idle, the fifth waits for disks.
    let idle: u64 = fields.iter().skip(3).take(2).sum();
    (all - idle, all)
}

/// `/proc/net/sockstat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sockstat {
    /// TCP sockets in use.
    pub in_use: u64,
    /// Those without a process.
    pub orphans: u64,
    /// In TIME_WAIT.
    pub time_wait: u64,
    /// Memory of all TCP sockets of the machine, pages.
    pub memory_pages: u64,
}

impl Sockstat {
    /// Reads it.
    pub fn read() -> Sockstat {
        Sockstat::parse(&proc_net("sockstat"))
    }

    fn parse(text: &str) -> Sockstat {
        let line = text.lines().find_map(|l| l.strip_prefix("TCP:")).unwrap_or_default();
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let value = |name: &str| {
            words.chunks(2).find(|pair| pair[0] == name).and_then(|pair| pair.get(1)?.parse().ok()).unwrap_or(0)
        };
        Sockstat {
            in_use: value("inuse"),
            orphans: value("orphan"),
            time_wait: value("tw"),
            memory_pages: value("mem"),
        }
    }
}

/// Connection tracking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conntrack {
    /// Connections that are followed.
    pub count: u64,
    /// How many may be.
    pub max: u64,
    /// After so long without a packet an established connection is forgotten, seconds.
    pub established_s: u64,
}

impl Conntrack {
    /// Reads it; nothing where the kernel does not track.
    pub fn read() -> Option<Conntrack> {
        let number = |name: &str| {
            let text = read_to_string(format!("/proc/sys/net/netfilter/nf_conntrack_{name}")).ok()?;
            text.trim().parse().ok()
        };
        Some(Conntrack {
            count: number("count")?,
            max: number("max")?,
            established_s: number("tcp_timeout_established")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables() {
        let mut all = BTreeMap::new();
        tables("Tcp: MaxConn OutSegs Zero\nTcp: -1 22 0\nUdp: RcvbufErrors\nUdp: 9\nodd", &mut all);
        assert_eq!(all, BTreeMap::from([("Tcp.OutSegs".into(), 22), ("Udp.RcvbufErrors".into(), 9)]));
        let text = "000000a2 00000001 0000000f 00000000\n00003f32 00000000 00000002 00000000\n";
        assert_eq!(softnet(text)[0], Softnet { processed: 162, dropped: 1, squeezed: 15 });
        let text = "entries found insert_failed drop\n0001 0000 00000002 0000000a\n0001 0000 00000001 00000000\n";
        assert_eq!(conntrack_drops(text), 13);
        assert_eq!(cpu("cpu  10 0 5 80 5 0 0 0 0 0"), (15, 100));
        let text = "cpu  10 0 5 80 5 0 0\ncpu0 1 0 0 1 0 0 0\ncpu2 3 0 0 9 0 0 0\nintr 5\ncpu4 1 1\n";
        assert_eq!(cpus(text), [(1, 2), (0, 0), (3, 12)], "one is offline, and what is behind them is not read");
        let text = "sockets: used 19\nTCP: inuse 1 orphan 2 tw 3 alloc 1 mem 4\n";
        assert_eq!(Sockstat::parse(text), Sockstat { in_use: 1, orphans: 2, time_wait: 3, memory_pages: 4 });
    }
}
