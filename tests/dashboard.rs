//! `dashboard` in a real browser: it shows load, a peer that dies and why, drains the other; light and dark, wide and narrow,
//! by keyboard. Chromium and playwright-core are peers: left out, aloud, where they are not there.

use crate::harness::{Backend, Port, Reply, Server, Site, blunt, in_chromium, wait};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A page in a browser.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Browser {
    pub fn start(url: &str, pictures: &Path) -> Option<Browser> {
        let mut script = in_chromium("dashboard.mjs")?;
        let child = script.arg(url).arg(pictures).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let Ok(mut child) = child else {
            println!("node is not installed: left out");
            return None;
        };
        let (to, from) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        Some(Browser { child, to, from })
    }

    /// Does a step of `dashboard.mjs`; what it saw.
    pub fn step(&mut self, step: &str) -> Value {
        writeln!(self.to, "{step}").expect("the script reads");
        let mut line = String::new();
        self.from.read_line(&mut line).expect("the script writes");
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{step}: {line:?}"));
        assert!(said.get("failed").is_none(), "{step}: {said}");
        said
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Requests one after the other until dropped.
struct Load(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Load {
    fn on(server: &Server) -> Load {
        let over = Arc::new(AtomicBool::new(false));
        let (seen, port) = (over.clone(), server.port);
        let thread = std::thread::spawn(move || {
            while !seen.load(Relaxed) {
                crate::harness::Client::connect(port).get("/shop");
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        });
        Load(over, Some(thread))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
        self.1.take().map(std::thread::JoinHandle::join);
    }
}

/// Where pictures go: kept if somebody asks for them.
fn pictures(server: &Server) -> PathBuf {
    std::env::var_os("DASHBOARD_PICTURES").map_or_else(|| server.dir().to_owned(), PathBuf::from)
}

#[test]
fn the_page_shows_load_and_a_dying_peer_and_drains_the_other() {
    // They close after each answer, so that who is gone is gone at once.
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
    let [one, two, three] = [(); 3].map(|()| Backend::start(|_| Reply::Close(answer.to_vec())));
    let server = Site::http(
        "upstream shop { zone shop 64k; server 127.0.0.1:@ONE@ max_fails=1 fail_timeout=60s; server 127.0.0.1:@TWO@;
           server 127.0.0.1:@THREE@ backup; }
         limit_req_zone $uri zone=slow:64k rate=1000r/s;
         server { listen 127.0.0.1:@PORT@; status_zone site;
           location / { dashboard; } location /api/ { api write=on; } location /limited { limit_req zone=slow; }
           location /shop { status_zone shop; proxy_pass http://shop; } }",
    )
    .set("ONE", one.port)
    .set("TWO", two.port)
    .set("THREE", three.port)
    .start();
    let page = server.get("/");
    assert!(page.header("Content-Security-Policy").is_some_and(|p| p.contains("script-src 'sha256-")));
    let url = format!("http://127.0.0.1:{}/", server.port);
    let Some(mut browser) = Browser::start(&url, &pictures(&server)) else { return };
    let load = Load::on(&server);
    let opened = browser.step("open");
    assert!(opened["version"].as_str().is_some_and(|v| v.contains("1.31.5")), "{opened}");
    assert_eq!(browser.step("load")["canvases"], 3);
    for (name, width, scheme) in [("light", 1280, "light"), ("dark", 1280, "dark"), ("narrow", 360, "light")] {
        let seen = browser.step(&format!("picture {name} {width} {scheme}"));
        assert!(seen["overflow"].as_i64() <= Some(0), "{name} is wider than the window: {seen}");
    }
    browser.step("picture wide 1280 light");

    let (name_of_one, name_of_two) = (format!("127.0.0.1:{}", one.port), format!("127.0.0.1:{}", two.port));
    browser.step(&format!("state {name_of_one} up"));
    let port = one.port;
    // No request is under way meanwhile: one that had got as far as a connection would see it closed, not refused.
    drop((load, one));
    assert!(wait(|| std::net::TcpStream::connect(("127.0.0.1", port)).is_err()));
    let load = Load::on(&server);
    let shown = browser.step(&format!("state {name_of_one} unavail"));
    assert!(shown["text"].as_str().is_some_and(|t| t.contains("refused: nothing listens on")), "{shown}");
    browser.step("picture dying 1280 dark");
    assert_eq!(browser.step(&format!("weight {name_of_two} 7"))["value"], "7");
    let drained = browser.step(&format!("drain {name_of_two}"));
    assert_eq!(drained["focused"], "Take back", "the keyboard stays where it was: {drained}");
    let keys = browser.step("keys");
    assert_eq!((&keys["filter"], &keys["state"]), (&Value::from("filter"), &Value::from("paused")), "{keys}");
    // The first click asks, the second one does it.
    let once = browser.step(&format!("down {name_of_two} 1"));
    assert_eq!(once["button"], "Really down?", "{once}");
    let twice = browser.step(&format!("down {name_of_two} 1"));
    assert_eq!(twice["button"], "Up", "{twice}");
    for (section, text) in [("listeners", "TCP"), ("limits", "slow"), ("zones", "shop")] {
        let shown = browser.step(&format!("text {section}"));
        assert!(shown["text"].as_str().is_some_and(|t| t.contains(text)), "{shown}");
    }
    assert_eq!(browser.step("errors")["errors"], Value::Array(Vec::new()));
    // Who changed what, from where.
    let log = server.error_log();
    for what in [r#"{\"weight\":7}"#, r#"{\"drain\":true}"#, r#"{\"down\":true}"#] {
        let line = log.lines().find(|l| l.contains("api: PATCH /9/http/upstreams/shop/servers/1") && l.contains(what));
        assert!(line.is_some_and(|l| l.contains("client: 127.0.0.1")), "{what}\n{log}");
    }
    drop(load);
    server.stop(rustix::process::Signal::TERM);
    let gone = browser.step("gone");
    assert!(gone["size"].as_f64().is_some_and(|px| px > 20.0), "{gone}");
}

#[test]
fn the_page_says_what_is_in_the_way_and_what_requests_wait_for() {
    let slow = Backend::start(|_| {
        std::thread::sleep(std::time::Duration::from_millis(250));
        Reply::ok("late")
    });
    let server = Site::http(
        "upstream shop { zone shop 64k; server 127.0.0.1:@SLOW@; }
         server { listen 127.0.0.1:@PORT@; location / { dashboard; } location /api/ { api; } location /shop { proxy_pass http://shop; } }",
    )
    .set("SLOW", slow.port)
    .start();
    let url = format!("http://127.0.0.1:{}/", server.port);
    let Some(mut browser) = Browser::start(&url, &pictures(&server)) else { return };
    // Between two looks there must be enough requests to say where their time goes.
    let loads: Vec<Load> = (0..16).map(|_| Load::on(&server)).collect();
    browser.step("open");
    let shown = browser.step("way Requests wait for upstreams");
    assert!(shown["bad"] == true && shown["sentence"].as_str().unwrap().contains("requests/s"), "{shown:#}");
    let seen = shown["seen"].as_str().unwrap().to_lowercase();
    assert!(
        seen.contains("warning") && seen.contains("on average") && seen.contains("ironweir doctor backend"),
        "{shown:#}"
    );
    // The longest bar is that of the part in which the time is spent.
    let rows = shown["rows"].as_array().unwrap();
    let width = |row: &Value| row["bar"].as_f64().unwrap();
    let longest = rows.iter().max_by(|a, b| width(a).total_cmp(&width(b))).unwrap_or_else(|| panic!("{shown:#}"));
    assert!(longest["text"].as_str().unwrap().contains("first byte") && width(longest) > 20.0, "{shown:#}");
    assert!(shown["head"].as_str().unwrap().to_lowercase().contains("a request takes"), "{shown:#}");
    for (name, width, scheme) in [("why", 1280, "light"), ("why-narrow", 360, "dark")] {
        let seen = browser.step(&format!("picture {name} {width} {scheme}"));
        assert!(seen["overflow"].as_i64() <= Some(0), "{name} is wider than the window: {seen}");
    }
    drop(loads);
    let shown = browser.step("over Requests wait for upstreams");
    assert!(!shown["seen"].as_str().unwrap().contains("Requests wait"), "{shown:#}");
    assert_eq!(browser.step("errors")["errors"], Value::Array(Vec::new()));
}

#[test]
fn the_page_says_of_each_peer_why_it_is_out() {
    let close = |answer: &'static str| Backend::start(move |_| Reply::Close(answer.into()));
    let slow = Backend::start(|_| {
        std::thread::sleep(std::time::Duration::from_secs(1));
        Reply::ok("late")
    });
    let (closed, plain) = (Port::reserve(), blunt(b"no TLS here"));
    let (busy, mute) = (close("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"), close(""));
    let (old, bad) = (close("HTTP/1.1 200 OK\r\nX-Version: 1\r\n\r\n"), close("HTTP/1.1 200 OK\r\n\r\nbad"));
    // What a page must not take for its own.
    let nonsense = close("220 <b>mail</b> & more\r\n");
    let sick = [
        ("http", "", closed.number, "refused: nothing listens on 127.0.0.1:"),
        ("http", "", busy.port, "answered 503, wanted 200-399"),
        ("http", "match=version", old.port, "header did not match: X-Version = 2: came as \"1\""),
        ("http", "match=body", bad.port, "body did not match: ~ \"^good\": began with \"bad\""),
        ("http", "", slow.port, "too slow: "),
        ("http", "", mute.port, "closed the connection without an answer"),
        ("http", "", nonsense.port, "answered nonsense: no HTTP: \"220 <b>mail</b> & more\\r\\n\""),
        ("https", "", plain, "TLS failed: "),
    ];
    let groups = sick.iter().enumerate().map(|(number, (_, _, port, _))| {
        format!("upstream u{number} {{ zone u{number} 64k; server 127.0.0.1:{port}; }}")
    });
    let checks = sick.iter().enumerate().map(|(number, (scheme, matching, ..))| {
        let check = format!("health_check interval=300ms {matching};");
        format!("location /{number} {{ proxy_pass {scheme}://u{number}; {check} }}")
    });
    let server = Site::http(&format!(
        "match version {{ header X-Version = 2; }} match body {{ body ~ ^good; }} {}
         server {{ listen 127.0.0.1:@PORT@; location / {{ dashboard; }} location /api {{ api; }} {} }}",
        groups.collect::<String>(),
        checks.collect::<String>(),
    ))
    .start();
    let url = format!("http://127.0.0.1:{}/", server.port);
    let Some(mut browser) = Browser::start(&url, &pictures(&server)) else { return };
    browser.step("open");
    for (_, _, port, why) in sick {
        let shown = browser.step(&format!("state 127.0.0.1:{port} unhealthy"));
        assert!(shown["text"].as_str().is_some_and(|t| t.contains(why)), "{why}: {shown}");
    }
    assert_eq!(browser.step("errors")["errors"], Value::Array(Vec::new()));
}
