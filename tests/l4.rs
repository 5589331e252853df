//! The balancer of layer 4 in the kernel: real TCP and UDP through `ironweir l4 run`, in network namespaces of the test's own.

use crate::harness::l4_lab::{Gateway, Inside, Lab, SERVICE4, SERVICE6};
use crate::harness::wait;
use std::collections::{BTreeSet, HashMap};

/// A plan with one service on every real server.
fn plan(v6: bool, mode: &str, more: &str) -> String {
    let service = if v6 { format!("[{SERVICE6}]:80") } else { format!("{SERVICE4}:80") };
    plan_of(&service, "tcp", v6, mode, more, &["", "", "", ""])
}

fn plan_of(service: &str, protocol: &str, v6: bool, mode: &str, more: &str, states: &[&str]) -> String {
    let reals: Vec<String> = (1..=4)
        .zip(states)
        .map(|(n, state)| {
            let at = if v6 { format!("[fd00:9:1::{n}]:80") } else { format!("10.9.1.{n}:80") };
            format!(r#"{{"address": "{at}"{state}}}"#)
        })
        .collect();
    let reals = reals.join(", ");
    let tunnels = if ["ipip", "gue"].contains(&mode) { r#""10.9.1.11", "fd00:9:1::11""# } else { "" };
    format!(
        r#"{{"interfaces": ["front", "back"], "flows": 10000, "tunnel_sources": [{tunnels}], "services":
        [{{"address": "{service}", "protocol": "{protocol}", "mode": "{mode}"{more}, "reals": [{reals}]}}]}}"#
    )
}

/// The first connection succeeds when neighbours are known.
fn until_it_works(client: &mut Inside, host: &str) {
    assert!(wait(|| client.names(&format!("open 1 {host} 80"))[0].starts_with('r')), "nothing comes through");
    client.ask("close");
}

fn spread(names: &[String]) -> HashMap<String, usize> {
    let mut count = HashMap::new();
    for name in names {
        *count.entry(name.clone()).or_default() += 1;
    }
    count
}

