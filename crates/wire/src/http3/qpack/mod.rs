//! Field compression (RFC 9204). The client may use a dynamic table; we answer with the static one alone: nothing of an
//! answer is kept, and no answer waits for another's. What that costs is in docs/decisions/0011-http3.md.

pub mod decoder;
pub mod encoder;
pub mod static_table;
pub mod table;

use crate::http2::hpack::integer;
use table::string;

/// Writes to the client's encoder: the fields of a stream were read (RFC 9204 section 4.4.1).
pub fn acknowledge(stream: u64, out: &mut Vec<u8>) {
    integer::write(stream as usize, 7, 0x80, out);
}

/// The same: a stream is given up, its fields may not have been read (section 4.4.2).
pub fn cancel(stream: u64, out: &mut Vec<u8>) {
    integer::write(stream as usize, 6, 0x40, out);
}

/// The same: so many more entries of the table have come (section 4.4.3).
pub fn increment(entries: u64, out: &mut Vec<u8>) {
    integer::write(entries as usize, 6, 0, out);
}

#[cfg(test)]
mod tests;
