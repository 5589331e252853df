//! The state of one connection, for both roles: streams, windows, settings. [`super::receive`] reads frames into it,
//! [`super::send`] writes frames of it. Knows no socket, clock or thread.

use super::flood::Counters;
use super::frame::{FrameHeader, kind};
use super::hpack::decoder::{Decoder, Limits};
use super::hpack::encoder::Encoder;
use super::{DEFAULT_FRAME, DEFAULT_WINDOW, ErrorCode, LARGEST_FROM_SERVER, MAX_FRAME, MAX_WINDOW};
use crate::priority::Priority;
use crate::span::Span;

/// Streams that we reset last: what is still on the way for them is no error.
pub(super) const RESET_MEMORY: usize = 16;

/// Which side we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Streams come from the peer.
    Server,
    /// Streams are opened by us.
    Client,
}

impl Role {
    /// The largest frame that is taken of the other side.
    pub(super) fn largest_taken(self) -> usize {
        match self {
            Role::Server => MAX_FRAME,
            Role::Client => LARGEST_FROM_SERVER,
        }
    }
}

/// What the configuration says.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Which side we are.
    pub role: Role,
    /// Streams a peer may have open at once.
    pub max_streams: u32,
    /// Window that streams start with, bytes: what a peer may send before anybody wants it.
    pub stream_window: u32,
    /// Bounds of header blocks.
    pub headers: Limits,
    /// Clients may ask for another protocol in a stream (RFC 8441).
    pub extended_connect: bool,
}

/// One stream, with what its owner keeps for it.
#[derive(Debug)]
pub struct Stream<T> {
    /// Its number.
    pub id: u32,
    /// The owner's part.
    pub data: T,
    /// Bytes that the peer takes; below zero after it has made its windows smaller.
    pub(super) send_window: i64,
    /// Bytes that the peer may still send.
    pub(super) recv_window: i64,
    /// The window is kept open: the owner takes everything.
    pub(super) unlimited: bool,
    /// The peer sends nothing more.
    pub remote_closed: bool,
    /// We send nothing more.
    pub local_closed: bool,
    /// Either side has reset it.
    pub reset: bool,
    /// A head has come (client role: the answer's), so another one is trailers.
    pub head_seen: bool,
    /// Where its last DATA frame stands in all bytes ever put out, counted from 1; 0: nowhere.
    pub(super) last_data: u64,
}

/// What has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// All input was used that could be; more is needed.
    More,
    /// A head stands in the header block. In the server's role it has opened the stream.
    Head {
        /// Its stream.
        stream: u32,
        /// Nothing follows.
        end: bool,
        /// Bytes of the block as it was sent.
        len: usize,
    },
    /// Trailers stand in the header block; nothing follows.
    Trailers {
        /// Their stream.
        stream: u32,
    },
    /// A piece of a body.
    Data {
        /// Its stream.
        stream: u32,
        /// Where it stands in the input.
        span: Span,
        /// Nothing follows.
        end: bool,
    },
    /// A stream is over, by the peer's reset or, after an error of the peer, by ours.
    Reset {
        /// The stream.
        stream: u32,
        /// Why.
        code: ErrorCode,
        /// We have reset it.
        ours: bool,
    },
    /// The peer refused or lost nothing, but a stream of it was not taken; [`Connection::note`] says why.
    Refused,
    /// More can be sent: on one stream, or (0) perhaps on all.
    Window {
        /// The stream.
        stream: u32,
    },
    /// The client says how urgent an answer is, perhaps before it asks for it.
    Priority {
        /// The answer's stream.
        stream: u32,
        /// How urgent.
        priority: Priority,
    },
    /// The peer takes no streams above `last` any more.
    Goaway {
        /// The last one that it works on.
        last: u32,
        /// Why.
        code: ErrorCode,
    },
}

/// The connection is lost by the peer's fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionError {
    /// What GOAWAY is to say.
    pub code: ErrorCode,
    /// For the log, in nginx's words but for the `peer` ([`crate::said_of`]).
    pub text: String,
}

/// What is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    Preface,
    Header,
    /// A frame other than DATA: its whole payload has to be there.
    Payload(FrameHeader),
    /// A DATA frame: the length of its padding comes next.
    Padded(FrameHeader),
    /// The rest of a DATA frame, then its padding. Stream 0: nobody wants it.
    Data {
        stream: u32,
        left: usize,
        padding: usize,
        end: bool,
    },
}

/// A header block that CONTINUATION frames follow.
#[derive(Debug, Default)]
pub(super) struct Block {
    pub(super) bytes: Vec<u8>,
    pub(super) stream: u32,
    pub(super) end: bool,
    pub(super) continuations: u32,
}

