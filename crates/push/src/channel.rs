//! One channel: its buffer, what is kept for readers that are behind, who reads.

use crate::group::Group;
use crate::id::Id;
use crate::leaving::{Parting, Settling};
use crate::limits::{TRAIL_BYTES, TRAIL_MESSAGES, TRAIL_SECONDS};
use crate::mailbox::Mailbox;
use crate::message::Message;
use crate::store::Shared;
use crate::subscription::Start;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// [`Channel::latest`] of a channel that was deleted.
pub(crate) const DELETED: u64 = u64::MAX;

/// No group has changed its filters so often.
const NO_VERSION: u64 = u64::MAX;

/// A channel. Whoever holds one that was deleted finds out by [`Channel::is_deleted`].
#[derive(Debug)]
pub struct Channel {
    name: Box<[u8]>,
    pub(crate) group: Arc<Group>,
    shared: Arc<Shared>,
    kind: Kind,
    /// The order of its newest message: who has taken that need not lock anything to know that there is no other.
    latest: AtomicU64,
    state: Mutex<State>,
}

/// Who gives a channel its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Publishers of this process.
    Own,
    /// Others, who also give the ids.
    Followed,
    /// Channels that a filter names.
    Tap,
}

/// Where a message comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// A publisher of this process: its id is made under the channel's lock.
    Here,
    /// Elsewhere, with its id.
    There(Id),
    /// The same; it was there before anybody asked here, and is no news for who hears the channel by a filter.
    Before(Id),
}

/// What became of a message that a channel was given.
pub(crate) enum Put {
    /// It is in.
    Done(Arc<Message>, Info),
    /// It is there already, or a later one is.
    Known,
    /// The channel is gone.
    Deleted,
    /// It is another process's now (`leaving`).
    Left,
}

/// What a channel has, as publishers are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Messages in its buffer.
    pub messages: usize,
    /// Subscribers.
    pub subscribers: usize,
    /// When a subscriber last asked for something, Unix time.
    pub requested: Option<i64>,
    /// Its newest message.
    pub last: Option<Id>,
}

#[derive(Debug)]
pub(crate) struct State {
    /// Oldest first. The first `behind` are beyond the buffer: only who has subscribed already gets them.
    messages: VecDeque<Arc<Message>>,
    behind: usize,
    behind_bytes: usize,
    /// The last id that was given under this name, perhaps to a channel before this one.
    last: Id,
    has_published: bool,
    /// The newest message that is no longer here.
    dropped: Id,
    pub(crate) subscribers: usize,
    requested: Option<i64>,
    /// Threads with subscribers, and with how many.
    readers: Vec<(Arc<Mailbox>, usize)>,
    /// When it was last used.
    touched: i64,
    /// How long it stays empty before it is forgotten, s.
    pub(crate) timeout: i64,
    /// What filters hear it by, as of the group's version of them.
    taps: Vec<Arc<Channel>>,
    taps_version: u64,
    /// It is another process's: nothing is published here any more.
    pub(crate) left: bool,
}

/// What a look for the next message finds.
pub(crate) enum Found {
    Message(Arc<Message>),
    Nothing,
    Deleted,
    /// Messages that the reader has not had are gone.
    Lost,
}

impl Channel {
    pub(crate) fn of_kind(
        kind: Kind,
        name: &[u8],
        group: Arc<Group>,
        shared: Arc<Shared>,
        floor: Id,
        now: i64,
    ) -> Channel {
        match kind {
            Kind::Tap => shared.tap_made(name.len()),
            Kind::Own | Kind::Followed => {
                group.channels.fetch_add(1, Ordering::Relaxed);
                shared.channel_made(name.len());
            }
        }
        Channel {
            name: name.into(),
            group,
            shared,
            kind,
            latest: AtomicU64::new(0),
            state: Mutex::new(State {
                messages: VecDeque::new(),
                behind: 0,
                behind_bytes: 0,
                last: floor,
                has_published: false,
                dropped: floor,
                subscribers: 0,
                requested: None,
                readers: Vec::new(),
                touched: now,
                timeout: 0,
                taps: Vec::new(),
                taps_version: 0,
                left: false,
            }),
        }
    }

