//! What the program must do with a frame, written a second time from docs/l4.md: parse, decide, make the bytes. It knows
//! nothing of maps: real servers are positions in the plan, flows a Rust table. Time stands still but for `forget`.

use l4::plan::{Choice, Mode, Plan, Protocol, RealState, VirtualServer};
use l4::ring::{Member, slots};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

pub(crate) type Mac = [u8; 6];

/// What becomes of a frame.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass(Vec<u8>),
    Drop,
    /// Back where it came from.
    Turn(Vec<u8>),
    /// To a next hop.
    Out(Vec<u8>),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Tuple {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) sport: u16,
    pub(crate) dport: u16,
    pub(crate) proto: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Forward,
    Return,
    Stranger,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) becomes: Tuple,
    pub(crate) service: usize,
    pub(crate) real: usize,
    pub(crate) fin: bool,
    pub(crate) closed: bool,
    pub(crate) dead: bool,
    /// Nothing came for longer than the service's time.
    pub(crate) idle: bool,
}

pub(crate) struct Model {
    pub(crate) plan: Plan,
    rings: Vec<Vec<u32>>,
    turns: Vec<u64>,
    pub(crate) active: HashMap<(usize, usize), u64>,
    mtu: HashMap<(usize, usize), u32>,
    affinities: HashMap<(usize, IpAddr), usize>,
    pub(crate) flows: HashMap<Tuple, Entry>,
    fragments: HashMap<(IpAddr, IpAddr, [u8; 4], u8), Entry>,
    /// Link addresses of hosts on the network; all else is behind the gateway.
    pub(crate) neighbours: HashMap<IpAddr, Mac>,
    pub(crate) gateway: Mac,
    pub(crate) own: Mac,
    pub(crate) link_mtu: usize,
}

