//! What a server block needs to accept TLS: made of its `ssl_*` values when the configuration is read.

use super::asked::{AskClient, Certificates};
use super::certificate::{self, Source};
use super::ciphers;
use super::commands::Options;
use super::dynamic::Dynamic;
use super::expiry::Held;
use super::notes;
use super::ocsp::stapling::Staple;
use super::ocsp::{Clients, Responder};
use super::sessions::{Cache, Zone};
use super::tickets::{Scope, TicketKey, Tickets};
use super::verify::{self, Trust};
use crate::config::Subsystem;
use crate::fetch::Fetch;
use crate::tls::settings::{Alpn, Ocsp, Protocols, QuicProtocols, ServerSettings, SessionCache, VerifyClient};
use aws_lc_rs::digest::{Context as Digest, SHA256};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, DistinguishedName, NoKeyLog, ServerConfig};
use std::sync::Arc;
use wire::tls::is_grease;

/// What sessions of `ssl_session_cache builtin` may take, in bytes for each.
const BUILTIN_SESSION: usize = 1024;
/// What a client may send before the handshake is complete (`ssl_early_data`), in bytes: OpenSSL's limit.
const MAX_EARLY_DATA: u32 = 16 * 1024;

/// Ciphers that are fast where nothing is built in for AES.
const CHACHA: [CipherSuite; 3] = [
    CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
];

/// A server's side of handshakes.
#[derive(Debug)]
pub struct Context {
    /// For the library; without certificate where all handshakes are refused.
    pub config: Arc<ServerConfig>,
    /// The same for clients that put ChaCha first (`ssl_conf_command Options PrioritizeChaCha`): their order holds.
    pub chacha_first: Option<Arc<ServerConfig>>,
    /// The same for QUIC connections, where they are listened for.
    pub quic: Option<Arc<ServerConfig>>,
    /// Certificates whose names have variables.
    pub dynamic: Option<Dynamic>,
    /// Whom clients' certificates must come from, if they are asked for.
    pub trust: Option<Arc<Trust>>,
    /// `ssl_verify_client`
    pub verify: VerifyClient,
    /// `ssl_buffer_size`, in bytes.
    pub buffer_size: usize,
    /// `ssl_reject_handshake`
    pub reject: bool,
    /// `ssl_ocsp`: clients' certificates are asked about.
    pub ocsp: Option<Clients>,
    /// `ssl_stapling`: answers that are shown with certificates.
    pub staples: Vec<Arc<Staple>>,
    /// The certificates, but those of which the names have variables.
    pub certificates: Vec<Held>,
    /// What sessions of this server belong to.
    pub scope: Scope,
    /// How clients are asked for their certificates, if they are.
    asker: Option<Arc<AskClient>>,
    /// `ssl_protocols`
    protocols: Protocols,
}

impl Context {
    /// The settings for a client with these ciphers, the one it likes best first.
    pub fn for_ciphers(&self, offered: impl Iterator<Item = u16>) -> &Arc<ServerConfig> {
        let best = || offered.map(CipherSuite::from).find(|c| !is_grease((*c).into()));
        match &self.chacha_first {
            Some(config) if best().is_some_and(|c| CHACHA.contains(&c)) => config,
            _ => &self.config,
        }
    }

    /// Whether `ssl_protocols` has TLS 1.3.
    pub fn speaks_tls13(&self) -> bool {
        self.protocols.tls13
    }

    /// The same settings with other protocols; the library takes them only while settings are made.
    ///
    /// # Errors
    /// There is none left.
    pub fn with_protocols(&self, base: &ServerConfig, protocols: Protocols) -> Result<Arc<ServerConfig>, String> {
        made_anew(base, protocols, self.asker.as_ref())
    }

