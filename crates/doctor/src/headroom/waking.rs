//! What waking up costs a thread: time that it does not need when it is busy, since the next events are there already then.
//!
//! The thread tells it itself. A turn of its loop takes so long before and after all work (leaving idle, cold caches, the system call that
//! waits), and so much for each task that is run in it. Where some turns have several tasks, the slope of the line through turns is what a task
//! costs, measured on this machine in this very second; what the thread runs beyond that is spent once a turn, and a busy thread
//! shares a turn among many tasks. Where nearly all turns have the same number of tasks there is no line, and where single tasks are long it finds only a part:
//! then it is what a sleep before so much work costs any thread of this machine ([`machine::wake`]).

use crate::serving::Thread;
use machine::wake::Costs;

/// Tasks in a turn of a busy thread: 61 with 64 connections (perf/notes/2026-11-27-doctor.md). With half as many connections it is half of that, which
/// changes what is told by a hundredth.
const BUSY: f64 = 60.0;
/// A slope is believed if its standard error is below this part of it.
const BELIEVED: f64 = 0.1;
/// At most this part of a thread's time is taken for what waking costs it,
const MOST: f64 = 0.5;
/// and at most so much for each turn, nanoseconds (13 to 32 us were measured in a virtual machine): where single tasks are much dearer than others the line
/// may miss them, and what they take is no wake-up.
const MOST_NS: f64 = 40_000.0;

/// The part of a CPU. `now`: what a sleep costs a thread here; `then`: what it cost when the server started, where processors that are busy now
/// may have had rest.
pub(super) fn waking(thread: &Thread, now: &Costs, then: Option<&Costs>) -> f64 {
    let work_ns = if thread.switches > 0.0 { thread.running * 1e9 / thread.switches } else { 0.0 };
    let each = then.map_or(0.0, |then| then.of(work_ns)).max(now.of(work_ns));
    let any = thread.switches * each / 1e9;
    told(thread).unwrap_or(0.0).max(any).min(thread.running * MOST)
}

/// By the thread's own turns.
fn told(thread: &Thread) -> Option<f64> {
    let work = thread.work.as_ref()?;
    let line = work.timed.line().filter(|line| line.error < line.slope * BELIEVED)?;
    let each = work.timed.x / work.timed.count;
    let tasks = work.turns * each * line.slope / 1e9;
    let beyond = (thread.running - tasks).clamp(0.0, work.turns * MOST_NS / 1e9);
    Some(beyond * (1.0 - each / BUSY).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::Work;
    use crate::statistics::Sums;

    /// A worker thread of 27 November (perf/notes/2026-11-27-doctor.md), `return` for 64 connections: one turn of 17 over 2.3 s.
    fn recorded(running: f64, turns: f64, [count, x, xx, y, squared, xy]: [f64; 6]) -> Thread {
        let timed = Sums { count, x, xx, y, yy: squared * 1e4, xy };
        Thread { running, switches: 12_166.0, work: Some(Work { turns, timed }), ..Thread::default() }
    }

    fn sleep(sleep_ns: u64) -> Costs {
        Costs { sleep_ns, ..Costs::default() }
    }

    fn half_load() -> Thread {
        recorded(0.814, 27_892.0, [3772.0, 4149.0, 11_927.0, 100_469_700.0, 520_523_995.0, 238_943_106.0])
    }

    #[test]
    fn a_thread_at_half_load_tells_what_it_could_do() {
        let half = half_load();
        let could = 31_208.0 / (half.running - waking(&half, &sleep(5_000), None));
        // 62,416 and 47,684 requests a second were measured before and after: 55,050 on average.
        assert!((could / 55_050.0 - 1.0).abs() < 0.15, "{could}");
        let without = Thread { work: None, ..half };
        let could = 31_208.0 / (without.running - waking(&without, &sleep(5_000), None));
        assert!(could / 55_050.0 < 0.8, "{could}: by the cost of a sleep alone");
    }

    #[test]
    fn a_busy_thread_has_nothing_to_gain() {
        let full = Thread {
            switches: 1_088.0,
            ..recorded(0.981, 1_088.0, [148.0, 8_552.0, 529_868.0, 132_135_260.0, 12_887_896_788.0, 8_194_831_865.0])
        };
        assert!(waking(&full, &sleep(5_000), None) < 0.01, "{}", waking(&full, &sleep(5_000), None));
    }

    #[test]
    fn a_line_that_is_none_is_not_believed() {
        let mut same = half_load();
        let timed = &mut same.work.as_mut().unwrap().timed;
        (timed.x, timed.xx, timed.xy) = (timed.count, timed.count, timed.y);
        assert!((waking(&same, &sleep(5_000), None) - 0.060_83).abs() < 1e-9, "every turn has one task");
        let mut rough = half_load();
        rough.work.as_mut().unwrap().timed.yy *= 1_000.0;
        assert!((waking(&rough, &sleep(5_000), None) - 0.060_83).abs() < 1e-9);
    }

    #[test]
    fn long_work_behind_a_sleep_is_slower() {
        // TLS handshakes at half of 835 a second, 27 November: the thread ran 0.6 of its time and slept about 1,000 times a second.
        let thread = Thread { running: 0.6, switches: 1_000.0, ..Thread::default() };
        let costs = Costs { sleep_ns: 5_000, stretches: vec![(25_000, 5_000), (115_000, 20_600), (1_320_000, 86_600)] };
        let told = waking(&thread, &costs, None);
        assert!((told - 0.0472).abs() < 1e-3, "{told}");
        assert_eq!(waking(&thread, &sleep(5_000), Some(&costs)), told, "the CPU is too busy now to find that out");
    }

    #[test]
    fn dear_tasks_are_not_taken_for_waking() {
        let mut rare = half_load();
        rare.work.as_mut().unwrap().turns = 500.0;
        assert!(waking(&rare, &sleep(0), None) <= 0.02, "{}", waking(&rare, &sleep(0), None));
    }
}
