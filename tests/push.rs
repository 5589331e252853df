//! Channels: publishers and subscribers of every kind over real sockets; ids and buffers, limits, hooks, slow readers, reloads. What
//! the same requests get from Debian's nchan is compared where that is installed.

use crate::harness::quic::{ask as ask_quic, client, quic_site, run};
use crate::harness::{Backend, Client, Program, Reply, Response, Server, Setup, Site, has_tools, wait, with_http2};
use http::Request;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::time::Duration;

/// Locations for what most tests do.
const LOCATIONS: &str = r#"
    location ~ ^/pub/(\w+)$ { nchan_publisher; nchan_channel_id $1; nchan_message_buffer_length 3; nchan_message_timeout 60s; }
    location ~ ^/sub/(\w+)$ { nchan_subscriber; nchan_channel_id $1; }
    location ~ ^/new/(\w+)$ { nchan_subscriber; nchan_channel_id $1; nchan_subscriber_first_message newest; }
    location ~ ^/raw/(\w+)$ { nchan_subscriber http-raw-stream; nchan_channel_id $1; }
    location ~ ^/interval/(\w+)$ { nchan_subscriber intervalpoll; nchan_channel_id $1; }
    location ~ ^/short/(\w+)$ { nchan_subscriber; nchan_channel_id $1; nchan_subscriber_timeout 1; }
    location ~ ^/both/(\w+)$ { nchan_pubsub; nchan_channel_id $1; }
    location ~ ^/existing/(\w+)$ { nchan_subscriber; nchan_channel_id $1; nchan_subscribe_existing_channels_only on; }
    location ~ ^/two/(\w+)/(\w+)$ { nchan_pubsub; nchan_channel_id $1 $2; }
    location ~ ^/split/(.*)$ { nchan_pubsub; nchan_channel_id $1; nchan_channel_id_split_delimiter ","; }
    location ~ ^/origin/(\w+)$ { nchan_pubsub; nchan_channel_id $1; nchan_access_control_allow_origin "http://a.example"; }
    location = /stub { nchan_stub_status; }
"#;

fn site(more: &str) -> Site {
    Site::server(&format!("{LOCATIONS} {more}"))
}

fn ask(server: &Server, method: &str, target: &str, headers: &str, body: &str) -> Response {
    let mut client = server.connect();
    client.send(request(method, target, headers, body));
    client.response()
}

fn request(method: &str, target: &str, headers: &str, body: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len())
}

fn say(server: &Server, target: &str, text: &str) -> Response {
    ask(server, "POST", target, "Content-Type: text/plain\r\n", text)
}

/// A client that has asked and waits.
fn subscribe(server: &Server, target: &str, headers: &str) -> Client {
    let mut client = server.connect();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n{headers}\r\n"));
    client
}

/// Waits until so many subscribe to a channel.
fn until_subscribers(server: &Server, target: &str, count: usize) {
    let text = format!("active subscribers: {count}\r\n");
    assert!(wait(|| server.get(target).text().contains(&text)), "{}", server.get(target).text());
}

/// The chunks of an answer that goes on, as they come.
struct Stream(Client);

impl Stream {
    fn open(server: &Server, target: &str, headers: &str) -> (Stream, String) {
        let mut client = subscribe(server, target, headers);
        let head = head(&mut client);
        (Stream(client), head)
    }

    fn chunk(&mut self) -> String {
        let mut line = String::new();
        while !line.ends_with("\r\n") {
            line.push(self.0.take(1)[0] as char);
        }
        let size = usize::from_str_radix(line.trim(), 16).unwrap_or_else(|_| panic!("a chunk size, not {line:?}"));
        let body = self.0.take(size + 2);
        String::from_utf8_lossy(&body[..size]).into_owned()
    }
}

fn head(client: &mut Client) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        head.push(client.take(1)[0] as char);
    }
    head
}

/// A client of WebSocket.
struct Ws(Client);

