//! Peers of upstream groups: what was asked of them and what they said. Counted when a request forgets its tries.

use super::codes::{self, Responses};
use super::slot::SLOTS;
use super::tally::Tally;
use crate::upstream::Attempt;
use crate::worker::clock;

const REQUESTS: usize = 0;
const SENT: usize = 1;
const RECEIVED: usize = 2;
const FAILS: usize = 3;
const UNAVAILABLE: usize = 4;
/// Wall clock, ms, when it was last asked: not a count, the highest of all threads holds.
const SELECTED_MS: usize = 5;
/// Moving averages of each thread.
const CONNECT_MS: usize = 6;
const HEADER_MS: usize = 7;
const RESPONSE_MS: usize = 8;
const TIMES_SUM: usize = 9;
const TIMES: usize = 10;
const RESPONSES: usize = TIMES + BOUNDS_MS.len() + 1;
const WIDTH: usize = RESPONSES + codes::WIDTH;

/// Upper bounds of the steps that the API shows response times in.
pub const BOUNDS_MS: [u64; 14] = [5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000];

/// What is counted of a peer.
pub type Counts = Tally<WIDTH>;

/// What was counted.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Tries.
    pub requests: u64,
    /// Answers.
    pub responses: Responses,
    /// Bytes to the peer.
    pub sent: u64,
    /// Bytes from it.
    pub received: u64,
    /// Tries that failed.
    pub fails: u64,
    /// How often it was set aside for its failures.
    pub unavailable: u64,
    /// When it was last asked, wall clock, ms.
    pub selected_ms: Option<u64>,
    /// Lately until the connection stood, ms.
    pub connect_ms: Option<u64>,
    /// Lately until the head (in `stream` the first byte), ms.
    pub header_ms: Option<u64>,
    /// Lately until the last byte, ms.
    pub response_ms: Option<u64>,
    /// Answers by their time: one number for each of [`BOUNDS_MS`], then those that took longer.
    pub times: [u64; BOUNDS_MS.len() + 1],
    /// All times together, ms.
    pub times_sum_ms: u64,
}

/// A try has ended.
pub fn count(counts: &Counts, attempt: &Attempt) {
    let mine = counts.mine();
    mine.add(REQUESTS, 1);
    mine.add(SENT, attempt.sent);
    mine.add(RECEIVED, attempt.received);
    mine.set(SELECTED_MS, clock::wall_ms());
    codes::count(mine, RESPONSES, attempt.status);
    let times = [(CONNECT_MS, attempt.connect_ms), (HEADER_MS, attempt.header_ms), (RESPONSE_MS, attempt.response_ms)];
    for (place, ms) in times {
        if let Some(ms) = ms {
            // In thousandths; 0 is "none yet".
            mine.set(place, balance::average(mine.read(place), ms * 1000).max(1));
        }
    }
    if let (Some(ms), Some(_)) = (attempt.response_ms, attempt.header_ms) {
        let step = BOUNDS_MS.iter().position(|bound| ms <= *bound).unwrap_or(BOUNDS_MS.len());
        mine.add(TIMES + step, 1);
        mine.add(TIMES_SUM, ms);
    }
}

/// A try failed; `aside`: the peer is set aside for it.
pub fn failed(counts: &Counts, aside: bool) {
    let mine = counts.mine();
    mine.add(FAILS, 1);
    mine.add(UNAVAILABLE, u64::from(aside));
}

/// Sets to zero.
pub fn reset(counts: &Counts) {
    counts.reset(&[]);
}

/// Adds up. Averages of threads are weighted by the threads' tries.
pub fn totals(counts: &Counts) -> Totals {
    let n = counts.sums();
    let mut totals = Totals {
        requests: n[REQUESTS],
        responses: Responses::read(&n[RESPONSES..]),
        sent: n[SENT],
        received: n[RECEIVED],
        fails: n[FAILS],
        unavailable: n[UNAVAILABLE],
        times: std::array::from_fn(|i| n[TIMES + i]),
        times_sum_ms: n[TIMES_SUM],
        ..Totals::default()
    };
    let mut sums = [(0u64, 0u64); 3];
    let mut selected = 0;
    for block in (0..SLOTS).map(|slot| counts.of(slot)).filter(|b| b[REQUESTS] > 0) {
        selected = block[SELECTED_MS].max(selected);
        for (sum, place) in sums.iter_mut().zip([CONNECT_MS, HEADER_MS, RESPONSE_MS]) {
            if block[place] > 0 {
                *sum = (sum.0 + block[place] * block[REQUESTS], sum.1 + block[REQUESTS]);
            }
        }
    }
    let [connect, header, response] = sums.map(|(sum, weight)| (weight > 0).then(|| sum / weight / 1000));
    (totals.connect_ms, totals.header_ms, totals.response_ms) = (connect, header, response);
    totals.selected_ms = (selected > 0).then_some(selected);
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_are_added_up() {
        let counts = Counts::default();
        let try_of = |status, ms| Attempt {
            status,
            sent: 10,
            received: 100,
            connect_ms: Some(0),
            header_ms: Some(ms),
            response_ms: Some(ms),
            ..Attempt::default()
        };
        count(&counts, &try_of(200, 7));
        count(&counts, &try_of(503, 20_000));
        count(&counts, &Attempt { status: 502, ..Attempt::default() });
        failed(&counts, true);
        let totals = totals(&counts);
        assert_eq!((totals.requests, totals.sent, totals.received), (3, 20, 200));
        assert_eq!(totals.responses.codes, [(200, 1), (502, 1), (503, 1)]);
        assert_eq!((totals.times[1], totals.times[14], totals.times_sum_ms), (1, 1, 20_007));
        assert_eq!((totals.fails, totals.unavailable), (1, 1));
        assert!(totals.selected_ms.is_some() && totals.connect_ms == Some(0) && totals.header_ms > Some(7));
        reset(&counts);
        assert_eq!(super::totals(&counts).requests, 0);
    }
}
