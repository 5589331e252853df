//! A circuit breaker: when too many of the last requests failed, nobody is asked for a while, then one request in a while.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// When it opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Failures among requests, percent.
    pub errors_percent: u64,
    /// Fewer requests than this say nothing.
    pub requests: u64,
    /// What counts as the last ones, ms.
    pub window_ms: u64,
    /// How long nobody is asked, ms.
    pub open_ms: u64,
}

/// What a breaker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// All may pass.
    Closed,
    /// Nobody may.
    Open,
    /// One in a while may.
    HalfOpen,
}

/// The breaker.
///
/// ```text
/// closed ──too many failures──> open ──open_ms──> half open ──a good answer──> closed
///                                ^──────────a failure──────────┘
/// ```
#[derive(Debug, Default)]
pub struct Breaker {
    /// When the next one may pass, ms; 0: closed.
    next_ms: AtomicU64,
    opened: AtomicU64,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    since_ms: u64,
    /// Of this half of the window and the one before: all, and failed.
    now: (u64, u64),
    before: (u64, u64),
}

impl Breaker {
    /// Whether a request may pass. In the half-open state one may, and others after another `open_ms` without a word of it.
    pub fn lets_pass(&self, rules: Rules, now_ms: u64) -> bool {
        let next = self.next_ms.load(Relaxed);
        next == 0
            || next <= now_ms
                && self.next_ms.compare_exchange(next, now_ms + rules.open_ms.max(1), Relaxed, Relaxed).is_ok()
    }

    /// How it stands.
    pub fn state(&self, now_ms: u64) -> State {
        match self.next_ms.load(Relaxed) {
            0 => State::Closed,
            next if next <= now_ms => State::HalfOpen,
            _ => State::Open,
        }
    }

    /// How often it has opened.
    pub fn opened(&self) -> u64 {
        self.opened.load(Relaxed)
    }

    /// A request has ended. True: this opens it.
    pub fn record(&self, rules: Rules, good: bool, now_ms: u64) -> bool {
        if self.next_ms.load(Relaxed) != 0 {
            if good {
                *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = Counts::default();
                self.next_ms.store(0, Relaxed);
            } else {
                self.next_ms.store(now_ms + rules.open_ms.max(1), Relaxed);
            }
            return false;
        }
        // Another thread is counting: one more or less does not matter.
        let Ok(mut counts) = self.counts.try_lock() else { return false };
        let half = (rules.window_ms / 2).max(1);
        let age = now_ms.saturating_sub(counts.since_ms);
        if age >= half {
            counts.before = if age < 2 * half { counts.now } else { (0, 0) };
            (counts.now, counts.since_ms) = ((0, 0), now_ms);
        }
        counts.now.0 += 1;
        counts.now.1 += u64::from(!good);
        let (all, failed) = (counts.now.0 + counts.before.0, counts.now.1 + counts.before.1);
        if all >= rules.requests.max(1) && failed * 100 >= rules.errors_percent.max(1) * all {
            self.next_ms.store(now_ms + rules.open_ms.max(1), Relaxed);
            self.opened.fetch_add(1, Relaxed);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { errors_percent: 50, requests: 10, window_ms: 1000, open_ms: 500 };

    #[test]
    fn it_opens_tries_and_closes() {
        let breaker = Breaker::default();
        for n in 0..9 {
            assert!(!breaker.record(RULES, n % 2 == 0, 100));
        }
        assert_eq!(breaker.state(100), State::Closed);
        assert!(breaker.record(RULES, false, 100), "five of ten");
        assert!(!breaker.lets_pass(RULES, 599) && breaker.state(599) == State::Open);
        assert!(breaker.lets_pass(RULES, 600), "one tries");
        assert!(!breaker.lets_pass(RULES, 601), "one");
        breaker.record(RULES, false, 700);
        assert!(!breaker.lets_pass(RULES, 1199));
        assert!(breaker.lets_pass(RULES, 1200));
        breaker.record(RULES, true, 1210);
        assert_eq!((breaker.state(1210), breaker.opened()), (State::Closed, 1));
        assert!((0..20).all(|_| breaker.lets_pass(RULES, 1210)));
    }

    #[test]
    fn old_failures_are_forgotten() {
        let breaker = Breaker::default();
        (0..9).for_each(|_| assert!(!breaker.record(RULES, false, 100)));
        (0..9).for_each(|_| assert!(!breaker.record(RULES, true, 2000)));
        assert!(!breaker.record(RULES, false, 2000), "one of ten");
    }
}
