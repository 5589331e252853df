//! memcached's text protocol (doc/protocol.txt of memcached): the request for one value, and its answer taken apart as it comes. Any
//! bytes are read without harm; what a value is is not looked at.

use crate::http1::values::parse_content_length;
use std::fmt;

/// Longest key that memcached takes, bytes (`KEY_MAX_LENGTH`).
pub const MAX_KEY: usize = 250;
/// Longest line of an answer that is read: a key, its flags and a length.
const MAX_LINE: usize = MAX_KEY + 64;
/// What follows a value.
const TRAILER: &[u8] = b"\r\nEND\r\n";

/// Appends the request for a value. `key` is escaped already.
pub fn get(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"get ");
    out.extend_from_slice(key);
    out.extend_from_slice(b"\r\n");
}

/// What is wrong with an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerError {
    /// Its first line is none of those that answer `get`.
    Line(String),
    /// It is about another key.
    Key(String),
    /// Flags or length are no numbers.
    Number(&'static str, String),
    /// Something else than the end follows the value.
    Trailer,
}

impl fmt::Display for AnswerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnswerError::Line(line) => write!(f, "memcached sent invalid response: \"{line}\""),
            AnswerError::Key(line) => write!(f, "memcached sent invalid key in response \"{line}\""),
            AnswerError::Number(what, line) => write!(f, "memcached sent invalid {what} in response \"{line}\""),
            AnswerError::Trailer => f.write_str("memcached sent invalid trailer"),
        }
    }
}

/// What an answer begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// There is such a value.
    Value {
        /// As they were stored.
        flags: u32,
        /// Bytes of the value.
        len: u64,
    },
    /// There is none.
    NotFound,
}

/// Reads the first line of the answer to `get key`. None: it is not whole yet. Else what it says, and its length in bytes.
///
/// # Errors
/// The line is none that answers this request.
pub fn head(bytes: &[u8], key: &[u8]) -> Result<Option<(Head, usize)>, AnswerError> {
    let shown = |line: &[u8]| String::from_utf8_lossy(&line[..line.len().min(MAX_LINE)]).into_owned();
    let Some(end) = memchr::memchr(b'\n', &bytes[..bytes.len().min(MAX_LINE)]) else {
        return if bytes.len() >= MAX_LINE { Err(AnswerError::Line(shown(bytes))) } else { Ok(None) };
    };
    let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
    if line == b"END" {
        return Ok(Some((Head::NotFound, end + 1)));
    }
    let Some(rest) = line.strip_prefix(b"VALUE ") else { return Err(AnswerError::Line(shown(line))) };
    let Some(rest) = rest.strip_prefix(key).and_then(|r| r.strip_prefix(b" ")) else {
        return Err(AnswerError::Key(shown(line)));
    };
    let mut words = rest.split(|b| *b == b' ');
    let mut number = |what| {
        let number = words.next().and_then(parse_content_length);
        number.ok_or_else(|| AnswerError::Number(what, shown(line)))
    };
    let flags = u32::try_from(number("flags")?).map_err(|_| AnswerError::Number("flags", shown(line)))?;
    let len = number("length")?;
    Ok(Some((Head::Value { flags, len }, end + 1)))
}

/// How far an answer behind its first line was read.
#[derive(Debug)]
pub struct Value {
    left: u64,
    trailer: usize,
}

impl Value {
    /// For a value of so many bytes.
    pub fn new(len: u64) -> Value {
        Value { left: len, trailer: 0 }
    }

    /// Takes what came and appends what of it is the value's.
    ///
    /// # Errors
    /// Something else than the end follows the value.
    pub fn decode(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), AnswerError> {
        let (value, rest) = bytes.split_at(self.left.min(bytes.len() as u64) as usize);
        out.extend_from_slice(value);
        self.left -= value.len() as u64;
        let wanted = &TRAILER[self.trailer..];
        if !wanted.starts_with(rest) {
            return Err(AnswerError::Trailer);
        }
        self.trailer += rest.len();
        Ok(())
    }

    /// Whether the answer is over.
    pub fn has_ended(&self) -> bool {
        self.left == 0 && self.trailer == TRAILER.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        assert_eq!(head(b"VALUE /a 7 12\r\nxy", b"/a"), Ok(Some((Head::Value { flags: 7, len: 12 }, 15))));
        assert_eq!(head(b"END\r\n", b"/a"), Ok(Some((Head::NotFound, 5))));
        assert_eq!(head(b"VALUE /a 7 1", b"/a"), Ok(None));
        assert!(matches!(head(b"ERROR\r\n", b"/a"), Err(AnswerError::Line(_))));
        assert!(matches!(head(b"VALUE /ab 0 1\r\n", b"/a"), Err(AnswerError::Key(_))));
        assert!(matches!(head(b"VALUE /a x 1\r\n", b"/a"), Err(AnswerError::Number("flags", _))));
        assert!(matches!(head(b"VALUE /a 0 \r\n", b"/a"), Err(AnswerError::Number("length", _))));
        assert!(matches!(head(&[b'x'; MAX_LINE], b"/a"), Err(AnswerError::Line(_))));
    }

    #[test]
    fn a_value_comes_in_any_pieces() {
        let bytes = b"\r\n\0va\r\nEND\r\n";
        for cut in 0..bytes.len() {
            let (mut value, mut out) = (Value::new(5), Vec::new());
            value.decode(&bytes[..cut], &mut out).expect("it is right");
            assert!(!value.has_ended());
            value.decode(&bytes[cut..], &mut out).expect("it is right");
            assert!(value.has_ended());
            assert_eq!(out, b"\r\n\0va");
        }
        assert_eq!(Value::new(1).decode(b"a\r\nEND\r\nx", &mut Vec::new()), Err(AnswerError::Trailer));
        assert_eq!(Value::new(1).decode(b"abc", &mut Vec::new()), Err(AnswerError::Trailer));
    }
}
