//! A connection to a FastCGI application, read as if it spoke HTTP without a status line: a `framing` that takes records apart.
//! What is sent is made by `modules::fastcgi`.

use super::failure::Failure;
use super::settings::next;
use crate::connection::pool as buffers;
use crate::connection::socket::Socket;
use crate::log_error;
use crate::request::Request;
use std::io;
use std::task::{Context, Poll, ready};
use wire::fastcgi::{Decoder, RecordError};

/// How the error log names a peer that speaks FastCGI.
pub const SCHEME: &str = "fastcgi://";
/// Messages of an application that wait for the log at most, in bytes.
const MAX_STDERR: usize = 64 * 1024;
/// One line of the log has at most so much of them.
const STDERR_LINE: usize = 2000;

/// How far an answer's records were read.
#[derive(Debug, Default)]
pub struct Records {
    decoder: Decoder,
    raw: Vec<u8>,
    stderr: Vec<u8>,
    error: Option<RecordError>,
    /// The connection is to stay open: its end is not the answer's.
    keep: bool,
}

impl Records {
    /// For one request. `keep`: the application was asked to leave the connection open.
    pub fn new(keep: bool) -> Records {
        let mut records = Records::default();
        records.keep = keep;
        records
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
            self.raw.clear();
            if ready!(socket.poll_read(cx, &mut self.raw))? == 0 {
                return Poll::Ready(Ok(0));
            }
            let n = self.decode(buf);
            // Messages are to be logged while they are fresh: an empty read is not told from the end otherwise.
            if n > 0 || self.error.is_some() {
                return Poll::Ready(Ok(n));
            }
        }
    }

    /// See [`super::pool::Connection::try_read`].
    pub(super) fn try_read(&mut self, socket: &mut Socket, buf: &mut Vec<u8>) -> io::Result<usize> {
        self.raw.clear();
        self.raw.reserve(buffers::BUFFER);
        socket.try_read(&mut self.raw)?;
        Ok(self.decode(buf))
    }

    /// Whether the application has ended the request.
    pub(super) fn has_ended(&self) -> bool {
        self.decoder.ended
    }

    /// Whether what came is no records, which [`complain`] logs.
    pub(super) fn is_garbled(&self) -> bool {
        self.error.is_some()
    }

    /// Whether the connection's end came too early.
    pub(super) fn is_cut(&self) -> bool {
        self.error.is_some() || !self.decoder.ended && (self.keep || self.decoder.is_inside())
    }

    /// Whether the next request may be sent on the connection.
    pub(super) fn is_complete(&self) -> bool {
        self.decoder.ended && !self.decoder.extra && self.error.is_none()
    }

    fn decode(&mut self, buf: &mut Vec<u8>) -> usize {
        let before = buf.len();
        if let Err(e) = self.decoder.decode(&self.raw, buf, &mut self.stderr) {
            self.error = Some(e);
        }
        self.stderr.truncate(MAX_STDERR);
        buf.len() - before
    }

    /// Whether nothing more is to be read.
    pub(super) fn is_over(&self) -> bool {
        // Not with the end of the output: an application that is cut off while it ends the request takes harm.
        self.error.is_some() || self.decoder.ended
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        buffers::give_buffer(std::mem::take(&mut self.raw));
    }
}

/// Logs what the application said on its error stream, and what is wrong with its records. True: something is, or its
/// words are those of `fastcgi_catch_stderr`.
pub fn complain(r: &Request, records: &mut Records, caught: &[Box<[u8]>]) -> bool {
    let mut bad = false;
    let said = std::mem::take(&mut records.stderr);
    let text = said.trim_ascii_end();
    if !text.is_empty() {
        let shown = String::from_utf8_lossy(&text[..text.len().min(STDERR_LINE)]);
        log_error!(r, Error, "FastCGI sent in stderr: \"{shown}\"");
        bad |= caught.iter().any(|c| memchr::memmem::find(text, c).is_some());
    }
    if let Some(error) = records.error {
        log_error!(r, Error, "{error}");
        bad = true;
    }
    bad
}

/// The failure of a try whose records or messages are bad.
pub fn failure() -> Failure {
    Failure::of(next::INVALID_HEADER, true, false)
}
