//! Kinds of private keys, and keys made anew: of accounts and of certificates.

use rcgen::{KeyPair, RsaKeySize};

/// A kind of key, as `account_key` and `acme_certificate ... key=` name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `ecdsa`, `ecdsa:256`
    #[default]
    P256,
    /// `ecdsa:384`
    P384,
    /// `ecdsa:521`
    P521,
    /// `rsa`, `rsa:2048`
    Rsa2048,
    /// `rsa:3072`
    Rsa3072,
    /// `rsa:4096`
    Rsa4096,
}

impl Kind {
    /// Reads `alg[:size]`. `None`: this is no kind of key but the name of a file. The error is nginx's text.
    pub fn parse(text: &str) -> Result<Option<Kind>, &'static str> {
        let (algorithm, size) = text.split_once(':').map_or((text, None), |(a, s)| (a, Some(s)));
        Ok(Some(match (algorithm, size) {
            ("ecdsa", None | Some("256")) => Kind::P256,
            ("ecdsa", Some("384")) => Kind::P384,
            ("ecdsa", Some("521")) => Kind::P521,
            ("ecdsa", _) => return Err("unsupported curve"),
            ("rsa", None | Some("2048")) => Kind::Rsa2048,
            ("rsa", Some("3072")) => Kind::Rsa3072,
            ("rsa", Some("4096")) => Kind::Rsa4096,
            ("rsa", _) => return Err("unsupported key size"),
            _ => return Ok(None),
        }))
    }

    /// Its name in the configuration, and in what tells one certificate from another.
    pub fn name(self) -> &'static str {
        match self {
            Kind::P256 => "ecdsa:256",
            Kind::P384 => "ecdsa:384",
            Kind::P521 => "ecdsa:521",
            Kind::Rsa2048 => "rsa:2048",
            Kind::Rsa3072 => "rsa:3072",
            Kind::Rsa4096 => "rsa:4096",
        }
    }

    /// A new key. Takes up to a second where it is RSA, so it is made away from the service thread.
    pub async fn generate(self) -> Result<KeyPair, String> {
        let made = crate::service::blocking(move || match self {
            Kind::P256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
            Kind::P384 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
            Kind::P521 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512),
            Kind::Rsa2048 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048),
            Kind::Rsa3072 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_3072),
            Kind::Rsa4096 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_4096),
        });
        let made = made.await.ok_or("the key could not be made")?;
        made.map_err(|e| format!("the key could not be made ({e})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in ["ecdsa:256", "ecdsa:384", "ecdsa:521", "rsa:2048", "rsa:3072", "rsa:4096"] {
            assert_eq!(Kind::parse(name).map(|k| k.map(Kind::name)), Ok(Some(name)));
        }
        assert_eq!(Kind::parse("ecdsa"), Ok(Some(Kind::P256)));
        assert_eq!(Kind::parse("account.key"), Ok(None));
        assert!(Kind::parse("rsa:1024").is_err() && Kind::parse("ecdsa:255").is_err());
    }
}
