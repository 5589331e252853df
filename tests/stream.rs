//! `stream {}`: TCP through the balancer, as bytes. Closing, half closing, the next peer, PROXY headers both ways, reloads.

use crate::harness::{Client, Port, Server, Site, wait};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A configuration with one `server` of `stream` on `@PORT@`; `around` stands in the `stream` block.
fn stream(around: &str, server: &str) -> Site {
    Site::whole(&format!("events {{}} stream {{ {around} server {{ listen 127.0.0.1:@PORT@; {server} }} }}"))
}

/// A peer for which each connection is handled by `serve` on a thread of its own.
fn peer(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = std::sync::Arc::new(serve);
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(connection));
        }
    });
    port
}

/// A peer that sends back what it gets.
fn echo() -> u16 {
    peer(|mut connection| {
        let mut copy = connection.try_clone().unwrap();
        let _ = std::io::copy(&mut copy, &mut connection);
        let _ = connection.shutdown(Shutdown::Write);
    })
}

/// A peer that keeps all that a connection brings, once it has ended. Connections that bring nothing do not count.
fn sink() -> (u16, Receiver<Vec<u8>>) {
    let (tx, rx) = channel();
    let tx = std::sync::Mutex::new(tx);
    let port = peer(move |mut connection| {
        let mut all = Vec::new();
        let _ = connection.read_to_end(&mut all);
        if !all.is_empty() {
            let _ = tx.lock().unwrap().send(all);
        }
    });
    (port, rx)
}

fn next(received: &Receiver<Vec<u8>>) -> String {
    let bytes = received.recv_timeout(Duration::from_secs(20)).expect("the peer gets bytes");
    String::from_utf8_lossy(&bytes).into_owned()
}

fn echoes(client: &mut Client, text: &str) {
    client.send(text);
    assert_eq!(client.take(text.len()), text.as_bytes());
}

#[test]
fn bytes_go_both_ways() {
    let server = stream("", "proxy_pass 127.0.0.1:@PEER@;").set("PEER", echo()).start();
    let mut client = server.connect();
    echoes(&mut client, "hello");
    // More than all buffers on the way hold.
    let mut sending = client.stream.try_clone().unwrap();
    let data: Vec<u8> = (0..4_000_000u32).flat_map(u32::to_le_bytes).collect();
    let copy = data.clone();
    let writer = std::thread::spawn(move || sending.write_all(&copy).unwrap());
    assert!(client.take(data.len()) == data);
    writer.join().unwrap();
    // Bulk goes another way than small talk; both follow each other.
    for text in ["small", "talk"] {
        echoes(&mut client, text);
    }
}

/// A client that takes its time holds the peer back, and gets all of it in the end.
#[test]
fn bulk_to_a_slow_client_over_a_unix_socket() {
    const LEN: usize = 20_000_000;
    let site = stream("", "proxy_pass unix:@DIR@/logs/peer.sock;");
    let server = site.start();
    let path = server.dir().join("logs/peer.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    std::thread::spawn(move || {
        let data: Vec<u8> = (0..LEN).map(|n| (n % 251) as u8).collect();
        // The first may be the harness' look at the port.
        for mut peer in listener.incoming().flatten() {
            let _ = peer.write_all(&data);
        }
    });
    let mut client = server.connect();
    std::thread::sleep(Duration::from_millis(100));
    let first = client.take(1_000_000);
    std::thread::sleep(Duration::from_millis(100));
    let rest = client.rest();
    assert_eq!(first.len() + rest.len(), LEN);
    assert!(first.iter().chain(&rest).enumerate().all(|(n, b)| *b == (n % 251) as u8));
}

#[test]
fn a_peer_that_closes_ends_the_session() {
    let port = peer(|mut connection| {
        let _ = connection.write_all(b"bye");
    });
    let server = stream("", "proxy_pass 127.0.0.1:@PEER@;").set("PEER", port).start();
    assert_eq!(server.connect().rest(), b"bye");
}

