//! Subscribers: who may be one, from which message on, and the answers that are made by the request itself: polls, and streams where the
//! connection is not held. To: `held`.

use super::feed::{Boundary, Feed, Kind, Over, Piece, Turn};
use super::hub::{self, Listening};
use super::info::Said;
use super::publish::Publisher;
use super::{Conf, Together, answer, handler, held, hooks, names, redis, websocket};
use crate::log_error;
use crate::request::chunk::Chunk;
use crate::request::headers::KnownHeader as K;
use crate::request::held::may_hold;
use crate::request::phases::Verdict;
use crate::request::{Request, Text, body, flow};
use push::{Message, Next, Options, Refused};
use runtime::timer::Timer;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

/// A subscriber over HTTP.
pub(super) async fn http(r: &mut Request, conf: &Conf, kind: Kind) -> Result<Verdict, Verdict> {
    let position = handler::position(r, conf)?;
    let mut feed = subscribe(r, conf, kind, position.as_ref()).await?;
    match kind {
        Kind::LongPoll | Kind::IntervalPoll => poll(r, conf, feed).await,
        Kind::Multipart => {
            feed.set_boundary(boundary());
            stream(r, conf, feed).await
        }
        _ => stream(r, conf, feed).await,
    }
}

/// A subscriber over WebSocket, which may also publish where the location lets it.
pub(super) async fn websocket(r: &mut Request, conf: &Conf) -> Result<Verdict, Verdict> {
    let position = handler::position(r, conf)?;
    let kind = if websocket::wants_meta(r) { Kind::WebSocketMeta } else { Kind::WebSocket };
    websocket::check(r)?;
    let mut feed = subscribe(r, conf, kind, position.as_ref()).await?;
    let publisher = match conf.publishers.websocket {
        true => {
            let ids = r.channels().ids.clone();
            let names = names::channels(r, conf, &conf.publisher_ids)?;
            let publisher = Publisher::of(r, conf, names)?;
            r.channels().ids = ids;
            Some(publisher)
        }
        false => None,
    };
    let protocol = (kind == Kind::WebSocketMeta).then_some(websocket::META);
    let extension = websocket::extension(r, conf);
    websocket::shake_hands(r, protocol, extension.as_deref()).await?;
    feed.deflated = extension.is_some();
    Ok(held::websocket(r, Some(feed), publisher, extension.is_some()))
}

/// Makes the client a subscriber. On `Err` it has been answered.
async fn subscribe(
    r: &mut Request,
    conf: &Conf,
    kind: Kind,
    position: Option<&push::Position>,
) -> Result<Feed, Verdict> {
    let names = names::channels(r, conf, &conf.subscriber_ids)?;
    r.channels().subscriber = kind.name();
    hooks::authorize(r, conf).await?;
    let options = Options {
        existing_only: *conf.existing_only,
        max_subscribers: *conf.max_channel_subscribers,
        accounting: *conf.accounting,
        channel_timeout: conf.channel_timeout.as_secs() as i64,
    };
    if let Some(backend) = redis::backend::of(r, conf)
        && let Err(why) = backend.follow(&names, *conf.redis_idle).await
    {
        answer::vary(r);
        return Err(refused(r, why));
    }
    let names: Vec<&[u8]> = names.iter().map(|name| &**name).collect();
    let start = names::start(conf, position);
    match hub::store().subscribe(&names, &start, &hub::mailbox(), options, hub::now()) {
        Ok(subscription) => {
            hooks::event(r, conf, "subscriber_enqueue");
            if !matches!(kind, Kind::LongPoll | Kind::IntervalPoll) {
                hooks::tell(r, &conf.subscribe);
            }
            let mut feed = Feed::new(Listening::new(subscription), kind, conf);
            feed.say_of_itself(said_of(r, conf, &names));
            Ok(feed)
        }
        Err(why) => {
            answer::vary(r);
            Err(refused(r, why))
        }
    }
}

