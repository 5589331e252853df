//! Sessions of MQTT by the names of their clients: who comes with a name takes the session over from whoever has it, on whichever thread that
//! is (section 3.1.4).
//!
//! A session whose client is parked and packed ([`Owner::rest`]) has no slot here, only its name and where it is parked; who claims it makes it a slot, which
//! lies in [`CALLED`] until its owner, who is asked what is next, finds it there.

mod names;

use super::session::Session;
use crate::connection::parked;
use crate::service;
use names::{At, Name, Names};
use runtime::timer::Timer;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Parts with a lock each: many more than threads.
const PARTS: usize = 64;
/// A table of so many slots does not shrink.
const FEW_AWAKE: usize = 64;
/// Whoever has a session gives it up in this time; it is on its way of a loop's turn.
const PATIENCE: Duration = Duration::from_secs(5);
/// Sessions whose clients are gone: one more is not kept. Each has messages that wait.
const MAX_OFFLINE: usize = 100_000;

/// Of these, those that have nothing are kept only up to so many: clients with names drawn anew leave one each time.
const MAX_EMPTY: usize = MAX_OFFLINE / 2;

static OFFLINE: AtomicUsize = AtomicUsize::new(0);

type Key = Box<[u8]>;

struct Table {
    parts: Vec<Mutex<Part>>,
    hashers: [RandomState; 2],
}

/// A name is in one of the two.
#[derive(Default)]
struct Part {
    awake: HashMap<Name, Arc<Slot>>,
    /// Those that [`Owner::rest`].
    resting: Names,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| Table {
    parts: (0..PARTS).map(|_| Mutex::default()).collect(),
    hashers: [RandomState::new(), RandomState::new()],
});

/// Slots of sessions that rested when somebody claimed them, for their owners. Behind the lock of a part, never before.
static CALLED: LazyLock<Mutex<HashMap<At, Arc<Slot>>>> = LazyLock::new(Mutex::default);
/// How many there are: mostly none, and then nobody has to look.
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// What a session takes there, bytes: its slot, with counts, and its place in a table that is two thirds full.
pub(super) const SLOT_BYTES: usize =
    parked::block(size_of::<Slot>() + 2 * size_of::<usize>()) + (size_of::<(Name, Arc<Slot>)>() + 1) * 3 / 2;
/// The same of one that rests.
pub(super) const RESTING_BYTES: usize = names::ENTRY_BYTES;

/// A session's place as long as something is done with it. What few need is behind a pointer.
struct Slot {
    key: Key,
    name: Name,
    inside: Mutex<Inside>,
}

/// What a key is known by. 128 bits that nobody can foretell: that two keys have the same ones is not to be expected.
fn name_of(key: &[u8]) -> Name {
    TABLE.hashers.each_ref().map(|hasher| hasher.hash_one(key))
}

#[derive(Default)]
struct Inside {
    /// Whoever had it has it no more; perhaps something is left.
    given_up: bool,
    owner: Option<Waker>,
    /// Somebody else is to have it.
    wanted: Option<Box<Wanted>>,
    /// What is left.
    session: Option<Box<Session>>,
}

/// Who is to have a session.
#[derive(Default)]
struct Wanted {
    heir: Option<Waker>,
}

impl Slot {
    fn new(key: Key) -> Arc<Slot> {
        let name = name_of(&key);
        Arc::new(Slot { key, name, inside: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().expect(NO_PANIC)
    }
}

const NO_PANIC: &str = "nothing panics while it is locked";

impl Table {
    fn part(&self, name: Name) -> MutexGuard<'_, Part> {
        self.parts[name[0] as usize % PARTS].lock().expect(NO_PANIC)
    }
}

impl Part {
    /// Makes a slot the one of its name. The one before it; of a session that rested one that is made for it.
    fn replace(&mut self, slot: &Arc<Slot>) -> Option<Arc<Slot>> {
        let before = self.awake.insert(slot.name, slot.clone());
        if before.is_some() {
            return before;
        }
        let at = self.resting.remove(slot.name)?;
        let before = Slot::new(slot.key.clone());
        before.lock().wanted = Some(Box::default());
        CALLED.lock().expect(NO_PANIC).insert(at, before.clone());
        CALLS.fetch_add(1, Release);
        parked::call(at.thread, at.place);
        Some(before)
    }

