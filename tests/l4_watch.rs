//! What is said of the packets that the kernel balances: how large they were, and how many, in all places that show it.

use crate::harness::l4_lab::{Gateway, Lab, SERVICE4};
use crate::harness::wait;
use crate::l4_stream::{FOUR, site_in, stream};
use serde_json::Value;

/// Datagrams, and bytes of each: 88 % of the frames are below 75 bytes, as the field has it.
const MIX: [(usize, usize); 6] = [(880, 20), (40, 60), (30, 150), (20, 400), (20, 900), (10, 1400)];
/// Ethernet, IPv4, UDP.
const HEADERS: usize = 42;
/// What the server puts before its echo: its name and a space.
const NAME: usize = 3;
const BOUNDS: [usize; 7] = [75, 128, 256, 512, 1024, 1280, 1515];

/// Frames of each bucket that the mix makes, both ways.
fn wanted() -> [usize; 8] {
    let mut sizes = [0; 8];
    for (count, bytes) in MIX {
        for frame in [bytes + HEADERS, bytes + HEADERS + NAME] {
            sizes[BOUNDS.iter().take_while(|bound| frame >= **bound).count()] += count;
        }
    }
    sizes
}

/// Percent, in the order of the buckets.
fn shares(counts: &[u64]) -> Vec<f64> {
    let all: u64 = counts.iter().sum();
    counts.iter().map(|n| *n as f64 * 100.0 / all as f64).collect()
}

fn sizes_of(kernel: &Value) -> Vec<u64> {
    let sizes = &kernel["services"][0]["sizes"];
    let names = BOUNDS.iter().map(|b| format!("<{b}")).chain(["more".to_owned()]);
    names.map(|name| sizes[name].as_u64().unwrap()).collect()
}

#[test]
fn sizes_of_packets_are_those_of_a_generated_mix_in_all_places() {
    let Some(mut lab) = Lab::new(Gateway::Balancer) else { return };
    let servers = lab.serve(4, 80);
    let mut site = site_in(lab, servers, &stream(FOUR, "").replace(":80 xdp", ":80 udp xdp"));
    let mut client = site.lab.client();
    assert!(wait(|| client.names(&format!("udp 1 {SERVICE4} 80"))[0].starts_with('r')));
    let mut before = Vec::new();
    assert!(wait(|| {
        let last = std::mem::replace(&mut before, sizes_of(&site.kernel()));
        last == before && before.iter().sum::<u64>() >= 2
    }));
    let order: Vec<String> = MIX.iter().map(|(count, bytes)| format!("{count}x{bytes}")).collect();
    let sent: usize = MIX.iter().map(|(count, _)| count).sum();
    client.tell(&format!("mix {SERVICE4} 80 {}", order.join(" ")));
    let rate = site.lab.table("lb1", &["--rate"]);
    assert_eq!(client.hear(), sent as u64);
    let mut after = Vec::new();
    assert!(wait(|| {
        let now = sizes_of(&site.kernel());
        after = now.iter().zip(&before).map(|(now, before)| now - before).collect();
        after.iter().sum::<u64>() == 2 * sent as u64
    }));
    let expected = shares(&wanted().map(|n| n as u64));
    let close = |place: &str, seen: &[f64]| {
        let far = seen.iter().zip(&expected).find(|(seen, expected)| (*seen - *expected).abs() > 1.0);
        assert!(far.is_none(), "{place}: {seen:?}, and not {expected:?}");
    };
    close("the API", &shares(&after));
    let stats = site.lab.table("lb1", &["--stats"]);
    let line = stats.lines().find(|line| line.contains("<75: ")).unwrap();
    let printed: Vec<f64> =
        line.split(": ").skip(1).map(|word| word.split('%').next().unwrap().parse().unwrap()).collect();
    close("ironweir l4 --stats", &printed);
    let metrics = site.call("GET", "/metrics", Value::Null)["body"].as_str().unwrap().to_owned();
    let buckets: Vec<u64> = metrics
        .lines()
        .filter(|line| line.starts_with("ironweir_l4_packet_bytes_bucket"))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
        .collect();
    let each: Vec<u64> = buckets.iter().scan(0, |last, n| Some(n - std::mem::replace(last, *n))).collect();
    close("/metrics", &shares(&each));
    tables_are_shaped_like_ipvsadms(&site.lab.table("lb1", &[]), &stats, &rate);
}

/// The heads are those of ipvsadm 1.31; below them a line for the service, and one for each real server.
fn tables_are_shaped_like_ipvsadms(list: &str, stats: &str, rate: &str) {
    let heads = [
        (
            list,
            "Prot LocalAddress:Port Scheduler Flags",
            "  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn",
            "UDP  10.9.9.1:80 mh",
        ),
        (
            stats,
            "Prot LocalAddress:Port               Conns   InPkts  OutPkts  InBytes OutBytes",
            "  -> RemoteAddress:Port",
            "UDP  10.9.9.1:80  ",
        ),
        (
            rate,
            "Prot LocalAddress:Port                 CPS    InPPS   OutPPS    InBPS   OutBPS",
            "  -> RemoteAddress:Port",
            "UDP  10.9.9.1:80  ",
        ),
    ];
    for (text, first, second, service) in heads {
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("IP Virtual Server"), "{text}");
        assert_eq!(&lines[1..3], [first, second], "{text}");
        assert!(lines[3].starts_with(service), "{text}");
        let reals: Vec<&str> = lines[4..8].iter().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
        assert_eq!(reals, ["10.9.1.1:80", "10.9.1.2:80", "10.9.1.3:80", "10.9.1.4:80"], "{text}");
    }
    let packets: u64 = rate.lines().nth(3).unwrap().split_whitespace().nth(3).unwrap().parse().unwrap();
    assert!(packets > 0, "{rate}");
}
