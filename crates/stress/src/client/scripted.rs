//! What a client thread does differently with a script: its own requests, delays, and answers that are shown to it.

use super::Client;
use crate::script::count_requests;
use std::cmp::Reverse;
use wire::http1::Parsed;
use wire::http1::chunked::{Decoder, Event, Trailers};
use wire::http1::response::{ResponseHead, ResponseParser};

impl Client<'_> {
    /// Takes the next request from the script, if it makes them.
    pub(super) fn ask_script(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        connection.pending = 1;
        let Some(script) = &self.script else { return };
        if script.has_request() {
            connection.own.clear();
            if let Err(text) = script.request(&mut connection.own) {
                return self.script_failed(&text);
            }
            connection.pending = count_requests(&connection.own);
        } else {
            connection.pending = count_requests(&self.plan.requests[self.lanes[id as usize].request as usize].bytes);
        }
    }

    /// Whether the script puts the next request off; if so, it is remembered.
    pub(super) fn is_delayed(&mut self, id: u32) -> bool {
        let Some(script) = &self.script else { return false };
        match script.delay_ms() {
            Ok(ms) if ms > 0.0 => {
                self.delayed.push(Reverse((self.now + (ms * 1e6) as u64, id)));
                self.lanes[id as usize].is_waiting = true;
                true
            }
            Ok(_) => false,
            Err(text) => {
                self.script_failed(&text);
                false
            }
        }
    }

    /// When the next put-off request is due.
    pub(super) fn next_delayed(&self) -> u64 {
        self.delayed.peek().map_or(u64::MAX, |d| d.0.0)
    }

    /// Sends what was put off until now.
    pub(super) fn send_delayed(&mut self) {
        while self.next_delayed() <= self.now {
            let Some(Reverse((_, id))) = self.delayed.pop() else { return };
            self.lanes[id as usize].is_waiting = false;
            self.next(id);
        }
    }

    /// `thread:stop()`
    pub(super) fn is_script_done(&self) -> bool {
        self.script_has_failed || self.script.as_ref().is_some_and(|s| s.is_stopped())
    }

    /// Keeps bytes of an answer for the script, if it wants to see answers.
    pub(super) fn keep_for_script(&mut self, id: u32, bytes: &[u8]) {
        if self.script.as_ref().is_some_and(|s| s.has_response()) {
            self.connections[id as usize].seen.extend_from_slice(bytes);
        }
    }

    /// Shows a whole answer to the script.
    pub(super) fn show_answer(&mut self, id: u32, status: u16) {
        let Some(script) = self.script.as_ref().filter(|s| s.has_response()) else { return };
        let seen = std::mem::take(&mut self.connections[id as usize].seen);
        let (headers, body) = take_apart(&seen);
        if let Err(text) = script.response(status, &headers, &body) {
            self.script_failed(&text);
        }
    }

    /// A script that fails ends the run: its numbers would be of something else.
    fn script_failed(&mut self, text: &str) {
        if !self.script_has_failed {
            eprintln!("ironweir stress: script: {text}");
        }
        self.script_has_failed = true;
    }
}

/// Headers and body, without the chunks around it.
fn take_apart(bytes: &[u8]) -> (Vec<(String, String)>, Vec<u8>) {
    let mut head = ResponseHead::default();
    let Ok(Parsed::Complete { len }) = ResponseParser::default().parse(bytes, &mut head) else {
        return (Vec::new(), bytes.to_vec());
    };
    let text = |span: wire::span::Span| String::from_utf8_lossy(span.of(bytes)).into_owned();
    let headers: Vec<(String, String)> = head.headers.iter().map(|l| (text(l.name), text(l.value))).collect();
    let is = |name: &str, value: &str| {
        headers.iter().any(|(n, v)| n.eq_ignore_ascii_case(name) && v.to_ascii_lowercase().contains(value))
    };
    let raw = &bytes[len..];
    if !is("transfer-encoding", "chunked") {
        return (headers, raw.to_vec());
    }
    let (mut body, mut at, mut decoder) = (Vec::new(), 0, Decoder::new(Trailers::Drop));
    while let Ok(Event::Data(span)) = decoder.decode(raw, &mut at) {
        body.extend_from_slice(span.of(raw));
    }
    (headers, body)
}
