//! Tokens that only this server can read (JWE, RFC 7516): their keys, and how they are opened (RFC 7518 sections 4 and 5). The keys
//! are secrets that both sides have, or RSA keys of this server's.

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{self, DecryptingKey, DecryptionContext, PaddedBlockDecryptingKey, UnboundCipherKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::rsa::{
    OAEP_SHA1_MGF1SHA1, OAEP_SHA256_MGF1SHA256, OAEP_SHA384_MGF1SHA384, OAEP_SHA512_MGF1SHA512,
    OaepPrivateDecryptingKey, PrivateDecryptingKey,
};
use serde_json::Value;
use wire::jwt::{self, Encrypted};

/// Bytes of a block of AES.
const BLOCK: usize = 16;
/// What a wrapped key begins with when it is unwrapped by the right one (RFC 3394 section 2.2.3.1).
const WRAPPED: [u8; 8] = [0xa6; 8];

/// A key that opens tokens.
#[derive(Clone)]
pub(super) struct Key {
    id: Option<String>,
    algorithm: Option<String>,
    material: Material,
}

#[derive(Clone)]
enum Material {
    Secret(Vec<u8>),
    /// PKCS #8.
    Rsa(Vec<u8>),
}

/// Secrets do not get into logs.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Reads a key of a set. None: it opens nothing.
pub(super) fn key(value: &Value) -> Option<Key> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    if text("use").is_some_and(|u| u != "enc") {
        return None;
    }
    let bytes = |name: &str| jwt::decode(text(name)?.trim_end_matches('=').as_bytes()).ok();
    let material = match text("kty")? {
        "oct" => Material::Secret(bytes("k")?),
        "RSA" => {
            let numbers = ["n", "e", "d", "p", "q", "dp", "dq", "qi"].map(bytes);
            let numbers: Option<Vec<Vec<u8>>> = numbers.into_iter().collect();
            Material::Rsa(pkcs8(&numbers?))
        }
        _ => return None,
    };
    Some(Key { id: text("kid").map(str::to_owned), algorithm: text("alg").map(str::to_owned), material })
}

/// A private key of RSA as DER (RFC 8017 appendix A.1.2, RFC 5958).
fn pkcs8(numbers: &[Vec<u8>]) -> Vec<u8> {
    /// `SEQUENCE { rsaEncryption, NULL }`
    const RSA: [u8; 15] = [0x30, 13, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1, 5, 0];
    const VERSION: [u8; 3] = [2, 1, 0];
    fn element(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut out = vec![tag];
        match body.len() {
            n @ 0..=127 => out.push(n as u8),
            n => {
                let bytes = n.to_be_bytes();
                let bytes = &bytes[n.leading_zeros() as usize / 8..];
                out.push(0x80 | bytes.len() as u8);
                out.extend_from_slice(bytes);
            }
        }
        out.extend_from_slice(body);
        out
    }
    let integer = |number: &Vec<u8>| {
        let first = number.iter().position(|b| *b != 0).unwrap_or(number.len());
        let number = &number[first..];
        // A leading bit that is set would mean less than nothing.
        let zero: &[u8] = if number.first().is_none_or(|b| b & 0x80 != 0) { &[0] } else { &[] };
        element(2, &[zero, number].concat())
    };
    let inner = [VERSION.to_vec(), numbers.iter().flat_map(integer).collect()].concat();
    let inner = element(4, &element(0x30, &inner));
    element(0x30, &[&VERSION[..], &RSA, &inner].concat())
}

/// Opens a token. Gives what was sealed.
pub(super) fn open(keys: &[Key], token: &Encrypted<'_>) -> Result<Vec<u8>, String> {
    let header: Value = serde_json::from_slice(&token.header).map_err(|_| "its header is no JSON")?;
    let text = |name: &str| header.get(name).and_then(Value::as_str);
    // RFC 7516 section 4.1.13: what must be understood and is not; what is packed is a bomb as well.
    if header.get("crit").is_some() || header.get("zip").is_some() {
        return Err("its header has extensions".to_owned());
    }
    let (algorithm, encryption) = (text("alg").unwrap_or_default(), text("enc").unwrap_or_default());
    let kid = text("kid");
    let named = |key: &&Key| kid.is_none() || key.id.is_none() || key.id.as_deref() == kid;
    let fits = |key: &&Key| key.algorithm.as_deref().is_none_or(|own| own == algorithm);
    for key in keys.iter().filter(named).filter(fits) {
        let content_key = key.material.content_key(algorithm, &header, &token.key);
        if let Some(plain) = content_key.and_then(|content_key| content(encryption, &content_key, token)) {
            return Ok(plain);
        }
    }
    Err("no key opens it".to_owned())
}

