//! Reloads under load: kept connections, slow streams, upgraded tunnels and new connections, none of which may notice.

use crate::harness::{Client, Program, Server, Setup, Site, wait};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const RELOADS: usize = 20;
const KEPT: usize = 100;
const STREAMS: usize = 20;
const TUNNELS: usize = 5;
/// A stream is this many pieces of ten bytes, one every 100 ms: longer than all reloads together.
const PIECES: usize = 60;

/// A backend that echoes on upgraded connections and answers everything else slowly.
fn slow_backend() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            std::thread::spawn(move || serve(connection));
        }
    });
    port
}

fn serve(mut connection: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0u8; 1];
    while !head.ends_with(b"\r\n\r\n") {
        connection.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    if head.windows(11).any(|w| w.eq_ignore_ascii_case(b"upgrade: ws")) {
        connection.write_all(b"HTTP/1.1 101 Switching\r\nUpgrade: ws\r\nConnection: upgrade\r\n\r\n")?;
        let mut copy = connection.try_clone()?;
        std::io::copy(&mut copy, &mut connection)?;
        return Ok(());
    }
    write!(connection, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", PIECES * 10)?;
    for _ in 0..PIECES {
        connection.write_all(b"0123456789")?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn tunnel(server: &Server) -> Client {
    let mut client = server.connect();
    client.send("GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: ws\r\nConnection: upgrade\r\n\r\n");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.extend(client.take(1));
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    client
}

#[test]
fn twenty_reloads_in_five_seconds_lose_nothing() {
    let backend = slow_backend();
    let server = Site::server(
        "keepalive_requests 1000000;
         location / { return 200 ok; }
         location /slow { proxy_pass http://127.0.0.1:@BACKEND@; proxy_buffering off; }
         location /ws { proxy_pass http://127.0.0.1:@BACKEND@; proxy_set_header Upgrade $http_upgrade;
                        proxy_set_header Connection upgrade; }",
    )
    .set("BACKEND", backend)
    .start();
    let mut kept: Vec<Client> = (0..KEPT).map(|_| server.connect()).collect();
    assert!(kept.iter_mut().all(|c| c.get("/").text() == "ok"));
    let mut tunnels: Vec<Client> = (0..TUNNELS).map(|_| tunnel(&server)).collect();
    let mut streams: Vec<Client> = (0..STREAMS).map(|_| server.connect()).collect();
    for stream in &mut streams {
        stream.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    let (stop, fresh) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    std::thread::scope(|scope| {
        let (server, stop, fresh) = (&server, stop.clone(), fresh.clone());
        let stopped = stop.clone();
        let newcomers = scope.spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let mut client = server.connect();
                client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
                assert_eq!(client.response().text(), "ok");
                fresh.fetch_add(1, Ordering::Relaxed);
            }
        });
        let before = server.memory_kb();
        for number in 0..RELOADS {
            server.signal(Signal::HUP);
            std::thread::sleep(Duration::from_millis(250));
            assert!(kept.iter_mut().all(|c| c.get("/").text() == "ok"), "a kept connection at reload {number}");
            for client in &mut tunnels {
                client.send("ping");
                assert_eq!(client.take(4), b"ping", "a tunnel at reload {number}");
            }
        }
        for stream in &mut streams {
            assert_eq!(stream.response().body.len(), PIECES * 10);
        }
        stop.store(true, Ordering::Relaxed);
        newcomers.join().expect("every new connection is answered");
        // One old configuration may be held by the thread for its next turn; twenty would show.
        assert!(wait(|| server.memory_kb() < before + before / 2), "{} kB after {before} kB", server.memory_kb());
    });
    assert!(fresh.load(Ordering::Relaxed) > 100);
}

#[test]
fn connections_are_spread_over_threads() {
    const CONNECTIONS: usize = 1600;
    const THREADS: usize = 8;
    let server = Site::whole(
        "worker_processes 8; events { worker_connections 4000; }
         http { server { listen 127.0.0.1:@PORT@; location / { return 200 ok; } location /status { stub_status; } } }",
    )
    .start();
    // Who answers has all sockets open; before that, connections go to the first of them.
    assert_eq!(server.get("/").text(), "ok");
    let mut kept: Vec<Client> = (0..CONNECTIONS).map(|_| server.connect()).collect();
    assert!(kept.iter_mut().all(|c| c.get("/").text() == "ok"));
    // Each thread has its own epoll descriptor, and with it its own share of the sockets.
    let master = server.read("logs/nginx.pid").trim().to_owned();
    let children = std::fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap();
    let worker = children.split_whitespace().next().unwrap().to_owned();
    let mut shares = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{worker}/fdinfo")).unwrap().flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let watched = text.lines().filter(|l| l.starts_with("tfd:")).count();
        if watched > CONNECTIONS / THREADS / 2 {
            shares.push(watched);
        }
    }
    shares.sort_unstable();
    assert_eq!(shares.len(), THREADS, "{shares:?}");
    // 200 a thread: the spread of a hash over so few is wider than over the 10,000 of perf/.
    assert!(shares[THREADS - 1] as f64 / (shares[0] as f64) < 1.6, "{shares:?}");
}

/// Clients whose connections are kept notice nothing of a thread that ends.
#[test]
fn fewer_threads_take_over_kept_connections() {
    const CONNECTIONS: usize = 40;
    let server = Site::whole(
        "worker_processes 4; events {} http { access_log off; ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
         server { listen 127.0.0.1:@PORT@; listen 127.0.0.1:@OTHER@ ssl;
         location / { return 200 \"$connection $connection_requests $remote_port $server_port $ssl_protocol\"; } } }",
    )
    .certificate("localhost")
    .start();
    let conf = server.read("nginx.conf");
    let secure = conf.split("listen 127.0.0.1:").nth(2).and_then(|t| t.split(' ').next()).unwrap().parse().unwrap();
    let mut plain: Vec<(Client, String)> = Vec::new();
    let mut tls = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut client = server.connect();
        let first = client.get("/").text();
        plain.push((client, first));
        let mut client = Setup::new().connect(secure, "localhost");
        let first = client.get("/", "localhost").1;
        tls.push((client, first));
    }
    for threads in ["2", "1", "3"] {
        std::fs::write(
            server.dir().join("nginx.conf"),
            conf.replace("worker_processes 4", &format!("worker_processes {threads}")),
        )
        .unwrap();
        let before = server.error_log().matches("signal 1 (SIGHUP) received").count();
        server.signal(Signal::HUP);
        assert!(wait(|| server.error_log().matches("signal 1 (SIGHUP) received").count() > before));
        // Threads that were superfluous are gone: who served them has gone elsewhere.
        let left = threads.parse::<usize>().unwrap();
        assert!(wait(|| worker_threads(&server) == left), "{} threads", worker_threads(&server));
        for (client, said) in &mut plain {
            *said = next_of(said);
            assert_eq!(client.get("/").text(), *said);
        }
        for (client, said) in &mut tls {
            *said = next_of(said);
            assert_eq!(client.get("/", "localhost").1, *said);
        }
    }
}

/// The same line with one request more.
pub(crate) fn next_of(said: &str) -> String {
    let mut words: Vec<String> = said.split(' ').map(str::to_owned).collect();
    words[1] = (words[1].parse::<u32>().unwrap() + 1).to_string();
    words.join(" ")
}

/// Worker threads of the server's worker process.
pub(crate) fn worker_threads(server: &Server) -> usize {
    let master = server.read("logs/nginx.pid").trim().to_owned();
    let children = std::fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap_or_default();
    let Some(worker) = children.split_whitespace().next() else { return 0 };
    let tasks = std::fs::read_dir(format!("/proc/{worker}/task")).into_iter().flatten().flatten();
    tasks
        .filter(|t| std::fs::read_to_string(t.path().join("comm")).is_ok_and(|name| name.starts_with("worker ")))
        .count()
}

/// Who has asked for a reload and been told that it is done gets the new configuration's answers, on kept connections too.
#[test]
fn a_reload_is_done_when_every_thread_has_it() {
    let server = Site::http(
        r##"server { listen 127.0.0.1:@PORT@; location /v { return 200 old; }
              location /busy { content_by_lua_block {
                ngx.log(ngx.ERR, "is busy")
                local till = ngx.now() + 1.5
                while ngx.now() < till do ngx.update_time() end
                ngx.print("done") } } }"##,
    )
    .start();
    let (mut kept, mut busy) = (server.connect(), server.connect());
    assert_eq!(kept.get("/v").text(), "old");
    let text = server.read("nginx.conf").replace("return 200 old", "return 200 new");
    std::fs::write(server.dir().join("nginx.conf"), text).unwrap();
    busy.send("GET /busy HTTP/1.1\r\nHost: a\r\n\r\n");
    server.wait_for("logs/error.log", "is busy");
    let began = std::time::Instant::now();
    let mut command = std::process::Command::new(Program::under_test().path().unwrap());
    command.arg("-p").arg(server.dir()).arg("-e").arg(server.dir().join("logs/error.log"));
    let told = command.arg("-c").arg(server.dir().join("nginx.conf")).args(["-s", "reload"]).output().unwrap();
    assert!(told.status.success(), "{told:?}");
    // A machine that took this long has no say.
    if began.elapsed() < Duration::from_secs(2) {
        assert!(busy.is_answered(), "the busy thread was not waited for");
    }
    assert_eq!(busy.response().text(), "done");
    assert_eq!(kept.get("/v").text(), "new");
}
