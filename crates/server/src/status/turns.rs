//! How long the turns of a thread's loop take: whoever comes next waits as long; and how that depends on how much is done in them, from
//! which `ironweir why` tells what the work costs and what waking up for it does. One turn of seventeen is timed, so that the clock costs
//! next to nothing.

use super::latency;
use super::tally::Tally;
use std::cell::Cell;
use std::time::Instant;

/// One of so many turns is timed. A prime: turns that alternate (a client's, its peer's) are all seen.
const SAMPLED: u32 = 17;

/// More CPUs of a thread are not told.
const MOST_CPUS: usize = 4_096;

/// Turns by their time in microseconds.
pub static TURNS_US: Tally<{ latency::WIDTH }> = Tally::new();

/// Sums over turns that were timed: of a least-squares line of their time over the number of polls in them, and of the line's error.
static WORK: Tally<7> = Tally::new();
const TIMED: usize = 0;
const POLLS: usize = 1;
const POLLS_SQUARED: usize = 2;
const NS: usize = 3;
const POLLS_NS: usize = 4;
/// In units of [`SQUARE_NS`] squared: nanoseconds would leave the number after some thousand slow turns.
const SQUARED: usize = 5;
/// All turns.
const TURNS: usize = 6;
/// See `SQUARED`.
const SQUARE_NS: u64 = 100;
/// A turn that took so many times as long as its polls do on average was not the thread's alone: others, or the machine's host, had the CPU. Few turns have many polls, and
/// one of those that was held up bends the line. (Measured: 0.06 % of turns are left out, and the slope's scatter is a third to a half less.)
const HELD_UP: i64 = 4;
/// The average is over about so many turns; one that is left out counts as the longest that is not, so that work that has become dearer is let in again soon.
const AVERAGED: i64 = 64;

/// Turns of a thread, and what was done in those that were timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// All turns, to the last that was looked at.
    pub turns: u64,
    /// Those that were timed and not held up, of which the rest are sums.
    pub timed: u64,
    /// How many times a task was run.
    pub polls: u64,
    /// Its square.
    pub polls_squared: u64,
    /// How long the turn took, without the wait for news behind it.
    pub ns: u64,
    /// The product of both.
    pub polls_ns: u64,
    /// The square of the time, in units of 100 ns.
    pub squared: u64,
}

/// What was counted for a thread.
pub fn work(slot: usize) -> Work {
    let sums = WORK.of(slot);
    Work {
        turns: sums[TURNS],
        timed: sums[TIMED],
        polls: sums[POLLS],
        polls_squared: sums[POLLS_SQUARED],
        ns: sums[NS],
        polls_ns: sums[POLLS_NS],
        squared: sums[SQUARED],
    }
}

thread_local! {
    static NUMBER: Cell<u32> = const { Cell::new(0) };
}

/// A turn begins; gives the time if it is one to be timed.
#[inline]
pub fn begin() -> Option<Instant> {
    let number = NUMBER.get().wrapping_add(1);
    NUMBER.set(number);
    number.is_multiple_of(SAMPLED).then(Instant::now)
}

/// The turn is over; so many times a task was run in it.
#[inline]
pub fn end(began: Option<Instant>, polls: u64) {
    if let Some(began) = began {
        let ns = began.elapsed().as_nanos() as u64;
        latency::count(TURNS_US.mine(), 0, ns / 1_000);
        note(polls, ns);
    }
}

fn note(polls: u64, ns: u64) {
    thread_local! {
        /// What a poll takes on average, nanoseconds; 0: not known.
        static POLL_NS: Cell<i64> = const { Cell::new(0) };
    }
    let mine = WORK.mine();
    mine.add(TURNS, u64::from(SAMPLED));
    if let Some(each) = ns.checked_div(polls) {
        let (each, average) = (each as i64, POLL_NS.get());
        let most = if average == 0 { i64::MAX } else { average.saturating_mul(HELD_UP) };
        POLL_NS.set(if average == 0 { each } else { average + (each.min(most) - average) / AVERAGED });
        if each > most {
            return;
        }
    }
    mine.add(TIMED, 1);
    mine.add(POLLS, polls);
    mine.add(POLLS_SQUARED, polls.saturating_mul(polls));
    mine.add(NS, ns);
    mine.add(POLLS_NS, polls.saturating_mul(ns));
    mine.add(SQUARED, (ns / SQUARE_NS).saturating_pow(2));
}

/// What the kernel says of a thread: nanoseconds on a CPU, and in wait for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// On a CPU.
    pub running_ns: u64,
    /// Ready to run, and not running.
    pub waiting_ns: u64,
    /// How often it was put on a CPU: mostly since it was woken.
    pub switches: u64,
}

/// Asks the kernel about a thread of this process; none where it does not tell.
pub fn schedule(tid: i32) -> Option<Schedule> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).ok()?;
    let mut numbers = text.split_ascii_whitespace().map_while(|n| n.parse().ok());
    Some(Schedule { running_ns: numbers.next()?, waiting_ns: numbers.next()?, switches: numbers.next()? })
}

/// The CPUs that a thread of this process may run on (`worker_cpu_affinity`, `taskset`, cpusets), by their numbers; none where the
/// kernel does not tell.
pub fn cpus(tid: i32) -> Option<Vec<usize>> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).ok()?;
    cpu_list(text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim())
}

/// `0-3,8` as numbers.
fn cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        all.extend((first..=last).take(MOST_CPUS.saturating_sub(all.len())));
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_as_the_kernel_writes_them() {
        assert_eq!(cpu_list("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(cpu_list("0-99999999").map(|all| all.len()), Some(MOST_CPUS));
        assert_eq!((cpu_list(""), cpu_list("a-b")), (None, None));
        assert!(!cpus(std::process::id() as i32).unwrap().is_empty());
    }

    #[test]
    fn one_turn_of_seventeen_is_timed() {
        let timed = (0..170).filter(|_| begin().is_some()).count();
        assert_eq!(timed, 10);
    }

    #[test]
    fn what_was_done_in_turns_is_summed_up() {
        let counted = std::thread::spawn(|| {
            let mine = || work(crate::status::slot::mine());
            let before = mine();
            note(2, 5_000);
            note(3, 7_100);
            (before, mine())
        });
        let (was, now) = counted.join().expect("it ends");
        assert_eq!((now.turns - was.turns, now.timed - was.timed), (34, 2));
        assert_eq!((now.polls - was.polls, now.polls_squared - was.polls_squared), (5, 13));
        assert_eq!((now.ns - was.ns, now.polls_ns - was.polls_ns), (12_100, 31_300));
        assert_eq!(now.squared - was.squared, 50 * 50 + 71 * 71);
    }

    #[test]
    fn a_turn_that_was_held_up_is_left_out_and_work_that_has_become_dearer_is_not() {
        let counted = std::thread::spawn(|| {
            let timed = || work(crate::status::slot::mine()).timed;
            let noted = |ns: u64| {
                let before = timed();
                note(1, ns);
                timed() > before
            };
            assert!((0..100).all(|_| noted(20_000)));
            let held_up = noted(1_000_000);
            (held_up, (0..200).position(|_| noted(400_000)))
        });
        let (held_up, again) = counted.join().expect("it ends");
        assert!(!held_up);
        assert!(again > Some(1) && again < Some(100), "{again:?}");
    }
}
