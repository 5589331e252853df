//! Access logs: where lines go, when, and what stands in them.

use crate::harness::{Site, wait};
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;

#[test]
fn levels_inside_and_conditions_have_logs_of_their_own() {
    let server = Site::http(
        "log_format u $uri:$status;
         server { listen 127.0.0.1:@PORT@; access_log logs/server.log u;
           location / { return 200; }
           location /quiet { access_log off; return 200; location /quiet/loud { access_log logs/loud.log u; return 200; } }
           location /if { if ($arg_x) { access_log logs/if.log u; } return 200; }
           location /limit { limit_except GET { access_log logs/limit.log u; } return 200; }
           location /some { access_log logs/some.log u if=$arg_x; return 200; }
           location /two { access_log logs/a.log u; access_log logs/b.log u; return 200; } }",
    )
    .start();
    let targets = ["/", "/quiet", "/quiet/loud", "/if", "/if?x=1", "/limit", "/some", "/some?x=0", "/some?x=1", "/two"];
    for target in targets {
        server.get(target);
    }
    server.connect().send("POST /limit HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").response();
    for (log, lines) in [
        ("server", "/:200\n/if:200\n/limit:200\n"),
        ("loud", "/quiet/loud:200\n"),
        ("if", "/if:200\n"),
        ("limit", "/limit:404\n"),
        ("some", "/some:200\n"),
        ("a", "/two:200\n"),
        ("b", "/two:200\n"),
    ] {
        let name = format!("logs/{log}.log");
        assert!(wait(|| server.read(&name) == lines), "{log}: {}", server.read(&name));
    }
}

#[test]
fn buffered_lines_wait_for_room_time_or_the_end() {
    let server = Site::server(
        "location /full { access_log logs/full.log combined buffer=1k; return 200; }
         location /time { access_log logs/time.log combined buffer=64k flush=50ms; return 200; }
         location /end { access_log logs/end.log combined buffer=64k; return 200; }
         location / { access_log logs/now.log; return 200; }",
    )
    .start();
    let mut client = server.connect();
    for _ in 0..3 {
        for target in ["/full", "/time", "/end", "/"] {
            client.get(target);
        }
    }
    server.wait_for("logs/now.log", "GET / HTTP");
    server.wait_for("logs/time.log", "GET /time HTTP");
    assert_eq!(server.read("logs/full.log") + &server.read("logs/end.log"), "");
    for _ in 0..20 {
        client.get("/full");
    }
    let written = server.read("logs/full.log");
    assert!(wait(|| !server.read("logs/full.log").is_empty()));
    assert!(written.len() <= 4096 && !written.contains("\n\n"));
    let dir = server.dir().to_owned();
    let (end, full) = (dir.join("logs/end.log"), dir.join("logs/full.log"));
    let (mut end, mut full) = (std::fs::File::open(end).unwrap(), std::fs::File::open(full).unwrap());
    drop(client);
    server.stop(Signal::QUIT);
    let lines = |file: &mut std::fs::File| std::io::read_to_string(file).unwrap().lines().count();
    assert_eq!((lines(&mut end), lines(&mut full)), (3, 23));
}

#[test]
fn a_moved_log_is_begun_anew_and_gets_nothing_old() {
    let server = Site::server(
        "location / { access_log logs/a.log; return 200; }
         location /held { access_log logs/held.log combined buffer=64k; return 200; }",
    )
    .start();
    server.get("/before");
    server.get("/held/before");
    server.wait_for("logs/a.log", "/before");
    for log in ["a", "held"] {
        std::fs::rename(server.dir().join(format!("logs/{log}.log")), server.dir().join(format!("logs/{log}.old")))
            .unwrap();
    }
    server.signal(Signal::USR1);
    server.wait_for("logs/held.old", "/held/before");
    assert!(wait(|| server.dir().join("logs/a.log").exists()));
    assert!(wait(|| {
        server.get("/after");
        server.read("logs/a.log").contains("/after")
    }));
    assert!(!server.read("logs/a.log").contains("/before"));
}

