//! An answer as frames: head, body, trailers. Frames gather with their stream until the driver hands them to QUIC.

use super::{Http3Stream, State, StreamState, code};
use crate::connection::Downstream;
use crate::connection::fields::head_fields;
use crate::request::Request;
use crate::request::chunk::Chunk;
use bytes::Bytes;
use quinn_proto::{StreamId, WriteError};
use runtime::clock;
use std::io;
use wire::http3::frame::{self, kind};
use wire::http3::qpack::encoder;
use wire::http3::{ErrorCode, varint};

/// One DATA frame holds at most so much body: what is made at once while other streams wait.
const PIECE: u64 = 32 * 1024;
/// Pieces of body up to this size are put into their frame at once; larger ones wait for their turn.
const SMALL: u64 = 16 * 1024;
/// Room for a frame's head: its type and a length.
const FRAME_HEAD: usize = 9;

/// Appends a field section as a HEADERS frame.
fn write_section(out: &mut Vec<u8>, fields: impl FnOnce(&mut Vec<u8>)) {
    let mut section = Vec::with_capacity(256);
    encoder::begin(&mut section);
    fields(&mut section);
    frame::write_head(kind::HEADERS, section.len(), out);
    out.extend_from_slice(&section);
}

/// Writes the answer's head. The stream ends with it if no body can follow.
pub fn write_head(r: &mut Request, server_token: &[u8]) {
    let Downstream::Http3(stream) = &r.downstream else { return };
    let end = r.answer.header_only || (r.answer.headers.content_length == Some(0) && !r.answer.headers.expect_trailers);
    let mut state = stream.session.state.borrow_mut();
    let Some(s) = state.streams.get_mut(&stream.id) else { return };
    if !stream.session.hq.get() {
        let before = s.frames.len();
        write_section(&mut s.frames, |out| {
            encoder::status(r.answer.headers.status, out);
            head_fields(r, server_token, |name, value| encoder::field(name, value, out));
        });
        s.sent += (s.frames.len() - before) as u64;
    }
    s.header_size = s.sent;
    s.allowed = u64::MAX;
    s.rate_start_ms = clock::monotonic_ms();
    s.last = end;
    // What has a body leaves with its first piece.
    if end {
        // Nothing is read from a file here.
        let _ = hand_over(stream, &mut state, true);
    }
}

/// Sends a head of the 1xx kind.
pub fn informational(stream: &Http3Stream, status: u16, lines: &mut dyn Iterator<Item = (&[u8], &[u8])>) {
    let mut state = stream.session.state.borrow_mut();
    let Some(s) = state.streams.get_mut(&stream.id).filter(|_| !stream.session.hq.get()) else { return };
    let before = s.frames.len();
    write_section(&mut s.frames, |out| {
        encoder::status(status, out);
        for (name, value) in lines {
            encoder::field(name, value, out);
        }
    });
    s.sent += (s.frames.len() - before) as u64;
    state.make_ready(stream.id);
    stream.session.changed(&state);
}

/// Takes a piece of the body.
pub fn queue(r: &mut Request, chunk: Chunk<'_>, last: bool) -> io::Result<()> {
    let limited = crate::request::flow::rate(r).0 > 0;
    let Downstream::Http3(stream) = &r.downstream else { return Ok(()) };
    let hq = stream.session.hq.get();
    let mut state = stream.session.state.borrow_mut();
    let Some(s) = state.streams.get_mut(&stream.id) else { return Ok(()) };
    if s.last || s.reset {
        return Ok(());
    }
    if limited {
        s.allowed = s.allowed.min(s.output.written);
    }
    let len = chunk.len();
    if !limited && len <= SMALL && s.output.is_empty() && (s.frames.len() as u64) < PIECE {
        if len > 0 {
            s.begin_data(len, hq);
            chunk.copy_to(&mut s.frames)?;
        }
        s.output.hold(chunk.cut(len, u64::MAX), len);
    } else {
        s.output.hold(chunk, 0);
    }
    if last {
        s.last = true;
        if !hq && !r.answer.headers.trailers.is_empty() {
            write_section(&mut s.trailers, |out| {
                for t in &r.answer.headers.trailers {
                    encoder::field(r.arena.get(t.name), r.arena.get(t.value), out);
                }
            });
        }
    }
    hand_over(stream, &mut state, !limited)
}

