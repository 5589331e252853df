//! What is queued of an answer on its way to the client: as fast as the client takes it, within `limit_rate` and
//! `send_timeout`. From: `respond`.

use super::phases::Verdict;
use super::{Request, filter};
use crate::connection::incoming::Incoming;
use crate::connection::stream::Stream;
use crate::connection::{Session, http1};
use crate::modules;
use crate::status::spent::Part;
use runtime::clock;
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

/// Waits until what is queued is written, within `limit_rate` and `send_timeout`. For answers in pieces.
pub async fn flush(r: &mut Request) -> Result<(), Verdict> {
    if r.deferred.is_some() {
        Box::pin(super::include::drive(r)).await?;
    }
    if filter::is_stuffed(r) {
        Box::pin(filter::settle(r)).await?;
    }
    flush_now(r).await
}

/// The same without the answer's includes.
pub async fn flush_now(r: &mut Request) -> Result<(), Verdict> {
    if let Session::Sub(_) = r.session {
        return super::subrequest::flush(r).await;
    }
    let result = flush_rest(r).await;
    result.map_err(|_| {
        // Why was logged by `flush_rest`.
        r.aborted = true;
        Verdict::Broken
    })
}

/// The rate in bytes per second that holds for the answer, 0 for none, and how many bytes are free of it.
pub fn rate(r: &mut Request) -> (u64, u64) {
    let shot = r.shot.clone();
    let conf = &shot.location(r.location).conf.core;
    let rate = match r.limit_rate {
        Some(rate) => rate,
        None if conf.limit_rate.is_empty() => return (0, 0),
        None => {
            let rate = modules::core::size_of(r, &conf.limit_rate);
            r.limit_rate = Some(rate);
            rate
        }
    };
    if rate == 0 {
        return (0, 0);
    }
    let after = match r.limit_rate_after {
        Some(after) => after,
        None if conf.limit_rate_after.is_empty() => 0,
        None => {
            let after = modules::core::size_of(r, &conf.limit_rate_after);
            r.limit_rate_after = Some(after);
            after
        }
    };
    (rate, after)
}

/// The queue on its way out while something else goes on: rate and timeout included. While it waits for the client, the connection may
/// have to make room for another (`connection::reuse`).
pub struct Flow {
    rate: u64,
    after: u64,
    timeout: Duration,
    rest: Option<runtime::timer::Timer>,
    armed: bool,
    /// What was written when the clock began to run.
    seen: u64,
}

fn gone<V>() -> Poll<io::Result<V>> {
    Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
}

impl Flow {
    /// For a request's answer.
    pub fn new(r: &mut Request) -> Flow {
        let (rate, after) = rate(r);
        Flow { rate, after, timeout: *r.conf().core.send_timeout, rest: None, armed: false, seen: 0 }
    }

    /// Writes what the kernel and the rate take. Ready when the queue is empty. Error `TimedOut`: `send_timeout` passed
    /// without a byte taken.
    pub fn poll(&mut self, r: &mut Request, cx: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
        let http = match &mut r.session {
            Session::Http1(http) => http,
            other => return other.stream().map_or(Poll::Ready(Ok(())), |stream| self.poll_stream(stream, cx)),
        };
        loop {
            if http.output.is_empty() {
                self.armed = false;
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
                let seconds = (clock::monotonic_ms() - http.rate_start_ms) / 1000 + 1;
                let due = self.rate * seconds + self.after;
                if sent >= due {
                    // It is us who wait.
                    r.client.works();
                    self.pause((sent - due) * 1000 / self.rate + 1);
                    continue;
                }
                limit = due - sent;
            }
            let http1::Http1 { incoming: Incoming { socket, timer, .. }, output, answer_start, .. } = &mut **http;
            let before = output.written;
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
                    std::task::ready!(timer.poll_expired(cx));
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
            let took = output.written - before;
            if self.rate > 0 && !output.is_empty() {
                self.pause((took * 1000 / self.rate).min(1000) + 1);
            }
        }
    }

    /// The same for a stream: what the rate lets out goes as the windows let it.
    fn poll_stream(&mut self, stream: &dyn Stream, cx: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if stream.waiting() == 0 {
                self.armed = false;
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
                let seconds = (clock::monotonic_ms() - stream.rate_start_ms()) / 1000 + 1;
                let due = self.rate * seconds + self.after;
                if written >= due {
                    self.pause((written - due) * 1000 / self.rate + 1);
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
            std::task::ready!(stream.poll_expired(cx));
            stream.time_out();
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
    }

    fn pause(&mut self, ms: u64) {
        let timer = runtime::timer::Timer::new();
        timer.set(Duration::from_millis(ms));
        self.rest = Some(timer);
    }
}

/// Writes the queue. Errors: `TimedOut`, `send_timeout` passed without a byte taken; `ConnectionAborted`, the client has
/// closed while it was waited for (nginx's `ngx_http_test_reading`); `QuotaExceeded`, another connection has its seat.
pub async fn flush_rest(r: &mut Request) -> io::Result<()> {
    let mut flow = Flow::new(r);
    let before = r.spent.enter(Part::Client);
    let flushed = poll_fn(|cx| match flow.poll(r, cx) {
        Poll::Pending if is_client_gone(r, cx) => {
            crate::log_error!(r, Info, "client prematurely closed connection{}", crate::upstream::client_error(r));
            Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
        }
        Poll::Ready(Err(e)) => {
            r.broken(&e);
            Poll::Ready(Err(e))
        }
        other => other,
    })
    .await;
    r.spent.enter(before);
    flushed
}

fn is_client_gone(r: &mut Request, cx: &mut std::task::Context<'_>) -> bool {
    match &mut r.session {
        Session::Http1(http) => http.incoming.socket.poll_closed(cx).is_ready(),
        other => other.stream().is_some_and(|stream| stream.poll_gone().is_ready()),
    }
}
