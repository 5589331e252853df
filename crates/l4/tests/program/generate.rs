//! Frames as a balancer meets them, and as it should not: drawn by seed, half of them about flows that are there.

use crate::model::{Kind, Mac, Model, SECOND, Tuple, frame, is_tcp, turned};
use l4::plan::Mode;
use std::net::IpAddr;

/// Every mode, both families, both protocols, every choice.
pub(crate) const PLAN: &str = r#"{
  "interfaces": ["lan"],
  "flows": 200000,
  "tunnel_sources": ["10.9.1.1", "fd00:9:1::1"],
  "services": [
    {"address": "10.9.0.1:80", "mode": "nat", "reset": true, "reals": [
      {"address": "10.9.1.2:8080"}, {"address": "10.9.1.3:8080"}, {"address": "10.9.1.4:8080", "weight": 3}]},
    {"address": "10.9.0.1:81", "mode": "nat", "choice": "round_robin", "reals": [
      {"address": "10.9.1.2:81", "weight": 3}, {"address": "10.9.1.3:81"}]},
    {"address": "10.9.0.2:443", "mode": "full_nat", "choice": "source_hash", "sources": ["10.9.2.1", "10.9.2.2"], "reals": [
      {"address": "10.9.1.2:443"}, {"address": "10.9.1.5:443"}]},
    {"address": "10.9.0.3:80", "mode": "direct", "reset": true, "reals": [{"address": "10.9.1.2:80"}, {"address": "10.9.1.6:80"}]},
    {"address": "10.9.0.4:80", "mode": "ipip", "reals": [{"address": "10.9.1.7:80"}, {"address": "[fd00:9:1::7]:80"}]},
    {"address": "10.9.0.5:53", "protocol": "udp", "mode": "gue", "reals": [{"address": "10.9.1.7:53"}, {"address": "[fd00:9:1::8]:53"}]},
    {"address": "10.9.0.1:53", "protocol": "udp", "mode": "nat", "choice": "least_conn", "reals": [
      {"address": "10.9.1.2:53"}, {"address": "10.9.1.3:53", "weight": 2}, {"address": "10.9.1.4:53"}]},
    {"address": "[fd00:9::1]:80", "mode": "nat", "reset": true, "reals": [{"address": "[fd00:9:1::2]:8080"}, {"address": "[fd00:9:1::3]:8080"}]},
    {"address": "[fd00:9::2]:80", "mode": "full_nat", "choice": "least_conn", "sources": ["fd00:9:2::1"], "reals": [
      {"address": "[fd00:9:1::2]:80"}, {"address": "[fd00:9:1::3]:80"}]},
    {"address": "[fd00:9::3]:80", "mode": "direct", "reals": [{"address": "[fd00:9:1::2]:80"}, {"address": "[fd00:9:1::4]:80"}]},
    {"address": "[fd00:9::4]:443", "protocol": "udp", "mode": "gue", "reals": [{"address": "10.9.1.7:443"}, {"address": "[fd00:9:1::9]:443"}]},
    {"address": "10.9.0.6:443", "protocol": "udp", "mode": "nat", "quic": true, "reals": [
      {"address": "10.9.1.2:4433", "server_id": 1}, {"address": "10.9.1.3:4433", "server_id": 2}]},
    {"address": "10.9.0.7:22", "mode": "nat", "choice": "round_robin", "affinity_s": 1000, "reals": [
      {"address": "10.9.1.2:22"}, {"address": "10.9.1.3:22"}]},
    {"address": "10.9.0.8:80", "mode": "nat", "reals": [{"address": "10.9.1.2:88", "state": "drain"}]},
    {"address": "[fd00:9::5]:80", "mode": "ipip", "reals": [{"address": "10.9.1.7:80"}, {"address": "[fd00:9:1::7]:80"}]}
  ]
}"#;

const GATEWAY: Mac = [2, 0, 0, 0, 9, 0xfe];

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

pub(crate) struct Generator {
    pub(crate) random: Random,
    own: Mac,
    /// Flows that were sent to, the last thousand.
    known: Vec<Tuple>,
}

impl Generator {
    pub(crate) fn new(random: Random, own: Mac) -> Generator {
        Generator { random, own, known: Vec::new() }
    }

    /// One of the flows in the table.
    pub(crate) fn some_flow(&mut self, model: &Model) -> Option<Tuple> {
        for _ in 0..8 {
            if self.known.is_empty() {
                return None;
            }
            let at = self.random.below(self.known.len());
            let tuple = self.known[at];
            match model.flows.get(&tuple) {
                Some(entry) if self.random.one_in(2) && entry.kind != Kind::Stranger => {
                    return Some(turned(&entry.becomes));
                }
                Some(_) => return Some(tuple),
                None => drop(self.known.swap_remove(at)),
            }
        }
        None
    }