/// To QUIC at once where nobody else waits: most requests are done then and never were tasks.
fn hand_over(stream: &Http3Stream, state: &mut State, at_once: bool) -> io::Result<()> {
    if !at_once || !state.ready.is_empty() || state.send_piece(stream.id, stream.session.hq.get())? {
        state.make_ready(stream.id);
    }
    stream.session.changed(state);
    Ok(())
}

impl StreamState {
    /// A DATA frame's head; `len` bytes follow.
    fn begin_data(&mut self, len: u64, hq: bool) {
        let before = self.frames.len();
        self.frames.reserve(FRAME_HEAD + len as usize);
        if !hq {
            varint::write(kind::DATA, &mut self.frames);
            varint::write(len, &mut self.frames);
        }
        let around = (self.frames.len() - before) as u64;
        self.header_size += around;
        self.sent += around + len;
    }

    /// Puts the next piece of the body into a frame, and what follows the body behind it.
    fn gather(&mut self, hq: bool) -> io::Result<()> {
        let n = self.output.waiting().min(self.allowed.saturating_sub(self.output.written)).min(PIECE);
        if n > 0 && (self.frames.len() as u64) < PIECE {
            self.begin_data(n, hq);
            self.output.take(n, &mut self.frames)?;
        }
        if self.last && self.output.is_empty() {
            self.sent += self.trailers.len() as u64;
            self.header_size += self.trailers.len() as u64;
            self.frames.append(&mut self.trailers);
        }
        Ok(())
    }
}

impl State {
    /// Lets the streams that have something to send do so in turn, a piece each, until QUIC takes no more or `pieces` are out.
    /// True: there is more that may go now.
    pub(super) fn pump(&mut self, hq: bool, pieces: usize) -> bool {
        self.pump_oneway(hq);
        for _ in 0..pieces {
            let Some(id) = self.ready.pop() else { return false };
            if let Some(s) = self.streams.get_mut(&id) {
                s.is_ready = false;
            }
            match self.send_piece(id, hq) {
                Ok(true) => self.make_ready(id),
                Ok(false) => {}
                Err(_) => {
                    // A file became shorter: the client learns of it by the stream's end.
                    let _ = self.quic.send_stream(id).reset(code(ErrorCode::INTERNAL_ERROR));
                    if let Some(s) = self.streams.get_mut(&id) {
                        s.finished = true;
                        s.give_up();
                    }
                }
            }
        }
        !self.ready.is_empty()
    }

    fn pump_oneway(&mut self, hq: bool) {
        if hq {
            // There are no fields.
            self.decoder.output.clear();
        }
        if self.decoder.id.is_none() && !self.decoder.output.is_empty() {
            self.decoder.id = self.open_oneway();
            self.decoder.output.insert(0, frame::stream::DECODER as u8);
        }
        for stream in [&mut self.control, &mut self.decoder] {
            if let Some(id) = stream.id.filter(|_| !stream.output.is_empty())
                && let Ok(n) = self.quic.send_stream(id).write(&stream.output)
            {
                stream.output.drain(..n);
            }
        }
    }

    /// True: there is more that may go now.
    fn send_piece(&mut self, id: StreamId, hq: bool) -> io::Result<bool> {
        let Some(s) = self.streams.get_mut(&id) else { return Ok(false) };
        if s.reset {
            return Ok(false);
        }
        let before = s.output.written;
        if s.partial.is_empty() {
            s.gather(hq)?;
            s.partial = Bytes::from(std::mem::take(&mut s.frames));
        }
        let State { quic, flood, .. } = self;
        let mut stream = quic.send_stream(id);
        while !s.partial.is_empty() {
            match stream.write_chunks(std::slice::from_mut(&mut s.partial)) {
                Ok(written) if written.bytes > 0 => flood.sent_data(written.bytes, !s.partial.is_empty()),
                Ok(_) | Err(WriteError::Blocked) => {
                    if s.output.written > before {
                        s.wake();
                    }
                    return Ok(false);
                }
                Err(_) => {
                    s.give_up();
                    return Ok(false);
                }
            }
        }
        if s.last && s.output.is_empty() && s.frames.is_empty() && s.trailers.is_empty() {
            s.finished = true;
            let _ = stream.finish();
        }
        s.wake();
        Ok(!s.frames.is_empty() || (!s.output.is_empty() && s.allowed > s.output.written))
    }
}
