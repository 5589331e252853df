//! Requests: all of them, and those of a `status_zone`. From: `connection` (a head is there). To: the log.

use super::caches;
use super::codes::{self, Responses};
use super::latency;
use super::spent::{self, Spent};
use super::tally::{Mine, Tally, tally_of_program};
use super::trial;
use crate::request::Request;
use crate::snapshot::{ServerId, ThreadSnapshot};
use runtime::clock;
use std::rc::Rc;

const PROCESSING: usize = 0;
const REQUESTS: usize = 1;
const DISCARDED: usize = 2;
const RECEIVED: usize = 3;
const SENT: usize = 4;
const RESPONSES: usize = 5;
const WIDTH: usize = RESPONSES + codes::WIDTH;

/// What is counted of requests.
pub type Counts = Tally<WIDTH>;

tally_of_program! {
    /// All requests of clients, whatever zone.
    pub static ALL: [WIDTH], all
}

/// What was counted.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Under way now.
    pub processing: u64,
    /// Came.
    pub requests: u64,
    /// Ended without an answer.
    pub discarded: u64,
    /// Bytes from clients.
    pub received: u64,
    /// Bytes to clients.
    pub sent: u64,
    /// Answers.
    pub responses: Responses,
}

impl Totals {
    fn of(n: &[u64; WIDTH]) -> Totals {
        Totals {
            processing: n[PROCESSING],
            requests: n[REQUESTS],
            discarded: n[DISCARDED],
            received: n[RECEIVED],
            sent: n[SENT],
            responses: Responses::read(&n[RESPONSES..]),
        }
    }
}

/// Adds up.
pub fn totals(counts: &Counts) -> Totals {
    Totals::of(&counts.sums())
}

/// The same of all requests of one thread.
pub fn of_thread(slot: usize) -> Totals {
    Totals::of(&ALL.of(slot))
}

/// Sets to zero, but for the requests under way.
pub fn reset(counts: &Counts) {
    counts.reset(&[PROCESSING]);
}

/// A request of a client, or a session of `stream`, counts as under way as long as this lives.
#[derive(Default)]
pub struct Underway(Option<Place>);

struct Place {
    snapshot: Rc<ThreadSnapshot>,
    server: ServerId,
    is_request: bool,
}

impl Underway {
    /// Whether it has begun and not ended.
    pub fn counts(&self) -> bool {
        self.0.is_some()
    }

    /// It goes on to count, until [`Underway::counted`] is dropped: what is packed keeps no more than its server.
    pub fn stays(mut self) {
        self.0 = None;
    }

    /// A request of a client that goes on here: it has come to another process, and was counted there.
    pub fn arrived(snapshot: Rc<ThreadSnapshot>, server: ServerId) -> Underway {
        all().add(PROCESSING, 1);
        if let Some(zone) = &snapshot.server(server).conf.zone {
            zone.counts.mine().add(PROCESSING, 1);
        }
        Underway::counted(snapshot, server)
    }

    /// A request of a client that counts already.
    pub fn counted(snapshot: Rc<ThreadSnapshot>, server: ServerId) -> Underway {
        Underway(Some(Place { snapshot, server, is_request: true }))
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        let Some(place) = self.0.take() else { return };
        if place.is_request {
            all().sub(PROCESSING, 1);
        }
        if let Some(zone) = &place.snapshot.server(place.server).conf.zone {
            zone.counts.mine().sub(PROCESSING, 1);
        }
    }
}

/// A client's request, or its session of `stream`, has come, and its server is known.
pub fn begin(r: &mut Request) {
    let start = |mine: Mine<'_, WIDTH>| {
        mine.add(PROCESSING, 1);
        mine.add(REQUESTS, 1);
    };
    let is_request = r.ctx.stream.is_none();
    if is_request {
        start(all());
        r.spent = Spent::begin(clock::wall_ms().saturating_sub(r.started_ms) * 1000);
    }
    if let Some(zone) = &r.server().conf.zone {
        start(zone.counts.mine());
    }
    r.underway = Underway(Some(Place { snapshot: r.snapshot.clone(), server: r.server, is_request }));
}

/// A client's request is done.
pub fn end(r: &mut Request) {
    let status = r.status();
    let (received, sent, answered) = (r.request_length, r.bytes_sent(), r.answer.header_sent);
    let finish = |mine: Mine<'_, WIDTH>| {
        mine.add(RECEIVED, received);
        mine.add(SENT, sent);
        if answered {
            codes::count(mine, RESPONSES, status);
        } else {
            mine.add(DISCARDED, 1);
        }
    };
    let mine = all();
    finish(mine);
    if let Some(place) = &mut r.underway.0
        && std::mem::take(&mut place.is_request)
    {
        // Here, and not when it is dropped: the block is at hand.
        mine.sub(PROCESSING, 1);
    }
    caches::count(r);
    spent::end(&mut r.spent);
    let ms = clock::wall_ms().saturating_sub(r.started_ms);
    latency::count_request(ms);
    // Who gave up has been told nothing, but is no failure of ours.
    trial::request(r.snapshot.generation, (answered || (400..500).contains(&status)).then_some(status), ms);
    if let Some(zone) = &r.server().conf.zone {
        finish(zone.counts.mine());
        zone.times.count(ms);
    }
    if let Some(zone) = &*r.conf().status_zone.zone {
        finish(zone.counts.mine());
        zone.times.count(ms);
        zone.counts.mine().add(REQUESTS, 1);
    }
    r.underway = Underway::default();
}

/// A session of `stream` is done. It lasts as long as its ends like; what a canary is judged by is how long its peer took to be reached.
pub fn end_session(r: &mut Request) {
    if let Some(facts) = &r.ctx.stream {
        let connected = r.attempts.all.iter().map(|a| a.connect_ms).sum::<Option<u64>>();
        trial::session(r.snapshot.generation, facts.status, connected.filter(|_| facts.proxied));
    }
    if let (Some(zone), Some(facts)) = (&r.server().conf.zone, &r.ctx.stream) {
        let mine = zone.counts.mine();
        mine.add(RECEIVED, facts.received);
        mine.add(SENT, facts.sent);
        codes::count(mine, RESPONSES, facts.status);
    }
    r.underway = Underway::default();
}
