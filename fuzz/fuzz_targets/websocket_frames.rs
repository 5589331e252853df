#![no_main]
//! Frames of WebSocket as clients send them, one after the other.

use libfuzzer_sys::fuzz_target;
use wire::websocket;

fuzz_target!(|data: &[u8]| {
    let (mut rest, mut out) = (data, Vec::new());
    while let Ok(Some(frame)) = websocket::read_from_client(rest) {
        assert!(frame.size.header <= rest.len());
        let Some(whole) = frame.size.header.checked_add(frame.size.payload as usize).filter(|n| *n <= rest.len()) else { break };
        out.clear();
        frame.unmask(&rest[frame.size.header..whole], &mut out);
        assert_eq!(out.len() as u64, frame.size.payload);
        rest = &rest[whole..];
    }
    let _ = websocket::read(data);
    let _ = wire::permessage_deflate::agree([data], 10);
});
