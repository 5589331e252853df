//! What stays of a client of MQTT when its connection is gone: what it subscribes to, what it has not confirmed, what waits for it, its will.
//! It moves to the thread of the client's next connection. Knows no socket.

pub(super) mod pack;
pub(super) mod travel;

use super::super::hub::{self, Listening, READER_BYTES};
use super::super::names;
use super::super::redis::backend::Backend;
use super::queue::Queue;
use super::rules::{self, Rules};
use crate::connection::parked::block;
use push::limits::LEVEL_BYTES;
use push::{Id, Keep, Message, Next, Options, Refused, Start};
use std::cell::Cell;
use std::sync::Arc;
use wire::mqtt::packet::Wants;
use wire::mqtt::topic;

/// Filters of one session.
const MAX_SUBSCRIPTIONS: usize = 1000;
/// What those of one session may cost.
const MAX_SUBSCRIPTION_BYTES: usize = 1024 * 1024;
/// So many of a session cost the store nothing: as many as connections times this there can be anyhow.
const FREE_SUBSCRIPTIONS: usize = 2;
/// What a subscription costs beside its filter: its place in a channel and in the thread's table of readers.
const SUBSCRIPTION_BYTES: usize = 300;

/// Messages that wait for a client that is gone; the oldest make room.
const MAX_WAITING: usize = 1000;
/// The same, bytes.
const MAX_WAITING_BYTES: u64 = 1024 * 1024;

/// A message on its way to a client.
#[derive(Clone)]
pub(super) struct Outgoing {
    pub(super) message: Arc<Message>,
    pub(super) topic: Arc<[u8]>,
    /// 0 or 1.
    pub(super) qos: u8,
    /// As the client is told.
    pub(super) retain: bool,
    /// The client's number for the subscription.
    pub(super) number: Option<u32>,
}

/// What is said when the client goes without goodbye.
pub(super) struct Will {
    pub(super) topic: Box<[u8]>,
    pub(super) payload: Box<[u8]>,
    pub(super) at_most_once: bool,
    pub(super) retain: bool,
    /// What its channel keeps.
    pub(super) keep: Keep,
    /// How long it waits for the client to come back, s.
    pub(super) delay: u32,
    pub(super) expiry: Option<u32>,
    pub(super) content_type: Box<[u8]>,
    pub(super) properties: Box<[u8]>,
}

/// A session.
pub(super) struct Session {
    /// The group of its channels.
    pub(super) group: Box<[u8]>,
    /// Whoever shares them with other servers.
    pub(super) backend: Option<Arc<Backend>>,
    /// Who it is as a publisher, for subscribers that do not want what is their own. 0: it has published nothing.
    origin: Cell<u64>,
    /// How long it stays without a connection, s.
    pub(super) expiry_s: u32,
    pub(super) will: Option<Box<Will>>,
    subscriptions: Vec<Subscribed>,
    /// The one that is looked at first, so that none waits for ever.
    first: u16,
    waiting: Waiting,
    /// Of subscriptions, as they are billed in the store.
    billed: u32,
    /// At QoS 1, not confirmed yet, in the order in which they went out.
    pub(super) flight: Queue<(u16, Outgoing)>,
    last_id: u16,
}

struct Subscribed {
    filter: Arc<[u8]>,
    wants: Wants,
    number: Option<u32>,
    listening: Listening,
}

/// What comes next.
pub(super) enum Turn {
    Message(Outgoing),
    Nothing,
    /// Messages are gone that the client has not had.
    Lost,
}

impl Session {
    pub(super) fn new(group: Box<[u8]>, backend: Option<Arc<Backend>>) -> Session {
        Session {
            group,
            backend,
            origin: Cell::new(0),
            expiry_s: 0,
            will: None,
            subscriptions: Vec::new(),
            first: 0,
            waiting: Waiting::default(),
            billed: 0,
            flight: Queue::default(),
            last_id: 0,
        }
    }

