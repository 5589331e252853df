//! Whom to ask: the group's method over its peers' states, with this thread's turn.

use super::Attempt;
use super::availability::Role;
use super::group::{Better, Group, Method, Tier, Tiers, Timing, Until};
use super::job::Changes;
use super::live::Live;
use super::peer::{Peer, Times};
use super::queue::Queue;
use super::shed::Permit;
use crate::modules::lua::chunk::Program;
use crate::request::Request;
use balance::{Choice, FULL_RAMP, Latency, Peers, Tried, Weights, ip_hash_key};
use runtime::clock;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

/// Peers of one rank as the methods see them, at one moment.
struct View<'t> {
    tier: &'t Tier,
    now_ms: u64,
    now_us: u64,
    timing: Option<Timing>,
}

impl View<'_> {
    /// For questions that need no time.
    fn still(tier: &Tier) -> View<'_> {
        View { tier, now_ms: 0, now_us: 0, timing: None }
    }
}

impl Peers for View<'_> {
    fn len(&self) -> usize {
        self.tier.peers.len()
    }

    fn weight(&self, i: usize) -> u32 {
        self.tier.peers[i].settings.weight
    }

    fn conns(&self, i: usize) -> u32 {
        self.tier.peers[i].state.conns.load(Relaxed)
    }

    fn enabled(&self, i: usize) -> bool {
        let p = &self.tier.peers[i];
        let availability = p.state.availability.now();
        availability.is_well() && availability.role().unwrap_or(p.settings.role) == Role::Up
    }

    fn accepts_sessions(&self, i: usize) -> bool {
        let p = &self.tier.peers[i];
        let availability = p.state.availability.now();
        availability.is_well() && availability.role().unwrap_or(p.settings.role) != Role::Down
    }

    fn single(&self) -> bool {
        self.tier.alone && self.tier.peers.len() == 1
    }

    fn max_conns(&self, i: usize) -> u32 {
        self.tier.peers[i].settings.max_conns
    }

    fn failed(&self, i: usize) -> bool {
        self.tier.peers[i].is_set_aside(self.now_ms / 1000)
    }

    fn ramp(&self, i: usize) -> u32 {
        let p = &self.tier.peers[i];
        if p.settings.slow_start_ms == 0 {
            return FULL_RAMP;
        }
        match p.state.recovered_ms.load(Relaxed) {
            0 => FULL_RAMP,
            since => {
                let part = self.now_ms.saturating_sub(since) * u64::from(FULL_RAMP) / p.settings.slow_start_ms;
                u32::try_from(part).unwrap_or(FULL_RAMP).clamp(1, FULL_RAMP)
            }
        }
    }

    fn latency(&self, i: usize) -> Latency {
        let Some(timing) = self.timing else { return Latency::default() };
        let p = &self.tier.peers[i];
        let times = &p.state.times;
        let average = match timing.until {
            Until::Connect => &times.connect,
            Until::Header => &times.header,
            Until::LastByte => &times.last_byte,
        };
        Latency {
            average_us: average.load(Relaxed),
            inflight_us: if timing.inflight { times.inflight().observe(self.now_us) } else { None },
            idle_s: (self.now_ms / 1000).saturating_sub(p.state.failures().checked_s),
            fail_timeout_s: p.settings.policy.fail_timeout_s,
        }
    }
}

thread_local! {
    /// Turns by the group's number: they outlive a reload.
    static ROTATIONS: RefCell<Vec<Option<Rotation>>> = const { RefCell::new(Vec::new()) };
    static SEED: RefCell<u64> = const { RefCell::new(0) };
}

/// A list of peers as one thread holds it: a request counts it without touching what other threads count too.
#[allow(clippy::redundant_allocation, reason = "the inner count is shared by threads, the outer is not")]
type Held = Rc<Arc<Tiers>>;

/// Whose turn it is in a group, for this thread.
struct Rotation {
    weights: [Weights; 2],
    /// The number of the peers' list, and the list, of a group whose names are followed.
    live: Option<(u32, Held)>,
}

