//! Listening addresses: connections taken, and what the kernel says of the queues before them. Asked socket by socket with
//! getsockopt(2), which tells the same as sock_diag(7) without a walk through all sockets of the machine.

use super::tally::Tally;
use crate::master::sys;
use crate::process_settings::{ListenAddress, SocketKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// An address, as long as some thread listens on it.
#[derive(Debug)]
pub struct Entry {
    /// The address.
    pub address: ListenAddress,
    /// Stream or datagram.
    pub kind: SocketKind,
    /// Connections taken.
    accepted: Tally<1>,
    sockets: Mutex<Vec<Weak<OwnedFd>>>,
    /// Drops of which was told ([`overflowed`]).
    told: AtomicU64,
}

/// What is known of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The address.
    pub address: String,
    /// Stream or datagram.
    pub kind: SocketKind,
    /// Connections taken, or sessions of datagrams begun.
    pub accepted: u64,
    /// Sockets that share the address.
    pub sockets: Vec<Queue>,
}

/// One socket's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Connections that wait to be taken; bytes that wait to be read, of a datagram socket.
    pub waiting: u32,
    /// The longest the queue may be (`backlog`, bounded by `net.core.somaxconn`); bytes of the receive buffer.
    pub limit: u32,
    /// Connections or datagrams that the kernel dropped here, where that can be told.
    pub drops: Option<u32>,
}

static ENTRIES: Mutex<Vec<Weak<Entry>>> = Mutex::new(Vec::new());

/// A thread listens on a socket.
pub fn open(address: &ListenAddress, kind: SocketKind, socket: &Arc<OwnedFd>) -> Arc<Entry> {
    let mut entries = ENTRIES.lock().unwrap_or_else(PoisonError::into_inner);
    entries.retain(|e| e.strong_count() > 0);
    let known = entries.iter().filter_map(Weak::upgrade).find(|e| e.address == *address && e.kind == kind);
    let entry = known.unwrap_or_else(|| {
        let (address, sockets, told) = (address.clone(), Mutex::default(), AtomicU64::new(0));
        let entry = Arc::new(Entry { address, kind, accepted: Tally::new(), sockets, told });
        entries.push(Arc::downgrade(&entry));
        entry
    });
    let mut sockets = entry.sockets.lock().unwrap_or_else(PoisonError::into_inner);
    sockets.retain(|s| s.strong_count() > 0);
    // A unix socket is one for all threads.
    if !sockets.iter().any(|s| std::ptr::eq(s.as_ptr(), Arc::as_ptr(socket))) {
        sockets.push(Arc::downgrade(socket));
    }
    drop(sockets);
    entry
}

impl Entry {
    /// A connection was taken.
    #[inline]
    pub fn accepted(&self) {
        self.accepted.count(0);
    }

    fn facts(&self) -> Facts {
        let sockets: Vec<_> = {
            let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
            sockets.iter().filter_map(Weak::upgrade).collect()
        };
        let queue = |socket: Arc<OwnedFd>| match (&self.address, self.kind) {
            // The kernel does not tell a unix socket's queue in this way.
            (ListenAddress::Unix(_), _) => None,
            (_, SocketKind::Stream) => sys::accept_queue(socket.as_fd()).ok(),
            (_, SocketKind::Datagram) => sys::datagram_queue(socket.as_fd()).ok(),
        };
        let sockets = sockets.into_iter().filter_map(queue);
        let sockets = sockets.map(|(waiting, limit, drops)| Queue { waiting, limit, drops }).collect();
        Facts { address: self.address.to_string(), kind: self.kind, accepted: self.accepted.sums()[0], sockets }
    }

