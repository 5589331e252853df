//! Whom to ask: the group's method over its peers' states, with this thread's turn.

use super::Attempt;
use super::group::{Better, Group, Method, Peer, Tier, Tiers, Times, Timing};
use super::live::Live;
use crate::request::Request;
use crate::worker::clock;
use balance::{Choice, FULL_RAMP, Latency, Peers, Tried, Weights, ip_hash_key};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Peers of one rank as the methods see them, at one moment.
struct View<'t> {
    tier: &'t Tier,
    now_ms: u64,
    timing: Option<Timing>,
}

impl View<'_> {
    /// For questions that need no time.
    fn still(tier: &Tier) -> View<'_> {
        View { tier, now_ms: 0, timing: None }
    }
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
        !p.state.is_clean() && p.state.failures().set_aside(p.policy, self.now_ms / 1000)
    }

    fn ramp(&self, i: usize) -> u32 {
        let p = &self.tier.peers[i];
        if p.slow_start_ms == 0 {
            return FULL_RAMP;
        }
        match p.state.recovered_ms.load(Relaxed) {
            0 => FULL_RAMP,
            since => {
                let part = self.now_ms.saturating_sub(since) * u64::from(FULL_RAMP) / p.slow_start_ms;
                u32::try_from(part).unwrap_or(FULL_RAMP).clamp(1, FULL_RAMP)
            }
        }
    }

    fn latency(&self, i: usize) -> Latency {
        let Some(timing) = self.timing else { return Latency::default() };
        let p = &self.tier.peers[i];
        let times = &p.state.times;
        let average = if timing.last_byte { &times.last_byte } else { &times.header };
        Latency {
            average_ms: average.load(Relaxed),
            inflight_ms: if timing.inflight { times.inflight().observe(self.now_ms) } else { None },
            idle_s: (self.now_ms / 1000).saturating_sub(p.state.failures().checked_s),
            fail_timeout_s: p.policy.fail_timeout_s,
        }
    }
}

thread_local! {
    /// Turns by the group's number: they outlive a reload.
    static TURNS: RefCell<Vec<Option<Turn>>> = const { RefCell::new(Vec::new()) };
    static SEED: RefCell<u64> = const { RefCell::new(0) };
}

/// Whose turn it is in a group, for this thread.
struct Turn {
    weights: [Weights; 2],
    /// The number of the peers' list, and the list, of a group whose names are followed.
    live: Option<(u32, Arc<Tiers>)>,
}

impl Turn {
    fn new(tiers: &Tiers) -> Turn {
        Turn { weights: fresh(tiers), live: None }
    }

    /// The current list of a live group; the turns begin anew with a new one.
    fn tiers(&mut self, group: &Group, live: &Live) -> Arc<Tiers> {
        let version = live.version();
        if let Some((known, tiers)) = &self.live
            && *known == version
        {
            return tiers.clone();
        }
        let tiers = live.tiers();
        if self.live.replace((version, tiers.clone())).is_some() {
            super::pool::keep_known(group, &tiers);
        }
        self.weights = fresh(&tiers);
        tiers
    }
}

fn fresh(tiers: &Tiers) -> [Weights; 2] {
    tiers.each_ref().map(|t| Weights::new(&View::still(t)))
}

fn with_turn<T>(group: &Group, work: impl FnOnce(&mut Turn) -> T) -> T {
    TURNS.with_borrow_mut(|turns| {
        let number = group.number as usize;
        if turns.len() <= number {
            turns.resize_with(number + 1, || None);
        }
        work(turns[number].get_or_insert_with(|| Turn::new(&group.tiers)))
    })
}

/// A request's way through a group.
#[derive(Debug, Default)]
pub struct Walk {
    tried: Tried,
    backup: bool,
    /// The turns of a group that is made for one request, or of a list of peers that is no longer the newest.
    turns: Option<[Weights; 2]>,
    /// The peers that a live group had when the request came: its tries are counted by their places.
    tiers: Option<Arc<Tiers>>,
}

impl Walk {
    /// Begins a way, and says how often the request may be tried: every peer that is not down once.
    pub fn begin(group: &Group) -> (Walk, usize) {
        let tiers = group.live.as_ref().map(|live| with_turn(group, |turn| turn.tiers(group, live)));
        let peers = tiers.as_ref().unwrap_or(&group.tiers).iter().flat_map(|t| &t.peers);
        let tries = peers.filter(|p| !p.down).count();
        (Walk { tiers, ..Walk::default() }, tries)
    }
}

/// A peer that was chosen; its connection counts as in use until it is dropped.
pub struct Chosen {
    /// The peer.
    pub peer: Arc<Peer>,
    tier: usize,
    index: usize,
    timing: Option<Timing>,
    /// Counted among the requests under way since (ms).
    inflight_ms: Cell<Option<u64>>,
}

impl Drop for Chosen {
    fn drop(&mut self) {
        self.peer.state.conns.fetch_sub(1, Relaxed);
        self.landed();
    }
}

impl Chosen {
    /// It no longer counts among the requests under way.
    fn landed(&self) {
        if let Some(since) = self.inflight_ms.take() {
            let now = clock::monotonic_ms();
            self.peer.state.times.inflight().end(now, now.saturating_sub(since));
        }
    }