impl Ws {
    fn open(server: &Server, target: &str, headers: &str) -> Ws {
        let (ws, head) = Ws::ask(server, target, headers);
        assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{head}");
        assert!(head.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{head}");
        ws
    }

    fn ask(server: &Server, target: &str, headers: &str) -> (Ws, String) {
        let upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                       Sec-WebSocket-Version: 13\r\n";
        let mut client = subscribe(server, target, &format!("{upgrade}{headers}"));
        let head = head(&mut client);
        (Ws(client), head)
    }

    fn send(&mut self, first: u8, payload: &[u8]) {
        assert!(payload.len() < 126);
        let mask = [7, 8, 9, 10];
        let masked = payload.iter().zip(mask.iter().cycle()).map(|(b, m)| b ^ m);
        let frame: Vec<u8> = [first, 0x80 | payload.len() as u8].into_iter().chain(mask).chain(masked).collect();
        self.0.send(frame);
    }

    /// The next frame: its first byte and payload.
    fn frame(&mut self) -> (u8, String) {
        let head = self.0.take(2);
        let size = match head[1] {
            126 => u16::from_be_bytes(self.0.take(2).try_into().unwrap()) as usize,
            127 => u64::from_be_bytes(self.0.take(8).try_into().unwrap()) as usize,
            n => usize::from(n),
        };
        (head[0], String::from_utf8_lossy(&self.0.take(size)).into_owned())
    }

    fn close_code(&mut self) -> (u16, String) {
        let head = self.0.take(2);
        assert_eq!(head[0], 0x88);
        let code = u16::from_be_bytes(self.0.take(2).try_into().unwrap());
        let reason = self.0.take(usize::from(head[1]) - 2);
        (code, String::from_utf8_lossy(&reason).into_owned())
    }
}

/// The headers that ask for what follows an answer.
fn after(answer: &Response) -> String {
    format!(
        "If-Modified-Since: {}\r\nIf-None-Match: {}\r\n",
        answer.header("Last-Modified").unwrap(),
        answer.header("Etag").unwrap()
    )
}

#[test]
fn publishers_are_told_what_a_channel_has() {
    let server = site("").start();
    assert_eq!(server.get("/pub/a").status, 404);
    let first = say(&server, "/pub/a", "one");
    assert_eq!((first.status, first.header("Content-Type")), (202, Some("text/plain")));
    let text = first.text();
    assert!(text.starts_with(
        "queued messages: 1\r\nlast requested: -1 sec. ago\r\nactive subscribers: 0\r\nlast message id: "
    ));
    assert!(text.ends_with(":0"), "{text}");
    let json = ask(&server, "PUT", "/pub/a", "Accept: text/json\r\n", "two");
    assert!(
        json.text().starts_with("{\"messages\": 2, \"requested\": -1, \"subscribers\": 0, \"last_message_id\": \"")
    );
    let mut waiting = subscribe(&server, "/new/a", "");
    until_subscribers(&server, "/pub/a", 1);
    assert_eq!(say(&server, "/pub/a", "three").status, 201);
    assert_eq!(waiting.response().text(), "three");
    assert_eq!(
        ask(&server, "GET", "/pub/a", "Accept: application/xml\r\n", "").header("Content-Type"),
        Some("text/xml")
    );
    assert_eq!(ask(&server, "DELETE", "/pub/a", "", "").status, 200);
    assert_eq!(ask(&server, "DELETE", "/pub/a", "", "").status, 404);
    assert_eq!(ask(&server, "POST", "/sub/a", "", "x").status, 403);
    let large = "x".repeat(200_000);
    assert_eq!(say(&server, "/pub/large", &large).status, 202);
    assert_eq!(server.get("/sub/large").text(), large);
    let stub = server.get("/stub").text();
    assert!(stub.contains("total published messages: 4\n") && stub.contains("channels: "), "{stub}");
}

#[test]
fn a_long_poll_walks_the_buffer_and_loses_nothing_between_polls() {
    let server = site("").start();
    for n in 1..=5 {
        say(&server, "/pub/a", &format!("m{n}"));
    }
    let mut client = server.connect();
    let mut got = Vec::new();
    let mut answer = client.get("/sub/a");
    for n in 6..=20 {
        assert_eq!(answer.header("Vary"), Some("If-None-Match, If-Modified-Since"));
        got.push(answer.text());
        // What is published between two polls is there for the next.
        say(&server, "/pub/a", &format!("m{n}"));
        client.send(format!("GET /sub/a HTTP/1.1\r\nHost: a\r\n{}\r\n", after(&answer)));
        answer = client.response();
    }
    // The buffer holds three: the walk begins with the third, and then each comes once.
    let expected: Vec<String> = (3..18).map(|n| format!("m{n}")).collect();
    assert_eq!(got, expected);
}

#[test]
fn polls_wait_or_do_not_and_end_with_their_channel() {
    let server = site("access_log @DIR@/logs/access.log;").start();
    let mut waiting = subscribe(&server, "/sub/a", "");
    until_subscribers(&server, "/pub/a", 1);
    say(&server, "/pub/a", "x");
    assert_eq!(waiting.response().text(), "x");
    // The connection is kept: the next request comes on it.
    assert_eq!(waiting.get("/interval/none").status, 304);
    assert_eq!(waiting.get("/short/b").status, 408);
    let answer = waiting.get("/sub/a");
    let not_yet = ask(&server, "GET", "/interval/a", &after(&answer), "");
    assert_eq!((not_yet.status, not_yet.header("Etag")), (304, answer.header("Etag")));
    waiting.send(format!("GET /sub/a HTTP/1.1\r\nHost: a\r\n{}\r\n", after(&answer)));
    until_subscribers(&server, "/pub/a", 1);
    assert_eq!(ask(&server, "DELETE", "/pub/a", "", "").status, 200);
    assert_eq!(waiting.response().status, 410);
    let since = "If-Modified-Since: Mon, 23 Nov 2026 08:08:05 GMT\r\n";
    let bad = ask(&server, "GET", "/sub/a", since, "");
    assert_eq!((bad.status, bad.text().as_str()), (400, "Message ID invalid"));
    assert_eq!(server.get("/existing/none2").status, 403);
    let gone = subscribe(&server, "/sub/gone", "");
    until_subscribers(&server, "/pub/gone", 1);
    drop(gone);
    until_subscribers(&server, "/pub/gone", 0);
    server.wait_for("logs/access.log", "\"GET /sub/gone HTTP/1.1\" 499 0");
    server.wait_for("logs/access.log", "\"GET /short/b HTTP/1.1\" 408 0");
    assert!(server.read("logs/access.log").contains("\"GET /sub/a HTTP/1.1\" 410 0"));
}

#[test]
fn eventsource_goes_on_where_it_was() {
    let server = site("access_log @DIR@/logs/access.log;").start();
    let accept = "Accept: text/event-stream\r\n";
    say(&server, "/pub/a", "one");
    let (mut stream, head) = Stream::open(&server, "/sub/a", accept);
    assert!(head.contains("Content-Type: text/event-stream; charset=utf-8\r\n"), "{head}");
    assert_eq!(stream.chunk(), ": hi\n\n");
    let first = stream.chunk();
    assert!(first.starts_with("id: ") && first.ends_with(":0\ndata: one\n\n"), "{first}");
    ask(&server, "POST", "/pub/a", "X-EventSource-Event: tick\r\n", "two\nlines");
    let second = stream.chunk();
    assert!(second.starts_with("event: tick\nid: ") && second.ends_with("\ndata: two\ndata: lines\n\n"), "{second}");
    let id = second.lines().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
    drop(stream);
    until_subscribers(&server, "/pub/a", 0);
    say(&server, "/pub/a", "three");
    say(&server, "/pub/a", "four");
    for (target, headers) in [
        ("/sub/a".to_owned(), format!("{accept}Last-Event-ID: {id}\r\n")),
        (format!("/sub/a?last_event_id={id}"), accept.to_owned()),
    ] {
        let (mut stream, _) = Stream::open(&server, &target, &headers);
        stream.chunk();
        assert!(stream.chunk().ends_with("data: three\n\n"));
        assert!(stream.chunk().ends_with("data: four\n\n"));
    }
    let (mut stream, _) = Stream::open(&server, "/short/b", accept);
    stream.chunk();
    assert_eq!(stream.chunk(), ":408: 408 Request Timeout\n\n");
    assert_eq!(stream.chunk(), "");
    let (mut stream, _) = Stream::open(&server, "/sub/c", accept);
    stream.chunk();
    until_subscribers(&server, "/pub/c", 1);
    ask(&server, "DELETE", "/pub/c", "", "");
    assert_eq!(stream.chunk(), ":410: 410 Gone\n\n");
    // The answer ended as it should: the connection is of use.
    assert_eq!(stream.chunk(), "");
    assert_eq!(stream.0.get("/pub/c").status, 404);
    server.wait_for("logs/access.log", "\"GET /sub/c HTTP/1.1\" 200 ");
}

#[test]
fn websockets_hear_publish_and_are_told_why_it_ends() {
    let server = site("access_log @DIR@/logs/access.log;").start();
    let mut plain = Ws::open(&server, "/sub/a", "");
    let mut meta = Ws::open(&server, "/sub/a", "Sec-WebSocket-Protocol: other, ws+meta.nchan\r\n");
    until_subscribers(&server, "/pub/a", 2);
    say(&server, "/pub/a", "hello");
    ask(&server, "POST", "/pub/a", "Content-Type: application/octet-stream\r\n", "bytes");
    assert_eq!((plain.frame(), plain.frame()), ((0x81, "hello".into()), (0x82, "bytes".into())));
    let (first, text) = meta.frame();
    assert!(
        first == 0x81 && text.starts_with("id: ") && text.ends_with(":0\ncontent-type: text/plain\n\nhello"),
        "{text}"
    );
    let id = text.lines().next().unwrap().strip_prefix("id: ").unwrap();
    let mut again = Ws::open(&server, &format!("/sub/a?last_event_id={id}"), "");
    assert_eq!(again.frame(), (0x82, "bytes".into()));
    plain.send(0x89, b"are you there");
    assert_eq!(plain.frame(), (0x8a, "are you there".into()));
    plain.send(0x81, b"not here");
    assert_eq!(plain.close_code(), (1008, "Publishing not allowed.".into()));
    assert!(plain.0.is_closed());
    ask(&server, "DELETE", "/pub/a", "", "");
    assert_eq!(again.close_code(), (1001, "410 Gone".into()));

    let mut echo = Ws::open(&server, "/both/b", "");
    echo.send(0x01, b"in two ");
    echo.send(0x80, b"parts");
    assert_eq!(echo.frame(), (0x81, "in two parts".into()));
    echo.send(0x88, b"\x03\xe8bye");
    assert_eq!(echo.close_code(), (1000, "bye".into()));
    let mut bad = Ws::open(&server, "/both/b", "Accept: text/plain\r\n");
    bad.send(0x81, b"\xff\xff");
    while bad.0.take(1)[0] != 0x88 {}
    assert_eq!(bad.0.take(3)[1..], 1007u16.to_be_bytes());

    let mut publisher = Ws::open(&server, "/pub/c", "Accept: text/json\r\n");
    publisher.send(0x81, b"x");
    assert!(publisher.frame().1.starts_with("{\"messages\": 1, "));
    assert_eq!(Ws::open(&server, "/short/d", "").close_code(), (1000, "408 Request Timeout".into()));
    let (_, head) = Ws::ask(&server, "/origin/x", "Origin: http://b.example\r\n");
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    Ws::open(&server, "/origin/x", "Origin: http://a.example\r\n");
    assert_eq!(ask(&server, "GET", "/sub/x", "Upgrade: websocket\r\nConnection: upgrade\r\n", "").status, 400);
    server.wait_for("logs/access.log", "\"GET /both/b HTTP/1.1\" 101 ");
}

#[test]
fn parts_chunks_and_raw_bytes() {
    let server = site("").start();
    for text in ["one", "", "two"] {
        say(&server, "/pub/a", text);
    }
    let (mut chunks, _) = Stream::open(&server, "/sub/a", "TE: chunked\r\n");
    assert_eq!([chunks.chunk(), chunks.chunk()], ["one", "two"]);
    let (mut raw, _) = Stream::open(&server, "/raw/a", "");
    assert_eq!([raw.chunk(), raw.chunk(), raw.chunk()], ["one\n", "\n", "two\n"]);
    let (mut parts, head) = Stream::open(&server, "/sub/a", "Accept: multipart/mixed\r\n");
    let boundary = head.split("boundary=").nth(1).unwrap().lines().next().unwrap().to_owned();
    assert_eq!(parts.chunk(), format!("--{boundary}"));
    let part = parts.chunk();
    assert!(
        part.starts_with("\r\nLast-Modified: ")
            && part.contains("\r\nEtag: 0\r\nContent-Type: text/plain\r\n\r\none\r\n")
    );
    assert!(part.ends_with(&format!("\r\n--{boundary}")), "{part}");
    parts.chunk();
    parts.chunk();
    ask(&server, "DELETE", "/pub/a", "", "");
    assert_eq!([parts.chunk(), parts.chunk(), chunks.chunk(), raw.chunk()], ["--\r\n", "", "", ""]);
}

#[test]
fn several_channels_come_in_order_and_each_message_once() {
    let server = site("").start();
    for (channel, text) in [("a", "1"), ("b", "2"), ("a", "3"), ("b", "4")] {
        say(&server, &format!("/pub/{channel}"), text);
    }
    let mut client = server.connect();
    let mut answer = client.get("/two/a/b");
    assert!(answer.header("Etag").unwrap().contains("[0],"), "{answer:?}");
    let mut got = vec![answer.text()];
    for _ in 0..3 {
        client.send(format!("GET /two/a/b HTTP/1.1\r\nHost: a\r\n{}\r\n", after(&answer)));
        answer = client.response();
        got.push(answer.text());
    }
    assert_eq!(got, ["1", "2", "3", "4"]);
    let mut ws = Ws::open(&server, "/split/a,c,a", "Sec-WebSocket-Protocol: ws+meta.nchan\r\n");
    assert!(ws.frame().1.ends_with("\n\n1") && ws.frame().1.ends_with("\n\n3"));
    say(&server, "/split/c,d", "5");
    let (_, text) = ws.frame();
    assert!(text.contains(",[0]\n") && text.ends_with("\n\n5"), "{text}");
    ask(&server, "DELETE", "/pub/c", "", "");
    assert_eq!(ws.close_code().0, 1001);
    assert_eq!(server.get("/sub/d").text(), "5");
}

#[test]
fn who_does_not_read_is_dropped_and_takes_no_memory() {
    let server = Site::server(
        "location /pub { nchan_publisher; nchan_channel_id a; nchan_message_buffer_length 2; client_max_body_size 10m; }
         location /sub { nchan_subscriber; nchan_channel_id a; send_timeout 1s; } location /stub { nchan_stub_status; }",
    )
    .start();
    let slow = Ws::open(&server, "/sub", "");
    let mut reader = Ws::open(&server, "/sub", "");
    until_subscribers(&server, "/pub", 2);
    let text = "x".repeat(1 << 20);
    for _ in 0..24 {
        say(&server, "/pub", &text);
        assert_eq!(reader.frame().1.len(), text.len());
    }
    server
        .wait_for("logs/error.log", "a subscriber is too slow: it has taken nothing for send_timeout, and is dropped");
    assert!(server.error_log().contains("request: \"GET /sub HTTP/1.1\""));
    until_subscribers(&server, "/pub", 1);
    assert!(server.get("/stub").text().ends_with("subscribers dropped: 1\n"));
    assert!(server.own_memory_kb() < 80_000, "{} kB", server.own_memory_kb());
    drop(slow);
}

#[test]
fn groups_have_limits() {
    let server = Site::server(
        r"nchan_channel_group_accounting on; nchan_channel_group g;
        location ~ ^/c/(\w+)$ { nchan_pubsub; nchan_channel_id $1; }
        location = /group { nchan_group_location; nchan_group_max_channels $arg_channels; nchan_group_max_messages $arg_messages;
            nchan_group_max_subscribers $arg_subscribers; }",
    )
    .start();
    let set = ask(&server, "POST", "/group?channels=2&messages=3&subscribers=1", "", "");
    assert!(set.text().contains("limits:\r\n  max channels: 2\r\n  max subscribers: 1\r\n  max messages: 3\r\n"));
    for channel in ["a", "a", "b"] {
        assert_eq!(say(&server, &format!("/c/{channel}"), "x").status, 202);
    }
    let refused = say(&server, "/c/c", "x");
    assert_eq!((refused.status, refused.text().as_str()), (403, "Group limit reached for number of channels."));
    assert_eq!(say(&server, "/c/a", "x").text(), "Group limit reached for number of messages.");
    let ws = Ws::open(&server, "/c/a", "");
    assert_eq!(ask(&server, "GET", "/c/b", "", "").text(), "Group limit reached for number of subscribers.");
    let json = ask(&server, "GET", "/group", "Accept: text/json\r\n", "").text();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["channels"], &json["subscribers"], &json["messages"]), (&2.into(), &1.into(), &3.into()));
    ask(&server, "DELETE", "/group", "", "");
    // The subscriber is told, and is gone then.
    drop(ws);
    assert!(wait(|| server.get("/group").text().starts_with("channels: 0\r\nsubscribers: 0\r\nmessages: 0\r\n")));
}