    /// Whether its queue may have been full since this was asked last, while queues were so many times, and what would have been enough.
    fn overflowed(&self, times: u64) -> Option<String> {
        let is_inet = !matches!(self.address, ListenAddress::Unix(_));
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let sockets: Vec<_> = sockets.iter().filter_map(Weak::upgrade).collect();
        let (mut drops, mut limit) = (0, 0);
        for socket in sockets.iter().filter(|_| is_inet && self.kind == SocketKind::Stream) {
            drops += u64::from(sys::drops(socket.as_fd()).unwrap_or(0));
            limit = limit.max(sys::accept_queue(socket.as_fd()).map_or(0, |(_, limit, _)| limit));
        }
        // Drops are more than that: handshakes without a request, say. Sockets of threads that have ended are counted no longer.
        let new = drops.saturating_sub(self.told.swap(drops, Relaxed)).min(times);
        if new == 0 {
            return None;
        }
        let enough = (u64::from(limit) + new.div_ceil(sockets.len() as u64)).next_power_of_two();
        Some(format!(
            "the accept queue of {} was full: connections had to try again, up to {new} times. It takes {limit}, the smaller of \"backlog\" of \
             \"listen\" and net.core.somaxconn: {enough} for both would have been enough",
            self.address
        ))
    }
}

/// Overflows of the network namespace when [`overflowed`] was asked last.
static OVERFLOWS: AtomicU64 = AtomicU64::new(u64::MAX);

/// Accept queues that were full since this was asked last: a sentence for each address whose it may have been. The kernel counts by namespace how
/// often that was, and by socket what it has dropped for this and other reasons. What was before the first time is not told.
pub fn overflowed() -> Vec<String> {
    let Some((overflows, _)) = of_namespace() else { return Vec::new() };
    let times = overflows.saturating_sub(OVERFLOWS.swap(overflows, Relaxed));
    entries().iter().filter_map(|entry| entry.overflowed(times)).collect()
}

fn entries() -> Vec<Arc<Entry>> {
    let entries = ENTRIES.lock().unwrap_or_else(PoisonError::into_inner);
    entries.iter().filter_map(Weak::upgrade).collect()
}

/// All addresses, in order.
pub fn all() -> Vec<Facts> {
    let mut all: Vec<_> = entries().iter().map(|e| e.facts()).collect();
    all.sort_by(|a, b| a.address.cmp(&b.address));
    all
}

/// What the kernel counts for all listeners of the network namespace together: `ListenOverflows`, `ListenDrops`.
pub fn of_namespace() -> Option<(u64, u64)> {
    parse_netstat(&std::fs::read_to_string("/proc/net/netstat").ok()?)
}

/// A line of names, and a line of numbers below it.
fn parse_netstat(text: &str) -> Option<(u64, u64)> {
    let mut lines = text.lines().filter_map(|l| l.strip_prefix("TcpExt: "));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let of = |wanted: &str| {
        let mut both = names.split(' ').zip(numbers.split(' '));
        both.find(|(name, _)| *name == wanted).and_then(|(_, n)| n.parse().ok())
    };
    Some((of("ListenOverflows")?, of("ListenDrops")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_full_queue_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        rustix::net::listen(&listener, 2).expect("it listens");
        let fd: Arc<OwnedFd> = Arc::new(listener.into());
        let entry = open(&ListenAddress::Inet(address), SocketKind::Stream, &fd);
        entry.accepted();
        let _clients: Vec<_> = (0..2).map(|_| TcpStream::connect(address).expect("there is room")).collect();
        let facts = entry.facts();
        assert_eq!(facts.sockets, [Queue { waiting: 2, limit: 2, drops: Some(0) }]);
        assert_eq!((facts.accepted, facts.address), (1, address.to_string()));
        assert!(all().iter().any(|f| f.address == address.to_string()));
        drop((entry, fd));
        assert!(!all().iter().any(|f| f.address == address.to_string()));
    }

    #[test]
    fn the_kernel_s_table_is_read() {
        let text = "TcpExt: SyncookiesSent ListenOverflows ListenDrops\nTcpExt: 1 22 33\nIpExt: X\nIpExt: 0\n";
        assert_eq!(parse_netstat(text), Some((22, 33)));
        assert_eq!(parse_netstat("TcpExt: A\nTcpExt: 1\n"), None);
        assert!(of_namespace().is_some());
    }
}
