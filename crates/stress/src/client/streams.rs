//! Requests on connections that carry several at a time: what HTTP/2 and HTTP/3 have in common. A connection's lanes are its
//! streams. What a turn has to say on a connection leaves together.

use super::Client;
use super::http2::Http2;
use super::http3::Http3;
use super::quic::{Clock, Rooms};
use crate::options::Closing;
use crate::plan::request::Request;
use crate::plan::{Http, Plan};
use crate::sample::Failure;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use wire::http2::hpack::HeaderBlock;
use wire::http2::hpack::decoder::Limits;

/// Header fields of one answer; servers' own limits are 8 to 64 KiB.
pub(crate) const LIMITS: Limits = Limits { field: 64 * 1024, block: 64 * 1024 };

/// What the client keeps for a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Exchange {
    pub lane: u32,
    /// HTTP/2: bytes of the request's body that are out.
    pub body_sent: usize,
    /// 0: no head has come, but for 1xx ones.
    pub status: u16,
    pub backend: Option<u16>,
    /// Opened before the target had said how many it takes: that it refuses it is no failure.
    pub is_early: bool,
}

/// A connection with streams.
pub(crate) struct Multiplex {
    pub way: Way,
    pub queue: Queue,
}

/// What is spoken on it.
pub(crate) enum Way {
    Http2(Box<Http2>),
    Http3(Box<Http3>),
}

/// What waits for a connection.
#[derive(Default)]
pub(crate) struct Queue {
    /// Lanes whose request waits: the target takes no more streams now, or not on this connection.
    parked: VecDeque<u32>,
    /// The target, or the numbers' end, allows no further streams.
    pub is_closing: bool,
    is_marked: bool,
}

/// What a thread needs for all of these connections.
#[derive(Default)]
pub(crate) struct Streams {
    /// The fields of the head that came last.
    pub fields: HeaderBlock,
    /// Lower case.
    backend_header: Option<Vec<u8>>,
    /// Lanes whose answer came with the bytes that are being read.
    pub finished: Vec<u32>,
    /// Connections that have something to write.
    marked: Vec<u32>,
    /// HTTP/3
    pub quic: Option<QuicThread>,
}

/// What a thread needs for QUIC.
pub(crate) struct QuicThread {
    pub clock: Clock,
    pub rooms: Rooms,
    /// When QUIC wants to be woken, and for which connection. An entry stays when the time has moved.
    pub alarms: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Streams {
    pub(crate) fn new(plan: &Plan) -> Streams {
        let backend_header = plan.backend_header.as_ref().map(|name| name.to_ascii_lowercase().into_bytes());
        let quic = (plan.http == Http::Three).then(|| QuicThread {
            clock: Clock::new(),
            rooms: Rooms::new(),
            alarms: BinaryHeap::new(),
        });
        Streams { backend_header, quic, ..Streams::default() }
    }
}

impl Streams {
    pub(super) fn has_marked(&self) -> bool {
        !self.marked.is_empty()
    }
}

/// The status of a decoded head.
pub(crate) fn status(fields: &HeaderBlock) -> Option<u16> {
    let (name, value) = fields.iter().next()?;
    let digits = std::str::from_utf8(value).ok().filter(|v| name == b":status" && v.len() == 3)?;
    digits.parse().ok().filter(|status| *status >= 100)
}

impl From<Way> for Multiplex {
    fn from(way: Way) -> Multiplex {
        Multiplex { way, queue: Queue::default() }
    }
}

impl Way {
    /// Opens a stream for a request. None: the target takes no more now.
    fn open(&mut self, exchange: Exchange, request: &Request, queue: &mut Queue) -> Option<()> {
        match self {
            Way::Http2(way) => way.open(exchange, request, queue),
            Way::Http3(way) => way.open(exchange, request),
        }
    }

    fn can_open(&self) -> bool {
        match self {
            Way::Http2(way) => way.wire.can_open(),
            Way::Http3(way) => way.can_open(),
        }
    }

    /// Carries nothing.
    fn is_idle(&self) -> bool {
        match self {
            Way::Http2(way) => way.wire.streams().is_empty(),
            Way::Http3(way) => way.is_idle(),
        }
    }

    /// QUIC packets that were lost; of TCP the kernel knows.
    pub(super) fn lost(&self) -> u64 {
        match self {
            Way::Http2(_) => 0,
            Way::Http3(way) => way.quic.lost(),
        }
    }

