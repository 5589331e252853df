//! HTTP/3 on a QUIC connection. Frames are `wire::http3`'s, the transport is `quic`; what it has in common with HTTP/2 is in
//! `streams`. A request's stream is finished bytes, with the static table alone; so is what is asked of the target's.

use super::Client;
use super::quic::{self, Clock, Quic};
use super::streams::{Exchange, LIMITS, Multiplex, Queue, QuicThread, Way};
use crate::plan::request::Request;
use crate::plan::tls::Tls;
use crate::sample::Failure;
use bytes::Bytes;
use quinn_proto::{Dir, ReadError, StreamEvent, StreamId, VarInt};
use std::cmp::Reverse;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use wire::http2::hpack::HeaderBlock;
use wire::http3::control::{self, Kind};
use wire::http3::frame::{setting, write_control};
use wire::http3::qpack::table::Table;
use wire::http3::{ConnectionError, ErrorCode, request};

/// The HTTP/3 of one connection.
pub(crate) struct Http3 {
    pub quic: Quic,
    /// The target's one-way streams.
    oneway: Vec<(StreamId, control::Reader)>,
    /// Requests, oldest first.
    streams: Vec<Stream>,
    /// The target's table: we allow it none.
    table: Table,
    /// What is being read: a stream, bytes of it, and how many of those are done with.
    reading: Option<StreamId>,
    chunk: Bytes,
    at: usize,
    /// The target takes no more streams now.
    is_full: bool,
    goaway: Option<u64>,
    /// The earliest alarm that is set, nanoseconds of the monotonic clock; `u64::MAX`: none.
    alarm: u64,
}

struct Stream {
    id: StreamId,
    exchange: Exchange,
    reader: request::Reader,
    /// What is not out of the request.
    rest: Bytes,
}

/// What has happened on a connection.
pub(crate) enum Event {
    /// Nothing more, for now.
    More,
    /// The handshake is over.
    Connected,
    /// The connection is gone.
    Lost(Failure),
    /// A head stands in the header block.
    Head(StreamId),
    /// A piece of a body.
    Data(StreamId, Bytes),
    /// Nothing follows on a stream.
    End(StreamId),
    /// The target has cancelled a stream.
    Reset(StreamId, ErrorCode),
    /// The target works on no streams from this number on.
    Goaway(u64),
}

impl Http3 {
    /// Begins a handshake on a socket that is connected to `target`.
    pub(crate) fn new(socket: &OwnedFd, tls: &Tls, target: SocketAddr, clock: &Clock, now: u64) -> io::Result<Http3> {
        Ok(Http3 {
            quic: Quic::new(socket, tls, target, clock.instant(now))?,
            oneway: Vec::new(),
            streams: Vec::new(),
            table: Table::new(0),
            reading: None,
            chunk: Bytes::new(),
            at: 0,
            is_full: false,
            goaway: None,
            alarm: u64::MAX,
        })
    }

    /// What has happened next; a head's fields are in `fields`.
    ///
    /// # Errors
    /// The target broke the protocol: the connection is to be closed with the code.
    pub(crate) fn next(&mut self, fields: &mut HeaderBlock) -> Result<Event, ConnectionError> {
        loop {
            if let Some(stream) = self.reading {
                match self.read(stream, fields)? {
                    Event::More => self.reading = None,
                    event => return Ok(event),
                }
            }
            match self.quic.connection.poll() {
                None => return Ok(Event::More),
                Some(quinn_proto::Event::Connected) => {
                    self.begin();
                    return Ok(Event::Connected);
                }
                Some(quinn_proto::Event::ConnectionLost { reason }) => return Ok(Event::Lost(quic::failure(&reason))),
                Some(quinn_proto::Event::Stream(event)) => {
                    if let Some(end) = self.hear(event)? {
                        return Ok(Event::Goaway(end));
                    }
                }
                Some(_) => {}
            }
        }
    }

