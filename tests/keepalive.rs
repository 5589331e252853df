//! Kept connections and pipelining.

use crate::harness::{Backend, Site};

fn site(directives: &str) -> Site {
    Site::server(&format!(
        "{directives} location / {{ return 200 \"$request_uri\"; }} location /body {{ client_max_body_size 10; return 200 \"b$content_length\"; }}"
    ))
}

#[test]
fn many_requests_on_one_connection() {
    let server = site("").start();
    let mut client = server.connect();
    for i in 0..200 {
        let r = client.get(&format!("/{i}"));
        assert_eq!((r.status, r.text()), (200, format!("/{i}")));
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = site("").start();
    let mut client = server.connect();
    let batch: String = (0..50).map(|i| format!("GET /{i} HTTP/1.1\r\nHost: localhost\r\n\r\n")).collect();
    client.send(&batch);
    for i in 0..50 {
        assert_eq!(client.response().text(), format!("/{i}"));
    }
    client.send(
        "GET /last HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\nGET /never HTTP/1.1\r\nHost: x\r\n\r\n",
    );
    let last = client.response();
    assert_eq!((last.text().as_str(), last.header("Connection")), ("/last", Some("close")));
    assert!(client.is_closed());
}

#[test]
fn one_byte_at_a_time() {
    let server = site("").start();
    let mut client = server.connect();
    for byte in b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n" {
        client.send([*byte]);
    }
    assert_eq!(client.response().text(), "/slow");
}

#[test]
fn http_1_0_closes_unless_asked() {
    let server = site("").start();
    let mut client = server.connect();
    assert_eq!(client.send("GET /a HTTP/1.0\r\n\r\n").response().header("Connection"), Some("close"));
    assert!(client.is_closed());
    let mut client = server.connect();
    let r = client.send("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").response();
    assert_eq!(r.header("Connection"), Some("keep-alive"));
    assert_eq!(client.get("/b").text(), "/b");
}

#[test]
fn http_0_9_is_the_body_alone() {
    let server = site("").start();
    assert_eq!(server.connect().send("GET /old\r\n").rest(), b"/old");
}

#[test]
fn limits_of_a_kept_connection() {
    let server = site("keepalive_requests 2;").start();
    let mut client = server.connect();
    assert_eq!(client.get("/1").header("Connection"), Some("keep-alive"));
    assert_eq!(client.get("/2").header("Connection"), Some("close"));
    assert!(client.is_closed());

    let server = site("keepalive_timeout 0;").start();
    assert_eq!(server.get("/").header("Connection"), Some("close"));

    let server = site("keepalive_timeout 75s 20s;").start();
    assert_eq!(server.get("/").header("Keep-Alive"), Some("timeout=20"));

    let server = site("keepalive_timeout 50ms;").start();
    let mut client = server.connect();
    client.get("/");
    assert!(client.is_closed());
}

#[test]
fn a_body_that_nobody_reads_is_passed_over() {
    let server = site("").start();
    let mut client = server.connect();
    client.send("POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n12345");
    assert_eq!(client.response().text(), "b5");
    client.send("POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    assert_eq!(client.response().text(), "/x");
    assert_eq!(client.get("/after").text(), "/after");
    client.send("POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 11\r\n\r\n12345678901");
    assert_eq!(client.response().status, 413);
}

#[test]
fn a_body_is_read_before_the_location_is_known_where_that_is_asked_for() {
    let server = Site::http(
        "map $http_content_type $is_json { application/json 1; }
         server { listen 127.0.0.1:@PORT@; client_body_early_read $is_json 0; client_max_body_size 8;
           if ($request_body = secret) { return 403 no; }
           location / { client_max_body_size 1m; return 200 \"<$request_body>\"; } }",
    )
    .start();
    let ask = |kind: &str, body: &str| {
        let mut client = server.connect();
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}\
             GET /next HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\r\n",
            body.len()
        ));
        let first = client.response();
        if first.status != 413 {
            assert_eq!(client.response().text(), "<>");
        }
        (first.status, first.text())
    };
    assert_eq!(ask("text/plain", "hello"), (200, "<>".to_owned()));
    assert_eq!(ask("application/json", "hello"), (200, "<hello>".to_owned()));
    assert_eq!(ask("application/json", "secret"), (403, "no".to_owned()));
    // The server's limit holds, since there is no location yet.
    assert_eq!(ask("text/plain", "more than eight").0, 200);
    assert_eq!(ask("application/json", "more than eight").0, 413);
}

