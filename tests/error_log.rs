//! Lines of the error log: what was done (`while ...`), and for whom. Scripts cut these lines apart.

use crate::harness::{Backend, Client, Port, Reply, Server, Site};

/// A line without its time, process and connection.
fn without_head(line: &str) -> Option<String> {
    let (_, rest) = line.split_once(" [")?;
    let (level, rest) = rest.split_once("] ")?;
    let (_, text) = rest.split_once(": *")?;
    Some(format!("[{level}] {}", text.split_once(' ')?.1))
}

struct Log {
    server: Server,
    dead: Port,
}

impl Log {
    fn start(backend: u16) -> Log {
        let dead = Port::reserve();
        let server = Site::server(
            "server_name localhost; client_header_timeout 300ms; send_timeout 300ms; \
             location / { } location = /missing { } \
             location /deny { deny all; } \
             location /dead/ { proxy_pass http://127.0.0.1:@DEAD@/; } \
             location /unix { proxy_pass http://unix:@DIR@/none:/u; } \
             location /b/ { proxy_pass http://127.0.0.1:@B@; proxy_read_timeout 200ms; } \
             location /include.html { ssi on; root @DIR@; } location /auth { auth_request /dead/a; }",
        )
        .file("include.html", "<!--#include virtual=\"/missing\" -->")
        .set("DEAD", dead.number)
        .set("B", backend)
        .start();
        Log { server, dead }
    }

    /// Waits for a line with this text.
    #[track_caller]
    fn has(&self, expected: &str) {
        let expected = expected
            .replace("@DEAD@", &self.dead.number.to_string())
            .replace("@PORT@", &self.server.port.to_string())
            .replace("@DIR@", &self.server.dir().display().to_string());
        let found =
            crate::harness::wait(|| self.server.error_log().lines().filter_map(without_head).any(|l| l == expected));
        assert!(found, "{expected}\nis not in\n{}", self.server.error_log());
    }

    fn send(&self, bytes: &str) -> Client {
        let mut client = self.server.connect();
        client.send(bytes);
        client
    }
}

fn backend() -> Backend {
    Backend::start(|seen| {
        let path = seen.line().split(' ').nth(1).unwrap_or_default();
        match path.rsplit('/').next().unwrap_or_default() {
            "close" => Reply::Close(Vec::new()),
            "half" => Reply::Close(b"HTTP/1.1 200 OK\r\nX-".to_vec()),
            "cut" => Reply::Close(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc".to_vec()),
            "big" => Reply::Close(format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "a".repeat(9000)).into()),
            _ => Reply::Keep(Vec::new()),
        }
    })
}

#[test]
fn lines_end_with_the_facts_of_the_request() {
    let backend = backend();
    let log = Log::start(backend.port);
    log.send("GET /none?a HTTP/1.1\r\nHost: x\r\nReferer: http://r/\r\n\r\n").response();
    log.has("[error] open() \"@DIR@/html/none\" failed (2: No such file or directory), client: 127.0.0.1, server: localhost, request: \"GET /none?a HTTP/1.1\", host: \"x\", referrer: \"http://r/\"");
    log.server.get("/deny");
    log.has("[error] access forbidden by rule, client: 127.0.0.1, server: localhost, request: \"GET /deny HTTP/1.1\", host: \"localhost\"");
    log.server.get("/dead/a?b");
    log.has("[error] connect() failed (111: Connection refused) while connecting to upstream, client: 127.0.0.1, server: localhost, request: \"GET /dead/a?b HTTP/1.1\", upstream: \"http://127.0.0.1:@DEAD@/a?b\", host: \"localhost\"");
    log.server.get("/unix");
    log.has("[crit] connect() to unix:@DIR@/none failed (2: No such file or directory) while connecting to upstream, client: 127.0.0.1, server: localhost, request: \"GET /unix HTTP/1.1\", upstream: \"http://unix:@DIR@/none:/u\", host: \"localhost\"");
    log.server.get("/include.html");
    log.has("[error] open() \"@DIR@/html/missing\" failed (2: No such file or directory), client: 127.0.0.1, server: localhost, request: \"GET /include.html HTTP/1.1\", subrequest: \"/missing\", host: \"localhost\"");
    log.server.get("/auth");
    log.has("[error] connect() failed (111: Connection refused) while connecting to upstream, client: 127.0.0.1, server: localhost, request: \"GET /auth HTTP/1.1\", subrequest: \"/dead/a\", upstream: \"http://127.0.0.1:@DEAD@/a\", host: \"localhost\"");
    log.has("[error] auth request unexpected status: 502 while sending to client, client: 127.0.0.1, server: localhost, request: \"GET /auth HTTP/1.1\", host: \"localhost\"");
}

