//! Processes that serve: those that hold a listening socket, whatever their names are. What `/proc` does not show is not known: other
//! users' descriptors to who is not root.

use crate::cgroup::{Cgroup, Groups};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{read_dir, read_link, read_to_string};

/// Descriptors of a process that are looked at for sockets that listen. A server opens those first, so they have low numbers, and its master has nothing
/// else; a process with a million connections is not read to its end.
const LOOKED_AT: usize = 4_096;
/// The same of a process that has more: each look takes 7 us of the kernel's time, and a machine with a million connections has many such processes.
const LOOKED_AT_OF_MORE: usize = 512;
/// Processes that are looked at, and servers that are kept.
const MOST_PROCESSES: usize = 65_536;
const MOST_SERVERS: usize = 1_024;

/// A process that listens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its parent's.
    pub parent: u32,
    /// Its program's name, at most 15 bytes.
    pub name: String,
    /// The kernel's letter: R runs, S sleeps, T is stopped, D waits for a disk, Z is dead.
    pub state: char,
    /// Threads that are stopped.
    #[serde(default)]
    pub stopped_threads: u32,
    /// Threads.
    pub threads: u64,
    /// CPU time since it began, clock ticks.
    pub ticks: u64,
    /// Resident memory, bytes.
    pub resident: u64,
    /// Descriptors that it has, where that can be seen.
    pub descriptors: Option<u64>,
    /// How many it may have.
    pub descriptor_limit: Option<u64>,
    /// The largest core file, bytes; 0: none is written.
    pub core_limit: Option<u64>,
    /// Inodes of sockets that it holds and that listen.
    pub listens: Vec<u64>,
    /// Its control group's limits.
    pub cgroup: Option<Cgroup>,
    /// The unit of systemd that it belongs to.
    #[serde(default)]
    pub unit: Option<String>,
}

/// Processes that hold one of these sockets, by their inodes. The second: processes whose descriptors may not be seen. `groups`: what their
/// groups had counted before.
pub fn holding(inodes: &BTreeSet<u64>, groups: &Groups) -> (Vec<Process>, usize) {
    let (mut found, mut hidden) = (Vec::new(), 0);
    for pid in numbers("/proc").take(MOST_PROCESSES) {
        match sockets(pid) {
            Some(sockets) => {
                let listens: Vec<u64> = sockets.into_iter().filter(|s| inodes.contains(s)).collect();
                if !listens.is_empty() && found.len() < MOST_SERVERS {
                    found.extend(Process::read(pid, listens, groups));
                }
            }
            None => hidden += 1,
        }
    }
    (found, hidden)
}

/// One process, with those of these sockets that it holds.
pub fn with_sockets(pid: u32, inodes: &BTreeSet<u64>, groups: &Groups) -> Option<Process> {
    let listens = sockets(pid).unwrap_or_default().into_iter().filter(|s| inodes.contains(s)).collect();
    Process::read(pid, listens, groups)
}

/// Who holds a socket: names and numbers of processes.
pub fn holders(inode: u64) -> Vec<(u32, String)> {
    let holds = |pid: &u32| sockets(*pid).is_some_and(|s| s.contains(&inode));
    let named = |pid| Some((pid, read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned()));
    numbers("/proc").take(MOST_PROCESSES).filter(holds).filter_map(named).collect()
}

impl Process {
    /// Reads one; nothing if it has ended meanwhile.
    pub fn read(pid: u32, listens: Vec<u64>, groups: &Groups) -> Option<Process> {
        let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut process = Process { pid, listens, ..Process::parse_stat(&stat)? };
        let limits = read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
        process.descriptor_limit = limit(&limits, "Max open files");
        process.core_limit = limit(&limits, "Max core file size");
        process.descriptors = descriptors(pid);
        process.cgroup = Cgroup::of(pid, groups);
        process.unit = read_to_string(format!("/proc/{pid}/cgroup")).ok().and_then(|text| unit(&text));
        let states = numbers(&format!("/proc/{pid}/task")).filter_map(|tid| {
            let stat = read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
            Process::parse_stat(&stat).map(|p| p.state)
        });
        process.stopped_threads = states.filter(|s| *s == 'T' || *s == 't').count() as u32;
        Some(process)
    }

