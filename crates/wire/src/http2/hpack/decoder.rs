//! Header blocks to fields (RFC 7541 section 3).

use super::static_table::STATIC;
use super::table::Table;
use super::{DEFAULT_TABLE_SIZE, HeaderBlock, HpackError, huffman, integer};
use crate::http2::saved::{Restored, Saved};

/// What a block may be at most, in bytes; both without the overhead of entries, as nginx counts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// One string, as it is sent.
    pub field: usize,
    /// All names and values, decoded.
    pub block: usize,
}

/// The decoding side of a connection.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// What we told the peer its table may be.
    allowed: usize,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new(DEFAULT_TABLE_SIZE)
    }
}

impl Decoder {
    /// A decoder whose peer may use a table of `size` bytes.
    pub fn new(size: usize) -> Decoder {
        Decoder { table: Table::new(size), allowed: size }
    }

    pub(in crate::http2) fn save(&self, w: &mut Saved) {
        w.number(self.allowed as u64);
        self.table.save(w);
    }

    pub(in crate::http2) fn restore(r: &mut Restored<'_>) -> Option<Decoder> {
        let allowed = r.at_most(DEFAULT_TABLE_SIZE)?;
        Some(Decoder { allowed, table: Table::restore(r, allowed)? })
    }

    /// Decodes a whole block; the fields are appended to `out`.
    ///
    /// # Errors
    /// See [`HpackError`]; the decoder is of no use afterwards.
    pub fn decode(&mut self, block: &[u8], limits: Limits, out: &mut HeaderBlock) -> Result<(), HpackError> {
        let mut at = 0;
        let mut left = limits.block;
        let mut begun = false;
        while let Some(&first) = block.get(at) {
            let before = out.bytes.len();
            if first & 0x80 != 0 {
                let index = integer::read(block, &mut at, 7)?;
                let name_len = self.copy(index, true, &mut out.bytes)?;
                out.close_field(before, before + name_len);
            } else if first & 0x40 != 0 {
                let name_len = self.literal(block, &mut at, 6, limits.field, &mut out.bytes)?;
                let (name, value) = out.bytes[before..].split_at(name_len);
                self.table.add(name, value, 0);
                out.close_field(before, before + name_len);
            } else if first & 0x20 != 0 {
                let size = integer::read(block, &mut at, 5)?;
                if size > self.allowed || begun {
                    return Err(HpackError::BadTableSize);
                }
                self.table.resize(size);
                continue;
            } else {
                let name_len = self.literal(block, &mut at, 4, limits.field, &mut out.bytes)?;
                out.close_field(before, before + name_len);
            }
            begun = true;
            left = left.checked_sub(out.bytes.len() - before).ok_or(HpackError::BlockTooLarge)?;
        }
        Ok(())
    }

    /// A literal: its name from a table or from the block, then its value. Gives the length of the name.
    fn literal(
        &self,
        block: &[u8],
        at: &mut usize,
        bits: u32,
        limit: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, HpackError> {
        let index = integer::read(block, at, bits)?;
        let name_len = match index {
            0 => string(block, at, limit, out)?,
            index => self.copy(index, false, out)?,
        };
        string(block, at, limit, out)?;
        Ok(name_len)
    }

    /// Copies an entry of the tables. Gives the length of its name.
    fn copy(&self, index: usize, with_value: bool, out: &mut Vec<u8>) -> Result<usize, HpackError> {
        let (name, value) = match index.checked_sub(1).ok_or(HpackError::BadIndex)? {
            i if i < STATIC.len() => (STATIC[i].0.as_bytes(), STATIC[i].1.as_bytes()),
            i => self.table.entry(i - STATIC.len()).ok_or(HpackError::BadIndex)?,
        };
        out.extend_from_slice(name);
        if with_value {
            out.extend_from_slice(value);
        }
        Ok(name.len())
    }
}

/// Reads a string (RFC 7541 section 5.2). Gives its decoded length.
fn string(block: &[u8], at: &mut usize, limit: usize, out: &mut Vec<u8>) -> Result<usize, HpackError> {
    let coded = block.get(*at).ok_or(HpackError::Truncated)? & 0x80 != 0;
    let len = integer::read(block, at, 7)?;
    if len > limit {
        return Err(HpackError::FieldTooLarge);
    }
    let bytes = block.get(*at..*at + len).ok_or(HpackError::Truncated)?;
    *at += len;
    let before = out.len();
    if coded {
        huffman::decode(bytes, out)?;
    } else {
        out.extend_from_slice(bytes);
    }
    Ok(out.len() - before)
}