/// What the client says of itself, where some location shows that.
fn said_of(r: &mut Request, conf: &Conf, names: &[&[u8]]) -> Option<Said> {
    let snapshot = r.snapshot.clone();
    let usual = snapshot.main.nchan.info.as_ref()?;
    let text = if conf.info_string.is_empty() { usual.eval(r) } else { conf.info_string.eval(r) };
    Said::new(names, r.get(text))
}

fn refused(r: &mut Request, why: Refused) -> Verdict {
    answer::refused(r, why)
}

/// One message: now, or when there is one.
async fn poll(r: &mut Request, conf: &Conf, mut feed: Feed) -> Result<Verdict, Verdict> {
    match feed.message() {
        Ok(Some(message)) => return Ok(give(r, conf, &mut feed, message)),
        Ok(None) if feed.kind() == Kind::IntervalPoll => return Ok(not_yet(r, conf)),
        Ok(None) => {}
        Err(over) => return Ok(over_poll(r, over)),
    }
    if r.body.is_pending() && !body::discard(r).await {
        return Err(Verdict::Broken);
    }
    if may_hold(r) && r.downstream.is_quiet() {
        return Ok(held::poll(r, feed));
    }
    let timer = Timer::new();
    let got = poll_fn(|cx| {
        if is_gone(r, cx) {
            return Poll::Ready(None);
        }
        match poll_message(&mut feed, &timer, cx) {
            Poll::Ready(got) => Poll::Ready(Some(got)),
            Poll::Pending => Poll::Pending,
        }
    });
    match got.await {
        Some(got) => Ok(answer_poll(r, conf, &mut feed, got)),
        None => Ok(gone(r, conf)),
    }
}

/// Waits for a message.
pub(super) fn poll_message(feed: &mut Feed, timer: &Timer, cx: &mut Context<'_>) -> Poll<Result<Arc<Message>, Over>> {
    loop {
        match feed.message() {
            Ok(Some(message)) => return Poll::Ready(Ok(message)),
            Err(over) => return Poll::Ready(Err(over)),
            Ok(None) => {}
        }
        let Some(rest) = feed.rest() else { return Poll::Pending };
        timer.set(rest);
        std::task::ready!(timer.poll_expired(cx));
    }
}

/// Answers a poll that has waited.
pub(super) fn answer_poll(r: &mut Request, conf: &Conf, feed: &mut Feed, got: Result<Arc<Message>, Over>) -> Verdict {
    let verdict = match got {
        Ok(message) => give(r, conf, feed, message),
        Err(over) => over_poll(r, over),
    };
    hooks::event(r, conf, "subscriber_dequeue");
    verdict
}

/// The client has closed its connection while it waited: 499.
pub(super) fn gone(r: &mut Request, conf: &Conf) -> Verdict {
    log_error!(r, Info, "client prematurely closed connection while waiting for a message");
    hooks::event(r, conf, "subscriber_dequeue");
    r.answer.headers.status = 499;
    Verdict::Broken
}

fn is_gone(r: &mut Request, cx: &mut Context<'_>) -> bool {
    r.downstream.poll_gone(cx).is_ready()
}

/// What there is beside the first message, for the same answer: where the location gives several at once (`nchan_longpoll_multipart_response`).
fn more_of(conf: &Conf, feed: &mut Feed, first: &Message) -> Vec<Arc<Message>> {
    let mut more = Vec::new();
    if *conf.longpoll_multipart == Together::Off || feed.kind() != Kind::LongPoll {
        return more;
    }
    let mut bytes = first.data().len();
    // Deleted, or lost: the next poll is told.
    while more.len() + 1 < MAX_TOGETHER
        && bytes < MAX_TOGETHER_BYTES
        && let Next::Message(message) = feed.listening.subscription.next(hub::now())
    {
        bytes += message.data().len();
        more.push(message);
    }
    more
}

