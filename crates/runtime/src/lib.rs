//! The loop of one thread: its tasks, and what wakes them: descriptors ([`io`]), deadlines ([`timer`]), other threads.
//! One thread without locks; only a wake from elsewhere takes one. It knows nothing of what is served: what is to happen around a
//! turn are [`Hooks`] of whoever runs it.
//!
//! ```text
//!   turn:  tasks that were woken -> what is to leave before a sleep -> epoll_wait -> marks readiness, wakes tasks -> passed deadlines
//! ```
//! What is under way is finished before more is begun: tasks that a peer has answered run first. Under load requests then
//! wait in the kernel, where they cost nothing, and few are in memory at once (measured: perf/notes/2026-11-22-loop.md).
//! A descriptor or a deadline wakes the task that asked last, whatever waker it asked with: combinators that poll parts of
//! a task under wakers of their own (`FuturesUnordered`) do not work here. Why not tokio: docs/decisions/0004.

pub mod clock;
pub mod io;
pub mod table;
pub mod timer;

use rustix::event::{EventfdFlags, eventfd};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use table::Table;

/// Tasks that run before the kernel is asked for news again.
const TASKS_A_TURN: usize = 64;
/// The same for tasks that may begin something, while there are others to finish.
const BEGUN_A_TURN: usize = 16;
/// Tasks that run before the clock is read again: some hundred microseconds under full load.
const TASKS_A_TICK: usize = 16;
/// Reads and writes that a task may do in one go before others get their turn.
const BUDGET: u32 = 128;
/// The steps of the coarse clock on most kernels, ms: so much later it shows a time for certain.
const CLOCK_STEP_MS: u64 = 4;
/// No task.
const NOBODY: u32 = u32::MAX;

/// A task's place in its thread's table. A place is used again: who wakes a task that is gone may wake another, which
/// finds nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskId(u32);

impl TaskId {
    /// No task.
    pub const NOBODY: TaskId = TaskId(NOBODY);
}

/// Whether something of a thread's is to leave before it sleeps: gathered log lines, for instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// Nothing is.
    Nothing,
    /// Something is, which may wait for more of it while the thread is busy.
    CanWait,
    /// Something has waited long enough, or somebody waits for it.
    Due,
}

/// What whoever runs a loop wants to be called for. Each is called at most once a turn and must not wait.
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// Whether something is to leave before the thread sleeps.
    pub pending: fn() -> Pending,
    /// Lets it leave.
    pub before_sleep: fn(),
    /// A turn begins; gives the time if this one is to be timed.
    pub turn_began: fn() -> Option<Instant>,
    /// The turn is over, what the kernel is asked for next excluded; so many times a task was run in it.
    pub turn_ended: fn(Option<Instant>, u64),
    /// A task has panicked and was given up; the others go on.
    pub panicked: fn(),
}

impl Hooks {
    /// Nobody wants to know.
    pub const NONE: Hooks = Hooks {
        pending: || Pending::Nothing,
        before_sleep: || (),
        turn_began: || None,
        turn_ended: |_, _| (),
        panicked: || (),
    };
}

/// What a waker refers to.
struct TaskWaker {
    task: u32,
    thread: Arc<Remote>,
}

/// A thread as other threads see it.
struct Remote {
    woken: Mutex<Vec<u32>>,
    /// An eventfd, readable when `woken` is not empty.
    notifier: OwnedFd,
}

struct Task {
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    /// Made once for a place; none while the task runs.
    waker: Option<Waker>,
    queued: bool,
    /// Nobody lives here.
    free: bool,
}

struct Engine {
    tasks: RefCell<Table<Task>>,
    free: RefCell<Vec<u32>>,
    ready: RefCell<VecDeque<u32>>,
    /// Those that run first.
    urgent: RefCell<VecDeque<u32>>,
    current: Cell<u32>,
    /// How many times a task was run in this turn, those included that another one has started at once.
    polls: Cell<u64>,
    budget: Cell<u32>,
    /// What it did took so long that it is not to begin anything more in this go.
    spent: Cell<bool>,
    tick_ms: Cell<u64>,
    remote: OnceCell<Arc<Remote>>,
    hooks: Cell<Hooks>,
}

