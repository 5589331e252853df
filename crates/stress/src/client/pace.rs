//! Which free connection gets the next request, and when. Closed loop: at once. Open loop: by the schedule.

use crate::schedule::Schedule;
use std::collections::VecDeque;

/// A thread's part of the schedule, and its free connections.
pub(crate) struct Pace {
    open: Option<Open>,
    /// Connections without a request, the longest free first; open loop only.
    free: VecDeque<u32>,
}

struct Open {
    schedule: Schedule,
    /// Index of the thread's next request.
    next: u64,
    /// Every so many are this thread's.
    stride: u64,
    start: u64,
    /// When the next is due, by the monotonic clock; `u64::MAX`: none is left.
    due: u64,
}

impl Open {
    fn advance(&mut self) {
        self.next += self.stride;
        self.find_due();
    }

    fn find_due(&mut self) {
        self.due = self.schedule.due_ns(self.next).map_or(u64::MAX, |ns| self.start + ns);
    }
}

impl Pace {
    pub(crate) fn closed() -> Pace {
        Pace { open: None, free: VecDeque::new() }
    }

    /// Requests `first`, `first + stride`, ... of a schedule.
    pub(crate) fn open(schedule: Schedule, first: u64, stride: u64) -> Pace {
        let open = Open { schedule, next: first, stride, start: 0, due: u64::MAX };
        Pace { open: Some(open), free: VecDeque::new() }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The schedule's time 0.
    pub(crate) fn begin(&mut self, start: u64) {
        if let Some(open) = &mut self.open {
            open.start = start;
            open.find_due();
        }
    }

    /// When the next request is due.
    pub(crate) fn next_due(&self) -> u64 {
        self.open.as_ref().map_or(u64::MAX, |o| o.due)
    }

    /// When the thread must wake to send something.
    pub(crate) fn wake_at(&self) -> u64 {
        if self.free.is_empty() { u64::MAX } else { self.next_due() }
    }

    /// Takes the next request if it is due: when it was.
    pub(crate) fn take_due(&mut self, now: u64) -> Option<u64> {
        let open = self.open.as_mut().filter(|o| o.due <= now)?;
        let due = open.due;
        open.advance();
        Some(due)
    }

    /// A connection has nothing to do.
    pub(crate) fn put_free(&mut self, id: u32) {
        self.free.push_back(id);
    }

    pub(crate) fn take_free(&mut self) -> Option<u32> {
        self.free.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn threads_share_a_schedule() {
        let schedule = Schedule::constant(1000.0, Duration::from_millis(10));
        let mut times = Vec::new();
        for thread in 0..3 {
            let mut pace = Pace::open(schedule.clone(), thread, 3);
            pace.begin(5_000);
            assert_eq!(pace.wake_at(), u64::MAX, "no connection is free");
            while let Some(due) = pace.take_due(u64::MAX - 1) {
                times.push(due);
            }
        }
        times.sort_unstable();
        assert_eq!(times, (0..10).map(|i| 5_000 + i * 1_000_000).collect::<Vec<u64>>());
    }
}
