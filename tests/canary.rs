//! `ironweir canary`: a new configuration serves a share of new connections; a bad one is taken back, a good one is kept, nobody is dropped.

use crate::harness::{Backend, Program, Reply, Server, Site, wait};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

const SHARE: &str = "20%";

/// A server whose answers are `old`, with another configuration beside it.
fn site(new: &str) -> Server {
    let location = "location / { return 200 old; } location /api { api; }";
    let server = Site::server(location).start();
    let text = server.read("nginx.conf").replace("location / { return 200 old; }", new);
    std::fs::write(server.dir().join("new.conf"), text).unwrap();
    server
}

fn canary(server: &Server, words: &[&str]) -> Command {
    server.wait_for("logs/nginx.pid", "\n");
    let mut command = Command::new(Program::Ironweir.path().expect("Ironweir is built"));
    command.arg("canary").arg("-p").arg(server.dir()).arg("-c").arg(server.dir().join("new.conf"));
    command.args(["--share", SHARE]).args(words).stdin(Stdio::null());
    command
}

/// Clients that ask without a pause: each of some on a new connection for each request, each of some on one that is kept.
struct Traffic {
    over: Arc<AtomicBool>,
    counts: Arc<Counts>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Counts {
    old: AtomicU64,
    new: AtomicU64,
    failed: AtomicU64,
    /// Connections that ended though they should not.
    dropped: AtomicU64,
}

impl Traffic {
    fn start(port: u16) -> Traffic {
        let (over, counts): (Arc<AtomicBool>, Arc<Counts>) = Default::default();
        let client = |kept: bool| {
            let (over, counts) = (over.clone(), counts.clone());
            std::thread::spawn(move || {
                while !over.load(Relaxed) {
                    let mut client = crate::harness::Client::connect(port);
                    for _ in 0..if kept { 200 } else { 1 } {
                        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
                        let Some(answer) = client.read_response(false) else {
                            counts.dropped.fetch_add(1, Relaxed);
                            break;
                        };
                        let count = match (answer.status, answer.text().as_str()) {
                            (200, "old") => &counts.old,
                            (200, _) => &counts.new,
                            _ => &counts.failed,
                        };
                        count.fetch_add(1, Relaxed);
                        if over.load(Relaxed) {
                            break;
                        }
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
            })
        };
        let threads = [false, false, false, true].into_iter().map(client).collect();
        Traffic { over, counts, threads }
    }

    fn end(self) -> Arc<Counts> {
        self.over.store(true, Relaxed);
        self.threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(self.counts.dropped.load(Relaxed), 0, "connections were dropped");
        self.counts
    }
}

fn said(output: &std::process::Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_canary_that_fails_is_taken_back() {
    let gone = crate::harness::Port::reserve();
    let server = site(&format!("location / {{ proxy_pass http://127.0.0.1:{}; }}", gone.number));
    let traffic = Traffic::start(server.port);
    let output = canary(&server, &["--for", "60s"]).output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(3), "{text}\n{}", server.error_log());
    assert!(text.contains("taken back: ") && text.contains("requests fail") && text.contains("Fisher"), "{text}");
    server.wait_for("logs/error.log", "canary: configuration 2 is taken back: ");
    // All are served by the old one again.
    assert!((0..40).all(|_| server.get("/").text() == "old"));
    let counts = traffic.end();
    let (old, failed) = (counts.old.load(Relaxed), counts.failed.load(Relaxed));
    assert!(failed >= 20, "it was judged by at least 20 requests: {failed}");
    // The one connection that is kept may be the canary's too.
    let share = failed as f64 / (old + failed) as f64;
    assert!(share < 0.5, "{failed} of {} requests were hurt", old + failed);
    assert_eq!(counts.new.load(Relaxed), 0);
}

#[test]
fn a_canary_that_is_slow_is_taken_back() {
    let slow = Backend::start(|_| {
        std::thread::sleep(Duration::from_millis(60));
        Reply::ok("new")
    });
    let server = site(&format!("location / {{ proxy_pass http://127.0.0.1:{}; }}", slow.port));
    let traffic = Traffic::start(server.port);
    let output = canary(&server, &["--for", "60s"]).output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("under the old one") && text.contains("Mann-Whitney"), "{text}");
    assert!((0..40).all(|_| server.get("/").text() == "old"));
    assert_eq!(traffic.end().failed.load(Relaxed), 0);
}

#[test]
fn a_canary_that_is_as_good_is_kept() {
    let server = site("location / { return 200 new; }");
    let traffic = Traffic::start(server.port);
    let output = canary(&server, &["--for", "2s"]).output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(0), "{text}\n{}", server.error_log());
    assert!(text.contains("kept: configuration 3 runs; the server's own file is still"), "{text}");
    assert!(text.contains("20 % of new connections for 2 s"), "{text}");
    assert!(wait(|| server.get("/").text() == "new"));
    assert!((0..20).all(|_| server.get("/").text() == "new"));
    let log = server.error_log();
    assert!(log.contains("canary: configuration 2 is kept, as configuration 3"), "{log}");
    let counts = traffic.end();
    assert_eq!(counts.failed.load(Relaxed), 0);
    let (old, new) = (counts.old.load(Relaxed), counts.new.load(Relaxed));
    assert!(old > 0 && new > 0, "{old} {new}");
}

/// A canary that serves, with the share of it that is seen.
fn begun(server: &Server) -> Child {
    let mut child = canary(server, &["--for", "10m"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = [0; 1];
    // It speaks as soon as the server has taken it.
    child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    assert!(wait(|| server.get("/").text() == "new"), "{}", server.error_log());
    child
}

#[test]
fn a_canary_ends_with_its_command() {
    let server = site("location / { return 200 new; }");
    let mut child = begun(&server);
    let answers: Vec<String> = (0..100).map(|_| server.get("/").text()).collect();
    let new = answers.iter().filter(|a| *a == "new").count();
    assert!((15..=25).contains(&new), "{new} of 100 connections have the new configuration");
    let seen = server.get("/api/9/ironweir/canary").text();
    assert!(seen.contains("\"running\":true") && seen.contains("\"share\":20.0"), "{seen}");
    child.kill().unwrap();
    child.wait().unwrap();
    server.wait_for("logs/error.log", "is taken back: the command that asked for it is gone");
    assert!(wait(|| (0..30).all(|_| server.get("/").text() == "old")));
    assert!(server.get("/api/9/ironweir/canary").text().contains("\"running\":false"));
}

#[test]
fn a_reload_ends_a_canary_and_connections_go_on() {
    let server = site("location / { return 200 new; }");
    let mut child = begun(&server);
    // A connection of the canary's.
    let mut client = loop {
        let mut client = server.connect();
        if client.get("/").text() == "new" {
            break client;
        }
    };
    let second = canary(&server, &[]).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(said(&second).contains("there is a canary already"), "{}", said(&second));
    server.signal(rustix::process::Signal::HUP);
    server.wait_for("logs/error.log", "is taken back: a reload was asked for");
    assert_eq!(child.wait().unwrap().code(), Some(3));
    assert!(wait(|| client.get("/").text() == "old"), "the connection goes on under the old configuration");
}

#[test]
fn a_canary_says_what_it_cannot_do() {
    let server = site("location / { no_such_thing; }");
    let output = canary(&server, &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("unknown directive \"no_such_thing\""), "{}", said(&output));
    // Nobody asks, so nothing is proven.
    let text = server.read("new.conf").replace("no_such_thing", "return 200 new");
    std::fs::write(server.dir().join("new.conf"), text).unwrap();
    let output = canary(&server, &["--for", "300ms"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(said(&output).contains("are too few to judge by (at least 20 each)"), "{}", said(&output));
    let text = server.read("new.conf").replace("events", "worker_priority 5; events");
    std::fs::write(server.dir().join("new.conf"), text).unwrap();
    let output = canary(&server, &[]).output().unwrap();
    assert!(said(&output).contains("it needs a new worker process"), "{}", said(&output));
    for (words, complaint) in [(&["--share", "0"][..], "--share 0"), (&["--for", "x"], "--for x: not a time")] {
        let output = canary(&server, words).output().unwrap();
        assert!(said(&output).contains(complaint), "{}", said(&output));
    }
}
