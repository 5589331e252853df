//! `ironweir stress --hold`: connections that stay, in each protocol, against small servers.

use crate::harness::{Json, Program, run_stress, text};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, Ordering::Relaxed};
use std::time::Duration;

/// Runs it; its results, with the exit status checked.
fn hold(arguments: &str) -> Json {
    let output = run_stress(&format!("{arguments} --json -"));
    assert!(output.status.success(), "{arguments}: {output:?}");
    Json(text(&output))
}

/// Serves each connection on a thread of its own; counts what `serve` returns.
fn server(serve: impl Fn(&mut TcpStream) -> usize + Send + Sync + 'static) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (counter, serve) = (Arc::new(AtomicUsize::new(0)), Arc::new(serve));
    let counted = counter.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let (serve, counted) = (serve.clone(), counted.clone());
            let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
            std::thread::spawn(move || counted.fetch_add(serve(&mut stream), Ordering::Relaxed));
        }
    });
    (port, counter)
}

/// Reads until the bytes end so; nothing if the connection ended first.
fn until(stream: &mut TcpStream, end: &[u8]) -> Option<Vec<u8>> {
    let (mut bytes, mut one) = (Vec::new(), [0]);
    while !bytes.ends_with(end) {
        if stream.read(&mut one).ok()? == 0 {
            return None;
        }
        bytes.push(one[0]);
    }
    Some(bytes)
}

/// Waits for the end of a connection.
fn ended(stream: &mut TcpStream, acknowledged: bool) -> usize {
    let _ = until(stream, b"never");
    usize::from(acknowledged)
}

#[test]
fn http_with_a_heartbeat() {
    let (port, _) = server(|stream| {
        while until(stream, b"\r\n\r\n").is_some() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
        0
    });
    let json = hold(&format!("--hold 40 --ramp 400 --heartbeat 300ms -d 1s -t2 http://127.0.0.1:{port}/"));
    assert_eq!((json.number("held"), json.number("lost"), json.number("wanted")), (40.0, 0.0, 40.0), "{}", json.0);
    let beats = json.number("heartbeat_us.count");
    assert!((80.0..=160.0).contains(&beats), "two to four heartbeats each: {beats}");
    assert!(json.raw("verdict.limit") == "\"none\"", "{}", json.0);
}

#[test]
fn server_sent_events() {
    let (port, _) = server(|stream| {
        let request = until(stream, b"\r\n\r\n").unwrap_or_default();
        assert!(String::from_utf8_lossy(&request).contains("Accept: text/event-stream"));
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
        for _ in 0..3 {
            let _ = stream.write_all(b"data: x\n\n");
        }
        let _ = until(stream, b"never");
        0
    });
    let json = hold(&format!("--hold 10 --hold-protocol sse -d 500ms http://127.0.0.1:{port}/events"));
    assert_eq!((json.number("held"), json.number("messages")), (10.0, 30.0), "{}", json.0);
}

#[test]
fn websocket_with_pings() {
    let (port, pings) = server(|stream| {
        let request = String::from_utf8(until(stream, b"\r\n\r\n").unwrap()).unwrap();
        assert!(request.starts_with("GET /chat HTTP/1.1\r\n") && request.contains("Sec-WebSocket-Key: "), "{request}");
        let _ = stream.write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x05hello",
        );
        let (mut frame, mut pings) = ([0; 6], 0);
        // A masked ping without a payload has six bytes.
        while stream.read_exact(&mut frame).is_ok() && frame[..2] == [0x89, 0x80] {
            pings += 1;
            let _ = stream.write_all(&[0x8a, 0]);
        }
        pings
    });
    let json = hold(&format!("--hold 8 --heartbeat 200ms -d 900ms ws://127.0.0.1:{port}/chat"));
    assert_eq!((json.number("held"), json.number("messages")), (8.0, 8.0), "{}", json.0);
    let beats = json.number("heartbeat_us.count");
    assert!(beats >= 16.0 && json.0.contains("\"protocol\": \"websocket\""), "{}", json.0);
    drop(pings);
}

