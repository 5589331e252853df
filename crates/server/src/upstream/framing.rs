//! What stands between a connection to a peer and whoever reads its answer: nothing (HTTP/1), records (FastCGI), lines (memcached), or a stream
//! of a connection that requests share (HTTP/2, HTTP/3). `exchange` and `relay` see bytes of a head and a body in every case.

use super::failure::Failure;
use super::fastcgi::{self, Records};
use super::job::Job;
use super::memcached::{self, Reply};
use super::pool::Connection;
use super::settings::UpstreamSettings;
use super::upload::Outcome;
use crate::request::Request;
use std::io;
use std::task::{Context, Poll, ready};

/// See the module's head.
#[derive(Default)]
pub enum Framing {
    /// The connection's bytes are the answer's.
    #[default]
    Plain,
    /// FastCGI.
    Records(Box<Records>),
    /// memcached.
    Reply(Box<Reply>),
    /// HTTP/2 and HTTP/3: the connection's own socket is none.
    Stream(Box<dyn AnswerStream>),
}

/// A request's stream of a connection that others use too. Its answer's head is read as text.
pub trait AnswerStream {
    /// Takes what has come; 0: nothing more comes. Otherwise the running task is woken then.
    fn poll_read(&mut self, buf: &mut Vec<u8>) -> Poll<usize>;
    /// Ready when there is something to read, or nothing more comes.
    fn poll_news(&mut self) -> Poll<()>;
    /// Whether the answer is complete.
    fn has_ended(&self) -> bool;
    /// Whether it came to nothing.
    fn is_broken(&self) -> bool;
    /// Sends on what is left of the request's body.
    fn poll_upload(
        &mut self,
        r: &mut Request,
        cx: &mut Context<'_>,
        conf: &UpstreamSettings,
    ) -> Poll<Result<(), Failure>>;
    /// Whether some of it is left.
    fn is_uploading(&self) -> bool;
    /// The answer's trailers become the request's to pass on.
    fn keep_trailers(&mut self, r: &mut Request);
    /// Nothing came in time. If nothing at all came on the connection meanwhile, the peer may be gone: others need not wait for it
    /// too.
    fn note_timeout(&self);
    /// Logs, once, what went wrong. Gives what that means for the try.
    fn complain(&mut self, r: &mut Request) -> Option<Failure>;
}

