//! Connections that are parked: more of them than descriptors, and nobody sees a difference.

use crate::harness::{Client, Json, Port, Server, Site, wait};
use crate::mqtt::{self, Mqtt};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const CHANNELS: &str = r#"
    location /pub { nchan_publisher; nchan_channel_id $arg_id; nchan_message_buffer_length 3; }
    location /sub { nchan_subscriber; nchan_channel_id $arg_id; nchan_subscriber_first_message newest; }
    location /ping { nchan_subscriber; nchan_channel_id p; nchan_websocket_ping_interval 1; }
    location /api { api write=on; }
"#;
const CAP_IPC_LOCK: u32 = 14;
const UPGRADE: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                       Sec-WebSocket-Version: 13\r\n";

fn site(process: &str, events: &str, server: &str) -> Server {
    let text = format!(
        "{process} events {{ {events} }} http {{ access_log off; log_format all '$connection $connection_requests \"$request\" $status \
         $bytes_sent $request_length \"$http_user_agent\" \"$sent_http_upgrade\" $nchan_channel_id $nchan_subscriber_type $remote_port'; \
         server {{ listen 127.0.0.1:@PORT@; {server} }} }}"
    );
    Site::whole(&text).start()
}

fn ask(server: &Server, target: &str, headers: &str) -> Client {
    let mut client = server.connect();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\nUser-Agent: test/1\r\n{headers}\r\n"));
    client
}

fn open(server: &Server, target: &str, headers: &str) -> Client {
    let mut client = ask(server, target, headers);
    until(&mut client, "\r\n\r\n");
    client
}

/// Reads up to a text.
fn until(client: &mut Client, end: &str) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(end.as_bytes()) {
        bytes.extend(client.take(1));
    }
    String::from_utf8(bytes).unwrap()
}

fn say(server: &Server, id: &str, text: &str) {
    let mut client = server.connect();
    client.send(format!("POST /pub?id={id} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{text}", text.len()));
    assert!([201, 202].contains(&client.response().status));
}

fn memory(server: &Server) -> Json {
    Json(server.get("/api/9/ironweir/memory").text())
}

/// False: nothing can be parked on this machine.
fn can_park(server: &Server) -> bool {
    let can = !server.error_log().contains("take a descriptor each");
    if !can {
        eprintln!("left out: {}", server.error_log());
    }
    can
}

/// Waits until so many of a kind are parked. False: nothing can be parked on this machine.
fn until_parked(server: &Server, kind: &str, count: usize) -> bool {
    let path = format!("connections.parked.{kind}.count");
    if !can_park(server) {
        return false;
    }
    assert!(wait(|| memory(server).number(&path) == count as f64), "{}\n{}", memory(server).0, server.error_log());
    true
}

#[test]
fn subscribers_of_every_kind_are_parked_and_hear() {
    let server = site("", "", CHANNELS);
    let mut frames = open(&server, "/sub?id=a", UPGRADE);
    let mut events = open(&server, "/sub?id=a", "Accept: text/event-stream\r\n");
    let mut poll = ask(&server, "/sub?id=a", "");
    for kind in ["websocket", "stream", "long_poll"] {
        if !until_parked(&server, kind, 1) {
            return;
        }
    }
    assert!(memory(&server).number("each.user_bytes_parked") < 500.0, "{}", memory(&server).0);
    assert!(memory(&server).number("fits.parked_more") > 1000.0, "{}", memory(&server).0);
    say(&server, "a", "hello");
    assert_eq!(frames.take(7), b"\x81\x05hello");
    let answer = poll.response();
    assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
    let event = until(&mut events, "data: hello\n\n\r\n");
    assert!(event.starts_with("6\r\n: hi\n\n\r\n"), "the first words come first: {event:?}");
    // A connection that has left is kept, and is parked again when it waits again.
    let id = [("If-None-Match", "Etag"), ("If-Modified-Since", "Last-Modified")];
    let id: String = id.iter().map(|(ask, from)| format!("{ask}: {}\r\n", answer.header(from).unwrap())).collect();
    poll.send(format!("GET /sub?id=a HTTP/1.1\r\nHost: a\r\n{id}\r\n"));
    assert!(until_parked(&server, "long_poll", 1));
    say(&server, "a", "again");
    assert_eq!(poll.response().text(), "again");
    assert_eq!(frames.take(7), b"\x81\x05again");
    drop((frames, events, poll));
    for kind in ["websocket", "stream", "long_poll"] {
        assert!(until_parked(&server, kind, 0));
    }
    assert_eq!(memory(&server).number("connections.parked.websocket.user_bytes"), 0.0);
}

