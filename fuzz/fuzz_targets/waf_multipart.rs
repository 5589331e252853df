//! A multipart body of any bytes, with a boundary that is known or one that the first line names.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let at = data.iter().position(|b| *b == b'\n').unwrap_or(0);
    waf::fuzz::multipart(data);
    waf::fuzz::multipart_with(&data[..at], &data[at..]);
});
