//! `proxy_pass` and `upstream`, with a backend that sees every byte.

use crate::harness::{Backend, Reply, Site};
use std::io::{Read, Write};
use std::net::TcpListener;

/// What nginx does by default since 1.29.7, said aloud so that an older one can be put in our place.
const KEPT: &str = "proxy_http_version 1.1; proxy_set_header Connection \"\";";

#[test]
fn a_request_passes_through() {
    let backend = Backend::start(|_| {
        Reply::Keep(b"HTTP/1.1 201 Made\r\nContent-Length: 4\r\nX-From: backend\r\nServer: other\r\n\r\nmade".into())
    });
    let server = Site::server(&format!("location / {{ {KEPT} proxy_pass http://127.0.0.1:@BACKEND@; }}"))
        .set("BACKEND", backend.port)
        .start();
    let request =
        "POST /a%20b?c=d HTTP/1.1\r\nHost: front\r\nX-One: 1\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
    let r = server.connect().send(request).response();
    assert_eq!((r.status, r.text().as_str(), r.header("X-From")), (201, "made", Some("backend")));
    assert_ne!(r.header("Server"), Some("other"));
    let seen = backend.seen();
    assert_eq!(seen[0].line(), "POST /a%20b?c=d HTTP/1.1");
    assert_eq!(seen[0].header("Host"), Some(&*format!("127.0.0.1:{}", backend.port)));
    assert_eq!((seen[0].header("X-One"), seen[0].header("Content-Length")), (Some("1"), Some("5")));
    assert_eq!((seen[0].header("Connection"), seen[0].body.as_slice()), (None, &b"hello"[..]));
}

