//! Requests and answers on HTTP/2 connections: a connection's lanes are its streams. Frames are `wire::http2`'s. What a turn
//! has to say on a connection leaves in one write.

use super::Client;
use super::lane::Lane;
use crate::options::Closing;
use crate::plan::Plan;
use crate::sample::Failure;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::collections::VecDeque;
use std::convert::Infallible;
use wire::http2::connection::{Config, Connection, Event, Role};
use wire::http2::hpack::HeaderBlock;
use wire::http2::hpack::decoder::Limits;
use wire::http2::{ErrorCode, MAX_WINDOW};

/// Header fields of one answer; servers' own limits are 8 to 64 KiB.
const LIMITS: Limits = Limits { field: 64 * 1024, block: 64 * 1024 };
/// More of request bodies is not put into a connection's output before some of it is out.
const OUTPUT: usize = 256 * 1024;
/// The last number that a stream of ours may have: after it the connection is replaced.
const LAST_STREAM: u32 = MAX_WINDOW - 2;

/// What the client keeps for a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Exchange {
    lane: u32,
    /// Bytes of the request's body that are out.
    body_sent: usize,
    /// 0: no head has come, but for 1xx ones.
    status: u16,
    backend: Option<u16>,
    /// Opened before the target had said how many it takes: that it refuses it is no failure.
    is_early: bool,
}

/// The HTTP/2 of one connection.
pub(crate) struct Multiplex {
    wire: Connection<Exchange>,
    /// The beginning of a frame that is not complete.
    rest: Vec<u8>,
    /// Lanes whose request waits: the target takes no more streams now, or not on this connection.
    parked: VecDeque<u32>,
    /// Streams whose request's body is not out.
    unsent: Vec<u32>,
    /// The target's settings have come.
    has_settings: bool,
    /// The target, or the numbers' end, allows no further streams.
    is_closing: bool,
    is_marked: bool,
}

/// What a thread needs for all of its HTTP/2 connections.
#[derive(Default)]
pub(crate) struct Streams {
    fields: HeaderBlock,
    /// Lower case.
    backend_header: Option<Vec<u8>>,
    /// Lanes whose answer came with the bytes that are being read.
    finished: Vec<u32>,
    /// Connections that have something to write.
    marked: Vec<u32>,
}

impl Streams {
    pub(crate) fn new(plan: &Plan) -> Streams {
        let backend_header = plan.backend_header.as_ref().map(|name| name.to_ascii_lowercase().into_bytes());
        Streams { backend_header, ..Streams::default() }
    }
}

/// The settings of a client that reads whatever comes: no window of its own limits the target.
pub(crate) fn config() -> Config {
    Config { role: Role::Client, max_streams: 0, stream_window: MAX_WINDOW, headers: LIMITS }
}

/// The status of a decoded head.
pub(crate) fn status(fields: &HeaderBlock) -> Option<u16> {
    let (name, value) = fields.iter().next()?;
    let digits = std::str::from_utf8(value).ok().filter(|v| name == b":status" && v.len() == 3)?;
    digits.parse().ok().filter(|status| *status >= 100)
}

