//! How connections end.

use crate::harness::{Backend, Reply, Setup, Site};
use crate::http2_floods::{open, request};
use crate::tls::secure;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The answer to a request and what the next read without waiting says: the end, if it came with the answer.
fn answer_and_end(port: u16, request: &str) -> (String, Result<usize, ErrorKind>) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server accepts");
    stream.write_all(request.as_bytes()).expect("room for a request");
    let (mut buffer, mut answer) = ([0; 4096], String::new());
    while !is_whole(&answer) {
        let count = stream.read(&mut buffer).expect("an answer");
        assert!(count > 0, "cut short: {answer}");
        answer += std::str::from_utf8(&buffer[..count]).expect("text");
    }
    stream.set_nonblocking(true).expect("an option");
    (answer, stream.read(&mut buffer).map_err(|e| e.kind()))
}

fn is_whole(answer: &str) -> bool {
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return false };
    head.lines().find_map(|l| l.strip_prefix("Content-Length: ")) == Some(&body.len().to_string())
}

#[test]
fn the_last_answer_and_the_end_come_in_one_packet() {
    let backend = Backend::ok("behind");
    let large = "0123456789".repeat(10_001);
    let server = Site::server(
        "location / { return 200 here; } location = /file { } location = /large { } location = /log { access_log lines; return 200 logged; }
         location = /proxied { proxy_pass http://127.0.0.1:@BACKEND@; }
         location = /kept { keepalive_requests 1; return 200 once; }",
    )
    .set("BACKEND", backend.port)
    .file("html/file", "content")
    .file("html/large", &large)
    .start();
    let port = server.port;
    for (target, body) in [
        ("/", "here"),
        ("/file", "content"),
        ("/large", &large),
        ("/log", "logged"),
        ("/proxied", "behind"),
        ("/kept", "once"),
    ] {
        for _ in 0..10 {
            let connection = if target == "/kept" { "keep-alive" } else { "close" };
            let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: {connection}\r\n\r\n");
            let (answer, end) = answer_and_end(port, &request);
            assert!(answer.ends_with(&format!("\r\n\r\n{body}")), "{target}: {answer}");
            assert_eq!(end, Ok(0), "{target}");
        }
    }
    // Who has seen the end finds the line.
    assert_eq!(server.read("lines").lines().count(), 10);
}

#[test]
fn a_goodbye_of_tls_and_the_end_come_in_one_packet() {
    let server = secure("keepalive_timeout 50ms; return 200 here;").start();
    for _ in 0..10 {
        for request in ["GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"] {
            let mut client = Setup::new().connect(server.port, "localhost");
            client.send(request);
            assert_eq!(client.response(), (200, "here".to_owned()));
            assert!(client.is_closed(), "after the answer, or after a while");
            client.stream.sock.set_nonblocking(true).expect("an option");
            assert_eq!(client.stream.sock.read(&mut [0; 16]).map_err(|e| e.kind()), Ok(0));
        }
    }
}

#[test]
fn a_kept_connection_gets_its_answer_at_once() {
    let server = Site::server("return 200 here;").start();
    let (answer, next) = answer_and_end(server.port, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(answer.ends_with("here"), "{answer}");
    assert_eq!(next, Err(ErrorKind::WouldBlock));
}

#[test]
fn what_a_client_sends_too_late_does_not_cost_it_the_answer() {
    let backend = Backend::start(|_| {
        std::thread::sleep(Duration::from_millis(100));
        Reply::ok("late")
    });
    for lingering in ["on", "off"] {
        let server = Site::server(&format!(
            "lingering_close {lingering}; location / {{ proxy_pass http://127.0.0.1:{}; }}",
            backend.port
        ))
        .start();
        let mut client = server.connect();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab");
        // As old browsers did after the body of a POST; nobody reads it.
        std::thread::sleep(Duration::from_millis(30));
        client.send("\r\n");
        assert_eq!(client.response().text(), "late", "lingering_close {lingering}");
    }
}

#[test]
fn a_request_behind_the_answer_does_not_hold_it_back() {
    let backend = Backend::start(|_| {
        std::thread::sleep(Duration::from_millis(150));
        Reply::ok("after")
    });
    let server = Site::server(
        "location / { post_action /after; return 200 here; } location = /after { proxy_pass http://127.0.0.1:@BACKEND@; }",
    )
    .set("BACKEND", backend.port)
    .start();
    let began = std::time::Instant::now();
    let (answer, _) = answer_and_end(server.port, "GET / HTTP/1.0\r\n\r\n");
    assert!(answer.ends_with("here") && began.elapsed() < Duration::from_millis(100), "{answer}");
}

/// What `worker_shutdown_timeout` cuts off has its line, with nginx's statuses.
#[test]
fn what_a_shutdown_cuts_off_is_logged() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let upgrading = Backend::start(|_| {
        Reply::Keep(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello".to_vec())
    });
    let server = Site::whole(
        "worker_processes 1; worker_shutdown_timeout 300ms; events {} http { log_format f '$status $request_uri'; access_log logs/a.log f;
           server { listen 127.0.0.1:@PORT@; http2 on; root @DIR@/html;
             location /wait { proxy_pass http://127.0.0.1:@SILENT@; }
             location /ask { auth_request /wait; }
             location /up { proxy_pass http://127.0.0.1:@UP@; proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }
             location /slow { limit_rate 1k; } } }",
    )
    .set("SILENT", silent.local_addr().expect("an address").port())
    .set("UP", upgrading.port)
    .file("html/slow", vec![b'x'; 100_000])
    .start();
    let mut clients = Vec::new();
    for (target, more) in [("/wait", ""), ("/ask", ""), ("/up", "Upgrade: x\r\nConnection: upgrade\r\n"), ("/slow", "")]
    {
        let mut client = server.connect();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n{more}\r\n"));
        clients.push(client);
    }
    assert_eq!(clients[2].take(12), b"HTTP/1.1 101");
    assert_eq!(clients[3].take(12), b"HTTP/1.1 200");
    let mut h2 = open(&server);
    h2.send(request(1, "/wait/2"));
    // They are under way: those that wait for the silent one have asked it.
    let asked: Vec<_> = (0..3).map(|_| silent.accept().expect("a request")).collect();
    server.signal(rustix::process::Signal::QUIT);
    for line in ["000 /wait\n", "000 /ask\n", "499 /wait/2\n", "101 /up\n", "200 /slow\n"] {
        server.wait_for("logs/a.log", line);
    }
    assert_eq!(server.read("logs/a.log").lines().count(), 5);
    drop(asked);
}
