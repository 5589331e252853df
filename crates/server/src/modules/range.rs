//! Parts of an answer (nginx's `ngx_http_range_filter_module`, RFC 9110 section 14): 206 with one range or with
//! `multipart/byteranges`, 416. The head is made by the last of the header filters, the body is cut by the first of the
//! body filters: ranges count bytes of what the handler sends.

use crate::log_error;
use crate::request::chunk::Chunk;
use crate::request::filter::{BodyFilter, Rest};
use crate::request::headers::KnownHeader as K;
use crate::request::respond::Filtered;
use crate::request::{Request, Version};
use crate::text;
use std::cell::Cell;
use std::io::{self, Write};
use std::rc::Rc;
use wire::range::{ByteRange, Outcome, parse};

/// The header filter.
pub fn filter(r: &mut Request) -> Filtered {
    let h = &r.answer.headers;
    let (true, 200, Some(length)) = (r.answer.allow_ranges, h.status, h.content_length) else { return Filtered::Next };
    let max = &r.conf().core.max_ranges;
    if r.head.version < Version::HTTP10 || !r.is_main() || **max == 0 {
        return Filtered::Next;
    }
    let most = match (r.answer.single_range, max.is_set()) {
        (true, _) => Some(1),
        (false, true) => Some(u32::try_from(**max).unwrap_or(u32::MAX)),
        (false, false) => None,
    };
    let Some(wanted) = r.head.headers.find(K::Range).filter(|_| is_current(r)) else { return accept(r) };
    let mut ranges = Vec::new();
    match parse(r.get(wanted), length, most, &mut ranges) {
        Outcome::Ignore => return accept(r),
        Outcome::Unsatisfiable => return refuse(r, length),
        Outcome::Partial => {}
    }
    r.answer.headers.status = 206;
    r.answer.headers.status_line = None;
    match ranges.as_slice() {
        [range] => single(r, *range, length),
        _ => multipart(r, ranges, length),
    }
    Filtered::Next
}

fn accept(r: &mut Request) -> Filtered {
    r.answer.headers.add(K::AcceptRanges, "Accept-Ranges", "bytes");
    Filtered::Next
}

/// `If-Range`: whether the client's parts are of the same representation. Dates must be equal, tags too, weak or not.
fn is_current(r: &Request) -> bool {
    let Some(condition) = r.head.headers.find(K::IfRange) else { return true };
    let condition = r.get(condition);
    if condition.len() >= 2 && condition.ends_with(b"\"") {
        return r.answer.headers.find(K::Etag).is_some_and(|etag| r.get(etag) == condition);
    }
    match r.answer.headers.last_modified {
        Some(modified) => wire::date::parse_http(condition) == Some(modified),
        None => false,
    }
}

fn refuse(r: &mut Request, length: u64) -> Filtered {
    let value = text!(r, "bytes */{length}");
    r.answer.headers.set(K::ContentRange, "Content-Range", value);
    r.answer.headers.content_length = None;
    // The page that follows is not compressed.
    r.answer.headers.remove(K::ContentEncoding);
    // Whoever makes the page sees it in `$status`.
    (r.answer.headers.status, r.answer.headers.status_line) = (416, None);
    Filtered::Refuse(416)
}

fn single(r: &mut Request, range: ByteRange, length: u64) {
    let value = text!(r, "bytes {}-{}/{length}", range.start, range.end - 1);
    r.answer.headers.set(K::ContentRange, "Content-Range", value);
    r.answer.headers.content_length = Some(range.len());
    // In an answer that is made of parts, the bytes before the first and between them are not fetched.
    let (offset, jump) = match &mut r.ctx.slice {
        Some(slice) => Some(slice.take_range(range.start, range.end)).unzip(),
        None => (None, None),
    };
    r.answer.body_filters.insert(0, Box::new(Single { range, offset: offset.unwrap_or(0), jump }));
}

