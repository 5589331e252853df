//! The keys zone of a cache: which entries there are, who works on them, which were used last. Shared by all threads,
//! split into shards, each behind its own lock that is held for one look-up. Bounded by the size that the configuration
//! gives; entries are counted as nginx's slab allocator would. Knows no file: who takes an entry out unlinks its file.
//!
//! ```text
//!  enter ─> New ──────────────> finish: exists          take_*: deleting ─> (file unlinked) ─> removed
//!        ├> Known, perhaps exists ─> touch, finish
//!        └> Scarce, Error       release: gone if nothing is known of it
//! ```

use super::format::Digest;
use crate::zone::by_age::ByAge;
use crate::zone::store::PAGE;
use hashbrown::HashTable;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Bytes of an entry in nginx's zone: its node, rounded up to a power of two.
const ENTRY: usize = 128;
/// What nginx keeps for a page and for a zone.
const PAGE_RECORD: usize = 24;
const ZONE_RECORD: usize = 512;
/// Locks of a zone; small zones have one, for shards of a few entries would fill up unevenly.
const SHARDS: usize = 16;
const SHARDED_FROM: usize = 1 << 20;
/// Entries in use that are passed over when room is made (nginx: 20).
const MAX_PASSED: usize = 20;
/// Entries that wait for the manager to unlink their files after room was made for others. More are not taken out: a
/// manager that is so far behind will not catch up by being given more.
const MAX_GRAVES: usize = 4096;

/// The entries of a zone.
#[derive(Debug)]
pub struct Index {
    shards: Box<[Mutex<Shard>]>,
    /// Seeded at random: keys are made of what clients send.
    hasher: RandomState,
    capacity: usize,
    count: AtomicUsize,
    /// Blocks of all files.
    blocks: AtomicU64,
    /// So many entries are too many: set when the zone was full.
    watermark: AtomicUsize,
    graves: Mutex<Vec<Grave>>,
}

/// Where an entry is. Valid as long as the entry is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    shard: u32,
    index: u32,
}

/// An entry whose file is to be unlinked; [`Index::removed`] ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grave {
    slot: Slot,
    /// Its name.
    pub key: Digest,
}

/// What is asked when an entry is entered.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Uses from which on an answer is worth a file.
    pub min_uses: u32,
    /// Milliseconds since 1970.
    pub now: i64,
    /// Until when the entry stays without further use, milliseconds since 1970.
    pub expire: i64,
}

/// What is known of an entry that was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// There was none.
    New,
    /// It has been asked for often enough; `exists`: there is a file.
    Wanted {
        /// There is a file.
        exists: bool,
    },
    /// It has not been asked for often enough.
    Scarce,
    /// The upstream failed with this status lately.
    Error(u16),
}

/// Why an entry cannot be entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The zone is full of entries in use.
    Full,
    /// Its file is being unlinked.
    Deleting,
}

/// What the holder of an entry leaves behind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Leave {
    /// The holder was the one to update the entry, under a lock until this (ms).
    pub updating: Option<u64>,
    /// The upstream failed: status, and until when that holds (seconds since 1970).
    pub error: Option<(u16, i64)>,
    /// An entry without a file is of no use: uses are not counted.
    pub forget: bool,
}

/// What the manager finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The file of this entry is to be unlinked.
    Unlink(Grave),
    /// An entry without a file is gone.
    Gone,
    /// Nothing for now; the next one expires then (milliseconds since 1970).
    Nothing(Option<i64>),
}

#[derive(Debug, Default)]
struct Shard {
    table: HashTable<u32>,
    nodes: ByAge<Node>,
}

#[derive(Debug, Default)]
struct Node {
    key: Digest,
    uses: u32,
    /// Requests that hold it.
    count: u32,
    error: u16,
    exists: bool,
    /// There is a file, but it is not to be used.
    outdated: bool,
    updating: bool,
    deleting: bool,
    /// Milliseconds since 1970.
    expire: i64,
    /// Until when `error` holds, seconds since 1970.
    valid: i64,
    blocks: u64,
    /// Until when `updating` holds others up, ms.
    lock_until: u64,
    waiters: Vec<Waker>,
}

