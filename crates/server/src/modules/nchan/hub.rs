//! The channels of the process, and this thread's part in them: whom of its subscribers a message wakes. From: `subscribe`, `held`.

use push::{Channel, Mailbox, Store, Subscription};
use runtime::timer::Timer;
use runtime::{TaskId, clock};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// How often this thread drops what is of no use any more from a part of the store.
const SWEEP: Duration = Duration::from_millis(250);

/// All channels. They outlive reloads.
static STORE: LazyLock<Store> = LazyLock::new(Store::new);

struct Hub {
    mailbox: Arc<Mailbox>,
    /// By the channel's address: it lives as long as it has subscribers. In the order of their places: those that came one after the other lie
    /// side by side in memory, here and in the kernel, and what wakes all goes through it once.
    tasks: HashMap<usize, BTreeSet<TaskId>>,
}

/// Subscribers that were dropped since they were too slow.
pub(super) static DROPPED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static HUB: RefCell<Option<Hub>> = const { RefCell::new(None) };
}

/// The channels of the process.
pub(super) fn store() -> &'static Store {
    begin();
    &STORE
}

/// This thread's mailbox.
pub(super) fn mailbox() -> Arc<Mailbox> {
    begin();
    HUB.with_borrow(|hub| hub.as_ref().map(|h| h.mailbox.clone())).unwrap_or_default()
}

/// The time of ids and timeouts, s.
pub(super) fn now() -> i64 {
    clock::wall_seconds()
}

/// Starts the thread's task with its first channel.
fn begin() {
    let is_new = HUB.with_borrow_mut(|hub| {
        let is_new = hub.is_none();
        hub.get_or_insert_with(|| Hub { mailbox: Mailbox::new(), tasks: HashMap::new() });
        is_new
    });
    if is_new {
        runtime::spawn(serve());
    }
}

/// Hands out what comes into the mailbox, and sweeps.
async fn serve() {
    let (timer, mut changed) = (Timer::new(), Vec::new());
    let mailbox = mailbox();
    loop {
        if let Some(bytes) = crate::worker::snapshot().main.nchan.memory {
            STORE.set_memory(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
        timer.set(SWEEP);
        poll_fn(|cx| {
            mailbox.take(cx.waker(), &mut changed);
            changed.drain(..).for_each(|channel| wake(&channel));
            timer.poll_expired(cx)
        })
        .await;
        STORE.sweep(now());
    }
}

fn wake(channel: &Arc<Channel>) {
    HUB.with_borrow(|hub| {
        let tasks = hub.as_ref().and_then(|h| h.tasks.get(&address(channel)));
        tasks.into_iter().flatten().for_each(|task| runtime::wake(*task));
    });
}

fn address(channel: &Arc<Channel>) -> usize {
    Arc::as_ptr(channel).addr()
}

/// A subscription of this thread whose task is woken when there is something for it.
pub(super) struct Listening {
    /// Its place.
    pub(super) subscription: Subscription,
    task: TaskId,
}

impl Listening {
    /// Nobody is woken yet: the task that looks first is.
    pub(super) fn new(subscription: Subscription) -> Listening {
        Listening { subscription, task: TaskId::NOBODY }
    }

    /// From now on the running task is woken. It is another one than before when a stream's request gets a task of its own.
    pub(super) fn listen(&mut self) {
        let task = runtime::current();
        if task == self.task {
            return;
        }
        self.leave();
        self.task = task;
        HUB.with_borrow_mut(|hub| {
            let Some(hub) = hub else { return };
            for channel in self.subscription.channels() {
                hub.tasks.entry(address(channel)).or_default().insert(task);
            }
        });
    }

    fn leave(&mut self) {
        if self.task == TaskId::NOBODY {
            return;
        }
        // The thread's storage may be gone already when a thread ends.
        let _ = HUB.try_with(|hub| {
            let mut hub = hub.borrow_mut();
            let Some(hub) = hub.as_mut() else { return };
            for channel in self.subscription.channels() {
                if let Some(tasks) = hub.tasks.get_mut(&address(channel)) {
                    tasks.remove(&self.task);
                    if tasks.is_empty() {
                        hub.tasks.remove(&address(channel));
                    }
                }
            }
        });
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.leave();
    }
}
