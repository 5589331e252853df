//! Certificates that were issued, where handshakes find them. A slot is one wanted certificate; it outlives reloads, so that a
//! new configuration begins with what the one before it had.

use super::settings::Order;
use crate::tls::certificate::{self, Source};
use crate::tls::x509::Certificate;
use aws_lc_rs::digest::{SHA256, digest};
use rustls::crypto::{CryptoProvider, aws_lc_rs::default_provider};
use rustls::sign::CertifiedKey;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

/// `acme_shared_zone`: what all issued certificates and keys together may take, in bytes of PEM.
static LIMIT: AtomicUsize = AtomicUsize::new(DEFAULT_LIMIT);
/// nginx's default.
pub const DEFAULT_LIMIT: usize = 256 * 1024;

/// The slots in use, by what they are for.
static SLOTS: Mutex<Vec<(Order, Weak<Slot>)>> = Mutex::new(Vec::new());

/// A certificate with its key, as it was issued.
pub struct Issued {
    /// For handshakes.
    pub pair: CertifiedKey,
    /// The chain, PEM.
    pub chain: String,
    /// The private key, PEM.
    pub key: String,
    /// When it begins to be valid, Unix seconds.
    pub not_before: i64,
    /// When it ceases.
    pub not_after: i64,
}

impl Issued {
    /// Takes PEM apart, and checks that key and certificate belong together.
    pub fn new(chain: String, key: String) -> Result<Issued, String> {
        let data = |text: &str| [b"data:", text.as_bytes()].concat();
        let nothing = |_: &Path| Err(std::io::ErrorKind::NotFound.into());
        let (named_chain, named_key) = (data(&chain), data(&key));
        let source = Source { read: &nothing, prefix: Path::new("") };
        let pair = certificate::load(source, &named_chain, &named_key, &[], &provider())?.pair;
        let leaf = Certificate::parse(&pair.cert[0]).map_err(|_| "the certificate is malformed".to_owned())?;
        let (not_before, not_after) = (leaf.not_before, leaf.not_after);
        Ok(Issued { pair, chain, key, not_before, not_after })
    }

    fn size(&self) -> usize {
        self.chain.len() + self.key.len()
    }
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Issued({}..{})", self.not_before, self.not_after)
    }
}

fn provider() -> CryptoProvider {
    default_provider()
}

/// The place of one wanted certificate.
#[derive(Debug)]
pub struct Slot {
    /// What is wanted.
    pub order: Order,
    current: RwLock<Option<Arc<Issued>>>,
    failures: AtomicU32,
    next_s: AtomicI64,
}

impl Slot {
    /// The slot of an order: the one in use, else a new one.
    pub fn of(order: &Order) -> Arc<Slot> {
        let mut slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|(_, slot)| slot.strong_count() > 0);
        if let Some(slot) = slots.iter().find(|(o, _)| o == order).and_then(|(_, s)| s.upgrade()) {
            return slot;
        }
        let slot = Arc::new(Slot {
            order: order.clone(),
            current: RwLock::default(),
            failures: AtomicU32::new(0),
            next_s: AtomicI64::new(0),
        });
        slots.push((order.clone(), Arc::downgrade(&slot)));
        slot
    }

    /// What is shown now.
    pub fn current(&self) -> Option<Arc<Issued>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes how many tries have failed in a row, and when the next step is due, Unix seconds.
    pub(super) fn note(&self, failures: u32, next_s: i64) {
        self.failures.store(failures, Relaxed);
        self.next_s.store(next_s, Relaxed);
    }

    /// Tries in a row that have failed.
    pub fn failures(&self) -> i64 {
        i64::from(self.failures.load(Relaxed))
    }

    /// When the next step is due, Unix seconds; 0 before that is known.
    pub fn next_s(&self) -> i64 {
        self.next_s.load(Relaxed)
    }

    /// Shows another one from now on, if there is room for it.
    pub fn put(&self, issued: Issued) -> Result<(), String> {
        let slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
        let others = slots.iter().filter_map(|(_, s)| s.upgrade()).filter(|s| !std::ptr::eq(&raw const **s, self));
        let used: usize = others.filter_map(|s| s.current()).map(|i| i.size()).sum();
        let limit = LIMIT.load(Relaxed);
        if used + issued.size() > limit {
            return Err(format!("no room: \"acme_shared_zone\" is {limit} bytes, and {used} are in use"));
        }
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(issued));
        Ok(())
    }

    /// A name for logs and files: the first host name, and a digest of all that is wanted.
    pub fn name(&self) -> String {
        let all: Vec<String> = self.order.identifiers.iter().map(|i| format!("{}:{i}", i.kind())).collect();
        let digest = digest(&SHA256, format!("{} {}", self.order.key.name(), all.join(" ")).as_bytes());
        let mut hex = Vec::new();
        wire::encoding::hex_encode(&digest.as_ref()[..8], &mut hex);
        let dns = self.order.identifiers.iter().find(|i| i.kind() == "dns");
        let first = dns.or(self.order.identifiers.first()).map_or_else(String::new, ToString::to_string);
        format!("{first}-{}", String::from_utf8_lossy(&hex))
    }
}

/// Sets how much all slots together may hold, in bytes.
pub fn limit(bytes: usize) {
    LIMIT.store(bytes, Relaxed);
}