/// Without `proxy_half_close` the end of either side is the end of both, once what was sent before it has arrived.
#[test]
fn a_client_that_closes_ends_the_session() {
    let (port, received) = sink();
    let server = stream("", "proxy_pass 127.0.0.1:@PEER@;").set("PEER", port).start();
    let mut client = server.connect();
    client.send("last words").finish();
    assert_eq!(next(&received), "last words");
    assert!(client.is_closed());
}

#[test]
fn half_close_lets_the_other_direction_go_on() {
    // Answers only when the client has finished.
    let port = peer(|mut connection| {
        let mut all = Vec::new();
        let _ = connection.read_to_end(&mut all);
        std::thread::sleep(Duration::from_millis(50));
        let _ = write!(connection, "{} bytes", all.len());
    });
    let conf = "proxy_pass 127.0.0.1:@PEER@; proxy_half_close on;";
    let server = stream("", conf).set("PEER", port).start();
    let mut client = server.connect();
    client.send("question").finish();
    assert_eq!(client.rest(), b"8 bytes");
}

#[test]
fn half_close_works_from_the_peers_side() {
    let (tx, rx) = channel();
    let tx = std::sync::Mutex::new(tx);
    let port = peer(move |mut connection| {
        let _ = connection.write_all(b"I am done");
        let _ = connection.shutdown(Shutdown::Write);
        let mut all = Vec::new();
        let _ = connection.read_to_end(&mut all);
        if !all.is_empty() {
            let _ = tx.lock().unwrap().send(all);
        }
    });
    let conf = "proxy_pass 127.0.0.1:@PEER@; proxy_half_close on;";
    let server = stream("", conf).set("PEER", port).start();
    let mut client = server.connect();
    assert_eq!(client.rest(), b"I am done");
    client.send("and I go on").finish();
    assert_eq!(next(&rx), "and I go on");
}

#[test]
fn the_next_peer_takes_over() {
    let dead = Port::reserve();
    let around = "log_format f '$status $upstream_addr'; access_log @DIR@/logs/a.log f;
                  upstream u { server 127.0.0.1:@DEAD@; server 127.0.0.1:@PEER@; }";
    let site = stream(around, "proxy_pass u;").set("PEER", echo()).set("DEAD", dead.number);
    let server = site.start();
    for _ in 0..4 {
        echoes(&mut server.connect(), "ping");
    }
    let two = format!("127.0.0.1:{}, 127.0.0.1:", dead.number);
    server.wait_for("logs/a.log", &two);
    server.wait_for("logs/error.log", "connect() failed (111: Connection refused) while connecting to upstream");
}

#[test]
fn without_a_peer_the_client_is_told_by_a_close() {
    let dead = Port::reserve();
    let around = "log_format f '$status'; access_log @DIR@/logs/a.log f;";
    let conf = "proxy_pass 127.0.0.1:@DEAD@; proxy_next_upstream off;";
    let server = stream(around, conf).set("DEAD", dead.number).start();
    assert!(server.connect().is_closed());
    server.wait_for("logs/a.log", "502");
}

#[test]
fn proxy_headers_go_out() {
    let (port, received) = sink();
    let v1 = stream("", "proxy_pass 127.0.0.1:@PEER@; proxy_protocol on;").set("PEER", port).start();
    let mut client = v1.connect();
    let (from, to) = (client.stream.local_addr().unwrap().port(), v1.port);
    client.send("data").finish();
    let line = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {from} {to}\r\n");
    // The harness' own look at the port is a session as well.
    assert!(wait(|| next(&received) == format!("{line}data")));
    let v2 = stream("", "proxy_pass 127.0.0.1:@PEER@; proxy_protocol v2;").set("PEER", port).start();
    v2.connect().send("data").finish();
    assert!(wait(|| {
        let got = next(&received);
        got.starts_with("\r\n\r\n\0\r\nQUIT\n") && got.ends_with("data")
    }));
}

