//! How a thread learns which of its channels have changed: one mailbox for each thread, however many subscribers it has.

use crate::channel::Channel;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::task::Waker;

/// A thread's mailbox. Publishing puts the channel in and wakes the thread; whom of its subscribers that concerns is the thread's
/// business. A channel lies in it once at most, so it is bounded by their number.
#[derive(Debug, Default)]
pub struct Mailbox {
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    changed: Vec<Arc<Channel>>,
    /// The addresses of those.
    names: HashSet<usize>,
    waker: Option<Waker>,
}

impl Mailbox {
    /// An empty one.
    pub fn new() -> Arc<Mailbox> {
        Arc::default()
    }

    /// Takes the channels that have changed into `changed`, which is empty. Whoever asks is woken by `waker` when there are others.
    pub fn take(&self, waker: &Waker, changed: &mut Vec<Arc<Channel>>) {
        let mut inside = self.inside.lock().expect("nothing panics while it is locked");
        std::mem::swap(&mut inside.changed, changed);
        inside.names.clear();
        if !inside.waker.as_ref().is_some_and(|w| w.will_wake(waker)) {
            inside.waker = Some(waker.clone());
        }
    }

    pub(crate) fn put(&self, channel: Arc<Channel>) {
        let mut inside = self.inside.lock().expect("nothing panics while it is locked");
        let first = inside.changed.is_empty();
        if inside.names.insert(Arc::as_ptr(&channel).addr()) {
            inside.changed.push(channel);
        }
        if first && let Some(waker) = &inside.waker {
            waker.wake_by_ref();
        }
    }
}
