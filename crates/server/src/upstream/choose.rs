//! Whom to ask: the group's method over its peers' states, with this thread's turn.

use super::group::{Group, Method, Peer, Tier};
use crate::request::Request;
use crate::worker::clock;
use balance::{Choice, Peers, Tried, Weights, ip_hash_key};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Peers of one rank as the methods see them, at one moment.
struct View<'t> {
    tier: &'t Tier,
    now_s: u64,
}

impl Peers for View<'_> {
    fn len(&self) -> usize {
        self.tier.peers.len()
    }

    fn weight(&self, i: usize) -> u32 {
        self.tier.peers[i].weight
    }

    fn conns(&self, i: usize) -> u32 {
        self.tier.peers[i].state.conns.load(Relaxed)
    }

    fn enabled(&self, i: usize) -> bool {
        !self.tier.peers[i].down
    }

    fn single(&self) -> bool {
        self.tier.alone && self.tier.peers.len() == 1
    }

    fn max_conns(&self, i: usize) -> u32 {
        self.tier.peers[i].max_conns
    }

    fn failed(&self, i: usize) -> bool {
        let p = &self.tier.peers[i];
        !p.state.is_clean() && p.state.failures().set_aside(p.policy, self.now_s)
    }
}

thread_local! {
    /// Turns by the group's number: they outlive a reload.
    static TURNS: RefCell<Vec<Option<[Weights; 2]>>> = const { RefCell::new(Vec::new()) };
    static SEED: RefCell<u64> = const { RefCell::new(0) };
}

/// A request's way through a group.
#[derive(Debug, Default)]
pub struct Walk {
    tried: Tried,
    backup: bool,
    /// The turns of a group that is made for one request.
    turns: Option<[Weights; 2]>,
}

/// A peer that was chosen; its connection counts as in use until it is dropped.
pub struct Chosen {
    /// The peer.
    pub peer: Arc<Peer>,
    tier: usize,
    index: usize,
}

impl Drop for Chosen {
    fn drop(&mut self) {
        self.peer.state.conns.fetch_sub(1, Relaxed);
    }
}

/// The next peer for a request; none when there is no usable one left.
pub fn choose(r: &mut Request, group: &Arc<Group>, walk: &mut Walk) -> Option<Chosen> {
    let key = match &group.method {
        Method::Hash { key, .. } => {
            let text = key.eval(r);
            r.get(text).to_vec()
        }
        _ => Vec::new(),
    };
    let fresh = || group.tiers.each_ref().map(|t| Weights::new(&View { tier: t, now_s: 0 }));
    if group.for_one_request {
        let mut turns = walk.turns.take().unwrap_or_else(fresh);
        let chosen = choose_in_turn(r, group, walk, &mut turns, &key);
        walk.turns = Some(turns);
        return chosen;
    }
    TURNS.with_borrow_mut(|turns| {
        let number = group.number as usize;
        if turns.len() <= number {
            turns.resize_with(number + 1, || None);
        }
        choose_in_turn(r, group, walk, turns[number].get_or_insert_with(fresh), &key)
    })
}

fn choose_in_turn(
    r: &Request,
    group: &Arc<Group>,
    walk: &mut Walk,
    turns: &mut [Weights; 2],
    key: &[u8],
) -> Option<Chosen> {
    loop {
        let number = walk.backup as usize;
        let tier = &group.tiers[number];
        let now_s = clock::monotonic_ms() / 1000;
        if let Some(index) = pick(r, group, tier, &mut turns[number], &mut walk.tried, now_s, key) {
            let peer = tier.peers[index].clone();
            if !peer.state.is_clean() {
                let mut f = peer.state.failures();
                f.chosen(peer.policy, now_s);
                peer.state.set_failures(f);
            }
            peer.state.conns.fetch_add(1, Relaxed);
            return Some(Chosen { peer, tier: number, index });
        }
        if walk.backup || group.tiers[1].peers.is_empty() {
            return None;
        }
        walk.backup = true;
        walk.tried.clear();
    }
}

fn pick(
    r: &Request,
    group: &Group,
    tier: &Tier,
    weights: &mut Weights,
    tried: &mut Tried,
    now_s: u64,
    key: &[u8],
) -> Option<usize> {
    if tier.peers.is_empty() {
        return None;
    }
    let view = View { tier, now_s };
    let mut choice = Choice::new(&view, weights, tried);
    match &group.method {
        Method::RoundRobin => choice.round_robin(),
        Method::LeastConn => choice.least_conn(),
        Method::IpHash => {
            let mut buffer = [0; 16];
            let n = ip_hash_key(crate::modules::variables::remote_ip(r).as_ref(), &mut buffer);
            choice.ip_hash(&buffer[..n])
        }
        Method::Hash { consistent: false, .. } => choice.hash(key),
        Method::Hash { consistent: true, .. } => match &tier.ring {
            Some(ring) => choice.consistent_hash(ring, key),
            None => choice.round_robin(),
        },
        Method::Random { two } => match &tier.ranges {
            Some(ranges) if *two => choice.random_two_least_conn(ranges, random),
            Some(ranges) => choice.random(ranges, random),
            None => choice.round_robin(),
        },
    }
}

/// xorshift: good enough to spread requests.
fn random() -> u64 {
    SEED.with_borrow_mut(|s| {
        if *s == 0 {
            let mut bytes = [0u8; 8];
            let _ = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
            *s = u64::from_le_bytes(bytes) | 1;
        }
        *s ^= *s << 13;
        *s ^= *s >> 7;
        *s ^= *s << 17;
        *s
    })
}

/// A try at a peer succeeded.
pub fn succeeded(chosen: &Chosen) {
    if !chosen.peer.state.is_clean() {
        let mut f = chosen.peer.state.failures();
        f.succeeded();
        chosen.peer.state.set_failures(f);
    }
}

/// A try at a peer failed. True when the peer is now set aside.
pub fn failed(group: &Group, walk: &mut Walk, chosen: &Chosen) -> bool {
    let tier = &group.tiers[chosen.tier];
    let now_s = clock::monotonic_ms() / 1000;
    let policy = chosen.peer.policy;
    let mut f = chosen.peer.state.failures();
    let aside = f.failed(policy, now_s);
    chosen.peer.state.set_failures(f);
    let lower = |t: &mut [Weights; 2]| t[chosen.tier].failed(&View { tier, now_s }, chosen.index, policy.max_fails);
    match &mut walk.turns {
        Some(own) => lower(own),
        None => TURNS.with_borrow_mut(|turns| {
            let own = turns.get_mut(group.number as usize).and_then(Option::as_mut);
            own.map(lower).unwrap_or_default()
        }),
    }
    aside
}
