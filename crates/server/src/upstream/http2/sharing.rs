//! Which connection a request goes over: one that has room, one that another request is opening, or a new one. For each
//! thread; by group, peer and what TLS was agreed on.

use super::{STREAMS_AT_ONCE, Session};
use crate::snapshot::ThreadSnapshot;
use crate::upstream::choose::SelectedPeer;
use crate::upstream::group::{Group, Tiers};
use crate::upstream::job::Job;
use hashbrown::HashMap;
use runtime::TaskId;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Where connections stand in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    group: u32,
    peer: u32,
    identity: Option<Arc<[u8]>>,
}

/// A connection that a request is opening, and who waits for it.
#[derive(Default)]
pub struct Opening {
    waiters: RefCell<Vec<TaskId>>,
    done: Cell<bool>,
}

enum Place {
    Ready(Rc<Session>),
    Opening(Rc<Opening>),
}

/// The connections to one peer of one group.
type Places = Vec<(Option<Arc<[u8]>>, Place)>;

thread_local! {
    static TABLE: RefCell<HashMap<(u32, u32), Places>> = RefCell::default();
}

/// What there is for a request.
pub enum Found {
    /// It has room.
    Ready(Rc<Session>),
    /// It will be there soon, or not.
    Opening(Rc<Opening>),
    /// The request opens one itself; others may join it, where there is a slot.
    Nothing(Option<Slot>),
}

/// Looks for a connection. `since`: only one that is not older than that, ms.
pub fn find(job: &Job, chosen: &SelectedPeer, since: Option<u64>) -> Found {
    if !job.keepalive {
        return Found::Nothing(None);
    }
    let identity = job.identity();
    let key = Key { group: job.group.number, peer: chosen.peer.state.number, identity: identity.cloned() };
    TABLE.with_borrow_mut(|table| {
        let places = table.entry((key.group, key.peer)).or_default();
        for (_, place) in places.iter().filter(|(made_for, _)| made_for.as_ref() == identity) {
            match place {
                Place::Ready(s) if since.is_none_or(|ms| s.began_ms >= ms) && s.has_room() => {
                    return Found::Ready(s.clone());
                }
                Place::Opening(o) if o.waiters.borrow().len() + 1 < STREAMS_AT_ONCE => {
                    return Found::Opening(o.clone());
                }
                _ => {}
            }
        }
        let opening = Rc::new(Opening::default());
        places.push((key.identity.clone(), Place::Opening(opening.clone())));
        Found::Nothing(Some(Slot { key, opening }))
    })
}

impl Opening {
    /// Whether it stands, or has failed; otherwise the running task is woken then.
    pub fn is_done(&self) -> bool {
        if !self.done.get() {
            let (mut waiters, task) = (self.waiters.borrow_mut(), runtime::current());
            if !waiters.contains(&task) {
                waiters.push(task);
            }
        }
        self.done.get()
    }
}

/// The place of a connection that is being opened. Dropped without it, who waits tries for himself.
pub struct Slot {
    key: Key,
    opening: Rc<Opening>,
}

impl Slot {
    /// Where the connection will stand.
    pub fn key(&self) -> Key {
        self.key.clone()
    }

    /// The connection stands.
    pub fn fill(self, session: Rc<Session>) {
        self.replace(Some(session));
    }

    fn replace(&self, session: Option<Rc<Session>>) {
        TABLE.with_borrow_mut(|table| {
            let peer = (self.key.group, self.key.peer);
            let Some(places) = table.get_mut(&peer) else { return };
            let mine = |p: &Place| matches!(p, Place::Opening(o) if Rc::ptr_eq(o, &self.opening));
            let Some(at) = places.iter().position(|(_, p)| mine(p)) else { return };
            match session {
                Some(session) => places[at].1 = Place::Ready(session),
                None => drop(places.remove(at)),
            }
            if places.is_empty() {
                table.remove(&peer);
            }
        });
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.replace(None);
        self.opening.done.set(true);
        self.opening.waiters.take().into_iter().for_each(runtime::wake);
    }
}

/// How many streams the peer takes at once, by what it has said on connections that are there. Its word on a new one comes
/// later than the first requests, and it would refuse those beyond.
pub(super) fn allowed_streams(key: &Key) -> Option<u32> {
    TABLE.with_borrow(|table| {
        let places = table.get(&(key.group, key.peer))?.iter().filter(|(made_for, _)| *made_for == key.identity);
        places.filter_map(|(_, p)| if let Place::Ready(s) = p { Some(s.allowed_streams()) } else { None }).min()
    })
}

/// A connection takes no further streams.
pub(super) fn remove(session: &Rc<Session>) {
    let Some(key) = &session.key else { return };
    // The thread's storage may be gone already when a thread ends.
    let _ = TABLE.try_with(|table| {
        let mut table = table.borrow_mut();
        let Some(places) = table.get_mut(&(key.group, key.peer)) else { return };
        places.retain(|(_, p)| !matches!(p, Place::Ready(s) if Rc::ptr_eq(s, session)));
        if places.is_empty() {
            table.remove(&(key.group, key.peer));
        }
    });
}

/// The connections for which `keep` says no take no further streams.
fn retire(keep: impl Fn(u32, u32) -> bool) {
    let old: Vec<_> = TABLE.with_borrow(|table| {
        let places = table.iter().filter(|((group, peer), _)| !keep(*group, *peer)).flat_map(|(_, places)| places);
        places.filter_map(|(_, p)| if let Place::Ready(s) = p { Some(s.clone()) } else { None }).collect()
    });
    old.iter().for_each(Session::retire);
}

fn is_known(tiers: &Tiers, peer: u32) -> bool {
    tiers.iter().flat_map(|t| &t.peers).any(|p| p.state.number == peer)
}

/// The group's peers are others now.
pub fn keep_known(group: &Group, tiers: &Tiers) {
    retire(|number, peer| number != group.number || is_known(tiers, peer));
}

/// A thread takes a new snapshot: groups and peers may be gone.
pub fn retain(snapshot: &Rc<ThreadSnapshot>) {
    retire(|number, peer| {
        let group = snapshot.groups.iter().find(|g| g.number == number);
        group.is_some_and(|g| is_known(&g.tiers_now(), peer))
    });
}
