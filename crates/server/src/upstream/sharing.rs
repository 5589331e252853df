//! Which connection a request goes over, where several share one (HTTP/2, HTTP/3): one that has room, one that another request is
//! opening, or a new one. For each thread and protocol; by group, peer and what TLS was agreed on.

use crate::snapshot::ThreadSnapshot;
use crate::upstream::choose::SelectedPeer;
use crate::upstream::group::{Group, Keepalive, Tiers};
use crate::upstream::job::Job;
use hashbrown::HashMap;
use runtime::{TaskId, clock};
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::LocalKey;

/// Requests on one connection at most, whatever the peer allows: what servers usually announce. More get another one.
pub const STREAMS_AT_ONCE: usize = 100;

/// A connection that requests share.
pub trait Shared: Sized + 'static {
    /// The thread's connections of this protocol.
    fn table() -> &'static LocalKey<RefCell<Table<Self>>>;
    /// What the protocol does not matter for.
    fn life(&self) -> &Life;
    /// Whether a further request may come, if it is not retired.
    fn has_room(&self) -> bool;
    /// No further streams: it closes after its last one.
    fn retire(self: &Rc<Self>) {
        if !self.life().retired.replace(true) {
            self.life().changed();
            remove(self);
        }
    }
}

/// A connection's beginning, what was done with it, and its end.
pub struct Life {
    /// Where it stands in the table; none: it is one request's own.
    key: Option<Key>,
    /// The peer's name, for the log.
    pub(super) peer: Box<str>,
    /// When it was begun, ms of the monotonic clock.
    began_ms: u64,
    pub(super) keepalive: Keepalive,
    /// The task that drives it.
    driver: Cell<TaskId>,
    /// It is at work and will look at everything before it rests: it need not be woken.
    driving: Cell<bool>,
    /// No further streams.
    retired: Cell<bool>,
    /// Streams so far.
    opened: Cell<u64>,
    /// When something came last, ms.
    heard_ms: Cell<u64>,
}

impl Life {
    /// It begins now. `key`: requests share it.
    pub(super) fn new(job: &Job, chosen: &SelectedPeer, key: Option<Key>) -> Life {
        let now = clock::monotonic_ms();
        Life {
            key,
            peer: chosen.peer.name.as_ref().into(),
            began_ms: now,
            keepalive: job.group.keepalive.clone(),
            driver: Cell::new(TaskId::NOBODY),
            // Until it runs for the first time.
            driving: Cell::new(true),
            retired: Cell::new(false),
            opened: Cell::new(0),
            heard_ms: Cell::new(now),
        }
    }

    pub(super) fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// Something is to be written or read, or nobody is left: the driver has to look.
    pub(super) fn changed(&self) {
        if !self.driving.get() {
            runtime::wake(self.driver.get());
        }
    }

    /// The running task begins a turn as its driver.
    pub(super) fn begin_turn(&self) {
        self.driving.set(true);
        self.driver.set(runtime::current());
    }

    /// The turn is over.
    pub(super) fn end_turn(&self) {
        self.driving.set(false);
    }

    /// A stream was opened. True: it was not the first one.
    pub(super) fn note_opened(&self) -> bool {
        self.opened.replace(self.opened.get() + 1) > 0
    }

    /// `keepalive_requests`, `keepalive_time`
    pub(super) fn is_worn(&self) -> bool {
        let age = clock::monotonic_ms() - self.began_ms;
        self.opened.get() >= self.keepalive.requests || age > self.keepalive.time.as_millis() as u64
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired.get()
    }

    /// Something has come.
    pub(super) fn note_heard(&self) {
        self.heard_ms.set(clock::monotonic_ms());
    }

    /// When something came last, ms of the monotonic clock.
    pub(super) fn heard_ms(&self) -> u64 {
        self.heard_ms.get()
    }
}

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

enum Place<S> {
    Ready(Rc<S>),
    Opening(Rc<Opening>),
}

/// The connections to one peer of one group.
type Places<S> = Vec<(Option<Arc<[u8]>>, Place<S>)>;

/// The connections of one protocol.
pub struct Table<S>(HashMap<(u32, u32), Places<S>>);

impl<S> Default for Table<S> {
    fn default() -> Table<S> {
        Table(HashMap::new())
    }
}

/// What there is for a request.
pub enum Offered<S: Shared> {
    /// It has room.
    Ready(Rc<S>),
    /// It will be there soon, or not.
    Opening(Rc<Opening>),
    /// The request opens one itself; others may join it, where there is a slot.
    Nothing(Option<Slot<S>>),
}

