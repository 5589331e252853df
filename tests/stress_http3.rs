//! `ironweir stress --http 3` against Ironweir and, where it is installed, an independent server.

use crate::harness::quic::{certain_site, quic_site};
use crate::harness::{Backend, Json, Reply, Server, run_stress, text};
use std::net::UdpSocket;
use std::time::Duration;

fn start(http: &str, server: &str) -> Server {
    quic_site(http, server).set("THREADS", 2).start()
}

fn url(server: &Server) -> String {
    format!("https://127.0.0.1:{}/", server.port)
}

fn numbers<const N: usize>(json: &Json, names: [&str; N]) -> [f64; N] {
    names.map(|name| json.number(name))
}

#[test]
fn so_many_requests_on_so_many_streams() {
    let server = start("", "location / { add_header X-B $http3; return 200 $server_protocol; }");
    let json = Json::of(&format!("--http 3 -t2 -c4 --streams 8 -n 803 --backend-header X-B {}", url(&server)));
    let wanted = [803.0, 0.0, 4.0, 803.0, 8.0, 803.0, 4.0, 0.0];
    let names = ["requests", "errors.total", "connects", "statuses.200", "streams", "backends.h3", "connect_us.count"];
    assert_eq!(numbers(&json, names), wanted[..7], "{}", json.0);
    assert!(json.number("first_byte_us.count") == 803.0 && json.number("bytes_read") > 803.0 * 20.0, "{}", json.0);
    assert_eq!(json.raw("http"), "\"3\"");
    assert!(!json.0.contains("one request before the run failed"), "{}", json.0);
}

/// GOAWAY after so many requests, and fewer streams at a time than we would like: nothing is lost, nothing counted as failed.
#[test]
fn a_target_that_ends_connections_and_takes_few_streams() {
    let server = start("keepalive_requests 25; http3_max_concurrent_streams 3;", "location / { return 200 x; }");
    for pace in ["", "-R 2000 -d 10s"] {
        let json = Json::of(&format!("--http 3 -t1 -c2 --streams 10 -n 500 --no-preflight {pace} {}", url(&server)));
        assert_eq!(numbers(&json, ["requests", "errors.total"]), [500.0, 0.0], "{pace}: {}", json.0);
        assert!(json.number("connects") >= 20.0, "{pace}: {}", json.0);
    }
}

#[test]
fn bodies_go_and_come_within_windows() {
    let backend =
        Backend::start(|seen| Reply::ok(&format!("{} {} {}", seen.body.len(), seen.line(), "x".repeat(300_000))));
    let site = quic_site("", &format!("location / {{ proxy_pass http://127.0.0.1:{}; }}", backend.port));
    let site = site.set("THREADS", 1).file("body", vec![b'b'; 700_000]);
    let file = site.path().join("body");
    let server = site.start();
    let line = format!("--http 3 -t1 -c1 --streams 3 -n 9 -m PUT -H X-A:b --no-preflight -B {}", file.display());
    let json = Json::of(&format!("{line} {}", url(&server)));
    assert_eq!(numbers(&json, ["requests", "errors.total"]), [9.0, 0.0], "{}", json.0);
    assert!(json.number("bytes_read") > 2_700_000.0 && json.number("bytes_written") > 6_300_000.0, "{}", json.0);
    let seen = backend.seen();
    assert!(seen.iter().all(|s| s.body.len() == 700_000 && s.header("X-A") == Some("b")));
    assert_eq!((seen.len(), seen[0].line().split(' ').next()), (9, Some("PUT")));
}

#[test]
fn a_connection_for_each_request_with_and_without_resumption() {
    let site = quic_site("", "location / { return 200 $ssl_server_name; }");
    let certificate = site.path().join("localhost.crt");
    let server = site.set("THREADS", 2).start();
    let short = format!("--http 3 -t1 -c2 -n 40 --no-keepalive --sni localhost --no-preflight {}", url(&server));
    let json = Json::of(&short);
    assert_eq!(numbers(&json, ["requests", "connects", "reconnects"]), [40.0, 40.0, 0.0], "{}", json.0);
    assert!(json.number("resumed") >= 30.0, "{}", json.0);
    let json = Json::of(&format!("{short} --no-resumption"));
    assert_eq!(numbers(&json, ["requests", "resumed"]), [40.0, 0.0], "{}", json.0);
    let checked = format!("{short} --cacert {}", certificate.display());
    assert_eq!(Json::of(&checked).number("requests"), 40.0);
    let wrong = run_stress(&checked.replace("--sni localhost", "--sni other.test --quiet --json -"));
    assert_eq!(Json(text(&wrong)).number("errors.tls"), 40.0, "{wrong:?}");
}

#[test]
fn a_certificate_of_the_client() {
    let (server, pair) = certain_site();
    let line = format!("--http 3 -t1 -c2 -n 20 --no-preflight {}", url(&server));
    let json = Json::of(&format!("{pair} {line}"));
    assert_eq!(numbers(&json, ["statuses.200", "errors.total", "connects"]), [20.0, 0.0, 2.0], "{}", json.0);
    assert_eq!(Json::of(&line).number("statuses.400"), 20.0);
}

#[test]
fn a_late_answer_costs_its_stream_and_a_silent_target_its_connection() {
    let backend = Backend::start(|seen| {
        if seen.line().contains("/late") {
            std::thread::sleep(Duration::from_secs(3));
        }
        Reply::ok("x")
    });
    let site = quic_site("", &format!("location / {{ proxy_pass http://127.0.0.1:{}; }}", backend.port));
    let site = site.set("THREADS", 1).file("urls", "/late\n/a\n/b\n/c\n");
    let file = site.path().join("urls");
    let server = site.start();
    let line = format!("--http 3 -t1 -c1 --streams 4 -n 8 --timeout 1s --no-preflight --url-file {}", file.display());
    let json = Json::of(&format!("{line} {}", url(&server)));
    let names = ["requests", "errors.timeout", "errors.total", "connects"];
    assert_eq!(numbers(&json, names), [6.0, 2.0, 2.0, 1.0], "{}", json.0);
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let line = format!("--http 3 -t1 -c1 -n 2 --timeout 300ms --no-preflight --json - https://127.0.0.1:{port}/");
    assert_eq!(Json(text(&run_stress(&line))).number("errors.connect_timeout"), 2.0);
    drop(silent);
    assert_eq!(Json(text(&run_stress(&line))).number("errors.refused"), 2.0);
}

#[test]
fn what_is_refused() {
    for (line, why) in [
        ("http://127.0.0.1:1/", "--http 3 needs an https:// URL"),
        ("--close server https://127.0.0.1:1/", "with --http 3, client"),
        ("--close rst https://127.0.0.1:1/", "--close rst is TCP's"),
        ("--hold 3 https://127.0.0.1:1/", "not with --http 2 or 3"),
        ("--unix /x https://127.0.0.1:1/", "--unix is a stream"),
        ("--proxy-protocol 1 https://127.0.0.1:1/", "QUIC has no place for it"),
    ] {
        let out = run_stress(&format!("--http 3 {line}"));
        assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains(why), "{line}: {out:?}");
    }
}
