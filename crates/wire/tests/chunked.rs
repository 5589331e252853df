//! Chunked bodies, decoded at once and in pieces.

use proptest::prelude::*;
use wire::http1::Parsed;
use wire::http1::chunked::{
    ChunkedError, Decoder, Event, LAST_CHUNK, MAX_EXTENSION, MAX_SIZE_DIGITS, MAX_TRAILER, Trailers, encode_size,
};
use wire::http1::field::TrailerParser;

/// The body, and how many bytes of `text` were read; `None` while it goes on.
fn decode(text: &[u8], piece: usize) -> Result<Option<(Vec<u8>, usize)>, ChunkedError> {
    decode_with(Decoder::new(Trailers::Drop), text, piece)
}

fn decode_with(mut decoder: Decoder, text: &[u8], piece: usize) -> Result<Option<(Vec<u8>, usize)>, ChunkedError> {
    let mut body = Vec::new();
    for (at, piece_of_text) in text.chunks(piece).enumerate() {
        let mut position = 0;
        loop {
            match decoder.decode(piece_of_text, &mut position)? {
                Event::Data(data) => body.extend_from_slice(data.of(piece_of_text)),
                Event::More => break,
                Event::End => return Ok(Some((body, at * piece + position))),
                Event::Trailers => unreachable!("trailers are dropped"),
            }
        }
        assert_eq!(position, piece_of_text.len());
        let rest = (text.len() - (at * piece + position)) as u64;
        assert!(decoder.min_needed() > 0 && (rest == 0 || decoder.min_needed() < u64::MAX));
    }
    Ok(None)
}

fn whole(text: &str) -> Result<Option<(Vec<u8>, usize)>, ChunkedError> {
    let found = decode(text.as_bytes(), text.len().max(1));
    assert_eq!(found, decode(text.as_bytes(), 1), "{text:?}");
    assert_eq!(found, decode(text.as_bytes(), 3), "{text:?}");
    found
}

#[test]
fn bodies() {
    let body = |text: &str| whole(text).expect("the body is good").map(|(body, read)| (String::from_utf8(body), read));
    let is = |text: &str, expected: &str, left: usize| {
        assert_eq!(body(text), Some((Ok(expected.to_owned()), text.len() - left)), "{text:?}");
    };
    is("0\r\n\r\n", "", 0);
    is("5\r\nhello\r\n00a ;x=y\r\n0123456789\r\n0\r\n\r\nGET", "hello0123456789", 3);
    is("1;\"\0\x01\r\na\r\n0\t\r\nA: b\r\nc\r\n\r\n", "a", 0);
    is("B\r\n01234567890\r\n0;x\r\n\r\n", "01234567890", 0);
    assert_eq!(body("5\r\nhel"), None);
    assert_eq!(body(""), None);
}

#[test]
fn refusals() {
    for bad in [
        "\r\n",
        "g",
        " 5",
        "5\n",
        "5\r\r",
        "5\r\nhello\n",
        "5\r\nhelloX",
        "5;a\n",
        "0\n",
        "0\r\n\n",
        "0;\n",
        "0\r\na\n",
        "0\r\na\rb",
        "0\r\n\rx",
        "5x",
        "-1",
        "0x5",
        "5\r\nhello\rx",
        "5\r\nhello\r\n\r\n",
    ] {
        assert_eq!(whole(bad), Err(ChunkedError::Invalid), "{bad:?}");
    }
    assert_eq!(whole("7fffffffffffffff"), Err(ChunkedError::SizeTooLarge));
    assert_eq!(whole("10000000000000000\r"), Err(ChunkedError::SizeTooLarge));
    assert_eq!(whole("800000000000000\r"), Err(ChunkedError::SizeTooLarge), "nginx checks before the CR");
    assert!(whole("7ffffffffffffff\r\n").is_ok());
    let zeros = "0".repeat(MAX_SIZE_DIGITS as usize);
    assert!(whole(&zeros).is_ok());
    assert_eq!(whole(&format!("{zeros}0")), Err(ChunkedError::SizeTooLarge));
    let long = "x".repeat(MAX_EXTENSION as usize + 1);
    assert_eq!(whole(&format!("1;{long}")), Err(ChunkedError::TooLong));
    let lines = "x\r\n".repeat(MAX_TRAILER as usize + 1);
    assert_eq!(whole(&format!("0\r\n{lines}")), Err(ChunkedError::TooLong));
}

