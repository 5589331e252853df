//! What streams bring: heads become requests, bodies wait until somebody reads them, one-way streams are only checked.

use super::driver::Driver;
use super::{Http3Session, Http3Stream, MAX_BLOCKED, State, code};
use crate::connection::Downstream;
use crate::connection::fields::{self, Arrived, Refused};
use crate::connection::stream;
use crate::request::Version;
use crate::worker::counters;
use bytes::Bytes;
use quinn_proto::{Dir, ReadError, Side, StreamId};
use std::cell::RefCell;
use std::task::Context;
use wire::http2::hpack::decoder::Limits;
use wire::http2::hpack::{Field, HeaderBlock};
use wire::http3::control::{self, Kind};
use wire::http3::qpack;
use wire::http3::request::Event;
use wire::http3::{ConnectionError, ErrorCode};
use wire::priority::Priority;
use wire::span::Span;

/// The longest request line of HTTP/0.9.
const MAX_LINE: usize = 8 * 1024;
/// A head above `large_client_header_buffers`.
const TOO_LARGE: Refused = Refused { status: 494, text: "client sent too large header" };
/// No line of HTTP/0.9.
const NO_REQUEST: Refused = Refused { status: 400, text: "client sent invalid request" };

thread_local! {
    /// Room for the fields of one section.
    static FIELDS: RefCell<HeaderBlock> = RefCell::default();
}

/// What a read came to.
enum Got {
    Bytes(Bytes),
    Nothing,
    End,
    Reset,
}

/// How far a head has come.
enum Head {
    Pending,
    /// It took so many bytes.
    Whole(usize),
    TooLarge,
    /// The stream has ended before.
    Incomplete,
}

fn take_chunk(state: &mut State, id: StreamId) -> Got {
    let State { quic, flood, .. } = state;
    let mut stream = quic.recv_stream(id);
    let Ok(mut chunks) = stream.read(true) else { return Got::Reset };
    match chunks.next(usize::MAX) {
        Ok(Some(chunk)) => {
            // What the one-way streams bring is not weighed against the requests, only counted.
            if id.dir() == Dir::Bi {
                flood.bytes(chunk.bytes.len());
            }
            Got::Bytes(chunk.bytes)
        }
        Ok(None) => Got::End,
        Err(ReadError::Blocked) => Got::Nothing,
        Err(ReadError::Reset(_)) => Got::Reset,
    }
}

/// A request's stream by its number.
fn request_stream(number: u64) -> StreamId {
    StreamId::new(Side::Client, Dir::Bi, number / 4)
}

impl Driver {
    /// Streams that the client has opened.
    pub(super) fn accept_streams(&mut self, cx: &mut Context<'_>, dir: Dir) -> Result<(), ConnectionError> {
        loop {
            if dir == Dir::Bi && runtime::turn_is_spent() {
                self.held = true;
                return Ok(());
            }
            let Some(id) = self.session.state.borrow_mut().quic.streams().accept(dir) else { return Ok(()) };
            match dir {
                Dir::Uni => self.session.state.borrow_mut().oneway.push((id, control::Reader::default())),
                Dir::Bi => {
                    let mut state = self.session.state.borrow_mut();
                    if state.goaway.is_some_and(|end| id.index() * 4 >= end) {
                        let _ = state.quic.recv_stream(id).stop(code(ErrorCode::REQUEST_REJECTED));
                        let _ = state.quic.send_stream(id).reset(code(ErrorCode::REQUEST_REJECTED));
                        state.unread(id);
                        continue;
                    }
                    state.next = state.next.max(id.index() * 4 + 4);
                    state.streams.insert(id, super::StreamState::default());
                    // QUIC's numbers are the other way round: what nothing is said of has the rank of what is said to be so.
                    let early = state.ready.take_early(id).unwrap_or(Priority::UNSAID);
                    let _ = state.quic.send_stream(id).set_priority(super::rank(id, early));
                    if early != Priority::UNSAID {
                        state.prioritize(id, early);
                    }
                }
            }
            self.readable(cx, id)?;
        }
    }

