//! The same requests to nginx, where it is installed, and to Ironweir: status, headers and body must be the same.
//! Debian's nginx is older than the one we follow, so what changed in nginx since is not asked here.

use crate::harness::{Program, Response, Server, Site};

fn site() -> Site {
    Site::http(
        "types { text/html html; text/plain txt; application/json json; }
         default_type application/octet-stream;
         map $arg_m $mapped { default none; a A; ~^b(.)$ B$1; }
         server {
             listen 127.0.0.1:@PORT@;
             server_name localhost;
             add_header X-Server 1;
             error_page 404 /404.html;
             location = /text { return 200 \"$scheme $host $request_method $uri $args $arg_x $http_x_a $cookie_c $remote_addr\"; }
             location = /map { return 200 \"$mapped\"; }
             location = /body { return 200 \"$content_length $content_type\"; }
             location /own { add_header X-Own 2 always; return 404; }
             location /expires { expires 1h; return 200 x; }
             location /moved { return 301 /text; }
             location /rewritten { rewrite ^/rewritten/(.*)$ /text?x=$1 last; }
             location /try { try_files $uri $uri/index.html @fallback; }
             location @fallback { return 200 \"fallback $uri\"; }
             location /list/ { autoindex on; }
             location /alias/ { alias @DIR@/html/sub/; }
             location /types.html { default_type text/x; types { } }
             location ~ ^/re/(\\d+)/(?<word>\\w+)$ { return 200 \"$1 $word\"; }
             location /denied { deny all; }
             location /allowed { allow 127.0.0.1; deny all; return 200 in; }
             location /only-get { limit_except GET { deny all; } }
         }",
    )
    .file("html/index.html", "<p>start</p>")
    .file("html/404.html", "nothing here")
    .file("html/a.txt", "0123456789")
    .file("html/a.json", "{}")
    .file("html/none", "no type")
    .file("html/sub/index.html", "sub")
    .file("html/sub/b c.txt", "b c")
    .file("html/try/here.txt", "here")
    .file("html/list/x.txt", "x")
    .file("html/list/y.html", "y")
    .file("html/only-get/x.txt", "x")
}

/// Each is a request line with headers, without the empty line; `Host: localhost` is added.
const REQUESTS: &[&str] = &[
    "GET / HTTP/1.1",
    "HEAD / HTTP/1.1",
    "GET /a.txt HTTP/1.1",
    "HEAD /a.txt HTTP/1.1",
    "GET /a.json HTTP/1.1",
    "GET /none HTTP/1.1",
    "GET /missing HTTP/1.1",
    "HEAD /missing HTTP/1.1",
    "GET /sub HTTP/1.1",
    "GET /sub?a=b HTTP/1.1",
    "GET /sub/ HTTP/1.1",
    "GET /sub/b%20c.txt HTTP/1.1",
    "GET /sub/../a.txt HTTP/1.1",
    "GET //sub///./b%20c.txt HTTP/1.1",
    "GET /a.txt?x#y HTTP/1.1",
    "GET /text?x=1&y HTTP/1.1\r\nX-A: v\r\nCookie: b=1; c=two",
    "GET /text HTTP/1.0",
    "GET http://other/text HTTP/1.1",
    "OPTIONS /text HTTP/1.1",
    "DELETE /a.txt HTTP/1.1",
    "GET /map?m=a HTTP/1.1",
    "GET /map?m=bz HTTP/1.1",
    "GET /map?m=q HTTP/1.1",
    "POST /body HTTP/1.1\r\nContent-Length: 0\r\nContent-Type: text/x",
    "GET /own HTTP/1.1",
    "GET /expires HTTP/1.1",
    "GET /moved HTTP/1.1",
    "GET /moved HTTP/1.0",
    "GET /rewritten/abc HTTP/1.1",
    "GET /rewritten/abc?d=e HTTP/1.1",
    "GET /try/here.txt HTTP/1.1",
    "GET /try/gone HTTP/1.1",
    "GET /alias/b%20c.txt HTTP/1.1",
    "GET /alias/ HTTP/1.1",
    "GET /types.html HTTP/1.1",
    "GET /re/12/ab HTTP/1.1",
    "GET /re/xx/ab HTTP/1.1",
    "GET /denied HTTP/1.1",
    "GET /allowed HTTP/1.1",
    "GET /only-get/x.txt HTTP/1.1",
    "HEAD /only-get/x.txt HTTP/1.1",
    "POST /only-get/x.txt HTTP/1.1\r\nContent-Length: 0",
    "GET /list/ HTTP/1.1",
    "GET /a.txt HTTP/1.1\r\nRange: bytes=0-0",
    "GET /a.txt HTTP/1.1\r\nRange: bytes=5-",
    "GET /a.txt HTTP/1.1\r\nRange: bytes=-2",
    "GET /a.txt HTTP/1.1\r\nRange: bytes=20-30",
    "GET /a.txt HTTP/1.1\r\nRange: bytes=0-100",
    "GET /a.txt HTTP/1.1\r\nRange: bytes=x",
    "GET /a.txt HTTP/1.1\r\nRange: bytes=0-1,3-4",
    "HEAD /a.txt HTTP/1.1\r\nRange: bytes=0-1,3-4",
    "GET /a.txt HTTP/1.1\r\nIf-Modified-Since: Thu, 01 Jan 2026 00:00:00 GMT",
    "GET /a.txt HTTP/1.1\r\nIf-Modified-Since: Thu, 01 Jan 2026 00:00:01 GMT",
    "GET /a.txt HTTP/1.1\r\nIf-Unmodified-Since: Wed, 31 Dec 2025 00:00:00 GMT",
    "GET /a.txt HTTP/1.1\r\nIf-None-Match: *",
    "GET /a.txt HTTP/1.1\r\nIf-Match: \"x\"",
    "GET /a.txt HTTP/1.1\r\nConnection: close",
    "GET /a.txt HTTP/1.0\r\nConnection: keep-alive",
    "GET /a.txt HTTP/1.1\r\nExpect: nothing",
    "PROPFIND / HTTP/1.1",
    "GET /%c3%a4 HTTP/1.1",
    "GET /a%2Fb HTTP/1.1",
    "GET /%2e%2e/a.txt HTTP/1.1",
    "GET /../../ HTTP/1.1",
    "GET * HTTP/1.1",
    "GET / HTTP/1.1\r\nHost: second",
    "BREW / HTTP/1.1",
    "GET / HTTP/9.9",
    "GET /a.txt/ HTTP/1.1",
    "GET /a.txt/b HTTP/1.1",
];

#[test]
fn the_same_as_nginx() {
    let Some(nginx) = site().start_as(Program::Nginx) else {
        println!("nginx is not installed: not compared");
        return;
    };
    let ironweir = site().start_as(Program::Ironweir).unwrap();
    let mut different = Vec::new();
    for request in REQUESTS {
        let (theirs, ours) = (ask(&nginx, request), ask(&ironweir, request));
        if theirs != ours {
            different.push(format!("== {request}\nnginx:    {theirs:?}\nironweir: {ours:?}"));
        }
    }
    assert!(different.is_empty(), "{} of {} differ\n{}", different.len(), REQUESTS.len(), different.join("\n"));
}

/// Status, headers in the order of their names, body.
type Answer = (u16, Vec<(String, String)>, String);

/// The answer without what must differ: the server's name, the date, ports, random boundaries.
fn ask(server: &Server, request: &str) -> Option<Answer> {
    let mut client = server.connect();
    client.send(format!("{request}\r\nHost: localhost\r\n\r\n"));
    let Response { status, headers, body } = client.read_response(request.starts_with("HEAD"))?;
    let text = String::from_utf8_lossy(&body).into_owned();
    let own_page = text.contains("<hr><center>");
    let boundary = headers.iter().find_map(|(_, v)| v.split_once("boundary=")).map(|(_, b)| b.to_owned());
    let plain = |text: String| {
        let text = text.replace(&server.port.to_string(), "PORT");
        boundary.as_ref().map_or(text.clone(), |b| text.replace(b, "BOUNDARY"))
    };
    let mut headers: Vec<_> = headers
        .into_iter()
        .filter(|(n, _)| !(n == "Server" || n == "Date" || (n == "Content-Length" && (own_page || boundary.is_some()))))
        .filter(|(n, _)| n != "Expires")
        .map(|(n, v)| (n, plain(v)))
        .collect();
    headers.sort();
    let text = match (own_page, text.split_once("<hr><center>")) {
        (true, Some((before, _))) => before.to_owned(),
        _ => text,
    };
    Some((status, headers, plain(text)))
}

/// 634 requests to 40 configurations drawn by chance, with what nginx 1.31.5 answered and logged (tests/beside/golden.py).
#[test]
fn answers_and_log_lines_are_those_that_nginx_gave() {
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/beside/golden.py");
    // The upstream listens on the port after the server's.
    let port = std::iter::repeat_with(|| {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("there are free ports");
        let port = free.local_addr().expect("it is bound").port();
        std::net::TcpListener::bind(("127.0.0.1", port.saturating_add(1))).is_ok().then_some(port)
    });
    let port = port.take(100).flatten().next().expect("two free ports side by side");
    let out = std::process::Command::new("python3")
        .args([script.as_os_str(), "replay".as_ref(), env!("CARGO_BIN_EXE_ironweir").as_ref()])
        .args(["--port", &port.to_string()])
        .output()
        .expect("python3 runs");
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}\n{}", String::from_utf8_lossy(&out.stderr));
    let cases: usize = said.lines().last().and_then(|l| l.split(' ').next()).and_then(|n| n.parse().ok()).expect(&said);
    assert!(cases >= 500, "{cases} cases");
}
