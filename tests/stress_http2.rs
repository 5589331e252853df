//! `ironweir stress --http 2` against nginx and Ironweir.

use crate::harness::{Backend, Json, Program, Reply, Server, Site, has_tools, run_stress, text};
use std::time::Duration;

fn start(program: Program, text: &str) -> Option<Server> {
    let site =
        Site::http(&format!("{text} server {{ listen 127.0.0.1:@PORT@ http2; location / {{ return 200 hello; }} }}"));
    let server = site.start_as(program);
    if server.is_none() {
        println!("no nginx here: left out");
    }
    server
}

fn url(server: &Server) -> String {
    format!("http://127.0.0.1:{}/", server.port)
}

#[test]
fn so_many_requests_on_so_many_streams() {
    for program in [Program::Ironweir, Program::Nginx] {
        let Some(server) = start(program, "") else { continue };
        let json = Json::of(&format!("--http 2 -t2 -c4 --streams 8 -n 803 {}", url(&server)));
        let numbers = ["requests", "errors.total", "connects", "statuses.200", "streams"].map(|name| json.number(name));
        assert_eq!(numbers, [803.0, 0.0, 4.0, 803.0, 8.0], "{program:?}: {}", json.0);
        assert_eq!(
            (json.raw("http"), json.0.contains("\"preflight\": []")),
            ("\"2\"", false),
            "the same machine is noted"
        );
    }
}

/// GOAWAY after so many requests, and fewer streams at a time than we would like: nothing is lost, nothing counted as failed.
#[test]
fn a_target_that_ends_connections_and_takes_few_streams() {
    for program in [Program::Ironweir, Program::Nginx] {
        let Some(server) = start(program, "keepalive_requests 25; http2_max_concurrent_streams 3;") else { continue };
        for pace in ["", "-R 2000 -d 1s"] {
            let json =
                Json::of(&format!("--http 2 -t1 -c2 --streams 10 -n 500 --no-preflight {pace} {}", url(&server)));
            let numbers = ["requests", "errors.total"].map(|name| json.number(name));
            assert_eq!(numbers, [500.0, 0.0], "{program:?} {pace}: {}", json.0);
            assert!(json.number("connects") >= 20.0, "{program:?} {pace}: {}", json.0);
        }
    }
}

#[test]
fn bodies_go_and_come_within_windows() {
    let backend =
        Backend::start(|seen| Reply::ok(&format!("{} {} {}", seen.body.len(), seen.line(), "x".repeat(300_000))));
    let site = Site::http(&format!(
        "client_max_body_size 4m; server {{ listen 127.0.0.1:@PORT@ http2; location / {{ proxy_pass http://127.0.0.1:{}; }} }}",
        backend.port
    ));
    let site = site.file("body", vec![b'b'; 700_000]);
    let file = site.path().join("body");
    let server = site.start();
    let line = format!("--http 2 -t1 -c1 --streams 3 -n 9 -m PUT -H X-A:b --no-preflight -B {}", file.display());
    let json = Json::of(&format!("{line} {}", url(&server)));
    assert_eq!((json.number("requests"), json.number("errors.total")), (9.0, 0.0), "{}", json.0);
    assert!(json.number("bytes_read") > 2_700_000.0 && json.number("bytes_written") > 6_300_000.0, "{}", json.0);
    let seen = backend.seen();
    assert!(seen.iter().all(|s| s.body.len() == 700_000 && s.header("X-A") == Some("b")));
    assert_eq!((seen.len(), seen[0].line().split(' ').next()), (9, Some("PUT")));
}

#[test]
fn over_tls_by_alpn() {
    if !has_tools() {
        return;
    }
    let tls = |http2: &str| {
        let site = Site::http(&format!(
            "server {{ listen 127.0.0.1:@PORT@ ssl {http2}; ssl_certificate @DIR@/t.crt; ssl_certificate_key @DIR@/t.key; \
             location / {{ return 200 \"$server_protocol\"; }} }}"
        ));
        site.certificate("t").start()
    };
    let server = tls("http2");
    let json = Json::of(&format!("--http 2 -t1 -c2 --streams 4 -n 200 https://127.0.0.1:{}/", server.port));
    assert_eq!((json.number("requests"), json.number("connects")), (200.0, 2.0), "{}", json.0);
    let short = Json::of(&format!("--http 2 -t1 -c2 -n 20 --no-keepalive https://127.0.0.1:{}/", server.port));
    assert_eq!((short.number("requests"), short.number("connects")), (20.0, 20.0), "{}", short.0);
    let old = tls("");
    let out = run_stress(&format!("--http 2 -t1 -c1 -n 2 https://127.0.0.1:{}/", old.port));
    assert_eq!(out.status.code(), Some(4), "{out:?}");
    assert!(text(&out).contains("one request before the run failed: "), "{out:?}");
}

#[test]
fn a_late_answer_costs_its_stream() {
    let backend = Backend::start(|seen| {
        if seen.line().contains("/late") {
            std::thread::sleep(Duration::from_secs(3));
        }
        Reply::ok("x")
    });
    let site = Site::http(&format!(
        "server {{ listen 127.0.0.1:@PORT@ http2; location / {{ proxy_pass http://127.0.0.1:{}; }} }}",
        backend.port
    ));
    let site = site.file("urls", "/late\n/a\n/b\n/c\n");
    let file = site.path().join("urls");
    let server = site.start();
    let line =
        format!("--http 2 -t1 -c1 --streams 4 -n 8 --timeout 400ms --no-preflight --url-file {}", file.display());
    let json = Json::of(&format!("{line} {}", url(&server)));
    let numbers = ["requests", "errors.timeout", "errors.total", "connects"].map(|name| json.number(name));
    assert_eq!(numbers, [6.0, 2.0, 2.0, 1.0], "{}", json.0);
}

#[test]
fn what_is_no_http2_and_what_is_refused() {
    let backend = Backend::ok("x");
    let json = Json::of(&format!("--http 2 -t1 -c1 -n 2 http://127.0.0.1:{}/ --timeout 1s", backend.port));
    assert_eq!((json.number("requests"), json.number("errors.total") > 0.0), (0.0, true), "{}", json.0);
    for (line, why) in [
        ("--http 4", "--http 4: 1.1, 2 or 3"),
        ("--http 2 --close server", "with --http 2, client or rst"),
        ("--streams 2", "--streams goes with --http 2 or 3"),
        ("--http 2 --hold 3", "not with --http 2"),
    ] {
        let out = run_stress(&format!("{line} http://127.0.0.1:1/"));
        assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains(why), "{line}: {out:?}");
    }
}
