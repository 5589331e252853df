//! Reads the `Range` header of a request, with nginx's answers to odd and hostile ones (RFC 9110 section 14.2,
//! `ngx_http_range_parse`).

use crate::http1::values::LARGEST_LENGTH;

/// Bytes of a representation, `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub start: u64,
    /// Offset after the last byte.
    pub end: u64,
}

impl ByteRange {
    /// Bytes in the range; never 0 for one that was found by [`parse`].
    #[allow(clippy::len_without_is_empty, reason = "ranges that were found are not empty")]
    pub fn len(self) -> u64 {
        self.end - self.start
    }
}

/// What to do with a `Range` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answer with the whole, as if the header were not there.
    Ignore,
    /// Answer 416.
    Unsatisfiable,
    /// Answer 206 with the ranges found: at least one, in the order they were asked for.
    Partial,
}

/// Reads `value` for a representation of `length` bytes; the ranges are put into `ranges`, which is cleared first.
///
/// `max_ranges` is the directive, 1 where only a single range can be served; `None` if it is not set: then ranges that
/// would cost more than the whole (their sizes and 256 bytes for each part, above the length and 4096) are ignored.
pub fn parse(value: &[u8], length: u64, max_ranges: Option<u32>, ranges: &mut Vec<ByteRange>) -> Outcome {
    const UNIT: &[u8] = b"bytes=";
    ranges.clear();
    let Some((unit, set)) = value.split_at_checked(UNIT.len()) else { return Outcome::Ignore };
    if max_ranges == Some(0) || set.is_empty() || !unit.eq_ignore_ascii_case(UNIT) {
        return Outcome::Ignore;
    }
    let most = max_ranges.map_or(usize::MAX, |most| most as usize);
    let mut total = 0u64;
    for text in set.split(|&byte| byte == b',') {
        let Some(range) = parse_one(text, length) else { return Outcome::Unsatisfiable };
        if range.start < range.end {
            ranges.push(range);
            total = total.saturating_add(range.len());
            if total > LARGEST_LENGTH {
                return Outcome::Unsatisfiable;
            }
            if ranges.len() > most {
                return Outcome::Ignore;
            }
        } else if range.start == 0 {
            return Outcome::Ignore;
        }
    }
    match ranges.len() {
        0 => Outcome::Unsatisfiable,
        1 => Outcome::Partial,
        _ if is_dearer_than_whole(total, ranges.len(), length, max_ranges) => Outcome::Ignore,
        _ => Outcome::Partial,
    }
}

/// What the head of one part of a `multipart/byteranges` answer costs, about, in bytes.
const PART_COST: u64 = 256;
/// What several ranges may cost above the whole, in bytes.
const SPARE: u64 = 4096;

fn is_dearer_than_whole(total: u64, parts: usize, length: u64, max_ranges: Option<u32>) -> bool {
    let default = max_ranges.is_none();
    total > length || (default && total + parts as u64 * PART_COST > length + SPARE)
}

/// One range; empty if it lies behind the end. Nothing if it is malformed.
fn parse_one(text: &[u8], length: u64) -> Option<ByteRange> {
    let text = skip_spaces(text);
    if let Some(suffix) = text.strip_prefix(b"-") {
        let (count, rest) = number(suffix)?;
        return skip_spaces(rest).is_empty().then(|| ByteRange { start: length.saturating_sub(count), end: length });
    }
    let (start, rest) = number(text)?;
    let rest = skip_spaces(skip_spaces(rest).strip_prefix(b"-")?);
    if rest.is_empty() {
        return Some(ByteRange { start, end: length });
    }
    let (last, rest) = number(rest)?;
    skip_spaces(rest).is_empty().then(|| ByteRange { start, end: last.saturating_add(1).min(length) })
}

/// A number of at least one digit that fits a file offset, and what follows it.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let value = crate::http1::values::parse_content_length(&text[..digits])?;
    Some((value, &text[digits..]))
}

fn skip_spaces(text: &[u8]) -> &[u8] {
    let first = text.iter().position(|&byte| byte != b' ').unwrap_or(text.len());
    &text[first..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(value: &str, length: u64, max_ranges: Option<u32>) -> Result<Vec<(u64, u64)>, Outcome> {
        let mut found = Vec::new();
        match parse(value.as_bytes(), length, max_ranges, &mut found) {
            Outcome::Partial => Ok(found.iter().map(|range| (range.start, range.end)).collect()),
            other => Err(other),
        }
    }

    #[test]
    fn single() {
        let one = |value: &str| ranges(value, 100, None);
        assert_eq!(one("bytes=0-9"), Ok(vec![(0, 10)]));
        assert_eq!(one("BYTES= 5 - 5 "), Ok(vec![(5, 6)]));
        assert_eq!(one("bytes=90-"), Ok(vec![(90, 100)]));
        assert_eq!(one("bytes=90-200"), Ok(vec![(90, 100)]));
        assert_eq!(one("bytes=-7"), Ok(vec![(93, 100)]));
        assert_eq!(one("bytes=-700"), Ok(vec![(0, 100)]));
        assert_eq!(one("bytes=0-9223372036854775807"), Ok(vec![(0, 100)]));
        for value in [
            "bytes=100-",
            "bytes=-0",
            "bytes=a",
            "bytes=1",
            "bytes=1-x",
            "bytes=--1",
            "bytes=1-2,",
            "bytes=,1-2",
            "bytes=99999999999999999999-",
            "bytes=1-2;3-4",
            "bytes=\t1-2",
            "bytes=5-3",
        ] {
            assert_eq!(one(value), Err(Outcome::Unsatisfiable), "{value}");
        }
        for value in ["", "bytes", "bytes=", "items=0-1", "bytes =0-1"] {
            assert_eq!(one(value), Err(Outcome::Ignore), "{value}");
        }
        assert_eq!(ranges("bytes=0-", 0, None), Err(Outcome::Ignore));
        assert_eq!(ranges("bytes=-1", 0, None), Err(Outcome::Ignore));
        assert_eq!(ranges("bytes=1-", 0, None), Err(Outcome::Unsatisfiable));
    }

    #[test]
    fn several() {
        assert_eq!(ranges("bytes=0-1,4-5 , -1", 100, None), Ok(vec![(0, 2), (4, 6), (99, 100)]));
        assert_eq!(ranges("bytes=0-1,200-", 100, None), Ok(vec![(0, 2)]));
        assert_eq!(ranges("bytes=0-1,x", 100, None), Err(Outcome::Unsatisfiable));
        assert_eq!(ranges("bytes=0-,-1", 100, None), Err(Outcome::Ignore), "more than the whole");
        assert_eq!(ranges("bytes=0-1,2-3", 100, Some(1)), Err(Outcome::Ignore));
        assert_eq!(ranges("bytes=0-1", 100, Some(0)), Err(Outcome::Ignore));
        let many = format!("bytes={}", vec!["0-0"; 20].join(","));
        assert_eq!(ranges(&many, 100, None), Err(Outcome::Ignore), "20 heads cost more than 4096 bytes");
        assert_eq!(ranges(&many, 100, Some(20)).map(|found| found.len()), Ok(20));
    }
}
