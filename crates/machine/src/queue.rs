//! The accept queue of one address on this machine, watched while something connects to it: what waited, what was dropped for want of room.
//! From: `sock_diag`. To: the stress tool's search for the highest rate, and its preflight.

use crate::netlink::{Netlink, attributes, bytes_at};
use crate::sockets::{Told, tcp_listeners};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// `INET_DIAG_SKMEMINFO`, and in it `SK_MEMINFO_DROPS`.
const MEMINFO: u16 = 7;
const DROPS: usize = 8;
/// Between two looks: a queue that is full for less does not turn users away for long, and drops are counted by the kernel anyway.
const PAUSE: Duration = Duration::from_millis(100);

/// The sockets that listen at an address, together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptQueue {
    /// Connections that wait, in the fullest of its sockets.
    pub waiting: u32,
    /// How many may wait there.
    pub backlog: u32,
    /// Connections that found a queue full since the sockets listen.
    pub drops: u64,
    /// Sockets.
    pub sockets: u32,
}

impl AcceptQueue {
    /// Looks at it; none where nobody listens, or not in this network namespace.
    ///
    /// # Errors
    /// If the kernel has no `sock_diag`.
    pub fn of(address: SocketAddr) -> io::Result<Option<AcceptQueue>> {
        let mut found = AcceptQueue::default();
        tcp_listeners(&mut Netlink::sock_diag()?, 1 << (MEMINFO - 1), |told, rest| found.add(address, told, rest))?;
        Ok((found.sockets > 0).then_some(found))
    }

    fn add(&mut self, address: SocketAddr, told: &Told, rest: &[u8]) {
        if told.from_port != address.port() || !(told.from.is_unspecified() || told.from == address.ip().to_canonical())
        {
            return;
        }
        let drops =
            attributes(rest).find(|a| a.0 == MEMINFO).map_or(0, |a| u32::from_ne_bytes(bytes_at(a.1, DROPS * 4)));
        let fuller = |a: (u32, u32), b: (u32, u32)| {
            let (x, y) = (u64::from(a.0) * u64::from(b.1.max(1)), u64::from(b.0) * u64::from(a.1.max(1)));
            if x > y || self.sockets == 0 { a } else { b }
        };
        (self.waiting, self.backlog) = fuller((told.queue, told.room), (self.waiting, self.backlog));
        self.drops += u64::from(drops);
        self.sockets += 1;
    }
}

/// What became of it while it was watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// The most connections that waited, and how many could.
    pub most: u32,
    /// See `most`.
    pub backlog: u32,
    /// Connections that found it full.
    pub dropped: u64,
}

/// A watching thread.
pub struct Watch {
    running: Option<(Sender<()>, JoinHandle<Watched>)>,
}

impl Watch {
    /// Begins; where nobody listens in this namespace it does nothing.
    pub fn start(address: Option<SocketAddr>) -> Watch {
        let Some((address, first)) = address.and_then(|a| Some((a, AcceptQueue::of(a).ok()??))) else {
            return Watch { running: None };
        };
        let (stop, stopped) = channel::<()>();
        let spawned = std::thread::Builder::new().name("queue".to_owned()).spawn(move || {
            let mut watched = Watched { backlog: first.backlog, ..Watched::default() };
            loop {
                let goes_on = stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout);
                if let Ok(Some(now)) = AcceptQueue::of(address) {
                    if now.waiting >= watched.most {
                        (watched.most, watched.backlog) = (now.waiting, now.backlog);
                    }
                    // Sockets that began to listen meanwhile begin at nothing.
                    watched.dropped = watched.dropped.max(now.drops.saturating_sub(first.drops));
                }
                if !goes_on {
                    return watched;
                }
            }
        });
        Watch { running: spawned.ok().map(|thread| (stop, thread)) }
    }

    /// What it saw.
    pub fn finish(self) -> Option<Watched> {
        let (stop, thread) = self.running?;
        drop(stop);
        thread.join().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Socket, Type};
    use std::net::TcpListener;

    #[test]
    fn who_finds_the_queue_full_is_counted() {
        let server = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        server.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        server.listen(2).unwrap();
        let address = server.local_addr().unwrap().as_socket().unwrap();
        let watch = Watch::start(Some(address));
        let clients: Vec<_> = (0..8)
            .map(|_| {
                let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                client.set_nonblocking(true).unwrap();
                let _ = client.connect(&address.into());
                client
            })
            .collect();
        let began = std::time::Instant::now();
        while AcceptQueue::of(address).unwrap().unwrap().drops == 0 && began.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        let watched = watch.finish().unwrap();
        assert_eq!((watched.most, watched.backlog), (3, 2));
        assert!(watched.dropped > 0, "{watched:?}");
        drop(clients);
    }

    #[test]
    fn others_are_not_meant() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let found = AcceptQueue::of(address).unwrap().unwrap();
        assert_eq!((found.waiting, found.drops, found.sockets), (0, 0, 1));
        assert_eq!(AcceptQueue::of(SocketAddr::from(([127, 0, 0, 9], address.port()))).unwrap(), None);
        assert!(Watch::start(None).finish().is_none());
    }
}
