//! Heads of upstream answers, read at once and in pieces.

use proptest::prelude::*;
use wire::http1::known::KnownHeader;
use wire::http1::response::{ResponseError, ResponseHead, ResponseParser};
use wire::http1::{Parsed, Version};

fn parse(text: &[u8]) -> (Result<Parsed, ResponseError>, ResponseHead) {
    let mut head = ResponseHead::default();
    (ResponseParser::default().parse(text, &mut head), head)
}

fn parse_bytewise(text: &[u8]) -> (Result<Parsed, ResponseError>, ResponseHead) {
    let (mut parser, mut head) = (ResponseParser::default(), ResponseHead::default());
    for end in 0..=text.len() {
        match parser.parse(&text[..end], &mut head) {
            Ok(Parsed::Partial) => {}
            other => return (other, head),
        }
    }
    (Ok(Parsed::Partial), head)
}

#[test]
fn parts_of_a_usual_head() {
    let text = b"HTTP/1.1 404 Not Found\r\nServer: x\r\nSet-Cookie: a=b\r\nodd(name_: c\r\nHTTP/1.1 200 OK\r\n\r\nbody";
    let (result, head) = parse(text);
    assert_eq!(result, Ok(Parsed::Complete { len: text.len() - 4 }));
    assert_eq!((head.version, head.status), (Version::HTTP11, 404));
    assert_eq!(head.status_line.of(text), b"404 Not Found");
    let known: Vec<_> = head.headers.iter().map(|line| line.known).collect();
    assert_eq!(known, [KnownHeader::Server, KnownHeader::SetCookie, KnownHeader::Other]);
}

#[test]
fn status_lines() {
    for (text, version, status, line) in [
        ("HTTP/1.0 200\r\n\r\n", Version::HTTP10, 200, "200"),
        ("HTTP/1.1  200 \n\n", Version::HTTP11, 200, "200 "),
        ("HTTP/1.1 403.7 No\r\n\r\n", Version::HTTP11, 403, "403.7 No"),
        ("HTTP/2.0 200 OK\r\n\r\n", Version(2000), 200, "200 OK"),
        ("HTTP/1.1 000 \u{1}\r\n\r\n", Version::HTTP11, 0, "000 \u{1}"),
    ] {
        let (result, head) = parse(text.as_bytes());
        assert_eq!(result, Ok(Parsed::Complete { len: text.len() }), "{text:?}");
        assert_eq!((head.version, head.status), (version, status));
        assert_eq!(head.status_line.of(text.as_bytes()), line.as_bytes());
    }
}

#[test]
fn no_status_line_is_all_body() {
    for text in [
        "<html>",
        "HTTP/0.9 200\r\n",
        "HTTP/1.1 20x\r\n",
        "HTTP/1.1 2000\r\n",
        "HTTP/1.1 200\rx",
        "http/1.1 200",
        "HTTP/1.1200 OK",
        "\r\nHTTP/1.1 200\r\n",
    ] {
        let (result, head) = parse(text.as_bytes());
        assert_eq!((result, head.version), (Ok(Parsed::Complete { len: 0 }), Version::HTTP09), "{text:?}");
    }
}

#[test]
fn refusals() {
    let log = |text: &[u8]| {
        let mut log = Vec::new();
        parse(text).0.expect_err("the head is malformed").log(text, &mut log);
        String::from_utf8(log).expect("test texts are UTF-8")
    };
    assert_eq!(log(b"HTTP/1.1 200 OK\r\na b: c\r\n"), "upstream sent invalid header: \"a\\x20...\"");
    assert_eq!(log(b"HTTP/1.1 200 OK\r\na: b\0\r\n"), "upstream sent invalid header: \"a: b\\x00...\"");
    assert_eq!(log(b"HTTP/1.0 103 x\r\n"), "upstream sent HTTP/1.0 response with early hints");
}

#[test]
fn answers_may_begin_with_headers() {
    let text = b"Status: 404 x\r\nContent-Type: a\r\n\r\n";
    let mut head = ResponseHead::default();
    let result = ResponseParser::without_status_line().parse(text, &mut head);
    assert_eq!(result, Ok(Parsed::Complete { len: text.len() }));
    assert_eq!(head.header(KnownHeader::Status).map(|line| line.value.of(text)), Some(&b"404 x"[..]));
}

proptest! {
    #[test]
    fn pieces_find_the_same(text in "HTTP/[0-2]\\.[0-9]{1,3} [0-9. ]{1,5}( [A-Z]{0,3})?\r?\n((HTTP/)?[a_: \t]{1,4}[:]?[ \tx\r\0]{0,5}\r?\n){0,3}\r?\n") {
        let (whole, head) = parse(text.as_bytes());
        let (pieces, head_of_pieces) = parse_bytewise(text.as_bytes());
        prop_assert_eq!(whole, pieces);
        if whole.is_ok() {
            prop_assert_eq!(head, head_of_pieces);
        }
    }

    #[test]
    fn any_bytes_are_survived(text in proptest::collection::vec(any::<u8>(), 0..80)) {
        let mut whole = b"HTTP/1.1 ".to_vec();
        whole.extend_from_slice(&text);
        for text in [&text, &whole] {
            prop_assert_eq!(parse(text).0, parse_bytewise(text).0);
        }
    }
}
