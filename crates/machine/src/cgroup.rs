//! Limits that are not the process's own: its control groups' (version 1 and 2), and the pressure that the kernel measures.

use serde::{Deserialize, Serialize};
use std::fs::read_to_string;

/// Where control groups are.
const ROOT: &str = "/sys/fs/cgroup";
/// Groups within groups that are looked at.
const MOST_LEVELS: usize = 32;

/// The narrowest limits over a process's group and those around it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cgroup {
    /// Where it is.
    pub path: String,
    /// CPUs' worth of time that it may use: 0.1 is a tenth of one.
    pub cpus: Option<f64>,
    /// Periods there were.
    pub periods: u64,
    /// Those in which it had to wait for the next one's share.
    pub throttled: u64,
    /// Memory used and allowed, bytes.
    pub memory: Option<(u64, u64)>,
    /// Processes that were killed for want of memory.
    pub oom_kills: u64,
    /// Threads there are, and may be.
    pub threads: Option<(u64, u64)>,
}

impl Cgroup {
    /// That of a process; `None` where there is none.
    pub fn of(pid: u32) -> Option<Cgroup> {
        let text = read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let mut cgroup = Cgroup::default();
        for line in text.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            if controllers.is_empty() {
                cgroup.path = path.to_owned();
                walk("", path, |folder| cgroup.version_2(folder));
            }
            for controller in controllers.split(',') {
                walk(controller, path, |folder| cgroup.version_1(controller, folder));
            }
        }
        Some(cgroup)
    }

    fn version_2(&mut self, folder: &str) {
        let read = |name: &str| read_to_string(format!("{folder}/{name}")).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        if let Some((quota, period)) = read("cpu.max").as_deref().and_then(|t| t.trim().split_once(' ')) {
            self.limit_cpus(quota.parse().ok(), period.parse().ok());
        }
        self.throttling(&read("cpu.stat").unwrap_or_default());
        self.limit_memory(number("memory.current"), number("memory.max"));
        self.oom_kills = self.oom_kills.max(value(&read("memory.events").unwrap_or_default(), "oom_kill"));
        self.limit_threads(number("pids.current"), number("pids.max"));
    }

    fn version_1(&mut self, controller: &str, folder: &str) {
        let read = |name: &str| read_to_string(format!("{folder}/{name}")).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        match controller {
            "cpu" => {
                self.limit_cpus(number("cpu.cfs_quota_us"), number("cpu.cfs_period_us"));
                self.throttling(&read("cpu.stat").unwrap_or_default());
            }
            "memory" => {
                // No limit is written as the largest number of whole pages.
                let limit = number("memory.limit_in_bytes").filter(|l| *l < 1 << 62);
                self.limit_memory(number("memory.usage_in_bytes"), limit);
                let events = read("memory.oom_control").unwrap_or_default();
                self.oom_kills = self.oom_kills.max(value(&events, "oom_kill"));
            }
            "pids" => self.limit_threads(number("pids.current"), number("pids.max")),
            _ => {}
        }
    }

    fn limit_cpus(&mut self, quota: Option<u64>, period: Option<u64>) {
        let (Some(quota), Some(period)) = (quota, period.filter(|p| *p > 0)) else { return };
        let cpus = quota as f64 / period as f64;
        self.cpus = Some(self.cpus.map_or(cpus, |c| c.min(cpus)));
    }

    fn throttling(&mut self, stat: &str) {
        self.periods = self.periods.max(value(stat, "nr_periods"));
        self.throttled = self.throttled.max(value(stat, "nr_throttled"));
    }

    fn limit_memory(&mut self, used: Option<u64>, limit: Option<u64>) {
        let (Some(used), Some(limit)) = (used, limit) else { return };
        let left = |(used, limit): (u64, u64)| limit.saturating_sub(used);
        if self.memory.is_none_or(|m| left((used, limit)) < left(m)) {
            self.memory = Some((used, limit));
        }
    }

    fn limit_threads(&mut self, used: Option<u64>, limit: Option<u64>) {
        let (Some(used), Some(limit)) = (used, limit) else { return };
        if self.threads.is_none_or(|(u, l)| limit.saturating_sub(used) < l.saturating_sub(u)) {
            self.threads = Some((used, limit));
        }
    }
}

/// The folders of a group and those around it, the inner ones first.
fn walk(controller: &str, path: &str, mut look: impl FnMut(&str)) {
    let root = match controller {
        "" if std::path::Path::new("/sys/fs/cgroup/unified").exists() => format!("{ROOT}/unified"),
        "" => ROOT.to_owned(),
        name => format!("{ROOT}/{name}"),
    };
    let mut rest = path.trim_end_matches('/');
    for _ in 0..MOST_LEVELS {
        look(&format!("{root}{rest}"));
        match rest.rsplit_once('/') {
            Some((outer, _)) => rest = outer,
            None => return,
        }
    }
}

/// The number behind a name, one a line.
fn value(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|v| v.trim().parse().ok()).unwrap_or(0)
}

/// `/proc/pressure`: the part of the last ten seconds, percent, in which some or all tasks waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pressure {
    /// Some waited for a CPU.
    pub cpu_some: f64,
    /// Some waited for memory.
    pub memory_some: f64,
    /// All did.
    pub memory_full: f64,
    /// Some waited for a disk.
    pub io_some: f64,
    /// All did.
    pub io_full: f64,
}

impl Pressure {
    /// Reads it; nothing where the kernel does not measure.
    pub fn read() -> Option<Pressure> {
        let text = |name: &str| read_to_string(format!("/proc/pressure/{name}"));
        let (cpu, memory, io) = (text("cpu").ok()?, text("memory").ok()?, text("io").ok()?);
        Some(Pressure {
            cpu_some: avg10(&cpu, "some"),
            memory_some: avg10(&memory, "some"),
            memory_full: avg10(&memory, "full"),
            io_some: avg10(&io, "some"),
            io_full: avg10(&io, "full"),
        })
    }
}

fn avg10(text: &str, line: &str) -> f64 {
    let words = text.lines().find(|l| l.starts_with(line)).unwrap_or_default();
    words.split(' ').find_map(|w| w.strip_prefix("avg10=")?.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_both_versions() {
        assert_eq!(avg10("some avg10=3.64 avg60=1.51\nfull avg10=0.50 avg60=0\n", "full"), 0.5);
        assert_eq!(value("oom 3\noom_kill 2\n", "oom_kill"), 2);
        let mut c = Cgroup::default();
        c.limit_cpus(Some(200_000), Some(100_000));
        c.limit_cpus(Some(10_000), Some(100_000));
        c.limit_cpus(None, Some(100_000));
        c.limit_memory(Some(50), Some(100));
        c.limit_memory(Some(95), Some(100));
        c.limit_memory(Some(10), None);
        assert_eq!((c.cpus, c.memory), (Some(0.1), Some((95, 100))));
    }
}