    /// Whether its messages and ids are given by this process alone.
    pub fn is_own(&self) -> bool {
        self.kind == Kind::Own
    }

    /// Its whole name: `group/id`.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Its name in its group.
    pub fn id(&self) -> &[u8] {
        let slash = self.name.iter().position(|b| *b == b'/').map_or(0, |at| at + 1);
        &self.name[slash..]
    }

    /// Whether it was deleted: its subscribers are to go.
    pub fn is_deleted(&self) -> bool {
        self.latest() == DELETED
    }

    /// What it has.
    pub fn info(&self, now: i64) -> Info {
        let mut state = self.lock();
        self.trim(&mut state, now, None);
        state.info()
    }

    /// Whether something has happened to it since a subscriber found nothing more there ([`Seat::seen`](crate::Seat::seen)).
    pub fn has_changed(&self, seen: u64) -> bool {
        self.latest() != seen
    }

    pub(crate) fn latest(&self) -> u64 {
        self.latest.load(Ordering::Acquire)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it is locked")
    }

    /// Adds a message.
    pub(crate) fn publish(
        self: &Arc<Self>,
        now: i64,
        from: Source,
        length: usize,
        make: impl FnOnce(Id) -> Message,
    ) -> Put {
        let given = match from {
            Source::Here => None,
            Source::There(id) | Source::Before(id) => Some(id),
        };
        let mut state = self.lock();
        if self.is_deleted() {
            return Put::Deleted;
        }
        if state.left {
            return Put::Left;
        }
        if let Some(id) = given.filter(|id| *id <= state.last) {
            self.fill(&mut state, id, length, now, make);
            return Put::Known;
        }
        let id = given.unwrap_or_else(|| state.last.next(now));
        let message = Arc::new(make(id));
        self.shared.stored(message.bytes());
        self.group.stored(message.bytes());
        state.last = id;
        state.has_published = true;
        state.touched = now;
        let order = message.order;
        state.messages.push_back(message.clone());
        self.trim(&mut state, now, Some(length));
        self.latest.store(order, Ordering::Release);
        let mut info = state.info();
        self.tell(&state);
        if self.kind != Kind::Tap && !matches!(from, Source::Before(_)) {
            info.subscribers += self.tell_taps(&mut state, &message, now);
        }
        Put::Done(message, info)
    }

    /// Gives a message to those only that hear the channel by a filter.
    pub(crate) fn pass_by(&self, message: &Arc<Message>, now: i64) {
        let mut state = self.lock();
        if !self.is_deleted() {
            self.tell_taps(&mut state, message, now);
        }
    }

    /// Adds a message that is older than the newest one, for who subscribes later: nobody is told.
    fn fill(&self, state: &mut State, id: Id, length: usize, now: i64, make: impl FnOnce(Id) -> Message) {
        let at = state.messages.partition_point(|m| m.id < id);
        let is_here = state.messages.get(at).is_some_and(|m| m.id == id);
        if is_here || id <= state.dropped || at < state.behind {
            return;
        }
        let message = Arc::new(make(id));
        self.shared.stored(message.bytes());
        self.group.stored(message.bytes());
        state.messages.insert(at, message);
        self.trim(state, now, Some(length));
    }

    /// Gives a message to those that hear the channel by a filter. How many they are.
    fn tell_taps(&self, state: &mut State, message: &Arc<Message>, now: i64) -> usize {
        let version = self.group.taps_version.load(Ordering::Acquire);
        if version != state.taps_version {
            (state.taps_version, state.taps) = self.group.taps_of(self.id());
        }
        if state.taps.is_empty() {
            return 0;
        }
        let topic: Arc<[u8]> = self.id().into();
        let mut subscribers = 0;
        for tap in &state.taps {
            if let Put::Done(_, info) = tap.publish(now, Source::Here, 0, |id| message.again(id, topic.clone())) {
                subscribers += info.subscribers;
            }
        }
        subscribers
    }

