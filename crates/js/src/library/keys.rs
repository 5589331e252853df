//! Pairs of keys: signatures and secrets that two share. Private keys are PKCS #8, public keys are SubjectPublicKeyInfo.

use super::or_throw;
use crate::value::{Buffer, Bytes, Fault};
use aws_lc_rs::agreement;
use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{
    KeySize, OAEP_SHA1_MGF1SHA1, OAEP_SHA256_MGF1SHA256, OAEP_SHA384_MGF1SHA384, OAEP_SHA512_MGF1SHA512,
    OaepPrivateDecryptingKey, OaepPublicEncryptingKey, PrivateDecryptingKey, PublicEncryptingKey,
};
use aws_lc_rs::signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RsaKeyPair, UnparsedPublicKey};
use rquickjs::convert::List;
use rquickjs::prelude::Func;
use rquickjs::{Ctx, Object, Result};

/// Puts the functions in.
pub(super) fn add(raw: &Object<'_>) -> Result<()> {
    raw.set(
        "sign",
        Func::from(|ctx: Ctx<'_>, name: String, hash: String, curve: String, key: Bytes, data: Bytes| {
            or_throw(&ctx, sign(&name, &hash, &curve, &key.0, &data.0).map(Buffer))
        }),
    )?;
    raw.set(
        "verify",
        Func::from(|ctx: Ctx<'_>, name: String, hash: String, curve: String, key: Bytes, data: Bytes, given: Bytes| {
            or_throw(&ctx, verify(&name, &hash, &curve, &key.0, &data.0, &given.0))
        }),
    )?;
    raw.set(
        "generate",
        Func::from(|ctx: Ctx<'_>, name: String, detail: String| {
            or_throw(&ctx, generate(&name, &detail).map(|(private, public)| List((Buffer(private), Buffer(public)))))
        }),
    )?;
    raw.set(
        "ecdh",
        Func::from(|ctx: Ctx<'_>, curve: String, own: Bytes, other: Bytes| {
            or_throw(&ctx, agree(&curve, &own.0, &other.0).map(Buffer))
        }),
    )?;
    raw.set("rsa_oaep", Func::from(rsa_oaep))?;
    raw.set(
        "rsa_size",
        Func::from(|ctx: Ctx<'_>, kind: String, key: Bytes| {
            or_throw(&ctx, rsa_size(&kind, &key.0).map(|(bits, exponent)| List((bits, Buffer(exponent)))))
        }),
    )?;
    raw.set(
        "key_check",
        Func::from(|ctx: Ctx<'_>, name: String, kind: String, curve: String, key: Bytes| {
            or_throw(&ctx, check(&name, &kind, &curve, &key.0))
        }),
    )?;
    raw.set(
        "key_point",
        Func::from(|ctx: Ctx<'_>, curve: String, key: Bytes| {
            or_throw(&ctx, point_of(&curve, &key.0).map(|p| Buffer(p.to_vec())))
        }),
    )?;
    raw.set("key_join", Func::from(key_join))?;
    raw.set("key_parts", Func::from(key_parts))
}

fn broken(what: &str) -> Fault {
    Fault::plain(format!("{what} failed"))
}

fn missing(what: &str) -> Fault {
    Fault::of_type(format!("{what} is not supported yet"))
}

/// The way of ECDSA for a curve and a hash.
fn ecdsa(
    curve: &str,
    hash: &str,
) -> std::result::Result<
    (&'static signature::EcdsaSigningAlgorithm, &'static dyn signature::VerificationAlgorithm),
    Fault,
