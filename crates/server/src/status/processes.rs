//! Worker processes that died and were started anew. The master counts them; a worker process is a copy of the master, so it
//! begins with the number as it was then.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static RESPAWNED: AtomicU64 = AtomicU64::new(0);

/// A worker process has died by itself. In the master.
pub fn died() {
    RESPAWNED.fetch_add(1, Relaxed);
}

/// How many have.
pub fn respawned() -> u64 {
    RESPAWNED.load(Relaxed)
}

/// Sets to zero what this worker process shows.
pub fn reset() {
    RESPAWNED.store(0, Relaxed);
}