#[test]
fn there_may_be_more_than_descriptors_and_worker_connections() {
    const COUNT: usize = 1500;
    let server = site("worker_rlimit_nofile 200;", "worker_connections 60;", CHANNELS);
    let mut all = vec![open(&server, "/sub?id=a", UPGRADE)];
    if !until_parked(&server, "websocket", 1) {
        return;
    }
    all.extend((1..COUNT).map(|_| open(&server, "/sub?id=a", UPGRADE)));
    assert!(until_parked(&server, "websocket", COUNT));
    let used = memory(&server).number("process.descriptors");
    assert!(used < 100.0, "{used} descriptors");
    for text in ["first", "other"] {
        say(&server, "a", text);
        for client in &mut all {
            assert_eq!(client.take(7), [&[0x81, 5], text.as_bytes()].concat());
        }
    }
    // What a client says is heard, and answered, from where it stands.
    all[7].send(b"\x89\x81\0\0\0\0x");
    assert_eq!(all[7].take(3), b"\x8a\x01x");
    assert!(until_parked(&server, "websocket", COUNT));
    // Long-polls leave to be answered: some at a time.
    let mut polls: Vec<_> = (0..400).map(|_| ask(&server, "/sub?id=b", "")).collect();
    assert!(until_parked(&server, "long_poll", 400));
    say(&server, "b", "poll");
    polls.iter_mut().for_each(|poll| assert_eq!(poll.response().text(), "poll"));
    drop(all);
    assert!(until_parked(&server, "websocket", 0));
}

#[test]
fn pings_come_and_a_client_that_closes_has_its_log_line() {
    let server = site("", "", &format!("access_log @DIR@/logs/all.log all; {CHANNELS}"));
    let mut client = open(&server, "/ping", UPGRADE);
    if !until_parked(&server, "websocket", 1) {
        return;
    }
    assert_eq!(client.take(2), b"\x89\0");
    client.send(b"\x8a\x80\0\0\0\0");
    assert_eq!(client.take(2), b"\x89\0");
    let mut other = open(&server, "/sub?id=b", UPGRADE);
    let ports = [&client, &other].map(|c| c.stream.local_addr().unwrap().port());
    other.send(b"\x88\x82\0\0\0\0\x03\xe8");
    assert_eq!(other.take(4), b"\x88\x02\x03\xe8");
    drop(client);
    let log = || server.read("logs/all.log");
    assert!(wait(|| log().contains("\"GET /ping HTTP/1.1\" 101") && log().contains("\"GET /sub?id=b HTTP/1.1\" 101")));
    for (target, id, port) in [("/ping", "p", ports[0]), ("/sub?id=b", "b", ports[1])] {
        let log = log();
        let line = log.lines().find(|line| line.contains(&format!("GET {target} "))).unwrap();
        let end = format!("\"test/1\" \"websocket\" {id} websocket {port}");
        assert!(line.ends_with(&end), "{line}");
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        assert!(numbers[1] == 1 && numbers[2] == 101 && numbers[3] > 100 && numbers[4] > 150, "{line}");
    }
}

