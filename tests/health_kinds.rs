//! Kinds of active health checks beside HTTP's status, header and body, and causes that need a network: each with a real peer.

use crate::harness::{Backend, Beside, Port, Reply, Server, Site, blunt, has_tools, wait};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::process::{Command, Stdio};

/// The peers of a group, as the API shows them. `at`: `http/upstreams/u`.
fn peers(server: &Server, at: &str) -> Vec<Value> {
    let response = server.get(&format!("/api/9/{at}"));
    let group: Value = serde_json::from_slice(&response.body).expect("JSON");
    group["peers"].as_array().expect("a list of peers").clone()
}

fn checks(peer: &Value) -> (u64, u64) {
    let of = |name: &str| peer["health_checks"][name].as_u64().expect("a number");
    (of("checks"), of("fails"))
}

/// A server whose group `u` is checked in this way, and which shows it. `@A@` and `@B@` are its peers' addresses.
fn checked(check: &str, more: &str, peers: [String; 2]) -> Server {
    let [a, b] = peers;
    Site::http(&format!(
        "{more} upstream u {{ zone u 64k; server {a} max_fails=0; server {b} max_fails=0; }} \
         server {{ listen 127.0.0.1:@PORT@; location / {{ proxy_pass http://u; {check} }} location /api {{ api; }} }}"
    ))
    .start()
}

/// A peer that does what a program says with each connection.
fn peer(serve: impl Fn(std::net::TcpStream) + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
    port
}

