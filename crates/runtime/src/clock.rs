//! The time as a thread sees it: the clocks as they were when its turn began. Never sleeps.

use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;

/// The time as the thread knows it.
#[derive(Clone, Copy)]
struct Known {
    monotonic_us: u64,
    wall_ms: u64,
    /// The thread's loop reads the clocks; else every look does.
    kept: bool,
}

thread_local! {
    static KNOWN: Cell<Known> = const { Cell::new(Known { monotonic_us: 0, wall_ms: 0, kept: false }) };
}

fn microseconds(t: rustix::time::Timespec) -> u64 {
    t.tv_sec as u64 * 1_000_000 + t.tv_nsec as u64 / 1000
}

fn read(kept: bool) -> Known {
    Known {
        monotonic_us: microseconds(clock_gettime(ClockId::Monotonic)),
        wall_ms: microseconds(clock_gettime(ClockId::Realtime)) / 1000,
        kept,
    }
}

#[inline]
fn known() -> Known {
    let known = KNOWN.get();
    if known.kept { known } else { read(false) }
}

/// From now on this thread's loop keeps the time: it calls [`refresh`] in every turn, as nginx does.
pub fn keep_time() {
    KNOWN.set(read(true));
}

/// Reads the clocks.
pub fn refresh() {
    KNOWN.set(read(true));
}

/// Milliseconds of the monotonic clock.
#[inline]
pub fn monotonic_ms() -> u64 {
    known().monotonic_us / 1000
}

/// Microseconds of the monotonic clock: how long peers take.
#[inline]
pub fn monotonic_us() -> u64 {
    known().monotonic_us
}

/// Wall clock in milliseconds since 1970: what `$msec` and `$request_time` are made of.
#[inline]
pub fn wall_ms() -> u64 {
    known().wall_ms
}

/// Wall clock in whole seconds since 1970.
#[inline]
pub fn wall_seconds() -> i64 {
    (known().wall_ms / 1000) as i64
}
