#![no_main]
//! What the other side sends behind its handshake, a client or a server: any bytes as records, and any content of any type in a record that is well sealed.
#![allow(dead_code, reason = "the server's files, of which only a part is used here")]

use libfuzzer_sys::fuzz_target;
use record_layer::{Layer, whole};
use secrets::Secrets;

#[path = "../../crates/server/src/connection/tls/record_layer.rs"]
mod record_layer;
#[path = "../../crates/server/src/connection/tls/secrets.rs"]
mod secrets;
#[path = "../../crates/server/src/tls"]
mod tls {
    pub mod notes;
}

/// A payload, at most.
const MOST: usize = 1 << 14;

fn layer(is_client: bool, ours: u8, theirs: u8) -> Layer {
    let mut bytes = vec![0x13, 0x01, u8::from(is_client), 0x40, 0];
    bytes.extend([0; 16]);
    bytes.extend([ours; 32]);
    bytes.extend([theirs; 32]);
    Layer::new(Secrets::from_bytes(&bytes).expect("they are secrets"))
}

fuzz_target!(|data: &[u8]| {
    let mut bytes = data.to_vec();
    if let Ok(Some(length)) = whole(&bytes) {
        assert!(length <= bytes.len() && layer(false, 1, 2).open(&mut bytes[..length]).is_err());
    }
    [true, false].into_iter().for_each(|is_client| talk(data, is_client));
    let _ = Secrets::from_bytes(data);
});

/// One end says something, and the other, which has asked or was asked, hears it.
fn talk(data: &[u8], is_client: bool) {
    let (mut says, mut hears) = (layer(!is_client, 1, 2), layer(is_client, 2, 1));
    for record in data.chunks(64) {
        let [kind, content @ ..] = record else { return };
        let mut sealed = Vec::new();
        says.seal(*kind, &content[..content.len().min(MOST)], &mut sealed);
        assert_eq!(whole(&sealed), Ok(Some(sealed.len())));
        if hears.open(&mut sealed).is_err() {
            return;
        }
        let mut answer = Vec::new();
        hears.answer(&mut answer);
        // Who has changed its keys does so with the message that says it: only a ticket leaves them.
        if *kind == 22 && !(is_client && content.first() == Some(&4) && content.len() < 60) {
            return;
        }
    }
}
