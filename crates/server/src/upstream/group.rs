//! A group of peers: an `upstream` block, or the address of a `proxy_pass`. Peers' states are shared by all threads and
//! outlive reloads: they are found again by group and address.

use super::live::{Host, Live};
use crate::config::Plane;
use crate::config::complex::Complex;
use crate::connection::Address;
use balance::{FailurePolicy, Failures, Inflight, Ranges, Ring};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Index of a group in the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId(pub u32);

/// A group.
#[derive(Debug)]
pub struct Group {
    /// The name of the block, or `host:port`.
    pub name: Arc<str>,
    /// Its key as a number: what threads keep for the group (turns, idle connections) is found by it. The same for
    /// groups of one name, reload after reload.
    pub number: u32,
    /// How a peer is chosen.
    pub method: Method,
    /// The peers, and those that stand in for them; of a group that is [`live`](Group::live), those at its start.
    pub tiers: Arc<Tiers>,
    /// Some of its names are followed while the server runs.
    pub live: Option<Live>,
    /// `keepalive`
    pub keepalive: Keepalive,
    /// An `upstream` block, not just an address.
    pub is_block: bool,
    /// Made for one request: turns and failures are forgotten with it.
    pub for_one_request: bool,
}

/// The peers, and those that stand in for them.
pub type Tiers = [Tier; 2];

/// The peers of one rank.
#[derive(Debug, Default)]
pub struct Tier {
    /// In the order of the text, each address of a name on its own.
    pub peers: Vec<Arc<Peer>>,
    /// For `random`.
    pub ranges: Option<Ranges>,
    /// For `hash ... consistent`.
    pub ring: Option<Ring>,
    /// The other rank has no peers: this rank's only peer is never set aside.
    pub alone: bool,
}

/// How a peer is chosen.
#[derive(Clone, Debug, Default)]
pub enum Method {
    /// In turn, by weight.
    #[default]
    RoundRobin,
    /// `least_conn`
    LeastConn,
    /// `ip_hash`
    IpHash,
    /// `hash key`, or `hash key consistent`.
    Hash {
        /// What is hashed.
        key: Complex,
        /// By a ring.
        consistent: bool,
    },
    /// `least_time`
    LeastTime(Timing),
    /// `random`, `random two`.
    Random {
        /// Which of two is taken.
        two: Option<Better>,
    },
}

/// Which of two peers is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// The one with fewer connections.
    Conns,
    /// The faster one.
    Time(Timing),
}

/// What `least_time` goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The time to the last byte, not to the header.
    pub last_byte: bool,
    /// Requests under way count as well.
    pub inflight: bool,
}

impl Method {
    /// What of peers' times it needs.
    pub fn timing(&self) -> Option<Timing> {
        match self {
            Method::LeastTime(timing) | Method::Random { two: Some(Better::Time(timing)) } => Some(*timing),
            _ => None,
        }
    }
}

/// `keepalive` and its companions.
#[derive(Clone, Debug)]
pub struct Keepalive {
    /// Idle connections that each thread keeps at least; none: connections are not kept.
    pub connections: Option<usize>,
    /// Requests a connection may carry.
    pub requests: u64,
    /// How long a connection may be used.
    pub time: Duration,
    /// How long it may be idle.
    pub timeout: Duration,
}

impl Default for Keepalive {
    fn default() -> Keepalive {
        Keepalive {
            connections: Some(32),
            requests: 1000,
            time: Duration::from_secs(3600),
            timeout: Duration::from_secs(60),
        }
    }
}

/// A peer: one address of one `server` line.
#[derive(Debug)]
pub struct Peer {
    /// `127.0.0.1:8080`, `unix:/path`: `$upstream_addr`.
    pub name: Box<str>,
    /// The server as it was written.
    pub server: Box<str>,
    /// Where it is.
    pub address: Address,
    /// `weight`
    pub weight: u32,
    /// `max_conns`, 0: no limit.
    pub max_conns: u32,
    /// `max_fails`, `fail_timeout`
    pub policy: FailurePolicy,
    /// `down`
    pub down: bool,
    /// `slow_start`, 0: none.
    pub slow_start_ms: u64,
    /// What is known of it.
    pub state: Arc<PeerState>,
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
    /// For `least_time`.
    pub times: Times,
}

/// How fast a peer is, as far as a method asks for it. Milliseconds.
#[derive(Debug, Default)]
pub struct Times {
    /// Moving average until the header.
    pub header: AtomicU64,
    /// Moving average until the last byte.
    pub last_byte: AtomicU64,
    /// Requests under way.
    pub inflight: Mutex<Inflight>,
}

