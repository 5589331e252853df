//! HTTP/2 on a plain connection, with the crate `h2` as the client.

use crate::harness::{Backend, Reply, Server, Site, with_http2 as with_client};
use crate::http2_floods as floods;
use bytes::Bytes;
use h2::client::SendRequest;
use http::{Request, Response};
use std::time::Duration;
use wire::http2::frame::{FrameHeader, HEADER, flag, kind};

struct Answer {
    status: u16,
    headers: http::HeaderMap,
    body: Vec<u8>,
    trailers: Option<http::HeaderMap>,
}

impl Answer {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

async fn send(requests: &SendRequest<Bytes>, request: Request<()>, body: Option<&[u8]>) -> Answer {
    let mut requests = requests.clone().ready().await.unwrap();
    let (answer, mut out) = requests.send_request(request, body.is_none()).unwrap();
    if let Some(body) = body {
        out.send_data(Bytes::copy_from_slice(body), true).unwrap();
    }
    read(answer.await.unwrap()).await
}

async fn read(answer: Response<h2::RecvStream>) -> Answer {
    let (head, mut stream) = answer.into_parts();
    let mut body = Vec::new();
    while let Some(piece) = stream.data().await {
        let piece = piece.unwrap();
        stream.flow_control().release_capacity(piece.len()).unwrap();
        body.extend_from_slice(&piece);
    }
    let trailers = stream.trailers().await.unwrap();
    Answer { status: head.status.as_u16(), headers: head.headers, body, trailers }
}

/// The content of a chunked body.
fn chunks(mut framed: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line = framed.iter().position(|&b| b == b'\r').unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&framed[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&framed[line + 2..][..size]);
        framed = &framed[line + 4 + size..];
    }
}

fn get(path: &str) -> Request<()> {
    Request::get(format!("http://localhost{path}")).body(()).unwrap()
}

fn large() -> Vec<u8> {
    (0..300_000u32).flat_map(u32::to_le_bytes).collect()
}

#[test]
fn requests_are_answered_side_by_side() {
    let server = Site::server(
        "http2 on; location /r { return 200 \"$server_protocol $http2 $request_uri $connection_requests\"; } location / { }",
    )
    .file("html/large", large())
    .start();
    with_client(&server, async |requests| {
        let answers: Vec<_> = {
            let mut answers = Vec::new();
            for i in 0..100 {
                let mut requests = requests.clone().ready().await.unwrap();
                let path = if i % 10 == 0 { "/large".to_owned() } else { format!("/r{i}") };
                answers.push((i, requests.send_request(get(&path), true).unwrap().0));
            }
            answers
        };
        for (i, answer) in answers {
            let answer = read(answer.await.unwrap()).await;
            assert_eq!(answer.status, 200);
            match i % 10 {
                0 => assert!(answer.body == large()),
                _ => assert_eq!(answer.text(), format!("HTTP/2.0 h2c /r{i} {}", i + 1)),
            }
        }
    });
    assert_eq!(server.get("/r").text(), "HTTP/1.1  /r 1", "HTTP/1 on the same port");
}

/// What is kept of a request for the next one says nothing of it: the host of a target, its scheme, how it was written.
#[test]
fn requests_begin_with_nothing_of_those_of_http_1() {
    let server =
        Site::server("http2 on; location / { return 200 \"$scheme $host $request_uri $uri $is_args$args\"; }").start();
    for target in ["http://example.com:8080/%41/../b.html?x", "http://example.com?y", "/%41//b+c.html", "http://a/"] {
        let mut client = server.connect();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: other\r\nbad header: 1\r\n\r\n"));
        assert!([200, 400].contains(&client.response().status));
        drop(client);
        with_client(&server, async |requests| {
            let answer = send(&requests, get("/a-path-of-some-length"), None).await;
            let expected = "http localhost /a-path-of-some-length /a-path-of-some-length ";
            assert_eq!((answer.status, &*answer.text()), (200, expected), "{target}");
        });
    }
}

