//! Configuration text of any bytes. A stub until the crate `conf` has its lexer.
#![no_main]

use conf as _;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = data;
});
