//! Field sections to fields (RFC 9204 section 4.5).

use super::static_table::STATIC;
use super::string;
use super::table::Table;
use crate::http2::hpack::decoder::Limits;
use crate::http2::hpack::{HeaderBlock, HpackError, integer};

/// What a section came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// Its fields are there.
    Whole {
        /// The table was needed, which its peer wants to know.
        referring: bool,
    },
    /// Entries of the table are missing that are on their way: try again when they have come.
    Blocked,
}

/// Decodes a whole section; the fields are appended to `out`.
///
/// # Errors
/// See [`HpackError`].
pub fn decode(section: &[u8], limits: Limits, table: &Table, out: &mut HeaderBlock) -> Result<Decoded, HpackError> {
    let mut at = 0;
    let mut left = limits.block;
    let required = required(integer::read(section, &mut at, 8)? as u64, table)?;
    let negative = section.get(at).ok_or(HpackError::Truncated)? & 0x80 != 0;
    let delta = integer::read(section, &mut at, 7)? as u64;
    let base = match negative {
        false => required + delta,
        true => required.checked_sub(delta + 1).ok_or(HpackError::BadIndex)?,
    };
    if required > table.inserted() {
        return Ok(Decoded::Blocked);
    }
    let entries = Entries { table, required, base };
    while let Some(&first) = section.get(at) {
        let start = out.bytes.len();
        let middle = match first {
            0x80.. => {
                let index = integer::read(section, &mut at, 6)?;
                entries.copy(index, first & 0x40 != 0, true, &mut out.bytes)?
            }
            0x40.. => {
                let index = integer::read(section, &mut at, 4)?;
                let middle = entries.copy(index, first & 0x10 != 0, false, &mut out.bytes)?;
                string(section, &mut at, 7, limits.field, &mut out.bytes)?;
                middle
            }
            0x20.. => {
                string(section, &mut at, 3, limits.field, &mut out.bytes)?;
                let middle = out.bytes.len();
                string(section, &mut at, 7, limits.field, &mut out.bytes)?;
                middle
            }
            0x10.. => {
                let index = integer::read(section, &mut at, 4)?;
                entries.copy_later(index, true, &mut out.bytes)?
            }
            _ => {
                let index = integer::read(section, &mut at, 3)?;
                let middle = entries.copy_later(index, false, &mut out.bytes)?;
                string(section, &mut at, 7, limits.field, &mut out.bytes)?;
                middle
            }
        };
        out.close_field(start, middle);
        left = left.checked_sub(out.bytes.len() - start).ok_or(HpackError::BlockTooLarge)?;
    }
    Ok(Decoded::Whole { referring: required > 0 })
}

/// How many entries a section needs (section 4.5.1.1): sent modulo twice what the table can hold.
fn required(encoded: u64, table: &Table) -> Result<u64, HpackError> {
    if encoded == 0 {
        return Ok(0);
    }
    let range = 2 * table.most();
    if encoded > range {
        return Err(HpackError::BadIndex);
    }
    let largest = table.inserted() + table.most();
    let value = largest / range * range + encoded - 1;
    let value = if value > largest { value.checked_sub(range).ok_or(HpackError::BadIndex)? } else { value };
    (value > 0).then_some(value).ok_or(HpackError::BadIndex)
}

/// The tables as one section may use them.
struct Entries<'t> {
    table: &'t Table,
    required: u64,
    base: u64,
}

impl Entries<'_> {
    /// Copies an entry before the base, or one of the static table. Gives where its name ends.
    fn copy(&self, index: usize, is_static: bool, value: bool, out: &mut Vec<u8>) -> Result<usize, HpackError> {
        if is_static {
            let (n, v) = STATIC.get(index).ok_or(HpackError::BadIndex)?;
            return Ok(put((n.as_bytes(), v.as_bytes()), value, out));
        }
        self.copy_number(self.base.checked_sub(index as u64 + 1), value, out)
    }

    /// The same for one that came after the base.
    fn copy_later(&self, index: usize, value: bool, out: &mut Vec<u8>) -> Result<usize, HpackError> {
        self.copy_number(self.base.checked_add(index as u64), value, out)
    }

    fn copy_number(&self, number: Option<u64>, value: bool, out: &mut Vec<u8>) -> Result<usize, HpackError> {
        let number = number.filter(|n| *n < self.required).ok_or(HpackError::BadIndex)?;
        Ok(put(self.table.entry(number)?, value, out))
    }
}

fn put((name, value): (&[u8], &[u8]), with_value: bool, out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(name);
    let middle = out.len();
    if with_value {
        out.extend_from_slice(value);
    }
    middle
}
