//! What stays of a client of MQTT when its connection is gone: what it subscribes to, what it has not confirmed, what waits for it, its will.
//! It moves to the thread of the client's next connection. Knows no socket.

pub(super) mod travel;

use super::super::hub::{self, Listening};
use super::super::names;
use super::super::redis::Backend;
use push::{Keep, Message, Next, Options, Refused, Start};
use std::collections::VecDeque;
use std::sync::Arc;
use wire::mqtt::packet::Wants;
use wire::mqtt::topic;

/// Filters of one session.
const MAX_SUBSCRIPTIONS: usize = 1000;
/// Messages that wait for a client that is gone; the oldest make room.
const MAX_WAITING: usize = 1000;
/// The same, bytes.
const MAX_WAITING_BYTES: usize = 1024 * 1024;

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
    /// Who it is as a publisher, for subscribers that do not want what is their own.
    pub(super) origin: u64,
    /// How long it stays without a connection, s.
    pub(super) expiry_s: u32,
    pub(super) will: Option<Box<Will>>,
    subscriptions: Vec<Subscribed>,
    /// The one that is looked at first, so that none waits for ever.
    first: usize,
    waiting: VecDeque<Outgoing>,
    waiting_bytes: usize,
    /// At QoS 1, not confirmed yet, in the order in which they went out.
    pub(super) flight: VecDeque<(u16, Outgoing)>,
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
        let mut origin = [0; 8];
        // Without randomness two sessions could be taken for one, which then do not hear each other where they ask for that.
        let _ = rustix::rand::getrandom(&mut origin[..], rustix::rand::GetRandomFlags::empty());
        Session {
            group,
            backend,
            origin: u64::from_ne_bytes(origin).max(1),
            expiry_s: 0,
            will: None,
            subscriptions: Vec::new(),
            first: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            flight: VecDeque::new(),
            last_id: 0,
        }
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
        let listening = listen(&self.group, filter, options)?;
        self.subscriptions.push(Subscribed { filter: filter.into(), wants, number, listening });
        Ok(true)
    }

    /// Whether there was such a subscription.
    pub(super) fn unsubscribe(&mut self, filter: &[u8]) -> bool {
        let before = self.subscriptions.len();
        self.subscriptions.retain(|s| *s.filter != *filter);
        self.subscriptions.len() < before
    }

    /// Whether it has nothing that a client would miss.
    pub(super) fn is_empty(&self) -> bool {
        self.subscriptions.is_empty() && self.waiting.is_empty() && self.flight.is_empty() && self.will.is_none()
    }

    /// What comes next for a client that takes messages at QoS 1 now, or does not.
    pub(super) fn next(&mut self, has_room: bool, now: i64) -> Turn {
        if let Some(first) = self.waiting.front() {
            if first.qos > 0 && !has_room {
                return Turn::Nothing;
            }
            if let Some(outgoing) = self.waiting.pop_front() {
                self.waiting_bytes -= cost(&outgoing);
                return Turn::Message(outgoing);
            }
        }
        let count = self.subscriptions.len();
        for step in 0..count {
            let at = (self.first + step) % count;
            let subscribed = &mut self.subscriptions[at];
            if subscribed.wants.qos > 0 && !has_room {
                continue;
            }
            match subscribed.next(&self.group, self.backend.as_deref(), self.origin, now) {
                Turn::Nothing => {}
                turn => {
                    self.first = at;
                    return turn;
                }
            }
        }
        Turn::Nothing
    }

    /// Puts by what comes while the client is gone: at QoS 1, as much as there is room for.
    pub(super) fn collect(&mut self, now: i64) {
        for at in 0..self.subscriptions.len() {
            loop {
                match self.subscriptions[at].next(&self.group, self.backend.as_deref(), self.origin, now) {
                    Turn::Message(outgoing) if outgoing.qos > 0 => self.put_by(outgoing),
                    Turn::Message(_) => {}
                    Turn::Nothing => break,
                    Turn::Lost => self.subscriptions[at].begin_anew(&self.group, self.backend.as_deref()),
                }
            }
        }
    }

    fn put_by(&mut self, outgoing: Outgoing) {
        self.waiting_bytes += cost(&outgoing);
        self.waiting.push_back(outgoing);
        while self.waiting.len() > MAX_WAITING || self.waiting_bytes > MAX_WAITING_BYTES {
            let Some(oldest) = self.waiting.pop_front() else { return };
            self.waiting_bytes -= cost(&oldest);
        }
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
        if let Some(at) = self.flight.iter().position(|(i, _)| *i == id) {
            self.flight.remove(at);
        }
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
        let each = |s: &Subscribed| size_of::<Subscribed>() + s.filter.len();
        let will = self.will.as_ref().map_or(0, |will| will.topic.len() + will.payload.len() + will.properties.len());
        size_of::<Session>() + self.group.len() + will + self.subscriptions.iter().map(each).sum::<usize>()
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
    fn next(&mut self, group: &[u8], backend: Option<&Backend>, origin: u64, now: i64) -> Turn {
        loop {
            self.listening.listen();
            let message = match self.listening.subscription.next(now) {
                Next::Message(message) => message,
                Next::Nothing => return Turn::Nothing,
                Next::Lost => return Turn::Lost,
                Next::Deleted => {
                    // The client subscribes to the topic, whatever becomes of its channel.
                    self.begin_anew(group, backend);
                    continue;
                }
            };
            let marks = message.marks(now);
            if self.wants.no_local && marks.origin == origin {
                continue;
            }
            let topic = message.topic().unwrap_or(&self.filter).clone();
            let qos = if marks.at_most_once { 0 } else { self.wants.qos.min(1) };
            let retain = marks.retain && self.wants.retain_as_published;
            return Turn::Message(Outgoing { message, topic, qos, retain, number: self.number });
        }
    }

    fn begin_anew(&mut self, group: &[u8], backend: Option<&Backend>) {
        if let Some(backend) = backend
            && !topic::has_wildcards(&self.filter)
        {
            backend.follow_soon(&names::name(group, &self.filter), std::time::Duration::ZERO);
        }
        // What is refused now has no messages: the subscription stays where it was, deaf, until the client asks again.
        if let Ok(listening) = listen(group, &self.filter, Options::default()) {
            self.listening = listening;
        }
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

fn cost(outgoing: &Outgoing) -> usize {
    outgoing.message.data().len() + outgoing.topic.len() + 100
}
