//! What is known outlives reloads: health, sessions, counters, drains, keys and values. Ten reloads under load, and everything is
//! compared.

use crate::harness::{Backend, Reply, Server, Site, wait};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

const RELOADS: usize = 10;

fn api(server: &Server, method: &str, path: &str, body: &str) -> Value {
    let head = format!("{method} /api/9/{path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let response = server.connect().send(head).response();
    assert!(response.status < 300, "{method} {path}: {}", response.text());
    serde_json::from_slice(&response.body).unwrap_or(Value::Null)
}

/// A backend that opens sessions under its name.
fn sessions(name: &'static str) -> Backend {
    Backend::start(move |_| {
        let head = format!("HTTP/1.1 200 OK\r\nSet-Cookie: sid={name}\r\nContent-Length: 1\r\n\r\n");
        Reply::Keep((head + name).into())
    })
}

fn reload(server: &Server, number: usize) {
    let text = server.read("nginx.conf");
    let next = text.replace(&format!("return 200 {number};"), &format!("return 200 {};", number + 1));
    assert_ne!(text, next);
    std::fs::write(server.dir().join("nginx.conf"), next).unwrap();
    server.signal(rustix::process::Signal::HUP);
    assert!(wait(|| server.get("/reloaded").text() == (number + 1).to_string()));
}

/// Numbers that only grow, and how often each of them fell from one look to the next.
#[derive(Default)]
struct Growing {
    last: Vec<u64>,
}

impl Growing {
    fn look(&mut self, server: &Server) {
        let zone = api(server, "GET", "http/server_zones/site", "");
        let peers = api(server, "GET", "http/upstreams/u", "")["peers"].clone();
        let mut now = vec![zone["requests"].as_u64().unwrap(), zone["responses"]["2xx"].as_u64().unwrap()];
        for peer in peers.as_array().unwrap() {
            now.extend(["requests", "sent", "received"].map(|name| peer[name].as_u64().unwrap()));
            now.extend(["checks", "fails", "unhealthy"].map(|name| peer["health_checks"][name].as_u64().unwrap()));
        }
        let fell = self.last.iter().zip(&now).position(|(before, now)| now < before);
        assert_eq!(fell, None, "{:?} became {now:?}", self.last);
        self.last = now;
    }
}

#[test]
fn ten_reloads_under_load_forget_nothing() {
    let (a, b, drained) = (sessions("a"), sessions("b"), sessions("c"));
    let sick = Backend::start(|_| Reply::Close("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n".into()));
    let server = Site::http(
        "upstream u { zone u 64k; server 127.0.0.1:@A@; server 127.0.0.1:@B@; server 127.0.0.1:@C@; \
         server 127.0.0.1:@SICK@ max_fails=0; \
         sticky learn create=$upstream_cookie_sid lookup=$cookie_sid zone=s:1m timeout=1h; } \
         keyval_zone zone=names:64k; keyval $arg_key $name zone=names; \
         server { listen 127.0.0.1:@PORT@; status_zone site; location /api { api write=on; } \
         location /reloaded { return 200 0; } location /name { return 200 \"$name\"; } \
         location / { proxy_pass http://u; health_check interval=3s uri=/check; } }",
    )
    .set("A", a.port)
    .set("B", b.port)
    .set("C", drained.port)
    .set("SICK", sick.port)
    .start();
    server.wait_for("logs/error.log", "peer is unhealthy: answered 503");
    // Every session is learnt before one of the peers is drained, so that each has its own.
    let learnt = |name: &str| {
        wait(|| server.get("/").text() == name);
    };
    ["a", "b", "c"].iter().for_each(|name| learnt(name));
    api(&server, "PATCH", "http/upstreams/u/servers/2", r#"{"drain": true}"#);
    api(&server, "POST", "http/keyvals/names", r#"{"one": "first"}"#);
    let requests = |peer: &Backend| peer.seen().iter().filter(|s| !s.line().contains("/check")).count();
    let strangers = |peer: &Backend| {
        peer.seen().iter().filter(|s| !s.line().contains("/check") && s.header("Cookie").is_none()).count()
    };
    let before = (requests(&sick), strangers(&drained));
    let (stop, answers, sent) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicU64::new(0));
    let mut growing = Growing::default();
    std::thread::scope(|scope| {
        for peer in ["a", "b", "c"] {
            let (server, stop, answers, sent) = (&server, &stop, &answers, &sent);
            scope.spawn(move || {
                let mut client = server.connect();
                while !stop.load(Relaxed) {
                    client.send(format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: sid={peer}\r\n\r\n"));
                    assert_eq!(client.response().text(), peer, "the session is kept, even where others are not let in");
                    assert_eq!(server.get("/").status, 200);
                    assert_eq!(server.get("/name?key=one").text(), "first");
                    answers.fetch_add(1, Relaxed);
                    sent.fetch_add(3, Relaxed);
                }
            });
        }
        for number in 0..RELOADS {
            growing.look(&server);
            reload(&server, number);
        }
        stop.store(true, Relaxed);
    });
    growing.look(&server);
    assert!(answers.load(Relaxed) > 20);
    assert!(growing.last[0] >= sent.load(Relaxed), "all requests are counted, whatever configuration they came under");
    assert_eq!((requests(&sick), strangers(&drained)), before, "who is out stays out, reload after reload");
    assert_eq!(server.read("logs/error.log").matches("peer is unhealthy").count(), 1, "and is not found out anew");
    let shown = api(&server, "GET", "http/upstreams/u", "");
    let states: Vec<_> = shown["peers"].as_array().unwrap().iter().map(|p| p["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["up", "up", "draining", "unhealthy"]);
    assert_eq!(shown["peers"][2]["drained"], json!(true), "nothing of it is under way any more");
    assert!(shown["skew"].as_f64().is_some_and(|skew| skew >= 1.0), "{}", shown["skew"]);
    assert_eq!(api(&server, "GET", "http/keyvals/names", ""), json!({"one": "first"}));
}
