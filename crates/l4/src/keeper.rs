//! What has to be done while the program balances, and may take its time: flows are counted and swept, link addresses of real
//! servers kept known, the other end of a reset flow told. Without it packets go on all the same.

use crate::fill::{forget_recent, free_real, remove_service};
use crate::kernel::{Kernel, Maps, chain};
use crate::layout::{
    Addr, Flow, FlowKey, Port, Real, ResetEvent, Service, flow_kind, flow_state, real_flag, recent_ns,
};
use crate::links;
use crate::tables::now_ns;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// How often resets are looked for.
pub const BEAT: Duration = Duration::from_millis(50);
/// Between two sweeps, or more if a sweep takes long.
const SWEEP: Duration = Duration::from_secs(5);
/// A sweep takes at most one part in so many of a CPU.
const SWEEP_SHARE: u32 = 20;
/// A flow that has ended stays for its last packets: twice Linux' TIME_WAIT halves, as IPVS' TCP timeouts have it.
const ENDED: Duration = Duration::from_secs(60);
/// A TCP flow that was forgotten stays after its time, so that what it still sends is reset or dropped: as long as the table has room, or as
/// long as this where it is three quarters full, or where the real server has left and others wait for its number.
const TOMBSTONE: Duration = Duration::from_secs(600);
const ROOMY: (u64, u64) = (3, 4);
/// Between two words to each real server's host, which keep its link address known.
const NEIGHBOURS: Duration = Duration::from_secs(5);
/// The port nobody listens on (RFC 863: discard); an empty datagram is enough to ask for the link address.
const DISCARD: u16 = 9;
/// A learned path MTU is forgotten after ten minutes (RFC 1191 section 6.3).
const PATH_MTU: Duration = Duration::from_secs(600);
/// RFC 9293 section 3.1.
const TCP_RST: u8 = 4;
/// Words of the program listened to in one beat; who misses a reset hears when it sends.
const EVENTS_MAX: usize = 1024;
/// Next hops asked for in one beat: many clients are behind one.
const ASKED_MAX: usize = 16;

/// The state of the keeping.
pub struct Keeper {
    swept: Instant,
    pause: Duration,
    asked: Option<Instant>,
    mtus: HashMap<u32, Instant>,
    /// Real servers that left and have no flows in the table, and since when: the number of one that has none for so long as the index of
    /// recent flows may keep some to itself is free.
    empty: HashMap<u32, Instant>,
    /// Virtual servers that left, and since when; and how long their flows may go on.
    retired: HashMap<u32, Instant>,
    retired_at_most: Option<Duration>,
    /// Entries of the table at the last sweep.
    entries: u64,
    raw4: Option<Socket>,
    raw6: Option<Socket>,
}

impl Default for Keeper {
    fn default() -> Self {
        Keeper::new()
    }
}

