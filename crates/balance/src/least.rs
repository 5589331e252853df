//! `least_conn` and `least_time`: the peer with the least to do for its weight, round robin among equals.

use crate::{Choice, Peers};

/// Response times are compared in steps of this many microseconds, so that peers about as fast take turns.
const STEP_US: u64 = 20_000;
/// Peers slower than this are equally bad; the number of their connections decides.
const SLOWEST_US: u64 = 5_000_000;

/// What `least_time` knows of a peer. All zero for one that has not answered yet: it is tried first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latency {
    /// Average time to the header (`header`, stream `connect` or `first_byte`) or to the last byte, in microseconds;
    /// see [`average`].
    pub average_us: u64,
    /// Average time requests under way have taken so far (`inflight`), if there are any.
    pub inflight_us: Option<u64>,
    /// Seconds since the peer was last chosen or failed.
    pub idle_s: u64,
    /// The peer's `fail_timeout` in seconds: each one that passes idle halves the average, so that a slow peer gets
    /// another chance.
    pub fail_timeout_s: u64,
}

impl Latency {
    /// Microseconds the peer will need for what it has and one request more.
    pub fn estimate_us(self, conns: u32) -> u64 {
        let mut time = self.average_us;
        if self.idle_s > self.fail_timeout_s {
            let halvings = self.idle_s / (self.fail_timeout_s + 1);
            time = u32::try_from(halvings).ok().and_then(|halvings| time.checked_shr(halvings)).unwrap_or(0);
        }
        time = time.max(self.inflight_us.unwrap_or(0));
        let time = if time > SLOWEST_US { SLOWEST_US } else { time + STEP_US - time % STEP_US };
        time * (1 + u64::from(conns))
    }
}

/// Of how many parts of a moving average a new sample is one.
const PARTS: u64 = 20;

/// A moving average that a new sample enters with 5 %; the first sample is the average. Microseconds. It is rounded towards the
/// sample, so that it gets there whether it rises or falls.
pub fn average(average_us: u64, sample_us: u64) -> u64 {
    if average_us == 0 {
        return sample_us;
    }
    let step = average_us.abs_diff(sample_us).div_ceil(PARTS);
    // Zero is for those that have not answered yet.
    if sample_us < average_us { (average_us - step).max(1) } else { average_us + step }
}

/// The requests a peer has under way, for `least_time ... inflight`. One for each peer; times are of one monotonic
/// clock in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inflight {
    /// Requests under way.
    pub requests: u32,
    /// Time all of them had taken at `changed_us`.
    pub spent_us: u64,
    /// When `requests` last changed.
    pub changed_us: u64,
    /// Average of what [`observe`](Inflight::observe) saw.
    pub average_us: u64,
}

impl Inflight {
    /// A request was sent to the peer.
    pub fn begin(&mut self, now_us: u64) {
        self.settle(now_us);
        self.requests += 1;
    }

    /// A request came to its end (the header or the last byte, as configured) `took_us` after it began.
    pub fn end(&mut self, now_us: u64, took_us: u64) {
        self.settle(now_us);
        self.requests = self.requests.saturating_sub(1);
        self.spent_us = if self.requests == 0 { 0 } else { self.spent_us.saturating_sub(took_us) };
    }

    /// Looks at the peer while choosing: the averaged time of requests under way, for [`Latency::inflight_us`].
    pub fn observe(&mut self, now_us: u64) -> Option<u64> {
        if self.requests == 0 {
            return None;
        }
        let now = self.spent_us / u64::from(self.requests) + now_us.saturating_sub(self.changed_us);
        self.average_us = average(self.average_us, now);
        Some(self.average_us)
    }

    fn settle(&mut self, now_us: u64) {
        self.spent_us += now_us.saturating_sub(self.changed_us) * u64::from(self.requests);
        self.changed_us = now_us;
    }
}

impl<P: Peers + ?Sized> Choice<'_, P> {
    /// The peer with the fewest connections for its weight.
    pub fn least_conn(&mut self) -> Option<usize> {
        let peers = self.peers;
        self.least(|peer| u64::from(peers.conns(peer)))
    }

    /// The peer that is estimated to be done first, by [`Peers::latency`].
    pub fn least_time(&mut self) -> Option<usize> {
        let peers = self.peers;
        self.least(|peer| peers.latency(peer).estimate_us(peers.conns(peer)))
    }

    /// The peer with the least cost for its weight; if several have it, weighted round robin from the first of them on.
    fn least(&mut self, cost: impl Fn(usize) -> u64) -> Option<usize> {
        if self.peers.single() {
            return self.only_peer();
        }
        let (first, least, equals) = self.first_of_least(&cost)?;
        let mut best = first;
        if equals {
            let mut total = 0;
            for peer in first..self.peers.len() {
                if !self.candidate(peer) || !load(self.peers, peer, cost(peer)).equals(&least) {
                    continue;
                }
                total += self.weights.gain(self.peers, peer);
                if self.weights.current(peer) > self.weights.current(best) {
                    best = peer;
                }
            }
            self.weights.pay(best, total);
        }
        Some(self.note(best))
    }

    fn first_of_least(&self, cost: impl Fn(usize) -> u64) -> Option<(usize, Load, bool)> {
        let mut best: Option<(usize, Load)> = None;
        let mut equals = false;
        for peer in 0..self.peers.len() {
            if !self.candidate(peer) {
                continue;
            }
            let own = load(self.peers, peer, cost(peer));
            match &best {
                Some((_, least)) if own.equals(least) => equals = true,
                Some((_, least)) if !own.below(least) => {}
                _ => {
                    best = Some((peer, own));
                    equals = false;
                }
            }
        }
        best.map(|(peer, least)| (peer, least, equals))
    }
}

/// A cost in relation to a share, compared without division.
pub(crate) struct Load {
    cost: u128,
    share: u128,
}

pub(crate) fn load<P: Peers + ?Sized>(peers: &P, peer: usize, cost: u64) -> Load {
    Load { cost: u128::from(cost), share: u128::from(peers.weight(peer)) * u128::from(peers.ramp(peer)) }
}

impl Load {
    pub(crate) fn below(&self, other: &Load) -> bool {
        self.cost * other.share < other.cost * self.share
    }

    fn equals(&self, other: &Load) -> bool {
        self.cost * other.share == other.cost * self.share
    }
}
