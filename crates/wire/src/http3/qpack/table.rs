//! The peer's dynamic table (RFC 9204 section 3.2): what it has sent once and names by a number afterwards.

use super::static_table::STATIC;
use crate::http2::hpack::{ENTRY_OVERHEAD, HpackError, huffman, integer};
use std::collections::VecDeque;

/// One entry: name and value in one piece.
#[derive(Debug)]
struct Entry {
    bytes: Box<[u8]>,
    name_len: usize,
}

/// The table, and the instruction that is on its way.
#[derive(Debug, Default)]
pub struct Table {
    entries: VecDeque<Entry>,
    size: usize,
    capacity: usize,
    /// What we told the peer its table may be.
    allowed: usize,
    /// No name and no value may be longer, in bytes.
    longest: usize,
    /// Entries that ever were in the table.
    inserted: u64,
    pending: Vec<u8>,
}

impl Table {
    /// A table whose peer may make it as large as `allowed` bytes.
    pub fn new(allowed: usize) -> Table {
        Table::with_longest(allowed, usize::MAX)
    }

    /// The same with names and values of at most `longest` bytes.
    pub fn with_longest(allowed: usize, longest: usize) -> Table {
        Table { allowed, longest, ..Table::default() }
    }

    /// How many entries have come.
    pub fn inserted(&self) -> u64 {
        self.inserted
    }

    /// Entries that fit at most (MaxEntries of section 4.5.1.1).
    pub(super) fn most(&self) -> u64 {
        (self.allowed / ENTRY_OVERHEAD) as u64
    }

    /// An entry by its absolute number: name and value.
    pub(super) fn entry(&self, number: u64) -> Result<(&[u8], &[u8]), HpackError> {
        let from_newest = self.inserted.checked_sub(number).filter(|n| *n > 0).ok_or(HpackError::BadIndex)?;
        let at = (self.entries.len() as u64).checked_sub(from_newest).ok_or(HpackError::BadIndex)?;
        let entry = &self.entries[at as usize];
        Ok(entry.bytes.split_at(entry.name_len))
    }

    /// Works on bytes of the peer's encoder stream (section 4.3).
    ///
    /// # Errors
    /// What came is no instruction, or one that the table does not allow. `FieldTooLarge`: it would, but for the longest string.
    pub fn instruct(&mut self, input: &[u8]) -> Result<(), HpackError> {
        let mut pending = std::mem::take(&mut self.pending);
        pending.extend_from_slice(input);
        let mut at = 0;
        while at < pending.len() {
            let start = at;
            match self.instruction(&pending, &mut at) {
                Ok(()) => {}
                Err(HpackError::Truncated) => {
                    at = start;
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        pending.drain(..at);
        self.pending = pending;
        Ok(())
    }

    fn instruction(&mut self, bytes: &[u8], at: &mut usize) -> Result<(), HpackError> {
        let first = bytes[*at];
        let mut entry = Vec::new();
        match first {
            0x80.. => {
                let index = integer::read(bytes, at, 6)?;
                match first & 0x40 {
                    0 => entry.extend_from_slice(self.relative(index)?.0),
                    _ => entry.extend_from_slice(STATIC.get(index).ok_or(HpackError::BadIndex)?.0.as_bytes()),
                }
                let name_len = entry.len();
                self.string(bytes, at, 7, &mut entry)?;
                self.insert(entry, name_len)
            }
            0x40.. => {
                self.string(bytes, at, 5, &mut entry)?;
                let name_len = entry.len();
                self.string(bytes, at, 7, &mut entry)?;
                self.insert(entry, name_len)
            }
            0x20.. => {
                let capacity = integer::read(bytes, at, 5)?;
                if capacity > self.allowed {
                    return Err(HpackError::BadTableSize);
                }
                self.capacity = capacity;
                self.shrink(0);
                Ok(())
            }
            _ => {
                let index = integer::read(bytes, at, 5)?;
                let (name, value) = self.relative(index)?;
                let name_len = name.len();
                entry.extend_from_slice(name);
                entry.extend_from_slice(value);
                self.insert(entry, name_len)
            }
        }
    }

    /// An entry counted from the newest.
    fn relative(&self, index: usize) -> Result<(&[u8], &[u8]), HpackError> {
        self.entry(self.inserted.checked_sub(index as u64 + 1).ok_or(HpackError::BadIndex)?)
    }

    /// No string is longer than the table, whatever else may be said of it.
    fn string(&self, bytes: &[u8], at: &mut usize, bits: u32, out: &mut Vec<u8>) -> Result<(), HpackError> {
        super::string(bytes, at, bits, self.capacity.min(self.longest), out).map_err(|e| match e {
            HpackError::FieldTooLarge if self.capacity <= self.longest => HpackError::BadTableSize,
            e => e,
        })
    }

    fn insert(&mut self, bytes: Vec<u8>, name_len: usize) -> Result<(), HpackError> {
        let size = bytes.len() + ENTRY_OVERHEAD;
        if size > self.capacity {
            return Err(HpackError::BadTableSize);
        }
        self.shrink(size);
        self.size += size;
        self.inserted += 1;
        self.entries.push_back(Entry { bytes: bytes.into(), name_len });
        Ok(())
    }

    /// Drops the oldest entries until `room` bytes are free.
    fn shrink(&mut self, room: usize) {
        while self.size + room > self.capacity
            && let Some(oldest) = self.entries.pop_front()
        {
            self.size -= oldest.bytes.len() + ENTRY_OVERHEAD;
        }
    }
}

/// Reads a string whose length has a prefix of `bits` bits, with the Huffman bit before it.
pub(super) fn string(
    bytes: &[u8],
    at: &mut usize,
    bits: u32,
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<(), HpackError> {
    let coded = bytes.get(*at).ok_or(HpackError::Truncated)? & (1 << bits) != 0;
    let len = integer::read(bytes, at, bits)?;
    if len > limit {
        return Err(HpackError::FieldTooLarge);
    }
    let text = bytes.get(*at..*at + len).ok_or(HpackError::Truncated)?;
    *at += len;
    if coded {
        huffman::decode(text, out)?;
    } else {
        out.extend_from_slice(text);
    }
    Ok(())
}