impl Keeper {
    /// Sweeps after the first pause, asks for neighbours at once.
    pub fn new() -> Self {
        let raw = |domain| Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW))).ok();
        let (raw4, raw6) = (raw(Domain::IPV4), raw(Domain::IPV6));
        Keeper {
            swept: Instant::now(),
            pause: SWEEP,
            asked: None,
            mtus: HashMap::new(),
            empty: HashMap::new(),
            retired: HashMap::new(),
            retired_at_most: None,
            entries: 0,
            raw4,
            raw6,
        }
    }

    /// So long the flows of a virtual server go on that is no longer in the plan; without a time as long as they like.
    pub fn end_retired_after(&mut self, at_most: Option<Duration>) {
        self.retired_at_most = at_most;
    }

    /// One beat.
    pub fn beat(&mut self, kernel: &mut Kernel) -> Result<(), String> {
        let now = Instant::now();
        let mut wanted = HashSet::new();
        for _ in 0..EVENTS_MAX {
            let Some(item) = kernel.resets.next() else { break };
            let Ok(bytes) = <&[u8; ResetEvent::SIZE]>::try_from(&item[..]) else { continue };
            let event = ResetEvent::decode(bytes);
            if event.dport == Port(0) {
                wanted.insert(event.dst);
            } else {
                self.tell_reset(&event);
            }
        }
        ask_neighbours(wanted.into_iter().take(ASKED_MAX));
        if self.asked.is_none_or(|at| now - at >= NEIGHBOURS) {
            self.asked = Some(now);
            let reals = kernel.maps.reals.iter().flatten().map(|real| Real::decode(&real).addr);
            ask_neighbours(reals.filter(|addr| *addr != Addr::default()));
            self.forget_mtus(&mut kernel.maps, now)?;
            links::put(&mut kernel.maps, &kernel.interfaces)?;
        }
        if now - self.swept >= self.pause {
            self.sweep(&mut kernel.maps)?;
            self.swept = Instant::now();
            self.pause = SWEEP.max((self.swept - now) * SWEEP_SHARE);
        }
        Ok(())
    }

    /// The end that did not send hears of the reset, with the number that it waits for; or a real server that the client of a cookie has
    /// heard it.
    fn tell_reset(&self, event: &ResetEvent) {
        let (src, dst) = (event.src.ip(), event.dst.ip());
        let packet = reset_packet(event, src, dst);
        let socket = if dst.is_ipv6() { &self.raw6 } else { &self.raw4 };
        if let Some(socket) = socket {
            // A real server that cannot be reached hears nothing either way.
            let _ = socket.send_to(&packet, &SockAddr::from(SocketAddr::new(dst, 0)));
        }
    }

    fn forget_mtus(&mut self, maps: &mut Maps, now: Instant) -> Result<(), String> {
        for (index, bytes) in (0u32..).zip(maps.reals.iter().collect::<Vec<_>>()) {
            let mut real = Real::decode(&bytes.map_err(|e| chain(&e))?);
            if real.mtu == 0 {
                self.mtus.remove(&index);
            } else if now - *self.mtus.entry(index).or_insert(now) >= PATH_MTU {
                real.mtu = 0;
                maps.reals.set(index, real.encode(), 0).map_err(|e| chain(&e))?;
            }
        }
        Ok(())
    }

    /// Counts flows anew, since the program does not see all ends, and takes out what has ended. A beat does it every few seconds.
    pub fn sweep(&mut self, maps: &mut Maps) -> Result<(), String> {
        let services: Vec<Service> = maps
            .services
            .iter()
            .map(|s| s.map(|s| Service::decode(&s)))
            .collect::<Result<_, _>>()
            .map_err(|e| chain(&e))?;
        let gone = reals_of(maps)?.into_iter().map(|r| r.flags & real_flag::GONE != 0).collect::<Vec<_>>();
        let is_roomy = self.entries * ROOMY.1 < u64::from(maps.flow_room) * ROOMY.0;
        self.entries = 0;
        let now = now_ns();
        let (mut live, mut there) = (HashMap::<u32, u64>::new(), HashMap::<u32, u64>::new());
        let mut over = Vec::new();
        for entry in maps.flows.iter() {
            // The table changes while it is read; a look that fails is one flow less.
            let Ok((key, bytes)) = entry else { continue };
            let (flow, proto) = (Flow::decode(&bytes), FlowKey::decode(&key).proto);
            self.entries += 1;
            let idle = Duration::from_nanos(now.saturating_sub(flow.last));
            let limit = services.get(usize::from(flow.service)).filter(|s| s.used == 1).map_or(0, |s| s.idle_ns);
            let limit = if limit == 0 { 0 } else { limit.saturating_add(recent_ns(limit)) };
            let limit = if limit == 0 { Duration::MAX } else { Duration::from_nanos(limit) };
            let ended = flow.state & flow_state::CLOSED != 0 && flow.state & flow_state::DEAD == 0;
            let keep = if ended {
                ENDED
            } else if proto == 17 {
                limit
            } else if is_roomy && gone.get(flow.real as usize) == Some(&false) {
                Duration::MAX
            } else {
                limit.saturating_add(TOMBSTONE)
            };
            if idle > keep {
                over.push(key);
                continue;
            }
            *there.entry(flow.real).or_default() += 1;
            if flow.kind == flow_kind::FORWARD && flow.state & flow_state::CLOSED == 0 && idle <= limit {
                *live.entry(flow.real).or_default() += 1;
            }
        }
        for key in over {
            // Already pushed out by a newer one, perhaps.
            let _ = maps.flows.remove(&key);
        }
        self.settle(maps, &services, &live, &there)
    }

    fn settle(
        &mut self,
        maps: &mut Maps,
        services: &[Service],
        live: &HashMap<u32, u64>,
        there: &HashMap<u32, u64>,
    ) -> Result<(), String> {
        let now = Instant::now();
        let reals = reals_of(maps)?;
        let mut occupied = HashSet::new();
        let (mut empty, mut is_freed) = (HashMap::new(), false);
        for (index, real) in (0u32..).zip(&reals).filter(|(_, r)| r.addr != Addr::default()) {
            occupied.insert(real.service);
            let flows = live.get(&index).copied().unwrap_or(0);
            if maps.active.get(&index, 0).map_err(|e| chain(&e))? != flows {
                maps.active.set(index, flows, 0).map_err(|e| chain(&e))?;
            }
            if real.flags & real_flag::GONE != 0 && !there.contains_key(&index) {
                let idle_ns = services.get(real.service as usize).map_or(0, |s| s.idle_ns);
                let kept = Duration::from_nanos(recent_ns(idle_ns));
                match self.empty.get(&index) {
                    Some(since) if now - *since > kept => {
                        free_real(maps, index)?;
                        is_freed = true;
                    }
                    since => _ = empty.insert(index, since.copied().unwrap_or(now)),
                }
            }
        }
        self.empty = empty;
        // What the index knows of a real server by its number is not the next one's.
        if is_freed {
            forget_recent(maps)?;
        }
        self.end_retired(maps, services, &occupied, now)
    }

    /// A virtual server that left goes with its last flow, or when its time is over.
    fn end_retired(
        &mut self,
        maps: &mut Maps,
        services: &[Service],
        occupied: &HashSet<u32>,
        now: Instant,
    ) -> Result<(), String> {
        let mut retired = HashMap::new();
        for (id, service) in (0u32..).zip(services).filter(|(_, s)| s.used == 1 && s.retired == 1) {
            let since = self.retired.get(&id).copied().unwrap_or(now);
            if !occupied.contains(&id) || self.retired_at_most.is_some_and(|most| now - since >= most) {
                remove_service(maps, id, service)?;
            } else {
                retired.insert(id, since);
            }
        }
        self.retired = retired;
        Ok(())
    }
}

