//! A stream as its request sees it: where the answer goes, where the body comes from.

use super::{Http3Session, State, StreamState, code};
use crate::connection::stream::{self, Arrived};
use quinn_proto::StreamId;
use std::cell::RefMut;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use wire::http3::ErrorCode;
use wire::priority::Priority;

/// A buffer of body above this is freed once it is empty.
const KEEP_INPUT: usize = 16 * 1024;

/// A request's hold on its stream. When it is dropped the stream ends.
pub struct Http3Stream {
    pub(super) session: Rc<Http3Session>,
    pub(super) id: StreamId,
}

impl Http3Stream {
    fn with<V>(&self, f: impl FnOnce(&mut StreamState) -> V) -> Option<V> {
        self.session.state.borrow_mut().streams.get_mut(&self.id).map(f)
    }

    fn state(&self) -> RefMut<'_, State> {
        self.session.state.borrow_mut()
    }

    /// Whether it is spoken in the manner of HTTP/0.9.
    pub fn is_hq(&self) -> bool {
        self.session.hq.get()
    }
}

impl stream::Stream for Http3Stream {
    fn is_gone(&self) -> bool {
        let state = self.state();
        state.dead || state.streams.get(&self.id).is_none_or(|s| s.reset)
    }

    fn has_ended(&self) -> bool {
        self.with(|s| s.ended).unwrap_or(true)
    }

    fn is_handshaking(&self) -> bool {
        self.state().quic.is_handshaking()
    }

    fn poll_gone(&self) -> Poll<()> {
        if self.is_gone() {
            return Poll::Ready(());
        }
        self.with(|s| s.task = Some(runtime::current()));
        Poll::Pending
    }

    fn waiting(&self) -> u64 {
        self.with(|s| s.output.waiting() + (s.frames.len() + s.partial.len()) as u64).unwrap_or(0)
    }

    fn written(&self) -> u64 {
        self.with(|s| s.taken()).unwrap_or(0)
    }

    fn sent(&self) -> (u64, u64) {
        self.with(|s| (s.sent, s.header_size)).unwrap_or((0, 0))
    }

    fn rate_start_ms(&self) -> u64 {
        self.with(|s| s.rate_start_ms).unwrap_or(0)
    }

    fn arm(&self, timeout: Duration) {
        self.with(|s| s.timer().set(timeout));
    }

    fn poll_expired(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.with(|s| s.timer().poll_expired(cx)).unwrap_or(Poll::Pending)
    }

    fn poll_write(&self, limit: u64) -> Poll<io::Result<()>> {
        if self.is_gone() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let mut state = self.state();
        let Some(s) = state.streams.get_mut(&self.id) else { return Poll::Ready(Ok(())) };
        if s.output.is_empty() && s.frames.is_empty() && s.partial.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let allowed = s.taken().saturating_add(limit);
        s.task = Some(runtime::current());
        if std::mem::replace(&mut s.allowed, allowed) != allowed {
            state.make_ready(self.id);
            self.session.changed(&state);
        }
        Poll::Pending
    }

    fn expect(&self, length: Option<u64>) {
        self.with(|s| s.length = length);
    }

    fn prioritize(&self, priority: Priority) {
        let mut state = self.state();
        if state.streams.get(&self.id).is_some_and(|s| s.priority.is_none()) {
            state.prioritize(self.id, priority);
        }
    }

    fn refine_priority(&self, value: &[u8]) {
        let mut state = self.state();
        let said = state.streams.get(&self.id).and_then(|s| s.priority);
        if let Some(priority) = wire::priority::refine(said, value) {
            state.prioritize(self.id, priority);
        }
    }

    fn read(&self, _all: bool, window: u32, take: &mut dyn FnMut(Arrived<'_>)) -> bool {
        let mut state = self.state();
        // Windows are QUIC's: it opens them as bytes are taken from it.
        let changed = state.fill(self.id, window as usize, &self.session);
        let Some(s) = state.streams.get_mut(&self.id) else { return false };
        let ended = s.ended;
        take(Arrived { bytes: &mut s.input, ended });
        if s.input.is_empty() && s.input.capacity() > KEEP_INPUT {
            s.input = Vec::new();
        }
        if changed {
            self.session.changed(&state);
        }
        true
    }

    fn watch(&self) {
        self.with(|s| s.task = Some(runtime::current()));
    }

    fn skip_body(&self) {
        self.with(|s| s.input = Vec::new());
    }

    fn refuse(&self) {
        self.with(|s| s.failed = Some(ErrorCode::MESSAGE_ERROR));
    }

    fn time_out(&self) {
        self.with(|s| s.failed = Some(ErrorCode::GENERAL_PROTOCOL_ERROR));
    }

    fn cut(&self) {
        self.with(|s| s.failed = Some(ErrorCode::CONNECT_ERROR));
    }

    fn moved(&self) -> Option<(u64, u64)> {
        Some((self.session.moved(true), self.session.moved(false)))
    }
}

impl Drop for Http3Stream {
    fn drop(&mut self) {
        let mut state = self.state();
        let Some(s) = state.streams.get(&self.id) else { return };
        if !s.ended && !s.stopped {
            // RFC 9114 section 4.1: the answer is complete without the rest of the request.
            let why = code(s.failed.unwrap_or(ErrorCode::NO_ERROR));
            let _ = state.quic.recv_stream(self.id).stop(why);
            state.unread(self.id);
        }
        let Some(s) = state.streams.remove(&self.id) else { return };
        if s.finished {
            state.flood.finished();
        } else {
            let why = s.failed.unwrap_or(ErrorCode::INTERNAL_ERROR);
            let _ = state.quic.send_stream(self.id).reset(code(why));
        }
        self.session.changed(&state);
    }
}