#[test]
fn where_nothing_may_be_parked_all_is_as_before() {
    let server = site("", "worker_parked_connections off;", CHANNELS);
    let mut frames = open(&server, "/sub?id=a", UPGRADE);
    let mut poll = ask(&server, "/sub?id=a", "");
    assert!(wait(|| server.get("/pub?id=a").text().contains("active subscribers: 2")));
    assert_eq!(memory(&server).number("connections.parked.websocket.count"), 0.0);
    say(&server, "a", "hello");
    assert_eq!(frames.take(7), b"\x81\x05hello");
    assert_eq!(poll.response().text(), "hello");
}

/// A message wakes more of them than there are seats: nobody loses his for having heard it.
#[test]
fn a_message_for_more_than_there_are_seats_closes_nobody() {
    const COUNT: usize = 200;
    let server = site("", "worker_connections 40;", &format!("keepalive_timeout 60s; {CHANNELS}"));
    let mut polls = Vec::new();
    while polls.len() < COUNT {
        // A few at a time: those that are not parked yet have seats.
        polls.extend((0..10).map(|_| ask(&server, "/sub?id=a", "")));
        if !until_parked(&server, "long_poll", polls.len()) {
            return;
        }
    }
    for text in ["one", "two", "three"] {
        say(&server, "a", text);
        for poll in &mut polls {
            assert_eq!(poll.response().text(), text, "{}", server.error_log());
        }
        for poll in &mut polls {
            poll.send("GET /sub?id=a HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        assert!(until_parked(&server, "long_poll", COUNT));
    }
    assert!(!server.error_log().contains("worker_connections are not enough"), "{}", server.error_log());
}

#[test]
fn why_no_more_are_parked_is_said_once() {
    let server = site("", "worker_parked_connections 3;", CHANNELS);
    let _clients: Vec<_> = (0..8).map(|_| open(&server, "/sub?id=a", UPGRADE)).collect();
    if !until_parked(&server, "websocket", 3) {
        return;
    }
    let text = "3 connections are parked, and no more can be (quota exceeded); others keep a descriptor and a task.";
    server.wait_for("logs/error.log", text);
    say(&server, "a", "hello");
    assert_eq!(server.error_log().matches("no more can be").count(), 1, "{}", server.error_log());
}

/// Queues of io_uring are locked memory of their user: with the usual 8 MB a worker had no more than 1,100,000 parked.
#[test]
fn a_worker_that_root_starts_may_lock_memory() {
    let server = site("user nobody nogroup;", "", CHANNELS);
    // It answers when it has become who it is to be.
    memory(&server);
    let read = |file: String| std::fs::read_to_string(file).unwrap();
    let worker = server.worker_pids().trim().to_owned();
    let limits = read(format!("/proc/{worker}/limits"));
    let line = limits.lines().find(|line| line.starts_with("Max locked memory")).unwrap();
    if line.contains("unlimited") {
        return;
    }
    // The limit cannot be lifted here: it has the right itself, if we have it, and no other.
    let rights = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim().to_owned();
        u64::from_str_radix(&line, 16).unwrap()
    };
    let (own, of_worker) = (rights(read("/proc/self/status".into())), rights(read(format!("/proc/{worker}/status"))));
    assert_eq!(of_worker, own & 1 << CAP_IPC_LOCK, "{line}");
}

#[test]
fn kept_connections_are_parked_when_there_are_many() {
    let server = site(
        "",
        "worker_connections 40;",
        &format!("keepalive_timeout 60s; {CHANNELS} location / {{ return 200 ok; }}"),
    );
    let mut old: Vec<_> = (0..19).map(|_| server.connect()).collect();
    for client in &mut old {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.response().text(), "ok");
    }
    if server.error_log().contains("take a descriptor each") {
        return;
    }
    let parked = || memory(&server).number("connections.parked.kept.count");
    // Others come: who has been silent for a second makes room, without an end.
    let mut more = Vec::new();
    assert!(wait(|| {
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.response().text(), "ok");
        if more.len() < 12 {
            more.push(client);
        }
        std::thread::sleep(Duration::from_millis(20));
        parked() >= 10.0
    }));
    for client in old.iter_mut().chain(&mut more) {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.response().text(), "ok");
    }
    assert!(!server.error_log().contains("worker_connections are not enough"), "{}", server.error_log());
}

