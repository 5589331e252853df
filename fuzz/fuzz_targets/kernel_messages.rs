//! What the kernel says, as if a stranger said it: attributes of netlink, records of its log, `/proc` lines of sockets.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let length: usize = machine::netlink::attributes(data).map(|(_, value)| value.len()).sum();
    assert!(length <= data.len());
    machine::sockets::count(data);
    let _ = machine::card::told(data);
    let _ = machine::shaping::read(data, 1);
    let _ = machine::kernel_log::parse(data);
});
