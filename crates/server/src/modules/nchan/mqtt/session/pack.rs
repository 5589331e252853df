//! A session in few bytes, as long as its client is parked and silent, nothing waits for it and nothing is unconfirmed. From and to: `small`. The bytes are this
//! process's own: channels stand there by their addresses in the thread's table.

use super::{Outgoing, Session, Subscribed, Turn, Will};
use crate::modules::nchan::hub::{self, Standing};
use crate::modules::nchan::redis::backend::Backend;
use heir::{Reader, Writer};
use push::Id;
use std::sync::Arc;
use wire::mqtt::packet::Wants;

/// Filters of one that is packed: all of them are looked at each time its client is asked for.
const MOST_FILTERS: usize = 16;

/// How the bits of [`Wants`] stand.
const NO_LOCAL: u64 = 1 << 2;
const RETAIN_AS_PUBLISHED: u64 = 1 << 3;
const HAS_NUMBER: u64 = 1 << 4;
const RETAIN_HANDLING: u32 = 5;

/// Whether there may be a message for a session that is packed.
pub(in super::super) fn has_news(packed: &[u8]) -> bool {
    let mut r = Reader::new(packed);
    (0..r.number().unwrap_or(0)).any(|_| match (r.number(), r.number()) {
        (Some(channel), Some(seen)) => hub::has_news(channel as usize, seen),
        _ => true,
    })
}

/// Gives the messages that there are for a session that is packed, as long as `put` wants more; what it is packed as then, and whether messages are gone
/// that it has not had, which is for a whole one to find out. None: they are at QoS 1, or it wants less than all; that, too, is for a whole one.
pub(in super::super) fn messages(
    packed: &[u8],
    place: u32,
    (group, backend): (&[u8], Option<&Backend>),
    mut put: impl FnMut(&Outgoing) -> bool,
) -> Option<(Vec<u8>, bool)> {
    if !are_plain(packed)? {
        return None;
    }
    let (mut r, now) = (Reader::new(packed), hub::now());
    let mut all = unpack_all(&mut r, place)?;
    let (mut goes_on, mut is_lost) = (true, false);
    for subscribed in &mut all {
        while goes_on && !is_lost {
            match subscribed.next(group, backend, 0, now) {
                Turn::Message(outgoing) => goes_on = put(&outgoing),
                Turn::Nothing => break,
                Turn::Lost => is_lost = true,
            }
        }
    }
    // What begins anew is not known as one that is parked.
    all.iter_mut().for_each(|subscribed| subscribed.listening.settle(place));
    let mut w = Writer::with_room(b"", packed.len());
    pack_all(all, &mut w);
    Some(([&w.done(), r.rest()].concat(), is_lost))
}

/// Whether all filters are at QoS 0 and want all that there is.
fn are_plain(packed: &[u8]) -> Option<bool> {
    let mut r = Reader::new(packed);
    let count = r.list(MOST_FILTERS, |r| Some((r.number()?, r.number()?)))?.len();
    for _ in 0..count {
        let bits = r.number()?;
        if bits & 3 != 0 || bits & NO_LOCAL != 0 {
            return Some(false);
        }
        if bits & HAS_NUMBER != 0 {
            r.number()?;
        }
        r.bytes()?;
        r.signed()?;
        r.signed()?;
    }
    Some(true)
}

fn pack_all(all: Vec<Subscribed>, w: &mut Writer) {
    w.number(all.len() as u64);
    let all = all.into_iter().map(|mut subscribed| {
        let standing = subscribed.listening.pack().expect("each of one at rest can be packed");
        w.number(standing.channel as u64);
        w.number(standing.seen);
        (subscribed, standing.after)
    });
    let all: Vec<_> = all.collect();
    all.iter().for_each(|(subscribed, after)| subscribed.pack(*after, w));
}

/// None: it was something else. Without the thread's table, which is gone when a thread ends, there is nobody who hears.
fn unpack_all(r: &mut Reader<'_>, place: u32) -> Option<Vec<Subscribed>> {
    let standing = r.list(MOST_FILTERS, |r| Some((r.number()? as usize, r.number()?)))?;
    let mut all = Vec::with_capacity(standing.len());
    for (channel, seen) in standing {
        all.extend(Subscribed::unpack(r, channel, seen, place)?);
    }
    Some(all)
}

/// How many filters it has.
pub(in super::super) fn filters(packed: &[u8]) -> usize {
    Reader::new(packed).number().unwrap_or(0) as usize
}

impl Session {
    /// Whether it can be packed.
    pub(in super::super) fn is_at_rest(&self) -> bool {
        self.flight.is_empty()
            && self.waiting.is_empty()
            && self.subscriptions.len() <= MOST_FILTERS
            && self.subscriptions.iter().all(|subscribed| subscribed.listening.may_pack())
    }

    /// Writes it down, but for its group and that one's Redis. Nothing is left of it here.
    pub(in super::super) fn pack(&mut self, w: &mut Writer) {
        pack_all(std::mem::take(&mut self.subscriptions), w);
        w.flag(self.will.is_some());
        self.will.take().iter().for_each(|will| will.write(w));
        // What is billed goes on being so.
        let billed = std::mem::take(&mut self.billed);
        [self.origin.get(), self.expiry_s.into(), self.first.into(), billed.into(), self.last_id.into()]
            .into_iter()
            .for_each(|number| w.number(number));
    }

    /// What was packed by this thread for the client that is parked at this place, but for its group. None: it was something else.
    pub(in super::super) fn unpack(
        r: &mut Reader<'_>,
        place: u32,
        backend: Option<Arc<Backend>>,
    ) -> Option<Box<Session>> {
        let mut session = Box::new(Session::new(Box::default(), backend));
        session.subscriptions = unpack_all(r, place)?;
        session.will = if r.flag()? { Some(Box::new(Will::read(r)?)) } else { None };
        session.origin.set(r.number()?);
        session.expiry_s = r.number()? as u32;
        session.first = r.number()? as u16;
        session.billed = r.number()? as u32;
        session.last_id = r.number()? as u16;
        Some(session)
    }
}

impl Subscribed {
    /// `after`: the message that it has had last.
    fn pack(&self, after: Id, w: &mut Writer) {
        let Wants { qos, no_local, retain_as_published, retain_handling } = self.wants;
        let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
        let bits = flag(no_local, NO_LOCAL) | flag(retain_as_published, RETAIN_AS_PUBLISHED);
        let bits = bits | flag(self.number.is_some(), HAS_NUMBER) | u64::from(retain_handling) << RETAIN_HANDLING;
        w.number(bits | u64::from(qos & 3));
        self.number.into_iter().for_each(|number| w.number(number.into()));
        w.bytes(&self.filter);
        w.signed(after.time);
        w.signed(after.tag.into());
    }

    /// None outside: it was something else.
    fn unpack(r: &mut Reader<'_>, channel: usize, seen: u64, place: u32) -> Option<Option<Subscribed>> {
        let bits = r.number()?;
        let wants = Wants {
            qos: (bits & 3) as u8,
            no_local: bits & NO_LOCAL != 0,
            retain_as_published: bits & RETAIN_AS_PUBLISHED != 0,
            retain_handling: (bits >> RETAIN_HANDLING & 3) as u8,
        };
        let number = if bits & HAS_NUMBER != 0 { Some(r.number()? as u32) } else { None };
        let filter = r.bytes()?.into();
        let after = Id { time: r.signed()?, tag: r.signed()? as i32 };
        let listening = Standing { channel, after, seen }.unpack(place);
        Some(listening.map(|listening| Subscribed { filter, wants, number, listening }))
    }
}
