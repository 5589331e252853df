//! What streams bring: answers, which become text for their requests, and the peer's one-way streams, which are only checked.

use super::{HEADERS, STREAM_WINDOW, State, code};
use crate::upstream::http2::head;
use crate::upstream::streams::Trouble;
use bytes::Bytes;
use quinn_proto::{ReadError, StreamId};
use std::cell::RefCell;
use wire::http2::hpack::HeaderBlock;
use wire::http3::control::{self, Kind};
use wire::http3::request;
use wire::http3::request::Event;
use wire::http3::{ConnectionError, ErrorCode};

thread_local! {
    /// Room for the fields of one section.
    static FIELDS: RefCell<HeaderBlock> = RefCell::default();
}

/// What a read came to.
enum Got {
    Bytes(Bytes),
    Nothing,
    End,
    Reset(u64),
}

/// Why reading of a stream stops.
enum Stop {
    /// The stream is of no use.
    Stream(Trouble),
    /// Nor is the connection.
    Connection(ConnectionError),
}

impl From<ConnectionError> for Stop {
    fn from(error: ConnectionError) -> Stop {
        Stop::Connection(error)
    }
}

fn invalid(text: impl Into<std::rc::Rc<str>>) -> Stop {
    Stop::Stream(Trouble::Invalid(text.into()))
}

/// RESET_STREAM
fn rejected(number: u64) -> Stop {
    let text = format!("upstream rejected request with error {number}").into();
    let refused = number == u64::from(ErrorCode::REQUEST_REJECTED.0);
    Stop::Stream(if refused { Trouble::Refused(text) } else { Trouble::Invalid(text) })
}

impl State {
    fn take_chunk(&mut self, id: StreamId) -> Got {
        let mut stream = self.quic.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else { return Got::End };
        match chunks.next(STREAM_WINDOW) {
            Ok(Some(chunk)) => Got::Bytes(chunk.bytes),
            Ok(None) => Got::End,
            Err(ReadError::Blocked) => Got::Nothing,
            Err(ReadError::Reset(code)) => Got::Reset(code.into_inner()),
        }
    }

    /// Reads on in an answer, as far as there is room for it. What the peer has done wrong to the connection is kept for the driver.
    pub(super) fn read_answer(&mut self, id: StreamId) {
        let mut fields = FIELDS.take();
        let read = self.try_read_answer(id, &mut fields);
        FIELDS.set(fields);
        match read {
            Ok(()) => {}
            Err(Stop::Stream(trouble)) => {
                let _ = self.quic.recv_stream(id).stop(code(ErrorCode::MESSAGE_ERROR));
                if let Some(s) = self.streams.get_mut(&id) {
                    s.answer.fail(trouble);
                }
            }
            Err(Stop::Connection(error)) => self.fail(&error),
        }
    }

    fn try_read_answer(&mut self, id: StreamId, fields: &mut HeaderBlock) -> Result<(), Stop> {
        loop {
            let Some(s) = self.streams.get_mut(&id) else { return Ok(()) };
            if s.answer.complete || s.answer.trouble.is_some() || s.answer.input.len() >= STREAM_WINDOW {
                return Ok(());
            }
            if s.rest.is_empty() {
                match self.take_chunk(id) {
                    Got::Nothing => return Ok(()),
                    Got::Bytes(bytes) => {
                        if let Some(s) = self.streams.get_mut(&id) {
                            (s.rest, s.answer.heard) = (bytes, true);
                        }
                    }
                    Got::Reset(number) => return Err(rejected(number)),
                    Got::End => return self.answer_ended(id),
                }
                continue;
            }
            let rest = std::mem::take(&mut s.rest);
            let mut at = 0;
            let event = s.reader.next(&rest, &mut at, HEADERS, &self.table, fields);
            s.rest = rest.slice(at..);
            match event? {
                Event::More => {}
                Event::Data(span) => {
                    s.answer.take_body(span.of(&rest), false).map_err(invalid)?;
                }
                Event::Head { .. } => self.take_head(id, fields)?,
                Event::Trailers { .. } => {
                    s.answer.trailers = head::trailers(fields).map_err(invalid)?;
                }
                Event::HeadTooLarge => return Err(invalid("upstream sent too large header")),
                Event::Blocked => {
                    let text = "upstream sent a header that needs a table which was not offered";
                    let error = ConnectionError::new(ErrorCode::QPACK_DECOMPRESSION_FAILED, text);
                    return Err(Stop::Connection(error));
                }
            }
        }
    }

