//! A dictionary that all threads share and that outlives a reload: `lua_shared_dict`. Values are numbers, texts, booleans or lists of
//! numbers and texts; each may expire; what was used longest ago makes room. One lock, held for one look-up.

use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Bytes that an entry takes beside its key and value, as much as nginx's slab and tree would.
const OVERHEAD: usize = 56;
/// Bytes that an element of a list takes beside its own.
const ELEMENT: usize = 24;
/// Entries that make room for one at most (`ngx_http_lua_shdict_store`).
const MAX_EVICTED: usize = 30;
/// No neighbour.
const NONE: u32 = u32::MAX;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number.
    Number(f64),
    /// Bytes.
    Text(Box<[u8]>),
    /// A boolean.
    Flag(bool),
    /// A list of numbers and texts.
    List(VecDeque<Value>),
}

impl Value {
    fn bytes(&self) -> usize {
        match self {
            Value::Number(_) => 8,
            Value::Flag(_) => 1,
            Value::Text(text) => text.len(),
            Value::List(list) => list.iter().map(|v| v.bytes() + ELEMENT).sum(),
        }
    }
}

/// Under which condition a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// There is none yet.
    Absent,
    /// There is one.
    Present,
}

/// What came of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Valid entries had to make room.
    pub forcible: bool,
}

/// Why nothing was stored or found, in the words that programs get.
pub type Refusal = &'static str;

/// What a look-up found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The value.
    pub value: Value,
    /// The number that was stored with it.
    pub flags: u32,
    /// It has expired, and nobody needed its place yet.
    pub stale: bool,
}

struct Entry {
    key: Box<[u8]>,
    value: Value,
    flags: u32,
    /// Milliseconds at which it ends; 0 never.
    expires: u64,
    /// Towards the one used last.
    newer: u32,
    older: u32,
}

#[derive(Default)]
struct Store {
    index: HashMap<Box<[u8]>, u32>,
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    newest: Option<u32>,
    oldest: Option<u32>,
    used: usize,
}

/// A dictionary.
pub struct Dict {
    /// Its name.
    pub name: Box<str>,
    /// How many bytes it may take.
    pub capacity: usize,
    store: Mutex<Store>,
    changes: AtomicU64,
}

/// What a dictionary holds at a key, for those who keep it somewhere else.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// The key.
    pub key: Box<[u8]>,
    /// The value.
    pub value: Value,
    /// Milliseconds of the wall clock at which it ends; 0 never.
    pub expires: u64,
}

impl std::fmt::Debug for Dict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dict({}, {})", self.name, self.capacity)
    }
}

/// The dictionaries of the process.
static KNOWN: Mutex<Vec<Weak<Dict>>> = Mutex::new(Vec::new());

/// Bytes that the dictionaries of the process have in use.
pub fn bytes() -> u64 {
    let known: Vec<Arc<Dict>> =
        KNOWN.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect();
    known.iter().map(|d| d.lock().used as u64).sum()
}

impl Dict {
    /// A new one.
    pub fn new(name: &str, capacity: usize) -> Dict {
        Dict { name: name.into(), capacity, store: Mutex::default(), changes: AtomicU64::new(0) }
    }