#[test]
fn others_are_asked_and_told() {
    let backend = Backend::start(|seen| match seen.line() {
        line if line.contains("/auth/no") => Reply::Keep(
            b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nContent-Length: 7\r\n\r\nnot you".to_vec(),
        ),
        line if line.contains("/up") => match seen.body.as_slice() {
            b"drop" => Reply::Keep(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()),
            b"same" => Reply::Keep(b"HTTP/1.1 304 Not Modified\r\n\r\n".to_vec()),
            body => Reply::ok(&String::from_utf8_lossy(body).to_uppercase()),
        },
        _ => Reply::ok(""),
    });
    let server = Site::server(
        r"location ~ ^/sub/(\w+)$ { nchan_subscriber; nchan_channel_id $1; nchan_authorize_request /auth/$1;
            nchan_subscribe_request /told; nchan_unsubscribe_request /untold; }
        location ~ ^/pub/(\w+)$ { nchan_publisher; nchan_channel_id $1; nchan_publisher_upstream_request /up; }
        location ~ ^/event/(\w+)$ { nchan_pubsub; nchan_channel_id $1; nchan_channel_events_channel_id $1; }
        location ~ ^/meta/(\w+)$ { nchan_subscriber; nchan_channel_group meta; nchan_channel_id $1; }
        location / { proxy_pass http://127.0.0.1:@BACKEND@; proxy_set_header X-Channel $nchan_channel_id;
            proxy_set_header X-Subscriber $nchan_subscriber_type; proxy_set_header X-Publisher $nchan_publisher_type;
            proxy_ignore_client_abort on; }",
    )
    .set("BACKEND", backend.port)
    .start();
    let refused = server.get("/sub/no");
    assert_eq!((refused.status, refused.text().as_str()), (403, "not you"));
    let mut ws = Ws::open(&server, "/sub/yes", "");
    let saw = |path: &str| backend.seen().into_iter().find(|s| s.line().contains(path));
    assert!(wait(|| saw("/told").is_some()));
    let told = saw("/auth/yes").unwrap();
    assert_eq!((told.header("X-Channel"), told.header("X-Subscriber")), (Some("yes"), Some("websocket")));
    for (text, status) in [("loud", 201), ("drop", 204), ("same", 201)] {
        assert_eq!(say(&server, "/pub/yes", text).status, status);
    }
    assert_eq!([ws.frame().1, ws.frame().1], ["LOUD", "same"]);
    let mut publisher = Ws::open(&server, "/pub/yes", "");
    for text in ["framed", "drop", "same"] {
        publisher.send(0x81, text.as_bytes());
    }
    assert_eq!([ws.frame().1, ws.frame().1], ["FRAMED", "same"]);
    assert!(publisher.frame().1.starts_with("queued messages: 3\r\n"));
    drop(ws);
    assert!(wait(|| saw("/untold").is_some()));
    assert_eq!(saw("/untold").unwrap().header("X-Channel"), Some("yes"));

    let (mut events, _) = Stream::open(&server, "/meta/e", "Accept: text/event-stream\r\n");
    events.chunk();
    let mut heard = Ws::open(&server, "/event/e", "");
    say(&server, "/event/e", "x");
    heard.frame();
    heard.send(0x81, b"y");
    assert_eq!(heard.frame().1, "y");
    drop(heard);
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(events.chunk().lines().find_map(|l| l.strip_prefix("data: ")).unwrap().to_owned());
    }
    assert_eq!(all, ["subscriber_enqueue e", "channel_publish e", "channel_publish e", "subscriber_dequeue e"]);
}

