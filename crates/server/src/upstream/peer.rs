//! A peer: one address of one `server` line, and what all threads know of it. States outlive reloads: they are found again
//! by group, address and which of several lines with this address.

use super::availability::{AtomicAvailability, Role};
use super::counts::Counts;
use super::group::Keepalive;
use crate::connection::Address;
use crate::connection::parked::{read_address, write_address};
use crate::health::record::Record;
use balance::{FailurePolicy, Failures, Inflight};
use runtime::clock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A peer.
#[derive(Debug)]
pub struct Peer {
    /// Its number in the group, the same as long as it is in it.
    pub id: u32,
    /// `127.0.0.1:8080`, `unix:/path`: `$upstream_addr`.
    pub name: Box<str>,
    /// The server as it was written.
    pub server: Box<str>,
    /// Where it is.
    pub address: Address,
    /// What its `server` line says of it.
    pub settings: PeerSettings,
    /// What is known of it.
    pub state: Arc<PeerState>,
}

/// The parameters of a `server` line that are about each of its peers.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerSettings {
    /// `weight`
    pub weight: u32,
    /// `max_conns`, 0: no limit.
    pub max_conns: u32,
    /// `max_fails`, `fail_timeout`
    pub policy: FailurePolicy,
    /// `slow_start`, 0: none.
    pub slow_start_ms: u64,
    /// `down`, `drain`
    pub role: Role,
    /// `route`, empty if there is none.
    pub route: Box<str>,
    /// How its connections are kept, if otherwise than the group's: a program said so.
    pub keepalive: Option<Keepalive>,
}

impl Default for PeerSettings {
    fn default() -> PeerSettings {
        PeerSettings {
            weight: 1,
            max_conns: 0,
            policy: FailurePolicy::default(),
            slow_start_ms: 0,
            role: Role::Up,
            route: Box::default(),
            keepalive: None,
        }
    }
}

/// How a peer is, as nginx Plus' API calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Takes requests.
    Up,
    /// Takes the requests of its sessions only.
    Draining,
    /// The configuration or the operator says so.
    Down,
    /// Set aside: requests failed (`max_fails`), or it is an outlier.
    Unavail,
    /// A `mandatory` check has not passed yet.
    Checking,
    /// Checks fail.
    Unhealthy,
}

impl State {
    /// nginx Plus' word.
    pub fn word(self) -> &'static str {
        match self {
            State::Up => "up",
            State::Draining => "draining",
            State::Down => "down",
            State::Unavail => "unavail",
            State::Checking => "checking",
            State::Unhealthy => "unhealthy",
        }
    }
}

/// What all threads know of a peer.
#[derive(Debug)]
pub struct PeerState {
    /// Connections in use.
    pub conns: AtomicU32,
    /// Which of all states of the process: idle connections to the peer are found by it.
    pub number: u32,
    count: AtomicU32,
    accessed_s: AtomicU64,
    checked_s: AtomicU64,
    /// When it came back from being set aside (monotonic ms), for `slow_start`; 0: never.
    pub recovered_ms: AtomicU64,
    /// What checks, ejection and the operator say.
    pub availability: AtomicAvailability,
    /// When it was chosen last (wall clock ms since 1970); 0: never.
    pub selected_ms: AtomicU64,
    /// Tries that failed.
    pub fails: AtomicU64,
    /// Tries that brought no answer at all.
    pub unanswered: AtomicU64,
    /// How often it was set aside for failures of requests.
    pub unavail: AtomicU64,
    /// For `least_time`, and to be shown.
    pub times: Times,
    /// Requests, answers, bytes.
    pub counts: Counts,
    /// What checks found.
    pub health: Record,
    /// For the API.
    pub shown: crate::status::peers::Shown,
    out: Mutex<Out>,
}

/// How long a peer has been out of use, not counting what was meant so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Out {
    /// When the present time out began (wall clock ms since 1970); none: it is in use.
    pub since_ms: Option<u64>,
    /// How long the times out before were, together, ms.
    pub before_ms: u64,
}

impl Out {
    /// All time out of use, ms.
    pub fn total_ms(&self, now_ms: u64) -> u64 {
        self.before_ms + self.since_ms.map_or(0, |since| now_ms.saturating_sub(since))
    }
}

/// How fast a peer is. Microseconds: a peer beside us answers in less than a millisecond.
#[derive(Debug, Default)]
pub struct Times {
    /// Moving average until the header (`stream`: the first byte).
    pub header: AtomicU64,
    /// Moving average until the last byte.
    pub last_byte: AtomicU64,
    /// Moving average until the connection stood (`stream` only).
    pub connect: AtomicU64,
    /// Requests under way.
    pub inflight: Mutex<Inflight>,
}

impl Times {
    /// Adds a sample to an average. Threads may overtake each other here; the worst is one sample less.
    pub fn sample(average: &AtomicU64, us: u64) {
        average.store(balance::average(average.load(Relaxed), us), Relaxed);
    }

