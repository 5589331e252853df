//! What happens when there are as many connections, or descriptors, as there may be.

use crate::harness::quic::{ask, client, get, run};
use crate::harness::{Backend, Client, Reply, Server, Setup, Site, wait};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// `worker_connections` of these tests.
const SEATS: usize = 8;
const REUSING: &str = "8 worker_connections are not enough, reusing connections";
const SLOWEST: &str = "8 worker_connections are not enough, closing those of the slowest clients";

fn site(listen: &str, server: &str) -> Site {
    Site::whole(&format!(
        "worker_processes 1; events {{ worker_connections {SEATS}; }}
        http {{ access_log logs/access.log; root @DIR@/html; server {{ listen 127.0.0.1:@PORT@ {listen}; {server} }} }}"
    ))
}

/// The harness has looked whether the server is there: that connection is over too.
fn settled(server: Server) -> Server {
    assert!(wait(|| Client::connect(server.port).send("GET / HTTP/1.0\r\n\r\n").read_response(false).is_some()));
    server
}

#[test]
fn the_kept_connection_that_was_idle_longest_makes_room() {
    let server = settled(site("", "location / { return 200 x; }").start());
    let mut kept: Vec<Client> = (0..SEATS).map(|_| server.connect()).collect();
    kept.iter_mut().for_each(|c| assert_eq!(c.get("/").status, 200));
    // Who came last is told by the millisecond.
    std::thread::sleep(Duration::from_millis(5));
    // The first is used again: it is the youngest now.
    assert_eq!(kept[0].get("/").status, 200);
    assert_eq!(server.get("/").status, 200);
    assert!(kept[1].is_closed());
    assert_eq!(kept[0].get("/").status, 200);
    assert_eq!(kept[2].get("/").status, 200);
    server.wait_for("logs/error.log", REUSING);
}

#[test]
fn silent_connections_make_room() {
    // Otherwise the kernel keeps them to itself for a second.
    let server = settled(site("deferred=off", "location / { return 200 x; }").start());
    let mut silent: Vec<Client> = (0..SEATS).map(|_| server.connect()).collect();
    let mut kept: Vec<Client> = (0..SEATS).map(|_| server.connect()).collect();
    kept.iter_mut().for_each(|c| assert_eq!(c.get("/").status, 200));
    assert!(silent.iter_mut().all(Client::is_closed));
    server.wait_for("logs/error.log", REUSING);
}

#[test]
fn silent_and_kept_tls_connections_make_room() {
    let tls = "ssl_certificate localhost.crt; ssl_certificate_key localhost.key; location / { return 200 x; }";
    let server = site("ssl deferred=off", tls).certificate("localhost").start();
    let mut silent: Vec<Client> = (0..SEATS).map(|_| server.connect()).collect();
    let mut kept = Vec::new();
    for _ in 0..SEATS {
        let mut client = Setup::new().connect(server.port, "localhost");
        assert_eq!(client.get("/", "localhost").0, 200);
        kept.push(client);
    }
    assert!(silent.iter_mut().all(Client::is_closed));
    for _ in 0..SEATS {
        let mut client = Setup::new().connect(server.port, "localhost");
        assert_eq!(client.get("/", "localhost").0, 200);
    }
    assert!(kept[0].is_closed());
}

/// The preface, empty SETTINGS, and HEADERS of stream 1: GET, http, /, localhost.
fn http2_request() -> Vec<u8> {
    http2_request_with(&[])
}

/// The same with settings.
fn http2_request_with(settings: &[u8]) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend([0, 0, settings.len() as u8, 4, 0, 0, 0, 0, 0]);
    bytes.extend(settings);
    let block = b"\x82\x86\x84\x41\x09localhost";
    bytes.extend([0, 0, block.len() as u8, 1, 5, 0, 0, 0, 1]);
    bytes.extend(block);
    bytes
}

#[test]
fn idle_http2_connections_make_room_and_are_told() {
    let server = settled(site("", "http2 on; location / { return 200 idle; }").start());
    let mut idle: Vec<Client> = (0..SEATS).map(|_| server.connect()).collect();
    for client in &mut idle {
        client.send(http2_request());
        let mut all = Vec::new();
        while !all.ends_with(b"idle") {
            all.extend(client.take(1));
        }
    }
    assert_eq!(server.get("/").status, 200);
    let rest = idle[0].rest();
    // A frame of type 7 (GOAWAY) on stream 0.
    assert!(rest.windows(6).any(|w| w == [7, 0, 0, 0, 0, 0]), "{}", rest.escape_ascii());
}

