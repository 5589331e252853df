//! Patterns that the library gives up on: it is not known whether they match, so what hangs on them is not done. All that use
//! patterns answer 500, with a line that names the pattern.

use crate::harness::quic::{ask, client, get, quic_site, run};
use crate::harness::{Backend, Reply, Server, Site, with_http2};

/// What `^/?(a+)+$` needs 2^40 steps for.
fn hard() -> String {
    format!("{}!", "a".repeat(40))
}

fn fails(server: &Server, request: &str, pattern: &str) {
    let before = server.error_log().matches(pattern).count();
    let r = server.connect().send(format!("{request}\r\n\r\n")).response();
    assert_eq!(r.status, 500, "{request}: {}", r.text());
    let log = server.error_log();
    assert!(log.matches(pattern).count() > before, "{pattern}: {log}");
    assert!(log.contains("[alert]") && log.contains("pcre2_match() failed: -47 on \""), "{log}");
}

#[test]
fn what_hangs_on_a_pattern_that_gives_up_is_refused() {
    let server = Site::http(
        "map $arg_a $mapped { default open; ~^(a+)+$1$ shut; }
         map $arg_a $simple { default open; ~^(?:a+)+$ shut; }
         server { listen 127.0.0.1:@PORT@; server_name localhost;
             location / { return 200 open; }
             location ~ ^/location/(a+)+$ { deny all; }
             location /nested/ { location ~ ^/nested/(?:a+)+$ { deny all; } return 200 open; }
             location = /if { if ($arg_a ~ ^(i|a+)+$) { return 403; } return 200 open; }
             location = /unless { if ($arg_a !~ ^(u|a+)+$) { return 200 open; } return 403; }
             location /rewrite/ { rewrite ^/rewrite/(a+)+$ /denied; return 200 open; }
             location = /map { if ($mapped = shut) { return 403; } return 200 open; }
             location = /simple { if ($simple = shut) { return 403; } return 200 open; }
             location = /referer { valid_referers ~(r|a+)+$; if ($invalid_referer) { return 403; } return 200 open; }
         }
         server { listen 127.0.0.1:@PORT@; server_name ~^(n|a+)+$; location / { return 403; } }",
    )
    .start();
    let hard = hard();
    let get = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: localhost");
    fails(&server, &get(&format!("/location/{hard}")), "\" using \"^/location/(a+)+$\"");
    fails(&server, &get(&format!("/nested/{hard}")), "\" using \"^/nested/(?:a+)+$\"");
    fails(&server, &get(&format!("/if?a={hard}")), "\" using \"^(i|a+)+$\"");
    fails(&server, &get(&format!("/unless?a={hard}")), "\" using \"^(u|a+)+$\"");
    fails(&server, &get(&format!("/rewrite/{hard}")), "\" using \"^/rewrite/(a+)+$\"");
    fails(&server, &get(&format!("/simple?a={hard}")), "\" using \"^(?:a+)+$\"");
    fails(&server, &(get("/referer") + "\r\nReferer: http://" + &hard), "\" using \"(r|a+)+$\"");
    fails(&server, &format!("GET / HTTP/1.1\r\nHost: {}_", "a".repeat(40)), "\" using \"^(n|a+)+$\"");
    assert_eq!(server.get("/location/ab").text(), "open");
    assert_eq!(server.get("/location/aa").status, 403);
}

