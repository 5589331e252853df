//! Measures the request parser beside `httparse`, on a browser's head and on wrk's.
//!
//! `cargo run --release -p wire --example parse_speed`. Both parse the same bytes in turns, many short rounds each; the
//! best round counts, as everything that disturbs a round only makes it longer.

use std::hint::black_box;
use std::time::Instant;
use wire::http1::Parsed;
use wire::http1::request::{RequestHead, RequestParser, Rules};

const WRK: &[u8] = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n";
const BROWSER: &[u8] = b"GET /assets/app-4f1c2.js?v=20261120 HTTP/1.1\r\n\
Host: www.example.com\r\n\
Connection: keep-alive\r\n\
sec-ch-ua: \"Chromium\";v=\"142\", \"Google Chrome\";v=\"142\", \"Not_A Brand\";v=\"99\"\r\n\
sec-ch-ua-mobile: ?0\r\n\
User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36\r\n\
sec-ch-ua-platform: \"Linux\"\r\n\
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8\r\n\
Sec-Fetch-Site: same-origin\r\n\
Sec-Fetch-Mode: no-cors\r\n\
Sec-Fetch-Dest: script\r\n\
Referer: https://www.example.com/some/page?with=query\r\n\
Accept-Encoding: gzip, deflate, br, zstd\r\n\
Accept-Language: en-GB,en;q=0.9,de;q=0.8\r\n\
Cookie: session=4b2d0a1fe5c94a7f8b5a3f1c2d3e4f50; theme=dark; _ga=GA1.1.1234567890.1700000000\r\n\r\n";

const ROUNDS: usize = 200;
const PARSES: usize = 5_000;

fn main() {
    for (name, head) in [("wrk", WRK), ("browser", BROWSER)] {
        let (mut ours, mut theirs) = (f64::MAX, f64::MAX);
        let mut found = RequestHead::default();
        for _ in 0..ROUNDS {
            ours = ours.min(nanoseconds(|| with_wire(head, &mut found)));
            theirs = theirs.min(nanoseconds(|| with_httparse(head)));
        }
        println!("{name} ({} bytes): wire {ours:.0} ns, httparse {theirs:.0} ns", head.len());
    }
}

/// Time of one call, in nanoseconds.
fn nanoseconds(parse: impl FnMut()) -> f64 {
    let mut parse = parse;
    let start = Instant::now();
    for _ in 0..PARSES {
        parse();
    }
    start.elapsed().as_nanos() as f64 / PARSES as f64
}

fn with_wire(text: &[u8], head: &mut RequestHead) {
    let parsed = RequestParser::default().parse(black_box(text), &Rules::default(), head);
    assert_eq!(parsed, Ok(Parsed::Complete { len: text.len() }));
    black_box(head);
}

fn with_httparse(text: &[u8]) {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(black_box(text));
    assert_eq!(parsed, Ok(httparse::Status::Complete(text.len())));
    black_box(&request);
}