    /// The requests under way.
    pub fn inflight(&self) -> MutexGuard<'_, Inflight> {
        self.inflight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for PeerState {
    fn default() -> PeerState {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        PeerState {
            conns: AtomicU32::new(0),
            number: NEXT.fetch_add(1, Relaxed),
            count: AtomicU32::new(0),
            accessed_s: AtomicU64::new(0),
            checked_s: AtomicU64::new(0),
            recovered_ms: AtomicU64::new(0),
            availability: AtomicAvailability::default(),
            selected_ms: AtomicU64::new(0),
            fails: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            unavail: AtomicU64::new(0),
            times: Times::default(),
            counts: Counts::default(),
            health: Record::default(),
            shown: Default::default(),
            out: Mutex::default(),
        }
    }
}

impl PeerState {
    /// The failures so far.
    pub fn failures(&self) -> Failures {
        Failures {
            count: self.count.load(Relaxed),
            accessed_s: self.accessed_s.load(Relaxed),
            checked_s: self.checked_s.load(Relaxed),
        }
    }

    /// Whether no failure counts against the peer, with one load.
    pub fn is_clean(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Stores what a rule made of the failures. Threads may overtake each other here; the worst is one failure less.
    pub fn set_failures(&self, f: Failures) {
        self.count.store(f.count, Relaxed);
        self.accessed_s.store(f.accessed_s, Relaxed);
        self.checked_s.store(f.checked_s, Relaxed);
    }

    /// How long it has been out of use.
    pub fn out(&self) -> Out {
        *self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It went out of use, or may be in use again: what is asked decides.
    pub fn note_use(&self, policy: FailurePolicy) {
        let aside = policy.max_fails > 0 && self.count.load(Relaxed) >= policy.max_fails;
        let is_out = aside || !self.availability.now().is_well();
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        match (is_out, out.since_ms) {
            (true, None) => out.since_ms = Some(clock::wall_ms()),
            (false, Some(since)) => {
                out.before_ms += clock::wall_ms().saturating_sub(since);
                out.since_ms = None;
            }
            _ => {}
        }
    }
}

/// A peer's name through reloads: group, address, and which of several lines with this address.
type StateKey = (Box<str>, Box<str>, usize);

/// States as long as any snapshot uses them.
static STATES: Mutex<Option<HashMap<StateKey, Weak<PeerState>>>> = Mutex::new(None);

/// The state of a peer: the one that is there already, or a new one.
pub fn state_of(group: &str, peer: &str, ordinal: usize) -> Arc<PeerState> {
    let mut guard = STATES.lock().expect("nothing panics while it is locked");
    let states = guard.get_or_insert_default();
    states.retain(|_, s| s.strong_count() > 0);
    let key = (Box::from(group), Box::from(peer), ordinal);
    if let Some(state) = states.get(&key).and_then(Weak::upgrade) {
        return state;
    }
    let state = Arc::new(PeerState::default());
    states.insert(key, Arc::downgrade(&state));
    state
}

/// The kind of what is said of peers between processes.
pub const ZONE: &[u8] = b"peers";

/// For another process: failures of peers, what checks and operators say of them.
pub fn leave(say: &mut dyn FnMut(Vec<u8>)) {
    let mut rows = heir::Writer::default();
    let guard = STATES.lock().expect("nothing panics while it is locked");
    for ((group, peer, ordinal), state) in guard.iter().flatten() {
        let Some(state) = state.upgrade() else { continue };
        let Failures { count, accessed_s, checked_s } = state.failures();
        rows.bytes(group.as_bytes());
        rows.bytes(peer.as_bytes());
        let numbers = [*ordinal as u64, count.into(), accessed_s, checked_s, state.availability.bits()];
        numbers.into_iter().for_each(|number| rows.number(number));
    }
    drop(guard);
    say(heir::Frame::Zone(ZONE, b"", &rows.done()).write());
}

/// What another process said of peers.
pub fn settle(rows: &[u8]) {
    let mut r = heir::Reader::new(rows);
    while !r.is_done() {
        if settle_one(&mut r).is_none() {
            return;
        }
    }
}

fn settle_one(r: &mut heir::Reader<'_>) -> Option<()> {
    let (group, peer) = (r.bytes()?, r.bytes()?);
    let ordinal = usize::try_from(r.number()?).ok()?;
    let count = u32::try_from(r.number()?).ok()?;
    let failures = Failures { count, accessed_s: r.number()?, checked_s: r.number()? };
    let bits = r.number()?;
    let guard = STATES.lock().expect("nothing panics while it is locked");
    let is_it = |(g, p, o): &StateKey| g.as_bytes() == group && p.as_bytes() == peer && *o == ordinal;
    let state = guard.iter().flatten().find(|(key, _)| is_it(key)).and_then(|(_, state)| state.upgrade());
    drop(guard);
    if let Some(state) = state {
        state.set_failures(failures);
        state.availability.take_over(bits);
    }
    Some(())
}

/// A peer for another process: its group, its server as it was written, its address, and which of several lines with that. One that was
/// found out for a request alone has no group.
pub fn write(peer: &Peer, w: &mut heir::Writer) {
    let guard = STATES.lock().expect("nothing panics while it is locked");
    let is_it = |state: &Weak<PeerState>| std::ptr::eq(state.as_ptr(), Arc::as_ptr(&peer.state));
    let known = guard.iter().flatten().find(|(_, state)| is_it(state));
    w.flag(known.is_some());
    if let Some(((group, _, ordinal), _)) = known {
        w.bytes(group.as_bytes());
        w.number(*ordinal as u64);
    }
    w.bytes(peer.server.as_bytes());
    write_address(&peer.address, w);
}

/// What [`write()`] of another process wrote: with what is known of that peer here, be it in its group still or not.
pub fn read(r: &mut heir::Reader<'_>) -> Option<Arc<Peer>> {
    let known = match r.flag()? {
        true => Some((std::str::from_utf8(r.bytes()?).ok()?, usize::try_from(r.number()?).ok()?)),
        false => None,
    };
    let server = std::str::from_utf8(r.bytes()?).ok()?;
    let address = read_address(r)?;
    Some(Arc::new(match known {
        Some((group, ordinal)) => Peer::new(group, server, address, ordinal),
        None => Peer::with_state(server, address, Arc::default()),
    }))
}

/// The numbers of a group's states that have connections in use, also of peers that are no more in it. `group`: its key.
pub fn in_use(group: &str) -> Vec<u32> {
    let guard = STATES.lock().expect("nothing panics while it is locked");
    let states = guard.iter().flatten().filter(|((of, ..), _)| **of == *group).filter_map(|(_, s)| s.upgrade());
    states.filter(|s| s.conns.load(Relaxed) > 0).map(|s| s.number).collect()
}

impl Peer {
    /// A peer with the values a `server` line has by default. `ordinal`: how many lines before have the same address.
    pub fn new(group: &str, server: &str, address: Address, ordinal: usize) -> Peer {
        let state = state_of(group, &name_of(&address), ordinal);
        Peer::with_state(server, address, state)
    }

    /// A peer with default values and a state of its own.
    pub fn with_state(server: &str, address: Address, state: Arc<PeerState>) -> Peer {
        Peer {
            id: 0,
            name: name_of(&address).into(),
            server: server.into(),
            address,
            settings: PeerSettings::default(),
            state,
        }
    }

    /// What is meant for it: by the operator, else by the configuration.
    #[inline]
    pub fn role(&self) -> Role {
        self.state.availability.now().role().unwrap_or(self.settings.role)
    }

    /// Somebody takes it out of use, or back into it. What failed before counts no more then.
    pub fn set_down(&self, is_down: bool) {
        let role = if is_down { Role::Down } else { Role::Up };
        self.state.availability.set_role((role != self.settings.role).then_some(role));
        if !is_down {
            self.state.set_failures(Failures { count: 0, ..self.state.failures() });
            self.state.note_use(self.settings.policy);
        }
    }

    /// What sessions call it: its `route`, or a digest of its name.
    pub fn session_id(&self) -> Box<[u8]> {
        match &*self.settings.route {
            "" => Box::new(balance::session_id(self.name.as_bytes())),
            route => route.as_bytes().into(),
        }
    }

    /// Set aside for failures of requests.
    pub fn is_set_aside(&self, now_s: u64) -> bool {
        !self.state.is_clean() && self.state.failures().set_aside(self.settings.policy, now_s)
    }

    /// How it is now.
    pub fn state(&self) -> State {
        let availability = self.state.availability.now();
        match self.role() {
            Role::Down => State::Down,
            _ if availability.is_failing() => State::Unhealthy,
            _ if availability.is_unproven() => State::Checking,
            _ if availability.is_ejected() || self.is_set_aside(clock::monotonic_ms() / 1000) => State::Unavail,
            Role::Drain => State::Draining,
            Role::Up => State::Up,
        }
    }

    /// Why it is out, in words for an operator; none while it is in use.
    pub fn reason(&self) -> Option<String> {
        let notes = self.state.health.notes();
        let cause = match self.state() {
            State::Unhealthy | State::Checking => notes.active.as_ref(),
            State::Unavail if self.state.availability.now().is_ejected() => notes.outlier.as_ref(),
            State::Unavail => notes.passive.as_ref(),
            State::Up | State::Draining | State::Down => None,
        };
        cause.map(ToString::to_string)
    }

    /// It is draining, and nothing of its requests is under way.
    pub fn is_drained(&self) -> bool {
        self.role() == Role::Drain && self.state.conns.load(Relaxed) == 0
    }
}

/// An address as peers are called.
pub fn name_of(address: &Address) -> String {
    match address {
        Address::Inet(a) => a.to_string(),
        Address::Unix(path) => format!("unix:{}", path.display()),
    }
}
