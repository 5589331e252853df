//! What a connection waits for when there is nothing to do, and how long: nginx's time-outs. QUIC's own are its library's.

use super::default_server;
use super::driver::Driver;
use crate::connection::slow::{TOO_SLOW, Watch};
use crate::worker::counters;
use quinn_proto::ConnectionError as Lost;
use std::task::Context;
use wire::http3::ErrorCode;

/// What is waited for, and how the wait ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// The handshake: `client_header_timeout`.
    Handshake,
    /// The streams have their own deadlines.
    Streams,
    /// The client to acknowledge what it was sent, all of it: `send_timeout`, again with each acknowledgement.
    Acknowledgements,
    /// The first request: the same again.
    First,
    /// The rest of a head: the same again.
    Head,
    /// The next request: `keepalive_timeout`.
    Idle,
    /// The end of QUIC's own farewell.
    Farewell,
}

impl Driver {
    /// What is waited for on our side, and whether it took too long.
    pub(super) fn wait_for(&mut self, cx: &mut Context<'_>) {
        let wait = {
            let mut state = self.session.state.borrow_mut();
            match () {
                () if state.dead || state.quic.is_closed() => Wait::Farewell,
                () if self.shaking || self.check.is_some() => Wait::Handshake,
                () if state.streams.values().any(|s| s.owned) => Wait::Streams,
                () if state.is_sending() => Wait::Acknowledgements,
                () if state.requests() > 0 => Wait::Head,
                () if self.client.requests.get() == 0 => Wait::First,
                () => Wait::Idle,
            }
        };
        self.count_idle(wait == Wait::Idle);
        self.stand(wait);
        if std::mem::replace(&mut self.wait, wait) != wait {
            let snapshot = crate::worker::snapshot_for(&self.client);
            let server = snapshot.server(default_server(&snapshot, &self.client));
            match wait {
                Wait::Streams | Wait::Farewell => self.patience.clear(),
                Wait::Acknowledgements => self.patience.set(*self.settings(&snapshot).send_timeout),
                Wait::Handshake | Wait::First | Wait::Head => {
                    self.patience.set(*server.conf.core.client_header_timeout)
                }
                Wait::Idle => self.patience.set(*self.settings(&snapshot).keepalive_timeout),
            }
        }
        if self.client.is_taken() && wait != Wait::Farewell {
            return self.make_room(wait);
        }
        let too_slow = self.is_too_slow(wait, cx);
        if self.patience.poll_expired(cx).is_pending() && !too_slow {
            return;
        }
        if wait == Wait::Acknowledgements && !too_slow && self.has_progress() {
            // The time begins anew with the next turn.
            self.wait = Wait::Streams;
            return runtime::wake(runtime::current());
        }
        match wait {
            Wait::Handshake if self.shaking => self.lost(&Lost::TimedOut),
            Wait::Idle => {}
            _ if too_slow => self.note(TOO_SLOW),
            _ => self.note("client timed out (110: Connection timed out)"),
        }
        self.calm();
        self.patience.clear();
        if self.session.state.borrow_mut().abandon_heads() && !(too_slow && wait == Wait::Head) {
            // What is waited for next is found in the next turn.
            self.wait = Wait::Streams;
            return runtime::wake(runtime::current());
        }
        self.close(ErrorCode::NO_ERROR, "");
        self.wait = Wait::Farewell;
    }

    /// Whether what is waited for comes, or goes, too slowly.
    fn is_too_slow(&mut self, wait: Wait, cx: &mut Context<'_>) -> bool {
        if !matches!(wait, Wait::First | Wait::Head | Wait::Acknowledgements) {
            self.watch = None;
            return false;
        }
        let is_head = wait == Wait::Head;
        if self.watch.as_ref().is_none_or(|(of, _)| *of != wait) {
            let snapshot = crate::worker::snapshot_for(&self.client);
            let conf = &snapshot.location(snapshot.server(default_server(&snapshot, &self.client)).root).conf.slow;
            let watch = match wait {
                Wait::First => Watch::of_silence(*conf.client_header_min_rate, conf.places()),
                Wait::Head => Watch::new(*conf.client_header_min_rate, conf.places()),
                _ => Watch::new(*conf.send_min_rate, conf.places()),
            };
            self.watch = watch.map(|watch| (wait, watch));
        }
        let Some((_, watch)) = &mut self.watch else { return false };
        let session = &self.session;
        watch.poll(&self.client, cx, || if wait == Wait::First { 0 } else { session.moved(is_head) }).is_ready()
    }

    /// Whether the connection could make room for another (`connection::reuse`).
    fn stand(&self, wait: Wait) {
        match wait {
            Wait::Idle => return self.client.rests(),
            Wait::Streams if !self.is_unread() => return self.client.works(),
            Wait::Farewell => return self.client.works(),
            // It has not said anything yet.
            Wait::First => return self.client.rests(),
            Wait::Handshake | Wait::Streams | Wait::Acknowledgements | Wait::Head => {}
        }
        let stats = self.session.state.borrow().quic.stats();
        let moved = stats.udp_tx.bytes + stats.udp_rx.bytes;
        self.client.has_moved(moved);
        self.client.owes(moved);
    }

    /// Whether all requests wait for the client to take more of their answers.
    fn is_unread(&self) -> bool {
        let state = self.session.state.borrow();
        state.streams.values().all(|s| !s.is_ready && s.has_output() && s.allowed > s.output.written)
    }

    /// Another connection has this one's seat.
    fn make_room(&mut self, wait: Wait) {
        if wait != Wait::Idle {
            self.note("client is too slow, its connection makes room for another");
        }
        self.calm();
        self.patience.clear();
        self.close(ErrorCode::NO_ERROR, "");
        self.wait = Wait::Farewell;
    }

    /// Whether the client has acknowledged anything new since this was asked the last time: each time it does, the
    /// estimate of the round trip is another. (The number of its ACK frames would say nothing: it may repeat itself.)
    fn has_progress(&mut self) -> bool {
        let round_trip = self.session.state.borrow().quic.rtt();
        std::mem::replace(&mut self.round_trip, round_trip) != round_trip
    }

    pub(super) fn count_idle(&mut self, idle: bool) {
        if std::mem::replace(&mut self.counted_idle, idle) != idle {
            counters::waiting(if idle { 1 } else { -1 });
        }
    }
}
