//! Reads DER (ITU-T X.690): tag, length, value. Lengths are checked against what is there; depth is the caller's.

/// Tags.
pub mod tag {
    #![allow(missing_docs, reason = "the names are those of ASN.1")]
    pub const BOOLEAN: u8 = 0x01;
    pub const INTEGER: u8 = 0x02;
    pub const BIT_STRING: u8 = 0x03;
    pub const OCTET_STRING: u8 = 0x04;
    pub const OID: u8 = 0x06;
    pub const UTF8_STRING: u8 = 0x0c;
    pub const BMP_STRING: u8 = 0x1e;
    pub const UNIVERSAL_STRING: u8 = 0x1c;
    pub const UTC_TIME: u8 = 0x17;
    pub const GENERALIZED_TIME: u8 = 0x18;
    pub const ENUMERATED: u8 = 0x0a;
    pub const SEQUENCE: u8 = 0x30;
    pub const SET: u8 = 0x31;
    pub const CONTEXT_0: u8 = 0x80;
    pub const EXPLICIT_0: u8 = 0xa0;
}

/// What is no DER, or not what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadDer;

/// A place in DER.
#[derive(Clone, Copy, Debug)]
pub struct Der<'a> {
    rest: &'a [u8],
}

impl<'a> Der<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Der<'a> {
        Der { rest: bytes }
    }

    /// Whether all has been read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The tag of the next value.
    pub fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// The next value: its tag, its content, and all of its bytes.
    pub fn any(&mut self) -> Result<(u8, &'a [u8], &'a [u8]), BadDer> {
        let (&tag, after) = self.rest.split_first().ok_or(BadDer)?;
        let (&first, after) = after.split_first().ok_or(BadDer)?;
        let (len, after) = match first {
            ..=0x7f => (usize::from(first), after),
            0x81..=0x84 => {
                let n = usize::from(first & 0x7f);
                let digits = after.get(..n).ok_or(BadDer)?;
                let len = digits.iter().fold(0usize, |len, d| (len << 8) | usize::from(*d));
                (len, &after[n..])
            }
            _ => return Err(BadDer),
        };
        let content = after.get(..len).ok_or(BadDer)?;
        let head = self.rest.len() - after.len();
        let whole = &self.rest[..head + len];
        self.rest = &after[len..];
        Ok((tag, content, whole))
    }

    /// The content of the next value, which has this tag.
    pub fn expect(&mut self, tag: u8) -> Result<&'a [u8], BadDer> {
        match self.any()? {
            (t, content, _) if t == tag => Ok(content),
            _ => Err(BadDer),
        }
    }

    /// The content of the next value if it has this tag; otherwise nothing is read.
    pub fn optional(&mut self, tag: u8) -> Result<Option<&'a [u8]>, BadDer> {
        if self.peek() == Some(tag) { self.expect(tag).map(Some) } else { Ok(None) }
    }

    /// Into the next value, a sequence.
    pub fn sequence(&mut self) -> Result<Der<'a>, BadDer> {
        self.expect(tag::SEQUENCE).map(Der::new)
    }

    /// All bytes of the next value, a sequence.
    pub fn whole_sequence(&mut self) -> Result<&'a [u8], BadDer> {
        match self.any()? {
            (tag::SEQUENCE, _, whole) => Ok(whole),
            _ => Err(BadDer),
        }
    }

    /// The bytes of a bit string that has no unused bits.
    pub fn bit_string(&mut self) -> Result<&'a [u8], BadDer> {
        match self.expect(tag::BIT_STRING)?.split_first() {
            Some((0, bytes)) => Ok(bytes),
            _ => Err(BadDer),
        }
    }
}

/// A value with its head: tag, length, and the parts of its content one after the other.
pub fn write(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let len: usize = parts.iter().map(|p| p.len()).sum();
    let mut out = vec![tag];
    if len < 0x80 {
        out.push(len as u8);
    } else {
        let digits = (len as u64).to_be_bytes();
        let digits = &digits[digits.iter().position(|d| *d != 0).unwrap_or(digits.len())..];
        out.push(0x80 | digits.len() as u8);
        out.extend_from_slice(digits);
    }
    parts.iter().for_each(|p| out.extend_from_slice(p));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for len in [0, 1, 127, 128, 255, 256, 70_000] {
            let content = vec![7; len];
            let bytes = write(tag::OCTET_STRING, &[&content[..len / 2], &content[len / 2..]]);
            let mut der = Der::new(&bytes);
            assert_eq!(der.expect(tag::OCTET_STRING), Ok(&content[..]));
            assert!(der.is_empty());
        }
    }

    #[test]
    fn values_and_lengths() {
        let bytes = [0x30, 0x05, 0x02, 0x01, 0x07, 0x05, 0x00, 0x04, 0x81, 0x01, 0xff];
        let mut der = Der::new(&bytes);
        let mut inner = der.sequence().expect("a sequence");
        assert_eq!(inner.expect(tag::INTEGER), Ok(&[7][..]));
        assert_eq!(inner.optional(tag::INTEGER), Ok(None));
        assert_eq!(inner.expect(5), Ok(&[][..]));
        assert!(inner.is_empty());
        assert_eq!(der.expect(tag::OCTET_STRING), Ok(&[0xff][..]));
        assert!(der.is_empty() && der.any().is_err());
        for bad in [&[0x30][..], &[0x30, 0x80], &[0x30, 0x85, 0, 0, 0, 0, 1], &[0x30, 0x82, 1], &[0x30, 2, 1]] {
            assert!(Der::new(bad).any().is_err(), "{bad:?}");
        }
    }
}
