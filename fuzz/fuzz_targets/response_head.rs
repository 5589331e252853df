//! An upstream's head of any bytes: read at once and in two pieces it must be the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::http1::Parsed;
use wire::http1::response::{ResponseHead, ResponseParser};

fuzz_target!(|data: &[u8]| {
    let Some((&cut, text)) = data.split_first() else { return };
    let new = || if cut & 1 == 0 { ResponseParser::default() } else { ResponseParser::without_status_line() };
    let mut head = ResponseHead::default();
    let whole = new().parse(text, &mut head);

    let (mut parser, mut head_of_pieces) = (new(), ResponseHead::default());
    let mut pieces = parser.parse(&text[..usize::from(cut).min(text.len())], &mut head_of_pieces);
    if pieces == Ok(Parsed::Partial) {
        pieces = parser.parse(text, &mut head_of_pieces);
    }
    assert_eq!(whole, pieces);
    if let Err(error) = whole {
        error.log(text, &mut Vec::new());
        return;
    }
    assert_eq!(head, head_of_pieces);
    head.status_line.of(text);
    for line in &head.headers {
        line.name.of(text);
        let value = line.value.of(text);
        if let Some(found) = wire::http1::values::find_charset(value) {
            found.charset.of(value);
            assert!(found.kind_end < found.end && value[found.kind_end] == b';' && found.end <= value.len());
        }
    }
});
