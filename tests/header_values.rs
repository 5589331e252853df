//! No header, towards clients or upstreams, carries what would end its line: CR, LF and NUL, whatever variable decoded them.

use crate::harness::{Backend, Site, with_http2};
use bytes::Bytes;

/// `%0d%0a` in a path, which `$uri` decodes.
const SPLIT: &str = "%0d%0aX-Split:%20yes";

/// `a\0b:c` and `a\r\nX-Split: yes:c` as credentials: `$remote_user` is decoded too.
const WITH_NUL: &str = "YQBiOmM=";
const WITH_LINE: &str = "YQ0KWC1TcGxpdDt5ZXM6Yw==";

#[test]
fn no_answer_is_split() {
    let server = Site::server(
        "location /redirect { return 301 $uri; }
         location /absolute { return 302 http://example.com$uri; }
         location /header { add_header X-Own $uri; return 200 text; }
         location /always { add_header X-Own $uri always; add_header X-Other $request_method always; return 200 text; }
         location /lf { add_header X-Own $uri; return 200 text; }
         location /page { error_page 404 http://example.com$uri; return 404; }
         location /charset { charset $uri; charset_types *; return 200 text; }
         location /rewrite { rewrite ^ http://example.com/?$uri redirect; }
         location /realm { auth_basic $uri; auth_basic_user_file @DIR@/none; }
         location /user { add_header X-Own $remote_user; return 200 text; }
         location /trailer { set $was $uri; add_trailer X-Own $was; root @DIR@/html; try_files /file =404; chunked_transfer_encoding on; }",
    )
    .file("html/file", "text")
    .start();
    for location in ["/redirect", "/absolute", "/header", "/always", "/page", "/charset"] {
        let r = server.get(&format!("{location}{SPLIT}"));
        assert_eq!((r.status, r.header("X-Split"), r.header("X-Own")), (500, None, None), "{location}: {r:?}");
        assert!(r.text().contains("500 Internal Server Error"));
    }
    assert_eq!(server.get(&format!("/always{SPLIT}")).header("X-Other"), Some("GET"));
    assert_eq!(server.get("/lf%0aX-Split:%20yes").status, 500);
    assert_eq!(server.get("/lf%0dX-Split:%20yes").status, 500);
    assert_eq!(server.get("/lf%0b").status, 200);
    for credentials in [WITH_NUL, WITH_LINE] {
        let request = format!("GET /user HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {credentials}\r\n\r\n");
        let r = server.connect().send(request).response();
        assert_eq!((r.status, r.header("X-Split")), (500, None));
    }
    for location in ["/rewrite", "/realm"] {
        let r = server.get(&format!("{location}{SPLIT}"));
        assert_eq!((r.header("X-Split"), r.header("X-Own")), (None, None), "{location}: {r:?}");
    }
    let whole = server
        .connect()
        .send(format!("GET /trailer{SPLIT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
        .rest();
    let whole = String::from_utf8_lossy(&whole);
    assert!(whole.starts_with("HTTP/1.1 200") && whole.ends_with("0\r\n\r\n") && !whole.contains("X-Own"), "{whole}");
    let log = server.error_log();
    for name in ["header \"Location\"", "header \"X-Own\"", "header \"Content-Type\"", "trailer \"X-Own\""] {
        assert!(
            log.contains("[error]")
                && log.contains(&format!("{name} is not sent: there is CR, LF or NUL in its value")),
            "{name}: {log}"
        );
    }
}

#[test]
fn streams_of_http2_get_no_such_field_either() {
    let server = Site::http(
        "server { listen 127.0.0.1:@PORT@; http2 on; location / { add_header X-Own $uri; return 200 text; } location /to { return 301 $uri; } }",
    )
    .start();
    with_http2(&server, |requests| async move {
        for target in ["/x%0d%0ay", "/to%0ay"] {
            let request = http::Request::get(format!("http://localhost{target}")).body(()).unwrap();
            let (answer, _) = requests.clone().ready().await.unwrap().send_request(request, true).unwrap();
            let answer = answer.await.unwrap();
            assert_eq!(answer.status(), 500);
            assert!(answer.headers().get("x-own").is_none() && answer.headers().get("location").is_none());
            let mut body = answer.into_body();
            let text: Bytes = body.data().await.unwrap().unwrap();
            assert!(text.starts_with(b"<html>"));
        }
    });
}

#[test]
fn no_request_to_an_upstream_is_split() {
    let backend = Backend::ok("hi");
    let server = Site::server(
        "location /header { proxy_set_header X-Own $uri; proxy_pass http://127.0.0.1:@BACKEND@; }
         location /host { proxy_set_header Host $uri; proxy_pass http://127.0.0.1:@BACKEND@; }
         location /uri { proxy_pass http://127.0.0.1:@BACKEND@$uri; }
         location /args { set $args $uri; proxy_pass http://127.0.0.1:@BACKEND@; }
         location /method { proxy_method $uri; proxy_pass http://127.0.0.1:@BACKEND@; }
         location /grpc { grpc_set_header X-Own $uri; grpc_pass 127.0.0.1:@BACKEND@; }
         location /http2 { proxy_http_version 2; proxy_pass http://127.0.0.1:@BACKEND@$uri; }
         location /escaped { proxy_pass http://127.0.0.1:@BACKEND@/x; }",
    )
    .set("BACKEND", backend.port)
    .start();
    for location in ["/header", "/host", "/uri", "/args", "/method", "/grpc", "/http2"] {
        assert_eq!(server.get(&format!("{location}{SPLIT}")).status, 500, "{location}");
    }
    // What would be no line of its own is none the less no part of a target.
    assert_eq!(server.get("/uri%0b").status, 500);
    assert!(backend.seen().is_empty(), "{:?}", backend.seen());
    assert_eq!(server.get(&format!("/escaped{SPLIT}")).text(), "hi");
    assert_eq!(backend.seen()[0].line(), "GET /x%0D%0AX-Split:%20yes HTTP/1.0".replace("1.0", version(&backend)));
    let log = server.error_log();
    assert!(
        log.contains("header \"X-Own\" for the upstream is not sent: there is CR, LF or NUL in its value"),
        "{log}"
    );
    assert!(log.contains("the URI for the upstream has control characters in it"), "{log}");
}

fn version(backend: &Backend) -> &'static str {
    if backend.seen()[0].line().ends_with("1.1") { "1.1" } else { "1.0" }
}

/// Long policies are written over several lines: nginx sends the breaks as they are.
#[test]
fn line_breaks_of_the_configuration_are_spaces() {
    let backend = Backend::ok("hi");
    let server = Site::server(
        "location / { add_header X-Policy \"default-src 'self';\n   img-src *;\r\n\tscript-src $arg_a\n\"; more_set_headers 'X-More: one\n two';
                      proxy_set_header X-Own \"a\n b\"; proxy_pass http://127.0.0.1:@BACKEND@; }",
    )
    .set("BACKEND", backend.port)
    .start();
    let answer = server.get("/?a=here");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("x-policy"), Some("default-src 'self'; img-src *; script-src here"));
    assert_eq!(answer.header("x-more"), Some("one two"));
    assert_eq!(backend.seen()[0].header("x-own"), Some("a b"));
    assert!(server.error_log().contains("line breaks in the value of a header of \"add_header\" are sent as spaces"));
}

/// What the API keeps may be any text; a header may not.
#[test]
fn values_of_a_keyval_zone_split_nothing() {
    let server = Site::http(
        "keyval_zone zone=z:64k; keyval $arg_k $kept zone=z;
         server { listen 127.0.0.1:@PORT@; location /api { api write=on; } location / { add_header X-Own $kept; return 200 text; } }",
    )
    .start();
    for (key, value) in [("line", "a\\r\\nX-Split: yes"), ("nul", "a\\u0000b")] {
        let body = format!("{{\"{key}\": \"{value}\"}}");
        let head =
            format!("POST /api/9/http/keyvals/z HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
        assert_eq!(server.connect().send(head + &body).response().status, 201);
        let r = server.get(&format!("/?k={key}"));
        assert_eq!((r.status, r.header("X-Split"), r.header("X-Own")), (500, None, None), "{key}");
    }
    assert_eq!(server.get("/?k=none").text(), "text");
}
