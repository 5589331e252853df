//! The ciphers of TLS 1.3, with hashes that keep their state. A handshake derives some 25 secrets by HMAC (RFC 8446 section 7.1), most of
//! them with a key that was used before. AWS-LC begins with the key each time, and has no vector code for SHA-384 on AMD's
//! CPUs; the crates `sha2` and `hmac` need half the time (docs/decisions/0007-tls.md). All else of a cipher is AWS-LC's.

use hmac::digest::Digest;
use hmac::{EagerHash, KeyInit, Mac};
use rustls::crypto::aws_lc_rs::cipher_suite as suite;
use rustls::crypto::hash::{Context, Hash, HashAlgorithm, Output};
use rustls::crypto::hmac::{Hmac, Key, Tag};
use rustls::crypto::tls13::HkdfUsingHmac;
use rustls::{CipherSuiteCommon, SupportedCipherSuite, Tls13CipherSuite};
use sha2::{Sha256, Sha384};
use std::marker::PhantomData;

/// TLS_AES_256_GCM_SHA384
pub static AES_256_GCM_SHA384: Tls13CipherSuite =
    with_hash(&suite::TLS13_AES_256_GCM_SHA384, &HASH_384, &HkdfUsingHmac(&HASH_384));
/// TLS_CHACHA20_POLY1305_SHA256
pub static CHACHA20_POLY1305_SHA256: Tls13CipherSuite =
    with_hash(&suite::TLS13_CHACHA20_POLY1305_SHA256, &HASH_256, &HkdfUsingHmac(&HASH_256));
/// TLS_AES_128_GCM_SHA256
pub static AES_128_GCM_SHA256: Tls13CipherSuite =
    with_hash(&suite::TLS13_AES_128_GCM_SHA256, &HASH_256, &HkdfUsingHmac(&HASH_256));

static HASH_256: Sha2<Sha256> = Sha2 { number: HashAlgorithm::SHA256, hash: PhantomData };
static HASH_384: Sha2<Sha384> = Sha2 { number: HashAlgorithm::SHA384, hash: PhantomData };

const fn with_hash(
    of: &SupportedCipherSuite,
    hash: &'static dyn Hash,
    hkdf: &'static HkdfUsingHmac<'static>,
) -> Tls13CipherSuite {
    let SupportedCipherSuite::Tls13(of) = of else { panic!("a cipher of TLS 1.3") };
    let (suite, confidentiality_limit) = (of.common.suite, of.common.confidentiality_limit);
    let common = CipherSuiteCommon { suite, hash_provider: hash, confidentiality_limit };
    Tls13CipherSuite { common, hkdf_provider: hkdf, aead_alg: of.aead_alg, quic: of.quic }
}

/// A hash of the SHA-2 family for the library: of what was said in the handshake, and in HMAC.
struct Sha2<D> {
    number: HashAlgorithm,
    hash: PhantomData<D>,
}

/// What was said so far.
struct Said<D>(D);

/// HMAC after its key.
struct Keyed<D: EagerHash>(hmac::Hmac<D>);

impl<D: Digest + Clone + Send + Sync + 'static> Hash for Sha2<D> {
    fn start(&self) -> Box<dyn Context> {
        Box::new(Said(D::new()))
    }

    fn hash(&self, data: &[u8]) -> Output {
        Output::new(&D::digest(data))
    }

    fn output_len(&self) -> usize {
        <D as Digest>::output_size()
    }

    fn algorithm(&self) -> HashAlgorithm {
        self.number
    }
}

impl<D: Digest + Clone + Send + Sync + 'static> Context for Said<D> {
    fn fork_finish(&self) -> Output {
        Output::new(&self.0.clone().finalize())
    }

    fn fork(&self) -> Box<dyn Context> {
        Box::new(Said(self.0.clone()))
    }

    fn finish(self: Box<Self>) -> Output {
        Output::new(&self.0.finalize())
    }

    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }
}

impl<D: EagerHash + Digest + Send + Sync + 'static> Hmac for Sha2<D>
where
    hmac::Hmac<D>: Send + Sync,
{
    fn with_key(&self, key: &[u8]) -> Box<dyn Key> {
        Box::new(Keyed::<D>(hmac::Hmac::new_from_slice(key).expect("HMAC takes keys of any length")))
    }

    fn hash_output_len(&self) -> usize {
        <D as Digest>::output_size()
    }
}

impl<D: EagerHash + Digest> Key for Keyed<D>
where
    hmac::Hmac<D>: Send + Sync,
{
    fn sign_concat(&self, first: &[u8], middle: &[&[u8]], last: &[u8]) -> Tag {
        let mut mac = self.0.clone();
        mac.update(first);
        middle.iter().for_each(|piece| mac.update(piece));
        mac.update(last);
        Tag::new(&mac.finalize().into_bytes())
    }

    fn tag_len(&self) -> usize {
        <D as Digest>::output_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::crypto::tls13::OkmBlock;

    #[test]
    fn secrets_are_those_of_the_librarys_own_hashes() {
        for (ours, theirs) in [
            (&AES_256_GCM_SHA384, &suite::TLS13_AES_256_GCM_SHA384),
            (&CHACHA20_POLY1305_SHA256, &suite::TLS13_CHACHA20_POLY1305_SHA256),
            (&AES_128_GCM_SHA256, &suite::TLS13_AES_128_GCM_SHA256),
        ] {
            let theirs = theirs.tls13().expect("of TLS 1.3");
            let secrets = |suite: &Tls13CipherSuite| {
                let hkdf = suite.hkdf_provider;
                let early = hkdf.extract_from_zero_ikm(None).expand_block(&[b"early ", b"secret"]);
                let shared = hkdf.extract_from_secret(Some(early.as_ref()), &[7; 32]);
                let mut long = [0; 200];
                shared.expand_slice(&[b"more than one block"], &mut long).expect("fewer than 255 blocks");
                let own = hkdf.expander_for_okm(&OkmBlock::new(early.as_ref())).expand_block(&[]);
                let signed = hkdf.hmac_sign(&own, &[1; 300]);
                let longer_than_a_block = hkdf.extract_from_secret(Some(&[2; 300]), b"").expand_block(&[]);
                [early.as_ref(), &long, own.as_ref(), signed.as_ref(), longer_than_a_block.as_ref()].concat()
            };
            assert_eq!(secrets(ours), secrets(theirs));
            assert_eq!((ours.common.suite, ours.quic.is_some()), (theirs.common.suite, theirs.quic.is_some()));
        }
    }

    #[test]
    fn what_was_said_can_be_asked_for_in_between() {
        for (ours, theirs) in [
            (&AES_256_GCM_SHA384, &suite::TLS13_AES_256_GCM_SHA384),
            (&AES_128_GCM_SHA256, &suite::TLS13_AES_128_GCM_SHA256),
        ] {
            let theirs = theirs.tls13().expect("of TLS 1.3");
            let outputs = |suite: &Tls13CipherSuite| {
                let hash = suite.common.hash_provider;
                let mut said = hash.start();
                said.update(&[1; 500]);
                let (early, mut fork) = (said.fork_finish(), said.fork());
                said.update(b"more");
                fork.update(b"other");
                [early, said.finish(), fork.finish(), hash.hash(b"at once")].map(|output| output.as_ref().to_vec())
            };
            assert_eq!(outputs(ours), outputs(theirs));
            assert_eq!(ours.common.hash_provider.algorithm(), theirs.common.hash_provider.algorithm());
            assert_eq!(ours.common.hash_provider.output_len(), theirs.common.hash_provider.output_len());
        }
    }
}
