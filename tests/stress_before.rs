//! What `ironweir stress` notices before a run, and the kernel's evidence that ends a search for the highest rate.

use crate::harness::{Backend, Json, Reply, Site, run_stress, text, wait};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Runs a test in a network namespace of its own, so that nobody else's connections are counted.
fn alone(test: impl FnOnce() + Send) {
    if machine::namespace::inside(test).is_none() {
        println!("no network namespace can be made here (root?): left out");
    }
}

#[test]
fn few_clients_and_a_timeout_longer_than_the_test_are_noticed() {
    let backend = Backend::ok("x");
    let url = format!("http://127.0.0.1:{}/", backend.port);
    let out = text(&run_stress(&format!("-t1 -c2 -d500ms {url}")));
    assert!(out.contains("note: 2 clients at a time are fewer than 5"), "{out}");
    assert!(out.contains("note: the timeout (2s) is longer than the test (500ms)"), "{out}");
    let out = text(&run_stress(&format!("-t1 -c8 -d500ms --timeout 400ms {url}")));
    assert!(!out.contains("clients at a time") && !out.contains("the timeout ("), "{out}");
}

#[test]
fn a_cap_below_what_is_asked_is_noticed() {
    alone(|| {
        let tc = |words: &str| Command::new("tc").args(words.split(' ')).status().is_ok_and(|s| s.success());
        if !tc("qdisc add dev lo root tbf rate 10mbit burst 64k latency 50ms") {
            return println!("no token bucket can be made here (tc, tbf): left out");
        }
        let body: &'static str = Box::leak("x".repeat(30_000).into_boxed_str());
        let backend = Backend::ok(body);
        let run = |rate: u32| {
            text(&run_stress(&format!("-t1 -c8 -R{rate} -d500ms --timeout 400ms http://127.0.0.1:{}/", backend.port)))
        };
        let out = run(100);
        assert!(
            out.contains("Mbit/s, and lo carries 10.0: a token bucket (tc qdisc) is the limit, not the target"),
            "{out}"
        );
        let out = run(10);
        assert!(!out.contains("is the limit, not the target"), "{out}");
    });
}

#[test]
fn a_source_without_a_route_back_is_noticed() {
    alone(|| {
        let backend = Backend::ok("x");
        // What the target sends to one of the addresses does not leave.
        let table = Command::new("nft")
            .arg("table inet way { chain back { type filter hook output priority 0; ip daddr 127.0.0.7 drop; }; }")
            .status();
        if !table.is_ok_and(|s| s.success()) {
            return println!("nft is not here: left out");
        }
        let run = |source: &str| {
            text(&run_stress(&format!(
                "-t1 -c5 -d1s --source {source} --timeout 500ms http://127.0.0.1:{}/",
                backend.port
            )))
        };
        let out = run("127.0.0.7");
        assert!(out.contains("handshakes from 127.0.0.7 get no answer: is there a route back to it"), "{out}");
        assert!(!run("127.0.0.8").contains("route back"));
    });
}

