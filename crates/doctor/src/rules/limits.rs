//! Limits of processes, groups and the machine.

use super::{part, percent};
use crate::facts::Facts;
use crate::finding::{Finding, Sure, Weight};
use crate::text::{bytes, number};
use machine::cgroup::Cgroup;

/// So much of a limit in use is near it.
const NEAR: f64 = 0.8;
/// So much is at it.
const AT: f64 = 0.97;
/// A part of periods in which a group had to wait for CPU.
const THROTTLED: f64 = 0.1;
/// Fewer periods are no sample: a period is 100 ms unless somebody said otherwise, and one of two may be chance.
const PERIODS: u64 = 5;
/// Pressure, percent of the last ten seconds: some waited for a CPU; some for memory; all for a disk.
const CPU_PRESSURE: f64 = 60.0;
const MEMORY_PRESSURE: f64 = 10.0;
const DISK_PRESSURE: f64 = 30.0;
/// Memory that programs can still have, of all.
const MEMORY_LEFT: f64 = 0.04;

/// A server is near its limit of descriptors.
pub(super) fn descriptors(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for p in &facts.machine.processes {
        let (Some(used), Some(limit)) = (p.descriptors, p.descriptor_limit) else { continue };
        if part(used, limit) < NEAR {
            continue;
        }
        let is_over = part(used, limit) >= AT;
        let weight = if is_over { Weight::Critical } else { Weight::Warning };
        let what =
            format!("{} (process {}) has {} of its {} descriptors in use.", p.name, p.pid, number(used), number(limit));
        let wanted = limit.saturating_mul(4).max(65_536);
        found.push(
            Finding::new("descriptors", weight, what)
                .seen(format!("{used} of {limit}"), format!("/proc/{0}/fd, /proc/{0}/limits", p.pid))
                .because("Without a descriptor no connection is accepted, no upstream connected, no file opened (EMFILE, \"Too many open files\").")
                .cure(format!("now: prlimit --pid {} --nofile={wanted}", p.pid))
                .cure(format!("for good: worker_rlimit_nofile {wanted}; or LimitNOFILE={wanted} in the unit")),
        );
    }
    found
}

/// The machine is near its limit of open files.
pub(super) fn files_of_the_machine(facts: &Facts) -> Vec<Finding> {
    let numbers = facts.machine.numbers("fs.file-nr");
    let (Some(&used), Some(&max)) = (numbers.first(), numbers.get(2)) else { return Vec::new() };
    if part(used, max) < NEAR {
        return Vec::new();
    }
    let finding = Finding::new(
        "file-max",
        Weight::Critical,
        format!("The machine has {} of {} open files in use.", number(used), number(max)),
    )
    .seen(format!("{used} of {max}"), "fs.file-nr")
    .because("At the limit every open() and accept() of every process fails (ENFILE).")
    .cure(format!("sysctl -w fs.file-max={}", max.saturating_mul(4)));
    vec![finding]
}

/// Control groups hold a server back.
pub(super) fn control_groups(facts: &Facts) -> Vec<Finding> {
    let mut seen = std::collections::HashSet::new();
    let mut found = Vec::new();
    let own = facts.machine.cgroup.iter().map(|c| ("this shell".to_owned(), c));
    let servers = facts
        .machine
        .processes
        .iter()
        .filter_map(|p| Some((format!("{} (process {})", p.name, p.pid), p.cgroup.as_ref()?)));
    for (who, c) in servers.chain(own).filter(|(_, c)| seen.insert(limits_of(c))) {
        found.extend(throttled(&who, c));
        found.extend(group_memory(&who, c));
        found.extend(group_threads(&who, c));
    }
    found
}

/// By what a group is known: processes of one group are one finding.
fn limits_of(c: &Cgroup) -> String {
    format!("{} {:?} {:?} {:?}", c.path, c.cpus, c.memory.map(|m| m.1), c.threads.map(|t| t.1))
}

/// Only what happened between two looks counts: the kernel's counters begin when a group is made.
fn throttled(who: &str, c: &Cgroup) -> Option<Finding> {
    let (cpus, recent) = (c.cpus?, c.recent?);
    let share = part(recent.throttled, recent.periods);
    if recent.periods < PERIODS || share < THROTTLED {
        return None;
    }
    let finding = Finding::new("cpu-limit", Weight::Warning, format!("The group of {who} may use {cpus} CPUs and wanted more in {} of the time.", percent(share)))
        .seen(format!("{} of {} periods just now", number(recent.throttled), number(recent.periods)), format!("cpu.stat of {}", c.path))
        .seen(format!("{cpus} CPUs"), "cpu.max")
        .because("A group that has used its share stands still until the next period, up to 100 ms: that is the tail of its latencies.")
        .cure("a larger share: systemctl set-property UNIT CPUQuota=, --cpus in the container's start, resources.limits.cpu")
        .cure(format!("worker_processes {:.0}; no more workers than CPUs it may use", cpus.max(1.0)));
    Some(finding.sure(Sure::Likely))
}