#[test]
fn of_many_kept_connections_those_idle_for_long_are_parked() {
    const COUNT: usize = 2000;
    let server = site(
        "",
        "worker_connections 4000;",
        &format!("keepalive_requests 1000000; {CHANNELS} location / {{ return 200 ok; }}"),
    );
    let mut all: Vec<_> = (0..COUNT).map(|_| server.connect()).collect();
    let mut ask = |from: usize| {
        for client in &mut all[from..] {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(client.response().text(), "ok");
        }
    };
    ask(0);
    if !can_park(&server) {
        return;
    }
    // None of those that have just asked is; on a busy machine the first may have asked some seconds ago.
    assert!(wait(|| {
        ask(0);
        memory(&server).number("connections.parked.kept.count") == 0.0
    }));
    // As many as leave some 1,000 with tasks. Who asks again within some seconds is not among them.
    assert!(wait(|| {
        ask(COUNT - 10);
        memory(&server).number("connections.parked.kept.count") >= (COUNT - 1030) as f64
    }));
    let each = memory(&server).number("each.user_bytes_parked");
    println!("{each} B each");
    assert!(each <= 300.0, "{}", memory(&server).0);
    ask(0);
}

const SWITCH: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n";

/// A peer that agrees to an upgrade and says everything back. `!` it says by itself, to all, when it is told to.
fn echo() -> (u16, std::sync::mpsc::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, told) = std::sync::mpsc::channel();
    let all = Arc::new(Mutex::new(Vec::<TcpStream>::new()));
    let known = all.clone();
    std::thread::spawn(move || {
        while told.recv().is_ok() {
            known.lock().unwrap().iter().for_each(|mut stream| stream.write_all(b"!").unwrap());
        }
    });
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            all.lock().unwrap().push(stream.try_clone().unwrap());
            std::thread::spawn(move || {
                let (mut stream, mut buffer, mut has_head) = (stream, [0; 4096], false);
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    let answer = if has_head { &buffer[..n] } else { SWITCH };
                    has_head = true;
                    stream.write_all(answer).unwrap();
                }
                let _ = stream.shutdown(Shutdown::Both);
            });
        }
    });
    (port, tell)
}

#[test]
fn tunnels_are_parked_on_both_sides() {
    const COUNT: usize = 50;
    let (peer, tell) = echo();
    let proxy = format!(
        "access_log @DIR@/logs/all.log all; {CHANNELS} location /ws {{ proxy_pass http://127.0.0.1:{peer}; proxy_http_version 1.1;
         proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }}
         location /short {{ proxy_pass http://127.0.0.1:{peer}; proxy_read_timeout 4s; proxy_http_version 1.1;
         proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }}"
    );
    let server = site("worker_rlimit_nofile 200;", "", &proxy);
    let upgrade = "Upgrade: x\r\nConnection: upgrade\r\n";
    let mut all: Vec<_> = (0..20).map(|_| open(&server, "/ws", upgrade)).collect();
    if !until_parked(&server, "tunnel", 20) {
        return;
    }
    // Each takes two descriptors while it is opened.
    all.extend((20..COUNT).map(|_| open(&server, "/ws", upgrade)));
    assert!(until_parked(&server, "tunnel", COUNT));
    let each = memory(&server).number("connections.parked.tunnel.user_bytes") / COUNT as f64;
    println!("{each} B each");
    assert!(memory(&server).number("process.descriptors") < 100.0);
    for client in &mut all {
        client.send("hello");
        assert_eq!(client.take(5), b"hello");
    }
    assert!(until_parked(&server, "tunnel", COUNT));
    tell.send(()).unwrap();
    all.iter_mut().for_each(|client| assert_eq!(client.take(1), b"!"));
    assert!(until_parked(&server, "tunnel", COUNT));
    let kept = all.pop();
    drop(all);
    assert!(until_parked(&server, "tunnel", 1));
    drop(kept);
    assert!(until_parked(&server, "tunnel", 0));
    assert!(wait(|| server.read("logs/all.log").matches("\"GET /ws HTTP/1.1\" 101").count() == COUNT));
    let mut short = open(&server, "/short", upgrade);
    assert!(until_parked(&server, "tunnel", 1));
    assert!(short.is_closed());
    assert!(server.error_log().contains("upstream timed out"), "{}", server.error_log());
}

