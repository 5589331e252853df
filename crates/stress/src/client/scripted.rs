//! What a client thread does differently with a script: its own requests, delays, and answers that are shown to it.

use super::Client;
use crate::plan::Http;
use crate::plan::request::Request;
use crate::script::requests_in;
use std::cmp::Reverse;
use std::collections::VecDeque;
use wire::http1::Parsed;
use wire::http1::chunked::{Decoder, Event, Trailers};
use wire::http1::response::{ResponseHead, ResponseParser};

/// A lane's side of a script.
#[derive(Default)]
pub(crate) struct Scripted {
    /// HTTP/1.1: what the script wants sent, instead of the plan's request; perhaps several requests at once.
    pub own: Vec<u8>,
    /// HTTP/1.1: of each request that is not answered, whether it is HEAD.
    heads: VecDeque<bool>,
    /// HTTP/2 and HTTP/3: the requests that are not answered; they go out one after the other.
    requests: VecDeque<Request>,
    /// HTTP/2 and HTTP/3: the fields of the answer that the script wants to see.
    headers: Vec<(String, String)>,
    /// What has come of it else; of HTTP/1.1 all bytes.
    seen: Vec<u8>,
}

impl Scripted {
    /// HTTP/2 and HTTP/3: what the script wants sent now.
    pub(super) fn request(&self) -> Option<&Request> {
        self.requests.front()
    }

    /// HTTP/2 and HTTP/3: one answer is there; whether it was the last.
    pub(super) fn is_last(&mut self) -> bool {
        self.requests.pop_front();
        self.requests.is_empty()
    }

    /// HTTP/1.1: whether the next answer is one to HEAD.
    pub(super) fn is_head(&self) -> bool {
        self.heads.front() == Some(&true)
    }

    /// HTTP/1.1: one answer is there.
    pub(super) fn take_head(&mut self) {
        self.heads.pop_front();
    }

    /// None of what the script wanted sent is waited for.
    pub(super) fn forget(&mut self) {
        self.requests.clear();
        self.heads.clear();
    }
}

impl Client<'_> {
    /// HTTP/1.1: takes the next request from the script, if it makes them. Gives how many it is.
    pub(super) fn ask_script(&mut self, lane: u32) -> u16 {
        self.scripted[lane as usize].forget();
        self.scripted[lane as usize].own.clear();
        let own = self.scripts_request();
        let sent = match &own {
            Some(own) => own,
            None => &self.plan.requests[self.lanes[lane as usize].request as usize].bytes[..],
        };
        let scripted = &mut self.scripted[lane as usize];
        scripted.heads.extend(requests_in(sent).map(|request| request.starts_with(b"HEAD ")));
        scripted.own = own.unwrap_or_default();
        u16::try_from(scripted.heads.len()).unwrap_or(u16::MAX)
    }

    /// HTTP/2 and HTTP/3: the same, unless a part of what it wanted sent is still to go out.
    pub(super) fn ask_script_for_streams(&mut self, lane: u32) {
        if self.script.is_none() || self.scripted[lane as usize].request().is_some() {
            return;
        }
        if let Some(own) = self.scripts_request() {
            let (url, http) = (&self.plan.url, self.plan.http);
            let requests = requests_in(&own).map(|bytes| Request::of_http1(bytes.to_vec(), url, http, 0));
            self.scripted[lane as usize].requests.extend(requests);
        }
    }

    /// What the script's `request` gives, if there is one.
    fn scripts_request(&mut self) -> Option<Vec<u8>> {
        let script = self.script.filter(|s| s.has_request())?;
        match script.request() {
            Ok(bytes) => Some(bytes),
            Err(text) => {
                self.script_failed(&text);
                None
            }
        }
    }

    /// Whether the script puts the next request off; if so, it is remembered.
    pub(super) fn is_delayed(&mut self, id: u32) -> bool {
        let Some(script) = self.script else { return false };
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
        self.script_has_failed || self.script.is_some_and(|s| s.is_stopped())
    }

    fn shows_answers(&self) -> bool {
        self.script.is_some_and(|s| s.has_response())
    }

    /// Keeps bytes of an answer for the script, if it wants to see answers.
    pub(super) fn keep_for_script(&mut self, lane: u32, bytes: &[u8]) {
        if self.shows_answers() {
            self.scripted[lane as usize].seen.extend_from_slice(bytes);
        }
    }

    /// The same with the fields of a head.
    pub(super) fn keep_fields(&mut self, lane: u32) {
        if self.shows_answers() {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let fields = self.streams.fields.iter().filter(|(name, _)| !name.starts_with(b":"));
            self.scripted[lane as usize].headers = fields.map(|(name, value)| (text(name), text(value))).collect();
        }
    }

    /// Shows a whole answer to the script.
    pub(super) fn show_answer(&mut self, lane: u32, status: u16) {
        let Some(script) = self.script.filter(|s| s.has_response()) else { return };
        let scripted = &mut self.scripted[lane as usize];
        let seen = std::mem::take(&mut scripted.seen);
        let (headers, body) = match self.plan.http {
            Http::One => take_apart(&seen),
            Http::Two | Http::Three => (std::mem::take(&mut scripted.headers), seen),
        };
        if let Err(text) = script.response(status, &headers, &body) {
            self.script_failed(&text);
        }
    }

    /// A script that fails ends the run: its numbers would be of something else.
    fn script_failed(&mut self, text: &str) {
        self.script.iter().for_each(|script| script.fail(text));
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
