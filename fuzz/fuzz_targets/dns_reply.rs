//! A name server's reply of any bytes: whatever is read of it is bounded, and a name that was asked is the one that is read.
#![no_main]
#![allow(dead_code, reason = "the server's file, of which only a part is used here")]

#[path = "../../crates/resolve/src/message.rs"]
mod message;

use libfuzzer_sys::fuzz_target;
use message::{MAX_NAME, MAX_TARGETS, Reply, Transport, build_query, record_type};

/// What the file takes from the module around it (RFC 1035 section 4.1.1).
const FORMAT_ERROR: u16 = 1;
const REFUSED: u16 = 5;

fuzz_target!(|data: &[u8]| {
    let quiet = |_: &str| {};
    for transport in [Transport::Udp, Transport::Tcp] {
        let Ok(reply) = Reply::parse(data, transport) else { continue };
        assert!(reply.question.len() < data.len() && reply.answers * 12 <= data.len());
        if let Ok(found) = reply.addresses(&quiet) {
            assert!(found.addresses.len() <= reply.answers && (found.addresses.is_empty() || found.alias.is_none()));
        }
        if let Ok(found) = reply.services(&quiet) {
            assert!(found.targets.len() <= reply.answers.min(MAX_TARGETS));
            assert!(found.targets.is_sorted_by_key(|t| t.priority) && found.targets.iter().all(|t| t.weight > 0));
        }
        let _ = reply.pointer(&quiet);
    }
    if let Some(mut query) = build_query(7, data, record_type::A) {
        assert!(data.len() <= MAX_NAME);
        query[2] |= 0x80;
        let reply = Reply::parse(&query, Transport::Udp);
        // Names of more labels may be asked, but what is read of them counts as a loop.
        let is_long = data.split(|b| *b == b'.').count() > 100;
        assert!(is_long || reply.is_ok_and(|r| r.question == data.to_ascii_lowercase()));
    }
});
