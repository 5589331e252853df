//! Fields to header blocks (RFC 7541 section 6). What answers have in common is sent once and then named by its number.

use super::static_table::STATIC;
use super::table::Table;
use super::{DEFAULT_TABLE_SIZE, ENTRY_OVERHEAD, huffman, integer};
use crate::http2::saved::{Restored, Saved};

/// Our own table is at most this large, whatever the peer allows: the usual fields of some dozen different answers.
const TABLE_SIZE: usize = 2048;
/// Larger fields are not worth a place in the table.
const LARGEST_INDEXED: usize = TABLE_SIZE / 4;

/// Names that stand in the static table with another value or none.
const NAMED: &[(&[u8], u8)] = &[
    (b"accept-ranges", 18),
    (b"age", 21),
    (b"allow", 22),
    (b"cache-control", 24),
    (b"content-disposition", 25),
    (b"content-encoding", 26),
    (b"content-language", 27),
    (b"content-length", 28),
    (b"content-location", 29),
    (b"content-range", 30),
    (b"content-type", 31),
    (b"date", 33),
    (b"etag", 34),
    (b"expires", 36),
    (b"last-modified", 44),
    (b"link", 45),
    (b"location", 46),
    (b"refresh", 52),
    (b"retry-after", 53),
    (b"server", 54),
    (b"set-cookie", 55),
    (b"strict-transport-security", 56),
    (b"vary", 59),
    (b"via", 60),
    (b"www-authenticate", 61),
    // Of requests:
    (b":authority", 1),
    (b":path", 4),
    (b"accept", 19),
    (b"accept-encoding", 16),
    (b"accept-language", 17),
    (b"authorization", 23),
    (b"cookie", 32),
    (b"host", 38),
    (b"if-modified-since", 40),
    (b"if-none-match", 41),
    (b"range", 50),
    (b"referer", 51),
    (b"user-agent", 58),
];

/// Names whose values hardly come twice, or are nobody else's business: they would push the others out of the table.
const CHANGING: &[u8] = &[4, 21, 23, 28, 30, 34, 36, 40, 41, 44, 46, 50, 51, 55];

/// The encoding side of a connection.
#[derive(Debug)]
pub struct Encoder {
    table: Table,
    /// What the peer allows. A smaller table of ours need not be told: entries are counted from the newest.
    allowed: usize,
    /// The smallest size since the last block, and the size to be told: the peer has changed its mind.
    announce: Option<(usize, usize)>,
    name: Vec<u8>,
}

impl Default for Encoder {
    fn default() -> Encoder {
        Encoder { table: Table::new(TABLE_SIZE), allowed: DEFAULT_TABLE_SIZE, announce: None, name: Vec::new() }
    }
}

impl Encoder {
    pub(in crate::http2) fn save(&self, w: &mut Saved) {
        w.number(self.allowed as u64);
        w.number(self.announce.is_some().into());
        self.announce.iter().flat_map(|(smallest, size)| [*smallest, *size]).for_each(|size| w.number(size as u64));
        self.table.save(w);
    }

    pub(in crate::http2) fn restore(r: &mut Restored<'_>) -> Option<Encoder> {
        let allowed = r.at_most(u32::MAX as usize)?;
        let announce = match r.at_most(1)? {
            0 => None,
            _ => Some((r.at_most(TABLE_SIZE)?, r.at_most(TABLE_SIZE)?)),
        };
        Some(Encoder { allowed, announce, table: Table::restore(r, TABLE_SIZE)?, name: Vec::new() })
    }

    /// The peer allows a table of `size` bytes (SETTINGS_HEADER_TABLE_SIZE).
    pub fn allow(&mut self, size: usize) {
        if size == self.allowed {
            return;
        }
        self.allowed = size;
        let size = size.min(TABLE_SIZE);
        let smallest = self.announce.map_or(size, |(smallest, _)| smallest.min(size));
        self.announce = Some((smallest, size));
        self.table.resize(size);
    }

