//! A worker thread: its snapshot, its listeners, its loop. Around everything that serves. Shares nothing with its
//! siblings on the way of a request.

pub mod counters;
pub mod date;
pub mod handover;
pub mod process;
pub mod thread;

use crate::connection::{Address, Client};
use crate::snapshot::ThreadSnapshot;
use std::cell::{Cell, RefCell};
use std::os::fd::AsFd;
use std::rc::Rc;

thread_local! {
    static SNAPSHOT: RefCell<Option<Rc<ThreadSnapshot>>> = const { RefCell::new(None) };
    static DRAINING: Cell<bool> = const { Cell::new(false) };
    static CUTTING: Cell<bool> = const { Cell::new(false) };
    /// For each listener of this thread, the index of its address in the current snapshot's `listens`.
    static PORTS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The snapshot for the next request.
pub fn snapshot() -> Rc<ThreadSnapshot> {
    SNAPSHOT.with_borrow(|s| s.clone()).expect("a thread that serves has a snapshot")
}

/// Whether the thread is to end once its connections are done.
pub fn draining() -> bool {
    DRAINING.get()
}

/// Whether requests that are dropped now are cut off by `worker_shutdown_timeout`.
pub fn cutting() -> bool {
    CUTTING.get()
}

/// The local address of a client's connection; asked of the kernel once.
pub fn local_address(client: &Client) -> Address {
    if let Some(a) = &*client.local.borrow() {
        return a.clone();
    }
    let Some(socket) = client.socket.upgrade() else { return Address::Unix(Default::default()) };
    let address = crate::listen::local_address(socket.as_fd());
    client.local.replace(Some(address.clone()));
    address
}

/// The port of the snapshot that a listener of this thread stands for. A listener whose address is gone keeps the
/// connections it brought: they are served by the first port until they close.
pub fn port_of(snapshot: &ThreadSnapshot, listener: usize) -> usize {
    let index = PORTS.with_borrow(|p| p[listener]);
    if index < snapshot.ports.len() { index } else { 0 }
}

/// For a client that came to an address of `stream`: the index of the address in the current snapshot's `listens`.
pub fn stream_listen_of(client: &Client) -> Option<usize> {
    let index = PORTS.with_borrow(|p| p[client.listener]);
    let is_stream =
        SNAPSHOT.with_borrow(|s| s.as_ref().is_some_and(|s| (s.ports.len()..s.listens.len()).contains(&index)));
    is_stream.then_some(index)
}

/// The number of this thread's listener for an address of the current snapshot.
pub fn listener_of(listen: usize) -> Option<usize> {
    PORTS.with_borrow(|p| p.iter().position(|index| *index == listen))
}
