//! `tunnel_pass`: CONNECT through the server, where it is let in.

use crate::harness::quic::{connect as quic_connection, endpoint, quic_site, run};
use crate::harness::{Backend, Site, with_http2};
use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use wire::http3::frame::{self, kind};
use wire::http3::qpack::encoder;

fn connect(server: &crate::harness::Server, line: &str, more: &str) -> (u16, crate::harness::Client) {
    let mut client = server.connect();
    client.send(format!("{line}\r\nHost: x\r\n{more}\r\n"));
    let status = client.read_response(true).unwrap().status;
    (status, client)
}

#[test]
fn clients_reach_others_through_the_server() {
    let backend = Backend::ok("hello");
    let server = Site::http(
        "log_format f '$status $upstream_addr $request_method'; tunnel_connect_timeout 2s;
         upstream group { server 127.0.0.1:1 max_fails=0; server 127.0.0.1:@BACKEND@; }
         server { listen 127.0.0.1:@PORT@; access_log @DIR@/logs/tunnel.log f;
             allow 127.0.0.1; deny all;
             location / { if ($request_method = CONNECT) { tunnel_pass; break; } return 200 plain; } }
         server { listen 127.0.0.1:@PORT@; server_name fixed; allow all; tunnel_pass group; }
         server { listen 127.0.0.1:@PORT@; server_name closed; deny all; tunnel_pass; }
         server { listen 127.0.0.1:@PORT@; server_name secret; auth_basic r; auth_basic_user_file users; tunnel_pass group; }
         server { listen 127.0.0.1:@PORT@; server_name none; location / { return 200 plain; } }",
    )
    .set("BACKEND", backend.port)
    .file("users", "me:{PLAIN}word\n")
    .start();
    let to = format!("CONNECT 127.0.0.1:{} HTTP/1.1", backend.port);
    let (status, mut client) = connect(&server, &to, "");
    assert_eq!(status, 200);
    let r = client.send("GET /through HTTP/1.1\r\nHost: backend\r\n\r\n").response();
    assert_eq!((r.text().as_str(), backend.seen()[0].line()), ("hello", "GET /through HTTP/1.1"));
    drop(client);
    // What came with the head goes through, too.
    let early = "GET /early HTTP/1.1\r\nHost: backend\r\n\r\n";
    let mut client = server.connect();
    client.send(format!("{to}\r\nHost: x\r\n\r\n{early}"));
    assert_eq!(client.read_response(true).unwrap().status, 200);
    assert_eq!(client.response().text(), "hello");
    drop(client);
    server.wait_for("logs/tunnel.log", &format!("200 127.0.0.1:{} CONNECT", backend.port));
    // A group of the configuration, whatever the client names; the peer that refuses is passed over.
    let (status, mut client) = connect(&server, "CONNECT fixed:99 HTTP/1.1", "");
    assert_eq!(status, 200);
    assert_eq!(client.send("GET / HTTP/1.1\r\nHost: b\r\n\r\n").response().text(), "hello");
    for (line, more, expected) in [
        ("CONNECT closed:1 HTTP/1.1", "", 403),
        ("CONNECT none:1 HTTP/1.1", "", 405),
        ("CONNECT secret:1 HTTP/1.1", "Authorization: Basic bWU6d29yZA==\r\n", 407),
        ("CONNECT secret:1 HTTP/1.1", "Proxy-Authorization: Basic bWU6d29yZA==\r\n", 200),
        ("CONNECT 127.0.0.1:1 HTTP/1.1", "", 502),
        ("CONNECT 127.0.0.1:1 HTTP/1.0", "", 405),
        ("CONNECT 127.0.0.1 HTTP/1.1", "", 400),
        ("CONNECT :80 HTTP/1.1", "", 400),
        ("CONNECT 127.0.0.1:1 HTTP/1.1", "Content-Length: 3\r\n", 400),
        ("GET / HTTP/1.1", "", 200),
    ] {
        assert_eq!(connect(&server, line, more).0, expected, "{line}");
    }
}

