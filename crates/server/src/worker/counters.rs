//! Counts of connections, and of requests in the states that `stub_status` and `$connections_*` know.

use crate::status::tally::{Mine, tally_of_program};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

const ACCEPTED: usize = 0;
const DROPPED: usize = 1;
const REQUESTS: usize = 2;
const ACTIVE: usize = 3;
const READING: usize = 4;
const WAITING: usize = 5;
const WIDTH: usize = 6;
/// What only grows.
const PASSED: [usize; 3] = [ACCEPTED, DROPPED, REQUESTS];

tally_of_program! { static CONNECTIONS: [WIDTH], mine }

fn shift(mine: Mine<'_, WIDTH>, index: usize, by: i64) {
    mine.add(index, by as u64);
}

/// A connection was accepted.
pub fn accepted() {
    let mine = mine();
    mine.add(ACCEPTED, 1);
    mine.add(ACTIVE, 1);
}

/// Another thread has handed a connection over, and counts it as closed.
pub fn adopted() {
    mine().add(ACTIVE, 1);
}

/// A connection was accepted and closed at once: there is no room for it.
pub fn dropped() {
    let mine = mine();
    mine.add(ACCEPTED, 1);
    mine.add(DROPPED, 1);
}

/// A connection is closed.
pub fn closed() {
    mine().sub(ACTIVE, 1);
}

/// A request began.
pub fn request() {
    mine().add(REQUESTS, 1);
}

/// A connection began (1) or ended (-1) to wait for its next request.
pub fn waiting(by: i64) {
    shift(mine(), WAITING, by);
}

/// A connection began (1) or ended (-1) to send a head.
pub fn reading(by: i64) {
    shift(mine(), READING, by);
}

/// All threads together, or one of them.
pub struct Sum {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections served.
    pub handled: u64,
    /// Requests.
    pub requests: u64,
    /// Open connections.
    pub active: i64,
    /// Connections of which a head is being read.
    pub reading: i64,
    /// Connections that a request is being answered on.
    pub writing: i64,
    /// Connections between requests.
    pub waiting: i64,
}

impl Sum {
    /// Connections that were closed at once.
    pub fn dropped(&self) -> u64 {
        self.accepted - self.handled
    }

    fn of(n: [u64; WIDTH]) -> Sum {
        let (active, reading, waiting) = (n[ACTIVE] as i64, n[READING] as i64, n[WAITING] as i64);
        Sum {
            accepted: n[ACCEPTED],
            // The two are not read at one moment.
            handled: n[ACCEPTED].saturating_sub(n[DROPPED]),
            requests: n[REQUESTS],
            active,
            reading,
            writing: (active - reading - waiting).max(0),
            waiting,
        }
    }
}

/// Adds up.
pub fn sum() -> Sum {
    Sum::of(CONNECTIONS.sums())
}

/// What threads had counted, by their slot, when somebody set that to zero.
static ZERO: Mutex<BTreeMap<usize, [u64; WIDTH]>> = Mutex::new(BTreeMap::new());

/// One thread's, since the start, or since they were set to zero.
pub fn of_thread(slot: usize) -> Sum {
    let mut counts = CONNECTIONS.of(slot);
    if let Some(zero) = ZERO.lock().unwrap_or_else(PoisonError::into_inner).get(&slot) {
        PASSED.iter().for_each(|&index| counts[index] -= zero[index]);
    }
    Sum::of(counts)
}

/// Sets to zero what one thread has counted, but for what is under way.
pub fn reset_thread(slot: usize) {
    ZERO.lock().unwrap_or_else(PoisonError::into_inner).insert(slot, CONNECTIONS.of(slot));
}

/// Sets to zero how many connections were accepted and dropped.
pub fn reset_connections() {
    CONNECTIONS.reset(&[REQUESTS, ACTIVE, READING, WAITING]);
}

/// Sets to zero how many requests there were.
pub fn reset_requests() {
    CONNECTIONS.reset(&[ACCEPTED, DROPPED, ACTIVE, READING, WAITING]);
}
