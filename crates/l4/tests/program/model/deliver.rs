//! The way out: addresses changed, or wrapped, or answered. From: `model`, `choose`.

use super::frames::{
    ACK, ETH, FIN, Packet, RST, SYN, TCP, UDP, entropy, expired, ip_header, lose_hop, ones_sum, pseudo, rewrite,
    too_big, turn,
};
use super::{Entry, Kind, Mac, Model, Verdict};
use l4::plan::Mode;
use std::net::IpAddr;

impl Model {
    pub(super) fn hop(&self, dst: IpAddr) -> Mac {
        self.neighbours.get(&dst).copied().unwrap_or(self.gateway)
    }

    pub(super) fn out(&self, mut frame: Vec<u8>, hop: Mac) -> Verdict {
        frame[..6].copy_from_slice(&hop);
        frame[6..12].copy_from_slice(&self.own);
        Verdict::Out(frame)
    }

    pub(super) fn deliver(&self, frame: &[u8], p: &Packet, e: &Entry) -> Verdict {
        let s = &self.plan.services[e.service];
        if p.ttl <= 1 {
            return if e.kind == Kind::Return { Verdict::Pass(frame.to_vec()) } else { expired(frame, p) };
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

    pub(super) fn deliver_whole(&self, frame: &[u8], p: &Packet, e: &Entry) -> Verdict {
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

    pub(super) fn answer_reset(&self, frame: &[u8], p: &Packet) -> Verdict {
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
}
