//! All channels of a process.

use crate::channel::{Channel, Info, Kind, Put, Source};
use crate::group::{Group, Lasting, Limits, group_bytes};
use crate::id::Id;
use crate::journal::{Kept, Told};
use crate::leaving::Heir;
use crate::limits::{CHANNEL_BYTES, DEFAULT_MEMORY, LEVEL_BYTES, MAX_BUFFER, PARTS};
use crate::mailbox::Mailbox;
use crate::message::{Draft, Message};
use crate::packed::Packed;
use crate::subscription::{Options, Place, Start, Subscription};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};

/// The time, as the caller knows it: Unix seconds.
pub type Now = i64;

/// What a publisher wants of a channel from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// So many messages are kept.
    pub length: usize,
    /// So long, s; 0: until there are others.
    pub seconds: i64,
    /// Limits of the group hold.
    pub accounting: bool,
    /// How long the channel stays when it is empty, s.
    pub channel_timeout: i64,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Its id.
    pub id: Id,
    /// The channel after it.
    pub info: Info,
}

/// A message that comes from elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'b> {
    /// Its id there.
    pub id: Id,
    /// The message.
    pub packed: Packed<'b>,
    /// So many of the channel are kept.
    pub length: usize,
    /// Who gets it.
    pub to: Whom,
}

/// Who gets a message that comes from elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Whom {
    /// Whoever hears the channel.
    #[default]
    All,
    /// The channel, and who names it: it was there before anybody asked here, and is no news for who hears it by a filter.
    Channel,
    /// Who hears it by a filter: the channel itself gets it with all that it has.
    Filters,
}

/// Why something is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such channel, and nobody may make it here.
    NoChannel,
    /// The channel has as many subscribers as it may.
    ChannelSubscribers,
    /// The group has as many channels as it may.
    GroupChannels,
    /// The group has as many subscribers as it may.
    GroupSubscribers,
    /// The group has as many messages as it may.
    GroupMessages,
    /// The group's messages have as many bytes as they may.
    GroupMemory,
    /// The store has as many bytes as it may.
    Memory,
}

/// What a store has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Messages that were ever published.
    pub published: u64,
    /// Messages in buffers.
    pub messages: u64,
    /// Bytes of messages, channels, groups, filters, and of what is kept for subscribers that are gone.
    pub memory: u64,
    /// How many bytes those may be.
    pub limit: u64,
    /// Channels.
    pub channels: u64,
    /// Subscribers; who has several channels counts for each.
    pub subscribers: u64,
}

/// What all channels count in.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) order: AtomicU64,
    messages: AtomicU64,
    memory: AtomicUsize,
    channels: AtomicU64,
    subscribers: AtomicI64,
    /// The latest second that anybody has named: ids never go back.
    second: AtomicI64,
    /// Channels are another process's.
    pub(crate) left: AtomicBool,
    /// Subscribers are on their way from another process.
    pub(crate) expects: AtomicBool,
}

impl Shared {
    pub(crate) fn stored(&self, bytes: usize) {
        self.messages.fetch_add(1, Relaxed);
        self.memory.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn dropped(&self, count: usize, bytes: usize) {
        self.messages.fetch_sub(count as u64, Relaxed);
        self.memory.fetch_sub(bytes, Relaxed);
    }

    /// Bytes of what is neither a message of a buffer nor a channel have become more, or fewer.
    pub(crate) fn changed(&self, bytes: isize) {
        if bytes < 0 {
            self.memory.fetch_sub(bytes.unsigned_abs(), Relaxed);
        } else {
            self.memory.fetch_add(bytes.unsigned_abs(), Relaxed);
        }
    }

    pub(crate) fn channel_made(&self, name: usize) {
        self.channels.fetch_add(1, Relaxed);
        self.memory.fetch_add(CHANNEL_BYTES + 2 * name, Relaxed);
    }

    pub(crate) fn channel_gone(&self, name: usize) {
        self.channels.fetch_sub(1, Relaxed);
        self.memory.fetch_sub(CHANNEL_BYTES + 2 * name, Relaxed);
    }

    /// The same for the channel of a filter, which is none of those that are counted.
    pub(crate) fn tap_made(&self, name: usize) {
        self.memory.fetch_add(CHANNEL_BYTES + 2 * name, Relaxed);
    }

    pub(crate) fn tap_gone(&self, name: usize) {
        self.memory.fetch_sub(CHANNEL_BYTES + 2 * name, Relaxed);
    }

    pub(crate) fn subscribers(&self, more: i64) {
        self.subscribers.fetch_add(more, Relaxed);
    }
}

/// The channels, in parts with a lock each; that of a part is taken before that of a channel, never the other way round.
#[derive(Debug)]
pub struct Store {
    pub(crate) parts: Vec<Mutex<Part>>,
    pub(crate) groups: Mutex<HashMap<Box<[u8]>, Arc<Group>>>,
    hasher: RandomState,
    pub(crate) shared: Arc<Shared>,
    /// Who is told what happens to channels that have left.
    pub(crate) heir: Mutex<Option<Heir>>,
    /// Who is told what happens to channels here.
    pub(crate) journal: Told,
    limit: AtomicUsize,
    /// The part that is swept next.
    next: AtomicUsize,
}

#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) channels: HashMap<Box<[u8]>, Arc<Channel>>,
    /// The last id of a channel that is gone: who makes one of that name goes on behind it.
    floor: Id,
}

