//! The program in the kernel against the model: `BPF_PROG_TEST_RUN` over generated and mutated frames, in a network
//! namespace of its own. Never another packet. Needs root rights; leaves itself out, aloud, without them.
//!
//! `L4_PACKETS=1000000 L4_SEED=7 cargo test -p l4 --test program` for more, or others.

#![allow(clippy::unwrap_used)]

mod cookies;
mod generate;
mod model;
mod namespace;
mod plans;

use aya::programs::{TestRun, TestRunOptions};
use generate::{Generator, Random};
use l4::kernel::Kernel;
use l4::layout::{Addr, Flow, FlowKey, Link, Port};
use l4::plan::{Plan, RealState};
use model::{Mac, Model, Tuple, Verdict};
use std::fmt::Write;

const PACKETS: u32 = 30_000;
const SEED: u64 = 20_261_122;
/// Packets in much less time than the program waits for fragments, 30 s.
const FRAGMENTS_KEPT: u64 = 2000;
/// More than the kernel's copy of a frame has room for (a page less what it keeps around it).
const FRAME_MAX: usize = 3500;

/// What the program made of a frame.
pub(crate) fn run(kernel: &mut Kernel, frame: &[u8]) -> Verdict {
    let mut out = vec![0; 4096];
    let mut options = TestRunOptions::new();
    options.data_in = Some(frame);
    options.data_out = Some(&mut out);
    let result = kernel.program().unwrap().test_run(options).expect("the kernel runs the program");
    out.truncate(result.data_size_out as usize);
    match result.return_value {
        1 => Verdict::Drop,
        2 => Verdict::Pass(out),
        3 => Verdict::Turn(out),
        4 => Verdict::Out(out),
        other => panic!("the program answered {other}"),
    }
}

fn show(verdict: &Verdict) -> String {
    let (word, bytes) = match verdict {
        Verdict::Pass(b) => ("pass", &b[..]),
        Verdict::Drop => ("drop", &[][..]),
        Verdict::Turn(b) => ("turn", &b[..]),
        Verdict::Out(b) => ("out", &b[..]),
    };
    let mut text = format!("{word} ({} bytes)", bytes.len());
    for line in bytes.chunks(16).take(10) {
        text.push_str("\n   ");
        for byte in line {
            let _ = write!(text, " {byte:02x}");
        }
    }
    text
}

fn key(t: &Tuple) -> [u8; FlowKey::SIZE] {
    let (src, dst) = (Addr::from(t.src), Addr::from(t.dst));
    FlowKey { src, dst, sport: Port(t.sport), dport: Port(t.dport), proto: t.proto, zero: [0; 3] }.encode()
}

/// The loopback interface, which frames of a test run come by, has these link addresses.
fn put_links(kernel: &mut Kernel, addresses: &[Mac]) {
    let mut link = Link { ifindex: 1, count: addresses.len() as u32, ..Link::default() };
    for (place, mac) in link.addresses.iter_mut().zip(addresses) {
        *place = mac.iter().rev().fold(0, |all, octet| all << 8 | u64::from(*octet));
    }
    kernel.maps.links.as_mut().unwrap().set(1, link.encode(), 0).unwrap();
}

/// A flow, in both, becomes one for which nothing came for a long time.
fn forget(kernel: &mut Kernel, model: &mut Model, tuple: &Tuple) {
    let becomes = model.flows[tuple].becomes;
    model.forget(tuple);
    for key in [key(tuple), key(&model::turned(&becomes))] {
        if let Ok(bytes) = kernel.maps.flows.get(&key, 0) {
            let mut flow = Flow::decode(&bytes);
            flow.last = flow.last.wrapping_sub(1_000_000_000_000);
            kernel.maps.flows.insert(key, flow.encode(), 0).unwrap();
        }
    }
    l4::forget_recent(&mut kernel.maps).unwrap();
}

