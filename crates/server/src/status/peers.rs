//! What the API shows of a peer beside its own counts (`upstream::counts`): how long its answers took, and what it had
//! counted when somebody set that to zero. Part of a peer's state, so it outlives reloads.

pub use super::latency::BOUNDS_MS;
use super::latency::{STEPS, Times};
use super::ssl;
use crate::upstream::Attempt;
use crate::upstream::counts::Totals;
use crate::upstream::peer::PeerState;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

/// See the top of the file.
#[derive(Debug, Default)]
pub struct Shown {
    times: Times,
    /// TLS handshakes with it.
    pub ssl: ssl::Counts,
    zero: Mutex<Option<Box<Zero>>>,
}

/// What had been counted when it was set to zero.
#[derive(Debug)]
struct Zero {
    totals: Totals,
    fails: u64,
    unavail: u64,
}

/// What was counted of a peer.
#[derive(Clone, Debug)]
pub struct Counted {
    /// Requests, answers, bytes.
    pub totals: Totals,
    /// Tries that failed.
    pub fails: u64,
    /// How often it was set aside for them.
    pub unavail: u64,
    /// Answers by their time: one number for each of [`BOUNDS_MS`], then those that took longer.
    pub times: [u64; STEPS],
    /// All times together, ms.
    pub times_sum_ms: u64,
}

impl Shown {
    /// A try has ended.
    pub fn count(&self, attempt: &Attempt) {
        if let (Some(ms), Some(_)) = (attempt.response_ms, attempt.header_ms) {
            self.times.count(ms);
        }
    }
}

/// Adds up.
pub fn counted(state: &PeerState) -> Counted {
    let (times, times_sum_ms) = state.shown.times.read();
    let (mut totals, mut fails) = (state.counts.totals(), state.fails.load(Relaxed));
    let mut unavail = state.unavail.load(Relaxed);
    if let Some(zero) = &*state.shown.zero.lock().unwrap_or_else(PoisonError::into_inner) {
        subtract(&mut totals, &zero.totals);
        fails -= zero.fails;
        unavail -= zero.unavail;
    }
    Counted { totals, fails, unavail, times, times_sum_ms }
}

fn subtract(from: &mut Totals, zero: &Totals) {
    from.requests -= zero.requests;
    from.sent -= zero.sent;
    from.received -= zero.received;
    from.responses -= zero.responses;
    from.header_ms -= zero.header_ms;
    from.classes.iter_mut().zip(zero.classes).for_each(|(n, z)| *n -= z);
    for (code, n) in &mut from.codes {
        *n -= zero.codes.iter().find(|(c, _)| c == code).map_or(0, |(_, z)| *z);
    }
    from.codes.retain(|(_, n)| *n > 0);
}

/// Sets to zero.
pub fn reset(state: &PeerState) {
    let (totals, fails, unavail) = (state.counts.totals(), state.fails.load(Relaxed), state.unavail.load(Relaxed));
    let mut zero = state.shown.zero.lock().unwrap_or_else(PoisonError::into_inner);
    *zero = Some(Box::new(Zero { totals, fails, unavail }));
    state.shown.times.reset();
    state.shown.ssl.reset(&[]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_and_all_can_be_set_to_zero() {
        let state = PeerState::default();
        for (header_ms, response_ms) in [(Some(3), Some(7)), (Some(3), Some(20_000)), (None, Some(1))] {
            state.counts.chosen();
            state.shown.count(&Attempt { header_ms, response_ms, ..Attempt::default() });
        }
        state.counts.answered(200, 3);
        let before = counted(&state);
        assert_eq!((before.times[1], before.times[14], before.times_sum_ms), (1, 1, 20_007));
        assert_eq!((before.totals.requests, &*before.totals.codes), (3, &[(200, 1)][..]));
        reset(&state);
        state.counts.answered(404, 3);
        let after = counted(&state);
        assert_eq!((after.totals.requests, after.totals.responses, after.times_sum_ms), (0, 1, 0));
        assert_eq!((after.totals.classes, &*after.totals.codes), ([0, 0, 0, 1, 0], &[(404, 1)][..]));
    }
}
