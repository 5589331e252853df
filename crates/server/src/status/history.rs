//! An hour of the most important numbers, so that curves do not begin with the page that draws them. Whoever keeps the time calls
//! [`note`] once a step; the API shows what is there.

use super::latency::Histogram;
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

/// What is counted at the end of a step.
#[derive(Clone, Debug)]
pub struct Sums {
    /// Unix milliseconds.
    pub time_ms: u64,
    /// Answers since the start, and those of classes 4xx and 5xx.
    pub answers: [u64; 3],
    /// How long requests took, ms.
    pub times: Histogram,
    /// See [`Sample`].
    pub connections: [i64; 3],
}

#[derive(Default)]
struct History {
    samples: VecDeque<Sample>,
    /// The sums at the end of the last step.
    before: Option<Sums>,
}

static HISTORY: Mutex<Option<History>> = Mutex::new(None);

/// A step is over.
pub fn note(now: Sums) {
    let mut history = HISTORY.lock().unwrap_or_else(PoisonError::into_inner);
    let history = history.get_or_insert_default();
    if let Some(before) = &history.before {
        if history.samples.len() >= KEPT {
            history.samples.pop_front();
        }
        history.samples.push_back(sample(&now, before));
    }
    history.before = Some(now);
}

fn sample(now: &Sums, before: &Sums) -> Sample {
    let added = now.times.since(&before.times);
    Sample {
        time_ms: now.time_ms,
        span_ms: now.time_ms.saturating_sub(before.time_ms).max(1),
        answers: std::array::from_fn(|i| now.answers[i].saturating_sub(before.answers[i])),
        latency_ms: [0.5, 0.9, 0.99].map(|part| added.quantile(part)),
        connections: now.connections,
    }
}

/// What was noted, oldest first.
pub fn samples() -> Vec<Sample> {
    let history = HISTORY.lock().unwrap_or_else(PoisonError::into_inner);
    history.as_ref().map_or_else(Vec::new, |h| h.samples.iter().cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::super::latency::WIDTH;
    use super::*;

    fn sums(time_ms: u64, answers: [u64; 3], at_seven: u64) -> Sums {
        let mut numbers = [0; WIDTH];
        numbers[7] = at_seven;
        Sums { time_ms, answers, times: Histogram::read(&numbers), connections: [1, 2, 3] }
    }

    #[test]
    fn a_sample_is_what_was_added() {
        let seen = sample(&sums(11_000, [40, 10, 10], 20), &sums(1_000, [0, 0, 1], 0));
        assert_eq!((seen.answers, seen.latency_ms, seen.connections), ([40, 10, 9], [Some(7); 3], [1, 2, 3]));
        assert_eq!(seen.span_ms, 10_000);
    }

    #[test]
    fn an_hour_is_kept() {
        (0..KEPT as u64 + 10).for_each(|n| note(sums(n, [0; 3], 0)));
        assert_eq!(samples().len(), KEPT);
    }
}
