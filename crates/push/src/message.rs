//! One message: its bytes as all subscribers of all threads write them.

use crate::id::Id;
use crate::limits::MAX_META;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};
use wire::websocket;

/// What a publisher hands in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Draft<'a> {
    /// The bytes.
    pub data: &'a [u8],
    /// Their type, if it was named.
    pub content_type: &'a [u8],
    /// The event of EventSource, if one was named.
    pub event: &'a [u8],
    /// What MQTT says of it.
    pub marks: Marks<'a>,
    /// The bytes as `permessage-deflate` has them (RFC 7692 section 7.2.1); empty: they are not to be sent so.
    pub deflated: &'a [u8],
}

/// What MQTT says of a message beside its bytes. The default is what is published otherwise: it counts as QoS 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks<'a> {
    /// Published at QoS 0.
    pub at_most_once: bool,
    /// It is kept for who subscribes later, in place of the one before; an empty one: nothing is.
    pub retain: bool,
    /// Who has published it, a number of the caller's; 0: nobody who would want to know.
    pub origin: u64,
    /// Of use for so long, s.
    pub expiry: Option<u32>,
    /// Properties that go on as they came.
    pub properties: &'a [u8],
}

/// A message that was published.
#[derive(Debug)]
pub struct Message {
    /// Its id in its channel.
    pub id: Id,
    /// Where it stands among all messages of the store.
    pub(crate) order: u64,
    /// From this second on nobody gets it; 0: never.
    pub(crate) expires: i64,
    /// When it was published.
    pub(crate) at: i64,
    content_type: Box<[u8]>,
    event: Box<[u8]>,
    /// A frame of WebSocket; the message is its payload. Shared by those of the message that have other ids.
    frame: Arc<[u8]>,
    head: u8,
    at_most_once: bool,
    retain: bool,
    /// Until when its publisher says that it is of use; 0: for ever.
    said_until: i64,
    origin: u64,
    properties: Box<[u8]>,
    /// The id of the channel that it was published to, where that is another than whose it is.
    topic: Option<Arc<[u8]>>,
    /// Its id there.
    id_there: Id,
    /// An event as a chunk of HTTP/1, and how long what frames it is before it.
    eventsource: OnceLock<(Box<[u8]>, u8)>,
    /// A compressed frame of WebSocket.
    deflated: Option<Box<[u8]>>,
    /// So many keep it beside its channel ([`crate::Store::put_by`]).
    pub(crate) kept_by: AtomicU32,
}

/// A message of this type is binary for WebSocket.
const BINARY: &[u8] = b"application/octet-stream";

impl Message {
    pub(crate) fn new(id: Id, order: u64, at: i64, expires: i64, draft: Draft<'_>) -> Message {
        let (content_type, event) = (one_line(draft.content_type), one_line(draft.event));
        // What comes by MQTT is of no type, mostly: text is what can be read as such.
        let is_binary = match draft.marks.origin {
            0 => content_type == BINARY,
            _ => content_type == BINARY || std::str::from_utf8(draft.data).is_err(),
        };
        let opcode = if is_binary { websocket::BINARY } else { websocket::TEXT };
        let mut frame = Vec::with_capacity(draft.data.len() + websocket::MAX_HEADER);
        websocket::write_header(opcode, draft.data.len() as u64, &mut frame);
        let head = frame.len() as u8;
        frame.extend_from_slice(draft.data);
        Message {
            id,
            order,
            expires,
            at,
            content_type: content_type.into(),
            event: event.into(),
            frame: frame.into(),
            head,
            at_most_once: draft.marks.at_most_once,
            retain: draft.marks.retain,
            said_until: draft.marks.expiry.map_or(0, |seconds| at + i64::from(seconds).max(1)),
            origin: draft.marks.origin,
            properties: draft.marks.properties.into(),
            topic: None,
            id_there: Id::default(),
            eventsource: OnceLock::new(),
            kept_by: AtomicU32::new(0),
            deflated: (!draft.deflated.is_empty()).then(|| {
                let mut frame = Vec::with_capacity(draft.deflated.len() + websocket::MAX_HEADER);
                websocket::write_header(opcode | websocket::DEFLATED, draft.deflated.len() as u64, &mut frame);
                frame.extend_from_slice(draft.deflated);
                frame.into()
            }),
        }
    }