#[test]
fn the_program_sends_what_the_model_says_and_nothing_else() {
    if !namespace::enter("the_program_sends_what_the_model_says_and_nothing_else") {
        return;
    }
    let number = |name: &str, or: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(or);
    let (packets, seed) = (number("L4_PACKETS", PACKETS.into()), number("L4_SEED", SEED));
    let mut plan = Plan::read(generate::PLAN).unwrap();
    let network = namespace::Network::make(&plan);
    let mut kernel = Kernel::load(&plan, None).unwrap();
    l4::apply(&mut kernel.maps, &plan).unwrap();
    put_links(&mut kernel, &[network.own, model::SECOND]);
    let mut model = Model::new(plan.clone(), network.neighbours.clone(), network.gateway, network.own);
    let mut generator = Generator::new(Random::new(seed), network.own);
    let (mut seen, mut expired) = ([0u32; 4], [0u32; 2]);
    for n in 0..packets {
        if n == packets / 2 {
            // A CPU tells a thousand clients of hop limits in a step of its clock (TOLD_SHIFT): a quick machine is through within one.
            std::thread::sleep(std::time::Duration::from_millis(1100));
            plan.services[0].reals[0].state = RealState::Drain;
            plan.services[0].reals[1].state = RealState::Reset;
            plan.services[3].reals[0].full = true;
            plan.services[6].reals[1].full = true;
            plan.services[7].reals[0].full = true;
            l4::apply(&mut kernel.maps, &plan).unwrap();
            let flows = std::mem::take(&mut model.flows);
            let next = Model::new(plan.clone(), network.neighbours.clone(), network.gateway, network.own);
            model = next.with_memory_of(model, flows);
        }
        if n % FRAGMENTS_KEPT == 0 {
            // They expire by the clock, which the model does not have.
            model.forget_fragments();
            let keys: Vec<_> = kernel.maps.fragments.keys().map(|k| k.unwrap()).collect();
            keys.iter().for_each(|k| kernel.maps.fragments.remove(k).unwrap());
        }
        let idle = if generator.random.one_in(200) { generator.some_flow(&model) } else { None };
        if let Some(tuple) = idle.filter(|t| model.flows.contains_key(t)) {
            forget(&mut kernel, &mut model, &tuple);
        }
        let mut frame = generator.frame(&model);
        frame.truncate(FRAME_MAX);
        if frame.len() < 14 {
            continue;
        }
        let (wanted, got) = (model.receive(&frame), run(&mut kernel, &frame));
        let is_told = matches!(&wanted, Verdict::Turn(answer) if model::is_expired(answer));
        expired[usize::from(is_told && wanted == got)] += u32::from(is_told);
        assert!(
            wanted == got || is_told && got == Verdict::Drop,
            "packet {n} of seed {seed}\nin: {}\nmodel: {}\nprogram: {}",
            show(&Verdict::Pass(frame)),
            show(&wanted),
            show(&got)
        );
        seen[match got {
            Verdict::Pass(_) => 0,
            Verdict::Drop => 1,
            Verdict::Turn(_) => 2,
            Verdict::Out(_) => 3,
        }] += 1;
    }
    eprintln!("{packets} packets: {} passed, {} dropped, {} answered, {} sent on", seen[0], seen[1], seen[2], seen[3]);
    assert!(seen.iter().all(|n| u64::from(*n) > packets / 200), "every verdict is met: {seen:?}");
    assert!(u64::from(seen[3]) > packets / 4, "most are sent on: {seen:?}");
    assert!(expired[1] >= 1000, "hop limits that were used up are told of: {expired:?}");
    for name in ["path_mtu", "foreign", "icmp", "too_big"] {
        let place = l4::layout::EVENTS.iter().position(|(event, _)| *event == name).unwrap() as u32;
        let count: u64 = kernel.maps.events.get(&place, 0).unwrap().iter().sum();
        assert!(count > 0, "{name} is met");
    }
    let flows = kernel.maps.flows.keys().count();
    assert_eq!(flows, model.flows.len(), "flows in the table");
    for (tuple, entry) in &model.flows {
        let bytes = kernel.maps.flows.get(&key(tuple), 0).unwrap_or_else(|_| panic!("{tuple:?} is not in the table"));
        let flow = Flow::decode(&bytes);
        assert_eq!((flow.src.ip(), flow.dst.ip()), (entry.becomes.src, entry.becomes.dst), "{tuple:?}");
    }
}

