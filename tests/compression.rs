//! `gzip`, `gunzip` and `charset`: what recodes a body on its way out.

use crate::harness::{Backend, Reply, Response, Server, Site};
use std::io::Read;

/// Several pieces of a file as the filters read it, with no period that fits them.
fn long_page() -> String {
    (0..60_000).map(|n| format!("{n} ")).collect()
}

fn ask(server: &Server, target: &str, lines: &str) -> Response {
    server.connect().send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n")).response()
}

fn ask_gzip(server: &Server, target: &str) -> Response {
    ask(server, target, "Accept-Encoding: gzip\r\n")
}

fn unpacked(r: &Response) -> String {
    assert_eq!(r.header("Content-Encoding"), Some("gzip"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(&r.body[..]).read_to_string(&mut text).unwrap();
    text
}

#[test]
fn compressed_files() {
    let page = "0123456789".repeat(10);
    let server =
        Site::server("gzip on; gzip_vary on; location / { default_type text/html; } location /x { default_type a/b; }")
            .file("html/page", &page)
            .file("html/short", "short")
            .file("html/x", &page)
            .start();
    let r = ask_gzip(&server, "/page");
    assert_eq!(unpacked(&r), page);
    assert!(r.header("ETag").unwrap().starts_with("W/\""));
    assert_eq!((r.header("Vary"), r.header("Content-Length")), (Some("Accept-Encoding"), None));
    assert_eq!(r.header("Accept-Ranges"), None);
    let plain = server.get("/page");
    assert_eq!((plain.header("Vary"), plain.header("Content-Encoding")), (Some("Accept-Encoding"), None));
    assert_eq!((plain.text(), plain.header("Accept-Ranges")), (page, Some("bytes")));
    for other in ["/short", "/x"] {
        let r = ask_gzip(&server, other);
        assert_eq!((r.status, r.header("Content-Encoding"), r.header("Vary")), (200, None, None), "{other}");
    }
}

#[test]
fn compressed_on_one_connection_and_counted() {
    let server = Site::http("log_format f \"$uri $gzip_ratio\"; server { listen @PORT@; access_log ratio.log f; gzip on; location / { default_type text/html; } }")
        .file("html/page", "x".repeat(1000))
        .file("html/long", long_page())
        .start();
    let mut client = server.connect();
    for (target, expected) in [("/page", "x".repeat(1000)), ("/long", long_page()), ("/page", "x".repeat(1000))] {
        let r = client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n")).response();
        assert!(unpacked(&r) == expected, "{target}");
    }
    drop(client);
    server.get("/page");
    server.wait_for("ratio.log", "/page -");
    let log = server.read("ratio.log");
    let ratio = |line: &str| line.split(' ').nth(1).unwrap().parse::<f64>().unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert!(ratio(lines[0]) > 20.0 && ratio(lines[1]) > 1.5, "{log}");
}

#[test]
fn pieces_of_an_unbuffered_answer_leave_at_once() {
    let backend = Backend::start(|_| {
        Reply::Keep(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n".to_vec(),
        )
    });
    let server = Site::server("gzip on; proxy_buffering off; location / { proxy_pass http://127.0.0.1:@BACKEND@; }")
        .set("BACKEND", backend.port)
        .start();
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
    let mut seen = Vec::new();
    while crate::harness::find(&seen, b"\r\n\r\n").is_none() {
        seen.extend(client.take(1));
    }
    let size = |client: &mut crate::harness::Client| {
        let mut digits = Vec::new();
        while !digits.ends_with(b"\r\n") {
            digits.extend(client.take(1));
        }
        usize::from_str_radix(std::str::from_utf8(&digits).unwrap().trim(), 16).unwrap()
    };
    let mut packed = Vec::new();
    let mut text = [0; 5];
    while flate2::read::GzDecoder::new(&packed[..]).read_exact(&mut text).is_err() {
        let size = size(&mut client);
        packed.extend(client.take(size));
        client.take(2);
    }
    assert_eq!(&text, b"first");
}

#[test]
fn named_charsets() {
    let server = Site::server(
        "charset utf-8; default_type text/html; override_charset off;
         location / { } location /moved { return 301 /x; } location /own { charset $arg_c; }
         location /type { default_type image/x; } location /all { default_type image/x; charset_types *; }",
    )
    .file("html/page", "")
    .file("html/type", "")
    .file("html/all", "")
    .file("html/own", "")
    .start();
    let kind = |target| server.get(target).header("Content-Type").map(str::to_owned).unwrap();
    assert_eq!(kind("/page"), "text/html; charset=utf-8");
    assert_eq!(kind("/moved"), "text/html");
    assert_eq!(kind("/own?c=koi8-r"), "text/html; charset=koi8-r");
    assert_eq!(kind("/type"), "image/x");
    assert_eq!(kind("/all"), "image/x; charset=utf-8");
}

const MAPS: &str = "default_type text/plain;
    charset_map koi8-r utf-8 { E1 D090; C2 D0B1; }
    charset_map B A { 58 59; }";

#[test]
fn recoded_bodies() {
    let text = "Аб€ plain ".repeat(20_000);
    let server = Site::http(&format!(
        "{MAPS} server {{ listen @PORT@;
            location /koi {{ source_charset utf-8; charset koi8-r; }}
            location /utf {{ source_charset koi8-r; charset utf-8; }}
            location /packed {{ source_charset koi8-r; charset utf-8; gzip on; gzip_types text/plain; }}
            location /bytes {{ source_charset B; charset A; }} }}"
    ))
    .file("html/koi", &text)
    .file("html/utf", b"\xe1\xc2+".repeat(60_000))
    .file("html/packed", b"\xe1\xc2+".repeat(60_000))
    .file("html/bytes", "aX".repeat(100_000))
    .start();
    let koi = server.get("/koi");
    assert_eq!((koi.header("Content-Type"), koi.header("Content-Length")), (Some("text/plain; charset=koi8-r"), None));
    assert!(koi.body == b"\xe1\xc2&#8364; plain ".repeat(20_000));
    assert!(server.get("/utf").text() == "Аб+".repeat(60_000));
    assert!(unpacked(&ask_gzip(&server, "/packed")) == "Аб+".repeat(60_000));
    let bytes = server.get("/bytes");
    assert_eq!(bytes.header("Content-Length"), Some("200000"));
    assert!(bytes.text() == "aY".repeat(100_000));
    let part = |range| ask(&server, "/bytes", &format!("Range: bytes={range}\r\n"));
    assert!(part("1-150000").text() == "Ya".repeat(75_000));
    assert_eq!(part("199998-").text(), "aY");
    let several = part("199999-,0-1").text();
    assert!(several.contains("199999-199999/200000\r\n\r\nY") && several.contains("0-1/200000\r\n\r\naY"));
}

