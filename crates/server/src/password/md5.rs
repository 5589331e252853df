//! MD5-crypt: `$1$` (FreeBSD) and `$apr1$` (Apache), the same but for the name of the scheme.

use md5::{Digest, Md5};

/// Longest salt in bytes.
const MAX_SALT: usize = 8;
const ROUNDS: usize = 1000;
const ALPHABET: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// The order in which bytes of the digest are written, three at a time.
const ORDER: [[usize; 3]; 5] = [[0, 6, 12], [1, 7, 13], [2, 8, 14], [3, 9, 15], [4, 10, 5]];

/// The whole stored text for a password. `rest` is what follows the scheme: the salt, maybe `$` and a hash.
pub(super) fn crypt(password: &[u8], scheme: &[u8], rest: &[u8]) -> Vec<u8> {
    let end = memchr::memchr(b'$', rest).unwrap_or(rest.len()).min(MAX_SALT);
    let salt = &rest[..end];
    let mut digest = first(password, scheme, salt);
    for round in 0..ROUNDS {
        let mut h = Md5::new();
        let odd = round % 2 == 1;
        h.update(if odd { password } else { &digest[..] });
        if !round.is_multiple_of(3) {
            h.update(salt);
        }
        if !round.is_multiple_of(7) {
            h.update(password);
        }
        h.update(if odd { &digest[..] } else { password });
        digest = h.finalize().into();
    }
    let mut text = [scheme, salt, b"$"].concat();
    for [a, b, c] in ORDER {
        put(&mut text, u32::from(digest[a]) << 16 | u32::from(digest[b]) << 8 | u32::from(digest[c]), 4);
    }
    put(&mut text, u32::from(digest[11]), 2);
    text
}

/// The digest that the rounds start from.
fn first(password: &[u8], scheme: &[u8], salt: &[u8]) -> [u8; 16] {
    let inner = Md5::new().chain_update(password).chain_update(salt).chain_update(password).finalize();
    let mut h = Md5::new().chain_update(password).chain_update(scheme).chain_update(salt);
    let mut left = password.len();
    while left > 0 {
        h.update(&inner[..left.min(16)]);
        left = left.saturating_sub(16);
    }
    // One byte for each bit of the length: zero for ones, the first of the password for zeros.
    let mut bits = password.len();
    while bits > 0 {
        h.update(if bits % 2 == 1 { &[0][..] } else { &password[..1] });
        bits /= 2;
    }
    h.finalize().into()
}

/// Six bits a digit, lowest first.
pub(super) fn put(text: &mut Vec<u8>, mut bits: u32, digits: usize) {
    for _ in 0..digits {
        text.push(ALPHABET[(bits & 63) as usize]);
        bits >>= 6;
    }
}
