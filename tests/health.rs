//! Active health checks: what is wrong with a peer stands in the log in words, and nobody is sent to it. Each cause comes from
//! a real server that fails in that way.

use crate::harness::{Backend, Port, Reply, Server, Site, blunt, has_tools, wait};
use serde_json::Value;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// A group of a good peer and one that is tried, which only checks may set aside. `check`: what stands in the location;
/// `more`: what stands in `http`.
fn site(port: u16, good: &Backend, check: &str, more: &str) -> Site {
    Site::http(&format!(
        "{more} upstream u {{ zone u 64k; server 127.0.0.1:@SICK@ max_fails=0; server 127.0.0.1:@GOOD@ max_fails=0; }} \
         server {{ listen 127.0.0.1:@PORT@; location /reloaded {{ return 200 0; }} location /api {{ api; }} \
         location / {{ proxy_pass http://u; {check} }} }}"
    ))
    .set("SICK", port)
    .set("GOOD", good.port)
}

fn reload(server: &Server, from: &str, to: &str) {
    let text = server.read("nginx.conf");
    assert!(text.contains(from), "{from} in {text}");
    std::fs::write(server.dir().join("nginx.conf"), text.replace(from, to)).unwrap();
    server.signal(rustix::process::Signal::HUP);
}

/// What the API says of the group's first peer.
fn first_peer(server: &Server) -> Value {
    let group = server.get("/api/9/http/upstreams/u?fields=peers");
    serde_json::from_slice::<Value>(&group.body).expect("JSON")["peers"][0].clone()
}

/// Log and API say why, and then the good peer answers everything.
fn is_out(server: &Server, why: &str) {
    server.wait_for("logs/error.log", &format!("peer is unhealthy: {why}"));
    server.wait_for("logs/error.log", "in upstream \"u\"");
    let says_so = || first_peer(server)["reason"].as_str().is_some_and(|said| said.starts_with(why));
    assert!(wait(says_so), "{why}: {}", first_peer(server));
    assert_eq!(first_peer(server)["state"], "unhealthy");
    assert!(wait(|| server.get("/").text() == "good"));
    for _ in 0..4 {
        assert_eq!(server.get("/").text(), "good", "{why}");
    }
}

fn answering(bytes: &'static str) -> Backend {
    Backend::start(move |_| Reply::Close(bytes.into()))
}

#[test]
fn nobody_listens() {
    let good = Backend::ok("good");
    let port = Port::reserve();
    let server = site(port.number, &good, "health_check interval=100ms;", "").start();
    is_out(&server, &format!("refused: nothing listens on 127.0.0.1:{}", port.number));
}

#[test]
fn nothing_comes_back() {
    let good = Backend::ok("good");
    // A full accept queue: what else is sent to the port is dropped, as a firewall would.
    let deaf = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    deaf.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    deaf.listen(0).unwrap();
    let port = deaf.local_addr().unwrap().as_socket().unwrap().port();
    let _filled: Vec<TcpStream> = (0..2)
        .map_while(|_| TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), Duration::from_millis(200)).ok())
        .collect();
    let server = site(port, &good, "health_check interval=300ms;", "").start();
    is_out(&server, "no answer within 300 ms: the host is down, or a firewall drops what is sent to it");
}

#[test]
fn wrong_status_header_and_body() {
    let good = Backend::ok("good");
    let sick = answering("HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno");
    let server = site(sick.port, &good, "health_check interval=100ms;", "").start();
    is_out(&server, "answered 503, wanted 200-399");
    assert!(sick.seen().iter().all(|s| s.line() == "GET / HTTP/1.1" && s.header("Host") == Some("u")));

    let wanted = "match ok { status 200; header Server = good; }";
    let good_header =
        Backend::start(|_| Reply::Keep("HTTP/1.1 200 OK\r\nServer: good\r\nContent-Length: 4\r\n\r\ngood".into()));
    let sick = Backend::ok("x");
    let server = site(sick.port, &good_header, "health_check interval=100ms match=ok uri=/up;", wanted).start();
    is_out(&server, "header did not match: Server = good: it did not come");
    assert_eq!(sick.seen()[0].line(), "GET /up HTTP/1.1");

    let wanted = "match ok { body ~ \"^good\"; }";
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbad\r\n0\r\n\r\n";
    let sick = answering(chunked);
    let server = site(sick.port, &good, "health_check interval=100ms match=ok;", wanted).start();
    is_out(&server, "body did not match: ~ \"^good\": began with \"bad\"");
}

