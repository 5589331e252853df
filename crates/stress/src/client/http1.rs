//! A request and its answer on an HTTP/1.1 connection, which is one lane: both have the same index.

use super::Client;
use super::answer::Progress;
use super::connection::Stage;
use crate::options::Closing;
use crate::sample::Failure;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

impl Client<'_> {
    pub(super) fn start_http1(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        connection.stage = Stage::Writing;
        connection.written = 0;
        connection.answer.clear();
        connection.pending = 1;
        if self.script.is_some() {
            self.connections[id as usize].pending = self.ask_script(id);
        }
        self.note_start(id);
        self.write(id);
    }

    pub(super) fn write(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        let Some(socket) = &connection.socket else { return };
        let own = self.scripted.get(id as usize).map(|s| &s.own[..]).filter(|own| !own.is_empty());
        let request = own.unwrap_or(&self.plan.requests[self.lanes[id as usize].request as usize].bytes);
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

    /// Bytes of an answer.
    pub(super) fn take_http1(&mut self, id: u32, bytes: &[u8]) {
        if !matches!(self.connections[id as usize].stage, Stage::Waiting | Stage::Writing) {
            // Bytes that nobody asked for: an answer such as 408 before the target closes, or no HTTP.
            self.close(id, Some(Closing::Client));
            return self.free_lanes(id, false);
        }
        self.note_first_byte(id);
        let mut bytes = bytes;
        loop {
            let is_head = match self.scripted.get(id as usize) {
                None => self.plan.requests[self.lanes[id as usize].request as usize].is_head,
                Some(scripted) => scripted.is_head(),
            };
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
    pub(super) fn complete(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        let facts = connection.answer.facts.expect("an answer ends after its head");
        let unfinished = connection.stage == Stage::Writing;
        connection.pending = connection.pending.saturating_sub(1);
        let is_last = connection.pending == 0;
        if is_last {
            connection.stage = Stage::Idle;
        } else {
            connection.answer.clear();
        }
        self.count_answer(id, facts.status, facts.backend, is_last);
        if let Some(scripted) = self.scripted.get_mut(id as usize) {
            scripted.take_head();
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
}
