//! Every way to bring packets to real servers (`listen ... xdp=MODE`), by the words of `stream {}`: TCP and UDP, IPv4 and IPv6,
//! fragments, ICMP errors and a server that is drained; and interfaces without XDP.

use crate::harness::l4_lab::{Gateway, Inside, Lab, SERVICE4, SERVICE6};
use crate::harness::wait;
use crate::l4_stream::{FOUR, HTTP, Site, never, site_in, spread, stream};
use serde_json::{Value, json};

/// A `stream` block with services of both families and protocols, and one whose server has nobody on the port.
fn services(mode: &str, more: &str) -> String {
    let peers = |at: fn(u32) -> String| (1..=4).map(|n| format!("server {};", at(n))).collect::<String>();
    let (four, six) = (peers(|n| format!("10.9.1.{n}:80")), peers(|n| format!("[fd00:9:1::{n}]:80")));
    let service =
        |listen: &str, upstream: &str| format!("server {{ listen {listen} xdp={mode}; proxy_pass {upstream}; }}\n");
    [
        format!("{more}\nupstream four {{ zone four 64k; maglev; {four} }}\nupstream six {{ zone six 64k; maglev; {six} }}\n"),
        "upstream nobody { zone nobody 64k; server 10.9.1.1:81; }\n".to_owned(),
        service(&format!("{SERVICE4}:80"), "four"),
        service(&format!("{SERVICE4}:80 udp"), "four"),
        service(&format!("[{SERVICE6}]:80"), "six"),
        service(&format!("[{SERVICE6}]:80 udp"), "six"),
        service(&format!("{SERVICE4}:81 udp"), "nobody"),
    ]
    .concat()
}

/// Connections of a family: to all four servers, with their bytes in both directions, each with the server it began with.
fn connections(client: &mut Inside, host: &str) -> Vec<String> {
    assert!(wait(|| client.names(&format!("open 1 {host} 80"))[0].starts_with('r')), "nothing comes through");
    client.ask("close");
    let opened = client.names(&format!("open 40 {host} 80"));
    assert_eq!(spread(&opened).len(), 4, "{opened:?}");
    assert_eq!(client.names("talk"), opened);
    assert_eq!(client.ask("big 2000000"), 2_000_000);
    // Segments as large as the client's link takes do not fit a tunnel: it is told, and sends smaller ones.
    assert_eq!(client.ask("put 500000"), opened[0]);
    opened
}

/// Datagrams of a family, those as well that come in pieces.
fn datagrams(client: &mut Inside, host: &str) {
    let mut answers = Vec::new();
    let good = |all: &[String]| all.iter().all(|name| name.starts_with('r'));
    assert!(wait(|| good(&client.names(&format!("udp 1 {host} 80")))), "no datagram comes back");
    let count = client.names(&format!("udp 40 {host} 80"));
    assert!(good(&count) && spread(&count).len() == 4, "{count:?}");
    // The first one may be too big for a tunnel in each of its pieces: then the client is told.
    let whole = wait(|| {
        answers = client.names(&format!("udp 4 {host} 80 4000"));
        good(&answers)
    });
    assert!(whole, "{host}: datagrams of 4,000 bytes: {answers:?}");
}

fn drain(site: &mut Site, client: &mut Inside, group: &str, host: &str, opened: &[String]) {
    let server = format!("/api/9/stream/upstreams/{group}/servers/0");
    assert_eq!(site.call("PATCH", &server, json!({"drain": true}))["status"], 200);
    let mut fresh = site.lab.client();
    let mut names = Vec::new();
    let drained = wait(|| {
        names = fresh.names(&format!("open 20 {host} 80"));
        never("r1")(&names)
    });
    assert!(drained, "{names:?}");
    assert_eq!(client.names("talk"), opened, "whoever was there stays");
}

fn carries(mode: &str, more: &str, gateway: Gateway) {
    let Some(mut lab) = Lab::new(gateway) else { return };
    // Source addresses of full NAT, which nothing else uses.
    lab.on("lb1", "ip addr add 10.9.1.51/24 dev back");
    lab.on("lb1", "ip addr add fd00:9:1::51/64 dev back nodad");
    if mode == "ipip" || mode == "gue" {
        lab.open_tunnels();
    }
    let text = services(mode, more);
    lab.configure("lb1", &text, HTTP);
    let (good, said) = lab.test("lb1");
    for listen in ["10.9.9.1:80 tcp", "10.9.9.1:80 udp", "[fd00:9:9::1]:80 tcp", "[fd00:9:9::1]:80 udp"] {
        let path = format!("listen {listen}: the kernel balances its packets (XDP, {mode}) on back, front");
        assert!(good && said.contains(&path), "{path}\n{said}");
    }
    let mut servers = lab.serve(4, 80);
    servers.extend(lab.serve(6, 80));
    let mut site = site_in(lab, servers, &text);
    let mut clients = [("four", SERVICE4), ("six", SERVICE6)].map(|(group, host)| {
        let mut client = site.lab.client();
        let opened = connections(&mut client, host);
        datagrams(&mut client, host);
        drain(&mut site, &mut client, group, host, &opened);
        client
    });
    // The server's host answers with an ICMP error, which quotes the packet as it came there.
    let client = &mut clients[0];
    let mut said = Value::Null;
    let refused = wait(|| {
        said = client.ask(&format!("refused {SERVICE4} 81"));
        said == "ConnectionRefusedError"
    });
    assert!(refused, "{said}");
    // The way to the client becomes narrower: the router tells the service's address, which is to tell the real server.
    site.lab.on("router", "ip link set client-eth0 mtu 1400");
    for client in &mut clients {
        assert_eq!(client.ask("big 500000"), 500_000);
    }
    let tunnel = mode == "ipip" || mode == "gue";
    // What the kernel counts is reported twice a second.
    let mut events = Value::Null;
    let counted = wait(|| {
        events = site.kernel()["events"].clone();
        events["icmp"].as_u64() >= Some(2) && (events["too_big"].as_u64() > Some(0)) == tunnel
    });
    assert!(counted, "{events}");
}

