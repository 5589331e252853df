//! Subscribers whose connection is held without a request (docs/push.md): what waits for a message is this, parked where that can be
//! (`parked.rs`), or with a task. From: `subscribe`, `publish`. Around: `request::held`.

use super::feed::{Feed, Over, Piece, Turn};
use super::frames::{Came, Inbox};
use super::hooks::{self, Forwarded};
use super::publish::Publisher;
use super::redis;
use super::redis::backend::Backend;
use super::{Conf, answer, parked, subscribe};
use crate::connection::pool;
use crate::connection::socket::Socket;
use crate::log_error;
use crate::modules::LocationConf;
use crate::request::Request;
use crate::request::held::{Kept, hold};
use crate::request::phases::{Back, GoOn, Released, Verdict};
use crate::worker::departure;
use push::Message;
use runtime::clock;
use runtime::timer::Timer;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use wire::websocket as frame;

/// A long-poll that waits.
pub(super) fn poll(r: &mut Request, feed: Feed) -> Verdict {
    begin(r, Held::new(Some(feed)))
}

/// A stream of messages.
pub(super) fn stream(r: &mut Request, mut feed: Feed) -> Verdict {
    let is_chunked = r.downstream.is_chunked();
    if is_chunked {
        feed.in_chunks();
    }
    nodelay(r);
    let first = feed.first_words();
    let mut held = Held::new(Some(feed));
    first.into_iter().for_each(|piece| held.say(piece));
    begin(r, held)
}

/// A WebSocket: of a subscriber, a publisher, or both.
pub(super) fn websocket(
    r: &mut Request,
    feed: Option<Feed>,
    publisher: Option<Publisher>,
    is_deflated: bool,
) -> Verdict {
    nodelay(r);
    let inbox = Inbox::new(is_deflated);
    let frames = publisher.map(|publisher| Frames { inbox, publisher: Some(publisher) });
    begin(r, Held { frames: frames.map(Box::new), ..Held::new(feed) })
}

pub(super) fn nodelay(r: &mut Request) {
    if *r.conf().core.tcp_nodelay {
        r.downstream.set_nodelay();
    }
}

fn begin(r: &mut Request, mut held: Held) -> Verdict {
    hold(r, |mut kept, socket| {
        if held.hears() {
            held.hear(&kept.take_early());
        }
        match parked::ready(&kept, socket) {
            Ok(ready) => {
                parked::park(kept, ready, held);
                Box::pin(async { Released::Parked })
            }
            Err(socket) => Box::pin(run(Whole::new(kept, socket, held))),
        }
    })
}

/// What a subscriber is, whether it is parked or has a task. Small: there may be millions.
pub(super) struct Held {
    /// What comes to it; none of who only publishes.
    feed: Option<Feed>,
    /// What it sends, if that is of interest: it publishes, or has begun to say something.
    frames: Option<Box<Frames>>,
    /// What comes before anything else.
    first: Option<Box<First>>,
}

#[derive(Default)]
struct First {
    /// Is said.
    out: Option<Piece>,
    /// Then everything is over.
    over: Option<End>,
}

struct Frames {
    inbox: Inbox,
    publisher: Option<Publisher>,
}

/// Why the request is wanted again.
pub(super) enum End {
    /// A long-poll has its message, or will have none.
    Got(Result<Arc<Message>, Over>),
    /// Nothing more comes.
    Over(Over),
    /// The client has said goodbye, or broken a rule, and was told so.
    Closed,
    /// The client is gone.
    Gone(Option<io::Error>),
    /// It has not taken anything for `send_timeout`.
    Stalled,
    /// It has sent a message that others are asked about first.
    Message(Vec<u8>, bool),
    /// It could not be parked, and waits on.
    Unparked,
}

/// What is next.
pub(super) enum Step {
    Say(Piece),
    /// Until a message comes, or this time (monotonic ms).
    Rest(Option<u64>),
    End,
}

/// One with a task.
struct Whole {
    kept: Box<Kept>,
    socket: Socket,
    timer: Timer,
    held: Held,
    /// What is being written, and how far.
    out: Option<Piece>,
    at: usize,
    /// When the client last took something of that, ms.
    took_ms: u64,
    /// It is to go on in another process.
    departs: bool,
}

