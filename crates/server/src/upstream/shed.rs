//! What keeps a group of peers from more than it can do: `concurrency_limit`, whose limit finds itself, and `circuit_breaker`. From: `retry`, before a peer is
//! chosen. What is known outlives reloads. The arithmetic is the crate `shield`.

use runtime::clock;
use shield::breaker::{Breaker, Rules, State};
use shield::limiter::{Bounds, Limiter, Priority};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What is written of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// `concurrency_limit`
    pub limit: Option<Bounds>,
    /// `circuit_breaker`
    pub breaker: Option<Rules>,
}

/// What is known of a group.
#[derive(Debug)]
pub struct Shed {
    group: u32,
    settings: Settings,
    limiter: Option<Limiter>,
    breaker: Breaker,
    /// Refused since the breaker was open.
    broken: AtomicU64,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// As many as may be are under way.
    Concurrency,
    /// The breaker is open.
    Breaker,
}

/// Those that some configuration has.
static ALL: Mutex<Vec<Weak<Shed>>> = Mutex::new(Vec::new());

impl Shed {
    /// That of a group, by its number: the one there is if it was written the same, or a new one. None: nothing is written.
    pub fn find(group: u32, settings: Settings) -> Option<Arc<Shed>> {
        if settings == Settings::default() {
            return None;
        }
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|shed| shed.strong_count() > 0);
        let known = all.iter().filter_map(Weak::upgrade).find(|s| s.group == group && s.settings == settings);
        Some(known.unwrap_or_else(|| {
            let (limiter, breaker) = (settings.limit.map(Limiter::new), Breaker::default());
            let shed = Arc::new(Shed { group, settings, limiter, breaker, broken: AtomicU64::new(0) });
            all.push(Arc::downgrade(&shed));
            shed
        }))
    }

    /// Lets a request begin.
    pub fn enter(self: &Arc<Shed>, priority: Priority) -> Result<Permit, Refused> {
        if let Some(limiter) = &self.limiter
            && !limiter.enter(priority)
        {
            return Err(Refused::Concurrency);
        }
        let permit = Permit { shed: self.clone(), began_us: clock::monotonic_us(), judged: false };
        if let Some(rules) = self.settings.breaker
            && !self.breaker.lets_pass(rules, clock::monotonic_ms())
        {
            self.broken.fetch_add(1, Relaxed);
            return Err(Refused::Breaker);
        }
        Ok(permit)
    }

    /// Notes that one was refused for lack of room.
    pub fn refuse(&self) {
        self.limiter.iter().for_each(Limiter::refuse);
    }

    /// Limit, requests under way, and refused ones.
    pub fn concurrency(&self) -> Option<(u32, u32, u64)> {
        self.limiter.as_ref().map(Limiter::numbers)
    }

    /// What answers take without load, as far as is known, µs.
    pub fn alone_us(&self) -> Option<u64> {
        self.limiter.as_ref().and_then(Limiter::alone_us)
    }

    /// How the breaker stands, how often it has opened, and how many it has refused.
    pub fn breaker(&self) -> Option<(State, u64, u64)> {
        self.settings.breaker?;
        Some((self.breaker.state(clock::monotonic_ms()), self.breaker.opened(), self.broken.load(Relaxed)))
    }

    fn record(&self, good: bool) {
        if let Some(rules) = self.settings.breaker
            && self.breaker.record(rules, good, clock::monotonic_ms())
        {
            let open = rules.open_ms / 1000;
            let text = format_args!("circuit breaker of an upstream opens for {open} s: too many of its answers fail");
            crate::log::process_line(crate::log::error::Level::Warn, text);
        }
    }
}

/// A request that was let in. Counts as under way until it is dropped.
#[derive(Debug)]
pub struct Permit {
    shed: Arc<Shed>,
    began_us: u64,
    /// Its try has been judged.
    judged: bool,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shed.limiter.iter().for_each(Limiter::leave);
    }
}

impl Permit {
    /// The answer's head has come.
    pub fn answered(&mut self, status: u16) {
        if std::mem::replace(&mut self.judged, true) {
            return;
        }
        if let Some(limiter) = &self.shed.limiter {
            limiter.answered(clock::monotonic_us().saturating_sub(self.began_us), clock::monotonic_ms());
        }
        self.shed.record(status < 500);
    }

    /// The try brought no answer, and the peer is to blame.
    pub fn failed(&mut self) {
        if std::mem::replace(&mut self.judged, true) {
            return;
        }
        // A timeout says as much as a slow answer.
        if let Some(limiter) = &self.shed.limiter {
            limiter.answered(clock::monotonic_us().saturating_sub(self.began_us), clock::monotonic_ms());
        }
        self.shed.record(false);
    }

    /// Another try begins.
    pub fn again(&mut self) {
        (self.judged, self.began_us) = (false, clock::monotonic_us());
    }
}
