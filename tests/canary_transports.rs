//! `ironweir canary` where connections are no HTTP over TCP: sessions of `stream`, over TCP and UDP, and HTTP/3.

use crate::harness::quic::{ask, client, get, quic_site, run};
use crate::harness::{Port, Program, Server, Site, wait};
use std::io::Read;
use std::net::{TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const SHARE: &str = "50%";

/// Writes the configuration that is to be tried: the server's own with one part replaced.
fn change(server: &Server, old: &str, new: &str) {
    let text = server.read("nginx.conf");
    assert!(text.contains(old), "{old} in {text}");
    std::fs::write(server.dir().join("new.conf"), text.replace(old, new)).unwrap();
}

fn canary(server: &Server, words: &[&str]) -> Command {
    server.wait_for("logs/nginx.pid", "\n");
    let mut command = Command::new(Program::Ironweir.path().expect("Ironweir is built"));
    command.arg("canary").arg("-p").arg(server.dir()).arg("-c").arg(server.dir().join("new.conf"));
    command.args(["--share", SHARE]).args(words).stdin(Stdio::null());
    command
}

fn said(output: &std::process::Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What a session says to its end.
fn session(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text
}

/// Sessions come one after the other while something is done.
fn with_sessions<T>(port: u16, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    session(port);
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
        }
        let result = work();
        over.store(true, Relaxed);
        result
    })
}

fn stream_site() -> (Server, u16) {
    let port = Port::reserve();
    let number = port.number;
    let server = Site::whole(
        "events {} http { server { listen 127.0.0.1:@PORT@; location /api { api; } location / { return 200 web; } } }
         stream { server { listen 127.0.0.1:@SESSIONS@; return old; } }",
    )
    .set("SESSIONS", number)
    .start();
    drop(port);
    // The site's own address may be there a moment before.
    assert!(wait(|| TcpStream::connect(("127.0.0.1", number)).is_ok()));
    (server, number)
}

#[test]
fn sessions_that_fail_take_a_canary_back() {
    let (server, port) = stream_site();
    let gone = Port::reserve();
    change(&server, "return old;", &format!("proxy_pass 127.0.0.1:{};", gone.number));
    let output = with_sessions(port, || canary(&server, &["--for", "60s"]).output().unwrap());
    let text = said(&output);
    assert_eq!(output.status.code(), Some(3), "{text}\n{}", server.error_log());
    assert!(text.contains("taken back: ") && text.contains("requests fail") && text.contains("Fisher"), "{text}");
    assert!(wait(|| (0..20).all(|_| session(port) == "old")));
}

#[test]
fn sessions_have_their_share_and_a_good_canary_is_kept() {
    let (server, port) = stream_site();
    change(&server, "return old;", "return new;");
    let (output, seen) = with_sessions(port, || {
        let child = canary(&server, &["--for", "3s"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        assert!(wait(|| session(port) == "new"), "{}", server.error_log());
        let seen: Vec<String> = (0..60).map(|_| session(port)).collect();
        (child.wait_with_output().unwrap(), seen)
    });
    let new = seen.iter().filter(|s| *s == "new").count();
    assert!(
        (15..=45).contains(&new) && seen.iter().all(|s| s == "new" || s == "old"),
        "{new} of 60 sessions: {seen:?}"
    );
    assert_eq!(output.status.code(), Some(0), "{}\n{}", said(&output), server.error_log());
    assert!(wait(|| (0..20).all(|_| session(port) == "new")));
}

#[test]
fn datagrams_have_their_share_too() {
    let port = Port::reserve();
    let server = Site::whole(
        "events {} http { server { listen 127.0.0.1:@PORT@; location /api { api; } } }
         stream { server { listen 127.0.0.1:@SESSIONS@ udp; return old; } }",
    )
    .set("SESSIONS", port.number)
    .start();
    change(&server, "return old;", "return new;");
    let mut child = canary(&server, &["--for", "10m"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
    let ask = || -> Option<String> {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket.send_to(b"who?", ("127.0.0.1", port.number)).unwrap();
        let mut answer = [0; 16];
        let (length, _) = socket.recv_from(&mut answer).ok()?;
        Some(String::from_utf8_lossy(&answer[..length]).into_owned())
    };
    let mut answers = Vec::new();
    let both = wait(|| {
        answers.extend(ask());
        ["old", "new"].iter().all(|w| answers.iter().any(|a| a == w))
    });
    let _ = child.kill();
    let _ = child.wait();
    assert!(both, "{answers:?}");
    assert!(wait(|| (0..10).all(|_| ask().as_deref() == Some("old"))), "it ends with its command");
}

#[test]
fn connections_of_quic_have_their_share_and_go_on_when_it_is_taken_back() {
    let server = quic_site("", "location / { return 200 old; }").set("THREADS", 1).start();
    change(&server, "return 200 old;", "return 200 new;");
    let mut child = canary(&server, &["--for", "10m"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
    run(async {
        let (mut old, mut new) = (0, Vec::new());
        for _ in 0..40 {
            let (endpoint, mut requests) = client(server.port).await;
            let first = ask(&mut requests, get("/"), b"").await.text();
            assert_eq!(ask(&mut requests, get("/"), b"").await.text(), first, "a connection has one configuration");
            match first.as_str() {
                "new" => new.push((endpoint, requests)),
                _ => old += 1,
            }
        }
        assert!(old >= 8 && new.len() >= 8, "{old} old, {} new", new.len());
        child.kill().unwrap();
        child.wait().unwrap();
        server.wait_for("logs/error.log", "is taken back: the command that asked for it is gone");
        // The connections live, under the old configuration.
        for (_endpoint, mut requests) in new {
            let mut text = String::new();
            for _ in 0..100 {
                text = ask(&mut requests, get("/"), b"").await.text();
                if text == "old" {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(text, "old");
        }
    });
}
