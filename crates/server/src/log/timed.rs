//! How long writes to access logs take: a disk that takes its time holds a thread up, with all of its connections. From: `lines` and `opened`,
//! which write. To: the API (`/ironweir/time`), `ironweir why`. Never asks for the time where a quick write follows quick ones.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// One write of so many is timed ...
const SAMPLED: u32 = 16;
/// ... and each one behind a write that took so long, microseconds: a log that holds its thread up is written to a few times a second only,
/// and one of sixteen of those would be seen too late.
const SLOW_US: u64 = 1_000;

/// Writes that were timed, and how long they took, microseconds: of all threads, which seldom write here.
static WRITES: AtomicU64 = AtomicU64::new(0);
static US: AtomicU64 = AtomicU64::new(0);

/// Runs a write, and times one of sixteen, or all of them while they are slow.
#[inline]
pub fn write<T>(write: impl FnOnce() -> T) -> T {
    thread_local! {
        static UNTIMED_LEFT: Cell<u32> = const { Cell::new(0) };
    }
    if let left @ 1.. = UNTIMED_LEFT.get() {
        UNTIMED_LEFT.set(left - 1);
        return write();
    }
    let began = Instant::now();
    let result = write();
    let us = began.elapsed().as_micros() as u64;
    UNTIMED_LEFT.set(if us < SLOW_US { SAMPLED - 1 } else { 0 });
    WRITES.fetch_add(1, Relaxed);
    US.fetch_add(us, Relaxed);
    result
}

/// Writes that were timed, and their microseconds together.
pub fn sums() -> (u64, u64) {
    (WRITES.load(Relaxed), US.load(Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn slow_writes_are_all_timed_and_quick_ones_are_not() {
        let timed = |count: u32, each: fn()| {
            let before = sums();
            (0..count).for_each(|_| write(each));
            let after = sums();
            (after.0 - before.0, after.1 - before.1)
        };
        // Other tests of this process may write logs as well.
        let slow = timed(4, || std::thread::sleep(Duration::from_millis(2)));
        assert!(slow.0 >= 4 && slow.1 >= 8_000, "{slow:?}");
        let quick = timed(33, || ());
        assert!((1..33).contains(&quick.0), "{quick:?}");
    }
}