impl Rotation {
    fn new(tiers: &Tiers) -> Rotation {
        Rotation { weights: fresh(tiers), live: None }
    }

    /// The current list of a live group; the turns begin anew with a new one.
    fn tiers(&mut self, group: &Group, live: &Live) -> Held {
        let version = live.version();
        if let Some((known, tiers)) = &self.live
            && *known == version
        {
            return tiers.clone();
        }
        let tiers = Rc::new(live.tiers());
        match self.live.replace((version, tiers.clone())) {
            Some((_, before)) => {
                super::pool::keep_known(group, &tiers);
                self.weights = std::array::from_fn(|i| moved(&self.weights[i], &before[i], &tiers[i]));
            }
            None => self.weights = fresh(&tiers),
        }
        tiers
    }
}

/// The turns of one rank's peers in a new list of them.
fn moved(weights: &Weights, before: &Tier, now: &Tier) -> Weights {
    let places: HashMap<u32, usize> = before.peers.iter().enumerate().map(|(i, p)| (p.state.number, i)).collect();
    weights.moved(&View::still(now), |i| places.get(&now.peers[i].state.number).copied())
}

fn fresh(tiers: &Tiers) -> [Weights; 2] {
    tiers.each_ref().map(|t| Weights::new(&View::still(t)))
}

fn with_rotation<T>(group: &Group, work: impl FnOnce(&mut Rotation) -> T) -> T {
    ROTATIONS.with_borrow_mut(|turns| {
        let number = group.number as usize;
        if turns.len() <= number {
            turns.resize_with(number + 1, || None);
        }
        work(turns[number].get_or_insert_with(|| Rotation::new(&group.tiers)))
    })
}

/// The current and the effective weight of a group's peer on this thread, to be shown.
pub fn weights_of(group: &Group, backup: bool, index: usize) -> Option<(i64, u32)> {
    with_rotation(group, |rotation| rotation.weights[usize::from(backup)].of(index))
}

/// A request's way through a group.
#[derive(Debug, Default)]
pub struct Selection {
    tried: Tried,
    backup: bool,
    /// The turns of a group that is made for one request, or of a list of peers that is no longer the newest.
    turns: Option<[Weights; 2]>,
    /// The peers that a live group had when the request came: its tries are counted by their places.
    tiers: Option<Held>,
    /// What a program that chooses is told, and says.
    pub said: Said,
}

/// What a program that chooses peers (`balancer_by_lua*`) is told, and what it says beside the peer.
#[derive(Debug, Default)]
pub struct Said {
    /// Tries left, the one that begins included.
    pub left: usize,
    /// `proxy_next_upstream_tries`, 0: no limit.
    pub limit: usize,
    /// How often it was asked.
    pub asked: usize,
    /// Tries that it adds.
    pub more: usize,
    /// It refuses the request, which ends with this status.
    pub refused: Option<u16>,
    /// What is sent otherwise than before.
    pub changes: Option<Box<Changes>>,
}

impl Selection {
    /// Begins a way, and says how often the request may be tried: every peer that is not down once.
    pub fn begin(group: &Group) -> (Selection, usize) {
        let tiers = group.live.as_ref().map(|live| with_rotation(group, |rotation| rotation.tiers(group, live)));
        let peers = tiers.as_deref().unwrap_or(&group.tiers).iter().flat_map(|t| &t.peers);
        let tries = peers.filter(|p| p.role() != Role::Down).count();
        (Selection { tiers, ..Selection::default() }, tries)
    }

    /// No peer has been tried yet.
    pub fn is_fresh(&self) -> bool {
        !self.backup && self.tried.is_empty()
    }
}

/// A peer that was chosen; its connection counts as in use until it is dropped.
pub struct SelectedPeer {
    /// The peer.
    pub peer: Arc<Peer>,
    tier: usize,
    index: usize,
    timing: Option<Timing>,
    /// Requests that wait for a peer's room.
    queue: Option<Arc<Queue>>,
    /// When it was chosen, µs of the monotonic clock.
    chosen_us: u64,
    /// After so many µs the answer's head, or a session's first byte, was there.
    head_us: Cell<Option<u64>>,
    /// Counted among the requests under way since it was chosen.
    is_under_way: Cell<bool>,
    /// Its place among those that the group can do at a time.
    pub permit: RefCell<Option<Permit>>,
}

