//! Too much load: `sysguard`, `concurrency_limit`, `circuit_breaker`, `shed_priority`.

use crate::harness::{Backend, Client, Reply, Server, Site, wait};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

fn shed(server: &Server) -> Value {
    serde_json::from_str(&server.get("/api/9/ironweir/shed").text()).unwrap()
}

#[test]
fn sysguard_sheds_by_what_the_machine_says() {
    let slow = Backend::start(|_| {
        std::thread::sleep(Duration::from_millis(80));
        Reply::ok("slow")
    });
    let server = Site::http(
        "log_format s '$status $shed_reason $request_uri';
         server { listen 127.0.0.1:@PORT@; access_log @DIR@/logs/s.log s; sysguard on;
             location /mem { sysguard_mem free=100000g; return 200 fine; }
             location /files/mem { sysguard_mem free=100000g; alias @DIR@/html/; }
             location /files/enough { sysguard_mem free=1k; alias @DIR@/html/x; }
             location /files/action { sysguard_mem free=100000g action=/busy?from=mem; alias @DIR@/html/; }
             location /files/named { sysguard_mem free=100000g action=@busy; alias @DIR@/html/; }
             location /files/and { sysguard_mode and; sysguard_mem free=100000g; sysguard_load load=100000; alias @DIR@/html/x; }
             location /files/or { sysguard_mode or; sysguard_mem free=100000g; sysguard_load load=ncpu*1000.5; alias @DIR@/html/x; }
             location /files/off { sysguard off; sysguard_mem free=100000g; alias @DIR@/html/x; }
             location /rt { sysguard_rt rt=0.05 period=3s; proxy_pass http://127.0.0.1:@SLOW@; }
             location = /busy { return 200 'busy $arg_from'; }
             location @busy { return 200 'named'; }
             location /api { sysguard off; api; } location = /metrics { sysguard off; prometheus; } }",
    )
    .file("html/x", "a file")
    .set("SLOW", slow.port)
    .start();
    let refused = server.get("/files/mem");
    assert_eq!((refused.status, refused.header("Retry-After")), (503, Some("1")));
    assert!(refused.text().contains("<center>Request "), "{}", refused.text());
    for (target, text) in [
        ("/files/enough", "a file"),
        ("/files/action", "busy mem"),
        ("/files/named", "named"),
        ("/files/and", "a file"),
        ("/files/off", "a file"),
    ] {
        assert_eq!(server.get(target).text(), text, "{target}");
    }
    assert_eq!(server.get("/files/or").status, 503);
    assert_eq!(server.get("/mem").text(), "fine", "`return` comes before, as with Tengine");
    assert_eq!(server.get("/rt").text(), "slow", "nothing is known of it yet");
    assert!(wait(|| server.get("/rt").status == 503));
    server.wait_for("logs/s.log", "503 rt /rt");
    server.wait_for("logs/error.log", "sysguard: mem is above its threshold");
    assert!(shed(&server)["sysguard"]["mem"].as_u64().unwrap() >= 4);
    assert!(server.get("/metrics").text().contains("ironweir_shed_sysguard_total{reason=\"rt\"}"));
    assert!(wait(|| server.get("/rt").status == 200), "it is let in again");
}

/// A backend with so many workers, each as long on a request; the others wait in a row.
fn bounded(workers: usize, took: Duration) -> Backend {
    let room = Arc::new((Mutex::new(workers), Condvar::new()));
    Backend::start(move |_| {
        let (lock, changed) = &*room;
        let mut free = changed.wait_while(lock.lock().unwrap(), |free| *free == 0).unwrap();
        *free -= 1;
        drop(free);
        std::thread::sleep(took);
        *lock.lock().unwrap() += 1;
        changed.notify_one();
        Reply::ok("done")
    })
}

/// Workers of the backend, and how long each is on a request: 200 a second.
const WORKERS: usize = 4;
const TOOK: Duration = Duration::from_millis(20);
/// An answer that comes later is no use to anybody.
const PATIENCE: Duration = Duration::from_millis(500);

/// Requests at a steady rate whatever becomes of them. Good answers a second in the second half.
fn offer(port: u16, target: &'static str, per_second: usize, seconds: usize) -> usize {
    let good = Arc::new(AtomicUsize::new(0));
    let (began, threads) = (Instant::now(), per_second / 5);
    let half = Duration::from_millis(seconds as u64 * 500);
    let one = |n: usize| {
        let good = good.clone();
        let work = move || {
            for round in 0..seconds * 5 {
                let due = Duration::from_millis(round as u64 * 200 + (n * 200 / threads) as u64);
                std::thread::sleep(due.saturating_sub(began.elapsed()));
                let asked = Instant::now();
                let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let _ = stream.set_read_timeout(Some(PATIENCE));
                let _ = stream.write_all(format!("GET {target} HTTP/1.0\r\nHost: a\r\n\r\n").as_bytes());
                let mut said = Vec::new();
                let _ = stream.read_to_end(&mut said);
                let fine = said.starts_with(b"HTTP/1.1 200") && asked.elapsed() < PATIENCE;
                good.fetch_add(usize::from(fine && due >= half), Relaxed);
            }
        };
        std::thread::Builder::new().stack_size(128 << 10).spawn(work).unwrap()
    };
    let all: Vec<_> = (0..threads).map(one).collect();
    all.into_iter().for_each(|t| t.join().unwrap());
    good.load(Relaxed) * 2 / seconds
}

/// The machine may have much else to do meanwhile: the best of some tries counts.
#[test]
fn three_times_the_load_keeps_nine_tenths_of_the_answers() {
    let mut seen = Vec::new();
    for _ in 0..3 {
        let backend = bounded(WORKERS, TOOK);
        let server = Site::http(
            "upstream app { server 127.0.0.1:@BACKEND@; concurrency_limit auto min=2; }
             server { listen 127.0.0.1:@PORT@ backlog=4096; location / { proxy_pass http://app; }
                 location /without { proxy_pass http://127.0.0.1:@BACKEND@; } location /api { api; } }",
        )
        .set("BACKEND", backend.port)
        .start();
        let most = offer(server.port, "/", 180, 4) * 200 / 180;
        let good = offer(server.port, "/", 600, 8);
        println!("{good} good answers a second of {most}; {}", shed(&server));
        let limit = shed(&server)["upstreams"]["app"]["limit"].as_u64().unwrap();
        assert!(limit <= 32, "{limit}");
        seen.push((good, most));
        if good * 10 >= most * 9 {
            assert!(shed(&server)["upstreams"]["app"]["refused"].as_u64().unwrap() > 100);
            return;
        }
    }
    panic!("good answers a second, and the most there may be: {seen:?}");
}

/// A backend that answers when it is told to.
fn gated() -> (Backend, Arc<AtomicBool>) {
    let open = Arc::new(AtomicBool::new(false));
    let gate = open.clone();
    let backend = Backend::start(move |_| {
        let end = Instant::now() + Duration::from_secs(20);
        while !gate.load(Relaxed) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        Reply::ok("done")
    });
    (backend, open)
}

#[test]
fn the_low_go_first_and_the_high_last() {
    let (backend, open) = gated();
    let server = Site::http(
        "upstream app { server 127.0.0.1:@BACKEND@; concurrency_limit auto min=10 max=10; }
         log_format s '$status $shed_reason $request_uri';
         server { listen 127.0.0.1:@PORT@; access_log @DIR@/logs/s.log s; location / { shed_priority $arg_p; proxy_pass http://app; } location /api { api; } }",
    )
    .set("BACKEND", backend.port)
    .start();
    let mut under_way: Vec<Client> = Vec::new();
    // As many as are let in of a priority; the last one says why not.
    let mut fill = |priority: &str| {
        for n in 0.. {
            let mut client = server.connect();
            client.send(format!("GET /?p={priority} HTTP/1.1\r\nHost: a\r\n\r\n"));
            let known = under_way.len() as u64;
            let mut refused = None;
            assert!(wait(|| {
                client.stream.set_nonblocking(true).unwrap();
                let answered = client.stream.peek(&mut [0]).is_ok();
                client.stream.set_nonblocking(false).unwrap();
                if answered {
                    refused = Some(client.response());
                }
                answered || shed(&server)["upstreams"]["app"]["under_way"] == known + 1
            }));
            if let Some(refused) = refused {
                assert_eq!((refused.status, refused.header("Retry-After")), (503, Some("1")));
                assert!(refused.text().contains("<center>Request "));
                return n;
            }
            under_way.push(client);
        }
        0
    };
    assert_eq!((fill("low"), fill("normal"), fill("high")), (7, 3, 3));
    open.store(true, Relaxed);
    for client in &mut under_way {
        assert_eq!(client.response().text(), "done");
    }
    server.wait_for("logs/s.log", "503 concurrency /?p=low");
    assert!(wait(|| shed(&server)["upstreams"]["app"]["under_way"] == 0), "{}", shed(&server));
}

#[test]
fn a_queue_holds_what_is_above_the_limit() {
    let (backend, open) = gated();
    let server = Site::http(
        "upstream app { server 127.0.0.1:@BACKEND@; concurrency_limit auto min=2 max=2; queue 1 timeout=20s; }
         server { listen 127.0.0.1:@PORT@; location / { proxy_pass http://app; } location /api { api; } }",
    )
    .set("BACKEND", backend.port)
    .start();
    let ask = || {
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client
    };
    let mut all = vec![ask(), ask()];
    assert!(wait(|| shed(&server)["upstreams"]["app"]["under_way"] == 2));
    all.push(ask());
    // There is room for one; whoever comes later is refused.
    let mut refused = None;
    assert!(wait(|| {
        let answer = {
            let mut late = ask();
            late.stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            late.stream.peek(&mut [0]).is_ok().then(|| late.response().status)
        };
        refused = answer;
        answer.is_some()
    }));
    assert_eq!(refused, Some(503));
    open.store(true, Relaxed);
    for client in &mut all {
        assert_eq!(client.response().text(), "done");
    }
}

#[test]
fn a_breaker_opens_tries_and_closes() {
    let (broken, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let (is_broken, count) = (broken.clone(), asked.clone());
    let backend = Backend::start(move |_| {
        count.fetch_add(1, Relaxed);
        match is_broken.load(Relaxed) {
            true => Reply::Keep(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_vec()),
            false => Reply::ok("well"),
        }
    });
    let server = Site::http(
        "upstream app { server 127.0.0.1:@BACKEND@ max_fails=0; circuit_breaker errors=50% requests=10 window=60s open=1s; }
         log_format s '$status $shed_reason $request_uri';
         server { listen 127.0.0.1:@PORT@; access_log @DIR@/logs/s.log s; location / { proxy_pass http://app; } location /api { api; } location /metrics { prometheus; } }",
    )
    .set("BACKEND", backend.port)
    .start();
    assert!((0..10).all(|_| server.get("/x").status == 500));
    let refused = server.get("/x");
    assert_eq!((refused.status, refused.header("Retry-After")), (503, Some("1")));
    assert_eq!(asked.load(Relaxed), 10, "nobody asks");
    server.wait_for("logs/s.log", "503 breaker /x");
    server.wait_for("logs/error.log", "circuit breaker of an upstream opens for 1 s");
    assert_eq!(shed(&server)["upstreams"]["app"]["breaker"], "open");
    assert!(server.get("/metrics").text().contains("ironweir_shed_breaker_open{upstream=\"app\"} 1"));
    broken.store(false, Relaxed);
    assert!(wait(|| server.get("/x").status == 200), "one tries, and it is over");
    assert!((0..5).all(|_| server.get("/x").text() == "well"));
    let said = shed(&server);
    assert_eq!(
        (&said["upstreams"]["app"]["breaker"], &said["upstreams"]["app"]["opened"]),
        (&"closed".into(), &1.into())
    );
}
