//! OCSP: whether certificates were revoked, asked of their issuers' responders on the service thread. `ssl_ocsp` asks about
//! clients' certificates, here; `ssl_stapling` about the server's own, in `stapling`.

pub mod message;
pub mod stapling;

use super::der::BadDer;
use super::sessions::{Cache, Zone};
use super::verify::Failure;
use super::x509::Certificate;
use crate::fetch::Fetch;
use crate::log::error::Level;
use crate::log::process_line;
use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::Full;
use message::{Judged, Status};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::CertificateDer;
use rustls::server::StoresServerSessions;
use std::sync::Arc;
use std::time::Duration;
use wire::encoding::{Alphabet, base64_encode};

/// The longest that an answer is kept, whatever it says.
const MAX_KEPT: Duration = Duration::from_secs(24 * 3600);

/// Whom to ask, and how.
#[derive(Clone)]
pub struct Responder {
    /// `ssl_ocsp_responder`, `ssl_stapling_responder`; otherwise each certificate names its own.
    pub uri: Option<String>,
    /// How to reach it.
    pub fetch: Fetch,
    /// For signatures.
    pub algorithms: WebPkiSupportedAlgorithms,
}

impl Responder {
    /// Whether the address of a responder can be used: nginx's texts for why not.
    pub fn check_uri(uri: &str) -> Result<(), String> {
        let (scheme, rest) = uri.split_at_checked(7).unwrap_or_default();
        let bad = |why: &str| format!("{why} in OCSP responder \"{rest}\"");
        if rest.is_empty() || !scheme.eq_ignore_ascii_case("http://") {
            return Err(format!("invalid URL prefix in OCSP responder \"{uri}\""));
        }
        let parsed: Uri = uri.parse().map_err(|_| bad("invalid URL"))?;
        let host = parsed.host().filter(|h| !h.is_empty()).ok_or_else(|| bad("no host"))?;
        let authority = parsed.authority().map_or("", |a| a.as_str());
        let has_port = authority.len() > host.len();
        if has_port && parsed.port_u16().is_none_or(|port| port == 0) { Err(bad("invalid port")) } else { Ok(()) }
    }

    /// Asks about a certificate and gives the answer, DER. On the service thread.
    async fn ask(&self, certificate: &Certificate<'_>, identifier: &[u8]) -> Result<Bytes, String> {
        let uri = match &self.uri {
            Some(uri) => uri,
            None => message::responder(certificate).ok_or("no OCSP responder URL in certificate")?,
        };
        Responder::check_uri(uri)?;
        let mut question = Vec::new();
        base64_encode(&message::question(identifier), Alphabet::Standard, &mut question);
        let question: String = question.iter().map(|b| escaped(*b)).collect();
        let slash = if uri.ends_with('/') { "" } else { "/" };
        let request = Request::get(format!("{uri}{slash}{question}")).body(Full::default());
        let answer = self.fetch.ask(request.map_err(|e| e.to_string())?).await;
        let answer = answer.map_err(|e| format!("OCSP responder {uri}: {e}"))?;
        if answer.status != 200 {
            return Err(format!("OCSP responder {uri} sent status {}", answer.status));
        }
        Ok(answer.body)
    }
}

/// What base64 has and a path should not (RFC 6960 appendix A.1).
fn escaped(byte: u8) -> String {
    match byte {
        b'+' => "%2B".to_owned(),
        b'/' => "%2F".to_owned(),
        b'=' => "%3D".to_owned(),
        other => char::from(other).to_string(),
    }
}

/// `ssl_ocsp`: asks about clients' certificates.
pub struct Clients {
    responder: Arc<Responder>,
    /// `ssl_ocsp leaf`
    leaf_only: bool,
    /// `ssl_ocsp_cache`
    cache: Option<Arc<Cache>>,
}

impl std::fmt::Debug for Clients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Clients({:?})", self.responder.uri)
    }
}

impl Clients {
    /// `zone`: name and size of `ssl_ocsp_cache`.
    pub fn new(responder: Responder, leaf_only: bool, zone: Option<&(Box<str>, usize)>) -> Clients {
        // What is kept is about certificates, whoever asks.
        let cache = zone.map(|(name, size)| Cache::new(Zone::shared(name, *size), [0; 32], MAX_KEPT));
        Clients { responder: Arc::new(responder), leaf_only, cache }
    }

