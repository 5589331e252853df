//! Request heads: what nginx accepts and refuses, and that reading in pieces finds the same as reading at once.

use proptest::prelude::*;
use wire::http1::known::KnownHeader;
use wire::http1::request::{Method, RequestError, RequestHead, RequestParser, Rules};
use wire::http1::{Parsed, Version};
use wire::span::Span;

fn parse_with(text: &[u8], rules: &Rules) -> (Result<Parsed, RequestError>, RequestHead) {
    let mut head = RequestHead::default();
    let result = RequestParser::default().parse(text, rules, &mut head);
    (result, head)
}

fn parse(text: &[u8]) -> (Result<Parsed, RequestError>, RequestHead) {
    parse_with(text, &Rules::default())
}

/// The complete head of `text`, or a panic.
fn head(text: &str) -> RequestHead {
    let (result, head) = parse(text.as_bytes());
    assert_eq!(result, Ok(Parsed::Complete { len: text.len() }), "{text:?}");
    head
}

fn error(text: &[u8]) -> RequestError {
    parse(text).0.expect_err("the head is malformed")
}

/// Reads with the buffer growing byte by byte.
fn parse_bytewise(text: &[u8]) -> (Result<Parsed, RequestError>, RequestHead) {
    let (mut parser, mut head) = (RequestParser::default(), RequestHead::default());
    for end in 0..=text.len() {
        match parser.parse(&text[..end], &Rules::default(), &mut head) {
            Ok(Parsed::Partial) => {}
            other => return (other, head),
        }
    }
    (Ok(Parsed::Partial), head)
}

fn str_of(span: Span, text: &str) -> &str {
    std::str::from_utf8(span.of(text.as_bytes())).expect("test texts are UTF-8")
}

#[test]
fn parts_of_a_usual_head() {
    let text = "GET /a/b.html?x=1&y HTTP/1.1\r\nHost: a.example\r\nX-Empty:\r\nUser-Agent:  a b  \r\n\r\n";
    let head = head(text);
    let of = |span| str_of(span, text);
    assert_eq!((of(head.method), head.method_id, head.version), ("GET", Method::Get, Version::HTTP11));
    assert_eq!(of(head.line), "GET /a/b.html?x=1&y HTTP/1.1");
    assert_eq!(of(head.target), "/a/b.html?x=1&y");
    assert_eq!(of(head.path), "/a/b.html");
    assert_eq!(head.args.map(of), Some("x=1&y"));
    assert_eq!(head.exten.map(of), Some("html"));
    assert_eq!(head.protocol.map(of), Some("HTTP/1.1"));
    assert!(!head.needs_normalizing() && !head.plus);
    let lines: Vec<_> = head.headers.iter().map(|line| (of(line.name), of(line.value), line.known)).collect();
    assert_eq!(
        lines,
        [
            ("Host", "a.example", KnownHeader::Host),
            ("X-Empty", "", KnownHeader::Other),
            ("User-Agent", "a b", KnownHeader::UserAgent),
        ]
    );
}

#[test]
fn targets() {
    let flags = |path: &str| {
        let head = head(&format!("GET {path} HTTP/1.0\r\n\r\n"));
        (head.complex, head.quoted, head.plus)
    };
    assert_eq!(flags("/a.b/c"), (false, false, false));
    assert_eq!(flags("/a//b"), (true, false, false));
    assert_eq!(flags("/.a"), (true, false, false));
    assert_eq!(flags("/a..b"), (false, false, false));
    assert_eq!(flags("/+./a"), (true, false, true), "nginx takes what follows a plus for the start of a segment");
    assert_eq!(flags("/a%20b"), (false, true, false));
    assert_eq!(flags("/a?//%+"), (false, false, false));
    assert_eq!(flags("/a#b"), (true, false, false));
    assert_eq!(flags("/a?b#c"), (true, false, false));
    assert_eq!(flags("/\u{e9}"), (false, false, false));
    let text = "GET /a.b/c.?q HTTP/1.0\r\n\r\n";
    assert_eq!(head(text).exten.map(|exten| str_of(exten, text)), Some(""));
    let text = "GET /a.b/c HTTP/1.0\r\n\r\n";
    assert_eq!(head(text).exten, None);
}

