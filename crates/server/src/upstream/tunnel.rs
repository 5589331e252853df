//! Two connections as one pipe: WebSocket and other upgrades. Bytes go both ways until one side ends.

use super::exchange::Answer;
use super::settings::UpstreamSettings;
use crate::connection::socket::Socket;
use crate::connection::{Session, doing, pool as buffers};
use crate::log_error;
use crate::request::Request;
use crate::request::phases::Verdict;
use runtime::clock;
use runtime::timer::Timer;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

/// One direction.
struct Pipe {
    buffer: Vec<u8>,
    sent: usize,
    ended: bool,
    total: u64,
}

impl Pipe {
    fn new(first: &[u8]) -> Pipe {
        let mut buffer = buffers::take_buffer();
        buffer.extend_from_slice(first);
        Pipe { buffer, sent: 0, ended: false, total: 0 }
    }

    /// Moves bytes until it would have to wait. True when something moved.
    fn poll(&mut self, cx: &mut Context<'_>, from: &mut Socket, to: &mut Socket) -> io::Result<bool> {
        let mut moved = false;
        loop {
            while self.sent < self.buffer.len() {
                let rest = &self.buffer[self.sent..];
                match to.poll_write_with(cx, |s| s.try_write(rest, false)) {
                    Poll::Ready(n) => {
                        let n = n?;
                        self.sent += n;
                        self.total += n as u64;
                        moved = true;
                    }
                    Poll::Pending => return Ok(moved),
                }
            }
            self.buffer.clear();
            self.sent = 0;
            if self.ended {
                return Ok(moved);
            }
            if self.buffer.capacity() == 0 {
                self.buffer = buffers::take_buffer();
            }
            match from.poll_read(cx, &mut self.buffer) {
                Poll::Ready(Ok(0)) => {
                    self.ended = true;
                    moved = true;
                }
                Poll::Ready(Ok(_)) => moved = true,
                Poll::Ready(Err(e)) => return Err(e),
                Poll::Pending => {
                    // An idle tunnel holds no buffers.
                    buffers::give_buffer(std::mem::take(&mut self.buffer));
                    return Ok(moved);
                }
            }
        }
    }

    fn is_done(&self) -> bool {
        self.ended && self.sent == self.buffer.len()
    }
}

/// Runs the tunnel; the head of the answer is queued already.
pub async fn run(r: &mut Request, conf: &UpstreamSettings, answer: Answer) -> Verdict {
    let Answer { mut connection, input, at, started_ms, chosen, .. } = answer;
    super::client_nodelay(r);
    r.doing = doing::TUNNELING;
    r.spent.stop();
    let mut down = Pipe::new(&input[at..]);
    buffers::give_buffer(input);
    let Session::Http1(http) = &mut r.session else { return Verdict::Status(502) };
    if http.flush().await.is_err() {
        return Verdict::Broken;
    }
    let mut up = Pipe::new(http.unread());
    let n = http.unread().len();
    http.consume(n);
    let timer = Timer::new();
    let timeout = *conf.read_timeout;
    timer.set(timeout);
    let socket = &mut http.incoming.socket;
    let result = poll_fn(|cx| {
        let moved_down = down.poll(cx, &mut connection.socket, socket);
        let moved_up = up.poll(cx, socket, &mut connection.socket);
        match (moved_down, moved_up) {
            (Err(e), _) | (_, Err(e)) => return Poll::Ready(Err(e)),
            (Ok(a), Ok(b)) if a || b => timer.set(timeout),
            _ => {}
        }
        if down.is_done() || up.is_done() {
            return Poll::Ready(Ok(()));
        }
        timer.poll_expired(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    })
    .await;
    http.output.queued += down.total;
    http.output.written += down.total;
    let attempt = r.attempts.current();
    attempt.response_ms = Some(clock::monotonic_ms() - started_ms);
    attempt.received += down.total;
    attempt.sent += up.total;
    attempt.body_bytes += down.total;
    r.request_length += up.total;
    drop(chosen);
    r.response_done = true;
    match result {
        Err(e) if e.kind() == io::ErrorKind::TimedOut => {
            log_error!(r, Error, "upstream timed out (110: Connection timed out)");
        }
        Err(e) if !super::exchange::is_reset(&e) => {
            log_error!(r, Info, "{}", crate::log::read_error("recv()", &e));
        }
        _ => {}
    }
    Verdict::Answered
}
