//! What proves control of a name while an order is in course. Any thread may be asked for it: as a file
//! (`http-01`, by `modules::acme`) or as a certificate in a handshake (`tls-alpn-01`, by `connection::handshake`).

use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The protocol of handshakes that ask for a proof (RFC 8737 section 6.2), as a client offers it by ALPN.
pub const ALPN: &[u8] = b"acme-tls/1";

/// A proof that is on offer until this is dropped.
#[derive(Debug)]
pub struct Offer(usize);

struct Proof {
    id: usize,
    /// A token, or the name asked for in the handshake.
    asked: String,
    shown: Shown,
}

enum Shown {
    Text(Arc<str>),
    Certificate(Arc<ServerConfig>),
}

static PROOFS: Mutex<Vec<Proof>> = Mutex::new(Vec::new());
/// How many there are, for those who ask at every request.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicUsize = AtomicUsize::new(0);

fn proofs() -> MutexGuard<'static, Vec<Proof>> {
    PROOFS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn offer(asked: String, shown: Shown) -> Offer {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut proofs = proofs();
    proofs.push(Proof { id, asked, shown });
    COUNT.store(proofs.len(), Ordering::Release);
    Offer(id)
}

impl Drop for Offer {
    fn drop(&mut self) {
        let mut proofs = proofs();
        proofs.retain(|p| p.id != self.0);
        COUNT.store(proofs.len(), Ordering::Release);
    }
}

/// Offers the text of a token (RFC 8555 section 8.3).
pub fn offer_text(token: &str, authorization: &str) -> Offer {
    offer(token.to_owned(), Shown::Text(authorization.into()))
}

/// Offers a certificate with the digest of the key authorization (RFC 8737 section 3). `name`: what is asked for in the
/// handshake. `identifier`: what the certificate is for, which is the same but for addresses.
pub fn offer_certificate(name: String, identifier: String, digest: &[u8]) -> Result<Offer, String> {
    let failed = |e: rcgen::Error| format!("the certificate for the challenge could not be made ({e})");
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    let mut params = CertificateParams::new([identifier]).map_err(failed)?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let certificate = params.self_signed(&key).map_err(failed)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let signing = provider.key_provider.load_private_key(PrivatePkcs8KeyDer::from(key.serialize_der()).into());
    let signing = signing.map_err(|e| e.to_string())?;
    // Not looked at by the library, which does not know the critical extension that this is all about.
    let pair = SingleCertAndKey::from(CertifiedKey::new(vec![certificate.der().clone()], signing));
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|e| e.to_string())?.with_no_client_auth();
    let mut config = config.with_cert_resolver(Arc::new(pair));
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(offer(name, Shown::Certificate(Arc::new(config))))
}

/// Whether anything is on offer. Costs nothing.
pub fn any() -> bool {
    COUNT.load(Ordering::Acquire) > 0
}

/// The text for a token.
pub fn text(token: &[u8]) -> Option<Arc<str>> {
    proofs().iter().find_map(|p| match &p.shown {
        Shown::Text(text) if p.asked.as_bytes() == token => Some(text.clone()),
        _ => None,
    })
}

/// The certificate for a name.
pub fn certificate(name: &[u8]) -> Option<Arc<ServerConfig>> {
    proofs().iter().find_map(|p| match &p.shown {
        Shown::Certificate(config) if p.asked.as_bytes().eq_ignore_ascii_case(name) => Some(config.clone()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_are_there_as_long_as_they_are_offered() {
        let first = offer_text("token-1", "token-1.print");
        let second = offer_certificate("a.test".into(), "a.test".into(), &[7; 32]).expect("made");
        assert!(any());
        assert_eq!(text(b"token-1").as_deref(), Some("token-1.print"));
        assert!(text(b"a.test").is_none() && certificate(b"token-1").is_none());
        assert!(certificate(b"A.test").is_some_and(|c| c.alpn_protocols == [ALPN]));
        drop((first, second));
        assert!(text(b"token-1").is_none() && certificate(b"a.test").is_none());
    }
}
