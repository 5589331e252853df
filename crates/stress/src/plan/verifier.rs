//! Looks at the target's certificate, and notes that it did.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    static LOOKED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a certificate came on this thread since the last call. A handshake in which none did has resumed a session: the QUIC
/// library does not say so itself.
pub(crate) fn has_looked() -> bool {
    LOOKED.take()
}

/// Takes what `--cacert` allows; without it any certificate, but not a wrong signature: the handshake costs what it costs everyone.
#[derive(Debug)]
pub(super) struct Verifier {
    pub provider: Arc<CryptoProvider>,
    pub allowed: Option<Allowed>,
}

/// What `--cacert` names.
#[derive(Debug)]
pub(super) struct Allowed {
    certificates: Vec<CertificateDer<'static>>,
    signed: Arc<WebPkiServerVerifier>,
}

impl Allowed {
    /// An error is a sentence for the user.
    pub(super) fn new(
        certificates: Vec<CertificateDer<'static>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Allowed, String> {
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            roots.add(certificate.clone()).map_err(|e| e.to_string())?;
        }
        let signed = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        Ok(Allowed { certificates, signed: signed.build().map_err(|e| e.to_string())? })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        LOOKED.set(true);
        match &self.allowed {
            None => {}
            // One that signs itself, as `openssl req -x509` makes them: for the library it is an authority and may be no server.
            Some(allowed) if allowed.certificates.contains(end) => {
                verify_server_name(&ParsedCertificate::try_from(end)?, name)?;
            }
            Some(allowed) => return allowed.signed.verify_server_cert(end, intermediates, name, ocsp, now),
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
