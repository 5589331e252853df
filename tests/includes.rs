//! `ssi`, `add_before_body`, `add_after_body`, `sub_filter`: answers with other answers or other words in them.

use crate::harness::{Backend, Reply, Server, Site, wait};
use std::sync::{Arc, Barrier};

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

/// A backend that answers nobody before so many have asked.
fn answers_together(count: usize) -> Backend {
    let all = Arc::new(Barrier::new(count));
    Backend::start(move |seen| {
        all.wait();
        Reply::ok(seen.line().split(' ').nth(1).unwrap_or_default())
    })
}

#[test]
fn includes_are_asked_for_at_once() {
    let (ten, two) = (answers_together(10), answers_together(2));
    let page: String = (0..10).map(|n| format!("<!--#include virtual=\"/t/{n}\" -->,")).collect();
    let server = Site::server(
        "ssi on; proxy_read_timeout 10s; location / { default_type text/html; }
         location /t/ { proxy_pass http://127.0.0.1:@TEN@; } location /two/ { proxy_pass http://127.0.0.1:@TWO@; }
         location /around { default_type text/html; add_before_body /two/b; add_after_body /two/a; }
         location /nested { default_type text/html; }",
    )
    .set("TEN", ten.port)
    .set("TWO", two.port)
    .file("html/page", &page)
    .file("html/around", "-page-")
    .file("html/nested", "<<!--#include virtual=\"/page\" -->>")
    .start();
    let expected: String = (0..10).map(|n| format!("/t/{n},")).collect();
    assert_eq!(ask(&server, "/page"), expected);
    assert_eq!(ask(&server, "/around"), "/two/b-page-/two/a");
    assert_eq!(ask(&server, "/nested"), format!("<{expected}>"));
}

/// All of them under one lock: one fetches, the others wait for it, not for each other.
#[test]
fn includes_wait_for_one_lock_together() {
    let backend = Backend::start(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        Reply::ok("cached")
    });
    let page: String = (0..8).map(|_| "<!--#include virtual=\"/c\" -->,").collect();
    let server = Site::http(
        "proxy_cache_path @DIR@/cache keys_zone=c:1m; server { listen 127.0.0.1:@PORT@; ssi on; default_type text/html;
         location /c { proxy_pass http://127.0.0.1:@BACKEND@; proxy_cache c; proxy_cache_valid 1m; proxy_cache_lock on; } }",
    )
    .set("BACKEND", backend.port)
    .file("html/page", &page)
    .start();
    assert_eq!(ask(&server, "/page"), "cached,".repeat(8));
    assert_eq!(backend.seen().len(), 1);
}

/// A page that includes others without end costs little memory, others are served beside it, and it ends with its client.
#[test]
fn endless_includes_are_bounded_and_end_with_their_client() {
    const MOST_KB: usize = 60_000;
    const LEAVES: usize = 1_500;
    let server = Site::http(
        "log_subrequest on; access_log off;
        server {
            listen 127.0.0.1:@PORT@; ssi on; default_type text/html;
            location /ok { ssi off; return 200 ok; }
            location /leaf { ssi off; access_log logs/leaves.log; return 200 leaf; }
        }",
    )
    .file("html/0", "<!--#include virtual=\"/1\" -->".repeat(40))
    .file("html/1", "<!--#include virtual=\"/2\" -->".repeat(40))
    .file("html/2", "<!--#include virtual=\"/3\" -->".repeat(40))
    .file("html/3", "<!--#include virtual=\"/leaf\" -->".repeat(40))
    .file("html/fan", "<!--#include virtual=\"/fan\" -->".repeat(2))
    .start();
    assert_eq!(server.get("/ok").text(), "ok");
    let before = server.own_memory_kb();
    let leaves = || server.read("logs/leaves.log").lines().count();
    for page in ["/0", "/fan"] {
        let mut client = server.connect();
        client.send(format!("GET {page} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        let mut turns = 0;
        assert!(wait(|| {
            assert_eq!(server.get("/ok").text(), "ok");
            turns += 1;
            if page == "/0" { leaves() > LEAVES } else { turns > 100 }
        }));
        let grown = server.own_memory_kb().saturating_sub(before);
        assert!(grown < MOST_KB, "{page}: {grown} kB");
    }
    assert!(wait(|| server.error_log().matches("client prematurely closed connection").count() == 2));
    // What was under way has ended with it.
    let then = leaves();
    (0..20).for_each(|_| assert_eq!(server.get("/ok").text(), "ok"));
    assert!(leaves() - then < 500, "{then} leaves, then {}", leaves());
}

/// More includes than are under way at once, and than fit into one piece of the page.
#[test]
fn a_long_page_of_includes_is_whole() {
    const COUNT: usize = 4_000;
    let server =
        Site::server("ssi on; location / { default_type text/html; } location /ok { ssi off; return 200 ok; }")
            .file("html/many", "<!--#include virtual=\"/ok\" -->,".repeat(COUNT))
            .start();
    assert!(ask(&server, "/many") == "ok,".repeat(COUNT));
}

/// Large answers that come before their turn wait, and what a subrequest sets is there for those that begin after it.
#[test]
fn includes_before_their_turn_wait_and_share_variables() {
    let large: Vec<String> = ["a", "b", "c"].map(|l| l.repeat(1_500_000)).into();
    let answers = large.clone();
    let backend = Backend::start(move |seen| {
        let n: usize = seen.line()[5..6].parse().expect("a number");
        // The first is the slowest.
        std::thread::sleep(std::time::Duration::from_millis(if n == 0 { 200 } else { 0 }));
        Reply::ok(&answers[n])
    });
    let server = Site::server(
        "ssi on; default_type text/html; set $seen none; location / { }
         location /large/ { proxy_pass http://127.0.0.1:@BACKEND@/; }
         location /set { set $seen here; return 200 set; } location /show { return 200 $seen; }",
    )
    .set("BACKEND", backend.port)
    .file("html/page", (0..3).map(|n| format!("<!--#include virtual=\"/large/{n}\" -->")).collect::<String>())
    .file("html/vars", "<!--#include virtual=\"/set\" wait=\"yes\" --> <!--#echo var=\"seen\" -->")
    .start();
    assert!(ask(&server, "/page") == large.concat());
    assert_eq!(ask(&server, "/vars"), "set here");
}
