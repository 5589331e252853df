//! What a proxy needs to speak TLS to its peers: made of its `proxy_ssl_*` values (or those of another protocol) when the
//! configuration is read.

use super::certificate::{self, Source};
use super::commands::Options;
use super::dynamic::Dynamic;
use super::notes;
use super::server::{Complaints, provider};
use super::verify::{self, Purpose, Trust};
use crate::config::complex::Complex;
use crate::request::Request;
use crate::upstream::settings::SslSettings;
use aws_lc_rs::digest::{Context as Digest, SHA256};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, ResolvesClientCert, Resumption, Tls12ClientSessionValue,
    Tls13ClientSessionValue,
};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, DigitallySignedStruct, Error, NamedGroup, ProtocolVersion, SignatureScheme};
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

/// Sessions that are kept for each peer.
const SESSIONS: usize = 16;
/// Peers of which sessions are kept, for each context.
const PEERS: usize = 1024;

/// A proxy's side of handshakes.
#[derive(Debug)]
pub struct Context {
    config: Arc<ClientConfig>,
    dynamic: Option<Dynamic>,
    /// Whom peers' certificates must come from, with `proxy_ssl_verify`.
    trust: Option<Trust>,
    name: Option<Complex>,
    /// The one that is spoken, where the settings leave no choice.
    only_version: Option<ProtocolVersion>,
    /// What makes two contexts the same: connections made under one are good for the other.
    identity: [u8; 32],
}

/// What one request asks of a connection.
#[derive(Debug)]
pub struct Secure {
    context: Arc<Context>,
    config: Arc<ClientConfig>,
    /// Whom the peer must be: a host's name without port.
    pub name: Box<[u8]>,
    /// Connections of another identity are not for this request: other settings, name or certificate.
    pub identity: Arc<[u8]>,
}

impl Context {
    /// What a request asks. `host`: the name in the url of the pass. An error is for the log.
    pub fn secure(self: &Arc<Self>, r: &mut Request, host: &[u8]) -> Result<Secure, String> {
        let name: Box<[u8]> = match &self.name {
            Some(name) => {
                let text = name.eval(r);
                without_port(r.get(text)).into()
            }
            None => without_port(host).into(),
        };
        let mut identity = [&self.identity[..], &name].concat();
        let config = match &self.dynamic {
            None => self.config.clone(),
            Some(dynamic) => {
                let names = dynamic.first().ok_or("no certificate")?;
                let (certificate, key) = (names.0.eval(r), names.1.eval(r));
                if r.get(certificate).is_empty() {
                    self.config.clone()
                } else {
                    for text in [certificate, key] {
                        identity.push(0);
                        identity.extend_from_slice(r.get(text));
                    }
                    let pair = dynamic.certificate(r, names.0, names.1, self.config.crypto_provider())?;
                    let mut config = (*self.config).clone();
                    config.client_auth_cert_resolver = Arc::new(OneCertificate(Arc::new(pair)));
                    Arc::new(config)
                }
            }
        };
        Ok(Secure { context: self.clone(), config, name, identity: identity.into() })
    }
}

impl Context {
    /// With protocols that are asked for by ALPN.
    fn speaking(mut self, protocols: &[&[u8]]) -> Context {
        Arc::make_mut(&mut self.config).alpn_protocols = protocols.iter().map(|p| p.to_vec()).collect();
        self
    }

    /// What makes two contexts the same.
    pub fn identity(&self) -> &[u8; 32] {
        &self.identity
    }

    /// Whether it knows whom certificates must come from.
    pub fn verifies(&self) -> bool {
        self.trust.is_some()
    }

    /// What a health check asks: as a request without variables would. `protocols`: offered by ALPN. Sessions are not
    /// resumed, so that each check sees the certificate.
    pub fn for_checks(self: &Arc<Self>, host: &[u8], protocols: &[&[u8]]) -> Secure {
        let mut config = (*self.config).clone();
        config.resumption = Resumption::disabled();
        config.alpn_protocols = protocols.iter().map(|p| p.to_vec()).collect();
        let name = self.name.as_ref().and_then(Complex::as_fixed).unwrap_or(host);
        let name = without_port(name).into();
        Secure { context: self.clone(), config: Arc::new(config), name, identity: Arc::default() }
    }
}