    /// The same settings for a handshake in which the client is asked for its certificate, with whom that is to come from: those named, or
    /// whom the server believes anyway. `protocols`: those of the program, if it has chosen some.
    ///
    /// # Errors
    /// There is no protocol left.
    pub fn asking(
        &self,
        base: &ServerConfig,
        protocols: Option<Protocols>,
        client: &AskedClient,
    ) -> Result<(Arc<ServerConfig>, Arc<Trust>), String> {
        let algorithms = base.crypto_provider().signature_verification_algorithms;
        let trust = match &self.trust {
            Some(trust) if client.trusted.is_empty() => trust.at_depth(client.depth),
            _ => Trust::new(client.trusted.clone(), None, client.depth, algorithms)?,
        };
        let hints = Trust::subjects(&client.named).into_iter().map(DistinguishedName::from).collect();
        let asker = Arc::new(AskClient { hints, algorithms });
        Ok((made_anew(base, protocols.unwrap_or(self.protocols), Some(&asker))?, Arc::new(trust)))
    }
}

/// How a program wants a client to be asked for its certificate (`ngx.ssl.verify_client`).
#[derive(Clone, Debug, Default)]
pub struct AskedClient {
    /// Those whose names the client is told.
    pub named: Vec<CertificateDer<'static>>,
    /// Whom its certificate may come from, those among them; none: as the server's settings say.
    pub trusted: Vec<CertificateDer<'static>>,
    /// Certificates that may stand between the client's and the trusted one.
    pub depth: usize,
}

/// Settings with other protocols, or another way to ask clients: what the library takes only while settings are made.
fn made_anew(
    base: &ServerConfig,
    protocols: Protocols,
    asker: Option<&Arc<AskClient>>,
) -> Result<Arc<ServerConfig>, String> {
    let versions: Vec<_> = protocols.versions().collect();
    if versions.is_empty() {
        return Err("SSL_do_handshake() failed (SSL: no protocols available)".to_owned());
    }
    let builder = ServerConfig::builder_with_provider(base.crypto_provider().clone());
    let builder = builder.with_protocol_versions(&versions);
    let builder = builder.map_err(|e| format!("SSL_do_handshake() failed (SSL: {e})"))?;
    let builder = match asker {
        None => builder.with_no_client_auth(),
        Some(asker) => builder.with_client_cert_verifier(asker.clone()),
    };
    let mut config = builder.with_cert_resolver(base.cert_resolver.clone());
    config.ignore_client_order = base.ignore_client_order;
    config.session_storage = base.session_storage.clone();
    config.ticketer = base.ticketer.clone();
    config.alpn_protocols.clone_from(&base.alpn_protocols);
    // Who is asked for a certificate sends nothing before it.
    config.max_early_data_size = if asker.is_some() { 0 } else { base.max_early_data_size };
    config.send_half_rtt_data = base.send_half_rtt_data;
    config.send_tls13_tickets = base.send_tls13_tickets;
    config.cert_compressors.clone_from(&base.cert_compressors);
    config.enable_secret_extraction = base.enable_secret_extraction;
    config.key_log = base.key_log.clone();
    Ok(Arc::new(config))
}

/// What was not quite right.
#[derive(Default)]
pub struct Complaints {
    /// Stops the start.
    pub errors: Vec<String>,
    /// Does not.
    pub warnings: Vec<String>,
}

/// Makes the context of a server that has a certificate or refuses handshakes.
pub fn build(
    conf: &ServerSettings,
    subsystem: Subsystem,
    source: Source<'_>,
    dynamic: Option<Dynamic>,
    fetch: Fetch,
) -> (Option<Context>, Complaints) {
    let mut complaints = Complaints::default();
    let context = try_build(conf, subsystem, source, dynamic, fetch, &mut complaints);
    let context = context.map_err(|e| complaints.errors.push(e)).ok();
    (context, complaints)
}