> {
    Ok(match (curve, hash) {
        ("P-256", "SHA-256") => (&signature::ECDSA_P256_SHA256_FIXED_SIGNING, &signature::ECDSA_P256_SHA256_FIXED),
        ("P-384", "SHA-384") => (&signature::ECDSA_P384_SHA384_FIXED_SIGNING, &signature::ECDSA_P384_SHA384_FIXED),
        ("P-521", "SHA-256") => (&signature::ECDSA_P521_SHA256_FIXED_SIGNING, &signature::ECDSA_P521_SHA256_FIXED),
        ("P-521", "SHA-384") => (&signature::ECDSA_P521_SHA384_FIXED_SIGNING, &signature::ECDSA_P521_SHA384_FIXED),
        ("P-521", "SHA-512") => (&signature::ECDSA_P521_SHA512_FIXED_SIGNING, &signature::ECDSA_P521_SHA512_FIXED),
        _ => return Err(missing(&format!("ECDSA with {curve} and {hash}"))),
    })
}

fn sign(name: &str, hash: &str, curve: &str, key: &[u8], data: &[u8]) -> std::result::Result<Vec<u8>, Fault> {
    let random = SystemRandom::new();
    match name {
        "ECDSA" => {
            let pair = EcdsaKeyPair::from_pkcs8(ecdsa(curve, hash)?.0, key).map_err(|_| broken("reading the key"))?;
            pair.sign(&random, data).map(|s| s.as_ref().to_vec()).map_err(|_| broken("sign"))
        }
        "Ed25519" => {
            let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(key).map_err(|_| broken("reading the key"))?;
            Ok(pair.sign(data).as_ref().to_vec())
        }
        _ => {
            let way: &dyn signature::RsaEncoding = match (name, hash) {
                ("RSA-PSS", "SHA-256") => &signature::RSA_PSS_SHA256,
                ("RSA-PSS", "SHA-384") => &signature::RSA_PSS_SHA384,
                ("RSA-PSS", "SHA-512") => &signature::RSA_PSS_SHA512,
                (_, "SHA-256") => &signature::RSA_PKCS1_SHA256,
                (_, "SHA-384") => &signature::RSA_PKCS1_SHA384,
                (_, "SHA-512") => &signature::RSA_PKCS1_SHA512,
                _ => return Err(missing(&format!("{name} with {hash}"))),
            };
            let pair = RsaKeyPair::from_pkcs8(key).map_err(|_| broken("reading the key"))?;
            let mut out = vec![0; pair.public_modulus_len()];
            pair.sign(way, &random, data, &mut out).map_err(|_| broken("sign"))?;
            Ok(out)
        }
    }
}

fn verify(
    name: &str,
    hash: &str,
    curve: &str,
    key: &[u8],
    data: &[u8],
    given: &[u8],
) -> std::result::Result<bool, Fault> {
    let way: &'static dyn signature::VerificationAlgorithm = match (name, hash) {
        ("ECDSA", hash) => ecdsa(curve, hash)?.1,
        ("Ed25519", _) => &signature::ED25519,
        ("RSA-PSS", "SHA-256") => &signature::RSA_PSS_2048_8192_SHA256,
        ("RSA-PSS", "SHA-384") => &signature::RSA_PSS_2048_8192_SHA384,
        ("RSA-PSS", "SHA-512") => &signature::RSA_PSS_2048_8192_SHA512,
        (_, "SHA-1") => &signature::RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY,
        (_, "SHA-256") => &signature::RSA_PKCS1_2048_8192_SHA256,
        (_, "SHA-384") => &signature::RSA_PKCS1_2048_8192_SHA384,
        _ => &signature::RSA_PKCS1_2048_8192_SHA512,
    };
    Ok(UnparsedPublicKey::new(way, key).verify(data, given).is_ok())
}

fn size(bits: &str) -> std::result::Result<KeySize, Fault> {
    Ok(match bits {
        "2048" => KeySize::Rsa2048,
        "3072" => KeySize::Rsa3072,
        "4096" => KeySize::Rsa4096,
        other => return Err(missing(&format!("an RSA key of {other} bits"))),
    })
}

