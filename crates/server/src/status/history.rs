//! An hour of the most important numbers, so that curves do not begin with the page that draws them. Whoever keeps the time calls
//! [`note`] once a step; the API shows what is there.

use super::latency::{Histogram, REQUESTS_MS};
use super::requests::{self, Totals};
use crate::worker::counters;
use runtime::clock;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Between two samples, seconds.
pub const STEP_S: u64 = 10;
/// So many are kept: an hour.
const KEPT: usize = (3600 / STEP_S) as usize;

/// What one step came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Its end, Unix milliseconds.
    pub time_ms: u64,
    /// How long the step was.
    pub span_ms: u64,
    /// Answers, and those of classes 4xx and 5xx.
    pub answers: [u64; 3],
    /// p50, p90 and p99 of requests, ms; none without any.
    pub latency_ms: [Option<u64>; 3],
    /// Connections that are written to, idle and read from at its end.
    pub connections: [i64; 3],
}

#[derive(Default)]
struct History {
    samples: VecDeque<Sample>,
    /// The sums at the end of the last step, and when that was.
    before: Option<(u64, Totals, Histogram)>,
}

static HISTORY: Mutex<Option<History>> = Mutex::new(None);

/// A step is over.
pub fn note() {
    let now = (clock::wall_ms(), requests::totals(&requests::ALL), Histogram::read(&REQUESTS_MS.sums()));
    let sum = counters::sum();
    let connections = [sum.writing.max(0), sum.waiting.max(0), sum.reading.max(0)];
    let mut history = HISTORY.lock().unwrap_or_else(PoisonError::into_inner);
    let history = history.get_or_insert_default();
    if let Some(before) = &history.before {
        if history.samples.len() >= KEPT {
            history.samples.pop_front();
        }
        history.samples.push_back(sample(&now, before, connections));
    }
    history.before = Some(now);
}

type Sums = (u64, Totals, Histogram);

fn sample((time_ms, totals, times): &Sums, (was_ms, were, before): &Sums, connections: [i64; 3]) -> Sample {
    let class = |i: usize| totals.responses.classes[i].saturating_sub(were.responses.classes[i]);
    let added = times.since(before);
    Sample {
        time_ms: *time_ms,
        span_ms: time_ms.saturating_sub(*was_ms).max(1),
        answers: [totals.responses.total().saturating_sub(were.responses.total()), class(3), class(4)],
        latency_ms: [0.5, 0.9, 0.99].map(|part| added.quantile(part)),
        connections,
    }
}

/// What was noted, oldest first.
pub fn samples() -> Vec<Sample> {
    let history = HISTORY.lock().unwrap_or_else(PoisonError::into_inner);
    history.as_ref().map_or_else(Vec::new, |h| h.samples.iter().cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_what_was_added() {
        let mut numbers = [0; super::super::latency::WIDTH];
        let before = (1_000, Totals::default(), Histogram::read(&numbers));
        numbers[7] = 20;
        let mut totals = Totals::default();
        totals.responses.classes = [0, 20, 0, 10, 10];
        let now = (11_000, totals, Histogram::read(&numbers));
        let seen = sample(&now, &before, [1, 2, 3]);
        assert_eq!((seen.answers, seen.latency_ms, seen.connections), ([40, 10, 10], [Some(7); 3], [1, 2, 3]));
        assert_eq!(seen.span_ms, 10_000);
    }

    #[test]
    fn an_hour_is_kept() {
        (0..KEPT + 10).for_each(|_| note());
        assert_eq!(samples().len(), KEPT);
    }
}
