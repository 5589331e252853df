//! SYN cookies: a handshake packet by packet, as client, program and real server see it; and what must not pass for one.

use crate::model::Verdict;
use crate::{namespace, run};
use l4::Plan;
use l4::kernel::Kernel;
use l4::layout::{Flow, flow_state};

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
const PLAN: &str = r#"{"interfaces": ["lan"], "flows": 1000, "services": [
    {"address": "10.9.0.1:80", "mode": "nat", "cookies": 1, "reals": [{"address": "10.9.1.2:8080"}]},
    {"address": "[fd00:9::1]:80", "mode": "nat", "cookies": 1, "reals": [{"address": "[fd00:9:1::2]:8080"}]}]}"#;

/// A segment, as far as is looked at.
#[derive(Clone, Debug, PartialEq)]
struct Segment {
    from: (Vec<u8>, u16),
    to: (Vec<u8>, u16),
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    options: Vec<u8>,
    data: Vec<u8>,
}

fn ones(parts: &[&[u8]]) -> u16 {
    let all = parts.concat();
    let mut sum: u32 = all.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], *w.get(1).unwrap_or(&0)]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

impl Segment {
    fn new(from: (&str, u16), to: (&str, u16), flags: u8, seq: u32, ack: u32) -> Segment {
        let octets = |text: &str| match text.parse().unwrap() {
            std::net::IpAddr::V4(a) => a.octets().to_vec(),
            std::net::IpAddr::V6(a) => a.octets().to_vec(),
        };
        let (from, to) = ((octets(from.0), from.1), (octets(to.0), to.1));
        Segment { from, to, seq, ack, flags, window: 1000, options: Vec::new(), data: Vec::new() }
    }