/// A segment of a client's flow, or what the program sent on, as it would come.
fn segment(client: u16, flags: u8) -> Vec<u8> {
    let (src, dst) = ([198, 51, 100, 7].into(), [10, 9, 0, 1].into());
    let tuple = Tuple { src, dst, sport: client, dport: 81, proto: 6 };
    let mut tcp = [client.to_be_bytes(), [0, 81]].concat();
    tcp.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    model::frame([2, 0, 0, 0, 9, 1], [2, 0, 0, 0, 9, 0xfe], &tuple, 64, &tcp)
}

/// An end of a flow.
type End = ([u8; 4], u16);

/// A segment without data between any two.
fn between(from: End, to: End, flags: u8) -> Vec<u8> {
    let tuple = Tuple { src: from.0.into(), dst: to.0.into(), sport: from.1, dport: to.1, proto: 6 };
    let mut tcp = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    tcp.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    model::frame([2, 0, 0, 0, 9, 1], [2, 0, 0, 0, 9, 0xfe], &tuple, 64, &tcp)
}

/// The two ends that a frame has which was sent on.
fn ends(verdict: &Verdict) -> (End, End) {
    let Verdict::Out(frame) = verdict else { panic!("not sent on: {}", show(verdict)) };
    let end = |address: usize, port: usize| -> End {
        (frame[address..address + 4].try_into().unwrap(), u16::from_be_bytes([frame[port], frame[port + 1]]))
    };
    (end(26, 34), end(30, 36))
}

/// As if newer flows had taken the place of all in the table.
fn forget_table(kernel: &mut Kernel) {
    let keys: Vec<_> = kernel.maps.flows.keys().map(|k| k.unwrap()).collect();
    keys.iter().for_each(|k| kernel.maps.flows.remove(k).unwrap());
}

const CLIENT: [u8; 4] = [198, 51, 100, 7];
const SYN_FLAG: u8 = 2;
const ACK_FLAG: u8 = 0x10;
const FIN_ACK: u8 = 0x11;

/// NAT whose real servers' packets nobody adopts, full NAT, and four real servers in turns.
const INDEXED: &str = r#"{"interfaces": ["lan"], "flows": 1000, "services": [
    {"address": "10.9.0.1:80", "mode": "nat", "choice": "round_robin", "adopt_return": false, "reals": [
      {"address": "10.9.1.2:8080"}, {"address": "10.9.1.3:8080"}, {"address": "10.9.1.4:8080"}, {"address": "10.9.1.5:8080"}]},
    {"address": "10.9.0.2:80", "mode": "full_nat", "choice": "round_robin", "sources": ["10.9.2.1", "10.9.2.2"], "reals": [
      {"address": "10.9.1.2:80"}, {"address": "10.9.1.3:80"}]}]}"#;

fn indexed() -> (Kernel, namespace::Network) {
    let plan = Plan::read(INDEXED).unwrap();
    let network = namespace::Network::make(&plan);
    let mut kernel = Kernel::load(&plan, None).unwrap();
    l4::apply(&mut kernel.maps, &plan).unwrap();
    (kernel, network)
}