#[test]
fn answers_of_upstreams_are_recoded_when_they_say_so() {
    let backend = Backend::start(|seen| {
        let charset = if seen.line().contains("named") { "; charset=B" } else { "" };
        let wish = if seen.line().contains("wish") { "X-Accel-Charset: A\r\n" } else { "" };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain{charset}\r\n{wish}Content-Length: 2\r\n\r\nXX");
        Reply::Keep(head.into())
    });
    let server = Site::http(&format!(
        "{MAPS} server {{ listen @PORT@; location / {{ charset A; proxy_pass http://127.0.0.1:@BACKEND@; }}
            location /over {{ charset A; override_charset on; proxy_pass http://127.0.0.1:@BACKEND@/named; }}
            location /wish {{ source_charset B; proxy_pass http://127.0.0.1:@BACKEND@; }} }}"
    ))
    .set("BACKEND", backend.port)
    .start();
    let got = |target| {
        let r = server.get(target);
        (r.header("Content-Type").map(str::to_owned).unwrap(), r.text())
    };
    assert_eq!(got("/named"), ("text/plain; charset=B".into(), "XX".into()));
    assert_eq!(got("/plain"), ("text/plain; charset=A".into(), "XX".into()));
    assert_eq!(got("/over"), ("text/plain; charset=A".into(), "YY".into()));
    assert_eq!(got("/wish"), ("text/plain; charset=A".into(), "YY".into()));
}

#[test]
fn unpacked_for_those_who_cannot() {
    let packed = |text: &str| {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        std::io::Write::write_all(&mut out, text.as_bytes()).unwrap();
        out.finish().unwrap()
    };
    let whole = packed(&long_page());
    let two = [packed("first, "), packed("second")].concat();
    let server = Site::server(
        "gunzip on; gzip_vary on; location / { gzip_static always; default_type text/html; }
         location /sub/ { alias @DIR@/html/; gzip_static always; sub_filter_types *; sub_filter second 2nd; }",
    )
    .file("html/page.gz", &whole)
    .file("html/two.gz", two)
    .file("html/cut.gz", &whole[..whole.len() - 20])
    .file("html/plain", "plain")
    .start();
    let r = ask_gzip(&server, "/page");
    assert!(unpacked(&r) == long_page());
    let length = whole.len().to_string();
    assert_eq!((r.header("Content-Length"), r.header("Accept-Ranges")), (Some(&length[..]), Some("bytes")));
    let r = server.get("/page");
    assert!(r.text() == long_page() && r.header("ETag").unwrap().starts_with("W/\""));
    assert_eq!((r.header("Content-Encoding"), r.header("Content-Length")), (None, None));
    assert_eq!((r.header("Vary"), r.header("Accept-Ranges")), (Some("Accept-Encoding"), None));
    assert_eq!(server.get("/two").text(), "first, second", "members follow each other");
    assert_eq!(server.get("/sub/two").text(), "first, 2nd", "before other filters");
    assert_eq!((server.get("/plain").text(), server.get("/plain").header("Vary")), ("plain".into(), None));
    let mut client = server.connect();
    client.send("GET /cut HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(!client.rest().ends_with(b"0\r\n\r\n"), "what is cut does not look whole");
    assert!(server.error_log().contains("inflate() returned -5 on response end"));
}

/// The level that nobody has set: no more bytes than zlib makes of it, and of random bytes hardly more than there are.
#[test]
fn the_default_level_makes_as_little_as_zlib() {
    let text: String = (0..3000u32)
        .map(|n| format!("{{\"id\":{n},\"name\":\"user{}\"}},", n.wrapping_mul(2_654_435_761) % 9973))
        .collect();
    let mut state = 1u32;
    let random: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 11) as u8
    })
    .take(100_000)
    .collect();
    let server = Site::server("gzip on; gzip_types *; location / { }")
        .file("html/text", &text)
        .file("html/random", &random)
        .start();
    let size = |target: &str| ask_gzip(&server, target).body.len();
    let (text_size, random_size) = (size("/text"), size("/random"));
    // Of chunks, too: their heads are a few bytes.
    assert!(random_size < random.len() + 200, "{random_size}");
    // `gzip -1` makes 18,524 bytes of it.
    assert!(text_size <= 18_524, "{text_size}");
}