    fn has(&mut self, name: Name) -> bool {
        self.awake.contains_key(&name) || self.resting.get(name).is_some()
    }
}

/// Takes the slot that somebody has made who wants the session that rested there.
fn take_called(at: At) -> Option<Arc<Slot>> {
    let slot = CALLED.lock().expect(NO_PANIC).remove(&at)?;
    CALLS.fetch_sub(1, Relaxed);
    Some(slot)
}

/// Whether somebody wants the session of a client of this thread that rests at a place.
pub(super) fn is_called(place: u32) -> bool {
    CALLS.load(Acquire) > 0 && CALLED.lock().expect(NO_PANIC).contains_key(&At { thread: parked::thread(), place })
}

/// A session is one's own until this is dropped, or [`Owner::is_wanted`].
pub(super) struct Owner {
    slot: Arc<Slot>,
    is_offline: bool,
    /// It has no slot any more.
    rests: bool,
}

/// What a session is known by: users cannot take those of others.
pub(super) fn key(group: &[u8], user: &[u8], client: &[u8]) -> Key {
    let mut key = Vec::with_capacity(group.len() + user.len() + client.len() + 16);
    for text in [group, user] {
        key.extend_from_slice(&(text.len() as u64).to_be_bytes());
        key.extend_from_slice(text);
    }
    key.extend_from_slice(client);
    key.into()
}

/// The user and the client of a key.
pub(super) fn parts(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = |bytes: &'_ [u8]| -> Option<usize> { usize::try_from(u64::from_be_bytes(*bytes.first_chunk()?)).ok() };
    let rest = key.get(8..)?.get(text(key)?..)?;
    let (user, client) = rest.get(8..)?.split_at_checked(text(rest)?)?;
    Some((user, client))
}

/// Makes the session of a name one's own; and what is left of that before.
pub(super) async fn claim(key: Key) -> (Owner, Option<Box<Session>>) {
    let slot = Slot::new(key);
    let before = TABLE.part(slot.name).replace(&slot);
    let owner = Owner::of(slot);
    let Some(before) = before else { return (owner, None) };
    let timer = Timer::new();
    timer.set(PATIENCE);
    let session = poll_fn(|cx| {
        let mut inside = before.lock();
        if inside.given_up {
            return Poll::Ready(inside.session.take());
        }
        let is_new = inside.wanted.is_none();
        inside.wanted.get_or_insert_default().heir = Some(cx.waker().clone());
        if is_new {
            inside.owner.take().into_iter().for_each(Waker::wake);
        }
        drop(inside);
        timer.poll_expired(cx).map(|()| None)
    });
    (owner, session.await)
}

/// Whether there is a session of a name.
pub(super) fn has(key: &[u8]) -> bool {
    let name = name_of(key);
    TABLE.part(name).has(name)
}

/// Makes a session one's own that comes from another process. None: its client has come before it.
pub(super) fn arrive(key: Key) -> Option<Owner> {
    let slot = Slot::new(key);
    let mut part = TABLE.part(slot.name);
    if part.has(slot.name) {
        return None;
    }
    part.awake.insert(slot.name, slot.clone());
    drop(part);
    Some(Owner::of(slot))
}

impl Owner {
    fn of(slot: Arc<Slot>) -> Owner {
        Owner { slot, is_offline: false, rests: false }
    }

    /// Lets go of the slot: the session's client is parked at this place of this thread, and is asked there when somebody claims it. False: somebody
    /// has. [`Owner::wake`] is the same backwards, before the place is another's.
    pub(super) fn rest(&mut self, place: u32) -> bool {
        let mut part = TABLE.part(self.slot.name);
        let is_mine = part.awake.get(&self.slot.name).is_some_and(|slot| Arc::ptr_eq(slot, &self.slot));
        if !is_mine || self.slot.lock().wanted.is_some() {
            return false;
        }
        part.awake.remove(&self.slot.name);
        if part.awake.capacity() > FEW_AWAKE && part.awake.len() * 4 < part.awake.capacity() {
            let count = (part.awake.len() * 2).max(FEW_AWAKE);
            part.awake.shrink_to(count);
        }
        part.resting.insert(self.slot.name, At { thread: parked::thread(), place });
        self.rests = true;
        true
    }

    /// The owner again of a session that rested here.
    pub(super) fn wake(key: Key, place: u32) -> Owner {
        let (slot, at) = (Slot::new(key), At { thread: parked::thread(), place });
        let mut part = TABLE.part(slot.name);
        if part.resting.get(slot.name) == Some(at) {
            part.resting.remove(slot.name);
            part.awake.insert(slot.name, slot.clone());
            return Owner::of(slot);
        }
        drop(part);
        // Whoever has its name now has left a slot for it.
        Owner::of(take_called(at).unwrap_or(slot))
    }

    /// The session's name.
    pub(super) fn key(&self) -> &[u8] {
        &self.slot.key
    }

    /// Whether somebody else wants the session; the task is woken when somebody does.
    pub(super) fn is_wanted(&self, cx: &Context<'_>) -> bool {
        let mut inside = self.slot.lock();
        if !inside.owner.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            inside.owner = Some(cx.waker().clone());
        }
        inside.wanted.is_some()
    }

    /// Whoever wants the session calls this from now on.
    pub(super) fn call(&self, waker: Waker) {
        self.slot.lock().owner = Some(waker);
    }

    /// Whether somebody else wants the session.
    pub(super) fn has_call(&self) -> bool {
        self.slot.lock().wanted.is_some()
    }

    /// Its client has gone, and it stays: false if there are too many.
    pub(super) fn go_offline(&mut self, session: &Session) -> bool {
        let most = if session.is_empty() { MAX_EMPTY } else { MAX_OFFLINE };
        let is_room = OFFLINE.fetch_add(1, Relaxed) < most;
        self.is_offline = true;
        is_room
    }

    /// Gives the session to whoever wants it.
    pub(super) fn give(self, session: Box<Session>) {
        self.slot.lock().session = Some(session);
    }

    /// Leaves the session for who comes within `time`: this thread ends.
    pub(super) fn leave(self, session: Box<Session>, time: Duration) {
        let slot = Arc::downgrade(&self.slot);
        self.give(session);
        service::spawn(move || async move {
            tokio::time::sleep(time).await;
            if let Some(slot) = slot.upgrade() {
                forget(&slot);
            }
        });
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.rests {
            return;
        }
        if self.is_offline {
            OFFLINE.fetch_sub(1, Relaxed);
        }
        let is_left = {
            let mut inside = self.slot.lock();
            inside.given_up = true;
            inside.wanted.as_mut().and_then(|wanted| wanted.heir.take()).into_iter().for_each(Waker::wake);
            inside.session.is_some()
        };
        // What is left for who comes stays in the table.
        if !is_left {
            forget(&self.slot);
        }
    }
}

fn forget(mine: &Arc<Slot>) {
    let mut part = TABLE.part(mine.name);
    if let Entry::Occupied(here) = part.awake.entry(mine.name)
        && Arc::ptr_eq(here.get(), mine)
    {
        here.remove();
    }
}