/// One connection. Who owns it has the socket and calls, in this order:
///
/// ```text
/// new ─> turn ─> turn ...   until the socket has ended, or an error came and the GOAWAY for it is written
///
/// a turn:  begin_turn      where streams are the peer's (server): bounds what one turn may open
///          next, again     with all that was read and how far it was used; each event is dealt with before the next call, as the header
///                          block and the spans in the input are valid until then. `note` belongs to the event that was given last.
///                          Ends with More; or with an error: goaway with its code, and nothing is read any more.
///                          Input that was used is the caller's to drop.
///          open (client), send_head, send_data, send_end, reset, goaway, take_more ...
///                          at any time; nothing of it reads. `sendable` says how much send_data may be given.
///          output, advance what waits is written to the socket, and what went there is said
/// ```
///
/// A stream is forgotten once both sides have closed it or one has reset it *and* its owner has let it go; until then [`Connection::stream`] finds it.
#[derive(Debug)]
pub struct Connection<T> {
    pub(super) config: Config,
    pub(super) reading: Reading,
    pub(super) block: Option<Box<Block>>,
    pub(super) decoder: Decoder,
    pub(super) encoder: Encoder,
    /// In ascending order of their numbers.
    pub(super) streams: Vec<Stream<T>>,
    /// The largest stream number of the peer, or (client) of ours.
    pub(super) last_stream: u32,
    pub(super) send_window: i64,
    pub(super) recv_window: i64,
    pub(super) peer_window: i64,
    pub(super) peer_frame: usize,
    pub(super) peer_streams: u32,
    pub(super) settings_acked: bool,
    pub(super) goaway_sent: bool,
    pub(super) priorities: i64,
    pub(super) refused: u32,
    pub(super) new_streams: u32,
    pub(super) resets: [u32; RESET_MEMORY],
    pub(super) reset_at: usize,
    /// Costs of the peer.
    pub counters: Counters,
    /// Frames on their way out, from `sent` on.
    pub(super) out: Vec<u8>,
    pub(super) sent: usize,
    /// Bytes that went out before `out`.
    pub(super) gone: u64,
    /// What is to be said in the log about the last event.
    pub note: Option<String>,
}

impl<T: Default> Connection<T> {
    /// A new connection; its first frames stand in the output.
    pub fn new(config: Config) -> Connection<T> {
        let reading = if config.role == Role::Server { Reading::Preface } else { Reading::Header };
        let mut connection = Connection {
            config,
            reading,
            block: None,
            decoder: Decoder::default(),
            encoder: Encoder::default(),
            streams: Vec::new(),
            last_stream: 0,
            send_window: i64::from(DEFAULT_WINDOW),
            recv_window: i64::from(MAX_WINDOW),
            peer_window: i64::from(DEFAULT_WINDOW),
            peer_frame: DEFAULT_FRAME,
            peer_streams: u32::MAX,
            settings_acked: false,
            goaway_sent: false,
            priorities: i64::from(config.max_streams.max(100)),
            refused: 0,
            new_streams: 0,
            resets: [0; RESET_MEMORY],
            reset_at: 0,
            counters: Counters::default(),
            out: Vec::new(),
            sent: 0,
            gone: 0,
            note: None,
        };
        connection.send_first();
        connection
    }
}

impl<T> Connection<T> {
    /// The streams that have an owner, oldest first.
    pub fn streams(&self) -> &[Stream<T>] {
        &self.streams
    }

    /// The same, to be changed.
    pub fn streams_mut(&mut self) -> &mut [Stream<T>] {
        &mut self.streams
    }

    /// A stream by its number.
    #[inline]
    pub fn stream(&mut self, id: u32) -> Option<&mut Stream<T>> {
        let at = self.find(id)?;
        Some(&mut self.streams[at])
    }

    #[inline]
    pub(super) fn find(&self, id: u32) -> Option<usize> {
        // Most often it is the newest.
        match self.streams.last() {
            Some(s) if s.id == id => Some(self.streams.len() - 1),
            _ => self.streams.binary_search_by_key(&id, |s| s.id).ok(),
        }
    }

    /// The head that came was the answer's own, none of the 1xx kind: another one on the stream is trailers (client).
    pub fn answered(&mut self, id: u32) {
        if let Some(s) = self.stream(id) {
            s.head_seen = true;
        }
    }

    /// A loop turn begins: bounds how many streams a peer may open in one, beyond those that are answered in it.
    pub fn begin_turn(&mut self) {
        self.new_streams = 0;
    }

    /// Whether no frame is half read.
    pub fn is_between_frames(&self) -> bool {
        self.reading == Reading::Header && self.block.is_none()
    }

    /// The stream whose head has come in part.
    fn pending_head(&self) -> Option<u32> {
        match (&self.block, self.reading) {
            (Some(block), _) => Some(block.stream),
            (None, Reading::Payload(header)) if header.kind == kind::HEADERS => Some(header.stream),
            _ => None,
        }
    }

    /// Whether the rest of a head is waited for, of a stream that anybody waits for.
    pub fn is_head_pending(&self) -> bool {
        self.pending_head().is_some_and(|stream| !self.was_reset(stream))
    }

    /// The rest of a head does not come: its stream is reset, and the head passed over should it come after all.
    pub fn abandon_head(&mut self) {
        if let Some(stream) = self.pending_head() {
            self.last_stream = self.last_stream.max(stream);
            self.send_reset(stream, ErrorCode::PROTOCOL_ERROR);
        }
    }

    /// Whether GOAWAY was sent.
    pub fn is_going_away(&self) -> bool {
        self.goaway_sent
    }

    /// Gives back the memory that an idle connection does not need.
    pub fn rest(&mut self) {
        if self.streams.is_empty() {
            self.streams = Vec::new();
        }
        if self.out.len() == self.sent {
            self.gone += self.out.len() as u64;
            self.out = Vec::new();
            self.sent = 0;
        }
    }

    pub(super) fn remember_reset(&mut self, id: u32) {
        self.resets[self.reset_at % RESET_MEMORY] = id;
        self.reset_at += 1;
    }

    pub(super) fn forget_reset(&mut self, id: u32) {
        self.resets.iter_mut().filter(|reset| **reset == id).for_each(|reset| *reset = 0);
    }

    pub(super) fn was_reset(&self, id: u32) -> bool {
        self.resets.contains(&id)
    }
}
