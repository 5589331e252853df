//! What `modsecurity` has found: requests that were judged, and which rules matched. From: the log phase of a request.

use super::tally::Tally;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

const JUDGED: usize = 0;
const MATCHED: usize = 1;
const REFUSED: usize = 2;
const GIVEN_UP: usize = 3;

/// Rules whose matches are counted each for itself. The Core Rule Set has 700; rules that come later are not counted.
const MAX_RULES: usize = 4_096;

static ALL: Tally<4> = Tally::new();
/// Matches by the rule's id. Only requests that match something come here.
static RULES: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

/// What became of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// It, or its answer, was refused.
    pub refused: bool,
    /// It cost too much to be judged, or the engine failed.
    pub given_up: bool,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests under rules.
    pub judged: u64,
    /// Those of which some rule had something to say.
    pub matched: u64,
    /// Those that were refused.
    pub refused: u64,
    /// Those that could not be judged.
    pub given_up: u64,
}

/// Counts a request with the rules that matched.
pub fn count(seen: Seen, matched: impl Iterator<Item = u64>) {
    let mine = ALL.mine();
    mine.add(JUDGED, 1);
    mine.add(REFUSED, u64::from(seen.refused));
    mine.add(GIVEN_UP, u64::from(seen.given_up));
    let mut matched = matched.peekable();
    if matched.peek().is_none() {
        return;
    }
    mine.add(MATCHED, 1);
    let mut rules = lock();
    for id in matched {
        if rules.len() < MAX_RULES || rules.contains_key(&id) {
            *rules.entry(id).or_default() += 1;
        }
    }
}

/// Adds up.
pub fn totals() -> Totals {
    let n = ALL.sums();
    Totals { judged: n[JUDGED], matched: n[MATCHED], refused: n[REFUSED], given_up: n[GIVEN_UP] }
}

/// Ids of rules that matched, and how often; those that matched most come first.
pub fn matches() -> Vec<(u64, u64)> {
    let mut all: Vec<_> = lock().iter().map(|(id, n)| (*id, *n)).collect();
    all.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    all
}

/// Sets to zero.
pub fn reset() {
    ALL.reset(&[]);
    lock().clear();
}

fn lock() -> MutexGuard<'static, BTreeMap<u64, u64>> {
    RULES.lock().unwrap_or_else(PoisonError::into_inner)
}
