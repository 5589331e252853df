//! What it costs a thread of this machine to sleep and be woken: work that a busy thread does not have, since it never sleeps.
//!
//! It is more than the sleep itself. What a thread does behind it is slower for a while: caches are cold, and a virtual machine's host has given the
//! processor to others. (Measured here, at half load: 5 us more for 20, 20 for 94, 87 for 1,230; perf/notes/2026-11-27-doctor.md.) So stretches of work of
//! several lengths are done with sleeps between them and without.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Duration;

/// Sleeps of one measurement, and how long each is.
const SLEEPS: u64 = 40;
const EACH: Duration = Duration::from_micros(20);
/// Of so many measurements the cheapest sleep and the middle stretch count: others use the machine, too.
const TRIES: usize = 5;
/// Stretches of work, nanoseconds, and how many of each make a measurement: 70 ms of CPU time in all.
const STRETCHES: [(u64, u64); 3] = [(20_000, 40), (100_000, 20), (1_000_000, 6)];
/// What work looks at, in words of eight bytes: more than the first cache holds.
const WORDS: usize = 1 << 15;

/// What a sleep costs a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Costs {
    /// The sleep itself, nanoseconds of CPU time; 0: not known.
    pub sleep_ns: u64,
    /// Stretches of work behind a sleep: how long they take then, and how much of that they would not take without it and the sleep, nanoseconds. Shorter ones first.
    #[serde(default)]
    pub stretches: Vec<(u64, u64)>,
}

impl Costs {
    /// Of one sleep before so much work, in nanoseconds: between two stretches that were measured in proportion, beyond the longest as for that.
    pub fn of(&self, work_ns: f64) -> f64 {
        let (mut from, mut cost) = (0.0, self.sleep_ns as f64);
        for &(to, more) in &self.stretches {
            let (to, more) = (to as f64, more as f64);
            if work_ns < to {
                return cost + (more - cost) * (work_ns - from) / (to - from).max(1.0);
            }
            (from, cost) = (to, more);
        }
        cost
    }
}

static COSTS: OnceLock<Costs> = OnceLock::new();

/// Measured once in a process, for about 150 ms.
pub fn costs() -> Costs {
    COSTS.get_or_init(measured).clone()
}

/// Has them measured by a thread of its own: now, while the machine may still have processors that rest. Where one does not, its work behind a sleep is
/// hardly slower, and too little is found.
pub fn measure_soon() {
    // Without the thread they are measured when somebody asks.
    let _ = std::thread::Builder::new().name("wake costs".to_owned()).spawn(costs);
}

/// What was measured; none: it was not, or is going on.
pub fn known() -> Option<Costs> {
    COSTS.get().cloned()
}

fn measured() -> Costs {
    let sleep_ns = (0..TRIES).map(|_| of_sleeps()).min().unwrap_or(0);
    let words: Vec<u64> = (0..WORDS as u64).collect();
    let mut stretches: Vec<(u64, u64)> = Vec::new();
    for (wanted, count) in STRETCHES {
        let rounds = rounds_for(&words, wanted);
        let pairs =
            (0..TRIES).map(|_| (stretch(&words, rounds, count, None), stretch(&words, rounds, count, Some(wanted))));
        let mut pairs: Vec<_> = pairs.map(|(without, with)| (with, with.saturating_sub(without))).collect();
        pairs.sort_unstable_by_key(|(_, more)| *more);
        stretches.push(pairs[TRIES / 2]);
    }
    stretches.sort_unstable();
    Costs { sleep_ns, stretches }
}

fn of_sleeps() -> u64 {
    let before = own_cpu_ns();
    (0..SLEEPS).for_each(|_| std::thread::sleep(EACH));
    own_cpu_ns().saturating_sub(before) / SLEEPS
}

/// So many words of work take about `wanted` nanoseconds.
fn rounds_for(words: &[u64], wanted: u64) -> usize {
    let took = (0..TRIES).map(|_| stretch(words, words.len(), 1, None)).min().unwrap_or(0).max(1);
    (wanted as usize).saturating_mul(words.len()) / took as usize + 1
}

/// CPU time of a stretch of work, on average, with a sleep as long before each or without one.
fn stretch(words: &[u64], rounds: usize, count: u64, sleep_ns: Option<u64>) -> u64 {
    let before = own_cpu_ns();
    for _ in 0..count {
        if let Some(ns) = sleep_ns {
            std::thread::sleep(Duration::from_nanos(ns));
        }
        let all = words.iter().cycle().take(rounds);
        black_box(all.fold(0_u64, |sum, word| (sum ^ word).wrapping_mul(0x0100_0000_01b3)));
    }
    own_cpu_ns().saturating_sub(before) / count
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
        let costs = costs();
        println!("{costs:?}");
        assert!((100..1_000_000).contains(&costs.sleep_ns), "{costs:?}");
        assert_eq!(costs.stretches.len(), STRETCHES.len());
        assert!(costs.stretches.iter().all(|(all, more)| more < all), "{costs:?}");
    }

    #[test]
    fn between_two_stretches_it_is_in_proportion() {
        let costs = Costs { sleep_ns: 5, stretches: vec![(100, 15), (1_000, 60)] };
        let of = |work: f64| costs.of(work);
        assert_eq!((of(0.0), of(50.0), of(100.0), of(550.0), of(1e9)), (5.0, 10.0, 15.0, 37.5, 60.0));
        assert_eq!(Costs { sleep_ns: 7, ..Costs::default() }.of(1e6), 7.0);
        let same = Costs { sleep_ns: 1, stretches: vec![(10, 2), (10, 4)] };
        assert_eq!((same.of(10.0), same.of(9.0)), (4.0, 1.9));
    }
}