thread_local! {
    static ENGINE: Engine = const {
        Engine {
            tasks: RefCell::new(Table::new()),
            free: RefCell::new(Vec::new()),
            ready: RefCell::new(VecDeque::new()),
            urgent: RefCell::new(VecDeque::new()),
            current: Cell::new(NOBODY),
            polls: Cell::new(0),
            budget: Cell::new(0),
            spent: Cell::new(false),
            tick_ms: Cell::new(0),
            remote: OnceCell::new(),
            hooks: Cell::new(Hooks::NONE),
        }
    };
}

/// Runs the thread's tasks until `main` has ended; the others are dropped then.
///
/// # Errors
/// No descriptors for the loop itself.
///
/// # Panics
/// The thread has run a loop before.
pub fn run(hooks: Hooks, main: impl Future<Output = ()> + 'static) -> std::io::Result<()> {
    let notifier = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let remote = Remote { woken: Mutex::default(), notifier };
    io::start(&remote.notifier)?;
    ENGINE.with(|e| {
        assert!(e.remote.set(Arc::new(remote)).is_ok(), "a thread has one loop");
        e.hooks.set(hooks);
        let done = Rc::new(Cell::new(false));
        let over = done.clone();
        e.spawn(Box::pin(async move {
            main.await;
            over.set(true);
        }));
        clock::keep_time();
        while !done.get() {
            e.turn(&done);
        }
        let tasks = std::mem::take(&mut *e.tasks.borrow_mut());
        e.ready.borrow_mut().clear();
        e.urgent.borrow_mut().clear();
        drop(tasks);
    });
    Ok(())
}

/// Starts a task on this thread. It runs from the next turn on.
pub fn spawn(future: impl Future<Output = ()> + 'static) -> TaskId {
    let future: Pin<Box<dyn Future<Output = ()>>> = Box::pin(future);
    TaskId(ENGINE.with(|e| e.spawn(future)))
}

/// The same, and runs it at once as far as it comes without waiting; then the task that started it goes on.
pub fn spawn_now(future: impl Future<Output = ()> + 'static) -> TaskId {
    let future: Pin<Box<dyn Future<Output = ()>>> = Box::pin(future);
    TaskId(ENGINE.with(|e| {
        let id = e.settle(future);
        let (current, budget, spent) = (e.current.get(), e.budget.get(), e.spent.get());
        e.poll(id);
        e.current.set(current);
        e.budget.set(budget);
        e.spent.set(spent || e.spent.get());
        id
    }))
}

/// From now on this thread, when it has worked, sleeps until the next multiple of `ms` whatever comes: for work that is not
/// urgent and much of which shares a wake-up then. 0: it takes news as they come.
pub fn set_tick(ms: u64) {
    ENGINE.with(|e| e.tick_ms.set(ms));
}

/// Waits for the thread's next tick; without one, not at all.
pub async fn next_tick() {
    if ENGINE.with(|e| e.tick_ms.get()) > 0 {
        timer::sleep(Duration::from_millis(1)).await;
    }
}

/// The task that is running.
#[inline]
pub fn current() -> TaskId {
    TaskId(ENGINE.with(|e| e.current.get()))
}

/// Lets a task of this thread run again.
pub fn wake(task: TaskId) {
    // The thread's storage may be gone already when a thread ends.
    let _ = ENGINE.try_with(|e| e.wake(task.0));
}

/// The same before all that are not as urgent: a peer has answered it, or datagrams have come for it.
pub fn wake_first(task: TaskId) {
    let _ = ENGINE.try_with(|e| e.queue(task.0, &e.urgent));
}

/// Lets every task of this thread look around: something has changed that concerns all.
pub fn wake_all() {
    ENGINE.with(|e| {
        let count = e.tasks.borrow().len() as u32;
        (0..count).for_each(|task| e.wake(task));
    });
}

