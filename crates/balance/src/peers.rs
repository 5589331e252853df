//! What the balancer sees of a group of peers. The state itself lives in the server, in atomics.

use crate::Latency;

/// [`Peers::ramp`] of a peer that gets its whole share.
pub const FULL_RAMP: u32 = 256;

/// A view of the peers of one group, primary or backup. Indices run from 0 to `len() - 1` and keep their meaning while
/// a request tries peers.
pub trait Peers {
    /// Number of peers.
    fn len(&self) -> usize;

    /// The configured `weight`, at least 1.
    fn weight(&self, peer: usize) -> u32;

    /// Requests or connections the peer has now.
    fn conns(&self, peer: usize) -> u32;

    /// False if `down` or draining.
    fn enabled(&self, peer: usize) -> bool;

    /// No peers at all, as with names that did not resolve yet.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One peer and no alternative. Override with `false` in groups that have backups: then even one peer is subject to
    /// `max_fails`.
    fn single(&self) -> bool {
        self.len() == 1
    }

    /// Sum of all configured weights. Override if it is known.
    fn total_weight(&self) -> u64 {
        (0..self.len()).map(|peer| u64::from(self.weight(peer))).sum()
    }

    /// Part of its share a peer gets while `slow_start` warms it up, 0 to [`FULL_RAMP`].
    fn ramp(&self, _peer: usize) -> u32 {
        FULL_RAMP
    }

    /// `max_conns`, 0 for no limit.
    fn max_conns(&self, _peer: usize) -> u32 {
        0
    }

    /// False if `down`; a draining peer still takes the clients bound to it.
    fn accepts_sessions(&self, peer: usize) -> bool {
        self.enabled(peer)
    }

    /// True while the peer is set aside for failures (passive or by health checks).
    fn failed(&self, _peer: usize) -> bool {
        false
    }

    /// Times for `least_time`. The view may fold the time of requests under way into the average when asked
    /// ([`Inflight::observe`](crate::Inflight::observe)), as nginx does while choosing.
    fn latency(&self, _peer: usize) -> Latency {
        Latency::default()
    }

    /// The peer has room under `max_conns`.
    fn below_max_conns(&self, peer: usize) -> bool {
        let max = self.max_conns(peer);
        max == 0 || self.conns(peer) < max
    }

    /// Switched on and not full.
    fn open(&self, peer: usize) -> bool {
        self.enabled(peer) && self.below_max_conns(peer)
    }

    /// Switched on, not set aside, not full: may be chosen.
    fn available(&self, peer: usize) -> bool {
        self.enabled(peer) && !self.failed(peer) && self.below_max_conns(peer)
    }
}
