//! The steps of an answer, and the last one.

use super::{Intervention, Transaction};
use crate::limits::MAX_VALUES;
use crate::settings::{Engine, LimitAction};
use crate::texts::decimal;
use crate::variable::{Collection, Single};

impl Transaction {
    /// Step 6: the answer's head. Runs phase 3.
    pub fn response_headers<'h>(
        &mut self,
        status: u16,
        protocol: &[u8],
        headers: impl IntoIterator<Item = (&'h [u8], &'h [u8])>,
    ) -> Option<Intervention> {
        self.status = status;
        if self.is_over() {
            return None;
        }
        let mut digits = [0; 20];
        let digits = decimal(i64::from(status), &mut digits);
        self.set_text(Single::ResponseStatus, digits);
        self.set_text(Single::ResponseProtocol, protocol);
        let line = self.texts.add_parts([protocol, b" ", digits]);
        self.set(Single::StatusLine, line);
        for (name, value) in headers.into_iter().take(MAX_VALUES) {
            let id = self.texts.add(name);
            let text = self.texts.add(value);
            self.push(Collection::ResponseHeaders, id, text);
            if name.eq_ignore_ascii_case(b"content-type") {
                self.set(Single::ResponseContentType, text);
            } else if name.eq_ignore_ascii_case(b"content-length") {
                self.set(Single::ResponseContentLength, text);
            }
        }
        self.guarded(|t| t.phase(3))
    }

    /// Whether the answer's body is to be handed over: `SecResponseBodyAccess` and a type of `SecResponseBodyMimeType`. A server
    /// holds such an answer back until [`Transaction::response_body_end`].
    pub fn wants_response_body(&self) -> bool {
        if !self.switches.response_body || self.is_over() {
            return false;
        }
        let kind = self.single(Single::ResponseContentType);
        let kind = kind.split(|b| *b == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
        self.rules.settings.response_types.iter().any(|t| t.as_bytes() == kind)
    }

    /// Step 7: a piece of the answer's body.
    pub fn response_body(&mut self, piece: &[u8]) -> Option<Intervention> {
        if !self.wants_response_body() {
            return None;
        }
        let room = self.switches.response_body_limit.saturating_sub(self.response_body.len());
        self.response_body.extend_from_slice(&piece[..piece.len().min(room)]);
        if piece.len() <= room {
            return None;
        }
        self.set_text(Single::OutboundDataError, b"1");
        let message = "the response body is longer than SecResponseBodyLimit";
        self.refuse(500, self.rules.settings.response_body_action, message);
        self.intervention.clone()
    }

    /// What of the answer's body has been taken: all of it, or as much as `SecResponseBodyLimit` allows. A server that holds an
    /// answer back needs no copy of its own.
    pub fn response_body_taken(&self) -> &[u8] {
        &self.response_body
    }

    /// Whether a rule may refuse the answer now: who only looks need not hold anything back.
    pub fn may_refuse(&self) -> bool {
        self.switches.engine == Engine::On && self.intervention.is_none()
    }

    /// Whether more of the answer's body would change nothing, so that a server need not hold back the rest.
    pub fn response_body_is_full(&self) -> bool {
        self.rules.settings.response_body_action == LimitAction::ProcessPartial
            && self.response_body.len() >= self.switches.response_body_limit
    }

    /// Step 8: the answer's body is complete, or was not wanted. Runs phase 4.
    pub fn response_body_end(&mut self) -> Option<Intervention> {
        self.guarded(|t| {
            if !t.response_body.is_empty() {
                let body = std::mem::take(&mut t.response_body);
                t.set_text(Single::ResponseBody, &body);
                t.response_body = body;
                let length = t.texts.add_number(t.response_body.len() as i64);
                t.set(Single::ResponseContentLength, length);
            }
            t.phase(4);
        })
    }

    /// The last step, whatever came before: runs phase 5, whose rules only look. `status` is that of the answer that was sent.
    pub fn logging(&mut self, status: u16) {
        self.status = status;
        if self.fault.is_some() || self.phases_done[5] {
            return;
        }
        // Phase 5 runs behind an intervention too, which its rules cannot change.
        let first = self.intervention.take();
        self.switches.allow = None;
        self.guarded(|t| t.phase(5));
        self.intervention = first;
    }
}