/// The module that many have for this: CONNECT beside the locations of other requests.
#[test]
fn connect_beside_locations() {
    let backend = Backend::ok("hello");
    let other = Backend::ok("other");
    let server = Site::http(
        "log_format f '$status $connect_host $connect_port $request_method';
         server { listen 127.0.0.1:@PORT@; access_log @DIR@/logs/tunnel.log f; allow 127.0.0.1; deny all;
             proxy_connect; proxy_connect_allow @BACKEND@ 1-2; proxy_connect_connect_timeout 2s; proxy_connect_read_timeout 9s;
             location / { return 200 plain; } location = /deny { deny all; } }
         server { listen 127.0.0.1:@PORT@; server_name usual; allow all; proxy_connect; root nowhere; }
         server { listen 127.0.0.1:@PORT@; server_name led; allow all; proxy_connect; proxy_connect_allow all;
             if ($connect_port = 5) { return 418; } set $to 127.0.0.1:@AWAY@; if ($connect_port = @BACKEND@) { set $to 127.0.0.1; } proxy_connect_address $to; }
         server { listen 127.0.0.1:@PORT@; server_name secret; auth_basic r; auth_basic_user_file users; proxy_connect; proxy_connect_allow all; }",
    )
    .set("BACKEND", backend.port)
    .set("AWAY", other.port)
    .file("users", "me:{PLAIN}word\n")
    .start();
    let through = |line: &str, more: &str| {
        let (status, mut client) = connect(&server, line, more);
        assert_eq!(status, 200, "{line}");
        client.send("GET /through HTTP/1.1\r\nHost: backend\r\n\r\n").response().text()
    };
    assert_eq!(through(&format!("CONNECT 127.0.0.1:{} HTTP/1.1", backend.port), ""), "hello");
    server.wait_for("logs/tunnel.log", &format!("200 127.0.0.1 {} CONNECT", backend.port));
    assert_eq!(through(&format!("CONNECT led:{} HTTP/1.1", backend.port), ""), "hello");
    assert_eq!(through("CONNECT led:9 HTTP/1.1", ""), "other");
    for (line, more, expected) in [
        ("CONNECT 127.0.0.1:1 HTTP/1.1", "", 502),
        ("CONNECT 127.0.0.1:3 HTTP/1.1", "", 403),
        ("CONNECT usual:80 HTTP/1.1", "", 403),
        ("CONNECT led:5 HTTP/1.1", "", 418),
        ("CONNECT secret:1 HTTP/1.1", "", 407),
        ("GET / HTTP/1.1", "", 200),
        ("GET /deny HTTP/1.1", "", 403),
    ] {
        assert_eq!(connect(&server, line, more).0, expected, "{line}");
    }
    assert_eq!(server.get("/").text(), "plain");
    let said = |text: &str| Site::server(text).check().1;
    assert!(said("proxy_connect;").contains("\"proxy_connect\" lets every client reach every address"));
    assert!(said("proxy_connect; proxy_connect_allow 5-4;").contains("invalid port \"5-4\""));
    assert!(said("proxy_connect; proxy_connect_address 127.0.0.1 there;").contains("invalid parameter \"there\""));
    assert!(said("proxy_connect; tunnel_pass;").contains("is duplicate"));
    assert!(said("location / { proxy_connect; }").contains("is not allowed here"));
}

/// Whoever opens it to everybody is told so.
#[test]
fn an_open_proxy_is_warned_of() {
    let said = |text: &str| Site::server(text).check().1;
    let warning = "lets every client reach every address";
    assert!(said("tunnel_pass;").contains(warning));
    for guarded in [
        "allow 10.0.0.0/8; deny all; tunnel_pass;",
        "tunnel_pass 127.0.0.1:80;",
        "auth_request /a; tunnel_pass $host:443;",
    ] {
        assert!(!said(guarded).contains(warning), "{guarded}");
    }
}

/// A peer of raw TCP: `answer` is told what came until the client's end, and gives what is said then. For a WebSocket the handshake
/// comes first; what follows is said back at once.
fn peer(websocket: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut head = Vec::new();
                while websocket && !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    if stream.read(&mut byte).unwrap_or(0) == 0 {
                        return;
                    }
                    head.push(byte[0]);
                }
                let head = String::from_utf8(head).unwrap().to_lowercase();
                let line = head.lines().next().unwrap_or("").to_owned();
                let asked = head.contains("\r\nupgrade: websocket\r\n") && head.contains("\r\nsec-websocket-key: ");
                if websocket && !asked {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno");
                    return;
                }
                if websocket {
                    let said = format!(
                        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                         Sec-WebSocket-Accept: x\r\nSec-WebSocket-Protocol: chat\r\n\r\n[{line}]"
                    );
                    stream.write_all(said.as_bytes()).unwrap();
                }
                let (mut buffer, mut all) = ([0; 4096], 0);
                loop {
                    match stream.read(&mut buffer) {
                        Ok(0) | Err(_) => break,
                        Ok(n) if buffer[..n].contains(&b'!') => {
                            // The connection ends with a reset.
                            let linger = socket2::SockRef::from(&stream).set_linger(Some(std::time::Duration::ZERO));
                            linger.unwrap();
                            return;
                        }
                        Ok(n) => {
                            all += n;
                            if stream.write_all(&buffer[..n]).is_err() {
                                return;
                            }
                        }
                    }
                }
                let _ = stream.write_all(format!("<{all}>").as_bytes());
                let _ = stream.shutdown(Shutdown::Write);
            });
        }
    });
    port
}