/// A frame as far as it was understood.
#[derive(Clone, Debug)]
struct Packet {
    tuple: Tuple,
    v6: bool,
    /// Offset of what IP carries.
    l4: usize,
    /// Bytes of the IP packet.
    length: usize,
    flags: u8,
    ttl: u8,
    tos: u8,
    dont: bool,
    id: [u8; 4],
    first: bool,
    later: bool,
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const ETH: usize = 14;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

fn ip6(b: &[u8], at: usize) -> IpAddr {
    let octets: [u8; 16] = b[at..at + 16].try_into().unwrap();
    Ipv6Addr::from(octets).into()
}

fn ip4(b: &[u8], at: usize) -> IpAddr {
    let octets: [u8; 4] = b[at..at + 4].try_into().unwrap();
    octets.into()
}

fn is_mapped(a: IpAddr) -> bool {
    matches!(a, IpAddr::V6(a) if a.to_ipv4_mapped().is_some())
}

fn octets(a: IpAddr) -> Vec<u8> {
    match a {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

fn mapped(a: IpAddr) -> [u8; 16] {
    match a {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    }
}

/// RFC 1071 over whole 16-bit words, folded, not turned.
fn ones_sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u64;
    for part in parts {
        for word in part.chunks(2) {
            sum += u64::from(u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// RFC 1624: a checksum at `at` after `old` bytes became `new` ones.
fn patch(frame: &mut [u8], at: usize, old: &[u8], new: &[u8]) {
    let turned: Vec<u8> = old.iter().map(|b| !b).collect();
    let was = !be16(frame, at);
    let sum = ones_sum(&[&was.to_be_bytes(), &turned, new]);
    frame[at..at + 2].copy_from_slice(&(!sum).to_be_bytes());
}

fn parse(b: &[u8]) -> Option<Packet> {
    if b.len() < ETH || b[0] & 1 == 1 {
        return None;
    }
    let room = b.len() - ETH;
    let nobody = Tuple { src: [0; 4].into(), dst: [0; 4].into(), sport: 0, dport: 0, proto: 0 };
    let mut p = Packet {
        tuple: nobody,
        v6: false,
        l4: 0,
        length: 0,
        flags: 0,
        ttl: 0,
        tos: 0,
        dont: false,
        id: [0; 4],
        first: false,
        later: false,
    };
    match be16(b, 12) {
        0x0800 => {
            if room < 20 || b[14] >> 4 != 4 || b[14] & 15 < 5 {
                return None;
            }
            let head = usize::from(b[14] & 15) * 4;
            p.length = usize::from(be16(b, 16));
            if p.length < head || p.length > room {
                return None;
            }
            let offset = be16(b, 20);
            p.l4 = ETH + head;
            (p.tos, p.ttl, p.dont) = (b[15], b[22], offset & 0x4000 != 0);
            p.id[..2].copy_from_slice(&b[18..20]);
            p.later = offset & 0x1fff != 0;
            p.first = !p.later && offset & 0x2000 != 0;
            p.tuple = Tuple { src: ip4(b, 26), dst: ip4(b, 30), proto: b[23], ..nobody };
        }
        0x86dd => {
            if room < 40 || b[14] >> 4 != 6 {
                return None;
            }
            p.v6 = true;
            p.length = usize::from(be16(b, 18)) + 40;
            if p.length > room {
                return None;
            }
            (p.tos, p.ttl, p.dont, p.l4) = (b[14] << 4 | b[15] >> 4, b[21], true, ETH + 40);
            p.tuple = Tuple { src: ip6(b, 22), dst: ip6(b, 38), proto: b[20], ..nobody };
            if is_mapped(p.tuple.src) || is_mapped(p.tuple.dst) {
                return None;
            }
            if b[20] == 44 {
                if p.length < 48 {
                    return None;
                }
                p.l4 += 8;
                p.tuple.proto = b[54];
                p.id.copy_from_slice(&b[58..62]);
                p.later = be16(b, 56) & 0xfff8 != 0;
                p.first = !p.later && b[57] & 1 == 1;
            }
        }
        _ => return None,
    }
    Some(p)
}

impl Model {
    pub(crate) fn new(plan: Plan, neighbours: HashMap<IpAddr, Mac>, gateway: Mac, own: Mac) -> Model {
        let ring = |s: &VirtualServer| {
            let members: Vec<Member> = (0u32..)
                .zip(&s.reals)
                .filter(|(_, r)| r.state == RealState::Up && r.weight > 0)
                .map(|(index, r)| Member { index, name: r.address.to_string(), weight: r.weight })
                .collect();
            slots(s.choice, &members)
        };
        let rings: Vec<Vec<u32>> = plan.services.iter().map(ring).collect();
        Model {
            turns: vec![0; rings.len()],
            rings,
            plan,
            active: HashMap::new(),
            mtu: HashMap::new(),
            affinities: HashMap::new(),
            flows: HashMap::new(),
            fragments: HashMap::new(),
            neighbours,
            gateway,
            own,
            link_mtu: 1500,
        }
    }

    /// A new plan with the same real servers in the same places: what was seen under the old one stays.
    pub(crate) fn with_memory_of(mut self, old: Model, flows: HashMap<Tuple, Entry>) -> Model {
        (self.turns, self.active, self.mtu) = (old.turns, old.active, old.mtu);
        (self.affinities, self.fragments, self.flows) = (old.affinities, old.fragments, flows);
        self
    }

    pub(crate) fn forget_fragments(&mut self) {
        self.fragments.clear();
    }

    /// As if nothing had come for the service's time in either direction.
    pub(crate) fn forget(&mut self, key: &Tuple) {
        let other = self.flows.get(key).and_then(|e| other_key(e, &self.plan));
        for key in [Some(*key), other].into_iter().flatten() {
            if let Some(entry) = self.flows.get_mut(&key) {
                entry.idle = true;
            }
        }
    }

    /// What becomes of a frame.
    pub(crate) fn receive(&mut self, frame: &[u8]) -> Verdict {
        let pass = || Verdict::Pass(frame.to_vec());
        let Some(mut p) = parse(frame) else { return pass() };
        if p.later {
            let key = (p.tuple.src, p.tuple.dst, p.id, p.tuple.proto);
            let Some(entry) = self.fragments.get(&key).cloned() else { return pass() };
            return self.deliver(frame, &p, &entry);
        }
        let room = p.length - (p.l4 - ETH);
        match p.tuple.proto {
            TCP if room >= 20 => p.flags = frame[p.l4 + 13],
            UDP if room >= 8 => {}
            1 if !p.v6 && !p.first && room >= 8 => return self.error(frame, &p),
            58 if p.v6 && !p.first && room >= 8 => return self.error(frame, &p),
            _ => return pass(),
        }
        (p.tuple.sport, p.tuple.dport) = (be16(frame, p.l4), be16(frame, p.l4 + 2));
        let had = self.flows.contains_key(&p.tuple);
        if had {
            if let Some(verdict) = self.known(frame, &p) {
                return verdict;
            }
            self.close(&p.tuple, false);
        }
        let service = self.service(p.tuple.dst, p.tuple.dport, p.tuple.proto);
        let made = match service {
            Some(service) => self.begin(frame, &p, service),
            None if had => Err(pass()),
            None => self.adopt_return(&p).then_some(()).ok_or_else(pass),
        };
        match made {
            Err(verdict) => verdict,
            Ok(()) => self.known(frame, &p).unwrap_or_else(pass),
        }
    }

    fn service(&self, addr: IpAddr, port: u16, proto: u8) -> Option<usize> {
        let is = |s: &VirtualServer| s.address == (addr, port).into() && s.protocol.number() == proto;
        self.plan.services.iter().position(is)
    }

    /// A packet of a flow in the table; `None`: it is to be chosen for anew.
    fn known(&mut self, frame: &[u8], p: &Packet) -> Option<Verdict> {
        let entry = self.flows[&p.tuple].clone();
        let pass = Some(Verdict::Pass(frame.to_vec()));
        let service = &self.plan.services[entry.service];
        let tcp = p.tuple.proto == TCP;
        let begins = tcp && p.flags & (SYN | ACK | RST) == SYN;
        if entry.kind == Kind::Stranger {
            return pass;
        }
        let other = other_key(&entry, &self.plan);
        let idle = entry.idle && other.and_then(|o| self.flows.get(&o)).is_none_or(|o| o.idle);
        let forward = entry.kind == Kind::Forward;
        if forward && if begins { idle || entry.closed } else { !tcp && idle } {
            return None;
        }
        let reset = service.reals[entry.real].state == RealState::Reset;
        if entry.dead || tcp && idle && service.reset {
            self.close(&p.tuple, true);
            return Some(self.answer_reset(frame, p));
        }
        if idle {
            return Some(Verdict::Drop);
        }
        if reset {
            if tcp && !begins {
                self.close(&p.tuple, true);
                return Some(self.answer_reset(frame, p));
            }
            return if forward { None } else { Some(Verdict::Drop) };
        }
        self.flows.get_mut(&p.tuple).unwrap().idle = false;
        if tcp && p.flags & (FIN | RST) != 0 {
            self.flows.get_mut(&p.tuple).unwrap().fin |= p.flags & FIN != 0;
            let other_fin = other.and_then(|o| self.flows.get(&o)).is_some_and(|o| o.fin);
            if p.flags & RST != 0 || !service.mode.rewrites() || other_fin {
                self.close(&p.tuple, false);
            }
        }
        if p.first {
            self.fragments.insert((p.tuple.src, p.tuple.dst, p.id, p.tuple.proto), self.flows[&p.tuple].clone());
        }
        Some(self.deliver(frame, p, &entry))
    }

    fn close(&mut self, key: &Tuple, dead: bool) {
        let entry = self.flows[key].clone();
        let already_dead = entry.dead;
        if dead && already_dead {
            return;
        }
        if !entry.closed {
            let n = self.active.entry((entry.service, entry.real)).or_default();
            *n = n.saturating_sub(1);
        }
        for key in [Some(*key), other_key(&entry, &self.plan)].into_iter().flatten() {
            if let Some(e) = self.flows.get_mut(&key) {
                e.closed = true;
                e.dead |= dead;
            }
        }
    }

    fn hash(&self, service: usize, src: IpAddr, sport: u16) -> u32 {
        let s = &self.plan.services[service];
        let mut key = mapped(s.address.ip()).to_vec();
        key.extend(s.address.port().to_be_bytes());
        key.extend([s.protocol.number(), 0]);
        let mut h = key.iter().fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
        let mut mix = |word: u32| {
            h = (h ^ word).wrapping_mul(0x9e37_79b1);
            h ^= h >> 15;
        };
        for word in mapped(src).chunks(4) {
            mix(u32::from_ne_bytes(word.try_into().unwrap()));
        }
        if s.choice == Choice::Maglev {
            mix(u32::from(u16::from_ne_bytes(sport.to_be_bytes())));
        }
        finish(h)
    }

    fn choose(&mut self, service: usize, p: &Tuple) -> Option<usize> {
        let s = &self.plan.services[service];
        if let Some(real) = self.affinities.get(&(service, p.src)).filter(|_| s.affinity_s > 0) {
            return Some(*real);
        }
        let real = self.choose_slot(service, p)?;
        if self.plan.services[service].affinity_s > 0 {
            self.affinities.insert((service, p.src), real);
        }
        Some(real)
    }

    fn choose_slot(&mut self, service: usize, p: &Tuple) -> Option<usize> {
        let ring = &self.rings[service];
        if ring.is_empty() {
            return None;
        }
        let reals = &self.plan.services[service].reals;
        let at = |hash: u32| ring[hash as usize % ring.len()] as usize;
        match self.plan.services[service].choice {
            Choice::LeastConn => {
                let load = |r: &&u32| {
                    let (real, n) =
                        (&reals[**r as usize], self.active.get(&(service, **r as usize)).copied().unwrap_or(0));
                    (real.full, (n + 1) as f64 / f64::from(real.weight))
                };
                ring.iter().min_by(|a, b| load(a).partial_cmp(&load(b)).unwrap()).map(|r| *r as usize)
            }
            Choice::RoundRobin => {
                let turn = self.turns[service] as u32;
                self.turns[service] += 1;
                Some((0..4).map(|i| at(turn.wrapping_add(i))).find(|r| !reals[*r].full).unwrap_or(at(turn)))
            }
            _ => {
                let mut hash = self.hash(service, p.src, p.sport);
                let first = at(hash);
                if !reals[first].full {
                    return Some(first);
                }
                for i in 1..4 {
                    hash = finish(hash.wrapping_add(i));
                    if !reals[at(hash)].full {
                        return Some(at(hash));
                    }
                }
                Some(first)
            }
        }
    }

    fn begin(&mut self, frame: &[u8], p: &Packet, service: usize) -> Result<(), Verdict> {
        let s = self.plan.services[service].clone();
        let opens = p.tuple.proto != TCP || p.flags & (SYN | ACK | RST) == SYN;
        let hashed = matches!(s.choice, Choice::Maglev | Choice::SourceHash);
        let pass = || Verdict::Pass(frame.to_vec());
        if !opens && (!hashed || s.mode == Mode::FullNat) {
            return Err(pass());
        }
        let real = self.quic(frame, p, &s).or_else(|| self.choose(service, &p.tuple)).ok_or_else(pass)?;
        let mut becomes = p.tuple;
        if s.mode.rewrites() {
            (becomes.dst, becomes.dport) = (s.reals[real].address.ip(), s.reals[real].address.port());
        }
        if s.mode == Mode::FullNat {
            let own = self.take_source(service, &p.tuple, &becomes).ok_or(Verdict::Drop)?;
            (becomes.src, becomes.sport) = own;
        }
        let entry =
            Entry { kind: Kind::Forward, becomes, service, real, fin: false, closed: false, dead: false, idle: false };
        self.insert_back(&entry, &p.tuple);
        self.flows.insert(p.tuple, entry);
        *self.active.entry((service, real)).or_default() += 1;
        Ok(())
    }

    fn insert_back(&mut self, entry: &Entry, key: &Tuple) {
        if let Some(back) = other_key(entry, &self.plan) {
            self.flows.insert(back, Entry { kind: Kind::Return, becomes: turned(key), ..entry.clone() });
        }
    }

    fn quic(&self, frame: &[u8], p: &Packet, s: &VirtualServer) -> Option<usize> {
        let at = p.l4 + 8;
        if !s.quic || p.tuple.proto != UDP || frame.len() < at + 4 || frame[at] & 0x80 != 0 {
            return None;
        }
        s.reals.iter().position(|r| r.server_id == Some(be16(frame, at + 2)))
    }

    fn take_source(&self, service: usize, key: &Tuple, becomes: &Tuple) -> Option<(IpAddr, u16)> {
        let s = &self.plan.services[service];
        let word = |port: u16| u32::from(u16::from_ne_bytes(port.to_be_bytes()));
        let mix = |h: u32, w: u32| {
            let h = (h ^ w).wrapping_mul(0x9e37_79b1);
            h ^ (h >> 15)
        };
        let mut hash = finish(mix(mix(self.hash(service, key.src, key.sport), word(key.sport)), word(key.dport)));
        for i in 0..16u32 {
            let src = s.sources[(hash >> 16) as usize % s.sources.len()];
            let sport = 1024 + (hash % 64512) as u16;
            let back = turned(&Tuple { src, sport, ..*becomes });
            let free = self.flows.get(&back).is_none_or(|taken| {
                let other = other_key(taken, &self.plan).and_then(|o| self.flows.get(&o));
                taken.closed || taken.idle && other.is_none_or(|o| o.idle)
            });
            if free {
                return Some((src, sport));
            }
            hash = finish(hash.wrapping_add(i + 1));
        }
        None
    }

    fn adopt_return(&mut self, p: &Packet) -> bool {
        let is = |s: &VirtualServer, at| {
            s.mode == Mode::Nat && s.protocol.number() == p.tuple.proto && s.reals.iter().any(|r| r.address == at)
        };
        let at = (p.tuple.src, p.tuple.sport).into();
        let services: Vec<usize> = (0..self.plan.services.len()).filter(|i| is(&self.plan.services[*i], at)).collect();
        let [service] = services[..] else { return false };
        let s = &self.plan.services[service];
        if !s.adopt_return {
            return false;
        }
        let real = s.reals.iter().position(|r| r.address == at).unwrap();
        let key = Tuple {
            src: p.tuple.dst,
            dst: s.address.ip(),
            sport: p.tuple.dport,
            dport: s.address.port(),
            proto: p.tuple.proto,
        };
        let becomes = turned(&p.tuple);
        let mut entry =
            Entry { kind: Kind::Forward, becomes, service, real, fin: false, closed: false, dead: false, idle: false };
        if p.tuple.proto == TCP && p.flags & SYN != 0 {
            if p.flags & ACK != 0 {
                entry.kind = Kind::Stranger;
                entry.becomes = turned(&key);
                self.flows.insert(p.tuple, entry);
            }
            return false;
        }
        match self.flows.get(&key) {
            Some(there) if there.real != real || there.service != service || there.kind != Kind::Forward => {
                return false;
            }
            Some(_) => {}
            None => {
                self.flows.insert(key, entry.clone());
                *self.active.entry((service, real)).or_default() += 1;
            }
        }
        self.insert_back(&entry, &key);
        true
    }

    fn hop(&self, dst: IpAddr) -> Mac {
        self.neighbours.get(&dst).copied().unwrap_or(self.gateway)
    }

    fn out(&self, mut frame: Vec<u8>, hop: Mac) -> Verdict {
        frame[..6].copy_from_slice(&hop);
        frame[6..12].copy_from_slice(&self.own);
        Verdict::Out(frame)
    }

    fn deliver(&self, frame: &[u8], p: &Packet, e: &Entry) -> Verdict {
        let s = &self.plan.services[e.service];
        if p.ttl <= 1 {
            return if e.kind == Kind::Return { Verdict::Pass(frame.to_vec()) } else { Verdict::Drop };
        }
        if e.kind == Kind::Forward && !s.mode.rewrites() {
            return self.deliver_whole(frame, p, e);
        }
        let mut hop = true;
        if p.length > self.link_mtu {
            if e.kind == Kind::Return {
                return Verdict::Pass(frame.to_vec());
            }
            if p.dont {
                return too_big(frame, p, self.link_mtu);
            }
            if s.mode == Mode::FullNat {
                return Verdict::Drop;
            }
            hop = false;
        }
        let mut out = frame.to_vec();
        rewrite(&mut out, p, &e.becomes, hop);
        if hop { self.out(out, self.hop(e.becomes.dst)) } else { Verdict::Pass(out) }
    }

    fn deliver_whole(&self, frame: &[u8], p: &Packet, e: &Entry) -> Verdict {
        let s = &self.plan.services[e.service];
        let real = s.reals[e.real].address.ip();
        let more = match s.mode {
            Mode::Direct => 0,
            _ => (if real.is_ipv6() { 40 } else { 20 }) + if s.mode == Mode::Gue { 8 } else { 0 },
        };
        let mtu = self.mtu.get(&(e.service, e.real)).map_or(self.link_mtu, |m| (*m as usize).min(self.link_mtu));
        if p.length + more > mtu {
            return too_big(frame, p, mtu - more);
        }
        let mut out = frame.to_vec();
        lose_hop(&mut out, p.v6);
        if more > 0 {
            let inner = out.split_off(ETH);
            out[12..14].copy_from_slice(if real.is_ipv6() { &[0x86, 0xdd] } else { &[8, 0] });
            let source = self.plan.tunnel_source(real.is_ipv6()).unwrap();
            let next = if s.mode == Mode::Gue {
                UDP
            } else if p.v6 {
                41
            } else {
                4
            };
            let carried = p.length + if s.mode == Mode::Gue { 8 } else { 0 };
            out.extend(ip_header(source, real, next, carried, p.tos));
            if s.mode == Mode::Gue {
                out.extend(entropy(&p.tuple).to_be_bytes());
                out.extend(s.gue_port.to_be_bytes());
                out.extend((carried as u16).to_be_bytes());
                out.extend([0, 0]);
            }
            out.extend(inner);
        }
        self.out(out, self.hop(real))
    }

    fn answer_reset(&self, frame: &[u8], p: &Packet) -> Verdict {
        let head = if p.v6 { 40 } else { 20 };
        if p.l4 != ETH + head || p.flags & RST != 0 || p.first {
            return Verdict::Drop;
        }
        let tcp = &frame[p.l4..];
        let payload = (p.length - head).saturating_sub(usize::from(tcp[12] >> 4) * 4) as u32;
        let seq = u32::from_be_bytes(tcp[4..8].try_into().unwrap());
        let (seq, ack, flags) = if p.flags & ACK != 0 {
            (u32::from_be_bytes(tcp[8..12].try_into().unwrap()), 0, RST)
        } else {
            let counted = payload + u32::from(p.flags & SYN != 0) + u32::from(p.flags & FIN != 0);
            (0, seq.wrapping_add(counted), RST | ACK)
        };
        let mut answer = tcp[2..4].to_vec();
        answer.extend(&tcp[0..2]);
        answer.extend(seq.to_be_bytes());
        answer.extend(ack.to_be_bytes());
        answer.extend([5 << 4, flags, 0, 0, 0, 0, 0, 0]);
        let sum = !ones_sum(&[&pseudo(p.tuple.dst, p.tuple.src, TCP, 20), &answer]);
        answer[16..18].copy_from_slice(&sum.to_be_bytes());
        turn(frame, ip_header(p.tuple.dst, p.tuple.src, TCP, 20, 0), answer)
    }

    /// An ICMP error.
    fn error(&mut self, frame: &[u8], p: &Packet) -> Verdict {
        let pass = Verdict::Pass(frame.to_vec());
        let kind = frame[p.l4];
        if !(if p.v6 { (1..=4).contains(&kind) } else { [3, 4, 11, 12].contains(&kind) }) {
            return pass;
        }
        let at = p.l4 + 8;
        let Some((mut quoted, ports)) = quoted_ip(frame, at, p.v6) else { return pass };
        if quoted.proto == 4 || quoted.proto == 41 {
            return self.learn_mtu(frame, p, ports, quoted.proto == 41);
        }
        if !matches!(quoted.proto, TCP | UDP) || frame.len() < ports + 8 {
            return pass;
        }
        (quoted.sport, quoted.dport) = (be16(frame, ports), be16(frame, ports + 2));
        let key = turned(&quoted);
        let entry = match self.flows.get(&key) {
            Some(e) if e.kind == Kind::Stranger => return pass,
            Some(e) => e.clone(),
            None => {
                let Some(service) = self.service(key.dst, key.dport, key.proto) else {
                    if key.proto == UDP {
                        let Some(first) = frame.get(ports + 8) else { return pass };
                        return self.learn_mtu(frame, p, ports + 8, first >> 4 == 6);
                    }
                    return pass;
                };
                let s = self.plan.services[service].clone();
                if !matches!(s.choice, Choice::Maglev | Choice::SourceHash) || s.mode == Mode::FullNat {
                    return pass;
                }
                let Some(real) = self.choose_slot(service, &key) else { return pass };
                let mut becomes = key;
                if s.mode.rewrites() {
                    (becomes.dst, becomes.dport) = (s.reals[real].address.ip(), s.reals[real].address.port());
                }
                Entry {
                    kind: Kind::Forward,
                    becomes,
                    service,
                    real,
                    fin: false,
                    closed: false,
                    dead: false,
                    idle: false,
                }
            }
        };
        if p.ttl <= 1 {
            return Verdict::Drop;
        }
        let mode = self.plan.services[entry.service].mode;
        if entry.kind == Kind::Forward && !mode.rewrites() {
            return self.deliver_whole(frame, p, &entry);
        }
        if p.length > self.link_mtu {
            return Verdict::Drop;
        }
        let src = if entry.kind == Kind::Return || mode == Mode::FullNat { entry.becomes.src } else { p.tuple.src };
        let mut out = frame.to_vec();
        let told = turned(&entry.becomes);
        // Inside out: what is quoted, then the checksum over it, then the header around it.
        let (a, b) = if p.v6 { (at + 8, 32) } else { (at + 12, 8) };
        let (old, new) = (out[a..a + b].to_vec(), [octets(told.src), octets(told.dst)].concat());
        out[a..a + b].copy_from_slice(&new);
        let old_check = out[at + 10..at + 12].to_vec();
        if !p.v6 {
            patch(&mut out, at + 10, &old, &new);
        }
        let new_check = if p.v6 { old_check.clone() } else { out[at + 10..at + 12].to_vec() };
        let old_ports = out[ports..ports + 4].to_vec();
        let new_ports = [told.sport.to_be_bytes(), told.dport.to_be_bytes()].concat();
        out[ports..ports + 4].copy_from_slice(&new_ports);
        let mut all_old = [old, old_ports].concat();
        let mut all_new = [new, new_ports].concat();
        if p.v6 {
            all_old.extend([octets(p.tuple.src), octets(p.tuple.dst)].concat());
            all_new.extend([octets(src), octets(entry.becomes.dst)].concat());
        } else {
            all_old.extend(old_check);
            all_new.extend(new_check);
        }
        patch(&mut out, p.l4 + 2, &all_old, &all_new);
        set_addresses(&mut out, p.v6, src, entry.becomes.dst);
        lose_hop(&mut out, p.v6);
        self.out(out, self.hop(entry.becomes.dst))
    }

    fn learn_mtu(&mut self, frame: &[u8], p: &Packet, at: usize, v6: bool) -> Verdict {
        let pass = Verdict::Pass(frame.to_vec());
        let icmp = &frame[p.l4..];
        if if p.v6 { icmp[0] != 2 } else { icmp[0] != 3 || icmp[1] != 4 } {
            return pass;
        }
        let mtu = u32::from(be16(icmp, 6));
        let Some((mut key, ports)) = quoted_ip(frame, at, v6) else { return pass };
        if !matches!(key.proto, TCP | UDP) || frame.len() < ports + 8 {
            return pass;
        }
        (key.sport, key.dport) = (be16(frame, ports), be16(frame, ports + 2));
        let Some(entry) = self.flows.get(&key) else { return pass };
        let mode = self.plan.services[entry.service].mode;
        if entry.kind != Kind::Forward || !matches!(mode, Mode::Ipip | Mode::Gue) {
            return pass;
        }
        let known = self.mtu.get(&(entry.service, entry.real)).copied().unwrap_or(u32::MAX);
        if mtu < if p.v6 { 1280 } else { 576 } || mtu >= known {
            return pass;
        }
        self.mtu.insert((entry.service, entry.real), mtu);
        Verdict::Drop
    }
}

fn finish(mut h: u32) -> u32 {
    h = h.wrapping_mul(0x85eb_ca6b);
    h ^= h >> 13;
    h = h.wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}

pub(crate) fn turned(t: &Tuple) -> Tuple {
    Tuple { src: t.dst, dst: t.src, sport: t.dport, dport: t.sport, proto: t.proto }
}

/// The key of the other direction, if that comes through us.
fn other_key(e: &Entry, plan: &Plan) -> Option<Tuple> {
    plan.services[e.service].mode.rewrites().then(|| turned(&e.becomes))
}

fn quoted_ip(frame: &[u8], at: usize, v6: bool) -> Option<(Tuple, usize)> {
    let b = frame.get(at..)?;
    let (tuple, next) = if v6 {
        if b.len() < 40 || b[0] >> 4 != 6 || is_mapped(ip6(b, 8)) || is_mapped(ip6(b, 24)) {
            return None;
        }
        (Tuple { src: ip6(b, 8), dst: ip6(b, 24), sport: 0, dport: 0, proto: b[6] }, at + 40)
    } else {
        if b.len() < 20 || b[0] >> 4 != 4 || b[0] & 15 < 5 || be16(b, 6) & 0x1fff != 0 {
            return None;
        }
        (Tuple { src: ip4(b, 12), dst: ip4(b, 16), sport: 0, dport: 0, proto: b[9] }, at + usize::from(b[0] & 15) * 4)
    };
    Some((tuple, next))
}

fn set_addresses(frame: &mut [u8], v6: bool, src: IpAddr, dst: IpAddr) {
    let (at, size) = if v6 { (22, 32) } else { (26, 8) };
    let (old, new) = (frame[at..at + size].to_vec(), [octets(src), octets(dst)].concat());
    frame[at..at + size].copy_from_slice(&new);
    if !v6 {
        patch(frame, 24, &old, &new);
    }
}

fn lose_hop(frame: &mut [u8], v6: bool) {
    if v6 {
        frame[21] -= 1;
        return;
    }
    let old = [frame[22], frame[23]];
    frame[22] -= 1;
    let new = [frame[22], frame[23]];
    patch(frame, 24, &old, &new);
}

fn rewrite(frame: &mut [u8], p: &Packet, to: &Tuple, hop: bool) {
    let old = [octets(p.tuple.src), octets(p.tuple.dst)].concat();
    let new = [octets(to.src), octets(to.dst)].concat();
    set_addresses(frame, p.v6, to.src, to.dst);
    if hop {
        lose_hop(frame, p.v6);
    }
    if p.later {
        return;
    }
    let at = p.l4;
    let old = [old, frame[at..at + 4].to_vec()].concat();
    let ports = [to.sport.to_be_bytes(), to.dport.to_be_bytes()].concat();
    let new = [new, ports.clone()].concat();
    frame[at..at + 4].copy_from_slice(&ports);
    if p.tuple.proto == TCP {
        patch(frame, at + 16, &old, &new);
    } else if be16(frame, at + 6) != 0 {
        patch(frame, at + 6, &old, &new);
        if be16(frame, at + 6) == 0 {
            frame[at + 6..at + 8].copy_from_slice(&[0xff, 0xff]);
        }
    }
}

fn pseudo(src: IpAddr, dst: IpAddr, proto: u8, length: u16) -> Vec<u8> {
    [octets(src), octets(dst), vec![0, proto], length.to_be_bytes().to_vec()].concat()
}

/// A header of our own making.
fn ip_header(src: IpAddr, dst: IpAddr, next: u8, carried: usize, tos: u8) -> Vec<u8> {
    let length = carried as u16;
    if src.is_ipv6() {
        let mut head = vec![0x60 | tos >> 4, tos << 4, 0, 0];
        head.extend(length.to_be_bytes());
        head.extend([next, 64]);
        head.extend([octets(src), octets(dst)].concat());
        return head;
    }
    let mut head = vec![0x45, tos];
    head.extend((length + 20).to_be_bytes());
    head.extend([0, 0, 0x40, 0, 64, next, 0, 0]);
    head.extend([octets(src), octets(dst)].concat());
    let sum = !ones_sum(&[&head]);
    head[10..12].copy_from_slice(&sum.to_be_bytes());
    head
}

/// An answer goes back in a frame of its own.
fn turn(frame: &[u8], head: Vec<u8>, body: Vec<u8>) -> Verdict {
    Verdict::Turn([&frame[6..12], &frame[..6], &frame[12..14], &head, &body].concat())
}

fn too_big(frame: &[u8], p: &Packet, mtu: usize) -> Verdict {
    let back = if p.v6 { 48 } else { 28 };
    if !p.v6 && p.l4 != ETH + 20 || frame.len() < ETH + back {
        return Verdict::Drop;
    }
    let mut icmp = if p.v6 { vec![2, 0, 0, 0, 0, 0] } else { vec![3, 4, 0, 0, 0, 0] };
    icmp.extend((mtu as u16).to_be_bytes());
    icmp.extend(&frame[ETH..ETH + back]);
    let proto = if p.v6 { 58 } else { 1 };
    let head = if p.v6 { pseudo(p.tuple.dst, p.tuple.src, proto, icmp.len() as u16) } else { Vec::new() };
    let sum = !ones_sum(&[&head, &icmp]);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    turn(frame, ip_header(p.tuple.dst, p.tuple.src, proto, icmp.len(), 0), icmp)
}

fn entropy(t: &Tuple) -> u16 {
    let word = |a: IpAddr, i: usize| u32::from_ne_bytes(mapped(a)[i * 4..i * 4 + 4].try_into().unwrap());
    let port = |p: u16| u32::from(u16::from_ne_bytes(p.to_be_bytes()));
    let mut h = (word(t.src, 2) ^ word(t.src, 3) ^ word(t.dst, 3)).wrapping_mul(0x9e37_79b1);
    h ^= port(t.sport) << 16 | port(t.dport);
    h = h.wrapping_mul(0x85eb_ca6b);
    0xc000 | (h >> 18) as u16
}

/// For generators: a frame with right checksums.
pub(crate) fn frame(to: Mac, from: Mac, t: &Tuple, ttl: u8, body: &[u8]) -> Vec<u8> {
    let mut head = ip_header(t.src, t.dst, t.proto, body.len(), 0);
    if t.src.is_ipv6() {
        head[7] = ttl;
    } else {
        let old = [head[8], head[9]];
        head[8] = ttl;
        let new = [ttl, head[9]];
        patch(&mut head, 10, &old, &new);
    }
    let kind: &[u8] = if t.src.is_ipv6() { &[0x86, 0xdd] } else { &[8, 0] };
    let mut body = body.to_vec();
    let check = match t.proto {
        TCP => Some(16),
        UDP => Some(6),
        1 | 58 => Some(2),
        _ => None,
    };
    if let Some(at) = check.filter(|at| at + 2 <= body.len()) {
        body[at..at + 2].fill(0);
        let over = if t.proto == 1 { Vec::new() } else { pseudo(t.src, t.dst, t.proto, body.len() as u16) };
        let sum = !ones_sum(&[&over, &body]);
        body[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    [&to[..], &from[..], kind, &head, &body].concat()
}

/// `Protocol` of a number, for generators.
pub(crate) fn is_tcp(s: &VirtualServer) -> bool {
    s.protocol == Protocol::Tcp
}