impl Drop for SelectedPeer {
    fn drop(&mut self) {
        self.peer.state.conns.fetch_sub(1, Relaxed);
        self.landed();
        self.permit.take();
        if let Some(queue) = &self.queue {
            queue.call();
        }
    }
}

/// The place of a peer that is none of its group's.
const BESIDE: usize = usize::MAX;

impl SelectedPeer {
    /// A peer that is none of its group's: a program has chosen it.
    pub fn beside(peer: Arc<Peer>) -> SelectedPeer {
        peer.state.conns.fetch_add(1, Relaxed);
        peer.state.selected_ms.store(clock::wall_ms(), Relaxed);
        peer.state.counts.chosen();
        let chosen_us = clock::monotonic_us();
        let (head_us, is_under_way) = (Cell::new(None), Cell::new(false));
        let permit = RefCell::default();
        SelectedPeer {
            peer,
            tier: 0,
            index: BESIDE,
            timing: None,
            queue: None,
            chosen_us,
            head_us,
            is_under_way,
            permit,
        }
    }

    /// It no longer counts among the requests under way.
    fn landed(&self) {
        if self.is_under_way.take() {
            self.peer.state.times.inflight().end(clock::monotonic_us(), self.took_us());
        }
    }

    /// How long ago it was chosen, µs.
    fn took_us(&self) -> u64 {
        clock::monotonic_us().saturating_sub(self.chosen_us)
    }

    /// The answer's head is there, after so many ms.
    pub fn head_came(&self, status: u16, ms: Option<u64>) {
        self.peer.state.counts.answered(status, ms.unwrap_or_default());
        if let Some(permit) = &mut *self.permit.borrow_mut() {
            permit.answered(status);
        }
        if ms.is_some() {
            self.byte_came();
        }
    }

    /// The first byte of a session is there.
    pub fn byte_came(&self) {
        let us = self.took_us();
        self.head_us.set(Some(us));
        if self.waits_for(Until::Header) {
            Times::sample(&self.peer.state.times.header, us);
            self.landed();
        }
    }

    /// The try is over: how long it took is known.
    fn note_times(&self, attempt: &Attempt) {
        let times = &self.peer.state.times;
        // With `inflight` the header's time was noted when it came.
        let head_us = self.head_us.get().or(attempt.header_ms.map(|ms| ms * 1000));
        if let Some(us) = head_us.filter(|_| !self.waits_for(Until::Header)) {
            Times::sample(&times.header, us);
        }
        Times::sample(&times.last_byte, self.took_us());
    }

    /// The connection of a session stands.
    pub fn connected(&self) {
        Times::sample(&self.peer.state.times.connect, self.took_us());
        if self.waits_for(Until::Connect) {
            self.landed();
        }
    }

    /// Whether it counts among the requests under way until then.
    fn waits_for(&self, until: Until) -> bool {
        self.timing == Some(Timing { until, inflight: true })
    }
}

/// What became of asking a program.
pub enum ProgramChoice {
    /// This peer.
    Peer(SelectedPeer),
    /// Whomever the group's method takes.
    Usual,
    /// Nobody: the request ends with this status.
    Refused(u16),
}

/// Asks a group's program whom to ask.
pub type Ask = fn(&mut Request, &Group, &Program, &mut Selection) -> ProgramChoice;

/// What runs programs that choose peers. Those name requests and groups, and are not named here.
static PROGRAMS: OnceLock<Ask> = OnceLock::new();

/// Takes what runs programs; the first stays.
pub fn install(ask: Ask) {
    let _ = PROGRAMS.set(ask);
}

/// What of a request has a say in the choice.
#[derive(Clone, Copy)]
struct SelectionKey<'r> {
    /// Of `hash`.
    key: &'r [u8],
    /// What the peer is called that the client is bound to.
    bound: Option<&'r [u8]>,
}

