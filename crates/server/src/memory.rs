//! Memory that was needed for a while goes back to the system: a configuration of many servers takes much more of it while it is read
//! than afterwards, and the master none. Allocators wait with that, for work that never comes to a process that only waits.

use std::sync::OnceLock;

static RELEASE: OnceLock<fn()> = OnceLock::new();

/// Says how. The binary knows its allocator; without it memory stays where it is.
pub fn released_by(how: fn()) {
    let _ = RELEASE.set(how);
}

/// Gives back what this thread has freed.
pub fn release() {
    if let Some(how) = RELEASE.get() {
        how();
    }
}