    /// Bytes have come on a stream, or its end.
    pub(super) fn readable(&mut self, cx: &mut Context<'_>, id: StreamId) -> Result<(), ConnectionError> {
        if id.dir() == Dir::Uni {
            let before = self.session.state.borrow().table.inserted();
            let read = self.session.state.borrow_mut().read_oneway(id);
            if let Err(e) = read {
                // nginx says no more to the client.
                self.note(&wire::said_of("client", &e.text));
                self.close(e.code, "stream error");
                return Ok(());
            }
            return self.unblock(cx, before);
        }
        let owned = {
            let mut state = self.session.state.borrow_mut();
            let Some(s) = state.streams.get_mut(&id) else { return Ok(()) };
            s.wake();
            s.owned
        };
        match owned {
            true => return self.look_for_reset(id),
            false if self.session.hq.get() => self.read_line(cx, id),
            false => self.read_head(cx, id),
        }
        Ok(())
    }

    /// Entries have come: those who waited for them try again.
    fn unblock(&mut self, cx: &mut Context<'_>, before: u64) -> Result<(), ConnectionError> {
        let mut state = self.session.state.borrow_mut();
        let now = state.table.inserted();
        if now == before {
            return Ok(());
        }
        let news = now - std::mem::replace(&mut state.confirmed, now);
        qpack::increment(news, &mut state.decoder.output);
        let blocked = std::mem::take(&mut state.blocked);
        drop(state);
        blocked.into_iter().try_for_each(|id| self.readable(cx, id))
    }

    /// A client may give up a request whose body nobody reads.
    fn look_for_reset(&self, id: StreamId) -> Result<(), ConnectionError> {
        let mut state = self.session.state.borrow_mut();
        if let Ok(Some(_)) = state.quic.recv_stream(id).received_reset() {
            if let Some(s) = state.streams.get_mut(&id) {
                s.stopped = true;
            }
            state.unread(id);
            return state.cancel(id);
        }
        Ok(())
    }

    fn read_head(&mut self, cx: &mut Context<'_>, id: StreamId) {
        let mut fields = FIELDS.take();
        let head = self.session.state.borrow_mut().read_head(id, self.session.limits, &mut fields);
        match head {
            Ok(Head::Pending) => {}
            Ok(Head::Whole(len)) => self.open(cx, id, Version::HTTP30, len, Ok(&fields)),
            Ok(Head::TooLarge) => self.open(cx, id, Version::HTTP30, 0, Err(TOO_LARGE)),
            Ok(Head::Incomplete) => self.note("client prematurely closed stream"),
            Err(e) => self.fail(&e),
        }
        FIELDS.set(fields);
    }

    /// A request of HTTP/0.9: `GET /path`.
    fn read_line(&mut self, cx: &mut Context<'_>, id: StreamId) {
        loop {
            let mut state = self.session.state.borrow_mut();
            let got = take_chunk(&mut state, id);
            let Some(s) = state.streams.get_mut(&id) else { return };
            match got {
                Got::Nothing => return,
                Got::Reset => return state.drop_stream(id, ErrorCode::REQUEST_CANCELLED),
                Got::End => s.ended = true,
                Got::Bytes(bytes) => s.input.extend_from_slice(&bytes),
            }
            let end = memchr::memchr(b'\n', &s.input);
            if end.is_none() && !s.ended && s.input.len() <= MAX_LINE {
                continue;
            }
            let mut line = std::mem::take(&mut s.input);
            line.truncate(end.unwrap_or(line.len()));
            s.reader.skip();
            drop(state);
            let line = line.trim_ascii_end();
            let mut fields = HeaderBlock::default();
            let head = match line.strip_prefix(b"GET ") {
                Some(path) if !path.is_empty() && line.len() <= MAX_LINE => {
                    let pairs: [(&[u8], &[u8]); 4] =
                        [(b":method", b"GET"), (b":scheme", b"https"), (b":path", path), (b":authority", b"localhost")];
                    pairs.iter().for_each(|(name, value)| push(&mut fields, name, value));
                    Ok(&fields)
                }
                _ => Err(NO_REQUEST),
            };
            return self.open(cx, id, Version::HTTP09, line.len(), head);
        }
    }

    /// A request has come: it is worked on at once, and gets a task of its own if it has to wait.
    fn open(
        &mut self,
        cx: &mut Context<'_>,
        id: StreamId,
        version: Version,
        len: usize,
        block: Result<&HeaderBlock, Refused>,
    ) {
        self.shaken();
        counters::request();
        let end = {
            let mut state = self.session.state.borrow_mut();
            state.fill(id, 0, &self.session);
            let Some(s) = state.streams.get_mut(&id) else { return };
            s.owned = true;
            s.ended && s.input.is_empty()
        };
        let snapshot = crate::worker::snapshot_for(&self.client);
        let way = Downstream::Http3(Http3Stream { session: self.session.clone(), id });
        let arrived = Arrived { version, end, len, block };
        let (r, accepted) = fields::open(way, &self.client, snapshot.clone(), &arrived);
        self.limit_requests(&snapshot);
        // Among the idle it stands behind all others from now on.
        self.client.works();
        let mut work = Box::pin(stream::answer(r, accepted));
        if work.as_mut().poll(cx).is_pending() {
            runtime::spawn(work);
        }
    }
}

