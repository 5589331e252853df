//! What a peer was asked and what it answered, counted without locks: each thread adds to a part of its own, and whoever
//! asks for sums adds the parts up. Beside `peer`; read by the API and by `health::outlier`.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Parts of a count. More threads than this share parts, which is slower and still right.
const PARTS: usize = 16;
/// Statuses that are counted by themselves: those that are registered, and those that nginx made up.
const STATUSES: [u16; 69] = [
    100, 101, 102, 103, 200, 201, 202, 203, 204, 205, 206, 207, 208, 226, 300, 301, 302, 303, 304, 305, 307, 308, 400,
    401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 413, 414, 415, 416, 417, 418, 421, 422, 423, 424, 425,
    426, 428, 429, 431, 444, 451, 494, 495, 496, 497, 499, 500, 501, 502, 503, 504, 505, 506, 507, 508, 510, 511, 520,
];
/// Behind them, those of each class that are not in the list.
const CLASSES: usize = 5;

/// A peer's counts.
#[derive(Debug, Default)]
pub struct Counts {
    parts: [OnceLock<Box<Part>>; PARTS],
}

/// One thread's part, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Part {
    requests: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    header_ms: AtomicU64,
    statuses: [AtomicU64; STATUSES.len() + CLASSES],
}

/// Sums of a peer's counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Times it was chosen: tries of requests, or sessions of `stream`.
    pub requests: u64,
    /// Bytes sent to it.
    pub sent: u64,
    /// Bytes received from it.
    pub received: u64,
    /// Answers whose head has come.
    pub responses: u64,
    /// The time until their heads came, all together, ms.
    pub header_ms: u64,
    /// Answers by class: 1xx to 5xx.
    pub classes: [u64; CLASSES],
    /// Answers by status, without those that never were. Statuses nobody knows count in their class only.
    pub codes: Vec<(u16, u64)>,
}

thread_local! {
    static PART: Cell<usize> = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Cell::new(NEXT.fetch_add(1, Relaxed) % PARTS)
    };
}

impl Default for Part {
    fn default() -> Part {
        Part {
            requests: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            header_ms: AtomicU64::new(0),
            statuses: [const { AtomicU64::new(0) }; STATUSES.len() + CLASSES],
        }
    }
}

/// Where a status is counted; none below 100 and from 600 on.
fn place(status: u16) -> Option<usize> {
    if !(100..600).contains(&status) {
        return None;
    }
    Some(STATUSES.binary_search(&status).unwrap_or_else(|_| STATUSES.len() + usize::from(status) / 100 - 1))
}

impl Counts {
    fn mine(&self) -> &Part {
        self.parts[PART.get()].get_or_init(Box::default)
    }

    /// The peer was chosen.
    pub fn chosen(&self) {
        self.mine().requests.fetch_add(1, Relaxed);
    }

    /// The head of an answer came, so many ms after the try began.
    pub fn answered(&self, status: u16, header_ms: u64) {
        let mine = self.mine();
        if let Some(place) = place(status) {
            mine.statuses[place].fetch_add(1, Relaxed);
        }
        mine.header_ms.fetch_add(header_ms, Relaxed);
    }

    /// A try is over: bytes both ways.
    pub fn carried(&self, sent: u64, received: u64) {
        let mine = self.mine();
        mine.sent.fetch_add(sent, Relaxed);
        mine.received.fetch_add(received, Relaxed);
    }

    /// All parts together.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        let mut statuses = [0; STATUSES.len() + CLASSES];
        for part in self.parts.iter().filter_map(OnceLock::get) {
            totals.requests += part.requests.load(Relaxed);
            totals.sent += part.sent.load(Relaxed);
            totals.received += part.received.load(Relaxed);
            totals.header_ms += part.header_ms.load(Relaxed);
            for (sum, count) in statuses.iter_mut().zip(&part.statuses) {
                *sum += count.load(Relaxed);
            }
        }
        let (known, classes) = statuses.split_at(STATUSES.len());
        totals.classes.copy_from_slice(classes);
        for (status, count) in STATUSES.iter().zip(known) {
            totals.classes[usize::from(*status) / 100 - 1] += count;
            if *count > 0 {
                totals.codes.push((*status, *count));
            }
        }
        totals.responses = totals.classes.iter().sum();
        totals
    }

    /// How often it was chosen, without the rest of the sums.
    pub fn requests(&self) -> u64 {
        self.parts.iter().filter_map(OnceLock::get).map(|p| p.requests.load(Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_summed_over_threads_by_status_and_class() {
        let counts = Counts::default();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    counts.chosen();
                    counts.answered(200, 3);
                    counts.answered(299, 1);
                    counts.answered(503, 0);
                    counts.answered(999, 0);
                    counts.carried(10, 20);
                });
            }
        });
        let totals = counts.totals();
        assert_eq!((totals.requests, totals.sent, totals.received, totals.header_ms), (20, 200, 400, 80));
        assert_eq!(totals.classes, [0, 40, 0, 0, 20]);
        assert_eq!(totals.codes, [(200, 20), (503, 20)]);
        assert_eq!((totals.responses, counts.requests()), (60, 20));
    }

    #[test]
    fn the_list_of_statuses_is_in_order() {
        assert!(STATUSES.is_sorted());
    }
}