    fn tcp(&self) -> Vec<u8> {
        let mut tcp = Vec::new();
        tcp.extend(self.from.1.to_be_bytes());
        tcp.extend(self.to.1.to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([((20 + self.options.len()) as u8 / 4) << 4, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(&self.options);
        tcp.extend(&self.data);
        tcp
    }

    fn frame(&self, own: [u8; 6]) -> Vec<u8> {
        let mut tcp = self.tcp();
        let pseudo = [&self.from.0[..], &self.to.0, &[0, 6], &(tcp.len() as u16).to_be_bytes()].concat();
        let sum = !ones(&[&pseudo, &tcp]);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let (kind, mut ip) = if self.from.0.len() == 4 {
            let length = (20 + tcp.len() as u16).to_be_bytes();
            (0x0800u16, vec![0x45, 0, length[0], length[1], 0, 1, 0x40, 0, 60, 6, 0, 0])
        } else {
            let length = (tcp.len() as u16).to_be_bytes();
            (0x86dd, vec![0x60, 0, 0, 0, length[0], length[1], 6, 60])
        };
        ip.extend([&self.from.0[..], &self.to.0].concat());
        if kind == 0x0800 {
            let sum = !ones(&[&ip]);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        [&own[..], &[2, 0, 0, 0, 9, 9], &kind.to_be_bytes(), &ip, &tcp].concat()
    }

    /// Reads a frame, and holds its checksums to be right.
    fn read(frame: &[u8]) -> Segment {
        let v4 = frame[12..14] == [8, 0];
        let (head, at) = if v4 { (20, 12) } else { (40, 8) };
        let n = if v4 { 4 } else { 16 };
        let ip = &frame[14..14 + head];
        let length = if v4 {
            assert_eq!(ones(&[ip]), 0xffff, "the sum of the IP header");
            usize::from(u16::from_be_bytes([ip[2], ip[3]])) - 20
        } else {
            usize::from(u16::from_be_bytes([ip[4], ip[5]]))
        };
        let tcp = &frame[14 + head..14 + head + length];
        let (from, to) = (ip[at..at + n].to_vec(), ip[at + n..at + 2 * n].to_vec());
        let pseudo = [&from[..], &to, &[0, 6], &(length as u16).to_be_bytes()].concat();
        assert_eq!(ones(&[&pseudo, tcp]), 0xffff, "the sum of TCP");
        let word = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
        let half = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let data = usize::from(tcp[12] >> 4) * 4;
        Segment {
            from: (from, half(0)),
            to: (to, half(2)),
            seq: word(4),
            ack: word(8),
            flags: tcp[13],
            window: half(14),
            options: tcp[20..data].to_vec(),
            data: tcp[data..].to_vec(),
        }
    }
}

struct Bench {
    kernel: Kernel,
    own: [u8; 6],
}

impl Bench {
    fn send(&mut self, segment: &Segment) -> Verdict {
        run(&mut self.kernel, &segment.frame(self.own))
    }

    fn out(&mut self, segment: &Segment) -> Segment {
        match self.send(segment) {
            Verdict::Out(frame) | Verdict::Turn(frame) => Segment::read(&frame),
            Verdict::Pass(_) => panic!("left to the stack: {segment:?}"),
            Verdict::Drop => panic!("dropped: {segment:?}"),
        }
    }

    fn flows(&self) -> usize {
        self.kernel.maps.flows.keys().count()
    }

    fn handshake(&mut self, client: (&str, u16), service: &str, real: &str) {
        let begun = self.flows();
        let to = (service, 80);
        let syn = Segment { options: vec![1, 1, 2, 4, 0x05, 0x14, 0, 0], ..Segment::new(client, to, SYN, 7000, 0) };
        let answer = self.out(&syn);
        assert_eq!((answer.flags, answer.ack, answer.window), (SYN | ACK, 7001, 0));
        assert_eq!((&answer.from, &answer.to), (&syn.to, &syn.from));
        assert_eq!(answer.options[..2], [2, 4]);
        assert_eq!(self.flows(), begun, "nothing is kept of a SYN");
        let cookie = answer.seq;
        assert_eq!(self.out(&syn).seq, cookie, "the same SYN gets the same cookie");
        // What is no cookie begins no flow that way: another number, or another client's.
        for (from, ack) in [(client, cookie + 2), ((client.0, client.1 + 1), cookie + 1)] {
            let sent = self.send(&Segment::new(from, to, ACK, 7001, ack));
            if let Verdict::Out(frame) = sent {
                assert_eq!(Segment::read(&frame).flags, ACK, "taken for another balancer's flow, not for a cookie");
            }
        }
        let fifth = (client.0, client.1 + 5);
        let cookie =
            self.out(&Segment { options: vec![2, 4, 0x05, 0x14], ..Segment::new(fifth, to, SYN, 7000, 0) }).seq;
        let ack = Segment::new(fifth, to, ACK, 7001, cookie + 1);
        let opened = self.out(&ack);
        assert_eq!((opened.flags, opened.seq, opened.window), (SYN, 7000, 1000));
        assert_eq!(opened.options, [2, 4, 0x05, 0x14], "1,300, the client's own size");
        assert_eq!(opened.to.1, 8080);
        let probe = Segment::new(fifth, to, ACK, 7000, cookie + 1);
        assert_eq!(self.out(&probe), opened, "who looks whether the window is open has the SYN sent again");
        let far = (real, 8080);
        let stale = Segment::new(far, fifth, SYN | ACK, 90_000, 6999);
        assert!(self.send(&stale) == Verdict::Drop, "an answer to another SYN");
        let real_syn = Segment { window: 5000, ..Segment::new(far, fifth, SYN | ACK, 90_000, 7001) };
        let window = self.out(&real_syn);
        assert_eq!((window.flags, window.seq, window.ack, window.window), (ACK, cookie + 1, 7001, 5000));
        assert_eq!((&window.from, &window.to), (&ack.to, &ack.from));
        let data = Segment { data: b"hello".to_vec(), ..Segment::new(fifth, to, ACK, 7001, cookie + 1) };
        let carried = self.out(&data);
        assert_eq!((carried.seq, carried.ack, &carried.data[..]), (7001, 90_001, &b"hello"[..]));
        let back = Segment { data: b"answer".to_vec(), ..Segment::new(far, fifth, ACK, 90_001, 7006) };
        let carried = self.out(&back);
        assert_eq!((carried.seq, carried.ack, &carried.data[..]), (cookie + 1, 7006, &b"answer"[..]));
        let entry = self.kernel.maps.flows.iter().flatten().map(|(_, f)| Flow::decode(&f));
        assert_eq!(entry.filter(|f| f.state & flow_state::SHIFTED != 0).count() % 2, 0);
    }

    /// A client that gives up and begins anew, by the same port, before the real server has answered.
    fn again(&mut self) {
        let (client, to) = (("10.8.0.78", 500), ("10.9.0.1", 80));
        let first = self.out(&Segment::new(client, to, SYN, 1000, 0)).seq;
        assert_eq!(self.out(&Segment::new(client, to, ACK, 1001, first + 1)).seq, 1000);
        let answer = self.out(&Segment::new(client, to, SYN, 2000, 0));
        assert_eq!((answer.flags, answer.ack), (SYN | ACK, 2001));
        assert_eq!(self.out(&Segment::new(client, to, ACK, 2001, answer.seq + 1)).seq, 2000);
        let old = Segment::new(("10.9.1.2", 8080), client, SYN | ACK, 5000, 1001);
        assert!(self.send(&old) == Verdict::Drop);
        let window = self.out(&Segment::new(("10.9.1.2", 8080), client, SYN | ACK, 6000, 2001));
        assert_eq!((window.flags, window.seq, window.ack), (ACK, answer.seq + 1, 2001));
    }

    /// A handshake from the SYN on: the cookie.
    fn open(&mut self, client: (&str, u16), first: u32, theirs: u32) -> u32 {
        let to = ("10.9.0.1", 80);
        let answer = self.out(&Segment::new(client, to, SYN, first, 0));
        assert_eq!((answer.flags, answer.ack), (SYN | ACK, first + 1));
        let opened = self.out(&Segment::new(client, to, ACK, first + 1, answer.seq + 1));
        assert_eq!((opened.flags, opened.seq), (SYN, first), "the real server hears of the new connection");
        let window = self.out(&Segment::new(("10.9.1.2", 8080), client, SYN | ACK, theirs, first + 1));
        assert_eq!((window.flags, window.seq, window.ack), (ACK, answer.seq + 1, first + 1));
        let data = Segment { data: b"a".to_vec(), ..Segment::new(client, to, ACK, first + 1, answer.seq + 1) };
        assert_eq!(self.out(&data).ack, theirs + 1);
        answer.seq
    }

    /// FIN from both, without a cookie's shift of numbers.
    fn end(&mut self, client: (&str, u16), seq: u32, back: u32) {
        let (to, real) = (("10.9.0.1", 80), ("10.9.1.2", 8080));
        self.out(&Segment::new(client, to, FIN | ACK, seq, back));
        self.out(&Segment::new(real, client, FIN | ACK, back, seq + 1));
        self.out(&Segment::new(client, to, ACK, seq + 1, back + 1));
    }

    /// A client that uses its port again, while the table still has the flow before.
    fn by_the_same_port(&mut self) {
        let to = ("10.9.0.1", 80);
        let ended = ("10.8.0.79", 501);
        let cookie = self.open(ended, 1000, 5000);
        self.out(&Segment::new(ended, to, FIN | ACK, 1002, cookie + 1));
        self.out(&Segment::new(("10.9.1.2", 8080), ended, FIN | ACK, 5001, 1003));
        self.open(ended, 90_000, 70_000);
        let reset = ("10.8.0.79", 502);
        let cookie = self.open(reset, 1000, 5000);
        self.out(&Segment::new(reset, to, RST | ACK, 1002, cookie + 1));
        self.open(reset, 90_000, 70_000);
        let idle = ("10.8.0.79", 503);
        self.open(idle, 1000, 5000);
        let all: Vec<_> = self.kernel.maps.flows.iter().flatten().collect();
        for (key, bytes) in all {
            let mut flow = Flow::decode(&bytes);
            flow.last = flow.last.wrapping_sub(10_000_000_000_000);
            self.kernel.maps.flows.insert(key, flow.encode(), 0).unwrap();
        }
        self.open(idle, 90_000, 70_000);
    }

    /// As above, but cookies are sent only since a moment ago: the flow before had none, and its packets went by the index.
    fn since_the_flood(&mut self) {
        let (client, to, real) = (("10.8.0.80", 501), ("10.9.0.1", 80), ("10.9.1.2", 8080));
        let mut plan = Plan::read(PLAN).unwrap();
        plan.services[0].cookies = 0;
        l4::apply(&mut self.kernel.maps, &plan).unwrap();
        self.out(&Segment::new(client, to, SYN, 1000, 0));
        self.out(&Segment::new(real, client, SYN | ACK, 5000, 1001));
        self.out(&Segment::new(client, to, ACK, 1001, 5001));
        self.end(client, 1001, 5001);
        plan.services[0].cookies = 1;
        l4::apply(&mut self.kernel.maps, &plan).unwrap();
        self.open(client, 90_000, 70_000);
    }

    fn refusal(&mut self) {
        let (client, to) = (("10.8.0.77", 500), ("10.9.0.1", 80));
        let cookie = self.out(&Segment::new(client, to, SYN, 1, 0)).seq;
        self.out(&Segment::new(client, to, ACK, 2, cookie + 1));
        let refused = self.out(&Segment::new(("10.9.1.2", 8080), client, RST | ACK, 0, 2));
        assert_eq!((refused.flags, refused.seq, refused.ack), (RST | ACK, cookie + 1, 2));
    }
}

#[test]
fn a_cookie_that_comes_back_begins_a_flow_and_nothing_else_does() {
    if !namespace::enter("cookies::a_cookie_that_comes_back_begins_a_flow_and_nothing_else_does") {
        return;
    }
    let plan = Plan::read(PLAN).unwrap();
    let network = namespace::Network::make(&plan);
    let mut kernel = Kernel::load(&plan, None).unwrap();
    l4::apply(&mut kernel.maps, &plan).unwrap();
    let mut bench = Bench { kernel, own: network.own };
    bench.handshake(("10.8.0.50", 4000), "10.9.0.1", "10.9.1.2");
    bench.handshake(("fd00:8::50", 4000), "fd00:9::1", "fd00:9:1::2");
    bench.again();
    bench.refusal();
    bench.by_the_same_port();
    bench.since_the_flood();
}