    /// Who it is as a publisher.
    pub(super) fn origin(&self) -> u64 {
        if self.origin.get() == 0 {
            let mut origin = [0; 8];
            // Without randomness two sessions could be taken for one, which then do not hear each other where they ask for that.
            let _ = rustix::rand::getrandom(&mut origin[..], rustix::rand::GetRandomFlags::empty());
            self.origin.set(u64::from_ne_bytes(origin).max(1));
        }
        self.origin.get()
    }

    /// Subscribes, or changes what is wanted. Whether the filter is new.
    pub(super) fn subscribe(
        &mut self,
        filter: &[u8],
        wants: Wants,
        number: Option<u32>,
        options: Options,
    ) -> Result<bool, Refused> {
        if let Some(known) = self.subscriptions.iter_mut().find(|s| *s.filter == *filter) {
            (known.wants, known.number) = (wants, number);
            return Ok(false);
        }
        if self.subscriptions.len() >= MAX_SUBSCRIPTIONS {
            return Err(Refused::ChannelSubscribers);
        }
        self.bill(filter)?;
        let listening = listen(&self.group, filter, options).inspect_err(|_| self.give_back(filter))?;
        self.add(Subscribed { filter: filter.into(), wants, number, listening });
        Ok(true)
    }

    /// Whether there was such a subscription.
    pub(super) fn unsubscribe(&mut self, filter: &[u8]) -> bool {
        let before = self.subscriptions.len();
        self.subscriptions.retain(|s| *s.filter != *filter);
        let was_here = self.subscriptions.len() < before;
        if was_here {
            self.give_back(filter);
        }
        was_here
    }

    /// Most have one, or few: there is no room for others.
    fn add(&mut self, subscribed: Subscribed) {
        if self.subscriptions.len() == self.subscriptions.capacity() {
            self.subscriptions.reserve_exact((self.subscriptions.len() / 2).max(1));
        }
        self.subscriptions.push(subscribed);
    }

    /// Bills another subscription in the store.
    fn bill(&mut self, filter: &[u8]) -> Result<(), Refused> {
        let whole = |filter: &[u8]| cost(filter) + (rules::marks(filter) + 1) * LEVEL_BYTES;
        if self.filters().map(whole).sum::<usize>() + whole(filter) > MAX_SUBSCRIPTION_BYTES {
            return Err(Refused::ChannelSubscribers);
        }
        if self.subscriptions.len() < FREE_SUBSCRIPTIONS {
            return Ok(());
        }
        hub::STORE.take(cost(filter), hub::now())?;
        self.billed += cost(filter) as u32;
        Ok(())
    }

    /// The same backwards. Which of them are free does not matter.
    fn give_back(&mut self, filter: &[u8]) {
        let cost = (cost(filter) as u32).min(self.billed);
        hub::STORE.give_back(cost as usize);
        self.billed -= cost;
    }

    /// Whether it has nothing that a client would miss.
    pub(super) fn is_empty(&self) -> bool {
        self.subscriptions.is_empty() && self.waiting.is_empty() && self.flight.is_empty() && self.will.is_none()
    }

    /// What comes next for a client that takes messages at QoS 1 now, or does not.
    pub(super) fn next(&mut self, has_room: bool, now: i64) -> Turn {
        if let Some(first) = self.waiting.first() {
            if first.qos > 0 && !has_room {
                return Turn::Nothing;
            }
            if let Some(outgoing) = self.waiting.pop() {
                return Turn::Message(outgoing);
            }
        }
        let count = self.subscriptions.len();
        for step in 0..count {
            let at = (usize::from(self.first) + step) % count;
            let subscribed = &mut self.subscriptions[at];
            if subscribed.wants.qos > 0 && !has_room {
                continue;
            }
            match subscribed.next(&self.group, self.backend.as_deref(), self.origin.get(), now) {
                Turn::Nothing => {}
                turn => {
                    self.first = at as u16;
                    return turn;
                }
            }
        }
        Turn::Nothing
    }

