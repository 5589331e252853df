//! Bodies of PROPFIND and LOCK: whatever they are, the reader ends, and names are as long as what came at most.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::webdav::{Find, lock, propfind};

fuzz_target!(|body: &[u8]| {
    if let Ok(Find::Some(names)) = propfind(body) {
        assert!(names.iter().all(|name| name.local.len() <= body.len() && name.space.len() <= body.len()));
    }
    if let Ok(Some(lock)) = lock(body) {
        assert!(lock.owner.len() <= body.len());
    }
});