#[test]
fn what_the_targets_api_says_is_noticed() {
    let slow = Backend::start(|_| {
        std::thread::sleep(Duration::from_millis(60));
        Reply::ok("late")
    });
    let flaps = Arc::new(AtomicBool::new(false));
    let state = flaps.clone();
    let sick = Backend::start(move |_| {
        if state.load(Relaxed) {
            Reply::Close("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".into())
        } else {
            Reply::ok("well")
        }
    });
    let server = Site::http(
        "upstream app { zone app 64k; server 127.0.0.1:@SLOW@; }
         upstream other { zone other 64k; server 127.0.0.1:@SICK@; }
         server { listen 127.0.0.1:@PORT@; location /api { api; }
           location / { proxy_pass http://app; }
           location /other { proxy_pass http://other; health_check interval=200ms; } }",
    )
    .set("SLOW", slow.port)
    .set("SICK", sick.port)
    .start();
    let peer = || -> serde_json::Value {
        let said: serde_json::Value = serde_json::from_str(&server.get("/api/9/http/upstreams/other").text()).unwrap();
        said["peers"][0].clone()
    };
    let is = |state: &str| wait(|| peer()["state"] == state);
    for _ in 0..2 {
        assert!(is("up"), "{}", peer());
        flaps.store(true, Relaxed);
        assert!(is("unhealthy"), "{}", peer());
        flaps.store(false, Relaxed);
    }
    let api = format!("http://127.0.0.1:{}/api", server.port);
    let out =
        text(&run_stress(&format!("-t1 -c5 -R10 -d1s --timeout 900ms --api {api} http://127.0.0.1:{}/", server.port)));
    assert!(out.contains("the target is bound by its own backend: "), "{out}");
    assert!(out.contains("health checks take servers out and in: 127.0.0.1:"), "{out}");
    assert!(out.contains("health checks a second go to the target's servers, beside 10 requests"), "{out}");
    let out = text(&run_stress(&format!("-t1 -c5 -n5 --api http://127.0.0.1:1/api http://127.0.0.1:{}/", server.port)));
    assert!(out.contains("note: the target's API: "), "{out}");
}

/// A server that takes what waits all at once, ten times a second: what comes meanwhile has 17 places (a backlog of 16).
fn takes_in_bursts(over: Arc<AtomicBool>) -> u16 {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(16).unwrap();
    socket.set_nonblocking(true).unwrap();
    let listener = std::net::TcpListener::from(socket);
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while !over.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(100));
            while let Ok((mut client, _)) = listener.accept() {
                let _ = client.set_nonblocking(false);
                let _ = client.set_read_timeout(Some(Duration::from_secs(5)));
                let _ = client.read(&mut [0; 4096]);
                let _ = client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx");
            }
        }
    });
    port
}

#[test]
fn find_max_stops_where_the_kernel_turns_users_away_though_objectives_hold() {
    alone(|| {
        let over = Arc::new(AtomicBool::new(false));
        let port = takes_in_bursts(over.clone());
        // Who is turned away comes again after a second, so that everything is answered in the end.
        let json = Json::of(&format!(
            "-t1 -c400 --no-keepalive --timeout 20s --find-max --step 2s --slo p99<15s,errors<50% --no-preflight http://127.0.0.1:{port}/"
        ));
        over.store(true, Relaxed);
        assert!(json.0.contains("kernel: "), "{}", json.0);
        let best = json.number("find_max.best_rps");
        assert!(best <= 200.0, "{}", json.0);
    });
}

/// Through a balancer to an application that takes 300 ms, with a connection for each request: at the rate that is called safe nobody is turned
/// away, while the balancer is reloaded as well.
#[test]
fn nobody_is_turned_away_at_the_safe_rate_through_a_reload() {
    alone(|| {
        let application = Backend::start(|_| {
            std::thread::sleep(Duration::from_millis(300));
            Reply::Close("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok".into())
        });
        let server = Site::http(
            "upstream app { zone app 64k; server 127.0.0.1:@APP@ max_fails=0; }
             server { listen 127.0.0.1:@PORT@ backlog=511; location /api { api; } location / { proxy_pass http://app; } }",
        )
        .set("APP", application.port)
        .start();
        server.wait_for("logs/nginx.pid", "\n");
        let body = "x".repeat(75);
        let base = format!("-t1 -c48 --no-keepalive -m POST -b {body} --no-preflight --timeout 10s");
        let (url, api) =
            (format!("http://127.0.0.1:{}/", server.port), format!("http://127.0.0.1:{}/api", server.port));
        let json = Json::of(&format!("{base} --find-max --step 2s --slo p99<2s,errors<0.1% --api {api} {url}"));
        let safe = json.number("find_max.safe_rps");
        assert!(safe > 10.0, "{}", json.0);
        let overflows = || machine::counters::Moving::read().count("TcpExt.ListenOverflows");
        let before = overflows();
        let run = std::thread::scope(|scope| {
            let run = scope.spawn(|| Json::of(&format!("{base} -R{safe:.1} -d6s {url}")));
            std::thread::sleep(Duration::from_secs(2));
            server.signal(Signal::HUP);
            run.join().unwrap()
        });
        assert!(
            server.error_log().contains("reconfiguring") || wait(|| server.error_log().contains("reconfiguring")),
            "{}",
            server.error_log()
        );
        assert_eq!((run.number("errors.total"), overflows() - before), (0.0, 0), "{}", run.0);
        assert!(run.number("requests") >= safe * 5.0, "{}", run.0);
        assert!(application.seen().iter().all(|s| s.body.len() == 75), "each of them has its 75 bytes");
    });
}
