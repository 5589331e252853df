//! `ssi`, `add_before_body`, `add_after_body`, `sub_filter`: answers with other answers or other words in them.

use crate::harness::{Server, Site};

fn ask(server: &Server, target: &str) -> String {
    server.connect().send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")).response().text()
}

#[test]
fn includes_stand_in_their_places() {
    let server = Site::server("ssi on; location / { default_type text/html; } location /gone { return 404; }")
        .file(
            "html/page",
            "<!--#block name=\"b\" -->stub<!--#endblock -->1<!--#include virtual=\"/a?v=2\" -->3\
             <!--#include virtual=\"/gone\" stub=\"b\" -->4<!--#include virtual=\"c\" set=\"x\" -->[<!--#echo var=\"x\" -->]",
        )
        .file("html/a", "(<!--#echo var=\"arg_v\" --><!--#include file=\"c\" -->)")
        .file("html/c", "c")
        .file("html/self", "s<!--#include virtual=\"/self\" -->")
        .start();
    let mut client = server.connect();
    for _ in 0..2 {
        let r = client.send("GET /page HTTP/1.1\r\nHost: a\r\n\r\n").response();
        assert_eq!(r.text(), "1(2c)3stub4[c]");
        assert_eq!((r.header("Content-Length"), r.header("Last-Modified"), r.header("ETag")), (None, None, None));
    }
    let cycle = ask(&server, "/self");
    assert!(cycle.starts_with("sss") && cycle.ends_with("[an error occurred while processing the directive]"));
}

#[test]
fn large_includes() {
    let long: String = (0..100_000).map(|n| format!("{n} ")).collect();
    let server = Site::server(
        "ssi on; location / { default_type text/html; } location /p/ { proxy_pass http://localhost:@PORT@/; }",
    )
    .file("html/page", "<<!--#include virtual=\"/long\" -->|<!--#include virtual=\"/p/long\" -->>")
    .file("html/long", &long)
    .start();
    assert!(ask(&server, "/page") == format!("<{long}|{long}>"));
}

#[test]
fn before_and_after() {
    let server = Site::server(
        "location / { default_type text/html; add_before_body /b; add_after_body /a; } \
         location /b { return 200 before-; } location /a { return 200 -after; }",
    )
    .file("html/page", "page")
    .start();
    assert_eq!(ask(&server, "/page"), "before-page-after");
    let head = server.connect().head("/page");
    assert_eq!((head.status, head.header("Content-Length")), (200, None));
}

#[test]
fn replaced_words() {
    let long = "lorem ipsum ".repeat(20_000);
    let server = Site::server(
        "location / { default_type text/html; sub_filter_once off; sub_filter 'IPSUM L' '$arg_w'; sub_filter nothing x; }",
    )
    .file("html/long", &long)
    .start();
    assert!(ask(&server, "/long?w=_") == long.replace("ipsum l", "_"));
}
