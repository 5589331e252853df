//! A session while its client is connected: what becomes of the client's packets, and the packets that its messages make. From: `held`, `open`.
//! Knows no socket; packets are bytes in and bytes out.

pub(super) mod pack;
mod travel;

use super::super::{hub, names};
use super::offline;
use super::queue::Queue;
use super::rules::Rules;
use super::session::{Outgoing, Session, Turn};
use super::table::Owner;
use push::{Draft, Keep, Marks, Options, Refused};
use runtime::clock;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use wire::mqtt::packet::{Packet, Publish, Subscribe, Wants, Wrong, code, parse};
use wire::mqtt::{Version, answer, topic};

/// Topics that a client may publish to, as an authority has said: so many are remembered for a connection.
const MAX_ALLOWED: usize = 64;
/// Packets are made up to about so many bytes before they are written.
pub(super) const BATCH: usize = 16 * 1024;
/// How often the place of a session is noted for a crash, ms.
const NOTE_MS: u64 = 10_000;
/// Shared subscriptions (section 4.8.2), which are not built.
const SHARED: &[u8] = b"$share/";

/// So many kinds of clients are known at once: those of one are mostly alike.
const MAX_KINDS: usize = 16;

thread_local! {
    static KINDS: RefCell<VecDeque<Rc<Peer>>> = const { RefCell::new(VecDeque::new()) };
}

/// What a client may and can, as of its CONNECT.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) version: Version,
    /// Messages at QoS 1 that may be under way to it.
    pub(super) window: usize,
    /// Bytes of a packet to it.
    pub(super) max_out: usize,
    /// Bytes of a packet of it.
    pub(super) max_in: u64,
    /// It is given up if nothing comes of it for so long; 0: never.
    pub(super) keep_alive_ms: u64,
    pub(super) may_publish: Rules,
    pub(super) may_subscribe: Rules,
    pub(super) keep: Keep,
    pub(super) options: Options,
    pub(super) max_id_length: usize,
    pub(super) max_expiry_s: u32,
    /// An authority is asked about its topics: that takes a request.
    pub(super) asks: bool,
    /// Others are asked about its messages, or told of its subscriptions: that, too.
    pub(super) tells: bool,
    /// Its rules, or its group, may be like those of no other client.
    pub(super) own_rules: bool,
    pub(super) own_group: bool,
}

/// A session and its client.
pub(super) struct Live {
    pub(super) session: Box<Session>,
    pub(super) owner: Owner,
    pub(super) peer: Rc<Peer>,
    scans: Queue<Scan>,
    allowed: Queue<Box<[u8]>>,
    /// When its session was noted for a crash, ms.
    noted_ms: u64,
}

/// Retained messages that are on their way to a new subscription.
struct Scan {
    filter: Box<[u8]>,
    qos: u8,
    number: Option<u32>,
    after: Option<Arc<[u8]>>,
}

/// What becomes of the connection after a packet.
pub(super) enum After {
    GoOn,
    /// A request is needed for this packet.
    Ask,
    /// The client goes; with its will said, or not.
    Goodbye {
        /// It is.
        will: bool,
    },
}

impl Peer {
    /// The same for all clients that are alike.
    pub(super) fn shared(self) -> Rc<Peer> {
        if self.has_rules_of_its_own() {
            return Rc::new(self);
        }
        KINDS.with_borrow_mut(|kinds| {
            if let Some(known) = kinds.iter().find(|known| ***known == self) {
                return known.clone();
            }
            if kinds.len() >= MAX_KINDS {
                kinds.pop_front();
            }
            let peer = Rc::new(self);
            kinds.push_back(peer.clone());
            peer
        })
    }

    /// Whether it has rules that are the client's alone.
    pub(super) fn has_rules_of_its_own(&self) -> bool {
        self.own_rules && (self.may_publish != Rules::default() || self.may_subscribe != Rules::default())
    }

    /// What a peer with rules of its own has in common with others.
    pub(super) fn without_rules(&self) -> Rc<Peer> {
        let none = Rules::default;
        Peer { may_publish: none(), may_subscribe: none(), ..self.clone() }.shared()
    }

    /// Appends the packet of a message. False: it is not for the client, since it is too old or too large (section 3.1.2.11.4).
    pub(super) fn packet(&self, outgoing: &Outgoing, id: Option<u16>, dup: bool, now: i64, out: &mut Vec<u8>) -> bool {
        let message = &outgoing.message;
        if message.is_over(now) {
            return false;
        }
        let marks = message.marks(now);
        let packet = answer::Message {
            dup,
            id,
            retain: outgoing.retain,
            topic: &outgoing.topic,
            payload: message.data(),
            expiry: marks.expiry,
            content_type: message.content_type(),
            subscription: outgoing.number,
            properties: marks.properties,
        };
        if answer::publish_size(&packet) > self.max_out {
            return false;
        }
        answer::publish(self.version, &packet, out);
        true
    }
}

