#![no_main]
//! What a client sends behind its handshake: any bytes as records, and any content of any type in a record that is well sealed.
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

fn layer(ours: u8, theirs: u8) -> Layer {
    let mut bytes = vec![0x13, 0x01, 0x40, 0];
    bytes.extend([0; 16]);
    bytes.extend([ours; 32]);
    bytes.extend([theirs; 32]);
    Layer::new(Secrets::from_bytes(&bytes).expect("they are secrets"))
}

fuzz_target!(|data: &[u8]| {
    let mut bytes = data.to_vec();
    if let Ok(Some(length)) = whole(&bytes) {
        assert!(length <= bytes.len() && layer(1, 2).open(&mut bytes[..length]).is_err());
    }
    let (mut client, mut server) = (layer(1, 2), layer(2, 1));
    for record in data.chunks(64) {
        let [kind, content @ ..] = record else { return };
        let mut sealed = Vec::new();
        client.seal(*kind, &content[..content.len().min(MOST)], &mut sealed);
        assert_eq!(whole(&sealed), Ok(Some(sealed.len())));
        if server.open(&mut sealed).is_err() {
            return;
        }
        let mut answer = Vec::new();
        server.answer(&mut answer);
        // A client that has changed its keys does so with the message that says it.
        if *kind == 22 {
            return;
        }
    }
    let _ = Secrets::from_bytes(data);
});