#[test]
fn absolute_targets_and_connect() {
    let parts = |text: &str| {
        let head = head(text);
        let of = |span: Span| str_of(span, text).to_owned();
        (head.scheme.map(of), head.absolute_host.map(of), of(head.target), of(head.path), head.args.map(of))
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        parts("GET http://A.example:80/b?c HTTP/1.1\r\n\r\n"),
        (some("http"), some("A.example:80"), "/b?c".into(), "/b".into(), some("c"))
    );
    assert_eq!(parts("GET https://a HTTP/1.1\r\n\r\n"), (some("https"), some("a"), "/".into(), "/".into(), None));
    assert_eq!(
        parts("GET h2+c.-://[::1]:?x HTTP/1.1\r\n\r\n"),
        (some("h2+c.-"), some("[::1]:"), "?x".into(), "".into(), some("x"))
    );
    assert!(head("GET http://a?x HTTP/1.1\r\n\r\n").needs_normalizing());
    assert_eq!(parts("CONNECT a:443 HTTP/1.1\r\n\r\n"), (None, some("a:443"), "/".into(), "/".into(), None));
    for bad in [
        "CONNECT a HTTP/1.1\r\n",
        "CONNECT a: HTTP/1.1\r\n",
        "CONNECT a:1/ HTTP/1.1\r\n",
        "CONNECT /a H",
        "GET http:/a HTTP/1.1\r\n",
        "GET http//a H",
        "GET http://a_b/ H",
        "GET http://[::1/ H",
        "GET 1ttp://a H",
    ] {
        assert_eq!(error(bad.as_bytes()), RequestError::InvalidRequest, "{bad}");
    }
}

#[test]
fn versions() {
    let version = |protocol: &str| head(&format!("GET / {protocol}\r\n\r\n")).version;
    assert_eq!(version("HTTP/1.0"), Version::HTTP10);
    assert_eq!(version("HTTP/1.1  "), Version::HTTP11);
    assert_eq!(version("HTTP/1.2"), Version(1002));
    assert_eq!(version("  HTTP/1.999"), Version(1999));
    for bad in ["HTTP/2.0", "HTTP/10.1", "HTTP/9"] {
        assert_eq!(error(format!("GET / {bad}\r\n").as_bytes()).status(), 505);
    }
    for bad in [
        "HTTP/0.9",
        "HTTP/01.1",
        "HTTP/1.",
        "HTTP/1.1000",
        "HTTP/1.1x",
        "http/1.1",
        "HTTP /1.1",
        "HTTP/1.1\r",
        "HTTP/1.1 x",
        "HTTP/1,1",
        "XTTP/1.1",
    ] {
        assert_eq!(error(format!("GET / {bad}\r\n").as_bytes()), RequestError::InvalidRequest, "{bad}");
    }
}

#[test]
fn http_0_9() {
    for text in ["GET /a\r\n", "GET /a\n", "GET /a  \r\n", "GET /a?b#c\n"] {
        let head = head(text);
        assert_eq!((head.version, head.protocol), (Version::HTTP09, None));
    }
    assert_eq!(parse(b"GET /a\nHost: b\n").0, Ok(Parsed::Complete { len: 7 }));
    assert_eq!(error(b"HEAD /\r\n"), RequestError::InvalidMethodHttp09);
}

#[test]
fn line_ends_and_refusals() {
    let text = "\r\n\n\rGET / HTTP/1.1\nHost: a\n\n";
    assert_eq!(head(text).headers.len(), 1);
    assert_eq!(error(b"\x16\x03\x01"), RequestError::InvalidMethod);
    assert_eq!(error(b"get / HTTP/1.1\r\n"), RequestError::InvalidMethod);
    assert_eq!(error(b"GET\t/ HTTP/1.1\r\n"), RequestError::InvalidMethod);
    assert_eq!(error(b"GET a b"), RequestError::InvalidRequest);
    assert_eq!(error(b"GET /\x01"), RequestError::InvalidRequest);
    assert_eq!(error(b"GET /?\x7f"), RequestError::InvalidRequest);
    assert_eq!(error(b"GET /\t"), RequestError::InvalidRequest);
    assert_eq!(error(b"GET * HTTP/1.1\r\n"), RequestError::InvalidRequest);
    assert_eq!(head("M-S_X / HTTP/1.1\r\n\r\n").method_id, Method::Other);
}

#[test]
fn header_lines() {
    let line = |line: &str| {
        let text = format!("GET / HTTP/1.1\r\n{line}\r\n");
        let (result, head) = parse(text.as_bytes());
        match result {
            Ok(_) => {
                assert_eq!(result, Ok(Parsed::Complete { len: text.len() }));
                let lines = head.headers.iter();
                Ok(lines.map(|l| format!("{}={}", str_of(l.name, &text), str_of(l.value, &text))).collect::<Vec<_>>())
            }
            Err(error) => {
                let mut log = Vec::new();
                error.log(text.as_bytes(), &mut log);
                Err(String::from_utf8(log).expect("test texts are UTF-8"))
            }
        }
    };
    let good =
        |text: &str, found: &[&str]| assert_eq!(line(text).as_deref(), Ok(found.map_owned().as_slice()), "{text:?}");
    good("a:b\r\n", &["a=b"]);
    good("a: b \t c  \r\n", &["a=b \t c"]);
    good("a:\tb\t\r\n", &["a=\tb\t"]);
    good("a: b\r\r\n", &["a=b"]);
    good("a\r\n", &["a="]);
    good("a\nb:\n", &["a=", "b="]);
    good("a: b\nc: d\n", &["a=b", "c=d"]);
    good("a: \u{e9}\u{1}\r\n", &["a=\u{e9}\u{1}"]);
    good("a_b: c\r\nd(: e\r\nf: g\r\n", &["f=g"]);
    let bad = |text: &str, log: &str| {
        assert_eq!(line(text), Err(format!("client sent invalid header line: \"{log}...\"")), "{text:?}");
    };
    bad(" a: b\r\n", "\\x20");
    bad("a: b\r\n c\r\n", "\\x20");
    bad("a : b\r\n", "a\\x20");
    bad("a\tb\r\n", "a\\x09");
    bad(": b\r\n", "\\x3a");
    bad("a: b\0\r\n", "a: b\\x00");
    bad("a: \0\r\n", "a: \\x00");
    bad("a: b  \rc\r\n", "a: b\\x20");
    bad("\rx", "\\x0d");
    bad("HTTP/1.1 200 OK\r\n", "HTTP/1.1\\x20");
}

