//! Clients bound to peers, peers that are drained, groups whose servers stand in a file, and groups whose requests wait.

use crate::harness::{Backend, Reply, Server, Site, wait};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn site(block: &str, first: &Backend, second: &Backend) -> Site {
    Site::http(&format!(
        "upstream u {{ {block} }} server {{ listen 127.0.0.1:@PORT@; location /reloaded {{ return 200 0; }} \
         location / {{ proxy_pass http://u; }} }}"
    ))
    .set("A", first.port)
    .set("B", second.port)
}

fn reload(server: &Server, from: &str, to: &str) {
    let text = server.read("nginx.conf");
    assert!(text.contains(from), "{from} in {text}");
    let number = text.split("return 200 ").nth(1).and_then(|t| t.split(';').next()).unwrap().parse::<u32>().unwrap();
    let text = text.replace(from, to).replace(&format!("return 200 {number}"), &format!("return 200 {}", number + 1));
    std::fs::write(server.dir().join("nginx.conf"), text).unwrap();
    server.signal(rustix::process::Signal::HUP);
    assert!(wait(|| server.get("/reloaded").text() == (number + 1).to_string()));
}

fn with_cookie(server: &Server, cookie: &str) -> String {
    let mut client = server.connect();
    client.send(format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: {cookie}\r\n\r\n")).response().text()
}

#[test]
fn a_cookie_binds_over_reloads_and_new_peers() {
    let (a, b) = (Backend::ok("a"), Backend::ok("b"));
    let block = "zone u 64k; server 127.0.0.1:@A@; server 127.0.0.1:@B@; \
                 sticky cookie route path=/ domain=$host httponly secure samesite=lax;";
    let server = site(block, &a, &b).start();
    let answer = server.get("/");
    let cookie = answer.header("Set-Cookie").expect("a cookie").to_owned();
    let (pair, attributes) = cookie.split_once("; ").unwrap();
    assert_eq!(attributes, "domain=localhost; httponly; secure; samesite=lax; path=/");
    assert_eq!(pair.len(), "route=".len() + 32);
    assert!((0..6).all(|_| with_cookie(&server, pair) == answer.text()));
    // A peer before it does not move it.
    reload(&server, "server 127.0.0.1:", "server 127.0.0.3:1 down; server 127.0.0.1:");
    assert!((0..6).all(|_| with_cookie(&server, pair) == answer.text()));
    assert!(wait(|| with_cookie(&server, "route=nonsense") != answer.text()), "others take turns");
}

#[test]
fn the_old_name_of_the_cookie_directive() {
    let (a, b) = (Backend::ok("a"), Backend::ok("b"));
    let block = "server 127.0.0.1:@A@ route=one; server 127.0.0.1:@B@ route=two; sticky_cookie_insert srv expires=1h;";
    let server = site(block, &a, &b).start();
    let cookie = server.get("/").header("Set-Cookie").expect("a cookie").to_owned();
    assert!(cookie.starts_with("srv=one; expires=") && cookie.ends_with("; max-age=3600"), "{cookie}");
    assert!((0..4).all(|_| with_cookie(&server, "srv=two") == "b"));
}

#[test]
fn a_draining_peer_keeps_its_sessions_and_gets_no_new_ones() {
    let (a, b) = (Backend::ok("a"), Backend::ok("b"));
    let block = "server 127.0.0.1:@A@ route=x; server 127.0.0.1:@B@ route=y; sticky route $cookie_r $arg_r;";
    let server = site(block, &a, &b).start();
    assert!((0..4).all(|_| with_cookie(&server, "r=x") == "a" && server.get("/?r=y").text() == "b"));
    reload(&server, "route=x", "route=x drain");
    assert!((0..4).all(|_| server.get("/").text() == "b"));
    assert!((0..4).all(|_| with_cookie(&server, "r=x") == "a"));
    reload(&server, "route=x drain", "route=x down");
    assert!((0..4).all(|_| with_cookie(&server, "r=x") == "b"));
}

#[test]
fn what_is_learnt_outlives_reloads() {
    let peer = |name: &'static str| {
        Backend::start(move |_| {
            let text = format!("HTTP/1.1 200 OK\r\nSet-Cookie: sid={name}\r\nContent-Length: 1\r\n\r\n{name}");
            Reply::Keep(text.into())
        })
    };
    let (a, b) = (peer("a"), peer("b"));
    let block = "zone u 64k; server 127.0.0.1:@A@; server 127.0.0.1:@B@; \
                 sticky learn create=$upstream_cookie_sid lookup=$cookie_sid zone=s:1m timeout=1h;";
    let server = site(block, &a, &b).start();
    for _ in 0..2 {
        server.get("/");
    }
    for _ in 0..3 {
        assert!((0..4).all(|_| with_cookie(&server, "sid=b") == "b" && with_cookie(&server, "sid=a") == "a"));
        reload(&server, "zone u", "zone u");
    }
}

