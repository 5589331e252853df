//! Where the time of requests goes (`/ironweir/time`), and what `ironweir why` makes of it.

use crate::harness::{Backend, Folder, Program, Reply, Server, Setup, Site, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// What is put in the way of a request, in one part of its life.
const PAUSE: Duration = Duration::from_millis(60);
/// Nine tenths of it.
const SEEN_US: u64 = 54_000;

fn pause() {
    thread::sleep(PAUSE);
}

/// A peer that does what it is told with each connection, for as long as the test runs.
fn peer(work: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || listener.incoming().flatten().for_each(&work));
    port
}

/// Microseconds that requests have spent in a part.
fn spent(server: &Server, part: &str) -> u64 {
    let said: Value = serde_json::from_str(&server.get("/api/9/ironweir/time").text()).unwrap();
    said["parts_us"][part].as_u64().unwrap_or_else(|| panic!("{part}: {said}"))
}

/// What a part grows by.
fn grows(server: &Server, part: &str, work: impl FnOnce()) -> u64 {
    let before = spent(server, part);
    work();
    spent(server, part) - before
}

#[test]
fn what_connections_wait_for_before_a_request_shows() {
    let server = Site::server(
        "listen 127.0.0.1:@OTHER@ ssl; ssl_certificate own.crt; ssl_certificate_key own.key;
         location /api { api; } location / { return 200 ok; }",
    )
    .certificate("own")
    .start();
    let tls = server.read("nginx.conf").split("127.0.0.1:").nth(2).unwrap().split(' ').next().unwrap().parse().unwrap();
    let us = grows(&server, "tls", || {
        let mut tcp = TcpStream::connect(("127.0.0.1", tls)).unwrap();
        // The server waits for the rest of the handshake: a connection is accepted with its first bytes (deferred).
        let mut session = Setup::new().client("localhost");
        session.write_tls(&mut tcp).unwrap();
        pause();
        let mut stream = rustls::Stream::new(&mut session, &mut tcp);
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.ends_with("ok"), "{answer}");
    });
    assert!(us >= SEEN_US, "tls: {us} us");
    // One of sixteen is asked: of 32 that wait as long, two.
    let master: u32 = server.read("logs/nginx.pid").trim().parse().unwrap();
    let worker = Pid::from_raw(crate::processes::children(master)[0]).unwrap();
    let us = grows(&server, "accept", || {
        kill_process(worker, Signal::STOP).unwrap();
        let mut clients: Vec<_> = (0..32).map(|_| server.connect()).collect();
        // Connections are accepted with their first bytes (deferred).
        for client in &mut clients {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        pause();
        kill_process(worker, Signal::CONT).unwrap();
        clients.into_iter().for_each(|mut c| assert_eq!(c.response().status, 200));
    });
    assert!(us >= 16 * SEEN_US, "accept: {us} us");
}

