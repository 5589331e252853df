//! Finds where an answer ends. From: bytes of one connection, in pieces. Never keeps a body.

use crate::sample::Tally;
use wire::http1::chunked::{Decoder, Event, Trailers};
use wire::http1::known::KnownHeader;
use wire::http1::response::{ResponseHead, ResponseParser};
use wire::http1::values::{TransferEncoding, contains_ignoring_case, parse_transfer_encoding};
use wire::http1::{Parsed, Version};

/// A longer head is no answer. Servers' own limits are 8 to 64 KiB.
const MAX_HEAD: usize = 64 * 1024;

/// Where in an answer a connection is.
#[derive(Debug, Default)]
pub(crate) enum Reading {
    #[default]
    Head,
    /// Bytes of the body still to come.
    Length(u64),
    Chunked(Decoder),
    UntilClose,
}

/// What of a head matters afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub status: u16,
    framing: Framing,
    /// Whether the connection may carry another request.
    pub keeps: bool,
    /// Its number in the [`Tally`].
    pub backend: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

/// The bytes are not HTTP/1.
#[derive(Debug)]
pub(crate) struct NotHttp;

/// How far an answer got with some bytes.
pub(crate) enum Progress {
    /// All bytes were read and more must come.
    More,
    /// The answer is complete after so many bytes.
    Complete(usize),
}

/// Reads the heads of all connections of a thread. A head that equals the last one, byte for byte, is not parsed again.
pub(crate) struct HeadReader {
    backend_header: Option<Vec<u8>>,
    last: Vec<u8>,
    facts: Option<Facts>,
    head: ResponseHead,
}

impl HeadReader {
    pub(crate) fn new(backend_header: Option<&str>) -> HeadReader {
        let backend_header = backend_header.map(|name| name.as_bytes().to_vec());
        HeadReader { backend_header, last: Vec::new(), facts: None, head: ResponseHead::default() }
    }

    /// Reads a head at the beginning of `bytes`; its length and what it says, or nothing if it is not complete.
    fn read(&mut self, bytes: &[u8], tally: &mut Tally) -> Result<Option<(usize, Facts)>, NotHttp> {
        if let Some(facts) = self.facts
            && bytes.starts_with(&self.last)
        {
            return Ok(Some((self.last.len(), facts)));
        }
        if bytes.len() < 5 && b"HTTP/".starts_with(bytes) {
            return Ok(None);
        }
        let seen = &bytes[..bytes.len().min(MAX_HEAD)];
        match ResponseParser::default().parse(seen, &mut self.head) {
            Ok(Parsed::Complete { len }) if len > 0 && self.head.version != Version::HTTP09 => {
                let facts = self.facts_of(seen, tally);
                self.last.clear();
                self.last.extend_from_slice(&seen[..len]);
                self.facts = Some(facts);
                Ok(Some((len, facts)))
            }
            Ok(Parsed::Partial) if bytes.len() < MAX_HEAD => Ok(None),
            _ => Err(NotHttp),
        }
    }

    fn facts_of(&self, bytes: &[u8], tally: &mut Tally) -> Facts {
        let head = &self.head;
        let value = |known| head.header(known).map(|line| line.value.of(bytes));
        let chunked = value(KnownHeader::TransferEncoding)
            .is_some_and(|v| matches!(parse_transfer_encoding(v), TransferEncoding::Chunked));
        let length = value(KnownHeader::ContentLength).and_then(|v| std::str::from_utf8(v).ok()?.trim().parse().ok());
        let framing = match (head.status, chunked, length) {
            (100..=199 | 204 | 304, _, _) => Framing::Length(0),
            (_, true, _) => Framing::Chunked,
            (_, _, Some(length)) => Framing::Length(length),
            _ => Framing::UntilClose,
        };
        let connection = value(KnownHeader::Connection).unwrap_or_default();
        let keeps = match head.version >= Version::HTTP11 {
            true => !contains_ignoring_case(connection, b"close"),
            false => contains_ignoring_case(connection, b"keep-alive"),
        };
        let backend = self.backend_header.as_ref().and_then(|wanted| {
            let line = head.headers.iter().find(|l| l.name.of(bytes).eq_ignore_ascii_case(wanted))?;
            Some(tally.backend(line.value.of(bytes)))
        });
        Facts { status: head.status, framing, keeps: keeps && framing != Framing::UntilClose, backend }
    }
}

/// One connection's answer.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub reading: Reading,
    /// The beginning of a head that is not complete; empty, and without memory, but for that.
    part: Vec<u8>,
    /// Known once the head is complete.
    pub facts: Option<Facts>,
}