/// Looks for a connection. `since`: only one that is not older than that, ms.
pub fn find<S: Shared>(job: &Job, chosen: &SelectedPeer, since: Option<u64>) -> Offered<S> {
    if !job.keepalive {
        return Offered::Nothing(None);
    }
    let identity = job.identity();
    let key = Key { group: job.group.number, peer: chosen.peer.state.number, identity: identity.cloned() };
    S::table().with_borrow_mut(|table| {
        let places = table.0.entry((key.group, key.peer)).or_default();
        for (_, place) in places.iter().filter(|(made_for, _)| made_for.as_ref() == identity) {
            match place {
                Place::Ready(s)
                    if since.is_none_or(|ms| s.life().began_ms >= ms) && !s.life().is_retired() && s.has_room() =>
                {
                    return Offered::Ready(s.clone());
                }
                Place::Opening(o) if o.waiters.borrow().len() + 1 < STREAMS_AT_ONCE => {
                    return Offered::Opening(o.clone());
                }
                _ => {}
            }
        }
        let opening = Rc::new(Opening::default());
        places.push((key.identity.clone(), Place::Opening(opening.clone())));
        Offered::Nothing(Some(Slot { key, opening, protocol: PhantomData }))
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
pub struct Slot<S: Shared> {
    key: Key,
    opening: Rc<Opening>,
    protocol: PhantomData<S>,
}

impl<S: Shared> Slot<S> {
    /// Where the connection will stand.
    pub fn key(&self) -> Key {
        self.key.clone()
    }

    /// The connection stands.
    pub fn fill(self, session: Rc<S>) {
        self.replace(Some(session));
    }

    fn replace(&self, session: Option<Rc<S>>) {
        S::table().with_borrow_mut(|Table(table)| {
            let peer = (self.key.group, self.key.peer);
            let Some(places) = table.get_mut(&peer) else { return };
            let mine = |p: &Place<S>| matches!(p, Place::Opening(o) if Rc::ptr_eq(o, &self.opening));
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

impl<S: Shared> Drop for Slot<S> {
    fn drop(&mut self) {
        self.replace(None);
        self.opening.done.set(true);
        self.opening.waiters.take().into_iter().for_each(runtime::wake);
    }
}

/// The least that a number of the connections to the same peer comes to, if there are any.
pub(super) fn least<S: Shared>(key: &Key, number: impl Fn(&S) -> u32) -> Option<u32> {
    S::table().with_borrow(|Table(table)| {
        let places = table.get(&(key.group, key.peer))?.iter().filter(|(made_for, _)| *made_for == key.identity);
        places.filter_map(|(_, p)| if let Place::Ready(s) = p { Some(number(s)) } else { None }).min()
    })
}

/// A connection takes no further streams.
fn remove<S: Shared>(session: &Rc<S>) {
    let Some(key) = session.life().key() else { return };
    // The thread's storage may be gone already when a thread ends.
    let _ = S::table().try_with(|table| {
        let Table(table) = &mut *table.borrow_mut();
        let Some(places) = table.get_mut(&(key.group, key.peer)) else { return };
        places.retain(|(_, p)| !matches!(p, Place::Ready(s) if Rc::ptr_eq(s, session)));
        if places.is_empty() {
            table.remove(&(key.group, key.peer));
        }
    });
}

/// The connections for which `keep` says no take no further streams.
fn retire<S: Shared>(keep: &impl Fn(u32, u32) -> bool) {
    let old: Vec<_> = S::table().with_borrow(|Table(table)| {
        let places = table.iter().filter(|((group, peer), _)| !keep(*group, *peer)).flat_map(|(_, places)| places);
        places.filter_map(|(_, p)| if let Place::Ready(s) = p { Some(s.clone()) } else { None }).collect()
    });
    old.iter().for_each(Shared::retire);
}

fn retire_all(keep: impl Fn(u32, u32) -> bool) {
    retire::<super::http2::Http2PeerConnection>(&keep);
    retire::<super::http3::Http3PeerConnection>(&keep);
}

fn is_known(tiers: &Tiers, peer: u32) -> bool {
    tiers.iter().flat_map(|t| &t.peers).any(|p| p.state.number == peer)
}

/// The group's peers are others now.
pub fn keep_known(group: &Group, tiers: &Tiers) {
    retire_all(|number, peer| number != group.number || is_known(tiers, peer));
}

/// A thread takes a new snapshot: groups and peers may be gone.
pub fn retain(snapshot: &Rc<ThreadSnapshot>) {
    retire_all(|number, peer| {
        let group = snapshot.groups.iter().find(|g| g.number == number);
        group.is_some_and(|g| is_known(&g.tiers_now(), peer))
    });
}