#[test]
fn proxy_headers_come_in() {
    let conf = "events {} stream { server { listen 127.0.0.1:@PORT@ proxy_protocol; set_real_ip_from 127.0.0.0/8;
                return '$remote_addr $remote_port $realip_remote_addr $proxy_protocol_server_port'; } }";
    let server = Site::whole(conf).start();
    let mut client = server.connect();
    // In pieces.
    client.send("PROXY TCP4 192.0.2.7 ");
    std::thread::sleep(Duration::from_millis(20));
    client.send("192.0.2.8 1234 5678\r\n");
    assert_eq!(client.rest(), b"192.0.2.7 1234 127.0.0.1 5678");
    let mut client = server.connect();
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    header.extend([192, 0, 2, 9, 192, 0, 2, 8, 0x04, 0xd2, 0x16, 0x2e]);
    assert_eq!(client.send(header).rest(), b"192.0.2.9 1234 127.0.0.1 5678");
    let mut client = server.connect();
    assert_eq!(client.send("GET / HTTP/1.0\r\n\r\n").rest(), b"");
    server.wait_for("logs/error.log", "broken header: \"GET / HTTP/1.0\" while reading PROXY protocol, client:");
}

#[test]
fn tunnels_live_through_reloads() {
    let server = stream("", "proxy_pass 127.0.0.1:@PEER@;").set("PEER", echo()).start();
    let mut tunnels: Vec<Client> = (0..10).map(|_| server.connect()).collect();
    for number in 0..5 {
        tunnels.iter_mut().for_each(|t| echoes(t, &format!("before {number}")));
        server.signal(Signal::HUP);
        std::thread::sleep(Duration::from_millis(100));
        tunnels.iter_mut().for_each(|t| echoes(t, &format!("after {number}")));
        echoes(&mut server.connect(), "new");
    }
}

#[test]
fn least_time_takes_the_faster_peer() {
    // The peers say who they are; one takes its time.
    let speaker = |name: &'static str, after: u64| {
        peer(move |mut connection| {
            std::thread::sleep(Duration::from_millis(after));
            let _ = connection.write_all(name.as_bytes());
        })
    };
    let methods = [
        "least_time first_byte",
        "least_time first_byte inflight",
        "least_time last_byte inflight",
        "random two least_time=last_byte",
    ];
    for method in methods {
        let (slow, fast) = (speaker("slow", 150), speaker("fast", 0));
        let around = format!("upstream u {{ {method}; server 127.0.0.1:{slow}; server 127.0.0.1:{fast}; }}");
        let server = stream(&around, "proxy_pass u;").start();
        let ask = || {
            let mut text = String::new();
            TcpStream::connect(("127.0.0.1", server.port)).unwrap().read_to_string(&mut text).unwrap();
            text
        };
        // Who has not answered yet is asked first, so both are known soon.
        let mut known = std::collections::HashSet::new();
        assert!(
            wait(|| {
                known.insert(ask());
                known.len() == 2
            }),
            "{method}"
        );
        assert_eq!((0..10).map(|_| ask()).filter(|name| name == "fast").count(), 10, "{method}");
    }
    let (status, said) = stream("upstream u { least_time header; server 127.0.0.1:1; }", "proxy_pass u;").check();
    assert!(!status.success() && said.contains("invalid value \"header\" in "), "{said}");
}

#[test]
fn a_reload_changes_where_new_sessions_go() {
    let server = stream("", "return one;").start();
    assert_eq!(server.connect().rest(), b"one");
    let text = server.read("nginx.conf").replace("return one;", "return two;");
    std::fs::write(server.dir().join("nginx.conf"), text).unwrap();
    server.signal(Signal::HUP);
    assert!(wait(|| server.connect().rest() == b"two"));
}

