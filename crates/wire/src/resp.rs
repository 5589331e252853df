//! What Redis says and is told: RESP3 (its specification is `redis/docs`, "Redis serialization protocol"). Replies are read from a buffer
//! when they are whole; nothing of them is copied.

/// Replies in replies.
pub const MAX_DEPTH: usize = 8;
/// Parts of one reply: more than a channel keeps messages that are asked for at once.
pub const MAX_PARTS: usize = 1 << 16;
/// Bytes of one text; Redis itself takes 512 MB.
pub const MAX_TEXT: usize = 160 * 1024 * 1024;
/// A line that is no text is short.
const MAX_LINE: usize = 64 * 1024;

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'b> {
    /// A text, of whichever of the kinds that texts have.
    Text(&'b [u8]),
    /// Something was wrong with the command.
    Error(&'b [u8]),
    /// A whole number.
    Number(i64),
    /// There is nothing.
    Nothing,
    /// Several values; of a map keys and values one after the other.
    List(Vec<Value<'b>>),
    /// What is said unasked: messages of channels.
    Push(Vec<Value<'b>>),
}

impl<'b> Value<'b> {
    /// The text, if it is one.
    pub fn text(&self) -> Option<&'b [u8]> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The number, if it is one.
    pub fn number(&self) -> Option<i64> {
        match self {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// The values, if there may be several.
    pub fn list(&self) -> Option<&[Value<'b>]> {
        match self {
            Value::List(list) => Some(list),
            _ => None,
        }
    }
}

/// The bytes are no reply, or one that is larger than any that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoReply;

/// What a look at bytes finds.
#[derive(Clone, Debug, PartialEq)]
pub enum Parsed<'b> {
    /// A reply, and its bytes.
    Whole(Value<'b>, usize),
    /// It needs this many bytes in all, at least.
    Needs(usize),
}

enum Stop {
    Needs(usize),
    NoReply,
}

/// Reads one reply from the beginning of `bytes`.
///
/// # Errors
/// It is none.
pub fn parse(bytes: &[u8]) -> Result<Parsed<'_>, NoReply> {
    let mut reader = Reader { bytes, at: 0, parts: 0 };
    match reader.value(0) {
        Ok(value) => Ok(Parsed::Whole(value, reader.at)),
        Err(Stop::Needs(n)) => Ok(Parsed::Needs(n.max(bytes.len() + 1))),
        Err(Stop::NoReply) => Err(NoReply),
    }
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
    parts: usize,
}

impl<'b> Reader<'b> {
    fn line(&mut self) -> Result<&'b [u8], Stop> {
        let rest = &self.bytes[self.at..];
        let Some(end) = memchr::memchr(b'\r', &rest[..rest.len().min(MAX_LINE)]) else {
            return Err(if rest.len() >= MAX_LINE { Stop::NoReply } else { Stop::Needs(self.bytes.len() + 1) });
        };
        match rest.get(end + 1) {
            Some(b'\n') => {
                self.at += end + 2;
                Ok(&rest[..end])
            }
            Some(_) => Err(Stop::NoReply),
            None => Err(Stop::Needs(self.bytes.len() + 1)),
        }
    }

    /// A length; none of what is not there.
    fn length(&mut self, max: usize) -> Result<Option<usize>, Stop> {
        let line = self.line()?;
        if line == b"-1" {
            return Ok(None);
        }
        let length = number(line).and_then(|n| usize::try_from(n).ok()).filter(|n| *n <= max).ok_or(Stop::NoReply)?;
        Ok(Some(length))
    }

    fn bulk(&mut self) -> Result<Option<&'b [u8]>, Stop> {
        let Some(length) = self.length(MAX_TEXT)? else { return Ok(None) };
        let end = self.at + length;
        let Some(text) = self.bytes.get(self.at..end) else { return Err(Stop::Needs(end + 2)) };
        match self.bytes.get(end..end + 2) {
            Some(b"\r\n") => {
                self.at = end + 2;
                Ok(Some(text))
            }
            Some(_) => Err(Stop::NoReply),
            None => Err(Stop::Needs(end + 2)),
        }
    }

    fn list(&mut self, each: usize, depth: usize) -> Result<Option<Vec<Value<'b>>>, Stop> {
        let Some(count) = self.length(MAX_PARTS)? else { return Ok(None) };
        self.parts += count * each;
        if self.parts > MAX_PARTS {
            return Err(Stop::NoReply);
        }
        let mut values = Vec::with_capacity((count * each).min(1024));
        for _ in 0..count * each {
            values.push(self.value(depth + 1)?);
        }
        Ok(Some(values))
    }

    fn value(&mut self, depth: usize) -> Result<Value<'b>, Stop> {
        if depth > MAX_DEPTH {
            return Err(Stop::NoReply);
        }
        let Some(kind) = self.bytes.get(self.at) else { return Err(Stop::Needs(self.at + 1)) };
        self.at += 1;
        Ok(match kind {
            b'+' | b',' | b'(' => Value::Text(self.line()?),
            b'-' => Value::Error(self.line()?),
            b':' => Value::Number(number(self.line()?).ok_or(Stop::NoReply)?),
            b'#' => match self.line()? {
                b"t" => Value::Number(1),
                b"f" => Value::Number(0),
                _ => return Err(Stop::NoReply),
            },
            b'_' => match self.line()? {
                b"" => Value::Nothing,
                _ => return Err(Stop::NoReply),
            },
            b'$' => self.bulk()?.map_or(Value::Nothing, Value::Text),
            b'!' => self.bulk()?.map_or(Value::Nothing, Value::Error),
            // `txt:` or `mkd:` stands before the text.
            b'=' => match self.bulk()? {
                Some(text) => Value::Text(text.get(4..).ok_or(Stop::NoReply)?),
                None => Value::Nothing,
            },
            b'*' | b'~' => self.list(1, depth)?.map_or(Value::Nothing, Value::List),
            b'%' => self.list(2, depth)?.map_or(Value::Nothing, Value::List),
            b'>' => self.list(1, depth)?.map_or(Value::Nothing, Value::Push),
            _ => return Err(Stop::NoReply),
        })
    }
}

