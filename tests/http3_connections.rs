//! QUIC connections: how they begin, move, outlive reloads, and end.

use crate::harness::quic::{Requests, ask, client, client_config, connect, endpoint, get, quic_site, run, speak};
use crate::harness::{Backend, Reply, Server, Setup, wait};
use crate::processes::children;
use quinn::{Endpoint, EndpointConfig, TokioRuntime};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

const CONNECTIONS: usize = 100;
const RELOADS: usize = 10;

fn reload(server: &Server, number: usize) {
    let count = |text: &str| text.matches("signal 1 (SIGHUP) received").count();
    server.signal(Signal::HUP);
    assert!(wait(|| count(&server.error_log()) >= number), "{}", server.error_log());
}

#[test]
fn a_reload_keeps_all_connections() {
    let server = quic_site("", "location / { return 200 \"one $connection\"; }").set("THREADS", 2).start();
    run(async {
        let endpoint = endpoint(b"h3");
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            let connection = connect(&endpoint, server.port).await;
            let mut requests = speak(connection.clone()).await;
            let first = ask(&mut requests, get("/"), b"").await.text();
            clients.push((connection, requests, first));
        }
        let conf = std::fs::read_to_string(server.dir().join("nginx.conf")).unwrap();
        std::fs::write(server.dir().join("nginx.conf"), conf.replace("one $connection", "two $connection")).unwrap();
        for n in 1..=RELOADS {
            reload(&server, n);
            for (_, requests, first) in &mut clients {
                let answer = ask(requests, get("/"), b"").await.text();
                assert!(answer == *first || answer == first.replace("one", "two"), "{answer} after {first}");
            }
        }
        for (connection, requests, first) in &mut clients {
            assert_eq!(ask(requests, get("/"), b"").await.text(), first.replace("one", "two"));
            assert_eq!(connection.close_reason(), None);
        }
    });
}

/// Nothing on the way to them could be too narrow.
#[test]
fn clients_on_this_machine_get_large_datagrams() {
    const LARGEST: u16 = 30_000;
    let server = quic_site("", "").set("THREADS", 1).file("html/large", vec![b'x'; 5_000_000]).start();
    run(async {
        let mut config = EndpointConfig::default();
        config.max_udp_payload_size(LARGEST).expect("a length");
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let mut endpoint = Endpoint::new(config, None, socket, Arc::new(TokioRuntime)).expect("a socket");
        endpoint.set_default_client_config(client_config(Setup::new(), b"h3"));
        let connection = connect(&endpoint, server.port).await;
        let mut requests = speak(connection.clone()).await;
        for _ in 0..2 {
            assert_eq!(ask(&mut requests, get("/large"), b"").await.body.len(), 5_000_000);
        }
        let came = connection.stats().udp_rx;
        assert!(came.bytes / came.datagrams > u64::from(LARGEST) / 2, "{came:?}");
    });
}