/// The next peer for a request; none when there is no usable one left.
pub fn choose(r: &mut Request, group: &Arc<Group>, selection: &mut Selection) -> Option<SelectedPeer> {
    if let Some(program) = &group.balancer {
        let ask = PROGRAMS.get().expect("who has read the program has said how it is asked");
        match ask(r, group, program, selection) {
            ProgramChoice::Peer(chosen) => return Some(chosen),
            ProgramChoice::Usual => {}
            ProgramChoice::Refused(status) => {
                selection.said.refused = Some(status);
                return None;
            }
        }
    }
    let key = match &group.method {
        Method::Hash { key, .. } => {
            let text = key.eval(r);
            r.get(text).to_vec()
        }
        Method::Maglev => crate::modules::variables::remote_end(r),
        _ => Vec::new(),
    };
    // Asked anew for every try: what is learnt may have changed with the last one.
    let bound = group.sticky.as_ref().and_then(|sticky| sticky.wanted(r));
    let by = SelectionKey { key: &key, bound: bound.as_deref() };
    if group.for_one_request {
        return choose_alone(r, group, selection, &group.tiers, by);
    }
    let Some(tiers) = selection.tiers.clone() else {
        return with_rotation(group, |rotation| {
            choose_in_turn(r, group, selection, &group.tiers, &mut rotation.weights, by)
        });
    };
    let newest = |rotation: &Rotation| rotation.live.as_ref().is_some_and(|(_, t)| Rc::ptr_eq(t, &tiers));
    let chosen = with_rotation(group, |rotation| {
        newest(rotation).then(|| choose_in_turn(r, group, selection, &tiers, &mut rotation.weights, by))
    });
    chosen.unwrap_or_else(|| choose_alone(r, group, selection, &tiers, by))
}

fn choose_alone(
    r: &Request,
    group: &Group,
    selection: &mut Selection,
    tiers: &Tiers,
    by: SelectionKey<'_>,
) -> Option<SelectedPeer> {
    let mut turns = selection.turns.take().unwrap_or_else(|| fresh(tiers));
    let chosen = choose_in_turn(r, group, selection, tiers, &mut turns, by);
    selection.turns = Some(turns);
    chosen
}

fn choose_in_turn(
    r: &Request,
    group: &Group,
    selection: &mut Selection,
    tiers: &Tiers,
    turns: &mut [Weights; 2],
    by: SelectionKey<'_>,
) -> Option<SelectedPeer> {
    let timing = group.method.timing();
    loop {
        let number = selection.backup as usize;
        let tier = &tiers[number];
        let now_ms = clock::monotonic_ms();
        let now_us = clock::monotonic_us();
        let view = View { tier, now_ms, now_us, timing };
        if let Some(index) = pick(r, &group.method, &view, &mut turns[number], &mut selection.tried, by) {
            let peer = tier.peers[index].clone();
            // When a peer was last chosen matters to methods by time even if nothing is against it.
            if timing.is_some() || !peer.state.is_clean() {
                let mut f = peer.state.failures();
                f.chosen(peer.settings.policy, now_ms / 1000);
                peer.state.set_failures(f);
            }
            peer.state.conns.fetch_add(1, Relaxed);
            peer.state.selected_ms.store(clock::wall_ms(), Relaxed);
            peer.state.counts.chosen();
            let inflight = timing.is_some_and(|t| t.inflight);
            if inflight {
                peer.state.times.inflight().begin(now_us);
            }
            let queue = group.queue.as_ref().map(|line| line.queue.clone());
            let (head_us, is_under_way) = (Cell::new(None), Cell::new(inflight));
            return Some(SelectedPeer {
                peer,
                tier: number,
                index,
                timing,
                queue,
                chosen_us: now_us,
                head_us,
                is_under_way,
                permit: RefCell::default(),
            });
        }
        if selection.backup || tiers[1].peers.is_empty() {
            return None;
        }
        selection.backup = true;
        selection.tried.clear();
    }
}

