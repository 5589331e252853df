//! How many requests at a time make a peer fast, found by how long its answers take: as long as they take what they take without load there may be more at
//! once, and fewer when they take longer (a gradient, as TCP Vegas looks at round trips).
//!
//! What answers take without load is found again from time to time with half of the limit, since under a steady overload every answer waits for others.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Answers are looked at together for so long, ms, and so many at least; however few after the longest.
const WINDOW_MS: u64 = 100;
const LEAST_ANSWERS: u64 = 8;
const LONGEST_WINDOW_MS: u64 = 1000;
/// Answers may take so much longer than without load, in percent.
const TOLERANCE: f64 = 1.5;
/// How far one look may move the limit down.
const STEEPEST: f64 = 0.6;
/// What answers take without load is found again after so long, ms.
const PROBE_MS: u64 = 20_000;
/// Windows with half of the limit: the first still has answers of the time before.
const PROBE_WINDOWS: u32 = 2;
/// The limit begins here.
const FIRST: f64 = 16.0;

/// Whose turn it is when there is not room for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// First to go.
    Low,
    /// As most.
    #[default]
    Normal,
    /// Last to go.
    High,
}

impl Priority {
    /// Up to which part of the limit it is let in, in percent.
    fn share(self) -> u64 {
        match self {
            Priority::Low => 70,
            Priority::Normal => 100,
            Priority::High => 125,
        }
    }
}

/// Where the limit may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// At least.
    pub min: u32,
    /// At most.
    pub max: u32,
}

/// A limit that finds itself.
#[derive(Debug)]
pub struct Limiter {
    bounds: Bounds,
    /// The limit now.
    limit: AtomicU32,
    under_way: AtomicU32,
    refused: AtomicU64,
    found: Mutex<Estimate>,
}

#[derive(Debug)]
struct Estimate {
    limit: f64,
    /// What answers take without load, µs.
    alone_us: f64,
    probed_ms: u64,
    /// Windows left with half of the limit.
    probing: u32,
    window: Window,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    since_ms: u64,
    answers: u64,
    sum_us: u64,
    most_under_way: u32,
}

impl Limiter {
    /// A new limit.
    pub fn new(bounds: Bounds) -> Limiter {
        let bounds = Bounds { min: bounds.min.max(1), max: bounds.max.max(bounds.min).max(1) };
        let limit = FIRST.clamp(f64::from(bounds.min), f64::from(bounds.max));
        let found = Estimate { limit, alone_us: f64::INFINITY, probed_ms: 0, probing: 0, window: Window::default() };
        Limiter {
            bounds,
            limit: AtomicU32::new(limit as u32),
            under_way: AtomicU32::new(0),
            refused: AtomicU64::new(0),
            found: Mutex::new(found),
        }
    }

    /// A request wants to begin. True: it counts until [`Limiter::leave`].
    pub fn enter(&self, priority: Priority) -> bool {
        let limit = self.limit.load(Relaxed);
        let room = (u64::from(limit) * priority.share()).div_ceil(100).max(1);
        let before = self.under_way.fetch_add(1, Relaxed);
        if u64::from(before) < room {
            return true;
        }
        self.under_way.fetch_sub(1, Relaxed);
        false
    }

    /// A request begins whatever the limit.
    pub fn force(&self) {
        self.under_way.fetch_add(1, Relaxed);
    }

    /// A request that had begun is over.
    pub fn leave(&self) {
        self.under_way.fetch_sub(1, Relaxed);
    }

