//! What a balancer has done, as plain values: from the process that may read the maps to those that show it.

use crate::layout::{Counters, EVENTS, SIZE_BOUNDS, Service, choice, real_flag, service_flag};
use crate::plan::{Mode, Protocol, RealState};
use crate::tables::{Look, RealLook, ServiceLook};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Where the program is attached.
    pub interfaces: Vec<Attachment>,
    /// Why packets are not balanced in the kernel, if they are not.
    pub problem: Option<String>,
    /// Flows that the table has room for.
    pub flow_room: u64,
    /// Virtual servers, by address.
    pub services: Vec<ServiceReport>,
    /// Counters of the whole, in the order of [`EVENTS`].
    pub events: Vec<u64>,
}

/// An interface that the program is attached to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Its name.
    pub name: String,
    /// By its driver; if not by the stack, which is slower.
    pub native: bool,
}

/// A virtual server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceReport {
    /// Address and port.
    pub address: SocketAddr,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// How packets reach real servers.
    pub mode: Mode,
    /// IPVS' word for which real server gets a flow: `mh`, `sh`, `wrr`, `wlc`.
    pub scheduler: String,
    /// What was counted, that of real servers that have left included.
    pub counts: Counts,
    /// Real servers; those that only finish what they have, too.
    pub reals: Vec<RealReport>,
}

/// A real server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RealReport {
    /// Address and port.
    pub address: SocketAddr,
    /// Share of new flows; 0: it gets none.
    pub weight: u32,
    /// Whether it gets flows.
    pub state: RealState,
    /// It is no longer in the plan.
    pub gone: bool,
    /// Its accept queue is full.
    pub full: bool,
    /// Flows it has.
    pub active: u64,
    /// What was counted.
    pub counts: Counts,
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Flows that began.
    pub flows: u64,
    /// Packets of clients.
    pub in_packets: u64,
    /// Bytes of their frames.
    pub in_bytes: u64,
    /// Packets to clients; modes without a way back through us have none.
    pub out_packets: u64,
    /// Bytes of their frames.
    pub out_bytes: u64,
    /// Packets by the size of their frame: below each of [`SIZE_BOUNDS`], then those that are larger.
    pub sizes: [u64; SIZE_BOUNDS.len() + 1],
}

impl From<&Counters> for Counts {
    fn from(c: &Counters) -> Counts {
        Counts {
            flows: c.flows,
            in_packets: c.in_packets,
            in_bytes: c.in_bytes,
            out_packets: c.out_packets,
            out_bytes: c.out_bytes,
            sizes: c.sizes,
        }
    }
}

impl Counts {
    /// The sum of two.
    pub fn plus(mut self, other: &Counts) -> Counts {
        self.each(other, u64::wrapping_add);
        self
    }

    /// What was counted since.
    pub fn since(mut self, zero: &Counts) -> Counts {
        self.each(zero, u64::saturating_sub);
        self
    }

    fn each(&mut self, other: &Counts, work: fn(u64, u64) -> u64) {
        self.flows = work(self.flows, other.flows);
        self.in_packets = work(self.in_packets, other.in_packets);
        self.in_bytes = work(self.in_bytes, other.in_bytes);
        self.out_packets = work(self.out_packets, other.out_packets);
        self.out_bytes = work(self.out_bytes, other.out_bytes);
        self.sizes.iter_mut().zip(other.sizes).for_each(|(a, b)| *a = work(*a, b));
    }
}

/// IPVS' word for how a service chooses.
pub fn scheduler(value: &Service) -> &'static str {
    match (value.choice, value.flags & service_flag::HASH_PORT) {
        (choice::TURN, _) => "wrr",
        (choice::LEAST, _) => "wlc",
        (_, 0) => "sh",
        _ => "mh",
    }
}

impl RealReport {
    fn of(real: &RealLook) -> RealReport {
        let flags = real.value.flags;
        let state = match flags {
            f if f & real_flag::RESET != 0 => RealState::Reset,
            f if f & real_flag::USABLE != 0 => RealState::Up,
            _ => RealState::Drain,
        };
        RealReport {
            address: SocketAddr::new(real.value.addr.ip(), real.value.port.0),
            weight: real.value.weight,
            state,
            gone: flags & real_flag::GONE != 0,
            full: flags & real_flag::FULL != 0,
            active: real.active,
            counts: Counts::from(&real.counters),
        }
    }
}

impl ServiceReport {
    /// Of one look; what real servers that left had counted is not in it.
    pub fn of(service: &ServiceLook) -> Option<ServiceReport> {
        let value = &service.value;
        Some(ServiceReport {
            address: SocketAddr::new(value.addr.ip(), value.port.0),
            protocol: if value.proto == Protocol::Udp.number() { Protocol::Udp } else { Protocol::Tcp },
            mode: Mode::of(value.mode)?,
            scheduler: scheduler(value).to_owned(),
            counts: Counts::from(&service.counters()),
            reals: service.reals.iter().map(RealReport::of).collect(),
        })
    }

    /// Flows there are now.
    pub fn active(&self) -> u64 {
        self.reals.iter().map(|r| r.active).sum()
    }
}

impl Report {
    /// Of one look.
    pub fn of(look: &Look) -> Report {
        Report {
            services: look.services.iter().filter_map(ServiceReport::of).collect(),
            events: look.events.clone(),
            ..Report::default()
        }
    }

    /// A counter of the whole by its name in [`EVENTS`].
    pub fn event(&self, name: &str) -> u64 {
        let at = EVENTS.iter().position(|(n, _)| *n == name);
        at.and_then(|at| self.events.get(at)).copied().unwrap_or(0)
    }
}
