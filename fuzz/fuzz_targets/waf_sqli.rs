//! A value of any bytes with one piece repeated, so that it is longer than libinjection is given: what it finds in all of it is not overlooked.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((cut, text)) = data.split_first() else { return };
    let (head, tail) = text.split_at(usize::from(*cut).min(text.len()));
    let (piece, tail) = tail.split_at(tail.len().min(8));
    waf::fuzz::sqli(&[head, &piece.repeat(1_000), tail].concat());
});
