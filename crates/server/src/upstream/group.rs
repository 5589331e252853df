//! A group of peers: an `upstream` block, or the address of a `proxy_pass`. Peers' states are shared by all threads and
//! outlive reloads: they are found again by group and address.

use crate::config::complex::Complex;
use crate::connection::Address;
use balance::{FailurePolicy, Failures, Ranges, Ring};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Index of a group in the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId(pub u32);

/// A group.
#[derive(Debug)]
pub struct Group {
    /// The name of the block, or `host:port`.
    pub name: Arc<str>,
    /// The name as a number: what threads keep for the group (turns, idle connections) is found by it. The same for
    /// groups of one name, reload after reload.
    pub number: u32,
    /// How a peer is chosen.
    pub method: Method,
    /// The peers, and those that stand in for them.
    pub tiers: [Tier; 2],
    /// `keepalive`
    pub keepalive: Keepalive,
    /// An `upstream` block, not just an address.
    pub is_block: bool,
    /// Made for one request: turns and failures are forgotten with it.
    pub for_one_request: bool,
}

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
    /// `random`, `random two`.
    Random {
        /// Of two, the one with fewer connections.
        two: bool,
    },
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

impl Group {
    /// A group for addresses that no `upstream` block names.
    pub fn implicit(name: &str, addresses: Vec<Address>) -> Group {
        let peers = addresses.into_iter().map(|a| Arc::new(Peer::new(name, name, a, 0))).collect();
        Group {
            name: name.into(),
            number: number_of(name),
            method: Method::RoundRobin,
            tiers: [Tier { peers, alone: true, ..Tier::default() }, Tier::default()],
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
            tiers: [Tier { peers, alone: true, ..Tier::default() }, Tier::default()],
            keepalive: Keepalive { connections: None, ..Keepalive::default() },
            is_block: false,
            for_one_request: true,
        }
    }

    /// How often a request may be tried: every peer that is not down once.
    pub fn tries(&self) -> usize {
        self.tiers.iter().flat_map(|t| &t.peers).filter(|p| !p.down).count()
    }
}

impl Peer {
    /// A peer with the values a `server` line has by default. `ordinal`: how many lines before have the same address.
    pub fn new(group: &str, server: &str, address: Address, ordinal: usize) -> Peer {
        let state = state_of(group, &name_of(&address), ordinal);
        Peer::with_state(server, address, state)
    }

    fn with_state(server: &str, address: Address, state: Arc<PeerState>) -> Peer {
        Peer {
            name: name_of(&address).into(),
            server: server.into(),
            address,
            weight: 1,
            max_conns: 0,
            policy: FailurePolicy::default(),
            down: false,
            state,
        }
    }
}

fn name_of(address: &Address) -> String {
    match address {
        Address::Inet(a) => a.to_string(),
        Address::Unix(path) => format!("unix:{}", path.display()),
    }
}