#[test]
fn clients_of_mqtt_are_parked() {
    const COUNT: usize = 300;
    let mqtt = Port::reserve();
    let text = format!(
        "worker_rlimit_nofile 120; events {{ worker_connections 500; }} http {{ access_log off;
         server {{ listen 127.0.0.1:@PORT@; nchan_channel_group g; {CHANNELS} }}
         server {{ listen 127.0.0.1:{} mqtt; nchan_channel_group g; location = /mqtt {{ nchan_mqtt; }} }} }}",
        mqtt.number
    );
    let server = Site::whole(&text).start();
    let open = |number: usize, keep_alive: u8| {
        let mut client = Client::connect(mqtt.number);
        let id = format!("{number:04}");
        client.send([&b"\x10\x10\0\x04MQTT\x04\x02\0"[..], &[keep_alive], b"\0\x04", id.as_bytes()].concat());
        assert_eq!(client.take(4), [0x20, 2, 0, 0]);
        client.send(b"\x82\x06\0\x01\0\x01a\0");
        assert_eq!(client.take(5), [0x90, 3, 0, 1, 0]);
        client
    };
    let mut all = vec![open(0, 0)];
    if !until_parked(&server, "mqtt", 1) {
        return;
    }
    all.extend((1..COUNT).map(|number| open(number, 0)));
    assert!(until_parked(&server, "mqtt", COUNT));
    println!("{} B each", memory(&server).number("connections.parked.mqtt.user_bytes") / COUNT as f64);
    assert!(memory(&server).number("process.descriptors") < 60.0);
    for text in ["first", "other"] {
        say(&server, "a", text);
        for client in &mut all {
            assert_eq!(client.take(10), [b"\x30\x08\0\x01a", text.as_bytes()].concat());
        }
    }
    // What one says, by the protocol, is heard by all.
    all[5].send(b"\xc0\0");
    assert_eq!(all[5].take(2), b"\xd0\0");
    all[7].send(b"\x32\x06\0\x01a\0\x09x");
    for (number, client) in all.iter_mut().enumerate() {
        let ack = if number == 7 { &b"\x40\x02\0\x09"[..] } else { b"" };
        let both = [ack, b"\x30\x04\0\x01ax"].concat();
        assert_eq!(client.take(both.len()), both);
    }
    // Another connection takes a session over from where that is parked.
    let other = open(3, 0);
    assert!(all[3].is_closed());
    // Who says nothing for too long is gone.
    let mut silent = open(9999, 1);
    assert!(silent.is_closed());
    drop((all, other));
    assert!(until_parked(&server, "mqtt", 0));
}