impl Default for Store {
    fn default() -> Store {
        Store {
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            groups: Mutex::default(),
            hasher: RandomState::new(),
            shared: Arc::default(),
            heir: Mutex::default(),
            journal: Told::default(),
            limit: AtomicUsize::new(DEFAULT_MEMORY),
            next: AtomicUsize::new(0),
        }
    }
}

impl Store {
    /// An empty one.
    pub fn new() -> Store {
        Store::default()
    }

    /// Bytes of messages and channels from now on.
    pub fn set_memory(&self, bytes: usize) {
        self.limit.store(bytes, Relaxed);
    }

    /// What it has.
    pub fn sums(&self) -> Sums {
        let s = &self.shared;
        Sums {
            published: s.order.load(Relaxed),
            messages: s.messages.load(Relaxed),
            memory: s.memory.load(Relaxed) as u64,
            limit: self.limit.load(Relaxed) as u64,
            channels: s.channels.load(Relaxed),
            subscribers: s.subscribers.load(Relaxed).max(0) as u64,
        }
    }

    /// The group of a name, which is made where there is none.
    pub fn group(&self, name: &[u8]) -> Arc<Group> {
        let mut groups = self.groups.lock().expect("nothing panics while it is locked");
        if let Some(group) = groups.get(name) {
            return group.clone();
        }
        groups.entry(name.into()).or_insert_with(|| Arc::new(Group::new(name.len(), self.shared.clone()))).clone()
    }

    /// Changes the limits of a group, which is made where there is none.
    ///
    /// # Errors
    /// The store is full.
    pub fn limit_group(&self, name: &[u8], lasting: Lasting, change: impl FnOnce(&mut Limits)) -> Result<(), Refused> {
        let is_here = self.groups.lock().expect("nothing panics while it is locked").contains_key(name);
        if !is_here {
            self.make_room(group_bytes(name.len()), self.shared.second.load(Relaxed))?;
        }
        self.group(name).set_limits(lasting, change);
        Ok(())
    }

    /// Bills what somebody keeps for a subscriber beside its channels; [`Store::give_back`] is the same backwards.
    ///
    /// # Errors
    /// The store is full.
    pub fn take(&self, bytes: usize, now: Now) -> Result<(), Refused> {
        self.make_room(bytes, now)?;
        self.bill(bytes);
        Ok(())
    }

    /// The same, whatever there is: the caller looks at [`Store::is_over`].
    pub fn bill(&self, bytes: usize) {
        self.shared.changed(bytes as isize);
    }

    /// See [`Store::take`].
    pub fn give_back(&self, bytes: usize) {
        self.shared.changed(-(bytes as isize));
    }

    /// Bills a message that somebody puts by, however many do: it may outlive its buffer. [`Store::let_go`] is the same backwards.
    pub fn put_by(&self, message: &Message) {
        if message.kept_by.fetch_add(1, Relaxed) == 0 {
            self.shared.changed(message.bytes() as isize);
        }
    }

    /// See [`Store::put_by`].
    pub fn let_go(&self, message: &Message) {
        if message.kept_by.fetch_sub(1, Relaxed) == 1 {
            self.shared.changed(-(message.bytes() as isize));
        }
    }

    /// Whether more is billed than may be: whoever puts messages by is to let go of some.
    pub fn is_over(&self) -> bool {
        self.shared.memory.load(Relaxed) > self.limit.load(Relaxed)
    }

    /// The channel of a name.
    pub fn find(&self, name: &[u8]) -> Option<Arc<Channel>> {
        self.part(name).channels.get(name).cloned()
    }

