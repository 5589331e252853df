//! What a service's part of the map of slots holds, for each choice: computed here, by `balance`, and only looked up by the
//! program.

use crate::layout::{LEAST_MAX, RING_SLOTS};
use crate::plan::Choice;
use balance::{Maglev, Peers, Tried, Weights};

/// A real server that gets new flows.
pub struct Member {
    /// Its number in the map of real servers.
    pub index: u32,
    /// `10.9.1.2:80`: what two balancers agree on.
    pub name: String,
    /// At least 1.
    pub weight: u32,
}

/// The slots for a choice among members; none if there are no members.
pub fn slots(choice: Choice, members: &[Member]) -> Vec<u32> {
    match choice {
        Choice::Maglev | Choice::SourceHash => {
            let maglev = Maglev::with_slots(members.iter().map(|m| (m.name.as_bytes(), m.weight)), RING_SLOTS);
            maglev.slots().iter().map(|peer| members[*peer as usize].index).collect()
        }
        Choice::RoundRobin => turns(members).into_iter().map(|peer| members[peer].index).collect(),
        Choice::LeastConn => members.iter().take(LEAST_MAX).map(|m| m.index).collect(),
    }
}

/// The places that so many slots are given in the map of slots: as many again as there are, at the most, so that a list may grow a little where
/// it is.
pub fn extent(slots: usize) -> u32 {
    const FEWEST: u32 = 64;
    let slots = slots.min(RING_SLOTS as usize) as u32;
    if slots > RING_SLOTS / 2 { RING_SLOTS } else { slots.next_power_of_two().max(FEWEST) }
}

struct Group<'a>(&'a [Member], u32);

impl Peers for Group<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn weight(&self, peer: usize) -> u32 {
        self.0[peer].weight / self.1
    }
    fn conns(&self, _peer: usize) -> u32 {
        0
    }
    fn enabled(&self, _peer: usize) -> bool {
        true
    }
}

/// One round of smooth weighted round robin, at the end of which every member has had as many turns as its weight (cut to
/// what the ring takes, for weights of tens of thousands).
fn turns(members: &[Member]) -> Vec<usize> {
    let divisor = members.iter().fold(0, |a, m| gcd(a, m.weight)).max(1);
    let group = Group(members, divisor);
    let round = group.total_weight().min(u64::from(RING_SLOTS));
    let mut weights = Weights::new(&group);
    let one = |_| balance::Choice::new(&group, &mut weights, &mut Tried::new()).round_robin();
    (0..round).filter_map(one).collect()
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(weights: &[u32]) -> Vec<Member> {
        let member = |(i, weight): (usize, &u32)| Member {
            index: 10 + i as u32,
            name: format!("10.0.0.{i}:80"),
            weight: *weight,
        };
        weights.iter().enumerate().map(member).collect()
    }

    #[test]
    fn turns_are_smooth() {
        assert_eq!(slots(Choice::RoundRobin, &members(&[5, 1, 1])), [10, 10, 11, 10, 12, 10, 10]);
        assert_eq!(slots(Choice::RoundRobin, &members(&[2, 2])), [10, 11]);
        assert_eq!(slots(Choice::RoundRobin, &[]), Vec::<u32>::new());
    }

    #[test]
    fn hashes_fill_the_ring() {
        assert_eq!(slots(Choice::Maglev, &members(&[1, 2])).len(), RING_SLOTS as usize);
        assert_eq!(slots(Choice::SourceHash, &[]).len(), 0);
        assert_eq!(slots(Choice::LeastConn, &members(&[1, 2])), [10, 11]);
    }
}