    /// Whether it may go from a table: nobody subscribes, and nobody is on the way.
    pub(crate) fn is_unheard(&self) -> bool {
        self.lock().subscribers == 0 && !self.shared.expects.load(Ordering::Relaxed)
    }

    /// A subscriber goes on at another thread.
    pub(crate) fn change_reader(&self, from: &Arc<Mailbox>, to: &Arc<Mailbox>) {
        let mut state = self.lock();
        state.remove_reader(from);
        state.add_reader(to);
    }

    /// Wakes the threads that have subscribers.
    fn tell(self: &Arc<Self>, state: &State) {
        for (mailbox, _) in &state.readers {
            mailbox.put(self.clone());
        }
    }

    /// Lets go of what is too old, beyond the buffer (of `length`, where that is said anew), or not waited for any more.
    fn trim(&self, state: &mut State, now: i64, length: Option<usize>) {
        let is_old = |m: &Message| m.expires != 0 && m.expires <= now;
        while state.messages.front().is_some_and(|m| is_old(m)) {
            self.drop_first(state);
        }
        if let Some(length) = length {
            while state.messages.len() - state.behind > length {
                state.behind_bytes += state.messages[state.behind].bytes();
                state.behind += 1;
            }
        }
        // Who is on the way from another process may have to take it still.
        let is_heard = state.subscribers > 0 || self.shared.expects.load(Ordering::Relaxed);
        while state.behind > 0 {
            let is_late = state.messages.front().is_some_and(|m| m.at + TRAIL_SECONDS < now);
            if is_heard && !is_late && state.behind <= TRAIL_MESSAGES && state.behind_bytes <= TRAIL_BYTES {
                break;
            }
            self.drop_first(state);
        }
    }

    fn drop_first(&self, state: &mut State) {
        let Some(message) = state.messages.pop_front() else { return };
        state.dropped = message.id;
        let bytes = message.bytes();
        if state.behind > 0 {
            state.behind -= 1;
            state.behind_bytes -= bytes;
        }
        self.shared.dropped(1, bytes);
        self.group.dropped(1, bytes);
    }

    /// Makes it one that is gone: empty, its subscribers woken. The last id that it gave.
    pub(crate) fn delete(self: &Arc<Self>) -> Id {
        let mut state = self.lock();
        while !state.messages.is_empty() {
            self.drop_first(&mut state);
        }
        self.latest.store(DELETED, Ordering::Release);
        self.tell(&state);
        state.last
    }

    /// Lets go of what time has made useless. Some: nobody needs the channel, which has given this id last.
    pub(crate) fn sweep(&self, now: i64) -> Option<Id> {
        let mut state = self.lock();
        self.trim(&mut state, now, None);
        if !state.taps.is_empty() && state.taps_version != self.group.taps_version.load(Ordering::Acquire) {
            // Some of them may be held by nobody else. The next message asks for those that are there.
            (state.taps, state.taps_version) = (Vec::new(), NO_VERSION);
        }
        let is_idle = state.subscribers == 0 && state.messages.is_empty() && state.touched + state.timeout < now;
        is_idle.then_some(state.last)
    }

    /// Notes a subscriber that begins at `start`; after which message that is, and whether it is the channel's first now.
    pub(crate) fn attach(&self, mailbox: &Arc<Mailbox>, start: &Start<'_>, number: usize, now: i64) -> Option<Id> {
        let mut state = self.lock();
        if self.is_deleted() {
            return None;
        }
        self.trim(&mut state, now, None);
        state.subscribers += 1;
        (state.requested, state.touched) = (Some(now), now);
        self.group.subscribers.fetch_add(1, Ordering::Relaxed);
        self.shared.subscribers(1);
        state.add_reader(mailbox);
        Some(state.after(start, number, self.kind))
    }