/// Opens a tunnel. Gives the status, and both directions.
async fn open(
    requests: &SendRequest<Bytes>,
    request: Request<()>,
) -> (http::Response<()>, h2::SendStream<Bytes>, h2::RecvStream) {
    let mut requests = requests.clone().ready().await.unwrap();
    let (answer, up) = requests.send_request(request, false).unwrap();
    let (head, down) = answer.await.unwrap().into_parts();
    (http::Response::from_parts(head, ()), up, down)
}

/// Reads until so many bytes are there, or the end.
async fn take(down: &mut h2::RecvStream, n: usize) -> Result<Vec<u8>, h2::Error> {
    let mut all = Vec::new();
    while all.len() < n
        && let Some(piece) = down.data().await
    {
        let piece = piece?;
        down.flow_control().release_capacity(piece.len()).unwrap();
        all.extend_from_slice(&piece);
    }
    Ok(all)
}

fn to(authority: &str) -> Request<()> {
    let uri = http::Uri::builder().authority(authority).build().unwrap();
    Request::builder().method(Method::CONNECT).uri(uri).version(http::Version::HTTP_2).body(()).unwrap()
}

fn websocket(url: &str) -> Request<()> {
    let request = Request::builder().method(Method::CONNECT).uri(url).header("sec-websocket-version", "13");
    request.extension(h2::ext::Protocol::from_static("websocket")).body(()).unwrap()
}

/// RFC 9113 section 8.5: both directions, each with its own end; a peer that fails is CONNECT_ERROR.
#[test]
fn connect_in_a_stream_of_http2() {
    let server = Site::http(
        "log_format f '$status $request_method \"$request\" $upstream_addr';
         server { listen 127.0.0.1:@PORT@; http2 on; access_log @DIR@/logs/tunnel.log f; allow 127.0.0.1; deny all; tunnel_pass; }
         server { listen 127.0.0.1:@PORT@; server_name none; http2 on; location / { return 200 plain; } }",
    )
    .start();
    let port = peer(false);
    with_http2(&server, async |requests| {
        let place = format!("127.0.0.1:{port}");
        let (head, mut up, mut down) = open(&requests, to(&place)).await;
        assert_eq!((head.status().as_u16(), head.headers().get("content-length")), (200, None));
        up.send_data(Bytes::from_static(b"hello"), false).unwrap();
        assert_eq!(take(&mut down, 5).await.unwrap(), b"hello");
        up.send_data(Bytes::from_static(b" there"), true).unwrap();
        assert_eq!(take(&mut down, 100).await.unwrap(), b" there<11>");
        // Much in both directions: no side is read faster than the other takes it.
        let (_, mut up, mut down) = open(&requests, to(&place)).await;
        let much: usize = 3_000_000;
        let write = async {
            let mut left = Bytes::from(vec![b'x'; much]);
            while !left.is_empty() {
                up.reserve_capacity(left.len());
                let n = std::future::poll_fn(|cx| up.poll_capacity(cx)).await.unwrap().unwrap();
                up.send_data(left.split_to(n.min(left.len())), left.is_empty()).unwrap();
            }
        };
        let (_, all) = tokio::join!(write, take(&mut down, much * 2));
        assert_eq!(all.unwrap().len(), much + format!("<{much}>").len());
        // A peer that breaks off.
        let (_, mut up, mut down) = open(&requests, to(&place)).await;
        up.send_data(Bytes::from_static(b"!"), false).unwrap();
        assert_eq!(take(&mut down, 100).await.unwrap_err().reason(), Some(h2::Reason::CONNECT_ERROR));
        // Who is not there, and who may not be asked.
        for (place, status) in [("127.0.0.1:1", 502), ("none:80", 405), ("127.0.0.1", 400)] {
            assert_eq!(open(&requests, to(place)).await.0.status().as_u16(), status, "{place}");
        }
        // The connection serves others meanwhile.
        let (_, _up, _down) = open(&requests, to(&place)).await;
        let get = Request::get("http://none/").body(()).unwrap();
        let mut requests = requests.clone().ready().await.unwrap();
        assert_eq!(requests.send_request(get, true).unwrap().0.await.unwrap().status().as_u16(), 200);
    });
    server.wait_for("logs/tunnel.log", &format!("200 CONNECT \"CONNECT 127.0.0.1:{port} HTTP/2.0\" 127.0.0.1:{port}"));
}

