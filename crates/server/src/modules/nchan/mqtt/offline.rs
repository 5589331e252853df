//! What becomes of a session when its connection is gone: it is given to whoever wants it, waits for its client, or ends; and its will is
//! said. From: `held`.
//!
//! Each that is to last is in the journal of channels (`nchan/journal.rs`) as it was when it last changed, and what was put by for it since. After a
//! crash of the process they are sessions whose clients are gone. What a client that is connected has had is noted now and then: after a crash it
//! may get messages of the last seconds again, as QoS 1 allows.

use super::super::redis::backend;
use super::super::{hub, journal, names};
use super::live::Live;
use super::session::{Outgoing, Session, Will};
use super::table::{self, Owner};
use crate::snapshot::Snapshot;
use crate::worker::departure::{self, Papers, Stay, Traveller};
use heir::{Reader, Writer};
use push::{Draft, Id, Marks};
use runtime::clock;
use runtime::timer::Timer;
use std::collections::HashMap;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

/// Bytes of a session that goes to another process: a batch of the largest fits into one message of the line.
pub(super) const MOST_BYTES: usize = 2 * 1024 * 1024;

/// How long wills wait at least after a crash, ms.
const TIME_TO_RETURN_MS: u64 = 10_000;

/// How the connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// The client has said goodbye.
    Well,
    /// In any other way: its will is said.
    Badly,
    /// Another connection has the session: its will is said unless it may wait.
    TakenOver,
}

/// A connection is gone.
pub(super) fn left(live: Live, how: Left) {
    let Live { mut session, mut owner, .. } = live;
    if how == Left::Well {
        session.will = None;
    }
    if session.will.as_ref().is_some_and(|will| will.delay == 0) || session.expiry_s == 0 {
        session.say_will();
    }
    if how == Left::TakenOver {
        session.go();
        return owner.give(session);
    }
    if session.expiry_s == 0 || !owner.go_offline(&session) {
        over(owner.key());
        return session.say_will();
    }
    let now = clock::monotonic_ms();
    let ends_ms = now + u64::from(session.expiry_s) * 1000;
    let will_ms = session.will.as_ref().map(|will| now + u64::from(will.delay) * 1000);
    Offline { session, owner, ends_ms, will_ms, stays: false }.begin();
}

/// Goes on with the sessions of a worker that has crashed: their clients are gone. By the thread that is the first to ask for channels, before
/// anything is published.
pub(in super::super) fn go_on_after_crash() {
    journal::take_restored(|key, restored| {
        let Some(Noted { mut session, left_ms, will_ms }) = read_noted(&restored) else {
            return over(&key);
        };
        let (Some(mut owner), now) = (table::arrive(key), clock::monotonic_ms()) else { return };
        if left_ms == Some(0) || !owner.go_offline(&session) {
            over(owner.key());
            return session.say_will();
        }
        let ends_ms = now + left_ms.unwrap_or(u64::from(session.expiry_s) * 1000);
        // This server has ended the connection, not the client: it has time to come back before others are told that it is gone.
        let delay = |will: &Will| u64::from(will.delay) * 1000;
        let will_ms = session.will.as_ref().map(|will| now + will_ms.unwrap_or(delay(will)).max(TIME_TO_RETURN_MS));
        Offline { session, owner, ends_ms, will_ms, stays: false }.begin();
    });
}

/// A session whose client is gone.
struct Offline {
    session: Box<Session>,
    owner: Owner,
    /// When it is over, monotonic ms.
    ends_ms: u64,
    /// When its will is said.
    will_ms: Option<u64>,
    /// Another process does not take it.
    stays: bool,
}

