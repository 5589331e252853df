//! `proxy_cache`. Answers that have to be old say so themselves: `X-Accel-Expires: @1` is a second in 1970.

use crate::harness::{Backend, Client, Reply, Response, Server, Site, find, wait};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// Too old as soon as it is there.
const OLD: &str = "X-Accel-Expires: @1\r\n";
const FRESH: &str = "Cache-Control: max-age=600\r\n";

/// A site with a cache in front of a backend. `more`: what else stands in the location.
fn site(backend: &Backend, more: &str) -> Site {
    with_path(backend, "levels=1:2 keys_zone=one:1m", more)
}

fn with_path(backend: &Backend, path: &str, more: &str) -> Site {
    Site::http(&format!(
        "proxy_cache_path @DIR@/cache {path};
         server {{
             listen 127.0.0.1:@PORT@;
             location / {{
                 proxy_pass http://127.0.0.1:@BACKEND@; proxy_cache one;
                 add_header X-Cache $upstream_cache_status always; {more}
             }}
         }}"
    ))
    .set("BACKEND", backend.port)
}

/// A 200 with these headers.
fn ok(headers: &str, body: &str) -> Reply {
    Reply::Keep(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len()).into())
}

/// Counts its answers: `n 1`, `n 2` ...
fn counting(headers: &'static str) -> Backend {
    let n = AtomicUsize::new(0);
    Backend::start(move |_| ok(headers, &format!("n {}", n.fetch_add(1, Ordering::Relaxed) + 1)))
}

/// What the cache said and the body.
fn get(server: &Server, target: &str) -> (String, String) {
    ask(&mut server.connect(), target, "")
}

fn ask(client: &mut Client, target: &str, headers: &str) -> (String, String) {
    let r = client.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")).response();
    (r.header("X-Cache").unwrap_or("-").to_owned(), r.text())
}

fn said(status: &str, body: &str) -> (String, String) {
    (status.to_owned(), body.to_owned())
}

/// All files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).map(|d| d.flatten().collect::<Vec<_>>()).unwrap_or_default();
    entries.into_iter().flat_map(|e| if e.path().is_dir() { files(&e.path()) } else { vec![e.path()] }).collect()
}

/// Kills the worker process; the master starts another, whose index knows nothing.
fn kill_worker(server: &Server) {
    server.wait_for("logs/nginx.pid", "\n");
    let master: u32 = server.read("logs/nginx.pid").trim().parse().unwrap();
    let children = || crate::processes::children(master);
    assert!(wait(|| children().len() == 1));
    let old = children()[0];
    let pid = Pid::from_raw(old).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    assert!(wait(|| test_kill_process(pid).is_err()));
    assert!(wait(|| matches!(children().as_slice(), [one] if *one != old)));
}

/// Holds answers back until it is opened.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    fn pass(&self) {
        let open = self.0.lock().unwrap();
        drop(self.1.wait_while(open, |open| !*open).unwrap());
    }
}

#[test]
fn a_miss_and_then_hits() {
    let backend =
        counting("Cache-Control: max-age=600\r\nETag: \"tag\"\r\nContent-Type: text/x\r\nAccept-Ranges: bytes\r\n");
    let server = site(&backend, "").start();
    assert_eq!(get(&server, "/a?b"), said("MISS", "n 1"));
    let mut client = server.connect();
    for _ in 0..4 {
        assert_eq!(ask(&mut client, "/a?b", ""), said("HIT", "n 1"));
    }
    let head = client.head("/a?b");
    assert_eq!((head.header("X-Cache"), head.header("Content-Length")), (Some("HIT"), Some("3")));
    let r = client.send("GET /a?b HTTP/1.1\r\nHost: x\r\nRange: bytes=2-\r\n\r\n").response();
    assert_eq!((r.status, r.text().as_str(), r.header("Content-Range")), (206, "1", Some("bytes 2-2/3")));
    let r = client.send("GET /a?b HTTP/1.1\r\nHost: x\r\nIf-None-Match: \"tag\"\r\n\r\n").response();
    assert_eq!((r.status, r.header("X-Cache")), (304, Some("HIT")));
    assert_eq!(ask(&mut client, "/a?c", ""), said("MISS", "n 2"));
    assert_eq!(backend.seen().len(), 2);
    let files = files(&server.dir().join("cache"));
    assert_eq!(files.len(), 2);
    let key = format!("\nKEY: http://127.0.0.1:{}/a?b\n", backend.port);
    let file = files.iter().find(|f| find(&std::fs::read(f).unwrap(), key.as_bytes()).is_some()).expect("the key");
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(file.ends_with(format!("cache/{}/{}/{name}", &name[31..], &name[29..31])), "{}", file.display());
}