    /// The one of that name and size that a configuration before had and that is still in use, or a new one.
    pub fn named(name: &str, capacity: usize) -> Arc<Dict> {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|d| d.strong_count() > 0);
        let same = known.iter().filter_map(Weak::upgrade).find(|d| *d.name == *name && d.capacity == capacity);
        same.unwrap_or_else(|| {
            let made = Arc::new(Dict::new(name, capacity));
            known.push(Arc::downgrade(&made));
            made
        })
    }

    /// How often its entries have changed.
    pub fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    /// The lock for a change.
    fn lock_to_change(&self) -> MutexGuard<'_, Store> {
        let store = self.lock();
        self.changes.fetch_add(1, Relaxed);
        store
    }

    /// Valid entries of `count` places from `from` on, and the place behind them; none behind the last. So nobody waits for all of it.
    pub fn piece(&self, from: usize, count: usize, now: u64) -> (Vec<Held>, Option<usize>) {
        let store = self.lock();
        let end = store.entries.len().min(from.saturating_add(count));
        let places = store.entries.get(from..end).unwrap_or_default();
        let valid = places.iter().flatten().filter(|e| e.expires == 0 || e.expires > now);
        let held = valid.map(|e| Held { key: e.key.clone(), value: e.value.clone(), expires: e.expires }).collect();
        (held, Some(end).filter(|end| *end < store.entries.len()))
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks a key up; an expired value is found only by those who want it `stale` too.
    pub fn get(&self, key: &[u8], now: u64, stale: bool) -> Option<Found> {
        let mut store = self.lock();
        let at = store.find(key)?;
        store.touch(at);
        let entry = store.entry(at);
        let is_stale = entry.expires != 0 && entry.expires <= now;
        if is_stale && !stale {
            return None;
        }
        Some(Found { value: entry.value.clone(), flags: entry.flags, stale: is_stale })
    }

    /// Shows a valid value and the number that was stored with it, while the dictionary is locked.
    pub fn look<T>(&self, key: &[u8], now: u64, show: impl FnOnce(&Value, u32) -> T) -> Option<T> {
        let mut store = self.lock();
        let at = store.find(key)?;
        store.touch(at);
        if !store.is_valid(at, now) {
            return None;
        }
        let entry = store.entry(at);
        Some(show(&entry.value, entry.flags))
    }

    /// Stores a value for `ttl` milliseconds (0: for ever). `evict`: older entries may make room.
    ///
    /// # Errors
    /// `exists`, `not found`, `no memory`.
    pub fn set(
        &self,
        key: &[u8],
        value: Value,
        (ttl, now): (u64, u64),
        flags: u32,
        when: When,
        evict: bool,
    ) -> Result<Stored, (Refusal, bool)> {
        let mut store = self.lock_to_change();
        let before = store.find(key);
        let valid = before.is_some_and(|at| store.is_valid(at, now));
        match when {
            When::Absent if valid => return Err(("exists", false)),
            When::Present if !valid => return Err(("not found", false)),
            _ => {}
        }
        let expires = if ttl == 0 { 0 } else { now + ttl };
        if let Some(at) = before {
            store.remove(at);
        }
        let forcible = store.make_room(self.capacity, OVERHEAD + key.len() + value.bytes(), now, evict)?;
        store.insert(key, value, flags, expires);
        Ok(Stored { forcible })
    }

    /// Takes an entry away.
    pub fn delete(&self, key: &[u8]) {
        let mut store = self.lock_to_change();
        if let Some(at) = store.find(key) {
            store.remove(at);
        }
    }

    /// Adds to a number. `init`: what a missing one begins with, and for how many milliseconds.
    ///
    /// # Errors
    /// `not found`, `not a number`, `no memory`.
    pub fn incr(
        &self,
        key: &[u8],
        by: f64,
        init: Option<(f64, u64)>,
        now: u64,
    ) -> Result<(f64, bool), (Refusal, bool)> {
        let mut store = self.lock_to_change();
        if let Some(at) = store.find(key) {
            if store.is_valid(at, now) {
                store.touch(at);
                let Value::Number(number) = &mut store.entry_mut(at).value else { return Err(("not a number", false)) };
                *number += by;
                return Ok((*number, false));
            }
            if init.is_none() {
                return Err(("not found", false));
            }
            store.remove(at);
        }
        let Some((first, ttl)) = init else { return Err(("not found", false)) };
        let forcible = store.make_room(self.capacity, OVERHEAD + key.len() + 8, now, true)?;
        store.insert(key, Value::Number(first + by), 0, if ttl == 0 { 0 } else { now + ttl });
        Ok((first + by, forcible))
    }

    /// Adds an element to a list, at its `front` or its back; the new length.
    ///
    /// # Errors
    /// `value not a list`, `no memory`.
    pub fn push(&self, key: &[u8], element: Value, front: bool, now: u64) -> Result<usize, Refusal> {
        let mut store = self.lock_to_change();
        let mut at = store.find(key);
        if let Some(there) = at
            && !store.is_valid(there, now)
        {
            store.remove(there);
            at = None;
        }
        if at.is_some_and(|at| !matches!(store.entry(at).value, Value::List(_))) {
            return Err("value not a list");
        }
        let bytes = element.bytes() + ELEMENT;
        let need = bytes + if at.is_some() { 0 } else { OVERHEAD + key.len() };
        if store.used + need > self.capacity {
            store.make_room(self.capacity, need, now, false).map_err(|(text, _)| text)?;
            at = store.find(key);
        }
        let at = match at {
            Some(at) => at,
            None => store.insert(key, Value::List(VecDeque::new()), 0, 0),
        };
        store.touch(at);
        store.used += bytes;
        let Value::List(list) = &mut store.entry_mut(at).value else { return Err("value not a list") };
        if front {
            list.push_front(element);
        } else {
            list.push_back(element);
        }
        Ok(list.len())
    }

    /// Takes an element off a list; an empty list is none.
    ///
    /// # Errors
    /// `value not a list`.
    pub fn pop(&self, key: &[u8], front: bool, now: u64) -> Result<Option<Value>, Refusal> {
        let mut store = self.lock_to_change();
        let Some(at) = store.find(key).filter(|at| store.is_valid(*at, now)) else { return Ok(None) };
        store.touch(at);
        let Value::List(list) = &mut store.entry_mut(at).value else { return Err("value not a list") };
        let taken = if front { list.pop_front() } else { list.pop_back() };
        let is_empty = list.is_empty();
        store.used -= taken.as_ref().map_or(0, |v| v.bytes() + ELEMENT);
        if is_empty {
            store.remove(at);
        }
        Ok(taken)
    }

    /// The length of a list.
    ///
    /// # Errors
    /// `value not a list`.
    pub fn length(&self, key: &[u8], now: u64) -> Result<usize, Refusal> {
        let mut store = self.lock();
        let Some(at) = store.find(key).filter(|at| store.is_valid(*at, now)) else { return Ok(0) };
        store.touch(at);
        match &store.entry(at).value {
            Value::List(list) => Ok(list.len()),
            _ => Err("value not a list"),
        }
    }

    /// Milliseconds that are left to an entry; 0 if it stays. Of one that has expired and has its place still, how long ago that was: less than 0.
    pub fn ttl(&self, key: &[u8], now: u64) -> Option<i64> {
        let store = self.lock();
        let expires = store.entry(store.find(key)?).expires;
        Some(match expires {
            0 => 0,
            expires if expires > now => (expires - now).cast_signed(),
            expires => (expires.cast_signed() - now.cast_signed()).min(-1),
        })
    }

    /// Gives an entry other milliseconds from now; false if there is none.
    pub fn expire(&self, key: &[u8], ttl: u64, now: u64) -> bool {
        let mut store = self.lock_to_change();
        let Some(at) = store.find(key).filter(|at| store.is_valid(*at, now)) else { return false };
        store.entry_mut(at).expires = if ttl == 0 { 0 } else { now + ttl };
        true
    }

    /// Lets all entries expire.
    pub fn flush_all(&self) {
        self.lock_to_change().entries.iter_mut().flatten().for_each(|e| e.expires = 1);
    }

    /// Frees the places of expired entries, at most `max` (0: all); how many it were.
    pub fn flush_expired(&self, max: usize, now: u64) -> usize {
        let mut store = self.lock_to_change();
        let expired: Vec<u32> = (0..store.entries.len() as u32)
            .filter(|at| store.entries[*at as usize].as_ref().is_some_and(|e| e.expires != 0 && e.expires <= now))
            .take(if max == 0 { usize::MAX } else { max })
            .collect();
        expired.iter().for_each(|at| store.remove(*at));
        expired.len()
    }

    /// Keys of valid entries, the newest first, at most `max` (0: all).
    pub fn keys(&self, max: usize, now: u64) -> Vec<Box<[u8]>> {
        let store = self.lock();
        let mut keys = Vec::new();
        let mut at = store.newest;
        while let Some(entry) = at {
            if max > 0 && keys.len() == max {
                break;
            }
            if store.is_valid(entry, now) {
                keys.push(store.entry(entry).key.clone());
            }
            at = Some(store.entry(entry).older).filter(|o| *o != NONE);
        }
        keys
    }

    /// Bytes that nobody uses.
    pub fn free_space(&self) -> usize {
        self.capacity.saturating_sub(self.lock().used)
    }
}

