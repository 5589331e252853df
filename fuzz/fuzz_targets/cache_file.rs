//! The start of a cache file of any bytes and length: what is taken for an entry writes back to the same bytes, and asking
//! for more never ends in a head that does not fit.
#![no_main]
#![allow(dead_code, reason = "the server's file, of which only a part is used here")]

#[path = "../../crates/server/src/cache/format.rs"]
mod format;

use format::{BadHead, MAX_START, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((more, bytes)) = data.split_first_chunk::<2>() else { return };
    // Files are longer than what was read of them, or not.
    let size = bytes.len() as u64 + u64::from(u16::from_le_bytes(*more));
    match parse(bytes, size) {
        Ok(head) => {
            let mut out = Vec::new();
            head.write(&mut out);
            assert_eq!(out.len(), head.body_start());
            assert_eq!(out, bytes[..out.len()]);
            assert_eq!(head.body_start() as u64 + head.body, size);
            let short = &bytes[..out.len() - 1];
            assert!(matches!(parse(short, size), Err(BadHead::Short(_))));
        }
        Err(BadHead::Short(n)) => assert!(n > bytes.len() && n <= MAX_START),
        Err(BadHead::Version | BadHead::Broken) => {}
    }
});
