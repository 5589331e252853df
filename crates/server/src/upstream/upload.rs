//! A request's body on its way to a peer: as the client sends it or from where it was stored, no faster than the windows let it
//! out. Driven by whoever waits for the answer, so that both directions can go on at once.

use crate::connection::pool as buffers;
use crate::connection::socket::Socket;
use crate::log_error;
use crate::request::Request;
use crate::request::body::{self, BodyError, Stored};
use crate::upstream::failure::Failure;
use crate::upstream::job::JobBody;
use crate::upstream::send::{Framing, frame, keep_for_variable};
use crate::upstream::settings::{UpstreamSettings, next};
use runtime::timer::Timer;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How much of a body file is read at once.
const PIECE: usize = 64 * 1024;

/// A stream that takes a request's body.
pub(in crate::upstream) trait Outlet {
    /// Takes as much of a piece as may go now; `end`: nothing follows it. If that is not all of it, the running task is woken
    /// when more may go.
    fn send(&self, piece: &[u8], end: bool) -> usize;
    /// The body is over, if that has not been said with its last piece.
    fn send_end(&self);
}

/// What is left of a body.
pub struct Upload {
    source: Source,
    /// A piece, from `sent` on.
    piece: Vec<u8>,
    sent: usize,
    /// Nothing follows the piece.
    last: bool,
    /// More than the piece that came with the head was taken from the client: it cannot be had again.
    pub(in crate::upstream) taken: bool,
    /// The deadline of whatever is waited for, and for whom it stands.
    timer: Option<Timer>,
}

enum Source {
    Client,
    Memory(Rc<Stored>),
    File(Rc<Stored>, u64),
}

impl Upload {
    /// For a body. None: there is none.
    pub(in crate::upstream) fn new(r: &mut Request, body: &JobBody) -> Option<Upload> {
        let (source, piece, last) = match body {
            JobBody::None => return None,
            JobBody::Stored(s) if s.len == 0 => return None,
            JobBody::Stored(s) if s.file.is_some() => (Source::File(s.clone(), 0), Vec::new(), false),
            JobBody::Stored(s) => (Source::Memory(s.clone()), Vec::new(), true),
            JobBody::Stream { first, complete, .. } => {
                keep_for_variable(r, first, *complete);
                if *complete && first.is_empty() {
                    return None;
                }
                (Source::Client, first.clone(), *complete)
            }
        };
        Some(Upload { source, piece, sent: 0, last, taken: false, timer: None })
    }

    /// For what the client still sends of a body that has begun to go out.
    pub(in crate::upstream) fn of_client() -> Upload {
        Upload { source: Source::Client, piece: Vec::new(), sent: 0, last: false, taken: true, timer: None }
    }

    fn rest(&self) -> &[u8] {
        match &self.source {
            Source::Memory(stored) => &stored.memory[self.sent..],
            _ => &self.piece[self.sent..],
        }
    }

    /// Sends what can be sent. Ready when all of it went into the connection's output.
    pub(in crate::upstream) fn poll(
        &mut self,
        r: &mut Request,
        cx: &mut Context<'_>,
        conf: &UpstreamSettings,
        outlet: &impl Outlet,
    ) -> Poll<Result<(), Failure>> {
        loop {
            let n = outlet.send(self.rest(), self.last);
            self.sent += n;
            if n > 0 {
                self.timer = None;
                r.attempts.current().sent += n as u64;
            }
            if !self.rest().is_empty() {
                if self.expired(cx, r.attempts.send_timeout(conf)) {
                    return Poll::Ready(Err(Failure::timed_out(r, true)));
                }
                return Poll::Pending;
            }
            if self.last {
                outlet.send_end();
                return Poll::Ready(Ok(()));
            }
            std::task::ready!(self.fill(r, cx))?;
        }
    }

    /// Gets the next piece.
    fn fill(&mut self, r: &mut Request, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.sent = 0;
        self.piece.clear();
        let timeout = *r.conf().core.client_body_timeout;
        if let Source::File(stored, at) = &mut self.source {
            let read = read_piece(stored, *at, &mut self.piece);
            *at += self.piece.len() as u64;
            self.last = *at >= stored.len;
            // Less than all of a body must not look like all of it.
            return Poll::Ready(read.map_err(|e| {
                log_error!(r, Crit, "pread() of a request body failed ({})", crate::log::os_error(&e));
                Failure::of(next::ERROR, true, false)
            }));
        }
        if self.piece.capacity() == 0 {
            self.piece = buffers::take_buffer();
        }
        match body::poll_patiently(r, cx, &mut self.piece) {
            Poll::Ready(Ok(complete)) => {
                (self.last, self.taken, self.timer) = (complete, true, None);
                keep_for_variable(r, &self.piece, complete);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(BodyError::Status(status))) => Poll::Ready(Err(Failure::over(status))),
            Poll::Ready(Err(BodyError::Gone)) => Poll::Ready(Err(Failure::over(499))),
            Poll::Pending if self.expired(cx, timeout) => {
                log_error!(r, Info, "client timed out (110: Connection timed out)");
                Poll::Ready(Err(Failure::over(408)))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn expired(&mut self, cx: &mut Context<'_>, after: Duration) -> bool {
        let timer = self.timer.get_or_insert_with(|| {
            let timer = Timer::new();
            timer.set(after);
            timer
        });
        timer.poll_expired(cx).is_ready()
    }
}

fn read_piece(stored: &Stored, at: u64, piece: &mut Vec<u8>) -> std::io::Result<()> {
    let file = stored.file.as_ref().expect("the source is a file");
    let len = (stored.len - at).min(PIECE as u64) as usize;
    piece.resize(len, 0);
    let mut done = 0;
    while done < len {
        match rustix::io::pread(&file.fd, &mut piece[done..], at + done as u64) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

impl Drop for Upload {
    fn drop(&mut self) {
        buffers::give_buffer(std::mem::take(&mut self.piece));
    }
}

/// The rest of a body that the client sends while the peer's answer comes already, on a connection that the request has to itself. Put there
/// by `send`, when the head of an answer has come before the body's end; driven by whoever waits for the answer (`framing`).
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