impl Store {
    fn find(&self, key: &[u8]) -> Option<u32> {
        self.index.get(key).copied()
    }

    fn entry(&self, at: u32) -> &Entry {
        self.entries[at as usize].as_ref().expect("the index knows only entries that are there")
    }

    fn entry_mut(&mut self, at: u32) -> &mut Entry {
        self.entries[at as usize].as_mut().expect("the index knows only entries that are there")
    }

    fn is_valid(&self, at: u32, now: u64) -> bool {
        let expires = self.entry(at).expires;
        expires == 0 || expires > now
    }

    /// Makes an entry the one used last.
    fn touch(&mut self, at: u32) {
        if self.newest != Some(at) {
            self.unlink(at);
            self.link(at);
        }
    }

    fn link(&mut self, at: u32) {
        let before = self.newest.replace(at);
        let entry = self.entry_mut(at);
        (entry.newer, entry.older) = (NONE, before.unwrap_or(NONE));
        match before {
            Some(before) => self.entry_mut(before).newer = at,
            None => self.oldest = Some(at),
        }
    }

    fn unlink(&mut self, at: u32) {
        let (newer, older) = (self.entry(at).newer, self.entry(at).older);
        match newer {
            NONE => self.newest = Some(older).filter(|o| *o != NONE),
            newer => self.entry_mut(newer).older = older,
        }
        match older {
            NONE => self.oldest = Some(newer).filter(|n| *n != NONE),
            older => self.entry_mut(older).newer = newer,
        }
    }