/// Lets the others run first.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|_| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        wake(current());
        Poll::Pending
    })
    .await;
}

/// The task that is running has used as much of the thread's time as many others do in a turn: a connection with more
/// requests takes the next one when the others have had their turn.
pub fn spend_turn() {
    let _ = ENGINE.try_with(|e| e.spent.set(true));
}

/// Whether the task that is running is to let the others run first.
#[inline]
pub fn turn_is_spent() -> bool {
    ENGINE.with(|e| e.spent.get())
}

/// Whether the task may do one more read or write; if not, it is woken again after the others.
#[inline]
pub fn may_go_on() -> bool {
    ENGINE.with(|e| {
        let left = e.budget.get();
        if left == 0 && e.current.get() != NOBODY {
            e.wake(e.current.get());
            return false;
        }
        e.budget.set(left.saturating_sub(1));
        true
    })
}

impl Engine {
    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()>>>) -> u32 {
        let id = self.settle(future);
        self.wake(id);
        id
    }

    /// Gives a task its place.
    fn settle(&self, future: Pin<Box<dyn Future<Output = ()>>>) -> u32 {
        let mut tasks = self.tasks.borrow_mut();
        let id = self.free.borrow_mut().pop().unwrap_or_else(|| {
            let id = tasks.len() as u32;
            let thread = self.remote.get().expect("tasks are started inside of `run`").clone();
            let waker = Some(Waker::from(Arc::new(TaskWaker { task: id, thread })));
            tasks.push(Task { future: None, waker, queued: false, free: true });
            id
        });
        let task = &mut tasks[id as usize];
        task.future = Some(future);
        task.free = false;
        id
    }

    #[inline]
    fn wake(&self, id: u32) {
        self.queue(id, &self.ready);
    }

    #[inline]
    fn queue(&self, id: u32, queue: &RefCell<VecDeque<u32>>) {
        if let Some(task) = self.tasks.borrow_mut().get_mut(id as usize)
            && !task.free
            && !std::mem::replace(&mut task.queued, true)
        {
            queue.borrow_mut().push_back(id);
        }
    }

    fn turn(&self, done: &Cell<bool>) {
        let hooks = self.hooks.get();
        self.polls.set(0);
        let began = (hooks.turn_began)();
        let finished = self.run(&self.urgent, TASKS_A_TURN, done);
        let most = if finished > 0 { BEGUN_A_TURN } else { TASKS_A_TURN };
        // What those have handed on is finished before the kernel is asked for news again.
        let begun = self.run(&self.ready, most, done) + self.run(&self.urgent, TASKS_A_TURN, done);
        if done.get() {
            return;
        }
        let woken = self.wait(&hooks, finished + begun, began);
        clock::refresh();
        timer::fire_passed();
        if woken {
            self.wake_from_elsewhere();
        }
    }

    /// Sees what is new, and waits for it if there is nothing else to do. True when another thread has woken a task. `ran`: how many
    /// tasks did; after several there may be news without waiting. `began`: when the turn did, if it is timed.
    fn wait(&self, hooks: &Hooks, ran: usize, began: Option<Instant>) -> bool {
        let idle = self.ready.borrow().is_empty() && self.urgent.borrow().is_empty();
        let pending = (hooks.pending)();
        // What is pending leaves before the thread sleeps. As long as it does not, it gathers for fewer and larger writes.
        if pending == Pending::CanWait && (ran > 1 || !idle) {
            let news = io::wait(Some(0));
            if news.count > 0 || !idle {
                (hooks.turn_ended)(began, self.polls.get());
                return news.notified;
            }
        }
        if pending != Pending::Nothing {
            (hooks.before_sleep)();
        }
        (hooks.turn_ended)(began, self.polls.get());
        let tick_ms = self.tick_ms.get();
        if idle && ran > 0 && tick_ms > 0 {
            let rest_ms = tick_ms - clock::monotonic_ms() % tick_ms;
            std::thread::sleep(Duration::from_millis(rest_ms + CLOCK_STEP_MS));
            return io::wait(Some(0)).notified;
        }
        io::wait(if idle { timer::until_next() } else { Some(0) }).notified
    }

    /// Runs tasks of a queue, those that are in it now and at most so many. How many it were.
    fn run(&self, queue: &RefCell<VecDeque<u32>>, most: usize, done: &Cell<bool>) -> usize {
        let count = queue.borrow().len().min(most);
        for number in 1..=count {
            let next = queue.borrow_mut().pop_front();
            let Some(id) = next else { break };
            self.poll(id);
            if done.get() {
                break;
            }
            if number % TASKS_A_TICK == 0 {
                clock::refresh();
            }
        }
        count
    }

    fn poll(&self, id: u32) {
        let (mut future, waker) = {
            let mut tasks = self.tasks.borrow_mut();
            let task = &mut tasks[id as usize];
            task.queued = false;
            let Some(future) = task.future.take() else { return };
            (future, task.waker.take().expect("a task that is not running has its waker"))
        };
        self.current.set(id);
        self.polls.set(self.polls.get() + 1);
        self.budget.set(BUDGET);
        self.spent.set(false);
        let mut cx = Context::from_waker(&waker);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx)));
        if let Ok(Poll::Pending) = polled {
            let task = &mut self.tasks.borrow_mut()[id as usize];
            (task.future, task.waker) = (Some(future), Some(waker));
        } else {
            if polled.is_err() {
                (self.hooks.get().panicked)();
            }
            // What the task owned may wake others when it is dropped.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
            let task = &mut self.tasks.borrow_mut()[id as usize];
            (task.waker, task.free) = (Some(waker), true);
            self.free.borrow_mut().push(id);
        }
        self.current.set(NOBODY);
    }

    /// Wakes the tasks that other threads have asked for.
    fn wake_from_elsewhere(&self) {
        let Some(remote) = self.remote.get() else { return };
        let mut count = [0; 8];
        let _ = rustix::io::read(&remote.notifier, &mut count);
        let woken = std::mem::take(&mut *remote.woken.lock().expect("nothing panics while it is locked"));
        woken.into_iter().for_each(|id| self.wake(id));
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let here = ENGINE.try_with(|e| match e.remote.get() {
            Some(remote) if Arc::ptr_eq(remote, &self.thread) => {
                e.wake(self.task);
                true
            }
            _ => false,
        });
        if here != Ok(true) {
            self.thread.wake(self.task);
        }
    }
}

