//! The content handler: who comes to a location of channels, and what he gets. To: `publish`, `subscribe`.

use super::feed::Kind;
use super::{Conf, answer, groups, names, publish, subscribe};
use crate::request::headers::KnownHeader as K;
use crate::request::phases::{Verdict, Waiting};
use crate::request::{Method, Request, Version};

const FOR_SUBSCRIBERS: &str = "If-None-Match, If-Modified-Since, Content-Type, Cache-Control, X-EventSource-Event";
const FOR_PUBLISHERS: &str = "Content-Type";
const ALL_METHODS: &str = "GET, POST, PUT, DELETE";

/// The content handler.
pub(super) fn run(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move { handle(r).await.unwrap_or_else(|verdict| verdict) })
}

async fn handle(r: &mut Request) -> Result<Verdict, Verdict> {
    let snapshot = r.snapshot.clone();
    let conf = &*snapshot.location(r.location).conf.nchan;
    r.answer.disable_not_modified = true;
    if !answer::admit_origin(r, conf) {
        return Ok(answer::empty(r, 403));
    }
    groups::set_limits(r, conf)?;
    if is_websocket(r) {
        return if conf.subscribers.websocket {
            subscribe::websocket(r, conf).await
        } else if conf.publishers.websocket {
            publish::websocket(r, conf).await
        } else {
            Ok(answer::empty(r, 403))
        };
    }
    match r.head.method {
        Method::Get => match kind(r, conf) {
            Some(kind) => subscribe::http(r, conf, kind).await,
            None if conf.publishers.http => publish::http(r, conf).await,
            None => Ok(answer::empty(r, 403)),
        },
        Method::Head | Method::Post | Method::Put | Method::Delete if conf.publishers.http => {
            publish::http(r, conf).await
        }
        Method::Options => match (conf.publishers.http, conf.subscribers.any()) {
            (true, true) => Ok(answer::options(r, FOR_SUBSCRIBERS, ALL_METHODS)),
            (true, false) => Ok(answer::options(r, FOR_PUBLISHERS, ALL_METHODS)),
            (false, _) => Ok(answer::options(r, FOR_SUBSCRIBERS, "GET")),
        },
        _ => Ok(answer::empty(r, 403)),
    }
}

/// Message ids that are none (`nchan_subscriber_get_msg_id`).
pub(super) fn bad_id(r: &mut Request) -> Verdict {
    answer::plain(r, 400, "Message ID invalid")
}

/// Which kind of subscriber a GET is, of those that the location takes.
fn kind(r: &Request, conf: &Conf) -> Option<Kind> {
    let may = conf.subscribers;
    if may.eventsource && accepts(r, b"text/event-stream") {
        Some(Kind::EventSource)
    } else if may.chunked && r.downstream.http1().is_some() && wants_chunks(r) {
        Some(Kind::Chunked)
    } else if may.multipart && accepts(r, b"multipart/mixed") {
        Some(Kind::Multipart)
    } else if may.intervalpoll {
        Some(Kind::IntervalPoll)
    } else if may.raw {
        Some(Kind::Raw)
    } else if may.longpoll {
        Some(Kind::LongPoll)
    } else {
        None
    }
}

fn accepts(r: &Request, kind: &[u8]) -> bool {
    let Some(accept) = r.head.headers.find(K::Accept) else { return false };
    let kinds = r.get(accept).split(|b| *b == b',').map(|part| part.split(|b| *b == b';').next().unwrap_or(part));
    kinds.into_iter().any(|named| named.trim_ascii().eq_ignore_ascii_case(kind))
}

/// `TE: chunked`, unless its weight is 0.
fn wants_chunks(r: &Request) -> bool {
    let Some(te) = r.head.headers.find(K::Te) else { return false };
    r.get(te).split(|b| *b == b',').any(|part| {
        let mut words = part.split(|b| *b == b';').map(<[u8]>::trim_ascii);
        let is_chunked = words.next().is_some_and(|name| name.eq_ignore_ascii_case(b"chunked"));
        is_chunked && !words.any(|w| matches!(w, b"q=0" | b"q=0." | b"q=0.0" | b"q=0.00" | b"q=0.000"))
    })
}

/// RFC 6455 section 4.2.1, as far as it tells such a request from others.
pub(super) fn is_websocket(r: &Request) -> bool {
    let names =
        |value: &[u8], token: &[u8]| value.split(|b| *b == b',').any(|t| t.trim_ascii().eq_ignore_ascii_case(token));
    let has = |known, token: &[u8]| r.head.headers.find(known).is_some_and(|v| names(r.get(v), token));
    let may = r.head.method == Method::Get && r.head.version >= Version::HTTP11 && r.downstream.http1().is_some();
    may && has(K::Upgrade, b"websocket") && has(K::Connection, b"upgrade")
}

/// Which message the client has had last. On `Err` it has been answered.
pub(super) fn position(r: &mut Request, conf: &Conf) -> Result<Option<push::Position>, Verdict> {
    match names::position(r, conf) {
        Ok(position) => Ok(position),
        Err(names::BadId) => Err(bad_id(r)),
    }
}