#[test]
fn what_is_not_kept() {
    for (headers, kept) in [
        ("Cache-Control: no-store\r\n", false),
        ("Cache-Control: max-age=600\r\nSet-Cookie: a=b\r\n", false),
        ("Cache-Control: max-age=600\r\nVary: *\r\n", false),
        ("Expires: Thu, 01 Jan 1970 00:00:01 GMT\r\n", false),
        ("Cache-Control: no-store\r\nX-Accel-Expires: 600\r\n", true),
        ("", false),
    ] {
        let backend = counting(headers);
        let server = site(&backend, "").start();
        get(&server, "/");
        assert_eq!(get(&server, "/").0, if kept { "HIT" } else { "MISS" }, "{headers}");
    }
    let backend = counting("Cache-Control: no-store\r\nSet-Cookie: a=b\r\n");
    let more = "proxy_ignore_headers Cache-Control Set-Cookie; proxy_cache_valid 200 10m; proxy_cache_min_uses 2;";
    let server = site(&backend, more).start();
    assert_eq!([(); 3].map(|()| get(&server, "/").0), ["MISS", "MISS", "HIT"]);
    let r = server.connect().send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx").response();
    assert_eq!((r.header("X-Cache"), r.text().as_str()), (None, "n 3"));
}

#[test]
fn what_is_old_is_fetched_again_or_confirmed() {
    let n = AtomicUsize::new(0);
    let backend = Backend::start(move |seen| match seen.header("If-None-Match") {
        Some(tag) => {
            assert_eq!(tag, "\"1\"");
            Reply::Keep(b"HTTP/1.1 304 Not Modified\r\nCache-Control: max-age=600\r\n\r\n".into())
        }
        None => ok(&format!("{OLD}ETag: \"1\"\r\n"), &format!("n {}", n.fetch_add(1, Ordering::Relaxed) + 1)),
    });
    let server =
        site(&backend, "location /r { proxy_pass http://127.0.0.1:@BACKEND@; proxy_cache_revalidate on; }").start();
    assert_eq!(get(&server, "/"), said("MISS", "n 1"));
    assert_eq!(get(&server, "/"), said("EXPIRED", "n 2"));
    assert_eq!(get(&server, "/r"), said("MISS", "n 3"));
    assert_eq!(ask(&mut server.connect(), "/r", "If-None-Match: \"other\"\r\n"), said("REVALIDATED", "n 3"));
    assert_eq!(get(&server, "/r"), said("HIT", "n 3"));
    kill_worker(&server);
    assert_eq!(get(&server, "/r"), said("HIT", "n 3"), "what was confirmed is in the file");
}

#[test]
fn an_old_answer_is_better_than_none() {
    let broken = Arc::new(AtomicUsize::new(0));
    let backend = Backend::start({
        let broken = broken.clone();
        move |_| match broken.load(Ordering::Relaxed) {
            0 => ok(OLD, "old"),
            1 => Reply::Close(Vec::new()),
            _ => Reply::Keep(b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops".into()),
        }
    });
    let more = "proxy_cache_use_stale error http_500;
        location /no { proxy_pass http://127.0.0.1:@BACKEND@; proxy_cache_use_stale off; proxy_cache_valid 502 10m; }";
    let server = site(&backend, more).start();
    for target in ["/", "/no"] {
        assert_eq!(get(&server, target), said("MISS", "old"));
    }
    broken.store(2, Ordering::Relaxed);
    assert_eq!(get(&server, "/"), said("STALE", "old"));
    assert_eq!(get(&server, "/no"), said("EXPIRED", "oops"));
    broken.store(1, Ordering::Relaxed);
    assert_eq!(get(&server, "/"), said("STALE", "old"));
    assert_eq!((server.get("/no").status, backend.seen().len()), (502, 6));
    let r = server.get("/no");
    assert_eq!((r.status, r.header("X-Cache"), backend.seen().len()), (502, Some("HIT"), 6), "failures are kept too");
}

#[test]
fn an_old_answer_is_sent_while_it_is_updated() {
    let gate = Arc::new(Gate::default());
    let first = AtomicBool::new(true);
    let backend = Backend::start({
        let gate = gate.clone();
        move |_| {
            if first.swap(false, Ordering::Relaxed) {
                return ok(OLD, "old");
            }
            gate.pass();
            ok(FRESH, "new")
        }
    });
    let server = site(&backend, "proxy_cache_use_stale updating; proxy_cache_background_update on;").start();
    assert_eq!(get(&server, "/"), said("MISS", "old"));
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "/", ""), said("STALE", "old"));
    for _ in 0..3 {
        assert_eq!(ask(&mut client, "/", ""), said("UPDATING", "old"));
    }
    gate.open();
    assert!(wait(|| get(&server, "/") == said("HIT", "new")));
    assert_eq!(backend.seen().len(), 2);
}

