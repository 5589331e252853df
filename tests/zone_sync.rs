//! `zone_sync`: nodes of a cluster share sessions, records and what limits have let in.

use crate::harness::{Backend, Client, Dns, Folder, Port, Reply, Server, Site, has_tools, wait};
use serde_json::{Value, json};
use std::time::Duration;

/// A cluster's addresses: each node's list has all of them, its own too.
fn addresses(count: usize) -> Vec<Port> {
    (0..count).map(|_| Port::reserve()).collect()
}

/// A node that hears at `own`.
fn node(own: u16, all: &[Port], http: &str, sync: &str) -> Server {
    let servers: String = all.iter().map(|port| format!("zone_sync_server 127.0.0.1:{};", port.number)).collect();
    Site::whole(
        &format!(
            "events {{}}
         http {{ access_log off; {http} }}
         stream {{ zone_sync_interval 50ms; zone_sync_connect_retry_interval 100ms; {sync}
             server {{ zone_sync; listen 127.0.0.1:{own} SSL; {servers} }} }}"
        )
        .replace(" SSL;", if sync.contains("zone_sync_ssl on") { " ssl;" } else { ";" }),
    )
    .certificate("localhost")
    .start()
}

fn status(node: &Server) -> Value {
    serde_json::from_str(&node.get("/api/9/stream/zone_sync").text()).expect("JSON")
}

fn call(node: &Server, method: &str, body: Option<Value>) -> u16 {
    let body = body.map_or(String::new(), |b| b.to_string());
    let length = body.len();
    let text =
        format!("{method} /api/9/http/keyvals/names HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}");
    node.connect().send(text).response().status
}

