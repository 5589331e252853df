//! What the maps say, for people: tables in the shape of `ipvsadm -Ln`, `--stats`, `--rate` and `-Lnc`. Reads maps only, so it
//! works whoever runs the balancer, and after its death.

use crate::kernel::{Maps, chain};
use crate::layout::{Addr, Counters, EVENTS, Flow, FlowKey, Port, Real, SIZE_BOUNDS, Service, flow_kind, flow_state};
use crate::plan::Mode;
use crate::report::scheduler;
use std::collections::HashMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

/// Entries of the table that are looked at; a million would take a second and more.
const CONNECTIONS_MAX: usize = 100_000;

/// One look at services, real servers and their counters.
pub struct Look {
    /// Services in the order of their addresses.
    pub services: Vec<ServiceLook>,
    /// Counters of the whole, in the order of [`EVENTS`].
    pub events: Vec<u64>,
}

/// A virtual server.
pub struct ServiceLook {
    /// Its number and value.
    pub id: u32,
    /// As in the map.
    pub value: Service,
    /// Its real servers.
    pub reals: Vec<RealLook>,
}

/// A real server.
pub struct RealLook {
    /// Its number.
    pub index: u32,
    /// As in the map.
    pub value: Real,
    /// Flows it has.
    pub active: u64,
    /// What was counted, of all CPUs.
    pub counters: Counters,
}

impl ServiceLook {
    /// The sum of its real servers'.
    pub fn counters(&self) -> Counters {
        self.reals.iter().fold(Counters::default(), |sum, r| sum.plus(&r.counters))
    }
}

impl Look {
    /// Reads the maps.
    pub fn take(maps: &Maps) -> Result<Look, String> {
        let mut services: Vec<ServiceLook> = Vec::new();
        for (id, bytes) in (0u32..).zip(maps.services.iter()) {
            let value = Service::decode(&bytes.map_err(|e| chain(&e))?);
            if value.used == 1 {
                services.push(ServiceLook { id, value, reals: Vec::new() });
            }
        }
        let places: HashMap<u32, usize> = services.iter().enumerate().map(|(place, s)| (s.id, place)).collect();
        for (index, bytes) in (0u32..).zip(maps.reals.iter()) {
            let value = Real::decode(&bytes.map_err(|e| chain(&e))?);
            let place = places.get(&value.service).filter(|_| value.addr != Addr::default());
            let Some(service) = place.and_then(|place| services.get_mut(*place)) else { continue };
            let active = maps.active.get(&index, 0).map_err(|e| chain(&e))?;
            let cpus = maps.counters.get(&index, 0).map_err(|e| chain(&e))?;
            let counters = cpus.iter().fold(Counters::default(), |sum, c| sum.plus(&Counters::decode(c)));
            service.reals.push(RealLook { index, value, active, counters });
        }
        services.sort_by_key(|s| (s.value.addr, s.value.port, s.value.proto));
        // The maps may be those of a version that counts fewer things.
        let event = |i: u32| maps.events.get(&i, 0).map_or(0, |cpus| cpus.iter().sum());
        let events = (0..EVENTS.len() as u32).map(event).collect();
        Ok(Look { services, events })
    }
}

fn socket(addr: Addr, port: Port) -> String {
    SocketAddr::new(addr.ip(), port.0).to_string()
}

fn protocol(number: u8) -> &'static str {
    if number == 17 { "UDP" } else { "TCP" }
}

const HEAD: &str = "IP Virtual Server (Ironweir l4, XDP)\n";

/// As `ipvsadm -Ln`. `InActConn` are flows that have ended and are still in the table.
pub fn list(maps: &Maps, look: &Look) -> String {
    let mut ended = HashMap::<u32, u64>::new();
    for (_, flow) in maps.flows.iter().take(CONNECTIONS_MAX).flatten() {
        let flow = Flow::decode(&flow);
        if flow.kind == flow_kind::FORWARD && flow.state & flow_state::CLOSED != 0 {
            *ended.entry(flow.real).or_default() += 1;
        }
    }
    let mut text = format!(
        "{HEAD}Prot LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn\n"
    );
    for service in &look.services {
        let v = &service.value;
        let persistent = match v.affinity_ns {
            0 => String::new(),
            ns => format!(" persistent {}", ns / 1_000_000_000),
        };
        let _ = writeln!(text, "{}  {} {}{persistent}", protocol(v.proto), socket(v.addr, v.port), scheduler(v));
        for r in &service.reals {
            let (at, word) = (socket(r.value.addr, r.value.port), Mode::word(v.mode));
            let ended = ended.get(&r.index).copied().unwrap_or(0);
            let _ = writeln!(text, "  -> {at:<28} {word:<7} {:<6} {:<10} {ended:<10}", r.value.weight, r.active);
        }
    }
    text
}

