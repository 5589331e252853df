//! Clients that are slow on purpose: least rates of heads, bodies and answers, in HTTP/1, HTTP/2 and HTTP/3; places of an address; slowhttptest's three attacks.

use crate::harness::quic::{self, client as quic_client, get as quic_get, quic_site, run};
use crate::harness::{Backend, Client, Server, Site, wait, with_http2};
use http::Request;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Least rates with a short grace, so that tests end soon.
const RATES: &str = "client_header_min_rate 1k grace=1s; client_body_min_rate 1k grace=1s; send_min_rate 1k grace=1s;";
/// Connections of an attack.
const ATTACKERS: usize = 1000;
/// More than the kernel and the server keep of an answer that nobody reads.
const LARGE: usize = 24 << 20;

/// A connection from an address of the loopback network.
pub fn connect_from(ip: Ipv4Addr, port: u16) -> TcpStream {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(IpAddr::V4(ip), 0).into()).unwrap();
    socket.connect(&SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true).unwrap();
    stream
}

fn site(more: &str) -> Server {
    let backend = Backend::ok("taken");
    let port = backend.port;
    // It serves as long as the test's process does.
    std::mem::forget(backend);
    Site::http(&format!(
        "log_format short '$status $request_uri';
         server {{ listen 127.0.0.1:@PORT@; http2 on; access_log @DIR@/logs/short.log short; client_max_body_size 100m; {RATES} {more}
             location / {{ return 200 fine; }}
             location /to {{ proxy_pass http://127.0.0.1:{port}; }}
             location /file {{ alias @DIR@/html/large; }} }}"
    ))
    .file("html/large", vec![b'x'; LARGE])
    .start()
}

/// Sends a byte now and then until the server has closed. How long that took.
fn trickle(stream: &mut TcpStream, byte: &[u8]) -> Duration {
    let began = Instant::now();
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    loop {
        let _ = stream.write_all(byte);
        match stream.read(&mut [0; 64]) {
            Ok(0) => return began.elapsed(),
            Ok(_) => panic!("nothing is answered"),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return began.elapsed(),
        }
        assert!(began.elapsed() < Duration::from_secs(30), "it is never closed");
    }
}

#[test]
fn heads_and_bodies_that_trickle_end() {
    let server = site("");
    let mut slow = Client::connect(server.port);
    slow.send("GET /head HTTP/1.1\r\nHost: a\r\nX-A: ");
    let took = trickle(&mut slow.stream, b"a");
    assert!(took >= Duration::from_millis(900), "its grace is over: {took:?}");
    server.wait_for("logs/error.log", "client is too slow");
    server.wait_for("logs/short.log", "408 /head");
    let mut slow = Client::connect(server.port);
    slow.send("POST /to HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
    trickle(&mut slow.stream, b"a");
    server.wait_for("logs/short.log", "408 /to");
    // A pause is no crime: it is the rate that counts.
    let mut patient = Client::connect(server.port);
    patient.send(format!("GET / HTTP/1.1\r\nHost: a\r\nX-A: {}\r\n", "a".repeat(3000)));
    std::thread::sleep(Duration::from_millis(1300));
    assert_eq!(patient.send("\r\n").response().text(), "fine");
    let mut upload = Client::connect(server.port);
    upload.send("POST /to HTTP/1.1\r\nHost: a\r\nContent-Length: 10000\r\n\r\n");
    for _ in 0..10 {
        upload.send("b".repeat(1000));
        std::thread::sleep(Duration::from_millis(250));
    }
    assert_eq!(upload.response().text(), "taken");
    // Between two requests nobody hurries.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(upload.get("/").text(), "fine");
}

#[test]
fn answers_that_nobody_reads_end() {
    let server = site("");
    let mut stalled = Client::connect(server.port);
    stalled.send("GET /file HTTP/1.1\r\nHost: a\r\n\r\n");
    server.wait_for("logs/error.log", "client is too slow");
    let mut reader = Client::connect(server.port);
    reader.send("GET /file HTTP/1.1\r\nHost: a\r\n\r\n");
    // Slower than it could, faster than it must.
    let (mut room, mut read) = (vec![0; 256 << 10], 0);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(2500) {
        read += reader.stream.read(&mut room).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(read < LARGE);
    while read < LARGE {
        let n = reader.stream.read(&mut room).unwrap();
        assert!(n > 0, "it was cut after {read} bytes");
        read += n;
    }
}

/// What follows a request on its connection is no way around what holds for its answer.
#[test]
fn a_byte_behind_the_request_makes_no_difference() {
    let rates = site("");
    let timeouts = Site::server(
        "send_timeout 1s; location /file { alias @DIR@/html/large; } location /small { alias @DIR@/html/small; }",
    )
    .file("html/large", vec![b'x'; LARGE])
    .file("html/small", vec![b'x'; 30_000])
    .start();
    for (server, why) in [(&rates, "client is too slow"), (&timeouts, "client timed out")] {
        let mut stalled = Client::connect(server.port);
        stalled.send("GET /file HTTP/1.1\r\nHost: a\r\n\r\nG");
        server.wait_for("logs/error.log", why);
    }
    // Many small answers that nobody reads, and half of a request behind them.
    let before = timeouts.error_log().matches("client timed out").count();
    let mut stalled = Client::connect(timeouts.port);
    let _ = stalled.stream.set_nonblocking(true);
    while stalled.stream.write(&b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n".repeat(100)).is_ok() {}
    assert!(wait(|| timeouts.error_log().matches("client timed out").count() > before));
}

#[test]
fn an_address_has_so_many_places_for_slow_requests() {
    let server = Site::server(
        "client_header_min_rate 1k grace=60s; slow_connections_per_address 5; location / { return 200 fine; }
         location /api { api; }",
    )
    .start();
    let open = |ip, n: usize| -> Vec<TcpStream> {
        let one = |_| {
            let mut stream = connect_from(ip, server.port);
            stream.write_all(b"GET / HTTP/1.1\r\nX: ").unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        };
        (0..n).map(one).collect()
    };
    let mut many = open(Ipv4Addr::new(127, 0, 0, 7), 25);
    let mut few = open(Ipv4Addr::new(127, 0, 0, 8), 4);
    let alive = |all: &mut Vec<TcpStream>| {
        all.retain_mut(|stream| matches!(stream.read(&mut [0; 8]), Err(e) if e.kind() == ErrorKind::WouldBlock));
        all.len()
    };
    assert!(wait(|| alive(&mut many) == 5));
    assert_eq!(alive(&mut few), 4, "another address has its own");
    assert!(wait(|| server.get("/api/9/ironweir/shed").text().contains("\"slow_clients\":9")));
    drop(many);
    assert!(wait(|| server.get("/api/9/ironweir/shed").text().contains("\"slow_clients\":4")), "who leaves makes room");
}

/// Connections that say nothing at all were no slow ones, nor those that say HTTP/2's preface only, and half a head of HTTP/2 gave its place back without an end.
#[test]
fn silence_and_half_heads_of_http2_take_places_too() {
    let server = Site::server(
        "http2 on; client_header_min_rate 1k grace=60s; slow_connections_per_address 5; location / { return 200 fine; }
         location /api { api; }",
    )
    .start();
    let block = [0x82, 0x86, 0x84, 0x41, 1, b'a'];
    let frame = [&[0, 0, block.len() as u8, 1, 0, 0, 0, 0, 1][..], &block].concat();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let half = [&preface[..], &frame].concat();
    for (last, said) in [(9, &b""[..]), (10, &half[..]), (11, &preface[..])] {
        let open = |_| {
            let mut stream = connect_from(Ipv4Addr::new(127, 0, 0, last), server.port);
            stream.write_all(said).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        };
        let mut many: Vec<TcpStream> = (0..25).map(open).collect();
        // What HTTP/2 says before it ends is read.
        let is_open = |stream: &mut TcpStream| loop {
            match stream.read(&mut [0; 512]) {
                Ok(n) if n > 0 => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return true,
                _ => return false,
            }
        };
        let alive = |all: &mut Vec<TcpStream>| {
            all.retain_mut(is_open);
            all.len()
        };
        assert!(wait(|| alive(&mut many) == 5), "{last}: {} are open", many.len());
        assert!(wait(|| server.get("/api/9/ironweir/shed").text().contains("\"slow_clients\":5")), "{last}");
        // Who speaks at last is served.
        if said.is_empty() {
            let mut patient = many.pop().unwrap();
            patient.set_nonblocking(false).unwrap();
            patient.write_all(b"GET / HTTP/1.0\r\nHost: a\r\n\r\n").unwrap();
            let mut answer = String::new();
            patient.read_to_string(&mut answer).unwrap();
            assert!(answer.ends_with("fine"), "{answer}");
        }
        drop(many);
        assert!(wait(|| server.get("/api/9/ironweir/shed").text().contains("\"slow_clients\":0")));
    }
    assert!(server.error_log().contains("client is too slow while waiting for request"), "{}", server.error_log());
}

#[test]
fn connections_of_http3_that_ask_nothing_take_places_too() {
    let rates = "client_header_min_rate 1k grace=60s; slow_connections_per_address 3;";
    let server = quic_site("", &format!("{rates} location / {{ return 200 fine; }} location /api {{ api; }}"))
        .set("THREADS", 1)
        .start();
    run(async {
        let endpoint = quic::endpoint(b"h3");
        let mut all = Vec::new();
        for _ in 0..8 {
            all.push(quic::connect(&endpoint, server.port).await);
        }
        let end = Instant::now() + Duration::from_secs(20);
        let alive = || all.iter().filter(|connection| connection.close_reason().is_none()).count();
        while alive() > 3 && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(alive(), 3);
    });
    assert!(server.error_log().contains("client is too slow"), "{}", server.error_log());
}

#[test]
fn http2_is_judged_the_same() {
    let server = site("");
    // HPACK: GET, http, /, and a name whose value never comes.
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let block = [0x82, 0x86, 0x84, 0x41, 1, b'a'];
    let frame = [&[0, 0, block.len() as u8, 1, 0, 0, 0, 0, 1][..], &block].concat();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    stream.write_all(&frame).unwrap();
    server.wait_for("logs/error.log", "client is too slow while processing HTTP/2");
    // Nothing else can be asked until the head ends, so the connection does.
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut said = Vec::new();
    let ended = stream.read_to_end(&mut said);
    assert!(
        ended.is_ok() || ended.is_err_and(|e| e.kind() == ErrorKind::ConnectionReset),
        "it is never closed: {said:?}"
    );
    with_http2(&server, async |requests| {
        let mut requests = requests.ready().await.unwrap();
        let request = Request::post("http://a/to?h2body").body(()).unwrap();
        let (answer, mut body) = requests.send_request(request, false).unwrap();
        body.send_data(bytes::Bytes::from_static(b"a"), false).unwrap();
        assert!(answer.await.is_err(), "the stream ends with an error");
    });
    server.wait_for("logs/short.log", "408 /to?h2body");
    with_http2(&server, async |requests| {
        let mut requests = requests.ready().await.unwrap();
        let request = Request::get("http://a/file?h2").body(()).unwrap();
        let (answer, _) = requests.send_request(request, true).unwrap();
        let mut answer = answer.await.unwrap();
        // The window is never opened: at its end there is an error.
        loop {
            match answer.body_mut().data().await {
                Some(Ok(_)) => {}
                Some(Err(_)) => break,
                None => panic!("it was not cut"),
            }
        }
    });
}

#[test]
fn http3_is_judged_the_same() {
    let backend = Backend::ok("taken");
    let server = quic_site(
        "log_format short '$status $request_uri';",
        &format!(
            "access_log @DIR@/logs/short.log short; {RATES} location / {{ return 200 fine; }} location /to {{ proxy_pass http://127.0.0.1:@BACKEND@; }}
                  location /file {{ alias @DIR@/html/large; }}"
        ),
    )
    .file("html/large", vec![b'x'; LARGE])
    .set("BACKEND", backend.port)
    .set("THREADS", 1)
    .start();
    run(async {
        let (_endpoint, mut requests) = quic_client(server.port).await;
        let mut stream = requests.send_request(Request::post("https://localhost/to").body(()).unwrap()).await.unwrap();
        stream.send_data(bytes::Bytes::from_static(b"a")).await.unwrap();
        assert!(stream.recv_response().await.is_err(), "the stream ends with an error");
        server.wait_for("logs/short.log", "408 /to");
        let mut stream = requests.send_request(quic_get("/file")).await.unwrap();
        stream.finish().await.unwrap();
        assert_eq!(stream.recv_response().await.unwrap().status(), 200);
        let said = || server.error_log().matches("client is too slow").count() >= 2;
        while !said() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // A frame of a head, with the first bytes of forty.
        let endpoint = quic::endpoint(b"h3");
        let connection = quic::connect(&endpoint, server.port).await;
        let (mut slow, _nothing) = connection.open_bi().await.unwrap();
        slow.write_all(&[1, 40, 0, 0]).await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(20), connection.closed()).await;
        assert!(matches!(ended, Ok(quinn::ConnectionError::ApplicationClosed(_))), "{ended:?}");
    });
}

/// Every attacker is closed while others are served, and none takes more memory than `kb_each`. `begin`: what an attacker sends first; `more`: and then now and then.
fn attack(begin: &str, more: &[u8], kb_each: usize) {
    let server = Site::whole(&format!(
        "worker_processes 1; events {{ worker_connections 4096; }} http {{ access_log off;
         server {{ listen 127.0.0.1:@PORT@ sndbuf=64k; client_max_body_size 100m; send_timeout 300s; {RATES}
             location / {{ return 200 fine; }} location /to {{ client_body_buffer_size 16k; proxy_pass http://127.0.0.1:1; }}
             location /file {{ alias @DIR@/html/large; }} }} }}"
    ))
    .file("html/large", vec![b'x'; LARGE])
    .start();
    let before = server.own_memory_kb();
    let attacker = |n: usize| {
        let mut stream = connect_from(Ipv4Addr::new(127, 1, (n / 250) as u8, (n % 250 + 1) as u8), server.port);
        stream.write_all(begin.as_bytes()).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    };
    let mut attackers: Vec<TcpStream> = (0..ATTACKERS).map(attacker).collect();
    let (began, mut slowest, mut most) = (Instant::now(), Duration::ZERO, 0);
    while !attackers.is_empty() {
        assert!(began.elapsed() < Duration::from_secs(60), "{} are left", attackers.len());
        attackers.retain_mut(|stream| {
            if more.is_empty() {
                // Who reads nothing sees the end in what the kernel says of the socket.
                let mut byte = [0];
                return !matches!(stream.peek(&mut byte), Ok(0))
                    && stream.take_error().is_ok_and(|e| e.is_none())
                    && rst(stream);
            }
            let _ = stream.write(more);
            matches!(stream.read(&mut [0; 512]), Err(e) if e.kind() == ErrorKind::WouldBlock)
        });
        let asked = Instant::now();
        assert_eq!(server.get("/").text(), "fine", "service is available");
        slowest = slowest.max(asked.elapsed());
        most = most.max(server.own_memory_kb());
        std::thread::sleep(Duration::from_millis(100));
    }
    println!(
        "{begin:?}: closed after {:?}, the slowest answer took {slowest:?}, {} kB more",
        began.elapsed(),
        most - before.min(most)
    );
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    assert!(most < before + ATTACKERS * kb_each, "{most} kB, before {before} kB");
}

/// Whether the server still holds its end: a write does not fail. (What it has sent is unread, so a read does not tell.)
fn rst(stream: &mut TcpStream) -> bool {
    let info = rustix::net::sockopt::socket_error(&*stream);
    matches!(info, Ok(Ok(()))) && stream.write(b"\r\n").is_ok()
}

#[test]
fn slow_heads_of_a_thousand() {
    attack("GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: slowhttptest\r\n", b"X-a: b\r\n", 32);
}

#[test]
fn slow_bodies_of_a_thousand() {
    attack("POST /to HTTP/1.1\r\nHost: a\r\nContent-Length: 8192\r\n\r\n", b"x=y", 32);
}

#[test]
fn slow_readers_of_a_thousand() {
    // A request whose answer is under way has its head, its answer's headers and an open file: some 40 kB.
    attack("GET /file HTTP/1.1\r\nHost: a\r\n\r\n", b"", 64);
}
