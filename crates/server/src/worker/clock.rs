//! The time as a worker thread sees it: coarse clocks for timeouts, a `Date` text kept for a second.
//! Used by every stage. Never sleeps.

use rustix::time::{ClockId, clock_gettime};
use std::cell::{Cell, RefCell};

/// Milliseconds of the monotonic coarse clock (4 ms steps on most kernels): good for timeouts, cheap to ask.
pub fn monotonic_ms() -> u64 {
    let t = clock_gettime(ClockId::MonotonicCoarse);
    t.tv_sec as u64 * 1000 + t.tv_nsec as u64 / 1_000_000
}

/// Wall clock in milliseconds since 1970, exact: what `$msec` and `$request_time` are made of.
pub fn wall_ms() -> u64 {
    let t = clock_gettime(ClockId::Realtime);
    t.tv_sec as u64 * 1000 + t.tv_nsec as u64 / 1_000_000
}

/// Wall clock in whole seconds since 1970, from the coarse clock.
pub fn wall_seconds() -> i64 {
    clock_gettime(ClockId::RealtimeCoarse).tv_sec
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
