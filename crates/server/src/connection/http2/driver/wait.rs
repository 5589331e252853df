//! What a connection waits for when nothing is to be done, how long, and what then. An idle one gives back what it holds.

use super::{Driver, End, default_server};
use crate::connection::slow::{TOO_SLOW, Watch};
use crate::connection::{http1, pool};
use crate::log::error::Level;
use crate::modules::core::Lingering;
use crate::worker::counters;
use runtime::clock;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;
use wire::http2::ErrorCode;

/// A connection that waits longer than this for its next request gives back what it holds.
const STAY_READY: Duration = Duration::from_millis(20);
/// How much a lingering close reads at once.
const LINGER_BUFFER: usize = 4096;

const TIMED_OUT: &str = "client timed out (110: Connection timed out)";

/// What is waited for, and how the wait ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// The streams have their own deadlines.
    Streams,
    /// The first request: `client_header_timeout`.
    First,
    /// The rest of a head: the same, for its stream.
    Head,
    /// The next request, with everything at hand.
    Ready,
    /// The next request: `keepalive_timeout`.
    Idle,
    /// The socket to take more: `send_timeout`.
    Write,
}

impl Wait {
    /// Whether nothing is under way that somebody else would miss.
    fn is_idle(self) -> bool {
        matches!(self, Wait::First | Wait::Ready | Wait::Idle)
    }

    /// Whether the client has more to do than to think of the next request.
    pub(super) fn is_owed(self) -> bool {
        !self.is_idle()
    }
}

impl Driver {
    /// Nothing is to be done now: what is waited for? None: something is to be written after all.
    pub(super) fn rest(&mut self, cx: &mut Context<'_>, blocked: bool) -> Option<Poll<End>> {
        let wait = self.what_to_wait_for(blocked);
        let idle = matches!(wait, Wait::Ready | Wait::Idle);
        if idle && self.session.state.borrow().wire.is_going_away() {
            // Who was too slow with a head would be as slow to leave.
            return Some(Poll::Ready(if self.too_slow { End::Gone } else { End::Said }));
        }
        self.count_idle(idle);
        if std::mem::replace(&mut self.wait, wait) != wait {
            let snapshot = crate::worker::snapshot_for(&self.client);
            let core = self.settings(&snapshot);
            let header = *snapshot.server(default_server(&snapshot, &self.client).0).conf.core.client_header_timeout;
            match wait {
                Wait::Streams => self.timer.clear(),
                Wait::First | Wait::Head => self.timer.set(header),
                Wait::Ready => self.timer.set(STAY_READY.min(*core.keepalive_timeout)),
                Wait::Idle => self.timer.set(core.keepalive_timeout.saturating_sub(STAY_READY)),
                Wait::Write => self.timer.set(*core.send_timeout),
            }
        }
        if idle && self.is_to_depart() {
            return Some(Poll::Ready(End::Park));
        }
        match wait {
            Wait::Idle => {
                self.give_back();
                if self.client.is_to_park() {
                    return Some(Poll::Ready(End::Park));
                }
            }
            // The windows are shut, perhaps for long.
            Wait::Streams => self.shrink(),
            _ => {}
        }
        self.stand(wait);
        if self.is_too_slow(wait, cx) {
            return self.give_up(wait, TOO_SLOW);
        }
        if self.timer.poll_expired(cx).is_pending() {
            return Some(Poll::Pending);
        }
        self.time_out(wait)
    }

    /// Whether the connection could make room for another (`connection::reuse`).
    fn stand(&self, wait: Wait) {
        match wait {
            wait if wait.is_idle() => self.client.rests(),
            Wait::Head | Wait::Write => self.client.owes(0),
            _ if self.is_unread() => self.client.owes(0),
            _ => self.client.works(),
        }
    }

    /// Whether all streams wait for the client to open a window.
    fn is_unread(&self) -> bool {
        let state = self.session.state.borrow();
        let mut streams = state.wire.streams().iter();
        streams.all(|s| s.data.output.waiting() > 0 && !s.data.is_ready && s.data.allowed > s.data.output.written)
    }

    fn what_to_wait_for(&self, blocked: bool) -> Wait {
        let state = self.session.state.borrow();
        if blocked {
            Wait::Write
        } else if self.failed {
            Wait::Ready
        } else if state.wire.is_head_pending() {
            Wait::Head
        } else if !state.wire.streams().is_empty() {
            Wait::Streams
        } else if self.rested {
            Wait::Idle
        } else if self.started || state.wire.is_going_away() {
            Wait::Ready
        } else {
            Wait::First
        }
    }

    /// An idle connection holds no buffer.
    fn give_back(&mut self) {
        let mut state = self.session.state.borrow_mut();
        if let Some(buffer) = state.wire.take_buffer() {
            pool::give_buffer(buffer);
        }
        state.wire.rest();
        drop(state);
        self.link.give_back();
    }