impl Client<'_> {
    /// A connection stands. False: not for HTTP/2, and it has failed.
    pub(super) fn begin_http2(&mut self, id: u32) -> bool {
        let connection = &mut self.connections[id as usize];
        if connection.tls.as_ref().is_some_and(|tls| !tls.agreed_on_http2()) {
            self.fail(id, Failure::Protocol);
            return false;
        }
        connection.http2 = Some(Box::new(Multiplex {
            wire: Connection::new(config()),
            rest: Vec::new(),
            parked: VecDeque::new(),
            unsent: Vec::new(),
            has_settings: false,
            is_closing: false,
            is_marked: false,
        }));
        self.has_output(id);
        true
    }

    /// Opens a stream for a lane's request, or parks the lane until there may be one.
    pub(super) fn start_http2(&mut self, lane: u32) {
        let l = &mut self.lanes[lane as usize];
        let id = l.connection;
        let connection = &mut self.connections[id as usize];
        let Some(m) = &mut connection.http2 else { return };
        if m.is_closing || connection.is_ending {
            return m.parked.push_back(lane);
        }
        let exchange = Exchange { lane, is_early: !m.has_settings, ..Exchange::default() };
        let Some(stream) = m.wire.open(exchange) else {
            return m.parked.push_back(lane);
        };
        m.is_closing = stream >= LAST_STREAM;
        m.wire.open_widely(stream);
        let request = &self.plan.requests[l.request as usize];
        let has_body = !request.body().is_empty();
        m.wire.send_head(stream, !has_body, |encoder, out| {
            request.fields.iter().for_each(|(name, value)| encoder.field(name, value, out));
        });
        if has_body {
            m.unsent.push(stream);
        }
        // A kept connection of the closed loop: what a parked lane waited for is not the answer's time.
        if !self.pace.is_open() && self.plan.close.is_none() {
            l.counted_from = self.now;
        }
        self.note_start(lane);
        self.has_output(id);
    }

    /// Notes that a connection has something to write; [`Client::flush_streams`] does.
    pub(super) fn has_output(&mut self, id: u32) {
        if let Some(m) = &mut self.connections[id as usize].http2
            && !std::mem::replace(&mut m.is_marked, true)
        {
            self.streams.marked.push(id);
        }
    }

    /// Writes what the turn has gathered.
    pub(super) fn flush_streams(&mut self) {
        while let Some(id) = self.streams.marked.pop() {
            self.write_streams(id);
        }
    }

    fn write_streams(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        let (Some(m), Some(socket)) = (&mut connection.http2, &connection.socket) else { return };
        m.is_marked = false;
        loop {
            m.add_bodies(self.plan, &self.lanes);
            let output = m.wire.output();
            if output.is_empty() {
                break;
            }
            if let Some(session) = &mut connection.tls {
                let written = output.len();
                if session.write(output).is_err() {
                    return self.fail(id, Failure::Tls);
                }
                m.wire.advance(written);
                continue;
            }
            match send(socket, output, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    self.tally.sample.bytes_written += sent as u64;
                    m.wire.advance(sent);
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return self.fail(id, Failure::Reset),
                Err(_) => return self.fail(id, Failure::Write),
            }
        }
        if connection.tls.is_some() {
            self.flush(id);
        }
    }

    /// Bytes of a connection.
    pub(super) fn take_http2(&mut self, id: u32, bytes: &[u8]) {
        let Some(mut m) = self.connections[id as usize].http2.take() else { return };
        let mut rest = std::mem::take(&mut m.rest);
        let is_joined = !rest.is_empty();
        if is_joined {
            rest.extend_from_slice(bytes);
        }
        // The settings are the first that a target says (RFC 9113 section 3.4).
        m.has_settings = true;
        let (mut at, mut outcome) = (0, Ok(()));
        let input = if is_joined { &rest[..] } else { bytes };
        while outcome.is_ok() {
            match m.wire.next(input, &mut at, &mut self.streams.fields) {
                Ok(Event::More) => break,
                Ok(event) => outcome = self.hear(&mut m, event),
                Err(error) => {
                    m.wire.goaway(error.code);
                    outcome = Err(Failure::Protocol);
                }
            }
        }
        if is_joined {
            rest.drain(..at);
        } else {
            rest.extend_from_slice(&bytes[at..]);
        }
        m.rest = rest;
        self.connections[id as usize].http2 = Some(m);
        self.has_output(id);
        match outcome {
            Ok(()) => self.settle(id),
            Err(kind) => {
                // GOAWAY goes out before the end; where that fails, the connection has failed already.
                let generation = self.connections[id as usize].generation;
                self.write_streams(id);
                if self.connections[id as usize].generation == generation {
                    self.fail(id, kind);
                }
            }
        }
    }

    fn hear(&mut self, m: &mut Multiplex, event: Event) -> Result<(), Failure> {
        match event {
            Event::Head { stream, end, .. } => {
                let Some(exchange) = m.wire.stream(stream).map(|s| &mut s.data) else { return Ok(()) };
                self.note_first_byte(exchange.lane);
                // Another head than the first is trailers, but for those of 1xx.
                if exchange.status == 0 {
                    let status = status(&self.streams.fields).ok_or(Failure::Protocol)?;
                    exchange.status = if status < 200 { 0 } else { status };
                    exchange.backend = backend(&self.streams, &mut self.tally);
                }
                if end {
                    self.finish(m, stream);
                }
            }
            Event::Trailers { stream } | Event::Data { stream, end: true, .. } => self.finish(m, stream),
            Event::Reset { stream, code, .. } => {
                let Some(exchange) = m.drop_stream(stream) else { return Ok(()) };
                if exchange.is_early && code == ErrorCode::REFUSED_STREAM {
                    self.park_again(m, exchange.lane);
                } else {
                    self.fail_request(exchange.lane, Failure::Reset);
                    self.streams.finished.push(exchange.lane);
                }
            }
            Event::Goaway { last, .. } => {
                m.is_closing = true;
                // What the target has not looked at goes out again, on the next connection.
                while let Some(stream) = m.wire.streams().last().map(|s| s.id).filter(|&id| id > last) {
                    let Some(exchange) = m.drop_stream(stream) else { break };
                    self.park_again(m, exchange.lane);
                }
            }
            Event::Data { .. } | Event::Window { .. } | Event::Refused | Event::More => {}
        }
        Ok(())
    }

    /// The target has not looked at a lane's request: it goes out again.
    fn park_again(&mut self, m: &mut Multiplex, lane: u32) {
        self.lanes[lane as usize].is_sent = false;
        m.parked.push_front(lane);
    }

    /// An answer is whole.
    fn finish(&mut self, m: &mut Multiplex, stream: u32) {
        let Some(exchange) = m.drop_stream(stream) else { return };
        match exchange.status {
            0 => self.fail_request(exchange.lane, Failure::Protocol),
            status => self.count_answer(exchange.lane, status, exchange.backend, true),
        }
        self.streams.finished.push(exchange.lane);
    }

    /// After what was read: lanes that are free, or were parked, go on, and a connection that carries nothing more is replaced.
    fn settle(&mut self, id: u32) {
        while let Some(m) = &mut self.connections[id as usize].http2
            && !m.is_closing
            && m.wire.can_open()
            && let Some(lane) = m.parked.pop_front()
        {
            self.start_http2(lane);
        }
        let mut finished = std::mem::take(&mut self.streams.finished);
        for lane in finished.drain(..) {
            if let Some(how) = self.plan.close {
                self.close(id, Some(how));
            }
            self.release(lane);
        }
        self.streams.finished = finished;
        let Some(m) = &self.connections[id as usize].http2 else { return };
        if m.is_closing && m.wire.streams().is_empty() {
            self.tally.sample.reconnects += 1;
            self.close(id, Some(Closing::Client));
            self.free_lanes(id, false);
        }
    }

    /// Gives up a lane's request; the connection stays.
    pub(super) fn cancel_http2(&mut self, lane: u32, kind: Failure) {
        let id = self.lanes[lane as usize].connection;
        let Some(m) = &mut self.connections[id as usize].http2 else { return };
        m.parked.retain(|&parked| parked != lane);
        if let Some(stream) = m.wire.streams().iter().find(|s| s.data.lane == lane).map(|s| s.id) {
            m.drop_stream(stream);
        }
        self.fail_request(lane, kind);
        self.streams.finished.push(lane);
        self.has_output(id);
        self.settle(id);
    }
}

