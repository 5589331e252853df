//! `cjson` of programs in Lua: whatever text comes is read or refused with a place in it, and what was read is written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lua::json::{Options, decode, encode};
use std::cell::RefCell;
use std::rc::Rc;

fuzz_target!(|data: &[u8]| {
    let machine = lua::machine::new();
    // Numbers that are none would be written as what only some read.
    let options = Options { decode_invalid: false, decode_depth: 100, encode_depth: 100, ..Options::default() };
    let value = match decode(&machine, data, &options, None) {
        Ok(value) => value,
        Err(why) => {
            assert!(why.contains(" character ") || why.contains("UTF"), "{why}");
            return;
        }
    };
    let (own, text) = (options.clone(), Rc::new(RefCell::new(Vec::new())));
    let out = text.clone();
    let write = lua::quick::make(&machine, move |call| encode(call, &own, &mut out.borrow_mut()));
    if write.expect("there is memory for a function").call::<()>(value).is_ok() {
        decode(&machine, &text.borrow(), &options, None).expect("what was written is read");
    }
});