/// Keeps a session for its client.
async fn wait(mut offline: Offline) {
    let timer = Timer::new();
    let end = poll_fn(|cx| {
        let Offline { session, owner, ends_ms, will_ms, stays } = &mut offline;
        loop {
            // Before it is given to its client: what came while that was gone is put by or passed over, be it since a moment ago or before a crash.
            let mut put_by = PutBy::default();
            session.collect(hub::now(), |filter, after, outgoing| put_by.note(owner.key(), filter, after, outgoing));
            if owner.is_wanted(cx) {
                return Poll::Ready(End::Wanted);
            }
            let departs = departure::leaves_process() && !*stays;
            if !departs && (crate::worker::draining() || crate::worker::has_left()) {
                return Poll::Ready(End::Leaving);
            }
            let now = clock::monotonic_ms();
            if now >= *ends_ms {
                return Poll::Ready(End::Over);
            }
            let says_will = will_ms.take_if(|at| now >= *at).is_some();
            if says_will {
                session.say_will();
            }
            if says_will || put_by.is_too_much {
                note(owner.key(), session, Some(away(*ends_ms, *will_ms)));
            }
            if departs {
                return Poll::Ready(End::Departs);
            }
            let next_ms = will_ms.map_or(*ends_ms, |at| at.min(*ends_ms));
            timer.set(Duration::from_millis(next_ms - now));
            std::task::ready!(timer.poll_expired(cx));
        }
    })
    .await;
    if let End::Departs = end {
        return offline.depart();
    }
    let Offline { mut session, owner, ends_ms, .. } = offline;
    match end {
        End::Over => {
            over(owner.key());
            session.say_will();
        }
        End::Wanted => {
            session.go();
            owner.give(session);
        }
        End::Leaving | End::Departs => {
            session.go();
            let left = ends_ms.saturating_sub(clock::monotonic_ms());
            owner.leave(session, Duration::from_millis(left));
        }
    }
}

/// What there is still to wait for.
fn away(ends_ms: u64, will_ms: Option<u64>) -> Away {
    let now = clock::monotonic_ms();
    Away { left_ms: ends_ms.saturating_sub(now), will_ms: will_ms.map(|at| at.saturating_sub(now)) }
}

impl Offline {
    /// Keeps it from now on.
    fn begin(mut self) {
        note(self.owner.key(), &mut self.session, Some(away(self.ends_ms, self.will_ms)));
        runtime::spawn(wait(self));
    }

    /// Has it go on in another process. There is no connection.
    fn depart(mut self) {
        let mut w = heir::Writer::default();
        let names = crate::worker::snapshot();
        let now = clock::monotonic_ms();
        w.number(names.generation);
        w.bytes(self.owner.key());
        w.number(self.ends_ms.saturating_sub(now));
        w.optional(self.will_ms.map(|at| at.saturating_sub(now) as i64));
        if !self.session.write(&mut w) || w.len() > MOST_BYTES {
            return self.stay(Stay::Untold);
        }
        let papers = Papers::new(heir::Kind::Session, w.done(), names);
        departure::send(Traveller { papers, files: Vec::new(), stay: Box::new(|_, why| self.stay(why)) });
    }

    /// Where the other process has not answered it goes to the next one.
    fn stay(mut self, why: Stay) {
        self.stays = why != Stay::Unanswered;
        runtime::spawn(wait(self));
    }
}

/// Goes on with a session of another process whose client is gone. None: it has come here meanwhile, or there is no room.
pub fn arrive(r: &mut heir::Reader<'_>, snapshot: &Snapshot) -> Option<()> {
    let (key, left_ms, will_ms) = (r.bytes()?, r.number()?, r.optional()?);
    let session = Session::read(r, |group| backend::of_group(snapshot, group))?;
    if !r.is_done() {
        return None;
    }
    let mut owner = table::arrive(key.into())?;
    if !owner.go_offline(&session) {
        return None;
    }
    let now = clock::monotonic_ms();
    let will_ms = will_ms.map(|left| now.saturating_add_signed(left));
    Offline { session, owner, ends_ms: now.saturating_add(left_ms), will_ms, stays: false }.begin();
    Some(())
}

enum End {
    Wanted,
    Over,
    /// It goes on in another process.
    Departs,
    /// The thread ends.
    Leaving,
}