#[test]
fn lines_say_what_the_upstream_was_doing() {
    let backend = backend();
    let log = Log::start(backend.port);
    let end = |path: &str| {
        format!(
            "client: 127.0.0.1, server: localhost, request: \"GET /b/{path} HTTP/1.1\", upstream: \"http://127.0.0.1:{}/b/{path}\", host: \"localhost\"",
            backend.port
        )
    };
    for (path, text) in [
        ("close", "upstream prematurely closed connection while reading response header from upstream"),
        ("half", "upstream prematurely closed connection while reading response header from upstream"),
        ("big", "upstream sent too big header while reading response header from upstream"),
        ("silent", "upstream timed out (110: Connection timed out) while reading response header from upstream"),
    ] {
        log.send(&format!("GET /b/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")).rest();
        log.has(&format!("[error] {text}, {}", end(path)));
    }
    log.send("GET /b/cut HTTP/1.1\r\nHost: localhost\r\n\r\n").rest();
    log.has(&format!("[error] upstream prematurely closed connection while reading upstream, {}", end("cut")));
    let client = log.send("GET /b/gone HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(crate::harness::wait(|| backend.seen().iter().any(|s| s.line().contains("gone"))));
    drop(client);
    log.has(&format!("[info] epoll_wait() reported that client prematurely closed connection, so upstream connection is closed too while sending request to upstream, {}", end("gone")));
}

#[test]
fn lines_say_what_the_client_was_doing() {
    let log = Log::start(1);
    let head = "client: 127.0.0.1, server: localhost, request: \"GET / HTTP/1.1\"";
    log.send("GET /").rest();
    log.has("[info] client timed out (110: Connection timed out) while reading client request line, client: 127.0.0.1, server: localhost, request: \"GET /\"");
    log.send("GET / HTTP/1.1\r\nHost: a\r\n").rest();
    log.has(&format!(
        "[info] client timed out (110: Connection timed out) while reading client request headers, {head}, host: \"a\""
    ));
    drop(log.send("GET /half"));
    log.has("[info] client prematurely closed connection while reading client request line, client: 127.0.0.1, server: localhost, request: \"GET /half\"");
    drop(log.send("GET / HTTP/1.1\r\nHost: b\r\n"));
    log.has(&format!(
        "[info] client prematurely closed connection while reading client request headers, {head}, host: \"b\""
    ));
    log.send("GET / HTTP/1.1\r\n\r\n").rest();
    log.has(&format!(
        "[info] client sent HTTP/1.1 request without \"Host\" header while reading client request headers, {head}"
    ));
    log.send("G\u{1}T / HTTP/1.1\r\n\r\n").rest();
    log.has("[info] client sent invalid method while reading client request line, client: 127.0.0.1, server: localhost, request: \"G\u{1}T / HTTP/1.1\"");
    log.send("GET / HTTP/1.1\r\nHost: a\r\nx_y: 1\r\nExpect: c\r\nexpect: d\r\n\r\n").rest();
    log.has(&format!(
        "[info] client sent invalid header line: \"x_y: 1\" while reading client request headers, {head}, host: \"a\""
    ));
    log.has(&format!("[info] client sent duplicate header line: \"expect: d\", previous value: \"Expect: c\" while reading client request headers, {head}, host: \"a\""));
    let mut kept = log.server.connect();
    kept.get("/deny");
    drop(kept);
    log.has("[info] client 127.0.0.1 closed keepalive connection");
}
