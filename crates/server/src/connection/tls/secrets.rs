//! A TLS 1.3 connection between two records, in few bytes: its cipher, the secret of each direction and how many records that has carried
//! (RFC 8446 section 7). Enough to go on with it, at another time, on another thread or in another process. From: `connection::tls`, which
//! has it from the library. To: `record_layer`. Never in a log: whoever has it reads the connection.

use crate::tls::notes::{MOST_SECRET, Traffic};
use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Algorithm, CHACHA20_POLY1305, MAX_TAG_LEN, NONCE_LEN};
use aws_lc_rs::hkdf::{self, HKDF_SHA256, HKDF_SHA384, Prk};
use rustls::{CipherSuite, ConnectionTrafficSecrets, ExtractedSecrets};
use std::fmt;
use std::ops::Deref;
use zeroize::Zeroize;

/// Updates of keys before a connection is parked that are found again. Nobody who waits has more: one is due after 16 million records.
const MOST_UPDATES: usize = 64;
/// Bytes of a key, at most.
pub(super) const MOST_KEY: usize = 32;
/// Cipher, end, payload of a record, and the two counts.
const HEAD: usize = 2 + 1 + 2 + 8 + 8;

/// A cipher of TLS 1.3 with its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// `TLS_AES_128_GCM_SHA256`
    Aes128,
    /// `TLS_AES_256_GCM_SHA384`
    Aes256,
    /// `TLS_CHACHA20_POLY1305_SHA256`
    ChaCha20,
}

impl Suite {
    /// By its name in the protocol.
    pub fn of(suite: CipherSuite) -> Option<Suite> {
        match suite {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => Some(Suite::Aes128),
            CipherSuite::TLS13_AES_256_GCM_SHA384 => Some(Suite::Aes256),
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Some(Suite::ChaCha20),
            _ => None,
        }
    }

    fn number(self) -> u16 {
        match self {
            Suite::Aes128 => 0x1301,
            Suite::Aes256 => 0x1302,
            Suite::ChaCha20 => 0x1303,
        }
    }

    pub(super) fn aead(self) -> &'static Algorithm {
        match self {
            Suite::Aes128 => &AES_128_GCM,
            Suite::Aes256 => &AES_256_GCM,
            Suite::ChaCha20 => &CHACHA20_POLY1305,
        }
    }

    fn hash(self) -> hkdf::Algorithm {
        match self {
            Suite::Aes256 => HKDF_SHA384,
            Suite::Aes128 | Suite::ChaCha20 => HKDF_SHA256,
        }
    }

    fn secret_bytes(self) -> usize {
        match self {
            Suite::Aes256 => 48,
            Suite::Aes128 | Suite::ChaCha20 => 32,
        }
    }
}

/// Bytes of a record's tag; the same with all ciphers.
pub(super) const TAG: usize = MAX_TAG_LEN;

/// One direction of a connection.
#[derive(Clone, PartialEq, Eq)]
pub struct Direction {
    suite: Suite,
    secret: [u8; MOST_SECRET],
    /// Records so far since the key was changed.
    pub sequence: u64,
}

/// What records are made with.
pub(super) struct Key {
    pub(super) key: [u8; MOST_KEY],
    pub(super) iv: [u8; NONCE_LEN],
}

impl Direction {
    fn new(suite: Suite, secret: &[u8], sequence: u64) -> Option<Direction> {
        let mut whole = [0; MOST_SECRET];
        if secret.len() != suite.secret_bytes() {
            return None;
        }
        whole[..secret.len()].copy_from_slice(secret);
        Some(Direction { suite, secret: whole, sequence })
    }

    fn secret(&self) -> &[u8] {
        &self.secret[..self.suite.secret_bytes()]
    }

    /// Section 7.3.
    pub(super) fn key(&self) -> Key {
        let mut made = Key { key: [0; MOST_KEY], iv: [0; NONCE_LEN] };
        self.expand(b"key", &mut made.key[..self.suite.aead().key_len()]);
        self.expand(b"iv", &mut made.iv);
        made
    }

    /// Section 7.2: the next key, which begins to count anew.
    pub(super) fn update(&mut self) {
        let mut next = [0; MOST_SECRET];
        self.expand(b"traffic upd", &mut next[..self.suite.secret_bytes()]);
        self.secret = next;
        self.sequence = 0;
    }

    /// `HKDF-Expand-Label` without a context (section 7.1).
    fn expand(&self, label: &[u8], out: &mut [u8]) {
        const PREFIX: &[u8] = b"tls13 ";
        let length = (out.len() as u16).to_be_bytes();
        let label_length = [(PREFIX.len() + label.len()) as u8];
        let info = [&length[..], &label_length, PREFIX, label, &[0]];
        let prk = Prk::new_less_safe(self.suite.hash(), self.secret());
        let filled = prk.expand(&info, Length(out.len())).and_then(|okm| okm.fill(out));
        filled.expect("a key is shorter than 255 hashes");
    }

    /// Whether these are its keys.
    fn makes(&self, secrets: &ConnectionTrafficSecrets) -> bool {
        let (suite, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Suite::Aes128, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Suite::Aes256, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (Suite::ChaCha20, key, iv),
            _ => return false,
        };
        let made = self.key();
        suite == self.suite && made.key[..suite.aead().key_len()] == *key.as_ref() && made.iv == *iv.as_ref()
    }

    /// The secret behind the library's keys: the first one of the connection, or one that follows it.
    fn find(mut self, secrets: &ConnectionTrafficSecrets) -> Option<Direction> {
        let sequence = self.sequence;
        for _ in 0..=MOST_UPDATES {
            if self.makes(secrets) {
                self.sequence = sequence;
                return Some(self);
            }
            self.update();
        }
        None
    }
}

struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

impl Drop for Direction {
    fn drop(&mut self) {
        self.secret[..].zeroize();
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.key[..].zeroize();
    }
}

/// See the file's head.
#[derive(Clone, PartialEq, Eq)]
pub struct Secrets {
    /// The cipher.
    pub suite: Suite,
    /// We have asked, and the other side is the server: it may send tickets.
    pub is_client: bool,
    /// Payload of a record, at most.
    pub piece: u16,
    /// What we send.
    pub ours: Direction,
    /// What the other side sends.
    pub theirs: Direction,
}

impl Secrets {
    /// Those of a connection of the library's: `first` was noted in its handshake, `now` is what it uses. None: they do not belong together.
    pub(super) fn of(
        suite: Suite,
        is_client: bool,
        first: &Traffic,
        now: &ExtractedSecrets,
        piece: usize,
    ) -> Option<Secrets> {
        let (ours, theirs) = match is_client {
            true => (first.client(), first.server()),
            false => (first.server(), first.client()),
        };
        let ours = Direction::new(suite, ours, now.tx.0)?.find(&now.tx.1)?;
        let theirs = Direction::new(suite, theirs, now.rx.0)?.find(&now.rx.1)?;
        Some(Secrets { suite, is_client, piece: u16::try_from(piece).ok()?, ours, theirs })
    }

    /// As bytes: cipher, whether we have asked, payload of a record, what each side has sent, and their secrets; numbers in network order.
    pub fn to_bytes(&self) -> SecretBytes {
        let mut out = Vec::with_capacity(HEAD + 2 * self.suite.secret_bytes());
        out.extend_from_slice(&self.suite.number().to_be_bytes());
        out.push(u8::from(self.is_client));
        out.extend_from_slice(&self.piece.to_be_bytes());
        out.extend_from_slice(&self.ours.sequence.to_be_bytes());
        out.extend_from_slice(&self.theirs.sequence.to_be_bytes());
        out.extend_from_slice(self.ours.secret());
        out.extend_from_slice(self.theirs.secret());
        SecretBytes(out.into())
    }

    /// From what [`Secrets::to_bytes`] made. None: it did not.
    pub fn from_bytes(bytes: &[u8]) -> Option<Secrets> {
        let (suite, rest) = bytes.split_first_chunk()?;
        let (end, rest) = rest.split_first()?;
        let (piece, rest) = rest.split_first_chunk()?;
        let (sent, rest) = rest.split_first_chunk()?;
        let (heard, rest) = rest.split_first_chunk()?;
        let suite = Suite::of(u16::from_be_bytes(*suite).into())?;
        let (ours, theirs) = rest.split_at_checked(suite.secret_bytes())?;
        Some(Secrets {
            suite,
            is_client: matches!(end, 0 | 1).then_some(*end == 1)?,
            piece: u16::from_be_bytes(*piece),
            ours: Direction::new(suite, ours, u64::from_be_bytes(*sent))?,
            theirs: Direction::new(suite, theirs, u64::from_be_bytes(*heard))?,
        })
    }
}

/// What [`Secrets::to_bytes`] makes.
pub struct SecretBytes(Box<[u8]>);

impl SecretBytes {
    /// The same once more.
    pub fn copy(bytes: &[u8]) -> SecretBytes {
        SecretBytes(bytes.into())
    }

    /// Whether [`SecretBytes::forget`] was called: no cipher has the number 0.
    pub fn is_forgotten(&self) -> bool {
        self.0.starts_with(&[0, 0])
    }

    /// Nobody goes on with them: they are none any more ([`Secrets::from_bytes`]).
    pub fn forget(&mut self) {
        self.0[..].zeroize();
    }
}

impl Deref for SecretBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for SecretBytes {
    fn drop(&mut self) {
        self.0[..].zeroize();
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").field("suite", &self.suite).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (suite, is_client) in [(Suite::Aes128, true), (Suite::Aes256, false), (Suite::ChaCha20, true)] {
            let direction = |byte, sequence| {
                let secret = vec![byte; suite.secret_bytes()];
                Direction::new(suite, &secret, sequence).unwrap()
            };
            let secrets =
                Secrets { suite, is_client, piece: 4096, ours: direction(1, 7), theirs: direction(2, u64::MAX) };
            let bytes = secrets.to_bytes();
            assert!(bytes.len() <= 117 && bytes.len() <= heir::MOST_SECRET, "{}", bytes.len());
            assert!(Secrets::from_bytes(&bytes) == Some(secrets));
            assert!(Secrets::from_bytes(&bytes[1..]).is_none() && Secrets::from_bytes(&bytes[..50]).is_none());
            let mut neither = bytes.to_vec();
            neither[2] = 2;
            assert!(Secrets::from_bytes(&neither).is_none());
            let mut forgotten = SecretBytes::copy(&bytes);
            forgotten.forget();
            assert!(Secrets::from_bytes(&forgotten).is_none() && forgotten.len() == bytes.len());
        }
    }

    #[test]
    fn keys_are_those_of_rfc_8448() {
        let secret = "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643";
        let secret: Vec<u8> = (0..32).map(|i| u8::from_str_radix(&secret[2 * i..2 * i + 2], 16).unwrap()).collect();
        let key = Direction::new(Suite::Aes128, &secret, 0).unwrap().key();
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(hex(&key.key[..16]), "9f02283b6c9c07efc26bb9f2ac92e356");
        assert_eq!(hex(&key.iv), "cf782b88dd83549aadf1e984");
    }
}
