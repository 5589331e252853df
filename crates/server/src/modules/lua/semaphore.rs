//! `ngx.semaphore`: coroutines of one thread wait for what others of it post, across requests and timers.

use super::operation::{Item, Operation, number};
use ::lua::Fault;
use hashbrown::HashMap;
use mlua::MultiValue;
use runtime::TaskId;
use runtime::timer::Timer;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

#[derive(Default)]
struct Semaphore {
    count: u64,
    queue: VecDeque<Rc<Waiter>>,
}

struct Waiter {
    task: Cell<TaskId>,
    granted: Cell<bool>,
}

thread_local! {
    static ALL: RefCell<HashMap<u32, Semaphore>> = RefCell::default();
    static LAST: Cell<u32> = const { Cell::new(0) };
}

/// Owned by Lua: the semaphore goes with it.
pub struct Guard(u32);

impl mlua::UserData for Guard {}

impl Drop for Guard {
    fn drop(&mut self) {
        // The thread's storage may be gone already when a thread ends.
        let _ = ALL.try_with(|all| all.borrow_mut().remove(&self.0));
    }
}

/// A new one.
pub fn make(count: u64) -> (u32, Guard) {
    let number = LAST.get().wrapping_add(1);
    LAST.set(number);
    ALL.with_borrow_mut(|all| all.insert(number, Semaphore { count, ..Semaphore::default() }));
    (number, Guard(number))
}

/// Gives something to those who wait, in their order; the rest is kept.
pub fn post(number: u32, count: u64) {
    ALL.with_borrow_mut(|all| {
        let Some(semaphore) = all.get_mut(&number) else { return };
        for left in (1..=count).rev() {
            match semaphore.queue.pop_front() {
                Some(waiter) => {
                    waiter.granted.set(true);
                    runtime::wake(waiter.task.get());
                }
                None => {
                    semaphore.count += left;
                    break;
                }
            }
        }
    });
}

/// Takes one if there is one.
pub fn take(number: u32) -> bool {
    ALL.with_borrow_mut(|all| match all.get_mut(&number) {
        Some(semaphore) if semaphore.count > 0 => {
            semaphore.count -= 1;
            true
        }
        _ => false,
    })
}

/// How many there are; negative: so many wait.
pub fn count(number: u32) -> i64 {
    ALL.with_borrow(|all| all.get(&number).map_or(0, |s| s.count as i64 - s.queue.len() as i64))
}

/// Its place in the queue, which is left when nobody waits any more.
struct Ticket(u32, Rc<Waiter>);

impl Drop for Ticket {
    fn drop(&mut self) {
        let granted = self.1.granted.get();
        ALL.with_borrow_mut(|all| {
            if let Some(semaphore) = all.get_mut(&self.0) {
                semaphore.queue.retain(|w| !Rc::ptr_eq(w, &self.1));
            }
        });
        if granted {
            post(self.0, 1);
        }
    }
}

/// Waits for one, for so many seconds.
pub fn wait(arguments: &MultiValue) -> Result<Operation, Fault> {
    let number_of = |at: usize| arguments.get(at).and_then(number).unwrap_or(0.0);
    let (semaphore, seconds) = (number_of(0) as u32, number_of(1));
    let waiter = Rc::new(Waiter { task: Cell::new(runtime::current()), granted: Cell::new(false) });
    ALL.with_borrow_mut(|all| {
        if let Some(semaphore) = all.get_mut(&semaphore) {
            semaphore.queue.push_back(waiter.clone());
        }
    });
    let ticket = Ticket(semaphore, waiter);
    Ok(Box::pin(async move {
        let timer = Timer::new();
        timer.set(Duration::from_secs_f64(seconds.min(f64::from(u32::MAX))));
        let granted = poll_fn(|cx| {
            ticket.1.task.set(runtime::current());
            if ticket.1.granted.get() {
                return Poll::Ready(true);
            }
            timer.poll_expired(cx).map(|()| false)
        })
        .await;
        if granted {
            // It is the program's now.
            ticket.1.granted.set(false);
            return vec![Item::Flag(true)];
        }
        vec![Item::Nil, "timeout".into()]
    }))
}