/// A private key and its public one.
fn generate(name: &str, detail: &str) -> std::result::Result<(Vec<u8>, Vec<u8>), Fault> {
    let failed = |_| broken("generateKey");
    match name {
        "ECDSA" | "ECDH" => {
            let hash = ["SHA-256", "SHA-384", "SHA-512"]
                [["P-256", "P-384", "P-521"].iter().position(|c| *c == detail).unwrap_or(0)];
            let pair = EcdsaKeyPair::generate(ecdsa(detail, hash)?.0).map_err(failed)?;
            let private = pair.to_pkcs8v1().map_err(failed)?.as_ref().to_vec();
            let public: PublicKeyX509Der<'_> = pair.public_key().as_der().map_err(failed)?;
            Ok((private, public.as_ref().to_vec()))
        }
        "Ed25519" => {
            let pair = Ed25519KeyPair::generate().map_err(failed)?;
            let private = pair.to_pkcs8v1().map_err(failed)?.as_ref().to_vec();
            let public: PublicKeyX509Der<'_> = pair.public_key().as_der().map_err(failed)?;
            Ok((private, public.as_ref().to_vec()))
        }
        _ => {
            let pair = PrivateDecryptingKey::generate(size(detail)?).map_err(failed)?;
            let private: Pkcs8V1Der<'_> = pair.as_der().map_err(failed)?;
            let public: PublicKeyX509Der<'_> = pair.public_key().as_der().map_err(failed)?;
            Ok((private.as_ref().to_vec(), public.as_ref().to_vec()))
        }
    }
}

/// Bytes of a point of a curve, with their mark.
fn point_size(curve: &str) -> usize {
    match curve {
        "P-256" => 65,
        "P-384" => 97,
        _ => 133,
    }
}

/// The point at the end of a public key.
fn point_of<'k>(curve: &str, key: &'k [u8]) -> std::result::Result<&'k [u8], Fault> {
    let at = key.len().checked_sub(point_size(curve)).ok_or_else(|| broken("reading the key"))?;
    match key[at] {
        4 => Ok(&key[at..]),
        _ => Err(broken("reading the key")),
    }
}

fn curve_of(curve: &str) -> &'static agreement::Algorithm {
    match curve {
        "P-256" => &agreement::ECDH_P256,
        "P-384" => &agreement::ECDH_P384,
        _ => &agreement::ECDH_P521,
    }
}

fn agree(curve: &str, own: &[u8], other: &[u8]) -> std::result::Result<Vec<u8>, Fault> {
    let algorithm = curve_of(curve);
    let own = agreement::PrivateKey::from_private_key_der(algorithm, own).map_err(|_| broken("reading the key"))?;
    let other = agreement::UnparsedPublicKey::new(algorithm, point_of(curve, other)?);
    agreement::agree(&own, other, broken("deriveBits"), |secret| Ok(secret.to_vec()))
}

fn rsa_oaep(ctx: Ctx<'_>, encrypts: bool, hash: String, key: Bytes, label: Bytes, data: Bytes) -> Result<Buffer> {
    let work = || {
        let way = match hash.as_str() {
            "SHA-1" => &OAEP_SHA1_MGF1SHA1,
            "SHA-256" => &OAEP_SHA256_MGF1SHA256,
            "SHA-384" => &OAEP_SHA384_MGF1SHA384,
            _ => &OAEP_SHA512_MGF1SHA512,
        };
        let label = (!label.0.is_empty()).then_some(label.0.as_slice());
        let unread = |_| broken("reading the key");
        if encrypts {
            let key = PublicEncryptingKey::from_der(&key.0).map_err(unread)?;
            let key = OaepPublicEncryptingKey::new(key).map_err(|_| broken("RSA-OAEP"))?;
            let mut out = vec![0; key.ciphertext_size()];
            let used = key.encrypt(way, &data.0, &mut out, label).map_err(|_| broken("RSA-OAEP encryption"))?.len();
            out.truncate(used);
            return Ok(Buffer(out));
        }
        let key = PrivateDecryptingKey::from_pkcs8(&key.0).map_err(unread)?;
        let key = OaepPrivateDecryptingKey::new(key).map_err(|_| broken("RSA-OAEP"))?;
        let mut out = vec![0; key.min_output_size()];
        let used = key.decrypt(way, &data.0, &mut out, label).map_err(|_| broken("RSA-OAEP decryption"))?.len();
        out.truncate(used);
        Ok(Buffer(out))
    };
    or_throw(&ctx, work())
}

