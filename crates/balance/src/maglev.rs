//! Maglev hashing: a table of peers that is looked up with one division, for the balancer in the kernel.
//!
//! After "Maglev: A Fast and Reliable Software Network Load Balancer" (NSDI 2016), section 3.4: each peer lists all slots in
//! an order of its own, and peers take turns at the next slot of their list that is free. So every peer has its share to
//! within one slot in a hundred, and when a peer comes or goes nearly all other slots keep their peer. Two balancers with
//! the same peers have the same table, in whatever order the peers are configured.

use crate::{Choice, LOOKS_MAX, Peers};

/// Slots of a table by default: a prime, as the permutations need, and more than a hundred times a hundred peers.
pub const MAGLEV_SLOTS: u32 = 65_537;

/// The table of one group. Built when the group changes; looking up neither allocates nor waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maglev {
    slots: Box<[u32]>,
}

/// A peer's list of slots: `offset`, `offset + skip`, `offset + 2 * skip` and so on, modulo the number of slots.
struct List {
    peer: u32,
    weight: u32,
    offset: u32,
    skip: u32,
    /// How far it has come.
    next: u32,
}

impl Maglev {
    /// For each peer, in order: its name (what two balancers agree on: `10.0.0.1:80`) and its weight. A peer of weight 0
    /// gets no slot. Without any peer that has a weight the table is empty.
    pub fn new<'a>(peers: impl IntoIterator<Item = (&'a [u8], u32)>) -> Self {
        Self::with_slots(peers, MAGLEV_SLOTS)
    }

    /// As [`new`](Maglev::new) with another number of slots, which must be a prime of at least 3.
    pub fn with_slots<'a>(peers: impl IntoIterator<Item = (&'a [u8], u32)>, slots: u32) -> Self {
        let mut named: Vec<(&[u8], u32, u32)> =
            (0u32..).zip(peers).map(|(peer, (name, weight))| (name, peer, weight)).filter(|p| p.2 > 0).collect();
        named.sort_unstable();
        let mut lists: Vec<List> =
            named.iter().map(|(name, peer, weight)| List::new(name, *peer, *weight, slots)).collect();
        Maglev { slots: fill(&mut lists, slots) }
    }

    /// The peer for a hash, or `None` if there is none.
    pub fn find(&self, hash: u32) -> Option<u32> {
        let count = u32::try_from(self.slots.len()).expect("a table has fewer than 2^32 slots");
        hash.checked_rem(count).map(|slot| self.slots[slot as usize])
    }

    /// All slots: the index of the peer each belongs to.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }
}

impl List {
    fn new(name: &[u8], peer: u32, weight: u32, slots: u32) -> Self {
        let offset = (hash(name, 0x6d61_676c) % u64::from(slots)) as u32;
        let skip = (hash(name, 0x6576_0001) % u64::from(slots - 1)) as u32 + 1;
        List { peer, weight, offset, skip, next: 0 }
    }

    /// The next slot of the list that nobody has.
    fn take(&mut self, table: &[u32]) -> usize {
        let slots = table.len() as u64;
        loop {
            let slot = (u64::from(self.offset) + u64::from(self.next) * u64::from(self.skip)) % slots;
            self.next += 1;
            if table[slot as usize] == FREE {
                return slot as usize;
            }
        }
    }
}

const FREE: u32 = u32::MAX;

/// Peers take turns, the heaviest in every round and the others in as many as their weight is of the heaviest's.
fn fill(lists: &mut [List], slots: u32) -> Box<[u32]> {
    let Some(heaviest) = lists.iter().map(|list| u64::from(list.weight)).max() else {
        return Box::default();
    };
    let mut table = vec![FREE; slots as usize];
    let (mut filled, mut round) = (0, 0u64);
    while filled < table.len() {
        round += 1;
        for list in lists.iter_mut() {
            // How many turns the peer has had after this round: weight / heaviest of them, rounded down.
            let due = round * u64::from(list.weight) / heaviest > (round - 1) * u64::from(list.weight) / heaviest;
            if due && filled < table.len() {
                let slot = list.take(&table);
                table[slot] = list.peer;
                filled += 1;
            }
        }
    }
    table.into()
}

