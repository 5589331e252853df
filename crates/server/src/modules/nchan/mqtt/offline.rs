//! What becomes of a session when its connection is gone: it is given to whoever wants it, waits for its client, or ends; and its will is
//! said. From: `held`.

use super::super::{hub, names};
use super::live::Live;
use super::session::{Session, Will};
use super::table::{self, Owner};
use crate::worker::departure::{self, Papers, Stay, Traveller};
use push::{Draft, Marks};
use runtime::clock;
use runtime::timer::Timer;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

/// Bytes of a session that goes to another process: a batch of the largest fits into one message of the line.
pub(super) const MOST_BYTES: usize = 2 * 1024 * 1024;

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
    if session.expiry_s == 0 || session.is_empty() || !owner.go_offline() {
        return session.say_will();
    }
    let now = clock::monotonic_ms();
    let ends_ms = now + u64::from(session.expiry_s) * 1000;
    let will_ms = session.will.as_ref().map(|will| now + u64::from(will.delay) * 1000);
    runtime::spawn(wait(Offline { session, owner, ends_ms, will_ms, stays: false }));
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
            if owner.is_wanted(cx) {
                return Poll::Ready(End::Wanted);
            }
            let departs = departure::leaves_process() && session.may_go() && !*stays;
            if !departs && (crate::worker::draining() || crate::worker::has_left()) {
                return Poll::Ready(End::Leaving);
            }
            session.collect(hub::now());
            let now = clock::monotonic_ms();
            if now >= *ends_ms {
                return Poll::Ready(End::Over);
            }
            if will_ms.take_if(|at| now >= *at).is_some() {
                session.say_will();
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
        End::Over => session.say_will(),
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

impl Offline {
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
pub fn arrive(r: &mut heir::Reader<'_>) -> Option<()> {
    let (key, left_ms, will_ms) = (r.bytes()?, r.number()?, r.optional()?);
    let session = Session::read(r)?;
    if !r.is_done() {
        return None;
    }
    let mut owner = table::arrive(key.into())?;
    if !owner.go_offline() {
        return None;
    }
    let now = clock::monotonic_ms();
    let will_ms = will_ms.map(|left| now.saturating_add_signed(left));
    runtime::spawn(wait(Offline { session, owner, ends_ms: now.saturating_add(left_ms), will_ms, stays: false }));
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
            Marks { at_most_once: *at_most_once, retain: *retain, origin: self.origin, expiry: *expiry, properties };
        let draft = Draft { data: payload, content_type, marks, ..Draft::default() };
        let name = names::name(&self.group, topic);
        match &self.backend {
            Some(backend) => backend.publish_soon(&name, draft, *keep),
            // Nobody is there to be told that the store is full.
            None => drop(hub::store().publish(&name, draft, *keep, hub::now())),
        }
    }
}
