//! How TLS is spoken in a run: certificates, names, sessions.

use super::Http;
use super::url::{Scheme, Url};
use super::verifier::{Allowed, Verifier};
use crate::options::Options;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{NoneTokenStore, TransportConfig, VarInt};
use rustls::client::{ClientConfig, Resumption};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{DEFAULT_VERSIONS, version};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Sessions kept for resumption: more than any target has names.
const SESSIONS: usize = 1024;
/// One-way streams that a target may open: HTTP/3 needs three, and some open others to see whether that is borne.
const ONE_WAY_STREAMS: u32 = 16;

/// What every TLS connection of a run needs.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Shared by all threads, with the sessions to be resumed.
    pub config: Arc<ClientConfig>,
    /// What is asked for.
    pub name: ServerName<'static>,
    /// The same for QUIC, with its limits; `None`: another HTTP is spoken.
    pub quic: Option<quinn_proto::ClientConfig>,
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
        let allow = |file: &PathBuf| {
            Allowed::new(certificates(file)?, &provider).map_err(|e| format!("{}: {e}", file.display()))
        };
        let allowed = options.cacert.as_ref().filter(|_| !options.insecure).map(allow).transpose()?;
        let verifier = Verifier { provider: provider.clone(), allowed };
        let versions = if http == Http::Three { &[&version::TLS13][..] } else { DEFAULT_VERSIONS };
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions);
        let builder =
            builder.map_err(|e| e.to_string())?.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
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
            config.alpn_protocols = vec![http.alpn().to_vec()];
        }
        let config = Arc::new(config);
        let quic = (http == Http::Three).then(|| quic(config.clone(), options.no_resumption)).transpose()?;
        Ok(Some(Tls { config, name, quic }))
    }
}

/// QUIC for a client that reads whatever comes: no window of its own limits the target.
fn quic(tls: Arc<ClientConfig>, is_new_each_time: bool) -> Result<quinn_proto::ClientConfig, String> {
    let crypto = QuicClientConfig::try_from(tls).map_err(|e| e.to_string())?;
    let mut transport = TransportConfig::default();
    transport.max_concurrent_bidi_streams(0_u32.into()).max_concurrent_uni_streams(ONE_WAY_STREAMS.into());
    transport.stream_receive_window(u32::MAX.into()).receive_window(VarInt::MAX);
    transport.datagram_receive_buffer_size(None);
    let mut config = quinn_proto::ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport));
    if is_new_each_time {
        config.token_store(Arc::new(NoneTokenStore));
    }
    Ok(config)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
    let list = CertificateDer::pem_file_iter(file).map_err(|e| wrong(&e))?;
    list.collect::<Result<Vec<_>, _>>().map_err(|e| wrong(&e))
}
