//! A stream as its request sees it: where the answer goes, where the body comes from.

use super::{Session, StreamState, UNREAD_PATIENCE_MS};
use crate::engine;
use crate::worker::clock;
use std::cell::RefMut;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use wire::http2::{ErrorCode, connection::Stream};

/// A request's hold on its stream. When it is dropped the stream ends.
pub struct Http2Stream {
    pub(super) session: Rc<Session>,
    pub(super) id: u32,
}

/// What is known of a stream's body so far.
pub struct Arrived<'a> {
    /// Bytes that nobody has read yet.
    pub bytes: &'a mut Vec<u8>,
    /// Nothing follows them.
    pub ended: bool,
}

impl Http2Stream {
    pub(super) fn with<V>(&self, f: impl FnOnce(&mut Stream<StreamState>) -> V) -> Option<V> {
        self.session.state.borrow_mut().wire.stream(self.id).map(f)
    }

    fn state(&self) -> RefMut<'_, super::State> {
        self.session.state.borrow_mut()
    }

    /// Whether the client has given the stream up, or is gone.
    pub fn is_gone(&self) -> bool {
        let mut state = self.state();
        state.dead || state.wire.stream(self.id).is_none_or(|s| s.reset)
    }

    /// Whether the TLS handshake of the connection is not complete yet.
    pub fn is_handshaking(&self) -> bool {
        self.session.handshaking.get()
    }

    /// Ready when the stream is gone; otherwise the task is woken then.
    pub fn poll_gone(&self) -> Poll<()> {
        if self.is_gone() {
            return Poll::Ready(());
        }
        self.with(|s| s.data.task = Some(engine::current()));
        Poll::Pending
    }

    /// Bytes that wait for the client's window.
    pub fn waiting(&self) -> u64 {
        self.with(|s| s.data.output.waiting()).unwrap_or(0)
    }

    /// Bytes that went out of the queue since the answer began.
    pub fn written(&self) -> u64 {
        self.with(|s| s.data.output.written).unwrap_or(0)
    }

    /// Bytes of all frames of the stream, and of its head's.
    pub fn sent(&self) -> (u64, u64) {
        self.with(|s| (s.data.sent, s.data.header_size)).unwrap_or((0, 0))
    }

    /// When a rate limit began to count, ms.
    pub fn rate_start_ms(&self) -> u64 {
        self.with(|s| s.data.rate_start_ms).unwrap_or(0)
    }

    /// Sets the deadline of what the request waits for.
    pub fn arm(&self, timeout: Duration) {
        self.with(|s| s.data.timer().set(timeout));
    }

    /// Whether the deadline has passed; otherwise the task is woken then.
    pub fn poll_expired(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.with(|s| s.data.timer().poll_expired(cx)).unwrap_or(Poll::Pending)
    }

    /// Lets up to `limit` bytes of what waits go out. Ready when nothing waits.
    ///
    /// # Errors
    /// `ConnectionAborted`: the client has given the stream up.
    pub fn poll_write(&self, limit: u64) -> Poll<io::Result<()>> {
        if self.is_gone() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let mut state = self.state();
        let Some(s) = state.wire.stream(self.id) else { return Poll::Ready(Ok(())) };
        if s.data.output.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let allowed = s.data.output.written.saturating_add(limit);
        s.data.task = Some(engine::current());
        if std::mem::replace(&mut s.data.allowed, allowed) != allowed {
            state.make_ready(self.id);
            self.session.changed(&state);
        }
        Poll::Pending
    }

    /// What has come of the body, given to `take`, after which the window is opened: fully (`all`: everything is taken as
    /// it comes), or so far that `window` bytes may lie here.
    pub fn read<V>(&self, all: bool, window: u32, take: impl FnOnce(Arrived<'_>) -> V) -> Option<V> {
        let mut state = self.state();
        let s = state.wire.stream(self.id)?;
        let ended = s.remote_closed;
        let taken = take(Arrived { bytes: &mut s.data.input, ended });
        if s.data.input.is_empty() && s.data.input.capacity() > KEEP_INPUT {
            s.data.input = Vec::new();
        }
        let before = state.wire.output().len();
        let left = state.wire.stream(self.id).map_or(0, |s| s.data.input.len() as u32);
        if all {
            state.wire.open_widely(self.id);
        } else {
            state.wire.open_window(self.id, window.saturating_sub(left));
        }
        if state.wire.output().len() > before {
            self.session.changed(&state);
        }
        Some(taken)
    }

    /// Wakes the task when more of the body comes.
    pub fn watch(&self) {
        self.with(|s| s.data.task = Some(engine::current()));
    }

    /// Throws away what has come of the body and what still comes.
    pub fn skip_body(&self) {
        self.with(|s| {
            s.data.skip = true;
            s.data.input = Vec::new();
        });
    }

    /// The request is malformed: whatever is answered, the stream ends with an error.
    pub fn refuse(&self) {
        self.with(|s| s.data.malformed = true);
    }

    /// The client took too long: the stream ends with an error.
    pub fn time_out(&self) {
        self.with(|s| s.data.timed_out = true);
    }
}

/// A buffer of body above this is freed once it is empty.
const KEEP_INPUT: usize = 16 * 1024;

impl Drop for Http2Stream {
    fn drop(&mut self) {
        let mut state = self.state();
        let Some(s) = state.wire.stream(self.id) else { return };
        if s.local_closed && !s.remote_closed && !s.data.malformed {
            (s.data.ownerless, s.data.skip) = (true, true);
            (s.data.input, s.data.timer) = (Vec::new(), None);
            state.unread.push_back((clock::monotonic_ms() + UNREAD_PATIENCE_MS, self.id));
            self.session.changed(&state);
            return;
        }
        let code = if s.data.timed_out { ErrorCode::PROTOCOL_ERROR } else { ErrorCode::INTERNAL_ERROR };
        if s.data.malformed {
            state.wire.reset(self.id, ErrorCode::PROTOCOL_ERROR);
        }
        state.wire.release(self.id, code);
        self.session.changed(&state);
    }
}