#[test]
fn servers_of_a_state_file() {
    let (a, b) = (Backend::ok("a"), Backend::ok("b"));
    let lines = format!("server 127.0.0.1:{} weight=2;\n", a.port);
    let server = site("zone u 64k; state u.state;", &a, &b).file("u.state", &lines).start();
    assert_eq!(server.get("/").text(), "a");
    let more = format!("{lines}server 127.0.0.1:{};\n", b.port);
    std::fs::write(server.dir().join("u.state"), more).unwrap();
    reload(&server, "zone u", "zone u");
    let texts: Vec<String> = (0..6).map(|_| server.get("/").text()).collect();
    assert_eq!(texts.iter().filter(|t| *t == "a").count(), 4, "{texts:?}");
    let empty = site("zone u 64k; state nowhere.state;", &a, &b).start();
    assert_eq!(empty.get("/").status, 502);
    empty.wait_for("logs/error.log", "no live upstreams");
    let (status, said) = site("zone u 64k; state u.state;", &a, &b).file("u.state", "keepalive 1;").check();
    assert!(!status.success() && said.contains("\"keepalive\" directive is not allowed in state file"), "{said}");
}

/// A backend that holds requests for `/held` until the gate is open.
fn gated(gate: &Arc<AtomicBool>) -> Backend {
    let open = gate.clone();
    Backend::start(move |_| {
        wait(|| open.load(Ordering::Relaxed));
        Reply::ok("done")
    })
}

#[test]
fn requests_wait_for_room() {
    let gate = Arc::new(AtomicBool::new(false));
    let backend = gated(&gate);
    let block = "zone u 64k; server 127.0.0.1:@A@ max_conns=1; queue 2 timeout=10s;";
    let server = site(block, &backend, &backend).start();
    let mut clients: Vec<_> = (0..3).map(|_| server.connect()).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        if i == 0 {
            assert!(wait(|| !backend.seen().is_empty()));
        }
    }
    // Once two wait there is no room for another.
    assert!(wait(|| server.get("/").status == 502));
    assert_eq!(backend.seen().len(), 1);
    gate.store(true, Ordering::Relaxed);
    for client in &mut clients {
        assert_eq!(client.response().text(), "done");
    }
    assert_eq!(server.get("/").text(), "done");
}

#[test]
fn a_wait_for_room_has_an_end() {
    let gate = Arc::new(AtomicBool::new(false));
    let backend = gated(&gate);
    let block = "zone u 64k; server 127.0.0.1:@A@ max_conns=1; queue 2 timeout=200ms;";
    let server = site(block, &backend, &backend).start();
    let mut first = server.connect();
    first.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(wait(|| !backend.seen().is_empty()));
    assert_eq!(server.get("/").status, 502);
    server.wait_for("logs/error.log", "no live upstreams");
    gate.store(true, Ordering::Relaxed);
    assert_eq!(first.response().text(), "done");
}

#[test]
fn outliers_are_ejected_but_not_all() {
    let bad = Backend::start(|_| Reply::Close("HTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\nbad".into()));
    let slow = Backend::start(|_| {
        std::thread::sleep(Duration::from_millis(60));
        Reply::ok("slow")
    });
    let fine: Vec<Backend> = (0..3).map(|_| Backend::ok("fine")).collect();
    let servers: String = fine.iter().map(|b| format!("server 127.0.0.1:{}; ", b.port)).collect();
    let block = format!(
        "zone u 64k; server 127.0.0.1:@A@; server 127.0.0.1:@B@; {servers} \
         outlier_ejection errors=50% latency=3 requests=5 interval=300ms time=30s max=50%;"
    );
    let server = site(&block, &bad, &slow).start();
    let ejected = |port: u16, why: &str| {
        let line = format!("peer 127.0.0.1:{port} in upstream \"u\" is ejected for 30000 ms: {why}");
        assert!(
            wait(|| {
                (0..10).for_each(|_| drop(server.get("/")));
                server.read("logs/error.log").contains(&line)
            }),
            "{line}\n{}",
            server.error_log()
        );
    };
    ejected(bad.port, "100 % of its requests failed, 50 % are too many");
    ejected(slow.port, "takes ");
    assert!((0..6).all(|_| server.get("/").text() == "fine"));
    reload(&server, "zone u", "zone u");
    assert!((0..6).all(|_| server.get("/").text() == "fine"), "a reload takes nobody back");
}
