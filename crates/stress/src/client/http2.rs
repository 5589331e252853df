//! HTTP/2 on a connection. Frames are `wire::http2`'s; what it has in common with HTTP/3 is in `streams`. What a turn has to
//! say on a connection leaves in one write.

use super::Client;
use super::streams::{Exchange, LIMITS, Multiplex, Queue, Way};
use crate::plan::Http;
use crate::plan::request::Request;
use crate::sample::Failure;
use bytes::Bytes;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::convert::Infallible;
use wire::http2::connection::{Config, Connection, Event, Role};
use wire::http2::{ErrorCode, MAX_WINDOW};

/// More of request bodies is not put into a connection's output before some of it is out.
const OUTPUT: usize = 256 * 1024;
/// The last number that a stream of ours may have: after it the connection is replaced.
const LAST_STREAM: u32 = MAX_WINDOW - 2;

/// The HTTP/2 of one connection.
pub(crate) struct Http2 {
    pub wire: Connection<Exchange>,
    /// The beginning of a frame that is not complete.
    rest: Vec<u8>,
    /// Streams whose request's body is not out.
    unsent: Vec<(u32, Bytes)>,
    /// The target's settings have come.
    has_settings: bool,
}

/// The settings of a client that reads whatever comes: no window of its own limits the target.
pub(crate) fn config() -> Config {
    Config { role: Role::Client, max_streams: 0, stream_window: MAX_WINDOW, headers: LIMITS, extended_connect: false }
}

impl Http2 {
    fn new() -> Http2 {
        Http2 { wire: Connection::new(config()), rest: Vec::new(), unsent: Vec::new(), has_settings: false }
    }

    pub(super) fn open(&mut self, exchange: Exchange, request: &Request, queue: &mut Queue) -> Option<()> {
        let stream = self.wire.open(Exchange { is_early: !self.has_settings, ..exchange })?;
        queue.is_closing |= stream >= LAST_STREAM;
        self.wire.open_widely(stream);
        let has_body = !request.bytes.is_empty();
        self.wire.send_head(stream, !has_body, |encoder, out| {
            request.fields.iter().for_each(|(name, value)| encoder.field(name, value, out));
        });
        if has_body {
            self.unsent.push((stream, request.bytes.clone()));
        }
        Some(())
    }

    pub(super) fn cancel(&mut self, lane: u32) {
        if let Some(stream) = self.wire.streams().iter().find(|s| s.data.lane == lane).map(|s| s.id) {
            self.drop_stream(stream);
        }
    }

    /// A stream is over; one that was not finished is cancelled.
    fn drop_stream(&mut self, stream: u32) -> Option<Exchange> {
        self.unsent.retain(|(unsent, _)| *unsent != stream);
        self.wire.release(stream, ErrorCode::CANCEL)
    }

    /// Puts request bodies into the output, as far as windows and its bound allow.
    fn add_bodies(&mut self) {
        let wire = &mut self.wire;
        self.unsent.retain(|(stream, body)| {
            let Some(Exchange { mut body_sent, .. }) = wire.stream(*stream).map(|s| s.data) else { return false };
            send_body(wire, *stream, body, &mut body_sent);
            if let Some(s) = wire.stream(*stream) {
                s.data.body_sent = body_sent;
            }
            body_sent < body.len()
        });
    }
}

impl Client<'_> {
    /// A connection stands. False: not for HTTP/2, and it has failed.
    pub(super) fn begin_http2(&mut self, id: u32) -> bool {
        let connection = &mut self.connections[id as usize];
        if connection.tls.as_ref().is_some_and(|tls| !tls.agreed_on(Http::Two)) {
            self.fail(id, Failure::Protocol);
            return false;
        }
        connection.streams = Some(Way::Http2(Box::new(Http2::new())).into());
        self.has_output(id);
        true
    }

    /// Writes what there is to write.
    pub(super) fn write_http2(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        let (Some(Multiplex { way: Way::Http2(way), .. }), Some(socket)) =
            (&mut connection.streams, &connection.socket)
        else {
            return;
        };
        loop {
            way.add_bodies();
            let output = way.wire.output();
            if output.is_empty() {
                break;
            }
            if let Some(session) = &mut connection.tls {
                let written = output.len();
                if session.write(output).is_err() {
                    return self.fail(id, Failure::Tls);
                }
                way.wire.advance(written);
                continue;
            }
            match send(socket, output, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    self.tally.sample.bytes_written += sent as u64;
                    way.wire.advance(sent);
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
        let Some(mut streams) = self.connections[id as usize].streams.take() else { return };
        let Multiplex { way: Way::Http2(way), queue } = &mut streams else { return };
        let mut rest = std::mem::take(&mut way.rest);
        let is_joined = !rest.is_empty();
        if is_joined {
            rest.extend_from_slice(bytes);
        }
        // The settings are the first that a target says (RFC 9113 section 3.4).
        way.has_settings = true;
        let (mut at, mut outcome) = (0, Ok(()));
        let input = if is_joined { &rest[..] } else { bytes };
        while outcome.is_ok() {
            match way.wire.next(input, &mut at, &mut self.streams.fields) {
                Ok(Event::More) => break,
                Ok(event) => outcome = self.hear_http2(way, queue, event, input),
                Err(error) => {
                    way.wire.goaway(error.code);
                    outcome = Err(Failure::Protocol);
                }
            }
        }
        if is_joined {
            rest.drain(..at);
        } else {
            rest.extend_from_slice(&bytes[at..]);
        }
        way.rest = rest;
        self.connections[id as usize].streams = Some(streams);
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

    fn hear_http2(&mut self, way: &mut Http2, queue: &mut Queue, event: Event, input: &[u8]) -> Result<(), Failure> {
        match event {
            Event::Head { stream, end, .. } => {
                let Some(exchange) = way.wire.stream(stream).map(|s| &mut s.data) else { return Ok(()) };
                self.take_head(exchange)?;
                if end {
                    self.end_http2(way, stream);
                }
            }
            Event::Trailers { stream } => self.end_http2(way, stream),
            Event::Data { stream, span, end, .. } => {
                if let Some(lane) = way.wire.stream(stream).map(|s| s.data.lane) {
                    self.keep_for_script(lane, span.of(input));
                }
                if end {
                    self.end_http2(way, stream);
                }
            }
            Event::Reset { stream, code, .. } => {
                let Some(exchange) = way.drop_stream(stream) else { return Ok(()) };
                if exchange.is_early && code == ErrorCode::REFUSED_STREAM {
                    self.park_again(queue, exchange.lane);
                } else {
                    self.lose_answer(exchange.lane, Failure::Reset);
                }
            }
            Event::Goaway { last, .. } => {
                queue.is_closing = true;
                // What the target has not looked at goes out again, on the next connection.
                while let Some(stream) = way.wire.streams().last().map(|s| s.id).filter(|&id| id > last) {
                    let Some(exchange) = way.drop_stream(stream) else { break };
                    self.park_again(queue, exchange.lane);
                }
            }
            Event::Window { .. } | Event::Refused | Event::Priority { .. } | Event::More => {}
        }
        Ok(())
    }

    fn end_http2(&mut self, way: &mut Http2, stream: u32) {
        if let Some(exchange) = way.drop_stream(stream) {
            self.end_answer(exchange);
        }
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
