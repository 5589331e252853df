//! `ssl_stapling`: what responders say of the server's own certificates, asked in time and shown with them. A staple
//! outlives reloads, so that a new configuration begins with what the one before it had.

use super::Responder;
use super::message::{self, Status};
use crate::log::error::Level;
use crate::log::process_line;
use crate::snapshot::Snapshot;
use crate::tls::x509::Certificate;
use runtime::clock;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

/// An answer is asked for again at least this long before it ends, and not sooner after the last time, in seconds.
const MARGIN_S: i64 = 300;
/// And at the latest so long after the last time, in seconds.
const LONGEST_S: i64 = 3600;

/// The answer to show with one certificate.
pub struct Staple {
    key: [u8; 32],
    certificate: CertificateDer<'static>,
    issuer: CertificateDer<'static>,
    /// For the log.
    name: String,
    responder: Responder,
    /// `ssl_stapling_verify`
    verify: bool,
    /// The answer, and until when it holds, Unix seconds.
    current: RwLock<Option<(Arc<Vec<u8>>, i64)>>,
    followed: AtomicBool,
}

impl fmt::Debug for Staple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Staple({})", self.name)
    }
}

static STAPLES: Mutex<Vec<Weak<Staple>>> = Mutex::new(Vec::new());

impl Staple {
    /// The staple of a certificate: the one in use, else a new one. The error is nginx's text for why there is none.
    pub fn of(
        pair: &CertifiedKey,
        trusted: &[CertificateDer<'static>],
        name: String,
        responder: Responder,
        verify: bool,
    ) -> Result<Arc<Staple>, String> {
        let ignored = |why: &str| format!("\"ssl_stapling\" ignored, {why} \"{name}\"");
        let der = &pair.cert[0];
        let certificate = Certificate::parse(der).map_err(|_| ignored("malformed certificate"))?;
        let has_issued = |c: &&CertificateDer<'static>| {
            Certificate::parse(c).is_ok_and(|c| {
                c.subject == certificate.issuer
                    && crate::tls::verify::has_signed(&responder.algorithms, &c, &certificate)
            })
        };
        let issuer = pair.cert[1..].iter().chain(trusted).find(has_issued);
        let issuer = issuer.ok_or_else(|| ignored("issuer certificate not found for certificate"))?;
        let uri = responder.uri.as_deref().or_else(|| message::responder(&certificate));
        let uri = uri.ok_or_else(|| ignored("no OCSP responder URL in the certificate"))?;
        Responder::check_uri(uri).map_err(|why| ignored(&format!("{why} in the certificate")))?;
        let key = crate::tls::settings::key("staple", &(der, issuer, uri, verify));
        let mut staples = STAPLES.lock().unwrap_or_else(PoisonError::into_inner);
        staples.retain(|s| s.strong_count() > 0);
        if let Some(known) = staples.iter().filter_map(Weak::upgrade).find(|s| s.key == key) {
            return Ok(known);
        }
        let (certificate, issuer) = (der.clone().into_owned(), issuer.clone().into_owned());
        let (current, followed) = Default::default();
        let made = Arc::new(Staple { key, certificate, issuer, name, responder, verify, current, followed });
        staples.push(Arc::downgrade(&made));
        Ok(made)
    }

    /// The answer to show now, DER: none that has ended.
    pub fn current(&self) -> Option<Arc<Vec<u8>>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().filter(|(_, valid_s)| *valid_s >= clock::wall_seconds()).map(|(answer, _)| answer.clone())
    }

    /// Asks once. Gives when to ask again, Unix seconds.
    async fn update(&self) -> i64 {
        let now = clock::wall_seconds();
        let asked = self.ask().await;
        match asked {
            Ok((answer, valid_s)) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some((Arc::new(answer), valid_s));
                (valid_s - MARGIN_S).min(now + LONGEST_S).max(now + MARGIN_S)
            }
            Err(text) => {
                let name = &self.name;
                process_line(
                    Level::Error,
                    format_args!("{text} while requesting certificate status, certificate: \"{name}\""),
                );
                now + MARGIN_S
            }
        }
    }

    async fn ask(&self) -> Result<(Vec<u8>, i64), String> {
        let malformed = |_| "the certificate is malformed".to_owned();
        let certificate = Certificate::parse(&self.certificate).map_err(malformed)?;
        let issuer = Certificate::parse(&self.issuer).map_err(malformed)?;
        let identifier = message::identifier(&certificate, &issuer).map_err(malformed)?;
        let answer = self.responder.ask(&certificate, &identifier).await?;
        let signer = self.verify.then_some((&issuer, &self.responder.algorithms));
        let found = message::check(&answer, &identifier, signer, clock::wall_seconds())?;
        match found.status {
            Status::Good => Ok((answer.to_vec(), found.valid_s)),
            status => Err(format!("certificate status \"{}\" in the OCSP response", status.name())),
        }
    }
}

/// Asks for the answers of a configuration from now on, as long as anybody uses them.
pub fn follow(snapshot: &Snapshot) {
    let contexts = snapshot.planes().flat_map(|p| &p.servers).filter_map(|s| s.tls.as_ref());
    for staple in contexts.flat_map(|c| &c.staples).filter(|s| !s.followed.swap(true, Relaxed)) {
        let staple = Arc::downgrade(staple);
        crate::service::spawn(move || async move {
            while let Some(used) = staple.upgrade() {
                let next = used.update().await;
                drop(used);
                tokio::time::sleep(Duration::from_secs((next - clock::wall_seconds()).max(1) as u64)).await;
            }
        });
    }
}
