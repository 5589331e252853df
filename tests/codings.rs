//! `brotli` and `zstd`: answers compressed by other codings than gzip, and files that are so already.

use crate::harness::{Response, Server, Site};
use std::io::Read;

fn long_page() -> String {
    (0..60_000).map(|n| format!("{n} ")).collect()
}

fn ask(server: &Server, target: &str, accepted: &str) -> Response {
    server.connect().send(format!("GET {target} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {accepted}\r\n\r\n")).response()
}

/// The body as it was, by what its head says.
fn unpacked(r: &Response) -> String {
    let mut text = Vec::new();
    match r.header("Content-Encoding") {
        Some("br") => brotli::BrotliDecompress(&mut &r.body[..], &mut text).unwrap(),
        Some("zstd") => drop(zstd::stream::read::Decoder::new(&r.body[..]).unwrap().read_to_end(&mut text).unwrap()),
        other => panic!("{other:?}"),
    }
    String::from_utf8(text).unwrap()
}

const BOTH: &str = "brotli on; zstd on; gzip on; gzip_vary on; default_type text/html;";

#[test]
fn answers_are_compressed_for_those_who_take_it() {
    let server = Site::http(&format!(
        "log_format f '$uri $brotli_ratio $zstd_ratio $gzip_ratio';
         server {{ listen 127.0.0.1:@PORT@; access_log @DIR@/logs/ratio.log f; {BOTH} location /x {{ brotli off; zstd_comp_level 20; }} }}"
    ))
    .file("html/page", long_page())
    .file("html/x", long_page())
    .file("html/short", "short")
    .start();
    for (target, accepted, coding) in [
        ("/page", "gzip, br, zstd", Some("br")),
        ("/page", "gzip, zstd", Some("zstd")),
        ("/page", "gzip;q=1, br;q=0", Some("gzip")),
        ("/page", "identity", None),
        ("/x", "br, zstd", Some("zstd")),
        ("/short", "br, zstd", None),
    ] {
        let r = ask(&server, target, accepted);
        assert_eq!(r.header("Content-Encoding"), coding, "{target} {accepted}");
        let is_short = target == "/short";
        assert_eq!(r.header("Vary"), (!is_short).then_some("Accept-Encoding"), "{target} {accepted}");
        if coding.is_some_and(|c| c != "gzip") {
            assert!(unpacked(&r) == long_page(), "{target} {accepted}");
            assert!(r.header("ETag").unwrap().starts_with("W/\""));
            assert_eq!((r.header("Content-Length"), r.header("Accept-Ranges")), (None, None));
        }
    }
    server.wait_for("logs/ratio.log", "/short");
    let log = server.read("logs/ratio.log");
    let ratio =
        |line: usize, column: usize| log.lines().nth(line).unwrap().split(' ').nth(column).unwrap().parse::<f64>();
    assert!(ratio(0, 1).unwrap() > 2.0 && ratio(0, 2).is_err() && ratio(0, 3).is_err(), "{log}");
    assert!(ratio(1, 2).unwrap() > 2.0 && ratio(1, 1).is_err(), "{log}");
}

#[test]
fn files_that_are_compressed_already() {
    let server = Site::server(
        "gzip_vary on; brotli_static on; zstd_static on; gzip_static on; default_type text/plain;
         location /always { brotli_static always; }",
    )
    .file("html/a", "plain")
    .file("html/a.br", "BR")
    .file("html/a.zst", "ZST")
    .file("html/a.gz", "GZ")
    .file("html/b", "plain")
    .file("html/b.zst", "ZST")
    .file("html/always.br", "BR")
    .start();
    for (target, accepted, body, coding) in [
        ("/a", "br, zstd, gzip", "BR", Some("br")),
        ("/a", "zstd, gzip", "ZST", Some("zstd")),
        ("/a", "gzip", "GZ", Some("gzip")),
        ("/a", "identity", "plain", None),
        ("/b", "br", "plain", None),
        ("/b", "zstd", "ZST", Some("zstd")),
        ("/always", "identity", "BR", Some("br")),
    ] {
        let r = ask(&server, target, accepted);
        assert_eq!((r.text().as_str(), r.header("Content-Encoding")), (body, coding), "{target} {accepted}");
        assert_eq!(r.header("Content-Type"), Some("text/plain"));
        let varies = target != "/always";
        assert_eq!(r.header("Vary").is_some(), varies, "{target} {accepted}");
    }
}

/// What an upstream says piece by piece reaches the client piece by piece.
#[test]
fn pieces_that_are_not_buffered_leave_at_once() {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server =
        Site::server(&format!("{BOTH} location / {{ proxy_buffering off; proxy_pass http://127.0.0.1:@BACKEND@; }}"))
            .set("BACKEND", port)
            .start();
    for coding in ["br", "zstd"] {
        let mut client = server.connect();
        client.send(format!("GET / HTTP/1.0\r\nHost: a\r\nAccept-Encoding: {coding}\r\n\r\n"));
        let (mut upstream, _) = listener.accept().unwrap();
        assert!(upstream.read(&mut [0; 4096]).unwrap() > 0);
        upstream.write_all(b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\nfirst ").unwrap();
        // Whoever waits for all of the first piece has it before there is a second.
        let mut packed = Vec::new();
        while !starts(coding, &packed).starts_with(b"first ") {
            packed.extend(client.take(1));
            let head = crate::harness::find(&packed, b"\r\n\r\n");
            if let Some(head) = head.filter(|_| packed.starts_with(b"HTTP")) {
                packed.drain(..head + 4);
            }
        }
        upstream.write_all(b"second").unwrap();
        drop(upstream);
        packed.extend(client.rest());
        assert_eq!(starts(coding, &packed), b"first second");
    }
}

/// What can be unpacked of the beginning of a body.
fn starts(coding: &str, packed: &[u8]) -> Vec<u8> {
    let (mut out, mut piece) = (Vec::new(), [0; 64]);
    let mut decoder: Box<dyn Read> = match coding {
        "br" => Box::new(brotli::Decompressor::new(packed, 4096)),
        _ => Box::new(zstd::stream::read::Decoder::new(packed).unwrap()),
    };
    while let Ok(n @ 1..) = decoder.read(&mut piece) {
        out.extend_from_slice(&piece[..n]);
    }
    out
}

#[test]
fn values_that_cannot_be() {
    for (text, expected) in [
        ("brotli_comp_level 12;", "value must be between 0 and 11"),
        ("brotli_window 3k;", "value must be 1k, 2k, 4k, and so on, up to 16m"),
        ("zstd_comp_level 0;", "value must be between 1 and 22"),
        ("brotli_static maybe;", "invalid value \"maybe\""),
    ] {
        let (status, said) = Site::server(text).check();
        assert!(!status.success() && said.contains(expected), "{text}: {said}");
    }
    let (status, said) = Site::http("zstd_dict_file @DIR@/none;").check();
    assert!(!status.success() && said.contains("No such file"), "{said}");
}
