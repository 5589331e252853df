//! A rule text of any bytes: it loads or has problems.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    waf::fuzz::rules(data);
});