impl Connection {
    /// Reads on. `Ok(0)`: it is over, by the connection's end or by what its framing says.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        match &mut self.framing {
            Framing::Plain => self.socket.poll_read(cx, buf),
            Framing::Records(records) => records.poll_read(&mut self.socket, cx, buf),
            Framing::Reply(reply) => reply.poll_read(&mut self.socket, cx, buf),
            Framing::Stream(stream) => stream.poll_read(buf).map(Ok),
        }
    }

    /// Ready when [`Connection::poll_read`] has something to say.
    pub fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.framing {
            Framing::Records(records) if records.is_over() => Poll::Ready(Ok(())),
            Framing::Reply(reply) if reply.is_over() => Poll::Ready(Ok(())),
            Framing::Plain | Framing::Records(_) | Framing::Reply(_) => self.socket.poll_readable(cx),
            Framing::Stream(stream) => stream.poll_news().map(Ok),
        }
    }

    /// Reads what is there now.
    pub fn try_read(&mut self, buf: &mut Vec<u8>) -> io::Result<usize> {
        match &mut self.framing {
            Framing::Plain => self.socket.try_read(buf),
            Framing::Records(records) => records.try_read(&mut self.socket, buf),
            Framing::Reply(reply) => reply.try_read(&mut self.socket, buf),
            Framing::Stream(stream) => match stream.poll_read(buf) {
                Poll::Ready(n) => Ok(n),
                Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
            },
        }
    }

    /// Whether the framing has told the end, not the connection's.
    pub fn has_ended(&self) -> bool {
        match &self.framing {
            Framing::Plain => false,
            Framing::Records(records) => records.has_ended(),
            Framing::Reply(reply) => reply.has_ended(),
            Framing::Stream(stream) => stream.has_ended(),
        }
    }

    /// What ends too early, for the log.
    pub fn what_ends(&self) -> &'static str {
        match &self.framing {
            Framing::Records(records) if records.has_ended() => "FastCGI stdout",
            Framing::Plain | Framing::Records(_) | Framing::Reply(_) => "connection",
            Framing::Stream(_) => "stream",
        }
    }

    /// Whether the framing has something to complain of, which [`Connection::complain`] logs.
    pub fn is_garbled(&self) -> bool {
        match &self.framing {
            Framing::Plain => false,
            Framing::Records(records) => records.is_garbled(),
            Framing::Reply(reply) => reply.is_garbled(),
            Framing::Stream(stream) => stream.is_broken(),
        }
    }

    /// Whether there is a framing and it has not told the end yet.
    pub fn awaits_end(&self) -> bool {
        match &self.framing {
            Framing::Plain => false,
            Framing::Records(records) => !records.is_over(),
            Framing::Reply(reply) => !reply.is_over(),
            Framing::Stream(stream) => !stream.has_ended(),
        }
    }

    /// Whether the connection's end came too early, as far as the framing tells.
    pub fn is_cut(&self) -> bool {
        match &self.framing {
            Framing::Plain => false,
            Framing::Records(records) => records.is_cut(),
            Framing::Reply(reply) => !reply.is_complete(),
            Framing::Stream(stream) => !stream.has_ended(),
        }
    }

    /// Whether the next request may be sent on it, as far as the framing tells. A stream is never used again.
    pub fn is_complete(&self) -> bool {
        if self.is_spoiled || self.overlap.is_some() {
            return false;
        }
        match &self.framing {
            Framing::Plain => true,
            Framing::Records(records) => records.is_complete(),
            Framing::Reply(reply) => reply.is_complete(),
            Framing::Stream(_) => false,
        }
    }

    /// Whether an answer without a length ends without the connection's end.
    pub fn tells_end(&self) -> bool {
        !matches!(self.framing, Framing::Plain)
    }

    /// Whether the peer has taken the answer back, complete or not.
    pub fn is_reset(&self) -> bool {
        matches!(&self.framing, Framing::Stream(stream) if stream.is_broken())
    }

    /// Sends on what the client sends, while the answer comes or is waited for. Ready when nothing is left to be sent.
    #[inline]
    pub fn poll_upload(
        &mut self,
        r: &mut Request,
        cx: &mut Context<'_>,
        conf: &UpstreamSettings,
    ) -> Poll<Result<(), Failure>> {
        match &mut self.framing {
            Framing::Stream(stream) => stream.poll_upload(r, cx, conf),
            _ => {
                let Some(overlap) = &mut self.overlap else { return Poll::Ready(Ok(())) };
                let outcome = ready!(overlap.poll(r, cx, conf, &mut self.socket))?;
                self.overlap = None;
                self.is_spoiled |= matches!(outcome, Outcome::Refused);
                Poll::Ready(Ok(()))
            }
        }
    }

    /// What was waited for has not come in time.
    pub fn note_timeout(&self) {
        if let Framing::Stream(stream) = &self.framing {
            stream.note_timeout();
        }
    }

    /// Whether some of the request's body is still to be sent.
    pub fn is_uploading(&self) -> bool {
        self.overlap.is_some() || matches!(&self.framing, Framing::Stream(stream) if stream.is_uploading())
    }

    /// The answer's trailers, where the framing has taken them apart, are noted with the request.
    pub fn keep_trailers(&mut self, r: &mut Request) {
        if let Framing::Stream(stream) = &mut self.framing {
            stream.keep_trailers(r);
        }
    }

    /// Logs what the framing has to complain of. Gives what spoils the try.
    pub fn complain(&mut self, r: &mut Request, job: &Job) -> Option<Complaint> {
        let always = |failure| Complaint { failure, after: None };
        match &mut self.framing {
            Framing::Plain => None,
            Framing::Reply(reply) => memcached::complain(r, reply).map(always),
            Framing::Records(records) => fastcgi::complain(r, records, job.caught()),
            Framing::Stream(stream) => stream.complain(r).map(always),
        }
    }
}

/// Something that spoils a try.
pub struct Complaint {
    /// Its end.
    pub failure: Failure,
    /// It spoils a head that is not whole with so many bytes of the answer; none: whatever has come.
    pub after: Option<usize>,
}
