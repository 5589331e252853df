//! Signatures by the library's algorithms: on certificates, lists and answers, and in handshakes.

use crate::tls::der::{BadDer, Der, tag};
use crate::tls::x509::Certificate;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::CertificateDer;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

/// Whether the owner of a key has signed a message. `spki`: the key, DER with its head. `algorithm`: without head.
pub fn is_good(
    algorithms: &WebPkiSupportedAlgorithms,
    spki: &[u8],
    algorithm: &[u8],
    message: &[u8],
    signature: &[u8],
) -> bool {
    let Ok((key_algorithm, key)) = key(spki) else { return false };
    let mut fitting = algorithms
        .all
        .iter()
        .filter(|a| a.signature_alg_id().as_ref() == algorithm && a.public_key_alg_id().as_ref() == key_algorithm);
    fitting.any(|a| a.verify_signature(key, message, signature).is_ok())
}

/// A public key: its algorithm without head, and the key itself.
fn key(spki: &[u8]) -> Result<(&[u8], &[u8]), BadDer> {
    let mut spki = Der::new(spki).sequence()?;
    let algorithm = spki.expect(tag::SEQUENCE)?;
    Ok((algorithm, spki.bit_string()?))
}

/// Checks what a certificate's owner signed in a handshake. Unlike webpki's it takes certificates of version 1.
pub fn in_handshake(
    algorithms: &WebPkiSupportedAlgorithms,
    message: &[u8],
    cert: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    tls13: bool,
) -> Result<HandshakeSignatureValid, Error> {
    let bad = |e| Error::InvalidCertificate(e);
    let old = matches!(
        signed.scheme,
        SignatureScheme::RSA_PKCS1_SHA256 | SignatureScheme::RSA_PKCS1_SHA384 | SignatureScheme::RSA_PKCS1_SHA512
    );
    let cert = Certificate::parse(cert).map_err(|_| bad(CertificateError::BadEncoding))?;
    let (key_algorithm, key) = key(cert.spki).map_err(|_| bad(CertificateError::BadEncoding))?;
    let known = algorithms.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme);
    let known = known.filter(|_| !(tls13 && old)).map_or(&[][..], |(_, list)| list);
    // Since TLS 1.3 a scheme stands for one curve: the first of those.
    let known = if tls13 { &known[..known.len().min(1)] } else { known };
    let mut fitting = known.iter().filter(|a| a.public_key_alg_id().as_ref() == key_algorithm);
    if fitting.any(|a| a.verify_signature(key, message, signed.signature()).is_ok()) {
        return Ok(HandshakeSignatureValid::assertion());
    }
    Err(bad(CertificateError::BadSignature))
}