    /// Checks a chain that was verified, the client's certificate first. The last of it, which is trusted, is not asked about.
    pub async fn check(&self, chain: Vec<CertificateDer<'static>>, now_s: i64) -> Result<(), Failure> {
        let pairs = chain.windows(2).take(if self.leaf_only { 1 } else { usize::MAX });
        for pair in pairs {
            let asked = self.status(&pair[0], &pair[1], now_s).await;
            match asked {
                Ok(Status::Good) => {}
                Ok(Status::Revoked) => return Err(Failure::REVOKED),
                Ok(Status::Unknown) => return Err(Failure::OCSP_UNKNOWN),
                Err(text) => {
                    process_line(Level::Error, format_args!("{text} while checking a client's certificate"));
                    return Err(Failure::OCSP_FAILED);
                }
            }
        }
        Ok(())
    }

    async fn status(
        &self,
        der: &CertificateDer<'static>,
        issuer: &CertificateDer<'static>,
        now_s: i64,
    ) -> Result<Status, String> {
        let malformed = |BadDer| "the certificate is malformed".to_owned();
        let identifier = {
            let (certificate, issuer) = (Certificate::parse(der), Certificate::parse(issuer));
            message::identifier(&certificate.map_err(malformed)?, &issuer.map_err(malformed)?).map_err(malformed)?
        };
        if let Some(status) = self.cache.as_ref().and_then(|c| known(c, &identifier, now_s)) {
            return Ok(status);
        }
        let (responder, id) = (self.responder.clone(), identifier.clone());
        let (der, issuer) = (der.clone(), issuer.clone());
        let asked = crate::service::ask(move || async move {
            let certificate = Certificate::parse(&der).map_err(malformed)?;
            let issuer = Certificate::parse(&issuer).map_err(malformed)?;
            let answer = responder.ask(&certificate, &id).await?;
            message::check(&answer, &id, Some((&issuer, &responder.algorithms)), now_s)
        });
        let found = asked.await.unwrap_or_else(|| Err("the OCSP request failed".to_owned()))?;
        if let Some(cache) = &self.cache {
            keep(cache, identifier, found);
        }
        Ok(found.status)
    }
}

/// A status that was kept: a byte for it, then until when it holds.
fn known(cache: &Cache, identifier: &[u8], now_s: i64) -> Option<Status> {
    let kept = cache.get(identifier)?;
    let (status, valid_s) = kept.split_first()?;
    let valid_s = i64::from_be_bytes(valid_s.try_into().ok()?);
    [Status::Good, Status::Revoked, Status::Unknown].into_iter().find(|s| *s as u8 == *status && valid_s >= now_s)
}

fn keep(cache: &Cache, identifier: Vec<u8>, found: Judged) {
    let value = [&[found.status as u8][..], &found.valid_s.to_be_bytes()].concat();
    cache.put(identifier, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_is_known_until_it_ends() {
        let cache = Cache::new(Zone::private(4096), [0; 32], MAX_KEPT);
        keep(&cache, b"one".to_vec(), Judged { status: Status::Revoked, valid_s: 100 });
        assert_eq!(known(&cache, b"one", 100), Some(Status::Revoked));
        assert_eq!((known(&cache, b"one", 101), known(&cache, b"two", 1)), (None, None));
    }

    #[test]
    fn addresses_of_responders() {
        assert_eq!(Responder::check_uri("HTTP://127.0.0.1:8080/x"), Ok(()));
        assert_eq!(Responder::check_uri("http://[::1]:80"), Ok(()));
        for (bad, why) in [
            ("https://a/", "invalid URL prefix in OCSP responder \"https://a/\""),
            ("http://", "invalid URL prefix in OCSP responder \"http://\""),
            ("é", "invalid URL prefix in OCSP responder \"é\""),
            ("http:///x", "invalid URL in OCSP responder \"/x\""),
            ("http://a:x/", "invalid port in OCSP responder \"a:x/\""),
            ("http://a:0", "invalid port in OCSP responder \"a:0\""),
        ] {
            assert_eq!(Responder::check_uri(bad), Err(why.to_owned()));
        }
    }
}