#[test]
fn idle_quic_connections_make_room_for_tcp_and_the_other_way_round() {
    let text = format!(
        "worker_processes 1; events {{ worker_connections {SEATS}; }} http {{ access_log off; server {{
        listen 127.0.0.1:@PORT@ quic; listen 127.0.0.1:@PORT@ ssl; listen 127.0.0.1:@OTHER@; server_name localhost;
        ssl_certificate localhost.crt; ssl_certificate_key localhost.key; location / {{ return 200 x; }} }} }}"
    );
    let server = Site::whole(&text).certificate("localhost").start();
    let plain = server
        .read("nginx.conf")
        .split("listen 127.0.0.1:")
        .nth(3)
        .unwrap()
        .split(';')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    run(async {
        let mut idle = Vec::new();
        for _ in 0..SEATS {
            let (endpoint, mut requests) = client(server.port).await;
            assert_eq!(ask(&mut requests, get("/"), b"").await.status, 200);
            idle.push((endpoint, requests));
        }
        let mut tcp = Vec::new();
        for _ in 0..SEATS {
            let mut client = Client::connect(plain);
            assert_eq!(client.get("/").status, 200);
            tcp.push(client);
        }
        let (_endpoint, mut requests) = client(server.port).await;
        assert_eq!(ask(&mut requests, get("/"), b"").await.status, 200);
        assert!(tcp[0].is_closed());
    });
    server.wait_for("logs/error.log", REUSING);
}

