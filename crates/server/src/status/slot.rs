//! The place that a thread counts in. Each thread takes a number at its start and gives it back at its end, so that
//! everything that is counted can keep one block for each number, written by one thread alone.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Threads that can count at the same time. A worker thread beyond them shares the last place, and some of what it
/// counts is lost.
pub const SLOTS: usize = 1024;

const NONE: u32 = u32::MAX;

thread_local! {
    static MINE: Cell<u32> = const { Cell::new(NONE) };
    /// Gives the place of a thread back that is no worker, when it ends.
    static HELD: Cell<Option<Taken>> = const { Cell::new(None) };
}

/// A thread that has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its place.
    pub slot: usize,
    /// The number of a worker thread; none for others.
    pub worker: Option<usize>,
    /// The kernel's name for it.
    pub tid: i32,
}

static TAKEN: Mutex<Vec<Option<Thread>>> = Mutex::new(Vec::new());

fn taken() -> MutexGuard<'static, Vec<Option<Thread>>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The place of the running thread.
#[inline]
pub fn mine() -> usize {
    match MINE.get() {
        NONE => first(),
        slot => slot as usize,
    }
}

#[cold]
fn first() -> usize {
    let slot = take(None);
    HELD.set(Some(Taken(())));
    slot
}

/// Gives the place back when the thread ends.
pub struct Taken(());

impl Drop for Taken {
    fn drop(&mut self) {
        let slot = MINE.replace(NONE);
        if let Some(place) = taken().get_mut(slot as usize) {
            *place = None;
        }
    }
}

/// The running thread is a worker with this number.
pub fn enter(worker: usize) -> Taken {
    take(Some(worker));
    Taken(())
}

fn take(worker: Option<usize>) -> usize {
    let mut taken = taken();
    let free = taken.iter().position(Option::is_none).unwrap_or(taken.len()).min(SLOTS - 1);
    let thread = Thread { slot: free, worker, tid: rustix::thread::gettid().as_raw_nonzero().get() };
    match taken.get_mut(free) {
        Some(place) => *place = Some(thread),
        None => taken.push(Some(thread)),
    }
    MINE.set(free as u32);
    free
}

/// The worker threads that run now, by number.
pub fn workers() -> Vec<Thread> {
    let mut all: Vec<Thread> = taken().iter().flatten().filter(|t| t.worker.is_some()).copied().collect();
    all.sort_by_key(|t| t.worker);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again() {
        let place = |worker| std::thread::spawn(move || (enter(worker), mine()).1).join().expect("it ends");
        let (first, second) = (place(70), place(71));
        assert!(first < SLOTS && second < SLOTS);
        assert!(workers().iter().all(|t| t.worker != Some(70)), "who has ended is not there");
        let others = (0..2 * SLOTS).map(|_| std::thread::spawn(mine).join().expect("it ends"));
        assert!(others.max() < Some(SLOTS / 2), "threads that are no workers leave too");
        let inside = std::thread::spawn(|| {
            let _taken = enter(72);
            workers().iter().any(|t| t.worker == Some(72) && t.slot == mine())
        });
        assert!(inside.join().expect("it ends"));
    }
}