/// nchan passes on all that the authority says: a redirect without its Location led nowhere.
#[test]
fn who_is_refused_gets_all_that_the_authority_says() {
    let backend = Backend::start(|_| {
        Reply::Keep(
            b"HTTP/1.1 302 Found\r\nLocation: http://login.example/\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Why: no\r\n\
              Access-Control-Allow-Origin: http://other.example\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 5\r\n\r\nlogin"
                .to_vec(),
        )
    });
    let server = Site::server(
        r"location ~ ^/both/(\w+)$ { nchan_pubsub; nchan_channel_id $1; nchan_authorize_request /ask; }
        location = /ask { internal; proxy_pass http://127.0.0.1:@BACKEND@; }",
    )
    .set("BACKEND", backend.port)
    .start();
    for method in ["GET", "POST"] {
        let answer = ask(&server, method, "/both/a", "Origin: http://a.example\r\n", "x");
        assert_eq!((answer.status, answer.text().as_str()), (302, "login"));
        let header = |name: &str| answer.header(name).unwrap_or_default().to_owned();
        assert_eq!(header("Location"), "http://login.example/");
        assert_eq!((header("X-Why").as_str(), header("Content-Type").as_str()), ("no", "text/html; charset=utf-8"));
        let all = |name: &str| answer.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).count();
        assert_eq!((all("Set-Cookie"), all("Content-Length"), all("Access-Control-Allow-Origin")), (2, 1, 1));
        assert_eq!(header("Access-Control-Allow-Origin"), "http://a.example");
    }
}

