//! What the library does on the way of a handshake and does not tell afterwards: which signature was made, which session
//! was kept. Noted for the thread while one call works on one connection; taken when the call is done.

use rustls::server::StoresServerSessions;
use rustls::sign::{Signer, SigningKey};
use rustls::{KeyLog, SignatureAlgorithm, SignatureScheme};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use zeroize::Zeroize;

/// Bytes of a secret, at most: a hash.
pub const MOST_SECRET: usize = 48;

/// What was noted.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// Our signature.
    pub signed_by: Option<SignatureScheme>,
    /// The client's signature.
    pub client_signed_by: Option<SignatureScheme>,
    /// The session that was kept or found.
    pub session_id: Option<Vec<u8>>,
}

/// What the keys of a TLS 1.3 connection come from at first: for one that is to be parked (`connection::tls::secrets`).
pub struct Traffic {
    server: [u8; MOST_SECRET],
    client: [u8; MOST_SECRET],
    length: u8,
}

thread_local! {
    static TRAFFIC: RefCell<Option<Box<Traffic>>> = const { RefCell::new(None) };
    static SIGNED: Cell<Option<SignatureScheme>> = const { Cell::new(None) };
    static CLIENT_SIGNED: Cell<Option<SignatureScheme>> = const { Cell::new(None) };
    static SESSION: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
    static PEER: Cell<u32> = const { Cell::new(0) };
}

/// Until the next call the library works on a connection to this peer.
pub fn work_on(peer: u32) {
    PEER.set(peer);
}

/// The peer whose connection is worked on.
pub fn peer() -> u32 {
    PEER.get()
}

/// Takes what was noted since the last time, adding to what is known already.
pub fn take(into: &mut Notes) {
    into.signed_by = SIGNED.take().or(into.signed_by);
    into.client_signed_by = CLIENT_SIGNED.take().or(into.client_signed_by);
    if let Some(id) = SESSION.take() {
        into.session_id = Some(id);
    }
}

impl Traffic {
    /// Of what the server sends.
    pub fn server(&self) -> &[u8] {
        &self.server[..usize::from(self.length)]
    }

    /// Of what the client sends.
    pub fn client(&self) -> &[u8] {
        &self.client[..usize::from(self.length)]
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        [&mut self.server, &mut self.client].into_iter().for_each(|secret| secret.zeroize());
    }
}

/// The secrets that were made since the last time.
pub fn take_traffic() -> Option<Box<Traffic>> {
    TRAFFIC.take()
}

/// Notes the secrets of connections.
#[derive(Debug)]
pub struct NoteSecrets;

const SERVER: &str = "SERVER_TRAFFIC_SECRET_0";
const CLIENT: &str = "CLIENT_TRAFFIC_SECRET_0";

impl KeyLog for NoteSecrets {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        let length = secret.len();
        if length > MOST_SECRET {
            return;
        }
        TRAFFIC.with_borrow_mut(|noted| {
            let empty = || Box::new(Traffic { server: [0; MOST_SECRET], client: [0; MOST_SECRET], length: 0 });
            let noted = noted.get_or_insert_with(empty);
            let into = if label == SERVER { &mut noted.server } else { &mut noted.client };
            into[..length].copy_from_slice(secret);
            noted.length = length as u8;
        });
    }

    fn will_log(&self, label: &str) -> bool {
        label == SERVER || label == CLIENT
    }
}

/// The client has signed.
pub fn client_signed_by(scheme: SignatureScheme) {
    CLIENT_SIGNED.set(Some(scheme));
}

/// A session was kept or found.
pub fn session(id: &[u8]) {
    SESSION.set(Some(id.to_vec()));
}

/// A key whose signatures are noted.
pub fn signing(key: Arc<dyn SigningKey>) -> Arc<dyn SigningKey> {
    Arc::new(Noted(key))
}

#[derive(Debug)]
struct Noted(Arc<dyn SigningKey>);

#[derive(Debug)]
struct NotedSigner(Box<dyn Signer>);

impl SigningKey for Noted {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        self.0.choose_scheme(offered).map(|s| Box::new(NotedSigner(s)) as Box<dyn Signer>)
    }

    fn public_key(&self) -> Option<rustls::pki_types::SubjectPublicKeyInfoDer<'_>> {
        self.0.public_key()
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0.algorithm()
    }
}

impl Signer for NotedSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        SIGNED.set(Some(self.0.scheme()));
        self.0.sign(message)
    }

    fn scheme(&self) -> SignatureScheme {
        self.0.scheme()
    }
}

/// A store whose use is noted.
pub fn storing(store: Arc<dyn StoresServerSessions>) -> Arc<dyn StoresServerSessions> {
    Arc::new(NotedStore(store))
}

#[derive(Debug)]
struct NotedStore(Arc<dyn StoresServerSessions>);

impl StoresServerSessions for NotedStore {
    fn put(&self, id: Vec<u8>, value: Vec<u8>) -> bool {
        session(&id);
        self.0.put(id, value)
    }

    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.0.get(id).inspect(|_| session(id))
    }

    fn take(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.0.take(id).inspect(|_| session(id))
    }

    fn can_cache(&self) -> bool {
        self.0.can_cache()
    }
}
