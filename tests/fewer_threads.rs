//! A reload with fewer worker threads: what the superfluous ones hold goes on at the others.

use crate::harness::{Client, Server, Site, wait};
use crate::reload::{next_of, worker_threads};
use crate::upgrade::{UPGRADE, frame, until};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Of each kind: a hash spreads them over the threads.
const EACH: usize = 16;

/// A peer that changes its protocol and says what it hears.
fn backend() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) > 0 {
                    head.push(byte[0]);
                }
                let head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n";
                let _ = stream.write_all(head);
                let mut buffer = [0; 4096];
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    let _ = stream.write_all(&buffer[..n]);
                }
            });
        }
    });
    port
}

/// A server with four threads. `parked`: of what waits.
fn start(parked: &str) -> Server {
    let site = Site::whole(&format!(
        "worker_processes 4; events {{ worker_parked_connections {parked}; }} http {{ access_log off; keepalive_timeout 60s;
         server {{ listen 127.0.0.1:@PORT@;
             location /pub {{ nchan_publisher; nchan_channel_id $arg_id; nchan_message_buffer_length 2; }}
             location /sub {{ nchan_subscriber; nchan_channel_id $arg_id; nchan_subscriber_first_message newest; }}
             location /ws {{ proxy_pass http://127.0.0.1:{}; proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade;
                 proxy_set_header Connection upgrade; }}
             location /who {{ return 200 \"$connection $connection_requests\"; }} }} }}",
        backend()
    ));
    site.start()
}

fn open(server: &Server, target: &str, headers: &str) -> Client {
    let mut client = server.connect();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n{headers}\r\n"));
    client
}

fn many(server: &Server, target: &str, headers: &str) -> Vec<Client> {
    let mut all: Vec<Client> = (0..EACH).map(|_| open(server, target, headers)).collect();
    all.iter_mut().for_each(|client| drop(until(client, "\r\n\r\n")));
    all
}

fn say(client: &mut Client, id: &str, text: &str) {
    client.send(format!("POST /pub?id={id} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{text}", text.len()));
    assert!([201, 202].contains(&client.response().status));
}

/// Has the server run with so many threads, and waits until the others are gone.
fn reload(server: &Server, threads: usize) {
    let conf = server.read("nginx.conf");
    let rest = conf.split_once("worker_processes ").unwrap().1.split_once(';').unwrap().1;
    let (before, _) = conf.split_once("worker_processes ").unwrap();
    std::fs::write(server.dir().join("nginx.conf"), format!("{before}worker_processes {threads};{rest}")).unwrap();
    server.signal(Signal::HUP);
    assert!(wait(|| worker_threads(server) == threads), "{} threads\n{}", worker_threads(server), server.error_log());
}

/// Messages are published all the while, with a buffer that is far too short for those who come late.
fn moves(server: &Server) {
    let mut frames = many(server, "/sub?id=a", UPGRADE);
    let mut events = many(server, "/sub?id=a", "Accept: text/event-stream\r\n");
    events.iter_mut().for_each(|client| drop(until(client, ": hi\n\n\r\n")));
    let mut polls: Vec<Client> = (0..EACH).map(|_| open(server, "/sub?id=p", "")).collect();
    let mut tunnels = many(server, "/ws", "Upgrade: echo\r\nConnection: Upgrade\r\n");
    let mut idle: Vec<(Client, String)> = (0..EACH)
        .map(|_| {
            let mut client = server.connect();
            let said = client.get("/who").text();
            (client, said)
        })
        .collect();
    let polling = || server.get("/pub?id=p").text().contains(&format!("active subscribers: {EACH}"));
    assert!(wait(polling), "{}", server.get("/pub?id=p").text());
    let over = Arc::new(AtomicBool::new(false));
    let (is_over, mut publisher) = (over.clone(), server.connect());
    let publishing = std::thread::spawn(move || {
        let mut count = 0;
        while !is_over.load(Relaxed) {
            count += 1;
            say(&mut publisher, "a", &count.to_string());
        }
        count
    });
    for threads in [2, 1, 3, 1] {
        reload(server, threads);
        for tunnel in &mut tunnels {
            tunnel.send("still there");
            assert_eq!(tunnel.take(11), b"still there");
        }
        for (client, said) in &mut idle {
            *said = next_of(said);
            assert_eq!(client.get("/who").text(), *said);
        }
    }
    over.store(true, Relaxed);
    let count = publishing.join().unwrap();
    assert!(count > 20, "{count}");
    for client in &mut frames {
        (1..=count).for_each(|number| assert_eq!(frame(client), number.to_string()));
    }
    for client in &mut events {
        for number in 1..=count {
            let event = until(client, "\n\n\r\n");
            assert!(event.ends_with(&format!("data: {number}\n\n\r\n")), "{number}: {event}");
        }
    }
    say(&mut server.connect(), "p", "at last");
    polls.iter_mut().for_each(|client| assert_eq!(client.response().text(), "at last"));
    server.wait_for("logs/error.log", "connections to other threads");
    let active = server.get("/pub?id=a").text();
    assert!(active.contains(&format!("active subscribers: {}", 2 * EACH)), "{active}");
}

#[test]
fn whatever_is_parked_goes_on_at_threads_that_stay() {
    let server = start("10000");
    if server.error_log().contains("take a descriptor each") {
        println!("LEFT OUT: nothing is parked here");
    }
    moves(&server);
}

#[test]
fn whatever_waits_in_a_task_goes_on_at_threads_that_stay() {
    moves(&start("off"));
}

#[test]
fn a_request_under_way_costs_no_connection() {
    // Answers while its thread ends.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (asked, answer) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            let _ = asked.0.send(());
            let _ = answer.1.recv();
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        }
    });
    let site = Site::whole(&format!(
        "worker_processes 4; events {{ }} http {{ access_log off; server {{ listen 127.0.0.1:@PORT@; proxy_read_timeout 20s;
             location /late {{ proxy_pass http://127.0.0.1:{port}; }}
             location /who {{ return 200 \"$connection $connection_requests\"; }} }} }}"
    ));
    let server = site.start();
    let mut clients: Vec<Client> = (0..EACH).map(|_| server.connect()).collect();
    let said: Vec<String> = clients.iter_mut().map(|client| client.get("/who").text()).collect();
    clients.iter_mut().for_each(|client| {
        client.send("GET /late HTTP/1.1\r\nHost: a\r\n\r\n");
    });
    asked.1.recv().unwrap();
    let conf = server.read("nginx.conf").replace("worker_processes 4", "worker_processes 1");
    std::fs::write(server.dir().join("nginx.conf"), conf).unwrap();
    server.signal(Signal::HUP);
    server.wait_for("logs/error.log", ": reconfiguring");
    std::thread::sleep(std::time::Duration::from_millis(300));
    drop(answer.0);
    for (client, said) in clients.iter_mut().zip(said) {
        let late = client.response();
        assert_eq!((late.text().as_str(), late.header("Connection")), ("ok", Some("keep-alive")));
        assert_eq!(client.get("/who").text(), next_of(&next_of(&said)), "the same connection, two requests later");
    }
    assert!(wait(|| worker_threads(&server) == 1), "{} threads\n{}", worker_threads(&server), server.error_log());
}