#[test]
fn what_becomes_of_the_uri() {
    let backend = Backend::start(|seen| Reply::ok(seen.line().split(' ').nth(1).unwrap_or_default()));
    let server = Site::server(
        "location / { proxy_pass http://127.0.0.1:@BACKEND@; }
         location /a/ { proxy_pass http://127.0.0.1:@BACKEND@/b/; }
         location /c { proxy_pass http://127.0.0.1:@BACKEND@/; }
         location ~ ^/re/(.*)$ { proxy_pass http://127.0.0.1:@BACKEND@/$1$is_args$args; }
         location /w { rewrite ^/w/(.*) /v/$1 break; proxy_pass http://127.0.0.1:@BACKEND@; }",
    )
    .set("BACKEND", backend.port)
    .start();
    for (target, expected) in [
        ("/x/../y%20z?q=1", "/x/../y%20z?q=1"),
        ("/a/x%20y?q=1", "/b/x%20y?q=1"),
        ("/a/../a/x", "/b/x"),
        ("/c/x", "//x"),
        ("/re/x?q=1", "/x?q=1"),
        ("/w/x?q=1", "/v/x?q=1"),
    ] {
        assert_eq!(server.get(target).text(), expected, "{target}");
    }
}

#[test]
fn when_an_answer_last_changed_is_said_as_the_upstream_says_it() {
    let backend = Backend::start(|seen| {
        let status = if seen.line().contains("/none") { "404 Not Found" } else { "200 OK" };
        let text =
            format!("HTTP/1.1 {status}\r\nContent-Length: 1\r\nLast-Modified: Sunday, 06-Nov-94 08:49:37 GMT\r\n\r\nx");
        Reply::Keep(text.into_bytes())
    });
    let server =
        Site::server("location / { proxy_pass http://127.0.0.1:@BACKEND@; }").set("BACKEND", backend.port).start();
    for target in ["/", "/none"] {
        let changed = server.get(target);
        assert_eq!(changed.header("Last-Modified"), Some("Sunday, 06-Nov-94 08:49:37 GMT"), "{target}");
    }
}

#[test]
fn headers_that_are_set_and_hidden() {
    let backend = Backend::start(|_| {
        Reply::Keep(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Secret: 1\r\nX-Powered-By: x\r\nLocation: http://a/b\r\n\r\nok"
                .into(),
        )
    });
    let server = Site::server(
        "location / {
             proxy_set_header Host $host; proxy_set_header X-Real-IP $remote_addr; proxy_set_header X-Gone \"\";
             proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
             proxy_hide_header X-Secret; proxy_redirect http://a/ /front/;
             proxy_pass http://127.0.0.1:@BACKEND@;
         }",
    )
    .set("BACKEND", backend.port)
    .start();
    let request = "GET / HTTP/1.1\r\nHost: front\r\nX-Gone: 1\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n";
    let r = server.connect().send(request).response();
    assert_eq!((r.header("X-Secret"), r.header("X-Powered-By")), (None, Some("x")));
    assert_eq!(r.header("Location"), Some(&*format!("http://front:{}/front/b", server.port)));
    let seen = &backend.seen()[0];
    assert_eq!((seen.header("Host"), seen.header("X-Real-IP")), (Some("front"), Some("127.0.0.1")));
    assert_eq!((seen.header("X-Gone"), seen.header("X-Forwarded-For")), (None, Some("10.0.0.1, 127.0.0.1")));
}

#[test]
fn upstream_connections_are_kept() {
    let backend = Backend::ok("ok");
    let server = Site::http(&format!(
        "upstream b {{ server 127.0.0.1:@BACKEND@; keepalive 4; }}
         server {{ listen 127.0.0.1:@PORT@; location / {{ {KEPT} proxy_pass http://b; }} }}"
    ))
    .set("BACKEND", backend.port)
    .start();
    for _ in 0..20 {
        assert_eq!(server.get("/").text(), "ok");
    }
    let connections: Vec<_> = backend.seen().iter().map(|s| s.connection).collect();
    assert_eq!(connections, [0; 20]);
}

#[test]
fn requests_take_turns() {
    let (one, two) = (Backend::ok("one"), Backend::ok("two"));
    let server = Site::http(
        "upstream b { server 127.0.0.1:@ONE@ weight=3; server 127.0.0.1:@TWO@; }
         server { listen 127.0.0.1:@PORT@; location / { proxy_pass http://b; } }",
    )
    .set("ONE", one.port)
    .set("TWO", two.port)
    .start();
    let answers: Vec<_> = (0..40).map(|_| server.get("/").text()).collect();
    assert_eq!(answers.iter().filter(|a| *a == "one").count(), 30, "{answers:?}");
}

#[test]
fn a_peer_that_refuses_is_passed_over() {
    let backend = Backend::ok("ok");
    let server = Site::http(
        "upstream b { server 127.0.0.1:@OTHER@; server 127.0.0.1:@BACKEND@; }
         server { listen 127.0.0.1:@PORT@; location / { proxy_pass http://b; } }",
    )
    .set("BACKEND", backend.port)
    .start();
    for _ in 0..10 {
        assert_eq!(server.get("/").text(), "ok");
    }
    assert!(server.error_log().contains("connect() failed (111: Connection refused) while connecting to upstream"));
}

#[test]
fn a_backend_that_fails() {
    let backend = Backend::start(|seen| match seen.line().split(' ').nth(1) {
        Some("/nothing") => Reply::Close(Vec::new()),
        Some("/nonsense") => Reply::Close(b"nonsense\r\n\r\n".into()),
        Some("/short") => Reply::Close(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc".into()),
        Some("/error") => Reply::Keep(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy".into()),
        _ => Reply::ok("ok"),
    });
    let server = Site::server(
        "location / { proxy_pass http://127.0.0.1:@BACKEND@; }
         location = /dead { proxy_pass http://127.0.0.1:@OTHER@; }
         location = /mine { proxy_intercept_errors on; error_page 503 = @mine; proxy_pass http://127.0.0.1:@BACKEND@/error; }
         location @mine { return 200 mine; }",
    )
    .set("BACKEND", backend.port)
    .start();
    assert_eq!(server.get("/dead").status, 502);
    assert_eq!(server.get("/nothing").status, 502);
    assert!(
        server
            .error_log()
            .contains("upstream prematurely closed connection while reading response header from upstream")
    );
    let r = server.get("/error");
    assert_eq!((r.status, r.text().as_str()), (503, "busy"));
    assert_eq!(server.get("/mine").text(), "mine");
    // What is cut short by the backend is cut short for the client.
    let mut client = server.connect();
    let said = client.send("GET /short HTTP/1.1\r\nHost: x\r\n\r\n").rest();
    assert!(said.ends_with(b"abc"), "{}", said.escape_ascii());
    assert_eq!(server.get("/").text(), "ok");
}

#[test]
fn bodies_in_all_framings() {
    let backend = Backend::start(|seen| match seen.line().split(' ').nth(1) {
        Some("/chunked") => Reply::Keep(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\n\r\n".into(),
        ),
        Some("/close") => Reply::Close(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nto the end".into()),
        Some("/none") => Reply::Keep(b"HTTP/1.1 204 No Content\r\n\r\n".into()),
        Some("/same") => Reply::Keep(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n".into()),
        Some("/large") => {
            let mut bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n".to_vec();
            bytes.extend(std::iter::repeat_n(b"0123456789", 200_000).flatten());
            Reply::Keep(bytes)
        }
        _ => Reply::ok(&seen.body.len().to_string()),
    });
    let server = Site::server(&format!(
        "client_max_body_size 10m; location / {{ {KEPT} proxy_pass http://127.0.0.1:@BACKEND@; }}
         location /unbuffered/ {{ {KEPT} proxy_buffering off; proxy_request_buffering off; proxy_pass http://127.0.0.1:@BACKEND@/; }}"
    ))
    .set("BACKEND", backend.port)
    .start();
    let mut client = server.connect();
    for prefix in ["", "/unbuffered"] {
        assert_eq!(client.get(&format!("{prefix}/chunked")).text(), "abcdefg");
        assert_eq!(client.get(&format!("{prefix}/close")).text(), "to the end");
        assert_eq!(client.get(&format!("{prefix}/none")).status, 204);
        assert_eq!(client.get(&format!("{prefix}/same")).status, 304);
        let large = client.get(&format!("{prefix}/large"));
        assert_eq!(large.body.len(), 2_000_000);
        assert!(large.body.chunks(10).all(|c| c == b"0123456789"));
        let body = vec![b'x'; 3_000_000];
        client
            .send(format!("PUT {prefix}/put HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len()))
            .send(&body);
        assert_eq!(client.response().text(), "3000000");
    }
    client.send("PUT /put HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    assert_eq!(client.response().text(), "3");
    assert_eq!(client.head("/large").header("Content-Length"), Some("2000000"));
}

#[test]
fn an_upgraded_connection_is_a_tunnel() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        let mut bytes = [0; 4096];
        while !head.ends_with(b"\r\n\r\n") {
            let n = stream.read(&mut bytes).unwrap();
            assert!(n > 0);
            head.extend_from_slice(&bytes[..n]);
        }
        stream
            .write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\nhello")
            .unwrap();
        while let Ok(n @ 1..) = stream.read(&mut bytes) {
            stream.write_all(&bytes[..n]).unwrap();
        }
        String::from_utf8_lossy(&head).into_owned()
    });
    let server = Site::server(
        "location / { proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;
                      proxy_pass http://127.0.0.1:@BACKEND@; }",
    )
    .set("BACKEND", port)
    .start();
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: x\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n");
    let r = client.response();
    assert_eq!((r.status, r.header("Upgrade")), (101, Some("echo")));
    client.send("there and back");
    assert_eq!(client.take(19), b"hellothere and back");
    assert!(client.finish().is_closed());
    assert!(echo.join().unwrap().contains("\r\nUpgrade: echo\r\n"));
}

#[test]
fn a_switch_of_protocols_that_nobody_asked_for_is_no_answer() {
    let backend =
        Backend::start(|_| Reply::Keep(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nhello".into()));
    let server =
        Site::server("location / { proxy_pass http://127.0.0.1:@BACKEND@; }").set("BACKEND", backend.port).start();
    let mut client = server.connect();
    assert_eq!(client.get("/").status, 502);
    // The client's connection is its own as before.
    assert_eq!(client.get("/").status, 502);
    let log = server.error_log();
    assert!(
        log.contains("upstream switched protocols though nobody asked it to while reading response header"),
        "{log}"
    );
}

#[test]
fn proxy_bind_transparent() {
    // Foreign addresses are root's to use; the worker is somebody else and keeps the right.
    if !rustix::process::geteuid().is_root() {
        println!("not root: left out");
        return;
    }
    let server = Site::whole(
        "user nobody nogroup; events {} http { access_log off; \
         server { listen 127.0.0.1:@PORT@; location / { proxy_bind 127.0.0.2 transparent; proxy_pass http://127.0.0.1:@OTHER@; } \
         location /var { proxy_bind $arg_a transparent; proxy_pass http://127.0.0.1:@OTHER@; } } \
         server { listen 127.0.0.1:@OTHER@; return 200 $remote_addr; } }",
    )
    .start();
    assert_eq!(server.get("/").text(), "127.0.0.2");
    assert_eq!(server.get("/var?a=127.0.0.3").text(), "127.0.0.3");
    assert_eq!(server.get("/var?a=x").text(), "127.0.0.1");
    server.wait_for("logs/error.log", "invalid local address \"x\"");
}

/// Variables of a head that was refused half read pointed at bytes that were never kept: the log line was a panic.
#[test]
fn the_head_of_a_refused_answer_leaves_nothing_behind() {
    let backend = Backend::start(|seen| match seen.line().contains("good") {
        true => Reply::ok("good"),
        false => Reply::Close(
            b"HTTP/1.1 200 OK\r\nX-Long: a value longer than all that the request consists of, by far enough\r\n\
              Set-Cookie: c=1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"
                .to_vec(),
        ),
    });
    let server = Site::http(
        "log_format heads '$uri $status [$upstream_http_x_long$upstream_cookie_c]';
         server { listen 127.0.0.1:@PORT@; access_log @DIR@/logs/heads heads; location / { proxy_pass http://127.0.0.1:@BACKEND@; } }",
    )
    .set("BACKEND", backend.port)
    .start();
    let mut client = server.connect();
    assert_eq!(client.get("/bad").status, 502);
    assert_eq!(client.get("/good").text(), "good");
    server.wait_for("logs/heads", "/bad 502 [--]\n/good 200 [--]\n");
    let said = "upstream sent duplicate header line: \"Content-Length: 2\", previous value: \"Content-Length: 1\"";
    assert!(server.error_log().contains(said));
}

#[test]
fn interim_answers_are_passed_over() {
    let backend = Backend::start(|seen| {
        let interim = match seen.line() {
            l if l.contains("few") => "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nX: y\r\n\r\n".to_owned(),
            _ => "HTTP/1.1 100 Continue\r\n\r\n".repeat(10_000),
        };
        Reply::Close(format!("{interim}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").into())
    });
    let server =
        Site::server("location / { proxy_pass http://127.0.0.1:@BACKEND@; }").set("BACKEND", backend.port).start();
    let mut client = server.connect();
    assert_eq!(client.get("/few").text(), "ok");
    assert_eq!(client.get("/flood").status, 502);
}

/// A place without a host that an upstream names is the client's to resolve: we may stand behind another proxy.
#[test]
fn a_location_that_is_not_rewritten_stays_as_it_is() {
    let backend = Backend::start(|seen| {
        let to = if seen.line().contains("own") { "http://127.0.0.1:1/x" } else { "/login?a=b" };
        Reply::Keep(format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n").into())
    });
    let server = Site::server(
        "location / { proxy_pass http://127.0.0.1:@BACKEND@; proxy_redirect http://127.0.0.1:1/ /here/; }
         location /off { proxy_pass http://127.0.0.1:@BACKEND@; proxy_redirect off; }",
    )
    .set("BACKEND", backend.port)
    .start();
    assert_eq!(server.get("/").header("Location"), Some("/login?a=b"));
    assert_eq!(server.get("/off").header("Location"), Some("/login?a=b"));
    let rewritten = format!("http://localhost:{}/here/x", server.port);
    assert_eq!(server.get("/own").header("Location"), Some(&*rewritten));
}

#[test]
fn a_peer_that_accepts_finds_the_request_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let peer = std::thread::spawn(move || {
        for _ in 0..20 {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nonblocking(true).unwrap();
            // The request came with the packet that made the connection.
            let count = stream.read(&mut [0; 4096]).map_err(|e| e.kind());
            let answer = format!("HTTP/1.0 200 OK\r\n\r\n{}", count.is_ok_and(|n| n > 0));
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let server =
        Site::server(&format!("proxy_http_version 1.0; location / {{ proxy_pass http://127.0.0.1:{port}; }}")).start();
    for _ in 0..20 {
        assert_eq!(server.get("/").text(), "true");
    }
    peer.join().unwrap();
}

/// A page that takes the place of an upstream's answer is not dated by it.
#[test]
fn a_page_of_an_error_says_nothing_of_the_answer_before() {
    let backend = Backend::start(|_| {
        let head =
            "HTTP/1.1 200 OK\r\nLast-Modified: Wed, 01 Jan 2020 00:00:00 GMT\r\nETag: \"e\"\r\nX-Other: stays\r\n";
        Reply::Keep(format!("{head}Content-Length: 5\r\n\r\nhello").into())
    });
    let location = format!("location / {{ proxy_pass http://127.0.0.1:{}; proxy_force_ranges on; }}", backend.port);
    let server = Site::server(&location).start();
    let mut client = server.connect();
    let part = client.send("GET / HTTP/1.1\r\nHost: a\r\nRange: bytes=1-2\r\n\r\n").response();
    assert_eq!((part.status, part.text().as_str()), (206, "el"));
    assert!(part.header("Last-Modified").is_some() && part.header("ETag").is_some());
    let refused = client.send("GET / HTTP/1.1\r\nHost: a\r\nRange: bytes=99-\r\n\r\n").response();
    assert_eq!((refused.status, refused.header("Content-Range")), (416, Some("bytes */5")));
    assert_eq!((refused.header("Last-Modified"), refused.header("ETag")), (None, None));
    assert_eq!(refused.header("X-Other"), Some("stays"));
}

#[test]
fn cookies_of_an_answer_that_redirects_inside_are_made_to_fit_too() {
    let backend = Backend::start(|_| {
        let cookie = "Set-Cookie: a=1; Domain=example.org; Path=/a/b";
        Reply::Keep(
            format!("HTTP/1.1 200 OK\r\nX-Accel-Redirect: /inside\r\n{cookie}\r\nContent-Length: 0\r\n\r\n").into(),
        )
    });
    let server = Site::server(
        "location / { proxy_pass http://127.0.0.1:@BACKEND@; proxy_cookie_domain example.org new.org; proxy_cookie_path /a/ /c/;
             proxy_cookie_flags a httponly secure; }
         location /inside { internal; return 200 inside; }",
    )
    .set("BACKEND", backend.port)
    .start();
    let r = server.get("/");
    assert_eq!(r.text(), "inside");
    assert_eq!(r.header("Set-Cookie"), Some("a=1; Domain=new.org; Path=/c/b; HttpOnly; Secure"));
}

#[test]
fn trailers_that_nobody_sees_spoil_no_answer() {
    for (odd, surplus) in [("X-T: a\0b\r\n", ""), (" folded\r\n", ""), ("X-T: fine\r\n", "x"), ("no colon\r\n", "x")] {
        let answer =
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n{odd}\r\n{surplus}");
        let backend = Backend::start(move |_| Reply::Keep(answer.clone().into()));
        let server = Site::server(&format!(
            "location / {{ {KEPT} proxy_pass http://127.0.0.1:@BACKEND@; }}
             location /passed {{ {KEPT} proxy_pass http://127.0.0.1:@BACKEND@; proxy_pass_trailers on; }}"
        ))
        .set("BACKEND", backend.port)
        .start();
        let mut client = server.connect();
        assert_eq!((client.get("/").text(), client.get("/").text()), ("abc".into(), "abc".into()), "{odd:?}");
        if !surplus.is_empty() {
            server.wait_for("logs/error.log", "upstream sent data after final chunk");
        }
        if !odd.contains("fine") {
            let mut client = server.connect();
            client.send("GET /passed HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\n\r\n");
            let rest = client.rest();
            assert!(!rest.ends_with(b"0\r\n\r\n"), "cut short: {:?}", String::from_utf8_lossy(&rest));
        }
    }
}

#[test]
fn a_rate_of_reading_is_for_what_is_buffered() {
    let backend = Backend::start(|_| {
        Reply::Keep([b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n".as_slice(), &[b'x'; 60_000]].concat())
    });
    let server = Site::server(
        "proxy_limit_rate 20k; location / { proxy_pass http://127.0.0.1:@BACKEND@; }
         location /at-once { proxy_pass http://127.0.0.1:@BACKEND@; proxy_buffering off; }",
    )
    .set("BACKEND", backend.port)
    .start();
    let took = |target: &str| {
        let began = std::time::Instant::now();
        assert_eq!(server.get(target).body.len(), 60_000);
        began.elapsed().as_millis()
    };
    let (buffered, at_once) = (took("/"), took("/at-once"));
    assert!(buffered >= 1_000 && at_once < buffered / 2, "{buffered} ms, {at_once} ms");
}