const WEBSOCKETS: &str = "extended_connect on; location /ws { proxy_pass http://127.0.0.1:@PEER@; proxy_http_version 1.1;
     proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $http_connection; }
     location /deaf { proxy_pass http://127.0.0.1:@PEER@; } location /file { return 200 plain; } location /no { return 403; }";

/// RFC 8441: a WebSocket in a stream, its peer speaks HTTP/1.1.
#[test]
fn a_websocket_in_a_stream_of_http2() {
    let server = Site::server(&format!("http2 on; {WEBSOCKETS}")).set("PEER", peer(true)).start();
    with_http2(&server, async |requests| {
        let get = Request::get("http://localhost/file").body(()).unwrap();
        assert_eq!(requests.clone().send_request(get, true).unwrap().0.await.unwrap().status().as_u16(), 200);
        assert!(requests.is_extended_connect_protocol_enabled());
        let (head, mut up, mut down) = open(&requests, websocket("http://localhost/ws?x")).await;
        assert_eq!(head.status().as_u16(), 200);
        let has = |name: &str| head.headers().contains_key(name);
        assert!(has("sec-websocket-protocol") && !has("sec-websocket-accept") && !has("upgrade"), "{head:?}");
        assert_eq!(take(&mut down, 20).await.unwrap(), b"[get /ws?x http/1.1]"[..].to_vec());
        up.send_data(Bytes::from_static(b"frame"), true).unwrap();
        assert_eq!(take(&mut down, 100).await.unwrap(), b"frame<5>");
        // Whatever is no WebSocket is no success.
        for (path, status) in [("/deaf", 501), ("/file", 501), ("/no", 403), ("/missing", 404)] {
            let answer = open(&requests, websocket(&format!("http://localhost{path}"))).await.0;
            assert_eq!(answer.status().as_u16(), status, "{path}");
        }
        let mut other = websocket("http://localhost/ws");
        other.extensions_mut().insert(h2::ext::Protocol::from_static("connect-udp"));
        assert_eq!(open(&requests, other).await.0.status().as_u16(), 501);
    });
}

/// A peer that does what the first byte says: `d`: it says much as long as it can, `n`: it says a little now and then, and takes nothing any more. How
/// long each was there is told.
fn extreme_peer() -> (u16, Receiver<Duration>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (ended, ends) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let ended = ended.clone();
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut kind = [0];
                stream.read_exact(&mut kind).unwrap();
                let began = Instant::now();
                match kind[0] {
                    b'd' => {
                        let mut other = stream.try_clone().unwrap();
                        std::thread::spawn(move || while other.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {});
                        while stream.write_all(&[b'x'; 65536]).is_ok() {}
                    }
                    _ => {
                        while stream.write_all(b"y").is_ok() {
                            std::thread::sleep(Duration::from_millis(100));
                        }
                    }
                }
                let _ = ended.send(began.elapsed());
            });
        }
    });
    (port, ends)
}

