//! Names of upstreams that are followed while the server runs: `server name resolve`.

use crate::harness::{Backend, Dns, Reply, Server, Site, wait};
use rustix::process::Signal;
use std::time::Duration;

/// `slow`: the port of a backend behind `/slow`.
fn site(dns: &Dns, slow: u16) -> Server {
    Site::http(
        "resolver 127.0.0.1:@DNS@ valid=1s ipv6=off; resolver_timeout 1s; \
         upstream u { zone z 1m; server a.test:@OTHER@ resolve; } \
         server { listen 127.0.0.1:@PORT@; location / { proxy_pass http://u; } location /reloaded { return 200 0; } \
         location /slow { proxy_pass http://127.0.0.1:@SLOW@; } } \
         server { listen 127.0.0.2:@OTHER@; listen 127.0.0.3:@OTHER@; return 200 $server_addr; }",
    )
    .set("SLOW", slow)
    .set("DNS", dns.port)
    .start()
}

#[test]
fn peers_follow_the_name_without_a_reload() {
    let dns = Dns::start(Duration::ZERO);
    dns.set(&[[127, 0, 0, 2]]);
    let server = site(&dns, 1);
    assert_eq!(server.get("/").text(), "127.0.0.2", "the first request waits for the first answer");
    dns.set(&[[127, 0, 0, 3]]);
    assert!(wait(|| {
        let r = server.get("/");
        assert_eq!(r.status, 200, "while the name has addresses there is somebody");
        r.text() == "127.0.0.3"
    }));
    dns.set(&[[127, 0, 0, 2], [127, 0, 0, 3]]);
    let two = || [server.get("/").text(), server.get("/").text()];
    assert!(wait(|| two().iter().any(|t| t == "127.0.0.2")));
    assert!((0..4).all(|_| two().iter().any(|t| t == "127.0.0.3")), "both take turns");
    dns.set(&[]);
    assert!(wait(|| server.get("/").status == 502));
    server.wait_for("logs/error.log", "a.test could not be resolved (3: Host not found)");
    server.wait_for("logs/error.log", "no live upstreams while connecting to upstream");
    dns.set(&[[127, 0, 0, 3]]);
    assert!(wait(|| server.get("/").text() == "127.0.0.3"));
}

#[test]
fn a_failing_name_server_changes_nothing_not_even_over_a_reload() {
    let dns = Dns::start(Duration::ZERO);
    dns.set(&[[127, 0, 0, 2]]);
    let server = site(&dns, 1);
    assert_eq!(server.get("/").text(), "127.0.0.2");
    dns.fail();
    server.wait_for("logs/error.log", "a.test could not be resolved (2: Server failure)");
    assert_eq!(server.get("/").text(), "127.0.0.2");
    let text = server.read("nginx.conf").replace("return 200 0", "return 200 1");
    std::fs::write(server.dir().join("nginx.conf"), text).unwrap();
    server.signal(Signal::HUP);
    assert!(wait(|| server.get("/reloaded").text() == "1"));
    assert_eq!(server.get("/").text(), "127.0.0.2");
    dns.set(&[[127, 0, 0, 3]]);
    assert!(wait(|| server.get("/").text() == "127.0.0.3"));
}

#[test]
fn requests_at_the_start_wait_for_a_slow_name_server() {
    let dns = Dns::start(Duration::from_millis(400));
    dns.set(&[[127, 0, 0, 2]]);
    let server = site(&dns, 1);
    assert_eq!(server.get("/").text(), "127.0.0.2");
}

#[test]
fn a_name_is_followed_for_the_new_configuration_while_the_old_one_lasts() {
    let gate = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let open = gate.clone();
    let backend = Backend::start(move |_| {
        wait(|| open.load(std::sync::atomic::Ordering::Relaxed));
        Reply::ok("done")
    });
    let dns = Dns::start(Duration::ZERO);
    dns.set(&[[127, 0, 0, 2]]);
    let server = site(&dns, backend.port);
    let mut client = server.connect();
    client.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(wait(|| !backend.seen().is_empty()));
    let text = server.read("nginx.conf").replace("return 200 0", "return 200 1");
    std::fs::write(server.dir().join("nginx.conf"), text).unwrap();
    server.signal(Signal::HUP);
    assert!(wait(|| server.get("/reloaded").text() == "1"));
    for last in [3, 2, 3, 2] {
        dns.set(&[[127, 0, 0, last]]);
        assert!(wait(|| server.get("/").text() == format!("127.0.0.{last}")));
    }
    gate.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(client.response().text(), "done");
}
