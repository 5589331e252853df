//! Bytes of frames: read as far as a balancer reads them, changed, and made anew. Below: `model`, which decides.

use super::{Mac, Tuple, Verdict};
use l4::plan::{Protocol, VirtualServer};
use std::net::{IpAddr, Ipv6Addr};

/// A frame as far as it was understood.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) tuple: Tuple,
    pub(super) v6: bool,
    /// Offset of what IP carries.
    pub(super) l4: usize,
    /// Bytes of the IP packet.
    pub(super) length: usize,
    pub(super) flags: u8,
    pub(super) ttl: u8,
    pub(super) tos: u8,
    pub(super) dont: bool,
    pub(super) id: [u8; 4],
    pub(super) first: bool,
    pub(super) later: bool,
}

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ETH: usize = 14;
pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;

pub(super) fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

pub(super) fn ip6(b: &[u8], at: usize) -> IpAddr {
    let octets: [u8; 16] = b[at..at + 16].try_into().unwrap();
    Ipv6Addr::from(octets).into()
}

pub(super) fn ip4(b: &[u8], at: usize) -> IpAddr {
    let octets: [u8; 4] = b[at..at + 4].try_into().unwrap();
    octets.into()
}

pub(super) fn is_mapped(a: IpAddr) -> bool {
    matches!(a, IpAddr::V6(a) if a.to_ipv4_mapped().is_some())
}

pub(super) fn octets(a: IpAddr) -> Vec<u8> {
    match a {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

pub(super) fn mapped(a: IpAddr) -> [u8; 16] {
    match a {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    }
}

/// RFC 1071 over whole 16-bit words, folded, not turned.
pub(super) fn ones_sum(parts: &[&[u8]]) -> u16 {
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
pub(super) fn patch(frame: &mut [u8], at: usize, old: &[u8], new: &[u8]) {
    let turned: Vec<u8> = old.iter().map(|b| !b).collect();
    let was = !be16(frame, at);
    let sum = ones_sum(&[&was.to_be_bytes(), &turned, new]);
    frame[at..at + 2].copy_from_slice(&(!sum).to_be_bytes());
}

pub(super) fn parse(b: &[u8]) -> Option<Packet> {
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

pub(super) fn set_addresses(frame: &mut [u8], v6: bool, src: IpAddr, dst: IpAddr) {
    let (at, size) = if v6 { (22, 32) } else { (26, 8) };
    let (old, new) = (frame[at..at + size].to_vec(), [octets(src), octets(dst)].concat());
    frame[at..at + size].copy_from_slice(&new);
    if !v6 {
        patch(frame, 24, &old, &new);
    }
}

pub(super) fn lose_hop(frame: &mut [u8], v6: bool) {
    if v6 {
        frame[21] -= 1;
        return;
    }
    let old = [frame[22], frame[23]];
    frame[22] -= 1;
    let new = [frame[22], frame[23]];
    patch(frame, 24, &old, &new);
}

pub(super) fn rewrite(frame: &mut [u8], p: &Packet, to: &Tuple, hop: bool) {
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

pub(super) fn pseudo(src: IpAddr, dst: IpAddr, proto: u8, length: u16) -> Vec<u8> {
    [octets(src), octets(dst), vec![0, proto], length.to_be_bytes().to_vec()].concat()
}

/// A header of our own making.
pub(super) fn ip_header(src: IpAddr, dst: IpAddr, next: u8, carried: usize, tos: u8) -> Vec<u8> {
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
pub(super) fn turn(frame: &[u8], head: Vec<u8>, body: Vec<u8>) -> Verdict {
    Verdict::Turn([&frame[6..12], &frame[..6], &frame[12..14], &head, &body].concat())
}

pub(super) fn too_big(frame: &[u8], p: &Packet, mtu: usize) -> Verdict {
    icmp_error(frame, p, if p.v6 { [2, 0] } else { [3, 4] }, mtu)
}

/// The hop limit is used up: said to those who are machines, once for a datagram.
pub(super) fn expired(frame: &[u8], p: &Packet) -> Verdict {
    let is_machine = match p.tuple.src {
        IpAddr::V4(a) => !matches!(a.octets()[0], 0 | 127 | 224..),
        IpAddr::V6(a) => !a.is_unspecified() && !a.is_multicast(),
    };
    if p.later || !is_machine {
        return Verdict::Drop;
    }
    icmp_error(frame, p, if p.v6 { [3, 0] } else { [11, 0] }, 0)
}

/// Whether these bytes, which the program was to answer with, are such an error: it sends no more than a thousand a second.
pub(crate) fn is_expired(answer: &[u8]) -> bool {
    let at = |place: usize| answer.get(place).copied();
    if at(12) == Some(8) { at(23) == Some(1) && at(34) == Some(11) } else { at(20) == Some(58) && at(54) == Some(3) }
}

fn icmp_error(frame: &[u8], p: &Packet, what: [u8; 2], mtu: usize) -> Verdict {
    let back = if p.v6 { 48 } else { 28 };
    if !p.v6 && p.l4 != ETH + 20 || frame.len() < ETH + back {
        return Verdict::Drop;
    }
    let mut icmp = vec![what[0], what[1], 0, 0, 0, 0];
    icmp.extend((mtu as u16).to_be_bytes());
    icmp.extend(&frame[ETH..ETH + back]);
    let proto = if p.v6 { 58 } else { 1 };
    let head = if p.v6 { pseudo(p.tuple.dst, p.tuple.src, proto, icmp.len() as u16) } else { Vec::new() };
    let sum = !ones_sum(&[&head, &icmp]);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    turn(frame, ip_header(p.tuple.dst, p.tuple.src, proto, icmp.len(), 0), icmp)
}

pub(super) fn entropy(t: &Tuple) -> u16 {
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