    fn hear(&mut self, event: StreamEvent) -> Result<Option<u64>, ConnectionError> {
        match event {
            StreamEvent::Opened { dir: Dir::Uni } => {
                while let Some(stream) = self.quic.connection.streams().accept(Dir::Uni) {
                    self.oneway.push((stream, control::Reader::default()));
                    self.read_oneway(stream)?;
                }
            }
            StreamEvent::Readable { id } if id.dir() == Dir::Uni => self.read_oneway(id)?,
            StreamEvent::Readable { id } => self.reading = Some(id),
            StreamEvent::Writable { id } => self.write(id),
            StreamEvent::Stopped { id, .. } => {
                // The target wants no more of the request; its answer may come all the same.
                let _ = self.quic.connection.send_stream(id).reset(code(ErrorCode::NO_ERROR));
                if let Some(stream) = self.stream(id) {
                    stream.rest = Bytes::new();
                }
            }
            StreamEvent::Available { dir: Dir::Bi } => self.is_full = false,
            _ => {}
        }
        Ok(self.goaway.take())
    }

    /// Our control stream (RFC 9114 section 6.2.1).
    fn begin(&mut self) {
        let Some(stream) = self.quic.connection.streams().open(Dir::Uni) else { return };
        let mut bytes = Vec::new();
        write_control(&[(setting::MAX_FIELD_SECTION_SIZE, LIMITS.block as u64)], &mut bytes);
        // A dozen bytes at the beginning: there is room.
        let _ = self.quic.connection.send_stream(stream).write(&bytes);
    }

    fn read_oneway(&mut self, id: StreamId) -> Result<(), ConnectionError> {
        let Some((_, reader)) = self.oneway.iter_mut().find(|(stream, _)| *stream == id) else { return Ok(()) };
        let mut stream = self.quic.connection.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else { return Ok(()) };
        loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => {
                    reader.take(&chunk.bytes, &mut self.table)?;
                    self.goaway = reader.goaway.take().or(self.goaway);
                }
                Err(ReadError::Blocked) => return Ok(()),
                Ok(None) | Err(ReadError::Reset(_)) if reader.kind == Kind::Control => {
                    let text = "the target closed its control stream";
                    return Err(ConnectionError::new(ErrorCode::CLOSED_CRITICAL_STREAM, text));
                }
                Ok(None) | Err(ReadError::Reset(_)) => return Ok(()),
            }
        }
    }

    /// The next of a request's stream.
    fn read(&mut self, id: StreamId, fields: &mut HeaderBlock) -> Result<Event, ConnectionError> {
        let Ok(place) = self.place(id) else { return Ok(Event::More) };
        loop {
            let reader = &mut self.streams[place].reader;
            match reader.next(&self.chunk, &mut self.at, LIMITS, &self.table, fields)? {
                request::Event::More => {}
                request::Event::Head { .. } => return Ok(Event::Head(id)),
                request::Event::Data(span) => return Ok(Event::Data(id, self.chunk.slice(span.range()))),
                request::Event::Trailers { .. } => continue,
                request::Event::HeadTooLarge | request::Event::Blocked => {
                    return Err(ConnectionError::new(ErrorCode::EXCESSIVE_LOAD, "a head that is too large"));
                }
            }
            (self.chunk, self.at) = (Bytes::new(), 0);
            let mut stream = self.quic.connection.recv_stream(id);
            let Ok(mut chunks) = stream.read(true) else { return Ok(Event::More) };
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => self.chunk = chunk.bytes,
                Ok(None) => {
                    self.streams[place].reader.finish()?;
                    return Ok(Event::End(id));
                }
                Err(ReadError::Blocked) => return Ok(Event::More),
                Err(ReadError::Reset(why)) => {
                    return Ok(Event::Reset(id, ErrorCode(u32::try_from(why.into_inner()).unwrap_or(u32::MAX))));
                }
            }
        }
    }

    /// Opens a stream for a request. None: the target takes no more now.
    pub(crate) fn open(&mut self, exchange: Exchange, request: &Request) -> Option<()> {
        let id = self.quic.connection.streams().open(Dir::Bi);
        self.is_full = id.is_none();
        let (id, reader, rest) = (id?, request::Reader::default(), request.bytes.clone());
        self.streams.push(Stream { id, exchange, reader, rest });
        self.write(id);
        Some(())
    }

    pub(super) fn can_open(&self) -> bool {
        !self.is_full
    }

    pub(super) fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    /// Hands as much of a request to QUIC as it takes.
    fn write(&mut self, id: StreamId) {
        let Ok(place) = self.place(id) else { return };
        let stream = &mut self.streams[place];
        let mut send = self.quic.connection.send_stream(id);
        while !stream.rest.is_empty() {
            let mut piece = [std::mem::take(&mut stream.rest)];
            let written = send.write_chunks(&mut piece);
            [stream.rest] = piece;
            if written.is_err() {
                // Blocked: there will be room; stopped: an event says so.
                return;
            }
        }
        let _ = send.finish();
    }

    fn place(&self, id: StreamId) -> Result<usize, usize> {
        self.streams.binary_search_by_key(&id.index(), |stream| stream.id.index())
    }

    fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.place(id).ok().map(|place| &mut self.streams[place])
    }

    /// The head that came was of the 1xx kind.
    pub(crate) fn expect_head(&mut self, id: StreamId) {
        if let Some(stream) = self.stream(id) {
            stream.reader.expect_head();
        }
    }

    pub(super) fn cancel(&mut self, lane: u32) {
        if let Some(id) = self.streams.iter().find(|s| s.exchange.lane == lane).map(|s| s.id) {
            self.drop_stream(id);
        }
    }

    /// A stream is over; one that was not finished is cancelled.
    fn drop_stream(&mut self, id: StreamId) -> Option<Exchange> {
        let place = self.place(id).ok()?;
        let stream = self.streams.remove(place);
        if self.reading == Some(id) {
            (self.reading, self.chunk, self.at) = (None, Bytes::new(), 0);
        }
        // Both fail where that direction is finished already.
        let _ = self.quic.connection.recv_stream(id).stop(code(ErrorCode::REQUEST_CANCELLED));
        if !stream.rest.is_empty() {
            let _ = self.quic.connection.send_stream(id).reset(code(ErrorCode::REQUEST_CANCELLED));
        }
        Some(stream.exchange)
    }

    /// Says that the connection ends.
    pub(super) fn say_goodbye(&mut self, socket: &OwnedFd, thread: &mut QuicThread, now: u64) {
        let now = thread.clock.instant(now);
        self.quic.close(now, ErrorCode::NO_ERROR);
        let _ = self.quic.send(socket, now, &mut thread.rooms);
    }
}

