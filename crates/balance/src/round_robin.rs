//! Smooth weighted round robin (the default method), and the turn-taking all other methods fall back on.

use crate::{Choice, FULL_RAMP, Peers};

/// The turns of one group on one thread: who is due next. Each thread has its own, as each nginx worker has without
/// `zone`; put it behind a lock to share it.
///
/// In every turn each candidate gains its effective weight, the one with the most is chosen and pays what all gained:
/// with weights 5, 1, 1 that is `a a b a c a a`. A failure lowers the effective weight; each turn wins back 1.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    peers: Vec<Weight>,
}

#[derive(Clone, Copy, Debug)]
struct Weight {
    /// In 1/[`FULL_RAMP`] of a weight.
    current: i64,
    effective: u32,
}

impl Weights {
    /// Nobody has had a turn.
    pub fn new<P: Peers + ?Sized>(peers: &P) -> Self {
        let peers = (0..peers.len()).map(|peer| Weight { current: 0, effective: peers.weight(peer) }).collect();
        Weights { peers }
    }

    /// The turns of a group whose peers have changed: `before` says which index a peer had, if it was there. Who stays keeps
    /// its turn, so that a list that changes often is no list that begins with its first peer again and again.
    pub fn moved<P: Peers + ?Sized>(&self, peers: &P, before: impl Fn(usize) -> Option<usize>) -> Self {
        let mut weights = Weights::new(peers);
        for (peer, weight) in weights.peers.iter_mut().enumerate() {
            if let Some(old) = before(peer).and_then(|index| self.peers.get(index)) {
                weight.current = old.current;
                weight.effective = old.effective.min(weight.effective);
            }
        }
        weights
    }

    /// A peer's current and effective weight, to be shown.
    pub fn of(&self, peer: usize) -> Option<(i64, u32)> {
        self.peers.get(peer).map(|weight| (weight.current / i64::from(FULL_RAMP), weight.effective))
    }

    /// A try at a peer failed: it loses `weight / max_fails` of its effective weight (nothing if `max_fails` is 0).
    pub fn failed<P: Peers + ?Sized>(&mut self, peers: &P, peer: usize, max_fails: u32) {
        self.fit(peers);
        if max_fails > 0 && !peers.single() {
            let loss = peers.weight(peer) / max_fails;
            let weight = &mut self.peers[peer];
            weight.effective = weight.effective.saturating_sub(loss);
        }
    }

    /// Starts anew if the group has changed its size.
    pub(crate) fn fit<P: Peers + ?Sized>(&mut self, peers: &P) {
        if self.peers.len() != peers.len() {
            *self = Weights::new(peers);
        }
    }

    /// One candidate's gain in this turn.
    pub(crate) fn gain<P: Peers + ?Sized>(&mut self, peers: &P, peer: usize) -> i64 {
        let weight = &mut self.peers[peer];
        let gain = i64::from(weight.effective) * i64::from(peers.ramp(peer).min(FULL_RAMP));
        weight.current += gain;
        weight.effective = weight.effective.saturating_add(1).min(peers.weight(peer));
        gain
    }

    pub(crate) fn current(&self, peer: usize) -> i64 {
        self.peers[peer].current
    }

    pub(crate) fn pay(&mut self, peer: usize, total: i64) {
        self.peers[peer].current -= total;
    }
}

impl<P: Peers + ?Sized> Choice<'_, P> {
    /// Weighted round robin.
    pub fn round_robin(&mut self) -> Option<usize> {
        if self.peers.single() {
            return self.only_peer();
        }
        let (best, total) = self.turn(0..self.peers.len())?;
        self.weights.pay(best, total);
        Some(self.note(best))
    }

    /// Weighted round robin for a client bound to `wanted`, which is chosen if it can be. It pays for the turn, so that
    /// the others get their share of the clients without a session.
    pub fn round_robin_sticky(&mut self, wanted: usize) -> Option<usize> {
        let Some(wanted) = self.session_peer(wanted) else {
            return self.round_robin();
        };
        if self.peers.single() {
            return Some(wanted);
        }
        let others = self.peers.total_weight().saturating_sub(u64::from(self.peers.weight(wanted)));
        let debt_max = i64::try_from(others).unwrap_or(i64::MAX).saturating_mul(i64::from(FULL_RAMP));
        if self.weights.current(wanted) > -debt_max {
            let total = self.turn(0..self.peers.len()).map_or(0, |(_, total)| total);
            self.weights.pay(wanted, total);
        }
        Some(self.note(wanted))
    }

    /// All candidates of `peers` gain; the one with the most, and what all gained. The chosen one has yet to pay.
    pub(crate) fn turn(&mut self, peers: impl Iterator<Item = usize>) -> Option<(usize, i64)> {
        let mut best: Option<(usize, i64)> = None;
        let mut total = 0;
        for peer in peers {
            if !self.candidate(peer) {
                continue;
            }
            total += self.weights.gain(self.peers, peer);
            let current = self.weights.current(peer);
            if best.is_none_or(|(_, most)| current > most) {
                best = Some((peer, current));
            }
        }
        best.map(|(peer, _)| (peer, total))
    }
}
