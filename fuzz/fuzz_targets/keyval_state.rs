//! The state file of a `keyval_zone`: whatever stands in it, what is read is written and read again the same.
#![no_main]

#[path = "../../crates/server/src/modules/keyval_state.rs"]
mod keyval_state;

use keyval_state::{parse, render};
use libfuzzer_sys::fuzz_target;

const NOW_MS: u64 = 1000;

fuzz_target!(|text: &[u8]| {
    if let Ok(records) = parse(text, NOW_MS) {
        let written = render(records.iter().map(|(k, v, keep)| (&**k, &**v, keep.map(|ms| NOW_MS + ms))));
        assert_eq!(parse(written.as_bytes(), NOW_MS), Ok(records));
    }
});