fn try_build(
    conf: &ServerSettings,
    subsystem: Subsystem,
    source: Source<'_>,
    dynamic: Option<Dynamic>,
    fetch: Fetch,
    complaints: &mut Complaints,
) -> Result<Context, String> {
    let mut options = Options::new(*conf.protocols, &conf.ciphers, &conf.ecdh_curve);
    options.server_preference = *conf.prefer_server_ciphers;
    options.tickets = *conf.session_tickets;
    options.apply(&conf.conf_commands)?;
    let provider = Arc::new(provider(&options, "ssl_ciphers", "ssl_ecdh_curve", complaints)?);
    let algorithms = provider.signature_verification_algorithms;
    let (certificates, held) =
        if dynamic.is_some() { Default::default() } else { load(conf, &options, source, &provider)? };
    let (trust, hints) = trust(conf, source, algorithms)?;
    let responder = |uri: &[u8]| Responder {
        uri: (!uri.is_empty()).then(|| String::from_utf8_lossy(uri).into_owned()),
        fetch: fetch.clone(),
        algorithms,
    };
    let ocsp = ocsp(conf, || responder(&conf.ocsp_responder))?;
    let staples = staples(conf, source, &certificates, || responder(&conf.stapling_responder), complaints)?;
    let scope = scope(conf, subsystem, &certificates, &hints);
    let versions: Vec<_> = options.protocols.versions().collect();
    if versions.is_empty() {
        return Err("SSL_CTX_new() failed (SSL: no protocols available)".to_owned());
    }
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .map_err(|e| format!("SSL_CTX_new() failed (SSL: {e})"))?;
    let asker = (*conf.verify_client != VerifyClient::Off).then(|| Arc::new(AskClient { hints, algorithms }));
    let builder = match &asker {
        None => builder.with_no_client_auth(),
        Some(asker) => builder.with_client_cert_verifier(asker.clone()),
    };
    let mut config =
        builder.with_cert_resolver(Arc::new(Certificates::new(certificates.into_iter().zip(staples.iter().cloned()))));
    config.ignore_client_order = options.server_preference;
    // A connection that is to be parked goes on without the library (`connection::tls`).
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(notes::NoteSecrets);
    config.alpn_protocols = alpn(&conf.alpn);
    config.send_tls13_tickets = options.ticket_count;
    if !*conf.certificate_compression {
        config.cert_compressors = Vec::new();
    }
    sessions(&mut config, conf, &options, source, scope)?;
    let quic = conf.quic.filter(|_| options.protocols.tls13).map(|offered| Arc::new(for_quic(&config, offered)));
    let wanted = options.server_preference && options.chacha_first;
    let chacha_first = wanted.then(|| {
        let mut config = config.clone();
        config.ignore_client_order = false;
        Arc::new(config)
    });
    Ok(Context {
        config: Arc::new(config),
        chacha_first,
        quic,
        dynamic,
        trust,
        verify: *conf.verify_client,
        buffer_size: *conf.buffer_size as usize,
        reject: *conf.reject_handshake,
        ocsp,
        staples: staples.into_iter().flatten().collect(),
        certificates: held,
        scope,
        asker,
        protocols: options.protocols,
    })
}

/// What is offered by ALPN, in order of preference.
fn alpn(offered: &Alpn) -> Vec<Vec<u8>> {
    let all: &[&[u8]] = &[b"h2", b"http/1.1", b"http/1.0", b"http/0.9"];
    match offered {
        Alpn::These(names) => names.to_vec(),
        Alpn::Http2 => all.iter().map(|p| p.to_vec()).collect(),
        Alpn::Http1 => all[1..].iter().map(|p| p.to_vec()).collect(),
    }
}

/// QUIC limits early data by its own means, and the protocol must be agreed on (RFC 9001 sections 4.6.1, 8.1).
fn for_quic(config: &ServerConfig, offered: QuicProtocols) -> ServerConfig {
    let mut config = config.clone();
    config.key_log = Arc::new(NoKeyLog);
    let all = [(offered.h3, wire::http3::ALPN), (offered.hq, wire::http3::ALPN_HQ)];
    config.alpn_protocols = all.iter().filter(|(on, _)| *on).map(|(_, name)| name.to_vec()).collect();
    if config.alpn_protocols.is_empty() {
        // An empty list would mean that any protocol will do: this one nobody asks for.
        config.alpn_protocols.push(b"none".to_vec());
    }
    if config.max_early_data_size > 0 {
        config.max_early_data_size = u32::MAX;
    }
    config
}