fn multipart(r: &mut Request, ranges: Vec<ByteRange>, length: u64) {
    let boundary = boundary();
    let mut head = format!("\r\n--{boundary}\r\n").into_bytes();
    if r.answer.headers.content_type.is_some_and(|t| !r.get(t).is_empty()) {
        head.extend_from_slice(b"Content-Type: ");
        r.answer.headers.write_content_type(&r.arena, &mut head);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"Content-Range: bytes ");
    let mut parts = Multipart {
        head,
        tail: format!("\r\n--{boundary}--\r\n").into_bytes(),
        room: Vec::new(),
        ranges,
        length,
        offset: 0,
        next: 0,
        begun: false,
    };
    let total = parts.total();
    r.answer.headers.content_type = Some(text!(r, "multipart/byteranges; boundary={boundary}"));
    r.answer.headers.charset = None;
    r.answer.headers.content_length = Some(total);
    r.answer.headers.remove(K::ContentRange);
    // A file that comes in pieces is passed once.
    r.answer.in_memory &= parts.ranges.is_sorted_by(|a, b| a.end <= b.start);
    r.answer.body_filters.insert(0, Box::new(parts));
}

/// Twenty digits, as nginx's, but not to be guessed.
fn boundary() -> String {
    let mut bytes = [0u8; 8];
    // Without random bytes the boundary is zeros: still correct for all bodies that do not have it.
    let _ = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    format!("{:020}", u64::from_ne_bytes(bytes))
}

/// Passes the bytes of one range.
struct Single {
    range: ByteRange,
    /// Bytes of the body seen.
    offset: u64,
    /// The bytes that follow are others than the next.
    jump: Option<Rc<Cell<Option<u64>>>>,
}

impl BodyFilter for Single {
    fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool, mut rest: Rest<'_>) -> io::Result<()> {
        if let Some(offset) = self.jump.as_ref().and_then(|j| j.take()) {
            self.offset = offset;
        }
        let start = self.offset;
        let end = start + chunk.len();
        self.offset = end;
        if start >= self.range.end {
            // The end of the range was the end of the answer.
            return Ok(());
        }
        let piece = chunk.cut(self.range.start.saturating_sub(start), self.range.end - start);
        let last = last || end >= self.range.end;
        if piece.is_empty() && !last { Ok(()) } else { rest.push(r, piece, last) }
    }
}

/// Sends ranges one after the other, each with a head. A body in one piece can be cut in any order; one that comes in
/// several must have its ranges in theirs.
struct Multipart {
    /// What stands before each part, up to its numbers.
    head: Vec<u8>,
    tail: Vec<u8>,
    /// Where the head of a part is written.
    room: Vec<u8>,
    ranges: Vec<ByteRange>,
    /// Bytes of the whole representation.
    length: u64,
    offset: u64,
    /// The range to send next, and whether its head is out.
    next: usize,
    begun: bool,
}

impl Multipart {
    fn write_head(&mut self, range: ByteRange) {
        self.room.clear();
        self.room.extend_from_slice(&self.head);
        let _ = write!(self.room, "{}-{}/{}\r\n\r\n", range.start, range.end - 1, self.length);
    }

    fn total(&mut self) -> u64 {
        let mut total = self.tail.len() as u64;
        for i in 0..self.ranges.len() {
            self.write_head(self.ranges[i]);
            total += self.room.len() as u64 + self.ranges[i].len();
        }
        total
    }
}

impl BodyFilter for Multipart {
    fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool, mut rest: Rest<'_>) -> io::Result<()> {
        let start = self.offset;
        let end = start + chunk.len();
        self.offset = end;
        while let Some(&range) = self.ranges.get(self.next) {
            if range.start >= end {
                break;
            }
            if range.start < start && !self.begun {
                log_error!(r, Alert, "range in overlapped buffers");
                return Err(io::Error::other("a range was asked for whose bytes have passed"));
            }
            if !self.begun {
                self.begun = true;
                self.write_head(range);
                rest.push(r, Chunk::Bytes(&self.room), false)?;
            }
            rest.push(r, chunk.cut(range.start.saturating_sub(start), range.end - start), false)?;
            if range.end > end {
                break;
            }
            self.begun = false;
            self.next += 1;
            if self.next == self.ranges.len() {
                return rest.push(r, Chunk::Bytes(&self.tail), true);
            }
        }
        if last && self.next < self.ranges.len() { rest.push(r, Chunk::Bytes(b""), true) } else { Ok(()) }
    }
}
