//! What bad input gets: a clear status or a closed connection, and a line in the error log.

use crate::harness::{Backend, Program, Server, Site, wait};
use std::io::Write;

fn server() -> Server {
    Site::server("client_header_timeout 300ms; client_header_buffer_size 128; large_client_header_buffers 2 512; location / { return 200 ok; }").start()
}

fn status(server: &Server, request: impl AsRef<[u8]>) -> Option<u16> {
    server.connect().send(request).read_response(false).map(|r| r.status)
}

#[test]
fn refused_with_a_status() {
    let server = server();
    for (request, expected) in [
        ("nonsense\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET http://a/ HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        ("GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /../x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("get / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        ("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\x7c\x03\x03", 400),
    ] {
        assert_eq!(status(&server, request), Some(expected), "{request:?}");
    }
    assert!(server.error_log().contains("client sent invalid method while reading client request line"));
    assert!(server.error_log().contains("client sent HTTP/1.1 request without \"Host\" header"));
}

#[test]
fn too_large() {
    let server = server();
    let long = "x".repeat(600);
    assert_eq!(status(&server, format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n")), Some(414));
    // It is the line, whatever follows it in the same piece.
    assert_eq!(status(&server, format!("GET /{long} HTTP/1.1\r\nX: {long}\r\n\r\n")), Some(414));
    assert_eq!(status(&server, format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n")), Some(400));
    let lines = format!("X: {}\r\n", "x".repeat(400)).repeat(4);
    assert_eq!(status(&server, format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n")), Some(400));
    assert!(server.error_log().contains("client sent too long URI"));
    assert!(server.error_log().contains("client sent too long header line"));
    assert_eq!(status(&server, format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(300))), Some(200));
}

#[test]
fn headers_that_are_passed_over() {
    let server = Site::server("location / { return 200 \"$http_good-$http_under_score\"; }").start();
    let request = "GET / HTTP/1.1\r\nHost: a\r\nGood: yes\r\nunder_score: x\r\nb@d: x\r\n\r\n";
    assert_eq!(server.connect().send(request).response().text(), "yes-");
    assert!(server.error_log().contains("client sent invalid header line"));
}

#[test]
fn a_client_that_stops_in_the_middle() {
    let server = server();
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHos").finish();
    assert!(client.is_closed());
    // Nothing more within client_header_timeout: closed without an answer.
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHos");
    assert!(client.is_closed());
    assert_eq!(server.get("/").text(), "ok");
}

#[test]
fn nothing_is_lost_after_an_empty_line() {
    let server = server();
    let mut client = server.connect();
    client.send("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((client.response().status, client.response().status), (200, 200));
}

/// Had it been answered and the connection kept, the late bytes would have been the next request.
#[test]
fn a_body_that_stops_in_the_middle() {
    let backend = Backend::ok("never asked");
    let server = Site::server(
        "client_body_timeout 200ms; access_log @DIR@/logs/access.log; error_page 408 /late;
         location / { proxy_pass http://127.0.0.1:@BACKEND@; }",
    )
    .set("BACKEND", backend.port)
    .start();
    for framing in ["Content-Length: 5\r\n\r\nhe", "Transfer-Encoding: chunked\r\n\r\n5\r\nhe"] {
        let mut client = server.connect();
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}"));
        assert_eq!(client.rest(), b"", "{framing}");
    }
    assert!(wait(|| server.read("logs/access.log").matches(" 408 0 ").count() == 2));
    assert!(backend.seen().is_empty());
}

#[test]
fn a_body_that_is_too_large_is_read_until_the_client_has_its_answer() {
    let server = Site::server("client_max_body_size 10; location / { return 200 ok; }").start();
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    let answer = client.response();
    assert_eq!((answer.status, answer.header("Connection")), (413, Some("close")));
    for _ in 0..10 {
        client.stream.write_all(&[b'x'; 100_000]).expect("the connection is not reset");
    }
    assert!(client.finish().is_closed());
}

#[test]
fn a_body_that_is_none_ends_the_connection_with_the_answer() {
    let server = Site::server("location / { }").start();
    let mut client = server.connect();
    let answer = client.send("POST /none HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n").response();
    assert_eq!((answer.status, answer.header("Connection")), (404, Some("close")));
}

/// What stands behind the size of a chunk is an extension (RFC 9112 section 7.1.1), or the body is none.
#[test]
fn chunk_extensions_that_are_none_are_refused() {
    let site = || {
        Site::server(
            "client_max_body_size 1k; location / { proxy_pass http://127.0.0.1:@PORT@/end; } location /end { return 200 fine; }",
        )
    };
    let server = site().start();
    let ask = |extension: &[u8]| {
        let head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3".to_vec();
        let request = [&head, extension, b"\r\nabc\r\n0\r\n\r\n"].concat();
        server.connect().send(request).response().status
    };
    for good in [&b""[..], b";a", b" ; a = \"b \\\" c\";d=e"] {
        assert_eq!(ask(good), 200, "{}", good.escape_ascii());
    }
    for bad in [&b";"[..], b" ", b";a ", b";a\0b", b";a=\"\0\"", b";a=\x01", b";(a)", b" a", b";a=\"b"] {
        assert_eq!(ask(bad), 400, "{}", bad.escape_ascii());
    }
}

/// A path that leads out of the root is none, and the target with it.
#[test]
fn a_target_without_a_path_is_logged_as_such() {
    for program in [Program::Ironweir, Program::Nginx] {
        let site = Site::http(
            "log_format target '$status [$uri] [$request_uri] [$request] [$args]';
             server { listen 127.0.0.1:@PORT@; access_log logs/target.log target; location / { return 200; } }",
        );
        let Some(server) = site.start_as(program) else {
            println!("{program:?} is not installed: left out");
            continue;
        };
        for target in ["/../x?a=b", "/%zz", "/a%00b"] {
            let answer = server.connect().send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")).response();
            assert_eq!(answer.status, 400);
        }
        server.wait_for("logs/target.log", "%00b HTTP");
        let log = server.read("logs/target.log");
        let expected = "400 [] [-] [GET /../x?a=b HTTP/1.1] [-]\n400 [] [-] [GET /%zz HTTP/1.1] [-]\n";
        assert!(log.contains(expected), "{program:?}: {log}");
    }
}