    /// The same for one that goes on from another process, exactly where it stood there.
    pub(crate) fn attach_after(&self, mailbox: &Arc<Mailbox>, after: Id, now: i64) -> Option<()> {
        self.attach(mailbox, &Start::Newest, 0, now)?;
        let mut state = self.lock();
        // Where the buffer did not come with it, the ids go on behind what it has had. A channel that is followed gets its buffer from elsewhere,
        // and others may have had less of it.
        if self.kind != Kind::Followed {
            state.last = state.last.max(after);
        }
        Some(())
    }

    /// The same for a filter, which in this process goes on where it has ended in that one: with its first message.
    pub(crate) fn attach_first(&self, mailbox: &Arc<Mailbox>, now: i64) -> Option<Id> {
        self.attach(mailbox, &Start::Newest, 0, now).map(|_| Id::default())
    }

    /// The same where both processes have heard the same for a while: `had` is the channel and the id of what it has had last. Where that is not
    /// here, nothing of what is was there.
    pub(crate) fn attach_after_heard(&self, mailbox: &Arc<Mailbox>, had: Option<(&[u8], Id)>, now: i64) -> Option<Id> {
        self.attach(mailbox, &Start::Newest, 0, now)?;
        let state = self.lock();
        let is_it = |m: &Message| m.came_from().is_some_and(|(topic, id)| had == Some((&**topic, id)));
        let last = state.messages.iter().rev().find(|m| is_it(m));
        Some(last.map_or(state.dropped, |m| m.id))
    }

    /// Which message of which channel was the one that has this id here, of a filter.
    pub(crate) fn origin_of(&self, id: Id) -> Option<(Arc<[u8]>, Id)> {
        let state = self.lock();
        let at = state.messages.binary_search_by_key(&id, |m| m.id).ok()?;
        state.messages[at].came_from().map(|(topic, id)| (topic.clone(), id))
    }

    /// Its buffer, which is another process's from now on.
    pub(crate) fn part(self: &Arc<Self>, now: i64) -> Parting {
        let mut state = self.lock();
        state.left = true;
        self.copied(&mut state, now)
    }

    /// Its buffer.
    pub(crate) fn copy(self: &Arc<Self>, now: i64) -> Parting {
        self.copied(&mut self.lock(), now)
    }

    /// Lets go of what is beyond a buffer of this length. The message of an id, if it is there.
    pub(crate) fn shorten(&self, length: usize, id: Id, now: i64) -> Option<Arc<Message>> {
        let mut state = self.lock();
        let at = state.messages.partition_point(|m| m.id < id);
        let message = state.messages.get(at).filter(|m| m.id == id).cloned();
        self.trim(&mut state, now, Some(length));
        message
    }

    fn copied(self: &Arc<Self>, state: &mut State, now: i64) -> Parting {
        self.trim(state, now, None);
        Parting {
            channel: self.clone(),
            last: state.last,
            dropped: state.dropped,
            behind: state.behind,
            has_published: state.has_published,
            requested: state.requested,
            timeout: state.timeout,
            messages: state.messages.iter().cloned().collect(),
        }
    }

    /// Takes over what another process had of it: messages that it does not have yet.
    pub(crate) fn settle(self: &Arc<Self>, from: &Settling<'_>, messages: Vec<Message>, now: i64) {
        let mut state = self.lock();
        if self.is_deleted() {
            return;
        }
        let was_empty = state.messages.is_empty();
        state.last = state.last.max(from.last);
        state.dropped = state.dropped.max(from.dropped);
        state.has_published |= from.has_published;
        state.requested = state.requested.max(from.requested);
        state.timeout = state.timeout.max(from.timeout);
        state.touched = now;
        for message in messages {
            let at = state.messages.partition_point(|m| m.id < message.id);
            if message.id <= state.dropped || state.messages.get(at).is_some_and(|m| m.id == message.id) {
                continue;
            }
            self.shared.stored(message.bytes());
            self.group.stored(message.bytes());
            self.latest.fetch_max(message.order, Ordering::AcqRel);
            state.last = state.last.max(message.id);
            state.messages.insert(at, Arc::new(message));
        }
        if was_empty {
            state.behind = from.behind.min(state.messages.len());
            state.behind_bytes = state.messages.iter().take(state.behind).map(|m| m.bytes()).sum();
        }
        self.tell(&state);
    }