#[test]
fn each_wait_shows_in_its_part() {
    let slow = Backend::start(|_| {
        pause();
        Reply::ok("late")
    });
    let halting = peer(|mut s| {
        let _ = s.read(&mut [0; 4096]);
        let _ = s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
        pause();
        let _ = s.write_all(b"half");
    });
    let shakes_never = peer(|s| {
        pause();
        drop(s);
    });
    let quick = Backend::ok("quick");
    let server = Site::http(
        "limit_req_zone $uri zone=slow:1m rate=10r/s;
         upstream one { zone one 64k; server 127.0.0.1:@SLOW@ max_conns=1; queue 4 timeout=5s; }
         server { listen 127.0.0.1:@PORT@; root @DIR@;
           location /api { api; }
           location /ok { return 200 ok; }
           location /quick { proxy_pass http://127.0.0.1:@QUICK@; }
           location /limited { limit_req zone=slow burst=5; empty_gif; }
           location /queue { proxy_pass http://one; }
           location /slow { proxy_pass http://127.0.0.1:@SLOW@; }
           location /halting { proxy_pass http://127.0.0.1:@HALTING@; }
           location /tls { proxy_pass https://127.0.0.1:@TLS@; } }",
    )
    .file("large", vec![b'x'; 30 << 20])
    .set("SLOW", slow.port)
    .set("QUICK", quick.port)
    .set("HALTING", halting)
    .set("TLS", shakes_never)
    .start();
    let assert_seen = |part: &str, work: &dyn Fn()| {
        let us = grows(&server, part, work);
        assert!(us >= SEEN_US, "{part}: {us} us");
    };
    let in_two = |first: &str, second: &str| {
        let mut client = server.connect();
        client.send(first);
        pause();
        assert_eq!(client.send(second).response().status, 200);
    };
    assert_seen("head", &|| in_two("GET /ok HTTP/1.1\r\nHo", "st: a\r\n\r\n"));
    assert_seen("body", &|| in_two("POST /quick HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n12", "34"));
    assert_seen("own", &|| (0..2).for_each(|_| assert_eq!(server.get("/limited").status, 200)));
    assert_seen("first_byte", &|| assert_eq!(server.get("/slow").text(), "late"));
    assert_seen("answer", &|| assert_eq!(server.get("/halting").text(), "halfhalf"));
    assert_seen("connect", &|| assert_eq!(server.get("/tls").status, 502));
    assert_seen("queue", &|| {
        thread::scope(|scope| {
            (0..2).for_each(|_| drop(scope.spawn(|| assert_eq!(server.get("/queue").text(), "late"))))
        });
    });
    assert_seen("client", &|| {
        let mut client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        client.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        pause();
        assert!(client.read_to_end(&mut Vec::new()).unwrap() > 30 << 20);
    });
    let others = grows(&server, "first_byte", || drop(server.get("/ok")));
    assert_eq!(others, 0, "a request without a peer waits for none");
}

#[test]
fn a_log_that_takes_its_time_shows() {
    let site = Site::server(
        "access_log off; location /api { api; } location /logged { access_log @DIR@/slow.log; return 200 ok; }",
    );
    let path = site.path().join("slow.log");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    // Open both ways: whoever opens it to write waits for nobody.
    let mut pipe = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // As small as it can be, and full: a line is written when somebody reads.
    let size = rustix::pipe::fcntl_setpipe_size(&pipe, 4_096).unwrap();
    pipe.write_all(&vec![b'x'; size]).unwrap();
    let server = site.start();
    let written = || -> u64 {
        let said: Value = serde_json::from_str(&server.get("/api/9/ironweir/time").text()).unwrap();
        said["log_writes"]["us"].as_u64().unwrap()
    };
    let before = written();
    thread::scope(|scope| {
        assert_eq!(server.get("/logged").text(), "ok");
        scope.spawn(|| {
            // The line is written up to some milliseconds after its answer: the pause begins before.
            pause();
            pause();
            pipe.read_exact(&mut vec![0; size]).unwrap();
        });
        // Asked before the line is written, the server does not know yet.
        assert!(wait(|| written() - before >= SEEN_US), "log: {} us", written() - before);
    });
}

/// Runs `ironweir why --json`.
fn why(server: &Server) -> (Value, Option<i32>) {
    let url = format!("http://127.0.0.1:{}/api", server.port);
    let mut command = Command::new(Program::Ironweir.path().expect("Ironweir is built"));
    let output = command.args(["why", "--json", "--api", &url]).stdin(Stdio::null()).output().expect("it starts");
    (serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}")), output.status.code())
}

/// Findings of an answer, the first one first.
fn ids(answer: &Value) -> Vec<String> {
    let others = answer["others"].as_array().unwrap();
    let all = std::iter::once(&answer["finding"]).chain(others).filter(|f| !f.is_null());
    all.map(|f| f["id"].as_str().unwrap().to_owned()).collect()
}

/// Asks for a page again and again while something else is done.
fn under_load<T>(server: &Server, target: &str, clients: usize, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                let mut client = server.connect();
                while !over.load(Ordering::Relaxed) {
                    client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
                    if client.read_response(false).is_none() {
                        client = server.connect();
                    }
                }
            });
        }
        let result = work();
        over.store(true, Ordering::Relaxed);
        result
    })
}

#[test]
fn why_names_what_is_in_the_way() {
    let slow = Backend::start(|_| {
        thread::sleep(Duration::from_millis(200));
        Reply::ok("late")
    });
    let server = Site::http(
        "upstream app { zone app 64k; server 127.0.0.1:@SLOW@; } upstream narrow { zone narrow 64k; server 127.0.0.1:@SLOW@ max_conns=1; queue 1 timeout=1s; }
         server { listen 127.0.0.1:@PORT@; location /api { api; } location / { proxy_pass http://app; } location /narrow { proxy_pass http://narrow; }
           location /ok { return 200 ok; } }",
    )
    .set("SLOW", slow.port)
    .start();
    let (answer, status) = under_load(&server, "/", 8, || why(&server));
    assert!(ids(&answer).contains(&"upstream-slow".to_owned()), "{answer:#}");
    assert!(matches!(status, Some(3 | 4)), "{status:?}");
    let whole: f64 = answer["parts_us"].as_array().unwrap().iter().map(|p| p[1].as_f64().unwrap()).sum();
    assert!(whole >= 120_000.0, "{answer:#}");
    let own = || -> Value { serde_json::from_str(&server.get("/api/9/ironweir/why").text()).unwrap() };
    assert_eq!(own()["seconds"], 0, "there is nothing to compare the first look with");
    let itself = under_load(&server, "/", 8, || {
        thread::sleep(Duration::from_millis(1_100));
        own()
    });
    assert!(itself["finding"]["id"].is_string() && ids(&itself).contains(&"upstream-slow".to_owned()), "{itself:#}");
    assert_eq!(own()["sentence"], itself["sentence"], "who asks more often than once a second hears the same");
    let (answer, _) = under_load(&server, "/narrow", 4, || why(&server));
    assert!(ids(&answer).contains(&"upstream-queue".to_owned()), "{answer:#}");
    let (answer, _) = under_load(&server, "/ok", 2, || why(&server));
    let served = ids(&answer).into_iter().filter(|id| id.starts_with("upstream") || id == "thread-stuck");
    assert_eq!(served.collect::<Vec<_>>(), Vec::<String>::new(), "{answer:#}");
    assert!(answer["headroom"]["rate"].as_f64().unwrap() > 5.0, "{answer:#}");
    assert!(answer["sentence"].as_str().unwrap().contains(" requests/s"), "{answer:#}");
}

/// A port of this machine that leads to a server elsewhere: the server is asked about its machine, and this one has no part in the answer.
#[test]
fn why_of_a_server_elsewhere_is_that_servers_word() {
    let server = Site::server("location /api { api; } location /ok { return 200 ok; }").start();
    let to = server.port;
    let tunnel = peer(move |mut client| {
        let mut server = TcpStream::connect(("127.0.0.1", to)).unwrap();
        let (mut asks, mut gets) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        thread::spawn(move || _ = std::io::copy(&mut asks, &mut gets));
        let _ = std::io::copy(&mut server, &mut client);
        let _ = client.shutdown(std::net::Shutdown::Both);
    });
    let url = format!("http://127.0.0.1:{tunnel}/api");
    let mut command = Command::new(Program::Ironweir.path().expect("Ironweir is built"));
    let output =
        command.args(["why", "--json", "--interval", "200ms", "--api", &url]).stdin(Stdio::null()).output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    assert!(answer["elsewhere"] == true && answer["seconds"].as_f64().is_some_and(|s| s >= 1.0), "{answer:#}");
}

#[test]
fn why_says_when_there_is_nobody_to_ask() {
    let server = Site::server("return 200 ok;").start();
    let say = |url: &str| {
        let mut command = Command::new(Program::Ironweir.path().expect("Ironweir is built"));
        let output = command.args(["why", "--api", url]).current_dir(Folder::new().path()).output().expect("it starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (status, text) = say(&format!("http://127.0.0.1:{}/api", server.port));
    assert!(status == Some(1) && text.contains("answers, but not as the API does"), "{text}");
    let (status, text) = say("ftp://h/");
    assert!(status == Some(1) && text.contains("ftp is not spoken here"), "{text}");
}