impl Remote {
    /// Wakes a task from another thread.
    fn wake(&self, task: u32) {
        let mut woken = self.woken.lock().expect("nothing panics while it is locked");
        let first = woken.is_empty();
        if !woken.contains(&task) {
            woken.push(task);
        }
        drop(woken);
        if first {
            // Only a counter near 2^64 could refuse.
            let _ = rustix::io::write(&self.notifier, &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a future on an engine of its own thread.
    fn on_engine<T: Send + 'static>(work: impl AsyncFnOnce() -> T + Send + 'static) -> T {
        let (tx, rx) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            run(Hooks::NONE, async move {
                let _ = tx.send(work().await);
            })
            .expect("two descriptors");
        });
        let result = rx.recv().expect("the work ends");
        thread.join().expect("the thread ends");
        result
    }

    #[test]
    fn tasks_take_turns() {
        let order = on_engine(async || {
            let order = Rc::new(RefCell::new(Vec::new()));
            let (a, b) = (order.clone(), order.clone());
            spawn(async move {
                for _ in 0..3 {
                    a.borrow_mut().push('a');
                    yield_now().await;
                }
            });
            spawn(async move {
                for _ in 0..3 {
                    b.borrow_mut().push('b');
                    yield_now().await;
                }
            });
            while order.borrow().len() < 6 {
                yield_now().await;
            }
            order.borrow().iter().collect::<String>()
        });
        assert_eq!(order, "ababab");
    }

