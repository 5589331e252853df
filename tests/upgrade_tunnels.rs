//! Tunnels that outlive the binary: both connections of each go over.

use crate::harness::{Client, Json, Port, Setup, Site, has_tools, wait};
use crate::upgrade::{Long, beside, end, is_gone};
use rustix::process::{Signal, kill_process};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

const HEADERS: &str = "Upgrade: echo\r\nConnection: Upgrade\r\n";

/// Says what it hears, once it was asked to change to that.
fn echo(mut stream: TcpStream) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) > 0 {
        head.push(byte[0]);
    }
    let head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n";
    let _ = stream.write_all(head);
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        let _ = stream.write_all(&buffer[..n]);
    }
}

fn backend() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || echo(stream));
        }
    });
    port
}

fn start(location: &str) -> (Long, Port) {
    let (tls, back) = (Port::reserve(), backend());
    let secure = match has_tools() {
        true => format!(
            "server {{ listen 127.0.0.1:{} ssl; server_name localhost; ssl_certificate @DIR@/localhost.crt;
             ssl_certificate_key @DIR@/localhost.key; location /ws {{ proxy_pass http://back; }} }}",
            tls.number
        ),
        false => String::new(),
    };
    let text = format!(
        "worker_processes 2; events {{ }} http {{ log_format all '$status $upstream_addr $upstream_bytes_received \
         $upstream_bytes_sent $request_uri'; access_log @DIR@/logs/all.log all;
         upstream back {{ zone back 64k; server 127.0.0.1:{back}; }}
         proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;
         {secure}
         server {{ listen 127.0.0.1:@PORT@; location /api {{ api; access_log off; }} location /who {{ return 200 $pid; }}
             location {location} {{ proxy_pass http://back; }} }} }} # back {back}"
    );
    let site = Site::whole(&text);
    let site = if has_tools() { site.certificate("localhost") } else { site };
    (Long::start(site), tls)
}

fn says(tunnel: &mut Client, text: &str) {
    tunnel.send(text);
    assert_eq!(tunnel.take(text.len()), text.as_bytes());
}

/// How many of the peer's connections are in use.
fn active(server: &Long) -> f64 {
    Json(server.get("/api/9/http/upstreams/back").text()).number("peers.active")
}

#[test]
fn tunnels_go_on_with_the_new_binary() {
    let (server, tls) = start("/ws");
    let mut parked = server.open("/ws?parked", HEADERS);
    says(&mut parked, "before");
    let mut secure = has_tools().then(|| Setup::new().connect(tls.number, "localhost"));
    if let Some(secure) = &mut secure {
        secure.send(&format!("GET /ws?secure HTTP/1.1\r\nHost: localhost\r\n{HEADERS}\r\n"));
        assert_eq!(secure.response().0, 101);
    }
    let tunnels = 1 + usize::from(secure.is_some());
    if !server.error_log().contains("take a descriptor each") {
        let count = || Json(server.get("/api/9/ironweir/memory").text()).number("connections.parked.tunnel.count");
        assert!(wait(|| count() == tunnels as f64), "{}", server.get("/api/9/ironweir/memory").text());
    }
    // One has just said something: it has a task.
    let mut busy = server.open("/ws?busy", HEADERS);
    let large = "x".repeat(3000);
    for round in 0..3 {
        says(&mut busy, "just now");
        server.upgrade();
        assert!(wait(|| active(&server) == (tunnels + 1) as f64), "{}", active(&server));
        says(&mut parked, &format!("after {round}"));
        says(&mut busy, &large);
        if let Some(secure) = &mut secure {
            secure.send("over TLS");
            let mut heard = [0; 8];
            secure.stream.read_exact(&mut heard).unwrap();
            assert_eq!(&heard, b"over TLS");
        }
    }
    drop((parked, busy));
    let back = server.read("nginx.conf").rsplit(' ').next().unwrap().trim().to_owned();
    let all = 3 * ("just now".len() + large.len());
    let line = |uri: &str, lengths: &str| format!("101 127.0.0.1:{back} {lengths} {uri}\n");
    let log = || server.read("logs/all.log");
    let is_logged = |uri: &str, bytes: usize| {
        let log = log();
        let found = log.lines().find(|line| line.ends_with(uri)).unwrap_or_default().to_owned();
        let words: Vec<&str> = found.split(' ').collect();
        words.len() == 5 && words[1].ends_with(&back) && words[2].parse::<usize>().is_ok_and(|n| n >= bytes)
    };
    assert!(wait(|| is_logged("/ws?busy", all)), "{} {}", line("/ws?busy", &all.to_string()), log());
    assert!(wait(|| is_logged("/ws?parked", "before".len() + 3 * "after 0".len())), "{}", log());
    drop(secure);
    assert!(wait(|| active(&server) == 0.0), "{}", active(&server));
    assert_eq!(server.error_log().matches("[alert]").count(), 0, "{}", server.error_log());
}

#[test]
fn a_tunnel_without_a_place_in_the_new_configuration_stays_until_it_ends() {
    let (server, _) = start("/old");
    let mut tunnel = server.open("/old", HEADERS);
    says(&mut tunnel, "before");
    let text = server.read("nginx.conf").replace("location /old", "location /new");
    std::fs::write(server.dir().join("nginx.conf"), text).unwrap();
    let old = beside(&server);
    says(&mut tunnel, "after");
    let _ = kill_process(old, Signal::QUIT);
    assert_eq!(server.get("/who").status, 200);
    says(&mut tunnel, "at the end");
    assert!(!is_gone(old));
    drop(tunnel);
    end(&server, old);
}

#[test]
fn tunnels_to_whom_a_request_has_named_go_on_too() {
    let back = backend();
    let location = "/named { proxy_pass http://$arg_to; } location /off { return 204; } }
         server { listen 127.0.0.1:@PORT@; server_name 127.0.0.1; tunnel_pass; allow 127.0.0.1; deny all; location /ws";
    let (server, _) = start(location);
    let mut named = server.open(&format!("/named?to=127.0.0.1:{back}"), HEADERS);
    says(&mut named, "before");
    let mut connected = server.connect();
    connected.send(format!("CONNECT 127.0.0.1:{back} HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_eq!(connected.read_response(true).unwrap().status, 200);
    connected.send("GET / HTTP/1.1\r\n\r\n");
    assert_eq!(connected.read_response(true).unwrap().status, 101);
    for round in 0..2 {
        says(&mut connected, "just now");
        server.upgrade();
        says(&mut named, &format!("after {round}"));
        says(&mut connected, &format!("after {round}"));
    }
    drop((named, connected));
    let line = format!("101 127.0.0.1:{back} ");
    assert!(wait(|| server.read("logs/all.log").contains(&line)), "{}", server.read("logs/all.log"));
    assert_eq!(server.error_log().matches("[alert]").count(), 0, "{}", server.error_log());
}
