//! `ssl_*`: TLS towards clients (nginx's `ngx_http_ssl_module`). What a server needs of it is made in `tls::server`; the
//! handshake is `connection::handshake`'s.

use crate::config::set;
use crate::config::setting::Setting;
use crate::config::variables::Builtin;
use crate::config::{Build, Directive, Scope, http};
use crate::log_error;
use crate::request::{Request, Text};
use crate::settings;
use crate::snapshot::ServerId;
use crate::tls::server::{self, Context};
use conf::{Node, Problem};
use rustls::SupportedProtocolVersion;
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("ssl_certificate", |s, n| add(&mut server(s).certificate, n)),
    http("ssl_certificate_key", |s, n| add(&mut server(s).certificate_key, n)),
    http("ssl_protocols", |s, n| {
        let (protocols, warnings) = Protocols::parse(n)?;
        s.build.problems.extend(warnings);
        set::value(&mut server(s).protocols, n, protocols)
    }),
    http("ssl_ciphers", |s, n| set::value(&mut server(s).ciphers, n, n.args[0].text.as_slice().into())),
    http("ssl_ecdh_curve", |s, n| set::value(&mut server(s).ecdh_curve, n, n.args[0].text.as_slice().into())),
    http("ssl_prefer_server_ciphers", |s, n| set::flag(&mut server(s).prefer_server_ciphers, n)),
    http("ssl_buffer_size", |s, n| set::size(&mut server(s).buffer_size, n)),
    http("ssl_reject_handshake", |s, n| set::flag(&mut server(s).reject_handshake, n)),
    http("ssl_verify_client", |s, n| {
        let words = [
            ("off", VerifyClient::Off),
            ("on", VerifyClient::On),
            ("optional", VerifyClient::Optional),
            ("optional_no_ca", VerifyClient::OptionalNoCa),
        ];
        set::one_of(&mut server(s).verify_client, n, &words)
    }),
];

/// The variables.
pub const VARIABLES: &[Builtin] = &[];

settings! {
    /// Values of `http` and `server` level.
    pub struct ServerSettings {
        /// `ssl_certificate`, in order.
        certificate: Arc<Vec<Vec<u8>>> = Arc::default(),
        /// `ssl_certificate_key`
        certificate_key: Arc<Vec<Vec<u8>>> = Arc::default(),
        /// `ssl_protocols`
        protocols: Protocols = Protocols { tls12: true, tls13: true },
        /// `ssl_ciphers`
        ciphers: Arc<[u8]> = Arc::from(&b"HIGH:!aNULL:!MD5"[..]),
        /// `ssl_ecdh_curve`
        ecdh_curve: Arc<[u8]> = Arc::from(&b"auto"[..]),
        /// `ssl_prefer_server_ciphers`
        prefer_server_ciphers: bool = false,
        /// `ssl_buffer_size`, in bytes.
        buffer_size: u64 = 16 * 1024,
        /// `ssl_reject_handshake`
        reject_handshake: bool = false,
        /// `ssl_verify_client`
        verify_client: VerifyClient = VerifyClient::Off,
    }
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

/// `ssl_protocols`: those that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocols {
    /// `TLSv1.2`
    pub tls12: bool,
    /// `TLSv1.3`
    pub tls13: bool,
}

impl Protocols {
    /// Reads the words; also warnings about old ones.
    pub fn parse(node: &Node) -> Result<(Protocols, Vec<Problem>), Problem> {
        let mut protocols = Protocols { tls12: false, tls13: false };
        let mut old = Vec::new();
        for word in &node.args {
            match &*word.as_str() {
                "TLSv1.2" => protocols.tls12 = true,
                "TLSv1.3" => protocols.tls13 = true,
                name @ ("SSLv2" | "SSLv3" | "TLSv1" | "TLSv1.1") => old.push(name.to_owned()),
                name => return Err(node.problem(format!("invalid value \"{name}\""))),
            }
        }
        let old = old.join(" ");
        if !protocols.tls12 && !protocols.tls13 {
            return Err(node.problem(format!("\"{old}\" is not supported: TLSv1.2 and TLSv1.3 are")));
        }
        let directive = node.name.as_str();
        let warning = || node.warning(format!("\"{old}\" in \"{directive}\" is broken and not supported, ignored"));
        Ok((protocols, if old.is_empty() { Vec::new() } else { vec![warning()] }))
    }

    /// For the library.
    pub fn versions(self) -> impl Iterator<Item = &'static SupportedProtocolVersion> {
        let twelve = self.tls12.then_some(&rustls::version::TLS12);
        twelve.into_iter().chain(self.tls13.then_some(&rustls::version::TLS13))
    }
}

fn server<'s>(scope: &'s mut Scope<'_, '_>) -> &'s mut ServerSettings {
    &mut scope.level.server.get_or_insert_default().ssl
}

fn add(list: &mut Setting<Arc<Vec<Vec<u8>>>>, node: &Node) -> Result<(), Problem> {
    Arc::make_mut(list.entry()).push(node.args[0].text.clone());
    Ok(())
}

/// Makes what a server needs (`ngx_http_ssl_merge_srv_conf`).
pub fn finish_server(build: &mut Build<'_>, conf: &ServerSettings) -> Option<Arc<Context>> {
    if let Some(cert) = conf.certificate.get(conf.certificate_key.len()) {
        let shown = crate::tls::certificate::shown(cert);
        let text = format!("no \"ssl_certificate_key\" is defined for certificate \"{shown}\"");
        build.problems.push(Problem::bare(text));
        return None;
    }
    if conf.certificate.is_empty() && !*conf.reject_handshake {
        return None;
    }
    let files = build.files;
    let (context, complaints) = server::build(conf, &|path| files.read(path), &build.conf_prefix);
    build.problems.extend(complaints.errors.into_iter().map(Problem::bare));
    build.problems.extend(complaints.warnings.into_iter().map(|w| Problem::warn(None, w)));
    context.map(Arc::new)
}

/// Whether the request came encrypted: `$https`, `$scheme`.
pub fn is_encrypted(r: &Request) -> bool {
    r.client.tls.get().is_some()
}

/// `$https`
pub fn https(r: &mut Request) -> Option<Text> {
    Some(if is_encrypted(r) { Text::from("on") } else { Text::EMPTY })
}

/// What must hold of a request on a port with TLS (`ngx_http_process_request`, `ngx_http_set_virtual_server`).
pub fn check(r: &mut Request, _host: Text, _default: ServerId) -> Result<(), u16> {
    if r.client.tls.get().is_none() {
        log_error!(r, Info, "client sent plain HTTP request to HTTPS port");
        return Err(497);
    }
    Ok(())
}