/// Several messages as one body: parts of multipart/mixed, or with nchan's separator behind each.
fn together<'m>(r: &mut Request, conf: &Conf, all: impl Iterator<Item = &'m Arc<Message>>) -> Vec<u8> {
    let mut out = Vec::new();
    if *conf.longpoll_multipart == Together::Raw {
        all.for_each(|message| out.extend([message.data(), &conf.separator].concat()));
        return out;
    }
    let letters = boundary();
    for (number, message) in all.enumerate() {
        let before: &[u8] = if number > 0 { b"\r\n--" } else { b"--" };
        out.extend([before, &letters].concat());
        if !message.content_type().is_empty() {
            out.extend([b"\r\nContent-Type: ", message.content_type()].concat());
        }
        out.extend([b"\r\n\r\n", message.data()].concat());
    }
    out.extend([&b"\r\n--"[..], &letters, b"--\r\n"].concat());
    r.answer.headers.content_type = Some(r.text(&[MULTIPART, &letters].concat()));
    out
}

fn give(r: &mut Request, conf: &Conf, feed: &mut Feed, message: Arc<Message>) -> Verdict {
    let more = more_of(conf, feed, &message);
    // The request's conditions are its place in the channel. A poll that has been parked or has come from another process
    // has a request of its own here, so it is not enough to have said it at the beginning.
    r.answer.disable_not_modified = true;
    let subscription = &feed.listening.subscription;
    let (mut tags, time) = (Vec::new(), subscription.time());
    match *conf.compound_etag {
        true => subscription.write_id(&mut tags),
        false => {
            subscription.write_tags(&mut tags);
            r.answer.headers.last_modified = Some(time);
        }
    }
    subscription.write_id(&mut r.channels().message);
    tag(r, conf, &tags);
    answer::vary(r);
    r.answer.headers.content_type = None;
    if !more.is_empty() {
        let body = together(r, conf, std::iter::once(&message).chain(&more));
        return r.respond(200, &body);
    }
    if !message.content_type().is_empty() {
        r.answer.headers.content_type = Some(r.text(message.content_type()));
    }
    r.respond(200, message.data())
}

/// The id of a message, for the next poll.
fn tag(r: &mut Request, conf: &Conf, tags: &[u8]) {
    let value = r.text(tags);
    let exposed = match &**conf.etag_header {
        b"" => {
            r.answer.headers.add(K::Etag, "Etag", value);
            Text::from("Last-Modified, Etag, Content-Type")
        }
        name => {
            let name = r.text(name);
            r.answer.headers.push(name, value);
            let exposed = [b"Last-Modified, Content-Type, ", r.get(name)].concat();
            r.text(&exposed)
        }
    };
    if r.head.headers.find(K::Origin).is_some() {
        r.answer.headers.push(Text::from("Access-Control-Expose-Headers"), exposed);
    }
}

/// 304: there is no message yet. The client's ids are still good.
fn not_yet(r: &mut Request, conf: &Conf) -> Verdict {
    let before = r.channels().before.clone();
    if let Ok(position) = push::Position::parse(&before) {
        let colon = before.iter().position(|b| *b == b':').map_or(0, |at| at + 1);
        match *conf.compound_etag {
            true => tag(r, conf, &before),
            false => {
                r.answer.headers.last_modified = Some(position.time);
                tag(r, conf, &before[colon..]);
            }
        }
    }
    answer::vary(r);
    r.answer.headers.content_type = None;
    answer::empty(r, 304)
}

fn over_poll(r: &mut Request, over: Over) -> Verdict {
    answer::vary(r);
    // Who asks again on this connection would be told the same.
    r.flow.keepalive &= !crate::worker::has_left();
    match over {
        Over::Deleted => answer::empty(r, 410),
        Over::Late => answer::empty(r, 408),
        // The next poll begins with what is there.
        Over::Lost | Over::Leaving => answer::empty(r, 304),
    }
}