async fn run(mut whole: Box<Whole>) -> Released {
    poll_fn(|cx| whole.poll(cx)).await;
    let Whole { kept, socket, held, out, at, departs, .. } = *whole;
    let (kept, socket, mut held) = match departs {
        true => match parked::depart(kept, socket, held, out.as_ref().map_or(&[][..], |out| &out.bytes()[at..])) {
            Ok(()) => return Released::Parked,
            Err(here) => *here,
        },
        false => (kept, socket, held),
    };
    if departs {
        held.refuse();
    }
    Released::Back(Back { request: kept.back(socket), go_on: held.go_on() })
}

impl Held {
    fn new(feed: Option<Feed>) -> Held {
        Held { feed, frames: None, first: None }
    }

    /// Who it listens by.
    pub(super) fn feed_mut(&mut self) -> Option<&mut Feed> {
        self.feed.as_mut()
    }

    /// Its feed.
    pub(super) fn feed(&self) -> Option<&Feed> {
        self.feed.as_ref()
    }

    /// What it takes as long as nothing is under way, bytes.
    pub(super) fn bytes(&self) -> usize {
        let publisher = self.frames.as_ref().and_then(|frames| frames.publisher.as_ref());
        let names =
            publisher.map(|p| size_of::<Frames>() + p.names.iter().map(|n| size_of_val(n) + n.len()).sum::<usize>());
        size_of::<Held>() + names.unwrap_or(0)
    }

    /// Whether it is a WebSocket: what the client says is of interest, not only its end.
    pub(super) fn hears(&self) -> bool {
        self.feed.as_ref().is_none_or(|feed| feed.kind().is_websocket())
    }

    /// For another process; none: it is about to end. `rest` is what is left of what it was saying.
    pub(super) fn travel(&mut self, rest: &[u8], mut w: heir::Writer) -> Option<Vec<u8>> {
        if !self.may_go() {
            return None;
        }
        if !rest.is_empty() {
            let first = self.first.get_or_insert_default();
            let next = first.out.take();
            first.out = Some(Piece::Bytes([rest, next.as_ref().map_or(&[][..], Piece::bytes)].concat().into()));
        }
        let first = self.first.as_ref().and_then(|first| first.out.as_ref());
        w.bytes(first.map_or(&[][..], Piece::bytes));
        w.flag(self.feed.is_some());
        self.feed.iter().for_each(|feed| feed.write(&mut w));
        w.flag(self.frames.is_some());
        if let Some(frames) = &self.frames {
            frames.inbox.write(&mut w);
            w.flag(frames.publisher.is_some());
            frames.publisher.iter().for_each(|publisher| publisher.write(&mut w));
        }
        Some(w.done())
    }

    /// Whether it can go on in another process: it has not come to its end.
    pub(super) fn may_go(&self) -> bool {
        self.first.as_ref().is_none_or(|first| first.over.is_none())
    }

    /// What [`Held::travel`] of another process wrote, for a location of this one; none: it was something else, or the location is none
    /// for it.
    pub(super) fn arrive(r: &mut heir::Reader<'_>, conf: &Conf, backend: Option<&Backend>) -> Option<Held> {
        let out = r.bytes()?;
        let mut held = Held::new(None);
        if r.flag()? {
            held.feed = Some(Feed::read(r, conf, backend)?);
        }
        if r.flag()? {
            let inbox = Inbox::read(r)?;
            let publisher = match r.flag()? {
                true => Some(Publisher::read(r, conf, backend).filter(|_| conf.publishers.websocket)?),
                false => None,
            };
            held.frames = Some(Box::new(Frames { inbox, publisher }));
        }
        if !out.is_empty() {
            held.say(Piece::Bytes(out.into()));
        }
        (r.is_done() && (held.feed.is_some() || held.frames.is_some())).then_some(held)
    }

    /// It has no place in the process that goes on, and is told so.
    pub(super) fn refuse(&mut self) {
        let Some(feed) = &self.feed else {
            self.close(1001, "going away");
            return self.end(End::Over(Over::Leaving));
        };
        if feed.kind() == super::feed::Kind::LongPoll {
            return self.end(End::Got(Err(Over::Leaving)));
        }
        if let Some(words) = feed.last_words(Over::Leaving) {
            let out = self.first.take().and_then(|first| first.out);
            let all = [out.as_ref().map_or(&[][..], Piece::bytes), words.bytes()].concat();
            self.say(Piece::Bytes(all.into()));
        }
        self.end(End::Over(Over::Leaving));
    }

