//! Timeouts of one thread: a heap that is touched when a deadline passes, not when one is set.
//! A kept connection moves its deadline with every request; that is one store here. Never crosses threads.

use crate::TaskId;
use crate::clock::monotonic_ms;
use crate::table::Table;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// A deadline that is not set.
const NEVER: u64 = u64::MAX;

struct Entry {
    deadline: u64,
    /// The time under which the entry stands in the heap: at or before `deadline`, `NEVER` if it stands nowhere.
    queued: u64,
    /// The number of its item there.
    item: u32,
    task: TaskId,
}

struct Wheel {
    entries: Table<Entry>,
    free: Vec<u32>,
    /// By time, then in the order in which they came: an item's number, and the entry's place.
    heap: BinaryHeap<Reverse<(u64, u32, u32)>>,
    /// The number of the item that came last.
    last: u32,
    /// Items of the heap whose timer is gone, or stands earlier in it.
    stale: usize,
}

/// The heap is cleaned when it has so many stale items and they are half of it: short connections and short waits
/// under long timeouts would fill it otherwise.
const STALE: usize = 1024;

impl Wheel {
    fn has_stale(&mut self) {
        self.stale += 1;
        if self.stale >= STALE && self.stale * 2 > self.heap.len() {
            let entries = &self.entries;
            self.heap.retain(|Reverse((at, item, key))| {
                let e = &entries[*key as usize];
                e.item == *item && e.queued == *at
            });
            self.stale = 0;
        }
    }

    /// Puts an entry into the heap.
    fn queue(&mut self, key: u32, at: u64) {
        self.last = self.last.wrapping_add(1);
        let e = &mut self.entries[key as usize];
        (e.queued, e.item) = (at, self.last);
        self.heap.push(Reverse((at, self.last, key)));
    }
}

thread_local! {
    static WHEEL: RefCell<Wheel> =
        const { RefCell::new(Wheel { entries: Table::new(), free: Vec::new(), heap: BinaryHeap::new(), last: 0, stale: 0 }) };
}

/// One deadline, owned by a connection, an exchange or a task.
#[derive(Debug)]
pub struct Timer {
    key: u32,
}

impl Timer {
    /// A timer without a deadline.
    pub fn new() -> Timer {
        WHEEL.with_borrow_mut(|w| {
            let key = w.free.pop().unwrap_or_else(|| {
                let entry = Entry { deadline: NEVER, queued: NEVER, item: 0, task: TaskId::NOBODY };
                w.entries.push(entry) as u32
            });
            Timer { key }
        })
    }

    /// Sets the deadline to `after` from now.
    #[inline]
    pub fn set(&self, after: Duration) {
        let ms = after.as_secs().saturating_mul(1000).saturating_add(u64::from(after.subsec_millis()));
        let deadline = monotonic_ms().saturating_add(ms.min(u64::MAX / 4));
        WHEEL.with_borrow_mut(|w| {
            let e = &mut w.entries[self.key as usize];
            e.deadline = deadline;
            if deadline < e.queued {
                let earlier = e.queued != NEVER;
                w.queue(self.key, deadline);
                if earlier {
                    w.has_stale();
                }
            }
        });
    }

    /// Brings the deadline forward to `after` from now, unless it is earlier already.
    pub fn shorten(&self, after: Duration) {
        let at = monotonic_ms().saturating_add(after.as_millis().min(u64::MAX as u128 / 4) as u64);
        if WHEEL.with_borrow(|w| w.entries[self.key as usize].deadline) > at {
            self.set(after);
        }
    }

    /// Takes the deadline away.
    pub fn clear(&self) {
        WHEEL.with_borrow_mut(|w| w.entries[self.key as usize].deadline = NEVER);
    }

    /// How much time is left.
    pub fn left(&self) -> Duration {
        let deadline = WHEEL.with_borrow(|w| w.entries[self.key as usize].deadline);
        Duration::from_millis(deadline.saturating_sub(monotonic_ms()))
    }

