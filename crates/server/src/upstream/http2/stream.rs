//! A request's hold on its stream: what came of the answer, what goes out of the body. When it is dropped the stream ends.

use super::{OUTPUT_LIMIT, STREAM_WINDOW, Session, Trouble};
use crate::connection::pool as buffers;
use crate::log_error;
use crate::request::Request;
use crate::upstream::failure::Failure;
use crate::upstream::framing::AnswerStream;
use crate::upstream::settings::{UpstreamSettings, next};
use crate::upstream::sharing::Shared;
use crate::upstream::upload::{Outlet, Upload};
use runtime::clock;
use std::convert::Infallible;
use std::rc::Rc;
use std::task::{Context, Poll};
use wire::http2::ErrorCode;

/// See the module's head.
pub struct Stream {
    session: Rc<Session>,
    id: u32,
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
    pub(super) fn new(session: Rc<Session>, id: u32, upload: Option<Upload>, reused: bool) -> Stream {
        let opened_ms = clock::monotonic_ms();
        Stream { session, id, upload, reused, opened_ms, said: false, taken: false }
    }
}

impl AnswerStream for Stream {
    fn poll_read(&mut self, buf: &mut Vec<u8>) -> Poll<usize> {
        let mut state = self.session.state.borrow_mut();
        let Some(s) = state.wire.stream(self.id) else { return Poll::Ready(0) };
        if s.data.trouble.is_some() {
            return Poll::Ready(0);
        }
        let n = s.data.input.len();
        if n == 0 && s.data.complete {
            return Poll::Ready(0);
        }
        if n == 0 {
            s.data.task = Some(runtime::current());
            return Poll::Pending;
        }
        if buf.is_empty() {
            std::mem::swap(buf, &mut s.data.input);
        } else {
            buf.extend_from_slice(&s.data.input);
            s.data.input.clear();
        }
        if state.wire.receivable(self.id) < STREAM_WINDOW / 2 {
            state.wire.open_window(self.id, STREAM_WINDOW);
            self.session.changed(&state);
        }
        Poll::Ready(n)
    }

    fn poll_news(&mut self) -> Poll<()> {
        let mut state = self.session.state.borrow_mut();
        let Some(s) = state.wire.stream(self.id) else { return Poll::Ready(()) };
        if s.data.complete || s.data.trouble.is_some() || !s.data.input.is_empty() {
            return Poll::Ready(());
        }
        s.data.task = Some(runtime::current());
        Poll::Pending
    }

    fn has_ended(&self) -> bool {
        let mut state = self.session.state.borrow_mut();
        state.wire.stream(self.id).is_some_and(|s| s.data.complete && s.data.trouble.is_none())
    }

    fn is_broken(&self) -> bool {
        let mut state = self.session.state.borrow_mut();
        state.wire.stream(self.id).is_none_or(|s| s.data.trouble.is_some())
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
        let trailers = {
            let mut state = self.session.state.borrow_mut();
            state.wire.stream(self.id).map(|s| std::mem::take(&mut s.data.trailers))
        };
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
        let (trouble, heard) = {
            let mut state = self.session.state.borrow_mut();
            let s = state.wire.stream(self.id)?;
            (s.data.trouble.clone()?, s.data.heard)
        };
        let first = !std::mem::replace(&mut self.said, true);
        let lost = |stale| Failure::of(next::ERROR, true, stale);
        let invalid = || Failure::of(next::INVALID_HEADER, true, false);
        // The peer says that it has done nothing: the request may be sent again, if its body is still there.
        let untouched = || Failure { stale: true, ..Failure::of(next::ERROR, self.taken, true) };
        let stale = self.reused && !heard;
        let (text, failure) = match &trouble {
            Trouble::Closed => ("upstream prematurely closed connection".to_owned(), lost(stale)),
            Trouble::Failed(text) => (text.to_string(), lost(stale)),
            Trouble::Rejected(ErrorCode::REFUSED_STREAM) if !heard => {
                ("upstream rejected request with error 7".to_owned(), untouched())
            }
            Trouble::Goaway(ErrorCode::NO_ERROR) if !heard => {
                ("upstream sent goaway with error 0".to_owned(), untouched())
            }
            Trouble::Rejected(code) => (format!("upstream rejected request with error {}", code.0), invalid()),
            Trouble::Goaway(code) => (format!("upstream sent goaway with error {}", code.0), invalid()),
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

impl Outlet for (&Session, u32) {
    fn send(&self, piece: &[u8], end: bool) -> usize {
        let (session, id) = *self;
        let mut state = session.state.borrow_mut();
        let state = &mut *state;
        let mut done = 0;
        state.wire.lend_buffer(buffers::take_buffer);
        while done < piece.len() && state.wire.output().len() < OUTPUT_LIMIT {
            let left = piece.len() - done;
            let wanted = left.min(state.wire.largest_frame());
            let n = wanted.min(state.wire.sendable(id));
            if n == 0 {
                break;
            }
            let bytes = &piece[done..done + n];
            let fill = |out: &mut Vec<u8>| {
                out.extend_from_slice(bytes);
                Ok::<_, Infallible>(())
            };
            let Ok(()) = state.wire.send_data(id, n, end && n == left, n < wanted, fill);
            done += n;
        }
        if done > 0 {
            session.changed(state);
        }
        if done < piece.len() {
            state.crowded |= state.wire.output().len() >= OUTPUT_LIMIT;
            if let Some(s) = state.wire.stream(id) {
                s.data.task = Some(runtime::current());
            }
        }
        done
    }

    fn send_end(&self) {
        let (session, id) = *self;
        let mut state = session.state.borrow_mut();
        if state.wire.send_end(id) > 0 {
            session.changed(&state);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.session.state.borrow_mut();
        if let Some(data) = state.wire.release(self.id, ErrorCode::CANCEL) {
            buffers::give_buffer(data.input);
        }
        // It may have been the last one, or its end has to be told.
        if state.wire.streams().is_empty() || !state.wire.output().is_empty() {
            self.session.changed(&state);
        }
    }
}
