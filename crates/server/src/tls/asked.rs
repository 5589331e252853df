//! What the library asks in a handshake: which certificate to show, and what to think of a client's.

use super::notes;
use super::ocsp::stapling::Staple;
use super::verify::signature;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::sync::Arc;

/// Certificates of one server, one for each kind of key: the first that fits what the client can check.
#[derive(Debug)]
pub struct Certificates(Vec<Shown>);

/// A certificate, and the answer of a responder to show with it.
#[derive(Debug)]
struct Shown {
    pair: Arc<CertifiedKey>,
    staple: Option<Arc<Staple>>,
}

impl Certificates {
    /// Of two of a kind the later one counts, as in OpenSSL.
    pub fn new(all: impl IntoIterator<Item = (CertifiedKey, Option<Arc<Staple>>)>) -> Certificates {
        let mut kept: Vec<Shown> = Vec::new();
        for (mut pair, staple) in all {
            pair.key = notes::signing(pair.key);
            kept.retain(|k| k.pair.key.algorithm() != pair.key.algorithm());
            kept.push(Shown { pair: Arc::new(pair), staple });
        }
        Certificates(kept)
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let schemes = hello.signature_schemes();
        let fitting = |scheme| self.0.iter().find(|c| c.pair.key.choose_scheme(&[scheme]).is_some());
        // With one that does not fit the library finds what is not in common, and says so.
        let shown = schemes.iter().find_map(|s| fitting(*s)).or(self.0.first())?;
        match shown.staple.as_ref().and_then(|s| s.current()) {
            None => Some(shown.pair.clone()),
            Some(answer) => Some(Arc::new(CertifiedKey { ocsp: Some(answer.to_vec()), ..(*shown.pair).clone() })),
        }
    }
}

/// Asks for a certificate and takes any, or none: the request is told what is wrong with it, as in nginx. Only that it is
/// the client's own is checked in the handshake.
#[derive(Debug)]
pub(super) struct AskClient {
    pub(super) hints: Vec<DistinguishedName>,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AskClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        notes::client_signed_by(signed.scheme);
        signature::in_handshake(&self.algorithms, message, cert, signed, false)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        notes::client_signed_by(signed.scheme);
        signature::in_handshake(&self.algorithms, message, cert, signed, true)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
