//! Keys of a QUIC endpoint, all made of `quic_host_key`: a process that has the same file can say that a connection is over
//! (stateless reset) or that a client's address was checked (retry) though it knows nothing else of it.

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use aws_lc_rs::{hkdf, hmac};
use std::cell::RefCell;
use std::sync::OnceLock;

/// Bytes of a key that the process draws for itself.
const OWN: usize = 32;
/// Random bytes asked for at once: ids are made one by one.
const POOL: usize = 512;

/// What is made of one host key.
pub(super) struct Keys {
    ids: hmac::Key,
}

impl Keys {
    /// Of a host key's bytes.
    pub(super) fn new(host_key: &[u8]) -> Keys {
        Keys { ids: derived(host_key, b"connection ids") }
    }

    /// The seal of a connection id.
    pub(super) fn seal<const N: usize>(&self, bytes: &[u8]) -> [u8; N] {
        let mut seal = [0; N];
        seal.copy_from_slice(&hmac::sign(&self.ids, bytes).as_ref()[..N]);
        seal
    }
}

fn derived(host_key: &[u8], purpose: &[u8]) -> hmac::Key {
    let from = hmac::Key::new(hmac::HMAC_SHA256, host_key);
    hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&from, purpose).as_ref())
}

/// The key that makes tokens of stateless resets.
pub(super) fn reset(host_key: &[u8]) -> hmac::Key {
    derived(host_key, b"stateless resets")
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
