//! Private keys that are locked with a password: PKCS #8 (RFC 5958, PBES2 of RFC 8018), and OpenSSL's older form with
//! `DEK-Info`. AES only; DES has left the library.

use super::certificate::labelled;
use super::der::{BadDer, Der, tag};
use super::pem::Section;
use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, Algorithm, DecryptionContext, PaddedBlockDecryptingKey, UnboundCipherKey,
};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::pbkdf2;
use md5::{Digest, Md5};
use rustls::pki_types::PrivateKeyDer;
use std::num::NonZeroU32;

/// More rounds than anybody uses; a file must not stop the start for minutes.
const MAX_ROUNDS: u32 = 10_000_000;
/// Bytes of a block of AES.
const BLOCK: usize = 16;

const WRONG: &str = "error:1C800064:Provider routines::bad decrypt";
const UNKNOWN: &str = "unsupported encryption of the key: AES-CBC is supported";

/// How a key is locked.
struct Lock<'a> {
    cipher: &'static Algorithm,
    key_len: usize,
    iv: [u8; BLOCK],
    derive: Derive<'a>,
    data: &'a [u8],
}

enum Derive<'a> {
    Pbkdf2 {
        prf: pbkdf2::Algorithm,
        salt: &'a [u8],
        rounds: NonZeroU32,
    },
    /// OpenSSL's EVP_BytesToKey with MD5 and one round.
    Old {
        salt: [u8; 8],
    },
}

/// Unlocks a key with the first password that fits.
pub fn decrypt(section: &Section, passwords: &[Vec<u8>]) -> Result<PrivateKeyDer<'static>, &'static str> {
    if passwords.is_empty() {
        return Err("error:07880109:common libcrypto routines::interrupted or cancelled");
    }
    let old = section.label != "ENCRYPTED PRIVATE KEY";
    let lock = if old { dek_info(section) } else { pbes2(&section.der).map_err(|_| UNKNOWN) }?;
    for password in passwords {
        let label = if old { section.label.as_str() } else { "PRIVATE KEY" };
        // A wrong password may leave a padding that looks right: what is inside must be a key as well.
        if let Some(der) = lock.open(password)
            && Der::new(&der).sequence().is_ok()
            && let Some(key) = labelled(label, der)
        {
            return Ok(key);
        }
    }
    Err(WRONG)
}

impl Lock<'_> {
    fn open(&self, password: &[u8]) -> Option<Vec<u8>> {
        let key = match &self.derive {
            Derive::Pbkdf2 { prf, salt, rounds } => {
                let mut key = vec![0; self.key_len];
                pbkdf2::derive(*prf, *rounds, salt, password, &mut key);
                key
            }
            Derive::Old { salt } => old_key(password, salt, self.key_len),
        };
        let key = UnboundCipherKey::new(self.cipher, &key).ok()?;
        let key = PaddedBlockDecryptingKey::cbc_pkcs7(key).ok()?;
        let mut data = self.data.to_vec();
        let plain = key.decrypt(&mut data, DecryptionContext::Iv128(FixedLength::from(&self.iv))).ok()?;
        Some(plain.to_vec())
    }
}

fn old_key(password: &[u8], salt: &[u8], len: usize) -> Vec<u8> {
    let mut key: Vec<u8> = Vec::new();
    let mut last: Vec<u8> = Vec::new();
    while key.len() < len {
        last = Md5::new().chain_update(&last).chain_update(password).chain_update(salt).finalize().to_vec();
        key.extend_from_slice(&last);
    }
    key.truncate(len);
    key
}

fn dek_info(section: &Section) -> Result<Lock<'_>, &'static str> {
    let info = section.headers.iter().find(|(n, _)| n == "DEK-Info").map(|(_, v)| v.as_str());
    let (name, hex) = info.and_then(|v| v.split_once(',')).ok_or(UNKNOWN)?;
    let (cipher, key_len): (&'static Algorithm, usize) = match name {
        "AES-128-CBC" => (&AES_128, 16),
        "AES-192-CBC" => (&AES_192, 24),
        "AES-256-CBC" => (&AES_256, 32),
        _ => return Err(UNKNOWN),
    };
    let mut bytes = Vec::new();
    wire::encoding::hex_decode(hex.trim().as_bytes(), &mut bytes).map_err(|_| UNKNOWN)?;
    let iv: [u8; BLOCK] = bytes.try_into().map_err(|_| UNKNOWN)?;
    let mut salt = [0; 8];
    salt.copy_from_slice(&iv[..8]);
    Ok(Lock { cipher, key_len, iv, derive: Derive::Old { salt }, data: &section.der })
}

