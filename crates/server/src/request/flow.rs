//! What is queued of an answer on its way to the client: as fast as the client takes it, within `limit_rate` and
//! `send_timeout`. From: `respond`.

use super::phases::Verdict;
use super::{Request, filter};
use crate::connection::incoming::Incoming;
use crate::connection::slow::{TooSlow, Watch};
use crate::connection::stream::Stream;
use crate::connection::{Client, Downstream, http1};
use crate::status::spent::Part;
use crate::{log_error, modules};
use runtime::clock;
use runtime::timer::Timer;
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

/// Waits until what is queued is written, within `limit_rate` and `send_timeout`. For answers in pieces.
pub async fn flush(r: &mut Request) -> Result<(), Verdict> {
    if r.answer.deferred.is_some() {
        Box::pin(super::include::drive(r)).await?;
    }
    if filter::is_stuffed(r) {
        Box::pin(filter::settle(r)).await?;
    }
    flush_now(r).await
}

/// The same without the answer's includes.
pub async fn flush_now(r: &mut Request) -> Result<(), Verdict> {
    let mut flush = None;
    let before = r.spent.enter(Part::Client);
    let flushed = poll_fn(|cx| poll_flush_now(r, &mut flush, cx)).await;
    r.spent.enter(before);
    flushed
}

/// The same for whoever does something else meanwhile. `flush`: none in the beginning.
pub fn poll_flush_now(
    r: &mut Request,
    flush: &mut Option<Flush>,
    cx: &mut std::task::Context<'_>,
) -> Poll<Result<(), Verdict>> {
    if let Downstream::Sub(_) = r.downstream {
        return super::subrequest::poll_room(r).map(Ok);
    }
    if flush.is_none() {
        *flush = Some(Flush::new(r));
    }
    let Some(flow) = flush else { return Poll::Ready(Ok(())) };
    flow.poll_rest(r, cx).map_err(|_| {
        // Why was logged.
        r.flow.aborted = true;
        Verdict::Broken
    })
}

/// The rate in bytes per second that holds for the answer, 0 for none, and how many bytes are free of it.
pub fn rate(r: &mut Request) -> (u64, u64) {
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.core;
    let rate = match r.answer.limit_rate {
        Some(rate) => rate,
        None if conf.limit_rate.is_empty() => return (0, 0),
        None => {
            let rate = modules::core::size_of(r, &conf.limit_rate);
            r.answer.limit_rate = Some(rate);
            rate
        }
    };
    if rate == 0 {
        return (0, 0);
    }
    let after = match r.answer.limit_rate_after {
        Some(after) => after,
        None if conf.limit_rate_after.is_empty() => 0,
        None => {
            let after = modules::core::size_of(r, &conf.limit_rate_after);
            r.answer.limit_rate_after = Some(after);
            after
        }
    };
    (rate, after)
}

/// `limit_rate` lets out a part of what a second may carry at a time, each so many milliseconds: who plays what comes, or shows how
/// far it is, sees no second of silence. (nginx waits as long after as much as it has in a buffer, or a second after all of it.)
const RATE_STEP_MS: u64 = 250;

/// What may have been written in all, `elapsed_ms` after the answer began, and how long it is until that is more, ms.
fn due(rate: u64, after: u64, elapsed_ms: u64) -> (u64, u64) {
    let steps = u128::from(elapsed_ms / RATE_STEP_MS + 1);
    let bytes = (u128::from(rate) * steps * u128::from(RATE_STEP_MS)).div_ceil(1000);
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX).saturating_add(after);
    (bytes, RATE_STEP_MS - elapsed_ms % RATE_STEP_MS)
}

/// How long the next byte has to wait, ms, when `over` bytes more than allowed are written.
fn wait_ms(rate: u64, over: u64, next_step_ms: u64) -> u64 {
    next_step_ms + (over / rate).saturating_mul(1000)
}

