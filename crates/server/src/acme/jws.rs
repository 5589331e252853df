//! Signed requests of ACME: JSON Web Signatures in their flattened form (RFC 7515, RFC 8555 section 6.2), with the
//! algorithms that nginx's module takes: ES256, ES384, ES512, RS256; HS256 for external accounts.

use crate::tls::certificate;
use crate::tls::der::{BadDer, Der, tag};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use wire::encoding::{Alphabet, base64_encode};

/// Curves: how they sign, what RFC 7518 calls the signature and the curve.
const CURVES: [(&EcdsaSigningAlgorithm, &str, &str); 3] = [
    (&ECDSA_P256_SHA256_FIXED_SIGNING, "ES256", "P-256"),
    (&ECDSA_P384_SHA384_FIXED_SIGNING, "ES384", "P-384"),
    (&ECDSA_P521_SHA512_FIXED_SIGNING, "ES512", "P-521"),
];

/// base64url without padding, which is all that ACME knows.
pub(super) fn base64url(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    base64_encode(bytes, Alphabet::Url, &mut out);
    String::from_utf8(out).expect("base64 is ASCII")
}

/// The key of an account.
pub(super) struct AccountKey {
    pair: Pair,
    algorithm: &'static str,
    /// The public key as JSON (RFC 7517).
    jwk: Value,
}

enum Pair {
    Ecdsa(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

impl AccountKey {
    /// A key from PEM, as `account_key` names it or the state directory keeps it.
    pub(super) fn from_pem(text: &[u8]) -> Result<AccountKey, String> {
        let (key, _) = certificate::private_key(text, &[])?;
        let der = key.secret_der();
        for (signing, algorithm, curve) in CURVES {
            if let Ok(pair) = EcdsaKeyPair::from_private_key_der(signing, der) {
                // An uncompressed point: 4, x, y (SEC 1 section 2.3.3).
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                let jwk = json!({"crv": curve, "kty": "EC", "x": base64url(x), "y": base64url(y)});
                return Ok(AccountKey { pair: Pair::Ecdsa(pair), algorithm, jwk });
            }
        }
        let pair = match &key {
            PrivateKeyDer::Pkcs1(_) => RsaKeyPair::from_der(der),
            _ => RsaKeyPair::from_pkcs8(der),
        };
        let pair = pair.map_err(|_| "it is neither of P-256, P-384, P-521 nor of RSA".to_owned())?;
        let (n, e) = rsa_numbers(pair.public_key().as_ref()).map_err(|BadDer| "its public key is malformed")?;
        let jwk = json!({"e": e, "kty": "RSA", "n": n});
        Ok(AccountKey { pair: Pair::Rsa(pair), algorithm: "RS256", jwk })
    }

    /// What stands behind a token in a key authorization (RFC 8555 section 8.1): the digest of the public key, the members
    /// of which are sorted by name (RFC 7638), as [`AccountKey::from_pem`] writes them.
    pub(super) fn thumbprint(&self) -> String {
        base64url(digest(&SHA256, self.jwk.to_string().as_bytes()).as_ref())
    }

    /// The public key, for what binds it to an external account.
    pub(super) fn public(&self) -> &Value {
        &self.jwk
    }

    /// A request's body. `account`: the account's URL, once there is one. `payload`: empty asks for what is there.
    pub(super) fn sign(
        &self,
        url: &str,
        nonce: &str,
        account: Option<&str>,
        payload: &[u8],
    ) -> Result<Vec<u8>, String> {
        let mut head = json!({"alg": self.algorithm, "nonce": nonce, "url": url});
        match account {
            Some(account) => head["kid"] = json!(account),
            None => head["jwk"] = self.jwk.clone(),
        }
        let signed = flattened(&head, payload, |message| self.signature(message))?;
        Ok(signed.to_string().into_bytes())
    }

    fn signature(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        let random = SystemRandom::new();
        let failed = |_| "the account key could not sign".to_owned();
        match &self.pair {
            Pair::Ecdsa(pair) => pair.sign(&random, message).map(|s| s.as_ref().to_vec()).map_err(failed),
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).map_err(failed)?;
                Ok(signature)
            }
        }
    }
}

