//! What the program costs, for `perf/l4.py`, which makes the network namespace that this runs in: ns a packet by
//! `BPF_PROG_TEST_RUN` for each mode, the growth from 1,000 flows to 1,000,000, and packets for a second of CPU on the whole
//! way out. Prints a line of JSON for each.
//!
//! *One by one*: a run for each packet, with a system call before it that leaves caches cold; what a run costs that does nothing
//! (`ironweir_pass`) is taken off. *In a row*: the kernel runs `ironweir_round` many times, which makes the frame anew and calls the
//! program; the same with a program that only answers XDP_TX is taken off. Medians: what else the machine does is in none of them.
//! Beside it the floor: one look into an LRU table of the kernel's that is as large, and one word of an array as large as the index.

use aya::maps::{Array, MapData, ProgramArray};
use aya::programs::{ProgramFd, TestRun, TestRunAttrs, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use l4::Plan;
use l4::kernel::Kernel;
use serde_json::json;
use std::process::Command;

const RUNS: usize = 100_000;
const MODES: [&str; 5] = ["nat", "full_nat", "direct", "ipip", "gue"];
/// Packets sent in one go on the way out, and at a time.
const LIVE: u32 = 1_000_000;
const LIVE_BATCH: u32 = 64;
const REALS: u32 = 4;

fn plan(mode: &str, v6: bool, flows: u32) -> Plan {
    let reals: Vec<_> = (2..2 + REALS)
        .map(|n| json!({"address": if v6 { format!("[fd00:9:1::{n}]:80") } else { format!("10.9.1.{n}:80") }}))
        .collect();
    // 64,512 ports for each source address and real server.
    let sources: Vec<String> =
        (1..=64).map(|n| if v6 { format!("fd00:9:2::{n}") } else { format!("10.9.2.{n}") }).collect();
    let address = if v6 { "[fd00:9::1]:80" } else { "10.9.0.1:80" };
    let plan = json!({"interfaces": ["lan"], "flows": flows, "tunnel_sources": ["10.9.1.1", "fd00:9:1::1"], "services": [
        {"address": address, "mode": mode, "idle_s": 0, "reals": reals, "sources": if mode == "full_nat" { sources } else { vec![] }}]});
    Plan::read(&plan.to_string()).expect("the plan is well formed")
}

/// A TCP segment of flow `n`, in a frame of 64 bytes or more.
fn frame(n: u32, flags: u8, v6: bool, size: usize) -> Vec<u8> {
    let c = 100;
    let (host, port) = ((n / 50_000) as u8, (10_000 + n % 50_000) as u16);
    let mut frame = vec![2, 0, 0, 0, 9, 1, 2, 0, 0, 0, 9, 0xfe];
    let head = if v6 { 40 } else { 20 };
    let carried = size.saturating_sub(14 + head).max(20);
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, (carried >> 8) as u8, carried as u8, 6, 64]);
        frame.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, c, host]);
        frame.extend([0xfd, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    } else {
        let length = carried + 20;
        frame.extend([8, 0, 0x45, 0, (length >> 8) as u8, length as u8, 0, 0, 0x40, 0, 64, 6, 0, 0]);
        frame.extend([198, 51, c, host, 10, 9, 0, 1]);
    }
    frame.extend(port.to_be_bytes());
    frame.extend([0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    frame.resize(14 + head + carried, 0);
    frame
}

fn run(program: &Xdp, frame: &[u8], out: &mut [u8]) -> (u32, u64) {
    let mut options = TestRunOptions::new();
    options.data_in = Some(frame);
    options.data_out = Some(out);
    let result = program.test_run(options).expect("the kernel runs the program");
    (result.return_value, result.duration.as_nanos() as u64)
}

fn median(mut all: Vec<u64>) -> u64 {
    all.sort_unstable();
    all[all.len() / 2]
}

/// What a run costs that does nothing.
fn nothing() -> u64 {
    let mut others = l4::kernel::others().expect("the other programs load");
    let program: &mut Xdp = others.program_mut("ironweir_pass").expect("it is there").try_into().expect("it is XDP");
    program.load().expect("the verifier takes it");
    let (frame, mut out) = (frame(0, 0x10, false, 64), vec![0; 4096]);
    median((0..RUNS).map(|_| run(program, &frame, &mut out).1).collect())
}

/// Flow numbers in an order that no cache foresees.
fn scattered(flows: u32) -> impl Iterator<Item = u32> {
    let mut at = 1u64;
    std::iter::from_fn(move || {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some((at >> 33) as u32 % flows)
    })
}

fn measure(mode: &str, v6: bool, flows: u32, size: usize, idle: u64) {
    // An LRU table gives up entries before it is full, and with them a flow's way back.
    let plan = plan(mode, v6, flows.max(4000));
    let mut kernel = Kernel::load(&plan, None).expect("the program loads");
    l4::apply(&mut kernel.maps, &plan).expect("the plan is good");
    let memory = l4::kernel::memory(&kernel.maps).unwrap_or(0);
    let index = kernel.maps.recent_lines as usize * l4::kernel::RECENT_LINE;
    let program = kernel.program().expect("it is loaded");
    let mut out = vec![0; 4096];
    let news: Vec<u64> = (0..flows)
        .map(|n| {
            let (verdict, ns) = run(program, &frame(n, 2, v6, size), &mut out);
            assert_eq!(verdict, 4, "a new flow is sent on");
            ns
        })
        .collect();
    let known: Vec<u64> = scattered(flows)
        .take(RUNS)
        .map(|n| {
            let (verdict, ns) = run(program, &frame(n, 0x10, v6, size), &mut out);
            assert_eq!(verdict, 4, "flow {n} is sent on");
            ns
        })
        .collect();
    let back = backwards(mode, v6, flows, size, program, &mut out).map(|ns| ns.saturating_sub(idle));
    let line = json!({"mode": mode, "ipv6": v6, "flows": flows, "bytes": size, "ns": median(known).saturating_sub(idle),
        "ns_back": back, "ns_new": median(news).saturating_sub(idle), "table_mb": memory / 1_000_000, "index_mb": index / 1_000_000});
    println!("{line}");
}

/// ns of a packet that a real server sends back, where it comes by us.
fn backwards(mode: &str, v6: bool, flows: u32, size: usize, program: &Xdp, out: &mut [u8]) -> Option<u64> {
    if !mode.ends_with("nat") {
        return None;
    }
    let (addresses, length, ports) = if v6 { (22, 16, 54) } else { (26, 4, 34) };
    let answers: Vec<Vec<u8>> = scattered(flows)
        .take(flows.min(RUNS as u32) as usize)
        .map(|n| {
            assert_eq!(run(program, &frame(n, 0x10, v6, size), out).0, 4);
            let mut answer = out[..size.max(ports + 20)].to_vec();
            let (src, dst) = answer[addresses..addresses + 2 * length].split_at_mut(length);
            src.swap_with_slice(dst);
            answer[ports..ports + 4].rotate_left(2);
            answer[..12].rotate_left(6);
            answer
        })
        .collect();
    let mut times = Vec::new();
    // The first packet of each is the one that the table hears of.
    for round in 0..2 {
        for answer in &answers {
            let (verdict, ns) = run(program, answer, out);
            assert_eq!(verdict, 4, "an answer is sent on");
            times.extend((round == 1).then_some(ns));
        }
    }
    Some(median(times))
}

/// Packets in a row, and how many such rows.
const ROW: u32 = 200_000;
const ROWS: usize = 9;
/// Bytes of `struct round` in `bpf/measure.bpf.c`, and of the headers in it.
const ROUND: usize = 100;
const ROUND_HEADERS: usize = 76;
/// Places in `targets`.
const SUBJECT: u32 = 0;
const NOTHING: u32 = 1;

/// Frames made in the kernel, for a program that is called with each.
struct Rounds {
    ebpf: Ebpf,
    rounds: Array<MapData, [u8; ROUND]>,
    targets: ProgramArray<MapData>,
    flows: u32,
    size: usize,
    v6: bool,
}

impl Rounds {
    fn new(flows: u32, size: usize, v6: bool) -> Rounds {
        let mut loader = EbpfLoader::new();
        loader.map_max_entries("floor_flows", flows * 2).map_max_entries("floor_lines", flows.div_ceil(2));
        let mut ebpf = loader.load(MEASURE).expect("the programs load");
        let rounds = ebpf.take_map("rounds").expect("it is there").try_into().expect("an array");
        let targets = ebpf.take_map("targets").expect("it is there").try_into().expect("an array of programs");
        let mut all = Rounds { ebpf, rounds, targets, flows, size, v6 };
        all.load("ironweir_round");
        let nothing = all.load("ironweir_tx");
        all.targets.set(NOTHING, &nothing, 0).expect("it has the place");
        all
    }

    fn load(&mut self, name: &str) -> ProgramFd {
        let program: &mut Xdp = self.ebpf.program_mut(name).expect("it is there").try_into().expect("it is XDP");
        program.load().expect("the verifier takes it");
        program.fd().expect("it is loaded").try_clone().expect("a descriptor is to be had")
    }

    fn set(&mut self, program: &ProgramFd) {
        self.targets.set(SUBJECT, program, 0).expect("it has the place");
    }

    /// Mean ns of so many packets.
    fn run(&mut self, target: u32, packets: u32, flags: u8, in_order: bool) -> u64 {
        let frame = frame(0, flags, self.v6, self.size);
        let mut round = frame[..if self.v6 { 74 } else { 54 }].to_vec();
        round.resize(ROUND_HEADERS, 0);
        for word in [frame.len() as u32, self.flows, 0, target, u32::from(self.v6), u32::from(in_order)] {
            round.extend(word.to_ne_bytes());
        }
        self.rounds.set(0, <[u8; ROUND]>::try_from(round).expect("100 bytes"), 0).expect("it has one place");
        let mut options = TestRunOptions::new();
        options.data_in = Some(&frame);
        options.repeat = packets;
        let program: &mut Xdp =
            self.ebpf.program_mut("ironweir_round").expect("it is there").try_into().expect("it is XDP");
        let result = program.test_run(options).expect("the kernel runs the program");
        assert!(matches!(result.return_value, 3 | 4), "the packets are sent on, not {}", result.return_value);
        result.duration.as_nanos() as u64
    }

    /// ns of a packet, less what making it costs: the median of rows, and the least, in which the machine did least besides.
    fn cost(&mut self) -> (u64, u64) {
        let mut rows = |target| -> Vec<u64> { (0..ROWS).map(|_| self.run(target, ROW, 0x10, false)).collect() };
        let (nothing, subject) = (rows(NOTHING), rows(SUBJECT));
        let least = subject.iter().min().unwrap_or(&0).saturating_sub(*nothing.iter().min().unwrap_or(&0));
        (median(subject).saturating_sub(median(nothing)), least)
    }
}

/// Packets in a row, each of another flow: with the index of recent flows, and by the table alone.
fn row(mode: &str, v6: bool, flows: u32, size: usize) {
    let plan = plan(mode, v6, flows.max(1000));
    let mut kernel = Kernel::load(&plan, None).expect("the program loads");
    l4::apply(&mut kernel.maps, &plan).expect("the plan is good");
    let program = kernel.program().expect("it is loaded").fd().expect("it is loaded").try_clone();
    let mut rounds = Rounds::new(flows, size, v6);
    rounds.set(&program.expect("a descriptor is to be had"));
    let new = rounds.run(SUBJECT, flows, 2, true);
    rounds.run(SUBJECT, flows, 0x10, true);
    let (known, least) = rounds.cost();
    let nothing = median((0..ROWS).map(|_| rounds.run(NOTHING, ROW, 0x10, false)).collect());
    let mut by_table = Vec::new();
    for _ in 0..ROWS {
        l4::forget_recent(&mut kernel.maps).expect("the kernel gives random bytes");
        by_table.push(rounds.run(SUBJECT, ROW.min(flows), 0x10, false));
    }
    let line = json!({"row": mode, "ipv6": v6, "flows": flows, "bytes": size, "ns": known, "ns_least": least,
        "ns_by_table": median(by_table).saturating_sub(nothing), "ns_new": new.saturating_sub(nothing)});
    println!("{line}");
}

/// What a look costs that no table can do without.
fn floor(flows: u32) {
    let mut rounds = Rounds::new(flows, 64, false);
    let fill = rounds.load("ironweir_floor_fill");
    rounds.set(&fill);
    rounds.run(SUBJECT, flows, 0x10, true);
    let table = rounds.load("ironweir_floor_table");
    rounds.set(&table);
    let table = rounds.cost().0;
    let line = rounds.load("ironweir_floor_line");
    rounds.set(&line);
    println!("{}", json!({"floor": flows, "ns_table": table, "ns_line": rounds.cost().0}));
}

/// Flows that are looked at when real servers come and go, and how many real servers there are.
const MOVING: u32 = 50_000;
const MANY: u32 = 100;

fn many(reals: u32) -> Plan {
    let reals: Vec<_> = (2..2 + reals).map(|n| json!({"address": format!("10.9.1.{n}:80")})).collect();
    let plan = json!({"interfaces": ["lan"], "flows": MOVING, "services": [
        {"address": "10.9.0.1:80", "mode": "nat", "idle_s": 0, "reals": reals}]});
    Plan::read(&plan.to_string()).expect("the plan is well formed")
}

fn loaded(plan: &Plan) -> Kernel {
    let mut kernel = Kernel::load(plan, None).expect("the program loads");
    l4::apply(&mut kernel.maps, plan).expect("the plan is good");
    kernel
}

/// The real server's address of each flow.
fn places(kernel: &mut Kernel, flags: u8) -> Vec<[u8; 4]> {
    let program = kernel.program().expect("it is loaded");
    let mut out = vec![0; 4096];
    let one = |n| {
        assert_eq!(run(program, &frame(n, flags, false, 64), &mut out).0, 4, "flow {n} is sent on");
        [out[30], out[31], out[32], out[33]]
    };
    (0..MOVING).map(one).collect()
}

/// What one real server more, or less, moves.
fn moves() {
    let all = many(MANY);
    let mut kernel = loaded(&all);
    let before = places(&mut kernel, 2);
    for reals in [MANY - 1, MANY + 1] {
        let changed = many(reals);
        let after = places(&mut loaded(&changed), 2);
        l4::apply(&mut kernel.maps, &changed).expect("the plan is good");
        let established = places(&mut kernel, 0x10);
        l4::apply(&mut kernel.maps, &all).expect("the plan is good");
        let moved = |now: &[[u8; 4]]| before.iter().zip(now).filter(|(was, is)| was != is).count();
        let percent = |n: usize| n as f64 * 100.0 / f64::from(MOVING);
        println!(
            "{}",
            json!({"reals": MANY, "become": reals, "new_flows_moved_percent": percent(moved(&after)),
            "own_share_percent": 100.0 / f64::from(reals.max(MANY)), "established_moved": moved(&established)})
        );
    }
}

/// The sending program, of `bpf/measure.bpf.c`.
static MEASURE: &[u8] = aya::include_bytes_aligned!("../bpf/measure.o");

/// The CPU this process has used, in seconds: the kernel sends from it, and receives in its softirq.
fn cpu() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

/// Seconds of CPU that frames of as many flows take, from a veth pair whose other end has some program.
fn send(flows: u32, size: usize) -> f64 {
    let mut ebpf = Ebpf::load(MEASURE).expect("the programs load");
    let mut order = frame(0, 0x10, false, 64)[..54].to_vec();
    order.extend([0, 0]);
    let text = std::fs::read_to_string("/sys/class/net/gen/ifindex").expect("the veth is there");
    order.extend(text.trim().parse::<u32>().expect("a number").to_ne_bytes());
    order.extend(flows.to_ne_bytes());
    order.extend([0; 4]);
    let mut orders: Array<_, [u8; 68]> = ebpf.map_mut("orders").expect("it is there").try_into().expect("an array");
    orders.set(0, <[u8; 68]>::try_from(order).expect("68 bytes"), 0).expect("it has one place");
    let program: &mut Xdp = ebpf.program_mut("ironweir_send").expect("it is there").try_into().expect("it is XDP");
    program.load().expect("the verifier takes it");
    let frame = frame(0, 0x10, false, size);
    let mut options = TestRunOptions::new();
    options.data_in = Some(&frame);
    options.repeat = LIVE;
    options.attrs = TestRunAttrs::new().xdp_live_frames(LIVE_BATCH);
    let before = cpu();
    program.test_run(options).expect("the kernel sends the frames");
    cpu() - before
}

/// Frames that came to the far end behind the balancer.
fn received() -> u64 {
    let text = Command::new("ip").args(["-s", "-j", "link", "show", "far"]).output().expect("ip runs").stdout;
    let links: serde_json::Value = serde_json::from_slice(&text).expect("ip prints JSON");
    links[0]["stats64"]["rx"]["packets"].as_u64().expect("a count")
}

fn dropping(interface: &str) -> Ebpf {
    let mut ebpf = Ebpf::load(MEASURE).expect("the programs load");
    let program: &mut Xdp = ebpf.program_mut("ironweir_drop").expect("it is there").try_into().expect("it is XDP");
    program.load().expect("the verifier takes it");
    program.attach(interface, XdpMode::Driver).expect("veth has XDP");
    ebpf
}

/// The whole way: frames come by a veth pair, are looked up, changed and sent on by another one. What it takes to send them and
/// to drop them at the first one's other end is taken off.
fn live(mode: &str, flows: u32, size: usize, sending: f64) {
    let plan = plan(mode, false, flows.max(1000));
    let mut kernel = Kernel::load(&plan, None).expect("the program loads");
    l4::apply(&mut kernel.maps, &plan).expect("the plan is good");
    let program = kernel.program().expect("it is loaded");
    let mut out = vec![0; 4096];
    (0..flows).for_each(|n| assert_eq!(run(program, &frame(n, 2, false, size), &mut out).0, 4));
    program.attach("wan", XdpMode::Driver).expect("veth has XDP");
    let counted = || -> (u64, u64) {
        let info = kernel_stats();
        (info.0, info.1)
    };
    let (before, stats) = (received(), counted());
    let seconds = send(flows, size) - sending;
    let (packets, (ns, runs)) = (received() - before, counted());
    println!(
        "{}",
        json!({"live": mode, "flows": flows, "bytes": size, "sent": LIVE, "arrived": packets,
        "packets_per_cpu_s": (packets as f64 / seconds.max(0.001)).round(),
        "program_ns": (ns - stats.0) as f64 / (runs - stats.1).max(1) as f64})
    );
}

/// ns and runs of all programs of the balancer's name, as the kernel counts while `kernel.bpf_stats_enabled` is set.
fn kernel_stats() -> (u64, u64) {
    let text = Command::new("bpftool")
        .args(["-j", "prog", "show", "name", "ironweir_l4"])
        .output()
        .expect("bpftool runs")
        .stdout;
    let programs: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    let all = programs.as_array().cloned().unwrap_or_else(|| vec![programs]);
    let sum = |key: &str| all.iter().filter_map(|p| p[key].as_u64()).sum();
    (sum("run_time_ns"), sum("run_cnt"))
}

fn rows() {
    for flows in [1000, 100_000, 1_000_000] {
        floor(flows);
    }
    for mode in MODES {
        row(mode, false, 1000, 64);
    }
    row("nat", true, 1000, 64);
    row("nat", false, 1000, 1400);
    for flows in [100_000, 1_000_000] {
        for mode in ["nat", "direct"] {
            row(mode, false, flows, 64);
        }
    }
}

fn main() {
    // What is counted for `live` would be in each row, too.
    if std::env::args().any(|word| word == "rows") {
        rows();
        return;
    }
    if std::env::args().any(|word| word == "few") {
        MODES.iter().for_each(|mode| row(mode, false, 1000, 64));
        return;
    }
    if std::env::args().any(|word| word == "out") {
        way_out(&["nat", "full_nat"]);
        return;
    }
    let idle = nothing();
    println!("{}", json!({"nothing_ns": idle}));
    for mode in MODES {
        measure(mode, false, 1000, 64, idle);
    }
    measure("nat", true, 1000, 64, idle);
    measure("nat", false, 1000, 1400, idle);
    measure("nat", false, 100_000, 64, idle);
    measure("nat", false, 1_000_000, 64, idle);
    moves();
    way_out(&MODES);
}

/// Packets for a second of CPU in these modes, and with more flows.
fn way_out(modes: &[&str]) {
    let _far = dropping("far");
    for size in [64, 1400] {
        let sending = {
            let _wan = dropping("wan");
            send(1000, size)
        };
        println!("{}", json!({"sending": size, "packets_per_cpu_s": (f64::from(LIVE) / sending).round()}));
        for mode in modes {
            live(mode, 1000, size, sending);
        }
        live("nat", 100_000, size, sending);
        live("nat", 1_000_000, size, sending);
    }
}
