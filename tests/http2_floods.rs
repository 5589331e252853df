//! HTTP/2 clients that only cost: each is cut off, and what it cost in memory and time is held to a limit.
//! Frames are written byte for byte.

use crate::harness::{Client, Server, Site, wait};
use std::time::Duration;
use wire::http2::PREFACE;
use wire::http2::frame::{FrameHeader, HEADER, flag, kind};
use wire::http2::hpack::encoder::Encoder;

/// What one attacker may make the server grow by.
const MEMORY: u64 = 16 * 1024 * 1024;
/// And how long it may keep a processor busy, in this build without optimisation.
const PROCESSOR: Duration = Duration::from_secs(4);

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = FrameHeader { len: payload.len(), kind, flags, stream }.bytes().to_vec();
    out.extend_from_slice(payload);
    out
}

pub fn block(path: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut e = Encoder::default();
    for (name, value) in [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "localhost")] {
        e.field(name.as_bytes(), value.as_bytes(), &mut out);
    }
    out
}

pub fn request(stream: u32, path: &str) -> Vec<u8> {
    frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, &block(path))
}

fn site() -> Server {
    let server = Site::server(
        "http2 on; send_timeout 1s; lingering_close off; location / { return 200 hello; } location /large { }",
    )
    .file("html/large", vec![b'x'; 8 << 20])
    .start();
    // What a server is made of is there before anything is measured.
    server.wait_for("logs/nginx.pid", "\n");
    assert_eq!(server.get("/").text(), "hello");
    server
}

pub fn open(server: &Server) -> Client {
    let mut client = server.connect();
    client.send(PREFACE).send(frame(kind::SETTINGS, 0, 0, b"")).send(frame(kind::SETTINGS, flag::ACK, 0, b""));
    client
}

/// What the server has sent until it closed, as type, stream and payload of frames.
fn frames(all: &[u8]) -> Vec<(u8, u32, Vec<u8>)> {
    let (mut frames, mut rest) = (Vec::new(), all);
    while let Some(h) = FrameHeader::parse(rest)
        && rest.len() >= HEADER + h.len
    {
        frames.push((h.kind, h.stream, rest[HEADER..HEADER + h.len].to_vec()));
        rest = &rest[HEADER + h.len..];
    }
    frames
}

/// Memory of the worker's own in bytes and processor time of the server. Pages of the binary are not counted: code that
/// runs for the first time is no growth, and of a debug build it is megabytes.
pub fn usage(server: &Server) -> (u64, Duration) {
    let pid = server.read("logs/nginx.pid").trim().to_owned();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let ticks = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<u64> =
            stat.rsplit(')').next().unwrap_or_default().split_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
        fields.get(11).unwrap_or(&0) + fields.get(12).unwrap_or(&0)
    };
    let ticks: u64 = children.split_whitespace().chain([pid.as_str()]).map(ticks).sum();
    (server.own_memory_kb() as u64 * 1024, Duration::from_millis(ticks * 10))
}

/// Runs an attack, and holds the server to the limits; others are served all the same.
fn within_limits<V>(server: &Server, attack: impl FnOnce() -> V) -> V {
    let before = usage(server);
    let result = attack();
    assert_eq!(server.get("/").text(), "hello", "others are served");
    let at_once = usage(server);
    println!("memory {} -> {}, {:?} of a processor", before.0, at_once.0, at_once.1 - before.1);
    // The allocator gives freed pages back some milliseconds later, when the thread works again.
    let mut after = at_once;
    let back = wait(|| {
        server.get("/");
        after = usage(server);
        after.0.saturating_sub(before.0) < MEMORY
    });
    println!("then {}", after.0);
    assert!(back, "memory {} -> {}", before.0, after.0);
    assert!(after.1 - before.1 < PROCESSOR, "{:?} of a processor", after.1 - before.1);
    result
}

/// Floods a server with `piece`, again and again, until it has enough and says so.
fn flood(server: &Server, client: &mut Client, said: &[&str], mut piece: impl FnMut(u32) -> Vec<u8>) {
    use std::io::Write;
    within_limits(server, || {
        let mut reader = client.stream.try_clone().unwrap();
        let read = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
        let cut_off = (0..2_000_000).any(|i| client.stream.write_all(&piece(i)).is_err());
        assert!(cut_off, "it is never cut off");
        let _ = read.join();
    });
    let log = server.error_log();
    assert!(said.iter().any(|text| log.contains(text)), "{log}");
}

const FLOOD: &str = "http2 flood detected";

#[test]
fn rapid_reset() {
    let server = site();
    let mut client = open(&server);
    flood(&server, &mut client, &[FLOOD, "client sent too many refused streams"], |i| {
        let id = 2 * i + 1;
        [request(id, "/large"), frame(kind::RST_STREAM, 0, id, &[0, 0, 0, 8])].concat()
    });
}

/// The same with resets that the server is made to send, for windows that grow too large.
#[test]
fn made_you_reset() {
    let server = site();
    let mut client = open(&server);
    flood(&server, &mut client, &[FLOOD, "client sent too many refused streams"], |i| {
        let id = 2 * i + 1;
        [request(id, "/large"), frame(kind::WINDOW_UPDATE, 0, id, &[0x7f, 0xff, 0xff, 0xff])].concat()
    });
}

