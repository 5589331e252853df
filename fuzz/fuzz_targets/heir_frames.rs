//! What another process says of its connections, channels and zones (docs/decisions/0019-upgrade-keeps-connections.md). Whatever the bytes
//! are: no panic, and what is read is written and read again as the same.
#![no_main]

use heir::{Frame, Reader, Terms};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(frame) = Frame::read(data) else { return };
    let written = frame.write();
    assert_eq!(Frame::read(&written).as_ref(), Ok(&frame));
    match &frame {
        Frame::Table(table) => {
            let terms = Terms::of(table, table);
            for number in 0..table.servers.len() as u64 {
                assert!(terms.server(number).is_some_and(|ours| u64::from(ours) <= number));
            }
            assert_eq!(terms.listener(table.listeners.len() as u64), None);
        }
        Frame::Channels(channels) => {
            for message in channels.iter().flat_map(|channel| &channel.messages) {
                let _ = push::Packed::read(message.packed);
            }
        }
        Frame::Zone(.., rows) => {
            let mut r = Reader::new(rows);
            while r.bytes().is_some() && r.signed().is_some() {}
        }
        _ => {}
    }
});
