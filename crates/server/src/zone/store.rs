//! States by key, shared by all threads: the inside of a zone. Split into shards, each behind its own lock, which is
//! held for one look-up. Bounded by the size that the configuration gives: entries are counted as nginx's slab
//! allocator would, so that a zone holds as many as it does there; the oldest make room.

use super::by_age::ByAge;
use hashbrown::HashTable;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a page of nginx's slab allocator.
pub const PAGE: usize = 4096;
/// What nginx's allocator keeps for each page.
const PAGE_RECORD: usize = 24;
/// What it keeps for a zone.
const ZONE_RECORD: usize = 512;
/// Larger entries take whole pages.
const LARGEST_PIECE: usize = PAGE / 2;
/// Locks of a zone. More would not help: a lock is held for less than a microsecond.
const SHARDS: usize = 16;
/// Zones below this have one shard: many small ones would fill up unevenly.
const SHARDED_FROM: usize = 1 << 20;
/// Entries of a shard that are dropped for one new one at most: a request must not pay for a long key with a long wait.
const MAX_EVICTIONS: usize = 16;

/// When entries may go.
pub trait Policy<S> {
    /// Somebody holds the entry's slot: it must stay.
    fn is_pinned(&self, state: &S) -> bool;
    /// The state says no more than a new one would.
    fn is_idle(&self, state: &S) -> bool;
}

/// The states of a zone.
#[derive(Debug)]
pub struct Store<S> {
    shards: Box<[Mutex<Shard<S>>]>,
    /// Seeded at random: nobody outside can find keys that collide.
    hasher: RandomState,
    capacity: usize,
    used: AtomicUsize,
    overhead: usize,
    /// What was said by it; kept here, since it lives as long.
    pub counts: std::sync::Arc<crate::status::limits::Counts>,
}

/// Where an entry is. Valid as long as the entry is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    shard: u32,
    index: u32,
}

#[derive(Debug)]
struct Shard<S> {
    table: HashTable<u32>,
    entries: ByAge<Entry<S>>,
}

#[derive(Debug)]
struct Entry<S> {
    hash: u64,
    key: Box<[u8]>,
    state: S,
}

impl<S: Default> Store<S> {
    /// An empty store for a zone of `size` bytes. `overhead`: what an entry takes beside its key, in bytes.
    pub fn new(size: usize, overhead: usize) -> Store<S> {
        let shards = if size < SHARDED_FROM { 1 } else { SHARDS };
        let pages = size.saturating_sub(ZONE_RECORD) / (PAGE + PAGE_RECORD);
        Store {
            shards: (0..shards).map(|_| Mutex::new(Shard::default())).collect(),
            hasher: RandomState::new(),
            // One page is taken by what describes the zone.
            capacity: pages.saturating_sub(1) * PAGE,
            used: AtomicUsize::new(0),
            overhead,
            counts: Default::default(),
        }
    }

    /// Pages in use and free, as nginx's allocator would count them.
    pub fn pages(&self) -> (usize, usize) {
        let used = self.used.load(Relaxed).div_ceil(PAGE);
        (used, (self.capacity / PAGE).saturating_sub(used))
    }

    /// Works on the state of a key, which becomes the newest; makes it if need be. `work` is told whether it is new.
    /// None: there is no room for another.
    pub fn enter<T>(
        &self,
        key: &[u8],
        policy: &impl Policy<S>,
        work: impl FnOnce(&mut S, bool) -> T,
    ) -> Option<(Slot, T)> {
        let hash = self.hasher.hash_one(key);
        let number = self.shard_of(hash);
        let mut shard = self.lock(number);
        let mut found = shard.find(hash, key);
        let new = found.is_none();
        if new {
            let cost = self.cost(key.len());
            self.drop_idle(&mut shard, policy);
            if !self.reserve(cost) {
                drop(shard);
                if !self.make_room(number, cost, policy) {
                    return None;
                }
                shard = self.lock(number);
                found = shard.find(hash, key);
                if found.is_some() {
                    self.used.fetch_sub(cost, Relaxed);
                }
            }
        }
        let index = match found {
            Some(index) => {
                shard.entries.touch(index);
                index
            }
            None => shard.insert(hash, key),
        };
        let done = work(&mut shard.entries[index].state, new && found.is_none());
        Some((Slot { shard: number as u32, index }, done))
    }

