//! `$5$` and `$6$` of crypt(3): SHA-256 and SHA-512 many times over (the crate `sha-crypt`), in crypt's own digits and order.

use super::md5::put;
use sha_crypt::{Params, sha256_crypt, sha512_crypt};

/// Longest salt.
const SALT: usize = 16;

/// `$6$salt$...` or `$6$rounds=10000$salt$...` of the password; none for what is not written that way.
pub(super) fn crypt(password: &[u8], stored: &[u8]) -> Option<Vec<u8>> {
    let (scheme, mut rest) = stored.split_at_checked(3)?;
    let mut made = scheme.to_vec();
    let mut params = Params::default();
    if let Some(text) = rest.strip_prefix(b"rounds=") {
        let end = memchr::memchr(b'$', text)?;
        let rounds = std::str::from_utf8(&text[..end]).ok()?.parse().ok()?;
        params = Params::new(rounds).ok()?;
        rest = &text[end + 1..];
        made.extend_from_slice(format!("rounds={rounds}$").as_bytes());
    }
    let end = memchr::memchr(b'$', rest).unwrap_or(rest.len()).min(SALT);
    let salt = &rest[..end];
    made.extend_from_slice(salt);
    made.push(b'$');
    if scheme == b"$5$" {
        let digest = sha256_crypt(password, salt, params);
        put_thirds(&mut made, &digest[..30], 2);
        put(&mut made, u32::from(digest[31]) << 8 | u32::from(digest[30]), 3);
    } else {
        let digest = sha512_crypt(password, salt, params);
        put_thirds(&mut made, &digest[..63], 1);
        put(&mut made, digest[63].into(), 2);
    }
    Some(made)
}

/// One byte of each third of the digest makes four digits; who is the highest moves on by `turn` thirds each time.
fn put_thirds(text: &mut Vec<u8>, digest: &[u8], turn: usize) {
    let third = digest.len() / 3;
    for i in 0..third {
        let byte = |place: usize| u32::from(digest[(i * turn + place) % 3 * third + i]);
        put(text, byte(0) << 16 | byte(1) << 8 | byte(2), 4);
    }
}
