//! What a thread does with its HTTP/3 connections: datagrams, QUIC's alarms, and what the protocol makes of both. The same for
//! connections that are streams of bytes: `turn`.

use super::http3::{Event, Http3};
use super::streams::{Multiplex, Queue, Way};
use super::{Client, now_ns};
use crate::sample::Failure;
use std::cmp::Reverse;
use std::io;
use wire::http3::ErrorCode;

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
        self.now = now_ns();
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
                while let Some(exchange) = way.newest_from(end).and_then(|stream| way.drop_stream(stream)) {
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
        self.now = now_ns();
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