    /// Works on the state of a key if there is one, which becomes the newest.
    pub fn look<T>(&self, key: &[u8], work: impl FnOnce(&mut S) -> T) -> Option<T> {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.lock(self.shard_of(hash));
        let index = shard.find(hash, key)?;
        shard.entries.touch(index);
        Some(work(&mut shard.entries[index].state))
    }

    /// Works on a state that is pinned.
    pub fn at<T>(&self, slot: Slot, work: impl FnOnce(&mut S) -> T) -> T {
        let mut shard = self.lock(slot.shard as usize);
        work(&mut shard.entries[slot.index].state)
    }

    /// The key of a state that is pinned.
    pub fn key_at(&self, slot: Slot) -> Box<[u8]> {
        self.lock(slot.shard as usize).entries[slot.index].key.clone()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        (0..self.shards.len()).map(|number| self.lock(number).table.len()).sum()
    }

    /// Shows all states, those of a shard under its lock, the oldest first.
    pub fn each(&self, mut show: impl FnMut(&[u8], &S)) {
        for number in 0..self.shards.len() {
            let shard = self.lock(number);
            for index in shard.entries.from_oldest() {
                let entry = &shard.entries[index];
                show(&entry.key, &entry.state);
            }
        }
    }

    /// Works on a state that is pinned, and drops it if `work` says so.
    pub fn leave(&self, slot: Slot, work: impl FnOnce(&mut S) -> bool) {
        let mut shard = self.lock(slot.shard as usize);
        if work(&mut shard.entries[slot.index].state) {
            self.remove(&mut shard, slot.index);
        }
    }

    fn shard_of(&self, hash: u64) -> usize {
        (hash >> 32) as usize % self.shards.len()
    }

    fn lock(&self, number: usize) -> MutexGuard<'_, Shard<S>> {
        self.shards[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What nginx's slab allocator takes for an entry: a power of two, or whole pages.
    fn cost(&self, key: usize) -> usize {
        let size = self.overhead + key;
        if size > LARGEST_PIECE { size.next_multiple_of(PAGE) } else { size.next_power_of_two() }
    }

    fn reserve(&self, cost: usize) -> bool {
        if self.used.fetch_add(cost, Relaxed) + cost <= self.capacity {
            return true;
        }
        self.used.fetch_sub(cost, Relaxed);
        false
    }

    /// Drops the two oldest entries of a shard if they are idle: so it shrinks faster than it grows.
    fn drop_idle(&self, shard: &mut Shard<S>, policy: &impl Policy<S>) {
        for _ in 0..2 {
            match shard.oldest() {
                Some((index, state)) if !policy.is_pinned(state) && policy.is_idle(state) => self.remove(shard, index),
                _ => return,
            }
        }
    }

    /// Drops the oldest entries until there is room, in the key's own shard first. The room is reserved then.
    fn make_room(&self, first: usize, cost: usize, policy: &impl Policy<S>) -> bool {
        for step in 0..self.shards.len() {
            let mut shard = self.lock((first + step) % self.shards.len());
            for _ in 0..MAX_EVICTIONS {
                match shard.oldest() {
                    Some((index, state)) if !policy.is_pinned(state) => self.remove(&mut shard, index),
                    _ => break,
                }
                if self.reserve(cost) {
                    return true;
                }
            }
        }
        false
    }

    fn remove(&self, shard: &mut Shard<S>, index: u32) {
        shard.entries.detach(index);
        let entry = &mut shard.entries[index];
        let key = std::mem::take(&mut entry.key);
        entry.state = S::default();
        if let Ok(place) = shard.table.find_entry(entry.hash, |i| *i == index) {
            place.remove();
        }
        shard.entries.free(index);
        self.used.fetch_sub(self.cost(key.len()), Relaxed);
    }
}

impl<S> Default for Shard<S> {
    fn default() -> Self {
        Shard { table: HashTable::new(), entries: ByAge::default() }
    }
}

impl<S: Default> Shard<S> {
    fn find(&self, hash: u64, key: &[u8]) -> Option<u32> {
        self.table.find(hash, |i| *self.entries[*i].key == *key).copied()
    }

    fn oldest(&self) -> Option<(u32, &S)> {
        self.entries.oldest().map(|i| (i, &self.entries[i].state))
    }

    fn insert(&mut self, hash: u64, key: &[u8]) -> u32 {
        let Shard { table, entries } = self;
        let index = entries.insert(Entry { hash, key: key.into(), state: S::default() });
        table.insert_unique(hash, index, |i| entries[*i].hash);
        index
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
