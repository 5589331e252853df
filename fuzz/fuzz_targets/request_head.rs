//! A request head of any bytes: read at once and in two pieces it must be the same, and every span lies within.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::http1::request::{RequestHead, RequestParser, Rules};
use wire::http1::{Parsed, target, values};

fuzz_target!(|data: &[u8]| {
    let Some((&cut, text)) = data.split_first() else { return };
    let rules = Rules { ignore_invalid_headers: cut & 1 == 0, underscores_in_headers: cut & 2 == 0, ..Rules::default() };
    let mut head = RequestHead::default();
    let whole = RequestParser::default().parse(text, &rules, &mut head);

    let (mut parser, mut head_of_pieces) = (RequestParser::default(), RequestHead::default());
    let mut pieces = parser.parse(&text[..usize::from(cut).min(text.len())], &rules, &mut head_of_pieces);
    if pieces == Ok(Parsed::Partial) {
        pieces = parser.parse(text, &rules, &mut head_of_pieces);
    }
    assert_eq!(whole, pieces);
    if let Err(error) = whole {
        error.log(text, &mut Vec::new());
        return;
    }
    assert_eq!(head, head_of_pieces);
    if whole == Ok(Parsed::Partial) {
        return;
    }
    let spans = [Some(head.line), Some(head.method), Some(head.target), head.absolute_host, head.scheme];
    for span in spans.into_iter().flatten() {
        span.of(text);
    }
    let mut out = Vec::new();
    let _ = target::normalize(head.target.of(text), true, &mut out);
    for line in &head.headers {
        assert!(!line.name.of(text).contains(&b' ') && !line.value.of(text).contains(&0));
        let _ = values::validate_host(line.value.of(text), &mut out);
    }
});
