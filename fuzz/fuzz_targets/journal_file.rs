//! A file of systemd's journal, as if a stranger wrote it: what is told is bounded, whatever its offsets say.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let told = machine::journal::of_file(&data, data.len() as u64, 0);
    let bytes: usize = told.iter().map(|e| e.text.len()).sum();
    // A text is at most what is read of two values, each byte of which may become three.
    assert!(bytes <= told.len() * 4 * 1024);
});
