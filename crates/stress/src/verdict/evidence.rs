//! What a judgement rests on: of one machine, or of several together.

use crate::client::ThreadFacts;
use machine::own::Counters;
use machine::queue::Watched;
use serde::{Deserialize, Serialize};

/// Everything a judgement rests on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Evidence {
    /// Requests that the schedule wanted; `None`: closed loop.
    pub wanted: Option<u64>,
    /// Answers by the planned end.
    pub on_time: u64,
    /// Each thread.
    pub threads: Vec<(f64, f64)>,
    /// What the kernel counted during the run.
    pub counters: Counters,
    /// How long the run was, seconds.
    pub seconds: f64,
    /// The interface's speed, bits a second, if it is a wire's.
    pub speed: Option<u64>,
    /// A bare handshake's round trip before and during the run, microseconds.
    pub way_us: Option<(f64, f64)>,
    /// The target is on this machine.
    pub is_local: bool,
    /// It may run on CPUs of the generator, or nobody knows.
    #[serde(default)]
    pub shares_cpus: bool,
    /// It is reached by the loopback interface.
    pub is_loopback: bool,
    /// Local ports to one target address, over all sources.
    pub ports: Option<u64>,
    /// TIME_WAITs at the end.
    pub time_waits: Option<u64>,
    /// Limit of descriptors.
    pub descriptors: u64,
    /// Connections of the plan.
    pub connections: u64,
    /// The target's accept queue, if it is on this machine.
    #[serde(default)]
    pub queue: Option<Watched>,
    /// Connections that the target turned away, by its API.
    #[serde(default)]
    pub turned_away: u64,
}

impl ThreadFacts {
    /// Parts of the run (0 to 1) that it ran, and that it waited for a CPU.
    pub(crate) fn parts(&self) -> (f64, f64) {
        let wall = self.wall_ns.max(1) as f64;
        ((self.cpu_ns as f64 / wall).min(1.0), (self.delay_ns as f64 / wall).min(1.0))
    }
}

impl Evidence {
    /// Adds another machine's, but for what its caller knows of the whole: `wanted`, `on_time`, `seconds`, `connections`.
    pub(crate) fn add(&mut self, other: &Evidence) {
        self.threads.extend_from_slice(&other.threads);
        self.counters.listen_overflows += other.counters.listen_overflows;
        self.counters.datagram_overflows += other.counters.datagram_overflows;
        self.counters.syn_retransmits += other.counters.syn_retransmits;
        self.counters.retransmits += other.counters.retransmits;
        self.counters.out_segments += other.counters.out_segments;
        self.is_local |= other.is_local;
        self.shares_cpus |= other.shares_cpus;
        self.is_loopback |= other.is_loopback;
        self.ports = Some(self.ports.unwrap_or(0) + other.ports.unwrap_or(0));
        self.time_waits = Some(self.time_waits.unwrap_or(0) + other.time_waits.unwrap_or(0));
        self.descriptors = self.descriptors.max(other.descriptors);
        self.queue = self.queue.or(other.queue);
        self.turned_away += other.turned_away;
        // The slowest way of all.
        let slower = |a: (f64, f64), b: (f64, f64)| if a.1 >= b.1 { a } else { b };
        self.way_us = match (self.way_us, other.way_us) {
            (Some(a), Some(b)) => Some(slower(a, b)),
            (a, b) => a.or(b),
        };
    }
}
