//! The ciphers of TLS 1.3, with hashes that keep their state. A handshake derives some 25 secrets by HMAC (RFC 8446 section 7.1), most of
//! them with a key that was used before. AWS-LC begins with the key each time, and has no vector code for SHA-384 on AMD's
//! CPUs; the crates `sha2` and `hmac` need half the time (docs/decisions/0007-tls.md). All else of a cipher is AWS-LC's.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use hmac::digest::{Digest, OutputSizeUser};
use hmac::{EagerHash, KeyInit, Mac};
use rustls::crypto::aws_lc_rs::cipher_suite as suite;
use rustls::crypto::hash::{Context, Hash, HashAlgorithm, Output};
use rustls::crypto::hmac::Tag;
use rustls::crypto::tls13::{Hkdf, HkdfExpander, OkmBlock, OutputLengthError};
use rustls::{CipherSuiteCommon, SupportedCipherSuite, Tls13CipherSuite};
use sha2::{Sha256, Sha384};
use std::sync::OnceLock;

/// TLS_AES_256_GCM_SHA384
pub static AES_256_GCM_SHA384: Tls13CipherSuite = with_hash(&suite::TLS13_AES_256_GCM_SHA384, &SHA_384, &SHA_384);
/// TLS_CHACHA20_POLY1305_SHA256
pub static CHACHA20_POLY1305_SHA256: Tls13CipherSuite =
    with_hash(&suite::TLS13_CHACHA20_POLY1305_SHA256, &SHA_256, &SHA_256);
/// TLS_AES_128_GCM_SHA256
pub static AES_128_GCM_SHA256: Tls13CipherSuite = with_hash(&suite::TLS13_AES_128_GCM_SHA256, &SHA_256, &SHA_256);

static SHA_256: Sha2<Sha256> = Sha2 { number: HashAlgorithm::SHA256, early: OnceLock::new() };
static SHA_384: Sha2<Sha384> = Sha2 { number: HashAlgorithm::SHA384, early: OnceLock::new() };

const fn with_hash(of: &SupportedCipherSuite, hash: &'static dyn Hash, hkdf: &'static dyn Hkdf) -> Tls13CipherSuite {
    let SupportedCipherSuite::Tls13(of) = of else { panic!("a cipher of TLS 1.3") };
    let (suite, confidentiality_limit) = (of.common.suite, of.common.confidentiality_limit);
    let common = CipherSuiteCommon { suite, hash_provider: hash, confidentiality_limit };
    Tls13CipherSuite { common, hkdf_provider: hkdf, aead_alg: of.aead_alg, quic: of.quic }
}

/// A hash of the SHA-2 family for the library: of what was said in the handshake, and of its secrets.
struct Sha2<D: EagerHash> {
    number: HashAlgorithm,
    early: OnceLock<Early<D>>,
}

/// What was said so far.
struct Said<D>(D);

/// A secret that others are expanded from.
struct Expander<D: EagerHash>(hmac::Hmac<D>);

