//! FastCGI records (the FastCGI specification 1.0): writes those of one request, reads those of its answer. There is one
//! request at a time on a connection, number 1. Any bytes are read without harm; what a record carries is not kept here.

/// Bytes of a record's head.
const HEAD: usize = 8;
const VERSION: u8 = 1;
const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;
const RESPONDER: u8 = 1;
const KEEP_CONN: u8 = 1;
/// Most that one record carries here: all below 64 kB that needs no padding.
pub const MAX_CONTENT: usize = 65528;
/// Names and values longer than this have their length in four bytes.
const SHORT: usize = 127;

/// Appends the record that begins a request. `keep`: the connection stays open after it.
pub fn begin(keep: bool, out: &mut Vec<u8>) {
    head(BEGIN_REQUEST, 8, 0, out);
    out.extend_from_slice(&[0, RESPONDER, if keep { KEEP_CONN } else { 0 }, 0, 0, 0, 0, 0]);
}

/// Appends one parameter to the content that [`params`] takes.
pub fn param(name: &[&[u8]], value: &[&[u8]], out: &mut Vec<u8>) {
    for parts in [name, value] {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        if len > SHORT {
            out.extend_from_slice(&(len as u32 | 1 << 31).to_be_bytes());
        } else {
            out.push(len as u8);
        }
    }
    for part in name.iter().chain(value) {
        out.extend_from_slice(part);
    }
}

/// Appends the records of all parameters, the empty one at their end included.
pub fn params(content: &[u8], out: &mut Vec<u8>) {
    records(PARAMS, content, out);
    head(PARAMS, 0, 0, out);
}

/// Appends records of the request's body.
pub fn stdin(content: &[u8], out: &mut Vec<u8>) {
    records(STDIN, content, out);
}

/// Appends the end of the request's body.
pub fn end_of_stdin(out: &mut Vec<u8>) {
    head(STDIN, 0, 0, out);
}

fn records(kind: u8, content: &[u8], out: &mut Vec<u8>) {
    for piece in content.chunks(MAX_CONTENT) {
        let padding = piece.len().wrapping_neg() % 8;
        head(kind, piece.len() as u16, padding as u8, out);
        out.extend_from_slice(piece);
        out.extend_from_slice(&[0; 8][..padding]);
    }
}

fn head(kind: u8, len: u16, padding: u8, out: &mut Vec<u8>) {
    let [high, low] = len.to_be_bytes();
    out.extend_from_slice(&[VERSION, kind, 0, 1, high, low, padding, 0]);
}

/// Why an answer is refused; the texts are nginx's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// Another version of the protocol.
    Version(u8),
    /// A kind of record that no answer has.
    Type(u8),
    /// Another request's record: high and low byte of its number.
    Request(u8, u8),
}

impl std::fmt::Display for RecordError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RecordError::Version(n) => write!(f, "upstream sent unsupported FastCGI protocol version: {n}"),
            RecordError::Type(n) => write!(f, "upstream sent invalid FastCGI record type: {n}"),
            RecordError::Request(0, n) => write!(f, "upstream sent unexpected FastCGI request id low byte: {n}"),
            RecordError::Request(n, _) => write!(f, "upstream sent unexpected FastCGI request id high byte: {n}"),
        }
    }
}

/// Takes an answer's records apart. Resumable: it is fed whatever came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoder {
    head: [u8; HEAD],
    have: usize,
    /// Content left of the record.
    content: usize,
    /// Padding left after it.
    padding: usize,
    /// The request is over: the connection may be used again.
    pub ended: bool,
    /// More came after that, which was not asked for: it may not.
    pub extra: bool,
}

