//! A PROXY protocol header of any bytes: what is read lies within, and further bytes change nothing that was decided.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::proxy_protocol::{Parsed, parse, quoted_part};

fuzz_target!(|data: &[u8]| {
    let whole = parse(data);
    let part = parse(&data[..data.len() / 2]);
    if part != Ok(Parsed::Partial) {
        assert_eq!(whole, part);
    }
    match whole {
        Ok(Parsed::Complete { len, header }) => {
            assert!(len <= data.len());
            for name in ["alpn", "0xea", "ssl", "ssl_cn", "ssl_verify", "ssl_0x21"] {
                let _ = header.as_ref().map(|header| header.tlvs.lookup(name.as_bytes()));
            }
        }
        Ok(Parsed::Partial) => {}
        Err(_) => assert!(quoted_part(data).len() <= data.len()),
    }
});