    /// Begins a block: tells a changed table size.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        let Some((smallest, size)) = self.announce.take() else { return };
        if smallest < size {
            integer::write(smallest, 5, 0x20, out);
        }
        integer::write(size, 5, 0x20, out);
    }

    /// Writes `:status`.
    pub fn status(&mut self, status: u16, out: &mut Vec<u8>) {
        let known = match status {
            200 => 8,
            204 => 9,
            206 => 10,
            304 => 11,
            400 => 12,
            404 => 13,
            500 => 14,
            _ => {
                let digits = [100, 10, 1].map(|unit| b'0' + (status / unit % 10) as u8);
                return self.indexed_literal(8, b":status", &digits, out);
            }
        };
        out.push(0x80 | known);
    }

    /// Writes a field; upper case in its name becomes lower case (RFC 9113 section 8.2.1).
    pub fn field(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let mut lower = std::mem::take(&mut self.name);
        lower.clear();
        lower.extend(name.iter().map(u8::to_ascii_lowercase));
        let known = NAMED.iter().find(|(n, _)| *n == lower).map_or(0, |n| n.1);
        let size = lower.len() + value.len() + ENTRY_OVERHEAD;
        if CHANGING.contains(&known) {
            literal(0, 4, known, &lower, out);
            string(value, out);
        } else if size > LARGEST_INDEXED.min(self.table.max()) {
            literal(0, 4, known, &lower, out);
            coded_string(value, out);
        } else if let Some(index) = whole_static(known, &lower, value) {
            out.push(0x80 | index);
        } else {
            self.indexed_literal(known, &lower, value, out);
        }
        self.name = lower;
    }

    /// By its number if it stands in the table; else it is sent and put there.
    fn indexed_literal(&mut self, known: u8, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let hash = hash(name, value);
        if let Some(index) = self.table.position(hash, |n, v| v == value && n == name) {
            integer::write(STATIC.len() + 1 + index, 7, 0x80, out);
            return;
        }
        literal(0x40, 6, known, name, out);
        coded_string(value, out);
        self.table.add(name, value, hash);
    }
}

/// The few fields of the static table that answers and requests have with their value.
fn whole_static(known: u8, name: &[u8], value: &[u8]) -> Option<u8> {
    match (known, name, value) {
        (16, _, b"gzip, deflate") => Some(16),
        (4, _, b"/") => Some(4),
        (0, b":method", b"GET") => Some(2),
        (0, b":method", b"POST") => Some(3),
        (0, b":scheme", b"http") => Some(6),
        (0, b":scheme", b"https") => Some(7),
        _ => None,
    }
}

fn literal(pattern: u8, bits: u32, known: u8, name: &[u8], out: &mut Vec<u8>) {
    integer::write(usize::from(known), bits, pattern, out);
    if known == 0 {
        coded_string(name, out);
    }
}

/// A string as it is: for what is sent once, the copy is cheaper than the code.
fn string(text: &[u8], out: &mut Vec<u8>) {
    integer::write(text.len(), 7, 0, out);
    out.extend_from_slice(text);
}

/// A string in Huffman code where that is shorter.
fn coded_string(text: &[u8], out: &mut Vec<u8>) {
    let coded = huffman::encoded_len(text);
    if coded >= text.len() {
        return string(text, out);
    }
    integer::write(coded, 7, 0x80, out);
    huffman::encode(text, out);
}

/// Tells fields apart quickly: their lengths and some of their bytes.
fn hash(name: &[u8], value: &[u8]) -> u32 {
    let tail = |text: &[u8]| text.iter().rev().take(8).fold(0u64, |sum, &byte| sum << 8 | u64::from(byte));
    let mixed = (tail(value) ^ (tail(name) << 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32 ^ (name.len() << 16 | value.len() & 0xffff) as u32
}
