//! The client's side of a tunnel is a stream of HTTP/2 or HTTP/3: CONNECT, or a WebSocket in a stream. What comes goes to the peer's
//! connection, what the peer says goes out in DATA frames, each no faster than the other side takes it. From: `tunnel`.

use super::{Patience, Stall, conclude, timed_out};
use crate::connection::pool as buffers;
use crate::connection::socket::Socket;
use crate::request::Request;
use crate::request::chunk::Chunk;
use crate::request::phases::Verdict;
use crate::upstream::exchange::Answer;
use crate::upstream::settings::UpstreamSettings;
use runtime::clock;
use runtime::timer::Timer;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

/// What a client may send before the peer has taken it, bytes.
const WINDOW: u32 = 64 * 1024;

/// How far the two directions have come.
struct Streamed {
    /// What has come from the client, from `at` on.
    buffer: Vec<u8>,
    at: usize,
    /// The client has said all; the peer has been told.
    up_ended: bool,
    down_ended: bool,
    sent: u64,
    received: u64,
    timer: Timer,
    timeout: Duration,
    /// When it has been silent for too long, monotonic ms.
    until_ms: u64,
    client: Stall,
    peer: Stall,
    /// How much had gone out to the client when something last had to wait.
    written: u64,
}

/// Runs the tunnel; the head of the answer has been given to the stream.
pub(super) async fn run(r: &mut Request, conf: &UpstreamSettings, patience: Patience, mut answer: Answer) -> Verdict {
    let first = std::mem::take(&mut answer.input);
    let early = &first[answer.at..];
    let mut tunnel = Streamed {
        buffer: Vec::new(),
        at: 0,
        up_ended: false,
        down_ended: false,
        sent: 0,
        received: early.len() as u64,
        timer: Timer::new(),
        timeout: r.attempts.read_timeout(conf),
        until_ms: 0,
        client: Stall::new(patience.client_ms),
        peer: Stall::new(patience.peer_ms),
        written: 0,
    };
    tunnel.has_moved();
    // The head leaves with it, too.
    let begun = r.queue(Chunk::Bytes(early), false);
    buffers::give_buffer(first);
    let result = match begun {
        Ok(()) => poll_fn(|cx| tunnel.poll(r, &mut answer.connection.socket, cx)).await,
        Err(e) => Err(e),
    };
    buffers::give_buffer(std::mem::take(&mut tunnel.buffer));
    if result.is_err() {
        r.flow.aborted = true;
        if let Some(stream) = r.downstream.stream() {
            stream.cut();
        }
    }
    r.request_length += tunnel.sent;
    conclude(r, answer, tunnel.sent, tunnel.received, result)
}

impl Streamed {
    fn poll(&mut self, r: &mut Request, peer: &mut Socket, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let moved = match (self.poll_up(r, peer, cx), self.poll_down(r, peer, cx)) {
            (Ok(up), Ok(down)) => up | down,
            (Err(e), _) | (_, Err(e)) => return Poll::Ready(Err(e)),
        };
        if self.down_ended {
            // The peer has said all, and the stream's end waits behind it.
            return Poll::Ready(Ok(()));
        }
        if moved {
            self.has_moved();
        }
        if let Some(over) = timed_out(self.until_ms, &self.client, &self.peer) {
            return Poll::Ready(Err(over));
        }
        // Also where nothing has moved: what came with the head may have begun to wait.
        let until_ms = self.until_ms.min(self.client.until_ms()).min(self.peer.until_ms());
        self.timer.set(Duration::from_millis(until_ms.saturating_sub(clock::monotonic_ms()).max(1)));
        let _ = self.timer.poll_expired(cx);
        Poll::Pending
    }

    fn has_moved(&mut self) {
        self.until_ms = clock::monotonic_ms().saturating_add(self.timeout.as_millis() as u64);
    }

    /// Moves what the client says until it would have to wait. True: something moved.
    fn poll_up(&mut self, r: &Request, peer: &mut Socket, cx: &mut Context<'_>) -> io::Result<bool> {
        let (mut moved, mut took) = (false, false);
        let Some(stream) = r.downstream.stream().filter(|stream| !stream.is_gone()) else {
            return Err(io::ErrorKind::ConnectionReset.into());
        };
        // Also once the client has said all: it may give the tunnel up.
        stream.watch();
        while !self.up_ended {
            while self.at < self.buffer.len() {
                let rest = &self.buffer[self.at..];
                let Poll::Ready(n) = peer.poll_write_with(cx, |s| s.try_write(rest, false)) else {
                    self.peer.waits(took);
                    return Ok(moved);
                };
                let n = n?;
                (self.at, moved, took) = (self.at + n, true, true);
                self.sent += n as u64;
            }
            self.peer.clear();
            self.buffer.clear();
            self.at = 0;
            let mut ended = false;
            let buffer = &mut self.buffer;
            let is_there = stream.read(false, WINDOW, &mut |arrived| {
                std::mem::swap(buffer, arrived.bytes);
                ended = arrived.ended;
            });
            if !is_there {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            if self.buffer.is_empty() && ended {
                // RFC 9113 section 8.5: the stream's end is the connection's FIN. The peer may still say something.
                peer.shutdown();
                (self.up_ended, moved) = (true, true);
            } else if self.buffer.is_empty() {
                return Ok(moved);
            }
        }
        Ok(moved)
    }

    /// Moves what the peer says until it would have to wait: it is not read while the client takes nothing. True: something moved.
    fn poll_down(&mut self, r: &mut Request, peer: &mut Socket, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut moved = false;
        while !self.down_ended {
            let Some(stream) = r.downstream.stream() else { return Ok(moved) };
            let Poll::Ready(written) = stream.poll_write(u64::MAX) else {
                let before = std::mem::replace(&mut self.written, stream.written());
                self.client.waits(self.written != before);
                return Ok(moved);
            };
            written?;
            self.client.clear();
            let mut buffer = buffers::take_buffer();
            let read = peer.poll_read(cx, &mut buffer);
            let queued = match read {
                Poll::Ready(Ok(n)) => {
                    moved = true;
                    self.down_ended = n == 0;
                    self.received += n as u64;
                    r.queue(Chunk::Bytes(&buffer), n == 0)
                }
                Poll::Ready(Err(e)) => Err(e),
                Poll::Pending => {
                    buffers::give_buffer(buffer);
                    return Ok(moved);
                }
            };
            buffers::give_buffer(buffer);
            queued?;
        }
        Ok(moved)
    }
}