const NAMES: &str = "keyval_zone zone=names:1m timeout=1h sync; keyval $arg_key $name zone=names;
    server { listen 127.0.0.1:@PORT@; location / { return 200 \"[$name]\"; } location /api { api write=on; } }";

fn online(nodes: &[&Server], count: u64) {
    for node in nodes {
        assert!(wait(|| status(node)["status"]["nodes_online"] == count), "{} {}", status(node), node.error_log());
    }
}

#[test]
fn records_are_everywhere_and_a_new_node_is_told_all() {
    let all = addresses(3);
    let (a, b) = (node(all[0].number, &all, NAMES, ""), node(all[1].number, &all, NAMES, ""));
    online(&[&a, &b], 1);
    assert!(a.error_log().contains("is this node") || wait(|| a.error_log().contains("is this node")));
    assert_eq!(call(&a, "POST", Some(json!({"k": "v", "gone": "soon"}))), 201);
    assert!(wait(|| b.get("/?key=k").text() == "[v]"));
    // From the other side, and removed where it was not made.
    assert_eq!(call(&b, "PATCH", Some(json!({"k": "changed"}))), 204);
    assert!(wait(|| a.get("/?key=k").text() == "[changed]"));
    assert_eq!(call(&b, "PATCH", Some(json!({"gone": null}))), 204);
    assert!(wait(|| a.get("/?key=gone").text() == "[]"));
    let c = node(all[2].number, &all, NAMES, "");
    assert!(wait(|| c.get("/?key=k").text() == "[changed]"));
    assert_eq!(c.get("/?key=gone").text(), "[]");
    online(&[&a, &b, &c], 2);
    let shown = status(&c);
    assert_eq!(shown["zones"]["names"], json!({"records_pending": 0, "records_total": 1}));
    for count in ["bytes_in", "bytes_out", "msgs_in", "msgs_out"] {
        assert!(shown["status"][count].as_u64() > Some(0), "{shown}");
    }
    // A reload that changes nothing of the cluster breaks no link.
    a.signal(rustix::process::Signal::HUP);
    assert!(wait(
        || a.error_log().contains("gracefully shutting down") || a.worker_pids().split_whitespace().count() > 0
    ));
    assert_eq!(call(&a, "DELETE", None), 204);
    for node in [&b, &c] {
        assert!(wait(|| node.get("/?key=k").text() == "[]"));
    }
    let log = a.error_log();
    assert_eq!(log.matches("is online").count(), 2, "{log}");
    // One that takes the cluster out of its configuration hears nobody any more.
    let text = b.read("nginx.conf");
    let at = text.find("stream {").expect("its block");
    std::fs::write(b.dir().join("nginx.conf"), format!("{}stream {{ }}", &text[..at])).expect("its folder");
    b.signal(rustix::process::Signal::HUP);
    assert!(wait(|| status(&b)["status"]["nodes_online"] == 0), "{}", status(&b));
    a.wait_for("logs/error.log", &format!("node 127.0.0.1:{} is offline", all[1].number));
    // A node that is gone is said to be gone, once, and comes back.
    c.stop(rustix::process::Signal::QUIT);
    a.wait_for("logs/error.log", &format!("node 127.0.0.1:{} is offline", all[2].number));
    assert_eq!(call(&a, "POST", Some(json!({"late": "one"}))), 201);
    let c = node(all[2].number, &all, NAMES, "");
    assert!(wait(|| c.get("/?key=late").text() == "[one]"));
}

#[test]
fn what_one_node_lets_in_counts_for_all() {
    let all = addresses(2);
    let http = "limit_req_zone $arg_k zone=few:1m rate=6r/m sync;
        server { listen 127.0.0.1:@PORT@; location /api { api; } location / { limit_req zone=few burst=3 nodelay; empty_gif; } }";
    let (a, b) = (node(all[0].number, &all, http, ""), node(all[1].number, &all, http, ""));
    online(&[&a, &b], 1);
    let ask = |node: &Server, key: &str| node.get(&format!("/?k={key}")).status;
    assert_eq!([ask(&a, "x"), ask(&a, "x"), ask(&a, "x")], [200; 3]);
    assert!(wait(|| status(&b)["zones"]["few"]["records_total"] == 1), "{}", status(&b));
    // Four fit: the one, and a burst of three.
    assert_eq!([ask(&b, "x"), ask(&b, "x")], [200, 503]);
    assert_eq!(ask(&b, "y"), 200, "another key");
    assert!(wait(|| ask(&a, "x") == 503));
}

#[test]
fn a_session_has_its_peer_at_every_node() {
    let peer = |name: &'static str| {
        Backend::start(move |seen| {
            let cookie = if seen.header("Cookie").is_none() {
                format!("Set-Cookie: id={name}{}\r\n", seen.line().len())
            } else {
                String::new()
            };
            Reply::Keep(format!("HTTP/1.1 200 OK\r\n{cookie}Content-Length: 1\r\n\r\n{name}").into())
        })
    };
    let peers = [peer("1"), peer("2"), peer("3")];
    let servers: String = peers.iter().map(|p| format!("server 127.0.0.1:{};", p.port)).collect();
    let all = addresses(2);
    let http = format!(
        "upstream up {{ {servers} sticky learn create=$upstream_cookie_id lookup=$cookie_id zone=clients:1m sync; }}
         server {{ listen 127.0.0.1:@PORT@; location /api {{ api; }} location / {{ proxy_pass http://up; }} }}"
    );
    let (a, b) = (node(all[0].number, &all, &http, ""), node(all[1].number, &all, &http, ""));
    online(&[&a, &b], 1);
    // The third peer begins a session with a client of the first node.
    let mut session = String::new();
    for number in 0..3 {
        let r = a.get(&format!("/{}", "x".repeat(number)));
        if r.text() == "3" {
            session = r.header("Set-Cookie").expect("a session").to_owned();
        }
    }
    assert!(wait(|| status(&b)["zones"]["clients"]["records_total"] == 3), "{}", status(&b));
    let with = |client: &mut Client| {
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: {session}\r\n\r\n")).response().text()
    };
    for _ in 0..6 {
        assert_eq!(with(&mut b.connect()), "3", "{session}");
    }
}

#[test]
fn nodes_know_each_other_by_certificates() {
    if !has_tools() {
        return;
    }
    let all = addresses(3);
    let authority = Site::server("return 200;").certificate("root").issued("node", "root", "30").start();
    let dir = authority.dir().display().to_string();
    let tls = format!(
        "ssl_certificate {dir}/node.crt; ssl_certificate_key {dir}/node.key; ssl_client_certificate {dir}/root.crt; ssl_verify_client on;
         zone_sync_ssl on; zone_sync_ssl_certificate {dir}/node.crt; zone_sync_ssl_certificate_key {dir}/node.key;
         zone_sync_ssl_verify on; zone_sync_ssl_trusted_certificate {dir}/root.crt;"
    );
    let good = format!("{tls} zone_sync_ssl_name node;");
    let (a, b) = (node(all[0].number, &all[..2], NAMES, &good), node(all[1].number, &all[..2], NAMES, &good));
    online(&[&a, &b], 1);
    assert_eq!(call(&a, "POST", Some(json!({"k": "v"}))), 201);
    assert!(wait(|| b.get("/?key=k").text() == "[v]"), "{}", b.error_log());
    // Who wants another name tells nobody, and who shows no certificate is not heard.
    let other = node(all[2].number, &all, NAMES, &format!("{tls} zone_sync_ssl_name other.test;"));
    other.wait_for("logs/error.log", "does not match \"other.test\"");
    let bare = good.replace(
        &format!("zone_sync_ssl_certificate {dir}/node.crt; zone_sync_ssl_certificate_key {dir}/node.key;"),
        "",
    );
    let bare = node(Port::reserve().number, &all[..2], NAMES, &bare);
    assert_eq!(call(&bare, "POST", Some(json!({"k": "from nobody"}))), 201);
    a.wait_for("logs/error.log", "client sent no required SSL certificate");
    assert_eq!(
        (status(&other)["status"]["nodes_online"].as_u64(), status(&bare)["status"]["nodes_online"].as_u64()),
        (Some(0), Some(0))
    );
    assert_eq!([a.get("/?key=k").text(), b.get("/?key=k").text()], ["[v]", "[v]"]);
}

#[test]
fn what_is_no_node_is_sent_away() {
    let all = addresses(1);
    let a = node(all[0].number, &all, NAMES, "zone_sync_timeout 300ms;");
    let mut client = Client::connect(all[0].number);
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.is_closed());
    a.wait_for("logs/error.log", "zone_sync: it does not speak the protocol of zone_sync");
    let mut hello = Vec::new();
    wire::zone_sync::write_hello(5, &mut hello);
    let mut client = Client::connect(all[0].number);
    client.send(&hello);
    client.take(wire::zone_sync::HELLO);
    client.send(u32::MAX.to_be_bytes());
    assert!(client.is_closed());
    a.wait_for("logs/error.log", "zone_sync: a message is too long");
    // Nor is one waited for that says nothing.
    let mut client = Client::connect(all[0].number);
    client.send(&hello[..4]);
    assert!(client.is_closed());
    a.wait_for("logs/error.log", "the node says nothing any more");
}

#[test]
fn complaints() {
    let stream =
        |text: &str| format!("events {{}} http {{ server {{ listen 127.0.0.1:@PORT@; }} }} stream {{ {text} }}");
    let http = |text: &str| format!("events {{}} http {{ {text} server {{ listen 127.0.0.1:@PORT@; }} }}");
    for (text, said) in [
        (
            stream("server { listen 127.0.0.1:1; zone_sync_server a:1; }"),
            "\"zone_sync_server\" needs \"zone_sync\" before it",
        ),
        (stream("server { listen 127.0.0.1:1; zone_sync; zone_sync_server a; }"), "no port in zone_sync_server \"a\""),
        (stream("server { listen 127.0.0.1:1; zone_sync; zone_sync_server a:1 resolve; }"), "no resolver defined"),
        (
            stream("server { listen 127.0.0.1:1; zone_sync; } server { listen 127.0.0.1:2; zone_sync; }"),
            "\"zone_sync\" is given for more than one server",
        ),
        (http("keyval_zone zone=z:64k sync;"), "\"sync\" requires \"timeout\" to be set"),
        (
            http(
                "upstream r { nchan_redis_server redis://127.0.0.1; } limit_req_zone $uri zone=z:1m rate=1r/s redis=r sync;",
            ),
            "by \"redis=\" or by \"sync\", not by both",
        ),
    ] {
        let (status, output) = Site::whole(&text).check();
        assert!(!status.success() && output.contains(said), "{text}: {output}");
    }
    let warns = |server: &str| {
        let (status, output) = Site::whole(&stream(&format!("server {{ zone_sync; {server} }}"))).check();
        assert!(status.success(), "{output}");
        output.contains("lets everybody who reaches it change zones")
    };
    let port = Port::reserve().number;
    assert!(warns(&format!("listen {port};")));
    assert!(
        !warns(&format!("listen {port}; allow 10.0.0.0/8; deny all;")) && !warns(&format!("listen 127.0.0.1:{port};"))
    );
}

#[test]
fn nodes_are_found_by_names_and_at_sockets_and_wait_for_no_name() {
    let dns = Dns::start(Duration::ZERO);
    let (port, sockets) = (Port::reserve(), Folder::new());
    let at = |name: &str| sockets.path().join(name).display().to_string();
    let start = |listen: &str, resolver: u16, servers: &str| {
        Site::whole(&format!(
            "events {{}} http {{ access_log off; {NAMES} }}
             stream {{ resolver 127.0.0.1:{resolver} valid=1s ipv6=off; zone_sync_interval 50ms; zone_sync_connect_retry_interval 100ms;
                 server {{ zone_sync; {listen} {servers} }} }}"
        ))
        .start()
    };
    // Nobody answers the first node's questions, which have half a minute.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let silent = silent.local_addr().expect("it is bound").port();
    let b_listens = format!("listen 127.0.0.2:{}; listen unix:{};", port.number, at("b"));
    let b = start(&b_listens, dns.port, "");
    let a = start(
        &format!("listen unix:{};", at("a")),
        silent,
        &format!("zone_sync_server nodes.test:{} resolve; zone_sync_server unix:{};", port.number, at("b")),
    );
    online(&[&a], 1);
    assert_eq!(call(&a, "POST", Some(json!({"k": "by a socket"}))), 201);
    assert!(wait(|| b.get("/?key=k").text() == "[by a socket]"));
    // Another follows a name: first nobody has it, then the second node.
    let c_listens = format!("listen unix:{};", at("c"));
    let c = start(&c_listens, dns.port, &format!("zone_sync_server nodes.test:{} resolve;", port.number));
    c.wait_for("logs/error.log", "nodes.test could not be resolved");
    dns.set(&[[127, 0, 0, 2]]);
    online(&[&c], 1);
    assert_eq!(call(&c, "POST", Some(json!({"k": "by a name"}))), 201);
    assert!(wait(|| b.get("/?key=k").text() == "[by a name]"));
}