impl Material {
    /// The key that the token's content is sealed with.
    fn content_key(&self, algorithm: &str, header: &Value, sealed: &[u8]) -> Option<Vec<u8>> {
        match (self, algorithm) {
            (Material::Secret(secret), "dir") => sealed.is_empty().then(|| secret.clone()),
            (Material::Secret(secret), "A128KW" | "A192KW" | "A256KW") => {
                (secret.len() == bits(algorithm)?).then(|| unwrap(secret, sealed)).flatten()
            }
            (Material::Secret(secret), "A128GCMKW" | "A192GCMKW" | "A256GCMKW") => {
                let part = |name: &str| jwt::decode(header.get(name)?.as_str()?.as_bytes()).ok();
                let (iv, tag) = (part("iv")?, part("tag")?);
                (secret.len() == bits(algorithm)?).then(|| gcm(secret, &iv, b"", sealed, &tag)).flatten()
            }
            (Material::Rsa(key), _) => {
                let padding = match algorithm {
                    "RSA-OAEP" => &OAEP_SHA1_MGF1SHA1,
                    "RSA-OAEP-256" => &OAEP_SHA256_MGF1SHA256,
                    "RSA-OAEP-384" => &OAEP_SHA384_MGF1SHA384,
                    "RSA-OAEP-512" => &OAEP_SHA512_MGF1SHA512,
                    _ => return None,
                };
                let key = OaepPrivateDecryptingKey::new(PrivateDecryptingKey::from_pkcs8(key).ok()?).ok()?;
                let mut out = vec![0; key.min_output_size()];
                key.decrypt(padding, sealed, &mut out, None).ok().map(|plain| plain.to_vec())
            }
            _ => None,
        }
    }
}

/// `A128...`: sixteen bytes.
fn bits(algorithm: &str) -> Option<usize> {
    algorithm.get(1..4)?.parse::<usize>().ok().map(|bits| bits / 8)
}

fn aes(key: &[u8]) -> Option<UnboundCipherKey> {
    let algorithm = match key.len() {
        16 => &cipher::AES_128,
        24 => &cipher::AES_192,
        32 => &cipher::AES_256,
        _ => return None,
    };
    UnboundCipherKey::new(algorithm, key).ok()
}

/// RFC 3394 section 2.2.2.
fn unwrap(key: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
    if !sealed.len().is_multiple_of(8) || sealed.len() < 24 {
        return None;
    }
    let key = DecryptingKey::ecb(aes(key)?).ok()?;
    let (first, rest) = sealed.split_first_chunk::<8>()?;
    let (mut check, mut parts) = (u64::from_be_bytes(*first), rest.to_vec());
    let count = parts.len() / 8;
    for step in (1..=6 * count).rev() {
        let at = (step - 1) % count * 8;
        let mut block = [0; BLOCK];
        block[..8].copy_from_slice(&(check ^ step as u64).to_be_bytes());
        block[8..].copy_from_slice(&parts[at..at + 8]);
        key.decrypt(&mut block, DecryptionContext::None).ok()?;
        check = u64::from_be_bytes(*block.first_chunk()?);
        parts[at..at + 8].copy_from_slice(&block[8..]);
    }
    verify_slices_are_equal(&check.to_be_bytes(), &WRAPPED).is_ok().then_some(parts)
}

fn gcm(key: &[u8], iv: &[u8], aad: &[u8], sealed: &[u8], tag: &[u8]) -> Option<Vec<u8>> {
    let algorithm = match key.len() {
        16 => &aead::AES_128_GCM,
        24 => &aead::AES_192_GCM,
        32 => &aead::AES_256_GCM,
        _ => return None,
    };
    let key = LessSafeKey::new(UnboundKey::new(algorithm, key).ok()?);
    let nonce = Nonce::try_assume_unique_for_key(iv).ok()?;
    if tag.len() != algorithm.tag_len() {
        return None;
    }
    let mut bytes = [sealed, tag].concat();
    key.open_in_place(nonce, Aad::from(aad), &mut bytes).ok().map(|plain| plain.to_vec())
}

