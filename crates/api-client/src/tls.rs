//! HTTPS to the API: certificates of authorities that the system knows, or of those in a file, or none at all where that is asked for.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::path::Path;
use std::sync::Arc;

/// Which certificates are believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Those of the system's authorities.
    #[default]
    System,
    /// Those in a file, and of the authorities in it.
    File(String),
    /// Any.
    Blind,
}

/// How TLS is spoken. Errors are sentences for the user.
pub(crate) fn config(trust: &Trust) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut verifier = Verifier { provider: provider.clone(), named: Vec::new(), signed: None };
    let mut roots = RootCertStore::empty();
    match trust {
        Trust::Blind => {}
        Trust::System => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
        }
        Trust::File(file) => {
            let wrong = |e: &dyn std::fmt::Display| format!("{file}: {e}");
            let list = CertificateDer::pem_file_iter(Path::new(file)).map_err(|e| wrong(&e))?;
            verifier.named = list.collect::<Result<_, _>>().map_err(|e| wrong(&e))?;
            roots.add_parsable_certificates(verifier.named.iter().cloned());
        }
    }
    if *trust != Trust::Blind {
        let signed = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
        verifier.signed = Some(signed.map_err(|e| format!("no authority is known ({e}): --cacert names one"))?);
    }
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| e.to_string())?.dangerous();
    Ok(Arc::new(builder.with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth()))
}

#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    /// Certificates that are believed themselves, as `openssl req -x509` makes them.
    named: Vec<CertificateDer<'static>>,
    /// None: any is.
    signed: Option<Arc<WebPkiServerVerifier>>,
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
        match &self.signed {
            None => {}
            Some(_) if self.named.contains(end) => verify_server_name(&ParsedCertificate::try_from(end)?, name)?,
            Some(signed) => return signed.verify_server_cert(end, intermediates, name, ocsp, now),
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
