//! What a configuration says of TLS towards clients (`ssl_*`): values only. `modules::ssl` reads them, `server` makes a context of them.

use crate::config::setting::Setting;
use crate::merged_values;
use aws_lc_rs::digest::{SHA256, digest};
use conf::{Node, Problem, value};
use rustls::SupportedProtocolVersion;
use std::sync::Arc;
use std::time::Duration;

/// `ssl_certificate_cache`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Objects kept: a certificate and a key are one each.
    pub max: usize,
    /// Unused ones are dropped after this, in ms.
    pub inactive_ms: u64,
    /// Used ones are read again after this, in ms.
    pub valid_ms: u64,
}

merged_values! {
    /// Values of `http` and `server` level.
    pub struct ServerSettings {
        /// `ssl_certificate`, in order.
        certificate: Arc<Vec<Vec<u8>>> = Arc::default(),
        /// `ssl_certificate_key`
        certificate_key: Arc<Vec<Vec<u8>>> = Arc::default(),
        /// `ssl_certificate_cache`
        certificate_cache: Option<CacheLimits> = None,
        /// `ssl_certificate_compression`
        certificate_compression: bool = false,
        /// `ssl_password_file`: what stands in it.
        passwords: Arc<Vec<Vec<u8>>> = Arc::default(),
        /// `ssl_protocols`
        protocols: Protocols = Protocols { tls12: true, tls13: true },
        /// `ssl_ciphers`
        ciphers: Arc<[u8]> = Arc::from(&b"HIGH:!aNULL:!MD5"[..]),
        /// `ssl_prefer_server_ciphers`
        prefer_server_ciphers: bool = false,
        /// `ssl_ecdh_curve`
        ecdh_curve: Arc<[u8]> = Arc::from(&b"auto"[..]),
        /// `ssl_conf_command`, in order.
        conf_commands: Arc<Vec<(Vec<u8>, Vec<u8>)>> = Arc::default(),
        /// `ssl_buffer_size`, in bytes.
        buffer_size: u64 = 16 * 1024,
        /// `ssl_session_cache`
        session_cache: SessionCache = SessionCache::None,
        /// `ssl_session_tickets`
        session_tickets: bool = true,
        /// `ssl_session_ticket_key`, in order.
        session_ticket_keys: Arc<Vec<Vec<u8>>> = Arc::default(),
        /// `ssl_session_timeout`
        session_timeout: Duration = Duration::from_secs(300),
        /// `ssl_verify_client`
        verify_client: VerifyClient = VerifyClient::Off,
        /// `ssl_verify_depth`
        verify_depth: u64 = 1,
        /// `ssl_client_certificate`
        client_certificate: Arc<[u8]> = Arc::from(&b""[..]),
        /// `ssl_trusted_certificate`
        trusted_certificate: Arc<[u8]> = Arc::from(&b""[..]),
        /// `ssl_crl`
        crl: Arc<[u8]> = Arc::from(&b""[..]),
        /// `ssl_stapling`
        stapling: bool = false,
        /// `ssl_stapling_file`
        stapling_file: Arc<[u8]> = Arc::from(&b""[..]),
        /// `ssl_stapling_responder`
        stapling_responder: Arc<[u8]> = Arc::from(&b""[..]),
        /// `ssl_stapling_verify`
        stapling_verify: bool = false,
        /// `ssl_ocsp`
        ocsp: Ocsp = Ocsp::Off,
        /// `ssl_ocsp_responder`
        ocsp_responder: Arc<[u8]> = Arc::from(&b""[..]),
        /// `ssl_ocsp_cache`: a zone's name and its size in bytes.
        ocsp_cache: Option<(Box<str>, usize)> = None,
        /// `ssl_early_data`
        early_data: bool = false,
        /// `ssl_reject_handshake`
        reject_handshake: bool = false,
        /// What is offered by ALPN; in `stream` it is what `ssl_alpn` says.
        alpn: Alpn = Alpn::These(Arc::default()),
        /// `ssl_handshake_timeout`, in `stream`.
        handshake_timeout: Duration = Duration::from_secs(60),
        /// What is offered on QUIC connections, where the server is reached by them.
        quic: Option<QuicProtocols> = None,
    }
}

