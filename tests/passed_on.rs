//! What goes through to an upstream and back as it is, and what does not any more because the configuration changed it.

use crate::harness::{Backend, Reply, Site};

const KEPT: &str = "proxy_http_version 1.1; proxy_set_header Connection \"\";";

/// `set $args` holds for what is asked of the upstream, whichever way the request comes there; for a cache's key as well.
#[test]
fn arguments_that_are_set_are_those_that_are_sent() {
    let backend = Backend::start(|seen| Reply::ok(seen.line().split(' ').nth(1).unwrap_or_default()));
    let server = Site::http(&format!(
        "proxy_cache_path @DIR@/cache keys_zone=cache:1m;
         server {{ listen 127.0.0.1:@PORT@; {KEPT}
             location /set {{ set $args \"a=1\"; proxy_pass http://127.0.0.1:@BACKEND@; }}
             location /strip {{ set $args \"\"; proxy_pass http://127.0.0.1:@BACKEND@; }}
             location /if {{ if ($arg_token) {{ set $args x; }} proxy_pass http://127.0.0.1:@BACKEND@; }}
             location /try {{ set $args \"\"; try_files /none @p; }}
             location /error {{ set $args \"\"; error_page 404 = @p; return 404; }}
             location @p {{ proxy_pass http://127.0.0.1:@BACKEND@; }}
             location /cached {{ set $args $arg_id; proxy_cache cache; proxy_cache_valid 1h; proxy_pass http://127.0.0.1:@BACKEND@; }}
             location /kept%20 {{ proxy_pass http://127.0.0.1:@BACKEND@; }}
             location / {{ proxy_pass http://127.0.0.1:@BACKEND@; }} }}"
    ))
    .set("BACKEND", backend.port)
    .start();
    for (asked, sent) in [
        ("/set?token=secret", "/set?a=1"),
        ("/strip?token=secret", "/strip"),
        ("/if?token=secret", "/if?x"),
        ("/if?other=1", "/if?other=1"),
        ("/try?token=secret", "/try"),
        ("/error?token=secret", "/error"),
        ("/cached?id=1&token=secret", "/cached?1"),
        // From the cache: the key has no token in it.
        ("/cached?id=1&token=other", "/cached?1"),
        ("/x/../a%2Fb?c=%20", "/x/../a%2Fb?c=%20"),
    ] {
        assert_eq!(server.get(asked).text(), sent, "{asked}");
    }
    let cached = backend.seen().iter().filter(|seen| seen.line().contains("/cached")).count();
    assert_eq!(cached, 1);
}

/// A type goes through byte for byte unless its charset is changed; one that is not the first parameter is one too.
#[test]
fn a_content_type_is_passed_on_as_it_is() {
    let backend = Backend::start(|seen| {
        let target = seen.line().split(' ').nth(1).unwrap_or_default();
        let kind = seen.header("X-Type").unwrap_or_default();
        let body = if target.starts_with("/recoded") { "\u{e4}" } else { "hi" };
        Reply::Keep(
            format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into(),
        )
    });
    let server = Site::http(&format!(
        "charset_map iso-8859-1 utf-8 {{ E4 C3A4; }}
         server {{ listen 127.0.0.1:@PORT@; {KEPT}
             location / {{ add_header X-Said $sent_http_content_type; proxy_pass http://127.0.0.1:@BACKEND@; }}
             location /recoded {{ charset utf-8; source_charset iso-8859-1; override_charset on; proxy_pass http://127.0.0.1:@BACKEND@; }}
             location /changed {{ charset iso-8859-1; override_charset on; charset_types *; proxy_pass http://127.0.0.1:@BACKEND@; }} }}"
    ))
    .set("BACKEND", backend.port)
    .start();
    let ask = |target: &str, kind: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nX-Type: {kind}\r\n\r\n");
        let r = server.connect().send(request).response();
        (r.header("Content-Type").map(str::to_owned), r.header("X-Said").map(str::to_owned), r.body)
    };
    for kind in [
        "text/plain;charset=utf-8",
        "text/plain; charset=\"utf-8\"",
        "text/plain; charset=\"a b\"",
        "text/plain; charset=",
        "text/plain;  CHARSET=UTF-8 ; format=flowed",
        "multipart/mixed; boundary=\"; charset=x\"",
        "text/plain; format=flowed;charset=utf-8",
        "text/plain;",
    ] {
        assert_eq!(ask("/", kind), (Some(kind.to_owned()), Some(kind.to_owned()), b"hi".to_vec()), "{kind}");
    }
    // UTF-8 already, whichever parameter says so.
    for kind in ["text/html; charset=utf-8", "text/html;a=b;charset=\"utf-8\"", "text/html; charset=utf-8; a=b"] {
        assert_eq!(ask("/recoded", kind), (Some(kind.to_owned()), None, "\u{e4}".into()), "{kind}");
    }
    assert_eq!(ask("/changed", "text/html;charset=utf-8;a=b").0.as_deref(), Some("text/html; charset=iso-8859-1;a=b"));
}

/// An upstream that says what the client's copy is may say its length and type; a file's 304 has neither.
#[test]
fn a_304_of_an_upstream_keeps_its_headers() {
    let answer = b"HTTP/1.1 304 Not Modified\r\nContent-Type: text/x\r\nContent-Length: 1234\r\nETag: \"a\"\r\n\r\n";
    let backend = Backend::start(|_| Reply::Keep(answer.to_vec()));
    let server = Site::server(&format!(
        "location / {{ {KEPT} proxy_pass http://127.0.0.1:@BACKEND@; }}
         location /file {{ root @DIR@/html; }}"
    ))
    .set("BACKEND", backend.port)
    .file("html/file", "text")
    .start();
    let mut client = server.connect();
    for _ in 0..2 {
        let r = client.get("/");
        let headers = (r.header("Content-Type"), r.header("Content-Length"), r.header("ETag"));
        assert_eq!((r.status, headers), (304, (Some("text/x"), Some("1234"), Some("\"a\""))));
    }
    let etag = client.get("/file").header("ETag").expect("a file has one").to_owned();
    let r = client.send(format!("GET /file HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: {etag}\r\n\r\n")).response();
    assert_eq!((r.status, r.header("Content-Type"), r.header("Content-Length")), (304, None, None));
}

/// Its length is known when all of a chunked body is here before the upstream is asked.
#[test]
fn a_chunked_body_that_is_whole_goes_on_with_its_length() {
    let backend = Backend::ok("hi");
    let server = Site::server(&format!(
        "location / {{ {KEPT} proxy_request_buffering off; proxy_pass http://127.0.0.1:@BACKEND@; }}"
    ))
    .set("BACKEND", backend.port)
    .start();
    let mut client = server.connect();
    let head = "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.send(format!("{head}3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"));
    assert_eq!(client.response().text(), "hi");
    let seen = backend.seen();
    assert_eq!((seen[0].header("Content-Length"), seen[0].header("Transfer-Encoding")), (Some("5"), None));
    assert_eq!(seen[0].body, b"abcde");
}

#[test]
fn a_cookie_of_an_upstream_loses_spaces_around_its_equals_sign() {
    let backend = Backend::start(|_| {
        let cookies = ["a = one ", "b=\ttwo; Path=/", " c=three", "d\t=four", "e=five;f=six"];
        let lines: String = cookies.iter().map(|c| format!("Set-Cookie:{c}\r\n")).collect();
        Reply::Keep(format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{lines}\r\n").into())
    });
    let server = Site::server(&format!(
        "location / {{ {KEPT} add_header X-Seen \"[$upstream_cookie_a][$upstream_cookie_b][$upstream_cookie_d][$upstream_cookie_e][$upstream_cookie_f]\";
             proxy_pass http://127.0.0.1:@BACKEND@; }}"
    ))
    .set("BACKEND", backend.port)
    .start();
    assert_eq!(server.get("/").header("X-Seen"), Some("[one][\ttwo][][five][]"));
}