/// The content, by the key that was found.
fn content(encryption: &str, key: &[u8], token: &Encrypted<'_>) -> Option<Vec<u8>> {
    let hash = match (encryption, key.len()) {
        ("A128GCM", 16) | ("A192GCM", 24) | ("A256GCM", 32) => {
            return gcm(key, &token.iv, token.protected, &token.content, &token.tag);
        }
        ("A128CBC-HS256", 32) => hmac::HMAC_SHA256,
        ("A192CBC-HS384", 48) => hmac::HMAC_SHA384,
        ("A256CBC-HS512", 64) => hmac::HMAC_SHA512,
        _ => return None,
    };
    // RFC 7518 section 5.2.2.2: what is not authentic is not looked at.
    let (authentication, secrecy) = key.split_at(key.len() / 2);
    let bits = (token.protected.len() as u64 * 8).to_be_bytes();
    let all = [token.protected, &token.iv, &token.content, &bits].concat();
    let made = hmac::sign(&hmac::Key::new(hash, authentication), &all);
    verify_slices_are_equal(&made.as_ref()[..authentication.len()], &token.tag).ok()?;
    let iv: [u8; BLOCK] = token.iv.as_slice().try_into().ok()?;
    let key = PaddedBlockDecryptingKey::cbc_pkcs7(aes(secrecy)?).ok()?;
    let mut bytes = token.content.clone();
    let plain = key.decrypt(&mut bytes, DecryptionContext::Iv128(FixedLength::from(iv))).ok()?;
    Some(plain.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_unwrapped() {
        // RFC 3394 section 4.1.
        let hex = |text: &str| {
            let mut out = Vec::new();
            wire::encoding::hex_decode(text.as_bytes(), &mut out).expect("digits");
            out
        };
        let key = hex("000102030405060708090a0b0c0d0e0f");
        let sealed = hex("1fa68b0a8112b447aef34bd8fb5a7b829d3e862371d2cfe5");
        assert_eq!(unwrap(&key, &sealed), Some(hex("00112233445566778899aabbccddeeff")));
        let mut other = sealed.clone();
        other[9] ^= 1;
        assert_eq!(unwrap(&key, &other), None);
        assert_eq!(unwrap(&key, &sealed[..16]), None);
    }

    #[test]
    fn the_example_of_rfc_7516_is_opened() {
        // Appendix A.3: A128KW and A128CBC-HS256.
        let token = b"eyJhbGciOiJBMTI4S1ciLCJlbmMiOiJBMTI4Q0JDLUhTMjU2In0.6KB707dM9YTIgHtLvtgWQ8mKwboJW3of9locizkDTHzBC2IlrT1oOQ.\
            AxY8DCtDaGlsbGljb3RoZQ.KDlTtXchhZTGufMYmOYGS4HffxPSUrfmqCHXaI9wOGY.U0m_YmjN04DJvceFICbCVQ";
        let token = jwt::parse_encrypted(token).expect("five parts");
        let set = serde_json::json!({"kty": "oct", "k": "GawgguFyGrWKav7AX4VKUg"});
        let keys = [key(&set).expect("a secret")];
        assert_eq!(open(&keys, &token).as_deref(), Ok(&b"Live long and prosper."[..]));
        let other = serde_json::json!({"kty": "oct", "k": "GawgguFyGrWKav7AX4VKUQ"});
        assert!(open(&[key(&other).expect("a secret")], &token).is_err());
        let mut changed = token.clone();
        changed.content[3] ^= 1;
        assert!(open(&keys, &changed).is_err());
    }

    fn b64(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        wire::encoding::base64_encode(bytes, wire::encoding::Alphabet::Url, &mut out);
        String::from_utf8(out).expect("ASCII").trim_end_matches('=').to_owned()
    }

    /// The numbers of a sequence.
    fn integers(mut der: &[u8]) -> Vec<&[u8]> {
        let mut found = Vec::new();
        while let [2, len, rest @ ..] = der {
            let (len, rest) = match len {
                0x81 => (usize::from(rest[0]), &rest[1..]),
                0x82 => (usize::from(u16::from_be_bytes([rest[0], rest[1]])), &rest[2..]),
                n => (usize::from(*n), rest),
            };
            found.push(&rest[..len]);
            der = &rest[len..];
        }
        found
    }

    #[test]
    fn a_key_of_rsa_opens_what_was_sealed_for_it() {
        use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
        use aws_lc_rs::rsa::{KeySize, OaepPublicEncryptingKey};
        let private = PrivateDecryptingKey::generate(KeySize::Rsa2048).expect("a key");
        let der: Pkcs8V1Der<'_> = private.as_der().expect("it can be written");
        // Behind the heads of PKCS #8 and of the sequence in it.
        let at = der.as_ref().windows(3).rposition(|w| w == [2, 1, 0]).filter(|at| *at > 10);
        let first = der.as_ref().windows(4).position(|w| w[0] == 4 && w[1] == 0x82).expect("an octet string") + 8;
        assert_eq!(at, Some(first), "the version of PKCS #1");
        let numbers = integers(&der.as_ref()[first..]);
        let names = ["n", "e", "d", "p", "q", "dp", "dq", "qi"];
        let mut set = serde_json::json!({"kty": "RSA", "use": "enc", "alg": "RSA-OAEP-256"});
        for (name, number) in names.iter().zip(&numbers[1..]) {
            set[name] = b64(number).into();
        }
        let keys = [key(&set).expect("a private key")];
        let content_key = [7; 32];
        let public = OaepPublicEncryptingKey::new(private.public_key()).expect("a key");
        let mut sealed = vec![0; public.ciphertext_size()];
        let sealed = public.encrypt(&OAEP_SHA256_MGF1SHA256, &content_key, &mut sealed, None).expect("it fits");
        let protected = b64(br#"{"alg":"RSA-OAEP-256","enc":"A256GCM"}"#);
        let iv = [9; 12];
        let seal = LessSafeKey::new(UnboundKey::new(&aead::AES_256_GCM, &content_key).expect("32 bytes"));
        let mut content = b"{}".to_vec();
        let aad = Aad::from(protected.as_bytes());
        let tag = seal.seal_in_place_separate_tag(Nonce::assume_unique_for_key(iv), aad, &mut content).expect("sealed");
        let parts = [sealed as &[u8], &iv, &content, tag.as_ref()].map(b64).join(".");
        let token = format!("{protected}.{parts}");
        let token = jwt::parse_encrypted(token.as_bytes()).expect("five parts");
        assert_eq!(open(&keys, &token).as_deref(), Ok(&b"{}"[..]));
    }
}
