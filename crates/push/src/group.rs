//! Groups of channels: a part of their names, and limits for all of them together.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

/// A group. Counted always; limits hold where `nchan_channel_group_accounting` is on.
#[derive(Debug, Default)]
pub struct Group {
    pub(crate) channels: AtomicU64,
    pub(crate) subscribers: AtomicU64,
    pub(crate) messages: AtomicU64,
    pub(crate) memory: AtomicU64,
    limits: Mutex<Limits>,
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

    pub(crate) fn stored(&self, bytes: usize) {
        self.messages.fetch_add(1, Relaxed);
        self.memory.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn dropped(&self, count: usize, bytes: usize) {
        self.messages.fetch_sub(count as u64, Relaxed);
        self.memory.fetch_sub(bytes as u64, Relaxed);
    }
}
