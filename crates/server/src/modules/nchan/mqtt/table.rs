//! Sessions of MQTT by the names of their clients: who comes with a name takes the session over from whoever has it, on whichever thread that
//! is (section 3.1.4).

#![allow(clippy::mutable_key_type, reason = "a slot is found by its key, which does not change")]

use super::session::Session;
use crate::service;
use runtime::timer::Timer;
use std::borrow::Borrow;
use std::collections::HashSet;
use std::future::poll_fn;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Parts with a lock each: many more than threads.
const PARTS: usize = 64;
/// Whoever has a session gives it up in this time; it is on its way of a loop's turn.
const PATIENCE: Duration = Duration::from_secs(5);
/// Sessions whose clients are gone: one more is not kept. Each has messages that wait.
const MAX_OFFLINE: usize = 100_000;

/// Of these, those that have nothing are kept only up to so many: clients with names drawn anew leave one each time.
const MAX_EMPTY: usize = MAX_OFFLINE / 2;

static OFFLINE: AtomicUsize = AtomicUsize::new(0);

type Key = Box<[u8]>;

struct Table {
    parts: Vec<Mutex<HashSet<Named>>>,
    hasher: RandomState,
}

static TABLE: LazyLock<Table> =
    LazyLock::new(|| Table { parts: (0..PARTS).map(|_| Mutex::default()).collect(), hasher: RandomState::new() });

/// What a session takes there, bytes.
pub(super) const SLOT_BYTES: usize = size_of::<Slot>();

/// A session's place. There are millions: its name stands here only, and what few need behind a pointer.
struct Slot {
    key: Key,
    inside: Mutex<Inside>,
}

/// A slot in the table, by its key.
struct Named(Arc<Slot>);

impl Borrow<[u8]> for Named {
    fn borrow(&self) -> &[u8] {
        &self.0.key
    }
}

impl Hash for Named {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key.hash(state);
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Named) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for Named {}

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
        Arc::new(Slot { key, inside: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().expect(NO_PANIC)
    }
}

const NO_PANIC: &str = "nothing panics while it is locked";

impl Table {
    fn part(&self, key: &[u8]) -> MutexGuard<'_, HashSet<Named>> {
        self.parts[self.hasher.hash_one(key) as usize % PARTS].lock().expect(NO_PANIC)
    }
}

/// A session is one's own until this is dropped, or [`Owner::is_wanted`].
pub(super) struct Owner {
    slot: Arc<Slot>,
    is_offline: bool,
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

/// Makes the session of a name one's own; and what is left of that before.
pub(super) async fn claim(key: Key) -> (Owner, Option<Box<Session>>) {
    let slot = Slot::new(key);
    let before = TABLE.part(&slot.key).replace(Named(slot.clone()));
    let owner = Owner { slot, is_offline: false };
    let Some(Named(before)) = before else { return (owner, None) };
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
    TABLE.part(key).contains(key)
}

/// Makes a session one's own that comes from another process. None: its client has come before it.
pub(super) fn arrive(key: Key) -> Option<Owner> {
    let mut part = TABLE.part(&key);
    if part.contains(&*key) {
        return None;
    }
    let slot = Slot::new(key);
    part.insert(Named(slot.clone()));
    drop(part);
    Some(Owner { slot, is_offline: false })
}

impl Owner {
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
    let mut part = TABLE.part(&mine.key);
    if part.get(&*mine.key).is_some_and(|Named(slot)| Arc::ptr_eq(slot, mine)) {
        part.remove(&*mine.key);
    }
}
