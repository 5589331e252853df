//! Certificates whose names have variables (`ssl_certificate $ssl_server_name.crt`): read when a client asks, with the
//! worker's own rights, and kept for a while with `ssl_certificate_cache`. Those that `acme` had issued are there already.

use super::asked::Certificates;
use super::certificate::{self, Source};
use super::settings::CacheLimits;
use crate::acme::store::Slot;
use crate::config::complex::Complex;
use crate::request::Request;
use runtime::clock;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Where a certificate and its key are.
pub enum Pair {
    /// Under names with variables: certificate and key.
    Named(Complex, Complex),
    /// In the place of what was ordered.
    Issued(Arc<Slot>),
}

/// Names of certificates and keys.
pub struct Dynamic {
    pairs: Vec<Pair>,
    passwords: Arc<Vec<Vec<u8>>>,
    prefix: PathBuf,
    cache: Option<Cache>,
}

impl fmt::Debug for Dynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dynamic").field("pairs", &self.pairs.len()).finish()
    }
}

struct Cache {
    limits: CacheLimits,
    kept: Mutex<HashMap<Vec<u8>, Kept>>,
}

struct Kept {
    pair: CertifiedKey,
    since_ms: u64,
    used_ms: u64,
}

impl Dynamic {
    /// `prefix`: what relative paths are relative to.
    pub fn new(
        pairs: Vec<Pair>,
        passwords: Arc<Vec<Vec<u8>>>,
        prefix: PathBuf,
        limits: Option<CacheLimits>,
    ) -> Dynamic {
        let cache = limits.map(|limits| Cache { limits, kept: Mutex::default() });
        Dynamic { pairs, passwords, prefix, cache }
    }

    /// The library's configuration with the certificates of this request. The error is nginx's text.
    pub fn config(&self, r: &mut Request, base: &ServerConfig) -> Result<Arc<ServerConfig>, String> {
        let mut certificates = Vec::new();
        for pair in &self.pairs {
            certificates.push(match pair {
                Pair::Named(certificate, key) => self.certificate(r, certificate, key, base.crypto_provider())?,
                Pair::Issued(slot) => {
                    let issued =
                        slot.current().ok_or_else(|| format!("certificate \"{}\" is not issued yet", slot.name()));
                    issued?.pair.clone()
                }
            });
        }
        let mut config = base.clone();
        config.cert_resolver = Arc::new(Certificates::new(certificates.into_iter().map(|pair| (pair, None))));
        Ok(Arc::new(config))
    }

    /// One certificate with its key.
    pub fn certificate(
        &self,
        r: &mut Request,
        certificate: &Complex,
        key: &Complex,
        provider: &CryptoProvider,
    ) -> Result<CertifiedKey, String> {
        let (certificate, key) = (certificate.eval(r), key.eval(r));
        if r.take_fault() {
            return Err("the name of a certificate has no value".to_owned());
        }
        let (certificate, key) = (r.get(certificate), r.get(key));
        let cache_key = [certificate, b"\n", key].concat();
        if let Some(pair) = self.cache.as_ref().and_then(|c| c.find(&cache_key)) {
            return Ok(pair);
        }
        let read = |path: &std::path::Path| std::fs::read(path);
        let source = Source { read: &read, prefix: &self.prefix };
        let loaded = certificate::load(source, certificate, key, &self.passwords, provider)?;
        // A key that was locked is not kept unlocked.
        if let Some(cache) = self.cache.as_ref().filter(|_| !loaded.locked) {
            cache.keep(cache_key, &loaded.pair);
        }
        Ok(loaded.pair)
    }

    /// The names of the only pair, for where there is one.
    pub fn first(&self) -> Option<(&Complex, &Complex)> {
        match self.pairs.first()? {
            Pair::Named(certificate, key) => Some((certificate, key)),
            Pair::Issued(_) => None,
        }
    }
}

impl Cache {
    fn find(&self, key: &[u8]) -> Option<CertifiedKey> {
        let now = clock::monotonic_ms();
        let mut kept = self.kept.lock().expect("nothing panics while it is locked");
        let found = kept.get_mut(key)?;
        if now - found.since_ms > self.limits.valid_ms || now - found.used_ms > self.limits.inactive_ms {
            kept.remove(key);
            return None;
        }
        found.used_ms = now;
        Some(found.pair.clone())
    }

    fn keep(&self, key: Vec<u8>, pair: &CertifiedKey) {
        let now = clock::monotonic_ms();
        let mut kept = self.kept.lock().expect("nothing panics while it is locked");
        let most = (self.limits.max / 2).max(1);
        if kept.len() >= most {
            kept.retain(|_, k| now - k.used_ms <= self.limits.inactive_ms);
        }
        while kept.len() >= most {
            let Some(oldest) = kept.iter().min_by_key(|(_, k)| k.used_ms).map(|(key, _)| key.clone()) else { break };
            kept.remove(&oldest);
        }
        kept.insert(key, Kept { pair: pair.clone(), since_ms: now, used_ms: now });
    }
}
