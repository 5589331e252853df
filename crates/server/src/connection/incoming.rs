//! A connection below its session: the socket, bytes that came early, and the deadline of what is waited for. The PROXY header and the TLS
//! handshake take it, whichever session follows: `http1`, `http2` or one of `stream`. From: `connection`. Knows no request.

use super::socket::Socket;
use super::{Client, pool};
use runtime::timer::Timer;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};

/// A client's connection.
pub struct Incoming {
    /// The way to the client.
    pub socket: Socket,
    /// The deadline of whatever is waited for.
    pub timer: Timer,
    /// Bytes that came and are not used yet start at `at`.
    pub input: Vec<u8>,
    /// See `input`.
    pub at: usize,
    /// TCP_NODELAY is set.
    nodelay: bool,
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
        Incoming { socket, timer: Timer::new(), input: Vec::new(), at: 0, nodelay: false }
    }

    /// Bytes that came and are not used yet.
    pub fn unread(&self) -> &[u8] {
        &self.input[self.at..]
    }

    /// Marks `n` unread bytes as used.
    pub fn consume(&mut self, n: usize) {
        self.at += n;
        if self.at == self.input.len() {
            self.input.clear();
            self.at = 0;
        }
    }

    /// Takes the unread bytes away, with the buffer that they are in.
    pub fn take_unread(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.input);
        bytes.drain(..std::mem::take(&mut self.at));
        bytes
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
            self.input.extend_from_slice(&few[self.at..]);
            self.at = 0;
        }
        if self.at > 0 && self.input.capacity() - self.input.len() < pool::BUFFER / 4 {
            self.input.drain(..self.at);
            self.at = 0;
        }
        if self.input.capacity() == self.input.len() {
            self.input.reserve(pool::BUFFER);
        }
    }

    /// `tcp_nodelay`: what is written leaves at once. Asks the kernel once a connection.
    pub fn set_nodelay(&mut self) {
        if !std::mem::replace(&mut self.nodelay, true) {
            // A unix socket has no such option, and needs none.
            let _ = rustix::net::sockopt::set_tcp_nodelay(self.socket.as_fd(), true);
        }
    }

    /// Whether TCP_NODELAY is set.
    pub fn is_nodelay(&self) -> bool {
        self.nodelay
    }

    /// It is set already, or not.
    pub fn note_nodelay(&mut self, is_set: bool) {
        self.nodelay = is_set;
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
    pub async fn fill(&mut self, client: &Client) -> Filled {
        let filled = poll_fn(|cx| {
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
        })
        .await;
        client.works();
        filled
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
