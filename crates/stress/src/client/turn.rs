//! What a thread does with its connections: opening, TLS, reading, and their end. What goes over them: `http1`, `http2`,
//! `http3`.

use super::connection::Stage;
use super::streams::{Multiplex, Way};
use super::tls::TlsSession;
use super::{Client, now_ns};
use crate::options::Closing;
use crate::plan::Http;
use crate::sample::Failure;
use crate::system::{HUNG_UP, READABLE, WRITABLE};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv, sockopt};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Of so many closed connections one is asked for its retransmits.
const ASKED: u64 = 32;
/// Looks at what has come before requests leave: a write costs many times what a look does.
const GATHER: usize = 8;

impl Client<'_> {
    /// Waits once and handles what happened.
    pub(super) fn events(&mut self, wait_ns: u64) {
        self.look(wait_ns.min(self.next_alarm().saturating_sub(self.now)));
        // With many requests on a connection: what has come meanwhile first, so that more of them leave in a write. A schedule
        // is kept to the microsecond instead.
        let looks = if self.plan.streams > 1 && !self.pace.is_open() { GATHER } else { 0 };
        for _ in 0..looks {
            if !self.streams.has_marked() || self.look(0) == 0 {
                break;
            }
        }
        self.ring_alarms();
        // After all of them: the target gets its requests in fewer pieces, and answers in fewer.
        self.flush_streams();
    }

    /// Waits once and handles what happened; how much it was.
    fn look(&mut self, wait_ns: u64) -> usize {
        let count = self.epoll.wait(wait_ns);
        for index in 0..count {
            let (data, flags) = self.epoll.event(index);
            let (id, generation) = (data as u32, (data >> 32) as u32);
            if self.connections[id as usize].generation == generation {
                self.event(id, flags);
                if self.pace.wake_at() <= self.now {
                    self.send_due();
                }
            }
        }
        count
    }

    fn event(&mut self, id: u32, flags: u32) {
        match self.connections[id as usize].stage {
            Stage::Down => {}
            _ if self.plan.http == Http::Three => {
                if flags & WRITABLE != 0 {
                    self.has_output(id);
                }
                if flags & (READABLE | HUNG_UP) != 0 {
                    self.read_http3(id);
                }
            }
            Stage::Connecting => {
                if flags & (WRITABLE | HUNG_UP) != 0 {
                    self.connected(id);
                }
            }
            Stage::Writing if flags & HUNG_UP == 0 => {
                if flags & WRITABLE != 0 {
                    self.write(id);
                }
                if flags & READABLE != 0 {
                    self.read(id, flags);
                }
            }
            _ => {
                if flags & WRITABLE != 0 && self.connections[id as usize].tls.is_some() {
                    self.flush(id);
                }
                if flags & WRITABLE != 0 && self.plan.http == Http::Two {
                    self.has_output(id);
                }
                if flags & (READABLE | HUNG_UP) != 0 {
                    self.read(id, flags);
                }
            }
        }
    }

    /// Opens a connection; its requests, if it has any, follow when it stands.
    pub(super) fn dial(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        connection.generation = connection.generation.wrapping_add(1);
        connection.began = self.now;
        if let Err(error) = self.open_socket(id) {
            self.fail(id, Failure::of_connect(&error));
        }
    }

    fn open_socket(&mut self, id: u32) -> io::Result<()> {
        let socket = self.dialer.dial()?;
        let connection = &mut self.connections[id as usize];
        self.epoll.add(socket.as_raw_fd(), u64::from(id) | u64::from(connection.generation) << 32)?;
        connection.socket = Some(socket);
        connection.stage = Stage::Connecting;
        if self.plan.http == Http::Three { self.begin_http3(id) } else { Ok(()) }
    }

    /// `connect` came to an end, one way or the other.
    fn connected(&mut self, id: u32) {
        let Some(socket) = &self.connections[id as usize].socket else { return };
        let outcome = match sockopt::socket_error(socket) {
            Ok(Ok(())) => self.dialer.introduce(socket),
            Ok(Err(error)) | Err(error) => Err(error.into()),
        };
        self.now = now_ns();
        if let Err(error) = outcome {
            return self.fail(id, Failure::of_connect(&error));
        }
        self.open += 1;
        let connection = &mut self.connections[id as usize];
        self.tally.sample.connects += 1;
        self.tally.sample.connect.record(self.now - connection.began);
        match &self.plan.tls {
            None => self.established(id),
            Some(tls) => match TlsSession::new(tls) {
                Ok(session) => {
                    connection.tls = Some(Box::new(session));
                    connection.stage = Stage::Handshaking;
                    connection.began = self.now;
                    self.flush(id);
                }
                Err(_) => self.fail(id, Failure::Tls),
            },
        }
    }

    /// Sends what the TLS session has to send.
    pub(super) fn flush(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        if let (Some(session), Some(socket)) = (&mut connection.tls, &connection.socket) {
            match session.flush(socket) {
                Ok(sent) => self.tally.sample.bytes_written += sent as u64,
                Err(error) => self.broken(id, Failure::of_read(&error)),
            }
        }
    }

    /// Bytes of a TLS connection: of the handshake, or of answers.
    fn take_tls(&mut self, id: u32, mut bytes: &[u8]) {
        let mut plain = std::mem::take(&mut self.plain);
        let generation = self.connections[id as usize].generation;
        while self.connections[id as usize].generation == generation {
            let connection = &mut self.connections[id as usize];
            let Some(session) = &mut connection.tls else { break };
            let Ok(taken) = session.take(bytes) else {
                // What rustls has to say about it is an alert: it goes out before the end.
                self.flush(id);
                if self.connections[id as usize].generation == generation {
                    self.fail(id, Failure::Tls);
                }
                break;
            };
            bytes = &bytes[taken..];
            if connection.stage == Stage::Handshaking && !session.is_handshaking() {
                self.tally.sample.tls.record(self.now - connection.began);
                self.tally.sample.resumed += u64::from(session.is_resumed());
                self.established(id);
                continue;
            }
            let count = session.read(&mut plain);
            if count > 0 {
                self.take(id, &plain[..count]);
            } else if taken == 0 {
                self.flush(id);
                break;
            }
        }
        self.plain = plain;
    }

    fn read(&mut self, id: u32, flags: u32) {
        let mut buffer = std::mem::take(&mut self.buffer);
        while let Some(socket) = &self.connections[id as usize].socket {
            let outcome = recv(socket, &mut buffer[..], RecvFlags::empty());
            self.now = now_ns();
            match outcome {
                Ok((0, _)) => {
                    self.ended(id);
                    break;
                }
                Ok((count, _)) => {
                    self.connections[id as usize].is_ending |= flags & HUNG_UP != 0;
                    let generation = self.connections[id as usize].generation;
                    self.tally.sample.bytes_read += count as u64;
                    self.second.bytes += count as u64;
                    match self.plan.tls {
                        None => self.take(id, &buffer[..count]),
                        Some(_) => self.take_tls(id, &buffer[..count]),
                    }
                    // A short read has emptied the socket, but the end of the connection is still to be read.
                    let is_replaced = self.connections[id as usize].generation != generation;
                    if is_replaced || (count < buffer.len() && flags & HUNG_UP == 0) {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => {
                    self.broken(id, Failure::of_read(&io::Error::from(error)));
                    break;
                }
            }
        }
        self.buffer = buffer;
    }

    /// Bytes of answers.
    fn take(&mut self, id: u32, bytes: &[u8]) {
        match self.plan.http {
            Http::One => self.take_http1(id, bytes),
            Http::Two => self.take_http2(id, bytes),
            // Its bytes are datagrams: they do not come here.
            Http::Three => {}
        }
    }

    /// The target has closed.
    fn ended(&mut self, id: u32) {
        let connection = &self.connections[id as usize];
        let ends_answer = self.plan.http == Http::One && connection.answer.ends_with_connection();
        if ends_answer && self.lanes[id as usize].has_request {
            self.complete(id);
        }
        self.broken(id, Failure::Closed);
    }

    /// The connection is gone: with its requests, or between two.
    pub(super) fn broken(&mut self, id: u32, kind: Failure) {
        let is_opening = self.connections[id as usize].stage.is_opening();
        let mut lanes = self.lanes_of(id).map(|lane| &self.lanes[lane as usize]);
        if lanes.any(|l| l.has_request && (l.is_sent || is_opening)) {
            return self.fail(id, kind);
        }
        if self.plan.close.is_none() && self.connections[id as usize].answer.facts.is_none_or(|f| f.keeps) {
            self.tally.sample.reconnects += 1;
        }
        self.close(id, None);
        // A free lane of the open loop stays in its list, and its connection is dialled when it is needed.
        self.free_lanes(id, false);
    }

    /// A connection failed, with the requests that it carried; before it stands, with all it was to carry.
    pub(super) fn fail(&mut self, id: u32, kind: Failure) {
        let stage = self.connections[id as usize].stage;
        let never_stood = stage.is_opening() || stage == Stage::Down;
        let mut failed = 0;
        for lane in self.lanes_of(id) {
            let l = &self.lanes[lane as usize];
            if l.has_request && (l.is_sent || never_stood) {
                failed += 1;
                self.fail_request(lane, kind);
            }
        }
        if failed == 0 {
            self.tally.fail(kind);
            self.second.errors += 1;
        }
        self.close(id, Some(Closing::Client));
        // What could not connect is not tried again at once: that would only burn CPU.
        self.free_lanes(id, never_stood);
    }

    pub(super) fn close(&mut self, id: u32, how: Option<Closing>) {
        let connection = &mut self.connections[id as usize];
        let Some(socket) = connection.socket.take() else { return };
        if !matches!(connection.stage, Stage::Connecting | Stage::Down) {
            self.open -= 1;
        }
        if let Some(mut session) = connection.tls.take().filter(|_| how != Some(Closing::Reset)) {
            session.say_goodbye();
            let _ = session.flush(&socket);
        }
        if let Some(Multiplex { way: Way::Http3(mut way), .. }) = connection.streams.take() {
            self.tally.sample.retransmits += way.quic.lost();
            if let Some(thread) = &mut self.streams.quic {
                way.say_goodbye(&socket, thread, self.now);
            }
        }
        connection.is_ending = false;
        connection.stage = Stage::Down;
        connection.generation = connection.generation.wrapping_add(1);
        // Asking the kernel costs a call: every so many connections.
        self.closed += 1;
        if self.closed.is_multiple_of(ASKED) {
            let facts = machine::system::tcp_facts(&socket);
            self.tally.sample.retransmits += facts.map_or(0, |f| u64::from(f.retransmits) * ASKED);
        }
        if how == Some(Closing::Reset) {
            let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
        }
    }

    /// What the kernel had to send again on the connections that are left.
    pub(super) fn count_retransmits(&mut self) {
        let sockets = self.connections.iter().filter_map(|c| c.socket.as_ref());
        let sum: u64 = sockets.filter_map(machine::system::tcp_facts).map(|f| u64::from(f.retransmits)).sum();
        let ways = self.connections.iter().filter_map(|c| c.streams.as_ref());
        let lost: u64 = ways.map(|m| m.way.lost()).sum();
        self.tally.sample.retransmits += sum + lost;
    }
}