impl Live {
    /// `first`: what is said first, to which is added what the client has not confirmed.
    pub(super) fn new(session: Box<Session>, owner: Owner, peer: Rc<Peer>, first: &mut Vec<u8>) -> Box<Live> {
        let (scans, allowed) = (Queue::default(), Queue::default());
        let mut live = Box::new(Live { session, owner, peer, scans, allowed, noted_ms: 0 });
        live.send_again(first);
        live
    }

    /// Notes the session for the time after a crash, if it is to last.
    pub(super) fn note(&mut self) {
        if self.session.expiry_s > 0 {
            self.noted_ms = clock::monotonic_ms();
            offline::note(self.owner.key(), &mut self.session, None);
        }
    }

    /// The same, now and then: the client has confirmed something.
    fn note_place(&mut self) {
        if self.session.expiry_s > 0 && clock::monotonic_ms() >= self.noted_ms + NOTE_MS {
            self.note();
        }
    }

    /// What was not confirmed goes out once more (section 4.4).
    fn send_again(&mut self, out: &mut Vec<u8>) {
        let flight = self.session.flight.take();
        for (id, outgoing) in flight {
            if self.peer.packet(&outgoing, Some(id), true, hub::now(), out) {
                self.session.flight.push((id, outgoing));
            }
        }
    }

    /// Deals with a packet.
    pub(super) fn packet(&mut self, first: u8, body: &[u8], out: &mut Vec<u8>) -> Result<After, Wrong> {
        match parse(self.peer.version, first, body)? {
            Packet::Publish(publish) => {
                let asks = self.peer.asks && (self.session.backend.is_some() || !self.is_allowed(publish.topic));
                if asks || self.peer.tells {
                    return Ok(After::Ask);
                }
                let reason = self.publish(&publish);
                self.answer_publish(&publish, reason, out)?;
            }
            Packet::Puback(id) => {
                self.session.confirmed(id);
                self.note_place();
            }
            Packet::Subscribe(_) if self.peer.asks || self.peer.tells => return Ok(After::Ask),
            Packet::Unsubscribe(..) if self.peer.tells => return Ok(After::Ask),
            Packet::Subscribe(subscribe) => {
                let reasons: Vec<u8> = subscribe.filters.iter().map(|f| self.subscribe(&subscribe, *f)).collect();
                answer::suback(self.peer.version, subscribe.id, &reasons, out);
                self.note();
            }
            Packet::Unsubscribe(id, filters) => {
                let reasons: Vec<u8> = filters.iter().map(|filter| self.unsubscribe(filter)).collect();
                answer::unsuback(self.peer.version, id, &reasons, out);
                self.note();
            }
            Packet::Pingreq => answer::pingresp(out),
            Packet::Disconnect(reason, expiry) => {
                if let Some(expiry) = expiry {
                    if self.session.expiry_s == 0 && expiry > 0 {
                        // Section 3.14.2.2.2: what was to end with the connection cannot be kept now.
                        return Err(Wrong::PROTOCOL);
                    }
                    self.session.expiry_s = expiry.min(self.peer.max_expiry_s);
                }
                return Ok(After::Goodbye { will: reason != code::SUCCESS });
            }
        }
        Ok(After::GoOn)
    }

    /// Whether an authority has let the client publish to a topic.
    pub(super) fn is_allowed(&self, topic: &[u8]) -> bool {
        self.allowed.iter().any(|allowed| **allowed == *topic)
    }

    /// An authority lets the client publish to a topic.
    pub(super) fn allow(&mut self, topic: &[u8]) {
        if self.is_allowed(topic) {
            return;
        }
        self.allowed.push(topic.into());
        if self.allowed.len() > MAX_ALLOWED {
            self.allowed.pop();
        }
    }

    /// Why a message cannot be published; none: it can.
    pub(super) fn refuses(&self, publish: &Publish<'_>) -> Option<u8> {
        if publish.topic.len() > self.peer.max_id_length {
            return Some(code::BAD_TOPIC);
        }
        (!self.peer.may_publish.allow(publish.topic)).then_some(code::NOT_AUTHORIZED)
    }

    /// The message as the channels take it.
    pub(super) fn draft<'p>(&self, publish: &'p Publish<'_>) -> Draft<'p> {
        let marks = Marks {
            at_most_once: publish.qos == 0,
            retain: publish.retain,
            origin: self.session.origin(),
            expiry: publish.properties.message_expiry,
            properties: &publish.properties.passed_on,
        };
        let content_type = publish.properties.content_type;
        Draft { data: publish.payload, content_type, marks, ..Draft::default() }
    }

