//! A socket on which HTTP/2 is spoken, towards a client or a peer, and what was read from it. Holds a buffer only while there is
//! something in it.

use crate::connection::pool;
use crate::connection::socket::Socket;
use std::io;
use std::task::{Context, Poll};
use wire::http2::connection::Connection;

/// See the module's head.
pub struct FrameSocket {
    /// The socket.
    pub socket: Socket,
    /// What was read, from `at` on.
    pub input: Vec<u8>,
    /// See `input`.
    pub at: usize,
}

impl FrameSocket {
    /// With what was read already.
    pub fn new(socket: Socket, input: Vec<u8>, at: usize) -> FrameSocket {
        FrameSocket { socket, input, at }
    }

    /// Reads more behind what is there. `Ok(0)`: the other side has closed.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.input.capacity() == 0 {
            match self.socket.poll_readable(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(_) => self.input = pool::take_buffer(),
            }
        }
        if self.at > 0 {
            self.input.drain(..self.at);
            self.at = 0;
        }
        if self.input.capacity() - self.input.len() < pool::BUFFER / 4 {
            self.input.reserve(pool::BUFFER);
        }
        let filled = self.socket.poll_read(cx, &mut self.input);
        if filled.is_pending() {
            self.give_back();
        }
        filled
    }

    /// Gives the buffer back if nothing is in it.
    pub fn give_back(&mut self) {
        if self.at == self.input.len() {
            pool::give_buffer(std::mem::take(&mut self.input));
            self.at = 0;
        }
    }

    /// Writes what waits. `Ok(true)`: the socket takes no more now.
    pub fn write<T>(&mut self, cx: &mut Context<'_>, wire: &mut Connection<T>) -> io::Result<bool> {
        while !wire.output().is_empty() {
            match self.socket.poll_write_with(cx, |s| s.try_write(wire.output(), false)) {
                Poll::Ready(n) => wire.advance(n?),
                Poll::Pending => return Ok(true),
            }
        }
        Ok(false)
    }
}