    /// The client has said this.
    pub(super) fn hear(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            let may_inflate = self.feed.as_ref().is_some_and(|feed| feed.deflated);
            let frames =
                self.frames.get_or_insert_with(|| Box::new(Frames { inbox: Inbox::new(may_inflate), publisher: None }));
            frames.inbox.push(bytes);
        }
    }

    fn say(&mut self, piece: Piece) {
        self.first.get_or_insert_default().out = Some(piece);
    }

    /// It is over, once what is to be said is.
    pub(super) fn end(&mut self, end: End) {
        self.first.get_or_insert_default().over = Some(end);
    }

    /// It is over at once.
    pub(super) fn end_now(&mut self, end: End) {
        self.first = Some(Box::new(First { out: None, over: Some(end) }));
    }

    fn close(&mut self, code: u16, reason: &str) {
        let mut out = Vec::new();
        frame::write_close(code, reason.as_bytes(), &mut out);
        self.say(Piece::Bytes(out.into()));
    }

    /// What it is about to say or be, whoever else says what.
    fn first(&mut self, conf: &LocationConf) -> Option<Step> {
        loop {
            if let Some(first) = &mut self.first {
                if let Some(piece) = first.out.take() {
                    return Some(Step::Say(piece));
                }
                if first.over.is_some() {
                    return Some(Step::End);
                }
                self.first = None;
            }
            self.take_frame(conf);
            self.first.as_ref()?;
        }
    }

    /// What is next. [`Step::End`] is so from then on.
    pub(super) fn next(&mut self, conf: &LocationConf) -> Step {
        loop {
            if let Some(step) = self.first(conf) {
                return step;
            }
            let Some(feed) = &mut self.feed else {
                if !crate::worker::draining() {
                    return Step::Rest(None);
                }
                self.close(1001, "going away");
                self.end(End::Over(Over::Leaving));
                continue;
            };
            if feed.kind() == super::feed::Kind::LongPoll {
                match feed.message().transpose() {
                    None if crate::worker::has_left() => self.refuse(),
                    None => return Step::Rest(feed.rest_until()),
                    Some(got) => self.end(End::Got(got)),
                }
                continue;
            }
            match feed.turn(&conf.nchan) {
                Turn::Piece(piece) => return Step::Say(piece),
                Turn::Nothing if crate::worker::has_left() => self.refuse(),
                Turn::Nothing => return Step::Rest(feed.rest_until()),
                Turn::Over(over) => {
                    let words = feed.last_words(over);
                    words.into_iter().for_each(|piece| self.say(piece));
                    self.end(End::Over(over));
                }
            }
        }
    }

    /// Deals with the frames that are there, until one wants an answer.
    fn take_frame(&mut self, conf: &LocationConf) {
        while self.first.is_none()
            && let Some(frames) = &mut self.frames
        {
            let Some(came) = frames.inbox.next(*conf.core.client_max_body_size) else {
                if frames.publisher.is_none() && frames.inbox.is_empty() {
                    self.frames = None;
                }
                return;
            };
            let mut out = Vec::new();
            let mut end = None;
            match came {
                Came::Ping(payload) => frame::write_frame(frame::PONG, &payload, &mut out),
                Came::Close(payload) => {
                    frame::write_frame(frame::CLOSE, &payload, &mut out);
                    end = Some(End::Closed);
                }
                Came::Broken(code, reason) => {
                    frame::write_close(code, reason.as_bytes(), &mut out);
                    end = Some(End::Closed);
                }
                Came::Message(data, _) if conf.nchan.heartbeat.as_ref().is_some_and(|(beat, _)| **beat == *data) => {
                    let answer = conf.nchan.heartbeat.as_ref().map_or(&b""[..], |(_, answer)| answer);
                    frame::write_frame(frame::TEXT, answer, &mut out);
                }
                Came::Message(data, binary) => match &frames.publisher {
                    None => {
                        frame::write_close(1008, b"Publishing not allowed.", &mut out);
                        end = Some(End::Closed);
                    }
                    Some(publisher) if publisher.asks => return self.end(End::Message(data, binary)),
                    Some(publisher) => match publisher.publish(&data, binary, &conf.nchan) {
                        Ok(None) => continue,
                        Ok(Some(text)) => frame::write_frame(frame::TEXT, text.as_bytes(), &mut out),
                        Err(why) => {
                            frame::write_close(1008, answer::reason(why).as_bytes(), &mut out);
                            end = Some(End::Closed);
                        }
                    },
                },
            }
            self.say(Piece::Bytes(out.into()));
            end.into_iter().for_each(|end| self.end(end));
        }
    }

    /// What goes on with its request.
    pub(super) fn go_on(mut self) -> GoOn {
        let First { out, over } = self.first.take().map_or_else(First::default, |first| *first);
        let end = over.unwrap_or(End::Gone(None));
        if matches!(end, End::Unparked) {
            out.into_iter().for_each(|out| self.say(out));
        }
        Box::new(move |r| Box::pin(ended(r, self, end)))
    }

    /// Goes on with its request as it is, be it on its way to its end.
    pub(super) fn unparked(self) -> GoOn {
        Box::new(move |r| Box::pin(ended(r, self, End::Unparked)))
    }
}

