//! Field sections to fields (RFC 9204 section 4.5).

use super::static_table::STATIC;
use crate::http2::hpack::decoder::Limits;
use crate::http2::hpack::{Field, HeaderBlock, HpackError, huffman, integer};
use crate::span::Span;

/// Decodes a whole section; the fields are appended to `out`.
///
/// # Errors
/// See [`HpackError`]. `BadIndex` stands for references to a dynamic table too: there is none.
pub fn decode(section: &[u8], limits: Limits, out: &mut HeaderBlock) -> Result<(), HpackError> {
    let mut at = 0;
    let mut left = limits.block;
    // Required Insert Count and Base (section 4.5.1): without a table the first is zero, and then the other says nothing.
    if integer::read(section, &mut at, 8)? != 0 {
        return Err(HpackError::BadIndex);
    }
    integer::read(section, &mut at, 7)?;
    while let Some(&first) = section.get(at) {
        let start = out.bytes.len();
        let middle = match first {
            0x80.. => {
                let (name, value) = static_entry(section, &mut at, 6, first & 0x40 != 0)?;
                out.bytes.extend_from_slice(name.as_bytes());
                let middle = out.bytes.len();
                out.bytes.extend_from_slice(value.as_bytes());
                middle
            }
            0x40.. => {
                let (name, _) = static_entry(section, &mut at, 4, first & 0x10 != 0)?;
                out.bytes.extend_from_slice(name.as_bytes());
                let middle = out.bytes.len();
                string(section, &mut at, 7, limits.field, &mut out.bytes)?;
                middle
            }
            0x20.. => {
                string(section, &mut at, 3, limits.field, &mut out.bytes)?;
                let middle = out.bytes.len();
                if middle == start {
                    return Err(HpackError::EmptyName);
                }
                string(section, &mut at, 7, limits.field, &mut out.bytes)?;
                middle
            }
            _ => return Err(HpackError::BadIndex),
        };
        out.fields.push(Field { name: Span::new(start, middle), value: Span::new(middle, out.bytes.len()) });
        left = left.checked_sub(out.bytes.len() - start).ok_or(HpackError::BlockTooLarge)?;
    }
    Ok(())
}

fn static_entry(
    section: &[u8],
    at: &mut usize,
    bits: u32,
    is_static: bool,
) -> Result<(&'static str, &'static str), HpackError> {
    let index = integer::read(section, at, bits)?;
    STATIC.get(index).copied().filter(|_| is_static).ok_or(HpackError::BadIndex)
}

/// Reads a string whose length has a prefix of `bits` bits, with the Huffman bit before it.
fn string(section: &[u8], at: &mut usize, bits: u32, limit: usize, out: &mut Vec<u8>) -> Result<(), HpackError> {
    let coded = section.get(*at).ok_or(HpackError::Truncated)? & (1 << bits) != 0;
    let len = integer::read(section, at, bits)?;
    if len > limit {
        return Err(HpackError::FieldTooLarge);
    }
    let bytes = section.get(*at..*at + len).ok_or(HpackError::Truncated)?;
    *at += len;
    if coded {
        huffman::decode(bytes, out)?;
    } else {
        out.extend_from_slice(bytes);
    }
    Ok(())
}