    /// The next frame.
    pub(crate) fn frame(&mut self, model: &Model) -> Vec<u8> {
        let tuple = match self.random.below(16) {
            0..=5 => self.client(model),
            6..=13 => self.some_flow(model).unwrap_or_else(|| self.client(model)),
            14 => self.real(model),
            _ => return self.error(model),
        };
        if self.known.len() < 1000 {
            self.known.push(tuple);
        } else {
            let at = self.random.below(1000);
            self.known[at] = tuple;
        }
        let mut frame = self.packet(&tuple);
        if self.random.one_in(12) {
            self.mutate(&mut frame);
        }
        frame
    }

    /// To a service, or beside one.
    fn client(&mut self, model: &Model) -> Tuple {
        let service = &model.plan.services[self.random.below(model.plan.services.len())];
        let src = self.host(service.address.is_ipv6());
        let mut dport = service.address.port();
        let mut proto = service.protocol.number();
        if self.random.one_in(30) {
            dport = self.random.next() as u16;
        }
        if self.random.one_in(40) {
            proto = if is_tcp(service) { 17 } else { 6 };
        }
        Tuple { src, dst: service.address.ip(), sport: 40_000 + self.random.below(60) as u16, dport, proto }
    }

    fn host(&mut self, v6: bool) -> IpAddr {
        let last = self.random.below(40) as u8;
        if v6 { [0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(last)].into() } else { [198, 51, 100, last].into() }
    }

    /// From a real server, whether there is a flow or not.
    fn real(&mut self, model: &Model) -> Tuple {
        let service = &model.plan.services[self.random.below(model.plan.services.len())];
        let from = service.reals[self.random.below(service.reals.len())].address;
        let dst = self.host(from.is_ipv6());
        let dport = 40_000 + self.random.below(60) as u16;
        Tuple { src: from.ip(), dst, sport: from.port(), dport, proto: service.protocol.number() }
    }

    fn transport(&mut self, tuple: &Tuple) -> Vec<u8> {
        let ports = [tuple.sport.to_be_bytes(), tuple.dport.to_be_bytes()].concat();
        let size = self.random.of(&[0, 0, 0, 1, 12, 40, 300, 1200, 1430, 1440, 1446, 1452, 1460, 1472, 1600]);
        if tuple.proto == 6 {
            let mut tcp = ports;
            tcp.extend(self.random.bytes(8));
            let flags = self.random.of(&[2, 2, 2, 0x10, 0x10, 0x10, 0x18, 0x12, 0x11, 0x04, 0x14, 0, 0xc2, 1]);
            let options = self.random.of(&[0u8, 0, 12, 40]);
            tcp.extend([(5 + options / 4) << 4, flags, 1, 2, 0, 0, 0, 0]);
            tcp.extend(self.random.bytes(usize::from(options) + size));
            return tcp;
        }
        let mut udp = ports;
        udp.extend((size as u16 + 8).to_be_bytes());
        udp.extend([0, 0]);
        udp.extend(self.random.bytes(size));
        if size > 12 && self.random.one_in(2) {
            // A short header of QUIC with a server's number.
            let id = self.random.below(4) as u8;
            let first = self.random.of(&[0, 15, 0xef]);
            udp[8..12].copy_from_slice(&[0x40, first, 0, id]);
        }
        udp
    }

    fn packet(&mut self, tuple: &Tuple) -> Vec<u8> {
        let body = self.transport(tuple);
        let ttl = self.random.of(&[64, 64, 64, 64, 255, 2, 1, 0]);
        let mut frame = frame(self.own, GATEWAY, tuple, ttl, &body);
        if tuple.proto == 17 && !tuple.src.is_ipv6() && self.random.one_in(5) {
            frame[40..42].fill(0);
        }
        // For another machine, or by another address of ours.
        match self.random.below(40) {
            0 => frame[..6].copy_from_slice(&GATEWAY),
            1 => frame[..6].copy_from_slice(&SECOND),
            _ => {}
        }
        match self.random.below(12) {
            0 => self.fragment(&mut frame),
            1 if frame[12] == 8 => self.options(&mut frame),
            2 if frame[12] == 8 => frame[20] ^= 0x40,
            3 => frame.extend(vec![0; 18]),
            _ => {}
        }
        frame
    }