#[test]
fn settings_pings_priorities_and_empty_data() {
    let floods: [(&str, Vec<u8>); 5] = [
        (FLOOD, frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0])),
        (FLOOD, frame(kind::PING, 0, 0, b"12345678")),
        ("client sent too many PRIORITY frames", frame(kind::PRIORITY, 0, 3, &[0, 0, 0, 1, 0])),
        (FLOOD, frame(kind::DATA, 0, 1, b"")),
        (FLOOD, frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
    ];
    for (said, one) in floods {
        let server = site();
        let mut client = open(&server);
        client.send(frame(kind::HEADERS, flag::END_HEADERS, 1, &block("/large")));
        let many = one.repeat(100);
        flood(&server, &mut client, &[said], |_| many.clone());
    }
}

/// Frames that nobody knows, as large as they may be.
#[test]
fn unknown_frames() {
    let server = site();
    let mut client = open(&server);
    let large = frame(0x77, 0, 0, &vec![0; wire::http2::DEFAULT_FRAME]);
    flood(&server, &mut client, &[FLOOD], |_| large.clone());
}

#[test]
fn continuations() {
    for piece in [vec![], vec![0u8; 15_000]] {
        let server = site();
        let mut client = open(&server);
        client.send(frame(kind::HEADERS, 0, 1, &block("/")));
        flood(&server, &mut client, &["client sent too large header"], |_| frame(kind::CONTINUATION, 0, 1, &piece));
    }
}

/// A field of four thousand bytes, named by one byte again and again.
#[test]
fn an_hpack_bomb() {
    let server = site();
    let mut bomb = block("/");
    bomb.extend_from_slice(&[0x40, 0x01, b'a', 0x7f, 0x81, 0x1e]);
    bomb.extend(std::iter::repeat_n(b'x', 4000));
    bomb.extend(std::iter::repeat_n(0xbe, 10_000));
    let bomb = frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &bomb);
    within_limits(&server, || {
        for _ in 0..100 {
            let mut client = open(&server);
            client.send(&bomb);
            let last = frames(&client.rest()).pop().expect("GOAWAY");
            assert_eq!((last.0, &last.2[4..]), (kind::GOAWAY, &[0, 0, 0, 11][..]));
        }
    });
    assert!(server.error_log().contains("client sent too large header"));
}

/// As many fields as fit, in each of many requests: legal, and so answered, but it costs no more than its bytes do.
#[test]
fn heads_of_empty_fields() {
    let server = site();
    let mut head = block("/");
    head.extend([0x40, 1, b'a', 0]);
    head.extend(std::iter::repeat_n(0xbe, 900));
    within_limits(&server, || {
        let mut client = open(&server);
        for i in 0..100 {
            client.send(frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 2 * i + 1, &head));
        }
        let mut answers = 0;
        while answers < 100 {
            let header = FrameHeader::parse(&client.take(HEADER)).unwrap();
            client.take(header.len);
            answers += usize::from(header.kind == kind::HEADERS);
        }
    });
}

/// Many large answers are asked for and never read: they wait as files, not in memory, and not for ever.
#[test]
fn readers_that_do_not_read() {
    let server = site();
    within_limits(&server, || {
        let mut clients: Vec<_> = (0..4).map(|_| open(&server)).collect();
        for client in &mut clients {
            client.send(frame(kind::WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0]));
            client.send(frame(kind::SETTINGS, 0, 0, &[0, 4, 0x7f, 0, 0, 0]));
            for i in 0..100 {
                client.send(request(2 * i + 1, "/large"));
            }
        }
        // The sockets are full and stay so: send_timeout ends them.
        let text = "client timed out (110: Connection timed out) while processing HTTP/2 connection";
        let said = || server.error_log().matches(text).count();
        assert!(wait(|| said() == clients.len()), "{}", server.error_log());
    });
}

/// A window of one byte at a time.
#[test]
fn an_answer_in_crumbs() {
    let server = site();
    let mut client = open(&server);
    client.send(frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])).send(request(1, "/large"));
    let crumb = frame(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]);
    flood(&server, &mut client, &[FLOOD], |_| {
        // One by one, so that each is answered by a frame of its own.
        std::thread::sleep(Duration::from_micros(20));
        crumb.clone()
    });
}

#[test]
fn a_head_that_never_ends() {
    let server = Site::server("http2 on; client_header_timeout 300ms; lingering_close off; return 200 hello;").start();
    let mut client = open(&server);
    client.send(frame(kind::HEADERS, 0, 1, &block("/")));
    let mut reset = Vec::new();
    while reset.len() < 4 * HEADER + 24 + 4 + 4 {
        reset.extend(client.take(1));
    }
    // The stream is reset, the connection goes on.
    assert_eq!(reset[reset.len() - HEADER - 4 + 3], kind::RST_STREAM);
    client.send(frame(kind::CONTINUATION, flag::END_HEADERS, 1, b"")).send(request(3, "/"));
    let answer = FrameHeader::parse(&client.take(HEADER)).unwrap();
    assert_eq!((answer.kind, answer.stream), (kind::HEADERS, 3));
}

#[test]
fn streams_beyond_the_limit() {
    let server = Site::server(
        "http2 on; http2_max_concurrent_streams 2; lingering_close off; location / { limit_rate 1; return 200 hello; }",
    )
    .start();
    let mut client = open(&server);
    for i in 0..3 {
        client.send(request(2 * i + 1, "/"));
    }
    let refused = loop {
        let header = FrameHeader::parse(&client.take(HEADER)).unwrap();
        let payload = client.take(header.len);
        if header.kind == kind::RST_STREAM {
            break (header.stream, payload);
        }
    };
    assert_eq!(refused, (5, vec![0, 0, 0, 7]));
}