    /// The answer's head is there, after so many ms.
    pub fn head_came(&self, ms: Option<u64>) {
        if let (Some(Timing { last_byte: false, inflight: true }), Some(ms)) = (self.timing, ms) {
            Times::sample(&self.peer.state.times.header, ms);
            self.landed();
        }
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
    if group.for_one_request {
        return choose_alone(r, group, walk, &group.tiers, &key);
    }
    let Some(tiers) = walk.tiers.clone() else {
        return with_turn(group, |turn| choose_in_turn(r, group, walk, &group.tiers, &mut turn.weights, &key));
    };
    let newest = |turn: &Turn| turn.live.as_ref().is_some_and(|(_, t)| Arc::ptr_eq(t, &tiers));
    let chosen =
        with_turn(group, |turn| newest(turn).then(|| choose_in_turn(r, group, walk, &tiers, &mut turn.weights, &key)));
    chosen.unwrap_or_else(|| choose_alone(r, group, walk, &tiers, &key))
}

fn choose_alone(r: &Request, group: &Group, walk: &mut Walk, tiers: &Tiers, key: &[u8]) -> Option<Chosen> {
    let mut turns = walk.turns.take().unwrap_or_else(|| fresh(tiers));
    let chosen = choose_in_turn(r, group, walk, tiers, &mut turns, key);
    walk.turns = Some(turns);
    chosen
}

fn choose_in_turn(
    r: &Request,
    group: &Group,
    walk: &mut Walk,
    tiers: &Tiers,
    turns: &mut [Weights; 2],
    key: &[u8],
) -> Option<Chosen> {
    let timing = group.method.timing();
    loop {
        let number = walk.backup as usize;
        let tier = &tiers[number];
        let now_ms = clock::monotonic_ms();
        let view = View { tier, now_ms, timing };
        if let Some(index) = pick(r, &group.method, &view, &mut turns[number], &mut walk.tried, key) {
            let peer = tier.peers[index].clone();
            // When a peer was last chosen matters to methods by time even if nothing is against it.
            if timing.is_some() || !peer.state.is_clean() {
                let mut f = peer.state.failures();
                f.chosen(peer.policy, now_ms / 1000);
                peer.state.set_failures(f);
            }
            peer.state.conns.fetch_add(1, Relaxed);
            let inflight = timing.is_some_and(|t| t.inflight).then_some(now_ms);
            if inflight.is_some() {
                peer.state.times.inflight().begin(now_ms);
            }
            return Some(Chosen { peer, tier: number, index, timing, inflight_ms: Cell::new(inflight) });
        }
        if walk.backup || tiers[1].peers.is_empty() {
            return None;
        }
        walk.backup = true;
        walk.tried.clear();
    }
}

fn pick(
    r: &Request,
    method: &Method,
    view: &View<'_>,
    weights: &mut Weights,
    tried: &mut Tried,
    key: &[u8],
) -> Option<usize> {
    let tier = view.tier;
    if tier.peers.is_empty() {
        return None;
    }
    let mut choice = Choice::new(view, weights, tried);
    match method {
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
            Some(ranges) => match two {
                Some(Better::Conns) => choice.random_two_least_conn(ranges, random),
                Some(Better::Time(_)) => choice.random_two_least_time(ranges, random),
                None => choice.random(ranges, random),
            },
            None => choice.round_robin(),
        },
        Method::LeastTime(_) => choice.least_time(),
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
pub fn succeeded(chosen: &Chosen, attempt: &Attempt) {
    let (state, policy) = (&chosen.peer.state, chosen.peer.policy);
    if !state.is_clean() {
        let mut f = state.failures();
        let was_aside = policy.max_fails > 0 && f.count >= policy.max_fails;
        f.succeeded();
        state.set_failures(f);
        if was_aside && f.count == 0 {
            state.recovered_ms.store(clock::monotonic_ms(), Relaxed);
        }
    }
    if let (Some(timing), Some(header), Some(last_byte)) = (chosen.timing, attempt.header_ms, attempt.response_ms) {
        Times::sample(&state.times.last_byte, last_byte);
        if timing.last_byte || !timing.inflight {
            Times::sample(&state.times.header, header);
        }
    }
}

/// A try at a peer failed. True when the peer is now set aside.
pub fn failed(group: &Group, walk: &mut Walk, chosen: &Chosen) -> bool {
    let now_s = clock::monotonic_ms() / 1000;
    let policy = chosen.peer.policy;
    let mut f = chosen.peer.state.failures();
    let aside = f.failed(policy, now_s);
    chosen.peer.state.set_failures(f);
    let tiers = walk.tiers.as_ref().unwrap_or(&group.tiers);
    let view = View::still(&tiers[chosen.tier]);
    let lower = |t: &mut [Weights; 2]| t[chosen.tier].failed(&view, chosen.index, policy.max_fails);
    match &mut walk.turns {
        Some(own) => lower(own),
        None => with_turn(group, |turn| {
            if walk.tiers.is_none() || turn.live.as_ref().is_some_and(|(_, t)| Arc::ptr_eq(t, tiers)) {
                lower(&mut turn.weights);
            }
        }),
    }
    aside
}
