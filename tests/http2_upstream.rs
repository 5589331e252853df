//! `proxy_http_version 2`: requests of many clients over shared connections, with the crate `h2` as the server.

use crate::harness::{Asked, Client, Http2Backend, Program, Server, Site, has_tools, wait};
use h2::Reason;
use http::Response;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use wire::http2::PREFACE;
use wire::http2::frame::{FrameHeader, flag, kind};
use wire::http2::hpack::encoder::Encoder;

fn site(backend: &Http2Backend, location: &str) -> Server {
    let group = format!("upstream u {{ server 127.0.0.1:{}; }}", backend.port);
    Site::http(&format!(
        "{group} server {{ listen 127.0.0.1:@PORT@; location / {{ proxy_pass http://u; proxy_http_version 2; {location} }} }}"
    ))
    .start()
}

/// Says what was asked.
async fn echo(mut asked: Asked) {
    let body = asked.read().await;
    let head = &asked.head;
    let authority = head.uri.authority().map_or("", |a| a.as_str());
    let header = |name: &str| head.headers.get(name).map_or("-", |v| v.to_str().unwrap()).to_owned();
    let text = format!(
        "{} {} {authority} x={} length={} {}",
        head.method,
        head.uri.path_and_query().unwrap(),
        header("x-some"),
        header("content-length"),
        String::from_utf8_lossy(&body)
    );
    asked.ok(text).await;
}

#[test]
fn requests_go_over_one_connection() {
    let backend = Http2Backend::start(echo);
    let server = site(&backend, "");
    let mut client = Client::connect(server.port);
    let answer = client.get("/a?b=c");
    assert_eq!((answer.status, answer.text().as_str()), (200, "GET /a?b=c u x=- length=- "));
    client.send(
        "POST /p HTTP/1.1\r\nHost: h\r\nX-Some: thing\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\nbody",
    );
    assert_eq!(client.response().text(), "POST /p u x=thing length=4 body");
    let mut others: Vec<_> = (0..20).map(|_| Client::connect(server.port)).collect();
    for other in &mut others {
        other.send("GET /many HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    for other in &mut others {
        let answer = other.response();
        assert_eq!((answer.status, answer.header("x-connection")), (200, Some("1")));
    }
    assert_eq!(backend.connections(), 1);
}

fn post(client: &mut Client, path: &str, body: &[u8]) {
    client.send(format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len())).send(body);
}

fn large() -> Vec<u8> {
    (0..500_000u32).flat_map(u32::to_le_bytes).collect()
}

