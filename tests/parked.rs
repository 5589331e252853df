//! Connections that are parked: more of them than descriptors, and nobody sees a difference.

use crate::harness::{Client, Json, Server, Site, wait};
use rustix::process::Signal;
use std::time::Duration;

const CHANNELS: &str = r#"
    location /pub { nchan_publisher; nchan_channel_id $arg_id; nchan_message_buffer_length 3; }
    location /sub { nchan_subscriber; nchan_channel_id $arg_id; nchan_subscriber_first_message newest; }
    location /ping { nchan_subscriber; nchan_channel_id p; nchan_websocket_ping_interval 1; }
    location /api { api write=on; }
"#;
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

/// Waits until so many of a kind are parked. False: nothing can be parked on this machine.
fn until_parked(server: &Server, kind: &str, count: usize) -> bool {
    let path = format!("connections.parked.{kind}.count");
    if server.error_log().contains("take a descriptor each") {
        eprintln!("left out: {}", server.error_log());
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