#[test]
fn both_directions_of_nat_and_full_nat_outlive_the_full_table() {
    if !namespace::enter("both_directions_of_nat_and_full_nat_outlive_the_full_table") {
        return;
    }
    let (mut kernel, _network) = indexed();
    for (host, port) in (1..=2).flat_map(|host| (3000..3010).map(move |port| (host, port))) {
        let (service, client) = (([10, 9, 0, host], 80), (CLIENT, port));
        let (own, real) = ends(&run(&mut kernel, &between(client, service, SYN_FLAG)));
        assert_eq!(own == client, host == 1, "full NAT has a source of its own");
        let there = |kernel: &mut Kernel, flags| {
            assert_eq!(ends(&run(kernel, &between(client, service, flags))), (own, real), "to the real server");
        };
        let back = |kernel: &mut Kernel, flags| {
            assert_eq!(ends(&run(kernel, &between(real, own, flags))), (service, client), "to the client");
        };
        back(&mut kernel, SYN_FLAG | ACK_FLAG);
        there(&mut kernel, ACK_FLAG);
        forget_table(&mut kernel);
        there(&mut kernel, ACK_FLAG);
        back(&mut kernel, ACK_FLAG);
        // What ends a flow goes by the table, which gets the flow again, by whichever direction comes first.
        if port % 2 == 0 {
            back(&mut kernel, FIN_ACK);
        } else {
            there(&mut kernel, FIN_ACK);
        }
        assert_eq!(kernel.maps.flows.keys().count(), 2);
        l4::forget_recent(&mut kernel.maps).unwrap();
        there(&mut kernel, ACK_FLAG);
        back(&mut kernel, ACK_FLAG);
        assert_eq!(kernel.maps.flows.keys().count(), 2);
    }
}

/// Lines of the index that have something, and what.
fn lines(kernel: &Kernel) -> Vec<(u32, [u64; 8])> {
    let recent = kernel.maps.recent.as_ref().unwrap();
    let words = |bytes: [u8; l4::kernel::RECENT_LINE]| -> [u64; 8] {
        std::array::from_fn(|n| u64::from_ne_bytes(bytes[n * 8..n * 8 + 8].try_into().unwrap()))
    };
    (0..).zip(recent.iter()).map(|(at, line)| (at, words(line.unwrap()))).filter(|(_, w)| *w != [0; 8]).collect()
}

fn put_line(kernel: &mut Kernel, at: u32, words: [u64; 8]) {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
    kernel.maps.recent.as_mut().unwrap().set(at, <[u8; 64]>::try_from(bytes).unwrap(), 0).unwrap();
}

