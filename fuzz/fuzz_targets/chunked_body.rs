//! A chunked body of any bytes: decoded at once and in pieces it must be the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::http1::chunked::{ChunkedError, Decoder, Event, Trailers};
use wire::http1::field::TrailerParser;

/// The body, the bytes read, and whether it ended.
fn decode(text: &[u8], piece: usize, mut decoder: Decoder) -> Result<(Vec<u8>, usize, bool), ChunkedError> {
    let (mut body, mut read) = (Vec::new(), 0);
    for piece in text.chunks(piece) {
        let mut position = 0;
        loop {
            match decoder.decode(piece, &mut position)? {
                Event::Data(data) => body.extend_from_slice(data.of(piece)),
                Event::More => break,
                Event::End | Event::Trailers => return Ok((body, read + position, true)),
            }
        }
        assert_eq!(position, piece.len());
        assert!(decoder.min_needed() > 0);
        read += position;
    }
    Ok((body, read, false))
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, text)) = data.split_first() else { return };
    let trailers = if kind & 1 == 0 { Trailers::Drop } else { Trailers::HandOut };
    let piece = usize::from(kind >> 1).max(1);
    let whole = decode(text, text.len().max(1), Decoder::new(trailers));
    let pieces = decode(text, piece, Decoder::new(trailers));
    assert_eq!(whole, pieces);
    let strict = decode(text, text.len().max(1), Decoder::of_request());
    assert_eq!(strict, decode(text, piece, Decoder::of_request()));
    if trailers == Trailers::Drop && strict.is_ok() {
        // What is strictly a body is one in any case, and the same.
        assert_eq!(strict, whole);
    }
    if let (Ok((_, read, true)), Trailers::HandOut) = (whole, trailers) {
        let _ = TrailerParser::default().parse(&text[read..], &mut Vec::new());
    }
});
