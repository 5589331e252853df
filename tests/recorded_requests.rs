//! 302 raw requests with what nginx 1.31.5 made of them: the same kind of answer, and never more bytes passed to the upstream.
//! Needs `../shared/data/http1-requests.json`; the rules of comparing are those of `../shared/suites/replay-raw.py`.

use crate::harness::{Program, Server, Site, find, shared};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use wire::encoding::{Alphabet, base64_decode};

/// How many of the recorded requests must be answered as nginx answers them.
const LEAST_SAME: usize = 290;
/// Requests played at the same time, each with a listener and a backend of its own, so that bytes can be told apart.
const LANES: usize = 16;
/// A server that has said nothing for so long says nothing; after an answer, for so long, has no other.
const SILENCE: Duration = Duration::from_millis(600);
const NO_MORE: Duration = Duration::from_millis(120);

struct Case<'a> {
    id: &'a str,
    raw: Vec<u8>,
    /// nginx's first status.
    status: Option<u16>,
    closed: bool,
    /// Whether nginx passed anything on.
    forwarded: bool,
}

/// The file has one object a line, its members in one order.
fn cases(text: &str) -> Vec<Case<'_>> {
    let between = |line: &'_ str, start: &str, end: &str| -> (usize, usize) {
        let at = line.find(start).unwrap_or_else(|| panic!("{start} in {line}")) + start.len();
        (at, at + line[at..].find(end).expect("the member ends"))
    };
    let lines = text.lines().filter(|line| line.starts_with("{\"id\""));
    let case = |line| {
        let member = |start, end| {
            let (from, to) = between(line, start, end);
            &line[from..to]
        };
        let mut raw = Vec::new();
        base64_decode(member("\"raw\": \"", "\"").as_bytes(), Alphabet::Standard, &mut raw).expect("base64");
        Case {
            id: member("{\"id\": \"", "\""),
            raw,
            status: member("\"nginx\": {\"status\": [", "]").split(',').next().and_then(|s| s.parse().ok()),
            closed: member("\"closed\": ", ",") == "true",
            forwarded: !member("\"forwarded\": \"", "\"").is_empty(),
        }
    };
    lines.map(case).collect()
}

/// The requests alone.
pub fn raw_requests(text: &str) -> Vec<Vec<u8>> {
    cases(text).into_iter().map(|case| case.raw).collect()
}

/// One listener of the server with its backend.
struct Lane {
    port: u16,
    seen: Arc<Mutex<Vec<u8>>>,
}

#[test]
fn answered_as_nginx_answers_and_nothing_more_passed_on() {
    let Some(text) = shared("data/http1-requests.json") else { return };
    let Some((_server, lanes)) = start() else {
        println!("proxy_pass is not there yet: left out");
        return;
    };
    let cases = cases(&text);
    assert!(cases.len() > LEAST_SAME);
    let (next, different, more) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|threads| {
        for lane in &lanes {
            threads.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    play(lane, case, &different, &more);
                }
            });
        }
    });
    let (different, more) = (different.into_inner().unwrap(), more.into_inner().unwrap());
    let same = cases.len() - different.len();
    println!("same {same} of {}, forwarded more than nginx: {}", cases.len(), more.len());
    assert!(
        same >= LEAST_SAME && more.is_empty(),
        "different:\n{}\npassed on, and not by nginx:\n{}",
        different.join("\n"),
        more.join("\n")
    );
}

fn start() -> Option<(Server, Vec<Lane>)> {
    const PROXY: &str = "proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_set_header Host $http_host;
        proxy_request_buffering off; proxy_read_timeout 2s;";
    let probe = Site::http(&format!(
        "server {{ listen 127.0.0.1:@PORT@; location / {{ {PROXY} proxy_pass http://127.0.0.1:1; }} }}"
    ));
    if !probe.check_as(Program::under_test())?.0.success() {
        return None;
    }
    let (mut text, mut lanes, mut ports) = (String::new(), Vec::new(), Vec::new());
    for number in 0..LANES {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let backend = backend(seen.clone());
        let port = crate::harness::Port::reserve();
        let listen = if number == 0 { "listen 127.0.0.1:@PORT@;" } else { "" };
        text += &format!(
            "server {{ {listen} listen 127.0.0.1:{}; location / {{ {PROXY} proxy_pass http://127.0.0.1:{backend}; }} }}\n",
            port.number
        );
        lanes.push(Lane { port: port.number, seen });
        ports.push(port);
    }
    let server = Site::http(&text).start();
    Some((server, lanes))
}

/// Keeps every byte; answers a head with a plain 200 and closes.
fn backend(seen: Arc<Mutex<Vec<u8>>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("the kernel gives a port");
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let seen = seen.clone();
            std::thread::spawn(move || answer(stream, &seen));
        }
    });
    port
}

fn answer(mut stream: TcpStream, seen: &Mutex<Vec<u8>>) {
    let _ = stream.set_read_timeout(Some(Duration::from_millis(1500)));
    let (mut head, mut more) = (Vec::new(), [0; 65536]);
    while let Ok(n @ 1..) = stream.read(&mut more) {
        head.extend_from_slice(&more[..n]);
        seen.lock().unwrap().extend_from_slice(&more[..n]);
        if find(&head, b"\r\n\r\n").is_some() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nOK");
            return;
        }
    }
}

fn play(lane: &Lane, case: &Case<'_>, different: &Mutex<Vec<String>>, more: &Mutex<Vec<String>>) {
    lane.seen.lock().unwrap().clear();
    let (status, closed) = exchange(lane.port, &case.raw);
    let forwarded = std::mem::take(&mut *lane.seen.lock().unwrap());
    let (here, nginx) = (kind(status, closed), kind(case.status, case.closed));
    if here != nginx {
        different.lock().unwrap().push(format!("{}: nginx {nginx} here {here}: {}", case.id, shown(&case.raw)));
    }
    if !forwarded.is_empty() && !case.forwarded {
        more.lock().unwrap().push(format!("{}: {}", case.id, shown(&forwarded)));
    }
}

/// The first bytes, readable.
fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(200)].escape_ascii().to_string()
}

/// The first status and whether the server closed.
fn exchange(port: u16, raw: &[u8]) -> (Option<u16>, bool) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server accepts");
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    let _ = stream.write_all(raw);
    let (mut said, mut more, mut closed) = (Vec::new(), [0; 65536], false);
    loop {
        match stream.read(&mut more) {
            Ok(0) => closed = true,
            Ok(n) => said.extend_from_slice(&more[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(_) => closed = true,
        }
        if closed {
            break;
        }
        if find(&said, b"\r\n\r\n").is_some() {
            stream.set_read_timeout(Some(NO_MORE)).unwrap();
        }
    }
    let at = find(&said, b"HTTP/1.");
    let status = at.and_then(|at| std::str::from_utf8(said.get(at + 9..at + 12)?).ok()?.parse().ok());
    (status, closed)
}

fn kind(status: Option<u16>, closed: bool) -> String {
    match status {
        Some(status) => format!("{}xx", status / 100),
        None if closed => "closed".to_owned(),
        None => "silent".to_owned(),
    }
}
