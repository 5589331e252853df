//! A head that announces a body which nobody sends on: the upstream that answers it, as the proxy of an error page, must not take the next
//! request of its connection for that body.

use crate::harness::{Server, Site, wait};
use crate::http2_floods::{frame, open};
use crate::tls::secure;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use wire::http2::frame::{flag, kind};
use wire::http2::hpack::encoder::Encoder;

/// An upstream that answers each head before it has read its body, and goes on with what follows that: a head, as far as it can tell.
struct Hasty {
    port: u16,
    /// With what came of their bodies.
    heads: Arc<Mutex<Vec<String>>>,
}

impl Hasty {
    fn start() -> Hasty {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let all = heads.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let all = all.clone();
                std::thread::spawn(move || serve(stream, &all));
            }
        });
        Hasty { port, heads }
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("nobody panics").clone()
    }
}

fn serve(mut stream: TcpStream, heads: &Mutex<Vec<String>>) {
    let (mut input, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&input).into_owned();
        if let Some(end) = text.find("\r\n\r\n") {
            let head = text[..end].to_owned();
            let line = head.lines().find_map(|l| l.strip_prefix("Content-Length: "));
            let left = line.map_or(0, |n| n.parse::<usize>().expect("a number"));
            let number = {
                let mut all = heads.lock().expect("nobody panics");
                all.push(head);
                all.len() - 1
            };
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                return;
            }
            input.drain(..end + 4);
            while left > input.len() {
                match stream.read(&mut piece) {
                    Ok(count @ 1..) => input.extend_from_slice(&piece[..count]),
                    _ => return,
                }
            }
            let body = String::from_utf8_lossy(&input.drain(..left).collect::<Vec<_>>()).into_owned();
            heads.lock().expect("nobody panics")[number] += &body;
            continue;
        }
        match stream.read(&mut piece) {
            Ok(count @ 1..) => input.extend_from_slice(&piece[..count]),
            _ => return,
        }
    }
}

const PASS: &str =
    "proxy_pass http://up; proxy_read_timeout 2s; proxy_http_version 1.1; proxy_set_header Connection \"\";";

fn site(upstream: &Hasty) -> Server {
    Site::http(&format!(
        "upstream up {{ server 127.0.0.1:@UP@; keepalive 4; }}
         server {{ listen 127.0.0.1:@PORT@; http2 on; error_page 400 501 = @pages; location / {{ {PASS} }} location @pages {{ {PASS} }}
             location /bare {{ {PASS} proxy_pass_request_body off; }}
             location /own {{ {PASS} proxy_pass_request_body off; proxy_set_header Content-Length 33; }}
             location /other {{ {PASS} proxy_set_body four; proxy_set_header Content-Length $http_content_length; }} }}"
    ))
    .set("UP", upstream.port)
    .start()
}

/// The next request is answered, and is a request for the upstream.
fn is_untouched(server: &Server, upstream: &Hasty, after: &str) {
    let r = server.connect().send("GET /victim HTTP/1.1\r\nHost: a\r\n\r\n").response();
    assert_eq!((r.status, r.text()), (200, "ok".to_owned()), "after {after}");
    let last = upstream.heads().pop().unwrap_or_default();
    assert!(last.starts_with("GET /victim HTTP/1.1"), "after {after}: {last}");
}

#[test]
fn no_length_of_a_refused_head_goes_to_the_proxy_of_its_error_page() {
    let upstream = Hasty::start();
    let server = site(&upstream);
    for (number, fields) in [
        "Content-Length: 33\r\nHost: a\r\nHost: b",
        "Content-Length: 33\r\nHost: a b",
        "Content-Length: 33",
        "Host: a\r\nContent-Length: 33\r\nContent-Length: 34",
        "Host: a\r\nContent-Length: 33\r\nTransfer-Encoding: chunked",
        "Host: a\r\nContent-Length: 33\r\nTransfer-Encoding: gzip",
    ]
    .into_iter()
    .enumerate()
    {
        let request = format!("POST /{number} HTTP/1.1\r\n{fields}\r\nConnection: close\r\n\r\n");
        assert_eq!(server.connect().send(request).response().status, 200, "{fields}");
        let head = upstream.heads().pop().expect("it was asked");
        assert!(head.starts_with(&format!("POST /{number} ")), "{head}");
        assert!(!head.contains("Content-Length") && !head.contains("Transfer-Encoding"), "{head}");
        is_untouched(&server, &upstream, fields);
    }
}

#[test]
fn no_length_of_a_malformed_stream_goes_there_either() {
    let upstream = Hasty::start();
    let server = site(&upstream);
    for more in [vec![("connection", "close")], vec![("host", "b")], vec![]] {
        let mut client = open(&server);
        let (mut block, mut e) = (Vec::new(), Encoder::default());
        for (name, value) in [(":method", "POST"), (":scheme", "http"), (":path", "/evil"), (":authority", "a")] {
            e.field(name.as_bytes(), value.as_bytes(), &mut block);
        }
        for (name, value) in more.iter().chain(&[("content-length", "33")]) {
            e.field(name.as_bytes(), value.as_bytes(), &mut block);
        }
        client.send(frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &block));
        assert!(wait(|| upstream.heads().last().is_some_and(|head| head.starts_with("POST /evil "))));
        let head = upstream.heads().pop().expect("it was asked");
        assert!(!head.contains("Content-Length"), "{head}");
        is_untouched(&server, &upstream, &format!("{more:?}"));
    }
}

#[test]
fn a_connection_that_was_promised_more_than_it_got_is_not_used_again() {
    let upstream = Hasty::start();
    let server = site(&upstream);
    for target in ["/bare", "/own", "/other"] {
        let request = format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 33\r\n\r\n{}", "b".repeat(33));
        assert_eq!(server.connect().send(request).response().status, 200, "{target}");
        assert!(upstream.heads().pop().expect("it was asked").contains("Content-Length: 33"), "as nginx has it");
        is_untouched(&server, &upstream, target);
    }
}

#[test]
fn a_body_goes_to_the_proxy_of_an_error_page_that_is_chosen_by_the_kind_of_connection() {
    let upstream = Hasty::start();
    let text = format!(
        "error_page 497 = @pages; location @pages {{ {PASS} }}",
        PASS = PASS.replace("http://up", "http://127.0.0.1:@UP@")
    );
    let server = secure(&text).set("UP", upstream.port).start();
    let request = format!("POST /plain HTTP/1.1\r\nHost: a\r\nContent-Length: 33\r\n\r\n{}", "b".repeat(33));
    assert_eq!(server.connect().send(request).response().status, 200);
    let body = "b".repeat(33);
    assert!(wait(|| upstream
        .heads()
        .last()
        .is_some_and(|head| head.starts_with("POST /plain ") && head.ends_with(&body))));
}
