//! `more_set_headers` and its kin, by themselves and beside nginx with OpenResty's module.

use crate::harness::{Backend, Site, compare_with_nginx};

#[test]
fn headers_of_answers_are_set_and_removed() {
    let server = Site::server(
        "more_set_headers 'X-All: $uri' 'Server: own';
         location / { more_clear_headers 'X-Hidden*' Etag; }
         location /gone { more_set_headers -s '404 500' -t 'text/html' 'X-Error: yes' ; more_set_headers 'X-All:'; return 404; }
         location /none { more_clear_headers Server Date Content-Type; return 200 text; }
         location /type { more_set_headers 'Content-Type: text/x; charset=koi8-r'; return 200 text; }",
    )
    .file("html/a.txt", "text")
    .start();
    let r = server.get("/a.txt");
    assert_eq!((r.header("X-All"), r.header("Server"), r.header("ETag")), (Some("/a.txt"), Some("own"), None));
    assert_eq!(r.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("server")).count(), 1);
    let r = server.get("/gone");
    assert_eq!((r.status, r.header("X-Error"), r.header("X-All")), (404, Some("yes"), None));
    let r = server.get("/none");
    assert_eq!([r.header("Server"), r.header("Date"), r.header("Content-Type")], [None; 3]);
    assert_eq!(server.get("/type").header("Content-Type"), Some("text/x; charset=koi8-r"));
}

#[test]
fn headers_of_requests_are_set_and_removed_before_they_are_passed_on() {
    let backend = Backend::ok("hello");
    let server = Site::server(
        "location / {
             more_set_input_headers 'X-New: $remote_addr' 'Host: other.example';
             more_set_input_headers -r 'X-There: changed' 'X-Not-There: no';
             more_clear_input_headers 'X-Secret*' Cookie Content-Length;
             proxy_pass http://127.0.0.1:@BACKEND@; proxy_set_header Host $host; proxy_set_header X-Seen $http_x_new;
         }
         location /split { more_set_input_headers \"X-New: $arg_a$uri\"; proxy_pass http://127.0.0.1:@BACKEND@; }",
    )
    .set("BACKEND", backend.port)
    .start();
    let lines = "X-There: 1\r\nX-Secret-A: 1\r\nx-secretb: 2\r\nCookie: a\r\nContent-Length: 3\r\n";
    let r = server.connect().send(format!("POST /x HTTP/1.1\r\nHost: localhost\r\n{lines}\r\nabc")).response();
    assert_eq!(r.text(), "hello");
    let seen = &backend.seen()[0];
    assert_eq!((seen.header("X-New"), seen.header("X-Seen")), (Some("127.0.0.1"), Some("127.0.0.1")));
    assert_eq!((seen.header("Host"), seen.header("X-There")), (Some("other.example"), Some("changed")));
    for gone in ["X-Secret-A", "x-secretb", "Cookie", "X-Not-There"] {
        assert_eq!(seen.header(gone), None, "{gone}");
    }
    // What frames the body is not for rules about headers: the peer is told its true length.
    assert_eq!((seen.header("Content-Length"), &seen.body[..]), (Some("3"), &b"abc"[..]));
    // A header that would be two is none.
    assert_eq!(server.get("/split%0d%0aX-Evil:%201").status, 500);
    server.wait_for("logs/error.log", "request header \"X-New\" is not set");
}

#[test]
fn what_is_written_wrongly() {
    for (text, expected) in [
        ("more_set_headers -x 'A: b';", "invalid option name: \"-x\""),
        ("more_set_headers -s abc 'A: b';", "invalid status \"abc\""),
        ("more_clear_headers -t text/html;", "no header is named"),
    ] {
        let (status, said) = Site::server(text).check();
        assert!(!status.success() && said.contains(expected), "{text}: {said}");
    }
}

#[test]
fn the_same_as_the_module_in_nginx() {
    let site = |loads: &str| {
        let text = "events {} http { access_log off; root @DIR@/html; default_type text/plain; server { listen 127.0.0.1:@PORT@;
             more_set_headers 'X-Server: $request_method' 'Cache-Control: a';
             add_header X-Added 1 always;
             location /own { more_set_headers 'X-Own: 1' 'x-server: 2'; }
             location /clear { more_clear_headers X-Server Last-Modified 'Content-*'; }
             location /type { more_set_headers -t 'text/plain application/json' 'X-Type: 1'; more_set_headers -t text/html 'X-Html: 1'; }
             location /status { more_set_headers -s 404 'X-Status: 1' 'Content-Type: text/x'; }
             location /in { more_set_input_headers 'X-In: 1' 'User-Agent: own'; return 200 '$http_x_in $http_user_agent $http_x_b'; }
             location /if { if ($arg_a) { more_set_headers 'X-If: $arg_a'; } }
             location /host { more_set_input_headers 'Host: other'; return 200 '$host $http_host'; }
             location /replace { more_set_input_headers -r 'X-B: new'; more_clear_input_headers 'X-C*'; return 200 '$http_x_b $http_x_cd $http_x_c'; }
         } }";
        let names = ["own", "clear", "type", "status", "if"];
        names
            .iter()
            .fold(Site::whole(&format!("{loads}{text}")), |site, name| site.file(&format!("html/{name}"), "text"))
    };
    let requests = [
        "GET /own HTTP/1.1",
        "HEAD /own HTTP/1.1",
        "GET /clear HTTP/1.1",
        "GET /type HTTP/1.1",
        "GET /type/missing HTTP/1.1",
        "GET /status HTTP/1.1",
        "GET /status-missing HTTP/1.1",
        "GET /in HTTP/1.1\r\nX-B: b",
        "GET /in HTTP/1.1\r\nUser-Agent: other",
        "GET /if HTTP/1.1",
        "GET /if?a=b HTTP/1.1",
        "GET /host HTTP/1.1",
        "GET /replace HTTP/1.1",
        "GET /replace HTTP/1.1\r\nX-B: old\r\nX-C: 1\r\nX-Cd: 2",
        "GET /own HTTP/1.1\r\nIf-Modified-Since: Thu, 01 Jan 2026 00:00:00 GMT",
        "GET /own HTTP/1.1\r\nRange: bytes=1-2",
    ];
    compare_with_nginx(&["ngx_http_headers_more_filter_module"], site, &requests);
}