impl Answer {
    /// Takes bytes as they come.
    ///
    /// # Errors
    /// If they are no HTTP.
    pub(crate) fn feed(
        &mut self,
        bytes: &[u8],
        is_head: bool,
        heads: &mut HeadReader,
        tally: &mut Tally,
    ) -> Result<Progress, NotHttp> {
        let mut at = 0;
        loop {
            match &mut self.reading {
                Reading::Head => match self.feed_head(&bytes[at..], heads, tally)? {
                    None => return Ok(Progress::More),
                    Some(used) => {
                        at += used;
                        let Some(facts) = self.facts else { continue };
                        self.reading = match facts.framing {
                            _ if is_head => return Ok(Progress::Complete(at)),
                            Framing::Length(0) => return Ok(Progress::Complete(at)),
                            Framing::Length(length) => Reading::Length(length),
                            Framing::Chunked => Reading::Chunked(Decoder::new(Trailers::Drop)),
                            Framing::UntilClose => Reading::UntilClose,
                        };
                    }
                },
                Reading::Length(left) => {
                    let here = (*left).min((bytes.len() - at) as u64);
                    *left -= here;
                    at += here as usize;
                    return Ok(if *left == 0 { Progress::Complete(at) } else { Progress::More });
                }
                Reading::Chunked(decoder) => match decoder.decode(bytes, &mut at).map_err(|_| NotHttp)? {
                    Event::Data(_) => {}
                    Event::More => return Ok(Progress::More),
                    Event::End | Event::Trailers => return Ok(Progress::Complete(at)),
                },
                Reading::UntilClose => return Ok(Progress::More),
            }
        }
    }

    /// How many of these bytes ended the head; 1xx heads are passed over, and then `facts` is still unknown.
    fn feed_head(&mut self, bytes: &[u8], heads: &mut HeadReader, tally: &mut Tally) -> Result<Option<usize>, NotHttp> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let before = self.part.len();
        let found = if before == 0 {
            heads.read(bytes, tally)?
        } else {
            self.part.extend_from_slice(bytes);
            heads.read(&self.part, tally)?
        };
        let Some((length, facts)) = found else {
            if before == 0 {
                self.part.extend_from_slice(bytes);
            }
            return Ok(None);
        };
        self.part = Vec::new();
        self.facts = (!(100..200).contains(&facts.status) || facts.status == 101).then_some(facts);
        // A head that was already complete with the earlier bytes would have been found then.
        Ok(Some(length.saturating_sub(before)))
    }

    /// Whether the end of the connection is the end of the answer.
    pub(crate) fn ends_with_connection(&self) -> bool {
        matches!(self.reading, Reading::UntilClose)
    }

    /// Ready for the next.
    pub(crate) fn clear(&mut self) {
        self.reading = Reading::Head;
        self.facts = None;
        if !self.part.is_empty() {
            self.part = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(text: &[u8], piece: usize, is_head: bool) -> Vec<usize> {
        let (mut heads, mut tally) = (HeadReader::new(Some("X-B")), Tally::new(1));
        let (mut answer, mut ends, mut at) = (Answer::default(), Vec::new(), 0);
        while at < text.len() {
            let end = (at + piece).min(text.len());
            match answer.feed(&text[at..end], is_head, &mut heads, &mut tally).unwrap() {
                Progress::More => at = end,
                Progress::Complete(used) => {
                    at += used;
                    ends.push(at);
                    answer.clear();
                }
            }
        }
        ends
    }

    #[test]
    fn answers_end_at_the_same_place_in_pieces_of_any_size() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-B: one\r\n\r\nhello\
            HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-B: one\r\n\r\nagain\
            HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\n\r\n\
            HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        let whole = lengths(text, text.len(), false);
        assert_eq!((whole.len(), whole[3]), (4, text.len()));
        for piece in 1..80 {
            assert_eq!(lengths(text, piece, false), whole, "{piece}");
        }
    }

    #[test]
    fn an_answer_to_head_has_no_body() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(lengths(text, text.len(), true), [text.len() / 2, text.len()]);
    }

    #[test]
    fn what_is_no_http() {
        let (mut heads, mut tally) = (HeadReader::new(None), Tally::new(1));
        assert!(Answer::default().feed(b"SSH-2.0-x\r\n", false, &mut heads, &mut tally).is_err());
        let long = [b"HTTP/1.1 200 OK\r\nA: ".to_vec(), vec![b'a'; MAX_HEAD]].concat();
        assert!(Answer::default().feed(&long, false, &mut heads, &mut tally).is_err());
    }
}
