//! What a thread does with its connections: the steps from `connect` to the last byte of an answer.

use super::answer::Progress;
use super::connection::{Connection, Stage};
use super::tls::Session;
use super::{Client, now_ns};
use crate::options::Closing;
use crate::sample::Failure;
use crate::system::{self, HUNG_UP, READABLE, WRITABLE};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Of so many closed connections one is asked for its retransmits.
const ASKED: u64 = 32;

impl Stage {
    pub(super) fn is_opening(self) -> bool {
        matches!(self, Stage::Connecting | Stage::Handshaking)
    }
}

impl Client<'_> {
    /// Closed loop: every connection gets its first request. Open loop: those that do not stand yet will when they are needed.
    pub(super) fn begin(&mut self) {
        for id in 0..self.connections.len() as u32 {
            let connection = &self.connections[id as usize];
            if connection.stage == Stage::Down && !connection.is_listed && !self.resting.contains(&id) {
                self.release(id);
            }
        }
    }

    /// Waits once and handles what happened.
    pub(super) fn events(&mut self, wait_ns: u64) {
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
    }

    fn event(&mut self, id: u32, flags: u32) {
        match self.connections[id as usize].stage {
            Stage::Down => {}
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
                if flags & (READABLE | HUNG_UP) != 0 {
                    self.read(id, flags);
                }
            }
        }
    }

    /// Sends what is due, as far as connections are free.
    pub(super) fn send_due(&mut self) {
        while self.pace.wake_at() <= self.now && self.left > 0 && !self.is_draining {
            let Some(id) = self.pace.take_free() else { return };
            self.connections[id as usize].is_listed = false;
            self.next(id);
        }
    }

    /// A connection, or the place of one, is free.
    pub(super) fn release(&mut self, id: u32) {
        self.connections[id as usize].free_since = self.now;
        if self.is_draining || self.left == 0 {
            return;
        }
        if !self.pace.is_open() || self.pace.next_due() <= self.now {
            if !self.is_delayed(id) {
                self.next(id);
            }
        } else {
            self.put_free(id);
        }
    }

    fn put_free(&mut self, id: u32) {
        self.connections[id as usize].is_listed = true;
        self.pace.put_free(id);
    }

    /// Gives a free connection the next request: closed loop, or one that is due.
    pub(super) fn next(&mut self, id: u32) {
        let due = match self.pace.is_open() {
            true => self.pace.take_due(self.now),
            false => Some(self.now),
        };
        let Some(due) = due else { return self.put_free(id) };
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        self.in_flight += 1;
        let connection = &mut self.connections[id as usize];
        connection.has_request = true;
        connection.counted_from = due;
        connection.request = self.next_request as u32;
        self.next_request += 1;
        if self.next_request >= self.plan.requests.len() {
            self.next_request = 0;
        }
        if self.pace.is_open() {
            let since = due.max(connection.free_since);
            self.tally.sample.lateness.record(self.now.saturating_sub(since));
        }
        if connection.stage == Stage::Idle { self.start_request(id) } else { self.dial(id) }
    }

    /// Opens a connection; its request, if it has one, follows when it stands.
    pub(super) fn dial(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        connection.generation = connection.generation.wrapping_add(1);
        connection.began = self.now;
        let data = u64::from(id) | u64::from(connection.generation) << 32;
        let opened = self.dialer.dial().and_then(|s| self.epoll.add(s.as_raw_fd(), data).map(|()| s));
        match opened {
            Ok(socket) => {
                connection.socket = Some(socket);
                connection.stage = Stage::Connecting;
            }
            Err(error) => self.fail(id, Failure::of_connect(&error)),
        }
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
            Some(tls) => match Session::new(tls) {
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
    fn flush(&mut self, id: u32) {
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

    /// The connection can carry requests.
    fn established(&mut self, id: u32) {
        let keeps = self.plan.close.is_none();
        let connection = &mut self.connections[id as usize];
        connection.stage = Stage::Idle;
        if !connection.has_request {
            return self.release(id);
        }
        // With kept connections the handshake is not part of the first request's latency; it has a histogram of its own.
        if keeps && !self.pace.is_open() {
            connection.counted_from = self.now;
        }
        self.start_request(id);
    }

    fn start_request(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        connection.stage = Stage::Writing;
        connection.written = 0;
        connection.began = self.now;
        connection.has_first_byte = false;
        connection.answer.clear();
        connection.pending = 1;
        if self.script.is_some() {
            self.ask_script(id);
        }
        self.tally.sample.sent += 1;
        self.write(id);
    }

    fn write(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        let Some(socket) = &connection.socket else { return };
        let request = match connection.own.is_empty() {
            true => &self.plan.requests[connection.request as usize].bytes,
            false => &connection.own,
        };
        if let Some(session) = &mut connection.tls {
            connection.stage = Stage::Waiting;
            connection.written = request.len() as u32;
            if session.write(request).is_err() {
                return self.fail(id, Failure::Tls);
            }
            return self.flush(id);
        }
        while (connection.written as usize) < request.len() {
            match send(socket, &request[connection.written as usize..], SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    connection.written += sent as u32;
                    self.tally.sample.bytes_written += sent as u64;
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return self.fail(id, Failure::Reset),
                Err(_) => return self.fail(id, Failure::Write),
            }
        }
        connection.stage = Stage::Waiting;
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
                    self.connections[id as usize].is_ending = flags & HUNG_UP != 0;
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

    /// Bytes of an answer.
    fn take(&mut self, id: u32, bytes: &[u8]) {
        let connection = &mut self.connections[id as usize];
        if !matches!(connection.stage, Stage::Waiting | Stage::Writing) {
            // Bytes that nobody asked for: an answer such as 408 before the target closes, or no HTTP.
            return self.close(id, Some(Closing::Client));
        }
        if !connection.has_first_byte {
            connection.has_first_byte = true;
            self.tally.sample.first_byte.record(self.now - connection.counted_from);
        }
        let is_head = self.plan.requests[connection.request as usize].is_head;
        let mut bytes = bytes;
        loop {
            let connection = &mut self.connections[id as usize];
            match connection.answer.feed(bytes, is_head, &mut self.heads, &mut self.tally) {
                Ok(Progress::More) => return self.keep_for_script(id, bytes),
                Ok(Progress::Complete(used)) if used == bytes.len() || connection.pending > 1 => {
                    self.keep_for_script(id, &bytes[..used]);
                    let is_last = self.connections[id as usize].pending <= 1;
                    self.complete(id);
                    bytes = &bytes[used..];
                    if is_last || bytes.is_empty() {
                        return;
                    }
                }
                _ => return self.fail(id, Failure::Protocol),
            }
        }
    }

    /// An answer is whole.
    fn complete(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        let facts = connection.answer.facts.expect("an answer ends after its head");
        let latency = self.now - connection.counted_from;
        if self.pace.is_open() {
            self.tally.sample.service.record(self.now - connection.began);
        }
        let url = self.plan.requests[connection.request as usize].url;
        let unfinished = connection.stage == Stage::Writing;
        connection.pending = connection.pending.saturating_sub(1);
        let is_last = connection.pending == 0;
        if is_last {
            connection.has_request = false;
            connection.stage = Stage::Idle;
            self.in_flight -= 1;
        } else {
            connection.answer.clear();
        }
        self.second.answers += 1;
        self.second.errors += u64::from(facts.status >= 400);
        self.second.latency.record(latency);
        self.tally.answer(facts.status, url, facts.backend, latency);
        if self.script.is_some() {
            self.show_answer(id, facts.status);
        }
        if !is_last {
            return;
        }
        match self.plan.close {
            None if facts.keeps && !unfinished && !self.connections[id as usize].is_ending => self.release(id),
            // The other side closes, and has the TIME_WAIT; until then the place is taken.
            None | Some(Closing::Server) if !unfinished => {}
            how => {
                self.close(id, how);
                self.release(id);
            }
        }
    }

    /// The target has closed.
    fn ended(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        if connection.has_request && connection.answer.ends_with_connection() {
            self.complete(id);
        }
        self.broken(id, Failure::Closed);
    }

    /// The connection is gone: with its request, or between two.
    fn broken(&mut self, id: u32, kind: Failure) {
        let connection = &self.connections[id as usize];
        if connection.has_request {
            return self.fail(id, kind);
        }
        if self.plan.close.is_none() && connection.answer.facts.is_none_or(|f| f.keeps) {
            self.tally.sample.reconnects += 1;
        }
        // A free connection of the open loop stays in its list, and is dialled when it is needed.
        let is_listed = connection.is_listed;
        self.close(id, None);
        if !is_listed {
            self.release(id);
        }
    }

    /// A request, or a connection before it has one, failed.
    pub(super) fn fail(&mut self, id: u32, kind: Failure) {
        self.tally.fail(kind);
        self.second.errors += 1;
        let connection = &mut self.connections[id as usize];
        if std::mem::take(&mut connection.has_request) {
            self.in_flight -= 1;
            if matches!(kind, Failure::Timeout | Failure::ConnectTimeout) {
                self.second.latency.record(self.now - connection.counted_from);
            }
        }
        let was_open = !connection.stage.is_opening() && connection.stage != Stage::Down;
        self.close(id, Some(Closing::Client));
        // What could not connect is not tried again at once: that would only burn CPU.
        if was_open { self.release(id) } else { self.resting.push(id) }
    }

    fn close(&mut self, id: u32, how: Option<Closing>) {
        let connection = &mut self.connections[id as usize];
        let Some(socket) = connection.socket.take() else { return };
        if !matches!(connection.stage, Stage::Connecting | Stage::Down) {
            self.open -= 1;
        }
        if let Some(mut session) = connection.tls.take().filter(|_| how != Some(Closing::Reset)) {
            session.say_goodbye();
            let _ = session.flush(&socket);
        }
        connection.stage = Stage::Down;
        connection.generation = connection.generation.wrapping_add(1);
        // Asking the kernel costs a call: every so many connections.
        self.closed += 1;
        if self.closed.is_multiple_of(ASKED) {
            let facts = system::tcp_facts(&socket);
            self.tally.sample.retransmits += facts.map_or(0, |f| u64::from(f.retransmits) * ASKED);
        }
        if how == Some(Closing::Reset) {
            let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
        }
    }

    pub(super) fn check_timeouts(&mut self) {
        let limit = self.plan.timeout.as_nanos() as u64;
        for id in 0..self.connections.len() as u32 {
            let Connection { stage, began, has_request, is_listed, .. } = self.connections[id as usize];
            if self.now.saturating_sub(began) <= limit {
                continue;
            }
            if stage.is_opening() {
                self.fail(id, Failure::ConnectTimeout);
            } else if has_request {
                self.fail(id, Failure::Timeout);
            } else if stage == Stage::Idle && !is_listed {
                // It said that it would close, and did not.
                self.close(id, Some(Closing::Client));
                self.release(id);
            }
        }
    }

    /// What the kernel had to send again on the connections that are left.
    pub(super) fn count_retransmits(&mut self) {
        let sockets = self.connections.iter().filter_map(|c| c.socket.as_ref());
        let sum: u64 = sockets.filter_map(system::tcp_facts).map(|f| u64::from(f.retransmits)).sum();
        self.tally.sample.retransmits += sum;
    }
}