    /// Puts by what comes while the client is gone: at QoS 1, as much as there is room for. `put`: which, by which filter, and where it stands
    /// there then.
    pub(super) fn collect(&mut self, now: i64, mut put: impl FnMut(&[u8], Id, &Outgoing)) {
        for at in 0..self.subscriptions.len() {
            loop {
                match self.subscriptions[at].next(&self.group, self.backend.as_deref(), self.origin.get(), now) {
                    Turn::Message(outgoing) if outgoing.qos > 0 => {
                        let subscribed = &self.subscriptions[at];
                        put(&subscribed.filter, subscribed.after(), &outgoing);
                        self.waiting.put_by(outgoing);
                    }
                    Turn::Message(_) => {}
                    Turn::Nothing => break,
                    Turn::Lost if self.subscriptions[at].begin_anew(&self.group, self.backend.as_deref()) => {}
                    Turn::Lost => break,
                }
            }
        }
    }

    /// Puts a message by.
    pub(super) fn put_by(&mut self, outgoing: Outgoing) {
        self.waiting.put_by(outgoing);
    }

    /// A number for a message at QoS 1 that no other under way has: there are fewer of those than numbers.
    pub(super) fn new_id(&mut self) -> u16 {
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            if !self.flight.iter().any(|(id, _)| *id == self.last_id) {
                return self.last_id;
            }
        }
    }

    /// The client has confirmed a message.
    pub(super) fn confirmed(&mut self, id: u16) {
        self.flight.remove(|(i, _)| *i == id);
    }

    /// Whether its client, who has come back, may still hear all that it subscribes to: another may have its name, or the rules have changed.
    pub(super) fn may_hear(&self, rules: &Rules) -> bool {
        self.filters().all(|filter| rules.allow(filter))
    }

    /// What it subscribes to.
    pub(super) fn filters(&self) -> impl Iterator<Item = &[u8]> {
        self.subscriptions.iter().map(|s| &*s.filter)
    }

    /// It is parked, and has this place.
    pub(super) fn settle(&mut self, place: u32) {
        self.subscriptions.iter_mut().for_each(|s| s.listening.settle(place));
    }

    /// It is parked no longer.
    pub(super) fn unsettle(&mut self) {
        self.subscriptions.iter_mut().for_each(|s| s.listening.unsettle());
    }

    /// What it takes, bytes.
    pub(super) fn bytes(&self) -> usize {
        let each = |s: &Subscribed| block(2 * size_of::<usize>() + s.filter.len()) + READER_BYTES;
        let texts = |will: &Will| block(will.topic.len()) + block(will.payload.len()) + block(will.properties.len());
        let will = self.will.as_ref().map_or(0, |will| block(size_of::<Will>()) + texts(will));
        let subscriptions = block(self.subscriptions.capacity() * size_of::<Subscribed>());
        let filters: usize = self.subscriptions.iter().map(each).sum();
        block(size_of::<Session>()) + block(self.group.len()) + will + subscriptions + filters
    }

    /// Leaves this thread.
    pub(super) fn go(&mut self) {
        self.subscriptions.iter_mut().for_each(|s| s.listening.go());
    }

    /// Has come to this thread.
    pub(super) fn come(&mut self) {
        self.subscriptions.iter_mut().for_each(|s| s.listening.come());
    }
}

impl Subscribed {
    /// Which message it has had last.
    fn after(&self) -> Id {
        self.listening.subscription.places().next().map_or(Id::default(), |(_, after)| after)
    }

