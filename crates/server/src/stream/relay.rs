//! Copies bytes between a client and a peer until one side ends, or, with `proxy_half_close`, both (nginx's
//! `ngx_stream_proxy_process`). An idle session holds no buffers. From: `proxy`. Knows no request.

use super::pipe::{CAPACITY, Pipe};
use crate::connection::pool as buffers;
use crate::connection::socket::Socket;
use runtime::clock;
use runtime::timer::Timer;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::task::{Context, Poll};
use std::time::Duration;

/// A direction whose buffer was full so often in a row goes through a pipe.
const FULL_READS: u8 = 8;
/// Less than this at once is no bulk transfer: back to the buffer, which needs one call less.
const SMALL: usize = CAPACITY / 8;

/// One direction.
pub struct Direction {
    buffer: Vec<u8>,
    at: usize,
    size: usize,
    ended: bool,
    /// The end was passed on.
    shut: bool,
    /// Bytes read, those that were there from the start included.
    pub received: u64,
    /// Bytes written.
    pub sent: u64,
    /// When the first byte was read, ms of the monotonic clock.
    first_ms: Option<u64>,
    pace: Option<Pace>,
    /// Both sides are plain: the kernel may move bytes by itself.
    splices: bool,
    /// Reads in a row that filled the buffer.
    full: u8,
    pipe: Option<Pipe>,
    /// The system's error by which nothing more can be read; 0: there was none.
    error: i32,
}

/// A limit in bytes a second (`proxy_upload_rate`).
pub struct Pace {
    rate: u64,
    began_s: u64,
    received: u64,
    timer: Timer,
    waits: bool,
}

/// Both directions.
pub struct Relay {
    /// Between two events.
    pub timeout: Duration,
    /// Each direction ends on its own.
    pub half_close: bool,
    /// From the client.
    pub up: Direction,
    /// To the client.
    pub down: Direction,
    /// When it began, ms of the monotonic clock.
    pub started_ms: u64,
}

/// Why it is over.
pub enum End {
    /// This side closed.
    Closed(&'static str),
    /// Nothing happened for too long.
    TimedOut,
    /// A write failed.
    Broken(io::Error),
    /// Whoever was asked (`Relay::run`) wants it so.
    Dropped,
}

impl Pace {
    /// `rate` 0: there is none. `began_ms` is the wall clock that it counts from.
    pub fn new(rate: u64, began_ms: u64) -> Option<Pace> {
        (rate > 0).then(|| Pace { rate, began_s: began_ms / 1000, received: 0, timer: Timer::new(), waits: false })
    }

    /// Whether nothing may be read now; the task is woken when something may.
    pub fn is_waiting(&mut self, cx: &mut Context<'_>) -> bool {
        self.waits = self.waits && self.timer.poll_expired(cx).is_pending();
        self.waits
    }

    /// How much may be read now. None: not yet; the task is woken when it may.
    pub fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<u64> {
        if self.is_waiting(cx) {
            return Poll::Pending;
        }
        let seconds = (clock::wall_ms() / 1000).saturating_sub(self.began_s) + 1;
        let allowed = self.rate.saturating_mul(seconds);
        if allowed > self.received {
            return Poll::Ready(allowed - self.received);
        }
        self.wait((self.received - allowed) * 1000 / self.rate + 1);
        self.timer.poll_expired(cx).map(|()| 0)
    }

    /// Takes note of what was read.
    pub fn read(&mut self, n: u64) {
        self.received += n;
        let ms = n * 1000 / self.rate;
        if ms > 0 {
            self.wait(ms);
        }
    }

    fn wait(&mut self, ms: u64) {
        self.waits = true;
        self.timer.set(Duration::from_millis(ms));
    }
}

impl Direction {
    /// A direction in which `first` is to be sent before anything is read. `rate` 0: no limit. `began_ms` is the wall
    /// clock that the rate counts from.
    pub fn new(size: u64, rate: u64, began_ms: u64, first: Vec<u8>) -> Direction {
        let pace = Pace::new(rate, began_ms);
        let received = first.len() as u64;
        Direction {
            buffer: first,
            at: 0,
            size: size.max(1) as usize,
            ended: false,
            shut: false,
            received,
            sent: 0,
            first_ms: None,
            pace,
            splices: false,
            full: 0,
            pipe: None,
            error: 0,
        }
    }

