//! Counts of a thread, summed over all threads when somebody asks: `stub_status`, `$connections_*`.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// One thread's counts. Only that thread writes.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections accepted.
    pub accepted: AtomicU64,
    /// Connections served.
    pub handled: AtomicU64,
    /// Requests.
    pub requests: AtomicU64,
    /// Open connections.
    pub active: AtomicI64,
    /// Connections of which a head is being read.
    pub reading: AtomicI64,
    /// Connections between requests.
    pub waiting: AtomicI64,
}

static ALL: Mutex<Vec<Arc<Counters>>> = Mutex::new(Vec::new());

thread_local! {
    static MINE: Arc<Counters> = {
        let mine = Arc::new(Counters::default());
        ALL.lock().expect("no one panics while counting").push(mine.clone());
        mine
    };
}

// A thread is the only writer of its counters, so a load and a store do; no locked instruction is needed.
fn add(c: &AtomicU64) {
    c.store(c.load(Relaxed) + 1, Relaxed);
}

fn shift(c: &AtomicI64, by: i64) {
    c.store(c.load(Relaxed) + by, Relaxed);
}

/// A connection was accepted.
pub fn accepted() {
    MINE.with(|c| {
        add(&c.accepted);
        add(&c.handled);
        shift(&c.active, 1);
    });
}

/// A connection is closed.
pub fn closed() {
    MINE.with(|c| shift(&c.active, -1));
}

/// A request began.
pub fn request() {
    MINE.with(|c| add(&c.requests));
}

/// A connection began (1) or ended (-1) to wait for its next request.
pub fn waiting(by: i64) {
    MINE.with(|c| shift(&c.waiting, by));
}

/// A connection began (1) or ended (-1) to send a head.
pub fn reading(by: i64) {
    MINE.with(|c| shift(&c.reading, by));
}

/// All threads together.
pub struct Sum {
    /// See [`Counters`].
    pub accepted: u64,
    /// See [`Counters`].
    pub handled: u64,
    /// See [`Counters`].
    pub requests: u64,
    /// See [`Counters`].
    pub active: i64,
    /// See [`Counters`].
    pub reading: i64,
    /// Connections that a request is being answered on.
    pub writing: i64,
    /// See [`Counters`].
    pub waiting: i64,
}

/// Adds up.
pub fn sum() -> Sum {
    let all = ALL.lock().expect("no one panics while counting");
    let total = |f: fn(&Counters) -> &AtomicU64| all.iter().map(|c| f(c).load(Relaxed)).sum();
    let signed = |f: fn(&Counters) -> &AtomicI64| all.iter().map(|c| f(c).load(Relaxed)).sum::<i64>();
    let (active, reading, waiting) = (signed(|c| &c.active), signed(|c| &c.reading), signed(|c| &c.waiting));
    Sum {
        accepted: total(|c| &c.accepted),
        handled: total(|c| &c.handled),
        requests: total(|c| &c.requests),
        active,
        reading,
        writing: (active - reading - waiting).max(0),
        waiting,
    }
}
