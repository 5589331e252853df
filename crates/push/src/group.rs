//! Groups of channels: a part of their names, and limits for all of them together; filters that hear several of them, and messages that
//! are retained.

use crate::channel::Channel;
use crate::message::Message;
use crate::retained::Retained;
use crate::topics::Topics;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, MutexGuard};

/// What the channels of a group may have together; 0: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Channels.
    pub channels: u64,
    /// Subscribers.
    pub subscribers: u64,
    /// Messages in buffers.
    pub messages: u64,
    /// Bytes of those.
    pub memory: u64,
    /// Bytes of messages on disk; there are none here, so it limits nothing.
    pub disk: u64,
}

/// What they have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Channels.
    pub channels: u64,
    /// Subscribers.
    pub subscribers: u64,
    /// Messages.
    pub messages: u64,
    /// Bytes of messages.
    pub memory: u64,
}

const NO_PANIC: &str = "nothing panics while it is locked";

/// A group. Counted always; limits hold where `nchan_channel_group_accounting` is on.
#[derive(Debug, Default)]
pub struct Group {
    pub(crate) channels: AtomicU64,
    pub(crate) subscribers: AtomicU64,
    pub(crate) messages: AtomicU64,
    pub(crate) memory: AtomicU64,
    limits: Mutex<Limits>,
    /// Changes with the filters.
    pub(crate) taps_version: AtomicU64,
    /// A lock that is taken under that of a channel, and under which that of a tap is.
    taps: Mutex<Topics<Arc<Channel>>>,
    retained: Mutex<Retained>,
}

impl Group {
    /// Its limits.
    pub fn limits(&self) -> Limits {
        *self.limits.lock().expect("nothing panics while it is locked")
    }

    /// Changes its limits by `change`.
    pub fn set_limits(&self, change: impl FnOnce(&mut Limits)) {
        change(&mut self.limits.lock().expect("nothing panics while it is locked"));
    }

    /// What its channels have.
    pub fn totals(&self) -> Totals {
        Totals {
            channels: self.channels.load(Relaxed),
            subscribers: self.subscribers.load(Relaxed),
            messages: self.messages.load(Relaxed),
            memory: self.memory.load(Relaxed),
        }
    }

    /// The channel of a filter, made where there is none; `attach` is run before anybody could find it idle.
    pub(crate) fn tap<T>(
        &self,
        filter: &[u8],
        make: impl FnOnce() -> Arc<Channel>,
        attach: impl FnOnce(&Arc<Channel>) -> T,
    ) -> T {
        let mut taps = self.taps.lock().expect(NO_PANIC);
        let is_new = taps.get(filter).is_none();
        let attached = attach(taps.entry(filter).get_or_insert_with(make));
        if is_new {
            self.taps_version.fetch_add(1, Release);
        }
        attached
    }

    /// Those that hear a channel, and as of which version.
    pub(crate) fn taps_of(&self, id: &[u8]) -> (u64, Vec<Arc<Channel>>) {
        let taps = self.taps.lock().expect(NO_PANIC);
        let mut found = Vec::new();
        taps.find(id, &mut |tap| found.push(tap.clone()));
        (self.taps_version.load(Relaxed), found)
    }

    /// Those that somebody hears.
    pub(crate) fn heard_taps(&self) -> Vec<Arc<Channel>> {
        let taps = self.taps.lock().expect(NO_PANIC);
        let mut heard = Vec::new();
        taps.each(&mut |tap: &Arc<Channel>| heard.extend((!tap.is_unheard()).then(|| tap.clone())));
        heard
    }

    /// Whether anybody hears channels by filters.
    pub fn has_filters(&self) -> bool {
        !self.taps.lock().expect(NO_PANIC).is_empty()
    }

    /// What is retained.
    pub(crate) fn retained(&self) -> MutexGuard<'_, Retained> {
        self.retained.lock().expect(NO_PANIC)
    }

    /// The message that is retained for a channel.
    pub fn retained_of(&self, id: &[u8], now: i64) -> Option<Arc<Message>> {
        self.retained().of(id, now)
    }

    /// The next message that is retained for a channel that the filter names, in the order of their ids; and whose it is.
    pub fn next_retained(&self, filter: &[u8], after: Option<&[u8]>, now: i64) -> Option<(Arc<[u8]>, Arc<Message>)> {
        self.retained().next(filter, after, now)
    }

    /// Lets go of what nobody needs. True: of all.
    pub(crate) fn sweep(&self, now: i64) -> bool {
        let mut taps = self.taps.lock().expect(NO_PANIC);
        if taps.retain(|tap| !tap.is_unheard()) {
            self.taps_version.fetch_add(1, Release);
        }
        let mut retained = self.retained();
        retained.sweep(now);
        taps.is_empty() && retained.is_empty() && self.limits() == Limits::default()
    }

    pub(crate) fn stored(&self, bytes: usize) {
        self.messages.fetch_add(1, Relaxed);
        self.memory.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn dropped(&self, count: usize, bytes: usize) {
        self.messages.fetch_sub(count as u64, Relaxed);
        self.memory.fetch_sub(bytes as u64, Relaxed);
    }
}