/// One of the counters of the whole.
fn counted(stats: &str, name: &str) -> u64 {
    let line = stats.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn carries(v6: bool, mode: &str, more: &str, gateway: Gateway) {
    let Some(mut lab) = Lab::new(gateway) else { return };
    if mode == "ipip" || mode == "gue" {
        lab.open_tunnels();
    }
    let _balancer = lab.balance("lb1", &plan(v6, mode, more));
    let _servers = lab.serve(if v6 { 6 } else { 4 }, 80);
    let mut client = lab.client();
    let host = if v6 { SERVICE6 } else { SERVICE4 };
    until_it_works(&mut client, host);
    let opened = client.names(&format!("open 40 {host} 80"));
    let count = spread(&opened);
    assert_eq!(
        count.keys().map(String::as_str).collect::<BTreeSet<_>>(),
        BTreeSet::from(["r1", "r2", "r3", "r4"]),
        "{count:?}"
    );
    assert_eq!(client.names("talk"), opened, "every connection is with the server it began with");
    assert_eq!(client.ask("big 2000000"), 2_000_000);
    // Segments as large as the client's link takes do not fit a tunnel: it is told, and sends smaller ones.
    assert_eq!(client.ask("put 500000"), opened[0]);
    let list = lab.table("lb1", &[]);
    assert!(
        list.contains(&format!("TCP  {} mh", if v6 { format!("[{host}]:80") } else { format!("{host}:80") })),
        "{list}"
    );
    assert_eq!(list.matches("  -> ").count(), 5, "four real servers under their heading\n{list}");
    let stats = lab.table("lb1", &["--stats"]);
    assert!(stats.contains("<75"), "{stats}");
    let tunnel = mode == "ipip" || mode == "gue";
    assert_eq!(counted(&stats, "too_big") > 0, tunnel, "{stats}");
    let conns: u64 = stats.lines().nth(3).unwrap().split_whitespace().nth(2).unwrap().parse().unwrap();
    assert!(conns >= 41, "{stats}");
}

#[test]
fn nat_carries_connections() {
    carries(false, "nat", "", Gateway::Balancer);
}

#[test]
fn nat_carries_connections_of_ipv6() {
    carries(true, "nat", "", Gateway::Balancer);
}

#[test]
fn full_nat_needs_no_routes_back() {
    carries(false, "full_nat", r#", "sources": ["10.9.1.11"]"#, Gateway::Router);
}

#[test]
fn full_nat_of_ipv6_needs_no_routes_back() {
    carries(true, "full_nat", r#", "sources": ["fd00:9:1::11"]"#, Gateway::Router);
}

#[test]
fn direct_return_leaves_answers_to_the_servers() {
    carries(false, "direct", "", Gateway::Router);
}

#[test]
fn tunnels_of_ip_in_ip_are_taken_apart_by_the_servers() {
    carries(false, "ipip", "", Gateway::Router);
}

#[test]
fn tunnels_of_gue_carry_ipv6() {
    carries(true, "gue", "", Gateway::Router);
}

#[test]
fn datagrams_are_balanced() {
    let Some(mut lab) = Lab::new(Gateway::Balancer) else { return };
    let _balancer = lab.balance("lb1", &plan_of(&format!("{SERVICE4}:80"), "udp", false, "nat", "", &[""; 4]));
    let _servers = lab.serve(4, 80);
    let mut client = lab.client();
    assert!(wait(|| client.names(&format!("udp 1 {SERVICE4} 80"))[0].starts_with('r')), "no datagram comes back");
    let count = spread(&client.names(&format!("udp 40 {SERVICE4} 80")));
    assert_eq!(count.values().sum::<usize>(), 40);
    assert_eq!(count.len(), 4, "{count:?}");
}

#[test]
fn connections_stay_where_they_are_while_servers_drain_and_die() {
    let Some(mut lab) = Lab::new(Gateway::Balancer) else { return };
    let balancer = lab.balance("lb1", &plan(false, "nat", ""));
    let servers = lab.serve(4, 80);
    let mut client = lab.client();
    until_it_works(&mut client, SERVICE4);
    let before = client.names(&format!("open 60 {SERVICE4} 80"));
    let drained = plan_of(&format!("{SERVICE4}:80"), "tcp", false, "nat", "", &[r#", "state": "drain""#, "", "", ""]);
    lab.write_plan("lb1", &drained);
    balancer.expect("the plan has changed");
    let new = client.names(&format!("open 60 {SERVICE4} 80"));
    assert!(new.iter().all(|name| name.starts_with('r') && name != "r1"), "{new:?}");
    let all: Vec<String> = before.into_iter().chain(new).collect();
    assert_eq!(client.names("talk"), all);
    // A balancer that ends leaves the program and its flows behind; the next one finds them.
    lab.kill(&balancer);
    assert_eq!(client.names("talk"), all);
    let _next = lab.balance("lb1", &drained);
    assert_eq!(client.names("talk"), all);
    lab.kill(&servers[1]);
    let after = client.names("talk");
    for (was, is) in all.iter().zip(&after) {
        assert!(if was == "r2" { !is.starts_with('r') } else { was == is }, "{was} became {is}");
    }
}

#[test]
fn a_second_balancer_sends_to_the_same_servers() {
    let Some(mut lab) = Lab::new(Gateway::Balancer) else { return };
    let _first = lab.balance("lb1", &plan(false, "nat", ""));
    let _second = lab.balance("lb2", &plan(false, "nat", ""));
    let _servers = lab.serve(4, 80);
    let mut client = lab.client();
    until_it_works(&mut client, SERVICE4);
    let opened = client.names(&format!("open 100 {SERVICE4} 80"));
    assert_eq!(spread(&opened).len(), 4);
    // The first one dies as a machine does: its links are gone, and the network sends packets another way.
    lab.on("lb1", "ip link set front down");
    lab.on("lb1", "ip link set back down");
    lab.route_to(12);
    lab.back_to(12);
    assert_eq!(client.names("talk"), opened);
    assert_eq!(client.names("talk"), opened);
    let stats = lab.table("lb2", &["--stats"]);
    assert!(counted(&stats, "adopted") >= 100, "{stats}");
}

#[test]
fn a_connection_that_was_idle_for_too_long_is_reset_at_both_ends() {
    let Some(mut lab) = Lab::new(Gateway::Balancer) else { return };
    let _balancer = lab.balance("lb1", &plan(false, "nat", r#", "idle_s": 2, "reset": true"#));
    let servers = lab.serve(4, 80);
    let mut client = lab.client();
    until_it_works(&mut client, SERVICE4);
    let name = client.names(&format!("open 1 {SERVICE4} 80"))[0].clone();
    let idle_for_too_long = wait(|| {
        let table = lab.table("lb1", &["--connections"]);
        let idle = |line: &str| {
            line.contains("ESTABLISHED") && line.split_whitespace().nth(1).is_some_and(|idle| idle >= "00:03")
        };
        table.lines().any(idle)
    });
    assert!(idle_for_too_long);
    assert_eq!(client.names("talk"), ["ConnectionResetError"], "{}", lab.table("lb1", &["--stats"]));
    let server = name.trim_start_matches('r').parse::<usize>().unwrap() - 1;
    servers[server].expect("ConnectionResetError");
}

#[test]
fn what_a_plan_asks_of_a_machine_that_lacks_it_is_said() {
    let Some(mut lab) = Lab::new(Gateway::Balancer) else { return };
    let bad = plan(false, "full_nat", r#", "sources": ["10.9.7.7"]"#).replace("\"back\"", "\"bakc\"");
    lab.write_plan("lb1", &bad);
    let said = lab.failure("lb1", "check");
    assert!(said.contains("bakc: there is no such interface"), "{said}");
    assert!(said.contains("10.9.7.7 is no address of this machine"), "{said}");
    lab.on("lb1", "sysctl -q -w net.ipv4.ip_forward=0");
    let said = lab.failure("lb1", "check");
    assert!(said.contains("echo 1 > /proc/sys/net/ipv4/ip_forward"), "{said}");
}