#[test]
fn a_half_open_check_is_not_seen_by_the_program() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let (port, closed) = (listener.local_addr().unwrap().port(), Port::reserve());
    let check = "health_check type=tcp_half_open interval=60ms;";
    let server = checked(check, "", [format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", closed.number)]);
    server.wait_for(
        "logs/error.log",
        &format!("peer is unhealthy: refused: nothing listens on 127.0.0.1:{}", closed.number),
    );
    assert!(wait(|| checks(&peers(&server, "http/upstreams/u")[0]).0 >= 5));
    let all = peers(&server, "http/upstreams/u");
    assert_eq!((checks(&all[0]).1, &all[0]["state"]), (0, &Value::from("up")));
    assert_eq!(all[1]["state"], "unhealthy");
    assert!(all[1]["reason"].as_str().is_some_and(|r| r.starts_with("refused: ")), "{}", all[1]);
    let none = listener.accept().expect_err("no connection was made");
    assert_eq!(none.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn variables_are_required() {
    let load = |load: &'static str| {
        Backend::start(move |_| {
            let head =
                format!("HTTP/1.1 200 OK\r\nX-Load: {load}\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfine");
            Reply::Close(head.into())
        })
    };
    let (low, high) = (load("12"), load("97"));
    let more = "map $upstream_http_x_load $has_room { ~^\\d$ 1; ~^[1-8]\\d$ 1; default 0; } \
                map $upstream_status $is_new { 200 yes; } match room { require $has_room $is_new; }";
    let of = |backend: &Backend| format!("127.0.0.1:{}", backend.port);
    let server = checked("health_check match=room interval=60ms;", more, [of(&low), of(&high)]);
    server.wait_for("logs/error.log", "peer is unhealthy: variable did not hold: $has_room is \"0\"");
    assert!(wait(|| checks(&peers(&server, "http/upstreams/u")[0]).0 >= 3));
    assert_eq!(checks(&peers(&server, "http/upstreams/u")[0]).1, 0);
}

#[test]
fn datagrams_are_sent_without_match_too() {
    let deaf = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (port, closed) = (deaf.local_addr().unwrap().port(), Port::reserve());
    let server = Site::whole(
        "events {} stream { upstream u { zone u 64k; server 127.0.0.1:@A@; server 127.0.0.1:@B@; } \
         server { listen 127.0.0.1:@OTHER@ udp; proxy_pass u; health_check udp interval=60ms; } } \
         http { server { listen 127.0.0.1:@PORT@; location /api { api; } location / { return 204; } } }",
    )
    .set("A", port)
    .set("B", closed.number)
    .start();
    server.wait_for("logs/error.log", &format!("refused: nothing listens on 127.0.0.1:{}", closed.number));
    let mut bytes = [0; 64];
    let n = deaf.recv(&mut bytes).unwrap();
    assert_eq!(&bytes[..n], b"nginx health check");
    assert!(wait(|| checks(&peers(&server, "stream/upstreams/u")[0]).0 >= 3));
    assert_eq!(checks(&peers(&server, "stream/upstreams/u")[0]).1, 0, "silence is no illness");
}

/// The address that this machine has in its network, if it is in one.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: the kernel only looks for a route.
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

#[test]
fn who_listens_on_127_0_0_1_only_is_told_so() {
    let Some(own) = own_address() else { return eprintln!("this machine is in no network: left out") };
    let local = Backend::ok("local");
    let at = format!("{own}:{}", local.port);
    let server = checked("health_check interval=100ms;", "", [at.clone(), "224.0.0.1:80".to_owned()]);
    let why = format!("peer is unhealthy: refused: nothing listens on {at}, or it listens on 127.0.0.1 only");
    server.wait_for("logs/error.log", &why);
    server.wait_for("logs/error.log", "peer is unhealthy: unreachable: 101: Network is unreachable");
}

#[test]
fn tengine_s_kinds() {
    let ajp = peer(|mut s| {
        let mut ping = [0; 5];
        if s.read_exact(&mut ping).is_ok() && ping == *b"\x12\x34\x00\x01\x0a" {
            let _ = s.write_all(b"AB\x00\x01\x09");
        }
    });
    let mysql = peer(|mut s| drop(s.write_all(b"\x4a\x00\x00\x00\x0a8.0.36\x00the rest")));
    let full = peer(|mut s| drop(s.write_all(b"\x17\x00\x00\x00\xff\x10\x04Too many connections")));
    let group = |name: &str, kind: &str, good: u16, bad: u16| {
        format!(
            "upstream {name} {{ zone {name} 64k; server 127.0.0.1:{good}; server 127.0.0.1:{bad}; \
             check interval=100 rise=1 fall=1 timeout=1000 type={kind}; }}"
        )
    };
    let server = Site::http(&format!(
        "{} {} server {{ listen 127.0.0.1:@PORT@; location /api {{ api; }} location /a {{ proxy_pass http://ajp; }} \
         location /m {{ proxy_pass http://mysql; }} location / {{ return 204; }} }}",
        group("ajp", "ajp", ajp, mysql),
        group("mysql", "mysql", mysql, full),
    ))
    .start();
    server.wait_for("logs/error.log", "unhealthy: body did not match: wanted \"AB\\x00\\x01\\t\", came \"J\\x00\\x00");
    server.wait_for("logs/error.log", "came \"\\x17\\x00\\x00\\x00\\xff\\x10\\x04Too many connections\"");
    for group in ["ajp", "mysql"] {
        let at = format!("http/upstreams/{group}");
        assert!(wait(|| peers(&server, &at)[0]["state"] == "up"), "{group}: {:?}", peers(&server, &at));
    }
}

#[test]
fn tls_servers_are_asked_for_their_hello() {
    if !has_tools() {
        return;
    }
    let (mail, mute, other) = (blunt(b"220 mail ESMTP\r\n"), blunt(b""), Port::reserve());
    let refusing = blunt(&[21, 3, 3, 0, 2, 2, 70]);
    let check = "check interval=100 rise=1 fall=1 timeout=1000 type=ssl_hello;";
    let site = Site::http(&format!(
        "upstream u {{ zone u 64k; server 127.0.0.1:@OTHER@; server 127.0.0.1:{}; server 127.0.0.1:{mail}; \
         server 127.0.0.1:{refusing}; server 127.0.0.1:{mute}; {check} }} \
         server {{ listen 127.0.0.1:@OTHER@ ssl; ssl_certificate good.crt; ssl_certificate_key good.key; \
         ssl_verify_client on; ssl_client_certificate good.crt; }} \
         server {{ listen 127.0.0.1:@PORT@; location /api {{ api; }} }}",
        other.number
    ))
    .certificate("good");
    let accept = format!("127.0.0.1:{}", other.number);
    let openssl = Command::new("openssl")
        .args(["s_server", "-www", "-cert", "good.crt", "-key", "good.key", "-accept", &accept])
        .current_dir(site.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("it is there");
    let _ended_with_the_test = Beside(openssl);
    let server = site.start();
    let all = || peers(&server, "http/upstreams/u");
    // Both want what this check does not have: a certificate, or the rest of the handshake.
    assert!(wait(|| all()[..2].iter().all(|p| p["state"] == "up")), "{:?}", all());
    let sick = [
        "TLS failed: no TLS: \"220 mail ESMTP\\r\\n\"",
        "TLS failed: received fatal alert: ProtocolVersion",
        "closed the connection without an answer",
    ];
    for (number, why) in sick.into_iter().enumerate() {
        assert!(wait(|| all()[number + 2]["reason"] == why), "{why}: {:?}", all());
        server.wait_for("logs/error.log", &format!("peer is unhealthy: {why}, health check of peer"));
    }
}

#[test]
fn who_is_set_aside_for_failed_requests_says_why() {
    let busy = Backend::start(|_| Reply::Close("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n".into()));
    let mute = Backend::start(|_| Reply::Close(Vec::new()));
    let slow = Backend::start(|_| {
        std::thread::sleep(std::time::Duration::from_secs(1));
        Reply::ok("late")
    });
    let (closed, good) = (Port::reserve(), Backend::ok("good"));
    let server = Site::http(
        "upstream u { zone u 64k; server 127.0.0.1:@BUSY@; server 127.0.0.1:@MUTE@; server 127.0.0.1:@SLOW@; \
         server 127.0.0.1:@CLOSED@; server 127.0.0.1:@GOOD@; } \
         server { listen 127.0.0.1:@PORT@; location /api { api; } \
         location / { proxy_pass http://u; proxy_read_timeout 200ms; proxy_next_upstream error timeout http_503; } }",
    )
    .set("BUSY", busy.port)
    .set("MUTE", mute.port)
    .set("SLOW", slow.port)
    .set("CLOSED", closed.number)
    .set("GOOD", good.port)
    .start();
    assert!(wait(|| {
        assert_eq!(server.get("/").text(), "good", "no client notices");
        peers(&server, "http/upstreams/u")[..4].iter().all(|p| p["state"] == "unavail")
    }));
    let all = peers(&server, "http/upstreams/u");
    let why =
        ["answered 503, wanted one that", "closed the connection without", "too slow: ", "refused: nothing listens"];
    for (peer, why) in all.iter().zip(why) {
        assert!(peer["reason"].as_str().is_some_and(|r| r.starts_with(why)), "{why}: {peer}");
    }
    assert!(all[2]["reason"].as_str().is_some_and(|r| r.ends_with(" ms against 200 ms")), "{}", all[2]);
}
