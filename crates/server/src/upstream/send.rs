//! The request of a try on its way to a peer that has the connection to itself: the head, and a body from memory, from a file, or as
//! the client sends it. A peer that answers before it has all is listened to at once. Part of `exchange`.

use super::exchange::{Event, Try, client_gone, poll_end, watches_client};
use super::failure::Failure;
use super::head::{LEAST_ROOM, is_interim};
use super::job::{Job, JobBody, Protocol};
use super::settings::next;
use super::upload::Overlap;
use crate::connection::pool as buffers;
use crate::connection::socket::Socket;
use crate::log_error;
use crate::request::Request;
use crate::request::body::{self, BodyError, Stored};
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::task::{Context, Poll};
use wire::http1::Parsed;
use wire::http1::response::ResponseHead;

/// How much of a body file is sent at once.
const FILE_CHUNK: usize = 512 * 1024;

impl Try<'_> {
    /// Sends the request. True when all of it went out, or what the client still sends of it will while the answer comes; false when the peer
    /// answered before that.
    pub(super) async fn send(&mut self, r: &mut Request) -> Result<bool, Failure> {
        let job = self.job;
        let mut ended = false;
        if self.send_until_answered(r, &mut ended).await? {
            return Ok(true);
        }
        let JobBody::Stream { chunked, .. } = &job.body else { return Ok(false) };
        let unsent = std::mem::take(&mut self.unsent);
        self.connection.overlap = Some(Overlap::new(Framing::of(job, *chunked), unsent, ended));
        Ok(true)
    }

    /// `ended`: the client has sent all of a body that is sent on as it comes.
    async fn send_until_answered(&mut self, r: &mut Request, ended: &mut bool) -> Result<bool, Failure> {
        let job = self.job;
        // What came with the client's head leaves with ours.
        let mut framed = Vec::new();
        let memory: &[u8] = match &job.body {
            JobBody::Stored(s) if s.file.is_none() => &s.memory,
            JobBody::Stream { chunked, first, complete } => {
                keep_for_variable(r, first, *complete);
                *ended = *complete;
                frame(first, Framing::of(job, *chunked), *complete, &mut framed);
                &framed
            }
            _ => b"",
        };
        if !self.write_two(r, &job.head, memory).await? {
            return Ok(false);
        }
        match &job.body {
            JobBody::Stored(s) if s.file.is_some() && matches!(job.protocol, Protocol::FastCgi(_)) => {
                self.send_records(r, s).await
            }
            JobBody::Stored(s) if s.file.is_some() => self.send_file(r, s).await,
            JobBody::Stream { chunked, complete: false, .. } => self.stream(r, Framing::of(job, *chunked), ended).await,
            _ => Ok(true),
        }
    }

    /// Writes two pieces. False: the peer said something first.
    async fn write_two(&mut self, r: &mut Request, first: &[u8], second: &[u8]) -> Result<bool, Failure> {
        let total = first.len() + second.len();
        let mut done = 0;
        while done < total {
            let mut armed = false;
            let rest_first = &first[done.min(first.len())..];
            let rest_second = &second[done.saturating_sub(first.len())..];
            let watch = watches_client(r, self.conf);
            let event = poll_fn(|cx| {
                let write = self.connection.socket.poll_write_with(cx, |s| {
                    if rest_second.is_empty() {
                        s.try_write(rest_first, false)
                    } else {
                        s.try_write_two(rest_first, rest_second)
                    }
                });
                if let Poll::Ready(n) = write {
                    return Poll::Ready(Event::Done(Ok(n)));
                }
                // A peer that answers before it has read all stops reading: what it says counts.
                if done > 0
                    && let Poll::Ready(n) = self.poll_answer(r, cx)
                {
                    return Poll::Ready(Event::Done(Err(n)));
                }
                if !std::mem::replace(&mut armed, true) {
                    self.connection.timer.set(r.attempts.send_timeout(self.conf));
                }
                poll_end(r, cx, &self.connection.timer, watch)
            })
            .await;
            match event {
                Event::Done(Ok(Ok(n))) => {
                    done += n;
                    r.attempts.current().sent += n as u64;
                }
                Event::Done(Ok(Err(e))) => {
                    // A peer may have answered and closed before it had read everything.
                    self.connection.is_spoiled = true;
                    self.input.reserve(buffers::BUFFER);
                    if let Ok(n @ 1..) = self.connection.try_read(&mut self.input) {
                        r.attempts.current().received += n as u64;
                        return Ok(false);
                    }
                    if self.has_answered(r) {
                        return Ok(false);
                    }
                    log_error!(r, Error, "send() failed ({})", crate::log::os_error(&e));
                    return Err(Failure::of(next::ERROR, done > 0, self.reused));
                }
                Event::Done(Err(read)) => {
                    if matches!(self.job.body, JobBody::Stream { .. }) {
                        self.unsent = [rest_first, rest_second].concat();
                    }
                    return self.answered_early(r, read);
                }
                Event::TimedOut => return Err(Failure::timed_out(r, true)),
                Event::ClientGone => return Err(client_gone(r)),
            }
        }
        Ok(true)
    }

    /// Ready when what the peer says before it has been sent everything decides the try: the head of its answer is there, or nothing more
    /// comes. One that only says "go on" (1xx), or has begun to answer, is sent the rest.
    fn poll_answer(&mut self, r: &mut Request, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            std::task::ready!(self.connection.socket.poll_readable(cx))?;
            if self.input.capacity() == 0 {
                self.input = buffers::take_buffer();
            }
            self.input.reserve(LEAST_ROOM);
            let n = std::task::ready!(self.connection.poll_read(cx, &mut self.input))?;
            r.attempts.current().received += n as u64;
            if self.has_answered(r) {
                return Poll::Ready(Ok(()));
            }
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Whether the head of an answer has come, or something that is none: whoever reads it says what.
    fn has_answered(&self, r: &Request) -> bool {
        if self.connection.tells_end() && self.connection.has_ended() {
            return true;
        }
        let mut start = 0;
        loop {
            let (mut head, bytes) = (ResponseHead::default(), &self.input[start..]);
            match r.attempts.head_kind.parser().parse(bytes, &mut head) {
                Ok(Parsed::Complete { len }) if is_interim(head.status) => start += len,
                Ok(Parsed::Complete { .. }) | Err(_) => return true,
                Ok(_) => return self.input.len() as u64 >= *self.conf.buffer_size,
            }
        }
    }

    /// What [`Try::poll_answer`] gave decides the try.
    fn answered_early(&self, r: &mut Request, read: io::Result<()>) -> Result<bool, Failure> {
        if read.is_ok() {
            return Ok(false);
        }
        log_error!(r, Error, "upstream prematurely closed connection");
        Err(Failure::of(next::ERROR, true, self.reused))
    }

    /// Sends a body that is in a file as it is.
    async fn send_file(&mut self, r: &mut Request, stored: &Stored) -> Result<bool, Failure> {
        let file = stored.file.as_ref().expect("asked before");
        let mut offset = 0u64;
        self.connection.timer.set(r.attempts.send_timeout(self.conf));
        while offset < stored.len {
            let len = (stored.len - offset).min(FILE_CHUNK as u64) as usize;
            let mut at = offset;
            let event = poll_fn(|cx| {
                let write = |s: &mut Socket| s.try_sendfile(file.fd.as_fd(), &mut at, len);
                if let Poll::Ready(n) = self.connection.socket.poll_write_with(cx, write) {
                    return Poll::Ready(Event::Done(Ok(n)));
                }
                if let Poll::Ready(n) = self.poll_answer(r, cx) {
                    return Poll::Ready(Event::Done(Err(n)));
                }
                self.connection.timer.poll_expired(cx).map(|()| Event::TimedOut)
            })
            .await;
            match event {
                Event::Done(Ok(Ok(n @ 1..))) => {
                    offset += n as u64;
                    r.attempts.current().sent += n as u64;
                    self.connection.timer.set(r.attempts.send_timeout(self.conf));
                }
                Event::Done(Err(read)) => return self.answered_early(r, read),
                Event::TimedOut => return Err(Failure::timed_out(r, true)),
                _ => {
                    log_error!(r, Error, "sendfile() failed");
                    return Err(Failure::of(next::ERROR, true, self.reused));
                }
            }
        }
        Ok(true)
    }

    /// Sends a body that is in a file as records of FastCGI.
    async fn send_records(&mut self, r: &mut Request, stored: &Stored) -> Result<bool, Failure> {
        let file = stored.file.as_ref().expect("asked before");
        let mut piece = vec![0; wire::fastcgi::MAX_CONTENT];
        let mut framed = Vec::new();
        let mut offset = 0;
        loop {
            let n = match rustix::io::pread(&file.fd, &mut piece, offset) {
                Ok(n) => n,
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => {
                    // Less than all of a body must not look like all of it.
                    log_error!(r, Crit, "pread() of a request body failed ({})", crate::log::os_error(&e.into()));
                    return Err(Failure::of(next::ERROR, true, false));
                }
            };
            framed.clear();
            wire::fastcgi::stdin(&piece[..n], &mut framed);
            if n == 0 {
                wire::fastcgi::end_of_stdin(&mut framed);
            }
            if !self.write_two(r, &framed, b"").await? {
                return Ok(false);
            }
            if n == 0 {
                return Ok(true);
            }
            offset += n as u64;
        }
    }

    /// Sends the client's body on as it comes.
    async fn stream(&mut self, r: &mut Request, framing: Framing, ended: &mut bool) -> Result<bool, Failure> {
        let mut piece = buffers::take_buffer();
        let mut framed = Vec::new();
        let timeout = *r.conf().core.client_body_timeout;
        loop {
            piece.clear();
            body::arm(r, timeout);
            let got = poll_fn(|cx| {
                if let Poll::Ready(x) = body::poll_some(r, cx, &mut piece) {
                    return Poll::Ready(Ok(x));
                }
                self.poll_answer(r, cx).map(Err)
            })
            .await;
            let complete = match got {
                Ok(Ok(complete)) => complete,
                Ok(Err(BodyError::Status(s))) => return Err(Failure::over(s)),
                Ok(Err(BodyError::Gone)) => return Err(Failure::over(499)),
                Err(read) => return self.answered_early(r, read),
            };
            keep_for_variable(r, &piece, complete);
            *ended = complete;
            let mut out = &piece;
            if framing != Framing::None {
                framed.clear();
                frame(&piece, framing, complete, &mut framed);
                out = &framed;
            }
            if !self.write_two(r, out, b"").await? {
                return Ok(false);
            }
            if complete {
                buffers::give_buffer(piece);
                return Ok(true);
            }
        }
    }
}