/// Bits of the modulus, and the exponent that nearly all keys have.
fn rsa_size(kind: &str, key: &[u8]) -> std::result::Result<(usize, Vec<u8>), Fault> {
    let bits = match kind {
        "private" => PrivateDecryptingKey::from_pkcs8(key).map(|k| k.key_size_bits()),
        _ => PublicEncryptingKey::from_der(key).map(|k| k.key_size_bits()),
    };
    Ok((bits.map_err(|_| broken("reading the key"))?, vec![1, 0, 1]))
}

/// Whether bytes are a key of that kind.
fn check(name: &str, kind: &str, curve: &str, key: &[u8]) -> std::result::Result<(), Fault> {
    let is_good = match (name, kind) {
        ("ECDSA" | "ECDH", "private") => agreement::PrivateKey::from_private_key_der(curve_of(curve), key).is_ok(),
        ("ECDSA" | "ECDH", _) => point_of(curve, key).is_ok(),
        ("Ed25519", "private") => Ed25519KeyPair::from_pkcs8_maybe_unchecked(key).is_ok(),
        ("Ed25519", _) => true,
        (_, "private") => PrivateDecryptingKey::from_pkcs8(key).is_ok(),
        _ => PublicEncryptingKey::from_der(key).is_ok(),
    };
    if is_good { Ok(()) } else { Err(broken("importing the key")) }
}

/// A public key of a curve's point; other parts of a JWK are not put together yet.
fn key_join<'js>(
    ctx: Ctx<'js>,
    name: String,
    _kind: String,
    curve: String,
    parts: rquickjs::Array<'js>,
) -> Result<Buffer> {
    let first: String = parts.get(0)?;
    if first != "point" {
        return Err(missing(&format!("a JWK of a {name} key")).throw(&ctx));
    }
    let point: Bytes = parts.get(1)?;
    let made = (|| {
        if point.0.len() != point_size(&curve) || point.0[0] != 4 {
            return Err(broken("importing the key"));
        }
        let own = agreement::PrivateKey::generate(curve_of(&curve)).map_err(|_| broken("importing the key"))?;
        let public = own.compute_public_key().map_err(|_| broken("importing the key"))?;
        let der: PublicKeyX509Der<'_> = public.as_der().map_err(|_| broken("importing the key"))?;
        // What stands in front of the point is the same for all keys of a curve.
        let front = der.as_ref().len() - point.0.len();
        Ok([&der.as_ref()[..front], &point.0].concat())
    })();
    or_throw(&ctx, made.map(Buffer))
}

/// The fields of a JWK: those of a public key of a curve.
fn key_parts(
    ctx: Ctx<'_>,
    name: String,
    kind: String,
    curve: String,
    key: Bytes,
) -> Result<Vec<List<(String, rquickjs::Value<'_>)>>> {
    use rquickjs::IntoJs;
    if !matches!(name.as_str(), "ECDSA" | "ECDH") || kind != "public" {
        return Err(missing(&format!("a JWK of a {kind} {name} key")).throw(&ctx));
    }
    let point = or_throw(&ctx, point_of(&curve, &key.0))?;
    let (x, y) = point[1..].split_at((point.len() - 1) / 2);
    let text = |t: &str| t.into_js(&ctx);
    Ok(vec![
        List(("kty".to_owned(), text("EC")?)),
        List(("crv".to_owned(), text(&curve)?)),
        List(("x".to_owned(), Buffer(x.to_vec()).into_js(&ctx)?)),
        List(("y".to_owned(), Buffer(y.to_vec()).into_js(&ctx)?)),
    ])
}