/// Any client could name a group, which stayed for ever and counted nowhere.
#[test]
fn groups_that_clients_name_count_and_are_refused_when_there_is_no_room() {
    let server = Site::http(
        r"nchan_shared_memory_size 100k; server { listen 127.0.0.1:@PORT@;
            location ~ ^/g/(\w+)$ { nchan_pubsub; nchan_channel_id a; nchan_channel_group $1;
                nchan_channel_group_accounting on; nchan_group_max_channels 5; }
            location = /stub { nchan_stub_status; } }",
    )
    .start();
    let mut client = server.connect();
    let status = |client: &mut Client, number: usize| {
        client.send(request("DELETE", &format!("/g/g{number}"), "", ""));
        client.response().status
    };
    let refused = (0..1000).find(|number| status(&mut client, *number) == 507);
    assert!(refused.is_some_and(|number| (100..1000).contains(&number)), "{refused:?}");
    // One that is there is asked about as ever.
    assert_eq!(status(&mut client, 0), 404);
    assert!(server.get("/stub").text().contains("\nchannels: 0\n"));
}

#[test]
fn reloads_keep_channels_and_their_subscribers() {
    let text = format!(
        "worker_processes 2; events {{}} http {{ access_log off; server {{ listen 127.0.0.1:@PORT@; {LOCATIONS} }} }}"
    );
    let server = Site::whole(&text).start();
    say(&server, "/pub/a", "before");
    let mut subscribers: Vec<_> = (0..8).map(|_| Ws::open(&server, "/sub/a", "")).collect();
    subscribers.iter_mut().for_each(|ws| assert_eq!(ws.frame().1, "before"));
    let mut poll = subscribe(&server, "/new/a", "");
    until_subscribers(&server, "/pub/a", 9);
    for round in 1..=3 {
        server.signal(Signal::HUP);
        assert!(wait(|| server.error_log().matches("signal 1 (SIGHUP) received").count() == round));
        say(&server, "/pub/a", &format!("after {round}"));
        subscribers.iter_mut().for_each(|ws| assert_eq!(ws.frame().1, format!("after {round}")));
    }
    assert_eq!(poll.response().text(), "after 1");
    assert!(server.get("/pub/a").text().starts_with("queued messages: 3\r\n"));
}

