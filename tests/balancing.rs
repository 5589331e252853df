//! Methods of choosing a peer that go by time, and peers that come back slowly.

use crate::harness::{Backend, Reply, Server, Site, wait};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn slow(ms: u64) -> Backend {
    Backend::start(move |_| {
        std::thread::sleep(Duration::from_millis(ms));
        Reply::ok("slow")
    })
}

fn site(method: &str, first: &Backend, second: &Backend, parameters: &str) -> Server {
    Site::http(&format!(
        "upstream u {{ {method}; server 127.0.0.1:@A@ {parameters}; server 127.0.0.1:@B@; }} \
         server {{ listen 127.0.0.1:@PORT@; location / {{ proxy_pass http://u; }} }}"
    ))
    .set("A", first.port)
    .set("B", second.port)
    .start()
}

#[test]
fn least_time_takes_the_faster() {
    for method in ["least_time header", "least_time last_byte inflight", "random two least_time=header"] {
        let (slow, fast) = (slow(150), Backend::ok("fast"));
        let server = site(method, &slow, &fast, "");
        // Who has not answered yet is asked first, so both are known soon.
        assert!(wait(|| server.get("/").status == 200 && !slow.seen().is_empty() && !fast.seen().is_empty()));
        let before = slow.seen().len();
        for _ in 0..10 {
            server.get("/");
        }
        assert_eq!(slow.seen().len(), before, "{method}");
    }
}

#[test]
fn a_peer_that_comes_back_is_warmed_up() {
    let broken = Arc::new(AtomicBool::new(true));
    let now = broken.clone();
    let first = Backend::start(
        move |_| {
            if now.load(Ordering::Relaxed) { Reply::Close(Vec::new()) } else { Reply::ok("first") }
        },
    );
    let second = Backend::ok("fast");
    let server = site("zone z 64k", &first, &second, "max_fails=1 fail_timeout=1s slow_start=1h");
    assert!(wait(|| server.get("/").status == 200 && !first.seen().is_empty()));
    broken.store(false, Ordering::Relaxed);
    assert!(wait(|| server.get("/").text() == "first"), "it is tried again after its fail_timeout");
    let before = first.seen().len();
    for _ in 0..40 {
        assert_eq!(server.get("/").status, 200);
    }
    // Its share is one in two, and a 256th of that at first.
    assert!(first.seen().len() - before <= 2, "{}", first.seen().len() - before);
}

#[test]
fn times_of_fast_peers_are_told_in_microseconds() {
    let is_first = AtomicBool::new(true);
    let backend = Backend::start(move |_| {
        if is_first.swap(false, Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(15));
        }
        Reply::ok("fast")
    });
    let server = Site::http(
        "upstream u { zone u 64k; server 127.0.0.1:@A@; keepalive 4; }
         server { listen 127.0.0.1:@PORT@; location / { proxy_pass http://u; } location /api { api; } }",
    )
    .set("A", backend.port)
    .start();
    let mut client = server.connect();
    let peer = |client: &mut crate::harness::Client| {
        let text = client.get("/api/9/http/upstreams/u").text();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["peers"][0].clone()
    };
    client.get("/");
    let first = peer(&mut client);
    assert!(first["header_time"].as_u64() >= Some(15) && first["header_time_us"].as_u64() >= Some(15_000), "{first}");
    // The mean falls to what the later answers take; under load that may be a while.
    let fell = wait(|| {
        (0..50).for_each(|_| drop(client.get("/")));
        let now = peer(&mut client);
        now["header_time_us"].as_u64() < Some(5000) && now["response_time"].as_u64() < Some(6)
    });
    assert!(fell, "{}", peer(&mut client));
}