impl<P: Peers + ?Sized> Choice<'_, P> {
    /// By a key in a Maglev table; who cannot be used is passed over, and the key looks elsewhere, so that only its own clients
    /// move. Round robin after 20 looks in vain. `table` must be of the same peers.
    pub fn maglev(&mut self, table: &Maglev, key: &[u8]) -> Option<usize> {
        if self.tried.walk.looks > LOOKS_MAX || self.peers.single() || table.slots.is_empty() {
            return self.round_robin();
        }
        loop {
            // A hash of its own for each look: neighbours in the table say nothing of each other.
            let look = u64::from(self.tried.walk.hashed);
            self.tried.walk.hashed += 1;
            let peer = table.find(hash(key, look) as u32).map(|peer| peer as usize);
            if let Some(peer) = peer.filter(|peer| *peer < self.peers.len() && self.candidate(*peer)) {
                return Some(self.note(peer));
            }
            if self.look_failed() {
                return self.round_robin();
            }
        }
    }
}

/// FNV-1a with a finish that spreads it (as in SplitMix64): the same on every machine and in every version.
fn hash(name: &[u8], seed: u64) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325 ^ seed;
    for byte in name {
        h = (h ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|i| format!("10.9.{}.{}:80", i / 250, i % 250 + 1)).collect()
    }

    fn table(names: &[String]) -> Maglev {
        Maglev::new(names.iter().map(|name| (name.as_bytes(), 1)))
    }

    fn share(maglev: &Maglev, peer: u32) -> usize {
        maglev.slots().iter().filter(|p| **p == peer).count()
    }

    #[test]
    fn every_peer_has_its_share_to_within_one_percent() {
        let names = names(100);
        let maglev = table(&names);
        for peer in 0..100 {
            let share = share(&maglev, peer) as f64 * 100.0 / f64::from(MAGLEV_SLOTS);
            assert!((0.99..1.01).contains(&share), "{peer}: {share}");
        }
    }

    #[test]
    fn a_peer_that_leaves_moves_its_own_share_and_at_most_1_1_percent_more() {
        let names = names(100);
        let whole = table(&names);
        for gone in 0..100usize {
            let weights = names.iter().enumerate().map(|(i, name)| (name.as_bytes(), u32::from(i != gone)));
            let without = Maglev::new(weights);
            let own = share(&whole, gone as u32);
            let moved = whole.slots().iter().zip(without.slots()).filter(|(a, b)| a != b).count();
            let more = (moved - own) as f64 / f64::from(MAGLEV_SLOTS);
            assert!(more <= 0.011, "without {gone}: {more}");
            assert_eq!(share(&without, gone as u32), 0);
        }
    }

    #[test]
    fn weights_are_shares() {
        let names = names(3);
        let maglev = Maglev::new(names.iter().zip([1, 2, 5]).map(|(name, weight)| (name.as_bytes(), weight)));
        for (peer, weight) in [(0, 1), (1, 2), (2, 5)] {
            let wanted = f64::from(weight) / 8.0;
            let got = share(&maglev, peer) as f64 / f64::from(MAGLEV_SLOTS);
            assert!((got - wanted).abs() < 0.001, "{peer}: {got}");
        }
    }

    #[test]
    fn the_order_of_the_configuration_does_not_matter() {
        let names = names(20);
        let turned: Vec<String> = names.iter().rev().cloned().collect();
        let (one, other) = (table(&names), table(&turned));
        for hash in (0..1_000_000u32).step_by(97) {
            let by = |maglev: &Maglev, names: &[String]| names[maglev.find(hash).unwrap() as usize].clone();
            assert_eq!(by(&one, &names), by(&other, &turned));
        }
    }

    #[test]
    fn nobody_and_one() {
        assert_eq!(Maglev::default().find(7), None);
        assert_eq!(Maglev::new([(&b"a"[..], 0)]).find(7), None);
        assert_eq!(Maglev::with_slots([(&b"a"[..], 3)], 13).find(7), Some(0));
    }
}
