//! A server that runs on this machine is looked at itself: the queue in front of it, and the CPU time of the processes that take from there.
//! From: `redline`. Of one elsewhere only its answers are seen.

use machine::cgroup::{Cgroup, Groups};
use machine::processes;
use machine::queue::{Watch, Watched};
use machine::sockets::Sockets;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Clock ticks a second (`USER_HZ`, which is the same on every architecture that Linux serves on).
const TICKS: f64 = 100.0;
/// Over less time ticks are too coarse.
const LEAST: Duration = Duration::from_millis(500);
/// Processes of one server.
const MOST: usize = 256;

/// The server, where it is here.
pub(super) struct Own {
    address: SocketAddr,
    pids: Vec<u32>,
    /// CPUs that it can use: as many as it has threads, as its group may, as there are.
    cpus: f64,
}

/// A look at it that has begun.
pub(super) struct Looking {
    watch: Watch,
    ticks: u64,
    at: Instant,
}

impl Own {
    /// Finds it by its address.
    pub(super) fn find(server: &str) -> Option<Own> {
        let address: SocketAddr = server.parse().ok()?;
        if !machine::own::is_local(address.ip()) {
            return None;
        }
        let listeners = Sockets::read().ok()?.listeners;
        let inodes = listeners.iter().filter(|l| l.port == address.port()).map(|l| l.inode).collect();
        let (found, _) = processes::holding(&inodes, &Groups::default());
        let pids: Vec<u32> = found.iter().take(MOST).map(|p| p.pid).collect();
        let threads: u64 = found.iter().map(|p| p.threads.max(1)).sum();
        let group = pids.first().and_then(|pid| Cgroup::of(*pid, &Groups::default())?.cpus).unwrap_or(f64::MAX);
        let machine = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
        Some(Own { address, pids, cpus: (threads as f64).min(group).min(machine) })
    }

    pub(super) fn begin(&self) -> Looking {
        Looking { watch: Watch::start(Some(self.address)), ticks: self.ticks(), at: Instant::now() }
    }

    /// What became of its queue, and the part of its CPUs that it used.
    pub(super) fn end(&self, looking: Looking) -> (Option<Watched>, Option<f64>) {
        let took = looking.at.elapsed();
        let ticks = self.ticks().saturating_sub(looking.ticks);
        let cpu = (!self.pids.is_empty() && took >= LEAST && self.cpus > 0.0)
            .then(|| ticks as f64 / TICKS / took.as_secs_f64() / self.cpus);
        (looking.watch.finish(), cpu)
    }

    fn ticks(&self) -> u64 {
        let read = |pid: &u32| processes::Process::read(*pid, Vec::new(), &Groups::default()).map(|p| p.ticks);
        self.pids.iter().filter_map(read).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_server_of_this_machine_is_found_and_measured() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = Own::find(&listener.local_addr().unwrap().to_string()).unwrap();
        assert!(own.pids.contains(&std::process::id()) && own.cpus > 0.0);
        let looking = own.begin();
        let began = Instant::now();
        let mut n = 0_u64;
        while began.elapsed() < LEAST + Duration::from_millis(100) {
            n = std::hint::black_box(n + 1);
        }
        let (queue, cpu) = own.end(looking);
        assert_eq!(queue.map(|q| q.dropped), Some(0));
        assert!(cpu.is_some_and(|c| c > 0.0), "{cpu:?}");
        assert!(Own::find("192.0.2.1:80").is_none() && Own::find("name:80").is_none());
    }
}
