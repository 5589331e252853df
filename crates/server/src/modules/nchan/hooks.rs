//! What others are asked or told by subrequests: may he come (`nchan_authorize_request`), what becomes of his message
//! (`nchan_publisher_upstream_request`), that he has come or gone; and the messages of channels about channels.

use super::{Conf, hub, names};
use crate::config::complex::Complex;
use crate::log_error;
use crate::request::body::Stored;
use crate::request::finish::split_args;
use crate::request::headers::{HeaderOut, KnownHeader};
use crate::request::phases::Verdict;
use crate::request::subrequest::{self, Mode, Options};
use crate::request::{Method, Request, Text};
use push::{Draft, Keep};
use std::rc::Rc;

/// Messages of channels about channels that are kept, and how long, s.
const EVENTS: Keep = Keep { length: 10, seconds: 3600, accounting: false, channel_timeout: 5 };

/// `nchan_authorize_request`: on `Err` the client has got what the authority said.
pub(super) async fn authorize(r: &mut Request, conf: &Conf) -> Result<(), Verdict> {
    if conf.authorize.is_empty() {
        return Ok(());
    }
    let (uri, args) = target(r, &conf.authorize);
    let options = Options { mode: Mode::Capture, with_body: false, get: true };
    let mut child = subrequest::run(r, uri, args, options).await?;
    match child.answer.headers.status {
        200..300 => Ok(()),
        _ => Err(pass_on(r, &mut child)),
    }
}

/// The same for who is no request any more: the status of who was asked, 200 where nobody is.
pub(super) async fn status_of_authority(r: &mut Request, conf: &Conf) -> u16 {
    if conf.authorize.is_empty() {
        return 200;
    }
    let (uri, args) = target(r, &conf.authorize);
    let options = Options { mode: Mode::Discard, with_body: false, get: true };
    match subrequest::run(r, uri, args, options).await {
        Ok(child) => child.answer.headers.status,
        Err(Verdict::Status(status)) => status,
        Err(_) => 500,
    }
}

/// What becomes of a message.
pub(super) enum Forwarded {
    /// It is published as it is.
    Same,
    /// This is published in its place.
    Other(Vec<u8>),
    /// Nothing is.
    Nothing,
}

/// `nchan_publisher_upstream_request`: on `Err` the client has got what was answered.
pub(super) async fn forward(r: &mut Request, conf: &Conf, message: &[u8]) -> Result<Forwarded, Verdict> {
    match ask(r, conf, message).await {
        Ok(forwarded) => Ok(forwarded),
        Err(Refusal::Child(mut child)) => Err(pass_on(r, &mut child)),
        Err(Refusal::Verdict(verdict)) => Err(verdict),
    }
}

/// Why a message is not published.
pub(super) enum Refusal {
    /// This is what was answered.
    Child(Box<Request>),
    /// Nobody could be asked.
    Verdict(Verdict),
}

/// Asks with the message as the body of a POST.
pub(super) async fn ask(r: &mut Request, conf: &Conf, message: &[u8]) -> Result<Forwarded, Refusal> {
    let (uri, args) = target(r, &conf.upstream);
    let len = message.len() as u64;
    let stored = Rc::new(Stored { memory: message.to_vec(), file: None, len });
    let before =
        (r.head.method, r.head.method_name, r.body.stored.replace(stored), r.head.headers.content_length.replace(len));
    (r.head.method, r.head.method_name) = (Method::Post, Text::from("POST"));
    let options = Options { mode: Mode::Capture, with_body: true, get: false };
    let asked = subrequest::run(r, uri, args, options).await;
    (r.head.method, r.head.method_name, r.body.stored, r.head.headers.content_length) = before;
    let mut child = asked.map_err(Refusal::Verdict)?;
    match child.answer.headers.status {
        304 => Ok(Forwarded::Same),
        204 => Ok(Forwarded::Nothing),
        200..300 => Ok(Forwarded::Other(body_of(&mut child))),
        _ => Err(Refusal::Child(child)),
    }
}

/// `nchan_subscribe_request`, `nchan_unsubscribe_request`: nobody waits for an answer.
pub(super) fn tell(r: &mut Request, whom: &Complex) {
    if whom.is_empty() {
        return;
    }
    let (uri, args) = target(r, whom);
    let options = Options { mode: Mode::Discard, with_body: false, get: true };
    if subrequest::spawn(r, uri, args, options).is_err() {
        log_error!(r, Error, "nobody is told of a subscriber: too many subrequests");
    }
}

/// `nchan_channel_events_channel_id`: says in the channel about this one what has happened.
pub(super) fn event(r: &mut Request, conf: &Conf, what: &'static str) {
    if conf.events_id.is_empty() {
        return;
    }
    r.channels().event = what;
    let id = conf.events_id.eval(r);
    let text = match conf.event_string.is_empty() {
        false => {
            let text = conf.event_string.eval(r);
            r.get(text).to_vec()
        }
        true => [what.as_bytes(), b" ", &r.channels().ids.join(&b' ')].concat(),
    };
    let (name, draft) = (names::meta(r.get(id)), Draft { data: &text, ..Draft::default() });
    if let Err(refused) = hub::store().publish(&name, draft, EVENTS, hub::now()) {
        log_error!(r, Warn, "a channel event is lost: {}", super::answer::reason(refused));
    }
}

fn target(r: &mut Request, uri: &Complex) -> (Text, Text) {
    let uri = uri.eval(r);
    split_args(r, uri)
}

fn body_of(child: &mut Request) -> Vec<u8> {
    child.downstream.take_captured().unwrap_or_default()
}

/// Lines of an answer that are about its way here, or about a body of which this may be another part.
const OF_THE_WAY: [KnownHeader; 8] = [
    KnownHeader::AcceptRanges,
    KnownHeader::Connection,
    KnownHeader::ContentLength,
    KnownHeader::KeepAlive,
    KnownHeader::Te,
    KnownHeader::Trailer,
    KnownHeader::TransferEncoding,
    KnownHeader::Upgrade,
];

/// The client gets the answer of whom we asked, all of it: a redirect has its `Location`, a login its cookies. What the request's own answer
/// says already (`Access-Control-Allow-Origin`) it says once.
fn pass_on(r: &mut Request, child: &mut Request) -> Verdict {
    let (status, body) = (child.answer.headers.status, body_of(child));
    log_error!(
        r,
        Info,
        "the request was refused with {status} by \"{}\"",
        String::from_utf8_lossy(r.get(child.head.uri))
    );
    let (from, to) = (&child.answer.headers, &mut r.answer.headers);
    (to.content_type, to.charset, to.written) = (from.content_type, from.charset, from.written);
    (to.last_modified, to.status_line) = (from.last_modified, from.status_line);
    let own = to.lines.len();
    for line in &from.lines {
        let is_said = |own: &HeaderOut| r.arena.get(own.name).eq_ignore_ascii_case(r.arena.get(line.name));
        if !OF_THE_WAY.contains(&line.known) && !to.lines[..own].iter().any(is_said) {
            to.lines.push(*line);
        }
    }
    r.respond(status, &body)
}
