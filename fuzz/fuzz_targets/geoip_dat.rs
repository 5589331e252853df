//! MaxMind's legacy databases: whatever the bytes are, an answer comes from within them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::net::IpAddr;
use wire::geoip::{Database, region_name};

fuzz_target!(|input: (u32, u128, u8, u16, &[u8])| {
    let (v4, v6, kind, segment, bytes) = input;
    let mut whole = bytes.to_vec();
    // Half of the inputs are given an end as a database has it: few would have one otherwise.
    if kind & 0x80 == 0 {
        whole.extend_from_slice(&[255, 255, 255, kind]);
        whole.extend_from_slice(&[segment as u8, (segment >> 8) as u8, 0]);
    }
    let Ok(database) = Database::new(whole) else { return };
    for address in [IpAddr::V4(v4.into()), IpAddr::V6(v6.into())] {
        if let Ok(Some(country)) = database.country(address) {
            assert_eq!(country.code.len(), 2);
        }
        if let Ok(Some(city)) = database.city(address) {
            assert!((-180.0..1500.0).contains(&city.latitude) && city.area_code < 1000);
            let _ = region_name(city.country.code, city.region);
        }
        if let Ok(Some(name)) = database.name(address) {
            assert!(!name.contains(&0));
        }
    }
});