    fn insert(&mut self, key: &[u8], value: Value, flags: u32, expires: u64) -> u32 {
        self.used += OVERHEAD + key.len() + value.bytes();
        let entry = Entry { key: key.into(), value, flags, expires, newer: NONE, older: NONE };
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.entries.push(None);
                (self.entries.len() - 1) as u32
            }
        };
        self.entries[at as usize] = Some(entry);
        self.index.insert(key.into(), at);
        self.link(at);
        at
    }

    fn remove(&mut self, at: u32) {
        self.unlink(at);
        if let Some(entry) = self.entries[at as usize].take() {
            self.used -= OVERHEAD + entry.key.len() + entry.value.bytes();
            self.index.remove(&entry.key);
            self.free.push(at);
        }
    }

    /// Makes room for `need` bytes: expired entries go first, then the oldest if that is allowed. Whether valid ones had to.
    fn make_room(&mut self, capacity: usize, need: usize, now: u64, evict: bool) -> Result<bool, (Refusal, bool)> {
        let mut forcible = false;
        for _ in 0..MAX_EVICTED {
            if self.used + need <= capacity {
                return Ok(forcible);
            }
            let Some(oldest) = self.oldest else { break };
            let valid = self.is_valid(oldest, now);
            if valid && !evict {
                break;
            }
            forcible |= valid;
            self.remove(oldest);
        }
        if self.used + need <= capacity { Ok(forcible) } else { Err(("no memory", forcible)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(dict: &Dict, key: &str, value: f64, ttl: u64, now: u64) {
        let stored = dict.set(key.as_bytes(), Value::Number(value), (ttl, now), 0, When::Always, true);
        assert!(stored.is_ok(), "{key}");
    }

    #[test]
    fn entries_expire_and_are_found_stale() {
        let dict = Dict::new("d", 4096);
        put(&dict, "a", 1.0, 10, 100);
        assert!(dict.get(b"a", 109, false).is_some());
        assert!(dict.get(b"a", 110, false).is_none());
        assert!(dict.get(b"a", 110, true).is_some_and(|f| f.stale));
        assert_eq!(dict.flush_expired(0, 110), 1);
        assert!(dict.get(b"a", 110, true).is_none());
    }

    #[test]
    fn the_one_used_longest_ago_makes_room() {
        let dict = Dict::new("d", (OVERHEAD + 9) * 3);
        ["a", "b", "c"].iter().for_each(|k| put(&dict, k, 1.0, 0, 1));
        assert!(dict.get(b"a", 1, false).is_some());
        let stored = dict.set(b"d", Value::Number(1.0), (0, 1), 0, When::Always, true);
        assert_eq!(stored, Ok(Stored { forcible: true }));
        assert!(dict.get(b"b", 1, false).is_none());
        let refused = dict.set(b"e", Value::Number(1.0), (0, 1), 0, When::Always, false);
        assert_eq!(refused, Err(("no memory", false)));
        assert_eq!(dict.keys(0, 1).len(), 3);
    }

    #[test]
    fn conditions_and_numbers() {
        let dict = Dict::new("d", 4096);
        assert_eq!(dict.incr(b"n", 1.0, None, 1), Err(("not found", false)));
        assert_eq!(dict.incr(b"n", 1.0, Some((10.0, 0)), 1), Ok((11.0, false)));
        assert_eq!(dict.incr(b"n", 2.0, None, 1), Ok((13.0, false)));
        let again = dict.set(b"n", Value::Flag(true), (0, 1), 0, When::Absent, true);
        assert_eq!(again, Err(("exists", false)));
        let missing = dict.set(b"m", Value::Flag(true), (0, 1), 0, When::Present, true);
        assert_eq!(missing, Err(("not found", false)));
    }

    #[test]
    fn pieces_are_all_of_it_and_changes_are_counted() {
        let dict = Dict::new("d", 4096);
        ["a", "b", "c"].iter().for_each(|k| put(&dict, k, 1.0, if *k == "b" { 10 } else { 0 }, 100));
        let keys = |from, now| {
            let (held, next) = dict.piece(from, 2, now);
            (held.iter().map(|h| h.key[0]).collect::<Vec<_>>(), next)
        };
        assert_eq!(keys(0, 100), (vec![b'a', b'b'], Some(2)));
        assert_eq!(keys(0, 110), (vec![b'a'], Some(2)), "one is over");
        assert_eq!(keys(2, 100), (vec![b'c'], None));
        assert_eq!(keys(9, 100), (Vec::new(), None));
        let before = dict.changes();
        assert!(dict.get(b"a", 100, false).is_some());
        assert_eq!(dict.changes(), before);
        dict.delete(b"a");
        assert_ne!(dict.changes(), before);
    }

    #[test]
    fn lists_have_two_ends() {
        let dict = Dict::new("d", 4096);
        let text = |t: &str| Value::Text(t.as_bytes().into());
        assert_eq!(dict.push(b"l", text("a"), false, 1), Ok(1));
        assert_eq!(dict.push(b"l", text("b"), true, 1), Ok(2));
        assert_eq!(dict.pop(b"l", false, 1), Ok(Some(text("a"))));
        assert_eq!(dict.pop(b"l", false, 1), Ok(Some(text("b"))));
        assert_eq!(dict.pop(b"l", false, 1), Ok(None));
        assert_eq!(dict.free_space(), 4096);
    }
}
