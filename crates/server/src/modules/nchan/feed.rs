//! What a subscriber gets, in the form it wants: messages as they come, pings, and last words. From: `hub`. Knows no socket.

use super::hub::{self, Listening};
use super::info::Said;
use super::redis::backend::Backend;
use super::{Conf, Settings};
use crate::connection::parked::{Form, Words};
use push::{Message, Next};
use runtime::clock;
use std::sync::Arc;
use std::time::Duration;
use wire::http1::chunked;
use wire::websocket;

/// How a subscriber is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One message for each request, which waits for it.
    LongPoll,
    /// One message for each request, or 304.
    IntervalPoll,
    /// Frames.
    WebSocket,
    /// Frames with ids (`ws+meta.nchan`).
    WebSocketMeta,
    /// Events.
    EventSource,
    /// Chunks.
    Chunked,
    /// Parts of multipart/mixed.
    Multipart,
    /// Messages and separators.
    Raw,
}

impl Kind {
    /// All of them, as they are numbered between processes.
    pub(super) const ALL: [Kind; 8] = [
        Kind::LongPoll,
        Kind::IntervalPoll,
        Kind::WebSocket,
        Kind::WebSocketMeta,
        Kind::EventSource,
        Kind::Chunked,
        Kind::Multipart,
        Kind::Raw,
    ];

    /// As variables and hooks name it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::LongPoll => "longpoll",
            Kind::IntervalPoll => "intervalpoll",
            Kind::WebSocket | Kind::WebSocketMeta => "websocket",
            Kind::EventSource => "eventsource",
            Kind::Chunked => "http-chunked",
            Kind::Multipart => "http-multipart",
            Kind::Raw => "http-raw-stream",
        }
    }

    pub(super) fn is_websocket(self) -> bool {
        matches!(self, Kind::WebSocket | Kind::WebSocketMeta)
    }
}

/// A stretch of bytes for the client; what many get alike is one for all.
pub(super) enum Piece {
    Frame(Arc<Message>),
    Deflated(Arc<Message>),
    Event(Arc<Message>),
    EventChunk(Arc<Message>),
    Bytes(Box<[u8]>),
}

/// In which of its forms many write a message.
const FRAME: u8 = 0;
const EVENT: u8 = 1;
const EVENT_CHUNK: u8 = 2;
const DEFLATED: u8 = 3;

impl Form for Message {
    fn bytes(&self, form: u8) -> &[u8] {
        match form {
            EVENT => self.eventsource(),
            EVENT_CHUNK => self.eventsource_chunk(),
            DEFLATED => self.deflated_frame().unwrap_or_else(|| self.frame()),
            _ => self.frame(),
        }
    }
}

impl From<Piece> for Words {
    fn from(piece: Piece) -> Words {
        match piece {
            Piece::Frame(message) => Words::Shared(message, FRAME),
            Piece::Deflated(message) => Words::Shared(message, DEFLATED),
            Piece::Event(message) => Words::Shared(message, EVENT),
            Piece::EventChunk(message) => Words::Shared(message, EVENT_CHUNK),
            Piece::Bytes(bytes) => Words::Own(bytes),
        }
    }
}

impl Piece {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Piece::Frame(message) => message.frame(),
            Piece::Deflated(message) => message.deflated_frame().unwrap_or_else(|| message.frame()),
            Piece::Event(message) => message.eventsource(),
            Piece::EventChunk(message) => message.eventsource_chunk(),
            Piece::Bytes(bytes) => bytes,
        }
    }
}

/// Why a feed is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// A channel was deleted.
    Deleted,
    /// `nchan_subscriber_timeout`
    Late,
    /// It is so far behind that messages are gone that it has not had.
    Lost,
    /// The thread ends.
    Leaving,
}

/// What comes next.
pub(super) enum Turn {
    Piece(Piece),
    Nothing,
    Over(Over),
}

