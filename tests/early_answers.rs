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
