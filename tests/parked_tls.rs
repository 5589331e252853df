//! Connections over TLS 1.3 that are parked: the record layer they go on with is the server's own, so it is tried with rustls, OpenSSL and
//! Python, through updates of keys from either side.

use crate::harness::{Json, Port, SecureClient, Server, Setup, Site, has_tools, wait};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const SUITES: [&str; 3] = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];
const UPGRADE: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                       Sec-WebSocket-Version: 13\r\n";

/// A server with TLS, and a plain address beside it, to publish and to look.
struct Both {
    server: Server,
    tls: Port,
}

fn start(events: &str, more: &str) -> Option<Both> {
    let tls = Port::reserve();
    let text = format!(
        "events {{ {events} }} http {{ access_log off;
         log_format all '$status $bytes_sent $ssl_protocol $ssl_cipher $ssl_server_name $request_uri';
         server {{ listen 127.0.0.1:@PORT@; location /api {{ api write=on; }}
             location /pub {{ nchan_publisher; nchan_channel_id $arg_id; nchan_message_buffer_length 3; }} }}
         server {{ listen 127.0.0.1:@TLS@ ssl; server_name localhost;
             ssl_certificate @DIR@/localhost.crt; ssl_certificate_key @DIR@/localhost.key; {more}
             location /sub {{ nchan_subscriber; nchan_channel_id $arg_id; nchan_subscriber_first_message newest; }}
             location / {{ return 200 ok; }} }} }}"
    );
    if !has_tools() {
        return None;
    }
    let server = Site::whole(&text).set("TLS", tls.number).certificate("localhost").start();
    Some(Both { server, tls })
}

impl Both {
    fn open(&self, target: &str, headers: &str) -> SecureClient {
        let mut client = Setup::new().connect(self.tls.number, "localhost");
        client.send(&format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"));
        client
    }

    fn say(&self, id: &str, text: &str) {
        let mut client = self.server.connect();
        let length = text.len();
        client.send(format!("POST /pub?id={id} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{text}"));
        assert!([201, 202].contains(&client.response().status));
    }

    fn memory(&self) -> Json {
        Json(self.server.get("/api/9/ironweir/memory").text())
    }

    /// Waits until so many of a kind are parked. False: nothing can be parked on this machine.
    fn until_parked(&self, kind: &str, count: usize) -> bool {
        if self.server.error_log().contains("take a descriptor each") {
            return false;
        }
        let path = format!("connections.parked.{kind}.count");
        let all = || self.memory().0 + &self.server.error_log();
        assert!(wait(|| self.memory().number(&path) == count as f64), "{kind}: {}", all());
        true
    }
}

fn take(client: &mut SecureClient, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    client.stream.read_exact(&mut bytes).expect("so many bytes come");
    bytes
}

#[test]
fn subscribers_over_tls_are_parked_with_every_cipher() {
    for suite in SUITES {
        let log = "access_log @DIR@/logs/all.log all;";
        let Some(both) = start("", &format!("ssl_conf_command Ciphersuites {suite}; {log}")) else { return };
        let mut frames = both.open("/sub?id=a", UPGRADE);
        assert_eq!(frames.response().0, 101);
        let mut poll = both.open("/sub?id=a", "");
        for kind in ["websocket", "long_poll"] {
            if !both.until_parked(kind, 1) {
                return;
            }
        }
        let each = both.memory().number("each.user_bytes_parked");
        println!("{suite}: {each} B each");
        assert!(each <= 1500.0, "{}", both.memory().0);
        both.say("a", "hello");
        assert_eq!(take(&mut frames, 7), b"\x81\x05hello");
        assert_eq!(poll.response(), (200, "hello".into()));
        // What a client says is heard where it stands, and answered.
        frames.stream.write_all(b"\x89\x81\0\0\0\0x").unwrap();
        assert_eq!(take(&mut frames, 3), b"\x8a\x01x");
        // New keys for both directions.
        for _ in 0..3 {
            frames.stream.conn.refresh_traffic_keys().unwrap();
            frames.stream.write_all(b"\x89\x81\0\0\0\0y").unwrap();
            assert_eq!(take(&mut frames, 3), b"\x8a\x01y");
        }
        let long = "z".repeat(40_000);
        both.say("a", &long);
        assert_eq!(take(&mut frames, 40_004)[4..], *long.as_bytes());
        assert!(both.until_parked("websocket", 1));
        // The one that has left is a connection like any other, and is parked again, and again.
        assert_eq!(poll.get("/", "localhost"), (200, "ok".into()));
        poll.stream.conn.refresh_traffic_keys().unwrap();
        for text in ["again", "and again"] {
            poll.send("GET /sub?id=b HTTP/1.1\r\nHost: localhost\r\n\r\n");
            assert!(both.until_parked("long_poll", 1));
            both.say("b", text);
            assert_eq!(poll.response(), (200, text.into()));
        }
        frames.stream.conn.send_close_notify();
        frames.stream.flush().unwrap();
        assert!(both.until_parked("websocket", 0));
        assert!(frames.is_closed());
        let line = format!("101 40201 TLSv1.3 {suite} localhost /sub?id=a");
        let sent = |line: &str| line.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok());
        assert!(wait(|| both.server.read("logs/all.log").contains("/sub?id=a")));
        let log = both.server.read("logs/all.log");
        let logged = log.lines().find(|line| line.starts_with("101 ")).unwrap();
        // What is counted is what the client reads, not what is encrypted.
        assert!(sent(logged).is_some_and(|n| (40_000..40_400).contains(&n)), "{logged}");
        assert_eq!(logged.split(' ').skip(2).collect::<Vec<_>>(), line.split(' ').skip(2).collect::<Vec<_>>());
    }
}

