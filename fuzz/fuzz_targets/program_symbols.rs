//! Symbols of a program's file, and lines of error logs, as if a stranger had written them.
#![no_main]

use doctor::symbols::{Place, find};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let read = |at: u64, buffer: &mut [u8]| -> Option<()> {
        let at = usize::try_from(at).ok()?;
        buffer.copy_from_slice(data.get(at..at.checked_add(buffer.len())?)?);
        Some(())
    };
    for place in [Place::File(0), Place::File(4096), Place::Code(16)] {
        let _ = find(&read, place);
    }
    if let Ok(text) = std::str::from_utf8(data) {
        doctor::error_log::of_text("log", text, 0).iter().for_each(|told| assert!(told.count > 0));
    }
});