    /// The same, backwards.
    pub(crate) fn detach(&self, mailbox: &Arc<Mailbox>) {
        let mut state = self.lock();
        state.subscribers -= 1;
        self.group.subscribers.fetch_sub(1, Ordering::Relaxed);
        self.shared.subscribers(-1);
        state.remove_reader(mailbox);
        let is_over = self.kind == Kind::Tap && state.subscribers == 0;
        drop(state);
        if is_over {
            self.group.leave_tap(self);
        }
    }

    /// The first message after an id.
    pub(crate) fn after(&self, id: Id, now: i64) -> Found {
        let state = self.lock();
        if self.is_deleted() {
            return Found::Deleted;
        }
        if id < state.dropped {
            return Found::Lost;
        }
        let at = state.messages.partition_point(|m| m.id <= id);
        let mut rest = state.messages.range(at..);
        match rest.find(|m| m.expires == 0 || m.expires > now) {
            Some(message) => Found::Message(message.clone()),
            None => Found::Nothing,
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let state = self.state.get_mut().expect("nothing panics while it is locked");
        let bytes: usize = state.messages.iter().map(|m| m.bytes()).sum();
        self.shared.dropped(state.messages.len(), bytes);
        self.group.dropped(state.messages.len(), bytes);
        match self.kind {
            Kind::Tap => self.shared.tap_gone(self.name.len()),
            Kind::Own | Kind::Followed => {
                self.group.channels.fetch_sub(1, Ordering::Relaxed);
                self.shared.channel_gone(self.name.len());
            }
        }
    }
}

impl State {
    pub(crate) fn info(&self) -> Info {
        Info {
            messages: self.messages.len() - self.behind,
            subscribers: self.subscribers,
            requested: self.requested,
            last: self.has_published.then_some(self.last),
        }
    }

    fn add_reader(&mut self, mailbox: &Arc<Mailbox>) {
        match self.readers.iter_mut().find(|(m, _)| Arc::ptr_eq(m, mailbox)) {
            Some((_, count)) => *count += 1,
            None => self.readers.push((mailbox.clone(), 1)),
        }
    }

    fn remove_reader(&mut self, mailbox: &Arc<Mailbox>) {
        if let Some(at) = self.readers.iter().position(|(m, _)| Arc::ptr_eq(m, mailbox)) {
            self.readers[at].1 -= 1;
            if self.readers[at].1 == 0 {
                self.readers.swap_remove(at);
            }
        }
    }

    /// After which message who starts so begins. `number`: which of the subscriber's channels this is.
    fn after(&self, start: &Start<'_>, number: usize, kind: Kind) -> Id {
        let before = |at: usize| at.checked_sub(1).map_or(self.dropped, |at| self.messages[at].id);
        let buffered = self.messages.len() - self.behind;
        match start {
            Start::Newest => self.last,
            // The n-th from the oldest, from 1 on; of those from the newest backwards the -n-th.
            Start::Number(n) if *n > 0 => before(self.behind + buffered.min(*n as usize - 1)),
            Start::Number(n) => before(self.messages.len() - buffered.min(n.unsigned_abs() as usize)),
            // What it has had may be yet to come here.
            Start::After(position) if kind == Kind::Followed => position.of(number).max(self.dropped),
            Start::After(position) => position.of(number).clamp(self.dropped, self.last.max(self.dropped)),
        }
    }
}