#[test]
fn what_is_no_tls_ends_a_parked_connection() {
    let Some(both) = start("", "") else { return };
    let forged = [&b"\x17\x03\x03\x00\x20"[..], &[b' '; 32]].concat();
    for forged in [&forged[..], b"\x15\x03\x03\x00\x02\x01\x00"] {
        let mut frames = both.open("/sub?id=a", UPGRADE);
        assert_eq!(frames.response().0, 101);
        if !both.until_parked("websocket", 1) {
            return;
        }
        frames.stream.sock.write_all(forged).unwrap();
        assert!(both.until_parked("websocket", 0));
        let end = frames.stream.read(&mut [0; 10]).unwrap_err().to_string();
        let why = if forged[0] == 0x17 { "BadRecordMac" } else { "UnexpectedMessage" };
        assert!(end.contains(why), "{end}");
    }
}

#[test]
fn kept_connections_over_tls_are_parked_when_there_are_many() {
    let Some(both) = start("worker_connections 40;", "keepalive_timeout 60s;") else { return };
    let ask = |client: &mut SecureClient| assert_eq!(client.get("/", "localhost"), (200, "ok".into()));
    let mut all: Vec<_> = (0..19).map(|_| Setup::new().connect(both.tls.number, "localhost")).collect();
    all.iter_mut().for_each(ask);
    if !both.until_parked("kept", 0) {
        return;
    }
    let parked = || both.memory().number("connections.parked.kept.count");
    assert!(wait(|| {
        if all.len() < 31 {
            all.push(Setup::new().connect(both.tls.number, "localhost"));
            ask(all.last_mut().unwrap());
        }
        std::thread::sleep(Duration::from_millis(20));
        parked() >= 10.0
    }));
    let bytes = both.memory().number("connections.parked.kept.user_bytes") / parked();
    println!("{bytes} B each");
    assert!(bytes <= 1500.0);
    all.iter_mut().for_each(ask);
    all.iter_mut().for_each(ask);
}

/// A program and what it says, line by line.
struct Beside {
    child: Child,
    lines: Receiver<String>,
}

impl Beside {
    fn start(command: &mut Command) -> Beside {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (tx, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| tx.send(line)));
        Beside { child, lines }
    }

    fn write(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Reads up to a line that contains a text.
    fn until(&self, text: &str) {
        let mut all = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(20)) {
            if line.contains(text) {
                return;
            }
            all.push(line);
        }
        panic!("no {text:?} in {all:#?}");
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn openssl_goes_on_through_updates_of_keys() {
    for suite in SUITES {
        let Some(both) = start("", "") else { return };
        let connect = format!("127.0.0.1:{}", both.tls.number);
        let mut client = Beside::start(Command::new("openssl").args([
            "s_client",
            "-crlf",
            "-connect",
            &connect,
            "-ciphersuites",
            suite,
        ]));
        client.until("Verify return code");
        client.write("GET /sub?id=a HTTP/1.1\nHost: localhost\nAccept: text/event-stream\n\n");
        if !both.until_parked("stream", 1) {
            return;
        }
        // The last one needs no command: openssl, which reads one command at a time, has taken the one before it then.
        for (command, text) in [("", "first"), ("K\n", "second"), ("k\n", "third"), ("K\n", "fourth"), ("", "last")] {
            client.write(command);
            both.say("a", text);
            client.until(&format!("data: {text}"));
        }
        client.write("Q\n");
        assert!(both.until_parked("stream", 0));
    }
}

const PYTHON: &str = "
import socket, ssl, sys
context = ssl._create_unverified_context()
connection = context.wrap_socket(socket.create_connection(('127.0.0.1', int(sys.argv[1]))), server_hostname='localhost')
for _ in range(3):
    connection.sendall(b'GET /sub?id=p HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n')
    answer = b''
    while b'!' not in answer:
        answer += connection.recv(65536)
    print(answer.decode().splitlines()[-1], flush=True)
connection.unwrap()
print('over', flush=True)
";

#[test]
fn pythons_long_polls() {
    let Some(both) = start("", "") else { return };
    if Command::new("python3").arg("--version").output().is_err() {
        return println!("python3 is not installed: left out");
    }
    let port = both.tls.number.to_string();
    let client = Beside::start(Command::new("python3").args(["-c", PYTHON, &port]));
    for text in ["one!", "two!", "three!"] {
        if !both.until_parked("long_poll", 1) {
            return;
        }
        both.say("p", text);
        client.until(text);
    }
    client.until("over");
}
