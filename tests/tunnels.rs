//! `tunnel_pass`: CONNECT through the server, where it is let in.

use crate::harness::{Backend, Site};

fn connect(server: &crate::harness::Server, line: &str, more: &str) -> (u16, crate::harness::Client) {
    let mut client = server.connect();
    client.send(format!("{line}\r\nHost: x\r\n{more}\r\n"));
    let status = client.read_response(true).unwrap().status;
    (status, client)
}

#[test]
fn clients_reach_others_through_the_server() {
    let backend = Backend::ok("hello");
    let server = Site::http(
        "log_format f '$status $upstream_addr $request_method'; tunnel_connect_timeout 2s;
         upstream group { server 127.0.0.1:1 max_fails=0; server 127.0.0.1:@BACKEND@; }
         server { listen 127.0.0.1:@PORT@; access_log @DIR@/logs/tunnel.log f;
             allow 127.0.0.1; deny all;
             location / { if ($request_method = CONNECT) { tunnel_pass; break; } return 200 plain; } }
         server { listen 127.0.0.1:@PORT@; server_name fixed; allow all; tunnel_pass group; }
         server { listen 127.0.0.1:@PORT@; server_name closed; deny all; tunnel_pass; }
         server { listen 127.0.0.1:@PORT@; server_name secret; auth_basic r; auth_basic_user_file users; tunnel_pass group; }
         server { listen 127.0.0.1:@PORT@; server_name none; location / { return 200 plain; } }",
    )
    .set("BACKEND", backend.port)
    .file("users", "me:{PLAIN}word\n")
    .start();
    let to = format!("CONNECT 127.0.0.1:{} HTTP/1.1", backend.port);
    let (status, mut client) = connect(&server, &to, "");
    assert_eq!(status, 200);
    let r = client.send("GET /through HTTP/1.1\r\nHost: backend\r\n\r\n").response();
    assert_eq!((r.text().as_str(), backend.seen()[0].line()), ("hello", "GET /through HTTP/1.1"));
    drop(client);
    // What came with the head goes through, too.
    let early = "GET /early HTTP/1.1\r\nHost: backend\r\n\r\n";
    let mut client = server.connect();
    client.send(format!("{to}\r\nHost: x\r\n\r\n{early}"));
    assert_eq!(client.read_response(true).unwrap().status, 200);
    assert_eq!(client.response().text(), "hello");
    drop(client);
    server.wait_for("logs/tunnel.log", &format!("200 127.0.0.1:{} CONNECT", backend.port));
    // A group of the configuration, whatever the client names; the peer that refuses is passed over.
    let (status, mut client) = connect(&server, "CONNECT fixed:99 HTTP/1.1", "");
    assert_eq!(status, 200);
    assert_eq!(client.send("GET / HTTP/1.1\r\nHost: b\r\n\r\n").response().text(), "hello");
    for (line, more, expected) in [
        ("CONNECT closed:1 HTTP/1.1", "", 403),
        ("CONNECT none:1 HTTP/1.1", "", 405),
        ("CONNECT secret:1 HTTP/1.1", "Authorization: Basic bWU6d29yZA==\r\n", 407),
        ("CONNECT secret:1 HTTP/1.1", "Proxy-Authorization: Basic bWU6d29yZA==\r\n", 200),
        ("CONNECT 127.0.0.1:1 HTTP/1.1", "", 502),
        ("CONNECT 127.0.0.1:1 HTTP/1.0", "", 405),
        ("CONNECT 127.0.0.1 HTTP/1.1", "", 400),
        ("CONNECT :80 HTTP/1.1", "", 400),
        ("CONNECT 127.0.0.1:1 HTTP/1.1", "Content-Length: 3\r\n", 400),
        ("GET / HTTP/1.1", "", 200),
    ] {
        assert_eq!(connect(&server, line, more).0, expected, "{line}");
    }
}

/// Whoever opens it to everybody is told so.
#[test]
fn an_open_proxy_is_warned_of() {
    let said = |text: &str| Site::server(text).check().1;
    let warning = "lets every client reach every address";
    assert!(said("tunnel_pass;").contains(warning));
    for guarded in [
        "allow 10.0.0.0/8; deny all; tunnel_pass;",
        "tunnel_pass 127.0.0.1:80;",
        "auth_request /a; tunnel_pass $host:443;",
    ] {
        assert!(!said(guarded).contains(warning), "{guarded}");
    }
}