#[test]
fn expect_100_continue() {
    let server = site("").start();
    let mut client = server.connect();
    client.send("POST /x HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc");
    let statuses: Vec<u16> =
        std::iter::from_fn(|| client.read_response(false)).map(|r| r.status).take_while(|s| *s != 200).collect();
    assert!(statuses.is_empty() || statuses == [100], "{statuses:?}");
}

#[test]
fn keepalive_min_timeout_outlives_a_shutdown() {
    let server = site("keepalive_min_timeout 2s;").start();
    let mut client = server.connect();
    assert_eq!(client.get("/before").status, 200);
    server.signal(rustix::process::Signal::QUIT);
    server.wait_for("logs/error.log", "gracefully shutting down");
    // Whoever asks while the threads are not told yet is kept once more.
    let last = crate::harness::wait(|| client.get("/after").header("Connection") == Some("close"));
    assert!(last);
    assert!(client.is_closed());
}

#[test]
fn a_shutdown_closes_idle_connections_at_once() {
    let server = site("keepalive_timeout 1h;").start();
    let mut client = server.connect();
    assert_eq!(client.get("/before").status, 200);
    let began = std::time::Instant::now();
    server.signal(rustix::process::Signal::QUIT);
    assert!(client.is_closed());
    assert!(began.elapsed().as_secs() < 10);
}

#[test]
fn a_shutdown_does_not_wait_for_clients_that_have_said_nothing() {
    let server = site("client_header_timeout 1h;").start();
    let mut silent = server.connect();
    // The kernel keeps a connection to itself for a second while nothing comes on it.
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(server.get("/").status, 200);
    let began = std::time::Instant::now();
    server.signal(rustix::process::Signal::QUIT);
    assert!(silent.is_closed());
    assert!(began.elapsed().as_secs() < 10);
}

/// Each thread keeps as many connections to peers as were in use at once, so that short connections of many clients, which come to any
/// thread, find one once threads have learnt how many that is: at least 99 of 100 requests, with 8 threads and 64 clients.
#[test]
fn upstream_connections_are_used_again_by_whichever_thread_a_client_comes_to() {
    const CLIENTS: usize = 64;
    const LEARNING: usize = CLIENTS * 50;
    const REQUESTS: usize = CLIENTS * 200;
    let backend = Backend::ok("x");
    let server = Site::whole(&format!(
        "worker_processes 8; events {{ }}
         http {{
             upstream pool {{ server 127.0.0.1:{}; keepalive 8; }}
             server {{ listen 127.0.0.1:@PORT@; location / {{ proxy_pass http://pool; }} }}
         }}",
        backend.port
    ))
    .start();
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                for _ in 0..(LEARNING + REQUESTS) / CLIENTS {
                    assert_eq!(server.connect().get("/").status, 200);
                }
            });
        }
    });
    let seen = backend.seen();
    assert_eq!(seen.len(), LEARNING + REQUESTS);
    let known: std::collections::BTreeSet<usize> = seen[..LEARNING].iter().map(|s| s.connection).collect();
    let new: std::collections::BTreeSet<usize> = seen[LEARNING..].iter().map(|s| s.connection).collect();
    let opened = new.difference(&known).count();
    assert!(opened <= REQUESTS / 100, "{opened} connections for {REQUESTS} requests");
}
