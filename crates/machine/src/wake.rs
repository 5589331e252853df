//! What it costs a thread of this machine to sleep and be woken: work that a busy thread does not have, since it never sleeps.

use rustix::time::{ClockId, clock_gettime};
use std::sync::OnceLock;
use std::time::Duration;

/// Sleeps of one measurement, and how long each is.
const SLEEPS: u64 = 40;
const EACH: Duration = Duration::from_micros(20);
/// Of so many measurements the cheapest counts: others use the machine, too.
const TRIES: usize = 5;

/// Nanoseconds of the thread's CPU time for each. Measured once in a process, for about 20 ms.
pub fn cost_ns() -> u64 {
    static COST: OnceLock<u64> = OnceLock::new();
    *COST.get_or_init(|| (0..TRIES).map(|_| measured()).min().unwrap_or(0))
}

fn measured() -> u64 {
    let before = own_cpu_ns();
    (0..SLEEPS).for_each(|_| std::thread::sleep(EACH));
    own_cpu_ns().saturating_sub(before) / SLEEPS
}

fn own_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_some_microseconds() {
        let cost = cost_ns();
        println!("{cost} ns");
        assert!((100..1_000_000).contains(&cost), "{cost}");
    }
}