impl Multiplex {
    /// A stream is over; one that was not finished is cancelled.
    fn drop_stream(&mut self, stream: u32) -> Option<Exchange> {
        self.unsent.retain(|&unsent| unsent != stream);
        self.wire.release(stream, ErrorCode::CANCEL)
    }

    /// Puts request bodies into the output, as far as windows and its bound allow.
    fn add_bodies(&mut self, plan: &Plan, lanes: &[Lane]) {
        let wire = &mut self.wire;
        self.unsent.retain(|&stream| {
            let Some(Exchange { lane, mut body_sent, .. }) = wire.stream(stream).map(|s| s.data) else { return false };
            let body = plan.requests[lanes[lane as usize].request as usize].body();
            send_body(wire, stream, body, &mut body_sent);
            if let Some(s) = wire.stream(stream) {
                s.data.body_sent = body_sent;
            }
            body_sent < body.len()
        });
    }
}

/// Puts as much of a body into the output as windows and its bound allow; `sent` is how much was before, and is now.
pub(crate) fn send_body<T>(wire: &mut Connection<T>, stream: u32, body: &[u8], sent: &mut usize) {
    while wire.output().len() < OUTPUT {
        let left = &body[*sent..];
        let now = &left[..left.len().min(wire.sendable(stream))];
        if now.is_empty() {
            return;
        }
        *sent += now.len();
        let is_last = *sent == body.len();
        let fill = |out: &mut Vec<u8>| {
            out.extend_from_slice(now);
            Ok::<(), Infallible>(())
        };
        let Ok(()) = wire.send_data(stream, now.len(), is_last, !is_last, fill);
    }
}

/// The backend that a head names.
fn backend(streams: &Streams, tally: &mut crate::sample::Tally) -> Option<u16> {
    let wanted = streams.backend_header.as_deref()?;
    let (_, value) = streams.fields.iter().find(|(name, _)| *name == wanted)?;
    Some(tally.backend(value))
}
