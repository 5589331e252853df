//! Kernel settings as people publish them: any text is sorted, and what is written of it is a profile that stays as it is.
#![no_main]

use libfuzzer_sys::fuzz_target;

/// A longer text is only slower: each word is held against each name.
const LONGEST: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(&data[..data.len().min(LONGEST)]);
    let settings = |profile: &str| -> Vec<String> {
        profile.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).map(str::to_owned).collect()
    };
    let first = settings(&doctor::sysctl::corrected(&text, "6.1.0", 24 << 30));
    let again = settings(&doctor::sysctl::corrected(&(first.join("\n") + "\n"), "6.1.0", 24 << 30));
    assert_eq!(first, again);
});