#[test]
fn head_errors_and_redirects() {
    let server = Site::server(
        "http2 on; error_page 404 /lost; location = /lost { return 200 lost; } location / { }
         location /dir/ { } location /old { return 301 /new; } server_name localhost;",
    )
    .file("html/file", "content")
    .file("html/dir/x", "")
    .start();
    with_client(&server, async |requests| {
        let head = Request::head("http://localhost/file").body(()).unwrap();
        let answer = send(&requests, head, None).await;
        assert_eq!(
            (answer.status, answer.body.len(), &answer.headers["content-length"]),
            (200, 0, &"7".parse().unwrap())
        );
        let answer = send(&requests, get("/none"), None).await;
        assert_eq!((answer.status, answer.text()), (404, "lost".into()));
        let answer = send(&requests, get("/old"), None).await;
        let location = answer.headers["location"].to_str().unwrap();
        assert!(answer.status == 301 && location.starts_with("http://localhost") && location.ends_with("/new"));
        assert_eq!(send(&requests, get("/dir"), None).await.status, 301);
        let range = Request::get("http://localhost/file").header("range", "bytes=1-3").body(()).unwrap();
        let answer = send(&requests, range, None).await;
        assert_eq!((answer.status, answer.text()), (206, "ont".into()));
    });
}

