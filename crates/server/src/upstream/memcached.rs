//! A connection to memcached, read as if it spoke HTTP: a `framing` that makes a head of an answer's first line. What is asked is made
//! by `modules::memcached`.

use super::failure::Failure;
use super::fastcgi::failure;
use crate::connection::pool as buffers;
use crate::connection::socket::Socket;
use crate::log_error;
use crate::request::Request;
use crate::request::status::write_decimal;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use wire::memcached::{AnswerError, Head, Value, head};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The key, escaped.
    pub key: Arc<[u8]>,
    /// `memcached_gzip_flag`: a value with one of these flags is compressed.
    pub gzip_flags: u32,
}

/// How far an answer was read.
#[derive(Debug)]
pub struct Reply {
    asked: Asked,
    raw: Vec<u8>,
    /// What follows the first line, once that is there.
    value: Option<Value>,
    not_found: bool,
    /// That was logged.
    said: bool,
    error: Option<AnswerError>,
}

impl Reply {
    /// For one request.
    pub fn new(asked: Asked) -> Reply {
        Reply { asked, raw: Vec::new(), value: None, not_found: false, said: false, error: None }
    }

    /// See [`super::pool::Connection::poll_read`].
    pub(super) fn poll_read(
        &mut self,
        socket: &mut Socket,
        cx: &mut Context<'_>,
        buf: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        loop {
            if self.is_over() {
                return Poll::Ready(Ok(0));
            }
            if self.raw.capacity() == 0 {
                self.raw = buffers::take_buffer();
            }
            if ready!(socket.poll_read(cx, &mut self.raw))? == 0 {
                return Poll::Ready(Ok(0));
            }
            let n = self.decode(buf);
            if n > 0 || self.error.is_some() {
                return Poll::Ready(Ok(n));
            }
        }
    }

    /// See [`super::pool::Connection::try_read`].
    pub(super) fn try_read(&mut self, socket: &mut Socket, buf: &mut Vec<u8>) -> io::Result<usize> {
        self.raw.reserve(buffers::BUFFER);
        socket.try_read(&mut self.raw)?;
        Ok(self.decode(buf))
    }

    fn decode(&mut self, buf: &mut Vec<u8>) -> usize {
        let before = buf.len();
        if let Err(e) = self.take(buf) {
            self.error = Some(e);
        }
        buf.len() - before
    }

    fn take(&mut self, buf: &mut Vec<u8>) -> Result<(), AnswerError> {
        let mut at = 0;
        if self.value.is_none() {
            let Some((head, len)) = head(&self.raw, &self.asked.key)? else { return Ok(()) };
            at = len;
            let Head::Value { flags, len } = head else {
                self.not_found = true;
                buf.extend_from_slice(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
                return Ok(());
            };
            buf.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Length: ");
            write_decimal(len, buf);
            buf.extend_from_slice(b"\r\n");
            if flags & self.asked.gzip_flags != 0 {
                buf.extend_from_slice(b"Content-Encoding: gzip\r\n");
            }
            buf.extend_from_slice(b"\r\n");
            self.value = Some(Value::new(len));
        }
        let value = self.value.as_mut().expect("it was made above");
        let result = value.decode(&self.raw[at..], buf);
        self.raw.clear();
        result
    }

    /// Whether memcached has told the end.
    pub(super) fn has_ended(&self) -> bool {
        self.not_found || self.value.as_ref().is_some_and(Value::has_ended)
    }

    /// Whether what came is no answer, which [`complain`] logs.
    pub(super) fn is_garbled(&self) -> bool {
        self.error.is_some()
    }

    /// Whether nothing more is to be read.
    pub(super) fn is_over(&self) -> bool {
        self.error.is_some() || self.has_ended()
    }

    /// Whether the next request may be sent on the connection.
    pub(super) fn is_complete(&self) -> bool {
        self.error.is_none() && self.has_ended()
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        buffers::give_buffer(std::mem::take(&mut self.raw));
    }
}

/// Logs what is wrong with an answer, or that there is no such value. The failure of the try, if that spoils it.
pub(super) fn complain(r: &Request, reply: &mut Reply) -> Option<Failure> {
    if let Some(error) = &reply.error {
        log_error!(r, Error, "{error}");
        return Some(failure());
    }
    if reply.not_found && !std::mem::replace(&mut reply.said, true) {
        let key = String::from_utf8_lossy(&reply.asked.key);
        log_error!(r, Info, "key: \"{key}\" was not found by memcached");
    }
    None
}