/// A subscriber's messages on their way.
pub(super) struct Feed {
    pub(super) listening: Listening,
    kind: Kind,
    /// Pieces are chunks of HTTP/1 already.
    chunked: bool,
    /// Messages may go, and come, compressed (`permessage-deflate`).
    pub(super) deflated: bool,
    more: Option<Box<More>>,
    // Times are small: there may be millions of feeds.
    /// Seconds; 0: none.
    ping_every: u32,
    /// Tenths of seconds.
    ping_at: u32,
    /// Seconds; 0: for ever.
    timeout: u32,
    /// Tenths of seconds.
    late_at: u32,
}

/// What few have.
#[derive(Default)]
struct More {
    /// Of multipart/mixed.
    boundary: Option<Boundary>,
    /// What it says of itself.
    said: Option<Said>,
}

/// Letters between parts.
pub(super) type Boundary = [u8; 32];

/// The time in tenths of seconds, of which there are 13 years.
fn now() -> u32 {
    (clock::monotonic_ms() / 100) as u32
}

/// So many seconds from now, and not a tenth earlier.
fn after(seconds: u32) -> u32 {
    now().saturating_add(seconds.saturating_mul(10)).saturating_add(1)
}

impl Feed {
    pub(super) fn new(listening: Listening, kind: Kind, conf: &Conf) -> Feed {
        let every = match kind {
            Kind::EventSource => *conf.eventsource_ping,
            _ if kind.is_websocket() => *conf.websocket_ping,
            _ => Duration::ZERO,
        };
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        let (every, timeout) = (seconds(every), seconds(*conf.subscriber_timeout));
        Feed {
            listening,
            kind,
            chunked: false,
            deflated: false,
            more: None,
            ping_every: every,
            ping_at: after(every),
            timeout,
            late_at: after(timeout),
        }
    }

    /// For another process.
    pub(super) fn write(&self, w: &mut heir::Writer) {
        w.number(Kind::ALL.iter().position(|kind| *kind == self.kind).unwrap_or(0) as u64);
        w.flag(self.chunked);
        w.flag(self.deflated);
        // What it says of itself follows letters, be they none.
        let said = self.more.as_ref().and_then(|more| more.said.as_ref());
        let text = said.map_or_else(Box::default, Said::text);
        match text.is_empty() {
            true => w.bytes(self.boundary()),
            false => w.bytes(&[&self.letters().unwrap_or_default()[..], &text].concat()),
        }
        let (ping, late) = self.left();
        w.number(ping.into());
        w.number(late.into());
        let subscription = &self.listening.subscription;
        w.optional(subscription.active().map(i64::from));
        let places = subscription.places();
        w.number(places.len() as u64);
        for (channel, after) in places {
            w.bytes(channel.name());
            w.signed(after.time);
            w.signed(after.tag.into());
        }
    }

    /// What another process wrote, for a location of this one.
    pub(super) fn read(r: &mut heir::Reader<'_>, conf: &Conf, backend: Option<&Backend>) -> Option<Feed> {
        let kind = *Kind::ALL.get(usize::try_from(r.number()?).ok()?)?;
        let (chunked, deflated, more) = (r.flag()?, r.flag()?, r.bytes()?);
        let (letters, said) = match more {
            [] => (None, &[][..]),
            more => {
                let (letters, said) = more.split_first_chunk::<32>()?;
                (Some(*letters).filter(|letters| *letters != Boundary::default()), said)
            }
        };
        let mut left = || u32::try_from(r.number()?).ok();
        let left = (left()?, left()?);
        let active = r.optional()?.and_then(|active| u32::try_from(active).ok());
        let places = r.list(push::limits::MAX_CHANNELS, |r| {
            let name = r.bytes()?;
            Some((name, push::Id { time: r.signed()?, tag: i32::try_from(r.signed()?).ok()? }))
        })?;
        if places.is_empty() || !conf.has_subscribers() {
            return None;
        }
        // The configuration may name another Redis by now, or none, or one for the first time.
        if places.iter().any(|(name, _)| backend.map_or(name.contains(&0), |backend| !backend.has(name))) {
            return None;
        }
        if let Some(backend) = backend {
            places.iter().for_each(|(name, _)| backend.follow_soon(name, *conf.redis_idle));
        }
        let subscription = hub::store().resume(&places, active, &hub::mailbox(), hub::now()).ok()?;
        let mut feed = Feed::new(Listening::new(subscription), kind, conf);
        (feed.chunked, feed.deflated) = (chunked, deflated);
        letters.into_iter().for_each(|letters| feed.set_boundary(letters));
        if !said.is_empty() {
            let channels: Vec<&[u8]> = places.iter().map(|(name, _)| *name).collect();
            feed.say_of_itself(Said::new(&channels, said));
        }
        feed.go_on_with(left);
        Some(feed)
    }