/// Loads certificates, their keys and what is stapled to them.
fn load(
    conf: &ServerSettings,
    options: &Options,
    source: Source<'_>,
    provider: &CryptoProvider,
) -> Result<(Vec<CertifiedKey>, Vec<Held>), String> {
    let (mut loaded, mut held) = (Vec::new(), Vec::new());
    let pairs = conf.certificate.iter().zip(conf.certificate_key.iter());
    let command = options.certificate.as_ref().map(|(c, k)| (c, if k.is_empty() { c } else { k }));
    for (cert, key) in pairs.chain(command) {
        let pair = certificate::load(source, cert, key, &conf.passwords, provider)?.pair;
        held.extend(Held::new(source.shown(cert), &pair.cert[0]));
        loaded.push(pair);
    }
    if *conf.stapling && !conf.stapling_file.is_empty() {
        let path = source.path(&conf.stapling_file);
        let answer = (source.read)(&path).map_err(|e| {
            format!("BIO_new_file(\"{}\", \"rb\") failed ({})", path.display(), crate::log::os_error(&e))
        })?;
        if super::der::Der::new(&answer).sequence().is_err() {
            return Err(format!("d2i_OCSP_RESPONSE_bio(\"{}\") failed", path.display()));
        }
        loaded.iter_mut().for_each(|c| c.ocsp = Some(answer.clone()));
    }
    Ok((loaded, held))
}

/// `ssl_ocsp`
fn ocsp(conf: &ServerSettings, responder: impl FnOnce() -> Responder) -> Result<Option<Clients>, String> {
    if *conf.ocsp == Ocsp::Off {
        return Ok(None);
    }
    if *conf.verify_client == VerifyClient::OptionalNoCa {
        return Err("\"ssl_ocsp\" is incompatible with \"ssl_verify_client optional_no_ca\"".to_owned());
    }
    let responder = responder();
    let checked = responder.uri.as_deref().map_or(Ok(()), Responder::check_uri);
    checked.map_err(|why| format!("{why} in \"ssl_ocsp_responder\""))?;
    Ok(Some(Clients::new(responder, *conf.ocsp == Ocsp::Leaf, conf.ocsp_cache.as_ref())))
}

/// `ssl_stapling` without `ssl_stapling_file`: one for each certificate, as far as there is somebody to ask.
fn staples(
    conf: &ServerSettings,
    source: Source<'_>,
    certificates: &[CertifiedKey],
    responder: impl Fn() -> Responder,
    complaints: &mut Complaints,
) -> Result<Vec<Option<Arc<Staple>>>, String> {
    if *conf.stapling && *conf.certificate_compression {
        return Err("\"ssl_stapling\" is incompatible with \"ssl_certificate_compression\"".to_owned());
    }
    if !*conf.stapling || !conf.stapling_file.is_empty() {
        return Ok(vec![None; certificates.len()]);
    }
    let trusted = match &**conf.trusted_certificate {
        [] => Vec::new(),
        name => verify::load(source, name)?,
    };
    let mut all = Vec::new();
    for (pair, name) in certificates.iter().zip(conf.certificate.iter()) {
        let staple = Staple::of(pair, &trusted, source.shown(name), responder(), *conf.stapling_verify);
        all.push(staple.map_err(|text| complaints.warnings.push(text)).ok());
    }
    all.resize(certificates.len(), None);
    Ok(all)
}

/// `ssl_client_certificate`, `ssl_trusted_certificate`, `ssl_crl`; also the names that clients are told.
fn trust(
    conf: &ServerSettings,
    source: Source<'_>,
    algorithms: WebPkiSupportedAlgorithms,
) -> Result<(Option<Arc<Trust>>, Vec<DistinguishedName>), String> {
    let mut trusted = Vec::new();
    let mut hints = Vec::new();
    let verify = *conf.verify_client != VerifyClient::Off;
    if verify {
        if *conf.verify_client != VerifyClient::OptionalNoCa
            && conf.client_certificate.is_empty()
            && conf.trusted_certificate.is_empty()
        {
            let text = "no ssl_client_certificate or ssl_trusted_certificate for ssl_verify_client";
            return Err(text.to_owned());
        }
        if !conf.client_certificate.is_empty() {
            trusted = verify::load(source, &conf.client_certificate)?;
            hints = Trust::subjects(&trusted).into_iter().map(DistinguishedName::from).collect();
        }
    }
    if !conf.trusted_certificate.is_empty() {
        trusted.extend(verify::load(source, &conf.trusted_certificate)?);
    }
    let (trust, _) = Trust::load(source, trusted, &conf.crl, *conf.verify_depth as usize, algorithms)?;
    Ok((verify.then(|| Arc::new(trust)), hints))
}

