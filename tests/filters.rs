//! What changes an answer on its way out: conditions, ranges, headers.

use crate::harness::{Response, Server, Site};

const PAGE: &str = "0123456789abcdefghij";
const CHANGED: &str = "Mon, 28 Sep 1970 06:00:00 GMT";

fn ask(server: &Server, target: &str, lines: &[(&str, &str)]) -> Response {
    let lines: String = lines.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    server.connect().send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n")).response()
}

#[test]
fn conditions_of_a_file() {
    let server = Site::server("location / { }").file("html/page", PAGE).start();
    let first = server.get("/page");
    let (tag, date) = (first.header("ETag").unwrap(), first.header("Last-Modified").unwrap());
    let weak = format!("\"x\", W/{tag}");
    let status = |name, value| ask(&server, "/page", &[(name, value)]).status;
    assert_eq!(status("If-None-Match", tag), 304);
    assert_eq!(status("If-None-Match", &weak), 304);
    assert_eq!(status("If-None-Match", "\"x\""), 200);
    assert_eq!(status("If-Modified-Since", date), 304);
    assert_eq!(status("If-Modified-Since", CHANGED), 200);
    assert_eq!(status("If-Match", "\"x\""), 412);
    assert_eq!(status("If-Match", &weak), 412);
    assert_eq!(status("If-Match", "*"), 200);
    assert_eq!(status("If-Unmodified-Since", CHANGED), 412);
    assert_eq!(status("If-Unmodified-Since", date), 200);
    let r = ask(&server, "/page", &[("If-None-Match", tag)]);
    assert_eq!((r.header("ETag"), r.header("Content-Length"), r.header("Accept-Ranges")), (Some(tag), None, None));
}

#[test]
fn one_range() {
    let server = Site::server("location / { } location /none { max_ranges 0; }")
        .file("html/page", PAGE)
        .file("html/none", PAGE)
        .start();
    let whole = server.get("/page");
    assert_eq!((whole.status, whole.header("Accept-Ranges")), (200, Some("bytes")));
    let part = |range| {
        let r = ask(&server, "/page", &[("Range", range)]);
        (r.status, r.header("Content-Range").map(str::to_owned), r.text())
    };
    assert_eq!(part("bytes=2-4"), (206, Some("bytes 2-4/20".into()), "234".into()));
    assert_eq!(part("bytes=-3"), (206, Some("bytes 17-19/20".into()), "hij".into()));
    assert_eq!(part("lines=1-2").0, 200);
    let (status, range, text) = part("bytes=20-");
    assert_eq!((status, range), (416, Some("bytes */20".into())));
    assert!(text.contains("416 Requested Range Not Satisfiable"));
    let dated = |date| ask(&server, "/page", &[("Range", "bytes=0-0"), ("If-Range", date)]).status;
    assert_eq!(dated(whole.header("Last-Modified").unwrap()), 206);
    assert_eq!(dated(whole.header("ETag").unwrap()), 206);
    assert_eq!((dated(CHANGED), dated("\"x\"")), (200, 200));
    let none = ask(&server, "/none", &[("Range", "bytes=0-0")]);
    assert_eq!((none.status, none.header("Accept-Ranges")), (200, None));
}

#[test]
fn several_ranges() {
    let server = Site::server("location / { default_type text/x; }").file("html/page", PAGE).start();
    let r = ask(&server, "/page", &[("Range", "bytes=4-5, 0-1, -1")]);
    assert_eq!(r.status, 206);
    let kind = r.header("Content-Type").unwrap();
    let boundary = kind.strip_prefix("multipart/byteranges; boundary=").unwrap();
    let part = |range, text| {
        format!("\r\n--{boundary}\r\nContent-Type: text/x\r\nContent-Range: bytes {range}/20\r\n\r\n{text}")
    };
    let expected = [part("4-5", "45"), part("0-1", "01"), part("19-19", "j")].concat();
    assert_eq!(r.text(), format!("{expected}\r\n--{boundary}--\r\n"));
}

#[test]
fn added_headers() {
    let server = Site::server(
        "add_header X-All $uri; add_header X-Always 1 always;
         location /own { add_header X-Own 1; }
         location /merged { add_header_inherit merge; add_header X-Own 1; }
         location /off { add_header_inherit off; }
         location /dates { expires 1h; add_header Last-Modified ''; }
         location /epoch { expires epoch; }
         location /var { expires $arg_e; }",
    );
    let files = ["page", "own", "merged", "off", "dates", "epoch", "var"];
    let server = files.iter().fold(server, |site, name| site.file(&format!("html/{name}"), PAGE)).start();
    let has = |target: &str| {
        let r = server.get(target);
        ["X-All", "X-Always", "X-Own"].map(|n| r.header(n).is_some())
    };
    assert_eq!(has("/page"), [true, true, false]);
    assert_eq!(has("/missing"), [false, true, false]);
    assert_eq!(has("/own"), [false, false, true]);
    assert_eq!(has("/merged"), [true, true, true]);
    assert_eq!(has("/off"), [false, false, false]);
    let dates = server.get("/dates");
    assert_eq!((dates.header("Cache-Control"), dates.header("Last-Modified")), (Some("max-age=3600"), None));
    assert_eq!(server.get("/epoch").header("Cache-Control"), Some("no-cache"));
    assert_eq!(server.get("/var").header("Expires"), None);
    assert_eq!(server.get("/var?e=max").header("Cache-Control"), Some("max-age=315360000"));
}

#[test]
fn trailers() {
    let server = Site::server("add_trailer X-Sent $bytes_sent; location / { }").file("html/page", PAGE).start();
    let mut client = server.connect();
    client.send("GET /page HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let text = String::from_utf8(client.rest()).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("\r\nTransfer-Encoding: chunked") && !head.contains("Content-Length"), "{head}");
    let (_, after) = body.split_once(&format!("14\r\n{PAGE}\r\n0\r\nX-Sent: ")).expect("a trailer behind the body");
    assert!(after.ends_with("\r\n\r\n"), "{after}");
}