    /// `/proc/PID/stat`. The name may have any bytes, brackets too: what follows the last one counts.
    fn parse_stat(stat: &str) -> Option<Process> {
        let (before, rest) = stat.rsplit_once(')')?;
        let name = before.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
        Some(Process {
            name,
            state: fields.first()?.chars().next()?,
            parent: number(1) as u32,
            ticks: number(11) + number(12),
            threads: number(17),
            resident: number(21) * rustix::param::page_size() as u64,
            ..Process::default()
        })
    }
}

/// How many descriptors a process has. Since Linux 6.2 its folder's size says so, without reading it.
fn descriptors(pid: u32) -> Option<u64> {
    let path = format!("/proc/{pid}/fd");
    let size = std::fs::metadata(&path).ok()?.len();
    // Whoever may not read it is told nothing by its size either.
    if size > 0 { read_dir(&path).ok().map(|_| size) } else { read_dir(&path).ok().map(|all| all.count() as u64) }
}

/// The innermost service in `/proc/PID/cgroup`: `0::/system.slice/nginx.service`.
fn unit(text: &str) -> Option<String> {
    let path = |line: &str| line.splitn(3, ':').nth(2).map(str::to_owned);
    let service = |path: String| path.rsplit('/').find(|part| part.ends_with(".service")).map(str::to_owned);
    text.lines().filter_map(path).find_map(service)
}

/// A line of `/proc/PID/limits`: the soft limit; `unlimited` is the largest number.
fn limit(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|l| l.strip_prefix(name))?;
    match rest.split_ascii_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// Inodes of sockets among the first descriptors of a process; nothing if it may not be looked at.
fn sockets(pid: u32) -> Option<Vec<u64>> {
    let inode = |path: std::path::PathBuf| {
        let link = read_link(path).ok()?;
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    let folder = format!("/proc/{pid}/fd");
    let files = read_dir(&folder).ok()?;
    // Since Linux 6.2 the folder's size is their number.
    let count = std::fs::metadata(&folder).map_or(0, |m| m.len());
    let most = if count > LOOKED_AT as u64 { LOOKED_AT_OF_MORE } else { LOOKED_AT };
    Some(files.take(most).flatten().filter_map(|f| inode(f.path())).collect())
}

/// The names of all processes: pids to names, for gaps and parents.
pub fn all() -> BTreeMap<u32, String> {
    let name = |pid| Some((pid, read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned()));
    numbers("/proc").take(MOST_PROCESSES).filter_map(name).collect()
}

/// Names in a folder that are numbers.
fn numbers(folder: &str) -> impl Iterator<Item = u32> + use<> {
    read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn lines_of_the_kernel() {
        let fields: Vec<String> = (4..=52).map(|n| n.to_string()).collect();
        let p = Process::parse_stat(&format!("7 (php-fpm: pool) w) S 1 {}", fields[1..].join(" "))).unwrap();
        assert_eq!((p.name.as_str(), p.state, p.parent, p.ticks, p.threads), ("php-fpm: pool) w", 'S', 1, 14 + 15, 20));
        let text = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 524288  files\nMax core file size  unlimited unlimited bytes\n";
        assert_eq!(limit(text, "Max open files"), Some(1024));
        let groups = "12:cpu:/\n1:name=systemd:/system.slice/nginx.service\n0::/system.slice/nginx.service/sub\n";
        assert_eq!((unit(groups).as_deref(), unit("0::/user.slice\n")), (Some("nginx.service"), None));
        assert_eq!((limit(text, "Max core file size"), limit(text, "None")), (Some(u64::MAX), None));
    }

    #[test]
    fn who_listens_is_found_by_the_socket() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let sockets = crate::sockets::Sockets::read().unwrap();
        let inode = sockets.listeners.iter().find(|l| l.port == port).unwrap().inode;
        let (found, _) = holding(&BTreeSet::from([inode]), &Groups::default());
        let own = found.iter().find(|p| p.pid == std::process::id()).unwrap();
        assert!(own.listens == [inode] && own.descriptor_limit.unwrap() >= own.descriptors.unwrap(), "{own:?}");
        assert!(own.resident > 100_000 && own.threads >= 2 && own.cgroup.is_some() && own.stopped_threads == 0);
        assert!(holders(inode).iter().any(|(pid, _)| *pid == std::process::id()));
    }
}