#[test]
fn extensions_of_requests_are_such() {
    let read = |extension: &str| {
        let text = format!("1{extension}\r\na\r\n0{extension}\r\n\r\n");
        let found = decode_with(Decoder::of_request(), text.as_bytes(), text.len());
        assert_eq!(found, decode_with(Decoder::of_request(), text.as_bytes(), 1), "{extension:?}");
        found.map(|body| body.expect("it is whole").0)
    };
    for good in
        ["", ";a", "; a", " ;a", ";a=b", ";a = b", ";a=\"\"", ";a=\"b;\\\" c\"", ";a;b=c;d=\"e\" ; f", "\t;\ta\t=\tb;g"]
    {
        assert_eq!(read(good), Ok(b"a".to_vec()), "{good:?}");
    }
    for bad in [
        ";",
        " ",
        "\t",
        "; ",
        ";;",
        ";a;",
        ";a ",
        ";a=b ",
        ";a=\"b\" ",
        ";a=",
        ";a==b",
        ";=b",
        ";a=b=c",
        ";a b",
        ";a=b c",
        " a",
        ";a=\"b",
        ";a=\"b\"c",
        ";\0",
        ";a\0",
        ";a=\0",
        ";a=\"\0\"",
        ";a=\"\\\0\"",
        ";a=\"\x7f\"",
        ";a(",
        ";a=b/",
        ";\x01",
    ] {
        assert_eq!(read(bad), Err(ChunkedError::Invalid), "{bad:?}");
    }
}

#[test]
fn trailers_are_handed_out() {
    let text = b"0\r\nA: b\r\nHTTP/x\r\n\r\nrest";
    let mut decoder = Decoder::new(Trailers::HandOut);
    let mut position = 0;
    assert_eq!(decoder.decode(text, &mut position), Ok(Event::Trailers));
    let mut fields = Vec::new();
    let section = &text[position..];
    let mut parser = TrailerParser::default();
    assert_eq!(parser.parse(&section[..3], &mut fields), Ok(Parsed::Partial));
    assert_eq!(parser.parse(section, &mut fields), Ok(Parsed::Complete { len: section.len() - 4 }));
    assert_eq!(fields.len(), 1);
    assert_eq!(fields[0].value.of(section), b"b");
}

#[test]
fn sizes() {
    let line = |size| {
        let mut out = Vec::new();
        encode_size(size, &mut out);
        String::from_utf8(out).expect("digits are ASCII")
    };
    assert_eq!(line(0), "0\r\n");
    assert_eq!(line(15), "f\r\n");
    assert_eq!(line(16), "10\r\n");
    assert_eq!(line(0xabc_def0), "abcdef0\r\n");
    assert_eq!(line(u64::MAX), "ffffffffffffffff\r\n");
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..5), piece in 1usize..50) {
        let mut text = Vec::new();
        for chunk in &chunks {
            encode_size(chunk.len() as u64, &mut text);
            text.extend_from_slice(chunk);
            text.extend_from_slice(b"\r\n");
        }
        text.extend_from_slice(LAST_CHUNK);
        prop_assert_eq!(decode(&text, piece), Ok(Some((chunks.concat(), text.len()))));
        // Reading what is needed, again and again, ends with the body and not after it.
        text.extend_from_slice(b"GET /");
        let (mut decoder, mut read) = (Decoder::new(Trailers::Drop), 0);
        'body: loop {
            let end = (read + decoder.min_needed() as usize).min(text.len());
            let mut position = read;
            loop {
                match decoder.decode(&text[..end], &mut position) {
                    Ok(Event::Data(_)) => {}
                    Ok(Event::More) => break,
                    Ok(Event::End) => { read = position; break 'body; }
                    other => prop_assert!(false, "{other:?}"),
                }
            }
            read = end;
        }
        prop_assert_eq!(read, text.len() - 5);
    }

    #[test]
    fn pieces_find_the_same(text in "([0-3a]{1,3}([; \t][a\r\n]{0,2})?\r\n[a-c\r\n]{0,3}\r?\n?){0,3}(0\r\n(a\r\n)?\r\n)?") {
        prop_assert_eq!(decode(text.as_bytes(), text.len().max(1)), decode(text.as_bytes(), 1));
    }
}
