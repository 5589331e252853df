//! Header compression (RFC 7541): both directions of the way between header fields and bytes.
//! Bounded by the sizes of its tables and by the limits that [`decoder::Decoder::decode`] is given.

pub mod decoder;
pub mod encoder;
pub mod huffman;
pub(crate) mod integer;
pub mod static_table;
mod table;

use crate::span::Span;

/// What an entry of a dynamic table costs beside its bytes (RFC 7541 section 4.1).
pub const ENTRY_OVERHEAD: usize = 32;
/// The table size both sides start with (RFC 9113 section 6.5.2).
pub const DEFAULT_TABLE_SIZE: usize = 4096;

/// One header field. Both spans point into the block's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name.
    pub name: Span,
    /// The value.
    pub value: Span,
}

/// Decoded header fields. Use it again: it keeps its memory.
#[derive(Clone, Debug, Default)]
pub struct HeaderBlock {
    /// Names and values.
    pub bytes: Vec<u8>,
    /// The fields in order.
    pub fields: Vec<Field>,
    /// There was a field without a name, which is none of them: the message is malformed (RFC 9113 section 8.2.1), but it can
    /// be decoded, so its connection goes on.
    pub nameless: bool,
}

impl HeaderBlock {
    /// Empties it.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.fields.clear();
        self.nameless = false;
    }

    /// Takes what was appended to the bytes from `start` on as a field whose name ends at `middle`.
    pub(crate) fn close_field(&mut self, start: usize, middle: usize) {
        if start == middle {
            self.bytes.truncate(start);
            self.nameless = true;
            return;
        }
        self.fields.push(Field { name: Span::new(start, middle), value: Span::new(middle, self.bytes.len()) });
    }

    /// Names and values as slices.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|f| (f.name.of(&self.bytes), f.value.of(&self.bytes)))
    }
}

/// Why a block cannot be decoded. All but the limits make the tables of both sides differ, so the connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HpackError {
    /// The block ends within a field.
    Truncated,
    /// An integer of more than four bytes, or too large for what it is.
    TooLong,
    /// No such entry in the tables.
    BadIndex,
    /// A string that is no Huffman code.
    BadHuffman,
    /// A table size above what was allowed, or one after the first field; in HTTP/3 also an entry that the table cannot hold.
    BadTableSize,
    /// One string is longer than allowed.
    FieldTooLarge,
    /// The fields together are longer than allowed.
    BlockTooLarge,
}

#[cfg(test)]
mod tests;