fn push(block: &mut HeaderBlock, name: &[u8], value: &[u8]) {
    let start = block.bytes.len();
    block.bytes.extend_from_slice(name);
    let middle = block.bytes.len();
    block.bytes.extend_from_slice(value);
    block.fields.push(Field { name: Span::new(start, middle), value: Span::new(middle, block.bytes.len()) });
}

impl State {
    /// What an event means for the connection: it was worth its bytes; a stream waits for the table, or its use is confirmed.
    fn noted(&mut self, id: StreamId, event: Result<Event, ConnectionError>) -> Result<Event, ConnectionError> {
        match event {
            Ok(Event::More) => self.idle()?,
            Ok(Event::Blocked) => {
                if let Some(s) = self.streams.get_mut(&id) {
                    s.blocked = true;
                }
                if !self.blocked.contains(&id) {
                    self.blocked.push(id);
                }
                if self.blocked.len() > MAX_BLOCKED {
                    let text = "client sent too many streams that wait for its table";
                    return Err(ConnectionError::new(ErrorCode::QPACK_DECOMPRESSION_FAILED, text));
                }
            }
            _ => {}
        }
        if let Ok(Event::Head { len, .. }) = event {
            self.flood.payload(len);
        }
        if let Ok(Event::Head { referring: true, .. } | Event::Trailers { referring: true }) = event {
            self.acknowledge(id);
        }
        event
    }

    /// Reads on in a request stream until its head is whole.
    fn read_head(&mut self, id: StreamId, limits: Limits, fields: &mut HeaderBlock) -> Result<Head, ConnectionError> {
        loop {
            let Some(s) = self.streams.get_mut(&id) else { return Ok(Head::Pending) };
            let again = std::mem::take(&mut s.blocked).then(|| std::mem::take(&mut s.rest));
            let bytes = match again.map_or_else(|| take_chunk(self, id), Got::Bytes) {
                Got::Bytes(bytes) => bytes,
                Got::Nothing => return Ok(Head::Pending),
                Got::Reset => {
                    let done = self.cancel(id);
                    self.drop_stream(id, ErrorCode::REQUEST_CANCELLED);
                    return done.map(|()| Head::Pending);
                }
                Got::End => {
                    let cut = self.streams.get(&id).map_or(Ok(()), |s| s.reader.finish());
                    self.drop_stream(id, ErrorCode::REQUEST_INCOMPLETE);
                    return cut.map(|()| Head::Incomplete);
                }
            };
            let Some(s) = self.streams.get_mut(&id) else { return Ok(Head::Pending) };
            let mut at = 0;
            let event = s.reader.next(&bytes, &mut at, limits, &self.table, fields);
            s.rest = bytes.slice(at..);
            match self.noted(id, event)? {
                Event::Head { len, .. } => return Ok(Head::Whole(len)),
                Event::HeadTooLarge => {
                    self.unread(id);
                    return Ok(Head::TooLarge);
                }
                Event::Blocked => return Ok(Head::Pending),
                Event::More | Event::Data(_) | Event::Trailers { .. } => {}
            }
        }
    }

    /// Gives up streams whose heads took too long. False: there are none.
    pub(super) fn abandon_heads(&mut self) -> bool {
        let ids: Vec<_> = self.streams.iter().filter(|(_, s)| !s.owned).map(|(id, _)| *id).collect();
        for id in &ids {
            let _ = self.quic.recv_stream(*id).stop(code(ErrorCode::REQUEST_REJECTED));
            self.drop_stream(*id, ErrorCode::REQUEST_REJECTED);
        }
        !ids.is_empty()
    }

    /// Forgets a stream that no request works on.
    fn drop_stream(&mut self, id: StreamId, why: ErrorCode) {
        self.unread(id);
        self.streams.remove(&id);
        let _ = self.quic.send_stream(id).reset(code(why));
    }