/// As `ipvsadm -Ln --stats`, and below it the sizes of packets and the counters of the whole.
pub fn stats(look: &Look) -> String {
    let mut text = format!(
        "{HEAD}Prot LocalAddress:Port               Conns   InPkts  OutPkts  InBytes OutBytes\n  -> RemoteAddress:Port\n"
    );
    let row = |c: &Counters| {
        format!("{:>8} {:>8} {:>8} {:>8} {:>8}", c.flows, c.in_packets, c.out_packets, c.in_bytes, c.out_bytes)
    };
    for service in &look.services {
        let v = &service.value;
        let _ = writeln!(text, "{}  {:<28} {}", protocol(v.proto), socket(v.addr, v.port), row(&service.counters()));
        for r in &service.reals {
            let _ = writeln!(text, "  -> {:<28} {}", socket(r.value.addr, r.value.port), row(&r.counters));
        }
    }
    let _ = writeln!(text, "\nPackets by size, bytes of the frame");
    for service in &look.services {
        let v = &service.value;
        let counters = service.counters();
        let all: u64 = counters.sizes.iter().sum();
        let _ = write!(text, "{}  {:<28}", protocol(v.proto), socket(v.addr, v.port));
        for (i, n) in counters.sizes.iter().enumerate() {
            let share = *n as f64 * 100.0 / all.max(1) as f64;
            let _ = match SIZE_BOUNDS.get(i) {
                Some(bound) => write!(text, " <{bound}: {share:.1}%"),
                None => write!(text, " more: {share:.1}%"),
            };
        }
        text.push('\n');
    }
    text.push('\n');
    for ((name, meaning), n) in EVENTS.iter().zip(&look.events) {
        let _ = writeln!(text, "{name:<14} {n:>12}  {meaning}");
    }
    text
}

/// As `ipvsadm -Ln --rate`: what came between two looks, for a second.
pub fn rate(before: &Look, after: &Look, between: Duration) -> String {
    let mut text = format!(
        "{HEAD}Prot LocalAddress:Port                 CPS    InPPS   OutPPS    InBPS   OutBPS\n  -> RemoteAddress:Port\n"
    );
    let seconds = between.as_secs_f64().max(0.001);
    let row = |new: &Counters, old: &Counters| {
        let of = |a: u64, b: u64| (a.saturating_sub(b) as f64 / seconds).round();
        format!(
            "{:>8} {:>8} {:>8} {:>8} {:>8}",
            of(new.flows, old.flows),
            of(new.in_packets, old.in_packets),
            of(new.out_packets, old.out_packets),
            of(new.in_bytes, old.in_bytes),
            of(new.out_bytes, old.out_bytes)
        )
    };
    for service in &after.services {
        let v = &service.value;
        let old = before.services.iter().find(|s| s.id == service.id);
        let sum = old.map(ServiceLook::counters).unwrap_or_default();
        let _ =
            writeln!(text, "{}  {:<28} {}", protocol(v.proto), socket(v.addr, v.port), row(&service.counters(), &sum));
        for r in &service.reals {
            let was =
                old.and_then(|s| s.reals.iter().find(|o| o.index == r.index)).map(|o| o.counters).unwrap_or_default();
            let _ = writeln!(text, "  -> {:<28} {}", socket(r.value.addr, r.value.port), row(&r.counters, &was));
        }
    }
    text
}

/// As `ipvsadm -Lnc`: flows, with how long ago their last packet came.
pub fn connections(maps: &Maps) -> Result<String, String> {
    let reals: Vec<Real> =
        maps.reals.iter().map(|r| r.map(|r| Real::decode(&r))).collect::<Result<_, _>>().map_err(|e| chain(&e))?;
    let now = now_ns();
    let mut text =
        "IPVS connection entries\npro idle   state       source                 virtual                destination\n"
            .to_owned();
    for entry in maps.flows.iter().take(CONNECTIONS_MAX) {
        // One that goes while we look is none.
        let Ok((key, flow)) = entry else { continue };
        let (key, flow) = (FlowKey::decode(&key), Flow::decode(&flow));
        let Some(real) = reals.get(flow.real as usize).filter(|_| flow.kind == flow_kind::FORWARD) else { continue };
        let idle = now.saturating_sub(flow.last) / 1_000_000_000;
        let state = match flow.state {
            s if s & flow_state::DEAD != 0 => "RESET",
            s if s & flow_state::CLOSED != 0 => "CLOSE",
            s if s & flow_state::FIN != 0 => "FIN_WAIT",
            _ if key.proto == 17 => "UDP",
            _ => "ESTABLISHED",
        };
        let (from, to) = (socket(key.src, key.sport), socket(key.dst, key.dport));
        let at = socket(real.addr, real.port);
        let _ = writeln!(
            text,
            "{} {:02}:{:02}  {state:<11} {from:<22} {to:<22} {at}",
            protocol(key.proto),
            idle / 60,
            idle % 60
        );
    }
    Ok(text)
}

/// The clock of `bpf_ktime_get_ns`.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