    /// A head has come. Whether anything follows it is looked up at once: without, a length of 0 is as good as said.
    fn take_head(&mut self, id: StreamId, fields: &HeaderBlock) -> Result<(), Stop> {
        let ends = match self.streams.get(&id) {
            Some(s) if s.rest.is_empty() => match self.take_chunk(id) {
                Got::End => true,
                Got::Bytes(bytes) => {
                    if let Some(s) = self.streams.get_mut(&id) {
                        s.rest = bytes;
                    }
                    false
                }
                Got::Nothing => false,
                Got::Reset(number) => return Err(rejected(number)),
            },
            _ => false,
        };
        let Some(s) = self.streams.get_mut(&id) else { return Ok(()) };
        if s.answer.take_head(fields, ends).map_err(invalid)?.is_interim() {
            // The answer's own head comes next.
            s.reader = request::Reader::default();
        }
        Ok(())
    }

    fn answer_ended(&mut self, id: StreamId) -> Result<(), Stop> {
        let Some(s) = self.streams.get_mut(&id) else { return Ok(()) };
        s.reader.finish()?;
        if !s.answer.head_seen {
            return Err(Stop::Stream(Trouble::Lost("upstream prematurely closed stream".into())));
        }
        s.answer.complete = true;
        s.answer.wake();
        Ok(())
    }

    /// Streams that the peer has opened: one-way ones, others it may not.
    pub(super) fn accept_oneway(&mut self) {
        while let Some(id) = self.quic.streams().accept(quinn_proto::Dir::Uni) {
            self.oneway.push((id, control::Reader::default()));
            self.read_oneway(id);
        }
    }

    /// Reads on in one of them.
    pub(super) fn read_oneway(&mut self, id: StreamId) {
        if let Err(error) = self.try_read_oneway(id) {
            self.fail(&error);
        }
    }

    fn try_read_oneway(&mut self, id: StreamId) -> Result<(), ConnectionError> {
        let Some(place) = self.oneway.iter().position(|(known, _)| *known == id) else { return Ok(()) };
        loop {
            match self.take_chunk(id) {
                Got::Nothing => return Ok(()),
                Got::Bytes(bytes) => {
                    let known = self.oneway[place].1.take(&bytes, &mut self.table)?;
                    let kind = self.oneway[place].1.kind;
                    let same = self.oneway.iter().filter(|(_, reader)| reader.kind == kind).count();
                    if known && same > 1 && kind != Kind::Ignored {
                        let text = "upstream opened a second stream of a kind";
                        return Err(ConnectionError::new(ErrorCode::STREAM_CREATION_ERROR, text));
                    }
                    if let Some(first) = self.oneway[place].1.goaway {
                        self.go_away(first);
                    }
                }
                Got::End | Got::Reset(_) if matches!(self.oneway[place].1.kind, Kind::Unknown | Kind::Ignored) => {
                    self.oneway.swap_remove(place);
                    return Ok(());
                }
                Got::End | Got::Reset(_) => {
                    let text = "upstream closed a stream that the connection needs";
                    return Err(ConnectionError::new(ErrorCode::CLOSED_CRITICAL_STREAM, text));
                }
            }
        }
    }

    /// Requests on streams from this number on have not been worked on and will not be.
    fn go_away(&mut self, first: u64) {
        self.leaving = true;
        for (id, s) in &mut self.streams {
            if id.index() * 4 >= first && !s.answer.complete {
                s.answer.fail(Trouble::Refused("upstream sent goaway".into()));
            }
        }
    }

    /// The peer broke the protocol: the connection ends.
    fn fail(&mut self, error: &ConnectionError) {
        let text = wire::said_of("upstream", &error.text);
        if self.streams.is_empty() {
            self.unsaid.get_or_insert_with(|| text.as_ref().into());
        }
        let reason = Bytes::copy_from_slice(text.as_bytes());
        self.quic.close(std::time::Instant::now(), code(error.code), reason);
        self.end_all(&Trouble::Invalid(text.as_ref().into()));
    }
}
