//! Choosing a peer: which member of an upstream group gets the next request or connection.
//!
//! Place: the HTTP and stream balancers (and later the kernel balancer) call this before they look for a connection.
//! Pure: no clock, socket, lock or thread; times and random numbers are arguments, the shared state of the peers is
//! seen through [`Peers`]. No choice allocates in ordinary use.
//!
//! Every method makes the same choice as nginx's module of that name, so that the same requests meet the same peers.
//!
//! ```
//! use balance::{Choice, Peers, Tried, Weights};
//! struct Group([u32; 3]);
//! impl Peers for Group {
//!     fn len(&self) -> usize { self.0.len() }
//!     fn weight(&self, peer: usize) -> u32 { self.0[peer] }
//!     fn conns(&self, _peer: usize) -> u32 { 0 }
//!     fn enabled(&self, _peer: usize) -> bool { true }
//! }
//! let group = Group([5, 1, 1]);
//! let mut weights = Weights::new(&group);                       // one for each thread and group
//! let mut tried = Tried::new();                                 // one for each request
//! let chosen = Choice::new(&group, &mut weights, &mut tried).round_robin();
//! assert_eq!(chosen, Some(0));
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod crc32;
mod failures;
mod hash;
mod least;
mod maglev;
mod peers;
mod random;
mod ring;
mod round_robin;
mod session;
mod tried;

pub use crc32::crc32;
pub use failures::{FailurePolicy, Failures};
pub use hash::ip_hash_key;
pub use least::{Inflight, Latency, average};
pub use maglev::{MAGLEV_SLOTS, Maglev};
pub use peers::{FULL_RAMP, Peers};
pub use random::Ranges;
pub use ring::Ring;
pub use round_robin::Weights;
pub use session::session_id;
pub use tried::Tried;

/// How many peers in vain the hashing and random methods look at before round robin decides, as in nginx.
const LOOKS_MAX: u8 = 20;

/// One choice among the peers of one group, for one request. Holds nothing of its own: make one whenever needed.
///
/// All methods answer the peer's index and note it in `tried`, or `None` when no peer can be used now; the caller then
/// goes on to the backup group (with that group's own [`Weights`] and a [cleared](Tried::clear) `tried`) or gives up.
/// A [single](Peers::single) peer is not noted: nginx may use it again after a stale kept connection, so the caller's
/// count of tries is what ends that.
pub struct Choice<'a, P: Peers + ?Sized> {
    peers: &'a P,
    weights: &'a mut Weights,
    tried: &'a mut Tried,
}

impl<'a, P: Peers + ?Sized> Choice<'a, P> {
    /// A choice among `peers`, with the thread's turn-taking state and what the request tried before.
    pub fn new(peers: &'a P, weights: &'a mut Weights, tried: &'a mut Tried) -> Self {
        weights.fit(peers);
        Choice { peers, weights, tried }
    }

    /// The peer a client is bound to by a session, if it can take requests (a draining one can). For every method but
    /// round robin, which has [its own](Choice::round_robin_sticky).
    pub fn sticky(&mut self, wanted: usize) -> Option<usize> {
        let usable = self.session_peer(wanted)?;
        Some(self.note(usable))
    }

    fn session_peer(&self, wanted: usize) -> Option<usize> {
        let peers = self.peers;
        let usable = wanted < peers.len()
            && !self.tried.contains(wanted)
            && peers.accepts_sessions(wanted)
            && peers.below_max_conns(wanted)
            && !peers.failed(wanted);
        usable.then_some(wanted)
    }

    fn candidate(&self, peer: usize) -> bool {
        !self.tried.contains(peer) && self.peers.available(peer)
    }

    /// The only peer, unless it is switched off or full: failures do not count for a peer without an alternative.
    fn only_peer(&self) -> Option<usize> {
        (self.peers.len() == 1 && self.peers.open(0)).then_some(0)
    }

    fn note(&mut self, peer: usize) -> usize {
        self.tried.insert(peer);
        peer
    }
}

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
