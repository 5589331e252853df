//! `slice` (nginx's `ngx_http_slice_filter_module`): an answer is fetched in parts of one size, so that each can be cached
//! and parts of large files are cheap. The first part is the request's own; the others are asked for by requests of the
//! same kind, one after the other, and sent as if they were its body. The location asks for `$slice_range`.
//!
//! ```text
//!  $slice_range (the part with the range's start) ─> 206 ─> a 200 of the whole, or the 206 the client wants
//!     ─> its body ─> drive: the next part ─> ... ─> the end
//! ```

use crate::config::variables::Builtin;
use crate::config::{Directive, http, setters};
use crate::connection::Downstream;
use crate::request::chunk::Chunk;
use crate::request::filter::{self, BodyFilter, Rest};
use crate::request::headers::KnownHeader as K;
use crate::request::phases::{self, Content, Verdict};
use crate::request::respond::Filtered;
use crate::request::{Request, Text, flow, subrequest};
use crate::{log_error, merged_values, text};
use conf::value;
use std::cell::Cell;
use std::io;
use std::rc::Rc;

/// The directive.
pub const DIRECTIVES: &[Directive] = &[http("slice", |s, n| {
    s.build.main.slices = true;
    setters::size(&mut s.level.conf.slice.slice, n)
})];

/// The variable.
pub const VARIABLES: &[Builtin] =
    &[Builtin { name: "slice_range", evaluate: slice_range, volatile: true, assign: None }];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// `slice`: bytes of a part, 0 for off.
        slice: u64 = 0,
    }
}

/// So much may wait for the client before the next part is asked for.
const FLUSH: u64 = 64 * 1024;

/// What is known of a request's parts.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Bytes of a part.
    size: u64,
    /// The part that is asked for, as a `Range`.
    range: Text,
    /// Where the next part starts.
    start: u64,
    /// Where the last one that the client wants ends.
    end: u64,
    /// The answer's entity tag: all parts must have it.
    etag: Option<Text>,
    /// The part's head was as it should be.
    active: bool,
    /// The request's own part has been sent.
    ended: bool,
    /// Tells the range filter that the next bytes are others than those that follow.
    jump: Rc<Cell<Option<u64>>>,
}

impl Slice {
    fn new(size: u64, start: u64, range: Text) -> Slice {
        let jump = Rc::default();
        Slice { size, range, start, end: 0, etag: None, active: false, ended: false, jump }
    }

    /// The part of the answer that the client wants, for the range filter: where the bytes that come start, and how it
    /// is told of gaps.
    pub fn take_range(&mut self, start: u64, end: u64) -> (u64, Rc<Cell<Option<u64>>>) {
        // `start` of the next part is the end of this one, and only the last is shorter than the others.
        let first = (self.start - 1) / self.size * self.size;
        self.end = end;
        if self.start + self.size <= start {
            self.start = start / self.size * self.size;
            self.jump.set(None);
        }
        (first, self.jump.clone())
    }
}

fn slice_range(r: &mut Request) -> Option<Text> {
    if let Some(slice) = &r.ctx.slice {
        return Some(slice.range);
    }
    let size = *r.conf().slice.slice;
    if size == 0 || !r.is_main() || r.answer.headers.status != 0 {
        return None;
    }
    let start = wanted_start(r) / size * size;
    let range = range_text(r, start, size);
    r.ctx.slice = Some(Box::new(Slice::new(size, start, range)));
    Some(range)
}

fn range_text(r: &mut Request, start: u64, size: u64) -> Text {
    text!(r, "bytes={start}-{}", start + size - 1)
}

/// Where the client's range starts; 0 if that is not known before the answer is, or if there are several.
fn wanted_start(r: &Request) -> u64 {
    if r.head.headers.find(K::IfRange).is_some() {
        return 0;
    }
    let Some(range) = r.head.headers.find(K::Range) else { return 0 };
    let range = r.get(range);
    let Some(ranges) = range.get(..6).filter(|p| p.eq_ignore_ascii_case(b"bytes=")).map(|_| &range[6..]) else {
        return 0;
    };
    if ranges.contains(&b',') {
        return 0;
    }
    let ranges = ranges.trim_ascii_start();
    let digits = ranges.iter().take_while(|b| b.is_ascii_digit()).count();
    // An offset near the largest number is no offset of any file.
    value::number(&ranges[..digits]).filter(|n| *n < i64::MAX as u64 / 2).unwrap_or(0)
}

/// What a `Content-Range` says: start, end (behind the last byte) and the length of the whole.
fn content_range(text: &[u8]) -> Option<(u64, u64, Option<u64>)> {
    let text = text.strip_prefix(b"bytes")?.trim_ascii();
    let slash = memchr::memchr(b'/', text)?;
    let (range, whole) = (text[..slash].trim_ascii(), text[slash + 1..].trim_ascii());
    let dash = memchr::memchr(b'-', range)?;
    let (start, last) = (value::number(range[..dash].trim_ascii())?, value::number(range[dash + 1..].trim_ascii())?);
    let whole = if whole == b"*" { None } else { Some(value::number(whole)?) };
    Some((start, last.checked_add(1).filter(|end| *end > start)?, whole))
}

