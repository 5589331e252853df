//! A worker thread: its snapshot, its listeners, its loop. Around everything that serves. Shares nothing with its
//! siblings on the way of a request.

pub mod counters;
pub mod date;
pub mod departure;
pub mod handover;
pub mod order;
pub mod process;
pub mod thread;

use crate::connection::{Address, Client};
use crate::process_settings::{ListenAddress, SocketKind};
use crate::snapshot::ThreadSnapshot;
use std::cell::{Cell, RefCell};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static RESTS: AtomicBool = AtomicBool::new(false);

thread_local! {
    static SNAPSHOT: RefCell<Option<Rc<ThreadSnapshot>>> = const { RefCell::new(None) };
    static DRAINING: Cell<bool> = const { Cell::new(false) };
    static CUTTING: Cell<bool> = const { Cell::new(false) };
    static LEFT: Cell<bool> = const { Cell::new(false) };
    /// What each listener of this thread listens on, those that are closed included: connections know theirs by its number.
    static LISTENERS: RefCell<Vec<(ListenAddress, SocketKind)>> = const { RefCell::new(Vec::new()) };
    /// The canary, while there is one.
    static TRIAL: RefCell<Option<Trial>> = const { RefCell::new(None) };
}

/// A configuration that serves a share of new connections, beside the one that serves the others (`ironweir canary`).
struct Trial {
    snapshot: Rc<ThreadSnapshot>,
    /// The share, as a part of 2^64.
    share: u64,
}

/// The snapshot for the next request.
pub fn snapshot() -> Rc<ThreadSnapshot> {
    SNAPSHOT.with_borrow(|s| s.clone()).expect("a thread that serves has a snapshot")
}

/// The snapshot for the next request of a client: that of the canary if its connection was given to it and the canary is still there.
#[inline]
pub fn snapshot_for(client: &Client) -> Rc<ThreadSnapshot> {
    let trial = client.trial.get();
    if trial != 0
        && let Some(snapshot) =
            TRIAL.with_borrow(|t| t.as_ref().map(|t| t.snapshot.clone()).filter(|s| s.generation == trial))
    {
        return snapshot;
    }
    snapshot()
}

/// Decides whether a new connection is the canary's, if there is one. Numbers of connections times the golden ratio are spread evenly
/// between 0 and 1 however many there are, and follow no rhythm of clients: the share holds after a few connections already.
pub fn draw(client: &Client) {
    /// 2^64 divided by the golden ratio.
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    TRIAL.with_borrow(|trial| {
        let Some(trial) = trial else { return };
        // An address that the canary does not have, or has in the other one of `http` and `stream`, stays with the old configuration.
        let is_stream = |snapshot: &ThreadSnapshot| {
            let at = place_of(snapshot, client.listener).filter(|at| *at < snapshot.listens.len())?;
            Some(at >= snapshot.ports.len())
        };
        let old = SNAPSHOT.with_borrow(|s| s.as_ref().and_then(|s| is_stream(s)));
        let both = old.is_some() && old == is_stream(&trial.snapshot);
        let chosen = both && client.number.wrapping_mul(GOLDEN) < trial.share;
        if chosen {
            client.trial.set(trial.snapshot.generation);
        }
        if both {
            crate::status::trial::connection(chosen);
        }
    });
}

/// Gives each snapshot its own list of where the thread's listeners are in it.
fn find_places(snapshot: &ThreadSnapshot) {
    let of = |(address, kind): &(ListenAddress, SocketKind)| {
        snapshot.listens.iter().position(|l| l.address == *address && l.kind == *kind).unwrap_or(usize::MAX)
    };
    let places = LISTENERS.with_borrow(|all| all.iter().map(of).collect());
    let _ = snapshot.places.set(places);
}

/// Where the address of a listener of this thread stands in a snapshot's `listens`.
pub(crate) fn place_of(snapshot: &ThreadSnapshot, listener: usize) -> Option<usize> {
    snapshot.places.get().and_then(|places| places.get(listener)).copied()
}

/// Whether the thread is to end once its connections are done.
pub fn draining() -> bool {
    DRAINING.get()
}

/// Whether channels are another process's: who subscribes here, and has not gone there, is to go.
pub fn has_left() -> bool {
    LEFT.get()
}

/// What subscribes in this thread, and stays here, is to end, or is not.
pub fn set_left(left: bool) {
    LEFT.set(left);
}

/// New threads accept nothing before they are told to: another process still has what they go on with.
pub fn begin_at_rest(rests: bool) {
    RESTS.store(rests, Relaxed);
}

fn begins_at_rest() -> bool {
    RESTS.load(Relaxed)
}

/// The addresses of this thread's listeners, by their numbers.
pub fn listener_addresses() -> Vec<String> {
    LISTENERS.with_borrow(|all| all.iter().map(|(address, kind)| format!("{address} {kind:?}")).collect())
}

/// Whether requests that are dropped now are cut off by `worker_shutdown_timeout`.
pub fn cutting() -> bool {
    CUTTING.get()
}

/// The local address of a client's connection; asked of the kernel once.
pub fn local_address(client: &Client) -> Address {
    if let Some(a) = &*client.local.borrow() {
        return Address::clone(a);
    }
    let Some(socket) = client.socket.upgrade() else { return Address::Unix(Default::default()) };
    let address = crate::listen::address::local_address(socket.as_fd());
    client.local.replace(Some(Box::new(address.clone())));
    address
}

/// The port of the snapshot that a listener of this thread stands for. A listener whose address is gone keeps the
/// connections it brought: they are served by the first port until they close.
pub fn port_of(snapshot: &ThreadSnapshot, listener: usize) -> usize {
    place_of(snapshot, listener).filter(|index| *index < snapshot.ports.len()).unwrap_or(0)
}

/// Whether a client came to an address of `stream`, by the snapshot that holds for it.
pub fn is_of_stream(client: &Client) -> bool {
    let is = |snapshot: &ThreadSnapshot| stream_listen_in(snapshot, client).is_some();
    match client.trial.get() {
        0 => SNAPSHOT.with_borrow(|s| s.as_ref().is_some_and(|s| is(s))),
        _ => is(&snapshot_for(client)),
    }
}

/// For a client that came to an address of `stream`: the index of the address in a snapshot's `listens`.
pub fn stream_listen_in(snapshot: &ThreadSnapshot, client: &Client) -> Option<usize> {
    place_of(snapshot, client.listener).filter(|index| (snapshot.ports.len()..snapshot.listens.len()).contains(index))
}

/// The number of this thread's listener for an address.
pub fn listener_at(address: &ListenAddress, kind: SocketKind) -> Option<usize> {
    LISTENERS.with_borrow(|all| all.iter().position(|l| l.0 == *address && l.1 == kind))
}

/// The number of this thread's listener for an address of the current snapshot.
pub fn listener_of(listen: usize) -> Option<usize> {
    SNAPSHOT.with_borrow(|s| s.as_ref()?.places.get()?.iter().position(|index| *index == listen))
}