#[test]
fn a_graceful_end_waits_for_tunnels_as_long_as_it_may() {
    let site = Site::whole(
        "worker_shutdown_timeout 1s; events {}
         stream { server { listen 127.0.0.1:@PORT@; proxy_pass 127.0.0.1:@PEER@; } }",
    );
    let server = site.set("PEER", echo()).start();
    let mut tunnel = server.connect();
    echoes(&mut tunnel, "before");
    server.signal(Signal::QUIT);
    server.wait_for("logs/error.log", "gracefully shutting down");
    echoes(&mut tunnel, "while it ends");
    let began = Instant::now();
    assert!(tunnel.is_closed());
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn an_idle_session_times_out() {
    let around = "log_format f '$status $bytes_received $bytes_sent'; access_log @DIR@/logs/a.log f;";
    let conf = "proxy_pass 127.0.0.1:@PEER@; proxy_timeout 200ms;";
    let server = stream(around, conf).set("PEER", echo()).start();
    let mut client = server.connect();
    echoes(&mut client, "ping");
    assert!(client.is_closed());
    server.wait_for("logs/a.log", "200 4 4\n");
    server.wait_for("logs/error.log", "connection timed out (110: Connection timed out) while proxying connection");
}

#[test]
fn rates_are_kept() {
    let port = peer(|mut connection| {
        let _ = connection.write_all(&[b'x'; 3000]);
    });
    let conf = "proxy_pass 127.0.0.1:@PEER@; proxy_download_rate 2000;";
    let server = stream("", conf).set("PEER", port).start();
    let began = Instant::now();
    assert_eq!(server.connect().rest().len(), 3000);
    assert!(began.elapsed() >= Duration::from_millis(900), "{:?}", began.elapsed());
}

#[test]
fn a_session_that_has_waited_for_its_rate_is_idle_afterwards() {
    let around = "log_format f '$status $bytes_received $bytes_sent'; access_log @DIR@/logs/a.log f;";
    // A peer that says much at once, and nothing more; it holds its end open.
    let port = peer(|mut connection| {
        let _ = connection.write_all(&[b'x'; 3000]);
        let _ = std::io::copy(&mut connection, &mut std::io::sink());
    });
    for rate in ["proxy_upload_rate 10k;", "proxy_download_rate 10k;"] {
        let conf = format!("proxy_pass 127.0.0.1:@PEER@; proxy_timeout 300ms; {rate}");
        let server = stream(around, &conf).set("PEER", port).start();
        let mut client = server.connect();
        client.send([b'y'; 6000]);
        assert_eq!(client.rest().len(), 3000, "it is closed, by {rate}");
        server.wait_for("logs/a.log", "200 6000 3000\n");
    }
    // Nor is one held open by a client that takes nothing while the rate would let more come.
    let port = peer(|mut connection| while connection.write_all(&[b'x'; 65536]).is_ok() {});
    let conf = "proxy_pass 127.0.0.1:@PEER@; proxy_timeout 300ms; proxy_download_rate 50m;";
    let server = stream(around, conf).set("PEER", port).start();
    let _client = server.connect();
    server.wait_for("logs/error.log", "connection timed out (110: Connection timed out) while proxying connection");
}

#[test]
fn http_and_stream_share_nothing_but_the_process() {
    let site = Site::whole(
        "events {}
         http { map $uri $v { default http; } upstream u { server 127.0.0.1:1; } log_format f a; access_log off;
                server { listen 127.0.0.1:@OTHER@; location / { return 200 $v; } } }
         stream { map $remote_addr $v { default stream; } upstream u { server 127.0.0.1:@PEER@; } log_format f $v;
                  server { listen 127.0.0.1:@PORT@; proxy_pass u; access_log @DIR@/logs/stream.log f; } }",
    );
    let server = site.set("PEER", echo()).start();
    echoes(&mut server.connect(), "ping");
    server.wait_for("logs/stream.log", "stream\n");
    let text = server.read("nginx.conf");
    let at = text.find("http {").unwrap();
    let port: u16 = text[at..].split("listen 127.0.0.1:").nth(1).unwrap().split(';').next().unwrap().parse().unwrap();
    assert_eq!(Client::connect(port).get("/").text(), "http");
}

#[test]
fn a_connection_is_passed_to_another_listener() {
    let site = Site::whole(
        "events {}
         http { access_log off; server { listen 127.0.0.1:@OTHER@; location / { return 200 $server_port; } } }
         stream { server { listen 127.0.0.1:@PORT@; ssl_preread on; pass 127.0.0.1:@OTHER@; } }",
    );
    let server = site.start();
    // The request was read by the first server and is answered by the second.
    assert_ne!(server.get("/").text(), server.port.to_string());
}

/// A ClientHello that asks for `foo`.
const HELLO: &[u8] = b"\x16\x03\x01\0\x3b\x01\0\0\x37\x03\x03\
    01234567890123456789012345678901\0\0\x02\0\x2f\x01\0\0\x0c\0\0\0\x08\0\x06\0\0\x03foo";

#[test]
fn the_name_of_a_tls_client_chooses_the_server() {
    let site = Site::whole(
        "events {} stream { ssl_preread on;
           server { listen 127.0.0.1:@PORT@; return '$ssl_preread_server_name $ssl_preread_protocol'; }
           server { listen 127.0.0.1:@PORT@; server_name foo; return 'the server of foo'; } }",
    );
    let server = site.start();
    assert_eq!(server.connect().send(HELLO).rest(), b"the server of foo");
    let other: Vec<u8> = HELLO[..HELLO.len() - 1].iter().copied().chain(*b"x").collect();
    assert_eq!(server.connect().send(other).rest(), b"fox TLSv1.2");
    assert_eq!(server.connect().send("no TLS at all").rest(), b" ");
}

