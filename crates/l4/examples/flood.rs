//! SYNs of addresses that are nobody's, for `perf/l4_flood.py`: `flood DEV MAC ADDRESS PORT RATE SECONDS` sends them out of an interface,
//! and drops what comes back there. For a network namespace that is made for it: the bounds are here, not in the caller.
//! Prints a line of JSON: how many were sent, in how long.

use aya::Ebpf;
use aya::maps::Array;
use aya::programs::{TestRun, TestRunAttrs, TestRunOptions, Xdp, XdpMode};
use serde_json::json;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// The sending program, of `bpf/measure.bpf.c`.
static MEASURE: &[u8] = aya::include_bytes_aligned!("../bpf/measure.o");
/// No flood is faster or longer.
const RATE_MAX: u32 = 2_000_000;
const SECONDS_MAX: u64 = 10;
/// Sent in one go, so often.
const PAUSE: Duration = Duration::from_millis(10);
const BATCH: u32 = 64;
/// The network that SYNs seem to come from: 65,536 hosts.
const SOURCE: [u8; 4] = [10, 77, 0, 0];

fn ones_sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], *w.get(1).unwrap_or(&0)]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Host, port and number are zero; checksums are right for that.
fn frame(to: [u8; 6], address: Ipv4Addr, port: u16) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0];
    ip.extend(SOURCE);
    ip.extend(address.octets());
    let sum = !ones_sum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut tcp = vec![0, 0];
    tcp.extend(port.to_be_bytes());
    tcp.extend([0, 0, 0, 0, 0, 0, 0, 0, 5 << 4, 2, 0xfa, 0xf0, 0, 0, 0, 0]);
    let sum = !ones_sum(&[&ip[12..20], &[0, 6, 0, 20], &tcp].concat());
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    [&to[..], &[2, 0, 0, 0, 9, 0xdd], &[8, 0], &ip, &tcp].concat()
}

fn program<'e>(ebpf: &'e mut Ebpf, name: &str) -> &'e mut Xdp {
    let program: &mut Xdp = ebpf.program_mut(name).expect("it is there").try_into().expect("it is XDP");
    program.load().expect("the verifier takes it");
    program
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [device, mac, address, port, rate, seconds] = &words[..] else {
        eprintln!("flood DEV MAC ADDRESS PORT RATE SECONDS");
        std::process::exit(2);
    };
    let mac: Vec<u8> = mac.split(':').map(|b| u8::from_str_radix(b, 16).expect("a MAC")).collect();
    let (address, port) = (address.parse().expect("an address"), port.parse().expect("a port"));
    let rate = rate.parse::<u32>().expect("a rate").min(RATE_MAX);
    let length = Duration::from_secs(seconds.parse::<u64>().expect("seconds").min(SECONDS_MAX));
    let mut ebpf = Ebpf::load(MEASURE).expect("the programs load");
    let frame = frame(mac.try_into().expect("six octets"), address, port);
    let mut order = frame.clone();
    order.extend([0, 0]);
    let links = std::process::Command::new("ip").args(["-j", "link", "show", device]).output().expect("ip runs").stdout;
    let links: serde_json::Value = serde_json::from_slice(&links).expect("ip prints JSON");
    let index = links[0]["ifindex"].as_u64().expect("a number") as u32;
    order.extend(index.to_ne_bytes());
    order.extend([0; 8]);
    let mut orders: Array<_, [u8; 68]> = ebpf.map_mut("orders").expect("it is there").try_into().expect("an array");
    orders.set(0, <[u8; 68]>::try_from(order).expect("68 bytes"), 0).expect("it has one place");
    program(&mut ebpf, "ironweir_drop").attach(device, XdpMode::Driver).expect("veth has XDP");
    let (begun, mut sent, mut steps) = (Instant::now(), 0u64, 0u32);
    let syns = program(&mut ebpf, "ironweir_syns");
    while begun.elapsed() < length {
        let due = (begun.elapsed().as_secs_f64() * f64::from(rate)) as u64 + u64::from(rate / 100);
        // Never more than two steps at once: who is late stays late, and says so.
        let now = due.saturating_sub(sent).min(u64::from(rate / 50)) as u32;
        if now > 0 {
            let mut options = TestRunOptions::new();
            options.data_in = Some(&frame);
            options.repeat = now;
            options.attrs = TestRunAttrs::new().xdp_live_frames(BATCH);
            syns.test_run(options).expect("the kernel sends the frames");
            sent += u64::from(now);
        }
        steps += 1;
        std::thread::sleep((PAUSE * steps).saturating_sub(begun.elapsed()));
    }
    println!("{}", json!({"sent": sent, "seconds": begun.elapsed().as_secs_f64()}));
}