impl Times {
    /// Adds a sample to an average. Threads may overtake each other here; the worst is one sample less.
    pub fn sample(average: &AtomicU64, ms: u64) {
        average.store(balance::average(average.load(Relaxed), ms), Relaxed);
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
            times: Times::default(),
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

    /// Whether there is nothing against the peer, with one load.
    pub fn is_clean(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Stores what a rule made of the failures. Threads may overtake each other here; the worst is one failure less.
    pub fn set_failures(&self, f: Failures) {
        self.count.store(f.count, Relaxed);
        self.accessed_s.store(f.accessed_s, Relaxed);
        self.checked_s.store(f.checked_s, Relaxed);
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

/// The number of a group's name. Names come from configurations, so there are not many.
pub fn number_of(name: &str) -> u32 {
    static NAMES: Mutex<Vec<Box<str>>> = Mutex::new(Vec::new());
    let mut names = NAMES.lock().expect("nothing panics while it is locked");
    let number = names.iter().position(|n| **n == *name).unwrap_or_else(|| {
        names.push(name.into());
        names.len() - 1
    });
    number as u32
}

/// What a group's turns and its peers' states are known by: groups of `http` and `stream` may have the same name.
pub fn key_of(plane: Plane, name: &str) -> String {
    if plane.is_stream() { format!("stream {name}") } else { name.to_owned() }
}

impl Group {
    /// A group for addresses that no `upstream` block names.
    pub fn implicit(plane: Plane, name: &str, addresses: Vec<Address>) -> Group {
        let key = key_of(plane, name);
        let peers = addresses.into_iter().map(|a| Arc::new(Peer::new(&key, name, a, 0))).collect();
        Group {
            name: name.into(),
            number: number_of(&key),
            method: Method::RoundRobin,
            tiers: Arc::new([Tier { peers, alone: true, ..Tier::default() }, Tier::default()]),
            live: None,
            keepalive: Keepalive::default(),
            is_block: false,
            for_one_request: false,
        }
    }

    /// A group for addresses that were found out for one request, whose name may be any client's choice.
    pub fn for_one_request(name: &str, addresses: Vec<Address>) -> Group {
        let peer = |a| Arc::new(Peer::with_state(name, a, Arc::default()));
        let peers = addresses.into_iter().map(peer).collect();
        Group {
            name: name.into(),
            number: u32::MAX,
            method: Method::RoundRobin,
            tiers: Arc::new([Tier { peers, alone: true, ..Tier::default() }, Tier::default()]),
            live: None,
            keepalive: Keepalive { connections: None, ..Keepalive::default() },
            is_block: false,
            for_one_request: true,
        }
    }

    /// The peers there are now.
    pub fn tiers_now(&self) -> Arc<Tiers> {
        self.live.as_ref().map_or_else(|| self.tiers.clone(), Live::tiers)
    }
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
            name: name_of(&address).into(),
            server: server.into(),
            address,
            weight: 1,
            max_conns: 0,
            policy: FailurePolicy::default(),
            down: false,
            slow_start_ms: 0,
            state,
        }
    }
}

/// One `server` line of a block.
#[derive(Debug)]
pub enum Line {
    /// Addresses that stay.
    Fixed {
        /// One for each address.
        peers: Vec<Arc<Peer>>,
        /// `backup`
        backup: bool,
    },
    /// A name that is followed.
    Named {
        /// The name.
        host: Arc<Host>,
        /// What its peers are like; its address has the port.
        like: Peer,
        /// `backup`
        backup: bool,
    },
}

/// The peers of a group's lines as they are known now: first the fixed ones, then those of names, as in nginx.
pub fn assemble(group: &str, method: &Method, lines: &[Line]) -> Tiers {
    let mut tiers = [Tier::default(), Tier::default()];
    for line in lines {
        if let Line::Fixed { peers, backup } = line {
            tiers[usize::from(*backup)].peers.extend(peers.iter().cloned());
        }
    }
    for line in lines {
        let Line::Named { host, like, backup } = line else { continue };
        for place in host.places() {
            let mut address = place.address;
            if let (0, Address::Inet(a)) = (address.port(), &like.address) {
                address.set_port(a.port());
            }
            let address = Address::Inet(address);
            let ordinal = tiers.iter().flat_map(|t| &t.peers).filter(|p| p.address == address).count();
            let peer = Peer::new(group, place.target.as_deref().unwrap_or(&like.server), address, ordinal);
            let weight = if like.weight == 1 { place.weight.unwrap_or(1).max(1) } else { like.weight };
            let peer = Peer {
                weight,
                max_conns: like.max_conns,
                policy: like.policy,
                down: like.down,
                slow_start_ms: like.slow_start_ms,
                ..peer
            };
            tiers[usize::from(*backup || place.backup)].peers.push(Arc::new(peer));
        }
    }
    tiers[0].alone = tiers[1].peers.is_empty();
    for tier in &mut tiers {
        tier.prepare(method);
    }
    tiers
}

impl Tier {
    /// Builds what the method looks peers up in.
    fn prepare(&mut self, method: &Method) {
        struct All<'t>(&'t [Arc<Peer>]);
        impl balance::Peers for All<'_> {
            fn len(&self) -> usize {
                self.0.len()
            }
            fn weight(&self, i: usize) -> u32 {
                self.0[i].weight
            }
            fn conns(&self, _: usize) -> u32 {
                0
            }
            fn enabled(&self, i: usize) -> bool {
                !self.0[i].down
            }
        }
        match method {
            Method::Random { .. } => self.ranges = Some(Ranges::new(&All(&self.peers))),
            Method::Hash { consistent: true, .. } => {
                self.ring = Some(Ring::new(self.peers.iter().map(|p| (p.server.as_bytes(), p.weight))));
            }
            _ => {}
        }
    }
}

fn name_of(address: &Address) -> String {
    match address {
        Address::Inet(a) => a.to_string(),
        Address::Unix(path) => format!("unix:{}", path.display()),
    }
}