impl Decoder {
    /// Reads on: output goes to `stdout`, messages to `stderr`, those of several records on lines of their own.
    ///
    /// # Errors
    /// See [`RecordError`]. Do not call again after one.
    pub fn decode(&mut self, bytes: &[u8], stdout: &mut Vec<u8>, stderr: &mut Vec<u8>) -> Result<(), RecordError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = &rest[self.decode_to_message(rest, stdout, stderr)?..];
        }
        Ok(())
    }

    /// The same as far as the end of the next record with messages, or of what there is. Gives the bytes that were read.
    ///
    /// # Errors
    /// See [`RecordError`]. Do not call again after one.
    pub fn decode_to_message(
        &mut self,
        bytes: &[u8],
        stdout: &mut Vec<u8>,
        stderr: &mut Vec<u8>,
    ) -> Result<usize, RecordError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.ended {
                self.extra = true;
                return Ok(bytes.len());
            }
            if self.have < HEAD {
                let (now, after) = rest.split_at(rest.len().min(HEAD - self.have));
                self.head[self.have..self.have + now.len()].copy_from_slice(now);
                self.have += now.len();
                rest = after;
                if self.have < HEAD {
                    return Ok(bytes.len());
                }
                self.check()?;
            }
            let (now, after) = rest.split_at(rest.len().min(self.content));
            match self.head[1] {
                STDOUT => stdout.extend_from_slice(now),
                STDERR => stderr.extend_from_slice(now),
                _ => {}
            }
            self.content -= now.len();
            if self.head[1] == STDERR && self.content == 0 && stderr.last().is_some_and(|b| *b != b'\n') {
                stderr.push(b'\n');
            }
            let skipped = after.len().min(self.padding);
            if self.content == 0 {
                self.padding -= skipped;
                rest = &after[skipped..];
            } else {
                rest = after;
            }
            if self.content == 0 && self.padding == 0 {
                self.ended |= self.head[1] == END_REQUEST;
                self.have = 0;
                if self.head[1] == STDERR {
                    break;
                }
            }
        }
        Ok(bytes.len() - rest.len())
    }

    /// Whether a record has begun that is not whole.
    pub fn is_inside(&self) -> bool {
        self.have > 0
    }

    /// A record's head is there.
    fn check(&mut self) -> Result<(), RecordError> {
        let [version, kind, id_high, id_low, high, low, padding, _] = self.head;
        if version != VERSION {
            return Err(RecordError::Version(version));
        }
        if !matches!(kind, STDOUT | STDERR | END_REQUEST) {
            return Err(RecordError::Type(kind));
        }
        if (id_high, id_low) != (0, 1) {
            return Err(RecordError::Request(id_high, id_low));
        }
        self.content = usize::from(u16::from_be_bytes([high, low]));
        self.padding = usize::from(padding);
        if self.content == 0 && self.padding == 0 {
            self.ended |= kind == END_REQUEST;
            self.have = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, content: &[u8], padding: u8) -> Vec<u8> {
        let mut out = Vec::new();
        head(kind, content.len() as u16, padding, &mut out);
        out.extend_from_slice(content);
        out.extend(std::iter::repeat_n(0xff, padding.into()));
        out
    }

    #[test]
    fn a_request_as_the_specification_has_it() {
        let mut content = Vec::new();
        param(&[b"HTTP_", b"A"], &[b"b"], &mut content);
        assert_eq!(content, b"\x06\x01HTTP_Ab");
        let mut out = Vec::new();
        begin(true, &mut out);
        params(&content, &mut out);
        stdin(b"body", &mut out);
        end_of_stdin(&mut out);
        assert_eq!(out[..16], [1, 1, 0, 1, 0, 8, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]);
        assert_eq!(out[16..32], *b"\x01\x04\0\x01\0\x09\x07\0\x06\x01HTTP_A");
        assert_eq!(out.len() % 8, 0);
        assert!(out.ends_with(b"\x01\x05\0\x01\0\x04\x04\0body\0\0\0\0\x01\x05\0\x01\0\0\0\0"));
        let mut long = Vec::new();
        param(&[b"A"], &[&[b'x'; 200]], &mut long);
        assert_eq!(long[..6], [1, 0x80, 0, 0, 200, b'A']);
    }

    #[test]
    fn answers_in_any_pieces_are_the_same() {
        let mut bytes = record(STDOUT, b"Status: 200\r\n", 3);
        bytes.extend(record(STDERR, b"oops", 0));
        bytes.extend(record(STDOUT, b"\r\nbody", 2));
        bytes.extend(record(STDOUT, b"", 0));
        bytes.extend(record(END_REQUEST, &[0; 8], 0));
        for size in 1..=bytes.len() {
            let (mut decoder, mut out, mut err) = (Decoder::default(), Vec::new(), Vec::new());
            for piece in bytes.chunks(size) {
                assert!(!decoder.ended);
                decoder.decode(piece, &mut out, &mut err).expect("an answer");
            }
            assert!(decoder.ended);
            assert_eq!((out.as_slice(), err.as_slice()), (&b"Status: 200\r\n\r\nbody"[..], &b"oops\n"[..]));
        }
    }

    #[test]
    fn a_message_ends_what_is_read_at_a_time() {
        let mut bytes = record(STDOUT, b"before", 0);
        bytes.extend(record(STDERR, b"oops", 5));
        let first = bytes.len();
        bytes.extend(record(STDOUT, b" after", 0));
        let (mut decoder, mut out, mut err) = (Decoder::default(), Vec::new(), Vec::new());
        assert_eq!(decoder.decode_to_message(&bytes, &mut out, &mut err), Ok(first));
        assert_eq!((&*out, &*err), (&b"before"[..], &b"oops\n"[..]));
        assert_eq!(decoder.decode_to_message(&bytes[first..], &mut out, &mut err), Ok(bytes.len() - first));
        assert_eq!(out, b"before after");
    }

    #[test]
    fn what_follows_the_end_is_not_read() {
        let mut decoder = Decoder::default();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        decoder.decode(&record(END_REQUEST, &[0; 8], 1), &mut out, &mut err).expect("an answer");
        assert_eq!((decoder.ended, decoder.extra, decoder.is_inside()), (true, false, false));
        decoder.decode(&record(STDOUT, b"of another", 0), &mut out, &mut err).expect("it is not looked at");
        assert!(decoder.extra && out.is_empty());
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let read = |bytes: &[u8]| Decoder::default().decode(bytes, &mut Vec::new(), &mut Vec::new());
        assert_eq!(read(b"HTTP/1.1 200 OK"), Err(RecordError::Version(b'H')));
        assert_eq!(read(&record(BEGIN_REQUEST, b"", 0)), Err(RecordError::Type(1)));
        assert_eq!(read(&[1, STDOUT, 0, 2, 0, 0, 0, 0]), Err(RecordError::Request(0, 2)));
    }
}