impl Whole {
    fn new(kept: Box<Kept>, socket: Socket, held: Held) -> Box<Whole> {
        Box::new(Whole { kept, socket, timer: Timer::new(), held, out: None, at: 0, took_ms: 0, departs: false })
    }

    /// Ready when it is over.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let snapshot = self.kept.snapshot().clone();
        let conf = &snapshot.location(self.kept.location()).conf;
        loop {
            if departure::is_open() && self.kept.may_go() && self.held.may_go() && self.socket.may_freeze() {
                self.departs = true;
                return Poll::Ready(());
            }
            if let Err(end) = ready!(self.poll_write(*conf.core.send_timeout, cx)) {
                self.held.end_now(end);
            }
            match self.held.first(conf) {
                Some(Step::Say(piece)) => {
                    self.say(piece);
                    continue;
                }
                Some(_) => return Poll::Ready(()),
                None => {}
            }
            // The client has its turn before the next message.
            if let Poll::Ready(heard) = self.poll_client(cx) {
                heard.into_iter().for_each(|end| self.held.end_now(end));
                continue;
            }
            match self.held.next(conf) {
                Step::Say(piece) => self.say(piece),
                Step::End => return Poll::Ready(()),
                Step::Rest(None) => return Poll::Pending,
                Step::Rest(Some(at_ms)) => {
                    self.timer.set(Duration::from_millis(at_ms.saturating_sub(clock::monotonic_ms()).max(1)));
                    ready!(self.timer.poll_expired(cx));
                }
            }
        }
    }

    fn say(&mut self, piece: Piece) {
        (self.out, self.at, self.took_ms) = (Some(piece), 0, clock::monotonic_ms());
    }

    /// Writes what is to be written. Pending: the client is waited for.
    fn poll_write(&mut self, send_timeout: Duration, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        while let Some(piece) = &self.out {
            let rest = &piece.bytes()[self.at..];
            match self.socket.poll_write_with(cx, |s| s.try_write(rest, false)) {
                Poll::Ready(Ok(n)) => {
                    self.at += n;
                    self.kept.sent += n as u64;
                    self.took_ms = clock::monotonic_ms();
                    if self.at == piece.bytes().len() {
                        self.out = None;
                    }
                }
                Poll::Ready(Err(e)) => return Poll::Ready(Err(self.give_up(End::Gone(Some(e))))),
                Poll::Pending => {
                    let waited = Duration::from_millis(clock::monotonic_ms().saturating_sub(self.took_ms));
                    if waited >= send_timeout || self.kept.client().is_taken() {
                        return Poll::Ready(Err(self.give_up(End::Stalled)));
                    }
                    self.timer.set(send_timeout - waited);
                    ready!(self.timer.poll_expired(cx));
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn give_up(&mut self, end: End) -> End {
        self.out = None;
        end
    }

    /// Looks at what the client says. Ready: it has said something, or this is the end.
    fn poll_client(&mut self, cx: &mut Context<'_>) -> Poll<Option<End>> {
        if !self.held.hears() {
            return self.socket.poll_closed(cx).map(|()| Some(End::Gone(None)));
        }
        if let Err(e) = ready!(self.socket.poll_readable(cx)) {
            return Poll::Ready(Some(End::Gone(Some(e))));
        }
        let mut buffer = pool::take_buffer();
        let read = self.socket.poll_read(cx, &mut buffer);
        self.held.hear(&buffer);
        self.kept.request_length += buffer.len() as u64;
        pool::give_buffer(buffer);
        read.map(|read| match read {
            Ok(0) => Some(End::Gone(None)),
            Ok(_) => None,
            Err(e) => Some(End::Gone(Some(e))),
        })
    }
}

/// The request is there again: it is over, or has brought a message.
async fn ended(r: &mut Request, mut held: Held, end: End) -> Verdict {
    let snapshot = r.snapshot.clone();
    let conf = &*snapshot.location(r.location).conf.nchan;
    let end = match end {
        End::Unparked => return begin(r, held),
        End::Message(data, binary) => match forward(r, conf, &held, &data, binary).await {
            Ok(said) => {
                if let Some(text) = said {
                    let mut out = Vec::new();
                    frame::write_frame(frame::TEXT, text.as_bytes(), &mut out);
                    held.say(Piece::Bytes(out.into()));
                }
                return begin(r, held);
            }
            Err(reason) => {
                held.close(1008, reason);
                held.end(End::Closed);
                return begin(r, held);
            }
        },
        end => end,
    };
    if let Some(feed) = held.feed.as_mut().filter(|feed| feed.kind() == super::feed::Kind::LongPoll) {
        return match end {
            End::Got(got) => subscribe::answer_poll(r, conf, feed, got),
            _ => subscribe::gone(r, conf),
        };
    }
    match &end {
        End::Over(Over::Lost) => subscribe::too_slow(r, subscribe::LOST),
        End::Stalled => subscribe::too_slow(r, "it has taken nothing for send_timeout"),
        End::Gone(Some(e)) => log_error!(r, Info, "client closed connection ({})", crate::log::os_error(e)),
        _ => {}
    }
    let is_whole = matches!(end, End::Over(_)) && held.feed.as_ref().is_some_and(Feed::is_in_chunks);
    r.flow.keepalive &= is_whole;
    r.flow.aborted = matches!(end, End::Gone(_) | End::Stalled);
    r.flow.lingering_close = held.hears() && !r.flow.aborted;
    r.answer.done = true;
    let subscribes = held.feed.is_some();
    drop(held);
    if subscribes {
        subscribe::ended(r, conf);
    }
    Verdict::Answered
}

/// Publishes a message that others are asked about, or told of. The text of the answer; on `Err` why it was not published.
async fn forward(
    r: &mut Request,
    conf: &Conf,
    held: &Held,
    data: &[u8],
    binary: bool,
) -> Result<Option<String>, &'static str> {
    let Some(publisher) = held.frames.as_ref().and_then(|frames| frames.publisher.as_ref()) else { return Ok(None) };
    let mut other = None;
    if !conf.upstream.is_empty() {
        match hooks::ask(r, conf, data).await {
            Ok(Forwarded::Same) => {}
            Ok(Forwarded::Other(data)) => other = Some(data),
            Ok(Forwarded::Nothing) => return Ok(None),
            Err(_) => return Err("Publishing was refused."),
        }
    }
    let data = other.as_deref().unwrap_or(data);
    let published = match redis::backend::of(r, conf) {
        None => publisher.publish(data, binary, conf).map_err(answer::reason),
        Some(backend) => publisher.publish_by(&backend, data, binary).await.map_err(|why| match why {
            redis::backend::Failed::Refused(why) => answer::reason(why),
            redis::backend::Failed::Unreachable => "Redis does not answer.",
        }),
    };
    hooks::event(r, conf, "channel_publish");
    published
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What waits for a message, beside what the log line needs.
    #[test]
    fn what_waits_is_small() {
        let (held, feed, parked) = (size_of::<Held>(), size_of::<Feed>(), size_of::<super::super::parked::Parked>());
        println!("held {held}, feed {feed} of it, parked {parked}, kept {}", size_of::<Kept>());
        assert!(held <= 104 && parked <= 160 && size_of::<Kept>() <= 1000, "{held} {parked}");
    }
}