/// Many clients change their address; the new one belongs, by the kernel's choice, to another thread three times of four. Requests come
/// from the old address until it is certain that the client is at the new one.
fn migrate(events: &str) {
    let server = quic_site("", "location / { return 200 $connection:$remote_port; }").set("THREADS", 4);
    let server = server.set("events {}", events).start();
    run(async {
        let mut from_old = 0;
        for _ in 0..12 {
            let (endpoint, mut requests) = client(server.port).await;
            let before = ask(&mut requests, get("/"), b"").await.text();
            let (number, old) = before.split_once(':').unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let new = socket.local_addr().unwrap().port();
            assert_ne!(old, new.to_string());
            endpoint.rebind(socket).unwrap();
            let (old, new) = (format!("{number}:{old}"), format!("{number}:{new}"));
            loop {
                let seen = ask(&mut requests, get("/"), b"").await.text();
                if seen == new {
                    break;
                }
                assert_eq!(seen, old);
                from_old += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        assert!(from_old > 0, "addresses are believed at once");
    });
}

#[test]
fn connections_move_to_other_addresses() {
    migrate("events {}");
}

#[test]
fn connections_move_where_the_kernel_does_not_steer() {
    migrate("quic_bpf off; events {}");
}

#[test]
fn an_address_is_checked_first() {
    let server = quic_site("quic_retry on;", "return 200 ok;").set("THREADS", 1).start();
    run(async {
        let (_endpoint, mut requests) = client(server.port).await;
        assert_eq!(ask(&mut requests, get("/"), b"").await.text(), "ok");
    });
}

/// Asks by hand for a version that does not exist (RFC 8999 section 6).
#[test]
fn versions_are_negotiated() {
    let server = quic_site("", "return 200 ok;").set("THREADS", 1).start();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut packet = vec![0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8];
    packet.extend_from_slice(b"12345678\x03abc");
    packet.resize(1200, 0);
    let mut answer = [0; 1500];
    let n = loop {
        socket.send_to(&packet, ("127.0.0.1", server.port)).unwrap();
        if let Ok(n) = socket.recv(&mut answer) {
            break n;
        }
    };
    assert_eq!(&answer[1..6], [0, 0, 0, 0, 3]);
    assert_eq!(&answer[6..18], b"abc\x0812345678");
    assert!(answer[18..n].chunks(4).any(|version| version == [0, 0, 0, 1]));
}

#[test]
fn early_data_is_heard_once_and_marked() {
    let server = quic_site(
        "ssl_early_data on;",
        "location / { return 200 \"early:$ssl_early_data:$ssl_session_reused\"; } \
         location /strict { if ($ssl_early_data) { return 425; } return 200 late; } \
         location /guarded { auth_request /strict; try_files /none =418; }",
    )
    .set("THREADS", 1)
    .start();
    run(async {
        let endpoint = endpoint(b"h3");
        let first = connect(&endpoint, server.port).await;
        let mut requests = speak(first.clone()).await;
        assert_eq!(ask(&mut requests, get("/"), b"").await.text(), "early::.");
        drop(requests);
        first.close(0x100u32.into(), b"");
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], server.port));
        for (path, expected) in [("/", (200, "early:1:r")), ("/strict", (425, "")), ("/guarded", (500, ""))] {
            let connecting = endpoint.connect(address, "localhost").unwrap();
            let (connection, accepted) = connecting.into_0rtt().unwrap_or_else(|_| panic!("there is a session"));
            let mut requests = speak(connection.clone()).await;
            let answer = ask(&mut requests, get(path), b"").await;
            assert!(accepted.await);
            assert_eq!(answer.status, expected.0);
            assert!(answer.text().starts_with(expected.1), "{}", answer.text());
            assert_eq!(ask(&mut requests, get("/strict"), b"").await.text(), "late");
            // A subrequest knows when the handshake is over as well.
            assert_eq!(ask(&mut requests, get("/guarded"), b"").await.status, 418);
            connection.close(0x100u32.into(), b"");
        }
    });
}

/// A process that knows nothing of a connection but the key says that it is over.
#[test]
fn a_new_process_resets_old_connections() {
    let server = quic_site("quic_host_key @DIR@/host.key;", "return 200 ok;")
        .set("THREADS", 1)
        .file("host.key", "0123456789abcdef")
        .start();
    run(async {
        let endpoint = endpoint(b"h3");
        let connection = connect(&endpoint, server.port).await;
        let mut requests = speak(connection.clone()).await;
        assert_eq!(ask(&mut requests, get("/"), b"").await.text(), "ok");
        kill_worker(&server);
        let began = Instant::now();
        let asked = tokio::spawn(async move {
            let _ = requests.send_request(get("/")).await;
            // The connection is closed with its last user.
            requests
        });
        let why = connection.closed().await;
        assert_eq!(why, quinn::ConnectionError::Reset);
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        let _ = asked.await;
    });
}

