//! What a Redis says, of any content: a part of a reply is never another reply, and asks for no more than the whole has; messages of other servers
//! in it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use push::Packed;
use wire::resp::{Parsed, parse};

fuzz_target!(|data: &[u8]| {
    let whole = parse(data);
    if let Ok(Parsed::Whole(value, size)) = &whole {
        assert!(*size <= data.len());
        let half = size / 2;
        match parse(&data[..half]) {
            Ok(Parsed::Needs(n)) => assert!(n > half && n <= *size),
            other => panic!("{other:?} of {value:?}"),
        }
    }
    if let Ok(packed) = Packed::read(data) {
        let draft = packed.draft(0);
        assert!(draft.data.len() <= data.len() && draft.marks.properties.len() <= data.len());
        let _ = packed.is_over(i64::MAX);
    }
});
