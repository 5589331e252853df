//! What a client has to bring back to be believed to be one: a signed cookie, perhaps with a proof of work.
//!
//! ```text
//! KIND BITS . UNTIL . ID . MAC [. NONCE]      all in hexadecimal; the MAC is over what stands before it, and whom it was given to by which name
//! ```

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Bytes of a MAC: 128 bits of it.
const MAC: usize = 16;
/// The longest cookie that is looked at.
const LONGEST: usize = 128;
/// No cookie is shorter: a kind with its bits, a digit of a time, a number, and a MAC, with dots between. Where there is no room for that nobody need look for one.
pub const SHORTEST: usize = 3 + 1 + 1 + 1 + 16 + 1 + 2 * MAC;
/// The hardest proof: a minute or two of a browser.
pub const MAX_BITS: u32 = 24;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The cookie.
    Cookie,
    /// A number that makes the cookie's SHA-256 begin with so many zero bits.
    Work(u32),
}

/// A client that has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Its number.
    pub id: u64,
    /// What it has done.
    pub kind: Kind,
}

/// A key, with what is the same for everything that is signed with it.
#[derive(Clone)]
pub struct Key(Hmac<Sha256>);

impl Key {
    /// Of bytes, any number of them.
    pub fn new(bytes: &[u8]) -> Key {
        Key(Hmac::new_from_slice(bytes).expect("HMAC takes keys of any length"))
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// What a cookie is bound to: it is nothing to anybody else.
#[derive(Clone, Copy, Debug)]
pub struct Bound<'a> {
    /// Whom it was given to: an address.
    pub whom: &'a [u8],
    /// The cookie's name, so that one of another name is not taken for it.
    pub name: &'a [u8],
}

/// What a client is given. Of [`Kind::Work`] it is the question, to which `.` and the answer are added.
pub fn issue(key: &Key, bound: Bound<'_>, kind: Kind, id: u64, until_s: u64) -> String {
    let (letter, bits) = match kind {
        Kind::Cookie => ('c', 0),
        Kind::Work(bits) => ('w', bits.min(MAX_BITS)),
    };
    let mut text = format!("{letter}{bits:02x}.{until_s:x}.{id:016x}");
    let mac = sign(key, bound, text.as_bytes());
    text.push('.');
    mac.iter().for_each(|byte| {
        let _ = write!(text, "{byte:02x}");
    });
    text
}

fn sign(key: &Key, bound: Bound<'_>, text: &[u8]) -> [u8; MAC] {
    let mut mac = key.0.clone();
    mac.update(text);
    mac.update(b"\0");
    // With its length, so that it does not run into the name.
    mac.update(&(bound.whom.len() as u64).to_be_bytes());
    mac.update(bound.whom);
    mac.update(bound.name);
    let whole = mac.finalize().into_bytes();
    std::array::from_fn(|i| whole[i])
}

/// What a cookie proves; nothing unless it was given to this client, is whole, and not over.
pub fn check(key: &Key, bound: Bound<'_>, cookie: &[u8], now_s: u64) -> Option<Proof> {
    if !(SHORTEST..=LONGEST).contains(&cookie.len()) {
        return None;
    }
    let text = std::str::from_utf8(cookie).ok()?;
    let mut parts = text.split('.');
    let (kind, until, id, mac) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let nonce = parts.next();
    if parts.next().is_some() || mac.len() != 2 * MAC {
        return None;
    }
    if u64::from_str_radix(until, 16).ok()? <= now_s {
        return None;
    }
    let signed = &cookie[..kind.len() + until.len() + id.len() + 2];
    let wanted = sign(key, bound, signed);
    // Without a word about where they differ.
    let differ = (0..MAC).fold(0u8, |differ, i| match u8::from_str_radix(&mac[2 * i..2 * i + 2], 16) {
        Ok(byte) => differ | (byte ^ wanted[i]),
        Err(_) => 1,
    });
    if differ != 0 {
        return None;
    }
    let id = u64::from_str_radix(id, 16).ok()?;
    let bits = u32::from_str_radix(kind.get(1..)?, 16).ok()?;
    match kind.as_bytes().first()? {
        b'c' if nonce.is_none() => Some(Proof { id, kind: Kind::Cookie }),
        b'w' => {
            nonce.filter(|n| !n.is_empty())?;
            (zero_bits(&Sha256::digest(cookie)) >= bits).then_some(Proof { id, kind: Kind::Work(bits) })
        }
        _ => None,
    }
}

/// Zero bits that it begins with.
fn zero_bits(hash: &[u8]) -> u32 {
    let zeros = hash.iter().take_while(|byte| **byte == 0).count();
    zeros as u32 * 8 + hash.get(zeros).map_or(0, |byte| byte.leading_zeros())
}

/// Does the work, as the page's script does: for tests and tools.
pub fn solve(question: &str, bits: u32) -> String {
    let mut nonce = 0u64;
    loop {
        let answer = format!("{question}.{nonce:x}");
        if zero_bits(&Sha256::digest(answer.as_bytes())) >= bits {
            return answer;
        }
        nonce += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(whom: &[u8]) -> Bound<'_> {
        Bound { whom, name: b"cookie" }
    }

    #[test]
    fn a_cookie_is_its_clients_until_it_is_over() {
        let cookie = issue(&Key::new(b"key"), of(b"192.0.2.1"), Kind::Cookie, 7, 100);
        let check = |whom: &[u8], cookie: &str, now| check(&Key::new(b"key"), of(whom), cookie.as_bytes(), now);
        assert_eq!(check(b"192.0.2.1", &cookie, 99), Some(Proof { id: 7, kind: Kind::Cookie }));
        assert_eq!(check(b"192.0.2.1", &cookie, 100), None);
        assert_eq!(check(b"192.0.2.2", &cookie, 99), None);
        assert_eq!(super::check(&Key::new(b"other"), of(b"192.0.2.1"), cookie.as_bytes(), 99), None);
        assert_eq!(check(b"192.0.2.1", &format!("{cookie}.1"), 99), None);
        let renamed = Bound { whom: b"192.0.2.1", name: b"another" };
        assert_eq!(super::check(&Key::new(b"key"), renamed, cookie.as_bytes(), 99), None);
        let shifted = Bound { whom: b"192.0.2.1c", name: b"ookie" };
        assert_eq!(super::check(&Key::new(b"key"), shifted, cookie.as_bytes(), 99), None);
        let soon = issue(&Key::new(b"key"), of(b"192.0.2.1"), Kind::Cookie, 0, 1);
        assert_eq!(soon.len(), SHORTEST);
        assert!(check(b"192.0.2.1", &soon, 0).is_some());
        for at in 0..cookie.len() {
            let mut changed = cookie.clone().into_bytes();
            changed[at] ^= 1;
            assert_eq!(super::check(&Key::new(b"key"), of(b"192.0.2.1"), &changed, 1), None, "{at}");
            assert_eq!(check(b"192.0.2.1", &cookie[..at], 99), None, "{at}");
        }
    }

    #[test]
    fn work_is_proved() {
        let question = issue(&Key::new(b"key"), of(b"a"), Kind::Work(10), 9, 100);
        assert_eq!(check(&Key::new(b"key"), of(b"a"), question.as_bytes(), 1), None, "the question is no answer");
        let answer = solve(&question, 10);
        assert_eq!(
            check(&Key::new(b"key"), of(b"a"), answer.as_bytes(), 1),
            Some(Proof { id: 9, kind: Kind::Work(10) })
        );
        let easier = question.replacen("w0a", "w01", 1);
        assert_eq!(
            check(&Key::new(b"key"), of(b"a"), solve(&easier, 1).as_bytes(), 1),
            None,
            "how hard it is is signed"
        );
    }

    #[test]
    fn nonsense_is_no_proof() {
        for text in ["", ".", "....", "c00.ffff.0.zz", "c00.ffff.0.é", &"c".repeat(200)] {
            assert_eq!(check(&Key::new(b"key"), of(b"a"), text.as_bytes(), 1), None, "{text}");
        }
        assert_eq!(check(&Key::new(b"key"), of(b"a"), b"\xff\xfe", 1), None);
    }
}
