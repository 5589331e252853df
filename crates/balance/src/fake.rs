//! A group of peers for the tests.

use crate::{Choice, Latency, Peers, Tried, Weights};

#[derive(Clone, Debug)]
pub(crate) struct Fake {
    pub(crate) weight: u32,
    pub(crate) conns: u32,
    pub(crate) max_conns: u32,
    pub(crate) up: bool,
    pub(crate) failed: bool,
    pub(crate) draining: bool,
    pub(crate) ramp: u32,
    pub(crate) average_us: u64,
}

pub(crate) fn group(weights: &[u32]) -> Vec<Fake> {
    let peer = |weight: &u32| Fake {
        weight: *weight,
        conns: 0,
        max_conns: 0,
        up: true,
        failed: false,
        draining: false,
        ramp: crate::FULL_RAMP,
        average_us: 0,
    };
    weights.iter().map(peer).collect()
}

impl Peers for [Fake] {
    fn len(&self) -> usize {
        <[Fake]>::len(self)
    }
    fn weight(&self, peer: usize) -> u32 {
        self[peer].weight
    }
    fn conns(&self, peer: usize) -> u32 {
        self[peer].conns
    }
    fn max_conns(&self, peer: usize) -> u32 {
        self[peer].max_conns
    }
    fn enabled(&self, peer: usize) -> bool {
        self[peer].up && !self[peer].draining
    }
    fn accepts_sessions(&self, peer: usize) -> bool {
        self[peer].up
    }
    fn failed(&self, peer: usize) -> bool {
        self[peer].failed
    }
    fn ramp(&self, peer: usize) -> u32 {
        self[peer].ramp
    }
    fn latency(&self, peer: usize) -> Latency {
        Latency { average_us: self[peer].average_us, fail_timeout_s: 10, ..Latency::default() }
    }
}

/// The choices of `count` requests that each try once, as letters.
pub(crate) fn sequence(
    peers: &[Fake],
    weights: &mut Weights,
    count: usize,
    mut choose: impl FnMut(&mut Choice<'_, [Fake]>, usize) -> Option<usize>,
) -> String {
    (0..count)
        .map(|request| {
            let mut tried = Tried::new();
            let chosen = choose(&mut Choice::new(peers, weights, &mut tried), request);
            chosen.map_or('-', |peer| char::from(b'a' + peer as u8))
        })
        .collect()
}