fn reals_of(maps: &Maps) -> Result<Vec<Real>, String> {
    maps.reals.iter().map(|r| r.map(|r| Real::decode(&r))).collect::<Result<_, _>>().map_err(|e| chain(&e))
}

/// A segment without data, with the addresses of the flow as its receiver knows it.
fn reset_packet(event: &ResetEvent, src: IpAddr, dst: IpAddr) -> Vec<u8> {
    let mut tcp = Vec::with_capacity(20);
    tcp.extend(event.sport.0.to_be_bytes());
    tcp.extend(event.dport.0.to_be_bytes());
    tcp.extend(event.seq);
    tcp.extend(event.ack);
    // Data offset 5. What is acknowledged may be answered with as much as fits; a reset takes nothing.
    let window: u16 = if event.flags & TCP_RST != 0 { 0 } else { u16::MAX };
    tcp.extend([5 << 4, event.flags]);
    tcp.extend(window.to_be_bytes());
    tcp.extend([0, 0, 0, 0]);
    let octets = |a: IpAddr| match a {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    };
    let pseudo = [octets(src), octets(dst), vec![0, 6, 0, 20]].concat();
    let sum = !ones_sum(&[&pseudo[..], &tcp].concat());
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    let mut packet = if dst.is_ipv6() {
        vec![0x60, 0, 0, 0, 0, 20, 6, 64]
    } else {
        // The kernel fills in the length's check (raw(7)).
        vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]
    };
    packet.extend([octets(src), octets(dst)].concat());
    packet.extend(tcp);
    packet
}

/// RFC 1071.
fn ones_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], *w.get(1).unwrap_or(&0)])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The program can send only by next hops whose link address the kernel knows: an empty datagram makes it ask. It has a hop
/// limit of 1, so that it gets no further than there.
fn ask_neighbours(hosts: impl Iterator<Item = Addr>) {
    let (mut v4, mut v6) = (None, None);
    for host in hosts {
        let at = SocketAddr::new(host.ip(), DISCARD);
        let socket = if at.is_ipv6() { &mut v6 } else { &mut v4 };
        // No route, or nobody there: the checks of health say so.
        if let Some(socket) = socket.get_or_insert_with(|| asking_socket(at.is_ipv6())) {
            let _ = socket.send_to(&[], &at.into());
        }
    }
}

fn asking_socket(v6: bool) -> Option<Socket> {
    let socket = Socket::new(if v6 { Domain::IPV6 } else { Domain::IPV4 }, Type::DGRAM, None).ok()?;
    if v6 { socket.set_unicast_hops_v6(1) } else { socket.set_ttl_v4(1) }.ok()?;
    Some(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_has_right_checksums() {
        for (src, dst, head) in [("10.9.0.1", "10.9.1.2", 20), ("fd00::1", "fd00::2", 40)] {
            let (src, dst): (IpAddr, IpAddr) = (src.parse().unwrap(), dst.parse().unwrap());
            let event = ResetEvent {
                src: src.into(),
                dst: dst.into(),
                sport: Port(80),
                dport: Port(40000),
                seq: [1, 2, 3, 4],
                ack: [5; 4],
                flags: 0x14,
                zero: [0; 3],
            };
            let packet = reset_packet(&event, src, dst);
            assert_eq!(packet.len(), head + 20);
            let addresses = if head == 20 { &packet[12..20] } else { &packet[8..40] };
            assert_eq!(ones_sum(&[addresses, &[0, 6, 0, 20], &packet[head..]].concat()), 0xffff);
            assert_eq!(packet[head + 13], 0x14);
        }
    }
}
