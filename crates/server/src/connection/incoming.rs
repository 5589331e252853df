//! A connection below its session: the socket, bytes that came early, and the deadline of what is waited for. The PROXY header and the TLS
//! handshake take it, whichever session follows: `http1`, `http2` or one of `stream`. From: `connection`. Knows no request.

use super::socket::Socket;
use super::{Client, pool};
use runtime::timer::Timer;
use std::future::{Future, poll_fn};
use std::io;
use std::task::{Context, Poll, ready};

/// A client's connection.
pub struct Incoming {
    /// The way to the client.
    pub socket: Socket,
    /// The deadline of whatever is waited for.
    pub timer: Timer,
    /// Bytes that came and are not used yet start at `at`.
    pub input: Vec<u8>,
    /// See `input`. A head and what was sent behind it are far below 4 GB.
    at: u32,
}

/// How a wait for bytes ended.
pub enum Filled {
    /// As the read did; 0 is the end.
    Read(io::Result<usize>),
    /// The deadline has passed.
    Late,
    /// Another connection has this one's seat.
    Taken,
}

impl Incoming {
    /// A new connection.
    pub fn new(socket: Socket) -> Incoming {
        Incoming { socket, timer: Timer::new(), input: Vec::new(), at: 0 }
    }

    /// Bytes that came and are not used yet.
    pub fn unread(&self) -> &[u8] {
        &self.input[self.at as usize..]
    }

    /// Marks `n` unread bytes as used.
    pub fn consume(&mut self, n: usize) {
        self.at += n as u32;
        if self.at as usize == self.input.len() {
            self.input.clear();
            self.at = 0;
        }
    }

    /// Takes the unread bytes away, with the buffer that they are in.
    pub fn take_unread(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.input);
        bytes.drain(..std::mem::take(&mut self.at) as usize);
        bytes
    }

    /// Other bytes take the place of the unread ones.
    pub fn put_unread(&mut self, bytes: Vec<u8>) {
        (self.input, self.at) = (bytes, 0);
    }

    /// Makes room and reads once.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.is_slim() {
            ready!(self.socket.poll_readable(cx))?;
        }
        self.make_room();
        self.socket.poll_read(cx, &mut self.input)
    }

    fn make_room(&mut self) {
        if self.input.capacity() < pool::BUFFER {
            let few = std::mem::replace(&mut self.input, pool::take_buffer());
            self.input.extend_from_slice(&few[self.at as usize..]);
            self.at = 0;
        }
        if self.at > 0 && self.input.capacity() - self.input.len() < pool::BUFFER / 4 {
            self.input.drain(..self.at as usize);
            self.at = 0;
        }
        if self.input.capacity() == self.input.len() {
            self.input.reserve(pool::BUFFER);
        }
    }

    /// `tcp_nodelay`: what is written leaves at once. Asks the kernel once a connection.
    pub fn set_nodelay(&mut self) {
        self.socket.set_nodelay();
    }

    /// Whether TCP_NODELAY is set.
    pub fn is_nodelay(&self) -> bool {
        self.socket.is_nodelay()
    }

    /// It is set already, or not.
    pub fn note_nodelay(&mut self, is_set: bool) {
        self.socket.note_nodelay(is_set);
    }

    /// Gives an empty input buffer back while somebody else is waited for.
    pub fn lend_input(&mut self) {
        if self.input.capacity() > 0 && self.unread().is_empty() {
            pool::give_buffer(std::mem::take(&mut self.input));
            self.at = 0;
        }
    }

    /// Reads once, waiting until something comes or the deadline has passed. As long as nothing has come, the connection could
    /// make room for another; afterwards if its client is too slow (`connection::reuse`).
    pub fn fill(&mut self, client: &Client) -> impl Future<Output = Filled> {
        poll_fn(move |cx| self.poll_filled(client, cx))
    }

    /// See [`Incoming::fill`].
    pub fn poll_filled(&mut self, client: &Client, cx: &mut Context<'_>) -> Poll<Filled> {
        let filled = self.poll_bytes(client, cx);
        if filled.is_ready() {
            client.works();
        }
        filled
    }

    fn poll_bytes(&mut self, client: &Client, cx: &mut Context<'_>) -> Poll<Filled> {
        if client.is_taken() {
            return Poll::Ready(Filled::Taken);
        }
        if let Poll::Ready(read) = self.poll_fill(cx) {
            return Poll::Ready(Filled::Read(read));
        }
        if self.unread().is_empty() {
            self.lend_input();
            client.rests();
        } else {
            self.slim();
            client.owes(0);
        }
        self.timer.poll_expired(cx).map(|()| Filled::Late)
    }

    /// Takes the buffer away; what is unread begins at the number.
    pub fn take_input(&mut self) -> (Vec<u8>, usize) {
        (std::mem::take(&mut self.input), std::mem::take(&mut self.at) as usize)
    }

    /// What has begun to come waits for the rest in a buffer of its own size.
    fn slim(&mut self) {
        if self.input.capacity() < pool::BUFFER || self.unread().len() > pool::BUFFER / 2 {
            return;
        }
        let few = self.unread().to_vec();
        pool::give_buffer(std::mem::replace(&mut self.input, few));
        self.at = 0;
    }

    /// Bytes wait in a buffer of their own size.
    fn is_slim(&self) -> bool {
        !self.input.is_empty() && self.input.capacity() < pool::BUFFER
    }
}