/// An answer that goes on as long as the client stays.
async fn stream(r: &mut Request, conf: &Conf, mut feed: Feed) -> Result<Verdict, Verdict> {
    if r.body.is_pending() && !body::discard(r).await {
        return Err(Verdict::Broken);
    }
    let kind = match feed.kind() {
        Kind::EventSource => Some(Text::from("text/event-stream; charset=utf-8")),
        Kind::Multipart => {
            let text = [MULTIPART, feed.boundary()].concat();
            Some(r.text(&text))
        }
        _ => None,
    };
    r.answer.headers.status = 200;
    r.answer.headers.content_type = kind;
    r.answer.headers.content_length = None;
    r.answer.unbuffered = true;
    r.send_header()?;
    if r.answer.header_only {
        r.answer.done = true;
        return Ok(Verdict::Answered);
    }
    if may_hold(r) && flow::rate(r).0 == 0 {
        if flow::flush_rest(r).await.is_err() {
            return Err(Verdict::Broken);
        }
        return Ok(held::stream(r, feed));
    }
    let over = send_all(r, conf, &mut feed).await;
    ended(r, conf);
    let over = over?;
    if over == Over::Lost {
        too_slow(r, LOST);
    }
    let words = feed.last_words(over).map_or(Vec::new(), |piece| piece.bytes().to_vec());
    r.send_body(Chunk::Bytes(&words), true)?;
    Ok(Verdict::Answered)
}

/// Sends what comes until there is an end. On `Err` the client is gone.
async fn send_all(r: &mut Request, conf: &Conf, feed: &mut Feed) -> Result<Over, Verdict> {
    if let Some(piece) = feed.first_words() {
        send(r, &piece).await?;
    }
    let timer = Timer::new();
    loop {
        let turn = poll_fn(|cx| {
            if is_gone(r, cx) {
                return Poll::Ready(Err(Verdict::Broken));
            }
            loop {
                match feed.turn(conf) {
                    Turn::Nothing => {}
                    Turn::Piece(piece) => return Poll::Ready(Ok(Ok(piece))),
                    Turn::Over(over) => return Poll::Ready(Ok(Err(over))),
                }
                let Some(rest) = feed.rest() else { return Poll::Pending };
                timer.set(rest);
                std::task::ready!(timer.poll_expired(cx));
            }
        });
        match turn.await? {
            Ok(piece) => send(r, &piece).await?,
            Err(over) => return Ok(over),
        }
    }
}

async fn send(r: &mut Request, piece: &Piece) -> Result<(), Verdict> {
    r.send_body(Chunk::Bytes(piece.bytes()), false)?;
    flow::flush(r).await
}

/// A subscriber has gone: who wants to know is told.
pub(super) fn ended(r: &mut Request, conf: &Conf) {
    hooks::event(r, conf, "subscriber_dequeue");
    hooks::tell(r, &conf.unsubscribe);
}

/// A subscriber is dropped, since messages that it has not had are gone, or it takes none.
pub(super) fn too_slow(r: &Request, why: &str) {
    hub::DROPPED.fetch_add(1, Relaxed);
    log_error!(r, Warn, "a subscriber is too slow: {why}, and is dropped");
}

/// Why, of one that is too far behind.
pub(super) const LOST: &str = "messages are gone that it has not had";

/// Before the letters between parts.
const MULTIPART: &[u8] = b"multipart/mixed; boundary=";
/// Messages in one answer of a long-poll, and bytes of them about: the next poll gets more.
const MAX_TOGETHER: usize = 1000;
const MAX_TOGETHER_BYTES: usize = 1024 * 1024;

fn boundary() -> Boundary {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    let mut bytes: Boundary = [0; 32];
    // Without randomness it is still one that no message is likely to have.
    let _ = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    bytes.map(|b| LETTERS[usize::from(b & 63)])
}
