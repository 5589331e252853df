//! The Huffman code of RFC 7541 appendix B. It is canonical, so the lengths of the codes are all there is to know:
//! the tables are made of them when this is compiled.

use super::HpackError;

/// The length in bits of each byte's code.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// The longest code in bits.
const LONGEST: usize = 30;
/// Codes of up to so many bits are found by one look into a table: all of letters, digits and most of punctuation.
const QUICK: u32 = 10;

/// Code and length of each byte.
static CODES: [(u32, u8); 256] = codes();
/// Byte and length for each sequence of [`QUICK`] bits; length 0 where the code is longer.
static QUICK_TABLE: [(u8, u8); 1 << QUICK] = quick_table();
/// All bytes by length and value, the order of their codes.
static ORDER: [u8; 256] = order();
/// For each length the first code, and where its byte stands in [`ORDER`].
static FIRST: [(u32, u16); LONGEST + 2] = first();

const fn order() -> [u8; 256] {
    let mut order = [0; 256];
    let (mut at, mut length) = (0, 1);
    while length <= LONGEST {
        let mut byte = 0;
        while byte < 256 {
            if LENGTHS[byte] as usize == length {
                order[at] = byte as u8;
                at += 1;
            }
            byte += 1;
        }
        length += 1;
    }
    assert!(at == 256, "every byte has a code");
    order
}

const fn first() -> [(u32, u16); LONGEST + 2] {
    let mut first = [(0, 0); LONGEST + 2];
    let (mut code, mut index, mut length) = (0u32, 0u16, 1);
    while length <= LONGEST {
        code <<= 1;
        first[length] = (code, index);
        let mut byte = 0;
        while byte < 256 {
            if LENGTHS[byte] as usize == length {
                code += 1;
                index += 1;
            }
            byte += 1;
        }
        length += 1;
    }
    // The one code left is the end of the string.
    assert!(code == (1 << LONGEST) - 1, "the code is complete");
    first[LONGEST + 1] = (u32::MAX, index);
    first
}

const fn codes() -> [(u32, u8); 256] {
    let (order, first) = (order(), first());
    let mut codes = [(0, 0); 256];
    let mut at = 0;
    while at < 256 {
        let byte = order[at];
        let length = LENGTHS[byte as usize];
        let (code, index) = first[length as usize];
        codes[byte as usize] = (code + at as u32 - index as u32, length);
        at += 1;
    }
    codes
}

const fn quick_table() -> [(u8, u8); 1 << QUICK] {
    let codes = codes();
    let mut table = [(0, 0); 1 << QUICK];
    let mut byte = 0;
    while byte < 256 {
        let (code, length) = codes[byte];
        if length as u32 <= QUICK {
            let spare = QUICK - length as u32;
            let mut tail = 0;
            while tail < 1 << spare {
                table[((code << spare) | tail) as usize] = (byte as u8, length);
                tail += 1;
            }
        }
        byte += 1;
    }
    table
}

/// Decodes `coded` and appends the bytes to `out`, which grows by at most 8/5 of its length.
///
/// # Errors
/// The code for the end of the string, padding of more than a byte or of other bits than ones.
pub fn decode(coded: &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    out.reserve(coded.len() * 8 / 5);
    // The next bits of the code, left-aligned; below them ones, which are a prefix of no byte's code but padding.
    let (mut bits, mut count) = (0u64, 0u32);
    let mut rest = coded;
    loop {
        while count <= 56 {
            let Some((&byte, tail)) = rest.split_first() else { break };
            bits |= u64::from(byte) << (56 - count);
            count += 8;
            rest = tail;
        }
        if count == 0 {
            return Ok(());
        }
        let (byte, length) = QUICK_TABLE[(bits >> (64 - QUICK)) as usize];
        let (byte, length) = if length > 0 && u32::from(length) <= count {
            (byte, u32::from(length))
        } else {
            match long(bits, count) {
                Some(found) => found,
                None => return padding(bits, count, rest),
            }
        };
        out.push(byte);
        bits <<= length;
        count -= length;
    }
}

/// A code by its length, for those that the quick table has not.
#[cold]
fn long(bits: u64, count: u32) -> Option<(u8, u32)> {
    for length in 5..=(LONGEST as u32).min(count) {
        let code = (bits >> (64 - length)) as u32;
        let (first, index) = FIRST[length as usize];
        let codes = FIRST[length as usize + 1].1 - index;
        if code >= first && code - first < u32::from(codes) {
            return Some((ORDER[(index as u32 + code - first) as usize], length));
        }
    }
    None
}

/// What is no code at the end has to be ones: less than a byte by RFC 7541 section 5.2; nginx lets a whole byte pass, and
/// there are encoders that write one.
fn padding(bits: u64, count: u32, rest: &[u8]) -> Result<(), HpackError> {
    let ones = rest.is_empty() && count <= 8 && bits >> (64 - count) == (1 << count) - 1;
    if ones { Ok(()) } else { Err(HpackError::BadHuffman) }
}

/// Length in bytes of `text` once it is coded.
pub fn encoded_len(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|&byte| usize::from(LENGTHS[usize::from(byte)])).sum();
    bits.div_ceil(8)
}

/// Appends `text`, coded.
pub fn encode(text: &[u8], out: &mut Vec<u8>) {
    let (mut bits, mut count) = (0u64, 0u32);
    for &byte in text {
        let (code, length) = CODES[usize::from(byte)];
        bits = bits << length | u64::from(code);
        count += u32::from(length);
        while count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    if count > 0 {
        out.push((bits << (8 - count)) as u8 | (0xff >> count));
    }
}
