//! Which real server a new flow gets, and what its packets become. From: `model`.

use super::frames::{ACK, Packet, RST, SYN, TCP, UDP, be16, mapped};
use super::{Entry, Kind, Model, Tuple, Verdict, aimed, other_key, turned};
use l4::plan::{Choice, Mode, VirtualServer};
use std::net::IpAddr;

impl Model {
    pub(super) fn hash(&self, service: usize, src: IpAddr, sport: u16) -> u32 {
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

    pub(super) fn choose(&mut self, service: usize, p: &Tuple) -> Option<usize> {
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

    pub(super) fn choose_slot(&mut self, service: usize, p: &Tuple) -> Option<usize> {
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

    pub(super) fn begin(&mut self, frame: &[u8], p: &Packet, service: usize) -> Result<(), Verdict> {
        let s = self.plan.services[service].clone();
        let opens = p.tuple.proto != TCP || p.flags & (SYN | ACK | RST) == SYN;
        let hashed = matches!(s.choice, Choice::Maglev | Choice::SourceHash);
        let pass = || Verdict::Pass(frame.to_vec());
        if !opens && (!hashed || s.mode == Mode::FullNat) {
            return Err(pass());
        }
        let real = self.quic(frame, p, &s).or_else(|| self.choose(service, &p.tuple)).ok_or_else(pass)?;
        let mut becomes = aimed(&s, real, p.tuple);
        if s.mode == Mode::FullNat {
            let own = self.take_source(service, &p.tuple, &becomes).ok_or(Verdict::Drop)?;
            (becomes.src, becomes.sport) = own;
        }
        let entry = Entry::forward(becomes, service, real);
        self.insert_back(&entry, &p.tuple);
        self.flows.insert(p.tuple, entry);
        *self.active.entry((service, real)).or_default() += 1;
        Ok(())
    }

    pub(super) fn insert_back(&mut self, entry: &Entry, key: &Tuple) {
        if let Some(back) = other_key(entry, &self.plan) {
            self.flows.insert(back, Entry { kind: Kind::Return, becomes: turned(key), ..entry.clone() });
        }
    }

    pub(super) fn quic(&self, frame: &[u8], p: &Packet, s: &VirtualServer) -> Option<usize> {
        let at = p.l4 + 8;
        if !s.quic || p.tuple.proto != UDP || frame.len() < at + 4 || frame[at] & 0x80 != 0 || frame[at + 1] >= 0xe0 {
            return None;
        }
        s.reals.iter().position(|r| r.server_id == Some(be16(frame, at + 2)))
    }

    pub(super) fn take_source(&self, service: usize, key: &Tuple, becomes: &Tuple) -> Option<(IpAddr, u16)> {
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

    pub(super) fn adopt_return(&mut self, p: &Packet) -> bool {
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
        let mut entry = Entry::forward(becomes, service, real);
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
}

pub(super) fn finish(mut h: u32) -> u32 {
    h = h.wrapping_mul(0x85eb_ca6b);
    h ^= h >> 13;
    h = h.wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}