/// What a silent one has is packed, and is there again whatever happens to it.
#[test]
fn silent_clients_of_mqtt_take_few_bytes() {
    const COUNT: usize = 100;
    let mqtt = Port::reserve();
    let text = format!(
        "worker_processes 2; events {{ worker_connections 500; }} http {{ access_log off; nchan_mqtt_session_expiry 1m;
         server {{ listen 127.0.0.1:@PORT@; nchan_channel_group g; {CHANNELS} }}
         server {{ listen 127.0.0.1:{} mqtt; nchan_channel_group g;
             location = /mqtt {{ nchan_mqtt; nchan_mqtt_publish all will own/$nchan_mqtt_client_id/#; }} }} }}",
        mqtt.number
    );
    let server = Site::whole(&text).start();
    let names: Vec<&str> = (0..COUNT).map(|number| &*format!("client-of-mqtt-{number}").leak()).collect();
    let connect = |name: &'static str, is_present| {
        let will = Some(("will", name));
        let connect = mqtt::Connect { clean: false, keep_alive: 60, will, ..mqtt::Connect::three(name) };
        Mqtt::connect(mqtt.number, &connect, is_present)
    };
    let open = |name: &'static str| {
        let mut client = connect(name, false);
        assert_eq!((client.subscribe("all", 1), client.subscribe(&format!("own/{name}/+"), 0)), (1, 0));
        client
    };
    let mut watcher = Mqtt::connect(mqtt.number, &mqtt::Connect::three("watcher"), false);
    assert_eq!(watcher.subscribe("will", 0), 0);
    if !until_parked(&server, "mqtt", 1) {
        return;
    }
    let mut all: Vec<Mqtt> = names.iter().map(|name| open(name)).collect();
    assert!(until_parked(&server, "mqtt", COUNT + 1));
    let each = || memory(&server).number("connections.parked.mqtt.user_bytes") / (COUNT + 1) as f64;
    // Two filters, a will, and some 50 bytes of rules that are each client's own.
    let are_small = || wait(|| each() < 360.0);
    assert!(are_small(), "{} B each", each());
    println!("{} B each", each());
    // Pings: one, two at once, and one in halves.
    all.iter_mut().for_each(Mqtt::is_quiet);
    all[0].send(b"\xc0\0\xc0\0\xc0");
    assert_eq!((all[0].packet(), all[0].packet()), ((0xd0, vec![]), (0xd0, vec![])));
    all[0].send(b"\0");
    assert_eq!(all[0].packet(), (0xd0, vec![]));
    // What is not confirmed is not packed, and comes again by the connection that takes the session over.
    for text in ["first", "other"] {
        say(&server, "all", text);
        let id = if text == "first" { 1 } else { 2 };
        for client in &mut all {
            assert_eq!(client.message(), format!("32 all #{id} {text}"));
            if id == 1 {
                client.send(b"\x40\x02\0\x01");
            }
        }
        assert_eq!(id == 1 && are_small(), id == 1, "{} B each", each());
    }
    assert!(each() > 500.0, "{} B each", each());
    let mut others: Vec<Mqtt> = names.iter().map(|name| connect(name, true)).collect();
    for client in &mut others {
        assert_eq!(client.message(), "3a all #2 other");
        client.send(b"\x40\x02\0\x02");
    }
    assert!(all.iter_mut().all(|client| client.client.is_closed()));
    let mut wills = |how: &str| {
        let mut said: Vec<String> = (0..COUNT).map(|_| watcher.message()).collect();
        said.sort_unstable();
        said.dedup();
        assert_eq!(said.len(), COUNT, "{how}: {said:?}");
    };
    wills("taken over");
    assert!(are_small(), "{} B each", each());
    // Once more, from where they are packed.
    all = names.iter().map(|name| connect(name, true)).collect();
    assert!(others.iter_mut().all(|client| client.client.is_closed()));
    wills("taken over while packed");
    assert!(are_small(), "{} B each", each());
    for (name, client) in names.iter().zip(&mut all) {
        say(&server, &format!("own/{name}/x"), "mine");
        assert_eq!(client.message(), format!("30 own/{name}/x mine"));
    }
    all[1].publish(0x32, "all", 7, "by one");
    assert_eq!(all[1].packet(), (0x40, vec![0, 7]));
    all.iter_mut().for_each(|client| assert_eq!(client.message(), "32 all #3 by one"));
    // Each has its own rights still.
    all[1].publish(0x32, &format!("own/{}/y", names[1]), 8, "mine");
    assert_eq!((all[1].packet(), all[1].message()), ((0x40, vec![0, 8]), format!("30 own/{}/y mine", names[1])));
    all[2].publish(0x32, &format!("own/{}/y", names[1]), 8, "not mine");
    assert!(all[2].client.is_closed());
    drop((all, others));
    wills("gone");
    assert!(until_parked(&server, "mqtt", 1));
    drop(watcher);
    assert!(wait(|| memory(&server).number("connections.parked.mqtt.user_bytes") == 0.0));
    assert_eq!(server.error_log().matches("[alert]").count(), 0, "{}", server.error_log());
}

#[test]
fn a_shutdown_says_goodbye_to_all_that_are_parked() {
    let server = site("", "", CHANNELS);
    let mut all: Vec<_> = (0..300).map(|_| open(&server, "/sub?id=a", UPGRADE)).collect();
    if !until_parked(&server, "websocket", all.len()) {
        return;
    }
    assert!(server.stop(Signal::QUIT).success());
    for client in &mut all {
        assert_eq!(client.take(4), [0x88, 12, 0x03, 0xe9]);
    }
}

/// Runs a program that may not use io_uring: `seccomp` answers EPERM, as the profiles of containers do.
const WITHOUT_IO_URING: &str = "
import ctypes, os, struct, sys
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxP', len(rules), ctypes.addressof(code)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
";

#[test]
fn where_io_uring_is_forbidden_it_is_said_how_many_can_be_held() {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        return println!("python3 is not installed: left out");
    }
    let text =
        |location: &str| format!("events {{}} http {{ server {{ listen 127.0.0.1:1; location / {{ {location} }} }} }}");
    let check = |location: &str| {
        let folder = Site::exactly("").file("nginx.conf", text(location)).into_folder();
        let mut command = std::process::Command::new("python3");
        command.args(["-c", WITHOUT_IO_URING, env!("CARGO_BIN_EXE_ironweir"), "-t", "-p"]);
        let output =
            command.arg(folder.path()).arg("-c").arg(folder.path().join("nginx.conf")).output().expect("python3 runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = check("nchan_subscriber; nchan_channel_id a;");
    for part in
        ["io_uring_setup(): Operation not permitted", " at most", "worker_rlimit_nofile (hard limit: ", "fs.nr_open ("]
    {
        assert!(said.contains(part), "{said}");
    }
    assert!(!check("return 200;").contains("io_uring"));
}

/// A message that is compressed once goes so to all who agreed on it, from where they stand; and one that a client compresses is understood.
#[test]
fn messages_are_compressed_for_who_wants_that() {
    let here = "location /zip { nchan_publisher; nchan_channel_id z; nchan_deflate_message_for_websocket on; }
        location /both { nchan_pubsub; nchan_channel_id z; nchan_subscriber_first_message newest; }
        location /ears { nchan_subscriber; nchan_channel_id z; nchan_subscriber_first_message newest; }";
    let server = site("", "", &format!("{CHANNELS} {here}"));
    let offer = format!("{UPGRADE}Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n");
    let mut zip = ask(&server, "/both", &offer);
    let head = until(&mut zip, "\r\n\r\n");
    let agreed =
        "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; client_no_context_takeover\r\n";
    assert!(head.contains(agreed), "{head}");
    let mut plain = ask(&server, "/ears", UPGRADE);
    assert!(!until(&mut plain, "\r\n\r\n").contains("deflate"));
    assert!(wait(|| server.get("/pub?id=z").text().contains("active subscribers: 2")));
    let text = "hello ".repeat(100);
    let mut publisher = server.connect();
    publisher.send(format!("POST /zip HTTP/1.1\r\nHost: a\r\nContent-Length: 600\r\n\r\n{text}"));
    assert_eq!(publisher.response().status, 201);
    assert_eq!(plain.take(604)[4..], *text.as_bytes());
    let head = zip.take(2);
    assert!(head[0] == 0xc1 && head[1] < 50, "a compressed text: {head:?}");
    let mut deflated = zip.take(head[1].into());
    deflated.extend([0, 0, 0xff, 0xff]);
    let mut inflated = Vec::with_capacity(1000);
    let mut inflater = flate2::Decompress::new(false);
    inflater.decompress_vec(&deflated, &mut inflated, flate2::FlushDecompress::Sync).unwrap();
    assert_eq!(inflated, text.as_bytes());
    // RFC 7692 section 7.2.3.1. What comes back is not compressed: this location does not say so.
    zip.send(b"\xc1\x87\0\0\0\0\xf2\x48\xcd\xc9\xc9\x07\x00");
    for client in [&mut zip, &mut plain] {
        assert_eq!(client.take(7), b"\x81\x05Hello");
    }
    // Who did not agree on it may not.
    plain.send(b"\xc1\x87\0\0\0\0\xf2\x48\xcd\xc9\xc9\x07\x00");
    assert_eq!(plain.take(4), [0x88, 17, 0x03, 0xea]);
    // Little that becomes much is not taken.
    let mut bomb = flate2::Compress::new(flate2::Compression::best(), false);
    let mut small = Vec::with_capacity(100_000);
    bomb.compress_vec(&vec![0; 8_000_000], &mut small, flate2::FlushCompress::Sync).unwrap();
    small.truncate(small.len() - 4);
    zip.send([&[0xc2, 0xfe], &(small.len() as u16).to_be_bytes()[..], &[0; 4], &small].concat());
    assert_eq!(zip.take(4), [0x88, 18, 0x03, 0xf1]);
}

/// Clients that ping without end, more than the thread can answer, until this is dropped.
struct Pings(Arc<AtomicBool>, Vec<JoinHandle<()>>);

impl Pings {
    fn from(sockets: Vec<TcpStream>) -> Pings {
        const PING: &[u8] = b"\x89\x80\0\0\0\0";
        let stop = Arc::new(AtomicBool::new(false));
        let ping = |sockets: Vec<TcpStream>, stop: Arc<AtomicBool>| {
            let mut pongs = [0; 4096];
            while !stop.load(Relaxed) {
                for mut socket in &sockets {
                    // One that is not answered in time has its buffers full, and is asked again later.
                    let _ = socket.write(PING);
                    let _ = socket.read(&mut pongs);
                }
            }
        };
        let mut parts: Vec<Vec<TcpStream>> = vec![Vec::new(), Vec::new()];
        for (at, socket) in sockets.into_iter().enumerate() {
            socket.set_nonblocking(true).unwrap();
            parts[at % 2].push(socket);
        }
        let threads = parts.into_iter().map(|part| {
            let stop = stop.clone();
            std::thread::spawn(move || ping(part, stop))
        });
        let threads = threads.collect();
        Pings(stop, threads)
    }
}

impl Drop for Pings {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
        self.1.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn a_flood_of_pings_does_not_hold_up_messages() {
    const COUNT: usize = 400;
    let server = site("", "worker_connections 1000;", CHANNELS);
    let mut listener = open(&server, "/sub?id=a", UPGRADE);
    let sockets: Vec<TcpStream> = (0..COUNT)
        .map(|_| {
            let mut socket = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            write!(socket, "GET /sub?id=b HTTP/1.1\r\nHost: a\r\n{UPGRADE}\r\n").unwrap();
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") {
                socket.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            socket
        })
        .collect();
    if !until_parked(&server, "websocket", COUNT + 1) {
        return;
    }
    let pings = Pings::from(sockets);
    std::thread::sleep(Duration::from_millis(300));
    for text in ["one", "two", "six"] {
        let began = Instant::now();
        say(&server, "a", text);
        assert_eq!(&listener.take(5)[2..], text.as_bytes());
        assert!(began.elapsed() < Duration::from_secs(2), "{:?} for {text}", began.elapsed());
    }
    drop(pings);
}
