//! Frames of WebSocket and packets of MQTT, of any bytes: in pieces and at once they are the same, and little is kept of them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::units::{Size, Units, WHOLE};
use wire::{mqtt, websocket};

type Reader = fn(&[u8]) -> Result<Option<Size>, ()>;

fn frame(bytes: &[u8]) -> Result<Option<Size>, ()> {
    websocket::read(bytes).map_err(|_| ()).map(|frame| frame.map(|f| f.size))
}

fn packet(bytes: &[u8]) -> Result<Option<Size>, ()> {
    mqtt::read(bytes).map_err(|_| ()).map(|packet| packet.map(|p| p.size))
}

/// All units, and what is sent in return.
fn read(reader: Reader, text: &[u8], piece: usize) -> (Result<(), ()>, Vec<(u8, Vec<u8>)>, Vec<u8>) {
    let (mut units, mut seen, mut reply) = (Units::default(), Vec::new(), Vec::new());
    let result = text.chunks(piece).try_for_each(|bytes| {
        units.feed(bytes, reader, |first, body| {
            assert!(body.len() <= WHOLE);
            websocket::pong(body, &mut reply);
            if let Some(id) = mqtt::publish_id(first, body) {
                mqtt::puback(id, &mut reply);
            }
            seen.push((first, body.to_vec()));
            Ok(())
        })
    });
    (result, seen, reply)
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, text)) = data.split_first() else { return };
    let reader: Reader = if kind & 1 == 0 { frame } else { packet };
    let whole = read(reader, text, text.len().max(1));
    assert_eq!(whole, read(reader, text, usize::from(kind >> 1).max(1)));
});
