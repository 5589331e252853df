//! What becomes of a session when its connection is gone: it is given to whoever wants it, waits for its client, or ends; and its will is
//! said. From: `held`.

use super::super::{hub, names};
use super::live::Live;
use super::session::{Session, Will};
use super::table::Owner;
use push::{Draft, Marks};
use runtime::clock;
use runtime::timer::Timer;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

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
    runtime::spawn(wait(session, owner));
}

/// Keeps a session for its client.
async fn wait(mut session: Box<Session>, owner: Owner) {
    let timer = Timer::new();
    let ends_ms = clock::monotonic_ms() + u64::from(session.expiry_s) * 1000;
    let mut will_ms = session.will.as_ref().map(|will| clock::monotonic_ms() + u64::from(will.delay) * 1000);
    let end = poll_fn(|cx| {
        loop {
            if owner.is_wanted(cx) {
                return Poll::Ready(End::Wanted);
            }
            if crate::worker::draining() || crate::worker::has_left() {
                return Poll::Ready(End::Leaving);
            }
            session.collect(hub::now());
            let now = clock::monotonic_ms();
            if now >= ends_ms {
                return Poll::Ready(End::Over);
            }
            if will_ms.take_if(|at| now >= *at).is_some() {
                session.say_will();
            }
            let next_ms = will_ms.map_or(ends_ms, |at| at.min(ends_ms));
            timer.set(Duration::from_millis(next_ms - now));
            std::task::ready!(timer.poll_expired(cx));
        }
    })
    .await;
    match end {
        End::Over => session.say_will(),
        End::Wanted => {
            session.go();
            owner.give(session);
        }
        End::Leaving => {
            session.go();
            let left = ends_ms.saturating_sub(clock::monotonic_ms());
            owner.leave(session, Duration::from_millis(left));
        }
    }
}

enum End {
    Wanted,
    Over,
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
