//! Digests, and ciphers with a secret key.

use super::or_throw;
use crate::value::{Buffer, Bytes, Fault};
use aws_lc_rs::aead::{AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, Algorithm, DecryptionContext, EncryptingKey, EncryptionContext,
    PaddedBlockDecryptingKey, PaddedBlockEncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::digest;
use aws_lc_rs::hkdf;
use aws_lc_rs::hmac;
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::pbkdf2;
use md5::Digest as _;
use rquickjs::prelude::Func;
use rquickjs::{Ctx, Object, Result};
use std::num::NonZeroU32;

/// Bytes of a tag of AES-GCM.
const TAG: usize = 16;

/// Puts the functions in.
pub(super) fn add(raw: &Object<'_>) -> Result<()> {
    raw.set("hash", Func::from(|ctx: Ctx<'_>, name: String, data: Bytes| or_throw(&ctx, hash(&name, &data.0))))?;
    raw.set(
        "hmac",
        Func::from(|ctx: Ctx<'_>, name: String, key: Bytes, data: Bytes| or_throw(&ctx, mac(&name, &key.0, &data.0))),
    )?;
    raw.set(
        "hmac_verify",
        Func::from(|ctx: Ctx<'_>, name: String, key: Bytes, data: Bytes, given: Bytes| {
            let own = or_throw(&ctx, mac(&name, &key.0, &data.0))?;
            Ok::<_, rquickjs::Error>(aws_lc_rs::constant_time::verify_slices_are_equal(&own.0, &given.0).is_ok())
        }),
    )?;
    raw.set("random", Func::from(random))?;
    raw.set("aes_gcm", Func::from(aes_gcm))?;
    raw.set("aes_cbc", Func::from(aes_cbc))?;
    raw.set("aes_ctr", Func::from(aes_ctr))?;
    raw.set("pbkdf2", Func::from(derive))?;
    raw.set("hkdf", Func::from(expand))
}

fn unknown(name: &str) -> Fault {
    Fault::of_type(format!("not supported algorithm: \"{name}\""))
}

fn algorithm(name: &str) -> std::result::Result<&'static digest::Algorithm, Fault> {
    Ok(match name {
        "sha1" => &digest::SHA1_FOR_LEGACY_USE_ONLY,
        "sha224" => &digest::SHA224,
        "sha256" => &digest::SHA256,
        "sha384" => &digest::SHA384,
        "sha512" => &digest::SHA512,
        other => return Err(unknown(other)),
    })
}

fn hash(name: &str, data: &[u8]) -> std::result::Result<Buffer, Fault> {
    if name == "md5" {
        return Ok(Buffer(md5::Md5::digest(data).to_vec()));
    }
    Ok(Buffer(digest::digest(algorithm(name)?, data).as_ref().to_vec()))
}

fn mac(name: &str, key: &[u8], data: &[u8]) -> std::result::Result<Buffer, Fault> {
    let algorithm = match name {
        "md5" => return Ok(Buffer(mac_md5(key, data))),
        "sha1" => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
        "sha224" => hmac::HMAC_SHA224,
        "sha256" => hmac::HMAC_SHA256,
        "sha384" => hmac::HMAC_SHA384,
        "sha512" => hmac::HMAC_SHA512,
        other => return Err(unknown(other)),
    };
    Ok(Buffer(hmac::sign(&hmac::Key::new(algorithm, key), data).as_ref().to_vec()))
}

/// HMAC with MD5 (RFC 2104), which the library of keys does not have.
fn mac_md5(key: &[u8], data: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 64;
    let mut block = [0u8; BLOCK];
    let short = if key.len() > BLOCK { md5::Md5::digest(key).to_vec() } else { key.to_vec() };
    block[..short.len()].copy_from_slice(&short);
    let padded = |with: u8| block.map(|b| b ^ with);
    let inner = md5::Md5::digest([&padded(0x36)[..], data].concat());
    md5::Md5::digest([&padded(0x5c)[..], &inner].concat()).to_vec()
}

/// As many random bytes as there are given, in place of them.
fn random<'js>(ctx: Ctx<'js>, room: Bytes) -> Result<rquickjs::TypedArray<'js, u8>> {
    let mut bytes = room.0;
    or_throw(&ctx, aws_lc_rs::rand::fill(&mut bytes).map_err(|_| Fault::internal("no random bytes")))?;
    rquickjs::TypedArray::new(ctx, bytes)
}

fn failed(what: &str) -> Fault {
    Fault::plain(format!("{what} failed"))
}

fn aes_gcm(
    ctx: Ctx<'_>,
    encrypts: bool,
    key: Bytes,
    iv: Bytes,
    more: Bytes,
    tag: usize,
    data: Bytes,
) -> Result<Buffer> {
    let work = || {
        let algorithm = match key.0.len() {
            16 => &AES_128_GCM,
            24 => &AES_192_GCM,
            _ => &AES_256_GCM,
        };
        if tag != TAG {
            return Err(Fault::of_type("AES-GCM: only a tagLength of 128 is supported"));
        }
        let nonce = Nonce::try_assume_unique_for_key(&iv.0)
            .map_err(|_| Fault::of_type("AES-GCM: only an iv of 12 bytes is supported"))?;
        let key = UnboundKey::new(algorithm, &key.0).map_err(|_| failed("AES-GCM key"))?;
        let (key, aad, mut data) = (LessSafeKey::new(key), Aad::from(&more.0), data.0);
        if encrypts {
            key.seal_in_place_append_tag(nonce, aad, &mut data).map_err(|_| failed("AES-GCM encryption"))?;
            return Ok(Buffer(data));
        }
        let plain = key.open_in_place(nonce, aad, &mut data).map_err(|_| failed("AES-GCM decryption"))?;
        Ok(Buffer(plain.to_vec()))
    };
    or_throw(&ctx, work())
}

