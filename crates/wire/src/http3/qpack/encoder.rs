//! Fields to field sections (RFC 9204 section 4.5), with the static table alone: nothing is kept between two sections.

use super::static_table::STATIC;
use crate::http2::hpack::{huffman, integer};

/// Begins a section: no entry of a dynamic table is needed.
pub fn begin(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0]);
}

/// Writes `:status`.
pub fn status(status: u16, out: &mut Vec<u8>) {
    let digits = [100, 10, 1].map(|unit| b'0' + (status / unit % 10) as u8);
    encode(b":status", &digits, out);
}

/// Writes a field; upper case in its name becomes lower case (RFC 9114 section 4.2).
pub fn field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    if name.iter().any(u8::is_ascii_uppercase) {
        return encode(&name.to_ascii_lowercase(), value, out);
    }
    encode(name, value, out);
}

fn encode(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    match find(name, value) {
        TableMatch::Whole(index) => integer::write(index, 6, 0xc0, out),
        TableMatch::Name(index) => {
            integer::write(index, 4, 0x50, out);
            string(value, 7, 0, out);
        }
        TableMatch::Nothing => {
            string(name, 3, 0x20, out);
            string(value, 7, 0, out);
        }
    }
}

enum TableMatch {
    Whole(usize),
    Name(usize),
    Nothing,
}

/// Entries of the static table by their names: the first of each bucket, and of each the next in its bucket. [`NONE`] ends a row.
struct ByName {
    first: [u8; BUCKETS],
    next: [u8; STATIC.len()],
}

const BUCKETS: usize = 128;
const NONE: u8 = u8::MAX;
static BY_NAME: ByName = by_name();

const fn bucket(name: &[u8]) -> usize {
    let (first, last) = (name[0] as usize, name[name.len() - 1] as usize);
    (name.len() * 9 + first + last * 5) % BUCKETS
}

const fn by_name() -> ByName {
    let mut table = ByName { first: [NONE; BUCKETS], next: [NONE; STATIC.len()] };
    let mut index = STATIC.len();
    while index > 0 {
        index -= 1;
        let bucket = bucket(STATIC[index].0.as_bytes());
        table.next[index] = table.first[bucket];
        table.first[bucket] = index as u8;
    }
    table
}

fn find(name: &[u8], value: &[u8]) -> TableMatch {
    let mut known = None;
    let mut at = if name.is_empty() { NONE } else { BY_NAME.first[bucket(name)] };
    while at != NONE {
        let index = usize::from(at);
        let (n, v) = STATIC[index];
        if n.as_bytes() == name {
            if v.as_bytes() == value {
                return TableMatch::Whole(index);
            }
            known = known.or(Some(index));
        }
        at = BY_NAME.next[index];
    }
    known.map_or(TableMatch::Nothing, TableMatch::Name)
}

/// Writes a string, in Huffman code where that is shorter.
fn string(text: &[u8], bits: u32, pattern: u8, out: &mut Vec<u8>) {
    let coded = huffman::encoded_len(text);
    if coded < text.len() {
        integer::write(coded, bits, pattern | 1 << bits, out);
        huffman::encode(text, out);
    } else {
        integer::write(text.len(), bits, pattern, out);
        out.extend_from_slice(text);
    }
}
