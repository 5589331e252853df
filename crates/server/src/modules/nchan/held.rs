//! Subscribers whose connection is held without a request (docs/push.md): what waits for a message is this. From: `subscribe`,
//! `publish`. Around: `request::held`.

use super::feed::{Feed, Over, Piece, Turn};
use super::frames::{Came, Inbox};
use super::hooks::{self, Forwarded};
use super::publish::Publisher;
use super::{Conf, Heartbeat, answer, subscribe};
use crate::connection::pool;
use crate::connection::socket::Socket;
use crate::log_error;
use crate::request::Request;
use crate::request::held::{Kept, hold};
use crate::request::phases::{Back, GoOn, Verdict};
use runtime::clock;
use runtime::timer::Timer;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use wire::websocket as frame;

/// A long-poll that waits.
pub(super) fn poll(r: &mut Request, feed: Feed) -> Verdict {
    hold(r, |kept, socket| Box::pin(wait(Box::new(Poller { kept, socket, feed, timer: Timer::new() }))))
}

/// All of a long-poll that waits: behind one pointer, since a future may hold what it is given twice.
struct Poller {
    kept: Box<Kept>,
    socket: Socket,
    feed: Feed,
    timer: Timer,
}

async fn wait(mut poller: Box<Poller>) -> Back {
    let got = poll_fn(|cx| {
        let Poller { socket, feed, timer, .. } = &mut *poller;
        if socket.poll_closed(cx).is_ready() {
            return Poll::Ready(None);
        }
        subscribe::poll_message(feed, timer, cx).map(Some)
    });
    let got = got.await;
    let Poller { kept, socket, feed, .. } = *poller;
    let go_on: GoOn = Box::new(move |r| {
        Box::pin(async move {
            let snapshot = r.snapshot.clone();
            let conf = &*snapshot.location(r.location).conf.nchan;
            match got {
                Some(got) => subscribe::answer_poll(r, conf, &feed, got),
                None => subscribe::gone(r, conf),
            }
        })
    });
    Back { request: kept.back(socket), go_on }
}

/// A stream of messages.
pub(super) fn stream(r: &mut Request, mut feed: Feed) -> Verdict {
    let is_chunked = r.downstream.is_chunked();
    if is_chunked {
        feed.in_chunks();
    }
    nodelay(r);
    let out = feed.first_words();
    begin(r, Held { out, ..Held::new(Some(feed)) })
}

/// A WebSocket: of a subscriber, a publisher, or both.
pub(super) fn websocket(r: &mut Request, feed: Option<Feed>, publisher: Option<Publisher>) -> Verdict {
    nodelay(r);
    let heartbeat = (*r.conf().nchan.heartbeat).clone();
    let frames = Frames { inbox: Inbox::default(), publisher, heartbeat, max: *r.conf().core.client_max_body_size };
    begin(r, Held { frames: Some(Box::new(frames)), ..Held::new(feed) })
}

fn nodelay(r: &mut Request) {
    if *r.conf().core.tcp_nodelay {
        r.downstream.set_nodelay();
    }
}

fn begin(r: &mut Request, mut held: Held) -> Verdict {
    held.send_timeout = *r.conf().core.send_timeout;
    hold(r, |mut kept, socket| {
        if let Some(frames) = &mut held.frames {
            frames.inbox.push(&kept.take_early());
        }
        Box::pin(run(Box::new(Whole { kept, socket, timer: Timer::new(), held })))
    })
}

/// A connection that is held.
struct Held {
    /// What comes to it; none of who only publishes.
    feed: Option<Feed>,
    /// What it sends, if it is a WebSocket.
    frames: Option<Box<Frames>>,
    /// What is being written, and how far.
    out: Option<Piece>,
    at: usize,
    /// When the client last took something of that, ms.
    took_ms: u64,
    send_timeout: Duration,
    /// Everything is over when `out` is written.
    over: Option<End>,
}

struct Frames {
    inbox: Inbox,
    publisher: Option<Publisher>,
    /// `nchan_websocket_client_heartbeat`
    heartbeat: Option<Heartbeat>,
    max: u64,
}

/// Why the request is wanted again.
enum End {
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
}

/// The same for all others.
struct Whole {
    kept: Box<Kept>,
    socket: Socket,
    timer: Timer,
    held: Held,
}

