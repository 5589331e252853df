//! What a real server says of its accept queues: any bytes are a report or none, and a report is written as it was read.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(load) = l4::load::Load::read(bytes) {
        assert!(load.to_bytes().len() <= l4::load::BYTES_MAX);
        assert_eq!(l4::load::Load::read(&load.to_bytes()).as_ref().ok(), Some(&load));
    }
});
