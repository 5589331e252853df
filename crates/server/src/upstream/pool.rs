//! Idle connections to peers, per thread. Kept by demand: as many as were in use at once lately, and `keepalive N` at
//! least, so that a burst does not thrash the pool. What the other side closed is found without asking the kernel.

use super::framing::Framing;
use super::group::{Group, Keepalive, Tiers};
use super::peer::Peer;
use super::upload::Overlap;
use crate::connection::socket::Socket;
use crate::snapshot::ThreadSnapshot;
use crate::status::Tally;
use hashbrown::HashMap;
use runtime::timer::Timer;
use runtime::{clock, timer};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

/// How often idle connections are looked over.
const SWEEP: Duration = Duration::from_secs(1);
/// After so many sweeps the memory of the highest demand fades to the present one.
const FADE: u64 = 10;

/// A connection to a peer and what it has been through.
pub struct Connection {
    /// The socket.
    pub socket: Socket,
    /// The deadline of what is waited for. Of the connection, not of the request: moving it on costs nothing.
    pub timer: Timer,
    /// Requests so far.
    pub requests: u64,
    /// When it was opened, ms of the monotonic clock.
    pub started_ms: u64,
    idle_since_ms: u64,
    /// How long it may be idle.
    idle_for_ms: u64,
    /// With TLS: what it was made for. It is good for nothing else.
    identity: Option<Arc<[u8]>>,
    /// How its answer is taken apart.
    pub framing: Framing,
    /// What is left of the request's body while the answer comes.
    pub(super) overlap: Option<Box<Overlap>>,
    /// It has not got all of a request: no other may follow.
    pub(super) is_spoiled: bool,
}

impl Connection {
    /// A connection that was just opened. It stays at its place: what moves from the pool through a request and back is a pointer.
    pub fn new(socket: Socket, timer: Timer, identity: Option<Arc<[u8]>>) -> Box<Connection> {
        Box::new(Connection {
            socket,
            timer,
            requests: 0,
            started_ms: clock::monotonic_ms(),
            idle_since_ms: 0,
            idle_for_ms: 0,
            identity,
            framing: Framing::Plain,
            overlap: None,
            is_spoiled: false,
        })
    }
}

struct Pool {
    group: Arc<Group>,
    /// By the number of the peer's state.
    #[expect(clippy::vec_box, reason = "a connection goes through a request as the pointer that it is here")]
    idle: HashMap<u32, Vec<Box<Connection>>>,
    count: usize,
    /// `count`, where others can see it.
    shown: Arc<Tally<1>>,
    in_use: Rc<Cell<usize>>,
    peak: usize,
}

/// How many connections are idle, by the group's number: each thread says how many it has. Groups' names come from
/// configurations, so there are not many.
static IDLE: Mutex<Vec<Arc<Tally<1>>>> = Mutex::new(Vec::new());

fn idle_of(group: &Group) -> Arc<Tally<1>> {
    let mut all = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    let number = group.number as usize;
    if all.len() <= number {
        all.resize_with(number + 1, Arc::default);
    }
    all[number].clone()
}

/// Idle connections of a group, those of all threads.
pub fn idle(group: &Group) -> u64 {
    let [count] = idle_of(group).sums();
    count
}

/// Idle connections of all groups and threads.
pub fn all_idle() -> u64 {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|tally| tally.sums()[0]).sum()
}

thread_local! {
    /// By the group's number.
    static POOLS: RefCell<Vec<Option<Pool>>> = const { RefCell::new(Vec::new()) };
    static SWEEPING: Cell<bool> = const { Cell::new(false) };
}

impl Pool {
    /// Closes idle connections to peers that are not in a list.
    fn keep_known(&mut self, tiers: &Tiers) {
        let known = |n: u32| tiers.iter().flat_map(|t| &t.peers).any(|p| p.state.number == n);
        self.idle.retain(|peer, _| known(*peer));
        self.recount();
    }

    fn recount(&mut self) {
        self.set_count(self.idle.values().map(Vec::len).sum());
    }

    #[inline]
    fn set_count(&mut self, count: usize) {
        self.count = count;
        self.shown.mine().set(0, count as u64);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.set_count(0);
    }
}

/// The group's peers are others now.
pub fn keep_known(group: &Group, tiers: &Tiers) {
    POOLS.with_borrow_mut(|pools| {
        if let Some(Some(pool)) = pools.get_mut(group.number as usize) {
            pool.keep_known(tiers);
        }
    });
    super::sharing::keep_known(group, tiers);
}

/// Counts a connection as in use.
pub struct InUse(Option<Rc<Cell<usize>>>);

impl InUse {
    /// Of a connection that this thread has from elsewhere, and that will be closed.
    pub fn uncounted() -> InUse {
        InUse(None)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if let Some(count) = &self.0 {
            count.set(count.get() - 1);
        }
    }
}

fn with<T>(group: &Arc<Group>, work: impl FnOnce(&mut Pool) -> T) -> T {
    POOLS.with_borrow_mut(|pools| {
        let number = group.number as usize;
        if pools.len() <= number {
            pools.resize_with(number + 1, || None);
        }
        work(pools[number].get_or_insert_with(|| Pool {
            group: group.clone(),
            idle: HashMap::new(),
            count: 0,
            shown: idle_of(group),
            in_use: Rc::default(),
            peak: 0,
        }))
    })
}

