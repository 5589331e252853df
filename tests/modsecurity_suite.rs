//! Requests of the Core Rule Set's own tests over the server: whichever way they come (a body of a length that is said, in chunks, over HTTP/2, over HTTP/3),
//! the same rules match and the same is answered. What those rules should be, `crates/waf/tests/crs` knows.

use crate::harness::quic::{ask, client, quic_site, run};
use crate::harness::{Backend, Site, with_http2};
use crate::modsecurity::core_rule_set;
use bytes::Bytes;
use http::{HeaderMap, Request};
use std::path::Path;

#[path = "../crates/waf/tests/crs/ftw.rs"]
#[allow(dead_code, reason = "the engine's tests ask for more of it")]
mod ftw;

/// Each how-manieth test of the suite is taken: some 250 requests that all protocols can send.
const EACH: usize = 15;
/// What is said otherwise from protocol to protocol, and what a client may not say in all of them.
const LEFT_OUT: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// A chunk, or a frame of data, has so many bytes.
const PIECE: usize = 7;

/// A request that every protocol can send.
struct Portable {
    name: String,
    method: http::Method,
    target: String,
    host: String,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Portable {
    /// None: some protocol has no way to say this.
    fn of(stage: ftw::Stage) -> Option<Portable> {
        let text = &stage.request;
        let end = text.windows(4).position(|w| w == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&text[..end]).ok()?;
        let mut lines = head.split("\r\n");
        let line: Vec<&str> = lines.next()?.split(' ').collect();
        let [method @ ("GET" | "POST" | "PUT" | "DELETE"), target, "HTTP/1.1"] = line[..] else { return None };
        let sendable = |b: u8| b.is_ascii_graphic() && !b"\"<>\\^`{|}#".contains(&b);
        if !target.starts_with('/') || !target.bytes().all(sendable) {
            return None;
        }
        let (mut headers, mut host) = (HeaderMap::new(), None);
        for line in lines {
            let (name, value) = line.split_once(": ")?;
            let name: http::HeaderName = name.parse().ok()?;
            if name == "host" && host.replace(value.to_owned()).is_some() {
                return None;
            }
            if !LEFT_OUT.contains(&name.as_str()) {
                headers.append(name, value.parse().ok()?);
            } else if !matches!(name.as_str(), "host" | "connection" | "content-length") {
                return None;
            }
        }
        let host = host.filter(|host| host.parse::<http::uri::Authority>().is_ok() && !host.contains('@'))?;
        let body = text[end + 4..].to_vec();
        // Without a body its length is said or not, and rules ask for that; so does one where a body has no type.
        if body.is_empty() != (method == "GET") || !body.is_empty() && !headers.contains_key("content-type") {
            return None;
        }
        let method = method.parse().ok()?;
        Some(Portable { name: stage.name, method, target: target.to_owned(), host, headers, body })
    }

    fn of_suite(folder: &Path) -> Vec<Portable> {
        let tests = folder.parent().expect("the module's folder").join("tests");
        let groups = std::fs::read_dir(tests).expect("the tests").flatten().filter(|group| group.path().is_dir());
        let files = groups.flat_map(|group| std::fs::read_dir(group.path()).expect("a group").flatten());
        let mut files: Vec<_> =
            files.map(|f| f.path()).filter(|f| f.extension().is_some_and(|e| e == "yaml")).collect();
        files.sort();
        let stages = files.iter().flat_map(|file| ftw::stages(&std::fs::read_to_string(file).expect("a test file")));
        stages.step_by(EACH).filter_map(Portable::of).collect()
    }

    /// Its head and body for HTTP/1.1.
    fn http1(&self, in_chunks: bool) -> Vec<u8> {
        let mut out = format!("{} {} HTTP/1.1\r\nHost: {}\r\n", self.method, self.target, self.host).into_bytes();
        for (name, value) in &self.headers {
            out.extend_from_slice(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
        }
        if self.body.is_empty() {
            out.extend_from_slice(b"\r\n");
        } else if in_chunks {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            for piece in self.body.chunks(PIECE) {
                out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                out.extend_from_slice(&[piece, b"\r\n"].concat());
            }
            out.extend_from_slice(b"0\r\n\r\n");
        } else {
            out.extend_from_slice(format!("Content-Length: {}\r\n\r\n", self.body.len()).as_bytes());
            out.extend_from_slice(&self.body);
        }
        out
    }

    /// Its head for the others.
    fn head(&self, scheme: &str) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = format!("{scheme}://{}{}", self.host, self.target).parse().expect("a URI");
        *request.headers_mut() = self.headers.clone();
        if !self.body.is_empty() {
            request.headers_mut().insert("content-length", self.body.len().into());
        }
        request
    }
}

/// What was answered, and which rules matched.
type Verdict = (u16, String);

fn rules_of(headers: &HeaderMap) -> String {
    headers.get("x-rules").and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
}

#[test]
fn the_suites_requests_have_one_verdict_over_all_protocols() {
    let Some(folder) = core_rule_set() else { return };
    let requests = Portable::of_suite(&folder);
    assert!(requests.len() >= 200, "{} requests", requests.len());
    let backend = Backend::ok("fine");
    let rules = format!(
        "Include {0}/@coraza.conf-recommended\nSecRuleEngine On\nSecAuditEngine Off\nInclude {0}/@crs-setup.conf.example\n\
         SecAction \"id:900000,phase:1,pass,nolog,setvar:tx.blocking_paranoia_level=2,setvar:tx.detection_paranoia_level=4\"\n\
         Include {0}/@owasp_crs/*.conf\n",
        folder.display()
    );
    let judged = "modsecurity on; modsecurity_rules_file main.conf; add_header X-Rules $modsecurity_rules always;
        location / { proxy_pass http://127.0.0.1:@BACKEND@; }";
    let start = |site: Site| site.file("main.conf", &rules).set("BACKEND", backend.port).set("THREADS", 1).start();
    let plain = start(Site::server(&format!("http2 on; {judged}")));
    let over_quic = start(quic_site("", judged));
    let by_http1 = |in_chunks: bool| -> Vec<Verdict> {
        let ask = |request: &Portable| {
            let answer = plain.connect().send(request.http1(in_chunks)).response();
            (answer.status, answer.header("X-Rules").unwrap_or_default().to_owned())
        };
        requests.iter().map(ask).collect()
    };
    let one = by_http1(false);
    let refused = one.iter().filter(|(status, _)| *status == 403).count();
    println!("{} requests, {refused} refused", requests.len());
    assert!(refused >= 50 && requests.len() - refused >= 20, "{refused} of {}", requests.len());
    let same = |other: &[Verdict], how: &str| {
        let wrong: Vec<_> = requests.iter().zip(&one).zip(other).filter(|((_, one), other)| one != other).collect();
        let shown =
            wrong.iter().map(|((request, one), other)| format!("{}: {one:?}, {how}: {other:?}\n", request.name));
        assert!(wrong.is_empty(), "{}", shown.collect::<String>());
    };
    same(&by_http1(true), "in chunks");
    with_http2(&plain, |client| {
        let (requests, same) = (&requests, &same);
        async move {
            let mut two = Vec::new();
            for request in requests {
                let mut client = client.clone().ready().await.expect("a connection");
                let (answer, mut out) =
                    client.send_request(request.head("http"), request.body.is_empty()).expect("it is sent");
                let mut pieces = request.body.chunks(PIECE).peekable();
                while let Some(piece) = pieces.next() {
                    out.send_data(Bytes::copy_from_slice(piece), pieces.peek().is_none()).expect("it is taken");
                }
                let answer = answer.await.expect("an answer");
                two.push((answer.status().as_u16(), rules_of(answer.headers())));
            }
            same(&two, "over HTTP/2");
        }
    });
    run(async {
        let (_endpoint, mut client) = client(over_quic.port).await;
        let mut three = Vec::new();
        for request in &requests {
            let answer = ask(&mut client, request.head("https"), &request.body).await;
            three.push((answer.status, rules_of(&answer.headers)));
        }
        same(&three, "over HTTP/3");
    });
}