#[test]
fn bypass_and_no_cache() {
    let backend = counting(FRESH);
    let server =
        site(&backend, "proxy_cache_bypass $arg_fresh; proxy_no_cache $arg_secret; proxy_cache_key $uri;").start();
    assert_eq!(get(&server, "/?secret=1"), said("MISS", "n 1"));
    assert_eq!(get(&server, "/?secret=0"), said("MISS", "n 2"));
    assert_eq!(get(&server, "/"), said("HIT", "n 2"));
    assert_eq!(get(&server, "/?fresh=1"), said("BYPASS", "n 3"));
    assert_eq!(get(&server, "/"), said("HIT", "n 3"), "a bypassed answer is kept");
    assert_eq!(get(&server, "/?fresh=1&secret=1"), said("BYPASS", "n 4"));
    assert_eq!(get(&server, "/"), said("HIT", "n 3"));
}

#[test]
fn one_asks_and_fifty_wait() {
    let gate = Arc::new(Gate::default());
    let backend = Backend::start({
        let gate = gate.clone();
        move |_| {
            gate.pass();
            ok(FRESH, "once")
        }
    });
    let text = "worker_processes 4; events {}
        http {
            access_log off;
            proxy_cache_path @DIR@/cache keys_zone=one:1m;
            server {
                listen 127.0.0.1:@PORT@;
                location / {
                    proxy_pass http://127.0.0.1:@BACKEND@; proxy_cache one;
                    proxy_cache_lock on; proxy_cache_lock_timeout 60s; proxy_cache_lock_age 60s;
                    add_header X-Cache $upstream_cache_status;
                }
            }
        }";
    let server = Site::whole(text).set("BACKEND", backend.port).start();
    let mut clients: Vec<Client> = (0..50).map(|_| server.connect()).collect();
    for c in &mut clients {
        c.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
    assert!(wait(|| !backend.seen().is_empty()));
    gate.open();
    let mut answers: Vec<_> = clients.iter_mut().map(|c| c.response()).collect();
    assert!(answers.iter().all(|r| r.text() == "once"));
    assert_eq!(backend.seen().len(), 1);
    answers.retain(|r| r.header("X-Cache") == Some("MISS"));
    assert_eq!(answers.len(), 1);
}

#[test]
fn who_waits_too_long_asks_alone() {
    let gate = Arc::new(Gate::default());
    let n = AtomicUsize::new(0);
    let backend = Backend::start({
        let gate = gate.clone();
        move |_| {
            let n = n.fetch_add(1, Ordering::Relaxed) + 1;
            if n == 1 {
                gate.pass();
            }
            ok(FRESH, &format!("n {n}"))
        }
    });
    let server =
        site(&backend, "proxy_cache_lock on; proxy_cache_lock_timeout 20ms; proxy_cache_lock_age 60s;").start();
    let mut first = server.connect();
    first.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(wait(|| backend.seen().len() == 1));
    assert_eq!(get(&server, "/"), said("MISS", "n 2"));
    gate.open();
    assert_eq!(first.response().text(), "n 1");
    assert_eq!(get(&server, "/"), said("HIT", "n 1"), "only the first was kept");
}

#[test]
fn variants() {
    let backend = Backend::start(|seen| {
        let coding = seen.header("Accept-Encoding").unwrap_or("none");
        ok(&format!("{FRESH}Vary: Accept-Encoding\r\n"), coding)
    });
    let server = site(&backend, "").start();
    let mut client = server.connect();
    let mut with = |coding: &str| ask(&mut client, "/", &format!("Accept-Encoding: {coding}\r\n"));
    assert_eq!(with("gzip"), said("MISS", "gzip"));
    assert_eq!(with("br"), said("MISS", "br"));
    assert_eq!(with("gzip"), said("HIT", "gzip"));
    assert_eq!(with("br"), said("HIT", "br"));
    assert_eq!(get(&server, "/"), said("MISS", "none"));
    kill_worker(&server);
    assert_eq!(ask(&mut server.connect(), "/", "Accept-Encoding: br\r\n"), said("HIT", "br"));
    assert_eq!(backend.seen().len(), 3);
}

#[test]
fn large_answers_come_from_their_files() {
    let body: String = (0..200_000).map(|n| format!("{n:06} ")).collect();
    let sent = body.clone();
    let backend = Backend::start(move |_| ok(&format!("{FRESH}Accept-Ranges: bytes\r\n"), &sent));
    let server = site(&backend, "").start();
    assert_eq!(get(&server, "/"), said("MISS", &body));
    assert_eq!(get(&server, "/"), said("HIT", &body));
    let r = server.connect().send("GET / HTTP/1.1\r\nHost: x\r\nRange: bytes=700000-700005\r\n\r\n").response();
    assert_eq!((r.status, r.text().as_str()), (206, "100000"));
    // A client that takes nothing holds up neither the backend nor the cache.
    let mut slow = server.connect();
    slow.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(wait(|| get(&server, "/slow").0 == "HIT"));
    assert_eq!(slow.response().text(), body);
}

/// Whatever it is that fails for its going: a look at its socket, or a write.
#[test]
fn a_client_that_leaves_does_not_stop_the_cache() {
    for body in ["for the cache".to_owned(), "much ".repeat(1_000_000)] {
        let gate = Arc::new(Gate::default());
        let backend = Backend::start({
            let (gate, body) = (gate.clone(), body.clone());
            move |_| {
                gate.pass();
                ok(FRESH, &body)
            }
        });
        let server = site(&backend, "").start();
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(wait(|| backend.seen().len() == 1));
        drop(client);
        gate.open();
        assert!(wait(|| files(&server.dir().join("cache")).len() == 1));
        assert!(wait(|| get(&server, "/") == said("HIT", &body)));
        assert_eq!(backend.seen().len(), 1);
    }
}

#[test]
fn files_are_found_again() {
    let backend = counting(FRESH);
    let server = site(&backend, "").start();
    for n in 0..20 {
        get(&server, &format!("/{n}"));
    }
    kill_worker(&server);
    server.wait_for("logs/error.log", "http file cache: ");
    for n in 0..20 {
        assert_eq!(get(&server, &format!("/{n}")), said("HIT", &format!("n {}", n + 1)));
    }
}

#[test]
fn half_an_answer_is_never_kept() {
    let half = Arc::new(AtomicBool::new(true));
    let gate = Arc::new(Gate::default());
    let body = "x".repeat(300_000);
    let backend = Backend::start({
        let (half, gate, body) = (half.clone(), gate.clone(), body.clone());
        move |seen| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{FRESH}\r\n", body.len());
            if !half.load(Ordering::Relaxed) {
                return Reply::Keep((head + &body).into());
            }
            if seen.line().contains("/cut") {
                return Reply::Close((head + &body[..200_000]).into());
            }
            // What is sent before the gate is what the worker has when it is killed.
            gate.pass();
            Reply::Close(Vec::new())
        }
    });
    for place in ["use_temp_path=on", "use_temp_path=off"] {
        half.store(true, Ordering::Relaxed);
        let server = with_path(&backend, &format!("levels=1:2 keys_zone=one:1m {place}"), "").start();
        let mut client = server.connect();
        client.send("GET /cut HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(client.rest().len() >= 200_000);
        assert!(wait(|| files(&server.dir().join("cache")).is_empty()), "what was cut off is removed");
        half.store(false, Ordering::Relaxed);
        assert_eq!(get(&server, "/cut"), said("MISS", &body));
        assert_eq!(get(&server, "/cut"), said("HIT", &body));
    }
}

#[test]
fn a_killed_worker_leaves_nothing_broken() {
    let stall = Arc::new(AtomicBool::new(true));
    let body = "y".repeat(500_000);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn({
        let (stall, body) = (stall.clone(), body.clone());
        move || {
            let mut held = Vec::new();
            for mut stream in listener.incoming().map_while(Result::ok) {
                use std::io::{Read, Write};
                let _ = stream.read(&mut [0; 4096]);
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{FRESH}\r\n", body.len());
                let part = if stall.load(Ordering::Relaxed) { &body[..400_000] } else { &body[..] };
                let _ = stream.write_all((head + part).as_bytes());
                held.push(stream);
            }
        }
    });
    let server = Site::http(
        "proxy_cache_path @DIR@/cache keys_zone=one:1m use_temp_path=off;
         server {
             listen 127.0.0.1:@PORT@;
             location / { proxy_pass http://127.0.0.1:@BACKEND@; proxy_cache one; add_header X-Cache $upstream_cache_status; }
         }",
    )
    .set("BACKEND", port)
    .start();
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    client.take(350_000);
    let cache = server.dir().join("cache");
    assert!(wait(|| files(&cache).len() == 1), "it is being written");
    kill_worker(&server);
    stall.store(false, Ordering::Relaxed);
    assert_eq!(get(&server, "/"), said("MISS", &body));
    assert_eq!(get(&server, "/"), said("HIT", &body));
}

#[test]
fn files_that_are_no_entries_are_replaced() {
    let backend = counting(FRESH);
    let server = site(&backend, "").start();
    get(&server, "/");
    let file = files(&server.dir().join("cache")).remove(0);
    let whole = std::fs::read(&file).unwrap();
    let mut other_key = whole.clone();
    let at = find(&whole, b"KEY: ").unwrap() + 6;
    other_key[at] ^= 1;
    let mut flipped = whole.clone();
    flipped[50] = 0xff;
    for (n, broken) in [whole[..100].to_vec(), Vec::new(), vec![b'x'; 5000], other_key, flipped].into_iter().enumerate()
    {
        std::fs::write(&file, &broken).unwrap();
        assert_eq!(get(&server, "/"), said("MISS", &format!("n {}", n + 2)), "{n}");
        assert_eq!(get(&server, "/").0, "HIT");
    }
    std::fs::remove_file(&file).unwrap();
    assert_eq!(get(&server, "/").0, "MISS", "removing the file is how operators purge");
}

#[test]
fn what_is_too_much_or_idle_is_removed() {
    let body = "z".repeat(8000);
    let backend = Backend::start(move |_| ok(FRESH, &body));
    let server = with_path(&backend, "keys_zone=one:1m max_size=64k manager_sleep=10ms", "").start();
    for n in 0..60 {
        get(&server, &format!("/{n}"));
    }
    let cache = server.dir().join("cache");
    assert!(wait(|| files(&cache).len() <= 9), "{} files", files(&cache).len());
    assert_eq!(get(&server, "/59").0, "HIT", "the newest stay");
    assert_eq!(get(&server, "/0").0, "MISS");
    let server = with_path(&backend, "keys_zone=one:1m inactive=1s", "").start();
    get(&server, "/");
    let cache = server.dir().join("cache");
    assert_eq!(files(&cache).len(), 1);
    assert!(wait(|| files(&cache).is_empty()));
    assert_eq!(get(&server, "/").0, "MISS");
}

#[test]
fn a_full_keys_zone_holds_what_it_can() {
    let backend = counting(FRESH);
    let server = with_path(&backend, "keys_zone=one:16k", "").start();
    for n in 0..200 {
        assert_eq!(get(&server, &format!("/{n}")), said("MISS", &format!("n {}", n + 1)));
    }
    assert!(wait(|| files(&server.dir().join("cache")).len() <= 64));
    assert_eq!(get(&server, "/199").0, "HIT");
}

#[test]
fn a_reload_keeps_the_zone() {
    let backend = counting(FRESH);
    let server = site(&backend, "").start();
    get(&server, "/");
    let text = server.read("nginx.conf");
    server.signal(Signal::HUP);
    server.wait_for("logs/error.log", "reconfiguring");
    assert_eq!(get(&server, "/"), said("HIT", "n 1"));
    std::fs::write(server.dir().join("nginx.conf"), text.replace("levels=1:2", "levels=2")).unwrap();
    server.signal(Signal::HUP);
    server.wait_for("logs/error.log", "cache \"one\" had previously different levels");
    assert_eq!(get(&server, "/"), said("HIT", "n 1"));
    std::fs::write(
        server.dir().join("nginx.conf"),
        text.replace("@DIR@/cache", "@DIR@/other").replace("/cache ", "/other "),
    )
    .unwrap();
    server.signal(Signal::HUP);
    server.wait_for("logs/error.log", "while previously it used the");
    assert_eq!(get(&server, "/"), said("HIT", "n 1"));
}

#[test]
fn chunked_and_endless_answers_are_kept_whole() {
    let backend = Backend::start(|seen| {
        if seen.line().contains("/chunked") {
            return Reply::Keep(
                format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{FRESH}\r\n5\r\nhello\r\n0\r\n\r\n").into(),
            );
        }
        Reply::Close(format!("HTTP/1.1 200 OK\r\n{FRESH}\r\nhello").into())
    });
    let server = site(&backend, "").start();
    for target in ["/chunked", "/close"] {
        assert_eq!(get(&server, target), said("MISS", "hello"));
        assert_eq!(get(&server, target), said("HIT", "hello"));
    }
}

/// Parts of this text, as a backend with `Range` gives them.
fn ranged(whole: &'static str) -> Backend {
    Backend::start(move |seen| {
        let range = seen.header("Range").and_then(|v| v.strip_prefix("bytes=")).and_then(|v| v.split_once('-'));
        let Some((start, last)) = range else { return ok(FRESH, whole) };
        let start: usize = start.parse().unwrap();
        let end = (last.parse::<usize>().unwrap() + 1).min(whole.len());
        let body = &whole[start..end];
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {start}-{}/{}\r\nETag: \"1\"\r\n{FRESH}\r\n",
            body.len(),
            end - 1,
            whole.len()
        );
        Reply::Keep((head + body).into())
    })
}

#[test]
fn slices_are_fetched_and_kept_one_by_one() {
    let backend = ranged("0123456789abcdef!");
    let more = "slice 4; proxy_cache_key $uri$slice_range; proxy_set_header Range $slice_range;";
    let server = site(&backend, more).start();
    let mut client = server.connect();
    let r = client.send("GET / HTTP/1.1\r\nHost: x\r\nRange: bytes=5-9\r\n\r\n").response();
    assert_eq!((r.status, r.text().as_str(), r.header("Content-Range")), (206, "56789", Some("bytes 5-9/17")));
    assert_eq!(backend.seen().len(), 2, "4-7 and 8-11");
    assert_eq!(ask(&mut client, "/", ""), said("MISS", "0123456789abcdef!"));
    assert_eq!(backend.seen().len(), 5);
    assert_eq!(ask(&mut client, "/", ""), said("HIT", "0123456789abcdef!"));
    let r = client.send("GET / HTTP/1.1\r\nHost: x\r\nRange: bytes=-3\r\n\r\n").response();
    assert_eq!((r.status, r.text().as_str()), (206, "ef!"));
    let head = client.head("/");
    assert_eq!((head.status, head.header("Content-Length")), (200, Some("17")));
    let r = client.send("GET / HTTP/1.1\r\nHost: x\r\nIf-None-Match: \"1\"\r\n\r\n").response();
    assert_eq!(r.status, 304);
    assert_eq!(ask(&mut client, "/", "If-Range: \"2\"\r\nRange: bytes=1-2\r\n").1, "0123456789abcdef!");
    assert_eq!((backend.seen().len(), files(&server.dir().join("cache")).len()), (5, 5));
}

#[test]
fn what_is_never_kept_and_what_is_left_out() {
    let backend = Backend::start(|seen| match seen.line().split(' ').nth(1) {
        Some("/vary") => ok("Cache-Control: max-age=600\r\nVary: Accept, *\r\n", "x"),
        _ => ok("Cache-Control: max-age=600\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nX-Stays: 2\r\n", "x"),
    });
    let server = site(&backend, "").start();
    for _ in 0..2 {
        assert_eq!(get(&server, "/vary"), said("MISS", "x"));
    }
    assert_eq!(get(&server, "/hop"), said("MISS", "x"));
    let kept = server.get("/hop");
    assert_eq!((kept.header("X-Cache"), kept.header("X-Hop"), kept.header("X-Stays")), (Some("HIT"), None, Some("2")));
}

#[test]
fn an_entity_tag_counts_before_a_date() {
    let modified = "Mon, 02 Nov 2026 10:00:00 GMT";
    let headers = "Cache-Control: max-age=600\r\nETag: \"a\"\r\nLast-Modified: Mon, 02 Nov 2026 10:00:00 GMT\r\n";
    let backend = Backend::start(move |_| ok(headers, "x"));
    let server = site(&backend, "").start();
    get(&server, "/");
    let status = |headers: &str| {
        let mut client = server.connect();
        client.send(format!("GET / HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")).response().status
    };
    assert_eq!(status("If-None-Match: \"a\"\r\nIf-Modified-Since: Mon, 02 Nov 2020 10:00:00 GMT\r\n"), 304);
    assert_eq!(status(&format!("If-None-Match: \"b\"\r\nIf-Modified-Since: {modified}\r\n")), 200);
    assert_eq!(status(&format!("If-Modified-Since: {modified}\r\n")), 304);
}

/// What `proxy_cache_rfc9111 on` adds, against what nginx does without it.
#[test]
fn rfc_9111_where_it_is_asked_for() {
    let n = AtomicUsize::new(0);
    let backend = Backend::start(move |seen| {
        let headers = match seen.line().split(' ').nth(1).unwrap_or_default() {
            "/old" => "Cache-Control: max-age=60\r\nAge: 60\r\n",
            "/aged" => "Cache-Control: max-age=600\r\nAge: 100\r\n",
            "/cdn" => "Cache-Control: no-store\r\nCDN-Cache-Control: max-age=600\r\n",
            "/public" => "Cache-Control: public, max-age=600\r\n",
            _ => "Cache-Control: max-age=600\r\n",
        };
        ok(headers, &format!("n {}", n.fetch_add(1, Ordering::Relaxed) + 1))
    });
    for on in [false, true] {
        let server = site(&backend, if on { "proxy_cache_rfc9111 on;" } else { "" }).start();
        let second = |target: &str, headers: &str| {
            ask(&mut server.connect(), target, headers);
            ask(&mut server.connect(), target, headers).0
        };
        let status = |with: &'static str, without: &'static str| if on { with } else { without };
        assert_eq!(second("/old", ""), status("MISS", "HIT"));
        assert_eq!(second("/cdn", ""), status("HIT", "MISS"));
        assert_eq!(second("/plain", "Authorization: Basic x\r\n"), status("MISS", "HIT"));
        assert_eq!(second("/public", "Authorization: Basic x\r\n"), "HIT");
        assert_eq!(second("/aged", ""), "HIT");
        let age = server.get("/aged").header("Age").map(|age| age.parse::<u64>().expect("a number"));
        assert!(age.is_some_and(|age| age >= 100), "{age:?}");
        assert_eq!(second("/thing", ""), "HIT");
        let changed = server.connect().send("DELETE /thing HTTP/1.1\r\nHost: localhost\r\n\r\n").response();
        assert_eq!(changed.status, 200);
        assert_eq!(get(&server, "/thing").0, status("EXPIRED", "HIT"));
    }
}

/// `proxy_cache_rfc9111 on`: a request that changes something reaches what other clients would get (`Vary`), and nothing else.
#[test]
fn changes_reach_all_variants() {
    let backend = Backend::start(|seen| {
        let coding = seen.header("Accept-Encoding").unwrap_or("none");
        ok("Cache-Control: max-age=600\r\nVary: Accept-Encoding\r\n", coding)
    });
    let server = site(&backend, "proxy_cache_rfc9111 on;").start();
    let with =
        |target: &str, coding: &str| ask(&mut server.connect(), target, &format!("Accept-Encoding: {coding}\r\n")).0;
    for coding in ["gzip", "br", "zstd"] {
        assert_eq!((with("/a", coding).as_str(), with("/a", coding).as_str()), ("MISS", "HIT"));
        assert_eq!((with("/b", coding).as_str(), with("/b", coding).as_str()), ("MISS", "HIT"));
    }
    let post = "POST /a HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: br\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(server.connect().send(post).response().status, 200);
    // The first that was stored, and the client's own, at once.
    assert_ne!(with("/a", "br"), "HIT");
    // The key of the third says whose it is, so its file has to be found.
    let cache = server.dir().join("cache");
    let holds = |key: &str, coding: &str| {
        fn files(folder: &std::path::Path, found: &mut Vec<Vec<u8>>) {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.path() {
                    path if path.is_dir() => files(&path, found),
                    path => found.extend(std::fs::read(path)),
                }
            }
        }
        let mut found = Vec::new();
        files(&cache, &mut found);
        let has = |file: &Vec<u8>, part: &str| file.windows(part.len()).any(|w| w == part.as_bytes());
        found.iter().any(|file| has(file, &format!("{key}\n")) && file.ends_with(format!("\n{coding}").as_bytes()))
    };
    assert!(holds("/b", "zstd"));
    assert!(wait(|| !holds("/a", "zstd")));
    assert_eq!((with("/a", "zstd").as_str(), with("/b", "zstd").as_str()), ("MISS", "HIT"));
}

