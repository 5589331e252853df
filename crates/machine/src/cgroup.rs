//! Limits that are not the process's own: its control groups' (version 1 and 2), and the pressure that the kernel measures.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{read_dir, read_to_string};

/// Where control groups are.
const ROOT: &str = "/sys/fs/cgroup";
/// Groups within groups that are looked at.
const MOST_LEVELS: usize = 32;
/// Groups whose counters are kept between two looks, and processes that are asked for theirs: a host of containers has thousands.
const MOST_GROUPS: usize = 1_024;
const MOST_PROCESSES: usize = 65_536;

/// The narrowest limits over a process's group and those around it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cgroup {
    /// Where it is.
    pub path: String,
    /// CPUs' worth of time that it may use: 0.1 is a tenth of one.
    pub cpus: Option<f64>,
    /// Periods there were since it was made.
    pub periods: u64,
    /// Those in which it had to wait for the next one's share.
    pub throttled: u64,
    /// Memory used and allowed, bytes.
    pub memory: Option<(u64, u64)>,
    /// Processes that were killed for want of memory since it was made.
    pub oom_kills: u64,
    /// The same three between two looks, of the group around it that was held back most; none: there was one look only.
    #[serde(default)]
    pub recent: Option<Counted>,
    /// Threads there are, and may be.
    pub threads: Option<(u64, u64)>,
}

/// What a group's counters say, or by how much they grew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Periods.
    pub periods: u64,
    /// Those in which it had to wait.
    pub throttled: u64,
    /// Processes that were killed for want of memory.
    pub oom_kills: u64,
}

impl Counted {
    fn since(self, before: Counted) -> Counted {
        Counted {
            periods: crate::links::added(before.periods, self.periods),
            throttled: crate::links::added(before.throttled, self.throttled),
            oom_kills: crate::links::added(before.oom_kills, self.oom_kills),
        }
    }

    fn part(self) -> f64 {
        if self.periods == 0 { 0.0 } else { self.throttled as f64 / self.periods as f64 }
    }
}

/// The counters of groups at one time, by what `/proc/PID/cgroup` says: one for each folder that is looked at, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups(BTreeMap<String, Vec<Counted>>);

impl Groups {
    /// Those of a process.
    pub fn of(pid: u32) -> Groups {
        let mut groups = Groups::default();
        groups.add(pid);
        groups
    }

    /// Those of all processes.
    pub fn all() -> Groups {
        let mut groups = Groups::default();
        let entries = read_dir("/proc").into_iter().flatten().flatten().take(MOST_PROCESSES);
        for pid in entries.filter_map(|e| e.file_name().to_str()?.parse().ok()) {
            groups.add(pid);
        }
        groups
    }

    fn add(&mut self, pid: u32) {
        let Ok(text) = read_to_string(format!("/proc/{pid}/cgroup")) else { return };
        if self.0.len() < MOST_GROUPS && !self.0.contains_key(&text) {
            let (_, counts) = Cgroup::look(&text);
            self.0.insert(text, counts);
        }
    }
}

impl Cgroup {
    /// That of a process, with what its counters grew by; `None` where there is none.
    pub fn of(pid: u32, before: &Groups) -> Option<Cgroup> {
        let text = read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let (mut cgroup, counts) = Cgroup::look(&text);
        if let Some(before) = before.0.get(&text).filter(|b| b.len() == counts.len()) {
            let grew: Vec<Counted> = counts.iter().zip(before).map(|(now, before)| now.since(*before)).collect();
            let held = grew.iter().copied().max_by(|a, b| a.part().total_cmp(&b.part())).unwrap_or_default();
            let oom_kills = grew.iter().map(|g| g.oom_kills).max().unwrap_or(0);
            cgroup.recent = Some(Counted { oom_kills, ..held });
        }
        Some(cgroup)
    }

