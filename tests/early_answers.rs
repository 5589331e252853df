//! Peers that say something before they have read the request's body: "go on", the beginning of an answer, or all of it.

use crate::harness::{Server, Site};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

/// A peer that says `first` when it has a head, and answers with the number of bytes of the body once it has `expected` of them: `then`,
/// in which `@` is that number. It gives up after two seconds.
fn peer(first: &'static str, expected: usize, then: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            stream.set_read_timeout(Some(Duration::from_secs(2))).expect("an option");
            let (mut input, mut piece) = (Vec::new(), vec![0; 65536]);
            let mut end = None;
            loop {
                if end.is_none()
                    && let Some(at) = input.windows(4).position(|w| w == b"\r\n\r\n")
                {
                    end = Some(at + 4);
                    stream.write_all(first.as_bytes()).expect("it listens");
                }
                if end.is_some_and(|end| input.len() >= end + expected) {
                    break;
                }
                match stream.read(&mut piece) {
                    Ok(count @ 1..) => input.extend_from_slice(&piece[..count]),
                    _ => break,
                }
            }
            let body = (input.len() - end.unwrap_or(input.len())).to_string();
            let _ = stream.write_all(then.replace('@', &body).as_bytes());
        }
    });
    port
}

fn site(port: u16) -> Server {
    Site::server(
        "client_max_body_size 0; proxy_http_version 1.1; proxy_read_timeout 4s;
         location /whole { proxy_pass http://127.0.0.1:@PEER@; }
         location /streamed { proxy_pass http://127.0.0.1:@PEER@; proxy_request_buffering off; }",
    )
    .set("PEER", port)
    .start()
}

const WHOLE: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n@";

#[test]
fn a_peer_that_says_go_on_or_has_begun_to_answer_is_sent_the_rest() {
    const LARGE: usize = 8 << 20;
    for (first, then) in [
        ("HTTP/1.1 100 Continue\r\n\r\n", WHOLE),
        ("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", WHOLE),
        (
            "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 2",
            "00 OK\r\nConnection: close\r\n\r\n@",
        ),
        ("HTTP/1.1 200 OK\r\nX-First: ", "1\r\nConnection: close\r\n\r\n@"),
    ] {
        for (target, size) in [("/streamed", 1000), ("/streamed", LARGE), ("/whole", LARGE)] {
            let server = site(peer(first, size, then));
            let mut client = server.connect();
            client.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n"));
            client.send("b".repeat(size / 2));
            std::thread::sleep(Duration::from_millis(50));
            client.send("b".repeat(size - size / 2));
            let mut r = client.response();
            // The hints go to the client as well.
            while r.status == 103 {
                r = client.response();
            }
            assert_eq!((r.status, r.text()), (200, size.to_string()), "{target} {size} {first:?}");
        }
    }
}

#[test]
fn a_peer_that_has_answered_is_not_sent_the_rest() {
    let server = site(peer("HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\n\r\nlong", usize::MAX / 2, ""));
    for target in ["/streamed", "/whole"] {
        let mut client = server.connect();
        client.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", 8 << 20));
        if target == "/whole" {
            client.send("b".repeat(8 << 20));
        } else {
            client.send("b".repeat(1000));
        }
        let r = client.response();
        assert_eq!((r.status, r.text()), (413, "long".to_owned()), "{target}");
    }
}

/// A peer that answers with what it gets, as it gets it, in chunks.
fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let (mut input, mut piece) = (Vec::new(), vec![0; 65536]);
                loop {
                    let Ok(count @ 1..) = stream.read(&mut piece) else { return };
                    input.extend_from_slice(&piece[..count]);
                    let Some(end) = input.windows(4).position(|w| w == b"\r\n\r\n") else { continue };
                    let head = String::from_utf8_lossy(&input[..end]).into_owned();
                    let line = |name: &str| head.lines().find_map(|l| l.strip_prefix(name)).map(str::to_owned);
                    let length = line("Content-Length: ").map(|n| n.parse::<usize>().expect("a number"));
                    assert!(length.is_some() || line("Transfer-Encoding: ").is_some(), "{head}");
                    input.drain(..end + 4);
                    stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").expect("it listens");
                    let mut body = 0;
                    loop {
                        // What comes in chunks goes back with their heads: the last one is seen by its end.
                        let ended = length.map_or(input.ends_with(b"0\r\n\r\n"), |length| body + input.len() >= length);
                        body += input.len();
                        if !input.is_empty() {
                            let chunk = [format!("{:x}\r\n", input.len()).as_bytes(), &input, b"\r\n"].concat();
                            if stream.write_all(&chunk).is_err() {
                                return;
                            }
                            input.clear();
                        }
                        if ended {
                            break;
                        }
                        let Ok(count @ 1..) = stream.read(&mut piece) else { return };
                        input.extend_from_slice(&piece[..count]);
                    }
                    stream.write_all(b"0\r\n\r\n").expect("it listens");
                }
            });
        }
    });
    port
}

#[test]
fn both_directions_go_on_at_once() {
    let server = Site::http(
        "upstream up { server 127.0.0.1:@PEER@; keepalive 2; }
         log_format f '$upstream_connect_time $request_length $upstream_bytes_sent';
         server { listen 127.0.0.1:@PORT@; access_log logs/a.log f; client_max_body_size 0;
             proxy_http_version 1.1; proxy_set_header Connection ''; proxy_read_timeout 4s;
             location / { proxy_pass http://up; proxy_request_buffering off; proxy_buffering off; }
             location /buffered { proxy_pass http://up; proxy_request_buffering off; } }",
    )
    .set("PEER", echo())
    .start();
    for target in ["/", "/buffered"] {
        // A conversation: each word is answered before the next is said.
        let mut client = server.connect();
        client.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 40\r\n\r\n"));
        for number in 0..10 {
            let word = format!("w{number:03}");
            client.send(&word);
            if target == "/" {
                let mut seen = Vec::new();
                while !seen.ends_with(format!("{word}\r\n").as_bytes()) {
                    seen.extend(client.take(1));
                }
            }
        }
        if target == "/" {
            assert_eq!(client.take(5), b"0\r\n\r\n");
        } else {
            assert_eq!(client.response().text().len(), 40);
        }
        // A connection that has got all of a request serves the next one.
        client.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nz"));
        assert_eq!(client.response().text(), "z");
        server.wait_for("logs/a.log", "\n0.000 ");
        // Much, in chunks.
        let client = server.connect();
        let (mut reader, mut writer) =
            (client.stream.try_clone().expect("another handle"), client.stream.try_clone().expect("another"));
        let sends = std::thread::spawn(move || {
            writer.write_all(
                format!("POST {target} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
                    .as_bytes(),
            )?;
            for _ in 0..200 {
                writer.write_all(format!("{:x}\r\n{}\r\n", 50_000, "~".repeat(50_000)).as_bytes())?;
            }
            writer.write_all(b"0\r\n\r\n")
        });
        let mut all = Vec::new();
        reader.read_to_end(&mut all).expect("all of it");
        sends.join().expect("nobody panics").expect("all was taken");
        // Nothing else has a "~" in it.
        assert_eq!(all.iter().filter(|b| **b == b'~').count(), 200 * 50_000, "{target}");
        assert!(all.ends_with(b"0\r\n\r\n"));
    }
}
