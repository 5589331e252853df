//! What a server block needs to accept TLS: made of its `ssl_*` values when the configuration is read.

use super::certificate::{self, Read};
use super::ciphers;
use crate::modules::ssl::{ServerSettings, VerifyClient};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::path::Path;
use std::sync::Arc;

/// A server's side of handshakes.
#[derive(Debug)]
pub struct Context {
    /// For the library; without certificate where all handshakes are refused.
    pub config: Arc<ServerConfig>,
    /// `ssl_verify_client`
    pub verify: VerifyClient,
    /// `ssl_buffer_size`
    pub buffer_size: usize,
    /// `ssl_reject_handshake`
    pub reject: bool,
}

/// What was not quite right.
#[derive(Default)]
pub struct Complaints {
    /// Stops the start.
    pub errors: Vec<String>,
    /// Does not.
    pub warnings: Vec<String>,
}

/// Certificates of one server: the first that fits what the client can check.
#[derive(Debug)]
struct Certificates(Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let schemes = hello.signature_schemes();
        let fitting = |scheme| self.0.iter().find(|c| c.key.choose_scheme(&[scheme]).is_some());
        schemes.iter().find_map(|s| fitting(*s)).cloned()
    }
}

/// Makes the context of a server that has a certificate or refuses handshakes.
pub fn build(conf: &ServerSettings, read: Read<'_>, prefix: &Path) -> (Option<Context>, Complaints) {
    let mut complaints = Complaints::default();
    let context = try_build(conf, read, prefix, &mut complaints);
    let context = context.map_err(|e| complaints.errors.push(e)).ok();
    (context, complaints)
}

fn try_build(
    conf: &ServerSettings,
    read: Read<'_>,
    prefix: &Path,
    complaints: &mut Complaints,
) -> Result<Context, String> {
    let provider = Arc::new(provider(conf, complaints)?);
    let mut keys = Vec::new();
    for (cert, key) in conf.certificate.iter().zip(conf.certificate_key.iter()) {
        let loaded = certificate::load(read, prefix, cert, key, &[], &provider);
        keys.push(Arc::new(loaded.map_err(|e| e.text(cert, key))?));
    }
    let versions: Vec<_> = conf.protocols.versions().collect();
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .map_err(|e| format!("SSL_CTX_new() failed (SSL: {e})"))?
        .with_no_client_auth();
    let mut config = config.with_cert_resolver(Arc::new(Certificates(keys)));
    config.ignore_client_order = *conf.prefer_server_ciphers;
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"http/1.0".to_vec(), b"http/0.9".to_vec()];
    Ok(Context {
        config: Arc::new(config),
        verify: *conf.verify_client,
        buffer_size: *conf.buffer_size as usize,
        reject: *conf.reject_handshake,
    })
}

/// `ssl_ciphers`, `ssl_ecdh_curve`
fn provider(conf: &ServerSettings, complaints: &mut Complaints) -> Result<CryptoProvider, String> {
    let text = String::from_utf8_lossy(&conf.ciphers).into_owned();
    let list = ciphers::tls12(&text);
    if list.suites.is_empty() {
        return Err(format!("SSL_CTX_set_cipher_list(\"{text}\") failed (SSL: no cipher match)"));
    }
    complain(complaints, "ssl_ciphers", &list.absent, &list.unknown);
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites = ciphers::all_tls13().into_iter().chain(list.suites).collect();
    provider.kx_groups = match String::from_utf8_lossy(&conf.ecdh_curve).as_ref() {
        "auto" => ciphers::default_groups(),
        text => {
            let list = ciphers::groups(text);
            if !list.unknown.is_empty() || list.groups.is_empty() {
                return Err(format!("SSL_CTX_set1_curves_list(\"{text}\") failed"));
            }
            complain(complaints, "ssl_ecdh_curve", &list.absent, &[]);
            list.groups
        }
    };
    Ok(provider)
}

fn complain(complaints: &mut Complaints, directive: &str, absent: &[String], unknown: &[String]) {
    if !absent.is_empty() {
        let text = format!("\"{}\" in \"{directive}\" is not supported, ignored", absent.join(":"));
        complaints.warnings.push(text);
    }
    if !unknown.is_empty() {
        complaints.warnings.push(format!("\"{}\" in \"{directive}\" does not exist, ignored", unknown.join(":")));
    }
}
