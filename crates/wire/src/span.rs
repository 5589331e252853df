//! A piece of a buffer, kept as offsets: it survives the buffer being moved or grown, which a slice does not.

/// The bytes `start..end` of some buffer. Half the size of a slice, `Copy`, and free of lifetimes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

/// The largest buffer that spans can address, in bytes. Heads are limited to some kilobytes long before this.
pub const MAX_BUFFER: usize = u32::MAX as usize;

impl Span {
    /// The span `start..end`. Both must be at most [`MAX_BUFFER`]; larger offsets are cut.
    #[inline]
    pub fn new(start: usize, end: usize) -> Self {
        debug_assert!(start <= end && end <= MAX_BUFFER);
        Self { start: start as u32, end: end as u32 }
    }

    /// The bytes of `buf` the span names.
    ///
    /// # Panics
    /// If the span was made for another, longer buffer.
    #[inline]
    pub fn of(self, buf: &[u8]) -> &[u8] {
        &buf[self.start as usize..self.end as usize]
    }

    /// Length in bytes.
    #[inline]
    pub fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether the span names no byte.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The span as a range, to index with.
    #[inline]
    pub fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}
