//! The first packet of an MQTT client, of any content: further bytes change nothing that was decided, and what is changed can be
//! read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::mqtt::connect::{Changes, parse};

fuzz_target!(|data: &[u8]| {
    let whole = parse(data);
    let part = parse(&data[..data.len() / 2]);
    if part != Ok(None) {
        assert_eq!(whole, part);
    }
    let Ok(Some(connect)) = whole else { return };
    assert!(connect.size <= data.len());
    let name = &data[..data.len().min(16)];
    for changes in [Changes::default(), Changes { client: Some(name), username: Some(name), password: Some(name) }] {
        let mut out = Vec::new();
        connect.write(data, &changes, &mut out);
        let again = parse(&out).expect("a CONNECT").expect("whole");
        assert_eq!(again.size, out.len());
        assert_eq!(again.client.of(&out), changes.client.unwrap_or(connect.client.of(data)));
    }
});
