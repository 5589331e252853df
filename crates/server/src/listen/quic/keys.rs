//! Keys of a QUIC endpoint, all made of `quic_host_key`: a process that has the same file can say that a connection is over
//! (stateless reset) or that a client's address was checked (retry) though it knows nothing else of it.

use super::ids::SEALED;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use aws_lc_rs::{hkdf, hmac};
use quinn_proto::crypto::{CryptoError, HmacKey};
use std::cell::RefCell;
use std::sync::{OnceLock, RwLock, RwLockReadGuard};

/// Bytes of a key that the process draws for itself.
const OWN: usize = 32;
/// Random bytes asked for at once: ids are made one by one.
const POOL: usize = 512;

/// What is made of one host key.
struct Keys {
    host_key: Box<[u8]>,
    ids: hmac::Key,
    resets: hmac::Key,
}

impl Keys {
    fn new(host_key: &[u8]) -> Keys {
        let derived = |purpose| {
            let from = hmac::Key::new(hmac::HMAC_SHA256, host_key);
            hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&from, purpose).as_ref())
        };
        let (ids, resets) = (derived(b"connection ids"), derived(b"stateless resets"));
        Keys { host_key: host_key.into(), ids, resets }
    }

    /// Whether an id has this key's seal. Who may time the answer learns nothing of the seal.
    fn has_sealed(&self, id: &[u8]) -> bool {
        verify_slices_are_equal(&self.seal(id), &id[SEALED..]).is_ok()
    }

    fn seal(&self, id: &[u8]) -> [u8; SEAL] {
        let mut seal = [0; SEAL];
        seal.copy_from_slice(&hmac::sign(&self.ids, &id[..SEALED]).as_ref()[..SEAL]);
        seal
    }
}

/// Bytes of the seal of a connection id.
pub(super) const SEAL: usize = 4;

/// An endpoint's keys: those of the current host key, and those of the one before, whose ids clients still have.
pub(super) struct Ring(RwLock<(Keys, Option<Keys>)>);

impl Ring {
    /// With a host key.
    pub(super) fn new(host_key: &[u8]) -> Ring {
        Ring(RwLock::new((Keys::new(host_key), None)))
    }

    fn keys(&self) -> RwLockReadGuard<'_, (Keys, Option<Keys>)> {
        self.0.read().expect("nothing panics while it is locked")
    }

    /// From now on this host key holds.
    pub(super) fn turn(&self, host_key: &[u8]) {
        if *self.keys().0.host_key == *host_key {
            return;
        }
        let mut keys = self.0.write().expect("nothing panics while it is locked");
        let before = std::mem::replace(&mut keys.0, Keys::new(host_key));
        keys.1 = Some(before);
    }

    /// The seal of a new connection id.
    pub(super) fn seal(&self, id: &[u8]) -> [u8; SEAL] {
        self.keys().0.seal(id)
    }

    /// Whether an id has a seal of ours.
    pub(super) fn has_sealed(&self, id: &[u8]) -> bool {
        let keys = self.keys();
        keys.0.has_sealed(id) || keys.1.as_ref().is_some_and(|k| k.has_sealed(id))
    }
}

/// Tokens of stateless resets: the current host key's, for that is what another process has.
impl HmacKey for Ring {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        signature_out.copy_from_slice(hmac::sign(&self.keys().0.resets, data).as_ref());
    }

    fn signature_len(&self) -> usize {
        hmac::HMAC_SHA256.digest_algorithm().output_len
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        hmac::verify(&self.keys().0.resets, data, signature).map_err(|_| CryptoError)
    }
}

/// The key that tokens for retries are sealed with.
pub(super) fn tokens(host_key: &[u8]) -> hkdf::Prk {
    hkdf::Salt::new(hkdf::HKDF_SHA256, b"tokens").extract(host_key)
}

/// The host key where none is configured: one for all threads, through all reloads.
pub(super) fn own() -> &'static [u8] {
    static OWN_KEY: OnceLock<[u8; OWN]> = OnceLock::new();
    OWN_KEY.get_or_init(|| {
        let mut key = [0; OWN];
        SystemRandom::new().fill(&mut key).expect("the system has random bytes");
        key
    })
}

/// Fills a few bytes with what nobody can guess.
pub(super) fn draw(out: &mut [u8]) {
    thread_local! {
        static DRAWN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    DRAWN.with_borrow_mut(|drawn| {
        if drawn.len() < out.len() {
            drawn.resize(POOL, 0);
            SystemRandom::new().fill(drawn).expect("the system has random bytes");
        }
        let from = drawn.len() - out.len();
        out.copy_from_slice(&drawn[from..]);
        drawn.truncate(from);
    });
}