#[test]
fn subscribers_over_http2() {
    let server = Site::http(&format!("http2 on; server {{ listen 127.0.0.1:@PORT@; {LOCATIONS} }}")).start();
    with_http2(&server, async |client| {
        let ask = async |path: &str, accept: &str| {
            let uri = format!("http://localhost{path}");
            let request = Request::get(uri).header("accept", accept).body(()).unwrap();
            let mut ready = client.clone().ready().await.unwrap();
            ready.send_request(request, true).unwrap()
        };
        say(&server, "/pub/a", "one");
        let mut events = ask("/sub/a", "text/event-stream").await.0.await.unwrap().into_body();
        assert_eq!(events.data().await.unwrap().unwrap(), ": hi\n\n");
        let text = events.data().await.unwrap().unwrap();
        assert!(text.ends_with(b"data: one\n\n"), "{text:?}");
        let (waiting, _) = ask("/new/a", "*/*").await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        until_subscribers(&server, "/pub/a", 2);
        say(&server, "/pub/a", "two");
        let poll = waiting.await.unwrap();
        assert_eq!(poll.status().as_u16(), 200);
        assert_eq!(poll.into_body().data().await.unwrap().unwrap(), "two");
        assert!(events.data().await.unwrap().unwrap().ends_with(b"data: two\n\n"));
        ask_delete(&server, "/pub/a");
        assert_eq!(events.data().await.unwrap().unwrap(), ":410: 410 Gone\n\n");
        assert!(events.data().await.is_none());
    });
}

fn ask_delete(server: &Server, target: &str) {
    assert_eq!(ask(server, "DELETE", target, "", "").status, 200);
}

/// What differs between two servers whatever they are: names, dates, ids of other seconds.
fn comparable(answer: &Response) -> String {
    let skipped = ["Server", "Date", "Last-Modified", "Connection", "Transfer-Encoding", "Content-Length"];
    let mut headers: Vec<String> = answer
        .headers
        .iter()
        .filter(|(name, _)| !skipped.iter().any(|s| s.eq_ignore_ascii_case(name)))
        .map(|(name, value)| format!("{}: {value}", name.to_ascii_lowercase()))
        .collect();
    headers.sort();
    let text = answer.text();
    let body: Vec<&str> = text.split(|c: char| c.is_ascii_digit()).filter(|s| !s.is_empty()).collect();
    format!("{} {headers:?} {body:?}", answer.status)
}

