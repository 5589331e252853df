//! Connections over TLS 1.3 that outlive the binary: their keys go from one worker to the other.

use crate::harness::{Port, SecureClient, Setup, Site, has_tools, wait};
use crate::upgrade::{Long, UPGRADE};
use std::io::{Read, Write};

const SUITES: [&str; 3] = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

fn start(more: &str) -> Option<(Long, Port)> {
    let tls = Port::reserve();
    let text = format!(
        "worker_processes 2; events {{ }} http {{ access_log off; keepalive_timeout 60s; nchan_message_buffer_length 50;
         server {{ listen 127.0.0.1:@PORT@; location /api {{ api; }}
             location /pub {{ nchan_publisher; nchan_channel_id $arg_id; }} }}
         server {{ listen 127.0.0.1:@TLS@ ssl; server_name localhost; ssl_protocols TLSv1.2 TLSv1.3;
             ssl_certificate @DIR@/localhost.crt; ssl_certificate_key @DIR@/localhost.key; {more}
             location /sub {{ nchan_subscriber; nchan_channel_id $arg_id; nchan_subscriber_first_message newest; }}
             location / {{ return 200 \"$pid $connection $connection_requests $ssl_protocol $ssl_cipher $ssl_server_name $ssl_curve\"; }} }} }}"
    );
    if !has_tools() {
        return None;
    }
    let site = Site::whole(&text).set("TLS", tls.number).certificate("localhost");
    Some((Long::start(site), tls))
}

fn take(client: &mut SecureClient, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    client.stream.read_exact(&mut bytes).expect("so many bytes come");
    bytes
}

/// Reads up to a text.
fn until(client: &mut SecureClient, end: &str) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(end.as_bytes()) {
        bytes.extend(take(client, 1));
    }
    String::from_utf8(bytes).unwrap()
}

fn who(client: &mut SecureClient) -> Vec<String> {
    let (status, text) = client.get("/", "localhost");
    assert_eq!(status, 200);
    text.split(' ').map(str::to_owned).collect()
}

fn subscribers(server: &Long, count: usize) {
    let text = format!("active subscribers: {count}");
    assert!(wait(|| server.get("/pub?id=a").text().contains(&text)), "{}", server.get("/pub?id=a").text());
}

#[test]
fn kept_connections_and_subscribers_over_tls_go_on_with_the_new_binary() {
    for suite in SUITES {
        let Some((server, tls)) = start(&format!("ssl_conf_command Ciphersuites {suite};")) else { return };
        let connect = || Setup::new().connect(tls.number, "localhost");
        let mut kept: Vec<_> = (0..20).map(|_| connect()).collect();
        let before: Vec<_> = kept.iter_mut().map(who).collect();
        assert_eq!(before[0][3..6], ["TLSv1.3", suite, "localhost"]);
        let (mut frames, mut poll, mut events) = (connect(), connect(), connect());
        frames.send(&format!("GET /sub?id=a HTTP/1.1\r\nHost: localhost\r\n{UPGRADE}\r\n"));
        assert_eq!(frames.response().0, 101);
        poll.send("GET /sub?id=a HTTP/1.1\r\nHost: localhost\r\n\r\n");
        events.send("GET /sub?id=a HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n");
        assert!(until(&mut events, ": hi\n\n\r\n").starts_with("HTTP/1.1 200 "));
        subscribers(&server, 3);
        for round in 1..3 {
            server.upgrade();
            subscribers(&server, 3);
            for (client, before) in kept.iter_mut().zip(&before) {
                let now = who(client);
                assert_ne!(now[0], before[0], "another process answers");
                assert_eq!(now[1], before[1]);
                assert_eq!(now[2].parse::<u64>().unwrap(), before[2].parse::<u64>().unwrap() + round);
                assert_eq!(now[3..], before[3..], "what the handshake came to is known");
            }
            // New keys for both directions, before and behind the way.
            frames.stream.conn.refresh_traffic_keys().unwrap();
            frames.stream.write_all(b"\x89\x81\0\0\0\0y").unwrap();
            assert_eq!(take(&mut frames, 3), b"\x8a\x01y");
            server.say("a", "hello");
            assert_eq!(take(&mut frames, 7), b"\x81\x05hello");
            until(&mut events, "data: hello\n\n\r\n");
            assert_eq!(poll.response(), (200, "hello".into()));
            // The one that had its answer is kept, and asks again.
            poll.send("GET /sub?id=a HTTP/1.1\r\nHost: localhost\r\n\r\n");
            subscribers(&server, 3);
        }
        let alerts = server.error_log().matches("[alert]").count();
        assert_eq!(alerts, 0, "{}", server.error_log());
        // The end is told in the new process as in the old one.
        frames.stream.conn.send_close_notify();
        frames.stream.flush().unwrap();
        assert!(frames.is_closed());
    }
}

#[test]
fn half_a_record_goes_with_its_connection() {
    let Some((server, tls)) = start("") else { return };
    let mut frames = Setup::new().connect(tls.number, "localhost");
    frames.send(&format!("GET /sub?id=a HTTP/1.1\r\nHost: localhost\r\n{UPGRADE}\r\n"));
    assert_eq!(frames.response().0, 101);
    subscribers(&server, 1);
    frames.stream.conn.writer().write_all(b"\x89\x81\0\0\0\0z").unwrap();
    let mut record = Vec::new();
    frames.stream.conn.write_tls(&mut record).unwrap();
    let (first, second) = record.split_at(9);
    frames.stream.sock.write_all(first).unwrap();
    // It has heard the half by then: whoever says something after it is answered.
    std::thread::sleep(std::time::Duration::from_millis(100));
    server.upgrade();
    frames.stream.sock.write_all(second).unwrap();
    assert_eq!(take(&mut frames, 3), b"\x8a\x01z");
    server.say("a", "hello");
    assert_eq!(take(&mut frames, 7), b"\x81\x05hello");
}

#[test]
fn older_tls_ends_with_the_old_binary() {
    let Some((server, tls)) = start("") else { return };
    let mut client = Setup::tls12().connect(tls.number, "localhost");
    assert_eq!(who(&mut client)[3], "TLSv1.2");
    server.upgrade();
    assert!(client.is_closed());
}

/// Frames of HTTP/2 over TLS, one request after the other.
struct Http2(SecureClient);

impl Http2 {
    fn open(port: u16) -> Http2 {
        let mut client = Http2(Setup::new().speaks(b"h2").connect(port, "localhost"));
        assert_eq!(client.0.stream.conn.alpn_protocol(), Some(&b"h2"[..]));
        client.say(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        client.frame(4, 0, 0, b"");
        client
    }

    fn say(&mut self, bytes: &[u8]) {
        self.0.stream.write_all(bytes).unwrap();
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = (payload.len() as u32).to_be_bytes();
        self.say(&[&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat());
    }

    /// The body of the answer to a request of these fields.
    fn ask(&mut self, stream: u32, fields: &[u8]) -> Vec<String> {
        self.frame(1, 5, stream, fields);
        let mut body = Vec::new();
        loop {
            let head = take(&mut self.0, 9);
            let payload = take(&mut self.0, u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize);
            let (kind, flags, of) = (head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
            match kind {
                0 => body.extend(payload),
                4 if flags == 0 => self.frame(4, 1, 0, b""),
                3 | 7 => panic!("the stream or the connection is ended: {kind} {payload:?}"),
                _ => {}
            }
            if kind <= 1 && of == stream && flags & 1 == 1 {
                return String::from_utf8(body).unwrap().split(' ').map(str::to_owned).collect();
            }
        }
    }
}

#[test]
fn http2_over_tls_goes_on_with_its_table_of_fields() {
    let more = "http2 on; location = /agent { return 200 \"$pid $connection $connection_requests $ssl_protocol $http_user_agent $server_protocol\"; }";
    let Some((server, tls)) = start(more) else { return };
    let mut client = Http2::open(tls.number);
    // Method and scheme by number; path, name and agent go into the table.
    let first = [&b"\x82\x87\x44\x06/agent\x41\x09localhost"[..], b"\x40\x0auser-agent\x04held"].concat();
    let before = client.ask(1, &first);
    assert_eq!(before[3..], ["TLSv1.3", "held", "HTTP/2.0"]);
    for round in 0..3 {
        server.upgrade();
        // From here on they are numbers.
        let now = client.ask(3 + 2 * round, b"\x82\x87\xc0\xbf\xbe");
        assert_ne!(now[0], before[0], "another process answers");
        assert_eq!(now[1], before[1], "on the same connection");
        assert_eq!(now[3..], before[3..]);
        assert_eq!(now[2].parse::<u32>().unwrap(), before[2].parse::<u32>().unwrap() + round + 1);
    }
    // A ping is answered there.
    client.frame(6, 0, 0, b"12345678");
    loop {
        let head = take(&mut client.0, 9);
        let payload = take(&mut client.0, usize::from(head[2]));
        if (head[3], head[4]) == (6, 1) {
            assert_eq!(payload, b"12345678");
            break;
        }
    }
    assert_eq!(server.error_log().matches("[alert]").count(), 0, "{}", server.error_log());
}