    /// A request was refused.
    pub fn refuse(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// The limit, requests under way, and how many were refused.
    pub fn numbers(&self) -> (u32, u32, u64) {
        (self.limit.load(Relaxed), self.under_way.load(Relaxed), self.refused.load(Relaxed))
    }

    /// What answers take without load, µs, as far as is known.
    pub fn alone_us(&self) -> Option<u64> {
        let alone = self.found.lock().unwrap_or_else(PoisonError::into_inner).alone_us;
        alone.is_finite().then_some(alone as u64)
    }

    /// An answer has come after so long.
    pub fn answered(&self, took_us: u64, now_ms: u64) {
        // Another thread is at it: one answer more or less does not matter.
        let Ok(mut found) = self.found.try_lock() else { return };
        let window = &mut found.window;
        if window.answers == 0 {
            window.since_ms = now_ms;
        }
        window.answers += 1;
        window.sum_us += took_us;
        window.most_under_way = window.most_under_way.max(self.under_way.load(Relaxed));
        let age = now_ms.saturating_sub(window.since_ms);
        if age >= WINDOW_MS && window.answers >= LEAST_ANSWERS || age >= LONGEST_WINDOW_MS {
            found.look(self.bounds, now_ms);
            self.limit.store(found.shown(self.bounds), Relaxed);
        }
    }
}

impl Estimate {
    fn look(&mut self, bounds: Bounds, now_ms: u64) {
        let window = std::mem::take(&mut self.window);
        let took = window.sum_us as f64 / window.answers.max(1) as f64;
        if self.probed_ms == 0 {
            self.probed_ms = now_ms;
        }
        if self.probing > 0 {
            self.probing -= 1;
            if self.probing == 0 {
                (self.alone_us, self.probed_ms) = (took, now_ms);
            }
            return;
        }
        self.alone_us = self.alone_us.min(took);
        let is_used = f64::from(window.most_under_way) * 2.0 >= self.limit;
        let gradient = (TOLERANCE * self.alone_us / took.max(1.0)).clamp(STEEPEST, 1.0);
        if gradient < 1.0 || is_used {
            let wanted = self.limit * gradient + self.limit.sqrt();
            // Down at once, up by and by.
            self.limit = if wanted < self.limit { wanted } else { self.limit + (wanted - self.limit) / 2.0 };
            self.limit = self.limit.clamp(f64::from(bounds.min), f64::from(bounds.max));
        }
        if is_used && now_ms.saturating_sub(self.probed_ms) >= PROBE_MS {
            self.probing = PROBE_WINDOWS;
        }
    }

    fn shown(&self, bounds: Bounds) -> u32 {
        let limit = self.limit.round() as u32;
        if self.probing > 0 { (limit / 2).max(bounds.min) } else { limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BinaryHeap;

    /// A peer with so many workers of `took_us` each, offered `per_second` requests by a limiter; who waits longer than `patience_us` is no use to anybody.
    /// Good answers a second over the last half of the time.
    fn simulate(limiter: Option<&Limiter>, workers: usize, took_us: u64, per_second: u64, seconds: u64) -> u64 {
        let patience_us = took_us * 10;
        let mut free_at: BinaryHeap<_> = (0..workers).map(|_| std::cmp::Reverse(0u64)).collect();
        // Ends of requests, the first on top.
        let mut ends: BinaryHeap<(std::cmp::Reverse<u64>, u64)> = BinaryHeap::new();
        let mut good = 0;
        for n in 0..per_second * seconds {
            let now = n * 1_000_000 / per_second + 1;
            while let Some((std::cmp::Reverse(end), began)) = ends.peek().copied().filter(|(end, _)| end.0 <= now) {
                ends.pop();
                if let Some(limiter) = limiter {
                    limiter.leave();
                    limiter.answered(end - began, end / 1000);
                }
                good += u64::from(end - began <= patience_us && end > seconds * 500_000);
            }
            if limiter.is_some_and(|limiter| !limiter.enter(Priority::Normal)) {
                continue;
            }
            let std::cmp::Reverse(free) = free_at.pop().expect("there are some");
            let end = free.max(now) + took_us;
            free_at.push(std::cmp::Reverse(end));
            ends.push((std::cmp::Reverse(end), now));
        }
        good * 2 / seconds
    }

    #[test]
    fn three_times_the_capacity_keeps_the_goodput() {
        for (workers, took_us) in [(4, 20_000), (8, 20_000), (50, 5_000), (200, 50_000)] {
            let capacity = workers as u64 * 1_000_000 / took_us;
            let limiter = Limiter::new(Bounds { min: 2, max: 10_000 });
            let good = simulate(Some(&limiter), workers, took_us, capacity * 3, 60);
            assert!(good * 10 >= capacity * 9, "{workers} workers: {good} of {capacity}, {:?}", limiter.numbers());
            let (limit, ..) = limiter.numbers();
            assert!(limit as usize <= workers * 4, "{workers} workers: {limit}");
            let without = simulate(None, workers, took_us, capacity * 3, 20);
            assert!(without * 10 < capacity, "without a limit all wait: {without} of {capacity}");
        }
    }

    #[test]
    fn what_fits_is_never_refused() {
        let limiter = Limiter::new(Bounds { min: 2, max: 10_000 });
        let good = simulate(Some(&limiter), 100, 20_000, 2_000, 60);
        assert!(good >= 1990, "{good}");
    }

    #[test]
    fn the_low_go_first() {
        let limiter = Limiter::new(Bounds { min: 10, max: 10 });
        let fill = |priority| (0..100).take_while(|_| limiter.enter(priority)).count();
        assert_eq!((fill(Priority::Low), fill(Priority::Normal), fill(Priority::High)), (7, 3, 3));
        limiter.refuse();
        limiter.leave();
        assert_eq!(limiter.numbers(), (10, 12, 1));
    }
}