/// `send_timeout` and `tunnel_send_timeout` hold for a tunnel that stands, whatever comes from the other side meanwhile.
#[test]
fn who_takes_nothing_ends_a_tunnel() {
    const PATIENT: Duration = Duration::from_secs(20);
    let server = Site::http(
        "server { listen 127.0.0.1:@PORT@; http2 on; allow 127.0.0.1; deny all; tunnel_pass; tunnel_read_timeout 1h; send_timeout 1s; tunnel_send_timeout 1s;
             lingering_time 1s; }
         server { listen 127.0.0.1:@PORT@; server_name named; allow 127.0.0.1; deny all; proxy_connect; proxy_connect_allow all;
             proxy_connect_address 127.0.0.1:@PEER@; proxy_connect_data_timeout 1s; }",
    );
    let (port, ends) = extreme_peer();
    let server = server.set("PEER", port).start();
    let there = format!("CONNECT 127.0.0.1:{port} HTTP/1.1");
    let is_prompt = |time: Duration| time >= Duration::from_millis(900) && time < PATIENT;
    for (line, log) in [(&there[..], "client timed out (110"), ("CONNECT named:1 HTTP/1.1", "client timed out (110")] {
        let (status, mut client) = connect(&server, line, "");
        assert_eq!(status, 200, "{line}");
        let mut socket = client.stream.try_clone().unwrap();
        client.send("d");
        let time = loop {
            // It says something all the while.
            let _ = socket.write_all(b"a");
            match ends.recv_timeout(Duration::from_millis(100)) {
                Err(RecvTimeoutError::Timeout) => {}
                told => break told.unwrap(),
            }
        };
        assert!(is_prompt(time), "{line}: {time:?}");
        server.wait_for("logs/error.log", log);
    }
    // A peer that takes nothing.
    let (_, mut client) = connect(&server, &there, "");
    let mut socket = client.stream.try_clone().unwrap();
    client.send("n");
    while socket.write_all(&[b'z'; 65536]).is_ok() {}
    let time = ends.recv_timeout(PATIENT).unwrap();
    assert!(is_prompt(time), "{time:?}");
    server.wait_for("logs/error.log", "upstream timed out (110");
    // Who takes a part of it now and then stays.
    let (_, mut client) = connect(&server, &there, "");
    let mut socket = client.stream.try_clone().unwrap();
    client.send("d");
    let mut much = vec![0; 4_000_000];
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(300));
        socket.read_exact(&mut much).unwrap();
    }
    assert!(ends.try_recv().is_err());
    drop((client, socket));
    ends.recv_timeout(PATIENT).unwrap();
    // A stream whose client gives it no more room.
    with_http2(&server, async |requests| {
        let (head, mut up, mut down) = open(&requests, to(&format!("127.0.0.1:{port}"))).await;
        assert_eq!(head.status().as_u16(), 200);
        up.send_data(Bytes::from_static(b"d"), false).unwrap();
        while let Some(Ok(_)) = down.data().await {}
    });
    let time = ends.recv_timeout(PATIENT).unwrap();
    assert!(is_prompt(time), "{time:?}");
}

/// A head of HTTP/3 by hand, and what comes back until the stream's end.
async fn by_hand(connection: &quinn::Connection, fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let (mut up, mut down) = connection.open_bi().await.unwrap();
    let mut section = Vec::new();
    encoder::begin(&mut section);
    fields.iter().for_each(|(name, value)| encoder::field(name.as_bytes(), value.as_bytes(), &mut section));
    let mut frames = Vec::new();
    frame::write_head(kind::HEADERS, section.len(), &mut frames);
    frames.extend_from_slice(&section);
    frame::write_head(kind::DATA, body.len(), &mut frames);
    frames.extend_from_slice(body);
    up.write_all(&frames).await.unwrap();
    up.finish().unwrap();
    down.read_to_end(1 << 20).await.unwrap()
}

fn contains(all: &[u8], part: &str) -> bool {
    String::from_utf8_lossy(all).contains(part)
}

/// RFC 9114 section 4.4 and RFC 9220.
#[test]
fn tunnels_in_streams_of_http3() {
    let http = "log_format f '$status $request_method $request';";
    let log = "access_log @DIR@/logs/tunnel.log f;";
    let server = quic_site(http, &format!("{log} {WEBSOCKETS} location = / {{ allow all; tunnel_pass; }}"));
    let (raw, websocket) = (peer(false), peer(true));
    let server = server.set("THREADS", 1).set("PEER", websocket).start();
    run(async {
        let endpoint = endpoint(b"h3");
        let connection = quic_connection(&endpoint, server.port).await;
        let place = format!("127.0.0.1:{raw}");
        let back = by_hand(&connection, &[(":method", "CONNECT"), (":authority", &place)], b"hello").await;
        assert!(contains(&back, "hello") && contains(&back, "<5>"), "{back:?}");
        let head = [
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "https"),
            (":path", "/ws"),
            (":authority", "localhost"),
        ];
        let back = by_hand(&connection, &head, b"frame").await;
        assert!(contains(&back, "[get /ws http/1.1]") && contains(&back, "<5>"), "{back:?}");
    });
    server.wait_for("logs/tunnel.log", &format!("200 CONNECT CONNECT 127.0.0.1:{raw} HTTP/3.0"));
    server.wait_for("logs/tunnel.log", "200 GET GET /ws HTTP/3.0");
}