fn aes(key: &[u8]) -> std::result::Result<UnboundCipherKey, Fault> {
    let algorithm: &Algorithm = match key.len() {
        16 => &AES_128,
        24 => &AES_192,
        _ => &AES_256,
    };
    UnboundCipherKey::new(algorithm, key).map_err(|_| failed("AES key"))
}

fn vector(iv: &[u8]) -> std::result::Result<FixedLength<16>, Fault> {
    FixedLength::try_from(iv).map_err(|_| failed("AES iv"))
}

fn aes_cbc(ctx: Ctx<'_>, encrypts: bool, key: Bytes, iv: Bytes, data: Bytes) -> Result<Buffer> {
    let work = || {
        let (key, iv, mut data) = (aes(&key.0)?, vector(&iv.0)?, data.0);
        if encrypts {
            let key = PaddedBlockEncryptingKey::cbc_pkcs7(key).map_err(|_| failed("AES-CBC key"))?;
            let context = EncryptionContext::Iv128(iv);
            key.less_safe_encrypt(&mut data, context).map_err(|_| failed("AES-CBC encryption"))?;
            return Ok(Buffer(data));
        }
        let key = PaddedBlockDecryptingKey::cbc_pkcs7(key).map_err(|_| failed("AES-CBC key"))?;
        let plain = key.decrypt(&mut data, DecryptionContext::Iv128(iv)).map_err(|_| failed("AES-CBC decryption"))?;
        Ok(Buffer(plain.to_vec()))
    };
    or_throw(&ctx, work())
}

/// Both directions are the same. A counter that would wrap within fewer than 128 bits is refused.
fn aes_ctr(ctx: Ctx<'_>, key: Bytes, counter: Bytes, length: u32, data: Bytes) -> Result<Buffer> {
    let work = || {
        let begin = counter.0.iter().fold(0u128, |sum, b| sum << 8 | u128::from(*b));
        let blocks = data.0.len().div_ceil(16) as u128;
        if length < 128 && (begin & ((1 << length) - 1)) + blocks > 1 << length {
            return Err(Fault::plain("AES-CTR: the counter would wrap"));
        }
        let (key, iv, mut data) = (aes(&key.0)?, vector(&counter.0)?, data.0);
        let key = EncryptingKey::ctr(key).map_err(|_| failed("AES-CTR key"))?;
        key.less_safe_encrypt(&mut data, EncryptionContext::Iv128(iv)).map_err(|_| failed("AES-CTR"))?;
        Ok(Buffer(data))
    };
    or_throw(&ctx, work())
}

/// Bytes that one derivation may be asked for.
const MAX_DERIVED: f64 = 8192.0;

fn room(length: f64) -> std::result::Result<Vec<u8>, Fault> {
    if !(0.0..=MAX_DERIVED).contains(&length) || length.fract() != 0.0 {
        return Err(Fault::of_type("deriveBits length must be a multiple of 8, and not too large"));
    }
    Ok(vec![0; length as usize])
}

fn derive(ctx: Ctx<'_>, hash: String, secret: Bytes, salt: Bytes, rounds: u32, length: f64) -> Result<Buffer> {
    let work = || {
        let algorithm = match hash.as_str() {
            "SHA-1" => pbkdf2::PBKDF2_HMAC_SHA1,
            "SHA-256" => pbkdf2::PBKDF2_HMAC_SHA256,
            "SHA-384" => pbkdf2::PBKDF2_HMAC_SHA384,
            _ => pbkdf2::PBKDF2_HMAC_SHA512,
        };
        let mut out = room(length)?;
        let rounds = NonZeroU32::new(rounds).ok_or_else(|| failed("PBKDF2"))?;
        pbkdf2::derive(algorithm, rounds, &salt.0, &secret.0, &mut out);
        Ok(Buffer(out))
    };
    or_throw(&ctx, work())
}

struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

fn expand(ctx: Ctx<'_>, hash: String, secret: Bytes, salt: Bytes, info: Bytes, length: f64) -> Result<Buffer> {
    let work = || {
        let algorithm = match hash.as_str() {
            "SHA-1" => hkdf::HKDF_SHA1_FOR_LEGACY_USE_ONLY,
            "SHA-256" => hkdf::HKDF_SHA256,
            "SHA-384" => hkdf::HKDF_SHA384,
            _ => hkdf::HKDF_SHA512,
        };
        let mut out = room(length)?;
        let key = hkdf::Salt::new(algorithm, &salt.0).extract(&secret.0);
        let info = [info.0.as_slice()];
        let okm = key.expand(&info, Length(out.len())).map_err(|_| failed("HKDF"))?;
        okm.fill(&mut out).map_err(|_| failed("HKDF"))?;
        Ok(Buffer(out))
    };
    or_throw(&ctx, work())
}