impl Session {
    /// Says its will, if it has one.
    pub(super) fn say_will(&mut self) {
        let Some(will) = self.will.take() else { return };
        let Will { topic, payload, at_most_once, retain, keep, expiry, content_type, properties, .. } = &*will;
        let marks =
            Marks { at_most_once: *at_most_once, retain: *retain, origin: self.origin(), expiry: *expiry, properties };
        let draft = Draft { data: payload, content_type, marks, ..Draft::default() };
        let name = names::name(&self.group, topic);
        match &self.backend {
            Some(backend) => backend.publish_soon(&name, draft, *keep),
            // Nobody is there to be told that the store is full.
            None => drop(hub::store().publish(&name, draft, *keep, hub::now())),
        }
    }
}

/// How a session was noted.
struct Noted {
    /// The session, with what was put by for it.
    session: Box<Session>,
    /// How long it is to stay, ms; none: as long as it may from now on, since its client was connected.
    left_ms: Option<u64>,
    /// When its will is to be said, ms from now.
    will_ms: Option<u64>,
}

/// What a session that is offline still has to wait for, ms from now.
#[derive(Clone, Copy)]
pub(super) struct Away {
    pub(super) left_ms: u64,
    pub(super) will_ms: Option<u64>,
}

/// Notes a session, which is to last. `away`: its client is gone.
pub(super) fn note(key: &[u8], session: &mut Session, away: Option<Away>) {
    if !journal::is_kept() || session.backend.is_some() {
        return;
    }
    let mut w = Writer::default();
    w.signed(hub::now());
    w.flag(away.is_some());
    if let Some(Away { left_ms, will_ms }) = away {
        w.number(left_ms);
        w.optional(will_ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX)));
    }
    // One whose messages are lost is told so when its turn comes, and stays noted as it was.
    if session.write(&mut w) {
        journal::session(key, &w.done());
    }
}

/// A session is over.
pub(super) fn over(key: &[u8]) {
    journal::session_over(key);
}

/// What was put by for a session, until it is noted.
#[derive(Default)]
struct PutBy {
    /// It was too much: the session is to be noted as a whole.
    is_too_much: bool,
}

impl PutBy {
    /// Notes a message that came by a filter; `after`: where it stands there now.
    fn note(&mut self, key: &[u8], filter: &[u8], after: Id, outgoing: &Outgoing) {
        if !journal::is_kept() || self.is_too_much {
            return;
        }
        let mut w = Writer::default();
        w.bytes(filter);
        w.signed(after.time);
        w.signed(after.tag.into());
        outgoing.write(&mut w);
        self.is_too_much = !journal::waits(key, &w.done());
    }
}

/// Reads a session of the journal. None: it is over, or nothing that can be read.
fn read_noted(restored: &journal::Restored) -> Option<Noted> {
    let mut r = Reader::new(&restored.whole);
    let passed_ms = u64::try_from(hub::now().saturating_sub(r.signed()?)).unwrap_or(0).saturating_mul(1000);
    let (mut left_ms, mut will_ms) = (None, None);
    if r.flag()? {
        left_ms = Some(r.number()?.saturating_sub(passed_ms));
        will_ms = r.optional()?.map(|ms| u64::try_from(ms).unwrap_or(0).saturating_sub(passed_ms));
    }
    let mut places: HashMap<&[u8], Id> = HashMap::new();
    let mut waits = Vec::with_capacity(restored.waits.len());
    for what in &restored.waits {
        let mut r = Reader::new(what);
        let filter = r.bytes()?;
        places.insert(filter, Id { time: r.signed()?, tag: i32::try_from(r.signed()?).ok()? });
        waits.push(Outgoing::read(&mut r)?);
    }
    let mut session = Session::read_after(&mut r, |_| None, &|filter| places.get(filter).copied())?;
    waits.into_iter().for_each(|outgoing| session.put_by(outgoing));
    r.is_done().then_some(Noted { session, left_ms, will_ms })
}