/// Modulus and exponent of an RSAPublicKey (RFC 8017 section A.1.1), as JSON has them.
fn rsa_numbers(der: &[u8]) -> Result<(String, String), BadDer> {
    let mut numbers = Der::new(der).sequence()?;
    let mut number = || numbers.expect(tag::INTEGER).map(|n| base64url(n.strip_prefix(&[0]).unwrap_or(n)));
    Ok((number()?, number()?))
}

/// What binds a key to an external account (RFC 8555 section 7.3.4).
pub(super) fn external_account(id: &str, mac_key: &[u8], url: &str, public: &Value) -> Result<Value, String> {
    let head = json!({"alg": "HS256", "kid": id, "url": url});
    let key = hmac::Key::new(hmac::HMAC_SHA256, mac_key);
    flattened(&head, public.to_string().as_bytes(), |message| Ok(hmac::sign(&key, message).as_ref().to_vec()))
}

fn flattened(
    head: &Value,
    payload: &[u8],
    signature: impl FnOnce(&[u8]) -> Result<Vec<u8>, String>,
) -> Result<Value, String> {
    let (head, payload) = (base64url(head.to_string().as_bytes()), base64url(payload));
    let signature = signature(format!("{head}.{payload}").as_bytes())?;
    Ok(json!({"protected": head, "payload": payload, "signature": base64url(&signature)}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acme::key::Kind;
    use aws_lc_rs::signature::{self, UnparsedPublicKey};
    use wire::encoding::base64_decode;

    fn decode(text: &Value) -> Vec<u8> {
        let mut out = Vec::new();
        base64_decode(text.as_str().expect("a text").as_bytes(), Alphabet::Url, &mut out).expect("base64");
        out
    }

    async fn made(kind: Kind) -> AccountKey {
        let pem = kind.generate().await.expect("a key").serialize_pem();
        AccountKey::from_pem(pem.as_bytes()).expect("a key")
    }

    #[tokio::test]
    async fn signatures_of_each_kind_hold() {
        let kinds: [(Kind, &dyn signature::VerificationAlgorithm, &str); 4] = [
            (Kind::P256, &signature::ECDSA_P256_SHA256_FIXED, "ES256"),
            (Kind::P384, &signature::ECDSA_P384_SHA384_FIXED, "ES384"),
            (Kind::P521, &signature::ECDSA_P521_SHA512_FIXED, "ES512"),
            (Kind::Rsa2048, &signature::RSA_PKCS1_2048_8192_SHA256, "RS256"),
        ];
        for (kind, verifying, name) in kinds {
            let key = made(kind).await;
            let body = key.sign("https://ca/order", "nonce-1", Some("https://ca/account/1"), b"{}").expect("signed");
            let body: Value = serde_json::from_slice(&body).expect("JSON");
            let head: Value = serde_json::from_slice(&decode(&body["protected"])).expect("JSON");
            assert_eq!((&head["alg"], &head["nonce"], &head["jwk"]), (&json!(name), &json!("nonce-1"), &Value::Null));
            let message = format!("{}.{}", body["protected"].as_str().unwrap(), body["payload"].as_str().unwrap());
            let public = match &key.pair {
                Pair::Ecdsa(p) => p.public_key().as_ref().to_vec(),
                Pair::Rsa(p) => p.public_key().as_ref().to_vec(),
            };
            let verified = UnparsedPublicKey::new(verifying, public);
            assert!(verified.verify(message.as_bytes(), &decode(&body["signature"])).is_ok(), "{name}");
        }
    }

    #[test]
    fn the_thumbprint_of_rfc_7638() {
        let n = "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJE\
             CPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2Q\
             vzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6\
             WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw";
        let jwk = json!({"e": "AQAB", "kty": "RSA", "n": n});
        let digest = digest(&SHA256, jwk.to_string().as_bytes());
        assert_eq!(base64url(digest.as_ref()), "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs");
    }
}