    /// Bytes that were read and not written yet.
    fn is_pending(&self) -> bool {
        self.at < self.buffer.len() || self.pipe.as_ref().is_some_and(|p| p.held() > 0)
    }

    /// Writes the next of what was read.
    fn poll_write(&mut self, cx: &mut Context<'_>, to: &mut Socket) -> Poll<io::Result<usize>> {
        match &mut self.pipe {
            Some(pipe) if pipe.held() > 0 => to.poll_write_with(cx, |s| pipe.drain(s.as_fd())),
            _ => {
                let rest = &self.buffer[self.at..];
                let written = to.poll_write_with(cx, |s| s.try_write(rest, false));
                if let Poll::Ready(Ok(n)) = &written {
                    self.at += n;
                }
                written
            }
        }
    }

    fn is_paused(&mut self, cx: &mut Context<'_>) -> bool {
        self.pace.as_mut().is_some_and(|pace| pace.is_waiting(cx))
    }

    /// Moves bytes until it would have to wait. True when something happened; the error is one of writing.
    fn poll(&mut self, cx: &mut Context<'_>, from: &mut Socket, to: &mut Socket) -> io::Result<bool> {
        let mut moved = false;
        loop {
            while self.is_pending() {
                match self.poll_write(cx, to) {
                    Poll::Ready(n) => {
                        self.sent += n? as u64;
                        moved = true;
                    }
                    Poll::Pending => return Ok(moved),
                }
            }
            self.at = 0;
            self.buffer.clear();
            if self.ended {
                self.free();
                return Ok(moved);
            }
            match self.poll_read(cx, from) {
                Poll::Ready(n) => {
                    moved = true;
                    self.first_ms.get_or_insert_with(clock::monotonic_ms);
                    self.received += n as u64;
                    self.ended = n == 0;
                }
                Poll::Pending => {
                    self.free();
                    return Ok(moved);
                }
            }
        }
    }

    /// Nothing more can be read, which is an end as well.
    fn fails(&mut self, error: &io::Error) -> Poll<usize> {
        self.error = error.raw_os_error().unwrap_or_default();
        Poll::Ready(0)
    }

    /// Why nothing more can be read, where that is no end.
    pub fn failed(&self) -> Option<io::Error> {
        (self.error != 0).then(|| io::Error::from_raw_os_error(self.error))
    }

    /// Reads what there is. 0 is the end; a broken connection is one as well.
    fn poll_read(&mut self, cx: &mut Context<'_>, from: &mut Socket) -> Poll<usize> {
        if self.splices
            && self.full >= FULL_READS
            && let Some(polled) = self.poll_fill(cx, from)
        {
            return polled;
        }
        let mut size = self.size;
        if let Some(pace) = &mut self.pace {
            match pace.poll_room(cx) {
                Poll::Ready(room) => size = size.min(room.max(1) as usize),
                Poll::Pending => return Poll::Pending,
            }
        }
        if size == buffers::BUFFER {
            if self.buffer.capacity() < size {
                self.buffer = buffers::take_buffer();
            }
        } else if self.buffer.capacity() != size {
            self.buffer = Vec::with_capacity(size);
        }
        match from.poll_read(cx, &mut self.buffer) {
            Poll::Ready(Ok(n)) => {
                if let Some(pace) = &mut self.pace {
                    pace.read(n as u64);
                    return Poll::Ready(n);
                }
                self.full = if n >= size { self.full.saturating_add(1) } else { 0 };
                Poll::Ready(n)
            }
            Poll::Ready(Err(e)) => self.fails(&e),
            Poll::Pending => Poll::Pending,
        }
    }