fn pbes2(der: &[u8]) -> Result<Lock<'_>, BadDer> {
    const PBES2: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 5, 13];
    const PBKDF2: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 5, 12];
    /// id-hmacWithSHA1 and on but for the last byte.
    const HMAC: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 2];
    /// id-aes128-CBC and on but for the last byte.
    const AES: &[u8] = &[0x60, 0x86, 0x48, 1, 0x65, 3, 4, 1];
    let mut outer = Der::new(der).sequence()?;
    let mut scheme = outer.sequence()?;
    let data = outer.expect(tag::OCTET_STRING)?;
    if scheme.expect(tag::OID)? != PBES2 {
        return Err(BadDer);
    }
    let mut parameters = scheme.sequence()?;
    let mut function = parameters.sequence()?;
    let mut encryption = parameters.sequence()?;
    if function.expect(tag::OID)? != PBKDF2 {
        return Err(BadDer);
    }
    let mut f = function.sequence()?;
    let salt = f.expect(tag::OCTET_STRING)?;
    let rounds = f.expect(tag::INTEGER)?;
    let rounds = if rounds.len() > 4 { u32::MAX } else { rounds.iter().fold(0, |n, b| (n << 8) | u32::from(*b)) };
    let rounds = NonZeroU32::new(rounds).filter(|n| n.get() <= MAX_ROUNDS).ok_or(BadDer)?;
    f.optional(tag::INTEGER)?;
    let prf = match f.optional(tag::SEQUENCE)? {
        None => pbkdf2::PBKDF2_HMAC_SHA1,
        Some(prf) => match Der::new(prf).expect(tag::OID)?.strip_prefix(HMAC) {
            Some([7]) => pbkdf2::PBKDF2_HMAC_SHA1,
            Some([9]) => pbkdf2::PBKDF2_HMAC_SHA256,
            Some([10]) => pbkdf2::PBKDF2_HMAC_SHA384,
            Some([11]) => pbkdf2::PBKDF2_HMAC_SHA512,
            _ => return Err(BadDer),
        },
    };
    let (cipher, key_len): (&'static Algorithm, usize) = match encryption.expect(tag::OID)?.strip_prefix(AES) {
        Some([2]) => (&AES_128, 16),
        Some([22]) => (&AES_192, 24),
        Some([42]) => (&AES_256, 32),
        _ => return Err(BadDer),
    };
    let iv = encryption.expect(tag::OCTET_STRING)?.try_into().map_err(|_| BadDer)?;
    Ok(Lock { cipher, key_len, iv, derive: Derive::Pbkdf2 { prf, salt, rounds }, data })
}

/// The passwords of an `ssl_password_file`, a line each.
pub fn list(content: &[u8]) -> Vec<Vec<u8>> {
    let lines = content.split(|b| *b == b'\n').map(|l| l.strip_suffix(b"\r").unwrap_or(l));
    let mut all: Vec<Vec<u8>> = lines.filter(|l| !l.is_empty()).map(<[u8]>::to_vec).collect();
    if all.is_empty() {
        all.push(Vec::new());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::pem;

    /// `openssl pkcs8 -topk8 -v2 aes-128-cbc -passout pass:secret` and `openssl ec -aes128` of one P-256 key.
    const PKCS8: &[u8] = include_bytes!("testdata/locked-pkcs8.pem");
    const OLD: &[u8] = include_bytes!("testdata/locked-old.pem");

    #[test]
    fn keys_are_unlocked() {
        for text in [PKCS8, OLD] {
            let section = pem::sections(text).expect("well formed").pop().expect("one section");
            assert!(decrypt(&section, &[]).is_err());
            assert_eq!(decrypt(&section, &[b"wrong".to_vec()]).err(), Some(WRONG));
            let key = decrypt(&section, &[b"wrong".to_vec(), b"secret".to_vec()]).expect("the second fits");
            let provider = rustls::crypto::aws_lc_rs::default_provider();
            assert!(provider.key_provider.load_private_key(key).is_ok());
        }
    }

    #[test]
    fn files_of_passwords() {
        assert_eq!(list(b"a\r\n\nb"), [b"a".to_vec(), b"b".to_vec()]);
        assert_eq!(list(b""), [Vec::<u8>::new()]);
    }
}
