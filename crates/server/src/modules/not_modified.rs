//! 304 and 412 (nginx's `ngx_http_not_modified_filter_module`, RFC 9110 section 13): looks at `If-Modified-Since`,
//! `If-Unmodified-Since`, `If-Match` and `If-None-Match`. The first of all header filters.

use crate::modules::core::Modified;
use crate::request::headers::KnownHeader as K;
use crate::request::respond::Filtered;
use crate::request::{Request, Text};

/// The conditions of a request.
#[derive(Default)]
struct Conditions {
    modified_since: Option<Text>,
    unmodified_since: Option<Text>,
    matches: Option<Text>,
    none_match: Option<Text>,
}

/// The header lines that are conditions.
const CONDITIONS: u64 = K::IfModifiedSince.bit() | K::IfUnmodifiedSince.bit() | K::IfMatch.bit() | K::IfNoneMatch.bit();

impl Conditions {
    /// Whether there may be some: most requests have none.
    fn has_any(r: &Request) -> bool {
        r.head.headers.lines().iter().any(|line| line.known.bit() & CONDITIONS != 0)
    }

    fn of(r: &Request) -> Conditions {
        let mut found = Conditions::default();
        for line in r.head.headers.lines() {
            let place = match line.known {
                K::IfModifiedSince => &mut found.modified_since,
                K::IfUnmodifiedSince => &mut found.unmodified_since,
                K::IfMatch => &mut found.matches,
                K::IfNoneMatch => &mut found.none_match,
                _ => continue,
            };
            place.get_or_insert(line.value.into());
        }
        found
    }
}

/// The header filter.
pub fn filter(r: &mut Request) -> Filtered {
    let is_asked = r.answer.headers.status == 200 && r.is_main() && !r.answer.disable_not_modified;
    if !is_asked || !Conditions::has_any(r) {
        return Filtered::Next;
    }
    let asked = Conditions::of(r);
    let etag = r.answer.headers.find(K::Etag);
    if let Some(since) = asked.unmodified_since
        && r.answer.headers.last_modified.is_none_or(|modified| time(r, since) < modified)
    {
        return Filtered::Replace(412);
    }
    if let Some(list) = asked.matches
        && !is_match(r.get(list), etag.map(|e| r.get(e)), Comparison::Strong)
    {
        return Filtered::Replace(412);
    }
    // Who names an entity tag is not asked about dates (RFC 9110 section 13.2.2); nginx wants both to hold.
    let is_changed = match (asked.none_match, asked.modified_since) {
        (Some(list), _) => !is_match(r.get(list), etag.map(|e| r.get(e)), Comparison::Weak),
        (None, Some(since)) => is_modified(r, since),
        (None, None) => true,
    };
    if is_changed {
        return Filtered::Next;
    }
    let h = &mut r.answer.headers;
    h.status = 304;
    h.status_line = None;
    h.content_type = None;
    h.content_length = None;
    h.remove(K::AcceptRanges);
    h.remove(K::ContentEncoding);
    r.answer.allow_ranges = false;
    Filtered::Next
}

/// Seconds since 1970; a date that is none is -1, before every change.
fn time(r: &Request, text: Text) -> i64 {
    wire::date::parse_http(r.get(text)).unwrap_or(-1)
}

fn is_modified(r: &Request, since: Text) -> bool {
    let Some(modified) = r.answer.headers.last_modified else { return true };
    match *r.conf().core.if_modified_since {
        Modified::Off => true,
        Modified::Exact => time(r, since) != modified,
        Modified::Before => time(r, since) < modified,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    /// `W/"a"` is not `"a"`.
    Strong,
    /// It is.
    Weak,
}

/// Whether a list of entity tags has the answer's (`ngx_http_test_if_match`).
fn is_match(list: &[u8], etag: Option<&[u8]>, comparison: Comparison) -> bool {
    if list == b"*" {
        return true;
    }
    let Some(etag) = etag else { return false };
    let opaque = |tag| match comparison {
        Comparison::Weak => without_weak(tag),
        Comparison::Strong => tag,
    };
    let etag = opaque(etag);
    let mut rest = list;
    while !rest.is_empty() {
        if let Some(after) = opaque(rest).strip_prefix(etag)
            && matches!(after.trim_ascii_start(), [] | [b',', ..])
        {
            return true;
        }
        let comma = memchr::memchr(b',', rest).unwrap_or(rest.len());
        let next = rest[comma..].iter().position(|b| !matches!(b, b' ' | b'\t' | b','));
        rest = next.map_or(&[], |n| &rest[comma + n..]);
    }
    false
}

fn without_weak(tag: &[u8]) -> &[u8] {
    match tag.strip_prefix(b"W/") {
        Some(rest) if !rest.is_empty() => rest,
        _ => tag,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entity_tags() {
        let test = |list: &str, etag: &str, comparison| is_match(list.as_bytes(), Some(etag.as_bytes()), comparison);
        use Comparison::{Strong, Weak};
        assert!(test("*", "\"a\"", Strong));
        assert!(is_match(b"*", None, Strong) && !is_match(b"\"a\"", None, Strong));
        assert!(test("\"a\"", "\"a\"", Strong) && !test("\"a\"", "\"b\"", Strong));
        assert!(test("\"x\" , \"a\"\t,\"b\"", "\"a\"", Strong));
        assert!(!test("\"a\"x", "\"a\"", Strong) && !test("x\"a\"", "\"a\"", Strong));
        assert!(!test("W/\"a\"", "\"a\"", Strong) && test("W/\"a\"", "\"a\"", Weak));
        assert!(!test("\"a\"", "W/\"a\"", Strong) && test("\"a\"", "W/\"a\"", Weak));
        assert!(test("W/\"b\", W/\"a\"", "W/\"a\"", Weak) && test("W/\"a\"", "W/\"a\"", Strong));
        assert!(!test("", "\"a\"", Weak) && !test(",,", "\"a\"", Weak));
    }
}
