//! HTTP/3: requests and answers, with the crate `h3` as the client, and frames by hand where clients are to be wrong.

use crate::harness::quic::{Answer, ask, client, connect, endpoint, get, quic_site, run};
use crate::harness::{Backend, Reply, Server};
use http::Request;
use quinn::{ApplicationClose, ConnectionError};
use wire::http3::frame::{self, kind};
use wire::http3::qpack::encoder;

fn site(server: &str) -> Server {
    quic_site("", server).set("THREADS", 1).file("html/index.html", "a file\n").start()
}

#[test]
fn files_and_texts() {
    let server = site("location /v { return 200 \"$http3 $server_protocol $scheme $https $ssl_protocol $request\"; }");
    run(async {
        let (_endpoint, mut requests) = client(server.port).await;
        let file = ask(&mut requests, get("/"), b"").await;
        assert_eq!((file.status, file.text().as_str()), (200, "a file\n"));
        assert_eq!(file.headers["content-length"], "7");
        assert_eq!(file.headers["content-type"], "text/html");
        let text = ask(&mut requests, get("/v?x"), b"").await.text();
        assert_eq!(text, "h3 HTTP/3.0 https on TLSv1.3 GET /v?x HTTP/3.0");
        let missing = ask(&mut requests, get("/missing"), b"").await;
        assert_eq!(missing.status, 404);
        let head = Request::head("https://localhost/").body(()).unwrap();
        let head = ask(&mut requests, head, b"").await;
        assert_eq!((head.status, head.body.len(), &head.headers["content-length"]), (200, 0, &"7".parse().unwrap()));
    });
}

#[test]
fn a_large_file_comes_whole_beside_small_ones() {
    let large: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
    let server = quic_site("", "").set("THREADS", 1).file("html/large", &large).file("html/small", "small").start();
    run(async {
        let (_endpoint, requests) = client(server.port).await;
        let mut first = requests.clone();
        let whole = tokio::spawn(async move { ask(&mut first, get("/large"), b"").await });
        let mut answers = Vec::new();
        for _ in 0..50 {
            let mut requests = requests.clone();
            answers.push(tokio::spawn(async move { ask(&mut requests, get("/small"), b"").await }));
        }
        for answer in answers {
            assert_eq!(answer.await.unwrap().text(), "small");
        }
        let whole = whole.await.unwrap();
        assert!(whole.body == large, "{} bytes", whole.body.len());
    });
}

#[test]
fn bodies_go_to_upstreams_and_answers_come_back() {
    let backend = Backend::start(|seen| Reply::ok(&format!("{} {}", seen.line(), seen.body.len())));
    let server = quic_site("", "location / { proxy_pass http://127.0.0.1:@BACKEND@; client_max_body_size 4m; }")
        .set("THREADS", 1)
        .set("BACKEND", backend.port)
        .start();
    let body = vec![b'b'; 2_000_000];
    run(async {
        let (_endpoint, mut requests) = client(server.port).await;
        let post = |path: &str| Request::post(format!("https://localhost{path}")).body(()).unwrap();
        let answer = ask(&mut requests, post("/a"), b"short").await;
        assert_eq!(answer.text(), "POST /a HTTP/1.1 5");
        let answer = ask(&mut requests, post("/b"), &body).await;
        assert_eq!(answer.text(), "POST /b HTTP/1.1 2000000");
        let announced = Request::post("https://localhost/c").header("content-length", "9").body(()).unwrap();
        assert_eq!(ask(&mut requests, announced, b"too short").await.text(), "POST /c HTTP/1.1 9");
    });
}

#[test]
fn trailers_follow_the_body() {
    let server = site("location / { add_trailer X-Sum $request_method; }");
    run(async {
        let (_endpoint, mut requests) = client(server.port).await;
        let Answer { body, trailers, .. } = ask(&mut requests, get("/"), b"").await;
        assert_eq!(body, b"a file\n");
        assert_eq!(trailers.expect("there are some")["x-sum"], "GET");
    });
}

