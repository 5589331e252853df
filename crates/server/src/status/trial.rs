//! What a canary is judged by: requests, and sessions of `stream`, of the two configurations that serve at the same time, each counted where the request ends. Counts
//! only while there is a canary. From: the log. To: the control thread, which has it judged, and the API.

use super::latency::{self, Histogram};
use super::tally::Tally;
use doctor::trial::Population;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const CONNECTIONS: usize = latency::WIDTH;
const REQUESTS: usize = CONNECTIONS + 1;
const FAILED: usize = CONNECTIONS + 2;
const REFUSED: usize = CONNECTIONS + 3;
const WIDTH: usize = CONNECTIONS + 4;

/// The generation of the canary's configuration; 0: there is none.
static TRIED: AtomicU64 = AtomicU64::new(0);
/// Of the canary, in ten-thousandths: the share of new connections.
static SHARE: AtomicU64 = AtomicU64::new(0);
/// Under the old configuration, under the new one.
static COUNTS: [Tally<WIDTH>; 2] = [Tally::new(), Tally::new()];

/// A canary begins: both counts are zero. `share`: ten-thousandths of new connections.
pub fn begin(generation: u64, share: u64) {
    COUNTS.iter().for_each(|c| c.reset(&[]));
    SHARE.store(share, Relaxed);
    TRIED.store(generation, Relaxed);
}

/// It is over, however it ended.
pub fn end() {
    TRIED.store(0, Relaxed);
}

/// The canary's generation and share, while there is one.
pub fn now() -> Option<(u64, u64)> {
    Some(TRIED.load(Relaxed)).filter(|g| *g != 0).map(|g| (g, SHARE.load(Relaxed)))
}

fn counts(generation: u64) -> Option<&'static Tally<WIDTH>> {
    match TRIED.load(Relaxed) {
        0 => None,
        tried => Some(&COUNTS[usize::from(tried == generation)]),
    }
}

/// A connection begins under a configuration.
pub fn connection(is_new: bool) {
    if TRIED.load(Relaxed) != 0 {
        COUNTS[usize::from(is_new)].count(CONNECTIONS);
    }
}

/// A request under a configuration of this generation is done. `status`: none if it ended without an answer.
pub fn request(generation: u64, status: Option<u16>, ms: u64) {
    let Some(counts) = counts(generation) else { return };
    let mine = counts.mine();
    mine.add(REQUESTS, 1);
    match status {
        None | Some(500..) => mine.add(FAILED, 1),
        Some(400..=499) => mine.add(REFUSED, 1),
        // What follows 101 lasts as long as its ends like.
        Some(101) => return,
        Some(_) => {}
    }
    latency::count(mine, 0, ms);
}

/// A session of `stream` under a configuration of this generation is done. `connect_ms`: until it reached its peer, if it did.
pub fn session(generation: u64, status: u16, connect_ms: Option<u64>) {
    let Some(counts) = counts(generation) else { return };
    let mine = counts.mine();
    mine.add(REQUESTS, 1);
    match status {
        500.. => mine.add(FAILED, 1),
        400..=499 => mine.add(REFUSED, 1),
        _ => {}
    }
    if let Some(ms) = connect_ms {
        latency::count(mine, 0, ms);
    }
}

/// A handshake under a configuration of this generation failed.
pub fn failed_handshake(generation: u64) {
    if let Some(counts) = counts(generation) {
        counts.count(REQUESTS);
        counts.count(FAILED);
    }
}

/// What was seen so far: under the old configuration, under the new one.
pub fn seen() -> [Population; 2] {
    [0, 1].map(|side| {
        let sums = COUNTS[side].sums();
        Population {
            connections: sums[CONNECTIONS],
            requests: sums[REQUESTS],
            failed: sums[FAILED],
            refused: sums[REFUSED],
            times: Histogram::read(&sums).steps().collect(),
        }
    })
}
