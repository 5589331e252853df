//! `ironweir demo`: starts without a file, shows what it promises, leaves nothing behind.

use crate::harness::{Client, Folder, Program, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn demo(arguments: &[&str], temporary: &Path) -> Child {
    let mut command = Command::new(Program::Ironweir.path().unwrap());
    command.arg("demo").args(arguments).env("TMPDIR", temporary);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Where it says that it listens.
fn port(child: &mut Child) -> u16 {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let port = line.trim_end().trim_end_matches('/').rsplit(':').next().and_then(|p| p.parse().ok());
    port.unwrap_or_else(|| {
        let mut error = String::new();
        let _ = child.stderr.as_mut().unwrap().read_to_string(&mut error);
        panic!("an address, not {line:?}: {error}")
    })
}

#[test]
fn a_balancer_two_backends_and_a_page() {
    let folder = Folder::new();
    let mut child = demo(&["--port", "0"], folder.path());
    let port = port(&mut child);
    let mut client = Client::connect(port);
    let page = client.get("/");
    assert_eq!((page.status, page.header("Content-Type")), (200, Some("text/html")));
    assert!(page.text().contains("Ironweir") && !page.text().contains("@PORT@"), "{}", page.text());
    let mut answers: Vec<String> = (0..10).map(|_| client.get("/backend").text()).collect();
    answers.sort();
    answers.dedup();
    assert_eq!(answers, ["backend one\n", "backend two\n"]);
    let status = client.get("/status").text();
    let numbers: Vec<u64> = status.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    assert!(status.starts_with("Active connections: ") && numbers.len() == 7, "{status}");
    // The page, ten requests passed on, each counted once, and this one.
    assert_eq!(numbers[3], 12, "{status}");
    assert_eq!(client.get("/none").status, 404);
    let mut listener = Client::connect(port);
    listener.send("GET /channel HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let said = || {
        Client::connect(port)
            .send("POST /channel HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi")
            .response()
    };
    assert!(wait(|| said().status == 201), "somebody listens");
    assert_eq!(listener.response().text(), "hi");
    drop(listener);

    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(client.is_closed());
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_port_that_is_taken() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let folder = Folder::new();
    let child = demo(&[&format!("--port={port}")], folder.path());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains(&format!("port {port} is in use")), "{said}");
}

#[test]
fn what_it_does_not_understand() {
    let folder = Folder::new();
    for arguments in [&["--prot", "1"][..], &["--port"], &["--port", "http"], &["8080"]] {
        let out = demo(arguments, folder.path()).wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(1), "{arguments:?}");
        assert!(String::from_utf8_lossy(&out.stderr).contains("Usage: ironweir demo"), "{arguments:?}");
    }
}

#[test]
fn backends_are_made_slow_and_sick() {
    let folder = Folder::new();
    let mut child = demo(&["--port", "0"], folder.path());
    let port = port(&mut child);
    let mut client = Client::connect(port);
    let knobs = client.get("/knobs?backend=two&errors=100").text();
    assert!(knobs.contains("backend two: latency=0 jitter=0 capacity=0 errors=100\n"), "{knobs}");
    let mut statuses: Vec<u16> = (0..10).map(|_| client.get("/backend").status).collect();
    statuses.sort();
    assert_eq!(statuses, [[200; 5], [500; 5]].concat());
    client.get("/knobs?errors=0&capacity=20");
    let answers: Vec<u16> = (0..40).map(|_| client.get("/backend").status).collect();
    assert!(answers.contains(&200) && answers.contains(&503), "{answers:?}");
    client.get("/knobs?capacity=0");
    let began = std::time::Instant::now();
    assert_eq!(client.get("/backend?latency=120").status, 200);
    assert!(began.elapsed().as_millis() >= 120);
    // A page whose name was made to point here.
    let mut other = Client::connect(port);
    assert!(other.send("GET /api/9/ HTTP/1.1\r\nHost: evil.example\r\n\r\n").read_response(false).is_none());
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Every command of the README's tour of the demo does what it says.
#[test]
fn the_tour_of_the_readme() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).expect("it is there");
    let tour = readme.split("## Five minutes with the demo").nth(1).expect("the tour");
    let tour = tour.split("\n## ").next().expect("its end");
    let folder = Folder::new();
    let mut child = demo(&["--port", "0"], folder.path());
    let port = port(&mut child);
    let program = Program::Ironweir.path().unwrap();
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap_or_default());
    let mut commands = 0;
    for block in tour.split("```").skip(1).step_by(2) {
        for line in block.lines().map(str::trim).filter(|l| l.starts_with("curl ") || l.starts_with("ironweir ")) {
            if line == "ironweir demo" {
                continue;
            }
            commands += 1;
            // An answer that is an error is one, and there is less time here.
            let line = line.replacen("curl ", "curl -fsS ", 1).replace("127.0.0.1:8080", &format!("127.0.0.1:{port}"));
            let line = line.replace("-d10s", "-d1s").replace("ironweir top", "ironweir top --once");
            let line = if line.ends_with("--once") { format!("{line} http://127.0.0.1:{port}/api") } else { line };
            let out = Command::new("sh").args(["-c", &line]).env("PATH", &path).output().expect("a shell");
            // On a busy machine the generator may have been the limit (5), which the tool says.
            let busy = line.starts_with("ironweir stress") && out.status.code() == Some(5);
            assert!(out.status.success() || busy, "{line}\n{}", String::from_utf8_lossy(&out.stderr));
            assert!(!out.stdout.is_empty() || line.contains("PATCH"), "{line}");
        }
    }
    assert!(commands >= 10, "{commands} commands");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}
