//! A group of peers: an `upstream` block, or the address of a `proxy_pass`. What its peers are made of stands in `servers`,
//! what is known of each in `peer`.

use super::availability::Role;
use super::live::Live;
use super::peer::Peer;
use super::queue;
use super::shed::Shed;
use crate::config::Subsystem;
use crate::config::complex::Complex;
use crate::connection::Address;
use crate::health::outlier::Outliers;
use crate::modules::lua::chunk::Program;
use crate::upstream::sticky::Sticky;
use balance::{Maglev, Ranges, Ring};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
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
    /// Its peers change while the server runs: names are followed, or it has a `zone` and may be edited.
    pub live: Option<Live>,
    /// `zone`: its name. Only groups that have one are shown by the API.
    pub zone: Option<Box<str>>,
    /// `balancer_by_lua*`: a program chooses, before the method.
    pub balancer: Option<Program>,
    /// `sticky`
    pub sticky: Option<Sticky>,
    /// `queue`
    pub queue: Option<queue::Line>,
    /// `concurrency_limit`, `circuit_breaker`
    pub shed: Option<Arc<Shed>>,
    /// `outlier_ejection`
    pub outliers: Option<Outliers>,
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
    /// For `maglev`.
    pub maglev: Option<Maglev>,
    /// For `sticky`: peers by what sessions call them.
    pub sessions: HashMap<Box<[u8]>, usize>,
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
    /// `maglev`: by the client's address and port, or in the kernel by what the listener says.
    Maglev,
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
    /// Until when time is taken.
    pub until: Until,
    /// Requests under way count as well.
    pub inflight: bool,
}

/// A moment of a request, or of a session of `stream`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The connection stands (`stream` only).
    Connect,
    /// The header is there; in `stream`, the first byte.
    Header,
    /// All is there.
    LastByte,
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
#[derive(Clone, Debug, PartialEq)]
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
pub fn key_of(subsystem: Subsystem, name: &str) -> String {
    if subsystem.is_stream() { format!("stream {name}") } else { name.to_owned() }
}

impl Group {
    /// A group for addresses that no `upstream` block names.
    pub fn implicit(subsystem: Subsystem, name: &str, addresses: Vec<Address>) -> Group {
        let key = key_of(subsystem, name);
        let peers = addresses.into_iter().map(|a| Arc::new(Peer::new(&key, name, a, 0))).collect();
        Group {
            name: name.into(),
            number: number_of(&key),
            method: Method::RoundRobin,
            tiers: Arc::new([Tier { peers, alone: true, ..Tier::default() }, Tier::default()]),
            live: None,
            zone: None,
            balancer: None,
            sticky: None,
            queue: None,
            shed: None,
            outliers: None,
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
            zone: None,
            balancer: None,
            sticky: None,
            queue: None,
            shed: None,
            outliers: None,
            keepalive: Keepalive { connections: None, ..Keepalive::default() },
            is_block: false,
            for_one_request: true,
        }
    }

    /// Clients are bound to peers.
    pub fn has_sessions(&self) -> bool {
        self.sticky.is_some()
    }

    /// How uneven the peers are used: the requests of the busiest for its weight over the mean of all; 1: even. None without
    /// requests. Of the first rank, `down` peers left out. `before`: how many requests of each (by the number of its state)
    /// not to count, since it is what happened lately that matters.
    pub fn skew(&self, before: impl Fn(&Peer) -> u64) -> Option<f64> {
        let tiers = self.tiers_now();
        let peers = tiers[0].peers.iter().filter(|p| p.role() != Role::Down);
        let shares: Vec<f64> = peers
            .map(|p| p.state.counts.requests().saturating_sub(before(p)) as f64 / f64::from(p.settings.weight))
            .collect();
        let mean = shares.iter().sum::<f64>() / shares.len() as f64;
        (mean > 0.0).then(|| shares.iter().fold(0.0, |most: f64, share| most.max(*share)) / mean)
    }

    /// The peers there are now.
    pub fn tiers_now(&self) -> Arc<Tiers> {
        self.live.as_ref().map_or_else(|| self.tiers.clone(), Live::tiers)
    }
}

impl Tier {
    /// Builds what the method looks peers up in.
    pub fn prepare(&mut self, method: &Method, sessions: bool) {
        struct All<'t>(&'t [Arc<Peer>]);
        impl balance::Peers for All<'_> {
            fn len(&self) -> usize {
                self.0.len()
            }
            fn weight(&self, i: usize) -> u32 {
                self.0[i].settings.weight
            }
            fn conns(&self, _: usize) -> u32 {
                0
            }
            fn enabled(&self, i: usize) -> bool {
                self.0[i].settings.role == Role::Up
            }
        }
        if sessions {
            for (index, peer) in self.peers.iter().enumerate() {
                // Of peers with one name the first is meant, as in nginx.
                self.sessions.entry(peer.session_id()).or_insert(index);
            }
        }
        match method {
            Method::Random { .. } => self.ranges = Some(Ranges::new(&All(&self.peers))),
            Method::Hash { consistent: true, .. } => {
                self.ring = Some(Ring::new(self.peers.iter().map(|p| (p.server.as_bytes(), p.settings.weight))));
            }
            Method::Maglev => {
                self.maglev = Some(Maglev::new(self.peers.iter().map(|p| (p.name.as_bytes(), p.settings.weight))));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skew_is_the_busiest_over_the_mean() {
        let address = |port| Address::Inet(([127, 0, 0, 1], port).into());
        let group = Group::for_one_request("g", vec![address(1), address(2)]);
        assert_eq!(group.skew(|_| 0), None);
        let counts = |i: usize| &group.tiers[0].peers[i].state.counts;
        (0..3).for_each(|_| counts(0).chosen());
        counts(1).chosen();
        assert_eq!(group.skew(|_| 0), Some(1.5));
        assert_eq!(group.skew(|p| if p.name.ends_with(":1") { 2 } else { 0 }), Some(1.0));
    }
}