#[test]
fn who_is_being_served_stays() {
    let barrier = Arc::new(Barrier::new(SEATS + 1));
    let gate = barrier.clone();
    let backend = Backend::start(move |_| {
        gate.wait();
        Reply::ok("late")
    });
    let server = site("", "location / { proxy_pass http://127.0.0.1:@BACKEND@; }").set("BACKEND", backend.port).start();
    let mut busy: Vec<Client> = (0..SEATS).map(|_| server.connect()).collect();
    busy.iter_mut().for_each(|c| _ = c.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert!(wait(|| backend.seen().len() == SEATS));
    assert!(server.connect().send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").read_response(false).is_none());
    server.wait_for("logs/error.log", "[alert]");
    server.wait_for("logs/error.log", "8 worker_connections are not enough\n");
    barrier.wait();
    busy.iter_mut().for_each(|c| assert_eq!(c.response().text(), "late"));
}

/// A new client is refused until those who are waited for have made no progress for some seconds.
fn comes_through(server: &Server) {
    let came = wait(|| {
        let mut client = server.connect();
        client.send("GET /small HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let mut answer = Vec::new();
        _ = client.stream.read_to_end(&mut answer);
        answer.starts_with(b"HTTP/1.1 200")
    });
    assert!(came, "no new client was served");
    server.wait_for("logs/error.log", SLOWEST);
}

#[test]
fn slow_readers_leave_room_and_fast_ones_stay() {
    let server = site("", "").file("html/large", vec![b'x'; 40_000_000]).file("html/small", "x").start();
    let mut fast = server.connect();
    fast.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    let over = Arc::new(AtomicBool::new(false));
    let stop = over.clone();
    // It reads some 400 kB a second, which is slow, but no offence.
    let reader = std::thread::spawn(move || {
        let mut piece = vec![0; 20_000];
        while !stop.load(Ordering::Relaxed) {
            fast.stream.read_exact(&mut piece).expect("it is still served");
            std::thread::sleep(Duration::from_millis(50));
        }
        fast
    });
    let slow: Vec<Client> = (1..SEATS).map(|_| server.connect()).collect();
    let mut slow: Vec<Client> = slow
        .into_iter()
        .map(|mut c| {
            c.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
            c
        })
        .collect();
    for _ in 0..SEATS {
        comes_through(&server);
    }
    server.wait_for("logs/error.log", "client is too slow, its connection makes room for another while sending");
    over.store(true, Ordering::Relaxed);
    let mut fast = reader.join().expect("the fast reader was never cut off");
    assert!(fast.take(1000).iter().all(|b| *b == b'x'));
    assert!(slow.iter_mut().any(|c| c.rest().len() < 40_000_000));
}

#[test]
fn slow_heads_and_bodies_leave_room() {
    let server = site("", "location /body { client_body_in_file_only clean; proxy_pass http://127.0.0.1:1; }")
        .file("html/small", "x")
        .start();
    let mut slow: Vec<Client> = (0..SEATS).map(|_| server.connect()).collect();
    for (number, client) in slow.iter_mut().enumerate() {
        let part = if number % 2 == 0 {
            "GET / HTTP/1.1\r\nHost: "
        } else {
            "POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1"
        };
        client.send(part);
    }
    comes_through(&server);
    comes_through(&server);
    server.wait_for("logs/error.log", "client is too slow, its connection makes room for another");
}

#[test]
fn closed_http2_windows_leave_room() {
    let server = site("", "http2 on; location = / { return 200 unread; }").file("html/small", "x").start();
    let mut slow: Vec<Client> = (0..SEATS).map(|_| server.connect()).collect();
    // SETTINGS_INITIAL_WINDOW_SIZE 0: no byte of the answer may be sent.
    slow.iter_mut().for_each(|c| _ = c.send(http2_request_with(&[0, 4, 0, 0, 0, 0])));
    comes_through(&server);
    server.wait_for("logs/error.log", "client is too slow, its connection makes room for another");
}

#[test]
fn a_shortage_of_descriptors_is_no_fault_of_peers() {
    // A request takes two descriptors. Whether the last one is missing to a client or to its peer depends on how many the
    // worker has open already, so both are tried.
    let logs: Vec<String> = [60, 61].map(short_of_descriptors).into();
    assert!(logs.iter().any(|log| log.contains("accept4() failed (24: Too many open files)")), "{logs:?}");
}

/// Twice as many clients as `descriptors`, all waiting for a peer, and what the error log says when they are served.
fn short_of_descriptors(descriptors: usize) -> String {
    let open = Arc::new(AtomicBool::new(false));
    let gate = open.clone();
    let backend = Backend::start(move |_| {
        wait(|| gate.load(Ordering::Relaxed));
        Reply::ok("late")
    });
    let text = format!(
        "worker_processes 1; worker_rlimit_nofile {descriptors}; events {{ worker_connections 1000; }}
        http {{ access_log off; upstream u {{ server 127.0.0.1:@BACKEND@; server 127.0.0.1:@BACKEND@; }}
        server {{ listen 127.0.0.1:@PORT@; location / {{ proxy_pass http://u; }} }} }}"
    );
    let server = Site::whole(&text).set("BACKEND", backend.port).start();
    // It takes one descriptor and no second.
    let mut single = server.connect();
    single.send("GET / HT");
    let ask = |_| {
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        client
    };
    let mut clients: Vec<Client> = (0..2 * descriptors).map(ask).collect();
    server.wait_for("logs/error.log", "failed (24: Too many open files)");
    // The next client takes its place, and there is none for its peer.
    drop(single);
    server.wait_for("logs/error.log", "socket() failed (24: Too many open files)");
    let freed = Instant::now();
    open.store(true, Ordering::Relaxed);
    let statuses: Vec<u16> = clients.iter_mut().map(|c| c.response().status).collect();
    assert!(freed.elapsed() < Duration::from_secs(8), "{:?}", freed.elapsed());
    assert!(statuses.iter().all(|s| [200, 500].contains(s)) && statuses.contains(&200), "{statuses:?}");
    assert_eq!(server.get("/").status, 200);
    let log = server.error_log();
    assert!(!log.contains("no live upstreams") && !log.contains("disabled"), "{log}");
    log
}

#[test]
fn more_connections_than_descriptors_are_warned_of() {
    let text = "worker_processes 1; worker_rlimit_nofile 1024; events { worker_connections 4096; } http { }";
    let (status, said) = Site::whole(text).check();
    assert!(status.success());
    assert!(said.contains("[warn] 4096 worker_connections exceed open file resource limit: 1024"), "{said}");
    let (_, said) = Site::whole(&text.replace("4096", "1024")).check();
    assert!(!said.contains("exceed"), "{said}");
}

/// A peer without TCP_NODELAY holds the second piece back until the first is acknowledged.
#[test]
fn an_answer_in_pieces_on_a_new_connection_is_not_late() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        // None is closed, which would send what is held back.
        let mut open = Vec::new();
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            for piece in ["HTTP/1.1 200 OK\r\n", "Content-Length: 2\r\n", "Connection: close\r\n\r\n", "o", "k"] {
                let _ = stream.write_all(piece.as_bytes());
            }
            open.push(stream);
        }
    });
    let server = Site::server("location / { proxy_pass http://127.0.0.1:@BACKEND@; }").set("BACKEND", port).start();
    let mut client = server.connect();
    let best = (0..10).map(|_| {
        let began = Instant::now();
        assert_eq!(client.get("/").text(), "ok");
        began.elapsed()
    });
    // A delayed ACK takes 40 ms.
    assert!(best.min().unwrap() < Duration::from_millis(20));
}