    /// Publishes to a channel, which is made where there is none.
    ///
    /// # Errors
    /// A limit is reached.
    pub fn publish(&self, name: &[u8], draft: Draft<'_>, keep: Keep, now: Now) -> Result<Published, Refused> {
        let now = self.second(now);
        let size = size_of::<Message>() + draft.data.len() + draft.marks.properties.len() + 64;
        self.make_room(size, now)?;
        let expires = expires(&draft, keep, now);
        loop {
            let channel = self.channel(name, keep.accounting, now)?;
            if keep.accounting {
                let (limits, totals) = (channel.group.limits(), channel.group.totals());
                if is_reached(limits.messages, totals.messages, 1) {
                    return Err(Refused::GroupMessages);
                }
                if is_reached(limits.memory, totals.memory, size as u64) {
                    return Err(Refused::GroupMemory);
                }
            }
            channel.lock().timeout = keep.channel_timeout;
            let make = |id| Message::new(id, self.shared.order.fetch_add(1, Relaxed) + 1, now, expires, draft);
            match channel.publish(now, Source::Here, keep.length.min(MAX_BUFFER), make) {
                Put::Done(message, info) => {
                    self.retain(&channel, &message);
                    if let Some(journal) = self.journal().filter(|_| channel.is_own()) {
                        let kept = Kept { length: keep.length.min(MAX_BUFFER), timeout: keep.channel_timeout };
                        journal.published(name, &message, kept);
                    }
                    return Ok(Published { id: message.id, info });
                }
                Put::Left if self.publish_late(name, &draft, keep, expires, now) => {
                    // What its id is, the other process knows.
                    return Ok(Published { id: Id { time: now, tag: 0 }, info: channel.info(now) });
                }
                Put::Left => self.stay(),
                Put::Known | Put::Deleted => {}
            }
        }
    }

    pub(crate) fn retain(&self, channel: &Channel, message: &Arc<Message>) {
        if message.is_retained() {
            channel.group.retained().put(channel.id(), message.clone(), &self.shared);
        }
    }

    /// The channel of a name whose messages and ids come from elsewhere; made where there is none.
    ///
    /// # Errors
    /// The store is full.
    pub fn follow(&self, name: &[u8], now: Now) -> Result<Arc<Channel>, Refused> {
        let now = self.second(now);
        self.channel_of(Kind::Followed, name, false, now)
    }

    /// Takes a message that comes from elsewhere, with its id, into a channel of [`Store::follow`]. `None`: the channel has it already, or a
    /// later one, or is deleted.
    ///
    /// # Errors
    /// The store is full.
    pub fn accept(&self, channel: &Arc<Channel>, arrived: Arrived<'_>, now: Now) -> Result<Option<Info>, Refused> {
        let Arrived { id, packed, length, to } = arrived;
        let now = self.second(now);
        let draft = packed.draft(now);
        self.make_room(size_of::<Message>() + draft.data.len() + draft.marks.properties.len() + 64, now)?;
        let make = |id| Message::new(id, self.shared.order.fetch_add(1, Relaxed) + 1, now, packed.expires, draft);
        if to == Whom::Filters {
            channel.pass_by(&Arc::new(make(id)), now);
            return Ok(None);
        }
        let from = if to == Whom::Channel { Source::Before(id) } else { Source::There(id) };
        match channel.publish(now, from, length.min(MAX_BUFFER), make) {
            Put::Done(message, info) => {
                self.retain(channel, &message);
                Ok(Some(info))
            }
            Put::Known | Put::Deleted | Put::Left => Ok(None),
        }
    }

    /// Keeps what another server has as the message that is retained for a channel; `None`: nothing.
    pub fn retain_packed(&self, name: &[u8], packed: Option<Packed<'_>>, now: Now) {
        let now = self.second(now);
        let slash = name.iter().position(|b| *b == b'/').unwrap_or(name.len());
        let (group, id) = (self.group(&name[..slash]), name.get(slash + 1..).unwrap_or_default());
        let draft = packed.map(|packed| packed.draft(now)).filter(|draft| draft.marks.expiry != Some(0));
        let Some(draft) = draft else { return group.retained().remove(id) };
        if self.make_room(size_of::<Message>() + draft.data.len() + draft.marks.properties.len() + 64, now).is_ok() {
            let order = self.shared.order.fetch_add(1, Relaxed) + 1;
            let message = Message::new(Id::default(), order, now, 0, draft);
            group.retained().put(id, Arc::new(message), &self.shared);
        }
    }

