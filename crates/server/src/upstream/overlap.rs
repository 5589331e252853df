//! The rest of a body that the client sends while the peer's answer comes already, on a connection that the request has to itself. Put there
//! by `send`, when the head of an answer has come before the body's end; driven by whoever waits for the answer (`framing`).

use super::failure::Failure;
use super::send::{Framing, frame};
use super::settings::UpstreamSettings;
use super::upload::{Outlet, Upload};
use crate::connection::socket::Socket;
use crate::request::Request;
use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};

/// See the module's head.
pub(super) struct Overlap {
    upload: Upload,
    framing: Framing,
    /// Framed bytes, from `at` on to be written.
    framed: Vec<u8>,
    at: usize,
    /// The client has sent all of it.
    ended: bool,
}

/// What became of it.
pub(super) enum Outcome {
    /// All of it is sent.
    Sent,
    /// The peer takes no more: what it says still counts, but the connection is good for nothing else.
    Refused,
}

/// The connection, as far as the upload sees it.
struct Plain<'c> {
    socket: RefCell<&'c mut Socket>,
    framed: RefCell<&'c mut Vec<u8>>,
    at: Cell<usize>,
    framing: Framing,
    /// The end has been framed.
    has_said_end: Cell<bool>,
    is_broken: Cell<bool>,
}

impl Plain<'_> {
    /// Whether everything framed is written. Otherwise the running task is woken when more can be.
    fn is_clear(&self) -> bool {
        let mut framed = self.framed.borrow_mut();
        while self.at.get() < framed.len() {
            let write = |socket: &mut Socket| socket.try_write(&framed[self.at.get()..], false);
            match self.socket.borrow_mut().poll_write_with(&mut Context::from_waker(Waker::noop()), write) {
                Poll::Ready(Ok(n)) => self.at.set(self.at.get() + n),
                Poll::Ready(Err(_)) => {
                    self.is_broken.set(true);
                    return false;
                }
                Poll::Pending => return false,
            }
        }
        framed.clear();
        self.at.set(0);
        true
    }
}

impl Outlet for Plain<'_> {
    fn send(&self, piece: &[u8], end: bool) -> usize {
        if piece.is_empty() || !self.is_clear() {
            return 0;
        }
        frame(piece, self.framing, end, &mut self.framed.borrow_mut());
        self.has_said_end.set(end);
        self.is_clear();
        piece.len()
    }

    fn send_end(&self) {
        if !self.has_said_end.replace(true) {
            frame(b"", self.framing, true, &mut self.framed.borrow_mut());
        }
    }
}

impl Overlap {
    /// `unsent`: what is framed already.
    pub(super) fn new(framing: Framing, unsent: Vec<u8>, ended: bool) -> Box<Overlap> {
        Box::new(Overlap { upload: Upload::of_client(), framing, framed: unsent, at: 0, ended })
    }

    /// Sends what can be sent. The error is the client's.
    pub(super) fn poll(
        &mut self,
        r: &mut Request,
        cx: &mut Context<'_>,
        conf: &UpstreamSettings,
        socket: &mut Socket,
    ) -> Poll<Result<Outcome, Failure>> {
        let plain = Plain {
            socket: RefCell::new(socket),
            framed: RefCell::new(&mut self.framed),
            at: Cell::new(self.at),
            framing: self.framing,
            has_said_end: Cell::new(false),
            is_broken: Cell::new(false),
        };
        if !self.ended && plain.is_clear() {
            match self.upload.poll(r, cx, conf, &plain) {
                Poll::Ready(Ok(())) => self.ended = true,
                Poll::Ready(Err(failure)) => return Poll::Ready(Err(failure)),
                Poll::Pending => {}
            }
        }
        let is_clear = plain.is_clear();
        self.at = plain.at.get();
        match (plain.is_broken.get(), is_clear && self.ended) {
            (true, _) => Poll::Ready(Ok(Outcome::Refused)),
            (false, true) => Poll::Ready(Ok(Outcome::Sent)),
            (false, false) => Poll::Pending,
        }
    }
}
