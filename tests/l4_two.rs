//! Two balancers, by the words of `stream {}`: the same packets reach the same server through either, and nothing is exchanged
//! between them. The address goes from one to the other by routes, or by keepalived.

use crate::harness::l4_lab::{Gateway, Inside, Lab, SERVICE4};
use crate::harness::wait;
use crate::l4_stream::{FOUR, HTTP, spread, stream};
use serde_json::Value;
use std::time::Instant;

const CONNECTIONS: usize = 10_000;

fn counted(api: &mut Inside, event: &str) -> u64 {
    let kernel: Value = api.ask("http GET 8080 /api/9/ironweir/l4")["body"].clone();
    kernel["events"][event].as_u64().unwrap_or(0)
}

/// Both balancers, and what asks the second one.
fn both(lab: &mut Lab, text: &str) -> ([Inside; 2], Inside) {
    let two = ["lb1", "lb2"].map(|host| {
        lab.configure(host, text, HTTP);
        let balancer = lab.ironweir(host);
        let mut api = lab.asker(host);
        let path =
            |api: &mut Inside| api.ask("http GET 8080 /api/9/ironweir/l4")["body"]["services"][0]["path"].clone();
        assert!(wait(|| path(&mut api) == "kernel"), "{}", lab.log(host));
        balancer
    });
    (two, lab.asker("lb2"))
}

/// A machine that dies: its links are gone.
fn dies(lab: &Lab, host: &str) {
    lab.on(host, "ip link set front down");
    lab.on(host, "ip link set back down");
}

#[test]
fn ten_thousand_connections_outlive_the_balancer_they_go_through() {
    let Some(mut lab) = Lab::new(Gateway::Balancer) else { return };
    let _servers = lab.serve(4, 80);
    let (_balancers, mut second) = both(&mut lab, &format!("xdp_flows 40000; {}", stream(FOUR, "")));
    let mut client = lab.client();
    assert!(wait(|| client.names(&format!("open 1 {SERVICE4} 80"))[0].starts_with('r')));
    client.ask("close");
    let opened = client.names(&format!("open {CONNECTIONS} {SERVICE4} 80"));
    let count = spread(&opened);
    assert!(count.len() == 4 && count.keys().all(|name| name.starts_with('r')), "{count:?}");
    // While all of them talk, one after the other, the first balancer dies, and the network sends packets another way.
    client.tell("talk");
    dies(&lab, "lb1");
    lab.route_to(12);
    lab.back_to(12);
    let clock = Instant::now();
    let names = client.hear();
    let lost = opened.iter().zip(names.as_array().unwrap()).filter(|(was, is)| **is != Value::String((*was).clone()));
    let lost: Vec<_> = lost.collect();
    assert!(lost.is_empty(), "{} of {CONNECTIONS}: {:?}", lost.len(), &lost[..lost.len().min(5)]);
    assert_eq!(client.names("talk"), opened);
    let mut adopted = 0;
    assert!(wait(|| {
        adopted = counted(&mut second, "adopted");
        adopted >= CONNECTIONS as u64
    }));
    println!("{CONNECTIONS} connections went on, twice, within {:?}; {adopted} flows adopted", clock.elapsed());
}

/// Brought by VRRP: where clients go, and where real servers answer to.
const ADDRESS: &str = "10.9.0.100";
const WAY_BACK: &str = "10.9.1.100";

/// As docs/l4.md has it.
fn keepalived(priority: u32) -> String {
    let instance = |name: &str, id: u32, address: &str| {
        format!(
            "vrrp_instance {name} {{ state BACKUP\n interface {name}\n virtual_router_id {id}\n priority {priority}\n advert_int 0.2\n \
             virtual_ipaddress {{\n {address}/24 dev {name}\n }}\n}}\n"
        )
    };
    format!(
        "global_defs {{\n vrrp_version 3\n}}\nvrrp_sync_group balancer {{\n group {{\n front\n back\n }}\n}}\n{}{}",
        instance("front", 51, ADDRESS),
        instance("back", 52, WAY_BACK)
    )
}

fn keep_alive(lab: &mut Lab, host: &str, priority: u32) -> Inside {
    let file = |name: &str| lab.folder.path().join(format!("{host}.{name}")).display().to_string();
    let (conf, pid, vrrp) = (file("keepalived"), file("pid"), file("vrrp"));
    std::fs::write(&conf, keepalived(priority)).unwrap();
    let words = ["--dont-fork", "--log-console", "--vrrp", "-f", &conf, "-p", &pid, "-r", &vrrp];
    lab.run(host, "keepalived", &words)
}

fn has(lab: &Lab, host: &str) -> bool {
    [("front", ADDRESS), ("back", WAY_BACK)].iter().all(|(device, address)| {
        lab.on(host, &format!("ip -o addr show dev {device}")).contains(&format!("{address}/24"))
    })
}

#[test]
fn keepalived_brings_the_address_to_the_other_balancer() {
    if std::process::Command::new("keepalived").arg("--version").output().is_err() {
        return println!("LEFT OUT: needs keepalived");
    }
    let Some(mut lab) = Lab::new(Gateway::Balancer) else { return };
    let _servers = lab.serve(4, 80);
    let text = stream(FOUR, "").replace(SERVICE4, ADDRESS);
    lab.configure("lb2", &text, HTTP);
    let (good, said) = lab.test("lb2");
    assert!(!good && said.contains("if keepalived brings it, sysctl -w net.ipv4.ip_nonlocal_bind=1"), "{said}");
    for host in ["lb1", "lb2"] {
        lab.on(host, "sysctl -q -w net.ipv4.ip_nonlocal_bind=1");
    }
    let (_balancers, mut second) = both(&mut lab, &text);
    for n in 1..=4 {
        lab.on(&format!("r{n}"), &format!("ip route replace default via {WAY_BACK}"));
    }
    let first = keep_alive(&mut lab, "lb1", 150);
    assert!(wait(|| has(&lab, "lb1")));
    let _other = keep_alive(&mut lab, "lb2", 100);
    let mut client = lab.client();
    assert!(wait(|| client.names(&format!("open 1 {ADDRESS} 80"))[0].starts_with('r')), "nothing comes through");
    client.ask("close");
    let opened = client.names(&format!("open 500 {ADDRESS} 80"));
    assert_eq!(spread(&opened).len(), 4);
    assert!(!has(&lab, "lb2"));
    let clock = Instant::now();
    dies(&lab, "lb1");
    assert!(wait(|| has(&lab, "lb2")), "the address did not move");
    let moved = clock.elapsed();
    assert_eq!(client.names("talk"), opened);
    println!("the address moved within {moved:?}, 500 connections went on within {:?}", clock.elapsed());
    assert!(wait(|| counted(&mut second, "adopted") >= 500));
    assert!(client.names(&format!("open 20 {ADDRESS} 80")).iter().all(|name| name.starts_with('r')));
    lab.signal(&first, "TERM");
}
