//! Everything that is known of this machine at one time. It is written as JSON and read back, so that what was seen on one machine is
//! judged on another, and a rule is tested from what was recorded.

use crate::card::{self, Card};
use crate::cgroup::{Cgroup, Groups, Pressure};
use crate::counters::{Conntrack, Moving, Sockstat};
use crate::journal;
use crate::kernel_log::{self, Line};
use crate::processes::{self, Process};
use crate::sockets::Sockets;
use crate::wake;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::read_to_string;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Grows when a fact changes its meaning.
pub const FORMAT: u32 = 1;

/// So much of the journal is looked at, seconds: what was before is history.
const JOURNAL_S: u64 = 7 * 24 * 3600;

/// Settings that rules look at, as they stand below `/proc/sys`.
const SETTINGS: &[&str] = &[
    "fs.file-max",
    "fs.file-nr",
    "fs.nr_open",
    "kernel.core_pattern",
    "net.core.netdev_budget",
    "net.core.netdev_max_backlog",
    "net.core.somaxconn",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_abort_on_overflow",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_max_orphans",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_max_tw_buckets",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_tw_reuse",
    "net.ipv4.tcp_wmem",
    "vm.overcommit_memory",
    "vm.swappiness",
];

/// See the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// [`FORMAT`] of who wrote them.
    pub format: u32,
    /// When, seconds since 1970.
    pub at: u64,
    /// The kernel's release: `6.1.0-18-amd64`.
    pub kernel: String,
    /// Since it was started, seconds.
    pub up_s: f64,
    /// CPUs.
    pub cpus: u32,
    /// Memory in all, and that programs can still have, bytes.
    pub memory: (u64, u64),
    /// Settings.
    pub settings: BTreeMap<String, String>,
    /// Sockets.
    pub sockets: Sockets,
    /// What the kernel says of them in a file.
    pub sockstat: Sockstat,
    /// What moves, at first.
    pub before: Moving,
    /// The same, after `seconds`.
    pub now: Moving,
    /// Between the two.
    pub seconds: f64,
    /// What it costs a thread to sleep and be woken. Left out here, since it takes 70 ms of CPU time to find out: who needs it asks [`wake::costs`].
    #[serde(default)]
    pub wake: wake::Costs,
    /// Connection tracking, where the kernel does that.
    pub conntrack: Option<Conntrack>,
    /// The limits of this process's group.
    pub cgroup: Option<Cgroup>,
    /// How much tasks waited lately.
    pub pressure: Option<Pressure>,
    /// How the cards behind interfaces are set up.
    #[serde(default)]
    pub cards: Vec<Card>,
    /// Processes that listen.
    pub processes: Vec<Process>,
    /// Telling lines of the kernel's.
    pub kernel_log: Vec<Line>,
    /// What the journal tells, oldest first.
    #[serde(default)]
    pub journal: Vec<journal::Entry>,
    /// What could not be read, and why.
    pub missing: Vec<String>,
}

impl Facts {
    /// Looks at everything twice, `pause` apart where it moves.
    pub fn read(pause: Duration) -> Facts {
        let (before, groups, began) = (Moving::read(), Groups::all(), Instant::now());
        std::thread::sleep(pause);
        let mut facts = Facts::since(before, &groups, began);
        let inodes = facts.sockets.listeners.iter().map(|l| l.inode).collect();
        let (found, hidden) = processes::holding(&inodes, &groups);
        facts.processes = found;
        facts.cards = card::read();
        if hidden > 0 {
            let () = facts.lacks(&format!("descriptors of {hidden} processes (other users'; root sees them)"));
        }
        facts.kernel_log =
            kernel_log::telling().unwrap_or_else(|e| facts.lacks(&format!("the kernel's log (/dev/kmsg: {e})")));
        let since = facts.at.saturating_sub(JOURNAL_S) * 1_000_000;
        facts.read_journal(&journal::FOLDERS.map(Path::new), since);
        facts
    }

    /// Reads the journals in these folders instead, since a time (microseconds since 1970).
    pub fn read_journal(&mut self, folders: &[&Path], since_us: u64) {
        let units: BTreeSet<&str> = self.processes.iter().filter_map(|p| p.unit.as_deref()).collect();
        match journal::telling(folders, since_us, &units) {
            Ok(entries) => self.journal = entries.unwrap_or_default(),
            Err(e) => self.missing.push(format!("the journal ({e})")),
        }
    }

    /// How long ago an entry of the journal was made when these facts were read, seconds.
    pub fn ago_s(&self, entry: &journal::Entry) -> u64 {
        self.at.saturating_sub(entry.at_us / 1_000_000)
    }

