//! The worker process: starts its threads, hands them snapshots and sockets, ends them. Its own thread is the control
//! thread: everything that may block or allocate freely happens here.

use super::thread::{self, Ear, Handle, Order};
use crate::snapshot::Snapshot;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The threads of this process.
pub struct Workers {
    threads: Vec<Handle>,
}

/// The sockets of one address: one for each thread, or one for all of a unix socket.
pub struct Sockets {
    /// Index in the snapshot's `listens`.
    pub listen: usize,
    /// The descriptors.
    pub fds: Vec<OwnedFd>,
}

impl Workers {
    /// Starts as many threads as the snapshot asks for.
    pub fn start(snapshot: &Arc<Snapshot>, sockets: Vec<Sockets>) -> std::io::Result<Workers> {
        let count = snapshot.process.threads.max(1);
        let mut shares = share(count, sockets)?;
        let mut threads = Vec::with_capacity(count);
        for (number, ears) in shares.drain(..).enumerate() {
            threads.push(thread::start(number, snapshot.clone(), ears)?);
        }
        Ok(Workers { threads })
    }

    /// Hands a new snapshot and new sockets to the threads. The number of threads stays until the process is replaced.
    pub fn configure(&self, snapshot: &Arc<Snapshot>, sockets: Vec<Sockets>) -> std::io::Result<()> {
        for (t, ears) in self.threads.iter().zip(share(self.threads.len(), sockets)?) {
            let _ = t.orders.send(Order::Configure { snapshot: snapshot.clone(), ears });
        }
        Ok(())
    }

    /// Makes the threads write what they hold back for access logs. To be called before log files are reopened.
    pub fn flush_logs(&self) {
        for t in &self.threads {
            let _ = t.orders.send(Order::FlushLogs);
        }
    }

    /// Ends the threads once their connections are done, or after `at_most`.
    pub fn drain(self, at_most: Option<Duration>) {
        for t in &self.threads {
            let _ = t.orders.send(Order::Drain);
        }
        let end = at_most.map(|d| Instant::now() + d);
        for t in self.threads {
            while !t.join.is_finished() {
                if end.is_some_and(|e| Instant::now() >= e) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = t.join.join();
        }
    }

    /// Ends the threads now.
    pub fn stop(self) {
        for t in &self.threads {
            let _ = t.orders.send(Order::Stop);
        }
        for t in self.threads {
            let _ = t.join.join();
        }
    }
}

/// Deals sockets out to threads: the first of an address to the first thread, and so on; what one thread has twice and
/// another not at all is shared by a second descriptor.
fn share(threads: usize, sockets: Vec<Sockets>) -> std::io::Result<Vec<Vec<Ear>>> {
    let mut shares: Vec<Vec<Ear>> = (0..threads).map(|_| Vec::new()).collect();
    for s in sockets {
        let count = s.fds.len();
        if count == 1 {
            for share in shares.iter_mut().skip(1) {
                share.push((s.listen, s.fds[0].try_clone()?));
            }
        }
        for (i, fd) in s.fds.into_iter().enumerate() {
            shares[i % threads].push((s.listen, fd));
        }
    }
    Ok(shares)
}
