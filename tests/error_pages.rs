//! `error_page` and the answers that nobody wrote a page for.

use crate::harness::{Backend, Site};

#[test]
fn built_in_pages() {
    let server = Site::server("location = /a { return 404; } location = /b { return 502; }").start();
    let r = server.get("/a");
    assert_eq!((r.status, r.header("Content-Type")), (404, Some("text/html")));
    assert!(r.text().starts_with("<html>\r\n<head><title>404 Not Found</title></head>\r\n<body>\r\n"));
    assert!(server.get("/b").text().contains("<h1>502 Bad Gateway</h1>"));
}

#[test]
fn the_server_names_itself_as_told() {
    let server = Site::server("location / { return 404; } location /off { server_tokens off; return 404; }").start();
    let name = format!("ironweir/{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(server.get("/").header("Server"), Some(name.as_str()));
    assert!(server.get("/").text().contains(&format!("<center>{name}</center>")));
    assert_eq!(server.get("/off").header("Server"), Some("ironweir"));
    assert!(server.get("/off").text().contains("<center>ironweir</center>"));
}

#[test]
fn pages_of_all_forms() {
    let server = Site::server(
        "error_page 404 /404.html;
         error_page 403 =200 /said.txt;
         error_page 402 = /answer;
         error_page 410 =301 https://example.com/gone;
         error_page 500 502 503 @named;
         location /403 { return 403; }
         location /402 { return 402; }
         location /410 { return 410; }
         location /503 { return 503; }
         location /own { error_page 404 /own.html; }
         location = /answer { return 201 answered; }
         location @named { return 200 \"named $status $uri\"; }",
    )
    .file("html/404.html", "nothing here")
    .file("html/own.html", "own")
    .file("html/said.txt", "said")
    .start();
    let said = |target: &str| {
        let r = server.get(target);
        (r.status, r.text())
    };
    assert_eq!(said("/none"), (404, "nothing here".to_owned()));
    assert_eq!(said("/403"), (200, "said".to_owned()));
    assert_eq!(said("/402"), (201, "answered".to_owned()));
    let r = server.get("/410");
    assert_eq!((r.status, r.header("Location")), (301, Some("https://example.com/gone")));
    assert_eq!(said("/503").0, 503);
    assert!(said("/503").1.starts_with("named 503 /503"), "{:?}", said("/503"));
    // A level that sets its own inherits none.
    assert_eq!(said("/own/none"), (404, "own".to_owned()));
    assert_eq!(server.connect().head("/none").header("Content-Length"), Some("12"));
}

#[test]
fn internal_locations() {
    let server = Site::server(
        "error_page 404 /inside/404; location /inside/ { internal; return 200 \"inside $uri\"; location ~ q { return 200 q; } } location /x { return 404; }",
    )
    .start();
    assert_eq!(server.get("/x").text(), "inside /inside/404");
    assert_eq!(server.get("/inside/404").status, 404);
    // So are the locations in it.
    assert_eq!(server.get("/inside/q").status, 404);
}

#[test]
fn a_head_that_goes_wrong_after_its_host_is_for_that_server() {
    let server = Site::http(
        "server { listen 127.0.0.1:@PORT@; server_name first; error_page 400 /e; location = /e { return 200 first; } }
         server { listen 127.0.0.1:@PORT@; server_name second; error_page 400 /e; location = /e { return 200 \"$host $uri $request_method\"; } }",
    )
    .start();
    let wrong = |lines: &str| server.connect().send(format!("PUT /x HTTP/1.1\r\n{lines}\r\n\r\n")).response().text();
    assert_eq!(wrong("Host: second\r\nContent-Length: x"), "second /e GET");
    assert_eq!(wrong("Host: second\r\nExpect: a\r\nExpect: b"), "second /e GET");
    assert_eq!(wrong("Host: second\r\nna\x01me: x"), "second /e GET");
    assert_eq!(wrong("Content-Length: x\r\nHost: second"), "first");
    assert_eq!(wrong("na\x01me: x\r\nHost: second"), "first");
}

#[test]
fn the_page_for_a_body_that_is_too_large_has_no_part_in_it() {
    let page = Backend::ok("too large");
    let server = Site::server(
        "client_max_body_size 10; error_page 413 /page;
         location / { proxy_pass http://127.0.0.1:@PAGE@; }
         location = /page { proxy_pass http://127.0.0.1:@PAGE@; }",
    )
    .set("PAGE", page.port)
    .start();
    for body in [
        "Content-Length: 20\r\n\r\n12345678901234567890",
        "Transfer-Encoding: chunked\r\n\r\n14\r\n12345678901234567890\r\n0\r\n\r\n",
    ] {
        let response = server.connect().send(format!("POST / HTTP/1.1\r\nHost: x\r\n{body}")).response();
        assert_eq!((response.status, response.text().as_str()), (413, "too large"));
    }
    let seen = page.seen();
    assert_eq!(seen.len(), 2);
    for asked in seen {
        assert_eq!((asked.line(), asked.body.len()), ("GET /page HTTP/1.1", 0));
        assert_eq!(asked.header("Content-Length"), Some("0"));
    }
    assert_eq!(server.error_log().matches("too large chunked body").count(), 1);
}

#[test]
fn the_page_of_a_range_that_is_not_there_knows_the_status() {
    let server = Site::server(
        "error_page 416 /page?s=$status; location /file { } location /page { return 200 \"$status $args\"; }",
    )
    .file("html/file", "content")
    .start();
    let r = server.connect().send("GET /file HTTP/1.1\r\nHost: a\r\nRange: bytes=999-\r\n\r\n").response();
    assert_eq!((r.status, r.text()), (416, "416 s=416".to_owned()));
}
