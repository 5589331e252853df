//! Request targets: how nginx resolves them.

use proptest::prelude::*;
use wire::http1::request::{RequestHead, RequestParser, Rules};
use wire::http1::target::{BadTarget, UnsafeUri, argument, normalize, parse_unsafe_uri, resolve, split};

/// Path, args and extension of a target.
fn parts(raw: &[u8], merge_slashes: bool) -> Result<(String, Option<String>, Option<String>), BadTarget> {
    let mut out = b"kept".to_vec();
    let found = normalize(raw, merge_slashes, &mut out)?;
    assert!(out.starts_with(b"kept"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((
        text(found.path.of(&out)),
        found.args.map(|args| text(args.of(raw))),
        found.exten.map(|exten| text(exten.of(&out))),
    ))
}

fn path(raw: &str) -> Option<String> {
    parts(raw.as_bytes(), true).ok().map(|(path, ..)| path)
}

#[test]
fn paths() {
    for (raw, expected) in [
        ("/", "/"),
        ("/a/b", "/a/b"),
        ("/a//b///c/", "/a/b/c/"),
        ("/a/./b/.", "/a/b/"),
        ("/a/../b", "/b"),
        ("/a/..", "/"),
        ("/a/b/../../c", "/c"),
        ("/a/...", "/a/..."),
        ("/a/.b/..c", "/a/.b/..c"),
        ("/a/%2e%2e/b", "/b"),
        ("/a%2fb", "/a/b"),
        ("/a%2F%2Fb", "/a/b"),
        ("/a/.%2e", "/"),
        ("/%41%c3%a9", "/A\u{e9}"),
        ("/a%3fb%23c%25d", "/a?b#c%d"),
        ("/.%3f", "/.?"),
        ("/a#b?c", "/a"),
        ("/a/../?x", "/"),
        ("/a/..#x", "/"),
        ("?x", "/"),
        ("/a%20b+c", "/a b+c"),
    ] {
        assert_eq!(path(raw).as_deref(), Some(expected), "{raw}");
    }
    for bad in ["/..", "/../a", "/a/../..", "/%00", "/\0", "/a\0", "/%", "/%4", "/%4g", "/a/%2e%2e/%2e%2e/", "/..?a"] {
        assert_eq!(path(bad), None, "{bad}");
    }
}

#[test]
fn slashes_are_kept_when_not_merged() {
    let keep = |raw: &str| parts(raw.as_bytes(), false).map(|(path, ..)| path);
    assert_eq!(keep("/a//b"), Ok("/a//b".into()));
    assert_eq!(keep("/a//../b"), Ok("/a/b".into()));
}

#[test]
fn args_and_extensions() {
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(parts(b"/a.b/c.d%65?x#y", true), Ok(("/a.b/c.de".into(), some("x"), some("de"))));
    assert_eq!(parts(b"/a.b//c?", true), Ok(("/a.b/c".into(), some(""), None)));
    assert_eq!(parts(b"/a.b.?x?#", true), Ok(("/a.b.".into(), some("x?"), some(""))));
    assert_eq!(parts(b"/.b#?x", true), Ok(("/.b".into(), None, None)));
    let mut out = Vec::new();
    let found = normalize(b"/a%2b", true, &mut out).expect("the target is good");
    assert!(found.plus && found.quoted);
}

#[test]
fn split_agrees_with_the_request_line() {
    let text = |span: wire::span::Span, raw: &str| String::from_utf8_lossy(span.of(raw.as_bytes())).into_owned();
    for raw in ["/", "/a.b/c.d?e", "/a?b#c", "/a//b", "/./a", "/a%20?b", "/+.a", "/+", "/a#?", "/a.?", "/a.b%#"] {
        let parts = split(raw.as_bytes()).expect("the target is good");
        let line = format!("GET {raw} HTTP/1.1\r\n\r\n");
        let mut head = RequestHead::default();
        RequestParser::default().parse(line.as_bytes(), &Rules::default(), &mut head).expect("the line is good");
        assert_eq!(
            (parts.complex, parts.quoted, parts.plus, parts.needs_normalizing()),
            (head.complex, head.quoted, head.plus, head.needs_normalizing()),
            "{raw}"
        );
        if !parts.needs_normalizing() {
            assert_eq!(text(parts.path, raw), text(head.path, &line));
            assert_eq!(parts.args.map(|span| text(span, raw)), head.args.map(|span| text(span, &line)));
            assert_eq!(parts.exten.map(|span| text(span, raw)), head.exten.map(|span| text(span, &line)));
        }
    }
    for bad in ["", "a", "*", "/ ", "/\u{1}", "/?\u{7f}"] {
        assert_eq!(split(bad.as_bytes()), Err(BadTarget));
    }
}

#[test]
fn redirect_uris() {
    let uri = |text: &str| {
        let mut out = Vec::new();
        let found = parse_unsafe_uri(text.as_bytes(), &mut out)?;
        let args = found.args.map(|args| String::from_utf8_lossy(args.of(text.as_bytes())).into_owned());
        Ok((String::from_utf8_lossy(found.path.of(&out)).into_owned(), args))
    };
    assert_eq!(uri("/a%20b?c%20d"), Ok(("/a b".into(), Some("c%20d".into()))));
    assert_eq!(uri("a"), Ok(("a".into(), None)));
    assert_eq!(uri("/a/..b"), Ok(("/a/..b".into(), None)));
    for bad in ["", "?a", "..", "../a", "/a/..", "/a/../b", "/%2e%2e/", "/a\0", "/a%00", "%2e.", "/a/%2e.?b", "/..?a"] {
        assert_eq!(uri(bad), Err(UnsafeUri), "{bad}");
    }
}

#[test]
fn arguments() {
    assert_eq!(argument(b"a=1&B=2&b=3", b"b"), Some(&b"2"[..]));
    assert_eq!(argument(b"xa=1&a&a=", b"a"), Some(&b""[..]));
    assert_eq!(argument(b"", b"a"), None);
}

proptest! {
    #[test]
    fn the_path_is_whole(raw in "/[a./%2eEfF0?#+]{0,24}", merge in any::<bool>()) {
        let mut out = Vec::new();
        if let Ok(found) = normalize(raw.as_bytes(), merge, &mut out) {
            let path = found.path.of(&out);
            prop_assert!(path.starts_with(b"/"));
            prop_assert!(path.split(|&byte| byte == b'/').all(|segment| segment != b".." && segment != b"."));
            prop_assert!(!merge || !path.windows(2).any(|pair| pair == b"//"));
        }
    }

    #[test]
    fn any_bytes_are_survived(raw in proptest::collection::vec(any::<u8>(), 0..60)) {
        let mut out = Vec::new();
        let _ = normalize(&raw, true, &mut out);
        let _ = split(&raw);
        let _ = parse_unsafe_uri(&raw, &mut out);
        let _ = argument(&raw, b"a");
    }
}

#[test]
fn references() {
    let named = |target: &str, reference: &str| {
        let named = resolve(target.as_bytes(), reference.as_bytes())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some((named.authority.map(text), text(&named.target)))
    };
    for (reference, authority, target) in [
        ("/x?y#z", None, "/x?y"),
        (" x ", None, "/a/x"),
        ("", None, "/a/b?c"),
        ("#z", None, "/a/b?c"),
        ("?d", None, "/a/b?d"),
        ("../x/./y/..", None, "/x/"),
        ("../../../x", None, "/x"),
        ("x?../y", None, "/a/x?../y"),
        ("http://h:1/x", Some("h:1"), "/x"),
        ("HTTPS://h", Some("h"), "/"),
        ("//h?x:y", Some("h"), "/?x:y"),
        ("x/y:z", None, "/a/x/y:z"),
    ] {
        assert_eq!(named("/a/b?c", reference), Some((authority.map(str::to_owned), target.to_owned())), "{reference}");
    }
    for (target, reference) in [("/", "mailto:a@b"), ("/", "http:x"), ("*", "x"), ("", "/x"), ("/", &*"x".repeat(9000))]
    {
        assert_eq!(named(target, reference), None, "{target} {reference}");
    }
}
