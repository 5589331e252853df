//! A line of an access log, as `-t --plan` reads it: whatever stands in it, cutting ends, and no value is longer than the line.
#![no_main]

#[path = "../../crates/server/src/plan/line.rs"]
mod line;

use libfuzzer_sys::fuzz_target;
use line::{Part, cut};

fuzz_target!(|text: &[u8]| {
    let format = [
        Part::Variable("remote_addr"),
        Part::Text(b" - "),
        Part::Variable("time_local"),
        Part::Text(b" \""),
        Part::Variable("request"),
        Part::Text(b"\" "),
        Part::Variable("host"),
    ];
    if let Some(found) = cut(&format, text) {
        assert_eq!(found.len(), 4);
        assert!(found.iter().all(|(_, value)| value.len() <= text.len()));
    }
});