    /// Publishes a message; gives the reason code for the client.
    pub(super) fn publish(&self, publish: &Publish<'_>) -> u8 {
        if let Some(reason) = self.refuses(publish) {
            return reason;
        }
        let name = names::name(&self.session.group, publish.topic);
        match hub::store().publish(&name, self.draft(publish), self.peer.keep, hub::now()) {
            Ok(published) if published.info.subscribers == 0 => code::NO_SUBSCRIBERS,
            Ok(_) => code::SUCCESS,
            Err(_) => code::QUOTA_EXCEEDED,
        }
    }

    /// Confirms a message, or refuses it. MQTT 3.1.1 has no words for that: the connection ends, so that the client knows.
    pub(super) fn answer_publish(&self, publish: &Publish<'_>, reason: u8, out: &mut Vec<u8>) -> Result<(), Wrong> {
        let is_refused = reason >= code::UNSPECIFIED;
        if is_refused && (self.peer.version == Version::V3 || publish.qos == 0) {
            return Err(Wrong(reason));
        }
        if publish.qos > 0 {
            answer::puback(self.peer.version, publish.id, reason, out);
        }
        Ok(())
    }

    /// Why a filter cannot be subscribed to; none: it can.
    pub(super) fn refuses_filter(&self, filter: &[u8]) -> Option<u8> {
        if filter.starts_with(SHARED) {
            return Some(code::SHARED_NOT_SUPPORTED);
        }
        if !topic::is_filter(filter) || filter.len() > self.peer.max_id_length {
            return Some(code::BAD_FILTER);
        }
        (!self.peer.may_subscribe.allow(filter)).then_some(code::NOT_AUTHORIZED)
    }

    /// Subscribes to a filter; gives the reason code for the client.
    pub(super) fn subscribe(&mut self, subscribe: &Subscribe<'_>, (filter, wants): (&[u8], Wants)) -> u8 {
        if let Some(reason) = self.refuses_filter(filter) {
            return reason;
        }
        let is_new = match self.session.subscribe(filter, wants, subscribe.subscription, self.peer.options) {
            Ok(is_new) => is_new,
            Err(Refused::NoChannel) => return code::NOT_AUTHORIZED,
            Err(_) => return code::QUOTA_EXCEEDED,
        };
        let qos = wants.qos.min(1);
        if wants.retain_handling == 0 || (wants.retain_handling == 1 && is_new) {
            self.scans.retain(|scan| *scan.filter != *filter);
            let scan = Scan { filter: filter.into(), qos, number: subscribe.subscription, after: None };
            self.scans.push(scan);
        }
        qos
    }

    /// Ends a subscription; gives the reason code for the client.
    pub(super) fn unsubscribe(&mut self, filter: &[u8]) -> u8 {
        self.scans.retain(|scan| *scan.filter != *filter);
        if self.session.unsubscribe(filter) { code::SUCCESS } else { code::NO_SUBSCRIPTION }
    }

    /// Appends packets of messages, as many as make a batch. False: messages are gone that the client has not had.
    pub(super) fn send(&mut self, now: i64, out: &mut Vec<u8>) -> bool {
        while out.len() < BATCH {
            let has_room = self.session.flight.len() < self.peer.window;
            let outgoing = match self.next_retained(has_room, now) {
                Some(outgoing) => outgoing,
                None => match self.session.next(has_room, now) {
                    Turn::Message(outgoing) => outgoing,
                    Turn::Nothing => return true,
                    Turn::Lost => return false,
                },
            };
            if outgoing.qos == 0 {
                self.peer.packet(&outgoing, None, false, now, out);
                continue;
            }
            let id = self.session.new_id();
            if self.peer.packet(&outgoing, Some(id), false, now, out) {
                self.session.flight.push((id, outgoing));
            }
        }
        true
    }

    fn next_retained(&mut self, has_room: bool, now: i64) -> Option<Outgoing> {
        loop {
            let scan = self.scans.first_mut()?;
            if scan.qos > 0 && !has_room {
                return None;
            }
            let group = hub::store().group(&self.session.group);
            let found = match topic::has_wildcards(&scan.filter) {
                true => group.next_retained(&scan.filter, scan.after.as_deref(), now),
                false if scan.after.is_some() => None,
                false => group.retained_of(&scan.filter, now).map(|message| (Arc::from(&*scan.filter), message)),
            };
            let Some((topic, message)) = found else {
                self.scans.pop();
                continue;
            };
            scan.after = Some(topic.clone());
            let qos = if message.marks(now).at_most_once { 0 } else { scan.qos };
            return Some(Outgoing { message, topic, qos, retain: true, number: scan.number });
        }
    }
}