#[test]
fn too_slow_closed_and_nonsense() {
    let good = Backend::ok("good");
    let sick = Backend::start(|_| {
        std::thread::sleep(Duration::from_secs(1));
        Reply::ok("late")
    });
    let server = site(sick.port, &good, "health_check interval=200ms;", "").start();
    server.wait_for("logs/error.log", "peer is unhealthy: too slow: 2");
    is_out(&server, "too slow: ");
    server.wait_for("logs/error.log", " ms against 200 ms");

    let sick = answering("");
    let server = site(sick.port, &good, "health_check interval=100ms;", "").start();
    is_out(&server, "closed the connection without an answer");

    let sick = answering("220 mail ESMTP\r\n");
    let server = site(sick.port, &good, "health_check interval=100ms;", "").start();
    is_out(&server, "answered nonsense: no HTTP: \"220 mail ESMTP\\r\\n\"");
}

#[test]
fn tls_that_fails() {
    if !has_tools() {
        return;
    }
    let plain = blunt(b"220 mail ESMTP\r\n");
    let server = Site::http(
        "upstream u { zone u 64k; server 127.0.0.1:@A@ max_fails=0; server 127.0.0.1:@OTHER@ max_fails=0; } \
         upstream v { server 127.0.0.1:@OTHER@ max_fails=0; } \
         server { listen 127.0.0.1:@OTHER@ ssl; ssl_certificate good.crt; ssl_certificate_key good.key; \
         return 200 good; } \
         server { listen 127.0.0.1:@PORT@; location /api { api; } \
         location / { proxy_pass https://u; health_check interval=200ms; } \
         location /verified { proxy_pass https://v; proxy_ssl_verify on; proxy_ssl_name other; \
         proxy_ssl_trusted_certificate good.crt; health_check interval=200ms; } }",
    )
    .set("A", plain)
    .certificate("good")
    .start();
    is_out(&server, "TLS failed: ");
    let why = "TLS failed: upstream SSL certificate does not match \"other\"";
    server.wait_for("logs/error.log", &format!("peer is unhealthy: {why}"));
    assert_eq!(server.get("/verified").status, 502, "without a peer that is well nobody is asked");
    server.wait_for("logs/error.log", "no live upstreams while connecting to upstream");
}

#[test]
fn a_flapping_peer_has_to_prove_itself() {
    let good = Backend::ok("good");
    let count = AtomicUsize::new(0);
    let steady = Arc::new(AtomicBool::new(false));
    let settled = steady.clone();
    let sick = Backend::start(move |_| {
        let ok = settled.load(Ordering::Relaxed) || count.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        if ok { Reply::ok("sick") } else { Reply::Close("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".into()) }
    });
    let server = site(sick.port, &good, "health_check interval=60ms;", "").start();
    let why = "peer is unhealthy: flapping: 6 changes within 300 s, at last: answered 500, wanted 200-399";
    server.wait_for("logs/error.log", why);
    let flaps = || first_peer(&server)["reason"].as_str().is_some_and(|said| said.starts_with("flapping: 6 changes"));
    assert!(wait(flaps), "{}", first_peer(&server));
    let healthy = || server.read("logs/error.log").matches("peer is healthy").count();
    let before = healthy();
    steady.store(true, Ordering::Relaxed);
    assert!(wait(|| healthy() > before), "it is used again once it has been well for a while");
    assert!(wait(|| server.get("/").text() == "sick"));
}

#[test]
fn a_peer_goes_after_fails_and_comes_back_after_passes() {
    let good = Backend::ok("good");
    let well = Arc::new(AtomicBool::new(true));
    let now = well.clone();
    let sick =
        Backend::start(move |_| if now.load(Ordering::Relaxed) { Reply::ok("sick") } else { Reply::Close(Vec::new()) });
    let check = "health_check interval=200ms fails=3 passes=2 uri=/check;";
    let server = site(sick.port, &good, check, "").start();
    let checks = || sick.seen().iter().filter(|s| s.line().contains("/check")).count();
    assert!(wait(|| checks() >= 2));
    assert!((0..4).any(|_| server.get("/").text() == "sick"), "it is used while it is well");
    well.store(false, Ordering::Relaxed);
    let (before, began) = (checks(), std::time::Instant::now());
    server.wait_for("logs/error.log", "peer is unhealthy: closed");
    let took = began.elapsed();
    assert!(checks() - before >= 3, "three failures in a row");
    // Fails x interval is promised; the rest is for a machine that is busy.
    assert!(took < Duration::from_millis(600 + 1500), "{took:?}");
    well.store(true, Ordering::Relaxed);
    server.wait_for("logs/error.log", "peer is healthy, health check of peer 127.0.0.1:");
    assert!(wait(|| server.get("/").text() == "sick"));
}

