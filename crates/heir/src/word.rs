//! Numbers and texts, written one after the other and read within bounds.

/// Writes what a [`Reader`] reads.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Begins with a byte of the caller's.
    pub fn begin(first: &[u8]) -> Writer {
        Writer { bytes: first.to_vec() }
    }

    /// The same, with room for so many bytes.
    pub fn with_room(first: &[u8], room: usize) -> Writer {
        let mut bytes = Vec::with_capacity(room);
        bytes.extend_from_slice(first);
        Writer { bytes }
    }

    /// A number: seven bits a byte, the lowest first.
    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    /// A number that may be negative: a small one is short either way.
    pub fn signed(&mut self, number: i64) {
        self.number((number << 1 ^ number >> 63) as u64);
    }

    /// Yes or no.
    pub fn flag(&mut self, flag: bool) {
        self.bytes.push(u8::from(flag));
    }

    /// Bytes with their length.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// A number that there may be none of.
    pub fn optional(&mut self, number: Option<i64>) {
        self.flag(number.is_some());
        number.into_iter().for_each(|number| self.signed(number));
    }

    /// Bytes that there may be none of.
    pub fn optional_bytes(&mut self, bytes: Option<&[u8]>) {
        self.flag(bytes.is_some());
        bytes.into_iter().for_each(|bytes| self.bytes(bytes));
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What was written.
    pub fn done(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads what a [`Writer`] wrote; none where it did not.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'b> {
    bytes: &'b [u8],
}

impl<'b> Reader<'b> {
    /// Of bytes from elsewhere.
    pub fn new(bytes: &'b [u8]) -> Reader<'b> {
        Reader { bytes }
    }

    /// What was not read yet.
    pub fn rest(&self) -> &'b [u8] {
        self.bytes
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*byte)
    }

    /// See [`Writer::number`].
    pub fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// See [`Writer::signed`].
    pub fn signed(&mut self) -> Option<i64> {
        self.number().map(|n| (n >> 1) as i64 ^ -((n & 1) as i64))
    }

    /// See [`Writer::flag`].
    pub fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// See [`Writer::bytes`].
    pub fn bytes(&mut self) -> Option<&'b [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (taken, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        Some(taken)
    }

    /// See [`Writer::optional`].
    pub fn optional(&mut self) -> Option<Option<i64>> {
        if self.flag()? { self.signed().map(Some) } else { Some(None) }
    }

    /// See [`Writer::optional_bytes`].
    pub fn optional_bytes(&mut self) -> Option<Option<&'b [u8]>> {
        if self.flag()? { self.bytes().map(Some) } else { Some(None) }
    }

    /// As many as were written, at most `most`, each by `read`.
    pub fn list<T>(&mut self, most: usize, mut read: impl FnMut(&mut Reader<'b>) -> Option<T>) -> Option<Vec<T>> {
        let count = usize::try_from(self.number()?).ok().filter(|count| *count <= most)?;
        // Each takes a byte at least, so that a number alone reserves nothing.
        let mut all = Vec::with_capacity(count.min(self.bytes.len()));
        for _ in 0..count {
            all.push(read(self)?);
        }
        Some(all)
    }

    /// Whether all was read.
    pub fn is_done(&self) -> bool {
        self.bytes.is_empty()
    }
}
