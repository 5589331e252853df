//! A session on its way to another process, or from one: what it subscribes to and where it stands there, what was not confirmed, what waits,
//! its will. From and to: `live`, `offline`.

use super::{MAX_SUBSCRIPTIONS, Outgoing, Session, Subscribed, Turn, Will};
use crate::modules::nchan::hub::{self, Listening};
use crate::modules::nchan::names;
use crate::modules::nchan::redis::backend::Backend;
use heir::{Reader, Writer};
use push::{Id, Keep, Packed};
use std::sync::Arc;
use std::time::Duration;
use wire::mqtt::packet::Wants;
use wire::mqtt::topic;

impl Session {
    /// For another process. False: messages are gone that the client has not had.
    pub(in super::super) fn write(&mut self, w: &mut Writer) -> bool {
        if !self.gather(hub::now()) {
            return false;
        }
        w.bytes(&self.group);
        w.number(self.origin());
        w.number(self.expiry_s.into());
        w.flag(self.will.is_some());
        self.will.iter().for_each(|will| will.write(w));
        w.number(self.subscriptions.len() as u64);
        let is_shared = self.backend.is_some();
        self.subscriptions.iter().for_each(|subscribed| subscribed.write(is_shared, w));
        w.number(self.flight.len() as u64);
        for (id, outgoing) in self.flight.iter() {
            w.number((*id).into());
            outgoing.write(w);
        }
        w.number(self.waiting.len() as u64);
        self.waiting.iter().for_each(|outgoing| outgoing.write(w));
        w.number(self.last_id.into());
        true
    }

    /// Takes what has come by filters: there these begin with what is published there, or with what comes there from a Redis behind this.
    fn gather(&mut self, now: i64) -> bool {
        for at in 0..self.subscriptions.len() {
            while topic::has_wildcards(&self.subscriptions[at].filter) {
                match self.subscriptions[at].next(&self.group, self.backend.as_deref(), self.origin.get(), now) {
                    Turn::Message(outgoing) => self.waiting.push(outgoing),
                    Turn::Nothing => break,
                    Turn::Lost => return false,
                }
            }
        }
        true
    }

    /// What another process wrote. None: it was something else, or there is no room for it. `find`: the Redis of a group, if it has one that is
    /// known here.
    pub(in super::super) fn read(
        r: &mut Reader<'_>,
        find: impl FnOnce(&[u8]) -> Option<Arc<Backend>>,
    ) -> Option<Box<Session>> {
        Session::read_after(r, find, &|_| None)
    }

    /// The same, where it has come further by some of its filters.
    pub(in super::super) fn read_after(
        r: &mut Reader<'_>,
        find: impl FnOnce(&[u8]) -> Option<Arc<Backend>>,
        after: &dyn Fn(&[u8]) -> Option<Id>,
    ) -> Option<Box<Session>> {
        let group = r.bytes()?;
        let backend = find(group);
        // Names of groups of a Redis are marked.
        if group.contains(&0) != backend.is_some() {
            return None;
        }
        let mut session = Session::new(group.into(), backend);
        session.origin.set(r.number()?);
        session.expiry_s = u32::try_from(r.number()?).ok()?;
        session.will = if r.flag()? { Some(Box::new(Will::read(r)?)) } else { None };
        let (group, backend) = (session.group.clone(), session.backend.clone());
        let read = |r: &mut Reader<'_>| Subscribed::read(r, &group, backend.as_deref(), after);
        let subscriptions: Vec<Subscribed> = r.list(MAX_SUBSCRIPTIONS, read)?;
        for subscribed in subscriptions {
            session.bill(&subscribed.filter).ok()?;
            session.add(subscribed);
        }
        let flight = r.list(usize::from(u16::MAX), |r| Some((u16::try_from(r.number()?).ok()?, Outgoing::read(r)?)))?;
        session.flight = flight.into();
        let waiting: Vec<Outgoing> = r.list(heir::MOST_CHANNELS, Outgoing::read)?;
        waiting.into_iter().for_each(|outgoing| session.waiting.push(outgoing));
        session.last_id = u16::try_from(r.number()?).ok()?;
        Some(Box::new(session))
    }
}

impl Subscribed {
    /// `is_shared`: what is published comes from a Redis, to the other process as well.
    fn write(&self, is_shared: bool, w: &mut Writer) {
        w.bytes(&self.filter);
        let Wants { qos, no_local, retain_as_published, retain_handling } = self.wants;
        w.number(qos.into());
        w.flag(no_local);
        w.flag(retain_as_published);
        w.number(retain_handling.into());
        w.optional(self.number.map(i64::from));
        let after = self.after();
        w.signed(after.time);
        w.signed(after.tag.into());
        if is_shared && topic::has_wildcards(&self.filter) {
            let had = self.listening.subscription.had_by_filter();
            w.optional_bytes(had.as_ref().map(|(topic, _)| &**topic));
            let id = had.map_or(Id::default(), |(_, id)| id);
            w.signed(id.time);
            w.signed(id.tag.into());
        }
    }

