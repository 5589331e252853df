//! Heads of pictures: whatever the bytes are, a size is one that its format can say.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::picture::{Kind, Size};

fuzz_target!(|bytes: &[u8]| {
    let Some(kind) = Kind::of(bytes) else { return };
    if let Some(size) = Size::of(kind, bytes) {
        assert!(size.width > 0 && size.height > 0);
        assert!(size.application_data <= usize::from(u16::MAX));
        assert!(size.pixels() >= u64::from(size.width));
    }
});