fn pick(
    r: &Request,
    method: &Method,
    view: &View<'_>,
    weights: &mut Weights,
    tried: &mut Tried,
    by: SelectionKey<'_>,
) -> Option<usize> {
    let tier = view.tier;
    if tier.peers.is_empty() {
        return None;
    }
    let bound = by.bound.and_then(|name| tier.sessions.get(name)).copied();
    let mut choice = Choice::new(view, weights, tried);
    match (method, bound) {
        (Method::RoundRobin, Some(bound)) => return choice.round_robin_sticky(bound),
        (_, Some(bound)) => {
            if let Some(bound) = choice.sticky(bound) {
                return Some(bound);
            }
        }
        (_, None) => {}
    }
    match method {
        Method::RoundRobin => choice.round_robin(),
        Method::LeastConn => choice.least_conn(),
        Method::IpHash => {
            let mut buffer = [0; 16];
            let n = ip_hash_key(crate::modules::variables::remote_ip(r).as_ref(), &mut buffer);
            choice.ip_hash(&buffer[..n])
        }
        Method::Hash { consistent: false, .. } => choice.hash(by.key),
        Method::Hash { consistent: true, .. } => match &tier.ring {
            Some(ring) => choice.consistent_hash(ring, by.key),
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
        Method::Maglev => match &tier.maglev {
            Some(table) => choice.maglev(table, by.key),
            None => choice.round_robin(),
        },
        Method::LeastTime(_) => choice.least_time(),
    }
}

/// xorshift: good enough to spread requests.
pub fn random() -> u64 {
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
pub fn succeeded(chosen: &SelectedPeer, attempt: &Attempt) {
    let (state, policy) = (&chosen.peer.state, chosen.peer.settings.policy);
    if !state.is_clean() {
        let mut f = state.failures();
        let was_aside = policy.max_fails > 0 && f.count >= policy.max_fails;
        f.succeeded();
        state.set_failures(f);
        if was_aside && f.count == 0 {
            state.recovered_ms.store(clock::monotonic_ms(), Relaxed);
            state.note_use(policy);
        }
    }
    state.counts.carried(attempt.sent, attempt.received);
    if attempt.header_ms.is_some() && attempt.response_ms.is_some() {
        chosen.note_times(attempt);
    }
}

/// A session of `stream` is over, whose connection counted as a success before.
pub fn session_over(chosen: &SelectedPeer, attempt: &Attempt) {
    let state = &chosen.peer.state;
    state.counts.carried(attempt.sent, attempt.received);
    if attempt.header_ms.is_some() && attempt.response_ms.is_some() {
        chosen.note_times(attempt);
    }
}

/// A try at a peer failed. True when the peer is now set aside.
pub fn failed(group: &Group, selection: &mut Selection, chosen: &SelectedPeer, attempt: &Attempt) -> bool {
    let now_s = clock::monotonic_ms() / 1000;
    let (state, policy) = (&chosen.peer.state, chosen.peer.settings.policy);
    let mut f = state.failures();
    let was_aside = f.set_aside(policy, now_s);
    let aside = f.failed(policy, now_s);
    state.set_failures(f);
    state.fails.fetch_add(1, Relaxed);
    state.unanswered.fetch_add(u64::from(attempt.header_ms.is_none()), Relaxed);
    state.counts.carried(attempt.sent, attempt.received);
    if aside && !was_aside {
        state.unavail.fetch_add(1, Relaxed);
        state.note_use(policy);
    }
    if chosen.index == BESIDE {
        return aside;
    }
    let tiers = selection.tiers.as_deref().unwrap_or(&group.tiers);
    let view = View::still(&tiers[chosen.tier]);
    let lower = |t: &mut [Weights; 2]| t[chosen.tier].failed(&view, chosen.index, policy.max_fails);
    match &mut selection.turns {
        Some(own) => lower(own),
        None => with_rotation(group, |rotation| {
            if selection.tiers.is_none() || rotation.live.as_ref().is_some_and(|(_, t)| Arc::ptr_eq(t, tiers)) {
                lower(&mut rotation.weights);
            }
        }),
    }
    aside
}