    /// Subscribes to all channels of a group that a filter names (`wire::mqtt::topic`), from now on.
    ///
    /// # Errors
    /// A limit is reached.
    pub fn subscribe_filter(
        &self,
        group_name: &[u8],
        filter: &[u8],
        mailbox: &Arc<Mailbox>,
        options: Options,
        now: Now,
    ) -> Result<Subscription, Refused> {
        let now = self.second(now);
        let group = self.group(group_name);
        let limit = group.limits().subscribers;
        if options.accounting && is_reached(limit, group.totals().subscribers, 1) {
            return Err(Refused::GroupSubscribers);
        }
        let place = self.filter_place(group_name, filter, now, |tap| tap.attach(mailbox, &Start::Newest, 0, now))?;
        Ok(Subscription::new(mailbox.clone(), vec![place]))
    }

    /// The channel of a filter, made where there is none, with a subscriber that `attach` adds.
    pub(crate) fn filter_place(
        &self,
        group_name: &[u8],
        filter: &[u8],
        now: i64,
        attach: impl FnOnce(&Arc<Channel>) -> Option<Id>,
    ) -> Result<Place, Refused> {
        let group = self.group(group_name);
        if !group.has_tap(filter) {
            let levels = filter.iter().filter(|b| **b == b'/').count() + 1;
            self.make_room(CHANNEL_BYTES + 3 * filter.len() + levels * LEVEL_BYTES, now)?;
        }
        let make = || {
            // Whatever stands before the first slash is the group's.
            let name = [b"/", filter].concat();
            let (group, shared) = (group.clone(), self.shared.clone());
            Arc::new(Channel::of_kind(Kind::Tap, &name, group, shared, Id::default(), now))
        };
        let mut is_new = false;
        let make = || {
            is_new = true;
            make()
        };
        let place = group.tap(filter, make, |tap| attach(tap).map(|after| Place::new(tap.clone(), after)));
        if is_new {
            self.hear_late(group_name, filter);
        }
        place.ok_or(Refused::NoChannel)
    }

    /// Subscribes to channels, which are made where there are none.
    ///
    /// # Errors
    /// A limit is reached, or there is no such channel.
    pub fn subscribe(
        &self,
        names: &[&[u8]],
        start: &Start<'_>,
        mailbox: &Arc<Mailbox>,
        options: Options,
        now: Now,
    ) -> Result<Subscription, Refused> {
        let now = self.second(now);
        let mut places = Vec::with_capacity(names.len());
        for (number, name) in names.iter().enumerate() {
            match self.place(name, number, start, mailbox, options, now) {
                Ok(place) => places.push(place),
                Err(refused) => {
                    // Those that were attached are given back.
                    drop(Subscription::new(mailbox.clone(), places));
                    return Err(refused);
                }
            }
        }
        Ok(Subscription::new(mailbox.clone(), places))
    }

    fn place(
        &self,
        name: &[u8],
        number: usize,
        start: &Start<'_>,
        mailbox: &Arc<Mailbox>,
        options: Options,
        now: Now,
    ) -> Result<Place, Refused> {
        loop {
            let channel = match options.existing_only {
                true => self.find(name).ok_or(Refused::NoChannel)?,
                false => self.channel(name, options.accounting, now)?,
            };
            let subscribers = {
                let mut state = channel.lock();
                state.timeout = state.timeout.max(options.channel_timeout);
                state.subscribers as u64
            };
            if is_reached(options.max_subscribers, subscribers, 1) {
                return Err(Refused::ChannelSubscribers);
            }
            let limit = channel.group.limits().subscribers;
            if options.accounting && is_reached(limit, channel.group.totals().subscribers, 1) {
                return Err(Refused::GroupSubscribers);
            }
            if let Some(after) = channel.attach(mailbox, start, number, now) {
                return Ok(Place::new(channel, after));
            }
        }
    }

    /// Deletes a channel; what it had.
    pub fn delete(&self, name: &[u8], now: Now) -> Option<Info> {
        self.delete_late(name);
        let mut part = self.part(name);
        let channel = part.channels.remove(name)?;
        // Nobody makes a channel of this name as long as the part is locked.
        self.journal().filter(|_| channel.is_own()).into_iter().for_each(|journal| journal.deleted(name));
        let info = channel.info(now);
        channel.group.retained().remove(channel.id());
        part.floor = part.floor.max(channel.delete());
        Some(info)
    }