#[test]
fn pipelined_requests_and_subrequests_are_told_apart() {
    let server = Site::http(
        "log_format p '$uri $pipe $request_length';
         server { listen 127.0.0.1:@PORT@; access_log logs/a.log p; log_subrequest on;
           location / { auth_request /ask; return 200; }
           location /file { auth_request /ask; }
           location = /ask { return 204; } }",
    )
    .file("html/file", "x")
    .start();
    let mut client = server.connect();
    client.send("GET /one HTTP/1.1\r\nHost: x\r\n\r\nGET /two HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!([client.response().status, client.response().status], [200, 200]);
    assert_eq!(client.get("/file").status, 200);
    server.wait_for("logs/a.log", "/file .");
    assert_eq!(server.read("logs/a.log"), "/one . 30\n/two p 30\n/ask . 0\n/file . 39\n");
}

#[test]
fn how_much_was_asked() {
    let server = Site::http(
        "log_format a '$uri $args $content_length $request_length';
         server { listen 127.0.0.1:@PORT@; access_log logs/a.log a;
           location / { return 200; }
           location /read { client_body_in_single_buffer on; proxy_pass http://127.0.0.1:@PORT@/; } }",
    )
    .start();
    let ask = |target: &str, rest: &str| {
        let text = format!("POST {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{rest}");
        assert_eq!(server.connect().send(text).response().status, 200);
    };
    ask("/a?b", "\r\n");
    ask("/c?", "Content-Length: 2\r\n\r\nhi");
    // Of a chunked body the decoded length is told once it has been read, and all its bytes are counted.
    ask("/read", "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n");
    ask("/unread", "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n");
    server.wait_for("logs/a.log", "/unread");
    let log = server.read("logs/a.log");
    let line = |start: &str| log.lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned();
    assert_eq!(line("/a"), "/a b - 50");
    assert_eq!(line("/c"), "/c - 2 68");
    assert_eq!(line("/read"), "/read - 2 91");
    assert_eq!(line("/unread"), "/unread - 0 81");
}

#[test]
fn paths_with_variables_need_a_root() {
    let server = Site::http(
        "log_format u $uri;
         server { listen 127.0.0.1:@PORT@; location / { access_log logs/$arg_to u; return 200; }
           location /rootless { root @DIR@/nowhere; access_log logs/$arg_to u; return 200; } }",
    )
    .start();
    // Such files are opened by the worker, who may be nobody.
    std::fs::set_permissions(server.dir().join("logs"), std::fs::Permissions::from_mode(0o777)).unwrap();
    server.get("/rootless?to=x.log");
    server.get("/a?to=x.log");
    server.get("/b?to=y.log");
    server.wait_for("logs/y.log", "/b");
    assert_eq!(server.read("logs/x.log"), "/a\n");
    server.wait_for("logs/error.log", "nowhere\" existence failed (2: No such file or directory)");
}

#[test]
fn what_a_request_has_not_is_a_dash() {
    let server = Site::http(
        "log_format parts '$args|$query_string|$uri|$request_uri|$request_method|$server_protocol|$word';
         server { listen 127.0.0.1:@PORT@; access_log @DIR@/logs/parts parts; location / { return 200; } location ~ ^/(?<word>b.) { return 200; } }",
    )
    .start();
    let mut client = server.connect();
    for target in ["/", "/?", "/bc?x"] {
        assert_eq!(client.get(target).status, 200);
    }
    client.send("nonsense\r\n\r\n").response();
    server.wait_for(
        "logs/parts",
        "-|-|/|/|GET|HTTP/1.1|-\n-|-|/|/?|GET|HTTP/1.1|-\nx|x|/bc|/bc?x|GET|HTTP/1.1|bc\n-|-|-|-|-|-|-\n",
    );
    assert!(!server.error_log().contains("uninitialized"));
}

/// nginx logs 400 for a client that closes within its head, as for one whose head is wrong; a connection that brought nothing has no line.
#[test]
fn a_head_that_the_client_leaves_unfinished_has_its_line() {
    let server = Site::http(
        "log_format heads \"$request|$status|$connection_requests\";
         server { listen 127.0.0.1:@PORT@; access_log logs/heads.log heads; return 200 ok; }",
    )
    .start();
    drop(server.connect());
    for head in [
        "GET /line HT",
        "GET /head HTTP/1.1\r\nHost: a\r\n",
        "\r\n\r\n",
        "GET /kept HTTP/1.1\r\nHost: a\r\n\r\nGET /next HTTP/1.1\r\n",
    ] {
        server.connect().send(head).finish().rest();
    }
    // A head that is refused is a request of its connection too.
    server.connect().send("G T / HTTP/1.1\r\n\r\n").rest();
    let expected = [
        "GET /line HT|400|1",
        "GET /head HTTP/1.1|400|1",
        "|400|1",
        "GET /kept HTTP/1.1|200|1",
        "GET /next HTTP/1.1|400|2",
        "G T / HTTP/1.1|400|1",
    ];
    let read = || server.read("logs/heads.log");
    assert!(wait(|| read().lines().count() >= expected.len()), "{}", read());
    assert_eq!(read().lines().collect::<Vec<_>>(), expected);
}
