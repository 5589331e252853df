//! Lanes: what carries one request at a time, and which request it gets when. An HTTP/1.1 connection is one lane, another one
//! as many as it has streams at a time. How a request is sent and answered: `http1`, `streams`.

use super::Client;
use super::connection::Stage;
use crate::plan::Http;
use crate::sample::Failure;
use std::ops::Range;

/// One lane. Times are nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lane {
    /// Index of its connection.
    pub connection: u32,
    /// Whether a request is assigned; it may have to wait for the connection.
    pub has_request: bool,
    /// The request is out, or a part of it.
    pub is_sent: bool,
    /// Somebody will come back to it: it is listed as free, it rests, or a script has put its request off.
    pub is_waiting: bool,
    /// Something of the answer has arrived.
    pub has_first_byte: bool,
    /// Index of the request.
    pub request: u32,
    /// From when the latency counts.
    pub counted_from: u64,
    /// When the request was assigned, and then when it was sent.
    pub began: u64,
    /// When it became free.
    pub free_since: u64,
}

impl Lane {
    pub(super) fn of(connection: u32) -> Lane {
        Lane { connection, ..Lane::default() }
    }
}

impl Client<'_> {
    /// The lanes of a connection.
    pub(super) fn lanes_of(&self, connection: u32) -> Range<u32> {
        let width = self.plan.streams as u32;
        connection * width..(connection + 1) * width
    }

    /// Closed loop: every lane gets its first request. Open loop: those of connections that do not stand yet will when they
    /// are needed.
    pub(super) fn begin(&mut self) {
        for lane in 0..self.lanes.len() as u32 {
            let Lane { connection, is_waiting, .. } = self.lanes[lane as usize];
            if self.connections[connection as usize].stage == Stage::Down && !is_waiting {
                self.release(lane);
            }
        }
    }

    /// Sends what is due, as far as lanes are free.
    pub(super) fn send_due(&mut self) {
        while self.pace.wake_at() <= self.now && self.left > 0 && !self.is_draining {
            let Some(lane) = self.pace.take_free() else { return };
            self.lanes[lane as usize].is_waiting = false;
            self.next(lane);
        }
    }

    /// A lane is free.
    pub(super) fn release(&mut self, lane: u32) {
        self.lanes[lane as usize].free_since = self.now;
        if self.is_draining || self.left == 0 {
            return;
        }
        if !self.pace.is_open() || self.pace.next_due() <= self.now {
            if !self.is_delayed(lane) {
                self.next(lane);
            }
        } else {
            self.put_free(lane);
        }
    }

    fn put_free(&mut self, lane: u32) {
        self.lanes[lane as usize].is_waiting = true;
        self.pace.put_free(lane);
    }

    /// Gives a free lane the next request: closed loop, or one that is due.
    pub(super) fn next(&mut self, lane: u32) {
        let due = match self.pace.is_open() {
            true => self.pace.take_due(self.now),
            false => Some(self.now),
        };
        let Some(due) = due else { return self.put_free(lane) };
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        self.in_flight += 1;
        let l = &mut self.lanes[lane as usize];
        l.has_request = true;
        l.counted_from = due;
        l.began = self.now;
        l.request = self.next_request as u32;
        self.next_request += 1;
        if self.next_request >= self.plan.requests.len() {
            self.next_request = 0;
        }
        if self.pace.is_open() {
            let since = due.max(l.free_since);
            self.tally.sample.lateness.record(self.now.saturating_sub(since));
        }
        let connection = l.connection;
        match self.connections[connection as usize].stage {
            Stage::Down => self.dial(connection),
            stage if stage.is_opening() => {}
            _ => self.start(lane),
        }
    }

    /// Sends a lane's request: its connection stands.
    fn start(&mut self, lane: u32) {
        match self.plan.http {
            Http::One => self.start_http1(lane),
            Http::Two | Http::Three => self.start_stream(lane),
        }
    }

    /// A lane's request goes out now.
    pub(super) fn note_start(&mut self, lane: u32) -> &mut Lane {
        self.tally.sample.sent += 1;
        let lane = &mut self.lanes[lane as usize];
        lane.is_sent = true;
        lane.began = self.now;
        lane.has_first_byte = false;
        lane
    }

    /// The connection can carry requests.
    pub(super) fn established(&mut self, connection: u32) {
        self.connections[connection as usize].stage = Stage::Idle;
        if self.plan.http == Http::Two && !self.begin_http2(connection) {
            return;
        }
        // With kept connections the handshake is not part of the first request's latency; it has a histogram of its own.
        let counts_from_here = self.plan.close.is_none() && !self.pace.is_open();
        for lane in self.lanes_of(connection) {
            let l = &mut self.lanes[lane as usize];
            if l.has_request {
                if counts_from_here {
                    l.counted_from = self.now;
                }
                self.start(lane);
            } else if !l.is_waiting {
                self.release(lane);
            }
        }
    }

    /// Something of an answer has arrived.
    pub(super) fn note_first_byte(&mut self, lane: u32) {
        let lane = &mut self.lanes[lane as usize];
        if !lane.has_first_byte {
            lane.has_first_byte = true;
            self.tally.sample.first_byte.record(self.now - lane.counted_from);
        }
    }

    /// An answer is whole. `is_last`: of those that were asked for at once.
    pub(super) fn count_answer(&mut self, lane: u32, status: u16, backend: Option<u16>, is_last: bool) {
        let l = &mut self.lanes[lane as usize];
        let latency = self.now - l.counted_from;
        if self.pace.is_open() {
            self.tally.sample.service.record(self.now - l.began);
        }
        if is_last {
            l.has_request = false;
            l.is_sent = false;
            self.in_flight -= 1;
        }
        let url = self.plan.requests[l.request as usize].url;
        self.second.answers += 1;
        self.second.errors += u64::from(status >= 400);
        self.second.latency.record(latency);
        self.tally.answer(status, url, backend, latency);
    }

    /// A lane's request failed.
    pub(super) fn fail_request(&mut self, lane: u32, kind: Failure) {
        self.tally.fail(kind);
        self.second.errors += 1;
        self.in_flight -= 1;
        if let Some(scripted) = self.scripted.get_mut(lane as usize) {
            scripted.forget();
        }
        let lane = &mut self.lanes[lane as usize];
        lane.has_request = false;
        lane.is_sent = false;
        if matches!(kind, Failure::Timeout | Failure::ConnectTimeout) {
            self.second.latency.record(self.now - lane.counted_from);
        }
    }

    /// A connection is gone: its lanes go on with another, at once or, if `later`, at the next tick.
    pub(super) fn free_lanes(&mut self, connection: u32, later: bool) {
        for lane in self.lanes_of(connection) {
            let l = &mut self.lanes[lane as usize];
            if l.is_waiting {
                continue;
            }
            if later {
                l.is_waiting = true;
                self.resting.push(lane);
            } else {
                self.resume(lane);
            }
        }
    }

    /// Lanes that rested go on.
    pub(super) fn wake_resting(&mut self) {
        for lane in std::mem::take(&mut self.resting) {
            self.lanes[lane as usize].is_waiting = false;
            self.resume(lane);
        }
    }

    pub(super) fn resume(&mut self, lane: u32) {
        let Lane { connection, has_request, .. } = self.lanes[lane as usize];
        if !has_request {
            self.release(lane);
        } else if self.connections[connection as usize].stage == Stage::Down {
            self.dial(connection);
        }
    }

    /// What has taken longer than `--timeout`.
    pub(super) fn check_timeouts(&mut self) {
        let limit = self.plan.timeout.as_nanos() as u64;
        for connection in 0..self.connections.len() as u32 {
            let c = &self.connections[connection as usize];
            if c.stage.is_opening() && self.now.saturating_sub(c.began) > limit {
                self.fail(connection, Failure::ConnectTimeout);
            }
        }
        for lane in 0..self.lanes.len() as u32 {
            let Lane { connection, has_request, is_waiting, began, .. } = self.lanes[lane as usize];
            let stage = self.connections[connection as usize].stage;
            if stage == Stage::Down || stage.is_opening() || self.now.saturating_sub(began) <= limit {
                continue;
            }
            match self.plan.http {
                Http::Two | Http::Three if has_request => self.cancel_stream(lane, Failure::Timeout),
                Http::One if has_request => self.fail(connection, Failure::Timeout),
                // It said that it would close, and did not.
                Http::One if stage == Stage::Idle && !is_waiting => {
                    self.close(connection, Some(crate::options::Closing::Client));
                    self.release(lane);
                }
                _ => {}
            }
        }
    }
}