    /// What takes no look at every process: everything but those and the kernel's log. `before`: what moves, as it was when it `began`; `groups`:
    /// what groups had counted then.
    pub fn since(before: Moving, groups: &Groups, began: Instant) -> Facts {
        let mut facts = Facts { before, now: Moving::read(), format: FORMAT, ..Facts::default() };
        facts.seconds = began.elapsed().as_secs_f64();
        facts.at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        facts.kernel = setting("kernel.osrelease").unwrap_or_default();
        facts.up_s = first_number(&read_to_string("/proc/uptime").unwrap_or_default());
        facts.cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        facts.memory = memory();
        facts.settings = SETTINGS.iter().filter_map(|n| Some(((*n).to_owned(), setting(n)?))).collect();
        facts.sockets = Sockets::read().unwrap_or_else(|e| facts.lacks(&format!("sockets (sock_diag: {e})")));
        facts.sockstat = Sockstat::read();
        facts.conntrack = Conntrack::read();
        facts.cgroup = Cgroup::of(std::process::id(), groups);
        facts.pressure = Pressure::read();
        facts
    }

    fn lacks<T: Default>(&mut self, what: &str) -> T {
        self.missing.push(what.to_owned());
        T::default()
    }

    /// A setting's numbers.
    pub fn numbers(&self, name: &str) -> Vec<u64> {
        let text = self.settings.get(name).map(String::as_str).unwrap_or_default();
        text.split_ascii_whitespace().filter_map(|n| n.parse().ok()).collect()
    }

    /// The first of them.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.numbers(name).first().copied()
    }

    /// What was added to a counter between the two looks.
    pub fn added(&self, counter: &str) -> u64 {
        crate::links::added(self.before.count(counter), self.now.count(counter))
    }

    /// The process that holds a socket: the first one that is no master of the others.
    pub fn holder(&self, inode: u64) -> Option<&Process> {
        let all = || self.processes.iter().filter(move |p| p.listens.contains(&inode));
        all().find(|p| !all().any(|child| child.parent == p.pid)).or_else(|| all().next())
    }
}

/// Sets a kernel setting by its name with dots.
///
/// # Errors
/// If there is none of this name, if the value is not one, without the right to.
pub fn set(name: &str, value: &str) -> std::io::Result<()> {
    let path = path_of(name).ok_or(std::io::ErrorKind::InvalidInput)?;
    std::fs::write(path, value)
}

/// A kernel setting by its name with dots; a slash in a part of it stands for a dot (`net.ipv4.conf.eth0/1.rp_filter`).
pub fn setting(name: &str) -> Option<String> {
    Some(read_to_string(path_of(name)?).ok()?.trim_end().replace('\t', " "))
}

/// Whether this kernel has a setting of this name, which may be one that cannot be read.
pub fn has_setting(name: &str) -> bool {
    path_of(name).is_some_and(|path| std::path::Path::new(&path).is_file())
}

fn path_of(name: &str) -> Option<String> {
    if name.split('.').any(|part| part.is_empty() || part == "..") || name.starts_with('/') {
        return None;
    }
    let path: String = name
        .chars()
        .map(|c| {
            if c == '.' {
                '/'
            } else if c == '/' {
                '.'
            } else {
                c
            }
        })
        .collect();
    Some(format!("/proc/sys/{path}"))
}

fn first_number(text: &str) -> f64 {
    text.split_ascii_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0.0)
}

/// Memory in all, and that programs can still have, bytes.
pub fn memory() -> (u64, u64) {
    let text = read_to_string("/proc/meminfo").unwrap_or_default();
    let value = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
        line.map_or(0.0, first_number) as u64 * 1024
    };
    (value("MemTotal"), value("MemAvailable"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_the_same() {
        let facts = Facts::read(Duration::from_millis(10));
        let text = serde_json::to_string(&facts).unwrap();
        assert_eq!(serde_json::from_str::<Facts>(&text).unwrap(), facts);
        assert!(facts.number("net.core.somaxconn").unwrap() > 0 && facts.memory.0 > facts.memory.1 && facts.cpus > 0);
        assert!(
            facts.now.cpu.1 > 0 && facts.up_s > 0.0 && !facts.now.softnet.is_empty() && !facts.now.links.is_empty()
        );
    }

    #[test]
    fn settings_are_named_as_sysctl_names_them() {
        assert!(setting("net.core.somaxconn").is_some() && setting("net.ipv4.conf.lo.rp_filter").is_some());
        assert!(["", "net..core", "/etc", "...self"].iter().all(|n| setting(n).is_none()));
    }
}