/// The queue on its way out while something else goes on: rate and timeout included. While it waits for the client, the connection may
/// have to make room for another (`connection::reuse`).
pub struct Flush {
    rate: u64,
    after: u64,
    timeout: Duration,
    rest: Option<Timer>,
    armed: bool,
    /// What was written when the clock began to run.
    seen: u64,
    /// `send_min_rate`
    watch: Option<Box<Watch>>,
}

fn gone<V>() -> Poll<io::Result<V>> {
    Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
}

impl Flush {
    /// For a request's answer.
    pub fn new(r: &mut Request) -> Flush {
        let (rate, after) = rate(r);
        let conf = r.conf();
        let watch = Watch::new(*conf.slow.send_min_rate, conf.slow.places());
        Flush { rate, after, timeout: *conf.core.send_timeout, rest: None, armed: false, seen: 0, watch }
    }

    /// See [`Flush::poll`]; ready as well when the client goes. What goes wrong is logged.
    fn poll_rest(&mut self, r: &mut Request, cx: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
        match self.poll(r, cx) {
            Poll::Pending if is_client_gone(r, cx) => {
                log_error!(r, Info, "client prematurely closed connection{}", crate::upstream::client_error(r));
                Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
            }
            Poll::Ready(Err(e)) => {
                r.broken(&e);
                Poll::Ready(Err(e))
            }
            other => other,
        }
    }