    fn next(&mut self, group: &[u8], backend: Option<&Backend>, origin: u64, now: i64) -> Turn {
        loop {
            self.listening.listen();
            let message = match self.listening.subscription.next(now) {
                Next::Message(message) => message,
                Next::Nothing => return Turn::Nothing,
                Next::Lost => return Turn::Lost,
                Next::Deleted => {
                    // The client subscribes to the topic, whatever becomes of its channel.
                    if !self.begin_anew(group, backend) {
                        return Turn::Nothing;
                    }
                    continue;
                }
            };
            let marks = message.marks(now);
            if self.wants.no_local && origin != 0 && marks.origin == origin {
                continue;
            }
            let topic = message.topic().unwrap_or(&self.filter).clone();
            let qos = if marks.at_most_once { 0 } else { self.wants.qos.min(1) };
            let retain = marks.retain && self.wants.retain_as_published;
            return Turn::Message(Outgoing { message, topic, qos, retain, number: self.number });
        }
    }

    /// False: what is refused now has no messages. The subscription stays where it was, deaf, until there is room, or the client asks again.
    fn begin_anew(&mut self, group: &[u8], backend: Option<&Backend>) -> bool {
        if let Some(backend) = backend
            && !topic::has_wildcards(&self.filter)
        {
            backend.follow_soon(&names::name(group, &self.filter), std::time::Duration::ZERO);
        }
        let Ok(listening) = listen(group, &self.filter, Options::default()) else { return false };
        self.listening = listening;
        true
    }
}

/// What is behind a filter: a channel, or all that it names.
fn listen(group: &[u8], filter: &[u8], options: Options) -> Result<Listening, Refused> {
    let (store, mailbox, now) = (hub::store(), hub::mailbox(), hub::now());
    let subscription = match topic::has_wildcards(filter) {
        true => store.subscribe_filter(group, filter, &mailbox, options, now)?,
        false => {
            let name = names::name(group, filter);
            store.subscribe(&[&*name], &Start::Newest, &mailbox, options, now)?
        }
    };
    Ok(Listening::new(subscription))
}

/// What a subscription costs, for the bill.
fn cost(filter: &[u8]) -> usize {
    SUBSCRIPTION_BYTES + filter.len()
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.billed > 0 {
            hub::STORE.give_back(self.billed as usize);
        }
    }
}

/// Messages that are put by for a client: oldest first, bounded in number and bytes, and billed in the store, so that clients that are gone do
/// not take more than it may have.
#[derive(Default)]
struct Waiting {
    queue: Queue<Outgoing>,
    bytes: u64,
}

impl Waiting {
    /// The one that is next.
    fn first(&self) -> Option<&Outgoing> {
        self.queue.first()
    }

    /// Takes the one that is next.
    fn pop(&mut self) -> Option<Outgoing> {
        let oldest = self.queue.pop()?;
        self.bytes -= weight(&oldest);
        let store = &hub::STORE;
        store.let_go(&oldest.message);
        store.give_back(own(&oldest));
        Some(oldest)
    }

    /// Adds one, whatever there is: it was counted in the store a moment ago.
    fn push(&mut self, outgoing: Outgoing) {
        let store = &hub::STORE;
        store.put_by(&outgoing.message);
        store.bill(own(&outgoing));
        self.bytes += weight(&outgoing);
        self.queue.push(outgoing);
    }

    /// Adds one, for which the oldest make room.
    fn put_by(&mut self, outgoing: Outgoing) {
        self.push(outgoing);
        while self.queue.len() > MAX_WAITING || self.bytes > MAX_WAITING_BYTES || hub::STORE.is_over() {
            if self.pop().is_none() {
                return;
            }
        }
    }

    /// All of them, in their order.
    fn iter(&self) -> impl Iterator<Item = &Outgoing> {
        self.queue.iter()
    }

    /// How many there are.
    fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

fn weight(outgoing: &Outgoing) -> u64 {
    (outgoing.message.data().len() + outgoing.topic.len() + 100) as u64
}

/// What one costs beside its message, which others may keep as well.
fn own(outgoing: &Outgoing) -> usize {
    size_of::<Outgoing>() + outgoing.topic.len()
}
