//! Groups of channels: a part of their names, and limits for all of them together; filters that hear several of them, and messages that
//! are retained.

use crate::channel::Channel;
use crate::limits::{GROUP_BYTES, GROUP_SECONDS};
use crate::message::Message;
use crate::retained::Retained;
use crate::store::Shared;
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

/// How long a group's limits stay where nothing else of it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// They come with the requests of a location: some time after the last of those, Unix time.
    Since(i64),
    /// Somebody has set them.
    Always,
}

const NO_PANIC: &str = "nothing panics while it is locked";

/// A group. Counted always; limits hold where `nchan_channel_group_accounting` is on.
#[derive(Debug)]
pub struct Group {
    pub(crate) channels: AtomicU64,
    pub(crate) subscribers: AtomicU64,
    pub(crate) messages: AtomicU64,
    pub(crate) memory: AtomicU64,
    limits: Mutex<(Limits, Lasting)>,
    /// Changes with the filters.
    pub(crate) taps_version: AtomicU64,
    /// A lock that is taken under that of a channel, and under which that of a tap is.
    taps: Mutex<Topics<Arc<Channel>>>,
    retained: Mutex<Retained>,
    /// Bytes of its name.
    name: usize,
    /// Where it is billed.
    shared: Arc<Shared>,
}

impl Group {
    pub(crate) fn new(name: usize, shared: Arc<Shared>) -> Group {
        shared.changed(group_bytes(name) as isize);
        Group {
            channels: AtomicU64::default(),
            subscribers: AtomicU64::default(),
            messages: AtomicU64::default(),
            memory: AtomicU64::default(),
            limits: Mutex::new((Limits::default(), Lasting::Since(0))),
            taps_version: AtomicU64::default(),
            taps: Mutex::default(),
            retained: Mutex::default(),
            name,
            shared,
        }
    }

    /// Its limits.
    pub fn limits(&self) -> Limits {
        self.limits.lock().expect(NO_PANIC).0
    }

    /// Changes its limits by `change`. What has been set to last lasts.
    pub fn set_limits(&self, lasting: Lasting, change: impl FnOnce(&mut Limits)) {
        let mut limits = self.limits.lock().expect(NO_PANIC);
        change(&mut limits.0);
        if limits.1 != Lasting::Always {
            limits.1 = lasting;
        }
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
        let before = taps.bytes();
        let attached = attach(taps.entry(filter).get_or_insert_with(make));
        self.shared.changed((taps.bytes() - before) as isize);
        if is_new {
            self.taps_version.fetch_add(1, Release);
        }
        attached
    }

    /// Whether there is a channel of a filter.
    pub(crate) fn has_tap(&self, filter: &[u8]) -> bool {
        self.taps.lock().expect(NO_PANIC).get(filter).is_some()
    }

    /// Somebody hears a filter's channel no more: it goes if nobody does.
    pub(crate) fn leave_tap(&self, tap: &Channel) {
        let mut taps = self.taps.lock().expect(NO_PANIC);
        let before = taps.bytes();
        let is_here = taps.get(tap.id()).is_some_and(|here| std::ptr::eq(&**here, tap));
        if is_here && tap.is_unheard() && taps.remove(tap.id()).is_some() {
            self.shared.changed(-((before - taps.bytes()) as isize));
            self.taps_version.fetch_add(1, Release);
        }
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
        let before = taps.bytes();
        if taps.retain(|tap| !tap.is_unheard()) {
            self.shared.changed(-((before - taps.bytes()) as isize));
            self.taps_version.fetch_add(1, Release);
        }
        let mut retained = self.retained();
        retained.sweep(now);
        let is_limited = match *self.limits.lock().expect(NO_PANIC) {
            (limits, Lasting::Since(at)) => limits != Limits::default() && at + GROUP_SECONDS > now,
            (limits, Lasting::Always) => limits != Limits::default(),
        };
        taps.is_empty() && retained.is_empty() && !is_limited
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

impl Drop for Group {
    fn drop(&mut self) {
        self.shared.changed(-(group_bytes(self.name) as isize));
    }
}

/// What a group with a name of so many bytes costs, for the bill.
pub(crate) fn group_bytes(name: usize) -> usize {
    GROUP_BYTES + name
}
