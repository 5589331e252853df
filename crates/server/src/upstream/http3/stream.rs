//! A request's hold on its stream: what came of the answer, what goes out of the body. When it is dropped the stream ends.

use super::{OUTPUT_LIMIT, Session, StreamState, Trouble, code};
use crate::connection::pool as buffers;
use crate::log_error;
use crate::request::Request;
use crate::upstream::failure::Failure;
use crate::upstream::framing::AnswerStream;
use crate::upstream::settings::{UpstreamSettings, next};
use crate::upstream::sharing::Shared;
use crate::upstream::upload::{Outlet, Upload};
use quinn_proto::StreamId;
use runtime::clock;
use std::rc::Rc;
use std::task::{Context, Poll};
use wire::http3::ErrorCode;
use wire::http3::frame::{self, kind};

/// See the file's head.
pub(super) struct Stream {
    session: Rc<Session>,
    id: StreamId,
    upload: Option<Upload>,
    /// The connection carried requests before.
    reused: bool,
    opened_ms: u64,
    /// The trouble was logged.
    said: bool,
    /// The body that went out cannot be had again.
    taken: bool,
}

impl Stream {
    pub(super) fn new(session: Rc<Session>, id: StreamId, upload: Option<Upload>, reused: bool) -> Stream {
        let opened_ms = clock::monotonic_ms();
        Stream { session, id, upload, reused, opened_ms, said: false, taken: false }
    }

    fn look<V>(&self, with: impl FnOnce(&StreamState) -> V) -> Option<V> {
        self.session.state.borrow().streams.get(&self.id).map(with)
    }
}

impl AnswerStream for Stream {
    fn poll_read(&mut self, buf: &mut Vec<u8>) -> Poll<usize> {
        let mut state = self.session.state.borrow_mut();
        let Some(s) = state.streams.get_mut(&self.id) else { return Poll::Ready(0) };
        let n = s.input.len();
        if s.trouble.is_some() || n == 0 && s.complete {
            return Poll::Ready(0);
        }
        if n == 0 {
            s.task = Some(runtime::current());
            return Poll::Pending;
        }
        if buf.is_empty() {
            std::mem::swap(buf, &mut s.input);
        } else {
            buf.extend_from_slice(&s.input);
            s.input.clear();
        }
        // There is room for what QUIC has kept back, and the peer is to hear of it.
        state.read_answer(self.id);
        self.session.changed(&state);
        Poll::Ready(n)
    }

    fn poll_news(&mut self) -> Poll<()> {
        let mut state = self.session.state.borrow_mut();
        let Some(s) = state.streams.get_mut(&self.id) else { return Poll::Ready(()) };
        if s.complete || s.trouble.is_some() || !s.input.is_empty() {
            return Poll::Ready(());
        }
        s.task = Some(runtime::current());
        Poll::Pending
    }

    fn has_ended(&self) -> bool {
        self.look(|s| s.complete && s.trouble.is_none()).unwrap_or(false)
    }

    fn is_broken(&self) -> bool {
        self.look(|s| s.trouble.is_some()).unwrap_or(true)
    }

    fn poll_upload(
        &mut self,
        r: &mut Request,
        cx: &mut Context<'_>,
        conf: &UpstreamSettings,
    ) -> Poll<Result<(), Failure>> {
        let Some(upload) = &mut self.upload else { return Poll::Ready(Ok(())) };
        let result = upload.poll(r, cx, conf, &(&*self.session, self.id));
        self.taken |= upload.taken;
        if result.is_ready() {
            self.upload = None;
        }
        result
    }

    fn is_uploading(&self) -> bool {
        self.upload.is_some()
    }

    fn keep_trailers(&mut self, r: &mut Request) {
        let trailers =
            self.session.state.borrow_mut().streams.get_mut(&self.id).map(|s| std::mem::take(&mut s.trailers));
        for (name, value) in trailers.unwrap_or_default() {
            let line = (r.text(&name), r.text(&value));
            r.attempts.trailers.push(line);
        }
    }

    fn note_timeout(&self) {
        let heard = self.session.state.borrow().heard_ms;
        if heard <= self.opened_ms {
            self.session.retire();
        }
    }

    fn complain(&mut self, r: &mut Request) -> Option<Failure> {
        let (trouble, heard) = self.look(|s| Some((s.trouble.clone()?, s.heard)))??;
        let first = !std::mem::replace(&mut self.said, true);
        let lost = |stale| Failure::of(next::ERROR, true, stale);
        let invalid = || Failure::of(next::INVALID_HEADER, true, false);
        // The peer says that it has done nothing: the request may be sent again, if its body is still there.
        let untouched = || Failure { stale: true, ..Failure::of(next::ERROR, self.taken, true) };
        let (text, failure) = match &trouble {
            Trouble::Failed(text) => (text.to_string(), lost(self.reused && !heard)),
            Trouble::Rejected(number) if *number == u64::from(ErrorCode::REQUEST_REJECTED.0) && !heard => {
                (format!("upstream rejected request with error {number}"), untouched())
            }
            Trouble::Goaway if !heard => ("upstream sent goaway".to_owned(), untouched()),
            Trouble::Rejected(number) => (format!("upstream rejected request with error {number}"), invalid()),
            Trouble::Goaway => ("upstream sent goaway".to_owned(), invalid()),
            Trouble::Invalid(text) => (text.to_string(), invalid()),
        };
        if first && failure.stale {
            log_error!(r, Info, "{text}");
        } else if first {
            log_error!(r, Error, "{text}");
        }
        Some(failure)
    }
}

impl Outlet for (&Session, StreamId) {
    fn send(&self, piece: &[u8], end: bool) -> usize {
        let (session, id) = *self;
        let mut state = session.state.borrow_mut();
        let Some(s) = state.streams.get_mut(&id) else { return piece.len() };
        if s.stopped || s.trouble.is_some() {
            // Nobody wants it; what comes of the request is the answer's business.
            return piece.len();
        }
        let n = piece.len().min(OUTPUT_LIMIT.saturating_sub(s.output.len()));
        if n > 0 {
            frame::write_head(kind::DATA, n, &mut s.output);
            s.output.extend_from_slice(&piece[..n]);
        }
        s.last |= end && n == piece.len();
        if n < piece.len() {
            s.task = Some(runtime::current());
        }
        session.changed(&state);
        n
    }

    fn send_end(&self) {
        let (session, id) = *self;
        let mut state = session.state.borrow_mut();
        if let Some(s) = state.streams.get_mut(&id) {
            s.last = true;
            session.changed(&state);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.session.state.borrow_mut();
        let Some(s) = state.streams.remove(&self.id) else { return };
        if !s.complete {
            let _ = state.quic.recv_stream(self.id).stop(code(ErrorCode::REQUEST_CANCELLED));
        }
        if !s.finished {
            let _ = state.quic.send_stream(self.id).reset(code(ErrorCode::REQUEST_CANCELLED));
        }
        buffers::give_buffer(s.input);
        self.session.changed(&state);
    }
}