    fn read_oneway(&mut self, id: StreamId) -> Result<(), ConnectionError> {
        let Some(place) = self.oneway.iter().position(|(known, _)| *known == id) else { return Ok(()) };
        loop {
            let got = take_chunk(self, id);
            let kind = self.oneway[place].1.kind;
            match got {
                Got::Nothing => return Ok(()),
                Got::Bytes(bytes) => {
                    self.idle()?;
                    let known = self.oneway[place].1.take(&bytes, &mut self.table)?;
                    for (id, priority) in std::mem::take(&mut self.oneway[place].1.priorities) {
                        self.prioritize(request_stream(id), priority);
                    }
                    if known {
                        let kind = self.oneway[place].1.kind;
                        let same = self.oneway.iter().filter(|(_, r)| r.kind == kind).count();
                        if same > 1 && kind != Kind::Ignored {
                            let text = "client opened a second stream of a kind";
                            return Err(ConnectionError::new(ErrorCode::STREAM_CREATION_ERROR, text));
                        }
                    }
                }
                Got::End | Got::Reset if matches!(kind, Kind::Unknown | Kind::Ignored) => {
                    self.oneway.swap_remove(place);
                    return Ok(());
                }
                Got::End | Got::Reset => {
                    let text = "client closed a stream that the connection needs";
                    return Err(ConnectionError::new(ErrorCode::CLOSED_CRITICAL_STREAM, text));
                }
            }
        }
    }

    /// Takes body from QUIC until `window` bytes lie here, or at least one piece. True: the client may be told to send more.
    pub(super) fn fill(&mut self, id: StreamId, window: usize, session: &Http3Session) -> bool {
        let mut fields = FIELDS.take();
        let mut read = false;
        let mut broken = None;
        while let Some(s) = self.streams.get_mut(&id) {
            if s.ended || s.stopped || s.reset {
                break;
            }
            if s.rest.is_empty() && !s.blocked {
                if !s.input.is_empty() && s.input.len() >= window {
                    break;
                }
                let got = take_chunk(self, id);
                let Some(s) = self.streams.get_mut(&id) else { break };
                match got {
                    Got::Nothing => break,
                    Got::Bytes(bytes) => (s.rest, read) = (bytes, true),
                    Got::End => {
                        s.ended = true;
                        broken = s.reader.finish().err();
                        break;
                    }
                    Got::Reset => {
                        s.stopped = true;
                        self.unread(id);
                        broken = self.cancel(id).err();
                        break;
                    }
                }
                continue;
            }
            let rest = std::mem::take(&mut s.rest);
            let mut at = 0;
            s.blocked = false;
            let event = s.reader.next(&rest, &mut at, session.limits, &self.table, &mut fields);
            s.rest = rest.slice(at..);
            match event {
                Ok(Event::Data(span)) => {
                    s.input.extend_from_slice(span.of(&rest));
                    self.flood.payload(span.of(&rest).len());
                }
                // Nobody has a use for trailers, but they have to be some.
                other => match self.noted(id, other) {
                    Ok(Event::Blocked) => break,
                    Ok(Event::Trailers { .. }) => {
                        if let Some(text) = fields::trailers_fault(&fields) {
                            session.note.set(Some(text));
                            broken = self.refuse_trailers(id).err();
                            break;
                        }
                    }
                    Ok(Event::HeadTooLarge) => self.unread(id),
                    Ok(_) => {}
                    Err(e) => {
                        broken = Some(e);
                        break;
                    }
                },
            }
        }
        FIELDS.set(fields);
        if let Some(e) = broken {
            session.broken(e);
            if let Some(s) = self.streams.get_mut(&id) {
                s.give_up();
            }
        }
        read
    }
}

impl State {
    /// A request whose trailers are malformed ends (RFC 9114 section 4.1.2).
    fn refuse_trailers(&mut self, id: StreamId) -> Result<(), ConnectionError> {
        let _ = self.quic.recv_stream(id).stop(code(ErrorCode::MESSAGE_ERROR));
        let _ = self.quic.send_stream(id).reset(code(ErrorCode::MESSAGE_ERROR));
        if let Some(s) = self.streams.get_mut(&id) {
            s.stopped = true;
            s.failed = Some(ErrorCode::MESSAGE_ERROR);
        }
        self.unread(id);
        self.cancel(id)
    }
}

impl Http3Session {
    /// The client broke the protocol while a request looked at its stream: the driver ends the connection.
    fn broken(&self, error: ConnectionError) {
        self.error.borrow_mut().get_or_insert(error);
    }
}
