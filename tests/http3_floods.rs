//! HTTP/3 and QUIC clients that only cost: each is cut off or held to a limit, in memory and time. Frames are written byte for
//! byte.

use crate::harness::quic::{
    Requests, ask, client, client_config, connect, endpoint, endpoint_with, get, quic_site, run, speak,
};
use crate::harness::{Backend, Reply, Server, Setup, wait};
use crate::http2_floods::usage;
use crate::http3::{framed, head};
use quinn::{Connection, ConnectionError, TransportConfig, VarInt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::UdpSocket;
use wire::http3::frame::{kind, stream};
use wire::http3::qpack::encoder;
use wire::http3::{ErrorCode, varint};

/// What one attacker may make the server grow by.
const MEMORY: u64 = 16 * 1024 * 1024;
/// And how long it may keep a processor busy, in this build without optimisation.
const PROCESSOR: Duration = Duration::from_secs(4);
/// Bytes of the large file.
const LARGE: usize = 8 << 20;

fn site(more: &str) -> Server {
    let locations = "location / { return 200 hello; } location /large { }";
    let server = quic_site("", &format!("send_timeout 1s; {more} {locations}")).set("THREADS", 1);
    server.file("html/large", vec![b'x'; LARGE]).start()
}

/// What the server has used, once it has served somebody; and that client, who goes on.
async fn warm(server: &Server) -> ((u64, Duration), quinn::Endpoint, Requests) {
    let (endpoint, mut requests) = client(server.port).await;
    assert_eq!(ask(&mut requests, get("/"), b"").await.text(), "hello");
    (usage(server), endpoint, requests)
}

/// Lets an attacker work until its connection is closed; with which code. Others are served meanwhile and later.
async fn attacked<F: Future<Output = ()>>(server: &Server, attack: impl FnOnce(Connection) -> F) -> u64 {
    let (before, _good, mut requests) = warm(server).await;
    let endpoint = endpoint(b"h3");
    let connection = connect(&endpoint, server.port).await;
    let (why, ()) = tokio::join!(connection.closed(), attack(connection.clone()));
    let after = usage(server);
    assert!(after.0.saturating_sub(before.0) < MEMORY, "memory {} -> {}", before.0, after.0);
    assert!(after.1 - before.1 < PROCESSOR, "{:?} of a processor", after.1 - before.1);
    assert_eq!(ask(&mut requests, get("/"), b"").await.text(), "hello");
    let ConnectionError::ApplicationClosed(close) = why else { panic!("{why:?}") };
    close.error_code.into_inner()
}

/// Writes the same bytes on a stream of a request until the connection is gone.
async fn pour(connection: Connection, first: Vec<u8>, piece: Vec<u8>) {
    let Ok((mut send, _receive)) = connection.open_bi().await else { return };
    let _ = send.write_all(&first).await;
    while send.write_all(&piece).await.is_ok() {}
}

#[test]
fn frames_that_bring_nothing() {
    let mut endless = Vec::new();
    varint::write(0x21, &mut endless);
    varint::write(1 << 40, &mut endless);
    let floods = [
        (head("/"), framed(kind::DATA, b"").repeat(100)),
        (head("/"), framed(0x21, b"x").repeat(100)),
        (endless, vec![0; 10_000]),
    ];
    let server = site("");
    run(async {
        for (first, piece) in floods {
            let code = attacked(&server, |c| pour(c, first, piece)).await;
            assert_eq!(code, u64::from(ErrorCode::EXCESSIVE_LOAD.0));
        }
    });
    assert!(server.error_log().contains("http3 flood detected"));
}

#[test]
fn requests_that_are_cancelled_again_and_again_end_the_connection() {
    let backend = Backend::start(|_| {
        std::thread::sleep(Duration::from_millis(50));
        Reply::ok("late")
    });
    let server =
        site(&format!("keepalive_requests 100000; location /late {{ proxy_pass http://127.0.0.1:{}; }}", backend.port));
    run(async {
        let code = attacked(&server, async |connection| {
            while let Ok((mut send, mut receive)) = connection.open_bi().await {
                let _ = send.write_all(&head("/late")).await;
                tokio::task::yield_now().await;
                let _ = send.reset(VarInt::from_u32(ErrorCode::REQUEST_CANCELLED.0));
                let _ = receive.stop(VarInt::from_u32(ErrorCode::REQUEST_CANCELLED.0));
            }
        });
        assert_eq!(code.await, u64::from(ErrorCode::EXCESSIVE_LOAD.0));
    });
}

/// An integer behind the bits of `first` (RFC 9204 section 4.1.1).
fn integer(value: usize, bits: u32, first: u8, out: &mut Vec<u8>) {
    let most = (1 << bits) - 1;
    if value < most {
        return out.push(first | value as u8);
    }
    out.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 128 {
        out.push(rest as u8 | 128);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// An instruction that puts a field into the server's table (RFC 9204 section 4.3.3).
fn insertion(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    integer(name.len(), 5, 0x40, &mut out);
    out.extend_from_slice(name);
    integer(value.len(), 7, 0, &mut out);
    out.extend_from_slice(value);
    out
}

/// Begins the stream of such instructions; the table may have its 4 kB (section 4.3.1).
async fn instructions(connection: &Connection) -> quinn::SendStream {
    let mut out = vec![stream::ENCODER as u8];
    integer(4096, 5, 0x20, &mut out);
    let mut send = connection.open_uni().await.unwrap();
    send.write_all(&out).await.unwrap();
    send
}

/// A request whose section needs `needed` entries of the table and refers to the last of them `times` times.
fn referring(needed: usize, times: usize) -> Vec<u8> {
    let mut plain = Vec::new();
    encoder::begin(&mut plain);
    for (name, value) in [(":method", "GET"), (":scheme", "https"), (":path", "/"), (":authority", "localhost")] {
        encoder::field(name.as_bytes(), value.as_bytes(), &mut plain);
    }
    // Section 4.5.1: the number is told modulo twice the entries that fit; the base is the same.
    let mut section = Vec::new();
    integer(needed + 1, 8, 0, &mut section);
    section.push(0);
    section.extend_from_slice(&plain[2..]);
    section.extend(std::iter::repeat_n(0x80, times));
    framed(kind::HEADERS, &section)
}

#[test]
fn an_entry_of_the_table_named_ten_thousand_times() {
    let server = site("");
    run(async {
        let (before, _good, _requests) = warm(&server).await;
        let endpoint = endpoint(b"h3");
        let connection = connect(&endpoint, server.port).await;
        let mut table = instructions(&connection).await;
        table.write_all(&insertion(b"a", &[b'x'; 4000])).await.unwrap();
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(&referring(1, 10_000)).await.unwrap();
        send.finish().unwrap();
        let answer = receive.read_to_end(100_000).await.unwrap();
        assert!(answer.windows(7).any(|w| w == b"Request"), "{}", answer.escape_ascii());
        let after = usage(&server);
        assert!(after.0.saturating_sub(before.0) < MEMORY, "memory {} -> {}", before.0, after.0);
    });
}

#[test]
fn heads_that_wait_for_the_table() {
    let server = site("");
    run(async {
        let code = attacked(&server, async |connection| {
            let mut open = Vec::new();
            while let Ok((mut send, receive)) = connection.open_bi().await {
                let _ = send.write_all(&referring(1, 1)).await;
                open.push((send, receive));
            }
        });
        assert_eq!(code.await, u64::from(ErrorCode::QPACK_DECOMPRESSION_FAILED.0));
    });
}

#[test]
fn instructions_without_requests() {
    let server = site("");
    run(async {
        let code = attacked(&server, async |connection| {
            let mut table = instructions(&connection).await;
            let piece = insertion(b"a", b"x").repeat(400);
            while table.write_all(&piece).await.is_ok() {}
        });
        assert_eq!(code.await, u64::from(ErrorCode::EXCESSIVE_LOAD.0));
    });
}

/// A window of one byte at a time.
#[test]
fn an_answer_in_crumbs() {
    let server = site("");
    run(async {
        let mut transport = TransportConfig::default();
        transport.stream_receive_window(1u32.into());
        let mut config = client_config(Setup::new(), b"h3");
        config.transport_config(Arc::new(transport));
        let (before, _good, _requests) = warm(&server).await;
        let endpoint = endpoint_with(config);
        let connection = connect(&endpoint, server.port).await;
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(&head("/large")).await.unwrap();
        let mut byte = [0; 1];
        while receive.read_exact(&mut byte).await.is_ok() {}
        let ConnectionError::ApplicationClosed(close) = connection.closed().await else { panic!() };
        assert_eq!(close.error_code.into_inner(), u64::from(ErrorCode::EXCESSIVE_LOAD.0));
        assert!(usage(&server).1 - before.1 < PROCESSOR);
    });
}

/// Many large answers are asked for and never read: they wait as files, not in memory, and not for ever.
#[test]
fn a_reader_that_does_not_read() {
    let server = site("");
    run(async {
        let (before, _good, _requests) = warm(&server).await;
        let endpoint = endpoint(b"h3");
        let connection = connect(&endpoint, server.port).await;
        let mut open = Vec::new();
        for _ in 0..100 {
            let (mut send, receive) = connection.open_bi().await.unwrap();
            send.write_all(&head("/large")).await.unwrap();
            send.finish().unwrap();
            open.push((send, receive));
        }
        for (_, receive) in &mut open {
            // `send_timeout` ends each.
            assert!(receive.read_to_end(LARGE + 1000).await.is_err());
        }
        let after = usage(&server);
        assert!(after.0.saturating_sub(before.0) < MEMORY, "memory {} -> {}", before.0, after.0);
    });
}

/// Passes datagrams on between a client and a server; from the server only while `hears` is set.
async fn relay(server: u16, hears: Arc<AtomicBool>) -> u16 {
    let (near, far) = (UdpSocket::bind("127.0.0.1:0").await.unwrap(), UdpSocket::bind("127.0.0.1:0").await.unwrap());
    far.connect(("127.0.0.1", server)).await.unwrap();
    let port = near.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut out, mut back, mut client) = (vec![0; 65536], vec![0; 65536], None);
        loop {
            tokio::select! {
                Ok((n, from)) = near.recv_from(&mut out) => {
                    client = Some(from);
                    let _ = far.send(&out[..n]).await;
                }
                Ok(n) = far.recv(&mut back) => if let Some(client) = client && hears.load(Ordering::Relaxed) {
                    let _ = near.send_to(&back[..n], client).await;
                }
            }
        }
    });
    port
}

