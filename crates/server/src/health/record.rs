//! What checks found out about a peer: counts, streaks, and what is wrong. Part of a peer's state, so it outlives reloads.
//! Written by the prober and by failed requests, read by whoever shows it.

use super::cause::Cause;
use crate::upstream::availability::MAX_CHECKS;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A peer whose health changed so often
pub const FLAPS: usize = 6;
/// within this time flaps,
pub const FLAP_WINDOW: Duration = Duration::from_secs(300);

/// See the top of the file.
#[derive(Debug, Default)]
pub struct Record {
    /// Checks made.
    pub checks: AtomicU64,
    /// Checks that failed.
    pub fails: AtomicU64,
    /// How often the peer became unhealthy.
    pub unhealthy: AtomicU64,
    /// 0: no check yet; 1: the last one failed; 2: it passed.
    last: AtomicU8,
    notes: Mutex<Notes>,
}

/// What is not counted but said.
#[derive(Debug, Default)]
pub struct Notes {
    /// Why checks fail.
    pub active: Option<Cause>,
    /// Why requests failed last.
    pub passive: Option<Cause>,
    /// Why it is ejected.
    pub outlier: Option<Cause>,
    /// For its ejection.
    pub ejection: super::outlier::Track,
    /// Of each check of the group.
    pub tracks: [Track; MAX_CHECKS],
    /// When its health changed (monotonic ms): the newest of them, newest last.
    pub changes: VecDeque<u64>,
}

/// How one check of a peer goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Track {
    /// Passed in a row.
    pub passed: u32,
    /// Failed in a row.
    pub failed: u32,
    /// When the last check began (monotonic ms); 0: never.
    pub began_ms: u64,
}

/// A peer's checks, as the API shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Checks made.
    pub checks: u64,
    /// Checks that failed.
    pub fails: u64,
    /// How often the peer became unhealthy.
    pub unhealthy: u64,
    /// Whether the last check passed; none before the first.
    pub last_passed: Option<bool>,
}

impl Notes {
    /// The peer's health changed, if it did; changes of long ago are forgotten.
    pub fn changed(&mut self, at_ms: Option<u64>) {
        let Some(at_ms) = at_ms else { return };
        if self.changes.len() == FLAPS {
            self.changes.pop_front();
        }
        self.changes.push_back(at_ms);
    }

    /// How many changes make it flap; 0: it does not.
    pub fn flapping(&self, now_ms: u64) -> usize {
        let window = FLAP_WINDOW.as_millis() as u64;
        let all = self.changes.len() == FLAPS && self.changes.front().is_some_and(|at| now_ms - at <= window);
        if all { FLAPS } else { 0 }
    }
}

impl Record {
    /// A check is over.
    pub fn count(&self, passed: bool) {
        self.checks.fetch_add(1, Relaxed);
        self.fails.fetch_add(u64::from(!passed), Relaxed);
        self.last.store(1 + u8::from(passed), Relaxed);
    }

    /// The counts.
    pub fn checks(&self) -> Checks {
        Checks {
            checks: self.checks.load(Relaxed),
            fails: self.fails.load(Relaxed),
            unhealthy: self.unhealthy.load(Relaxed),
            last_passed: match self.last.load(Relaxed) {
                0 => None,
                last => Some(last == 2),
            },
        }
    }

    /// The notes; never held across a wait.
    pub fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
