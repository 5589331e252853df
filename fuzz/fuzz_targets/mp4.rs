//! Stretches of films: whatever the tables say, what is sent is in the file, and its length is what the new boxes add up to.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::mp4::{Around, Wanted, box_head, cut};

fuzz_target!(|input: (u32, u32, bool, &[u8])| {
    let (start, length, key_frame, moov) = input;
    let _ = box_head(moov);
    let around = Around { file: 1 << 20, mdat_end: 1 << 19, before: 32 };
    let wanted = Wanted { start: start.into(), length: (length > 0).then_some(length.into()), key_frame };
    if let Ok(cut) = cut(moov, around, wanted) {
        assert!(cut.from < cut.to && cut.to <= around.file);
        assert!(cut.head.len() <= moov.len() + 4096);
    }
});
