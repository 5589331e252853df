//! Arguments of any bytes, and each transformation on them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    waf::fuzz::urlencoded(data);
    if let Some((which, text)) = data.split_first() {
        waf::fuzz::transform(*which, text);
    }
});