#[test]
fn what_is_too_large_for_a_head() {
    let server = site("client_header_buffer_size 1k; large_client_header_buffers 2 1k; return 200 ok;");
    run(async {
        let (endpoint, mut requests) = client(server.port).await;
        let large = Request::get("https://localhost/").header("x-large", "x".repeat(5000)).body(()).unwrap();
        assert_eq!(ask(&mut requests, large, b"").await.status, 400);
        assert_eq!(ask(&mut requests, get("/"), b"").await.text(), "ok");
        // The client's table: room for 2048 bytes, and a name of so many.
        let name =
            |length: usize| [&[2, 0x3f, 0xe1, 0x0f, 0x5f][..], &size(length - 31), &vec![b'x'; length], b"\0"].concat();
        let close = closed_by(&endpoint, server.port, false, &name(1025)).await;
        assert_eq!((close.error_code.into_inner(), &close.reason[..]), (0x107, &b"stream error"[..]));
        // That its encoder stream ends is the only thing wrong.
        assert_eq!(closed_by(&endpoint, server.port, false, &name(1024)).await.error_code.into_inner(), 0x104);
    });
    for text in ["client sent too large header while", "client sent too large field line while"] {
        assert!(server.error_log().contains(text), "{}", server.error_log());
    }
    assert!(!server.error_log().contains(":method"), "{}", server.error_log());
}

/// What follows a full prefix of a length (RFC 7541 section 5.1): two bytes.
fn size(rest: usize) -> [u8; 2] {
    [rest as u8 | 0x80, (rest >> 7) as u8]
}

#[test]
fn the_old_protocol_by_its_name() {
    let server = quic_site("http3_hq on;", "location /v { return 200 \"$http3 $request\"; }")
        .set("THREADS", 1)
        .file("html/f", "content")
        .start();
    run(async {
        let endpoint = endpoint(b"hq-interop");
        let connection = connect(&endpoint, server.port).await;
        for (line, answer) in [("GET /f\r\n", "content"), ("GET /v\n", "hq GET /v")] {
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.write_all(line.as_bytes()).await.unwrap();
            send.finish().unwrap();
            assert_eq!(String::from_utf8_lossy(&receive.read_to_end(1000).await.unwrap()), answer);
        }
    });
}

pub fn framed(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::write_head(kind, payload.len(), &mut out);
    out.extend_from_slice(payload);
    out
}

pub fn head(path: &str) -> Vec<u8> {
    let mut section = Vec::new();
    encoder::begin(&mut section);
    for (name, value) in [(":method", "GET"), (":scheme", "https"), (":path", path), (":authority", "localhost")] {
        encoder::field(name.as_bytes(), value.as_bytes(), &mut section);
    }
    framed(kind::HEADERS, &section)
}

/// What closes a connection on which these bytes came, on a request stream or a one-way stream.
async fn closed_by(endpoint: &quinn::Endpoint, port: u16, request: bool, bytes: &[u8]) -> ApplicationClose {
    let connection = connect(endpoint, port).await;
    let mut stream = match request {
        true => connection.open_bi().await.unwrap().0,
        false => connection.open_uni().await.unwrap(),
    };
    stream.write_all(bytes).await.unwrap();
    let _ = stream.finish();
    match connection.closed().await {
        ConnectionError::ApplicationClosed(close) => close,
        other => panic!("{other:?}"),
    }
}

