//! The file of an upstream's `state`: whatever stands in it, only `server` lines come out, and no more than may.
#![no_main]

#[path = "../../crates/server/src/modules/upstream_state.rs"]
mod upstream_state;

use libfuzzer_sys::fuzz_target;

const MOST: usize = 8;

fuzz_target!(|text: &[u8]| {
    if let Ok(lines) = upstream_state::lines_of(text, MOST) {
        assert!(lines.len() <= MOST && lines.iter().all(|l| l.name == "server"));
    }
});