/// What is offered by ALPN on connections that are none of QUIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alpn {
    /// HTTP/1.
    Http1,
    /// HTTP/2, then HTTP/1.
    Http2,
    /// `ssl_alpn`, in order of preference; if there are none, whatever the client wants is passed over.
    These(Arc<Vec<Vec<u8>>>),
}

/// `http3`, `http3_hq`: offered by ALPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicProtocols {
    /// HTTP/3.
    pub h3: bool,
    /// HTTP/0.9.
    pub hq: bool,
}

/// `ssl_verify_client`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyClient {
    /// No certificate is asked for.
    Off,
    /// There must be a good one.
    On,
    /// If there is one, it must be good.
    Optional,
    /// Who issued it does not matter.
    OptionalNoCa,
}

/// `ssl_ocsp`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ocsp {
    /// Nobody is asked.
    Off,
    /// About all certificates of a client's chain.
    On,
    /// About the client's own.
    Leaf,
}

/// `ssl_session_cache`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionCache {
    /// `off`, `none`
    None,
    /// `builtin`: sessions of this server.
    Builtin(usize),
    /// `shared`: a zone's name and its size in bytes.
    Shared(Box<str>, usize),
}

/// `ssl_protocols`: those that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocols {
    /// `TLSv1.2`
    pub tls12: bool,
    /// `TLSv1.3`
    pub tls13: bool,
}

/// The words of `ssl_protocols`.
const PROTOCOLS: [(&str, Version); 6] = [
    ("SSLv2", Version::Old("SSLv2")),
    ("SSLv3", Version::Old("SSLv3")),
    ("TLSv1", Version::Old("TLSv1")),
    ("TLSv1.1", Version::Old("TLSv1.1")),
    ("TLSv1.2", Version::Tls12),
    ("TLSv1.3", Version::Tls13),
];

#[derive(Clone, Copy)]
enum Version {
    Old(&'static str),
    Tls12,
    Tls13,
}

impl Protocols {
    /// Reads the words; given again, the directive adds to them. Gives warnings about words that change nothing.
    pub fn add(setting: &mut Setting<Protocols>, node: &Node) -> Result<Vec<Problem>, Problem> {
        let mut protocols = if setting.is_set() { **setting } else { Protocols { tls12: false, tls13: false } };
        let (mut old, mut warnings) = (Vec::new(), Vec::new());
        for word in &node.args {
            let on = match value::choice(&word.text, &PROTOCOLS).ok_or_else(|| Problem::invalid_choice(word))? {
                Version::Tls12 => &mut protocols.tls12,
                Version::Tls13 => &mut protocols.tls13,
                Version::Old(name) => {
                    old.push(name);
                    continue;
                }
            };
            if std::mem::replace(on, true) {
                warnings.push(Problem::duplicate_choice(word));
            }
        }
        let old = old.join(" ");
        if !protocols.tls12 && !protocols.tls13 {
            let text = format!("\"{old}\" is broken and not supported: there must be TLSv1.2 or TLSv1.3");
            return Err(node.problem(text));
        }
        if !old.is_empty() {
            let directive = node.name.as_str();
            let text = format!("\"{old}\" in \"{directive}\" ignored: broken and not supported");
            warnings.push(node.warning(text));
        }
        setting.force(protocols);
        Ok(warnings)
    }

    /// For the library.
    pub fn versions(self) -> impl Iterator<Item = &'static SupportedProtocolVersion> {
        let twelve = self.tls12.then_some(&rustls::version::TLS12);
        twelve.into_iter().chain(self.tls13.then_some(&rustls::version::TLS13))
    }
}

/// What values come to, to know the same again. Passwords are among them, so it is a digest.
pub fn key(of: &str, conf: &impl std::fmt::Debug) -> [u8; 32] {
    let mut key = [0; 32];
    key.copy_from_slice(digest(&SHA256, format!("{of} {conf:?}").as_bytes()).as_ref());
    key
}