/// What a session belongs to (`ngx_ssl_session_id_context`): elsewhere it cannot be resumed.
fn scope(
    conf: &ServerSettings,
    subsystem: Subsystem,
    certificates: &[CertifiedKey],
    hints: &[DistinguishedName],
) -> Scope {
    let mut digest = Digest::new(&SHA256);
    let mut add = |bytes: &[u8]| {
        digest.update(&(bytes.len() as u64).to_be_bytes());
        digest.update(bytes);
    };
    add(if subsystem.is_stream() { b"STREAM" } else { b"HTTP" });
    add(&[*conf.verify_client as u8]);
    for leaf in certificates.iter().filter_map(|c| c.cert.first()) {
        add(leaf);
    }
    if certificates.is_empty() {
        conf.certificate.iter().for_each(|name| add(name));
    }
    hints.iter().for_each(|name| add(name.as_ref()));
    let mut scope = [0; 32];
    scope.copy_from_slice(digest.finish().as_ref());
    scope
}

/// `ssl_session_*`, `ssl_early_data`
fn sessions(
    config: &mut ServerConfig,
    conf: &ServerSettings,
    options: &Options,
    source: Source<'_>,
    scope: Scope,
) -> Result<(), String> {
    let timeout = *conf.session_timeout;
    let zone = match &*conf.session_cache {
        SessionCache::None => None,
        SessionCache::Builtin(sessions) => Some(Zone::private(sessions.saturating_mul(BUILTIN_SESSION))),
        SessionCache::Shared(name, size) => Some(Zone::shared(name, *size)),
    };
    let mut keys = Vec::new();
    for name in conf.session_ticket_keys.iter() {
        let path = source.path(name);
        let content = (source.read)(&path)
            .map_err(|e| format!("open() \"{}\" failed ({})", path.display(), crate::log::os_error(&e)))?;
        let key = TicketKey::from_file(&content);
        keys.push(key.ok_or_else(|| format!("\"{}\" must be 48 or 80 bytes", path.display()))?);
    }
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    // Who must show a certificate is not heard before he has.
    if *conf.early_data && *conf.verify_client == VerifyClient::Off {
        // What comes early could be sent again by anybody who saw it: its session is used once, which takes a memory.
        let zone = zone.unwrap_or_else(|| Zone::private(EARLY_SESSIONS * BUILTIN_SESSION));
        config.session_storage = notes::storing(Cache::new(zone, scope, timeout));
        config.max_early_data_size = MAX_EARLY_DATA;
        config.send_half_rtt_data = true;
        return Ok(());
    }
    if let Some(zone) = zone {
        config.session_storage = notes::storing(Cache::new(zone, scope, timeout));
    }
    if options.tickets {
        config.ticketer = Tickets::new(keys, scope, timeout);
    }
    Ok(())
}

/// Sessions kept for `ssl_early_data` where no cache is configured: OpenSSL's default.
const EARLY_SESSIONS: usize = 20 * 1024;

/// Ciphers and groups for the library.
pub fn provider(
    options: &Options,
    ciphers_directive: &str,
    groups_directive: &str,
    complaints: &mut Complaints,
) -> Result<CryptoProvider, String> {
    let list = ciphers::tls12(&options.ciphers);
    if list.suites.is_empty() && options.protocols.tls12 {
        return Err(format!("SSL_CTX_set_cipher_list(\"{}\") failed (SSL: no cipher match)", options.ciphers));
    }
    complain(complaints, ciphers_directive, &list.absent, &list.unknown);
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites = options.tls13.iter().copied().chain(list.suites).collect();
    provider.kx_groups = match options.groups.as_str() {
        "auto" => ciphers::default_groups(),
        text => {
            let list = ciphers::groups(text);
            if !list.unknown.is_empty() || list.groups.is_empty() {
                return Err(format!("SSL_CTX_set1_curves_list(\"{text}\") failed (SSL: unknown group)"));
            }
            complain(complaints, groups_directive, &list.absent, &[]);
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