    fn read(
        r: &mut Reader<'_>,
        group: &[u8],
        backend: Option<&Backend>,
        moved: &dyn Fn(&[u8]) -> Option<Id>,
    ) -> Option<Subscribed> {
        let filter = r.bytes()?;
        let wants = Wants {
            qos: read_byte(r, 2)?,
            no_local: r.flag()?,
            retain_as_published: r.flag()?,
            retain_handling: read_byte(r, 2)?,
        };
        let number = read_optional(r)?;
        let after = Id { time: r.signed()?, tag: i32::try_from(r.signed()?).ok()? };
        if !topic::is_filter(filter) {
            return None;
        }
        let after = moved(filter).unwrap_or(after);
        let (store, mailbox, now) = (hub::store(), hub::mailbox(), hub::now());
        let subscription = match (topic::has_wildcards(filter), backend) {
            (true, Some(backend)) => {
                let (topic, time, tag) = (r.optional_bytes()?, r.signed()?, i32::try_from(r.signed()?).ok()?);
                backend.follow_group(group);
                store.resume_heard(group, filter, topic.map(|topic| (topic, Id { time, tag })), &mailbox, now)
            }
            (true, None) => store.resume_filter(group, filter, &mailbox, now),
            (false, Some(backend)) => {
                let name = names::name(group, filter);
                // It is followed as long as there is a subscriber.
                backend.follow_soon(&name, Duration::ZERO);
                store.resume(&[(&name, after)], None, &mailbox, now)
            }
            (false, None) => store.resume(&[(&names::name(group, filter), after)], None, &mailbox, now),
        };
        Some(Subscribed { filter: filter.into(), wants, number, listening: Listening::new(subscription.ok()?) })
    }
}

impl Outgoing {
    /// For another process.
    pub(in super::super) fn write(&self, w: &mut Writer) {
        let mut packed = Vec::new();
        self.message.pack(self.message.at(), &mut packed);
        w.signed(self.message.at());
        w.bytes(&packed);
        w.bytes(&self.topic);
        w.number(self.qos.into());
        w.flag(self.retain);
        w.optional(self.number.map(i64::from));
    }

    /// What another process wrote.
    pub(in super::super) fn read(r: &mut Reader<'_>) -> Option<Outgoing> {
        let (at, packed, topic) = (r.signed()?, r.bytes()?, r.bytes()?);
        // Its id says where it stood in a channel, where nobody looks for it any more.
        let message = Packed::read(packed).ok()?.message(Id::default(), at);
        let (qos, retain) = (read_byte(r, 1)?, r.flag()?);
        Some(Outgoing { message, topic: topic.into(), qos, retain, number: read_optional(r)? })
    }
}

impl Will {
    pub(super) fn write(&self, w: &mut Writer) {
        w.bytes(&self.topic);
        w.bytes(&self.payload);
        w.flag(self.at_most_once);
        w.flag(self.retain);
        write_keep(&self.keep, w);
        w.number(self.delay.into());
        w.optional(self.expiry.map(i64::from));
        w.bytes(&self.content_type);
        w.bytes(&self.properties);
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Option<Will> {
        let will = Will {
            topic: r.bytes()?.into(),
            payload: r.bytes()?.into(),
            at_most_once: r.flag()?,
            retain: r.flag()?,
            keep: read_keep(r)?,
            delay: u32::try_from(r.number()?).ok()?,
            expiry: read_optional(r)?,
            content_type: r.bytes()?.into(),
            properties: r.bytes()?.into(),
        };
        topic::is_name(&will.topic).then_some(will)
    }
}

/// What a channel keeps.
pub(in super::super) fn write_keep(keep: &Keep, w: &mut Writer) {
    w.number(keep.length as u64);
    w.signed(keep.seconds);
    w.flag(keep.accounting);
    w.signed(keep.channel_timeout);
}

/// See [`write_keep`].
pub(in super::super) fn read_keep(r: &mut Reader<'_>) -> Option<Keep> {
    let length = usize::try_from(r.number()?).ok()?;
    Some(Keep { length, seconds: r.signed()?, accounting: r.flag()?, channel_timeout: r.signed()? })
}

/// A number of [`Writer::optional`] that is none or one of 32 bits.
pub(in super::super) fn read_optional(r: &mut Reader<'_>) -> Option<Option<u32>> {
    match r.optional()? {
        Some(number) => u32::try_from(number).ok().map(Some),
        None => Some(None),
    }
}

fn read_byte(r: &mut Reader<'_>, most: u8) -> Option<u8> {
    u8::try_from(r.number()?).ok().filter(|byte| *byte <= most)
}
