//! What is kept of one request for the next, its memory, says nothing of it: the same request has the same answer and the same line in the log, whatever
//! came before it on the thread. Before come requests of all kinds, and 302 raw ones that nginx was asked (`../shared/data/http1-requests.json`).

use crate::harness::{Backend, Reply, Server, Site, shared, with_http2};
use crate::recorded_requests::raw_requests;
use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

const LOCATIONS: &str = r#"
    set $own "";
    location = /ret { return 200 "$scheme $host $request_uri"; }
    location = /moved { return 302 /there?x=1; }
    location = /set { set $own "was set"; limit_rate 100k; return 200 "set $own"; }
    location /rewritten { rewrite ^/rewritten/(.*)$ /captured/$1? last; }
    location ~ ^/captured/(?<one>.*)$ { return 200 "$one $1"; }
    location = /captures { return 200 "[$one] [$1] [$2]"; }
    location /static/ { alias @DIR@/www/; expires 1h; add_header X-Add "$arg_q"; add_trailer T "$arg_q"; gzip on; gzip_types *; gzip_min_length 10; }
    location /ssi/ { alias @DIR@/www/; ssi on; ssi_types *; }
    location = /included { return 200 "in:$arg_q:$request_uri"; }
    location /sub/ { alias @DIR@/www/; sub_filter word WORD; sub_filter_once off; sub_filter_types *; }
    location /try/ { root @DIR@/none; try_files $uri /static/page.txt; }
    location /error/ { root @DIR@/none; error_page 404 =203 /page; }
    location = /page { return 200 "page $uri $request_uri $status"; }
    location /named/ { root @DIR@/none; error_page 404 @named; }
    location @named { return 418 "named $uri"; }
    location /auth { auth_basic x; auth_basic_user_file users; return 200 "user $remote_user"; }
    location /asked { auth_request /ask; auth_request_set $own $upstream_http_x_from; proxy_pass http://127.0.0.1:@BACKEND@/plain; }
    location = /ask { internal; proxy_pass http://127.0.0.1:@BACKEND@/plain; proxy_pass_request_body off; proxy_set_header Content-Length ""; }
    location /proxied/ { proxy_pass http://127.0.0.1:@BACKEND@/; proxy_set_header X-Any "$http_x_any"; client_max_body_size 100k; }
    location /kept/ { proxy_pass http://kept/; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }
    location /mirrored/ { mirror /ask; proxy_pass http://127.0.0.1:@BACKEND@/; }
    location /framed/ { alias @DIR@/www/; add_before_body /included; add_after_body /ret; addition_types *; }
    location /limited { limit_req zone=r burst=1000 nodelay; limit_conn c 1000; return 200 "$limit_req_status $limit_conn_status"; }
    location /if { if ($arg_q = 1) { set $own if; return 200 "if $own"; } return 200 "no if $own"; }
    location /referer { valid_referers none example.com; if ($invalid_referer) { return 403; } return 200 ok; }
    location /secure { secure_link $arg_m,$arg_e; secure_link_md5 "k"; return 200 "[$secure_link] [$secure_link_expires]"; }
    location /real { set_real_ip_from 127.0.0.1; real_ip_header X-Real-IP; return 200 "$remote_addr $realip_remote_addr"; }
    location /down { proxy_pass http://127.0.0.1:1; }
    location /intercepted { proxy_pass http://127.0.0.1:@BACKEND@/e500; proxy_intercept_errors on; error_page 500 /page; }
    location /elsewhere { proxy_pass http://127.0.0.1:@BACKEND@/elsewhere; }
    location = /internal { internal; return 200 "internal $uri $upstream_http_x_from"; }
    location /small { client_max_body_size 1k; return 200 small; }
    location /charset { charset utf-8; default_type text/html; return 200 c; }
    location /lua { content_by_lua_block { ngx.ctx.n = (ngx.ctx.n or 0) + 1; ngx.say(ngx.ctx.n, " ", ngx.var.arg_q) } }"#;

const PATHS: [&str; 45] = [
    "/ret",
    "/ret?q=1",
    "/moved",
    "/set",
    "/rewritten/abc",
    "/captured/x",
    "/captures",
    "/static/page.txt",
    "/static/page.txt?q=z",
    "/ssi/page.txt?q=2",
    "/sub/page.txt",
    "/try/x",
    "/error/x",
    "/named/x",
    "/auth",
    "/asked",
    "/proxied/plain",
    "/proxied/cookie",
    "/proxied/e500",
    "/proxied/limited",
    "/proxied/moved",
    "/proxied/close",
    "/kept/plain",
    "/mirrored/plain",
    "/framed/page.txt",
    "/limited",
    "/if?q=1",
    "/if",
    "/referer",
    "/secure?m=a&e=1",
    "/secure",
    "/real",
    "/down",
    "/intercepted",
    "/elsewhere",
    "/small",
    "/charset",
    "/lua?q=l",
    "/lua",
    "/nothing",
    "/internal",
    "/%2e%2e/x",
    "/a//b?x",
    "/ret/../ret",
    "/%41%20c?%42",
];
const LINES: [&[(&str, &str)]; 9] = [
    &[],
    &[("x-any", "any"), ("cookie", "a=1; uid=zz")],
    &[("range", "bytes=0-3")],
    &[("accept-encoding", "gzip")],
    &[("if-none-match", "\"x\""), ("if-modified-since", "Mon, 01 Jan 2035 00:00:00 GMT")],
    &[("authorization", "Basic bWU6d29yZA==")],
    &[("referer", "http://other/")],
    &[("x-real-ip", "9.8.7.6"), ("x-forwarded-for", "1.2.3.4")],
    &[("user-agent", "Mozilla/4.0 (compatible; MSIE 6.0; Windows)")],
];
const HOSTS: [&str; 4] = ["first", "second.example", "first:7821", "other"];
/// Those that are another one each time, or of the machine; what heads of HTTP/2 take depends on those before them.
const CHANGING: &str = "date_local date_gmt binary_remote_addr remote_port realip_remote_port connections_active connections_reading connections_writing
    connections_waiting upstream_connect_time upstream_header_time upstream_response_time request_time request_id connection connection_requests
    connection_time hostname pid msec time_iso8601 time_local tcpinfo_rtt tcpinfo_rttvar tcpinfo_snd_cwnd tcpinfo_rcv_space request_body_file
    request_length bytes_sent grpc_internal_trailers";

/// The same numbers each time (Knuth's generator of 64 bits).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % end
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Http1,
    /// With the host in the request line.
    Absolute,
    Http2,
}

struct Probe {
    way: Way,
    method: &'static str,
    path: &'static str,
    host: &'static str,
    lines: &'static [(&'static str, &'static str)],
    body: Vec<u8>,
}

impl Probe {
    fn any(random: &mut Random) -> Probe {
        let method = ["GET", "GET", "GET", "HEAD", "POST", "PUT", "OPTIONS", "DELETE"][random.below(8)];
        let size = [0, 7, 5000, 150_000][random.below(4)];
        Probe {
            way: [Way::Http1, Way::Absolute, Way::Http2, Way::Http2][random.below(4)],
            method,
            path: PATHS[random.below(PATHS.len())],
            host: HOSTS[random.below(HOSTS.len())],
            lines: LINES[random.below(LINES.len())],
            body: if matches!(method, "POST" | "PUT") { vec![b'y'; size] } else { Vec::new() },
        }
    }

    async fn ask(&self, number: usize, server: &Server, requests: &SendRequest<Bytes>) -> String {
        if self.way == Way::Http2 {
            return self.ask_http2(number, requests).await;
        }
        let before = if self.way == Way::Absolute { format!("http://{}", self.host) } else { String::new() };
        let mut text =
            format!("{} {before}{} HTTP/1.1\r\nHost: {}\r\nX-Probe: {number}\r\n", self.method, self.path, self.host);
        self.lines.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
        if !self.body.is_empty() {
            text += &format!("Content-Length: {}\r\n", self.body.len());
        }
        text += "Connection: close\r\n\r\n";
        let answer = exchange(server, &[text.as_bytes(), &self.body].concat(), false);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        shown(head.split("\r\n").map(str::to_owned), body.as_bytes())
    }

    async fn ask_http2(&self, number: usize, requests: &SendRequest<Bytes>) -> String {
        let mut request = Request::builder().method(Method::from_bytes(self.method.as_bytes()).unwrap());
        request = request.uri(format!("http://{}{}", self.host, self.path)).header("x-probe", number);
        for (name, value) in self.lines {
            request = request.header(*name, *value);
        }
        let mut requests = requests.clone().ready().await.unwrap();
        let (answer, mut up) = requests.send_request(request.body(()).unwrap(), self.body.is_empty()).unwrap();
        if !self.body.is_empty() {
            // What is not taken is not wanted.
            let _ = up.send_data(self.body.clone().into(), true);
        }
        let (head, mut down) = match answer.await {
            Ok(answer) => answer.into_parts(),
            Err(e) => return format!("{e}"),
        };
        let mut body = Vec::new();
        while let Some(Ok(piece)) = down.data().await {
            let _ = down.flow_control().release_capacity(piece.len());
            body.extend_from_slice(&piece);
        }
        let trailers = down.trailers().await.ok().flatten().unwrap_or_default();
        let lines = head.headers.iter().chain(&trailers);
        let lines = lines.map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())));
        shown(std::iter::once(head.status.to_string()).chain(lines), &body)
    }
}

/// A whole answer, but for what is another one each time.
fn shown(lines: impl Iterator<Item = String>, body: &[u8]) -> String {
    let is_fixed = |line: &String| !["date:", "expires:"].iter().any(|name| line.to_lowercase().starts_with(name));
    let lines: Vec<String> = lines.filter(is_fixed).collect();
    format!("{}\n{}", lines.join("\n"), String::from_utf8_lossy(body))
}

/// Sends bytes and reads up to the end. `ends`: nothing follows them, which the server is told.
fn exchange(server: &Server, bytes: &[u8], ends: bool) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _ = stream.write_all(bytes);
    if ends {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn backend() -> Backend {
    let answer = |more: &str, body: &str| {
        let length = body.len();
        Reply::Keep(format!("HTTP/1.1 200 OK\r\nX-From: {body}\r\n{more}Content-Length: {length}\r\n\r\n{body}").into())
    };
    Backend::start(move |request| match request.line().split(' ').nth(1).unwrap_or("") {
        "/cookie" => answer("Set-Cookie: c=1; path=/\r\n", "cookie"),
        "/e500" => Reply::Keep(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_vec()),
        "/limited" => answer("X-Accel-Limit-Rate: 50000\r\n", "limited"),
        "/elsewhere" => answer("X-Accel-Redirect: /internal\r\n", "elsewhere"),
        "/moved" => {
            Reply::Keep(b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1/there\r\nContent-Length: 0\r\n\r\n".to_vec())
        }
        "/close" => Reply::Close(Vec::new()),
        _ => answer("", &format!("plain {}", request.header("x-any").unwrap_or_default())),
    })
}

fn site(backend: u16, names: &[&str]) -> Site {
    let format: Vec<String> = names.iter().map(|name| format!("{name}=${name}")).collect();
    let text = format!(
        "log_format all escape=json '$http_x_probe {}'; limit_req_zone $binary_remote_addr zone=r:1m rate=10000r/s;
         limit_conn_zone $binary_remote_addr zone=c:1m; upstream kept {{ server 127.0.0.1:@BACKEND@; keepalive 8; }} client_header_timeout 2s; client_body_timeout 2s;
         server {{ listen 127.0.0.1:@PORT@; server_name first; http2 on; access_log @DIR@/logs/all.log all; {LOCATIONS} }}
         server {{ listen 127.0.0.1:@PORT@; server_name second.example; http2 on; access_log @DIR@/logs/all.log all; location / {{ return 200 \"$server_name $host\"; }} }}",
        format.join(" ")
    );
    let page = format!("<!--#echo var=\"arg_q\" --><!--#include virtual=\"/included\" -->{}\n", "word ".repeat(2000));
    Site::http(&text).set("BACKEND", backend).file("users", "me:{PLAIN}word\n").file("www/page.txt", &page)
}

#[test]
fn no_request_says_anything_of_the_one_before() {
    let (Some(raw), Some(variables)) = (shared("data/http1-requests.json"), shared("data/nginx-variables.tsv")) else {
        return;
    };
    let changing: Vec<&str> = CHANGING.split_whitespace().collect();
    let names: Vec<&str> = variables
        .lines()
        .filter_map(|line| match line.split('\t').collect::<Vec<_>>()[..] {
            [name, world, "-", module] if world.contains("http") && !module.contains("geoip") => Some(name),
            _ => None,
        })
        .filter(|name| !changing.contains(name) && !name.starts_with("ssl_ech"))
        .collect();
    assert!(names.len() > 80, "{names:?}");
    let backend = backend();
    let server = site(backend.port, &names).start();
    let raw = raw_requests(&raw);
    let mut random = Random(1);
    let probes: Vec<Probe> = (0..120).map(|_| Probe::any(&mut random)).collect();
    let mut known: BTreeMap<usize, (String, String)> = BTreeMap::new();
    with_http2(&server, async |requests| {
        let mut before = String::new();
        for _ in 0..1500 {
            if random.below(3) == 0 {
                let number = random.below(raw.len());
                exchange(&server, &raw[number], true);
                before = format!("raw request {number}");
            }
            let number = random.below(probes.len());
            let probe = &probes[number];
            let answer = probe.ask(number, &server, &requests).await;
            let (first, behind) = known.entry(number).or_insert_with(|| (answer.clone(), before.clone()));
            let what = || format!("{:?} {} {} {} {:?}", probe.way, probe.method, probe.path, probe.host, probe.lines);
            assert_eq!(*first, answer, "{} behind {behind}, then behind {before}", what());
            before = what();
        }
    });
    // What was asked last is in the log once a later one is.
    server.get("/ret?the-last");
    server.wait_for("logs/all.log", "request_uri=/ret?the-last");
    let log = server.read("logs/all.log");
    let mut lines: BTreeMap<usize, &str> = BTreeMap::new();
    for line in log.lines() {
        let Some((Ok(number), rest)) = line.split_once(' ').map(|(number, rest)| (number.parse(), rest)) else {
            continue;
        };
        let first = lines.entry(number).or_insert(rest);
        let different = || first.split(' ').zip(rest.split(' ')).filter(|(a, b)| a != b).collect::<Vec<_>>();
        assert_eq!(*first, rest, "of {} {}: {:?}", probes[number].method, probes[number].path, different());
    }
    assert!(lines.len() > 100, "{}", lines.len());
}