#[test]
fn the_same_requests_get_the_same_answers_from_nchan() {
    const MODULE: &str = "/usr/lib/nginx/modules/ngx_nchan_module.so";
    if !std::path::Path::new(MODULE).exists() {
        return println!("libnginx-mod-nchan is not installed: left out");
    }
    let text = format!("events {{}} http {{ access_log off; server {{ listen 127.0.0.1:@PORT@; {LOCATIONS} }} }}");
    let ours = Site::whole(&text).start();
    let Some(theirs) = Site::whole(&format!("load_module {MODULE};\n{text}")).start_as(Program::Nginx) else { return };
    let origin = "Origin: http://a.example\r\n";
    let steps: &[(&str, &str, &str, &str)] = &[
        ("GET", "/pub/a", "", ""),
        ("POST", "/pub/a", "Content-Type: text/plain\r\n", "one"),
        ("POST", "/pub/a", "Accept: text/json\r\n", "two"),
        ("PUT", "/pub/a", "Accept: text/xml\r\nContent-Type: a/b\r\n", "three"),
        ("GET", "/pub/a", "Accept: application/x-yaml\r\n", ""),
        ("GET", "/pub/a", "Accept: application/json\r\n", ""),
        ("POST", "/sub/a", "", "x"),
        ("DELETE", "/sub/a", "", ""),
        ("OPTIONS", "/pub/a", "", ""),
        ("OPTIONS", "/pub/a", origin, ""),
        ("OPTIONS", "/sub/a", origin, ""),
        ("OPTIONS", "/both/a", origin, ""),
        ("GET", "/sub/a", "", ""),
        ("GET", "/sub/a", origin, ""),
        ("GET", "/sub/a", "If-Modified-Since: Thu, 01 Jan 1970 00:00:00 GMT\r\n", ""),
        ("GET", "/sub/a", "If-Modified-Since: Mon, 23 Nov 2026 08:08:05 GMT\r\n", ""),
        ("GET", "/sub/a", "If-Modified-Since: nonsense\r\n", ""),
        ("GET", "/sub/a", "If-None-Match: 3\r\n", ""),
        ("GET", "/two/a/none", "", ""),
        ("GET", "/split/none,a,more", "", ""),
        ("GET", "/interval/none", "", ""),
        ("GET", "/short/none", "", ""),
        ("GET", "/existing/none2", "", ""),
        ("POST", "/origin/a", origin, "x"),
        ("DELETE", "/pub/a", "", ""),
    ];
    let mut different = Vec::new();
    for (method, target, headers, body) in steps {
        let [mine, other] = [&ours, &theirs].map(|server| comparable(&ask(server, method, target, headers, body)));
        if mine != other {
            different.push(format!("{method} {target} {headers:?}\n  ours:   {mine}\n  theirs: {other}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn held_subscribers_give_back_what_requests_need() {
    let server = Site::whole(&format!(
        "worker_rlimit_nofile 8192; events {{ worker_connections 4096; }} \
         http {{ access_log off; server {{ listen 127.0.0.1:@PORT@; {LOCATIONS} }} }}"
    ))
    .start();
    let _warm: Vec<_> = (0..50).map(|_| Ws::open(&server, "/sub/a", "")).collect();
    let before = server.own_memory_kb();
    let held: Vec<_> = (0..400).map(|_| Ws::open(&server, "/sub/a", "")).collect();
    let each = (server.own_memory_kb().saturating_sub(before)) * 1024 / held.len();
    println!("{each} bytes of memory for each");
    // The memory of a debug build, allocator and all; what it is in a release is in docs/push.md.
    assert!(each < 8000, "{each} bytes for a subscriber");
}

#[test]
fn pings_and_heartbeats() {
    let server = Site::server(
        r#"nchan_channel_id a;
        location /ws { nchan_subscriber; nchan_websocket_ping_interval 1; nchan_websocket_client_heartbeat ping pong; }
        location /es { nchan_subscriber; nchan_eventsource_ping_interval 1; nchan_eventsource_ping_comment hello;
            nchan_eventsource_ping_data "{}"; }"#,
    )
    .start();
    let (mut events, _) = Stream::open(&server, "/es", "Accept: text/event-stream\r\n");
    let mut ws = Ws::open(&server, "/ws", "");
    ws.send(0x81, b"ping");
    assert_eq!(ws.frame(), (0x81, "pong".into()));
    assert_eq!(ws.frame(), (0x89, String::new()));
    ws.send(0x8a, b"");
    events.chunk();
    assert_eq!(events.chunk(), ": hello\nevent: ping\ndata: {}\n\n");
    let mut stream = &ws.0.stream;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut ping = [0; 2];
    stream.read_exact(&mut ping).unwrap();
    assert_eq!(ping, [0x89, 0]);
    let _ = stream.flush();
}

/// A long-poll is answered with all that there is.
#[test]
fn several_messages_in_one_answer() {
    let server = Site::server(
        "location /pub { nchan_publisher; nchan_channel_id $arg_id; }
         location /on { nchan_subscriber; nchan_channel_id $arg_id; nchan_longpoll_multipart_response on; }
         location /raw { nchan_subscriber; nchan_channel_id $arg_id; nchan_longpoll_multipart_response raw;
             nchan_subscriber_http_raw_stream_separator --; }
         location /one { nchan_subscriber; nchan_channel_id $arg_id; }",
    )
    .start();
    let post = |kind: &str, text: &str| {
        let mut client = server.connect();
        client
            .send(format!("POST /pub?id=a HTTP/1.1\r\nHost: a\r\n{kind}Content-Length: {}\r\n\r\n{text}", text.len()));
        assert!(client.response().status < 300);
    };
    // One that is alone comes as it is.
    post("Content-Type: text/x\r\n", "first");
    let alone = server.get("/on?id=a");
    assert_eq!((alone.text(), alone.header("Content-Type")), ("first".to_owned(), Some("text/x")));
    post("", "second");
    let all = server.get("/on?id=a");
    let kind = all.header("Content-Type").unwrap().to_owned();
    let letters = kind.strip_prefix("multipart/mixed; boundary=").unwrap();
    let expected =
        format!("--{letters}\r\nContent-Type: text/x\r\n\r\nfirst\r\n--{letters}\r\n\r\nsecond\r\n--{letters}--\r\n");
    assert_eq!(all.text(), expected);
    assert_eq!(server.get("/raw?id=a").text(), "first--\nsecond--\n");
    assert_eq!(server.get("/one?id=a").text(), "first");
    // The next poll, by the ids of this answer, begins behind the last of them, be it that it waits.
    let mut client = server.connect();
    client.send(format!(
        "GET /on?id=a HTTP/1.1\r\nHost: a\r\nIf-Modified-Since: {}\r\nIf-None-Match: {}\r\n\r\n",
        all.header("Last-Modified").unwrap(),
        all.header("Etag").unwrap()
    ));
    assert!(wait(|| server.get("/pub?id=a").text().contains("active subscribers: 1\r\n")));
    post("", "third");
    assert_eq!(client.response().text(), "third");
}

/// Who subscribes says who that is, as long as it does.
#[test]
fn a_page_of_who_subscribes() {
    let locations = "location /sub { nchan_subscriber; nchan_channel_id $arg_id $arg_more; nchan_subscriber_info_string '$nchan_subscriber_type $arg_who'; }
         location /usual { nchan_subscriber; nchan_channel_id $arg_id; }
         location /pub { nchan_publisher; nchan_channel_id $arg_id; }
         location /who { nchan_subscriber_info; nchan_channel_id $arg_id; }";
    let server = Site::server(locations).start();
    let open = |target: &str| {
        let mut client = server.connect();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\nUser-Agent: t\r\nAccept: text/event-stream\r\n\r\n"));
        client
    };
    let first = open("/sub?id=x&more=y&who=one");
    assert!(wait(|| server.get("/who?id=x").text() == "eventsource one\n"));
    let second = open("/usual?id=x");
    assert!(wait(|| server.get("/who?id=x").text().lines().count() == 2));
    let text = server.get("/who?id=x").text();
    let usual = text.lines().nth(1).unwrap();
    assert!(usual.starts_with("eventsource 127.0.0.1:") && usual.contains(" t  /usual?id=x "), "{usual}");
    assert_eq!(server.get("/who?id=y").text(), "eventsource one\n");
    drop(first);
    assert!(wait(|| server.get("/who?id=x").text() == format!("{usual}\n")));
    drop(second);
    assert!(wait(|| server.get("/who?id=x").text().is_empty() && server.get("/who?id=y").text().is_empty()));
    assert_eq!(server.get("/who").status, 404);
    // Those of which an answer of a poll tells nothing more are no subscribers any more.
    let mut poll = server.connect();
    poll.send("GET /sub?id=z&more=z&who=poll HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(wait(|| server.get("/who?id=z").text() == "longpoll poll\n"));
    let mut client = server.connect();
    client.send("POST /pub?id=z HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
    assert_eq!((client.response().status, poll.response().text()), (201, "x".to_owned()));
    assert!(wait(|| server.get("/who?id=z").text().is_empty()));
}

#[test]
fn a_poll_that_is_held_over_tls() {
    if !has_tools() {
        return println!("openssl is not installed: left out");
    }
    let server = Site::http(&format!(
        "server {{ listen 127.0.0.1:@PORT@ ssl; ssl_certificate @DIR@/localhost.crt;
           ssl_certificate_key @DIR@/localhost.key; {LOCATIONS} }}"
    ))
    .certificate("localhost")
    .start();
    let [mut publisher, mut poll] = [(); 2].map(|()| Setup::new().connect(server.port, "localhost"));
    for round in 0..3 {
        poll.send("GET /new/a HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(wait(|| publisher.get("/pub/a", "localhost").1.contains("active subscribers: 1\r\n")));
        let text = format!("round {round}");
        publisher.send(&request("POST", "/pub/a", "", &text));
        assert_eq!(publisher.response().0, 201);
        assert_eq!(poll.response(), (200, text));
    }
}

#[test]
fn subscribers_over_http3() {
    let server = quic_site("", LOCATIONS).set("THREADS", 2).start();
    run(async {
        let (_endpoint, mut requests) = client(server.port).await;
        let subscribe = |path: &str, accept: &str| {
            let (mut requests, accept) = (requests.clone(), accept.to_owned());
            let request = Request::get(format!("https://localhost{path}")).header("accept", accept).body(()).unwrap();
            tokio::spawn(async move { ask_quic(&mut requests, request, b"").await })
        };
        let (events, poll) = (subscribe("/sub/a", "text/event-stream"), subscribe("/new/a", "*/*"));
        let of = |method: &str| Request::builder().method(method).uri("https://localhost/pub/a").body(()).unwrap();
        while !ask_quic(&mut requests, of("GET"), b"").await.text().contains("active subscribers: 2\r\n") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(ask_quic(&mut requests, of("POST"), b"over quic").await.status, 201);
        let poll = poll.await.unwrap();
        assert_eq!(
            (poll.status, poll.text().as_str(), poll.headers["etag"].to_str().unwrap()),
            (200, "over quic", "0")
        );
        assert_eq!(ask_quic(&mut requests, of("DELETE"), b"").await.status, 200);
        let events = events.await.unwrap().text();
        assert!(
            events.starts_with(": hi\n\nid: ") && events.ends_with("data: over quic\n\n:410: 410 Gone\n\n"),
            "{events}"
        );
    });
}