    /// Deletes all channels of a group.
    pub fn delete_group(&self, name: &[u8], now: Now) {
        let is_in = |channel: &[u8]| channel.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&b'/'));
        for part in &self.parts {
            let names: Vec<Box<[u8]>> = {
                let part = part.lock().expect("nothing panics while it is locked");
                part.channels.keys().filter(|n| is_in(n)).cloned().collect()
            };
            for name in names {
                self.delete(&name, now);
            }
        }
    }

    /// Looks at the next part: drops what time has made useless. To be called some times a second.
    pub fn sweep(&self, now: Now) {
        let now = self.second(now);
        let number = self.next.fetch_add(1, Relaxed) % PARTS;
        self.sweep_part(number, now);
        if number == 0 {
            let mut groups = self.groups.lock().expect("nothing panics while it is locked");
            groups.retain(|_, group| !group.sweep(now) || Arc::strong_count(group) > 1);
            if groups.capacity() > 64 && groups.len() * 4 < groups.capacity() {
                groups.shrink_to_fit();
            }
        }
    }

    fn sweep_part(&self, number: usize, now: i64) {
        let mut part = self.parts[number].lock().expect("nothing panics while it is locked");
        let Part { channels, floor } = &mut *part;
        channels.retain(|_, channel| match channel.sweep(now) {
            // Nobody else has it, and whoever wants it has to ask this part.
            Some(last) if Arc::strong_count(channel) == 1 => {
                *floor = (*floor).max(last);
                false
            }
            _ => true,
        });
        if channels.capacity() > 64 && channels.len() * 4 < channels.capacity() {
            channels.shrink_to_fit();
        }
    }

    pub(crate) fn make_room(&self, bytes: usize, now: i64) -> Result<(), Refused> {
        let is_full = || self.shared.memory.load(Relaxed).saturating_add(bytes) > self.limit.load(Relaxed);
        if is_full() {
            // Some of it may be of no use any more; one part at a time, so that a flood of publishers does not stand still for it.
            self.sweep_part(self.next.fetch_add(1, Relaxed) % PARTS, now);
            if is_full() {
                return Err(Refused::Memory);
            }
        }
        Ok(())
    }

    pub(crate) fn channel(&self, name: &[u8], accounting: bool, now: i64) -> Result<Arc<Channel>, Refused> {
        self.channel_of(Kind::Own, name, accounting, now)
    }

    fn channel_of(&self, kind: Kind, name: &[u8], accounting: bool, now: i64) -> Result<Arc<Channel>, Refused> {
        if let Some(channel) = self.find(name) {
            return Ok(channel);
        }
        self.make_room(CHANNEL_BYTES + 2 * name.len(), now)?;
        let slash = name.iter().position(|b| *b == b'/').unwrap_or(0);
        let group = self.group(&name[..slash]);
        if accounting && is_reached(group.limits().channels, group.totals().channels, 1) {
            return Err(Refused::GroupChannels);
        }
        let mut part = self.part(name);
        if let Some(channel) = part.channels.get(name) {
            return Ok(channel.clone());
        }
        let floor = if kind == Kind::Followed { Id::default() } else { part.floor };
        let channel = Arc::new(Channel::of_kind(kind, name, group, self.shared.clone(), floor, now));
        // Under the part's lock, under which those that are there already leave.
        channel.lock().left = kind == Kind::Own && self.shared.left.load(SeqCst);
        part.channels.insert(name.into(), channel.clone());
        Ok(channel)
    }

    fn part(&self, name: &[u8]) -> MutexGuard<'_, Part> {
        let number = self.hasher.hash_one(name) as usize % PARTS;
        self.parts[number].lock().expect("nothing panics while it is locked")
    }

    /// The second for ids and deadlines: it never goes back.
    pub(crate) fn second(&self, now: Now) -> i64 {
        self.shared.second.fetch_max(now, Relaxed).max(now)
    }
}

/// Until when a message is of use: as long as the channel keeps it, or less if it says so itself.
fn expires(draft: &Draft<'_>, keep: Keep, now: i64) -> i64 {
    let kept = (keep.seconds > 0).then_some(keep.seconds);
    let said = draft.marks.expiry.map(i64::from);
    kept.into_iter().chain(said).min().map_or(0, |seconds| now + seconds)
}

fn is_reached(limit: u64, has: u64, more: u64) -> bool {
    limit > 0 && has + more > limit
}