    /// Writes what the kernel and the rate take. Ready when the queue is empty. Error `TimedOut`: `send_timeout` passed
    /// without a byte taken.
    pub fn poll(&mut self, r: &mut Request, cx: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
        let http = match &mut r.downstream {
            Downstream::Http1(http) => http,
            Downstream::Sub(_) => return super::subrequest::poll_room(r).map(Ok),
            other => {
                return other.stream().map_or(Poll::Ready(Ok(())), |stream| self.poll_stream(stream, &r.client, cx));
            }
        };
        loop {
            if http.output.is_empty() {
                self.armed = false;
                self.pause_watch();
                r.client.works();
                return Poll::Ready(Ok(()));
            }
            if let Some(rest) = &self.rest {
                std::task::ready!(rest.poll_expired(cx));
                self.rest = None;
            }
            let mut limit = u64::MAX;
            if self.rate > 0 {
                let sent = http.output.written.saturating_sub(http.answer_start);
                let (due, next) = due(self.rate, self.after, clock::monotonic_ms() - http.rate_start_ms);
                if sent >= due {
                    // It is us who wait.
                    self.pause_watch();
                    r.client.works();
                    self.pause(wait_ms(self.rate, sent - due, next));
                    continue;
                }
                limit = due - sent;
            }
            let http1::Http1 { incoming: Incoming { socket, timer, .. }, output, answer_start, .. } = &mut **http;
            match output.poll_write(socket, cx, limit) {
                Poll::Ready(Ok(_)) => self.armed = false,
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending => {
                    if !std::mem::replace(&mut self.armed, true) {
                        timer.set(self.timeout);
                    }
                    if r.client.is_taken() {
                        return Poll::Ready(Err(io::ErrorKind::QuotaExceeded.into()));
                    }
                    // What was written before this answer is no progress with it.
                    r.client.owes(*answer_start);
                    let written = output.written;
                    if let Some(watch) = &mut self.watch
                        && watch.poll(&r.client, cx, || r.client.progress().unwrap_or(written)).is_ready()
                    {
                        return Poll::Ready(Err(io::Error::other(TooSlow)));
                    }
                    std::task::ready!(timer.poll_expired(cx));
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
        }
    }

    /// The same for a stream: what the rate lets out goes as the windows let it.
    fn poll_stream(
        &mut self,
        stream: &dyn Stream,
        client: &Client,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if stream.waiting() == 0 {
                self.armed = false;
                self.pause_watch();
                return if stream.is_gone() { gone() } else { Poll::Ready(Ok(())) };
            }
            if let Some(rest) = &self.rest {
                if stream.poll_gone().is_ready() {
                    return gone();
                }
                std::task::ready!(rest.poll_expired(cx));
                self.rest = None;
            }
            let written = stream.written();
            let mut limit = u64::MAX;
            if self.rate > 0 {
                let (due, next) = due(self.rate, self.after, clock::monotonic_ms() - stream.rate_start_ms());
                if written >= due {
                    self.pause_watch();
                    self.pause(wait_ms(self.rate, written - due, next));
                    continue;
                }
                limit = due - written;
            }
            if !self.armed || self.seen != written {
                stream.arm(self.timeout);
                (self.armed, self.seen) = (true, written);
            }
            if let Poll::Ready(done) = stream.poll_write(limit) {
                return Poll::Ready(done);
            }
            let bytes = || stream.moved().map(|(_, taken)| taken).or_else(|| client.progress()).unwrap_or(written);
            if let Some(watch) = &mut self.watch
                && watch.poll(client, cx, bytes).is_ready()
            {
                stream.time_out();
                return Poll::Ready(Err(io::Error::other(TooSlow)));
            }
            std::task::ready!(stream.poll_expired(cx));
            stream.time_out();
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
    }

    fn pause_watch(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.pause();
        }
    }

    fn pause(&mut self, ms: u64) {
        let timer = Timer::new();
        timer.set(Duration::from_millis(ms));
        self.rest = Some(timer);
    }
}

/// Writes the queue. Errors: `TimedOut`, `send_timeout` passed without a byte taken; `ConnectionAborted`, the client has
/// closed while it was waited for (nginx's `ngx_http_test_reading`); `QuotaExceeded`, another connection has its seat.
pub async fn flush_rest(r: &mut Request) -> io::Result<()> {
    let mut flow = Flush::new(r);
    let before = r.spent.enter(Part::Client);
    let flushed = poll_fn(|cx| flow.poll_rest(r, cx)).await;
    r.spent.enter(before);
    flushed
}

/// Whether the client has closed, as far as is known; the task is woken when it does.
pub fn is_client_gone(r: &mut Request, cx: &mut std::task::Context<'_>) -> bool {
    match &mut r.downstream {
        Downstream::Http1(http) => http.incoming.socket.poll_closed(cx).is_ready(),
        other => other.stream().is_some_and(|stream| stream.poll_gone().is_ready()),
    }
}

/// Lets a request wait before it goes on (`limit_req`, `guard`); its client may go meanwhile.
pub async fn delay(r: &mut Request, delay: Duration) -> Verdict {
    // Answers to pipelined requests before this one must not wait with it.
    if r.downstream.has_output()
        && let Err(verdict) = flush(r).await
    {
        return verdict;
    }
    r.downstream.lend_buffers();
    let timer = Timer::new();
    timer.set(delay);
    let stays = poll_fn(|cx| match r.downstream.poll_gone(cx) {
        Poll::Ready(()) => Poll::Ready(false),
        Poll::Pending => timer.poll_expired(cx).map(|()| true),
    });
    if stays.await {
        return Verdict::Decline;
    }
    log_error!(r, Info, "client prematurely closed connection");
    Verdict::Status(499)
}

#[cfg(test)]
mod tests {
    use super::{due, wait_ms};

    #[test]
    fn a_rate_comes_in_quarters_of_a_second() {
        assert_eq!(due(100_000, 0, 0), (25_000, 250));
        assert_eq!(due(100_000, 7, 249), (25_007, 1));
        assert_eq!(due(100_000, 0, 250), (50_000, 250));
        assert_eq!(due(1, 0, 999), (1, 1));
        assert_eq!(due(u64::MAX, u64::MAX, u64::MAX / 2).0, u64::MAX);
        assert_eq!(wait_ms(1000, 2500, 100), 2100);
    }
}