#[test]
fn frames_in_the_wrong_place_end_the_connection() {
    let server = site("");
    let settings = framed(kind::SETTINGS, b"");
    let control = |rest: &[&[u8]]| [&[0u8][..]].iter().chain(rest).copied().flatten().copied().collect::<Vec<u8>>();
    let requests: [(Vec<u8>, u64); 6] = [
        (framed(kind::DATA, b"x"), 0x105),
        (settings.clone(), 0x105),
        (framed(6, b""), 0x105),
        ([head("/"), framed(kind::HEADERS, b"\0\0"), framed(kind::DATA, b"x")].concat(), 0x105),
        (framed(kind::HEADERS, b"\xff\x02\x00\x80"), 0x200),
        (vec![1, 10, 0], 0x106),
    ];
    let oneway: [(Vec<u8>, u64); 12] = [
        (control(&[&framed(kind::GOAWAY, b"\0")]), 0x10a),
        (control(&[&settings, &settings]), 0x105),
        (control(&[&framed(kind::SETTINGS, b"\x02\x00")]), 0x109),
        (control(&[&framed(kind::SETTINGS, b"\x06\x01\x06\x02")]), 0x109),
        (control(&[&settings]), 0x104),
        (control(&[&settings, &framed(kind::GOAWAY, b"\0"), &framed(kind::GOAWAY, b"\x04")]), 0x108),
        (control(&[&settings, &framed(kind::MAX_PUSH_ID, b"\x09"), &framed(kind::MAX_PUSH_ID, b"\x08")]), 0x108),
        (control(&[&settings, &framed(kind::PRIORITY_UPDATE, b"\x02u=1")]), 0x108),
        (control(&[&settings, &framed(kind::PRIORITY_UPDATE_PUSH, b"\0u=1")]), 0x108),
        (vec![1], 0x103),
        (vec![2, 0x3f, 0xe2, 0x1f], 0x201),
        (vec![3, 0x01], 0x202),
    ];
    run(async {
        let endpoint = endpoint(b"h3");
        let all = requests.iter().map(|r| (true, r)).chain(oneway.iter().map(|r| (false, r)));
        for (request, (bytes, code)) in all {
            let close = closed_by(&endpoint, server.port, request, bytes).await;
            assert_eq!(format!("{:#x}", close.error_code.into_inner()), format!("{code:#x}"), "{bytes:x?}");
            assert!(request || close.reason == "stream error", "{bytes:x?}: {:?}", close.reason);
        }
    });
}

#[test]
fn frames_of_unknown_types_are_passed_over() {
    let server = site("");
    run(async {
        let endpoint = endpoint(b"h3");
        let connection = connect(&endpoint, server.port).await;
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        let bytes = [framed(0x21, b"grease"), head("/"), framed(0x1f * 7 + 0x21, b"")].concat();
        // Byte by byte: a frame's head may come in pieces.
        for byte in bytes.chunks(1) {
            send.write_all(byte).await.unwrap();
        }
        send.finish().unwrap();
        let answer = receive.read_to_end(10_000).await.unwrap();
        assert!(answer.ends_with(b"a file\n"));
    });
}

#[test]
fn a_head_that_never_comes_costs_its_stream_and_no_other() {
    let server = site("client_header_timeout 1s;");
    run(async {
        let endpoint = endpoint(b"h3");
        let connection = connect(&endpoint, server.port).await;
        let (mut slow, mut nothing) = connection.open_bi().await.unwrap();
        slow.write_all(&head("/")[..5]).await.unwrap();
        assert!(matches!(nothing.read_to_end(100).await, Err(quinn::ReadToEndError::Read(quinn::ReadError::Reset(_)))));
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(&head("/")).await.unwrap();
        send.finish().unwrap();
        assert!(receive.read_to_end(10_000).await.unwrap().ends_with(b"a file\n"));
    });
}

/// The client's encoder is told of every stream that is not read to its end, whether the table was used or not (RFC 9204 section
/// 2.2.2.2): references to it may be on their way.
#[test]
fn streams_that_are_given_up_are_said_to_be() {
    let server = site("location /t { return 200 told; }");
    run(async {
        let endpoint = endpoint(b"h3");
        let connection = connect(&endpoint, server.port).await;
        for number in [0u8, 4] {
            // Without an end: the answer is complete all the same.
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.write_all(&head("/t")).await.unwrap();
            assert!(receive.read_to_end(10_000).await.unwrap().ends_with(b"told"));
            if number == 4 {
                break;
            }
        }
        let mut told = Vec::new();
        while told.is_empty() {
            let mut stream = connection.accept_uni().await.unwrap();
            let mut kind = [0];
            stream.read_exact(&mut kind).await.unwrap();
            if kind == [3] {
                told.resize(2, 0);
                stream.read_exact(&mut told).await.unwrap();
            }
        }
        assert_eq!(told, [0x40, 0x44]);
    });
}

