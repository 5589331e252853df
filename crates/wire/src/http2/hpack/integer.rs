//! Integers with a prefix (RFC 7541 section 5.1).

use super::HpackError;

/// Bytes after the prefix at most: as many as nginx takes, good for 2^21.
const MAX_EXTENSION: usize = 3;

/// Reads an integer whose first byte is at `at`, with a prefix of `bits` bits.
pub(crate) fn read(block: &[u8], at: &mut usize, bits: u32) -> Result<usize, HpackError> {
    let mask = (1usize << bits) - 1;
    let first = *block.get(*at).ok_or(HpackError::Truncated)?;
    *at += 1;
    let mut value = usize::from(first) & mask;
    if value < mask {
        return Ok(value);
    }
    for i in 0..MAX_EXTENSION {
        let byte = *block.get(*at).ok_or(HpackError::Truncated)?;
        *at += 1;
        value += usize::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(HpackError::TooLong)
}

/// Writes an integer; `pattern` holds the bits above the prefix.
pub(crate) fn write(value: usize, bits: u32, pattern: u8, out: &mut Vec<u8>) {
    let mask = (1usize << bits) - 1;
    if value < mask {
        out.push(pattern | value as u8);
        return;
    }
    out.push(pattern | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(0x80 | (rest & 0x7f) as u8);
        rest >>= 7;
    }
    out.push(rest as u8);
}