trait MapOwned {
    fn map_owned(&self) -> Vec<String>;
}

impl MapOwned for [&str] {
    fn map_owned(&self) -> Vec<String> {
        self.iter().map(ToString::to_string).collect()
    }
}

#[test]
fn rules_decide() {
    let text = b"GET / HTTP/1.1\r\na_b: 1\r\nc(: 2\r\nd: 3\r\n\r\n";
    let count = |rules: Rules| parse_with(text, &rules).1.headers.len();
    assert_eq!(count(Rules::default()), 1);
    assert_eq!(count(Rules { underscores_in_headers: true, ..Rules::default() }), 2);
    assert_eq!(count(Rules { ignore_invalid_headers: false, ..Rules::default() }), 3);
    let (_, head) = parse(text);
    assert_eq!(head.ignored.iter().map(|span| span.of(text)).collect::<Vec<_>>(), [&b"a_b: 1"[..], b"c(: 2"]);
    let few = Rules { max_headers: 1, ..Rules::default() };
    assert!(parse_with(text, &few).0.is_ok());
    let none = Rules { max_headers: 0, ..Rules::default() };
    assert_eq!(parse_with(text, &none).0, Err(RequestError::TooManyHeaders));
}

#[test]
fn pauses_once_when_the_host_is_known() {
    let rules = Rules { pause_at_host: true, ..Rules::default() };
    for text in
        [&b"GET / HTTP/1.1\r\na: b\r\nhost: c\r\nd: e\r\n\r\n"[..], b"GET http://a/ HTTP/1.1\r\nHost: c\r\n\r\n"]
    {
        let (mut parser, mut head) = (RequestParser::default(), RequestHead::default());
        assert_eq!(parser.parse(text, &rules, &mut head), Ok(Parsed::Host));
        assert_eq!(parser.parse(text, &rules, &mut head), Ok(Parsed::Complete { len: text.len() }));
    }
}

#[test]
fn tells_where_the_line_began() {
    let text = b"\r\nGET /long HTTP/1.1\r\nHost: a\r\nX: yyy";
    let (mut parser, mut head) = (RequestParser::default(), RequestHead::default());
    let mut at = |end: usize| {
        assert_eq!(parser.parse(&text[..end], &Rules::default(), &mut head), Ok(Parsed::Partial));
        (parser.is_line_complete(), parser.line_start(), parser.empty_lines())
    };
    assert_eq!(at(2), (false, 2, 2));
    assert_eq!(at(8), (false, 2, 0));
    assert_eq!(at(22), (true, 22, 0));
    assert_eq!(at(25), (true, 22, 0));
    assert_eq!(at(31), (true, 31, 0));
    assert_eq!(at(text.len()), (true, 31, 0));
}

proptest! {
    #[test]
    fn pieces_find_the_same(text in "(\r\n)?(GET|POST|CONNECT|X|get) (http://a[b:]?)?[/.%+?#a-c0-9:\\[\\] ]{0,12}( HTTP/[01]\\.[0-9]{1,3} ?)?\r?\n([a-c_:( \t]{1,4}[:]?[ \tx\r\0]{0,5}\r?\n){0,3}(Host: a\r\n)?\r?\n") {
        let (whole, head) = parse(text.as_bytes());
        let (pieces, head_of_pieces) = parse_bytewise(text.as_bytes());
        prop_assert_eq!(whole, pieces);
        if whole.is_ok() {
            prop_assert_eq!(head, head_of_pieces);
        }
    }

    #[test]
    fn any_bytes_are_survived(text in proptest::collection::vec(any::<u8>(), 0..80)) {
        let whole = parse(&text).0;
        prop_assert_eq!(whole, parse_bytewise(&text).0);
        let mut headers = b"GET / HTTP/1.1\r\n".to_vec();
        headers.extend_from_slice(&text);
        prop_assert_eq!(parse(&headers).0, parse_bytewise(&headers).0);
    }
}
