//! ICMP errors: passed on with what they quote changed back; path MTU of tunnels learned. From: `model`.

use super::frames::{Packet, TCP, UDP, be16, ip4, ip6, is_mapped, lose_hop, octets, patch, set_addresses};
use super::{Entry, Kind, Model, Tuple, Verdict, aimed, turned};
use l4::plan::{Choice, Mode};

impl Model {
    /// An ICMP error.
    pub(super) fn error(&mut self, frame: &[u8], p: &Packet) -> Verdict {
        let pass = Verdict::Pass(frame.to_vec());
        let kind = frame[p.l4];
        if !(if p.v6 { (1..=4).contains(&kind) } else { [3, 4, 11, 12].contains(&kind) }) {
            return pass;
        }
        let at = p.l4 + 8;
        let Some((mut quoted, ports)) = quoted_ip(frame, at, p.v6) else { return pass };
        if quoted.proto == 4 || quoted.proto == 41 {
            return self.learn_mtu(frame, p, ports, &quoted);
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
                        return self.learn_mtu(frame, p, ports + 8, &quoted);
                    }
                    return pass;
                };
                let s = self.plan.services[service].clone();
                if !matches!(s.choice, Choice::Maglev | Choice::SourceHash) || s.mode == Mode::FullNat {
                    return pass;
                }
                let Some(real) = self.choose_slot(service, &key) else { return pass };
                let becomes = aimed(&s, real, key);
                Entry::forward(becomes, service, real)
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

    /// `outer`: what the error quotes, a packet of ours if it is believed. `at`: where what it carries begins.
    pub(super) fn learn_mtu(&mut self, frame: &[u8], p: &Packet, at: usize, outer: &Tuple) -> Verdict {
        let pass = Verdict::Pass(frame.to_vec());
        let v6 = match outer.proto {
            UDP => frame.get(at).is_some_and(|first| first >> 4 == 6),
            proto => proto == 41,
        };
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
        let service = &self.plan.services[entry.service];
        let real = service.reals[entry.real].address.ip();
        let is_ours = outer.dst == real && Some(outer.src) == self.plan.tunnel_source(real.is_ipv6());
        let is_mode =
            if mode == Mode::Gue { outer.proto == UDP && outer.dport == service.gue_port } else { outer.proto != UDP };
        if !is_ours || !is_mode {
            return pass;
        }
        let more = (if real.is_ipv6() { 40 } else { 20 }) + if mode == Mode::Gue { 8 } else { 0 };
        let least = match (v6, p.v6) {
            (true, _) => 1280 + more,
            (false, true) => 1280,
            (false, false) => 576,
        };
        let known = self.mtu.get(&(entry.service, entry.real)).copied().unwrap_or(u32::MAX);
        if mtu < least || mtu >= known {
            return pass;
        }
        self.mtu.insert((entry.service, entry.real), mtu);
        Verdict::Drop
    }
}

pub(super) fn quoted_ip(frame: &[u8], at: usize, v6: bool) -> Option<(Tuple, usize)> {
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