    /// Whether a deadline is set and has passed.
    pub fn expired(&self) -> bool {
        WHEEL.with_borrow(|w| w.entries[self.key as usize].deadline <= monotonic_ms())
    }

    /// Ready once the deadline has passed; otherwise the running task is woken then.
    #[inline]
    pub fn poll_expired(&self, _: &mut Context<'_>) -> Poll<()> {
        WHEEL.with_borrow_mut(|w| {
            let e = &mut w.entries[self.key as usize];
            if e.deadline == NEVER {
                return Poll::Pending;
            }
            if e.deadline <= monotonic_ms() {
                return Poll::Ready(());
            }
            e.task = crate::current();
            Poll::Pending
        })
    }

    /// Runs `work` unless the deadline comes first.
    pub async fn guard<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            if let Poll::Ready(v) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(v));
            }
            self.poll_expired(cx).map(|()| None)
        })
        .await
    }
}

impl Default for Timer {
    fn default() -> Timer {
        Timer::new()
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // The thread's storage may be gone already when a thread ends.
        let _ = WHEEL.try_with(|w| {
            let mut w = w.borrow_mut();
            let e = &mut w.entries[self.key as usize];
            let queued = e.queued != NEVER;
            e.deadline = NEVER;
            e.queued = NEVER;
            w.free.push(self.key);
            if queued {
                w.has_stale();
            }
        });
    }
}

/// Waits for `after`.
pub async fn sleep(after: Duration) {
    let timer = Timer::new();
    timer.set(after);
    poll_fn(|cx| timer.poll_expired(cx)).await;
}

/// Wakes the owners of passed deadlines. The loop calls it once a turn.
pub fn fire_passed() {
    let now = monotonic_ms();
    WHEEL.with_borrow_mut(|w| {
        while let Some(&Reverse((at, item, key))) = w.heap.peek()
            && at <= now
        {
            w.heap.pop();
            let e = &mut w.entries[key as usize];
            if e.item != item || e.queued != at {
                w.stale = w.stale.saturating_sub(1);
                continue;
            }
            e.queued = NEVER;
            if e.deadline == NEVER {
                continue;
            }
            if e.deadline > now {
                let deadline = e.deadline;
                w.queue(key, deadline);
            } else {
                crate::wake(e.task);
            }
        }
    });
}

/// Milliseconds until the loop has to look again; none: no deadline is set.
pub fn until_next() -> Option<u64> {
    // One millisecond more than the distance: the coarse clock lags behind the kernel's timers.
    WHEEL.with_borrow(|w| w.heap.peek().map(|top| top.0.0.saturating_sub(monotonic_ms()) + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_does_not_fill_the_heap() {
        let kept = Timer::new();
        kept.set(Duration::from_secs(75));
        for _ in 0..20 * STALE {
            let t = Timer::new();
            t.set(Duration::from_secs(60));
            t.set(Duration::from_millis(20));
        }
        WHEEL.with_borrow(|w| {
            assert!(w.heap.len() <= 2 * STALE + 2, "{}", w.heap.len());
            assert!(w.heap.iter().any(|Reverse((_, _, key))| *key == kept.key));
        });
    }

    #[test]
    fn deadlines_of_one_moment_pass_in_the_order_in_which_they_were_set() {
        let timers: Vec<Timer> = (0..6).map(|_| Timer::new()).collect();
        // Places that are free again are used from the last to the first.
        drop(timers);
        let timers: Vec<Timer> = (0..6).map(|_| Timer::new()).collect();
        timers.iter().rev().for_each(|timer| timer.set(Duration::from_secs(30)));
        timers[2].set(Duration::from_secs(20));
        let mut keys: Vec<u32> = Vec::new();
        WHEEL.with_borrow_mut(|w| {
            while let Some(Reverse((at, item, key))) = w.heap.pop() {
                let e = &w.entries[key as usize];
                if (e.item, e.queued) == (item, at) {
                    keys.push(key);
                }
            }
        });
        let wanted: Vec<u32> = [2, 5, 4, 3, 1, 0].iter().map(|at: &usize| timers[*at].key).collect();
        assert_eq!(keys, wanted);
    }
}
