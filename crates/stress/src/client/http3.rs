//! HTTP/3 on a QUIC connection. Frames are `wire::http3`'s, the transport is `quic`; what it has in common with HTTP/2 is in
//! `streams`, what a turn does with it in `datagrams`. A request's stream is finished bytes, of QPACK's static table alone; the target
//! is allowed no other for its answers.

use super::quic::{self, Clock, Quic};
use super::streams::{Exchange, LIMITS, QuicThread};
use crate::plan::request::Request;
use crate::plan::tls::Tls;
use crate::sample::Failure;
use bytes::Bytes;
use quinn_proto::{Dir, ReadError, StreamEvent, StreamId, VarInt};
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
    pub(super) alarm: u64,
}

pub(super) struct Stream {
    id: StreamId,
    pub exchange: Exchange,
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
        let Some(place) = self.oneway.iter().position(|(stream, _)| *stream == id) else { return Ok(()) };
        let reader = &mut self.oneway[place].1;
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
                Ok(None) | Err(ReadError::Reset(_)) => break,
            }
        }
        self.oneway.swap_remove(place);
        Ok(())
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

    pub(super) fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
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
    pub(super) fn drop_stream(&mut self, id: StreamId) -> Option<Exchange> {
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

    /// The newest stream, if its number is `end` or above.
    pub(super) fn newest_from(&self, end: u64) -> Option<StreamId> {
        self.streams.last().map(|s| s.id).filter(|id| id.index() * 4 >= end)
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
