//! `random` and `random two`: a draw by weight, or the better of two draws. Good when many balancers share the peers.

use crate::least::load;
use crate::{Choice, LOOKS_MAX, Peers};

/// Where each peer's range in the row of all weights begins. Built once for each version of a group.
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    begins: Box<[u64]>,
    total: u64,
}

impl Ranges {
    /// The ranges of a group's configured weights.
    pub fn new<P: Peers + ?Sized>(peers: &P) -> Self {
        let mut total = 0;
        let begins = (0..peers.len())
            .map(|peer| {
                let begin = total;
                total += u64::from(peers.weight(peer));
                begin
            })
            .collect();
        Ranges { begins, total }
    }

    /// The peer whose range holds a random number (any number: it is reduced here).
    fn draw(&self, random: u64) -> usize {
        let place = random % self.total;
        self.begins.partition_point(|begin| *begin <= place) - 1
    }
}

impl<P: Peers + ?Sized> Choice<'_, P> {
    /// One draw by weight; `random` gives independent numbers. Round robin after 20 draws in vain.
    pub fn random(&mut self, ranges: &Ranges, mut random: impl FnMut() -> u64) -> Option<usize> {
        if !self.can_draw(ranges) {
            return self.round_robin();
        }
        loop {
            let peer = ranges.draw(random());
            if self.candidate(peer) {
                return Some(self.note(peer));
            }
            if self.look_failed() {
                return self.round_robin();
            }
        }
    }

    /// `random two least_conn`: two different draws, the one with fewer connections for its weight.
    pub fn random_two_least_conn(&mut self, ranges: &Ranges, random: impl FnMut() -> u64) -> Option<usize> {
        let peers = self.peers;
        self.random_two(ranges, random, |peer| u64::from(peers.conns(peer)))
    }

    /// `random two least_time=...`: two different draws, the one estimated to be done first.
    pub fn random_two_least_time(&mut self, ranges: &Ranges, random: impl FnMut() -> u64) -> Option<usize> {
        let peers = self.peers;
        self.random_two(ranges, random, |peer| peers.latency(peer).estimate_us(peers.conns(peer)))
    }

    fn random_two(
        &mut self,
        ranges: &Ranges,
        mut random: impl FnMut() -> u64,
        cost: impl Fn(usize) -> u64,
    ) -> Option<usize> {
        if !self.can_draw(ranges) {
            return self.round_robin();
        }
        let mut first: Option<usize> = None;
        loop {
            let peer = ranges.draw(random());
            if first != Some(peer)
                && self.candidate(peer)
                && let Some(first) = first.replace(peer)
            {
                let better = load(self.peers, first, cost(first)).below(&load(self.peers, peer, cost(peer)));
                return Some(self.note(if better { first } else { peer }));
            }
            if self.look_failed() {
                return self.round_robin();
            }
        }
    }

    fn can_draw(&self, ranges: &Ranges) -> bool {
        let same_group = ranges.begins.len() == self.peers.len();
        debug_assert!(same_group, "ranges are rebuilt with their group");
        self.tried.walk.looks <= LOOKS_MAX && self.peers.len() >= 2 && ranges.total > 0 && same_group
    }
}