    /// Tenths of seconds until the next ping, and until it is late.
    pub(super) fn left(&self) -> (u32, u32) {
        (self.ping_at.saturating_sub(now()), self.late_at.saturating_sub(now()))
    }

    /// Goes on where another process had so much time left.
    pub(super) fn go_on_with(&mut self, (ping, late): (u32, u32)) {
        self.ping_at = self.ping_at.min(now().saturating_add(ping));
        self.late_at = self.late_at.min(now().saturating_add(late));
    }

    /// From now on pieces are chunks of a body of HTTP/1.
    pub(super) fn in_chunks(&mut self) {
        self.chunked = true;
    }

    pub(super) fn is_in_chunks(&self) -> bool {
        self.chunked
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// The next message itself, for who gets it whole.
    pub(super) fn message(&mut self) -> Result<Option<Arc<Message>>, Over> {
        self.listening.listen();
        match self.listening.subscription.next(hub::now()) {
            Next::Message(message) => {
                self.late_at = after(self.timeout);
                Ok(Some(message))
            }
            Next::Deleted => Err(Over::Deleted),
            Next::Lost => Err(Over::Lost),
            Next::Nothing if self.timeout > 0 && now() >= self.late_at => Err(Over::Late),
            Next::Nothing if crate::worker::draining() => Err(Over::Leaving),
            Next::Nothing => Ok(None),
        }
    }

    /// What is to be sent next.
    pub(super) fn turn(&mut self, conf: &Conf) -> Turn {
        loop {
            match self.message() {
                // An empty chunk would be the last.
                Ok(Some(message)) if self.kind == Kind::Chunked && message.data().is_empty() => {}
                Ok(Some(message)) => return Turn::Piece(self.piece(message, conf)),
                Ok(None) if self.ping_every > 0 && now() >= self.ping_at => {
                    self.ping_at = after(self.ping_every);
                    return Turn::Piece(self.ping(conf));
                }
                Ok(None) => return Turn::Nothing,
                Err(over) => return Turn::Over(over),
            }
        }
    }

    /// When there is something to do although no message has come (monotonic ms).
    pub(super) fn rest_until(&self) -> Option<u64> {
        let ping = (self.ping_every > 0).then_some(self.ping_at);
        let late = (self.timeout > 0).then_some(self.late_at);
        ping.into_iter().chain(late).min().map(|tenths| u64::from(tenths) * 100)
    }

    /// How long there is nothing to do, if no message comes.
    pub(super) fn rest(&self) -> Option<Duration> {
        let at = self.rest_until()?;
        Some(Duration::from_millis(at.saturating_sub(clock::monotonic_ms()).max(1)))
    }

    /// What is between its parts.
    pub(super) fn set_boundary(&mut self, letters: Boundary) {
        self.more.get_or_insert_default().boundary = Some(letters);
    }

    /// What it says of itself, if it does.
    pub(super) fn say_of_itself(&mut self, said: Option<Said>) {
        if said.is_some() {
            self.more.get_or_insert_default().said = said;
        }
    }

    fn letters(&self) -> Option<Boundary> {
        self.more.as_ref().and_then(|more| more.boundary)
    }

    /// What is between its parts; nothing where there are none.
    pub(super) fn boundary(&self) -> &[u8] {
        self.more.as_ref().and_then(|more| more.boundary.as_ref()).map_or(&[], |letters| &letters[..])
    }

    fn piece(&self, message: Arc<Message>, conf: &Conf) -> Piece {
        let subscription = &self.listening.subscription;
        let id = || {
            let mut id = Vec::new();
            subscription.write_id(&mut id);
            id
        };
        match self.kind {
            Kind::WebSocket if self.deflated && message.deflated_frame().is_some() => {
                return Piece::Deflated(message);
            }
            Kind::WebSocket => return Piece::Frame(message),
            Kind::EventSource if subscription.channels().len() == 1 && conf.eventsource_event.is_empty() => {
                return if self.chunked { Piece::EventChunk(message) } else { Piece::Event(message) };
            }
            _ => {}
        }
        let mut out = Vec::with_capacity(message.data().len() + 64);
        match self.kind {
            Kind::WebSocketMeta => {
                let mut payload = Vec::with_capacity(message.data().len() + 64);
                push::with_meta(&message, &id(), &mut payload);
                let opcode = if message.is_binary() { websocket::BINARY } else { websocket::TEXT };
                websocket::write_frame(opcode, &payload, &mut out);
            }
            Kind::EventSource => {
                let event = (!conf.eventsource_event.is_empty()).then_some(&**conf.eventsource_event);
                message.write_eventsource(event, &id(), &mut out);
            }
            Kind::Multipart => {
                let mut tags = Vec::new();
                subscription.write_tags(&mut tags);
                push::multipart_part(&message, &tags, self.boundary(), &mut out);
            }
            Kind::Raw => {
                out.extend_from_slice(message.data());
                out.extend_from_slice(&conf.separator);
            }
            _ => out.extend_from_slice(message.data()),
        }
        self.framed(out)
    }

    fn ping(&self, conf: &Settings) -> Piece {
        let mut out = Vec::new();
        if self.kind.is_websocket() {
            websocket::write_frame(websocket::PING, b"", &mut out);
        } else {
            for (name, value) in [(": ", &conf.ping_comment), ("event: ", &conf.ping_event)] {
                if !value.is_empty() {
                    out.extend_from_slice(name.as_bytes());
                    out.extend_from_slice(value);
                    out.push(b'\n');
                }
            }
            if !conf.ping_event.is_empty() || !conf.ping_data.is_empty() {
                out.extend_from_slice(b"data: ");
                out.extend_from_slice(&conf.ping_data);
                out.push(b'\n');
            }
            out.push(b'\n');
        }
        self.framed(out)
    }

    /// What comes before all messages.
    pub(super) fn first_words(&self) -> Option<Piece> {
        let words = match self.kind {
            Kind::EventSource => b": hi\n\n".to_vec(),
            Kind::Multipart => [b"--", self.boundary()].concat(),
            _ => return None,
        };
        Some(self.framed(words))
    }

    /// What says that nothing more comes, and why.
    pub(super) fn last_words(&self, over: Over) -> Option<Piece> {
        let reason = match over {
            Over::Deleted => "410 Gone",
            Over::Late => "408 Request Timeout",
            Over::Lost => "too slow",
            Over::Leaving => "going away",
        };
        let mut out = Vec::new();
        match self.kind {
            Kind::WebSocket | Kind::WebSocketMeta => {
                let code = match over {
                    Over::Deleted | Over::Leaving => 1001,
                    Over::Late => 1000,
                    Over::Lost => 1008,
                };
                websocket::write_close(code, reason.as_bytes(), &mut out);
            }
            Kind::EventSource => match over {
                Over::Deleted | Over::Late => {
                    out.extend_from_slice(format!(":{}: {reason}\n\n", &reason[..3]).as_bytes())
                }
                Over::Lost | Over::Leaving => out.extend_from_slice(format!(": {reason}\n\n").as_bytes()),
            },
            Kind::Multipart => out.extend_from_slice(b"--\r\n"),
            _ => {}
        }
        let mut all = if out.is_empty() { Vec::new() } else { self.framed(out).bytes().to_vec() };
        if self.chunked {
            all.extend_from_slice(b"0\r\n\r\n");
        }
        (!all.is_empty()).then(|| Piece::Bytes(all.into()))
    }

    fn framed(&self, bytes: Vec<u8>) -> Piece {
        if !self.chunked {
            return Piece::Bytes(bytes.into());
        }
        let mut chunk = Vec::with_capacity(bytes.len() + 12);
        chunked::encode_size(bytes.len() as u64, &mut chunk);
        chunk.extend_from_slice(&bytes);
        chunk.extend_from_slice(b"\r\n");
        Piece::Bytes(chunk.into())
    }
}