#[test]
fn mandatory_peers_are_proven_first_and_persistent_ones_once() {
    let good = Backend::ok("good");
    let gate = Arc::new(AtomicBool::new(false));
    let open = gate.clone();
    let slow = Backend::start(move |request| {
        if request.line().contains("/check") {
            wait(|| open.load(Ordering::Relaxed));
        }
        Reply::ok("slow")
    });
    let check = "health_check interval=300s mandatory persistent uri=/check;";
    let server = site(slow.port, &good, check, "").start();
    assert!(wait(|| server.get("/").text() == "good"));
    assert!((0..6).all(|_| server.get("/").text() == "good"), "nothing is sent to the one that has not passed yet");
    gate.store(true, Ordering::Relaxed);
    assert!(wait(|| server.get("/").text() == "slow"));
    let checks = || slow.seen().iter().filter(|s| s.line().contains("/check")).count();
    assert_eq!(checks(), 1);
    gate.store(false, Ordering::Relaxed);
    reload(&server, "return 200 0", "return 200 1");
    assert!(wait(|| server.get("/reloaded").text() == "1"));
    assert!((0..4).any(|_| server.get("/").text() == "slow"), "it was well before the reload");
    assert_eq!(checks(), 1, "and is not due yet");
    reload(&server, " persistent", "");
    assert!(wait(|| checks() >= 2), "without the word it is asked anew");
    assert!(wait(|| server.get("/").text() == "good"));
    assert!((0..4).all(|_| server.get("/").text() == "good"));
    gate.store(true, Ordering::Relaxed);
    assert!(wait(|| server.get("/").text() == "slow"));
}

#[test]
fn connections_are_kept_if_that_is_wanted() {
    let good = Backend::ok("good");
    let check = "health_check interval=60ms keepalive_time=60s;";
    let server = site(good.port, &good, check, "").start();
    assert!(wait(|| good.seen().len() > 5));
    let seen = good.seen();
    assert!(seen.iter().all(|s| s.connection < 2 && s.header("Connection").is_none()), "one for each peer");
    drop(server);
}

#[test]
fn tengine_s_checks() {
    let good = Backend::ok("good");
    let sick = answering("HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n");
    let server = Site::http(
        "check_shm_size 1m; upstream u { zone u 64k; server 127.0.0.1:@SICK@ max_fails=0; server 127.0.0.1:@GOOD@ max_fails=0; \
         check interval=100 rise=1 fall=2 timeout=1000 type=http; check_keepalive_requests 10; \
         check_http_send \"HEAD /t HTTP/1.1\\r\\nHost: t\\r\\n\\r\\n\"; check_http_expect_alive http_2xx; } \
         server { listen 127.0.0.1:@PORT@; location /api { api; } location / { proxy_pass http://u; } \
         location /page { check_status; } location /status { check_status json; } } } \
         stream { upstream s { server 127.0.0.1:@GOOD@; check interval=100 type=tcp port=@SICK@; } server { listen 127.0.0.1:@OTHER@; proxy_pass s; }",
    )
    .set("SICK", sick.port)
    .set("GOOD", good.port)
    .start();
    is_out(&server, "answered 404, wanted 200-299");
    assert_eq!((sick.seen()[0].line(), sick.seen()[0].header("Host")), ("HEAD /t HTTP/1.1", Some("t")));
    let json = |path| serde_json::from_slice::<Value>(&server.get(path).body).expect("JSON")["servers"].clone();
    assert!(wait(|| json("/status")["up"] == 2), "{}", json("/status"));
    let all = json("/status");
    assert_eq!((&all["total"], &all["down"]), (&3.into(), &1.into()));
    let [first, _, last] = &all["server"].as_array().unwrap()[..] else { panic!("{all}") };
    assert_eq!(
        (&first["status"], &first["rise"], &first["type"], &first["port"]),
        (&"down".into(), &0.into(), &"http".into(), &0.into())
    );
    assert!(first["fall"].as_u64() >= Some(1) && first["name"] == format!("127.0.0.1:{}", sick.port), "{first}");
    assert_eq!((&last["upstream"], &last["type"], &last["port"]), (&"s".into(), &"tcp".into(), &sick.port.into()));
    assert_eq!(
        (json("/status?status=down")["total"].as_u64(), json("/status?status=down")["server"][0]["index"].as_u64()),
        (Some(1), Some(0))
    );
    let lines = server.get("/page?format=csv&status=up").text();
    assert!(lines.starts_with(&format!("1,u,127.0.0.1:{},up,", good.port)) && lines.lines().count() == 2, "{lines}");
    let page = server.get("/page");
    assert_eq!(page.header("Content-Type"), Some("text/html"));
    assert!(page.text().contains("3 peers, 1 of them down"), "{}", page.text());
}

