//! A stream as its request sees it: where the answer goes, where the body comes from.

use super::{Http2Session, StreamState, UNREAD_PATIENCE_MS};
use crate::connection::stream::{self, Arrived};
use runtime::clock;
use std::cell::RefMut;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use wire::http2::{ErrorCode, connection::Stream};
use wire::priority::Priority;

/// A request's hold on its stream. When it is dropped the stream ends.
pub struct Http2Stream {
    pub(super) session: Rc<Http2Session>,
    pub(super) id: u32,
}

impl Http2Stream {
    pub(super) fn with<V>(&self, f: impl FnOnce(&mut Stream<StreamState>) -> V) -> Option<V> {
        self.session.state.borrow_mut().wire.stream(self.id).map(f)
    }

    fn state(&self) -> RefMut<'_, super::State> {
        self.session.state.borrow_mut()
    }
}

impl stream::Stream for Http2Stream {
    fn is_gone(&self) -> bool {
        let mut state = self.state();
        state.dead || state.wire.stream(self.id).is_none_or(|s| s.reset)
    }

    fn has_ended(&self) -> bool {
        self.with(|s| s.remote_closed).unwrap_or(true)
    }

    fn is_handshaking(&self) -> bool {
        self.session.handshaking.get()
    }

    fn poll_gone(&self) -> Poll<()> {
        if self.is_gone() {
            return Poll::Ready(());
        }
        self.with(|s| s.data.task = Some(runtime::current()));
        Poll::Pending
    }

    fn waiting(&self) -> u64 {
        self.with(|s| s.data.output.waiting()).unwrap_or(0)
    }

    fn written(&self) -> u64 {
        self.with(|s| s.data.output.written).unwrap_or(0)
    }

    fn sent(&self) -> (u64, u64) {
        self.with(|s| (s.data.sent, s.data.header_size)).unwrap_or((0, 0))
    }

    fn rate_start_ms(&self) -> u64 {
        self.with(|s| s.data.rate_start_ms).unwrap_or(0)
    }

    fn arm(&self, timeout: Duration) {
        self.with(|s| s.data.timer().set(timeout));
    }

    fn poll_expired(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.with(|s| s.data.timer().poll_expired(cx)).unwrap_or(Poll::Pending)
    }

    fn poll_write(&self, limit: u64) -> Poll<io::Result<()>> {
        if self.is_gone() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let mut state = self.state();
        let Some(s) = state.wire.stream(self.id) else { return Poll::Ready(Ok(())) };
        if s.data.output.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let allowed = s.data.output.written.saturating_add(limit);
        s.data.task = Some(runtime::current());
        if std::mem::replace(&mut s.data.allowed, allowed) != allowed {
            state.make_ready(self.id);
            self.session.changed(&state);
        }
        Poll::Pending
    }

    fn expect(&self, length: Option<u64>) {
        self.with(|s| s.data.length = length);
    }

    fn prioritize(&self, priority: Priority) {
        self.with(|s| *s.data.priority.get_or_insert(priority));
    }

    fn refine_priority(&self, value: &[u8]) {
        let mut state = self.state();
        let said = state.wire.stream(self.id).and_then(|s| s.data.priority);
        if let Some(priority) = wire::priority::refine(said, value) {
            state.prioritize(self.id, priority);
        }
    }

    fn read(&self, all: bool, window: u32, take: &mut dyn FnMut(Arrived<'_>)) -> bool {
        let mut state = self.state();
        let Some(s) = state.wire.stream(self.id) else { return false };
        let ended = s.remote_closed;
        take(Arrived { bytes: &mut s.data.input, ended });
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
        true
    }

    fn watch(&self) {
        self.with(|s| s.data.task = Some(runtime::current()));
    }

    fn skip_body(&self) {
        self.with(|s| {
            s.data.skip = true;
            s.data.input = Vec::new();
        });
    }

    fn refuse(&self) {
        self.with(|s| s.data.malformed = true);
    }

    fn time_out(&self) {
        self.with(|s| s.data.timed_out = true);
    }

    fn cut(&self) {
        self.with(|s| s.data.cut = true);
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
        let code = match s.data.cut {
            true => ErrorCode::CONNECT_ERROR,
            false if s.data.timed_out => ErrorCode::PROTOCOL_ERROR,
            false => ErrorCode::INTERNAL_ERROR,
        };
        if s.data.malformed {
            state.wire.reset(self.id, ErrorCode::PROTOCOL_ERROR);
        }
        state.wire.release(self.id, code);
        self.session.changed(&state);
    }
}
