//! A client of MQTT on its way to another process, or from one. From and to: `parked`.

use super::{End, Held, ms};
use crate::modules::LocationConf;
use crate::modules::nchan::mqtt::link::MqttLink;
use crate::modules::nchan::mqtt::live::Live;
use crate::modules::nchan::mqtt::offline::MOST_BYTES;
use crate::modules::nchan::redis::backend::Backend;
use runtime::clock;
use std::sync::Arc;
use wire::mqtt::packet::code;

impl Held {
    /// Whether it can go on in another process.
    pub(in super::super) fn may_go(&self) -> bool {
        !self.stays && self.over.is_none()
    }

    /// For another process; none: it stays. `rest`: what is left of what it was saying, which is its to say again from then on.
    pub(in super::super) fn travel(&mut self, rest: &[u8], mut w: heir::Writer) -> Option<Vec<u8>> {
        let mut session = heir::Writer::default();
        session.number(clock::monotonic_ms().saturating_sub(self.heard_ms));
        session.number(self.connect_timeout_ms.into());
        session.flag(self.live.is_some());
        let is_whole = self.live.as_mut().is_none_or(|live| live.travel(&mut session));
        if !is_whole || !self.may_go() || w.len() + session.len() + self.link.len() + rest.len() > MOST_BYTES {
            return None;
        }
        // What is left of what it was saying is with it only now: who stays says the rest where it was.
        if !rest.is_empty() {
            self.took_ms = clock::monotonic_ms();
        }
        self.link.write(rest, &mut w);
        Some([w.done(), session.done()].concat())
    }

    /// What another process wrote, for a location of this one. None: it was something else, or has no place here.
    pub(in super::super) fn arrive(
        r: &mut heir::Reader<'_>,
        conf: &LocationConf,
        backend: Option<&Arc<Backend>>,
    ) -> Option<Held> {
        let link = MqttLink::read(r)?;
        let (silent_ms, connect_timeout_ms) = (r.number()?, u32::try_from(r.number()?).ok()?);
        let live = if r.flag()? { Some(Live::read(r, &conf.nchan, backend)?) } else { None };
        let now = clock::monotonic_ms();
        let held = Held {
            link,
            live,
            heard_ms: now.saturating_sub(silent_ms),
            took_ms: now,
            connect_timeout_ms,
            send_timeout_ms: ms(*conf.core.send_timeout),
            over: None,
            stays: false,
        };
        r.is_done().then_some(held)
    }

    /// It has no place in the process that goes on, and is told so.
    pub(in super::super) fn refuse(&mut self) {
        self.end(code::SHUTTING_DOWN, End::Leaving);
    }
}
