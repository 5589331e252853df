//! The time as a worker thread sees it: coarse clocks for timeouts, a `Date` text kept for a second.
//! Used by every stage. Never sleeps.

use rustix::time::{ClockId, clock_gettime};
use std::cell::{Cell, RefCell};

/// A worker thread asks the kernel again after so many looks at the clock, when it does not rest in between: some
/// hundred microseconds under full load. nginx keeps the time for a whole turn of its loop.
const LOOKS: u32 = 64;

/// The time as the thread knows it.
#[derive(Clone, Copy)]
struct Known {
    monotonic_ms: u64,
    wall_ms: u64,
    /// Looks left before the kernel is asked again.
    looks: u32,
}

thread_local! {
    static KEEPS: Cell<bool> = const { Cell::new(false) };
    static KNOWN: Cell<Known> = const { Cell::new(Known { monotonic_ms: 0, wall_ms: 0, looks: 0 }) };
}

fn milliseconds(t: rustix::time::Timespec) -> u64 {
    t.tv_sec as u64 * 1000 + t.tv_nsec as u64 / 1_000_000
}

fn known() -> Known {
    let mut k = KNOWN.get();
    if k.looks == 0 {
        k.monotonic_ms = milliseconds(clock_gettime(ClockId::MonotonicCoarse));
        k.wall_ms = milliseconds(clock_gettime(ClockId::Realtime));
        k.looks = if KEEPS.get() { LOOKS } else { 1 };
    }
    k.looks -= 1;
    KNOWN.set(k);
    k
}

/// From now on this thread keeps the time for a while: it calls [`woke`] whenever it has rested.
pub fn keep_time() {
    KEEPS.set(true);
}

/// The thread has rested: what it knows of the time is old.
pub fn woke() {
    let _ = KNOWN.try_with(|k| k.set(Known { looks: 0, ..k.get() }));
}

/// Milliseconds of the monotonic coarse clock (4 ms steps on most kernels): good for timeouts.
pub fn monotonic_ms() -> u64 {
    known().monotonic_ms
}

/// Wall clock in milliseconds since 1970: what `$msec` and `$request_time` are made of.
pub fn wall_ms() -> u64 {
    known().wall_ms
}

/// Wall clock in whole seconds since 1970.
pub fn wall_seconds() -> i64 {
    (known().wall_ms / 1000) as i64
}

thread_local! {
    static DATE_SECOND: Cell<i64> = const { Cell::new(i64::MIN) };
    static DATE: RefCell<[u8; 29]> = const { RefCell::new([0; 29]) };
}

/// The current time as an HTTP date (RFC 9110 section 5.6.7), formatted once a second and thread.
pub fn http_date() -> [u8; 29] {
    let now = wall_seconds();
    if DATE_SECOND.get() != now {
        DATE.set(wire::date::format_http(now));
        DATE_SECOND.set(now);
    }
    DATE.with_borrow(|d| *d)
}
