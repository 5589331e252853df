//! Names of peers for session persistence (`sticky`).

use md5::{Digest, Md5};

const HEX: &[u8; 16] = b"0123456789abcdef";

/// What a `sticky cookie` holds for a peer without `route`: the MD5 of its address as logged (`10.0.0.1:80`), in hex.
pub fn session_id(peer_name: &[u8]) -> [u8; 32] {
    let mut id = [0; 32];
    for (pair, byte) in id.chunks_exact_mut(2).zip(Md5::digest(peer_name)) {
        pair[0] = HEX[usize::from(byte >> 4)];
        pair[1] = HEX[usize::from(byte & 15)];
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_digest() {
        assert_eq!(&session_id(b"abc"), b"900150983cd24fb0d6963f7d28e17f72");
    }
}
