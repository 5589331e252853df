//! Bodies as they come: kept for their requests, or passed over until the client has to be told to stop.

use super::{State, StreamState};
use runtime::clock;
use wire::http2::ErrorCode;

impl StreamState {
    /// Takes a piece of the body. False: it is not what `Content-Length` announced.
    fn take(&mut self, bytes: &[u8], end: bool) -> bool {
        self.received += bytes.len() as u64;
        if !self.skip {
            self.input.extend_from_slice(bytes);
        }
        self.wake();
        self.length.is_none_or(|n| if end { self.received == n } else { self.received <= n })
    }
}

impl State {
    /// A piece of a body has come. What nobody reads is only looked at for its length.
    pub(super) fn take_data(&mut self, id: u32, bytes: &[u8], end: bool) {
        let Some(s) = self.wire.stream(id) else { return };
        let fits = s.data.take(bytes, end);
        let (skip, ownerless) = (s.data.skip, s.data.ownerless);
        if !fits && skip {
            self.wire.reset(id, ErrorCode::PROTOCOL_ERROR);
            self.end_stream(id);
        } else if ownerless && (end || self.wire.receivable(id) == 0) {
            self.wire.release(id, ErrorCode::NO_ERROR);
        }
    }

    /// Trailers have come: nobody has a use for them.
    pub(super) fn end_body(&mut self, id: u32, malformed: bool) {
        if malformed {
            self.wire.reset(id, ErrorCode::PROTOCOL_ERROR);
            return self.end_stream(id);
        }
        self.take_data(id, b"", true);
    }

    /// A stream was reset.
    pub(super) fn end_stream(&mut self, id: u32) {
        let Some(s) = self.wire.stream(id) else { return };
        s.data.end();
        if s.data.ownerless {
            self.wire.release(id, ErrorCode::NO_ERROR);
        }
    }

    /// Tells clients to stop that send what nobody reads for too long. Gives the time of the next such, ms.
    pub(super) fn stop_unread(&mut self) -> Option<u64> {
        let now = clock::monotonic_ms();
        while let Some(&(until, id)) = self.unread.front() {
            if until > now && self.wire.stream(id).is_some() {
                return Some(until - now);
            }
            self.unread.pop_front();
            self.wire.release(id, ErrorCode::NO_ERROR);
        }
        None
    }
}
