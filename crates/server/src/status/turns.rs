//! How long the turns of a thread's loop take: whoever comes next waits as long. One turn of sixteen is timed, so that the
//! clock costs next to nothing.

use super::latency;
use super::tally::Tally;
use std::cell::Cell;
use std::time::Instant;

/// One of so many turns is timed.
const SAMPLED: u32 = 16;

/// More CPUs of a thread are not told.
const MOST_CPUS: usize = 4_096;

/// Turns by their time in microseconds.
pub static TURNS_US: Tally<{ latency::WIDTH }> = Tally::new();

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

/// The turn is over.
#[inline]
pub fn end(began: Option<Instant>) {
    if let Some(began) = began {
        latency::count(TURNS_US.mine(), 0, began.elapsed().as_micros() as u64);
    }
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
    fn one_turn_of_sixteen_is_timed() {
        let timed = (0..160).filter(|_| begin().is_some()).count();
        assert_eq!(timed, 10);
    }
}