/// The header filter: the first of all.
pub fn filter(r: &mut Request) -> Filtered {
    let Some(mut slice) = r.ctx.slice.take() else { return Filtered::Next };
    if r.answer.headers.status != 206 {
        if r.is_main() {
            return Filtered::Next;
        }
        log_error!(r, Error, "unexpected status code {} in slice response", r.answer.headers.status);
        return Filtered::Broken;
    }
    let whole = match check(r, &mut slice) {
        Ok(whole) => whole,
        Err(text) => {
            log_error!(r, Error, "{text}");
            return Filtered::Broken;
        }
    };
    slice.active = true;
    slice.end = whole;
    let h = &mut r.answer.headers;
    h.status = 200;
    h.status_line = None;
    h.content_length = Some(whole);
    h.remove(K::ContentRange);
    h.remove(K::AcceptRanges);
    r.answer.allow_ranges = true;
    r.answer.single_range = true;
    if r.is_main() {
        r.answer.body_filters.insert(0, Box::new(Open));
    }
    r.ctx.slice = Some(slice);
    Filtered::Next
}

/// Whether a part's head is what was asked for. Gives the length of the whole.
fn check(r: &Request, slice: &mut Slice) -> Result<u64, String> {
    let etag = r.answer.headers.find(K::Etag);
    if let Some(known) = slice.etag
        && etag.is_none_or(|e| r.get(e) != r.get(known))
    {
        return Err("etag mismatch in slice response".into());
    }
    slice.etag = etag.or(slice.etag);
    let range = r.answer.headers.find(K::ContentRange).and_then(|v| content_range(r.get(v)));
    let Some((start, end, whole)) = range else { return Err("invalid range in slice response".into()) };
    let Some(whole) = whole else { return Err("no complete length in slice response".into()) };
    if start != slice.start || end != whole.min(start + slice.size) {
        return Err(format!("unexpected range in slice response: {start}-{end}"));
    }
    slice.start = end;
    Ok(whole)
}

/// Keeps the answer open behind the request's own part.
struct Open;

impl BodyFilter for Open {
    fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool, mut rest: Rest<'_>) -> io::Result<()> {
        if let Some(slice) = r.ctx.slice.as_mut().filter(|_| last) {
            slice.ended = true;
        }
        rest.push(r, chunk, false)
    }
}

/// Whether there are parts to follow, or the end.
pub fn is_open(r: &Request) -> bool {
    r.is_main() && r.ctx.slice.as_ref().is_some_and(|s| s.ended)
}

/// Fetches and sends the parts that follow.
pub async fn drive(r: &mut Request) -> Verdict {
    loop {
        let Some(slice) = r.ctx.slice.as_ref() else { return Verdict::Answered };
        let (active, start, size, end) = (slice.active, slice.start, slice.size, slice.end);
        if !active {
            log_error!(r, Error, "missing slice response");
            return Verdict::Broken;
        }
        if start >= end {
            r.ctx.slice = None;
            return match filter::run(r, Chunk::Bytes(b""), true) {
                Ok(()) => Verdict::Answered,
                Err(e) => r.broken(&e),
            };
        }
        if r.unsent_bytes() > FLUSH
            && let Err(verdict) = flow::flush(r).await
        {
            return verdict;
        }
        if let Err(verdict) = next(r, start, size).await {
            return verdict;
        }
    }
}

/// One part: a request like the client's, whose body goes where the client's own goes.
async fn next(r: &mut Request, start: u64, size: u64) -> Result<(), Verdict> {
    let range = range_text(r, start, size);
    let mut child = subrequest::duplicate(r, Downstream::None);
    child.swap_shared(r);
    let Some(mut slice) = r.ctx.slice.take() else { return Err(Verdict::Broken) };
    let end = slice.end;
    slice.jump.set(Some(start));
    (slice.range, slice.active, slice.ended) = (range, false, false);
    child.ctx.slice = Some(slice);
    child.downstream = std::mem::take(&mut r.downstream);
    child.answer.tail = std::mem::take(&mut r.answer.body_filters);
    let verdict = match child.flow.content_handler {
        Some(Content::Now(handler)) => handler(&mut child),
        Some(Content::Later(handler)) => handler(&mut child).await,
        Some(Content::Begins(handler)) => handler(&mut child).verdict().await,
        Some(Content::Proxy) => Box::pin(crate::modules::proxy::run(&mut child)).await,
        None => Verdict::Broken,
    };
    Box::pin(phases::conclude(&mut child, verdict)).await;
    crate::request::end(&mut child);
    child.swap_shared(r);
    r.downstream = std::mem::take(&mut child.downstream);
    r.answer.body_filters = std::mem::take(&mut child.answer.tail);
    r.ctx.slice = child.ctx.slice.take();
    if child.flow.aborted || !child.answer.done {
        return Err(Verdict::Broken);
    }
    if let Some(slice) = &mut r.ctx.slice {
        // The client wants no more than before.
        (slice.end, slice.ended) = (end, true);
        return Ok(());
    }
    Err(Verdict::Broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        assert_eq!(content_range(b"bytes 0-1/100"), Some((0, 2, Some(100))));
        assert_eq!(content_range(b"bytes 5-9/*"), Some((5, 10, None)));
        for bad in
            ["", "bytes", "bytes */100", "bytes 5-4/100", "bytes 0-1", "octets 0-1/2", "bytes 0-99999999999999999999/1"]
        {
            assert_eq!(content_range(bad.as_bytes()), None, "{bad}");
        }
    }
}
