//! How unevenly the peers of a group are used: what sessions, hashes and weights make of it. Looked at over what was counted
//! lately (one to two minutes if somebody asks that often), since what was uneven yesterday says nothing. Asked on the service
//! thread.

use crate::upstream::group::Group;
use runtime::clock;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// How long a mark is the newer one of two.
const STEP_MS: u64 = 60_000;
/// Marks of groups that nobody asked about for so long are forgotten.
const FORGET_MS: u64 = 3_600_000;

/// Requests of peers (by the number of their state) at a moment.
#[derive(Default)]
struct Mark {
    at_ms: u64,
    requests: HashMap<u32, u64>,
}

/// What is looked at begins at the older mark.
struct Window {
    older: Mark,
    newer: Mark,
    asked_ms: u64,
}

/// By the group's number.
static WINDOWS: Mutex<Option<HashMap<u32, Window>>> = Mutex::new(None);

impl Mark {
    fn of(group: &Group, at_ms: u64) -> Mark {
        let tiers = group.tiers_now();
        let requests = tiers[0].peers.iter().map(|p| (p.state.number, p.state.counts.requests())).collect();
        Mark { at_ms, requests }
    }
}

/// The busiest peer's requests over the mean of all, in hundredths: 100 is even. None without requests.
pub fn lately(group: &Group) -> Option<u64> {
    skew_at(group, clock::monotonic_ms())
}

fn skew_at(group: &Group, now_ms: u64) -> Option<u64> {
    let mut windows = WINDOWS.lock().unwrap_or_else(PoisonError::into_inner);
    let windows = windows.get_or_insert_default();
    windows.retain(|_, w| now_ms.saturating_sub(w.asked_ms) < FORGET_MS);
    let begun = || Window { older: Mark::default(), newer: Mark::of(group, now_ms), asked_ms: now_ms };
    let window = windows.entry(group.number).or_insert_with(begun);
    window.asked_ms = now_ms;
    if now_ms.saturating_sub(window.newer.at_ms) >= STEP_MS {
        window.older = std::mem::replace(&mut window.newer, Mark::of(group, now_ms));
    }
    let before = &window.older.requests;
    let skew = group.skew(|p| before.get(&p.state.number).copied().unwrap_or(0))?;
    Some((skew * 100.0).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Address;

    #[test]
    fn what_was_long_ago_does_not_count() {
        let address = |port| Address::Inet(([127, 0, 0, 1], port).into());
        let group = Group::for_one_request("skew", vec![address(1), address(2)]);
        let chosen = |i: usize, n: u32| (0..n).for_each(|_| group.tiers[0].peers[i].state.counts.chosen());
        assert_eq!(skew_at(&group, 1), None);
        chosen(0, 4);
        assert_eq!(skew_at(&group, 2), Some(200), "all at one of two");
        chosen(1, 4);
        assert_eq!(skew_at(&group, 3), Some(100));
        assert_eq!(skew_at(&group, STEP_MS + 1), Some(100), "the first mark is that of nothing counted");
        chosen(1, 2);
        assert_eq!(skew_at(&group, 2 * STEP_MS + 1), Some(200), "only what came after the second");
    }
}