    /// One of the parts of a datagram: of few numbers, so that the first one is often there.
    fn fragment(&mut self, frame: &mut Vec<u8>) {
        let id = self.random.below(4) as u8;
        let later = self.random.one_in(2);
        if frame[12] == 8 {
            frame[18..20].copy_from_slice(&[0, id]);
            let offset: u16 = if later { self.random.of(&[1, 0x2001, 0x0100]) } else { 0x2000 };
            frame[20..22].copy_from_slice(&offset.to_be_bytes());
            checksum(frame);
            return;
        }
        let next = std::mem::replace(&mut frame[20], 44);
        let offset: u16 = if later { self.random.of(&[8, 9, 0x100]) } else { self.random.of(&[1, 1, 0]) };
        let head = [next, 0, (offset >> 8) as u8, offset as u8, 0, 0, 0, id];
        frame.splice(54..54, head);
        let length = (frame.len() - 54) as u16;
        frame[18..20].copy_from_slice(&length.to_be_bytes());
    }

    fn options(&mut self, frame: &mut Vec<u8>) {
        let words = 1 + self.random.below(10);
        frame.splice(34..34, vec![1; words * 4]);
        frame[14] = 0x45 + words as u8;
        let length = (frame.len() - 14) as u16;
        frame[16..18].copy_from_slice(&length.to_be_bytes());
        checksum(frame);
    }

    /// About a packet that we, or the stack, have sent; or about none.
    fn error(&mut self, model: &Model) -> Vec<u8> {
        let about = match self.some_flow(model) {
            Some(t) if !self.random.one_in(6) => {
                model.flows.get(&t).map_or(t, |e| if self.random.one_in(2) { e.becomes } else { turned(&t) })
            }
            _ => turned(&self.client(model)),
        };
        let v6 = about.src.is_ipv6();
        let mut quoted = self.packet(&about).split_off(14);
        let entry = model.flows.get(&about).map(|e| (&model.plan.services[e.service], e.real));
        // A tunnel's packet, as it was on the wire; or one that somebody thinks was.
        if let (Some((service, real)), true) = (entry, self.random.one_in(2)) {
            let real = service.reals[if self.random.one_in(6) { 0 } else { real }].address;
            let gue = if self.random.one_in(6) { self.random.one_in(2) } else { service.mode == Mode::Gue };
            let own = model.plan.tunnel_source(real.is_ipv6()).unwrap();
            let outer = Tuple {
                src: if self.random.one_in(8) { self.host(real.is_ipv6()) } else { own },
                dst: real.ip(),
                sport: 0xc001,
                dport: if self.random.one_in(8) { 6081 } else { 6080 },
                proto: if gue {
                    17
                } else if v6 {
                    41
                } else {
                    4
                },
            };
            let body = if gue { [&[0xc0, 1, 0x17, 0xc0, 0, 0, 0, 0][..], &quoted].concat() } else { quoted };
            quoted = frame(self.own, GATEWAY, &outer, 60, &body).split_off(14);
        }
        let v6 = quoted[0] >> 4 == 6;
        quoted.truncate(self.random.of(if v6 { &[548, 548, 88, 48, 40] } else { &[548, 548, 68, 28, 20] }));
        let kind: [u8; 2] = if v6 {
            self.random.of(&[[2, 0], [2, 0], [1, 4], [3, 0], [128, 0]])
        } else {
            self.random.of(&[[3, 4], [3, 4], [3, 1], [11, 0], [8, 0]])
        };
        let mtu = self.random.of(&[1400u16, 1340, 1320, 1300, 1290, 1280, 1000, 576, 500, 100]);
        let body = [&kind[..], &[0, 0, 0, 0], &mtu.to_be_bytes(), &quoted].concat();
        let dst = if v6 { ip(&quoted[8..24]) } else { ip(&quoted[12..16]) };
        let tuple = Tuple { src: self.host(v6), dst, sport: 0, dport: 0, proto: if v6 { 58 } else { 1 } };
        let ttl = self.random.of(&[64, 64, 64, 2, 1]);
        let mut frame = frame(self.own, GATEWAY, &tuple, ttl, &body);
        if self.random.one_in(8) {
            self.mutate(&mut frame);
        }
        frame
    }

    /// Bytes flipped, cut off, or put on.
    fn mutate(&mut self, frame: &mut Vec<u8>) {
        match self.random.below(4) {
            0 => frame.truncate(self.random.below(frame.len() + 1)),
            1 => {
                let more = self.random.below(64);
                let more = self.random.bytes(more);
                frame.extend(more);
            }
            _ => {
                for _ in 0..1 + self.random.below(4) {
                    // Headers are where it matters.
                    let reach = frame.len().min(120);
                    let at = self.random.below(reach);
                    frame[at] = if self.random.one_in(2) {
                        self.random.next() as u8
                    } else {
                        frame[at] ^ (1 << self.random.below(8))
                    };
                }
            }
        }
    }
}

fn ip(bytes: &[u8]) -> IpAddr {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).unwrap().into(),
        _ => <[u8; 16]>::try_from(bytes).unwrap().into(),
    }
}

/// The IPv4 header's checksum, anew.
fn checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let head = usize::from(frame[14] & 15) * 4;
    let mut sum: u32 = frame[14..14 + head].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}