#[test]
fn nat_by_the_words() {
    carries("nat", "", Gateway::Balancer);
}

#[test]
fn full_nat_by_the_words() {
    carries("full_nat", "xdp_source 10.9.1.51 fd00:9:1::51;", Gateway::Router);
}

#[test]
fn direct_return_by_the_words() {
    carries("direct", "", Gateway::Router);
}

#[test]
fn tunnels_of_ip_in_ip_by_the_words() {
    carries("ipip", "", Gateway::Router);
}

#[test]
fn tunnels_of_gue_by_the_words() {
    carries("gue", "", Gateway::Router);
}

fn talks(site: &mut Site) {
    let mut client = site.lab.client();
    let opened = connections(&mut client, SERVICE4);
    assert_eq!(client.names("talk"), opened);
}

#[test]
fn generic_xdp_carries_connections() {
    let Some(mut lab) = Lab::new(Gateway::Balancer) else { return };
    let text = format!("xdp_generic on; {}", stream(FOUR, ""));
    lab.configure("lb1", &text, HTTP);
    let (good, said) = lab.test("lb1");
    assert!(good && said.contains("(generic XDP, nat) on back, front"), "{said}");
    let servers = lab.serve(4, 80);
    let mut site = site_in(lab, servers, &text);
    talks(&mut site);
    let interfaces = site.kernel()["interfaces"].clone();
    assert_eq!(interfaces, json!([{"name": "back", "native": false}, {"name": "front", "native": false}]));
}

/// A bridge has no XDP of its own.
#[test]
fn where_one_driver_has_no_xdp_generic_xdp_serves_all_interfaces_with_a_warning() {
    let Some(mut lab) = Lab::new(Gateway::Balancer) else { return };
    for line in [
        "ip link add br0 type bridge mcast_snooping 0",
        "ethtool -K br0 tx off",
        // The kernel puts segments together where they arrive, and generic XDP sees them on the bridge.
        "ethtool -K back gro off",
        "ip addr del 10.9.1.11/24 dev back",
        "ip link set back master br0",
        "ip link set br0 up",
        "ip addr add 10.9.1.11/24 dev br0",
    ] {
        lab.on("lb1", line);
    }
    let servers = lab.serve(4, 80);
    let mut site = site_in(lab, servers, &stream(FOUR, ""));
    talks(&mut site);
    let interfaces = site.kernel()["interfaces"].clone();
    assert_eq!(interfaces, json!([{"name": "br0", "native": false}, {"name": "front", "native": false}]));
    assert_eq!(site.lab.count_logged("lb1", "br0: its driver has no XDP: generic XDP serves it"), 1);
    assert_eq!(site.lab.count_logged("lb1", "front: generic XDP here as well"), 1);
}

#[test]
fn what_a_mode_cannot_do_is_named_with_its_cure() {
    let Some(mut lab) = Lab::new(Gateway::Router) else { return };
    let mut said = |stream: &str| {
        lab.configure("lb1", stream, HTTP);
        lab.test("lb1")
    };
    for mode in ["nat", "full_nat"] {
        let other =
            stream("server [fd00:9:1::1]:80;", "xdp_source 10.9.1.11;").replace("xdp=nat", &format!("xdp={mode}"));
        let (_, text) = said(&other);
        assert!(text.contains("it is of another family than the listener, which NAT cannot change"), "{mode}: {text}");
    }
    for mode in ["direct", "ipip", "gue"] {
        let (_, text) = said(&stream("server 10.9.1.1:8080;", "").replace("xdp=nat", &format!("xdp={mode}")));
        assert!(text.contains("its port is not that of the listener, which only NAT can change"), "{mode}: {text}");
        let cookies = stream(FOUR, "xdp_syn_cookies on;").replace("xdp=nat", &format!("xdp={mode}"));
        let (good, text) = said(&cookies);
        assert!(!good && text.contains("needs packets both ways: \"nat\" or \"full_nat\""), "{mode}: {text}");
    }
    let (good, text) = said(&stream("server 10.9.2.2:80;", "").replace("xdp=nat", "xdp=direct"));
    assert!(!good && text.contains("take \"ipip\" or \"gue\" (see: ip route get 10.9.2.2)"), "{text}");
    let foreign = stream(FOUR, "xdp_source 10.9.7.7;").replace("xdp=nat", "xdp=full_nat");
    let (good, text) = said(&foreign);
    assert!(!good && text.contains("source 10.9.7.7 is no address of this machine (see: ip addr)"), "{text}");
    let (good, text) = said(&stream(FOUR, "xdp_source 10.9.7.7;").replace("xdp=nat", "xdp=gue"));
    assert!(!good && text.contains("tunnel source 10.9.7.7 is no address of this machine (see: ip addr)"), "{text}");
}