#[test]
fn tcp_and_udp_in_stream() {
    let good = TcpListener::bind("127.0.0.1:0").unwrap();
    let good_port = good.local_addr().unwrap().port();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for mut s in good.incoming().flatten() {
            std::thread::spawn(move || {
                let mut bytes = [0; 64];
                while let Ok(n @ 1..) = s.read(&mut bytes) {
                    let reply: &[u8] = if bytes[..n].starts_with(b"PING") { b"+PONG\r\n" } else { b"good" };
                    let _ = s.write_all(reply);
                }
            });
        }
    });
    let (closed, closed_udp) = (Port::reserve(), Port::reserve());
    let echo = UdpSocket::bind("127.0.0.1:0").unwrap();
    let echo_port = echo.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok((n, from)) = echo.recv_from(&mut bytes) {
            let _ = echo.send_to(&bytes[..n], from);
        }
    });
    let server = Site::whole(
        "events {} stream { match pong { send \"PING\\r\\n\"; expect ~ \"^\\+PONG\"; } \
         match echo { send \"\\x00a\"; expect \"\\x00b\"; } match any { send x; } \
         upstream u { zone u 64k; server 127.0.0.1:@CLOSED@ max_fails=0; server 127.0.0.1:@GOOD@ max_fails=0; } \
         upstream d { server 127.0.0.1:@ECHO@; } upstream e { server 127.0.0.1:@UDP@; } \
         server { listen 127.0.0.1:@PORT@; proxy_pass u; health_check interval=100ms match=pong; } \
         server { listen 127.0.0.1:@OTHER@ udp; proxy_pass d; health_check interval=100ms udp match=echo; } \
         server { listen 127.0.0.2:@OTHER@ udp; proxy_pass e; health_check interval=100ms udp match=any; } }",
    )
    .set("CLOSED", closed.number)
    .set("GOOD", good_port)
    .set("ECHO", echo_port)
    .set("UDP", closed_udp.number)
    .start();
    let refused = |port: u16| format!("peer is unhealthy: refused: nothing listens on 127.0.0.1:{port}");
    server.wait_for("logs/error.log", &refused(closed.number));
    server.wait_for("logs/error.log", &refused(closed_udp.number));
    server.wait_for("logs/error.log", "body did not match: wanted \"\\x00b\", came \"\\x00a\"");
    for _ in 0..4 {
        let mut client = server.connect();
        client.send("hello");
        assert_eq!(client.take(4), b"good");
    }
}

#[test]
fn grpc_health_service() {
    let (serving, silent) = (grpc_server(1), grpc_server(2));
    let server = Site::http(
        "upstream u { zone u 64k; server 127.0.0.1:@SICK@ max_fails=0; server 127.0.0.1:@GOOD@ max_fails=0; } \
         server { listen 127.0.0.1:@PORT@; \
         location /api { api; } \
         location / { grpc_pass u; health_check interval=100ms type=grpc grpc_service=shop; } }",
    )
    .set("SICK", silent)
    .set("GOOD", serving)
    .start();
    server.wait_for("logs/error.log", "peer is unhealthy: its gRPC health service says NOT_SERVING");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(server.read("logs/error.log").matches("peer is unhealthy").count(), 1, "the other one is well");
    assert_eq!(first_peer(&server)["reason"], "its gRPC health service says NOT_SERVING");
}

/// A gRPC server with a health service that always says the same.
fn grpc_server(status: u8) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((socket, _)) = listener.accept().await {
                let mut connection = h2::server::handshake(socket).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let path = request.uri().path().to_owned();
                    assert_eq!(path, "/grpc.health.v1.Health/Check");
                    let head = http::Response::builder().header("content-type", "application/grpc").body(()).unwrap();
                    let mut stream = respond.send_response(head, false).unwrap();
                    stream.send_data(bytes::Bytes::from(vec![0, 0, 0, 0, 2, 8, status]), false).unwrap();
                    let mut trailers = http::HeaderMap::new();
                    trailers.insert("grpc-status", "0".parse().unwrap());
                    stream.send_trailers(trailers).unwrap();
                }
            }
        });
    });
    port
}

#[test]
fn wrong_words_are_refused() {
    let says = |http: &str, location: &str| {
        let text = format!(
            "{http} upstream u {{ server 127.0.0.1:1; }} server {{ listen 127.0.0.1:@PORT@; \
             location / {{ proxy_pass http://u; {location} }} }}"
        );
        Site::http(&text).check().1
    };
    let wrong = [
        ("", "health_check interval=0;", "invalid parameter \"interval=0\""),
        ("", "health_check persistent;", "\"persistent\" requires \"mandatory\""),
        ("", "health_check match=x;", "match \"x\" is not defined"),
        ("", "health_check type=syn;", "invalid parameter \"type=syn\""),
        ("match a { status 20; }", "", "invalid number of arguments in \"status\" directive"),
        ("match a { require x; }", "", "invalid variable name \"x\""),
        ("match a { require $x; }", "", "unknown \"x\" variable"),
        ("match a { body ~ \"(\"; }", "", "pcre2_compile() failed"),
    ];
    for (http, location, complaint) in wrong {
        let said = says(http, location);
        assert!(said.contains(complaint), "{http} {location}: {said}");
    }
}
