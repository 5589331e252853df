//! What the program must do with a frame, written a second time from docs/l4.md: parse, decide, make the bytes. It knows
//! nothing of maps: real servers are positions in the plan, flows a Rust table. Time stands still but for `forget`.

mod choose;
mod deliver;
mod errors;
mod frames;

use frames::{ACK, ETH, FIN, Packet, RST, SYN, TCP, UDP, be16, parse};
pub(crate) use frames::{frame, is_expired, is_tcp};
use l4::plan::{Plan, RealState, VirtualServer};
use l4::ring::{Member, slots};
use std::collections::HashMap;
use std::net::IpAddr;

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
    /// On the way back: something came.
    pub(crate) answered: bool,
}

impl Entry {
    /// Of a flow that begins.
    fn forward(becomes: Tuple, service: usize, real: usize) -> Entry {
        let kind = Kind::Forward;
        Entry { kind, becomes, service, real, fin: false, closed: false, dead: false, idle: false, answered: false }
    }
}

/// What a packet to this real server becomes, but for full NAT's own source.
fn aimed(s: &VirtualServer, real: usize, key: Tuple) -> Tuple {
    if !s.mode.rewrites() {
        return key;
    }
    let address = s.reals[real].address;
    Tuple { dst: address.ip(), dport: address.port(), ..key }
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

/// A second address of the link, as that of a MACVLAN device.
pub(crate) const SECOND: Mac = [2, 0, 0, 0, 9, 2];

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
        if frame[..6] != self.own && frame[..6] != SECOND {
            return pass();
        }
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
            if let Some(verdict) = self.known(frame, &p, false) {
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
            Ok(()) => self.known(frame, &p, true).unwrap_or_else(pass),
        }
    }

    fn service(&self, addr: IpAddr, port: u16, proto: u8) -> Option<usize> {
        let is = |s: &VirtualServer| s.address == (addr, port).into() && s.protocol.number() == proto;
        self.plan.services.iter().position(is)
    }

    /// A packet of a flow in the table, or of one that it has made; `None`: it is to be chosen for anew.
    fn known(&mut self, frame: &[u8], p: &Packet, made: bool) -> Option<Verdict> {
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
        let unanswered = other.and_then(|o| self.flows.get(&o)).is_some_and(|o| !o.answered);
        if begins && !made && forward && unanswered && service.reals[entry.real].full {
            return None;
        }
        let seen = self.flows.get_mut(&p.tuple).unwrap();
        (seen.idle, seen.answered) = (false, !forward);
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
}

pub(crate) fn turned(t: &Tuple) -> Tuple {
    Tuple { src: t.dst, dst: t.src, sport: t.dport, dport: t.sport, proto: t.proto }
}

/// The key of the other direction, if that comes through us.
fn other_key(e: &Entry, plan: &Plan) -> Option<Tuple> {
    plan.services[e.service].mode.rewrites().then(|| turned(&e.becomes))
}