#[test]
fn what_cpus_have_noted_at_the_same_moment_is_no_mixture() {
    if !namespace::enter("what_cpus_have_noted_at_the_same_moment_is_no_mixture") {
        return;
    }
    let (mut kernel, _network) = indexed();
    let (service, client) = (([10, 9, 0, 1], 80), (CLIENT, 4000));
    // The second in turn.
    run(&mut kernel, &between((CLIENT, 3999), service, SYN_FLAG));
    let (_, real) = ends(&run(&mut kernel, &between(client, service, SYN_FLAG)));
    l4::forget_recent(&mut kernel.maps).unwrap();
    lines(&kernel).iter().for_each(|(at, _)| put_line(&mut kernel, *at, [0; 8]));
    let there = between(client, service, ACK_FLAG);
    assert_eq!(ends(&run(&mut kernel, &there)).1, real);
    let [(at, words)] = lines(&kernel)[..] else { panic!("one flow has a packet") };
    let (hash, word) = (words[0] ^ words[1], words[1]);
    let number = word >> 16 & 0xffff;
    assert_eq!(number, 1);
    // Another CPU, in another place, has real server 2: 1 and 2 would be 3.
    let other = word & !(0xffff << 16) | 2 << 16;
    put_line(&mut kernel, at, [hash ^ word, word, hash ^ other, other, 0, 0, 0, 0]);
    assert!((real.0[3]..=real.0[3] + 1).contains(&ends(&run(&mut kernel, &there)).1.0[3]));
    // The next note is the only one.
    assert_eq!(ends(&run(&mut kernel, &between(client, service, SYN_FLAG))).1, real);
    let after = lines(&kernel).into_iter().find(|(place, _)| *place == at).unwrap().1;
    assert_eq!(after.chunks(2).filter(|w| w[1] != 0 && w[0] ^ w[1] == hash).count(), 1, "{after:x?}");
    // Of a time that has not been yet nothing is known: the table says what is.
    let ahead = (word & 0xffff_ffff) | (word >> 32).wrapping_add(1000) << 32;
    forget_table(&mut kernel);
    put_line(&mut kernel, at, [hash ^ ahead, ahead, 0, 0, 0, 0, 0, 0]);
    assert!(matches!(run(&mut kernel, &there), Verdict::Pass(_)));
    // A place and port of full NAT that are not the entry's own are not used.
    let full = ([10, 9, 0, 2], 80);
    lines(&kernel).iter().for_each(|(at, _)| put_line(&mut kernel, *at, [0; 8]));
    ends(&run(&mut kernel, &between(client, full, SYN_FLAG)));
    let found: Vec<_> = lines(&kernel);
    forget_table(&mut kernel);
    assert!(matches!(run(&mut kernel, &between(client, full, ACK_FLAG)), Verdict::Out(_)));
    // Another CPU, if the test has moved there, has noted it in a place of its own.
    lines(&kernel).iter().for_each(|(at, _)| put_line(&mut kernel, *at, [0; 8]));
    for (at, mut words) in found {
        (0..4).step_by(2).for_each(|way| words[way * 2 + 2] ^= 1);
        put_line(&mut kernel, at, words);
    }
    assert!(matches!(run(&mut kernel, &between(client, full, ACK_FLAG)), Verdict::Pass(_)));
}

#[test]
fn a_flow_that_the_full_table_let_go_stays_with_its_real_server() {
    if !namespace::enter("a_flow_that_the_full_table_let_go_stays_with_its_real_server") {
        return;
    }
    let plan = Plan::read(generate::PLAN).unwrap();
    let _network = namespace::Network::make(&plan);
    let mut kernel = Kernel::load(&plan, None).unwrap();
    l4::apply(&mut kernel.maps, &plan).unwrap();
    let place = |verdict: Verdict| match verdict {
        Verdict::Out(frame) => frame[30..34].to_vec(),
        other => panic!("not sent on: {}", show(&other)),
    };
    let mut alone = 0;
    // In turns: nothing but what is remembered tells where a flow is.
    for client in 2000..2020 {
        let was = place(run(&mut kernel, &segment(client, 2)));
        let keys: Vec<_> = kernel.maps.flows.keys().map(|k| k.unwrap()).collect();
        keys.iter().for_each(|k| kernel.maps.flows.remove(k).unwrap());
        assert_eq!(place(run(&mut kernel, &segment(client, 0x10))), was, "by the index alone");
        // Where the test had to wait for a CPU the hop is asked for again, by the way of the table.
        alone += u32::from(kernel.maps.flows.keys().count() == 0);
        // FIN goes by the table, which gets the flow again.
        assert_eq!(place(run(&mut kernel, &segment(client, 0x11))), was, "by the table");
        assert_eq!(kernel.maps.flows.keys().count(), 2);
        l4::forget_recent(&mut kernel.maps).unwrap();
        assert_eq!(place(run(&mut kernel, &segment(client, 0x10))), was, "without the index");
        kernel
            .maps
            .flows
            .keys()
            .map(|k| k.unwrap())
            .collect::<Vec<_>>()
            .iter()
            .for_each(|k| kernel.maps.flows.remove(k).unwrap());
        l4::forget_recent(&mut kernel.maps).unwrap();
        assert!(matches!(run(&mut kernel, &segment(client, 0x10)), Verdict::Pass(_)), "nobody knows the flow any more");
    }
    assert!(alone > 0, "the index alone sends packets on");
}