/// `proxy_cache_rfc9111 on`: what an answer names as the place of what was changed is too old as well, if it is the same server's.
#[test]
fn changes_reach_what_the_answer_names() {
    let backend = Backend::start(|seen| {
        let host = seen.header("Host").unwrap_or_default();
        let named = match seen.line().split(' ').nth(1).unwrap_or_default() {
            "/d/relative" => "Location: place?a=1\r\nContent-Location: /d/content\r\n".to_owned(),
            "/d/whole" => {
                format!("Location: http://{host}/d/place?a=1\r\nContent-Location: http://Localhost/d/content\r\n")
            }
            "/d/foreign" => {
                "Location: http://elsewhere/d/place?a=1\r\nContent-Location: //elsewhere/d/content\r\n".to_owned()
            }
            _ => String::new(),
        };
        ok(&format!("Cache-Control: max-age=600\r\n{named}"), "body")
    });
    let own = "proxy_cache_key $scheme$host$request_uri;";
    for (switch, key) in [("off", ""), ("on", ""), ("on", own)] {
        let server = site(&backend, &format!("proxy_cache_rfc9111 {switch}; {key}")).start();
        for (changed, reaches) in [("/d/relative", true), ("/d/whole", true), ("/d/foreign", false)] {
            let places = ["/d/place?a=1", "/d/content"];
            for place in places {
                get(&server, place);
                assert_eq!(get(&server, place).0, "HIT");
            }
            let post = format!("POST {changed} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
            assert_eq!(server.connect().send(post).response().status, 200);
            let then = if reaches && switch == "on" { "EXPIRED" } else { "HIT" };
            for place in places {
                assert_eq!(get(&server, place).0, then, "{changed} {place} {switch} {key}");
            }
        }
    }
}

/// The same where the peer's targets are not the client's.
#[test]
fn changes_reach_what_the_answer_names_under_another_path() {
    let backend = Backend::start(|seen| {
        let host = seen.header("Host").unwrap_or_default();
        ok(&format!("Cache-Control: max-age=600\r\nLocation: http://{host}/peer/place\r\n"), "body")
    });
    let server = Site::http(
        "proxy_cache_path @DIR@/cache keys_zone=one:1m; proxy_cache one; proxy_cache_rfc9111 on;
         server {
             listen 127.0.0.1:@PORT@; add_header X-Cache $upstream_cache_status always;
             location /here/ { proxy_pass http://127.0.0.1:@BACKEND@/peer/; }
         }",
    )
    .set("BACKEND", backend.port)
    .start();
    get(&server, "/here/place");
    assert_eq!(get(&server, "/here/place").0, "HIT");
    let post = "POST /here/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(server.connect().send(post).response().status, 200);
    assert_eq!(get(&server, "/here/place").0, "EXPIRED");
}

/// `proxy_cache_rfc9111 on`: `Date` is the answer's own, which `Age` counts from; nginx's is that of the moment.
#[test]
fn rfc_9111_dates() {
    let then = "Thu, 01 Jan 2026 00:00:00 GMT";
    let backend = Backend::start(move |_| ok(&format!("Date: {then}\r\nCache-Control: max-age=900000000\r\n"), "body"));
    for on in [false, true] {
        let server = site(&backend, if on { "proxy_cache_rfc9111 on;" } else { "" }).start();
        get(&server, "/x");
        let hit = server.get("/x");
        assert_eq!(hit.header("X-Cache"), Some("HIT"));
        assert_eq!(hit.header("Date") == Some(then), on);
        let age = hit.header("Age").and_then(|age| age.parse::<u64>().ok());
        assert_eq!(age.is_some_and(|age| age > 1000), on, "{age:?}");
    }
}

/// `proxy_cache_rfc9111 on`: a 304's header lines take the place of those that are kept.
#[test]
fn rfc_9111_confirmations_bring_new_headers() {
    let n = AtomicUsize::new(0);
    let backend = Backend::start(move |seen| {
        let asked = n.fetch_add(1, Ordering::Relaxed);
        if seen.header("If-None-Match").is_none() {
            return ok(&format!("ETag: \"e\"\r\nX-Of: {asked}\r\nX-Kept: k\r\nCache-Control: max-age=1\r\n"), "body");
        }
        let lines = format!("ETag: \"e\"\r\nX-Of: {asked}\r\nCache-Control: max-age=600\r\n");
        Reply::Keep(format!("HTTP/1.1 304 Not Modified\r\n{lines}\r\n").into())
    });
    for on in [false, true] {
        let switch = if on { "proxy_cache_rfc9111 on;" } else { "" };
        let server = site(&backend, &format!("{switch} proxy_cache_revalidate on;")).start();
        let header = |r: &Response, name| r.header(name).unwrap_or_default().to_owned();
        let first = header(&server.get("/x"), "X-Of");
        let mut confirmed = None;
        assert!(wait(|| {
            confirmed = Some(server.get("/x")).filter(|r| r.header("X-Cache") == Some("REVALIDATED"));
            confirmed.is_some()
        }));
        let hit = server.get("/x");
        assert_eq!(
            (header(&hit, "X-Cache").as_str(), header(&hit, "X-Kept").as_str(), hit.text().as_str()),
            ("HIT", "k", "body")
        );
        for answer in [&confirmed.expect("it was waited for"), &hit] {
            assert_eq!(header(answer, "X-Of") != first, on, "{answer:?}");
        }
    }
}

/// `proxy_cache_rfc9111 on`: `must-revalidate` forbids what `proxy_cache_use_stale` would send.
#[test]
fn rfc_9111_answers_that_must_be_asked_for_again() {
    let down = Arc::new(AtomicBool::new(false));
    let is_down = down.clone();
    let backend = Backend::start(move |_| {
        if is_down.load(Ordering::Relaxed) {
            return Reply::Keep(b"HTTP/1.1 503 Out\r\nContent-Length: 0\r\n\r\n".to_vec());
        }
        ok("Cache-Control: max-age=1, must-revalidate\r\n", "body")
    });
    for (switch, then) in [("", ("STALE", 200)), ("proxy_cache_rfc9111 on;", ("EXPIRED", 503))] {
        down.store(false, Ordering::Relaxed);
        let server = site(&backend, &format!("{switch} proxy_cache_use_stale http_503;")).start();
        assert_eq!(get(&server, "/x").0, "MISS");
        down.store(true, Ordering::Relaxed);
        let mut seen = ("".to_owned(), 0);
        wait(|| {
            let r = server.get("/x");
            seen = (r.header("X-Cache").unwrap_or_default().to_owned(), r.status);
            seen.0 != "HIT"
        });
        assert_eq!((seen.0.as_str(), seen.1), then);
    }
}