async fn run(mut whole: Box<Whole>) -> Back {
    let end = poll_fn(|cx| {
        let Whole { kept, socket, timer, held } = &mut *whole;
        held.poll(kept, socket, timer, cx)
    });
    let end = end.await;
    let Whole { kept, socket, held, .. } = *whole;
    let go_on: GoOn = Box::new(move |r| Box::pin(ended(r, held, end)));
    Back { request: kept.back(socket), go_on }
}

impl Held {
    fn new(feed: Option<Feed>) -> Held {
        Held { feed, frames: None, out: None, at: 0, took_ms: 0, send_timeout: Duration::ZERO, over: None }
    }

    fn poll(&mut self, kept: &mut Kept, socket: &mut Socket, timer: &Timer, cx: &mut Context<'_>) -> Poll<End> {
        let snapshot = kept.snapshot().clone();
        let conf = &*snapshot.location(kept.location()).conf.nchan;
        loop {
            if let Poll::Ready(end) = ready!(self.poll_write(kept, socket, timer, cx)) {
                return Poll::Ready(end);
            }
            if let Some(over) = self.over.take() {
                return Poll::Ready(over);
            }
            if let Poll::Ready(end) = self.poll_client(kept, socket, cx) {
                return Poll::Ready(end);
            }
            if self.out.is_some() {
                continue;
            }
            match self.feed.as_mut().map_or(Turn::Nothing, |feed| feed.turn(conf)) {
                Turn::Piece(piece) => self.say(piece),
                Turn::Over(over) => {
                    let words = self.feed.as_ref().and_then(|feed| feed.last_words(over));
                    words.into_iter().for_each(|piece| self.say(piece));
                    self.over = Some(End::Over(over));
                }
                Turn::Nothing if self.feed.is_none() && crate::worker::draining() => {
                    self.close(1001, "going away");
                    self.over = Some(End::Over(Over::Leaving));
                }
                Turn::Nothing => {
                    let Some(rest) = self.feed.as_ref().and_then(Feed::rest) else { return Poll::Pending };
                    timer.set(rest);
                    ready!(timer.poll_expired(cx));
                }
            }
        }
    }

    fn say(&mut self, piece: Piece) {
        (self.out, self.at, self.took_ms) = (Some(piece), 0, clock::monotonic_ms());
    }

    fn close(&mut self, code: u16, reason: &str) {
        let mut out = Vec::new();
        frame::write_close(code, reason.as_bytes(), &mut out);
        self.say(Piece::Bytes(out.into()));
    }

    /// Writes what is to be written. `Pending` outside: the client is waited for. Inside: `Ready` is an end.
    fn poll_write(
        &mut self,
        kept: &mut Kept,
        socket: &mut Socket,
        timer: &Timer,
        cx: &mut Context<'_>,
    ) -> Poll<Poll<End>> {
        while let Some(piece) = &self.out {
            let rest = &piece.bytes()[self.at..];
            match socket.poll_write_with(cx, |s| s.try_write(rest, false)) {
                Poll::Ready(Ok(n)) => {
                    self.at += n;
                    kept.sent += n as u64;
                    self.took_ms = clock::monotonic_ms();
                    if self.at == piece.bytes().len() {
                        self.out = None;
                    }
                }
                Poll::Ready(Err(e)) => return Poll::Ready(Poll::Ready(End::Gone(Some(e)))),
                Poll::Pending => {
                    let waited = Duration::from_millis(clock::monotonic_ms().saturating_sub(self.took_ms));
                    if waited >= self.send_timeout {
                        return Poll::Ready(Poll::Ready(End::Stalled));
                    }
                    if kept.client().is_taken() {
                        return Poll::Ready(Poll::Ready(End::Stalled));
                    }
                    timer.set(self.send_timeout - waited);
                    ready!(timer.poll_expired(cx));
                }
            }
        }
        Poll::Ready(Poll::Pending)
    }

