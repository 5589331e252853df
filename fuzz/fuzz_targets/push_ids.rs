#![no_main]
//! Ids of messages as subscribers send them: what is taken stands for a place in each channel.

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(position) = push::Position::parse(data) {
        assert!(position.channels() <= push::limits::MAX_CHANNELS && position.time >= 0);
        assert!((0..300).all(|n| position.of(n).tag >= -1));
    }
});