fn code(code: ErrorCode) -> VarInt {
    VarInt::from_u32(code.0)
}

impl Client<'_> {
    /// A socket is connected: the handshake begins.
    pub(super) fn begin_http3(&mut self, id: u32) -> io::Result<()> {
        let target = self.dialer.target()?;
        let connection = &mut self.connections[id as usize];
        let (Some(tls), Some(thread), Some(socket)) = (&self.plan.tls, &self.streams.quic, &connection.socket) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let http3 = Http3::new(socket, tls, target, &thread.clock, self.now)?;
        connection.streams = Some(Way::Http3(Box::new(http3)).into());
        self.has_output(id);
        Ok(())
    }

    /// Datagrams have come.
    pub(super) fn read_http3(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        let (Some(Multiplex { way: Way::Http3(way), .. }), Some(socket), Some(thread)) =
            (&mut connection.streams, &connection.socket, &mut self.streams.quic)
        else {
            return;
        };
        self.now = super::now_ns();
        match way.quic.receive(socket, thread.clock.instant(self.now), &mut thread.rooms) {
            Ok(count) => {
                self.tally.sample.bytes_read += count as u64;
                self.second.bytes += count as u64;
                self.take_http3(id);
            }
            Err(error) if connection.stage.is_opening() => self.fail(id, Failure::of_connect(&error)),
            Err(error) => self.broken(id, Failure::of_read(&error)),
        }
    }

    /// Works on what the library has made of datagrams, and of time.
    fn take_http3(&mut self, id: u32) {
        let Some(mut streams) = self.connections[id as usize].streams.take() else { return };
        let Multiplex { way: Way::Http3(way), queue } = &mut streams else { return };
        let (mut outcome, mut is_new) = (Ok(()), None);
        while outcome.is_ok() {
            outcome = match way.next(&mut self.streams.fields) {
                Ok(Event::More) => break,
                Ok(Event::Connected) => {
                    is_new = Some(way.quic.is_resumed());
                    Ok(())
                }
                Ok(event) => self.hear_http3(way, queue, event),
                Err(error) => {
                    if let Some(thread) = &self.streams.quic {
                        way.quic.close(thread.clock.instant(self.now), error.code);
                    }
                    Err(Failure::Protocol)
                }
            };
        }
        self.connections[id as usize].streams = Some(streams);
        self.has_output(id);
        if let Some(is_resumed) = is_new {
            self.shaken(id, is_resumed);
        }
        match outcome {
            Ok(()) => self.settle(id),
            Err(Failure::Protocol) => self.fail(id, Failure::Protocol),
            Err(kind) => self.broken(id, kind),
        }
    }

    /// The handshake is over; TLS is part of it.
    fn shaken(&mut self, id: u32, is_resumed: bool) {
        let began = self.connections[id as usize].began;
        self.open += 1;
        let sample = &mut self.tally.sample;
        sample.connects += 1;
        sample.connect.record(self.now - began);
        sample.resumed += u64::from(is_resumed);
        self.established(id);
    }

    fn hear_http3(&mut self, way: &mut Http3, queue: &mut Queue, event: Event) -> Result<(), Failure> {
        match event {
            Event::Head(stream) => {
                let Some(exchange) = way.stream(stream).map(|s| &mut s.exchange) else { return Ok(()) };
                self.take_head(exchange)?;
                if exchange.status == 0 {
                    way.expect_head(stream);
                }
            }
            Event::Data(stream, piece) => {
                if let Some(stream) = way.stream(stream) {
                    self.keep_for_script(stream.exchange.lane, &piece);
                }
            }
            Event::End(stream) => {
                if let Some(exchange) = way.drop_stream(stream) {
                    self.end_answer(exchange);
                }
            }
            Event::Reset(stream, why) => {
                let Some(exchange) = way.drop_stream(stream) else { return Ok(()) };
                if why == ErrorCode::REQUEST_REJECTED {
                    // The target is about to go away, and has not looked at it (RFC 9114 section 4.1.1).
                    queue.is_closing = true;
                    self.park_again(queue, exchange.lane);
                } else {
                    self.lose_answer(exchange.lane, Failure::Reset);
                }
            }
            Event::Goaway(end) => {
                queue.is_closing = true;
                while let Some(stream) = way.streams.last().map(|s| s.id).filter(|id| id.index() * 4 >= end) {
                    let Some(exchange) = way.drop_stream(stream) else { break };
                    self.park_again(queue, exchange.lane);
                }
            }
            Event::Lost(kind) => return Err(kind),
            Event::Connected | Event::More => {}
        }
        Ok(())
    }

    /// Sends what there is to send, and notes when QUIC wants to be woken.
    pub(super) fn write_http3(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        let (Some(Multiplex { way: Way::Http3(way), .. }), Some(socket), Some(thread)) =
            (&mut connection.streams, &connection.socket, &mut self.streams.quic)
        else {
            return;
        };
        match way.quic.send(socket, thread.clock.instant(self.now), &mut thread.rooms) {
            Ok(count) => self.tally.sample.bytes_written += count as u64,
            Err(error) if connection.stage.is_opening() => return self.fail(id, Failure::of_connect(&error)),
            Err(error) => return self.broken(id, Failure::of_read(&error)),
        }
        if let Some(due) = way.quic.connection.poll_timeout().map(|due| thread.clock.ns(due))
            && due < way.alarm
        {
            way.alarm = due;
            thread.alarms.push(Reverse((due, id)));
        }
    }

    /// When QUIC wants to be woken next.
    pub(super) fn next_alarm(&self) -> u64 {
        let alarms = self.streams.quic.as_ref().and_then(|thread| thread.alarms.peek());
        alarms.map_or(u64::MAX, |Reverse((due, _))| *due)
    }

    /// Wakes the connections whose time has come.
    pub(super) fn ring_alarms(&mut self) {
        if self.next_alarm() == u64::MAX {
            return;
        }
        self.now = super::now_ns();
        while self.next_alarm() <= self.now
            && let Some(Reverse((due, id))) = self.streams.quic.as_mut().and_then(|thread| thread.alarms.pop())
        {
            let (Some(Multiplex { way: Way::Http3(way), .. }), Some(thread)) =
                (&mut self.connections[id as usize].streams, &self.streams.quic)
            else {
                continue;
            };
            // One of the connection that had this place before, or of a time that an earlier alarm has looked after.
            if way.alarm != due {
                continue;
            }
            way.alarm = u64::MAX;
            way.quic.connection.handle_timeout(thread.clock.instant(self.now));
            self.take_http3(id);
        }
    }
}