#[test]
fn mqtt_clients_subscribe_and_acknowledge() {
    let (port, acknowledged) = server(|stream| {
        let mut packet = |wanted: u8| -> Option<Vec<u8>> {
            let mut header = [0; 2];
            stream.read_exact(&mut header).ok()?;
            assert_eq!(header[0], wanted);
            let mut body = vec![0; usize::from(header[1])];
            stream.read_exact(&mut body).ok()?;
            stream
                .write_all(match wanted {
                    0x10 => b"\x20\x02\0\0",
                    // SUBACK, and a message at QoS 1.
                    0x82 => b"\x90\x03\0\x01\x01\x32\x07\0\x01t\0\x09hi",
                    _ => b"",
                })
                .ok()?;
            Some(body)
        };
        let connect = packet(0x10).unwrap_or_default();
        assert!(connect.starts_with(b"\0\x04MQTT\x04\x02"), "{connect:?}");
        let subscribe = packet(0x82).unwrap_or_default();
        assert_eq!(subscribe, b"\0\x01\0\x01t\x01");
        let acknowledged = packet(0x40) == Some(vec![0, 9]);
        ended(stream, acknowledged)
    });
    let arguments = "--mqtt 3.1.1 --topic t --qos 1 -d 500ms";
    let json = hold(&format!("--hold 12 {arguments} mqtt://127.0.0.1:{port}"));
    assert_eq!((json.number("held"), json.number("messages")), (12.0, 12.0), "{}", json.0);
    assert!(crate::harness::wait(|| acknowledged.load(Ordering::Relaxed) == 12));
}

#[test]
fn a_target_that_drops_them_is_the_limit() {
    let (port, _) = server(|stream| {
        let _ = until(stream, b"\r\n\r\n");
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        std::thread::sleep(Duration::from_millis(200));
        0
    });
    let output = run_stress(&format!("--hold 20 -d 1s --quiet http://127.0.0.1:{port}/"));
    let text = text(&output);
    assert_eq!(output.status.code(), Some(4), "nothing is held: {text}");
    assert!(text.contains("Verdict: target") && text.contains("20 lost") && text.contains("20 closed"), "{text}");
}

/// Holds connections past a limit of descriptors, for so long after the last was begun.
fn hold_many(count: usize, descriptors: usize, ramp: u32, seconds: u32) -> Json {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let over = Arc::new(AtomicBool::new(false));
    let ends = over.clone();
    let server = std::thread::spawn(move || {
        let mut held = Vec::new();
        let mut buffer = [0; 512];
        for mut stream in listener.incoming().map_while(Result::ok).take_while(|_| !ends.load(Relaxed)) {
            if stream.read(&mut buffer).is_ok_and(|n| n > 0) {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                held.push(stream);
            }
        }
    });
    let program = Program::Ironweir.path().unwrap();
    // As root a process may lift its own limit; as somebody else it cannot, and takes more tables.
    let line = format!(
        "ulimit -Sn {descriptors}; ulimit -Hn {descriptors}; exec {} stress --hold {count} --ramp {ramp} -d {seconds}s --json - http://127.0.0.1:{port}/",
        program.display()
    );
    let output = Command::new("sh").args(["-c", &line]).stdin(Stdio::null()).output().unwrap();
    over.store(true, Relaxed);
    let _ = TcpStream::connect(("127.0.0.1", port));
    server.join().unwrap();
    Json(text(&output))
}

/// 10,000 connections cost at most 1 kB of user memory each, and more than the process's descriptor limit is possible.
#[test]
fn ten_thousand_in_little_memory_past_the_descriptor_limit() {
    // The server is one thread of this test: on a busy machine it may need longer to accept them all.
    let mut json = hold_many(10_000, 4096, 4000, 3);
    if json.number("held") < 9990.0 {
        json = hold_many(10_000, 4096, 4000, 30);
    }
    let (held, memory) = (json.number("held"), json.number("memory_bytes_each"));
    assert!(held >= 9990.0 && memory <= 1024.0, "{held} held, {memory} bytes each: {}", json.0);
    // Of 150 descriptors 50 are those of rings: they are not there for connections on their way, however many are due at once.
    let json = hold_many(7500, 150, 1_000_000, 10);
    assert!((json.number("held"), json.number("errors.no_descriptor")) == (7500.0, 0.0), "{}", json.0);
}
