//! `queue`: requests that find no peer with room wait for one, first come first served, for all threads. A connection that
//! ends calls the first in the row. How a request stands in it is in `wait`.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// `queue NUMBER [timeout=TIME]`
#[derive(Clone, Debug)]
pub struct Line {
    /// Requests that may wait.
    pub most: usize,
    /// How long.
    pub timeout: Duration,
    /// Those that do.
    pub queue: Arc<Queue>,
}

/// Waiting requests of a group. Outlives reloads.
#[derive(Debug, Default)]
pub struct Queue {
    row: Mutex<VecDeque<Arc<Ticket>>>,
    len: AtomicUsize,
    overflows: AtomicU64,
}

/// A place in the row.
#[derive(Debug, Default)]
struct Ticket {
    called: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// Why a wait was in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InVain {
    /// Too many wait already, or none of the peers had room in time.
    NoRoom,
    /// The client has gone.
    ClientGone,
}

/// Queues as long as a configuration uses them, by the group's number.
static QUEUES: Mutex<Option<HashMap<u32, Weak<Queue>>>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    /// The queue of a group: the one that is there already, or a new one.
    pub fn find(group: u32) -> Arc<Queue> {
        let mut guard = lock(&QUEUES);
        let queues = guard.get_or_insert_default();
        queues.retain(|_, q| q.strong_count() > 0);
        if let Some(queue) = queues.get(&group).and_then(Weak::upgrade) {
            return queue;
        }
        let queue = Arc::<Queue>::default();
        queues.insert(group, Arc::downgrade(&queue));
        queue
    }

    /// Requests that wait now.
    pub fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Requests that could not even wait.
    pub fn overflows(&self) -> u64 {
        self.overflows.load(Relaxed)
    }

    /// There may be room: the first in the row shall look.
    pub fn call(&self) {
        if self.len.load(SeqCst) == 0 {
            return;
        }
        let first = lock(&self.row).front().cloned();
        if let Some(ticket) = first {
            ticket.called.store(true, SeqCst);
            if let Some(waker) = lock(&ticket.waker).take() {
                waker.wake();
            }
        }
    }

    pub(super) fn enter(self: &Arc<Queue>, most: usize) -> Option<Place> {
        let mut row = lock(&self.row);
        if row.len() >= most {
            self.overflows.fetch_add(1, Relaxed);
            return None;
        }
        let ticket = Arc::<Ticket>::default();
        row.push_back(ticket.clone());
        self.len.store(row.len(), SeqCst);
        Some(Place { queue: self.clone(), ticket })
    }
}

/// A place that is given up when it is dropped.
pub(super) struct Place {
    queue: Arc<Queue>,
    ticket: Arc<Ticket>,
}

impl Place {
    pub(super) fn is_first(&self) -> bool {
        lock(&self.queue.row).front().is_some_and(|t| Arc::ptr_eq(t, &self.ticket))
    }

    /// Ready when it was called since the last time.
    pub(super) fn poll_called(&self, cx: &Context<'_>) -> Poll<()> {
        *lock(&self.ticket.waker) = Some(cx.waker().clone());
        if self.ticket.called.swap(false, SeqCst) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut row = lock(&self.queue.row);
        row.retain(|t| !Arc::ptr_eq(t, &self.ticket));
        self.queue.len.store(row.len(), SeqCst);
        drop(row);
        // There may be room for one more, and a call that came too late is the next one's.
        self.queue.call();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_bounded_and_calls_its_first() {
        let queue = Queue::find(u32::MAX - 1);
        assert!(Arc::ptr_eq(&queue, &Queue::find(u32::MAX - 1)));
        let first = queue.enter(2).expect("there is room");
        let second = queue.enter(2).expect("there is room");
        assert!(queue.enter(2).is_none());
        assert_eq!((queue.len(), queue.overflows()), (2, 1));
        let called = |p: &Place| p.poll_called(&Context::from_waker(Waker::noop())).is_ready();
        queue.call();
        assert!(!called(&second) && called(&first) && !called(&first));
        drop(first);
        assert!(second.is_first() && called(&second), "who leaves calls the next");
        drop(second);
        assert!(queue.is_empty());
    }
}
