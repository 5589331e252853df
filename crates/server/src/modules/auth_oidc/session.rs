//! What is kept of a client: while it logs in, sealed in a cookie of its own, so that nobody fills memory by beginning; afterwards in a
//! zone, under a name that cannot be guessed.

use crate::modules::keyval_store::Store;
use aws_lc_rs::aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use runtime::clock;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::OnceLock;
use wire::encoding::{Alphabet, base64_decode, base64_encode};

/// Bytes of names that cannot be guessed.
const RANDOM: usize = 32;
/// Bytes of a key of AES-256, and of a nonce of GCM.
const KEY: usize = 32;
const NONCE: usize = 12;
/// A login that takes longer begins again.
const LOGIN_S: i64 = 600;
/// A sealed login is no longer: what a client sent as its address is in it.
const MAX_LOGIN: usize = 3 * 1024;
/// A session with larger tokens is refused.
const MAX_SESSION: usize = 64 * 1024;

/// A text that cannot be guessed.
pub(super) fn random() -> String {
    let mut bytes = [0; RANDOM];
    SystemRandom::new().fill(&mut bytes).expect("the system has random bytes");
    encoded(&bytes)
}

/// Without padding, for URLs and cookies.
pub(super) fn encoded(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    base64_encode(bytes, Alphabet::Url, &mut out);
    out.retain(|b| *b != b'=');
    String::from_utf8(out).expect("base64 is ASCII")
}

/// A login under way.
#[derive(Debug, Deserialize, Serialize, PartialEq, Eq)]
pub(super) struct Login {
    /// What the provider has to repeat.
    pub state: String,
    /// What its token has to repeat.
    pub nonce: String,
    /// PKCE's secret.
    pub verifier: Option<String>,
    /// Where the client wanted to go.
    pub target: String,
    /// Until when, Unix seconds.
    until: i64,
}

/// Of the process: who logs in while it is replaced begins again.
fn key() -> &'static RandomizedNonceKey {
    static SEAL: OnceLock<RandomizedNonceKey> = OnceLock::new();
    SEAL.get_or_init(|| {
        let mut bytes = [0; KEY];
        SystemRandom::new().fill(&mut bytes).expect("the system has random bytes");
        RandomizedNonceKey::new(&AES_256_GCM, &bytes).expect("the key is as long as it must be")
    })
}

impl Login {
    /// Begins one.
    pub(super) fn new(target: String, with_pkce: bool) -> Login {
        let until = clock::wall_seconds() + LOGIN_S;
        Login { state: random(), nonce: random(), verifier: with_pkce.then(random), target, until }
    }

    /// The value of its cookie, good for this provider. None: the address is too long to be kept.
    pub(super) fn seal(&self, provider: &str) -> Option<String> {
        let mut bytes = serde_json::to_vec(self).ok()?;
        if bytes.len() > MAX_LOGIN {
            return None;
        }
        let nonce = key().seal_in_place_append_tag(Aad::from(provider.as_bytes()), &mut bytes).ok()?;
        Some(encoded(&[&nonce.as_ref()[..], &bytes].concat()))
    }

    /// Opens such a value. None: it is not ours, or too old.
    pub(super) fn open(provider: &str, cookie: &[u8]) -> Option<Login> {
        let mut bytes = Vec::new();
        if cookie.len() > 2 * MAX_LOGIN {
            return None;
        }
        base64_decode(cookie, Alphabet::Url, &mut bytes).ok()?;
        let (nonce, sealed) = bytes.split_at_mut_checked(NONCE)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let plain = key().open_in_place(nonce, Aad::from(provider.as_bytes()), sealed).ok()?;
        let login: Login = serde_json::from_slice(plain).ok()?;
        (login.until > clock::wall_seconds()).then_some(login)
    }
}

/// A client that has logged in.
#[derive(Debug, Deserialize, Serialize)]
pub struct LoginSession {
    /// The provider's token about the user.
    pub id_token: String,
    /// The provider's token for other services.
    pub access_token: Option<String>,
    /// What the first says.
    pub claims: Value,
    /// What the provider says of the user beside.
    pub userinfo: Option<String>,
}

impl LoginSession {
    /// Keeps it. Gives the name, which is the cookie's value.
    pub(super) fn keep(&self, store: &Store, timeout_ms: u64) -> Result<String, &'static str> {
        let text = serde_json::to_string(self).map_err(|_| "the session could not be written")?;
        if text.len() > MAX_SESSION {
            return Err("the session is too large");
        }
        let name = random();
        let kept = store.set(&[(name.clone(), text, Some(timeout_ms))]);
        kept.map(|()| name).map_err(|_| "the zone of sessions is full")
    }

    /// Finds it.
    pub(super) fn find(store: &Store, name: &str) -> Option<LoginSession> {
        store.look_up(name, |text| serde_json::from_str(text).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_opened_by_us_for_its_provider_alone() {
        let login = Login::new("/a?b".to_owned(), true);
        let sealed = login.seal("one").expect("it is short");
        assert_eq!(Login::open("one", sealed.as_bytes()), Some(login));
        assert_eq!(Login::open("two", sealed.as_bytes()), None);
        let mut other = sealed.into_bytes();
        other[20] ^= 1;
        assert_eq!(Login::open("one", &other), None);
        assert_eq!(Login::open("one", b"AAAA"), None);
        assert!(Login::new("x".repeat(MAX_LOGIN), false).seal("one").is_none());
        let old = Login { until: 1, ..Login::new(String::new(), false) };
        assert_eq!(Login::open("one", old.seal("one").expect("it is short").as_bytes()), None);
    }
}