impl<D: EagerHash + Digest + Clone + Send + Sync + 'static> Hash for Sha2<D>
where
    hmac::Hmac<D>: Send + Sync,
{
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

/// The secret before any is agreed on, when no session is continued, and what follows from it: the same in every handshake (RFC 8446
/// section 7.1, "Early Secret" of a PSK of zeros), so computed once.
struct Early<D: EagerHash> {
    secret: hmac::Hmac<D>,
    /// What the next secret is extracted with.
    derived: Vec<u8>,
    /// The same as a key.
    salt: hmac::Hmac<D>,
}

impl<D: EagerHash + Digest> Sha2<D> {
    fn early(&self) -> &Early<D> {
        self.early.get_or_init(|| {
            let zeros = vec![0; <D as Digest>::output_size()];
            let secret = extract(keyed::<D>(&zeros), &zeros);
            let nothing = D::digest([]);
            let (all, each) = ((nothing.len() as u16).to_be_bytes(), [nothing.len() as u8]);
            let derived = sign(&secret, &[&all, &[13], b"tls13 derived", &each, &nothing, &[1]]).to_vec();
            Early { salt: keyed(&derived), derived, secret }
        })
    }
}

/// HMAC that has taken its key.
fn keyed<D: EagerHash>(key: &[u8]) -> hmac::Hmac<D> {
    hmac::Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

fn sign<D: EagerHash>(key: &hmac::Hmac<D>, message: &[&[u8]]) -> hmac::digest::Output<hmac::Hmac<D>> {
    let mut mac = key.clone();
    message.iter().for_each(|piece| mac.update(piece));
    mac.finalize().into_bytes()
}

/// HKDF-Extract (RFC 5869 section 2.2), ready to expand.
fn extract<D: EagerHash>(salt: hmac::Hmac<D>, secret: &[u8]) -> hmac::Hmac<D> {
    let mut mac = salt;
    mac.update(secret);
    keyed(&mac.finalize().into_bytes())
}

impl<D: EagerHash + Digest + Send + Sync + 'static> Hkdf for Sha2<D>
where
    hmac::Hmac<D>: Send + Sync,
{
    fn extract_from_zero_ikm(&self, salt: Option<&[u8]>) -> Box<dyn HkdfExpander> {
        let zeros = [0; OkmBlock::MAX_LEN];
        Box::new(Expander(match salt {
            None => self.early().secret.clone(),
            Some(salt) => extract(keyed(salt), &zeros[..self.output_len()]),
        }))
    }

    fn extract_from_secret(&self, salt: Option<&[u8]>, secret: &[u8]) -> Box<dyn HkdfExpander> {
        let zeros = [0; OkmBlock::MAX_LEN];
        let early = self.early();
        Box::new(Expander(match salt.unwrap_or(&zeros[..self.output_len()]) {
            salt if verify_slices_are_equal(salt, &early.derived).is_ok() => extract(early.salt.clone(), secret),
            salt => extract(keyed(salt), secret),
        }))
    }

    fn expander_for_okm(&self, okm: &OkmBlock) -> Box<dyn HkdfExpander> {
        Box::new(Expander(keyed::<D>(okm.as_ref())))
    }

    fn hmac_sign(&self, key: &OkmBlock, message: &[u8]) -> Tag {
        Tag::new(&sign(&keyed::<D>(key.as_ref()), &[message]))
    }
}

impl<D: EagerHash> Expander<D> {
    /// One block of HKDF-Expand (RFC 5869 section 2.3).
    fn term(&self, before: &[u8], info: &[&[u8]], number: u8) -> Tag {
        let mut mac = self.0.clone();
        mac.update(before);
        info.iter().for_each(|piece| mac.update(piece));
        mac.update(&[number]);
        Tag::new(&mac.finalize().into_bytes())
    }
}

impl<D: EagerHash> HkdfExpander for Expander<D>
where
    hmac::Hmac<D>: Send + Sync,
{
    fn expand_slice(&self, info: &[&[u8]], output: &mut [u8]) -> Result<(), OutputLengthError> {
        if output.len() > usize::from(u8::MAX) * self.hash_len() {
            return Err(OutputLengthError);
        }
        let mut term = Tag::new(&[]);
        for (number, chunk) in (1..=u8::MAX).zip(output.chunks_mut(self.hash_len())) {
            term = self.term(term.as_ref(), info, number);
            chunk.copy_from_slice(&term.as_ref()[..chunk.len()]);
        }
        Ok(())
    }

    fn expand_block(&self, info: &[&[u8]]) -> OkmBlock {
        OkmBlock::new(self.term(&[], info, 1).as_ref())
    }

    fn hash_len(&self) -> usize {
        <hmac::Hmac<D> as OutputSizeUser>::output_size()
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
                let without_salt = hkdf.extract_from_secret(None, &[8; 32]).expand_block(&[b"x"]);
                let nothing = suite.common.hash_provider.hash(b"");
                let length = nothing.as_ref().len() as u8;
                let info = [&[0, length, 13][..], b"tls13 derived", &[length], nothing.as_ref()];
                let derived = hkdf.extract_from_zero_ikm(None).expand_block(&info);
                let agreed = hkdf.extract_from_secret(Some(derived.as_ref()), &[9; 32]).expand_block(&[b"agreed"]);
                let later = hkdf.extract_from_zero_ikm(Some(agreed.as_ref())).expand_block(&[b"later"]);
                let mut long = [0; 200];
                shared.expand_slice(&[b"more than one block"], &mut long).expect("fewer than 255 blocks");
                let own = hkdf.expander_for_okm(&OkmBlock::new(early.as_ref())).expand_block(&[]);
                let signed = hkdf.hmac_sign(&own, &[1; 300]);
                let longer_than_a_block = hkdf.extract_from_secret(Some(&[2; 300]), b"").expand_block(&[]);
                let short = [&early, &without_salt, &agreed, &later, &own, &longer_than_a_block].map(AsRef::as_ref);
                [short.concat().as_slice(), &long, signed.as_ref()].concat()
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