impl Secure {
    /// Another name for it: the peer must have that.
    pub fn rename(&mut self, name: &[u8]) {
        self.name = without_port(name).into();
        self.identity = [&self.identity[..], b"\0", name].concat().into();
    }

    /// The version of the protocol that will be spoken, if that is settled before anything is said.
    pub fn only_version(&self) -> Option<ProtocolVersion> {
        self.context.only_version
    }

    /// For the library.
    pub fn config(&self) -> Arc<ClientConfig> {
        self.config.clone()
    }

    /// The name for the library, which sends it if it is one and `proxy_ssl_server_name` says so.
    pub fn server_name(&self) -> ServerName<'static> {
        let text = std::str::from_utf8(&self.name).unwrap_or_default();
        let name = ServerName::try_from(text.to_owned()).ok();
        // Without a name there is nothing to send; the address stands for it.
        name.unwrap_or(ServerName::IpAddress(IpAddr::V4(Ipv4Addr::UNSPECIFIED).into()))
    }

    /// The same for a program's socket, in OpenSSL's words: the name is judged if there is one.
    ///
    /// # Errors
    /// `18: self-signed certificate`, `certificate host mismatch`.
    pub fn verify_for(&self, chain: &[CertificateDer<'_>], name: Option<&[u8]>, now_s: i64) -> Result<(), String> {
        let Some(trust) = &self.context.trust else { return Ok(()) };
        // ngx_lua puts a blank where nginx has none.
        let explained = |failure: verify::Failure| failure.to_string().replacen(':', ": ", 1);
        trust.verify(chain, Purpose::Server, now_s).map_err(explained)?;
        match (name, chain.first()) {
            (Some(name), Some(leaf)) if !verify::host::is_for_host(leaf, without_port(name)) => {
                Err("certificate host mismatch".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Whether the peer's certificates are looked at.
    pub fn verifies(&self) -> bool {
        self.context.verifies()
    }

    /// What is wrong with a peer's certificates.
    pub fn verify(&self, chain: &[CertificateDer<'_>], now_s: i64) -> Result<(), Distrust> {
        let Some(trust) = &self.context.trust else { return Ok(()) };
        trust.verify(chain, Purpose::Server, now_s).map_err(Distrust::Chain)?;
        if chain.first().is_some_and(|leaf| verify::host::is_for_host(leaf, &self.name)) {
            return Ok(());
        }
        Err(Distrust::Name(String::from_utf8_lossy(&self.name).into()))
    }
}

/// Why a peer is not who it must be; as text in nginx's words.
#[derive(Debug)]
pub enum Distrust {
    /// Its certificate, or one that it stands on, is no good.
    Chain(verify::Failure),
    /// Its certificate is not for this name.
    Name(Box<str>),
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distrust::Chain(failure) => write!(f, "upstream SSL certificate verify error: ({failure})"),
            Distrust::Name(name) => write!(f, "upstream SSL certificate does not match \"{name}\""),
        }
    }
}

/// A host without its port (`ngx_http_upstream_ssl_name`).
fn without_port(host: &[u8]) -> &[u8] {
    let from = if host.first() == Some(&b'[') { memchr::memchr(b']', host).unwrap_or(0) } else { 0 };
    let end = memchr::memchr(b':', &host[from..]).map_or(host.len(), |at| from + at);
    &host[..end]
}

/// Makes a context. `prefix`: of the directives, for messages: `proxy`. `alpn`: what is asked for.
pub fn build(
    conf: &SslSettings,
    prefix: &str,
    alpn: &[&[u8]],
    source: Source<'_>,
    dynamic: Option<Dynamic>,
) -> (Option<Context>, Complaints) {
    let mut complaints = Complaints::default();
    let context = try_build(conf, prefix, source, dynamic, &mut complaints);
    let context = context.map(|c| c.speaking(alpn)).map_err(|e| complaints.errors.push(e)).ok();
    (context, complaints)
}

fn try_build(
    conf: &SslSettings,
    prefix: &str,
    source: Source<'_>,
    dynamic: Option<Dynamic>,
    complaints: &mut Complaints,
) -> Result<Context, String> {
    let mut options = Options::new(*conf.protocols, &conf.ciphers, b"auto");
    options.apply(&conf.conf_commands)?;
    let provider = Arc::new(provider(&options, &format!("{prefix}_ssl_ciphers"), "Groups", complaints)?);
    let algorithms = provider.signature_verification_algorithms;
    let mut digest = Digest::new(&SHA256);
    digest.update(format!("{conf:?}").as_bytes());
    let mut kept = |bytes: &[u8]| digest.update(bytes);
    let certificate = certificate(conf, prefix, &options, source, dynamic.is_some(), &provider)?;
    if let Some(c) = &certificate {
        c.cert.iter().for_each(|c| kept(c));
    }
    let mut trust = None;
    if *conf.verify {
        if conf.trusted_certificate.is_empty() {
            return Err(format!("no {prefix}_ssl_trusted_certificate for {prefix}_ssl_verify"));
        }
        let trusted = verify::load(source, &conf.trusted_certificate)?;
        trusted.iter().for_each(|c| kept(c));
        let (found, crl) = Trust::load(source, trusted, &conf.crl, *conf.verify_depth as usize, algorithms)?;
        kept(&crl);
        trust = Some(found);
    }
    let versions: Vec<_> = options.protocols.versions().collect();
    if versions.is_empty() {
        return Err("SSL_CTX_new() failed (SSL: no protocols available)".to_owned());
    }
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .map_err(|e| format!("SSL_CTX_new() failed (SSL: {e})"))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(algorithms)));
    let mut config = match certificate {
        None => builder.with_no_client_auth(),
        Some(pair) => builder.with_client_cert_resolver(Arc::new(OneCertificate(Arc::new(pair)))),
    };
    // A tunnel that is to be parked, or goes on in another process, goes on without the library (`connection::tls`).
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(notes::NoteSecrets);
    config.enable_sni = *conf.server_name;
    config.resumption = match *conf.session_reuse {
        true => Resumption::store(Arc::new(Sessions::default())),
        false => Resumption::disabled(),
    };
    let mut identity = [0; 32];
    identity.copy_from_slice(digest.finish().as_ref());
    let only_version = if let [only] = &versions[..] { Some(only.version) } else { None };
    Ok(Context { config: Arc::new(config), dynamic, trust, name: (*conf.name).clone(), only_version, identity })
}

fn certificate(
    conf: &SslSettings,
    prefix: &str,
    options: &Options,
    source: Source<'_>,
    is_dynamic: bool,
    provider: &rustls::crypto::CryptoProvider,
) -> Result<Option<CertifiedKey>, String> {
    let (mut certificate, mut key) = (&**conf.certificate, &**conf.certificate_key);
    if !certificate.is_empty() && key.is_empty() {
        let shown = certificate::shown(certificate);
        return Err(format!("no \"{prefix}_ssl_certificate_key\" is defined for certificate \"{shown}\""));
    }
    if let Some((c, k)) = &options.certificate {
        (certificate, key) = (c, if k.is_empty() { c } else { k });
    } else if is_dynamic {
        return Ok(None);
    }
    if certificate.is_empty() {
        return Ok(None);
    }
    certificate::load(source, certificate, key, &conf.passwords, provider).map(|loaded| Some(loaded.pair))
}

/// Shows this certificate, or none.
pub(crate) fn own_certificate(pair: Option<CertifiedKey>) -> Arc<dyn ResolvesClientCert> {
    match pair {
        Some(pair) => Arc::new(OneCertificate(Arc::new(pair))),
        None => Arc::new(NoCertificate),
    }
}

#[derive(Debug)]
struct NoCertificate;

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// The client's certificate, whoever asks for one.
#[derive(Debug)]
struct OneCertificate(Arc<CertifiedKey>);

impl ResolvesClientCert for OneCertificate {
    fn resolve(&self, _hints: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.key.choose_scheme(schemes).map(|_| self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Takes any certificate, as long as it is the peer's own.
pub(crate) fn unverified(algorithms: WebPkiSupportedAlgorithms) -> Arc<dyn ServerCertVerifier> {
    Arc::new(AnyServer(algorithms))
}

/// Takes those certificates that `proxy_ssl_verify` takes: the same judgement, made within the handshake.
pub(crate) fn verified(
    certificates: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
) -> Result<Arc<dyn ServerCertVerifier>, String> {
    let trust = Trust::new(certificates, None, verify::MAX_CHAIN, algorithms)?;
    Ok(Arc::new(TrustedServer { trust, any: AnyServer(algorithms) }))
}

/// Takes what leads to a trusted certificate and is for the server's name.
#[derive(Debug)]
struct TrustedServer {
    trust: Trust,
    any: AnyServer,
}

impl ServerCertVerifier for TrustedServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let chain: Vec<CertificateDer<'_>> = std::iter::once(end_entity).chain(intermediates).cloned().collect();
        let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let checked = self.trust.verify(&chain, Purpose::Server, now_s);
        checked.map_err(|failure| Error::General(format!("certificate verify error: ({failure})")))?;
        let name = server_name.to_str();
        if verify::host::is_for_host(end_entity, name.as_bytes()) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(Error::General(format!("certificate does not match \"{name}\"")))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.any.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.any.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.any.supported_verify_schemes()
    }
}

/// Takes any certificate: with `proxy_ssl_verify` it is looked at after the handshake, before anything is sent. That it is
/// the peer's own is checked here.
#[derive(Debug)]
struct AnyServer(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify::signature::in_handshake(&self.0, message, cert, signed, false)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify::signature::in_handshake(&self.0, message, cert, signed, true)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

/// Sessions of peers: the library tells them apart by name, but behind one name are several peers. Which one a call is
/// about is noted for the thread.
#[derive(Debug, Default)]
struct Sessions(Mutex<HashMap<u32, Arc<ClientSessionMemoryCache>>>);

impl Sessions {
    fn of_peer(&self) -> Arc<ClientSessionMemoryCache> {
        let mut peers = self.0.lock().expect("nothing panics while it is locked");
        if peers.len() >= PEERS {
            peers.clear();
        }
        let fresh = || Arc::new(ClientSessionMemoryCache::new(SESSIONS));
        peers.entry(notes::peer()).or_insert_with(fresh).clone()
    }
}

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, name: ServerName<'static>, group: NamedGroup) {
        self.of_peer().set_kx_hint(name, group);
    }

    fn kx_hint(&self, name: &ServerName<'_>) -> Option<NamedGroup> {
        self.of_peer().kx_hint(name)
    }

    fn set_tls12_session(&self, name: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.of_peer().set_tls12_session(name, value);
    }

    fn tls12_session(&self, name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.of_peer().tls12_session(name)
    }

    fn remove_tls12_session(&self, name: &ServerName<'static>) {
        self.of_peer().remove_tls12_session(name);
    }

    fn insert_tls13_ticket(&self, name: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.of_peer().insert_tls13_ticket(name, value);
    }

    fn take_tls13_ticket(&self, name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.of_peer().take_tls13_ticket(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_without_ports() {
        for (host, bare) in [("a:443", "a"), ("a", "a"), ("[::1]:443", "[::1]"), ("[::1]", "[::1]"), ("", "")] {
            assert_eq!(without_port(host.as_bytes()), bare.as_bytes());
        }
    }
}
