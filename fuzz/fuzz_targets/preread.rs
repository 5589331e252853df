//! The first bytes of a TLS connection, of any content: further bytes change nothing that was decided.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::preread::{Preread, parse};

fuzz_target!(|data: &[u8]| {
    let whole = parse(data);
    let part = parse(&data[..data.len() / 2]);
    if part != Preread::Partial {
        assert_eq!(whole, part);
    }
    if let Preread::Hello(hello) = whole {
        assert!(hello.server_name.len() + hello.alpn.len() <= data.len());
        let _ = hello.protocol();
    }
});
