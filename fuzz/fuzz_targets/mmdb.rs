//! MaxMind's databases, through the crate that reads them: `geoip2` gives it files that others make.
#![no_main]

use libfuzzer_sys::fuzz_target;
use maxminddb::{PathElement, Reader};

fuzz_target!(|input: (u32, &[u8])| {
    let (address, bytes) = input;
    if let Ok(reader) = Reader::from_source(bytes) {
        let ip = std::net::IpAddr::from(address.to_be_bytes());
        if let Ok(found) = reader.lookup(ip) {
            let path = [PathElement::Key("country"), PathElement::Key("iso_code")];
            let _ = found.decode_path::<serde_json::Value>(&path);
            let _ = found.decode::<serde_json::Value>();
        }
    }
});
