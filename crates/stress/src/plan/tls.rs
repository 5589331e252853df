//! How TLS is spoken in a run: certificates, names, sessions.

use super::Http;
use super::url::{Scheme, Url};
use crate::options::Options;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::path::Path;
use std::sync::Arc;

/// Sessions kept for resumption: more than any target has names.
const SESSIONS: usize = 1024;

/// What every TLS connection of a run needs.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Shared by all threads, with the sessions to be resumed.
    pub config: Arc<ClientConfig>,
    /// What is asked for.
    pub name: ServerName<'static>,
}

impl Tls {
    /// From the options; nothing if the URL does not ask for TLS.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn new(url: &Url, options: &Options, http: Http) -> Result<Option<Tls>, String> {
        if !url.scheme.is_encrypted() {
            return Ok(None);
        }
        let name = options.sni.clone().unwrap_or_else(|| url.host.clone());
        let name = ServerName::try_from(name.clone())
            .map_err(|_| format!("\"{name}\" is no name for TLS; --sni gives another"))?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(|e| e.to_string())?;
        let builder = match options.cacert.as_deref().filter(|_| !options.insecure) {
            Some(file) => {
                let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(file)?), provider);
                builder.with_webpki_verifier(verifier.build().map_err(|e| format!("{}: {e}", file.display()))?)
            }
            None => builder.dangerous().with_custom_certificate_verifier(Arc::new(Unchecked(provider))),
        };
        let mut config = match (&options.cert, &options.key) {
            (Some(cert), Some(key)) => {
                let chain = certificates(cert)?;
                let key = PrivateKeyDer::from_pem_file(key).map_err(|e| format!("{}: {e}", key.display()))?;
                builder.with_client_auth_cert(chain, key).map_err(|e| format!("{}: {e}", cert.display()))?
            }
            (None, None) => builder.with_no_client_auth(),
            _ => return Err("--cert and --key go together".to_owned()),
        };
        let resumption =
            if options.no_resumption { Resumption::disabled() } else { Resumption::in_memory_sessions(SESSIONS) };
        config.resumption = resumption;
        if matches!(url.scheme, Scheme::Https | Scheme::Wss) {
            config.alpn_protocols = vec![if http == Http::Two { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
        }
        Ok(Some(Tls { config: Arc::new(config), name }))
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
    let list = CertificateDer::pem_file_iter(file).map_err(|e| wrong(&e))?;
    list.collect::<Result<Vec<_>, _>>().map_err(|e| wrong(&e))
}

fn roots(file: &Path) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(file)? {
        store.add(certificate).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(store)
}

/// Takes any certificate, but not a wrong signature: the handshake costs what it costs everyone.
#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
