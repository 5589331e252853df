//! A tunnel as bytes, for another process: its request, its peer, what was tried before, and how far both sides have come. From and to:
//! `parked`.

use super::Patience;
use super::parked::Shared;
use crate::connection::socket::Socket;
use crate::request::held::Packed;
use crate::snapshot::ThreadSnapshot;
use crate::upstream::choose::SelectedPeer;
use crate::upstream::exchange::Answer;
use crate::upstream::pool::Connection;
use crate::upstream::{Attempt, Attempts, peer};
use crate::worker::departure::Papers;
use heir::{Reader, Terms, Writer};
use runtime::clock;
use runtime::timer::Timer;
use std::rc::Rc;
use std::time::Duration;

/// Tries of a request that another process may tell of: more are refused by nobody else.
const MOST_ATTEMPTS: usize = 1000;
/// What stands before an upgraded request's URI in the error log.
const SCHEMES: [&str; 2] = ["http://", "https://"];

impl Shared {
    /// What another process has to know of it. None: it cannot go.
    pub(super) fn papers(&self) -> Option<Papers> {
        let mut w = self.packed.travel()?;
        let attempts = self.packed.attempts()?;
        w.number(self.down);
        w.number(self.up);
        w.number(self.timeout.as_millis() as u64);
        w.number(self.until_ms.saturating_sub(clock::monotonic_ms()));
        w.number(self.answer.connection.requests);
        w.number(age_ms(self.answer.connection.started_ms));
        w.number(age_ms(self.answer.started_ms));
        peer::write(&self.answer.chosen.peer, &mut w);
        write_attempts(attempts, &mut w);
        w.number(self.patience.client_ms.into());
        w.number(self.patience.peer_ms.into());
        let names = self.packed.snapshot().clone();
        Some(Papers::new(heir::Kind::Tunnel, w.done(), names).packed_with(self.packed.dictionary()))
    }

    /// What [`Shared::papers`] of another process said.
    pub(super) fn read(r: &mut Reader<'_>, terms: &Terms, snapshot: &Rc<ThreadSnapshot>) -> Option<Shared> {
        let mut packed = Packed::arrive(r, terms, snapshot)?;
        let (down, up) = (r.number()?, r.number()?);
        let (timeout, left_ms) = (Duration::from_millis(r.number()?), r.number()?);
        let mut connection = Connection::new(Socket::none(), Timer::new(), None);
        connection.requests = r.number()?;
        connection.started_ms = since_ms(r.number()?);
        let started_ms = since_ms(r.number()?);
        let peer = peer::read(r)?;
        packed.set_attempts(read_attempts(r)?);
        let patience = match r.is_done() {
            // A process of before said nothing of that: what it had silent ended with its one time.
            true => Patience::both(timeout),
            false => {
                Patience { client_ms: u32::try_from(r.number()?).ok()?, peer_ms: u32::try_from(r.number()?).ok()? }
            }
        };
        if !r.is_done() {
            return None;
        }
        Some(Shared {
            packed,
            answer: Answer::arrived(connection, SelectedPeer::beside(peer), started_ms),
            down,
            up,
            timeout,
            patience,
            until_ms: clock::monotonic_ms().saturating_add(left_ms),
            is_over: false,
            is_refused: false,
            stays: false,
            places: [None, None],
            left: [None, None],
        })
    }
}

fn age_ms(since_ms: u64) -> u64 {
    clock::monotonic_ms().saturating_sub(since_ms)
}

fn since_ms(age_ms: u64) -> u64 {
    clock::monotonic_ms().saturating_sub(age_ms)
}

/// What variables of the log line tell of them. The head of the answer was sent: its lines (`$upstream_http_...`), and what stands behind the
/// peer's name in lines of the error log, are not told any more.
fn write_attempts(attempts: &Attempts, w: &mut Writer) {
    let scheme = SCHEMES.iter().position(|scheme| *scheme == attempts.scheme).unwrap_or(0);
    w.number(scheme as u64);
    w.number(attempts.head.status.into());
    w.number(attempts.all.len() as u64);
    for attempt in &attempts.all {
        let peer = attempt.peer.as_ref().map(|peer| {
            let mut of = Writer::default();
            peer::write(peer, &mut of);
            of.done()
        });
        w.optional_bytes(peer.as_deref());
        w.optional_bytes(attempt.group.as_ref().map(|group| group.as_bytes()));
        w.number(attempt.status.into());
        for ms in [attempt.connect_ms, attempt.header_ms, attempt.response_ms] {
            w.optional(ms.map(|ms| ms as i64));
        }
        [attempt.body_bytes, attempt.received, attempt.sent].into_iter().for_each(|count| w.number(count));
        w.flag(attempt.gap);
    }
}

fn read_attempts(r: &mut Reader<'_>) -> Option<Attempts> {
    let scheme = SCHEMES.get(usize::try_from(r.number()?).ok()?)?;
    let mut attempts = Attempts::default();
    attempts.scheme = scheme;
    attempts.head.status = u16::try_from(r.number()?).ok()?;
    attempts.all = r.list(MOST_ATTEMPTS, |r| {
        let peer = match r.optional_bytes()? {
            Some(bytes) => Some(peer::read(&mut Reader::new(bytes))?),
            None => None,
        };
        let group = r.optional_bytes()?.map(std::str::from_utf8).transpose().ok()?;
        let status = u16::try_from(r.number()?).ok()?;
        let mut ms = || r.optional()?.map(u64::try_from).transpose().ok();
        let (connect_ms, header_ms, response_ms) = (ms()?, ms()?, ms()?);
        Some(Attempt {
            peer,
            group: group.map(Into::into),
            status,
            connect_ms,
            header_ms,
            response_ms,
            body_bytes: r.number()?,
            received: r.number()?,
            sent: r.number()?,
            gap: r.flag()?,
        })
    })?;
    (!attempts.all.is_empty()).then_some(attempts)
}