#[test]
fn bodies_go_through_windows_both_ways() {
    let backend = Http2Backend::start(async |mut asked: Asked| {
        let body = asked.read().await;
        asked.ok(body).await;
    });
    let server = Site::http(&format!(
        "upstream u {{ server 127.0.0.1:{}; }} client_max_body_size 0; client_body_buffer_size 16k;
         server {{ listen 127.0.0.1:@PORT@; proxy_http_version 2;
                   location / {{ proxy_pass http://u; }}
                   location /streamed {{ proxy_request_buffering off; proxy_buffering off; proxy_pass http://u; }} }}",
        backend.port
    ))
    .start();
    let body = large();
    for path in ["/", "/streamed"] {
        let mut client = Client::connect(server.port);
        let mut sender = client.stream.try_clone().unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
        let all = [head.as_bytes(), &body].concat();
        let sending = std::thread::spawn(move || sender.write_all(&all).is_ok());
        let answer = client.response();
        assert!(sending.join().unwrap());
        assert_eq!(answer.status, 200, "{}", server.error_log());
        assert!(answer.body == body, "{} bytes of {}", answer.body.len(), body.len());
    }
    let mut client = Client::connect(server.port);
    client.send("POST /streamed HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    client.send("2\r\nde\r\n0\r\n\r\n");
    assert_eq!(client.response().text(), "abcde");
    assert_eq!(backend.connections(), 1);
}

#[test]
fn a_slow_client_holds_back_its_own_stream_only() {
    const LARGE: usize = 32 << 20;
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let backend = Http2Backend::start(move |mut asked: Asked| {
        let count = count.clone();
        async move {
            if asked.head.uri.path() != "/large" {
                return asked.ok("small").await;
            }
            let mut out = asked.respond.send_response(Response::new(()), false).unwrap();
            let piece = vec![b'x'; 64 * 1024];
            while count.load(Ordering::SeqCst) < LARGE {
                crate::harness::send_all(&mut out, piece.clone(), false).await;
                count.fetch_add(piece.len(), Ordering::SeqCst);
            }
            crate::harness::send_all(&mut out, vec![b'y'], true).await;
        }
    });
    let server = site(&backend, "proxy_buffering off;");
    let mut slow = Client::connect(server.port);
    slow.send("GET /large HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut before = 0;
    // The backend comes to a stand when every buffer on the way is full.
    assert!(wait(|| {
        std::thread::sleep(Duration::from_millis(100));
        let now = sent.load(Ordering::SeqCst);
        now > 0 && std::mem::replace(&mut before, now) == now
    }));
    assert!(before < LARGE);
    let mut quick = Client::connect(server.port);
    for _ in 0..50 {
        assert_eq!(quick.get("/small").text(), "small");
    }
    assert_eq!(slow.response().body.len(), LARGE + 1);
    assert_eq!(backend.connections(), 1);
}

#[test]
fn the_peer_says_how_many_streams() {
    let mut settings = h2::server::Builder::new();
    settings.max_concurrent_streams(2);
    let backend = Http2Backend::with(settings, async |asked: Asked| {
        tokio::time::sleep(Duration::from_millis(50)).await;
        asked.ok("x").await;
    });
    let server = site(&backend, "");
    // The connection is there, and its settings are known.
    assert_eq!(server.get("/").status, 200);
    let mut clients: Vec<_> = (0..6).map(|_| Client::connect(server.port)).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    for client in &mut clients {
        assert_eq!(client.response().status, 200, "{}", server.error_log());
    }
    assert!((2..=4).contains(&backend.connections()), "{}", backend.connections());
}

#[test]
fn refused_streams_are_asked_again_and_others_are_not() {
    let asked_for = Arc::new(AtomicUsize::new(0));
    let count = asked_for.clone();
    let backend = Http2Backend::start(move |mut asked: Asked| {
        let count = count.clone();
        async move {
            let first = count.fetch_add(1, Ordering::SeqCst) == 0;
            match asked.head.uri.path() {
                "/refused" if first => asked.respond.send_reset(Reason::REFUSED_STREAM),
                "/always" => asked.respond.send_reset(Reason::REFUSED_STREAM),
                "/canceled" => asked.respond.send_reset(Reason::CANCEL),
                _ => asked.ok("taken").await,
            }
        }
    });
    let server = site(&backend, "");
    let mut client = Client::connect(server.port);
    post(&mut client, "/refused", b"body");
    let answer = client.response();
    assert_eq!((answer.status, answer.text().as_str()), (200, "taken"), "{}", server.error_log());
    assert_eq!((client.get("/always").status, client.get("/canceled").status), (502, 502));
    assert_eq!(asked_for.load(Ordering::SeqCst), 2 + 2 + 1);
    let log = server.error_log();
    assert!(
        log.contains("upstream rejected request with error 8 while reading response header from upstream"),
        "{log}"
    );
    assert!(log.contains("upstream rejected request with error 7"), "{log}");
}

#[test]
fn a_client_that_goes_away_ends_its_stream_and_a_slow_answer_times_out() {
    let ended = Arc::new(AtomicUsize::new(0));
    let count = ended.clone();
    let backend = Http2Backend::start(move |mut asked: Asked| {
        let count = count.clone();
        async move {
            if asked.head.uri.path() == "/" {
                return asked.ok("x").await;
            }
            if let Ok(Reason::CANCEL) = std::future::poll_fn(|cx| asked.respond.poll_reset(cx)).await {
                count.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    let server = site(&backend, "proxy_read_timeout 300ms;");
    assert_eq!(server.get("/").status, 200);
    let mut gone = Client::connect(server.port);
    gone.send("GET /never HTTP/1.1\r\nHost: h\r\n\r\n");
    drop(gone);
    let mut slow = Client::connect(server.port);
    assert_eq!(slow.get("/never").status, 504);
    assert!(wait(|| ended.load(Ordering::SeqCst) == 2));
    assert_eq!(slow.get("/").status, 200);
}

/// A peer that is written byte for byte: it reads a request, and says what `say` writes.
fn raw(say: impl Fn(&mut std::net::TcpStream, u32, usize) + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut preface = [0; PREFACE.len()];
            if stream.read_exact(&mut preface).is_err() {
                continue;
            }
            let _ = stream.write_all(&frame(kind::SETTINGS, 0, 0, b""));
            while let Some(id) = next_request(&mut stream) {
                say(&mut stream, id, number);
            }
        }
    });
    port
}

/// Reads frames up to a request's head.
fn next_request(stream: &mut std::net::TcpStream) -> Option<u32> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).ok()?;
        let header = FrameHeader::parse(&head).unwrap();
        let mut payload = vec![0; header.len];
        stream.read_exact(&mut payload).ok()?;
        if header.kind == kind::HEADERS {
            return Some(header.stream);
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = FrameHeader { len: payload.len(), kind, flags, stream }.bytes().to_vec();
    out.extend_from_slice(payload);
    out
}

fn ok(stream: u32) -> Vec<u8> {
    let mut block = Vec::new();
    Encoder::default().status(200, &mut block);
    frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, &block)
}

fn front(port: u16) -> Server {
    Site::http(&format!(
        "upstream u {{ server 127.0.0.1:{port}; }}
         server {{ listen 127.0.0.1:@PORT@; location / {{ proxy_http_version 2; proxy_pass http://u; }} }}"
    ))
    .start()
}

#[test]
fn a_request_above_the_last_stream_of_goaway_goes_elsewhere() {
    // The first connection answers once and then takes nothing more.
    let port = raw(|stream, id, number| {
        let goaway = frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
        let said = if number == 0 && id > 1 { goaway } else { ok(id) };
        let _ = stream.write_all(&said);
        if number == 0 && id > 1 {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    });
    let server = front(port);
    let mut client = Client::connect(server.port);
    assert_eq!(client.get("/").status, 200);
    post(&mut client, "/", b"not to be lost");
    assert_eq!(client.response().status, 200, "{}", server.error_log());
    assert!(!server.error_log().contains("[error]"), "{}", server.error_log());
}

#[test]
fn data_before_a_head_is_no_answer() {
    // As text it would be one of HTTP/1.
    let forged = b"HTTP/1.1 200 OK\r\nX-Forged: yes\r\nContent-Length: 2\r\n\r\n";
    let port = raw(move |stream, id, _| {
        let _ = stream.write_all(&frame(kind::DATA, 0, id, forged));
        let _ = stream.write_all(&ok(id));
    });
    let server = front(port);
    let answer = server.get("/");
    assert_eq!((answer.status, answer.header("X-Forged")), (502, None));
    let log = server.error_log();
    assert!(log.contains("upstream sent DATA before HEADERS while reading response header from upstream"), "{log}");
}

#[test]
fn floods_of_a_peer_cost_it_the_connection() {
    /// The frames of a flood on a stream.
    type Frames = fn(u32) -> Vec<u8>;
    let floods: [(&str, Frames); 5] = [
        ("http2 flood detected", |_| frame(kind::SETTINGS, 0, 0, b"").repeat(20_000)),
        ("http2 flood detected", |_| frame(kind::PING, 0, 0, &[0; 8]).repeat(20_000)),
        ("upstream sent too large header", |id| {
            let pieces = frame(kind::CONTINUATION, 0, id, &[0x88; 16]).repeat(1_000);
            [frame(kind::HEADERS, 0, id, &[0x88]), pieces].concat()
        }),
        ("upstream sent too large header", |id| {
            // One field is put into the table, and then named again and again.
            let mut block = vec![0x88, 0x40, 1, b'x', 0x7f, 0x81, 0x1e];
            block.resize(block.len() + 0x7f + 0x81 - 0x80 + (0x1e << 7), b'y');
            block.extend(vec![0xbe; 10_000]);
            frame(kind::HEADERS, flag::END_HEADERS, id, &block)
        }),
        ("upstream sent PUSH_PROMISE frame", |id| {
            frame(kind::PUSH_PROMISE, flag::END_HEADERS, id, &[0, 0, 0, 2, 0x88])
        }),
    ];
    for (text, flood) in floods {
        let port = raw(move |stream, id, _| {
            let _ = stream.write_all(&flood(id));
        });
        let server = front(port);
        let began = Instant::now();
        assert_eq!(server.get("/").status, 502, "{text}");
        assert!(server.error_log().contains(text), "{text}: {}", server.error_log());
        assert!(began.elapsed() < Duration::from_secs(10), "{text}");
    }
}

#[test]
fn floods_on_an_idle_connection_are_logged_and_end_it() {
    let port = raw(|stream, id, number| {
        let _ = stream.write_all(&ok(id));
        if number == 0 {
            let _ = stream.write_all(&frame(kind::PING, 0, 0, &[0; 8]).repeat(20_000));
        }
    });
    let server = front(port);
    assert_eq!(server.get("/").status, 200);
    server.wait_for("logs/error.log", &format!("http2 flood detected, upstream: \"127.0.0.1:{port}\""));
    assert_eq!(server.get("/").status, 200);
}

#[test]
fn tls_agrees_on_http2() {
    if !has_tools() {
        return;
    }
    let server = Site::http(
        "upstream u { server 127.0.0.1:@OTHER@; }
         server { listen 127.0.0.1:@PORT@;
                  location / { proxy_http_version 2; proxy_ssl_verify on; proxy_ssl_trusted_certificate root.crt;
                               proxy_ssl_name backend; proxy_pass https://u; }
                  location /old { proxy_pass https://u; } }
         server { listen 127.0.0.1:@OTHER@ ssl; http2 on; ssl_certificate backend.crt; ssl_certificate_key backend.key;
                  location / { return 200 $server_protocol:$ssl_alpn_protocol:$scheme:$connection; } }",
    )
    .certificate("root")
    .issued("backend", "root", "30")
    .start();
    let first = server.get("/").text();
    assert!(first.starts_with("HTTP/2.0:h2:https:"), "{first} {}", server.error_log());
    assert_eq!(server.get("/").text(), first, "the same connection");
    assert!(server.get("/old").text().starts_with("HTTP/1.1::https:"));
}

#[test]
fn nginx_is_asked_and_asks() {
    let backend = Http2Backend::start(echo);
    let Some(middle) = Site::http(&format!(
        "server {{ listen 127.0.0.1:@PORT@ http2; location / {{ grpc_pass grpc://127.0.0.1:{}; }} }}",
        backend.port
    ))
    .start_as(Program::Nginx) else {
        return;
    };
    let server = Site::http(&format!(
        "upstream u {{ server 127.0.0.1:{}; }}
         server {{ listen 127.0.0.1:@PORT@; location / {{ proxy_http_version 2; proxy_pass http://u; }} }}
         server {{ listen 127.0.0.1:@OTHER@; http2 on; location / {{ proxy_http_version 2; proxy_pass http://u; }} }}",
        middle.port
    ))
    .start();
    let mut client = Client::connect(server.port);
    for i in 0..5 {
        post(&mut client, "/p", b"through nginx");
        let answer = client.response();
        assert_eq!(answer.status, 200, "{i}: {}", server.error_log());
        assert!(answer.text().ends_with("length=13 through nginx"), "{}", answer.text());
    }
}