    /// Looks at what the client says. Ready: an end, or a message that somebody is asked about.
    fn poll_client(&mut self, kept: &mut Kept, socket: &mut Socket, cx: &mut Context<'_>) -> Poll<End> {
        if self.frames.is_none() {
            return socket.poll_closed(cx).map(|()| End::Gone(None));
        }
        loop {
            if let Some(end) = self.take_frames() {
                return Poll::Ready(end);
            }
            // The answer to what it has said comes before anything else that it says.
            if self.out.is_some() {
                return Poll::Pending;
            }
            match ready!(self.read(kept, socket, cx)) {
                Ok(0) => return Poll::Ready(End::Gone(None)),
                Ok(_) => {}
                Err(e) => return Poll::Ready(End::Gone(Some(e))),
            }
        }
    }

    fn read(&mut self, kept: &mut Kept, socket: &mut Socket, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        ready!(socket.poll_readable(cx))?;
        let mut buffer = pool::take_buffer();
        let read = socket.poll_read(cx, &mut buffer);
        if let Some(frames) = &mut self.frames {
            frames.inbox.push(&buffer);
        }
        kept.request_length += buffer.len() as u64;
        pool::give_buffer(buffer);
        read
    }

    /// Deals with the frames that are there, until one wants an answer.
    fn take_frames(&mut self) -> Option<End> {
        let frames = self.frames.as_mut()?;
        while self.out.is_none() {
            let came = frames.inbox.next(frames.max)?;
            let mut out = Vec::new();
            match came {
                Came::Ping(payload) => frame::write_frame(frame::PONG, &payload, &mut out),
                Came::Close(payload) => {
                    frame::write_frame(frame::CLOSE, &payload, &mut out);
                    self.over = Some(End::Closed);
                }
                Came::Broken(code, reason) => {
                    frame::write_close(code, reason.as_bytes(), &mut out);
                    self.over = Some(End::Closed);
                }
                Came::Message(data, _) if frames.heartbeat.as_ref().is_some_and(|(beat, _)| **beat == *data) => {
                    let answer = frames.heartbeat.as_ref().map_or(&b""[..], |(_, answer)| answer);
                    frame::write_frame(frame::TEXT, answer, &mut out);
                }
                Came::Message(data, binary) => match &frames.publisher {
                    None => {
                        frame::write_close(1008, b"Publishing not allowed.", &mut out);
                        self.over = Some(End::Closed);
                    }
                    Some(publisher) if publisher.asks => return Some(End::Message(data, binary)),
                    Some(publisher) => match publisher.publish(&data, binary) {
                        Ok(None) => continue,
                        Ok(Some(text)) => frame::write_frame(frame::TEXT, text.as_bytes(), &mut out),
                        Err(why) => {
                            frame::write_close(1008, answer::reason(why).as_bytes(), &mut out);
                            self.over = Some(End::Closed);
                        }
                    },
                },
            }
            self.out = Some(Piece::Bytes(out.into()));
            (self.at, self.took_ms) = (0, clock::monotonic_ms());
        }
        None
    }
}

/// The request is there again: it is over, or has brought a message.
async fn ended(r: &mut Request, mut held: Held, end: End) -> Verdict {
    let snapshot = r.snapshot.clone();
    let conf = &*snapshot.location(r.location).conf.nchan;
    let end = match end {
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
                held.over = Some(End::Closed);
                return begin(r, held);
            }
        },
        end => end,
    };
    match &end {
        End::Over(Over::Lost) => subscribe::too_slow(r, subscribe::LOST),
        End::Stalled => subscribe::too_slow(r, "it has taken nothing for send_timeout"),
        End::Gone(Some(e)) => log_error!(r, Info, "client closed connection ({})", crate::log::os_error(e)),
        _ => {}
    }
    let is_whole = matches!(end, End::Over(_)) && held.feed.as_ref().is_some_and(Feed::is_in_chunks);
    r.flow.keepalive &= is_whole;
    r.flow.aborted = matches!(end, End::Gone(_) | End::Stalled);
    r.flow.lingering_close = held.frames.is_some() && !r.flow.aborted;
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
    let published = publisher.publish(other.as_deref().unwrap_or(data), binary);
    hooks::event(r, conf, "channel_publish");
    published.map_err(answer::reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What waits for a message, beside socket, subscription and what the log line needs.
    #[test]
    fn what_waits_is_small() {
        let (held, feed, kept) = (size_of::<Held>(), size_of::<Feed>(), size_of::<Kept>());
        println!("held {held}, feed {feed} of it, kept {kept}");
        assert!(held <= 240 && kept <= 1000, "{held} {kept}");
    }
}