    /// The limits, and the counters of each folder.
    fn look(text: &str) -> (Cgroup, Vec<Counted>) {
        let (mut cgroup, mut counts) = (Cgroup::default(), Vec::new());
        for line in text.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            // With both versions beside each other the second one's path is often no more than its root.
            let limits = ["", "cpu", "memory", "pids"];
            if cgroup.path.len() <= 1 && controllers.split(',').any(|c| limits.contains(&c)) {
                path.clone_into(&mut cgroup.path);
            }
            for controller in controllers.split(',') {
                walk(controller, path, |folder| {
                    let one = if controller.is_empty() {
                        cgroup.version_2(folder)
                    } else {
                        cgroup.version_1(controller, folder)
                    };
                    cgroup.periods = cgroup.periods.max(one.periods);
                    cgroup.throttled = cgroup.throttled.max(one.throttled);
                    cgroup.oom_kills = cgroup.oom_kills.max(one.oom_kills);
                    counts.push(one);
                });
            }
        }
        (cgroup, counts)
    }

    fn version_2(&mut self, folder: &str) -> Counted {
        let read = |name: &str| read_to_string(format!("{folder}/{name}")).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        if let Some((quota, period)) = read("cpu.max").as_deref().and_then(|t| t.trim().split_once(' ')) {
            self.limit_cpus(quota.parse().ok(), period.parse().ok());
        }
        self.limit_memory(number("memory.current"), number("memory.max"));
        self.limit_threads(number("pids.current"), number("pids.max"));
        let oom_kills = value(&read("memory.events").unwrap_or_default(), "oom_kill");
        Counted { oom_kills, ..throttling(&read("cpu.stat").unwrap_or_default()) }
    }

    fn version_1(&mut self, controller: &str, folder: &str) -> Counted {
        let read = |name: &str| read_to_string(format!("{folder}/{name}")).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        match controller {
            "cpu" => {
                self.limit_cpus(number("cpu.cfs_quota_us"), number("cpu.cfs_period_us"));
                return throttling(&read("cpu.stat").unwrap_or_default());
            }
            "memory" => {
                // No limit is written as the largest number of whole pages.
                let limit = number("memory.limit_in_bytes").filter(|l| *l < 1 << 62);
                self.limit_memory(number("memory.usage_in_bytes"), limit);
                let events = read("memory.oom_control").unwrap_or_default();
                return Counted { oom_kills: value(&events, "oom_kill"), ..Counted::default() };
            }
            "pids" => self.limit_threads(number("pids.current"), number("pids.max")),
            _ => {}
        }
        Counted::default()
    }

    fn limit_cpus(&mut self, quota: Option<u64>, period: Option<u64>) {
        let (Some(quota), Some(period)) = (quota, period.filter(|p| *p > 0)) else { return };
        let cpus = quota as f64 / period as f64;
        self.cpus = Some(self.cpus.map_or(cpus, |c| c.min(cpus)));
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

/// `cpu.stat`
fn throttling(stat: &str) -> Counted {
    Counted { periods: value(stat, "nr_periods"), throttled: value(stat, "nr_throttled"), oom_kills: 0 }
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

    /// Counters begin when a group is made: an hour in which it was held back says nothing of now.
    #[test]
    fn counters_are_differences() {
        let stat = throttling("usage_usec 5\nnr_periods 90\nnr_throttled 80\n");
        assert_eq!(stat, Counted { periods: 90, throttled: 80, oom_kills: 0 });
        let later = Counted { periods: 100, throttled: 80, oom_kills: 3 };
        assert_eq!(later.since(stat), Counted { periods: 10, throttled: 0, oom_kills: 3 });
        let pid = std::process::id();
        let (first, none) = (Groups::of(pid), Groups::default());
        let own = Cgroup::of(pid, &first);
        assert!(own.is_none_or(|c| c.recent.is_some_and(|r| r.periods <= c.periods + 1_000)));
        assert!(Cgroup::of(pid, &none).is_none_or(|c| c.recent.is_none()), "one look makes no difference");
    }
}