fn group_memory(who: &str, c: &Cgroup) -> Option<Finding> {
    let (used, limit) = c.memory?;
    let killed = c.recent.map_or(0, |r| r.oom_kills);
    if part(used, limit) < AT && killed == 0 {
        return None;
    }
    // The page cache counts as used: full is not yet wrong.
    let weight = if killed > 0 { Weight::Warning } else { Weight::Note };
    let finding = Finding::new(
        "memory-limit",
        weight,
        format!("The group of {who} uses {} of the {} it may.", bytes(used), bytes(limit)),
    )
    .seen(format!("{used} of {limit}"), format!("memory.current, memory.max of {}", c.path))
    .seen(
        format!("{killed} processes were killed for want of memory just now, {} since the group was made", c.oom_kills),
        "memory.events, oom_kill",
    )
    .because(
        "At the limit caches are thrown away and read again; when nothing is left to throw away, a process is killed.",
    )
    .cure("a larger limit, or fewer workers, connections and buffers");
    Some(finding.sure(if killed > 0 { Sure::Certain } else { Sure::Possible }))
}

fn group_threads(who: &str, c: &Cgroup) -> Option<Finding> {
    let (used, limit) = c.threads.filter(|(used, limit)| part(*used, *limit) >= NEAR)?;
    let finding =
        Finding::new("threads-limit", Weight::Warning, format!("The group of {who} has {used} of {limit} threads."))
            .seen(format!("{used} of {limit}"), format!("pids.current, pids.max of {}", c.path))
            .because("At the limit no process and no thread can be started: fork fails with EAGAIN.")
            .cure("TasksMax= in the unit, --pids-limit in the container's start");
    Some(finding)
}

/// Tasks wait.
pub(super) fn pressure(facts: &Facts) -> Vec<Finding> {
    let Some(p) = facts.machine.pressure else { return Vec::new() };
    let mut found = Vec::new();
    let shown = |part: f64| format!("{part:.1} % of the last 10 s");
    if p.cpu_some >= CPU_PRESSURE {
        let (spent, all) = (
            facts.machine.now.cpu.0 - facts.machine.before.cpu.0.min(facts.machine.now.cpu.0),
            facts.machine.now.cpu.1.saturating_sub(facts.machine.before.cpu.1),
        );
        found.push(
            Finding::new("cpu", Weight::Warning, "Tasks wait for CPUs.")
                .seen(shown(p.cpu_some), "/proc/pressure/cpu")
                .seen(format!("CPUs are busy {} of the time", percent(part(spent, all))), "/proc/stat")
                .because("What waits for a CPU answers late: that is the tail of latencies.")
                .cure("top says who takes them; fewer workers than CPUs does not help, other programs elsewhere does")
                .sure(Sure::Likely),
        );
    }
    if p.memory_some >= MEMORY_PRESSURE {
        found.push(
            Finding::new("memory-pressure", Weight::Warning, "Tasks wait for memory.")
                .seen(
                    format!("{}; all of them {}", shown(p.memory_some), shown(p.memory_full)),
                    "/proc/pressure/memory",
                )
                .because("The kernel looks for pages to give, which costs those who ask for them time.")
                .cure("fewer or smaller processes, smaller buffers, more memory"),
        );
    }
    if p.io_full >= DISK_PRESSURE {
        found.push(
            Finding::new("disk", Weight::Warning, "Tasks wait for a disk.")
                .seen(format!("{}; some of them {}", shown(p.io_full), shown(p.io_some)), "/proc/pressure/io")
                .because("A log line or a cached file that waits for a disk holds its worker up, with all of its connections.")
                .cure("access_log ... buffer=64k flush=1s; proxy_temp_path and proxy_cache_path on a faster disk; aio threads;")
                .sure(Sure::Likely),
        );
    }
    found
}

/// The machine has no memory left.
pub(super) fn memory(facts: &Facts) -> Vec<Finding> {
    let (all, left) = facts.machine.memory;
    if all == 0 || part(left, all) >= MEMORY_LEFT {
        return Vec::new();
    }
    let finding = Finding::new(
        "memory",
        Weight::Critical,
        format!("Programs can have {} more of {} memory.", bytes(left), bytes(all)),
    )
    .seen(format!("{} of {}", bytes(left), bytes(all)), "/proc/meminfo, MemAvailable")
    .because("When it is gone, the kernel kills a process, mostly the largest one.")
    .cure("fewer or smaller processes, smaller buffers, more memory");
    vec![finding]
}
