//! A request target of any bytes: the path stays below the root, and escapes can be undone.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::http1::escape::{Escape, Unescape, escape_uri, unescape};
use wire::http1::target::{argument, normalize, parse_unsafe_uri, resolve, split};
use wire::range;

fuzz_target!(|data: &[u8]| {
    let mut out = b"before".to_vec();
    if data.first() == Some(&b'/') {
        for merge_slashes in [false, true] {
            if let Ok(found) = normalize(data, merge_slashes, &mut out) {
                let path = found.path.of(&out);
                assert!(path.starts_with(b"/") && !path.contains(&0));
                assert!(path.split(|&byte| byte == b'/').all(|segment| segment != b"." && segment != b".."));
            }
        }
    }
    assert!(out.starts_with(b"before"));
    let _ = split(data);
    let _ = parse_unsafe_uri(data, &mut out);
    let _ = argument(data, b"a");
    let at = data.len() / 2;
    for (target, reference) in [(&b"/a/b?c"[..], data), (&data[..at], &data[at..])] {
        if let Some(named) = resolve(target, reference) {
            let path = named.target.split(|&byte| byte == b'?').next().unwrap_or_default();
            assert!(path.starts_with(b"/"));
            assert!(path.split(|&byte| byte == b'/').all(|segment| segment != b"." && segment != b".."));
        }
    }
    let _ = range::parse(data, 1000, None, &mut Vec::new());
    let (mut escaped, mut back) = (Vec::new(), Vec::new());
    escape_uri(data, Escape::UriComponent, &mut escaped);
    unescape(&escaped, Unescape::Plain, &mut back);
    assert_eq!(back, data);
});