#[test]
fn bodies_reach_an_upstream() {
    let backend = Backend::start(|seen| {
        let body = if seen.header("Transfer-Encoding").is_some() { chunks(&seen.body) } else { seen.body.clone() };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        Reply::Keep([head.as_bytes(), &body].concat())
    });
    let server = Site::http(
        "client_max_body_size 5m; server { listen 127.0.0.1:@PORT@; http2 on;
           location / { proxy_pass http://127.0.0.1:@BACKEND@; }
           location /stream { proxy_pass http://127.0.0.1:@BACKEND@; proxy_request_buffering off; proxy_http_version 1.1; }
           location /small { client_max_body_size 10; proxy_pass http://127.0.0.1:@BACKEND@; } }",
    )
    .set("BACKEND", backend.port)
    .start();
    with_client(&server, async |requests| {
        for path in ["/", "/stream"] {
            let post = || Request::post(format!("http://localhost{path}")).body(()).unwrap();
            let answer = send(&requests, post(), Some(b"short")).await;
            assert_eq!((answer.status, answer.text()), (200, "short".into()));
            let answer = send(&requests, post(), Some(&large())).await;
            assert!(answer.status == 200 && answer.body == large(), "{path}: {}", answer.body.len());
            assert_eq!(send(&requests, post(), Some(b"")).await.body, b"");
        }
        let post = Request::post("http://localhost/small").body(()).unwrap();
        assert_eq!(send(&requests, post, Some(b"more than ten bytes")).await.status, 413);
        let post = Request::post("http://localhost/").header("content-length", 3).body(()).unwrap();
        assert_eq!(send(&requests, post, Some(b"abc")).await.text(), "abc");
    });
}

#[test]
fn cookies_come_together_and_trailers_go_out() {
    let server = Site::server(
        "http2 on; add_trailer X-After $request_uri; location / { return 200 \"$http_cookie|$http_host|$cookie_b\"; }",
    )
    .start();
    with_client(&server, async |requests| {
        let request = Request::get("http://localhost:81/t").header("cookie", "a=1").header("cookie", "b=2");
        let answer = send(&requests, request.body(()).unwrap(), None).await;
        assert_eq!(answer.text(), "a=1; b=2|localhost:81|2");
        assert_eq!(answer.trailers.unwrap()["x-after"], "/t");
    });
}

#[test]
fn a_rate_limit_holds_for_the_stream() {
    let server = Site::server("http2 on; location / { limit_rate 40k; }").file("html/f", vec![b'x'; 60_000]).start();
    let began = std::time::Instant::now();
    with_client(&server, async |requests| {
        assert_eq!(send(&requests, get("/f"), None).await.body.len(), 60_000);
    });
    assert!(began.elapsed() >= Duration::from_millis(900));
}

#[test]
fn the_last_request_says_goodbye() {
    let server =
        Site::server("http2 on; keepalive_requests 2; location / { return 200 $connection_requests; }").start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
        let (requests, connection) = h2::client::handshake(stream).await.unwrap();
        let work = async {
            assert_eq!(send(&requests, get("/"), None).await.text(), "1");
            assert_eq!(send(&requests, get("/"), None).await.text(), "2");
        };
        let (ended, ()) = tokio::join!(connection, work);
        ended.expect("GOAWAY without an error, then the end");
    });
}

#[test]
fn an_upgrade_stays_with_http_1() {
    let backend =
        Backend::start(|_| Reply::Keep(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nUpgrade: h9\r\n\r\nx".to_vec()));
    let server = Site::server("http2 on; location / { proxy_pass http://127.0.0.1:@BACKEND@; }")
        .set("BACKEND", backend.port)
        .start();
    assert_eq!(server.get("/").header("Upgrade"), Some("h9"));
    with_client(&server, async |requests| {
        assert!(!send(&requests, get("/"), None).await.headers.contains_key("upgrade"));
    });
}

/// More waits for the client than is kept for it at once, again and again: nobody is forgotten.
#[test]
fn full_outputs_are_emptied_and_reading_goes_on() {
    let server = Site::server("http2 on; keepalive_requests 100000; location / { }")
        .file("html/f", vec![b'x'; 16 * 1024])
        .start();
    with_client(&server, async |requests| {
        let ask = async |_: usize| {
            for _ in 0..40 {
                assert_eq!(send(&requests, get("/f"), None).await.body.len(), 16 * 1024);
            }
        };
        let mut side_by_side: Vec<_> = (0..32).map(ask).map(Box::pin).collect();
        std::future::poll_fn(|cx| {
            side_by_side.retain_mut(|work| work.as_mut().poll(cx).is_pending());
            if side_by_side.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    });
}

#[test]
fn a_canceled_stream_ends_its_request() {
    let backend = Backend::start(|_| {
        std::thread::sleep(Duration::from_secs(3));
        Reply::ok("late")
    });
    let server = Site::http(
        "server { listen 127.0.0.1:@PORT@; http2 on; access_log @DIR@/logs/access.log; location / { return 200 hello; }
           location /wait { proxy_pass http://127.0.0.1:@BACKEND@; } }",
    )
    .set("BACKEND", backend.port)
    .file("html/x", "")
    .start();
    with_client(&server, async |requests| {
        let mut requests = requests.ready().await.unwrap();
        let (answer, mut out) = requests.send_request(get("/wait"), false).unwrap();
        out.send_data(Bytes::from_static(b"x"), true).unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        out.send_reset(h2::Reason::CANCEL);
        assert!(answer.await.is_err());
        tokio::time::sleep(Duration::from_millis(200)).await;
    });
    server.wait_for("logs/error.log", "client canceled stream 1");
    server.wait_for("logs/access.log", "\"GET /wait HTTP/2.0\" 499");
}

#[test]
fn includes_and_subrequests() {
    let backend = Backend::start(|seen| Reply::ok(seen.line().split(' ').nth(1).unwrap_or_default()));
    let server = Site::server(
        "http2 on; location / { ssi on; add_after_body /after; } location /after { return 200 after; }
         location /up { proxy_pass http://127.0.0.1:@BACKEND@; }
         location /guarded { auth_request /deny; } location /deny { return 403; }",
    )
    .set("BACKEND", backend.port)
    .file("html/page.html", "<!--#include virtual=\"/up/1\" -->,<!--#include virtual=\"/up/2\" -->;")
    .start();
    with_client(&server, async |requests| {
        assert_eq!(send(&requests, get("/page.html"), None).await.text(), "/up/1,/up/2;after");
        assert_eq!(send(&requests, get("/guarded"), None).await.status, 403);
    });
}

#[test]
fn a_window_that_stays_shut_ends_the_stream() {
    let server = Site::server("http2 on; send_timeout 500ms; location / { } location /r { return 200 hello; }")
        .file("html/large", large())
        .start();
    with_client(&server, async |requests| {
        let mut ready = requests.clone().ready().await.unwrap();
        let (answer, _) = ready.send_request(get("/large"), true).unwrap();
        let mut stream = answer.await.unwrap().into_body();
        // What comes is not released: the window shuts.
        let error = loop {
            if let Err(e) = stream.data().await.unwrap() {
                break e;
            }
        };
        assert_eq!(error.reason(), Some(h2::Reason::PROTOCOL_ERROR));
        drop(stream);
        assert_eq!(send(&requests, get("/r"), None).await.text(), "hello", "the others go on");
    });
}

#[test]
fn an_idle_connection_is_told_when_the_server_stops() {
    let server = Site::server("http2 on; return 200 hello;").start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
        let (requests, connection) = h2::client::handshake(stream).await.unwrap();
        let work = async {
            assert_eq!(send(&requests, get("/"), None).await.text(), "hello");
            server.signal(rustix::process::Signal::QUIT);
        };
        let (ended, ()) = tokio::join!(connection, work);
        ended.expect("GOAWAY without an error, then the end");
    });
}

/// Frames as large as was announced: a head in one, a body in one.
#[test]
fn large_frames_are_taken() {
    let backend = Backend::start(|seen| {
        Reply::ok(&format!("{} {}", seen.header("x-large").unwrap_or_default().len(), seen.body.len()))
    });
    let server = Site::server(
        "http2 on; client_max_body_size 1m; http2_body_preread_size 512k; large_client_header_buffers 4 64k;
         location / { proxy_pass http://127.0.0.1:@BACKEND@; }",
    )
    .set("BACKEND", backend.port)
    .start();
    let mut client = floods::open(&server);
    let (mut head, large) = (floods::block("/"), vec![b'x'; 40_000]);
    head.extend([0, 7]);
    head.extend(b"x-large");
    // A length of 127 and the rest, 7 bits a byte (RFC 7541 section 5.1).
    head.extend([
        0x7f,
        ((large.len() - 127) & 127) as u8 | 128,
        ((large.len() - 127) >> 7 & 127) as u8 | 128,
        ((large.len() - 127) >> 14) as u8,
    ]);
    head.extend(&large);
    client.send(floods::frame(kind::HEADERS, flag::END_HEADERS, 1, &head));
    client.send(floods::frame(kind::DATA, flag::END_STREAM, 1, &vec![b'y'; 200_000]));
    let mut announced = None;
    let answer = loop {
        let header = FrameHeader::parse(&client.take(HEADER)).unwrap();
        let payload = client.take(header.len);
        if header.kind == kind::SETTINGS && announced.is_none() {
            announced = payload.chunks(6).find(|s| s[..2] == [0, 5]).map(|s| s[2..].to_vec());
        }
        assert!(![kind::GOAWAY, kind::RST_STREAM].contains(&header.kind), "{payload:?}");
        if header.kind == kind::DATA {
            break payload;
        }
    };
    assert_eq!(announced.as_deref(), Some(&[0, 0xff, 0xff, 0xff][..]));
    assert_eq!(String::from_utf8_lossy(&answer), "40000 200000");
}

/// The order in which streams end whose answers wait for the client (RFC 9218).
fn order_of_ends(server: &Server, more: Vec<Vec<u8>>) -> Vec<u32> {
    let mut client = floods::open(server);
    client.send(floods::frame(kind::SETTINGS, 0, 0, &[0, 4, 0x7f, 0, 0, 0]));
    client.send(floods::frame(kind::WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0]));
    client.send(more.concat());
    let mut ends = Vec::new();
    while ends.len() < 3 {
        let header = FrameHeader::parse(&client.take(HEADER)).unwrap();
        client.take(header.len);
        if header.kind == kind::DATA && header.has(flag::END_STREAM) {
            ends.push(header.stream);
        }
    }
    ends
}

/// What is known of an answer's urgency at its end counts: the origin's word, and for what it leaves out the client's.
#[test]
fn an_answer_says_itself_how_urgent_it_is() {
    let server = Site::server("http2 on; location / { add_header Priority $arg_p; }")
        .file("html/large", vec![b'x'; 8 << 20])
        .start();
    let ask = |stream: u32, path: &str| {
        floods::frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, &floods::block(path))
    };
    let asked = vec![ask(1, "/large?p=u=7"), ask(3, "/large?p=u=5"), ask(5, "/large?p=u=0")];
    assert_eq!(order_of_ends(&server, asked), [5, 3, 1]);
}

#[test]
fn what_is_urgent_comes_first() {
    let server = Site::server("http2 on; location / { }").file("html/large", vec![b'x'; 8 << 20]).start();
    let ask = |stream: u32, priority: Option<&[u8]>| {
        let mut head = floods::block("/large");
        if let Some(value) = priority {
            head.extend([0, 8]);
            head.extend(b"priority");
            head.push(value.len() as u8);
            head.extend(value);
        }
        floods::frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, &head)
    };
    let update =
        |stream: u8, value: &[u8]| floods::frame(kind::PRIORITY_UPDATE, 0, 0, &[&[0, 0, 0, stream], value].concat());
    let by_header = vec![ask(1, Some(b"u=7")), ask(3, Some(b"u=4, i")), ask(5, Some(b"u=0"))];
    assert_eq!(order_of_ends(&server, by_header), [5, 3, 1]);
    let one_by_one = vec![ask(1, Some(b"u=3")), ask(3, Some(b"u=3")), ask(5, Some(b"u=3"))];
    assert_eq!(order_of_ends(&server, one_by_one), [1, 3, 5]);
    // Before a request, and after it; they hold against the header.
    let by_frame = vec![update(5, b"u=0"), ask(1, None), ask(3, Some(b"u=1")), ask(5, Some(b"u=7")), update(3, b"u=6")];
    assert_eq!(order_of_ends(&server, by_frame), [5, 1, 3]);
}

/// What is around a body in frames is no body (`ngx_http_v2_data_frame_handler`).
#[test]
fn body_bytes_are_counted_without_their_frames() {
    let server = Site::http(
        "log_format bytes \"$uri $body_bytes_sent\";
         server { listen 127.0.0.1:@PORT@; http2 on; access_log logs/bytes.log bytes;
           location /text { return 200 \"h2\n\"; } location /none { return 204; }
           location /slow { limit_rate 10m; } location /trailer { add_trailer X-End yes; }
           location / { } }",
    )
    .file("html/large", large())
    .file("html/slow", large())
    .file("html/trailer", "123456")
    .start();
    with_client(&server, async |requests| {
        for path in ["/text", "/none", "/large", "/slow", "/trailer"] {
            send(&requests, get(path), None).await;
        }
    });
    for line in ["/text 3\n", "/none 0\n", "/large 1200000\n", "/slow 1200000\n", "/trailer 6\n"] {
        server.wait_for("logs/bytes.log", line);
    }
}

#[test]
fn a_request_knows_its_number_and_the_length_of_its_body() {
    let backend = Backend::start(|_| {
        std::thread::sleep(Duration::from_millis(100));
        Reply::ok("behind")
    });
    let server = Site::http(
        "log_format f '$uri $connection_requests [$content_length] $upstream_status';
         server { listen 127.0.0.1:@PORT@; http2 on; access_log logs/a.log f; location / { return 200 \"[$content_length]\"; }
             location /slow { proxy_pass http://127.0.0.1:@BACKEND@; }
             location /streamed { proxy_pass http://127.0.0.1:@BACKEND@; proxy_request_buffering off; } }",
    )
    .set("BACKEND", backend.port)
    .start();
    with_client(&server, |requests| async move {
        let (one, two) = tokio::join!(send(&requests, get("/slow1"), None), send(&requests, get("/slow2"), None));
        assert_eq!((one.text(), two.text()), ("behind".to_owned(), "behind".to_owned()));
        let post = |path: &str| {
            let mut request = get(path);
            *request.method_mut() = http::Method::POST;
            request
        };
        assert_eq!(send(&requests, post("/nobody"), Some(b"12345")).await.text(), "[]");
        assert_eq!(send(&requests, post("/slow3"), Some(b"12345")).await.text(), "behind");
        assert_eq!(send(&requests, post("/streamed"), Some(b"12345")).await.text(), "behind");
    });
    for line in
        ["/slow1 1 [-] 200\n", "/slow2 2 [-] 200\n", "/nobody 3 [-] -\n", "/slow3 4 [5] 200\n", "/streamed 5 [-] 200\n"]
    {
        server.wait_for("logs/a.log", line);
    }
}