/// It says that it is there, and acknowledges nothing: what was sent is not kept for it for ever.
#[test]
fn a_client_that_acknowledges_nothing() {
    let server = site("");
    run(async {
        let hears = Arc::new(AtomicBool::new(true));
        let port = relay(server.port, hears.clone()).await;
        let mut transport = TransportConfig::default();
        transport.keep_alive_interval(Some(Duration::from_millis(100))).max_idle_timeout(None);
        let mut config = client_config(Setup::new(), b"h3");
        config.transport_config(Arc::new(transport));
        let endpoint = endpoint_with(config);
        let connection = connect(&endpoint, port).await;
        let mut requests = speak(connection.clone()).await;
        assert_eq!(ask(&mut requests, get("/"), b"").await.text(), "hello");
        hears.store(false, Ordering::Relaxed);
        let _stream = requests.send_request(get("/large")).await.unwrap();
        tokio::task::spawn_blocking(move || {
            let count = || server.error_log().matches("client timed out").count();
            // First the request, then the connection.
            assert!(wait(|| count() >= 2), "{}", server.error_log());
        })
        .await
        .unwrap();
    });
}

/// First packets whose senders do not go on: after some, addresses are checked first, and those who answer get in.
#[test]
fn first_packets_of_nobody() {
    const NOBODIES: usize = 600;
    let server = site("client_header_timeout 5s;");
    run(async {
        let (before, _good, _requests) = warm(&server).await;
        let (nowhere, nobody) =
            (UdpSocket::bind("127.0.0.1:0").await.unwrap(), UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let endpoint = endpoint(b"h3");
        let (mut asking, mut packet) = (Vec::new(), vec![0; 2048]);
        for _ in 0..NOBODIES {
            asking.push(endpoint.connect(nowhere.local_addr().unwrap(), "localhost").unwrap());
            let mut n = nowhere.recv(&mut packet).await.unwrap();
            loop {
                nobody.send_to(&packet[..n], ("127.0.0.1", server.port)).await.unwrap();
                match nowhere.try_recv(&mut packet) {
                    Ok(more) => n = more,
                    Err(_) => break,
                }
            }
        }
        let (_good, mut requests) = client(server.port).await;
        assert_eq!(ask(&mut requests, get("/"), b"").await.text(), "hello");
        let after = usage(&server);
        assert!(after.0.saturating_sub(before.0) < 2 * MEMORY, "memory {} -> {}", before.0, after.0);
        assert!(after.1 - before.1 < PROCESSOR, "{:?} of a processor", after.1 - before.1);
    });
    // Some were answered by a check of their address.
    let timed_out = || server.error_log().matches("client timed out").count();
    assert!(wait(|| timed_out() > 0));
    assert!(timed_out() < NOBODIES);
}
