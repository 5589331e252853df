//! An answer as frames: head, body, trailers. What the windows let pass goes into the connection's output at once.

use super::{Http2Stream, OUTPUT_LIMIT, State};
use crate::connection::Downstream;
use crate::connection::fields::head_fields;
use crate::request::Request;
use crate::request::chunk::Chunk;
use runtime::clock;
use std::io;
use wire::http2::frame::HEADER;

/// Writes the answer's head (`ngx_http_v2_header_filter`). The stream ends with it if no body can follow.
pub fn write_head(r: &mut Request, server_token: &[u8]) {
    let Downstream::Http2(stream) = &r.downstream else { return };
    let end = r.answer.header_only || (r.answer.headers.content_length == Some(0) && !r.answer.headers.expect_trailers);
    let conf = &r.conf().http2;
    let chunk = (*conf.http2_chunk_size).min(wire::http2::MAX_FRAME as u64) as usize;
    let mut state = stream.session.state.borrow_mut();
    let sent = state.wire.send_head(stream.id, end, |encoder, out| {
        encoder.status(r.answer.headers.status, out);
        head_fields(r, server_token, |name, value| encoder.field(name, value, out));
    });
    if let Some(s) = state.wire.stream(stream.id) {
        s.data.sent += sent as u64;
        s.data.header_size = s.data.sent;
        s.data.chunk = chunk;
        s.data.allowed = u64::MAX;
        s.data.rate_start_ms = clock::monotonic_ms();
    }
    stream.session.changed(&state);
}

/// Sends a head of the 1xx kind.
pub fn informational(stream: &Http2Stream, status: u16, lines: &mut dyn Iterator<Item = (&[u8], &[u8])>) {
    let mut state = stream.session.state.borrow_mut();
    let sent = state.wire.send_head(stream.id, false, |encoder, out| {
        encoder.status(status, out);
        for (name, value) in lines {
            encoder.field(name, value, out);
        }
    });
    if let Some(s) = state.wire.stream(stream.id) {
        s.data.sent += sent as u64;
    }
    stream.session.changed(&state);
}

/// Takes a piece of the body. What cannot go now waits with the stream.
pub fn queue(r: &mut Request, chunk: Chunk<'_>, last: bool) -> io::Result<()> {
    let limited = crate::request::flow::rate(r).0 > 0;
    let Downstream::Http2(stream) = &r.downstream else { return Ok(()) };
    let mut state = stream.session.state.borrow_mut();
    let state = &mut *state;
    let Some(s) = state.wire.stream(stream.id) else { return Ok(()) };
    if s.local_closed {
        return Ok(());
    }
    if limited {
        s.data.allowed = s.data.allowed.min(s.data.output.written);
    }
    if last {
        s.data.last = true;
        let texts =
            |t: &crate::request::headers::HeaderOut| (r.arena.get(t.name).to_vec(), r.arena.get(t.value).to_vec());
        s.data.trailers = r.answer.headers.trailers.iter().map(texts).collect();
    }
    let direct = !limited && s.data.output.is_empty() && state.ready.is_empty();
    let done = if direct { send_now(state, stream.id, chunk)? } else { 0 };
    if let Some(s) = state.wire.stream(stream.id) {
        s.data.output.hold(chunk.cut(done, u64::MAX), done);
        if s.data.output.is_empty() && s.data.last {
            send_end(state, stream.id);
        } else {
            state.make_ready(stream.id);
        }
    }
    stream.session.changed(state);
    Ok(())
}

/// Sends as much of a piece as may go now. Gives how much that was.
fn send_now(state: &mut State, id: u32, chunk: Chunk<'_>) -> io::Result<u64> {
    let mut done = 0;
    while done < chunk.len() && state.wire.output().len() < OUTPUT_LIMIT {
        let left = chunk.len() - done;
        let Some(s) = state.wire.stream(id) else { break };
        let (chunk_size, ends) = (s.data.chunk.max(1), s.data.last && s.data.trailers.is_empty());
        let piece = left.min(chunk_size.min(state.wire.largest_frame()) as u64);
        let n = piece.min(state.wire.sendable(id) as u64);
        if n == 0 {
            break;
        }
        let end = n == left && ends;
        state.wire.send_data(id, n as usize, end, n < piece, |out| chunk.cut(done, done + n).copy_to(out))?;
        count(state, id, HEADER, n);
        done += n;
    }
    Ok(done)
}

/// Counts what was sent: bytes of body, and those around them (`ngx_http_v2_data_frame_handler`).
fn count(state: &mut State, id: u32, around: usize, body: u64) {
    if let Some(s) = state.wire.stream(id) {
        s.data.sent += around as u64 + body;
        s.data.header_size += around as u64;
    }
}

fn send_end(state: &mut State, id: u32) {
    let Some(s) = state.wire.stream(id) else { return };
    s.data.last = false;
    let trailers = std::mem::take(&mut s.data.trailers);
    let n = if trailers.is_empty() {
        state.wire.send_end(id)
    } else {
        state.wire.send_head(id, true, |encoder, out| {
            for (name, value) in &trailers {
                encoder.field(name, value, out);
            }
        })
    };
    count(state, id, n, 0);
}

impl State {
    /// Lets the streams that have something to send do so in turn, a chunk each, until enough waits for the socket.
    pub(super) fn pump(&mut self) {
        while self.wire.output().len() < OUTPUT_LIMIT
            && let Some(id) = self.ready.pop()
        {
            let Some(s) = self.wire.stream(id) else { continue };
            s.data.is_ready = false;
            if s.reset {
                continue;
            }
            match self.send_waiting(id) {
                Ok(true) => self.make_ready(id),
                Ok(false) => {}
                Err(_) => {
                    // A file became shorter: the client learns of it by the stream's end.
                    self.wire.reset(id, wire::http2::ErrorCode::INTERNAL_ERROR);
                    if let Some(s) = self.wire.stream(id) {
                        s.data.end();
                    }
                }
            }
        }
    }

    /// Sends one chunk of what waits with a stream. True: there is more that may go now.
    fn send_waiting(&mut self, id: u32) -> io::Result<bool> {
        let sendable = self.wire.sendable(id) as u64;
        let largest = self.wire.largest_frame();
        let Some(s) = self.wire.stream(id) else { return Ok(false) };
        let waiting = s.data.output.waiting();
        let allowed = s.data.allowed.saturating_sub(s.data.output.written);
        let piece = waiting.min(allowed).min(s.data.chunk.clamp(1, largest) as u64);
        let n = piece.min(sendable);
        if n > 0 {
            let end = n == waiting && s.data.last && s.data.trailers.is_empty();
            let mut output = std::mem::take(&mut s.data.output);
            let result = self.wire.send_data(id, n as usize, end, n < piece, |out| output.take(n, out));
            count(self, id, HEADER, n);
            let Some(s) = self.wire.stream(id) else { return Ok(false) };
            s.data.output = output;
            result?;
            s.data.wake();
        }
        let Some(s) = self.wire.stream(id) else { return Ok(false) };
        if s.data.output.is_empty() {
            if s.data.last {
                send_end(self, id);
            }
            return Ok(false);
        }
        Ok(n == piece && n < allowed)
    }
}
