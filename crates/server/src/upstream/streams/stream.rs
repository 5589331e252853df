//! A request's hold on its stream: what came of the answer, what goes out of the body. When it is dropped the stream ends.

use super::{Carrier, Trouble};
use crate::log_error;
use crate::request::Request;
use crate::upstream::failure::Failure;
use crate::upstream::framing::AnswerStream;
use crate::upstream::settings::{UpstreamSettings, next};
use crate::upstream::upload::{Outlet, Upload};
use runtime::clock;
use std::rc::Rc;
use std::task::{Context, Poll};

/// See the file's head.
pub struct Stream<C: Carrier> {
    session: Rc<C>,
    id: C::Id,
    upload: Option<Upload>,
    /// The connection carried requests before.
    reused: bool,
    opened_ms: u64,
    /// The trouble was logged.
    said: bool,
    /// The body that went out cannot be had again.
    taken: bool,
}

impl<C: Carrier> Stream<C> {
    pub(super) fn new(session: Rc<C>, id: C::Id, upload: Option<Upload>, reused: bool) -> Stream<C> {
        let opened_ms = clock::monotonic_ms();
        Stream { session, id, upload, reused, opened_ms, said: false, taken: false }
    }
}

impl<C: Carrier> AnswerStream for Stream<C> {
    fn poll_read(&mut self, buf: &mut Vec<u8>) -> Poll<usize> {
        let read = self.session.answer(self.id, |answer| {
            let n = answer.input.len();
            if answer.trouble.is_some() || n == 0 && answer.complete {
                return Poll::Ready(0);
            }
            if n == 0 {
                answer.task = Some(runtime::current());
                return Poll::Pending;
            }
            if buf.is_empty() {
                std::mem::swap(buf, &mut answer.input);
            } else {
                buf.extend_from_slice(&answer.input);
                answer.input.clear();
            }
            Poll::Ready(n)
        });
        if let Some(Poll::Ready(1..)) = read {
            self.session.taken(self.id);
        }
        read.unwrap_or(Poll::Ready(0))
    }

    fn poll_news(&mut self) -> Poll<()> {
        let news = self.session.answer(self.id, |answer| {
            if answer.complete || answer.trouble.is_some() || !answer.input.is_empty() {
                return Poll::Ready(());
            }
            answer.task = Some(runtime::current());
            Poll::Pending
        });
        news.unwrap_or(Poll::Ready(()))
    }

    fn has_ended(&self) -> bool {
        self.session.answer(self.id, |answer| answer.complete && answer.trouble.is_none()).unwrap_or(false)
    }

    fn is_broken(&self) -> bool {
        self.session.answer(self.id, |answer| answer.trouble.is_some()).unwrap_or(true)
    }

    fn poll_upload(
        &mut self,
        r: &mut Request,
        cx: &mut Context<'_>,
        conf: &UpstreamSettings,
    ) -> Poll<Result<(), Failure>> {
        let Some(upload) = &mut self.upload else { return Poll::Ready(Ok(())) };
        let result = upload.poll(r, cx, conf, &Body { session: &*self.session, id: self.id });
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
        let trailers = self.session.answer(self.id, |answer| std::mem::take(&mut answer.trailers));
        for (name, value) in trailers.unwrap_or_default() {
            let line = (r.text(&name), r.text(&value));
            r.attempts.trailers.push(line);
        }
    }

    fn note_timeout(&self) {
        if self.session.life().heard_ms() <= self.opened_ms {
            self.session.retire();
        }
    }

    fn complain(&mut self, r: &mut Request) -> Option<Failure> {
        let found = self.session.answer(self.id, |answer| Some((answer.trouble.clone()?, answer.heard)));
        let (trouble, heard) = found??;
        let first = !std::mem::replace(&mut self.said, true);
        let (text, failure) = match &trouble {
            Trouble::Lost(text) => (text, Failure::of(next::ERROR, true, self.reused && !heard)),
            // It may be sent again, if its body is still there.
            Trouble::Refused(text) if !heard => {
                (text, Failure { stale: true, ..Failure::of(next::ERROR, self.taken, true) })
            }
            Trouble::Refused(text) | Trouble::Invalid(text) => (text, Failure::of(next::INVALID_HEADER, true, false)),
        };
        if first && failure.stale {
            log_error!(r, Info, "{text}");
        } else if first {
            log_error!(r, Error, "{text}");
        }
        Some(failure)
    }
}

/// Where a request's body goes.
struct Body<'a, C: Carrier> {
    session: &'a C,
    id: C::Id,
}

impl<C: Carrier> Outlet for Body<'_, C> {
    fn send(&self, piece: &[u8], end: bool) -> usize {
        self.session.send(self.id, piece, end)
    }

    fn send_end(&self) {
        self.session.send_end(self.id);
    }
}

impl<C: Carrier> Drop for Stream<C> {
    fn drop(&mut self) {
        self.session.release(self.id);
    }
}
