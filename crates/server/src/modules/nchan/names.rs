//! Which channels a request means, and which message of theirs its client has had last.

use super::Conf;
use super::{answer, redis};
use crate::config::complex::Complex;
use crate::log_error;
use crate::request::headers::KnownHeader as K;
use crate::request::phases::Verdict;
use crate::request::{Request, Text};
use push::limits::MAX_CHANNELS;
use push::{Position, Start};
use std::rc::Rc;

/// The group of channels that tell what happens in others.
const META: &[u8] = b"meta";

/// The channels of a request: their names in the store. On `Err` the client has been answered.
pub(super) fn channels(r: &mut Request, conf: &Conf, ids: &[Complex]) -> Result<Vec<Box<[u8]>>, Verdict> {
    let group = group(r, conf);
    let mut all: Vec<Box<[u8]>> = Vec::new();
    for id in ids {
        let id = id.eval(r);
        if r.get(id).len() as u64 > *conf.max_id_length {
            log_error!(r, Error, "channel id is longer than {} bytes", *conf.max_id_length);
            return Err(answer::plain(r, 403, "Channel id is too long."));
        }
        let delimiter = &**conf.split_delimiter;
        match delimiter.is_empty() {
            true => all.push(r.get(id).into()),
            false => split(r.get(id), delimiter, &mut all),
        }
    }
    if all.is_empty() || all.iter().any(|id| id.is_empty()) {
        log_error!(r, Error, "no channel id: \"nchan_channel_id\" is not set, or empty");
        return Err(answer::plain(r, 404, "No channel id provided."));
    }
    if all.len() > MAX_CHANNELS {
        return Err(answer::plain(r, 403, "Too many channels."));
    }
    // A channel that is named twice is one: who subscribes to it gets each message once.
    let mut once: Vec<Box<[u8]>> = Vec::with_capacity(all.len());
    for id in all {
        if !once.contains(&id) {
            once.push(id);
        }
    }
    let names = once.iter().map(|id| name(&group, id)).collect();
    r.channels().ids = Rc::from(once);
    Ok(names)
}

fn split(text: &[u8], delimiter: &[u8], all: &mut Vec<Box<[u8]>>) {
    let mut rest = text;
    while let Some(at) = memchr::memmem::find(rest, delimiter) {
        all.push(rest[..at].into());
        rest = &rest[at + delimiter.len()..];
    }
    all.push(rest.into());
}

/// The name of a channel in the store.
pub(super) fn name(group: &[u8], id: &[u8]) -> Box<[u8]> {
    [group, b"/", id].concat().into()
}

/// The name of the channel that tells what happens.
pub(super) fn meta(id: &[u8]) -> Box<[u8]> {
    name(META, id)
}

/// `nchan_channel_group`
pub(super) fn group(r: &mut Request, conf: &Conf) -> Box<[u8]> {
    let group = conf.group.eval(r);
    let group = escaped(r.get(group));
    match redis::backend::of(r, conf) {
        Some(backend) => backend.group(&group),
        None => group,
    }
}

/// A group's name ends at the first slash of a channel's.
fn escaped(group: &[u8]) -> Box<[u8]> {
    let mut out = Vec::with_capacity(group.len());
    for b in group {
        match b {
            b'/' => out.extend_from_slice(b"%2F"),
            b'%' => out.extend_from_slice(b"%25"),
            // What follows it in the store is a Redis' number.
            0 => out.extend_from_slice(b"%00"),
            other => out.push(*other),
        }
    }
    out.into()
}

/// The message ids in a request are none: it is refused.
pub(super) struct BadId;

/// Which message the client has had last, if it says so (`nchan_subscriber_last_message_id`).
pub(super) fn position(r: &mut Request, conf: &Conf) -> Result<Option<Position>, BadId> {
    let tags = match &**conf.etag_header {
        b"" => r.head.headers.find(K::IfNoneMatch),
        name => r.head.headers.named(&r.arena, name).next().map(|line| Text::Own(line.value)),
    };
    let tags = tags.map(|t| unquoted(r.get(t)).to_vec());
    if *conf.compound_etag {
        if let Some(tags) = tags {
            return note(r, &tags, Position::parse(&tags).map_err(|_| BadId));
        }
    } else if let Some(since) = r.head.headers.find(K::IfModifiedSince)
        && let Some(time) = wire::date::parse_http(r.get(since))
        && time > 0
    {
        let tags = tags.ok_or(BadId)?;
        let whole = [time.to_string().as_bytes(), b":", &tags].concat();
        return note(r, &whole, Position::parse_tags(time, &tags).map_err(|_| BadId));
    }
    let text = match conf.last_message_id.is_empty() {
        true => match r.head.headers.find(K::LastEventId) {
            Some(text) => Some(r.get(text).to_vec()),
            None => argument(r),
        },
        false => conf.last_message_id.iter().find_map(|value| {
            let value = value.eval(r);
            Some(r.get(value).to_vec()).filter(|text| !text.is_empty())
        }),
    };
    let Some(text) = text else { return Ok(None) };
    // What is none there is as good as nothing: it may come from another server.
    note(r, &text, Position::parse(&text).map_err(|_| BadId)).or(Ok(None))
}

fn note(r: &mut Request, text: &[u8], position: Result<Position, BadId>) -> Result<Option<Position>, BadId> {
    let position = position?;
    r.channels().before = text.to_vec();
    Ok(Some(position))
}

/// `last_event_id=` in the query.
fn argument(r: &Request) -> Option<Vec<u8>> {
    let mut pairs = r.get(r.head.args).split(|b| *b == b'&');
    let value = pairs.find_map(|pair| pair.strip_prefix(b"last_event_id="))?;
    let mut decoded = Vec::with_capacity(value.len());
    let mut rest = value;
    while let [first, more @ ..] = rest {
        match (first, more) {
            (b'%', [a, b, after @ ..]) if a.is_ascii_hexdigit() && b.is_ascii_hexdigit() => {
                let digit = |d: u8| (d as char).to_digit(16).unwrap_or(0) as u8;
                decoded.push(digit(*a) << 4 | digit(*b));
                rest = after;
            }
            _ => {
                decoded.push(*first);
                rest = more;
            }
        }
    }
    Some(decoded)
}

/// A proxy may have made an entity tag of it: `W/"3"`.
fn unquoted(tag: &[u8]) -> &[u8] {
    let tag = tag.strip_prefix(b"W/").unwrap_or(tag);
    tag.strip_prefix(b"\"").and_then(|t| t.strip_suffix(b"\"")).unwrap_or(tag)
}

/// Where a subscriber begins.
pub(super) fn start<'p>(conf: &Conf, position: Option<&'p Position>) -> Start<'p> {
    match (position, *conf.first_message) {
        (Some(position), _) => Start::After(position),
        (None, 0) => Start::Newest,
        (None, number) => Start::Number(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_split_and_tags_are_unquoted() {
        let mut all = Vec::new();
        split(b"a::b::", b"::", &mut all);
        assert_eq!(all, [b"a".as_slice().into(), b"b".as_slice().into(), Box::<[u8]>::default()]);
        assert_eq!([unquoted(b"W/\"3\""), unquoted(b"\"[1],-\""), unquoted(b"7")], [&b"3"[..], b"[1],-", b"7"]);
    }
}