/// How a streamed body is framed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// Its length was announced.
    None,
    /// In chunks.
    Chunks,
    /// In records of FastCGI.
    Records,
}

impl Framing {
    fn of(job: &Job, chunked: bool) -> Framing {
        match (&job.protocol, chunked) {
            (Protocol::FastCgi(_), _) => Framing::Records,
            (_, true) => Framing::Chunks,
            (_, false) => Framing::None,
        }
    }
}

/// Appends a piece of a body as it is sent.
pub(super) fn frame(piece: &[u8], framing: Framing, complete: bool, out: &mut Vec<u8>) {
    match framing {
        Framing::None => out.extend_from_slice(piece),
        Framing::Chunks => {
            if !piece.is_empty() {
                wire::http1::chunked::encode_size(piece.len() as u64, out);
                out.extend_from_slice(piece);
                out.extend_from_slice(b"\r\n");
            }
            if complete {
                out.extend_from_slice(wire::http1::chunked::LAST_CHUNK);
            }
        }
        Framing::Records => {
            wire::fastcgi::stdin(piece, out);
            if complete {
                wire::fastcgi::end_of_stdin(out);
            }
        }
    }
}

/// `$request_body` of a body that came in one piece, where the configuration asks for it.
pub(super) fn keep_for_variable(r: &mut Request, piece: &[u8], complete: bool) {
    let whole = complete && r.body.received == piece.len() as u64;
    if whole && r.snapshot.uses_request_body && piece.len() as u64 <= *r.conf().core.client_body_buffer_size {
        let stored = Stored { memory: piece.to_vec(), file: None, len: piece.len() as u64 };
        r.body.stored = Some(Rc::new(stored));
    }
}