    #[test]
    fn a_task_that_is_started_now_runs_first_and_the_other_goes_on() {
        let order = on_engine(async || {
            let order = Rc::new(RefCell::new(Vec::new()));
            let mine = current();
            for name in ['a', 'b'] {
                let log = order.clone();
                spawn_now(async move {
                    log.borrow_mut().push(name);
                    yield_now().await;
                    log.borrow_mut().push(name);
                });
                order.borrow_mut().push('-');
            }
            assert_eq!(current(), mine);
            spawn_now(async { panic!("for the test") });
            while order.borrow().len() < 6 {
                yield_now().await;
            }
            order.borrow().iter().collect::<String>()
        });
        assert_eq!(order, "a-b-ab");
    }

    #[test]
    fn another_thread_wakes_a_task() {
        let slept = on_engine(async || {
            let arrived = Arc::new(Mutex::new(None));
            let (began, mine) = (Instant::now(), arrived.clone());
            let mut thread = None;
            std::future::poll_fn(|cx| {
                if arrived.lock().expect("nobody panics").is_some() {
                    return Poll::Ready(());
                }
                thread.get_or_insert_with(|| {
                    let (waker, mine) = (cx.waker().clone(), mine.clone());
                    std::thread::spawn(move || {
                        std::thread::sleep(Duration::from_millis(30));
                        *mine.lock().expect("nobody panics") = Some(());
                        waker.wake();
                    })
                });
                Poll::Pending
            })
            .await;
            began.elapsed()
        });
        assert!(slept >= Duration::from_millis(30));
    }

    #[test]
    fn hooks_are_called_before_a_sleep_and_after_a_panic() {
        thread_local! {
            static CALLED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
        }
        let hooks = Hooks {
            pending: || if CALLED.with_borrow(Vec::is_empty) { Pending::Due } else { Pending::Nothing },
            before_sleep: || CALLED.with_borrow_mut(|c| c.push("before_sleep")),
            panicked: || CALLED.with_borrow_mut(|c| c.push("panicked")),
            ..Hooks::NONE
        };
        let thread = std::thread::spawn(move || {
            run(hooks, async {
                timer::sleep(Duration::from_millis(1)).await;
                spawn_now(async { panic!("for the test") });
            })
            .expect("two descriptors");
            CALLED.take()
        });
        assert_eq!(thread.join().expect("the thread ends"), ["before_sleep", "panicked"]);
    }

    #[test]
    fn deadlines_pass_in_order_and_panics_cost_one_task() {
        let order = on_engine(async || {
            let order = Rc::new(RefCell::new(Vec::new()));
            for ms in [60, 20, 40] {
                let order = order.clone();
                spawn(async move {
                    timer::sleep(Duration::from_millis(ms)).await;
                    order.borrow_mut().push(ms);
                });
            }
            spawn(async { panic!("for the test") });
            while order.borrow().len() < 3 {
                timer::sleep(Duration::from_millis(5)).await;
            }
            order.take()
        });
        assert_eq!(order, [20, 40, 60]);
    }

    #[test]
    fn readiness_is_reported_until_it_is_cleared() {
        let got = on_engine(async || {
            use std::io::{Read, Write};
            use std::os::fd::AsFd;
            let (mut here, mut there) = std::os::unix::net::UnixStream::pair().expect("a pair");
            here.set_nonblocking(true).expect("a socket");
            let registration =
                io::Registration::new(here.as_fd(), io::Interest::Both).expect("a descriptor is watched");
            std::thread::spawn(move || {
                for piece in [b"one", b"two"] {
                    std::thread::sleep(Duration::from_millis(20));
                    there.write_all(piece).expect("the reader is there");
                }
            });
            let mut all = Vec::new();
            loop {
                std::future::poll_fn(|_| registration.poll_readable()).await;
                let mut piece = [0; 16];
                match here.read(&mut piece) {
                    Ok(0) => break all,
                    Ok(n) => all.extend_from_slice(&piece[..n]),
                    Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => registration.clear_readable(),
                    Err(e) => panic!("{e}"),
                }
            }
        });
        assert_eq!(got, b"onetwo");
    }
}