/// What was read to find the name reaches the peer.
#[test]
fn bytes_read_early_are_passed_on() {
    let conf = "ssl_preread on; proxy_pass 127.0.0.1:@PEER@;";
    let server: Server = stream("", conf).set("PEER", echo()).start();
    let mut client = server.connect();
    client.send(&HELLO[..20]);
    std::thread::sleep(Duration::from_millis(20));
    client.send(&HELLO[20..]);
    assert_eq!(client.take(HELLO.len()), HELLO);
}

#[test]
fn access_and_limits_hold() {
    let denied = stream("", "deny all; return no;").start();
    assert_eq!(denied.connect().rest(), b"");
    denied.wait_for("logs/error.log", "access forbidden by rule while initializing session, client: 127.0.0.1");
    let around = "limit_conn_zone $binary_remote_addr zone=z:64k;";
    let limited = stream(around, "limit_conn z 1; proxy_pass 127.0.0.1:@PEER@;").set("PEER", echo()).start();
    let mut first = limited.connect();
    assert!(wait(|| {
        first.send("x");
        !first.is_closed() || {
            first = limited.connect();
            false
        }
    }));
    assert!(limited.connect().is_closed());
    limited.wait_for("logs/error.log", "limiting connections by zone \"z\"");
}

/// `proxy_session_drop`: who is taken out of the group, or is down, loses its sessions with their next bytes.
#[test]
fn sessions_of_a_peer_that_is_gone_end() {
    let text = "events {} http { server { listen 127.0.0.1:@OTHER@; location / { api write=on; } } }
        stream { upstream u { zone u 64k; server 127.0.0.1:@PEER@; server 127.0.0.1:@SECOND@; }
                 server { listen 127.0.0.1:@PORT@; proxy_pass u; proxy_session_drop on; }
                 server { listen 127.0.0.1:@KEEP@; proxy_pass u; } }";
    let (peer, second, keep, api) = (echo(), echo(), Port::reserve(), Port::reserve());
    let site = Site::whole(text).set("PEER", peer).set("SECOND", second).set("KEEP", keep.number);
    let server = site.set("OTHER", api.number).start();
    // It is there once every address is listened on.
    server.wait_for("logs/nginx.pid", "\n");
    let mut sessions = [server.connect(), server.connect(), Client::connect(keep.number), Client::connect(keep.number)];
    sessions.iter_mut().for_each(|client| echoes(client, "hello"));
    let ask = |head: &str, body: &str| {
        let length = body.len();
        let mut client = Client::connect(api.number);
        client.send(format!("{head} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}")).response().status
    };
    assert_eq!(ask("DELETE /9/stream/upstreams/u/servers/0", ""), 200);
    assert_eq!(ask("PATCH /9/stream/upstreams/u/servers/1", "{\"down\":true}"), 200);
    let [first, second, kept, kept_too] = &mut sessions;
    for client in [first, second] {
        // These bytes may still come back; the next ones do not.
        client.send("more");
        client.rest();
    }
    for client in [kept, kept_too] {
        echoes(client, "still here");
    }
    server.wait_for("logs/error.log", "session dropped: its peer is removed, down or unhealthy");
}
