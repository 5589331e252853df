//! The program behind a target on this machine, and the CPUs that it may use. What `/proc` does not show is not known: programs of
//! other users to who is not root, those in other network namespaces.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::fs::{read_dir, read_link, read_to_string};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// States of sockets in `/proc/net`: a TCP socket that listens, a UDP socket without a peer.
const LISTENS: &str = "0A";
const UNCONNECTED: &str = "07";
/// What `/proc/net/unix` has for a socket that listens.
const ACCEPTS: &str = "00010000";
/// Processes that have the target's socket are looked at up to so many.
const MOST: usize = 1024;

/// Who answers at the target's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The program's name.
    pub name: String,
    /// Its process, the first of several.
    pub pid: u32,
    /// The CPUs both it and this process may run on, as `taskset -c` writes them. Empty: they share none.
    pub shared: String,
}

/// Where somebody answers.
#[derive(Clone, Copy, Debug)]
pub enum Endpoint<'a> {
    /// A TCP socket that listens.
    Tcp(SocketAddr),
    /// A UDP socket without a peer.
    Udp(SocketAddr),
    /// A socket in the file system.
    Unix(&'a Path),
}

/// Looks for it.
pub fn of(endpoint: Endpoint) -> Option<Neighbour> {
    let inodes: Vec<u64> = match endpoint {
        Endpoint::Tcp(target) | Endpoint::Udp(target) => {
            let (tables, state) = match endpoint {
                Endpoint::Udp(_) => (["udp", "udp6"], UNCONNECTED),
                _ => (["tcp", "tcp6"], LISTENS),
            };
            let tables = tables.map(|t| read_to_string(format!("/proc/net/{t}")).unwrap_or_default());
            let at = |line: &str| listener(line, state, target.ip(), target.port());
            tables.iter().flat_map(|t| t.lines()).filter_map(at).collect()
        }
        Endpoint::Unix(path) => {
            let path = path.to_str()?;
            read_to_string("/proc/net/unix").ok()?.lines().filter_map(|line| unix_listener(line, path)).collect()
        }
    };
    let holders = holders(&inodes);
    // A master only hands the socket on: those it started answer.
    let parents: Vec<u32> = holders.iter().filter_map(|&pid| parent(pid)).collect();
    let workers: Vec<u32> = holders.into_iter().filter(|pid| !parents.contains(pid)).collect();
    let own = sched_getaffinity(None).ok()?;
    let all: Vec<CpuSet> = workers.iter().filter_map(|&pid| cpus(pid)).collect();
    let &pid = workers.first().filter(|_| !all.is_empty())?;
    let name = read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned();
    Some(Neighbour { name, pid, shared: list(|n| own.is_set(n) && all.iter().any(|set| set.is_set(n))) })
}

/// The inode of the socket of a line of `/proc/net/tcp` and the like, if it has the state and takes what is sent to the address.
fn listener(line: &str, state: &str, address: IpAddr, port: u16) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (own, own_port) = fields.next()?.split_once(':')?;
    let is_state = fields.nth(1)? == state;
    let own = match hex_words(own)?[..] {
        [word] => IpAddr::V4(Ipv4Addr::from(word.to_ne_bytes())),
        [a, b, c, d] => {
            let mut bytes = [0; 16];
            [a, b, c, d]
                .iter()
                .zip(bytes.chunks_exact_mut(4))
                .for_each(|(word, to)| to.copy_from_slice(&word.to_ne_bytes()));
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    let takes = own.is_unspecified() || own == address.to_canonical();
    (is_state && takes && u16::from_str_radix(own_port, 16).ok()? == port).then(|| fields.nth(5)?.parse().ok())?
}

/// The kernel prints an address as words of its own byte order.
fn hex_words(text: &str) -> Option<Vec<u32>> {
    text.as_bytes().chunks(8).map(|word| u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()).collect()
}

fn unix_listener(line: &str, path: &str) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    let accepts = fields.nth(3)? == ACCEPTS;
    let inode = fields.nth(2)?.parse().ok()?;
    (accepts && fields.next()? == path).then_some(inode)
}

/// Processes with a descriptor of one of the sockets.
fn holders(inodes: &[u64]) -> Vec<u32> {
    let wanted: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let is_holder = |pid: &u32| {
        let files = read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|f| read_link(f.path()).ok()).any(|link| wanted.iter().any(|w| link.as_os_str() == w.as_str()))
    };
    let own = std::process::id();
    numbers("/proc").filter(|pid| *pid != own && !wanted.is_empty()).filter(is_holder).take(MOST).collect()
}

fn parent(pid: u32) -> Option<u32> {
    read_to_string(format!("/proc/{pid}/stat")).ok()?.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The CPUs that a process does its work on. If some of its threads are bound to fewer CPUs than others, these carry the load and the
/// others help.
fn cpus(pid: u32) -> Option<CpuSet> {
    let thread = |tid: u32| sched_getaffinity(Pid::from_raw(tid.try_into().ok()?)).ok();
    let sets: Vec<CpuSet> = numbers(&format!("/proc/{pid}/task")).filter_map(thread).collect();
    let widest = sets.iter().map(CpuSet::count).max()?;
    let is_bound = |set: &&CpuSet| set.count() < widest;
    let any_bound = sets.iter().any(|set| is_bound(&set));
    let mut all = CpuSet::new();
    for set in sets.iter().filter(|set| !any_bound || is_bound(set)) {
        (0..CpuSet::MAX_CPU).filter(|&n| set.is_set(n)).for_each(|n| all.set(n));
    }
    Some(all)
}

/// Names in a folder that are numbers.
fn numbers(folder: &str) -> impl Iterator<Item = u32> {
    read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// `0-3,8`.
fn list(is_in: impl Fn(usize) -> bool) -> String {
    let mut parts = Vec::new();
    let mut first = None;
    for n in 0..=CpuSet::MAX_CPU {
        let here = n < CpuSet::MAX_CPU && is_in(n);
        match first {
            None if here => first = Some(n),
            Some(from) if !here => {
                first = None;
                parts.push(if from + 1 == n { from.to_string() } else { format!("{from}-{}", n - 1) });
            }
            _ => {}
        }
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel() {
        let (here, there) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([10, 0, 0, 7]));
        let rest = "00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0";
        let on_one = format!("   0: 0100007F:1F90 00000000:0000 0A {rest}");
        assert_eq!(listener(&on_one, LISTENS, here, 8080), Some(4711));
        assert_eq!(listener(&on_one, LISTENS, there, 8080), None);
        assert_eq!(listener(&on_one, LISTENS, here, 8081), None);
        assert_eq!(listener(&on_one, UNCONNECTED, here, 8080), None);
        let zero = "00000000000000000000000000000000";
        let on_all = format!("   0: {zero}:1F90 {zero}:0000 0A {rest}");
        assert_eq!(listener(&on_all, LISTENS, there, 8080), Some(4711));
        assert_eq!(listener("  sl  local_address rem_address   st", LISTENS, here, 8080), None);
        let unix = "0000000000000000: 00000002 00000000 00010000 0001 01 815 /run/a.sock";
        assert_eq!(unix_listener(unix, "/run/a.sock"), Some(815));
        assert_eq!(unix_listener(unix, "/run/b.sock"), None);
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(list(|n| [0, 1, 2, 8].contains(&n)), "0-2,8");
        assert_eq!(list(|n| n == CpuSet::MAX_CPU - 1), (CpuSet::MAX_CPU - 1).to_string());
        assert_eq!(list(|_| false), "");
    }
}
