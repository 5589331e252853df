//! The time as a thread sees it: the clocks as they were when its turn began. Never sleeps.

use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;

thread_local! {
    /// Microseconds of the monotonic clock; 0: the thread's loop does not keep the time, and every look reads the clock.
    static MONOTONIC_US: Cell<u64> = const { Cell::new(0) };
    /// Milliseconds of the wall clock; 0: the same.
    static WALL_MS: Cell<u64> = const { Cell::new(0) };
}

fn microseconds(t: rustix::time::Timespec) -> u64 {
    t.tv_sec as u64 * 1_000_000 + t.tv_nsec as u64 / 1000
}

#[cold]
fn read_monotonic_us() -> u64 {
    microseconds(clock_gettime(ClockId::Monotonic))
}

#[cold]
fn read_wall_ms() -> u64 {
    microseconds(clock_gettime(ClockId::Realtime)) / 1000
}

/// From now on this thread's loop keeps the time: it calls [`refresh`] in every turn, as nginx does.
pub fn keep_time() {
    refresh();
}

/// Reads the clocks.
pub fn refresh() {
    MONOTONIC_US.set(microseconds(clock_gettime(ClockId::Monotonic)));
    WALL_MS.set(microseconds(clock_gettime(ClockId::Realtime)) / 1000);
}

/// Milliseconds of the monotonic clock.
#[inline]
pub fn monotonic_ms() -> u64 {
    monotonic_us() / 1000
}

/// Microseconds of the monotonic clock: how long peers take.
#[inline]
pub fn monotonic_us() -> u64 {
    match MONOTONIC_US.get() {
        0 => read_monotonic_us(),
        now => now,
    }
}

/// Wall clock in milliseconds since 1970: what `$msec` and `$request_time` are made of.
#[inline]
pub fn wall_ms() -> u64 {
    match WALL_MS.get() {
        0 => read_wall_ms(),
        now => now,
    }
}

/// Wall clock in whole seconds since 1970.
#[inline]
pub fn wall_seconds() -> i64 {
    (wall_ms() / 1000) as i64
}