/// Notes that a connection of the group is needed.
pub fn begin(group: &Arc<Group>) -> InUse {
    if group.for_one_request {
        return InUse(None);
    }
    with(group, |p| {
        let n = p.in_use.get() + 1;
        p.in_use.set(n);
        p.peak = p.peak.max(n);
        InUse(Some(p.in_use.clone()))
    })
}

/// How connections to a peer are kept.
fn keepalive<'g>(group: &'g Group, peer: &'g Peer) -> &'g Keepalive {
    peer.settings.keepalive.as_ref().unwrap_or(&group.keepalive)
}

/// An idle connection to a peer that is still good, if there is one. `identity`: what it must have been made for.
pub fn take(group: &Arc<Group>, peer: &Peer, identity: Option<&Arc<[u8]>>) -> Option<Box<Connection>> {
    keepalive(group, peer).connections?;
    let now = clock::monotonic_ms();
    with(group, |p| {
        let list = p.idle.get_mut(&peer.state.number)?;
        let before = list.len();
        let mut found = None;
        while found.is_none()
            && let Some(at) = list.iter().rposition(|c| c.identity.as_ref() == identity)
        {
            let mut c = list.swap_remove(at);
            // The sweep comes once a second; a connection past its time is not used until then.
            found = (now - c.idle_since_ms < c.idle_for_ms && is_quiet(&mut c)).then_some(c);
        }
        let gone = before - list.len();
        p.set_count(p.count - gone);
        found
    })
}

/// Keeps a connection for later, unless there are enough or it has served its time.
pub fn give(group: &Arc<Group>, peer: &Peer, mut connection: Box<Connection>) {
    let keepalive = keepalive(group, peer);
    let Some(floor) = keepalive.connections else { return };
    let now = clock::monotonic_ms();
    let old = now - connection.started_ms > keepalive.time.as_millis() as u64;
    if connection.requests >= keepalive.requests || old || crate::worker::draining() {
        return;
    }
    if !is_quiet(&mut connection) {
        return;
    }
    connection.idle_since_ms = now;
    connection.idle_for_ms = keepalive.timeout.as_millis() as u64;
    connection.timer.clear();
    with(group, |p| {
        // The connection that is being given back still counts as in use.
        if p.count + p.in_use.get().saturating_sub(1) >= p.peak.max(floor) {
            return;
        }
        p.set_count(p.count + 1);
        match p.idle.get_mut(&peer.state.number) {
            Some(list) => list.push(connection),
            None => {
                p.idle.insert(peer.state.number, vec![connection]);
            }
        }
    });
    if !SWEEPING.replace(true) {
        runtime::spawn(sweep());
    }
}

/// Whether the other side has neither closed nor said anything.
fn is_quiet(c: &mut Connection) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    c.socket.poll_noise(&mut cx).is_pending()
}

async fn sweep() {
    let mut round = 0u64;
    loop {
        timer::sleep(SWEEP).await;
        round += 1;
        let now = clock::monotonic_ms();
        let left = POOLS.with_borrow_mut(|pools| {
            for p in pools.iter_mut().flatten() {
                for list in p.idle.values_mut() {
                    list.retain_mut(|c| now - c.idle_since_ms < c.idle_for_ms && is_quiet(c));
                }
                p.idle.retain(|_, list| !list.is_empty());
                p.recount();
                if round.is_multiple_of(FADE) {
                    p.peak = p.in_use.get();
                }
            }
            pools.iter().flatten().map(|p| p.count).sum::<usize>()
        });
        if left == 0 || crate::worker::draining() {
            clear_when_draining();
            SWEEPING.set(false);
            return;
        }
    }
}

fn clear_when_draining() {
    if crate::worker::draining() {
        clear();
    }
}

/// Closes an idle connection to a peer, of those that were used last an early one: its descriptor is needed. False: there is none.
pub fn drop_idle() -> bool {
    POOLS.with_borrow_mut(|pools| {
        let mut all = pools.iter_mut().flatten();
        let Some(pool) = all.find(|p| p.count > 0) else { return false };
        let Some(list) = pool.idle.values_mut().find(|list| !list.is_empty()) else { return false };
        // New ones are added at the end.
        drop(list.remove(0));
        pool.recount();
        true
    })
}

/// Closes all of the thread's.
pub fn clear() {
    POOLS.with_borrow_mut(Vec::clear);
}

/// Closes what belongs to groups that a new snapshot does not have, or has otherwise.
pub fn retain(snapshot: &Rc<ThreadSnapshot>) {
    POOLS.with_borrow_mut(|pools| {
        for place in pools {
            let Some(pool) = place else { continue };
            let Some(group) = snapshot.groups.iter().find(|g| g.number == pool.group.number) else {
                *place = None;
                continue;
            };
            pool.group = group.clone();
            pool.keep_known(&group.tiers_now());
        }
    });
}