/// What is made of an upstream's answer, and of what it is sent.
#[test]
fn answers_whose_patterns_give_up_are_not_sent() {
    let hard = hard();
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nLocation: {hard}\r\nSet-Cookie: c=d; Domain={hard}; Path={hard}\r\n\r\nhi"
    );
    let backend = Backend::start(move |_| Reply::Keep(answer.clone().into()));
    let server = Site::server(
        "location / { proxy_redirect off; proxy_pass http://127.0.0.1:@BACKEND@; }
         location /redirect { proxy_redirect ~^(r|a+)+$ /x; proxy_pass http://127.0.0.1:@BACKEND@; }
         location /domain { proxy_cookie_domain ~^(d|a+)+$ x; proxy_pass http://127.0.0.1:@BACKEND@; }
         location /path { proxy_cookie_path ~^(p|a+)+$ /x; proxy_pass http://127.0.0.1:@BACKEND@; }
         location /subs { subs_filter_types *; subs_filter ^(s|a+)+$ x r; default_type text/html; }
         location /fastcgi { fastcgi_split_path_info ^/fastcgi/(a+)+(!!)$; fastcgi_param X $fastcgi_path_info; fastcgi_pass 127.0.0.1:@BACKEND@; }",
    )
    .set("BACKEND", backend.port)
    .file("html/subs", &hard)
    .start();
    assert_eq!(server.get("/").text(), "hi");
    let get = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: localhost");
    fails(&server, &get("/redirect"), "\" using \"^(r|a+)+$\"");
    fails(&server, &get("/domain"), "\" using \"^(d|a+)+$\"");
    fails(&server, &get("/path"), "\" using \"^(p|a+)+$\"");
    fails(&server, &get("/subs"), "\" using \"^(s|a+)+$\"");
    let seen = backend.seen().len();
    fails(&server, &get(&format!("/fastcgi/{hard}!x")), "\" using \"^/fastcgi/(a+)+(!!)$\"");
    assert_eq!(backend.seen().len(), seen);
}

/// A client that pipelines such requests waits for the others after each of them.
#[test]
fn a_pattern_that_gives_up_ends_the_connections_turn() {
    const MANY: usize = 12;
    let server = Site::server("location / { return 200 open; } location ~ ^/(a+)+$ { deny all; }").start();
    let request = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", hard());
    let mut greedy = server.connect();
    let mut other = server.connect();
    assert_eq!(other.get("/").text(), "open");
    greedy.send(request.repeat(MANY));
    // The first of them is being worked on, or has been.
    server.wait_for("logs/error.log", "pcre2_match() failed");
    assert_eq!(other.get("/").text(), "open");
    let done = server.error_log().matches("pcre2_match() failed").count();
    assert!(done < MANY, "{done} of {MANY} came before somebody else");
    assert_eq!(greedy.response().status, 500);
}

/// The same for the streams of one connection of HTTP/2. Answers are taken in any order: all of them come.
#[test]
fn streams_of_http2_wait_for_other_connections_too() {
    const MANY: usize = 12;
    let server = Site::http(
        "server { listen 127.0.0.1:@PORT@; http2 on; location / { return 200 open; } location ~ ^/(a+)+$ { deny all; } }",
    )
    .start();
    let server = &server;
    with_http2(server, |requests| async move {
        let mut answers = Vec::new();
        for _ in 0..MANY {
            let request = http::Request::get(format!("http://localhost/{}", hard())).body(()).unwrap();
            let (answer, _) = requests.clone().ready().await.unwrap().send_request(request, true).unwrap();
            answers.push(tokio::spawn(answer));
        }
        let port = server.port;
        let other = tokio::task::spawn_blocking(move || crate::harness::Client::connect(port).get("/").text());
        assert_eq!(other.await.unwrap(), "open");
        let done = server.error_log().matches("pcre2_match() failed").count();
        assert!(done < MANY, "{done} of {MANY} came before somebody else");
        for answer in answers {
            assert_eq!(answer.await.unwrap().unwrap().status(), 500);
        }
    });
}

#[test]
fn streams_of_http3_are_all_answered() {
    let server =
        quic_site("", "location / { return 200 open; } location ~ ^/(a+)+$ { deny all; }").set("THREADS", 1).start();
    run(async {
        let (_endpoint, requests) = client(server.port).await;
        let path: &'static str = Box::leak(format!("/{}", hard()).into_boxed_str());
        let mut answers = Vec::new();
        for _ in 0..8 {
            let mut requests = requests.clone();
            answers.push(tokio::spawn(async move { ask(&mut requests, get(path), b"").await.status }));
        }
        for answer in answers {
            assert_eq!(answer.await.unwrap(), 500);
        }
        assert_eq!(ask(&mut requests.clone(), get("/"), b"").await.text(), "open");
    });
}
