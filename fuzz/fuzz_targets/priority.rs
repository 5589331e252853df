//! `Priority`: whatever comes, an urgency is one of eight, and white space around the value changes nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::priority::{LEAST, MAX_VALUE, parse};

fuzz_target!(|value: &[u8]| {
    let found = parse(value);
    assert!(found.is_none_or(|p| p.urgency <= LEAST));
    if value.len() + 2 <= MAX_VALUE {
        assert_eq!(parse(&[b" ", value, b" "].concat()), found);
    }
});
