//! What the control thread, or another worker thread, asks of a worker thread.

use crate::snapshot::Snapshot;
use crate::worker::handover::Parcel;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::sync::mpsc;

/// One listening socket for one thread.
pub struct ListenSocket {
    /// The index of its address in the snapshot's `listens`.
    pub listen: usize,
    /// Known by this through reloads.
    pub id: u64,
    /// Which of its address's sockets it is.
    pub place: usize,
    /// The socket; shared with the master and, for unix sockets, with other threads.
    pub fd: Arc<OwnedFd>,
}

/// What the control thread asks of a worker thread.
pub enum Order {
    /// Serve with a new snapshot on these sockets; others take what waits and are closed.
    Configure {
        /// The new snapshot.
        snapshot: Arc<Snapshot>,
        /// All sockets.
        sockets: Vec<ListenSocket>,
        /// Who is told when it is so.
        done: std::sync::mpsc::Sender<()>,
    },
    /// Serve a share of new connections (a part of 2^64) with this snapshot, on the sockets there are.
    Try {
        /// The canary.
        snapshot: Arc<Snapshot>,
        /// Its share.
        share: u64,
    },
    /// Serve all with the old snapshot again, and say that it is done.
    EndTrial(std::sync::mpsc::Sender<()>),
    /// Write what is held back for access logs: their files are about to be reopened.
    FlushLogs(std::sync::mpsc::Sender<()>),
    /// Close all listening sockets: others take what waits.
    Unlisten,
    /// Stop accepting, close idle connections or hand them to threads that stay, end when the rest is done.
    Drain {
        /// Those who stay; none if the process ends.
        heirs: Vec<mpsc::UnboundedSender<Order>>,
    },
    /// Accept connections, or leave them to another process that has the sockets; then say that it is so.
    Accept(bool, std::sync::mpsc::Sender<()>),
    /// Do this.
    Do(Box<dyn FnOnce() + Send>),
    /// Go on with another thread's idle connection.
    Adopt(Box<Parcel>),
    /// Close everything now.
    Stop,
    /// The same after a drain that took too long: what is cut off has its log line.
    Cut,
}