fn number(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Appends a command and its arguments.
pub fn command(words: &[&[u8]], out: &mut Vec<u8>) {
    let length = |kind: u8, n: usize, out: &mut Vec<u8>| {
        out.push(kind);
        out.extend_from_slice(n.to_string().as_bytes());
        out.extend_from_slice(b"\r\n");
    };
    length(b'*', words.len(), out);
    for word in words {
        length(b'$', word.len(), out);
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies() {
        let text = |t: &'static [u8]| Value::Text(t);
        for (bytes, value) in [
            (&b"+OK\r\n"[..], text(b"OK")),
            (b"-ERR no\r\n", Value::Error(b"ERR no")),
            (b":-7\r\n", Value::Number(-7)),
            (b"$3\r\na\r\n\r\n", text(b"a\r\n")),
            (b"$-1\r\n", Value::Nothing),
            (b"_\r\n", Value::Nothing),
            (b"#t\r\n", Value::Number(1)),
            (b"=7\r\ntxt:abc\r\n", text(b"abc")),
            (b"*2\r\n:1\r\n*1\r\n+a\r\n", Value::List(vec![Value::Number(1), Value::List(vec![text(b"a")])])),
            (b"%1\r\n+k\r\n:1\r\n", Value::List(vec![text(b"k"), Value::Number(1)])),
            (b">2\r\n+message\r\n+x\r\n", Value::Push(vec![text(b"message"), text(b"x")])),
        ] {
            assert_eq!(parse(bytes), Ok(Parsed::Whole(value, bytes.len())), "{}", bytes.escape_ascii());
            for cut in 0..bytes.len() {
                assert!(matches!(parse(&bytes[..cut]), Ok(Parsed::Needs(n)) if n > cut && n <= bytes.len()), "{cut}");
            }
        }
        assert_eq!(parse(b"$100\r\nab"), Ok(Parsed::Needs(108)));
    }

    #[test]
    fn what_is_no_reply() {
        for bad in [
            &b"HTTP/1.1 400\r\n"[..],
            b":x\r\n",
            b"$-2\r\n",
            b"$1\r\nab\r\n",
            b"*99999999\r\n",
            b"$999999999999\r\n",
            b"+a\rb",
            b"#x\r\n",
        ] {
            assert_eq!(parse(bad), Err(NoReply), "{}", bad.escape_ascii());
        }
        assert_eq!(parse(&b"*1\r\n".repeat(MAX_DEPTH + 2)), Err(NoReply));
    }

    #[test]
    fn commands() {
        let mut out = Vec::new();
        command(&[b"SET", b"k", b"\r\n"], &mut out);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\n\r\n\r\n");
    }
}
