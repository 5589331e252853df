//! `cjson` of programs in Lua: whatever text comes is read or refused with a place in it, and what was read is written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lua::json::{Options, decode, encode};
use std::cell::RefCell;
use std::rc::Rc;

fuzz_target!(|data: &[u8]| {
    let machine = lua::machine::new();
    // Numbers that are none would be written as what only some read. Depth is what a program may say at most.
    let depth = lua::json::LARGEST_DEPTH;
    let options =
        Options { decode_invalid: false, decode_depth: depth, encode_depth: depth, ..Options::default() };
    let (text, own) = (Rc::new(RefCell::new(data.to_vec())), options.clone());
    let out = text.clone();
    let read = lua::quick::make(&machine, move |call| {
        let bytes = text.borrow().clone();
        decode(call, &bytes, &options)
    });
    let write = lua::quick::make(&machine, move |call| {
        let mut out = out.borrow_mut();
        out.clear();
        encode(call, &own, &mut out)
    });
    machine.globals().set("read", read.expect("there is memory for a function")).expect("a name is set");
    machine.globals().set("write", write.expect("there is memory for a function")).expect("a name is set");
    // What was written is read.
    let program = "local value, why = read() if why then return why end
        if not write(value) then value, why = read() if why then error(why) end end";
    if let Some(why) = machine.load(program).eval::<Option<String>>().expect("nothing is raised") {
        assert!(why.contains(" character ") || why.contains("UTF"), "{why}");
    }
});