    /// The output's buffer, if it grew for answers that are out now.
    fn shrink(&mut self) {
        let mut state = self.session.state.borrow_mut();
        if state.wire.has_grown() {
            state.wire.take_buffer();
        }
    }

    /// Whether what is waited for comes, or goes, too slowly. How a client takes answers is judged over all of them.
    fn is_too_slow(&mut self, wait: Wait, cx: &mut Context<'_>) -> bool {
        match wait {
            Wait::First | Wait::Head | Wait::Write => {}
            Wait::Streams => {
                // Who has asked something is silent no more.
                self.watch = self.watch.take().filter(|(of, _)| *of != Wait::First);
                if let Some((_, watch)) = &mut self.watch {
                    watch.pause();
                }
                return false;
            }
            Wait::Ready | Wait::Idle => {
                self.watch = None;
                return false;
            }
        }
        if self.watch.as_ref().is_none_or(|(of, _)| *of != wait) {
            let snapshot = crate::worker::snapshot();
            let conf = &snapshot.location(default_server(&snapshot, &self.client).1).conf.slow;
            let watch = match wait {
                // What a preface and settings are made of asks for nothing.
                Wait::First => Watch::of_silence(*conf.client_header_min_rate, conf.places()),
                Wait::Head => Watch::new(*conf.client_header_min_rate, conf.places()),
                _ => Watch::new(*conf.send_min_rate, conf.places()),
            };
            self.watch = watch.map(|watch| (wait, watch));
        }
        let Some((of, watch)) = &mut self.watch else { return false };
        let is_silent = *of == Wait::First;
        watch
            .poll(&self.client, cx, || if is_silent { 0 } else { self.client.progress().unwrap_or_default() })
            .is_ready()
    }

    fn time_out(&mut self, wait: Wait) -> Option<Poll<End>> {
        self.give_up(wait, TIMED_OUT)
    }

    fn give_up(&mut self, wait: Wait, why: &str) -> Option<Poll<End>> {
        self.watch = None;
        let mut state = self.session.state.borrow_mut();
        match wait {
            Wait::Streams => return Some(Poll::Pending),
            Wait::Write => {
                if why == TOO_SLOW {
                    http1::reset_on_close(&self.link.socket);
                }
                self.log(Level::Info, why);
                return Some(Poll::Ready(End::Gone));
            }
            Wait::Ready => {
                drop(state);
                self.rested = true;
                return None;
            }
            Wait::Head => {
                state.wire.abandon_head();
                self.started = true;
                if why == TOO_SLOW {
                    // As long as this head does not end, nothing else can be asked: what is under way here still ends, and no more begins.
                    state.wire.goaway(ErrorCode::ENHANCE_YOUR_CALM);
                    self.too_slow = true;
                }
            }
            Wait::First if why == TOO_SLOW => {
                state.wire.goaway(ErrorCode::ENHANCE_YOUR_CALM);
                self.too_slow = true;
            }
            Wait::First => state.wire.goaway(ErrorCode::PROTOCOL_ERROR),
            Wait::Idle => state.wire.goaway(ErrorCode::NO_ERROR),
        }
        if wait != Wait::Idle {
            self.log(Level::Info, why);
        }
        None
    }

    pub(super) fn count_idle(&mut self, idle: bool) {
        if std::mem::replace(&mut self.counted_idle, idle) != idle {
            counters::waiting(if idle { 1 } else { -1 });
        }
    }

    /// Reads what the client still sends, so that it sees our last frames before a reset.
    pub(super) async fn linger(&mut self) {
        let snapshot = crate::worker::snapshot_for(&self.client);
        let core = self.settings(&snapshot);
        if *core.lingering_close == Lingering::Off {
            return;
        }
        let (time, each) = (*core.lingering_time, *core.lingering_timeout);
        drop(snapshot);
        self.link.socket.shutdown();
        let end = clock::monotonic_ms() + time.as_millis() as u64;
        let mut buffer = Vec::with_capacity(LINGER_BUFFER);
        loop {
            let left = end.saturating_sub(clock::monotonic_ms());
            if left == 0 || crate::worker::draining() {
                return;
            }
            self.timer.set(each.min(Duration::from_millis(left)));
            buffer.clear();
            let read = poll_fn(|cx| {
                if self.client.is_taken() {
                    return Poll::Ready(None);
                }
                if let Poll::Ready(read) = self.link.socket.poll_read(cx, &mut buffer) {
                    return Poll::Ready(read.ok());
                }
                self.client.rests();
                self.timer.poll_expired(cx).map(|()| None)
            });
            if !matches!(read.await, Some(n) if n > 0) {
                return;
            }
        }
    }
}
