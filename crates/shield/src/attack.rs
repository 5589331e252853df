//! When a server is under attack: thresholds over what was counted since the last look. A look costs one request a second some loads; the answer is an atomic.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Between two looks, ms.
const LOOK_MS: u64 = 1000;
/// Below so many answers since the last look a share of errors says nothing.
const FEW: u64 = 20;

/// What begins it; any of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Triggers {
    /// 5xx among all answers, percent.
    pub errors_percent: Option<u64>,
    /// Requests a second.
    pub requests: Option<u64>,
    /// Requests under way.
    pub active: Option<u64>,
    /// Of the processors that the process may use, percent.
    pub cpu_percent: Option<u64>,
    /// How long it lasts after the last of them, ms.
    pub for_ms: u64,
}

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Requests.
    pub requests: u64,
    /// Answers.
    pub answers: u64,
    /// Those with 5xx.
    pub errors: u64,
    /// Requests under way.
    pub active: u64,
    /// Time of all processors, µs.
    pub cpu_us: u64,
    /// How many there are for it.
    pub cpus: u64,
}

/// Whether there is an attack.
#[derive(Debug, Default)]
pub struct Attack {
    until_ms: AtomicU64,
    next_ms: AtomicU64,
    before: Mutex<Option<(u64, Seen)>>,
}

impl Triggers {
    /// Which of them says so, of what has come in `ms`.
    pub fn judge(&self, before: Seen, now: Seen, ms: u64) -> Option<&'static str> {
        let (answers, errors) = (now.answers.saturating_sub(before.answers), now.errors.saturating_sub(before.errors));
        let above = |limit: Option<u64>, value: u64| limit.is_some_and(|limit| value >= limit);
        if answers >= FEW && above(self.errors_percent, errors * 100 / answers.max(1)) {
            return Some("errors");
        }
        if above(self.requests, now.requests.saturating_sub(before.requests) * 1000 / ms.max(1)) {
            return Some("requests");
        }
        if above(self.active, now.active) {
            return Some("active");
        }
        let cpu = now.cpu_us.saturating_sub(before.cpu_us) / 10 / ms.max(1) / now.cpus.max(1);
        above(self.cpu_percent, cpu).then_some("cpu")
    }
}

impl Attack {
    /// Whether there is one now.
    #[inline]
    pub fn is_on(&self, now_ms: u64) -> bool {
        self.until_ms.load(Relaxed) > now_ms
    }

    /// How long it lasts still, ms, unless it is seen again; 0: there is none.
    pub fn left_ms(&self, now_ms: u64) -> u64 {
        self.until_ms.load(Relaxed).saturating_sub(now_ms)
    }

    /// It is known from elsewhere that there is one.
    pub fn go_on_until(&self, until_ms: u64) {
        self.until_ms.fetch_max(until_ms, Relaxed);
    }

    /// Looks, if it is time to; `seen` is asked only then. Gives what has begun it, when it begins.
    pub fn look(&self, triggers: &Triggers, seen: impl FnOnce() -> Seen, now_ms: u64) -> Option<&'static str> {
        let next = self.next_ms.load(Relaxed);
        if next > now_ms || self.next_ms.compare_exchange(next, now_ms + LOOK_MS, Relaxed, Relaxed).is_err() {
            return None;
        }
        let mut before = self.before.try_lock().ok()?;
        let seen = seen();
        let (at, was) = before.replace((now_ms, seen))?;
        let why = triggers.judge(was, seen, now_ms.saturating_sub(at))?;
        let was_on = self.is_on(now_ms);
        self.until_ms.store(now_ms + triggers.for_ms, Relaxed);
        (!was_on).then_some(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trigger_for_itself() {
        let all = Triggers {
            errors_percent: Some(20),
            requests: Some(100),
            active: Some(50),
            cpu_percent: Some(90),
            for_ms: 1,
        };
        let calm = Seen { requests: 50, answers: 50, errors: 2, active: 3, cpu_us: 500_000, cpus: 2 };
        assert_eq!(all.judge(Seen::default(), calm, 1000), None);
        assert_eq!(all.judge(Seen::default(), Seen { errors: 10, ..calm }, 1000), Some("errors"));
        assert_eq!(all.judge(Seen::default(), Seen { errors: 10, answers: 10, ..calm }, 1000), None, "too few");
        assert_eq!(all.judge(Seen::default(), calm, 500), Some("requests"));
        assert_eq!(all.judge(Seen::default(), Seen { active: 50, ..calm }, 1000), Some("active"));
        assert_eq!(all.judge(Seen::default(), Seen { cpu_us: 1_800_000, ..calm }, 1000), Some("cpu"));
        assert_eq!(Triggers::default().judge(Seen::default(), Seen { active: 5000, ..calm }, 1), None);
    }

    #[test]
    fn it_begins_once_and_ends_after_a_while() {
        let (attack, triggers) =
            (Attack::default(), Triggers { active: Some(5), for_ms: 10_000, ..Triggers::default() });
        let busy = || Seen { active: 9, ..Seen::default() };
        assert_eq!(attack.look(&triggers, busy, 5000), None, "the first look has nothing to compare with");
        assert_eq!(attack.look(&triggers, || panic!("not yet"), 5500), None);
        assert_eq!(attack.look(&triggers, busy, 6000), Some("active"));
        assert_eq!(attack.look(&triggers, busy, 7000), None, "it goes on");
        assert!(attack.is_on(16_999) && !attack.is_on(17_000));
        assert_eq!((attack.left_ms(16_000), attack.left_ms(17_000)), (1000, 0));
        assert_eq!(attack.look(&triggers, Seen::default, 17_000), None);
        assert!(!attack.is_on(17_000));
        attack.go_on_until(20_000);
        attack.go_on_until(18_000);
        assert_eq!(attack.left_ms(17_000), 3000);
    }
}