/// What was told of a connection under the first key is forgotten; the connection goes on, and new ones are under the second.
#[test]
fn a_new_host_key_is_taken_over() {
    let server = quic_site("quic_host_key @DIR@/host.key;", "return 200 $connection;")
        .set("THREADS", 2)
        .file("host.key", "0123456789abcdef")
        .start();
    run(async {
        let first_endpoint = endpoint(b"h3");
        let (first, second) = (connect(&first_endpoint, server.port).await, endpoint(b"h3"));
        let mut old = speak(first.clone()).await;
        let number = ask(&mut old, get("/"), b"").await.text();
        std::fs::write(server.dir().join("host.key"), "fedcba9876543210").unwrap();
        reload(&server, 1);
        server.wait_for("logs/error.log", "configuration 1 of worker process");
        // Its packets find it though another thread gets them.
        first_endpoint.rebind(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        assert_eq!(ask(&mut old, get("/"), b"").await.text(), number);
        let connection = connect(&second, server.port).await;
        let mut new = speak(connection.clone()).await;
        assert_ne!(ask(&mut new, get("/"), b"").await.text(), number);
        // A process that has only the second key can say that the new connection is over.
        kill_worker(&server);
        let _ = new.send_request(get("/")).await;
        assert_eq!(connection.closed().await, quinn::ConnectionError::Reset);
    });
}

fn kill_worker(server: &Server) {
    let master: u32 = server.read("logs/nginx.pid").trim().parse().unwrap();
    let worker = children(master)[0];
    kill_process(Pid::from_raw(worker).unwrap(), Signal::KILL).unwrap();
    assert!(wait(|| matches!(children(master).as_slice(), [one] if *one != worker)));
}

/// USR2: connections stay with the process that has them, from another address too, and new ones go to the new process, also
/// while the old one drains and when it is gone.
#[test]
fn a_new_binary_takes_over_what_is_new() {
    const CLIENTS: usize = 8;
    let backend = Backend::start(|_| {
        std::thread::sleep(Duration::from_secs(2));
        Reply::ok("late")
    });
    let server =
        quic_site("", "location / { return 200 $pid; } location /slow { proxy_pass http://127.0.0.1:@BACKEND@; }")
            .set("THREADS", 2)
            .set("BACKEND", backend.port)
            .start();
    let all_of = async |clients: &mut Vec<(quinn::Endpoint, Requests)>| {
        let mut pids = Vec::new();
        for (_, requests) in clients {
            pids.push(ask(requests, get("/"), b"").await.text());
        }
        pids.sort();
        pids.dedup();
        pids
    };
    let some = async || {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(client(server.port).await);
        }
        clients
    };
    run(async {
        let mut old = some().await;
        let before = all_of(&mut old).await;
        let master = server.read("logs/nginx.pid");
        server.signal(Signal::USR2);
        let newer = || !["", &master].contains(&&*server.read("logs/nginx.pid"));
        assert!(wait(|| server.error_log().matches("start worker process ").count() == 2 && newer()));
        let new_master: u32 = server.read("logs/nginx.pid").trim().parse().unwrap();
        for (endpoint, _) in &old {
            endpoint.rebind(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        }
        assert_eq!(all_of(&mut old).await, before);
        let mut new = some().await;
        let after = all_of(&mut new).await;
        assert!(after.len() == 1 && after != before, "{before:?} {after:?}");
        // One of them is busy while the old process drains.
        let mut busy = old.remove(0).1;
        let late = tokio::spawn(async move { ask(&mut busy, get("/slow"), b"").await.text() });
        assert!(wait_in_turn(|| backend.seen().len() == 1).await);
        server.signal(Signal::QUIT);
        server.wait_for("logs/error.log", "gracefully shutting down");
        let mut newer = some().await;
        assert_eq!(all_of(&mut newer).await, after);
        assert_eq!(late.await.unwrap(), "late");
        server.wait_for("logs/error.log", &format!("worker process {} exited with code 0", before[0]));
        new.append(&mut newer);
        new.append(&mut some().await);
        assert_eq!(all_of(&mut new).await, after);
        let new_master = Pid::from_raw(new_master as i32).unwrap();
        kill_process(new_master, Signal::TERM).unwrap();
        assert!(wait(|| test_kill_process(new_master).is_err()));
    });
}

/// Waits for a condition and lets clients work meanwhile.
async fn wait_in_turn(mut condition: impl FnMut() -> bool) -> bool {
    for _ in 0..1000 {
        if condition() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    false
}

#[test]
fn draining_ends_connections_that_are_idle() {
    let server = quic_site("", "return 200 ok;").set("THREADS", 1).start();
    run(async {
        let endpoint = endpoint(b"h3");
        let connection = connect(&endpoint, server.port).await;
        let mut requests = speak(connection.clone()).await;
        assert_eq!(ask(&mut requests, get("/"), b"").await.text(), "ok");
        server.signal(Signal::QUIT);
        assert!(matches!(connection.closed().await, quinn::ConnectionError::ApplicationClosed(_)));
    });
}
