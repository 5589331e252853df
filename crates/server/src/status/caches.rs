//! Caches: how requests that asked one were answered, and what was written for it.

use super::tally::Tally;
use crate::cache::Status;
use crate::request::Request;

/// What the cache may say, in the order of the numbers.
pub const STATUSES: [Status; 7] =
    [Status::Hit, Status::Stale, Status::Updating, Status::Revalidated, Status::Miss, Status::Expired, Status::Bypass];

const FIELDS: usize = 4;

/// What is counted of a cache: four numbers for each of [`STATUSES`].
pub type Counts = Tally<{ STATUSES.len() * FIELDS }>;

/// What was counted of answers with one status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Answers.
    pub responses: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Answers that were written to the cache.
    pub responses_written: u64,
    /// Bytes of their bodies.
    pub bytes_written: u64,
}

fn place(status: Status) -> usize {
    STATUSES.iter().position(|s| *s == status).unwrap_or(0) * FIELDS
}

/// A request that asked a cache is done.
pub fn count(r: &Request) {
    let (Some(number), Some(status)) = (r.attempts.cache_number, r.attempts.cache) else { return };
    let mine = r.snapshot.main.cache.caches[number].zone.counts.mine();
    mine.add(place(status), 1);
    mine.add(place(status) + 1, r.body_bytes_sent());
}

/// An answer was written.
pub fn written(counts: &Counts, status: Option<Status>, bytes: u64) {
    let mine = counts.mine();
    let place = place(status.unwrap_or(Status::Miss));
    mine.add(place + 2, 1);
    mine.add(place + 3, bytes);
}

/// What was counted, for each status.
pub fn totals(counts: &Counts) -> [(Status, Totals); STATUSES.len()] {
    let n = counts.sums();
    STATUSES.map(|status| {
        let at = place(status);
        let (responses, bytes, responses_written, bytes_written) = (n[at], n[at + 1], n[at + 2], n[at + 3]);
        (status, Totals { responses, bytes, responses_written, bytes_written })
    })
}
