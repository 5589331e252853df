//! What another node says of its zones.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::zone_sync::{Frame, Keyval, Parsed, Requests, Session, parse, read_hello};

fuzz_target!(|bytes: &[u8]| {
    let _ = read_hello(bytes);
    let mut at = 0;
    while let Ok(Parsed::Complete(frame, len)) = parse(&bytes[at..]) {
        if let Some(frame) = frame {
            if let Frame::Record { value, .. } = frame {
                let _ = (Keyval::read(value), Session::read(value), Requests::read(value));
            }
            let mut out = Vec::new();
            if frame.write(&mut out) && !matches!(frame, Frame::Zone { kind: None, .. } | Frame::Beat) {
                assert_eq!(out, bytes[at..at + len]);
            }
        }
        at += len;
    }
});
