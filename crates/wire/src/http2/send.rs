//! Writes frames into the connection's output. Part of [`super::connection`].

use super::connection::{Connection, Role, Stream};
use super::frame::{FrameHeader, HEADER, flag, kind, setting};
use super::hpack::encoder::Encoder;
use super::{DEFAULT_WINDOW, ErrorCode, MAX_WINDOW, PREFACE};

/// So much of the output, once it is written, is worth moving what follows for.
const WORTH_MOVING: usize = 64 * 1024;

impl<T> Connection<T> {
    /// What waits to be written.
    pub fn output(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    /// The first `n` bytes of it were written.
    pub fn advance(&mut self, n: usize) {
        self.sent += n;
        self.counters.bytes(n);
        if self.sent == self.out.len() {
            self.gone += self.sent as u64;
            self.out.clear();
            self.sent = 0;
        } else if self.sent >= WORTH_MOVING {
            // An output that is never quite empty would keep all that was ever sent.
            self.gone += self.sent as u64;
            self.out.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Gives the output a buffer if it has none.
    pub fn lend_buffer(&mut self, buffer: impl FnOnce() -> Vec<u8>) {
        if self.out.capacity() == 0 {
            self.out = buffer();
        }
    }

    /// Whether the output has more room than a few frames need.
    pub fn has_grown(&self) -> bool {
        self.out.capacity() > WORTH_MOVING
    }

    /// Takes the output's buffer if it is empty.
    pub fn take_buffer(&mut self) -> Option<Vec<u8>> {
        (self.out.is_empty() && self.out.capacity() > 0).then(|| std::mem::take(&mut self.out))
    }

    /// Settings, and the connection's window: only streams limit what a peer may send.
    pub(super) fn send_first(&mut self) {
        let client = self.config.role == Role::Client;
        if client {
            self.out.extend_from_slice(PREFACE);
        }
        let first = match client {
            true => (setting::ENABLE_PUSH, 0),
            false => (setting::MAX_CONCURRENT_STREAMS, self.config.max_streams),
        };
        let window = (setting::INITIAL_WINDOW_SIZE, self.config.stream_window);
        let frame = (setting::MAX_FRAME_SIZE, self.config.role.largest_taken() as u32);
        let settings =
            [first, window, frame, (setting::NO_RFC7540_PRIORITIES, 1), (setting::ENABLE_CONNECT_PROTOCOL, 1)];
        // The last two are a server's: one is about answers, one about what it may be asked.
        let settings = &settings[..if client { 3 } else { 4 + usize::from(self.config.extended_connect) }];
        self.frame(kind::SETTINGS, 0, 0, settings.len() * 6);
        for (name, value) in settings {
            self.out.extend_from_slice(&name.to_be_bytes());
            self.out.extend_from_slice(&value.to_be_bytes());
        }
        self.send_window_update(0, MAX_WINDOW - DEFAULT_WINDOW);
    }

    pub(super) fn frame(&mut self, kind: u8, flags: u8, stream: u32, len: usize) {
        self.out.extend_from_slice(&FrameHeader { len, kind, flags, stream }.bytes());
    }

    pub(super) fn send_window_update(&mut self, stream: u32, increment: u32) {
        self.frame(kind::WINDOW_UPDATE, 0, stream, 4);
        self.out.extend_from_slice(&increment.to_be_bytes());
    }

    pub(super) fn send_reset(&mut self, stream: u32, code: ErrorCode) {
        self.frame(kind::RST_STREAM, 0, stream, 4);
        self.out.extend_from_slice(&code.0.to_be_bytes());
        self.remember_reset(stream);
    }

    /// Says once that no further streams are taken.
    pub fn goaway(&mut self, code: ErrorCode) {
        if std::mem::replace(&mut self.goaway_sent, true) {
            return;
        }
        let last = if self.config.role == Role::Server { self.last_stream } else { 0 };
        self.frame(kind::GOAWAY, 0, 0, 8);
        self.out.extend_from_slice(&last.to_be_bytes());
        self.out.extend_from_slice(&code.0.to_be_bytes());
    }

    /// How many streams the peer takes at once, as far as it has said so (client).
    pub fn allowed_streams(&self) -> u32 {
        self.peer_streams
    }

    /// The peer will take so many; its own word may say otherwise later (client).
    pub fn assume_streams(&mut self, allowed: u32) {
        self.peer_streams = allowed;
    }

    /// Whether the peer takes another stream now (client).
    pub fn can_open(&self) -> bool {
        !self.goaway_sent && self.streams.len() < self.peer_streams as usize && self.last_stream < MAX_WINDOW - 2
    }

    /// Opens a stream (client). None: the peer takes no more now, or never again.
    pub fn open(&mut self, data: T) -> Option<u32> {
        if !self.can_open() {
            return None;
        }
        let id = if self.last_stream == 0 { 1 } else { self.last_stream + 2 };
        self.last_stream = id;
        let stream = self.new_stream(id, data);
        self.streams.push(stream);
        Some(id)
    }

    pub(super) fn new_stream(&self, id: u32, data: T) -> Stream<T> {
        Stream {
            id,
            data,
            send_window: self.peer_window,
            recv_window: i64::from(self.config.stream_window),
            unlimited: false,
            remote_closed: false,
            local_closed: false,
            reset: false,
            head_seen: false,
            last_data: 0,
        }
    }

    /// Sends a head or trailers; `fields` writes the block. Gives the bytes of the frames, headers of frames included;
    /// 0: the stream takes nothing more.
    pub fn send_head(&mut self, id: u32, end: bool, fields: impl FnOnce(&mut Encoder, &mut Vec<u8>)) -> usize {
        let Some(at) = self.find(id).filter(|&at| !self.streams[at].local_closed) else { return 0 };
        self.streams[at].local_closed = end;
        let start = self.out.len();
        self.out.extend_from_slice(&[0; HEADER]);
        self.encoder.begin(&mut self.out);
        fields(&mut self.encoder, &mut self.out);
        let len = self.out.len() - start - HEADER;
        self.counters.payload(len);
        let end_stream = if end { flag::END_STREAM } else { 0 };
        if len <= self.peer_frame {
            let flags = flag::END_HEADERS | end_stream;
            self.out[start..start + HEADER]
                .copy_from_slice(&FrameHeader { len, kind: kind::HEADERS, flags, stream: id }.bytes());
        } else {
            let block = self.out.split_off(start + HEADER);
            self.out.truncate(start);
            let pieces = block.len().div_ceil(self.peer_frame);
            for (i, piece) in block.chunks(self.peer_frame).enumerate() {
                let last = if i + 1 == pieces { flag::END_HEADERS } else { 0 };
                match i {
                    0 => self.frame(kind::HEADERS, last | end_stream, id, piece.len()),
                    _ => self.frame(kind::CONTINUATION, last, id, piece.len()),
                }
                self.out.extend_from_slice(piece);
            }
        }
        self.out.len() - start
    }

    /// The largest DATA frame that the peer takes.
    pub fn largest_frame(&self) -> usize {
        self.peer_frame
    }

    /// How much of a body the peer may still send on a stream.
    pub fn receivable(&mut self, id: u32) -> u32 {
        self.stream(id).map_or(0, |s| s.recv_window.max(0) as u32)
    }

    /// How many bytes may be sent on a stream now, in one frame.
    #[inline]
    pub fn sendable(&self, id: u32) -> usize {
        let Some(at) = self.find(id) else { return 0 };
        let s = &self.streams[at];
        if s.local_closed {
            return 0;
        }
        (s.send_window.min(self.send_window).max(0) as usize).min(self.peer_frame)
    }

    /// Sends a piece of a body: `fill` appends exactly `len` bytes, at most [`Self::sendable`]. `limited`: there would be
    /// more to send if the window allowed it. An error of `fill` leaves the connection as it was.
    pub fn send_data<E>(
        &mut self,
        id: u32,
        len: usize,
        end: bool,
        limited: bool,
        fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(at) = self.find(id) else { return Ok(()) };
        let start = self.out.len();
        self.frame(kind::DATA, if end { flag::END_STREAM } else { 0 }, id, len);
        if let Err(e) = fill(&mut self.out) {
            self.out.truncate(start);
            return Err(e);
        }
        debug_assert_eq!(self.out.len(), start + HEADER + len);
        let s = &mut self.streams[at];
        s.last_data = self.gone + start as u64 + 1;
        s.send_window -= len as i64;
        s.local_closed = end;
        self.send_window -= len as i64;
        self.counters.sent_data(len, limited);
        Ok(())
    }

    /// Ends a stream on our side: with the DATA frame that still waits to be written, or with an empty one. Gives the
    /// bytes that it took.
    pub fn send_end(&mut self, id: u32) -> usize {
        let Some(at) = self.find(id).filter(|&at| !self.streams[at].local_closed) else { return 0 };
        let s = &mut self.streams[at];
        s.local_closed = true;
        if let Some(frame) = s.last_data.checked_sub(self.gone + 1).map(|frame| frame as usize)
            && frame >= self.sent
        {
            self.out[frame + 4] |= flag::END_STREAM;
            return 0;
        }
        self.frame(kind::DATA, flag::END_STREAM, id, 0);
        HEADER
    }

    /// Lets the peer send up to `window` bytes on a stream from now on.
    pub fn open_window(&mut self, id: u32, window: u32) {
        let Some(at) = self.find(id).filter(|&at| !self.streams[at].remote_closed) else { return };
        let s = &mut self.streams[at];
        let more = i64::from(window) - s.recv_window;
        if more > 0 {
            s.recv_window += more;
            self.send_window_update(id, more as u32);
        }
    }

    /// The owner takes everything that comes on a stream: its window stays open.
    pub fn open_widely(&mut self, id: u32) {
        if let Some(s) = self.stream(id) {
            s.unlimited = true;
            self.open_window(id, MAX_WINDOW);
        }
    }

    /// Ends a stream in both directions, for what the peer has sent on it.
    pub fn reset(&mut self, id: u32, code: ErrorCode) {
        let Some(at) = self.find(id).filter(|&at| !self.streams[at].reset) else { return };
        let s = &mut self.streams[at];
        (s.reset, s.local_closed, s.remote_closed) = (true, true, true);
        // If that was one too many, the next stream that the peer opens is told.
        let _ = self.counters.reset();
        self.send_reset(id, code);
    }

    /// The owner is done with a stream. If it was not finished, the peer is told with `code`; if only a client still sends,
    /// that nothing is wrong, but nobody listens (RFC 9113 section 8.1).
    pub fn release(&mut self, id: u32, code: ErrorCode) -> Option<T> {
        let at = self.find(id)?;
        let s = &self.streams[at];
        if !s.reset {
            if !s.local_closed {
                self.send_reset(id, code);
            } else if !s.remote_closed {
                let server = self.config.role == Role::Server;
                self.send_reset(id, if server { ErrorCode::NO_ERROR } else { code });
            }
            self.counters.finished();
            self.new_streams = self.new_streams.saturating_sub(1);
        }
        Some(self.streams.remove(at).data)
    }
}