    /// The same in another channel.
    pub(crate) fn again(&self, id: Id, topic: Arc<[u8]>) -> Message {
        Message {
            id,
            content_type: self.content_type.clone(),
            event: self.event.clone(),
            frame: self.frame.clone(),
            properties: self.properties.clone(),
            topic: Some(topic),
            id_there: self.id,
            eventsource: OnceLock::new(),
            kept_by: AtomicU32::new(0),
            deflated: self.deflated.clone(),
            ..*self
        }
    }

    /// The id of the channel that it was published to, where it was heard by a filter of channels.
    pub fn topic(&self) -> Option<&Arc<[u8]>> {
        self.topic.as_ref()
    }

    /// The same, and its id in that channel.
    pub(crate) fn came_from(&self) -> Option<(&Arc<[u8]>, Id)> {
        self.topic.as_ref().map(|topic| (topic, self.id_there))
    }

    /// What MQTT says of it; the expiry is what is left of it at `now`.
    pub fn marks(&self, now: i64) -> Marks<'_> {
        let left = u32::try_from((self.said_until - now).max(0)).unwrap_or(u32::MAX);
        Marks {
            at_most_once: self.at_most_once,
            retain: self.retain,
            origin: self.origin,
            expiry: (self.said_until != 0).then_some(left),
            properties: &self.properties,
        }
    }

    /// Where it stands among all messages of the store.
    pub fn order(&self) -> u64 {
        self.order
    }

    /// When it was published, Unix time.
    pub fn at(&self) -> i64 {
        self.at
    }

    pub(crate) fn is_retained(&self) -> bool {
        self.retain
    }

    /// Whether its publisher's time for it is over: that of its channel's buffer is another.
    pub fn is_over(&self, now: i64) -> bool {
        self.said_until != 0 && self.said_until <= now
    }

    /// Its bytes.
    pub fn data(&self) -> &[u8] {
        &self.frame[usize::from(self.head)..]
    }

    /// Its bytes as a frame of WebSocket.
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// The same compressed, for clients of `permessage-deflate`, where it was published so.
    pub fn deflated_frame(&self) -> Option<&[u8]> {
        self.deflated.as_deref()
    }

    /// The type it was published with; empty for none.
    pub fn content_type(&self) -> &[u8] {
        &self.content_type
    }

    /// The event it was published with; empty for none.
    pub fn event(&self) -> &[u8] {
        &self.event
    }

    /// Whether it is no text for WebSocket.
    pub fn is_binary(&self) -> bool {
        self.frame[0] & 0x0f == websocket::BINARY
    }

    /// As an event of EventSource, with the id it has for subscribers of its channel alone.
    pub fn eventsource(&self) -> &[u8] {
        let (chunk, head) = self.event_chunk();
        &chunk[usize::from(head)..chunk.len() - 2]
    }

    /// The same as a chunk of a body (RFC 9112 section 7.1).
    pub fn eventsource_chunk(&self) -> &[u8] {
        self.event_chunk().0
    }

    fn event_chunk(&self) -> (&[u8], u8) {
        let (chunk, head) = self.eventsource.get_or_init(|| {
            let mut event = Vec::with_capacity(self.data().len() + 48);
            crate::render::eventsource(self, &self.event, self.id.to_string().as_bytes(), &mut event);
            let mut chunk = Vec::with_capacity(event.len() + 20);
            wire::http1::chunked::encode_size(event.len() as u64, &mut chunk);
            let head = chunk.len() as u8;
            chunk.extend_from_slice(&event);
            chunk.extend_from_slice(b"\r\n");
            (chunk.into(), head)
        });
        (chunk, *head)
    }

    /// The same with another id or event.
    pub fn write_eventsource(&self, event: Option<&[u8]>, id: &[u8], out: &mut Vec<u8>) {
        crate::render::eventsource(self, event.unwrap_or(&self.event), id, out);
    }

    /// What it costs, for the bill.
    pub(crate) fn bytes(&self) -> usize {
        let texts = self.content_type.len() + self.event.len() + self.properties.len();
        let deflated = self.deflated.as_ref().map_or(0, |frame| frame.len());
        size_of::<Message>() + self.frame.len() + texts + deflated + 32
    }
}

/// A value that is to stand in a line of its own: up to the first end of a line, and not too long.
fn one_line(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|b| matches!(b, b'\r' | b'\n' | 0)).unwrap_or(text.len());
    &text[..end.min(MAX_META)]
}
