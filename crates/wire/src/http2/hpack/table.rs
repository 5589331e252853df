//! The dynamic table (RFC 7541 section 2.3.2): the same for decoding and encoding. All bytes are in one buffer.

use super::ENTRY_OVERHEAD;
use crate::http2::saved::{Restored, Saved};
use std::collections::VecDeque;

/// An entry: its bytes are `name_len + value_len` of the buffer, from `start` on.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Counted from the first byte ever put in.
    start: u64,
    name_len: u32,
    value_len: u32,
    hash: u32,
}

/// Entries, newest first by index.
#[derive(Debug)]
pub(super) struct Table {
    bytes: Vec<u8>,
    /// How many bytes were dropped from the front of the buffer.
    dropped: u64,
    entries: VecDeque<Entry>,
    size: usize,
    max: usize,
}

impl Table {
    pub(super) fn new(max: usize) -> Table {
        Table { bytes: Vec::new(), dropped: 0, entries: VecDeque::new(), size: 0, max }
    }

    /// Keeps no room for more than there is.
    pub(super) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.entries.shrink_to_fit();
    }

    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Its size and entries, the oldest first.
    pub(super) fn save(&self, w: &mut Saved) {
        w.number(self.max as u64);
        w.number(self.entries.len() as u64);
        for index in (0..self.entries.len()).rev() {
            let (name, value) = self.entry(index).unwrap_or_default();
            w.bytes(name);
            w.bytes(value);
            w.number(self.entries[index].hash.into());
        }
    }

    /// What [`Table::save`] wrote of a table of at most so many bytes.
    pub(super) fn restore(r: &mut Restored<'_>, most: usize) -> Option<Table> {
        let mut table = Table::new(r.at_most(most)?);
        for _ in 0..r.at_most(most / ENTRY_OVERHEAD)? {
            let (name, value) = (r.bytes()?, r.bytes()?);
            table.add(name, value, u32::try_from(r.number()?).ok()?);
        }
        table.shrink();
        Some(table)
    }

    /// Sets the size; what does not fit any more goes.
    pub(super) fn resize(&mut self, max: usize) {
        self.max = max;
        self.evict(0);
    }

    /// Name and value of the entry `index`, 0 being the newest.
    pub(super) fn entry(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let e = self.entries.get(index)?;
        let start = (e.start - self.dropped) as usize;
        let (name, value) = self.bytes[start..][..(e.name_len + e.value_len) as usize].split_at(e.name_len as usize);
        Some((name, value))
    }

    /// The newest entry with this hash for which `same` holds.
    pub(super) fn position(&self, hash: u32, same: impl Fn(&[u8], &[u8]) -> bool) -> Option<usize> {
        (0..self.entries.len())
            .find(|&i| self.entries[i].hash == hash && self.entry(i).is_some_and(|(name, value)| same(name, value)))
    }

    /// Puts an entry in, evicting old ones. One that is larger than the table empties it.
    pub(super) fn add(&mut self, name: &[u8], value: &[u8], hash: u32) {
        let size = name.len() + value.len() + ENTRY_OVERHEAD;
        self.evict(size);
        if size > self.max {
            return;
        }
        let start = self.dropped + self.bytes.len() as u64;
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        let (name_len, value_len) = (name.len() as u32, value.len() as u32);
        self.entries.push_front(Entry { start, name_len, value_len, hash });
        self.size += size;
    }

    fn evict(&mut self, wanted: usize) {
        while self.size + wanted > self.max
            && let Some(e) = self.entries.pop_back()
        {
            self.size -= (e.name_len + e.value_len) as usize + ENTRY_OVERHEAD;
        }
        let first = self.entries.back().map_or(self.dropped + self.bytes.len() as u64, |e| e.start);
        let unused = (first - self.dropped) as usize;
        if unused > self.max.max(ENTRY_OVERHEAD) || unused == self.bytes.len() {
            self.bytes.drain(..unused);
            self.dropped = first;
        }
    }
}