    /// The same through a pipe. None: that is not possible here, or there is no pipe.
    fn poll_fill(&mut self, cx: &mut Context<'_>, from: &mut Socket) -> Option<Poll<usize>> {
        if self.pipe.is_none() {
            buffers::give_buffer(std::mem::take(&mut self.buffer));
            self.pipe = Pipe::take();
        }
        let Some(pipe) = &mut self.pipe else {
            self.full = 0;
            return None;
        };
        match from.poll_read_with(cx, |s| pipe.fill(s.as_fd())) {
            Poll::Ready(Ok(n)) => {
                if n < SMALL {
                    self.full = 0;
                }
                Some(Poll::Ready(n))
            }
            Poll::Ready(Err(e)) if e.raw_os_error() == Some(libc::EINVAL) => {
                self.full = 0;
                None
            }
            Poll::Ready(Err(e)) => Some(self.fails(&e)),
            Poll::Pending => Some(Poll::Pending),
        }
    }

    fn free(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            pipe.give();
        }
        buffers::give_buffer(std::mem::take(&mut self.buffer));
    }

    /// Passes the end on once everything before it was sent.
    fn shut(&mut self, to: &mut Socket) {
        if self.ended && !self.is_pending() && !self.shut {
            self.shut = true;
            to.shutdown();
        }
    }
}

impl Relay {
    /// Copies until the end. `on_first` is told when the peer's first byte is there; `is_dropped` is asked whenever bytes have moved.
    pub async fn run(
        &mut self,
        client: &mut Socket,
        peer: &mut Socket,
        on_first: impl FnOnce(),
        is_dropped: Option<&dyn Fn() -> bool>,
    ) -> End {
        let mut on_first = Some(on_first);
        let splices = client.tls().is_none() && peer.tls().is_none();
        (self.up.splices, self.down.splices) = (splices, splices);
        let timer = Timer::new();
        timer.set(self.timeout);
        let mut paused = false;
        poll_fn(|cx| {
            let moved = match self.poll(cx, client, peer) {
                Ok(moved) => moved,
                Err(e) => return Poll::Ready(End::Broken(e)),
            };
            if self.first_byte_ms().is_some()
                && let Some(on_first) = on_first.take()
            {
                on_first();
            }
            if let Some(end) = self.end() {
                return Poll::Ready(end);
            }
            if moved && is_dropped.is_some_and(|asked| asked()) {
                return Poll::Ready(End::Dropped);
            }
            // Who waits for a rate is not idle; once that is over the clock runs again, whether anything comes or not.
            let pauses = self.up.is_paused(cx) | self.down.is_paused(cx);
            let was_paused = std::mem::replace(&mut paused, pauses);
            if paused {
                timer.clear();
            } else if moved || was_paused {
                timer.set(self.timeout);
            }
            timer.poll_expired(cx).map(|()| End::TimedOut)
        })
        .await
    }

    /// How long the peer's first byte took, ms.
    pub fn first_byte_ms(&self) -> Option<u64> {
        self.down.first_ms.map(|ms| ms.saturating_sub(self.started_ms))
    }

    fn poll(&mut self, cx: &mut Context<'_>, client: &mut Socket, peer: &mut Socket) -> io::Result<bool> {
        let up = self.up.poll(cx, client, peer)?;
        let down = self.down.poll(cx, peer, client)?;
        if self.half_close {
            self.up.shut(peer);
            self.down.shut(client);
        }
        Ok(up || down)
    }

    /// Whether it is over (`ngx_stream_proxy_test_finalize`): what a side that still listens has coming is sent first.
    fn end(&self) -> Option<End> {
        let (up, down) = (&self.up, &self.down);
        // What goes to a side that has ended itself need not arrive.
        let up_done = !up.is_pending() || (!self.half_close && down.ended);
        let down_done = !down.is_pending() || (!self.half_close && up.ended);
        let ended = if self.half_close { up.ended && down.ended } else { up.ended || down.ended };
        let over = ended && up_done && down_done;
        over.then_some(End::Closed(if down.ended { "upstream" } else { "client" }))
    }
}