    /// Cancels the stream of a lane, if it has one.
    fn cancel(&mut self, lane: u32) {
        match self {
            Way::Http2(way) => way.cancel(lane),
            Way::Http3(way) => way.cancel(lane),
        }
    }
}

impl Client<'_> {
    /// Opens a stream for a lane's request, or parks the lane until there may be one.
    pub(super) fn start_stream(&mut self, lane: u32) {
        self.ask_script_for_streams(lane);
        let l = &mut self.lanes[lane as usize];
        let id = l.connection;
        let connection = &mut self.connections[id as usize];
        let Some(Multiplex { way, queue }) = &mut connection.streams else { return };
        let own = self.scripted.get(lane as usize).and_then(|s| s.request());
        let request = own.unwrap_or(&self.plan.requests[l.request as usize]);
        let exchange = Exchange { lane, ..Exchange::default() };
        if queue.is_closing || connection.is_ending || way.open(exchange, request, queue).is_none() {
            return queue.parked.push_back(lane);
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
        if let Some(m) = &mut self.connections[id as usize].streams
            && !std::mem::replace(&mut m.queue.is_marked, true)
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

    pub(super) fn write_streams(&mut self, id: u32) {
        let Some(m) = &mut self.connections[id as usize].streams else { return };
        m.queue.is_marked = false;
        match &m.way {
            Way::Http2(_) => self.write_http2(id),
            Way::Http3(_) => self.write_http3(id),
        }
    }

    /// A head has come; its fields are the last that came.
    pub(super) fn take_head(&mut self, exchange: &mut Exchange) -> Result<(), Failure> {
        self.note_first_byte(exchange.lane);
        // Another head than the first is trailers, but for those of 1xx.
        if exchange.status == 0 {
            let status = status(&self.streams.fields).ok_or(Failure::Protocol)?;
            exchange.status = if status < 200 { 0 } else { status };
            exchange.backend = self.backend();
            self.keep_fields(exchange.lane);
        }
        Ok(())
    }

    /// The backend that a head names.
    fn backend(&mut self) -> Option<u16> {
        let wanted = self.streams.backend_header.as_deref()?;
        let (_, value) = self.streams.fields.iter().find(|(name, _)| *name == wanted)?;
        Some(self.tally.backend(value))
    }

    /// An answer is whole.
    pub(super) fn end_answer(&mut self, exchange: Exchange) {
        let Exchange { lane, status, backend, .. } = exchange;
        if status == 0 {
            return self.lose_answer(lane, Failure::Protocol);
        }
        let is_last = self.scripted.get_mut(lane as usize).is_none_or(|s| s.is_last());
        self.count_answer(lane, status, backend, is_last);
        self.show_answer(lane, status);
        self.streams.finished.push(lane);
    }

    /// An answer does not come.
    pub(super) fn lose_answer(&mut self, lane: u32, kind: Failure) {
        self.fail_request(lane, kind);
        self.streams.finished.push(lane);
    }

    /// The target has not looked at a lane's request: it goes out again.
    pub(super) fn park_again(&mut self, queue: &mut Queue, lane: u32) {
        self.lanes[lane as usize].is_sent = false;
        queue.parked.push_front(lane);
    }

    /// After what was read: lanes that are free, or were parked, go on, and a connection that carries nothing more is replaced.
    pub(super) fn settle(&mut self, id: u32) {
        while let Some(m) = &mut self.connections[id as usize].streams
            && !m.queue.is_closing
            && m.way.can_open()
            && let Some(lane) = m.queue.parked.pop_front()
        {
            self.start_stream(lane);
        }
        let mut finished = std::mem::take(&mut self.streams.finished);
        for lane in finished.drain(..) {
            if let Some(how) = self.plan.close {
                self.close(id, Some(how));
            }
            // A script may have asked for several requests at once: they go out one after the other.
            if self.lanes[lane as usize].has_request && self.connections[id as usize].streams.is_some() {
                self.start_stream(lane);
            } else {
                self.resume(lane);
            }
        }
        self.streams.finished = finished;
        let Some(m) = &self.connections[id as usize].streams else { return };
        if m.queue.is_closing && m.way.is_idle() {
            self.tally.sample.reconnects += 1;
            self.close(id, Some(Closing::Client));
            self.free_lanes(id, false);
        }
    }

    /// Gives up a lane's request; the connection stays.
    pub(super) fn cancel_stream(&mut self, lane: u32, kind: Failure) {
        let id = self.lanes[lane as usize].connection;
        let Some(m) = &mut self.connections[id as usize].streams else { return };
        m.queue.parked.retain(|&parked| parked != lane);
        m.way.cancel(lane);
        self.lose_answer(lane, kind);
        self.has_output(id);
        self.settle(id);
    }
}
