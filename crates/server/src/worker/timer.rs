//! Timeouts of one worker thread: a heap that is touched when a deadline passes, not when one is set.
//! A kept connection moves its deadline with every request; that is one store here. Never crosses threads.

use super::clock::monotonic_ms;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A deadline that is not set.
const NEVER: u64 = u64::MAX;

struct Entry {
    deadline: u64,
    /// The time under which the entry stands in the heap: at or before `deadline`, `NEVER` if it stands nowhere.
    queued: u64,
    generation: u32,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Wheel {
    entries: Vec<Entry>,
    free: Vec<u32>,
    heap: BinaryHeap<Reverse<(u64, u32, u32)>>,
    driver: Option<Rc<tokio::sync::Notify>>,
}

thread_local! { static WHEEL: RefCell<Wheel> = RefCell::default(); }

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
                w.entries.push(Entry { deadline: NEVER, queued: NEVER, generation: 0, waker: None });
                (w.entries.len() - 1) as u32
            });
            Timer { key }
        })
    }

    /// Sets the deadline to `after` from now.
    pub fn set(&self, after: Duration) {
        let deadline = monotonic_ms().saturating_add(after.as_millis().min(u64::MAX as u128 / 4) as u64);
        WHEEL.with_borrow_mut(|w| {
            let e = &mut w.entries[self.key as usize];
            e.deadline = deadline;
            if deadline < e.queued {
                e.queued = deadline;
                let item = Reverse((deadline, self.key, e.generation));
                let first = w.heap.peek().is_none_or(|top| top.0.0 > deadline);
                w.heap.push(item);
                if first && let Some(driver) = &w.driver {
                    driver.notify_one();
                }
            }
        });
    }

    /// Takes the deadline away.
    pub fn clear(&self) {
        WHEEL.with_borrow_mut(|w| w.entries[self.key as usize].deadline = NEVER);
    }

    /// Whether a deadline is set and has passed.
    pub fn expired(&self) -> bool {
        WHEEL.with_borrow(|w| w.entries[self.key as usize].deadline <= monotonic_ms())
    }

    /// Ready once the deadline has passed; otherwise the task is woken then.
    pub fn poll_expired(&self, cx: &mut Context<'_>) -> Poll<()> {
        WHEEL.with_borrow_mut(|w| {
            let e = &mut w.entries[self.key as usize];
            if e.deadline == NEVER {
                return Poll::Pending;
            }
            if e.deadline <= monotonic_ms() {
                return Poll::Ready(());
            }
            match &e.waker {
                Some(waker) if waker.will_wake(cx.waker()) => {}
                _ => e.waker = Some(cx.waker().clone()),
            }
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
            e.generation = e.generation.wrapping_add(1);
            e.deadline = NEVER;
            e.queued = NEVER;
            e.waker = None;
            w.free.push(self.key);
        });
    }
}

/// Waits for `after`.
pub async fn sleep(after: Duration) {
    let timer = Timer::new();
    timer.set(after);
    poll_fn(|cx| timer.poll_expired(cx)).await;
}

/// Wakes the owners of passed deadlines; one task a thread.
pub async fn drive() {
    let notify = Rc::new(tokio::sync::Notify::new());
    WHEEL.with_borrow_mut(|w| w.driver = Some(notify.clone()));
    loop {
        match fire_passed() {
            None => notify.notified().await,
            Some(wait) => {
                let mut sleep = pin!(tokio::time::sleep(wait));
                let mut notified = pin!(notify.notified());
                poll_fn(|cx| {
                    if Pin::new(&mut notified).poll(cx).is_ready() {
                        return Poll::Ready(());
                    }
                    sleep.as_mut().poll(cx)
                })
                .await;
            }
        }
    }
}

/// Wakes what has passed and tells how long until the next.
fn fire_passed() -> Option<Duration> {
    let now = monotonic_ms();
    loop {
        let waker = WHEEL.with_borrow_mut(|w| {
            let &Reverse((at, key, generation)) = w.heap.peek()?;
            if at > now {
                return None;
            }
            w.heap.pop();
            let e = &mut w.entries[key as usize];
            if e.generation != generation || e.queued != at {
                return Some(None);
            }
            e.queued = NEVER;
            if e.deadline == NEVER {
                return Some(None);
            }
            if e.deadline > now {
                e.queued = e.deadline;
                let item = Reverse((e.deadline, key, generation));
                w.heap.push(item);
                return Some(None);
            }
            Some(e.waker.take())
        });
        match waker {
            None => break,
            Some(None) => {}
            Some(Some(waker)) => waker.wake(),
        }
    }
    // One millisecond more than asked: the coarse clock lags behind the runtime's.
    WHEEL.with_borrow(|w| w.heap.peek().map(|top| Duration::from_millis(top.0.0.saturating_sub(now) + 1)))
}