impl Index {
    /// An empty one for a zone of `size` bytes.
    pub fn new(size: u64) -> Index {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let shards = if size < SHARDED_FROM { 1 } else { SHARDS };
        let pages = size.saturating_sub(ZONE_RECORD) / (PAGE + PAGE_RECORD);
        Index {
            shards: (0..shards).map(|_| Mutex::new(Shard::default())).collect(),
            hasher: RandomState::new(),
            // One page is taken by what describes the zone.
            capacity: pages.saturating_sub(1).max(1) * (PAGE / ENTRY),
            count: AtomicUsize::new(0),
            blocks: AtomicU64::new(0),
            watermark: AtomicUsize::new(usize::MAX),
            graves: Mutex::default(),
        }
    }

    /// Entries.
    pub fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Bytes that its entries take here, which is not what nginx's zone would count.
    pub fn bytes(&self) -> u64 {
        (self.count() * (ByAge::<Node>::PLACE + size_of::<u32>())) as u64
    }

    /// Blocks of all files.
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Relaxed)
    }

    /// Whether there are more entries than the zone can do with.
    pub fn is_crowded(&self) -> bool {
        self.count() >= self.watermark.load(Relaxed)
    }

    /// Whether there is a file for a key: its entry becomes the newest. Nothing is held. `expire`: as in [`Ask`].
    pub fn touch(&self, key: &Digest, expire: i64) -> bool {
        let (hash, number) = self.place(key);
        let mut shard = self.lock(number);
        let Some(index) = shard.find(hash, key) else { return false };
        let node = &mut shard.nodes[index];
        if !node.exists || node.deleting || node.error != 0 {
            return false;
        }
        // Entries touched within a second need no other order.
        if node.expire / 1000 != expire / 1000 {
            node.expire = expire;
            shard.nodes.touch(index);
        }
        true
    }

    /// Enters and holds an entry, which becomes the newest; makes it if need be.
    pub fn enter(&self, key: &Digest, ask: &Ask) -> Result<(Slot, Known), Refused> {
        let (hash, number) = self.place(key);
        let mut shard = self.lock(number);
        if shard.find(hash, key).is_none() && !self.reserve() {
            drop(shard);
            self.watermark.store(self.count() - self.count() / 8, Relaxed);
            if !self.make_room() {
                return Err(Refused::Full);
            }
            shard = self.lock(number);
            // Somebody else may have been faster.
            if shard.find(hash, key).is_some() {
                self.count.fetch_sub(1, Relaxed);
            }
        }
        let (index, new) = match shard.find(hash, key) {
            Some(index) => (index, false),
            None => (shard.insert(hash, key, &self.hasher), true),
        };
        let node = &mut shard.nodes[index];
        if node.deleting {
            return Err(Refused::Deleting);
        }
        let known = node.enter(ask, new);
        shard.nodes.touch(index);
        Ok((Slot { shard: number as u32, index }, known))
    }

    /// Holds an entry that somebody holds once more.
    pub fn hold(&self, slot: Slot) {
        let (mut shard, index) = self.at_index(slot);
        shard.nodes[index].count += 1;
    }

    /// Takes the lock of an entry that is held, for `age` ms; the time until which it holds. None: another request has it.
    pub fn try_lock(&self, slot: Slot, now_ms: u64, age: u64) -> Option<u64> {
        let (mut shard, index) = self.at_index(slot);
        let node = &mut shard.nodes[index];
        if node.updating && node.lock_until > now_ms {
            return None;
        }
        node.updating = true;
        node.lock_until = now_ms.saturating_add(age);
        Some(node.lock_until)
    }

    /// Whether another request is still at work on an entry that is held; the waker is called when it is done. Gives the
    /// time until which the lock holds, ms.
    pub fn wait(&self, slot: Slot, now_ms: u64, waker: &Waker) -> Option<u64> {
        let (mut shard, index) = self.at_index(slot);
        let node = &mut shard.nodes[index];
        if !node.updating || node.lock_until <= now_ms {
            return None;
        }
        if !node.waiters.iter().any(|w| w.will_wake(waker)) {
            node.waiters.push(waker.clone());
        }
        Some(node.lock_until)
    }

    /// Makes the holder the one who updates an entry; what to give [`Leave::updating`] then. None: another request is.
    pub fn begin_update(&self, slot: Slot) -> Option<u64> {
        let (mut shard, index) = self.at_index(slot);
        let node = &mut shard.nodes[index];
        if node.updating {
            return None;
        }
        node.updating = true;
        Some(node.lock_until)
    }

    /// Notes that an entry that is held has a file after all, of so many blocks.
    pub fn found(&self, slot: Slot, blocks: u64) {
        let (mut shard, index) = self.at_index(slot);
        let node = &mut shard.nodes[index];
        if !node.exists {
            (node.exists, node.uses, node.blocks) = (true, 1, blocks);
            self.blocks.fetch_add(blocks, Relaxed);
        }
    }

    /// The holder has put a file of so many blocks in place. It holds the entry no more.
    pub fn finish(&self, slot: Slot, blocks: u64) {
        let (mut shard, index) = self.at_index(slot);
        let node = &mut shard.nodes[index];
        node.count -= 1;
        (node.error, node.exists, node.outdated) = (0, true, false);
        let before = std::mem::replace(&mut node.blocks, blocks);
        self.blocks.fetch_add(blocks, Relaxed);
        self.blocks.fetch_sub(before, Relaxed);
        node.updating = false;
        let waiters = std::mem::take(&mut node.waiters);
        drop(shard);
        waiters.into_iter().for_each(Waker::wake);
    }

    /// The holder is done without a new file.
    pub fn release(&self, slot: Slot, leave: Leave) {
        let (mut shard, index) = self.at_index(slot);
        let node = &mut shard.nodes[index];
        node.count -= 1;
        let mut waiters = Vec::new();
        // Who was too slow has lost the lock to somebody else.
        if leave.updating == Some(node.lock_until) {
            node.updating = false;
            waiters = std::mem::take(&mut node.waiters);
        }
        if let Some((status, until)) = leave.error {
            (node.error, node.valid) = (status, until);
        } else if leave.forget && !node.exists && !node.outdated && node.count == 0 && node.error == 0 {
            self.remove(&mut shard, index);
            self.count.fetch_sub(1, Relaxed);
        }
        drop(shard);
        waiters.into_iter().for_each(Waker::wake);
    }

    /// Notes a file that the loader has found. False: there is no room.
    pub fn insert_found(&self, key: &Digest, blocks: u64, expire: i64) -> bool {
        let (hash, number) = self.place(key);
        let mut shard = self.lock(number);
        let index = match shard.find(hash, key) {
            Some(index) => index,
            None => {
                if !self.reserve() {
                    self.watermark.store(self.count() - self.count() / 8, Relaxed);
                    return false;
                }
                let index = shard.insert(hash, key, &self.hasher);
                let node = &mut shard.nodes[index];
                (node.uses, node.exists, node.blocks) = (1, true, blocks);
                self.blocks.fetch_add(blocks, Relaxed);
                index
            }
        };
        let node = &mut shard.nodes[index];
        if !node.deleting {
            node.expire = expire;
            shard.nodes.touch(index);
        }
        true
    }

    /// An entry that has not been used for too long, taken out of the queue. Times are milliseconds since 1970; `again`: when
    /// to look at one that is in use.
    pub fn take_expired(&self, now: i64, again: i64) -> Taken {
        if let Some(grave) = self.graves.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Taken::Unlink(grave);
        }
        let mut next: Option<i64> = None;
        for number in 0..self.shards.len() {
            let mut shard = self.lock(number);
            while let Some(index) = shard.nodes.oldest() {
                let node = &mut shard.nodes[index];
                if node.expire > now {
                    next = Some(next.map_or(node.expire, |n| n.min(node.expire)));
                    break;
                }
                if node.count == 0 {
                    return self.take(&mut shard, number, index);
                }
                // A request that has lasted as long as entries may be idle: later, then.
                node.expire = again;
                shard.nodes.touch(index);
            }
        }
        Taken::Nothing(next)
    }

    /// The entry that was not used for the longest time, taken out of the queue.
    pub fn take_oldest(&self) -> Taken {
        // Another thread may take what was just found; a few rounds are enough to find something else.
        for _ in 0..MAX_PASSED {
            let oldest = (0..self.shards.len())
                .filter_map(|n| {
                    let shard = self.lock(n);
                    shard.oldest_unused().map(|i| (shard.nodes[i].expire, n))
                })
                .min();
            let Some((_, number)) = oldest else { break };
            let mut shard = self.lock(number);
            if let Some(index) = shard.oldest_unused() {
                return self.take(&mut shard, number, index);
            }
        }
        Taken::Nothing(None)
    }

    /// Forgets an entry's file; nothing if there is none. The caller unlinks it, and then says so of the grave, if there is one: there
    /// is none while requests hold the entry.
    pub fn purge(&self, key: &Digest) -> Option<Option<Grave>> {
        let (hash, number) = self.place(key);
        let mut shard = self.lock(number);
        let index = shard.find(hash, key)?;
        let node = &mut shard.nodes[index];
        if node.deleting || !node.exists {
            return None;
        }
        if node.count > 0 {
            (node.exists, node.outdated) = (false, true);
            return Some(None);
        }
        match self.take(&mut shard, number, index) {
            Taken::Unlink(grave) => Some(Some(grave)),
            Taken::Gone | Taken::Nothing(_) => Some(None),
        }
    }

    /// The file of an entry that was taken is unlinked.
    pub fn removed(&self, grave: Grave) {
        let (mut shard, index) = self.at_index(grave.slot);
        self.remove(&mut shard, index);
    }

    /// Whether files wait to be unlinked.
    pub fn has_graves(&self) -> bool {
        !self.graves.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn place(&self, key: &Digest) -> (u64, usize) {
        let hash = self.hasher.hash_one(key);
        (hash, (hash >> 32) as usize % self.shards.len())
    }

    fn lock(&self, number: usize) -> MutexGuard<'_, Shard> {
        self.shards[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at_index(&self, slot: Slot) -> (MutexGuard<'_, Shard>, u32) {
        (self.lock(slot.shard as usize), slot.index)
    }

    fn reserve(&self) -> bool {
        if self.count.fetch_add(1, Relaxed) < self.capacity {
            return true;
        }
        self.count.fetch_sub(1, Relaxed);
        false
    }

    /// Takes the oldest entry out for a new one, whose place is reserved then. Its file is the manager's business.
    fn make_room(&self) -> bool {
        let mut graves = self.graves.lock().unwrap_or_else(PoisonError::into_inner);
        if graves.len() >= MAX_GRAVES {
            return false;
        }
        match self.take_oldest() {
            Taken::Nothing(_) => return false,
            Taken::Unlink(grave) => graves.push(grave),
            Taken::Gone => {}
        }
        self.reserve()
    }

    /// Takes an entry that nobody holds out of the queue; it stays in the table while its file is there.
    fn take(&self, shard: &mut Shard, number: usize, index: u32) -> Taken {
        self.count.fetch_sub(1, Relaxed);
        let node = &mut shard.nodes[index];
        self.blocks.fetch_sub(node.blocks, Relaxed);
        node.blocks = 0;
        if !node.exists && !node.outdated {
            self.remove(shard, index);
            return Taken::Gone;
        }
        node.deleting = true;
        let key = node.key;
        shard.nodes.detach(index);
        Taken::Unlink(Grave { slot: Slot { shard: number as u32, index }, key })
    }

    fn remove(&self, shard: &mut Shard, index: u32) {
        let key = shard.nodes[index].key;
        if !shard.nodes[index].deleting {
            shard.nodes.detach(index);
        }
        shard.nodes[index] = Node::default();
        if let Ok(place) = shard.table.find_entry(self.hasher.hash_one(key), |i| *i == index) {
            place.remove();
        }
        shard.nodes.free(index);
    }
}

impl Node {
    fn enter(&mut self, ask: &Ask, new: bool) -> Known {
        self.uses = self.uses.saturating_add(1);
        self.count += 1;
        self.expire = ask.expire;
        if self.error != 0 && self.valid < ask.now / 1000 {
            // The failure is old: begin anew.
            self.outdated |= self.exists;
            (self.error, self.exists, self.valid) = (0, false, 0);
            return Known::New;
        }
        match self.error {
            _ if new => Known::New,
            0 if self.exists || self.uses >= ask.min_uses => Known::Wanted { exists: self.exists },
            0 => Known::Scarce,
            status => Known::Error(status),
        }
    }
}

impl Shard {
    fn find(&self, hash: u64, key: &Digest) -> Option<u32> {
        self.table.find(hash, |i| self.nodes[*i].key == *key).copied()
    }

    /// The oldest that nobody uses now, among the first ones.
    fn oldest_unused(&self) -> Option<u32> {
        self.nodes.from_oldest().take(MAX_PASSED).find(|at| self.nodes[*at].count == 0)
    }

    fn insert(&mut self, hash: u64, key: &Digest, hasher: &RandomState) -> u32 {
        let Shard { table, nodes } = self;
        let index = nodes.insert(Node { key: *key, ..Node::default() });
        table.insert_unique(hash, index, |i| hasher.hash_one(nodes[*i].key));
        index
    }
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
