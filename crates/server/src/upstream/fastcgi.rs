//! A connection to a FastCGI application, read as if it spoke HTTP without a status line: a `framing` that takes records apart.
//! What is sent is made by `modules::fastcgi`.

use super::failure::Failure;
use super::framing::Complaint;
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
    /// Where parts of these messages end, and how much of the answer had come before each.
    said: Vec<(usize, usize)>,
    /// Bytes of the answer so far.
    output: usize,
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
        let raw = std::mem::take(&mut self.raw);
        let (before, mut rest) = (buf.len(), &raw[..]);
        while !rest.is_empty() {
            let messages = self.stderr.len();
            match self.decoder.decode_to_message(rest, buf, &mut self.stderr) {
                Ok(used) => rest = &rest[used..],
                Err(e) => {
                    self.error = Some(e);
                    rest = &[];
                }
            }
            self.stderr.truncate(MAX_STDERR);
            if self.stderr.len() > messages {
                // A message ends what is read at a time: nothing of the answer has come behind it.
                self.note(self.output + buf.len() - before);
            }
        }
        self.raw = raw;
        self.output += buf.len() - before;
        buf.len() - before
    }

    /// Notes where messages end that came when there was so much of the answer.
    fn note(&mut self, output: usize) {
        let end = self.stderr.len();
        match self.said.last_mut() {
            Some((last, before)) if *before == output => *last = end,
            _ => self.said.push((end, output)),
        }
    }

    /// How much of the answer had come before a message that has one of the texts.
    fn caught(&self, texts: &[Box<[u8]>]) -> Option<usize> {
        let mut start = 0;
        self.said.iter().find_map(|(end, output)| {
            let message = &self.stderr[std::mem::replace(&mut start, *end)..*end];
            texts.iter().any(|text| memchr::memmem::find(message, text).is_some()).then_some(*output)
        })
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

/// Logs what the application said on its error stream, and what is wrong with its records. Gives a complaint of the latter, or of what
/// `fastcgi_catch_stderr` looks for.
pub fn complain(r: &Request, records: &mut Records, caught: &[Box<[u8]>]) -> Option<Complaint> {
    let after = records.caught(caught);
    let said = std::mem::take(&mut records.stderr);
    records.said.clear();
    let text = said.trim_ascii_end();
    if !text.is_empty() {
        let shown = String::from_utf8_lossy(&text[..text.len().min(STDERR_LINE)]);
        log_error!(r, Error, "FastCGI sent in stderr: \"{shown}\"");
    }
    if let Some(error) = records.error {
        log_error!(r, Error, "{error}");
        return Some(Complaint { failure: failure(), after: None });
    }
    after.map(|output| Complaint { failure: failure(), after: Some(output) })
}

/// The failure of a try whose records or messages are bad.
pub fn failure() -> Failure {
    Failure::of(next::INVALID_HEADER, true, false)
}