#[test]
fn a_body_that_is_only_an_end_is_empty() {
    let backend = Backend::start(|seen| {
        Reply::ok(&format!("{:?} {:?}", seen.header("content-length"), seen.header("transfer-encoding")))
    });
    let server = quic_site("", &format!("location / {{ proxy_pass http://127.0.0.1:{}; }}", backend.port))
        .set("THREADS", 1)
        .start();
    run(async {
        let endpoint = endpoint(b"h3");
        let connection = connect(&endpoint, server.port).await;
        for end in [&b""[..], &framed(kind::DATA, b"")] {
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.write_all(&head("/")).await.unwrap();
            // The head is read before the end comes.
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            send.write_all(end).await.unwrap();
            send.finish().unwrap();
            let answer = receive.read_to_end(10_000).await.unwrap();
            let text = String::from_utf8_lossy(&answer).into_owned();
            assert!(text.ends_with("Some(\"0\") None"), "{text}");
        }
    });
}

/// The order in which answers end that were asked for with these priorities, those of `updates` said on the control stream (RFC 9218).
async fn order_of_ends(server: &Server, priorities: [Option<&'static str>; 3], updates: &[u8]) -> Vec<usize> {
    let endpoint = endpoint(b"h3");
    let connection = connect(&endpoint, server.port).await;
    let mut control = connection.open_uni().await.unwrap();
    control.write_all(&[&[0][..], &framed(kind::SETTINGS, b""), updates].concat()).await.unwrap();
    // A round trip: they are known before anything is asked for.
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(&head("/")).await.unwrap();
    send.finish().unwrap();
    receive.read_to_end(10_000).await.unwrap();
    let ended = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    let mut streams = Vec::new();
    for priority in priorities {
        let (mut send, receive) = connection.open_bi().await.unwrap();
        let mut section = Vec::new();
        encoder::begin(&mut section);
        let fields = [(":method", "GET"), (":scheme", "https"), (":path", "/large"), (":authority", "localhost")];
        for (name, value) in fields.into_iter().chain(priority.map(|p| ("priority", p))) {
            encoder::field(name.as_bytes(), value.as_bytes(), &mut section);
        }
        send.write_all(&framed(kind::HEADERS, &section)).await.unwrap();
        send.finish().unwrap();
        streams.push(receive);
    }
    for (number, mut receive) in streams.into_iter().enumerate() {
        let ended = ended.clone();
        tasks.push(tokio::spawn(async move {
            receive.read_to_end(20 << 20).await.unwrap();
            ended.lock().unwrap().push(number);
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let ended = ended.lock().unwrap();
    ended.clone()
}

#[test]
fn what_is_urgent_comes_first() {
    let server = quic_site("", "")
        .set("THREADS", 1)
        .file("html/index.html", "x")
        .file("html/large", vec![b'x'; 6 << 20])
        .start();
    run(async {
        let headers = [Some("u=7"), Some("u=4, i"), Some("u=0")];
        assert_eq!(order_of_ends(&server, headers, b"").await, [2, 1, 0]);
        let update = |stream: u64, value: &[u8]| {
            let mut body = Vec::new();
            wire::http3::varint::write(stream, &mut body);
            body.extend_from_slice(value);
            framed(kind::PRIORITY_UPDATE, &body)
        };
        // The first stream is number 4: the one before was asked for something else.
        let updates = [update(4, b"u=6"), update(8, b"u=1"), update(12, b"u=5, i")].concat();
        assert_eq!(order_of_ends(&server, [None, Some("u=7"), None], &updates).await, [1, 2, 0]);
    });
}

#[test]
fn body_bytes_are_counted_without_their_frames() {
    let server = quic_site(
        "log_format bytes \"$uri $body_bytes_sent\";",
        "access_log logs/bytes.log bytes; location /text { return 200 \"h3\n\"; } \
         location /trailer { add_trailer X-End yes; } location / { }",
    )
    .set("THREADS", 1)
    .file("html/large", vec![b'x'; 300_000])
    .file("html/trailer", "123456")
    .start();
    run(async {
        let (_endpoint, mut requests) = client(server.port).await;
        for path in ["/text", "/large", "/trailer"] {
            assert_eq!(ask(&mut requests, get(path), b"").await.status, 200);
        }
    });
    for line in ["/text 3\n", "/large 300000\n", "/trailer 6\n"] {
        server.wait_for("logs/bytes.log", line);
    }
}
