//! `ssl_*`: TLS towards clients, in `http` and in `stream` (nginx's `ngx_http_ssl_module`, `ngx_stream_ssl_module`). What a server needs of it is made in `tls::server`; the
//! handshake is `connection::handshake`'s; the variables are in `ssl_variables`.

use super::ssl_caches;
use crate::acme::store::Slot;
use crate::config::complex::Complex;
use crate::config::setters;
use crate::config::setting::Setting;
use crate::config::{Build, Directive, Scope, both, http, stream};
use crate::fetch::Fetch;
use crate::log::error::Level;
use crate::log_error;
use crate::request::route::Port;
use crate::request::{Request, Text};
use crate::snapshot::{Server, ServerId};
use crate::status::ssl as status;
use crate::tls::certificate::{self, Source};
use crate::tls::dynamic::{Dynamic, Pair};
use crate::tls::hooks::{Asked, Refused, Verdict};
use crate::tls::password;
use crate::tls::server::{self, Context};
use crate::tls::settings::key;
use crate::tls::settings::{Alpn, Ocsp, Protocols, ServerSettings, VerifyClient};
use crate::tls::verify::Failure;
use conf::{Node, Problem};
use resolve::ResolverConfig;
use runtime::clock;
use std::sync::Arc;
use std::time::Duration;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    both("ssl_certificate", |s, n| add(&mut server(s).certificate, n)),
    both("ssl_certificate_key", |s, n| add(&mut server(s).certificate_key, n)),
    both("ssl_certificate_cache", |s, n| {
        let limits = ssl_caches::cache_limits(n)?;
        setters::value(&mut server(s).certificate_cache, n, limits)
    }),
    both("ssl_certificate_compression", |s, n| setters::flag(&mut server(s).certificate_compression, n)),
    both("ssl_password_file", |s, n| {
        if server(s).passwords.is_set() {
            return Err(setters::duplicate(n));
        }
        let passwords = read_passwords(s.build, n)?;
        setters::value(&mut server(s).passwords, n, passwords)
    }),
    both("ssl_protocols", |s, n| {
        let warnings = Protocols::add(&mut server(s).protocols, n)?;
        s.build.problems.extend(warnings);
        Ok(())
    }),
    both("ssl_ciphers", |s, n| text(&mut server(s).ciphers, n)),
    both("ssl_prefer_server_ciphers", |s, n| setters::flag(&mut server(s).prefer_server_ciphers, n)),
    both("ssl_ecdh_curve", |s, n| text(&mut server(s).ecdh_curve, n)),
    both("ssl_dhparam", |s, n| {
        let text = "\"ssl_dhparam\" has no effect: ciphers with finite-field Diffie-Hellman are not supported";
        s.build.problems.push(n.warning(text.to_owned()));
        Ok(())
    }),
    both("ssl_conf_command", |s, n| {
        let command = (n.args[0].text.clone(), n.args[1].text.clone());
        Arc::make_mut(server(s).conf_commands.entry()).push(command);
        Ok(())
    }),
    http("ssl_buffer_size", |s, n| setters::size(&mut server(s).buffer_size, n)),
    both("ssl_session_cache", ssl_caches::session_cache),
    both("ssl_session_tickets", |s, n| setters::flag(&mut server(s).session_tickets, n)),
    both("ssl_session_ticket_key", |s, n| add(&mut server(s).session_ticket_keys, n)),
    both("ssl_session_timeout", |s, n| setters::seconds(&mut server(s).session_timeout, n)),
    both("ssl_verify_client", |s, n| {
        let words = [
            ("off", VerifyClient::Off),
            ("on", VerifyClient::On),
            ("optional", VerifyClient::Optional),
            ("optional_no_ca", VerifyClient::OptionalNoCa),
        ];
        setters::one_of(&mut server(s).verify_client, n, &words)
    }),
    both("ssl_verify_depth", |s, n| setters::number(&mut server(s).verify_depth, n)),
    both("ssl_client_certificate", |s, n| text(&mut server(s).client_certificate, n)),
    both("ssl_trusted_certificate", |s, n| text(&mut server(s).trusted_certificate, n)),
    both("ssl_crl", |s, n| text(&mut server(s).crl, n)),
    both("ssl_stapling", |s, n| setters::flag(&mut server(s).stapling, n)),
    both("ssl_stapling_file", |s, n| text(&mut server(s).stapling_file, n)),
    both("ssl_stapling_responder", |s, n| text(&mut server(s).stapling_responder, n)),
    both("ssl_stapling_verify", |s, n| setters::flag(&mut server(s).stapling_verify, n)),
    both("ssl_ocsp", |s, n| {
        let words = [("off", Ocsp::Off), ("on", Ocsp::On), ("leaf", Ocsp::Leaf)];
        setters::one_of(&mut server(s).ocsp, n, &words)
    }),
    both("ssl_ocsp_cache", ssl_caches::ocsp_cache),
    both("ssl_ocsp_responder", |s, n| text(&mut server(s).ocsp_responder, n)),
    http("ssl_early_data", |s, n| setters::flag(&mut server(s).early_data, n)),
    stream("ssl_handshake_timeout", |s, n| setters::time(&mut server(s).handshake_timeout, n)),
    stream("ssl_alpn", alpn),
    both("ssl_reject_handshake", |s, n| setters::flag(&mut server(s).reject_handshake, n)),
];

pub(super) fn server<'s>(scope: &'s mut Scope<'_, '_>) -> &'s mut ServerSettings {
    &mut scope.level.server.get_or_insert_default().ssl
}

fn add(list: &mut Setting<Arc<Vec<Vec<u8>>>>, node: &Node) -> Result<(), Problem> {
    Arc::make_mut(list.entry()).push(node.args[0].text.clone());
    Ok(())
}

/// The longest name of a protocol (RFC 7301 section 3.1).
const MAX_PROTOCOL: usize = 255;

/// `ssl_alpn`, `proxy_ssl_alpn`: names of protocols.
pub fn protocols(node: &Node) -> Result<Arc<Vec<Vec<u8>>>, Problem> {
    match node.args.iter().find(|w| w.text.len() > MAX_PROTOCOL) {
        Some(_) => Err(node.problem("protocol too long".to_owned())),
        None => Ok(Arc::new(node.args.iter().map(|w| w.text.clone()).collect())),
    }
}

fn alpn(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let protocols = protocols(node)?;
    setters::value(&mut server(scope).alpn, node, Alpn::These(protocols))
}

fn text(setting: &mut Setting<Arc<[u8]>>, node: &Node) -> Result<(), Problem> {
    setters::value(setting, node, node.args[0].text.as_slice().into())
}

/// Reads an `ssl_password_file`.
pub fn read_passwords(build: &Build<'_>, node: &Node) -> Result<Arc<Vec<Vec<u8>>>, Problem> {
    let path = build.conf_path(&node.args[0].text);
    let content = build
        .files
        .read(&path)
        .map_err(|e| node.problem(format!("open() \"{}\" failed ({})", path.display(), crate::log::os_error(&e))))?;
    Ok(Arc::new(password::list(&content)))
}

/// Contexts by what they were made of: many servers share one.
#[derive(Debug, Default)]
pub struct Main {
    made: Vec<([u8; 32], Option<Arc<Context>>)>,
}

/// What a server's TLS needs of what other modules say.
#[derive(Debug)]
pub struct Around {
    /// `acme_certificate`: what is ordered for the server, for names that mean it.
    pub issued: Option<Arc<Slot>>,
    /// `resolver` and `resolver_timeout`, for responders.
    pub resolver: Option<(Arc<ResolverConfig>, Duration)>,
}

impl Around {
    /// How responders are reached: they sign what they say, and nginx knows them by `http` only.
    fn fetch(&self) -> Fetch {
        Fetch { resolver: self.resolver.clone(), tls: None }
    }
}

/// Makes what a server needs, or finds it.
pub fn finish_server(build: &mut Build<'_>, conf: &ServerSettings, around: &Around) -> Option<Arc<Context>> {
    let key = key(&format!("{around:?}"), conf);
    if let Some((_, made)) = build.main.ssl.made.iter().find(|(k, _)| *k == key) {
        return made.clone();
    }
    let made = make(build, conf, around);
    build.main.ssl.made.push((key, made.clone()));
    made
}

/// See `ngx_http_ssl_merge_srv_conf`.
fn make(build: &mut Build<'_>, conf: &ServerSettings, around: &Around) -> Option<Arc<Context>> {
    if let Some(last) = conf.certificate.last()
        && conf.certificate.len() > conf.certificate_key.len()
    {
        let shown = certificate::shown(last);
        let text = format!("no \"ssl_certificate_key\" is defined for certificate \"{shown}\"");
        build.problems.push(Problem::bare(text));
        return None;
    }
    if conf.certificate.is_empty() && !*conf.reject_handshake {
        return None;
    }
    let dynamic = match dynamic(build, conf, around.issued.as_ref()) {
        Ok(d) => d,
        Err(text) => {
            build.problems.push(Problem::bare(text));
            return None;
        }
    };
    let prefix = build.conf_prefix.clone();
    let read = build.tls_reader();
    let (context, complaints) =
        server::build(conf, build.subsystem, Source { read: &read, prefix: &prefix }, dynamic, around.fetch());
    build.problems.extend(complaints.errors.into_iter().map(Problem::bare));
    complaints.warnings.into_iter().for_each(|w| warn_once(build, w));
    let now_s = clock::wall_seconds();
    let held = context.iter().flat_map(|c| &c.certificates);
    held.filter_map(|h| h.warning(now_s)).for_each(|w| warn_once(build, w));
    context.map(Arc::new)
}

/// Every server on a port with TLS that may be asked for a certificate must have one (`ngx_http_ssl_init`).
pub fn check_listens(build: &mut Build<'_>, ports: &[Port], servers: &[Server], places: &[Option<conf::Span>]) {
    for site in ports.iter().flat_map(|p| std::iter::once(&p.any).chain(p.addresses.iter().map(|(_, s)| s))) {
        let ssl = |id: ServerId| &servers[id.0 as usize].conf.ssl;
        let name = if site.quic { "quic" } else { "ssl" };
        if !site.ssl && !site.quic {
            continue;
        }
        if !ssl(site.default).certificate.is_empty() {
            if site.quic && !ssl(site.default).protocols.tls13 {
                let text = "\"ssl_protocols\" must enable TLSv1.3 for the \"listen ... quic\" directive";
                build.problems.push(Problem::emerg(places[site.default.0 as usize], text));
            }
            continue;
        }
        // Without one the default server must refuse handshakes, and then the others are asked.
        let asked = if *ssl(site.default).reject_handshake { site.servers.as_slice() } else { &[site.default] };
        let bare = asked.iter().find(|id| ssl(**id).certificate.is_empty() && !*ssl(**id).reject_handshake);
        if let Some(id) = bare {
            let text = format!("no \"ssl_certificate\" is defined for the \"listen ... {name}\" directive");
            build.problems.push(Problem::emerg(places[id.0 as usize], text));
        }
    }
}

/// Many servers inherit one mistake.
pub fn warn_once(build: &mut Build<'_>, text: String) {
    if !build.problems.iter().any(|p| p.message == text) {
        build.problems.push(Problem::warn(None, text));
    }
}

fn dynamic(
    build: &mut Build<'_>,
    conf: &ServerSettings,
    issued: Option<&Arc<Slot>>,
) -> Result<Option<Dynamic>, String> {
    let mut names = conf.certificate.iter().chain(conf.certificate_key.iter());
    if !names.any(|n| n.contains(&b'$')) {
        return Ok(None);
    }
    let mut pairs = Vec::new();
    for (certificate, key) in conf.certificate.iter().zip(conf.certificate_key.iter()) {
        pairs.push(match issued {
            Some(slot) if super::acme::is_issued(certificate, key) => Pair::Issued(slot.clone()),
            _ => Pair::Named(Complex::compile_bytes(build, certificate)?, Complex::compile_bytes(build, key)?),
        });
    }
    let passwords = (*conf.passwords).clone();
    Ok(Some(Dynamic::new(pairs, passwords, build.conf_prefix.clone(), *conf.certificate_cache)))
}

/// Certificates whose names have variables: a hook of handshakes.
pub fn certificate_hook(asked: &mut Asked<'_>) -> Verdict {
    let (Some(context), Some(base), false) = (asked.context.clone(), asked.config.clone(), asked.is_all) else {
        return Ok(());
    };
    if let Some(dynamic) = &context.dynamic {
        let config = asked.with_request(|r| dynamic.config(r, &base));
        asked.config = Some(config.map_err(|text| Refused::internal(Level::Error, text))?);
    }
    Ok(())
}

/// Whether the request came encrypted.
pub fn is_encrypted(r: &Request) -> bool {
    r.client.tls.get().is_some()
}

/// What must hold of a request on a port with TLS, once its server is known (`ngx_http_process_request`,
/// `ngx_http_set_virtual_server`).
pub fn check(r: &mut Request, host: Text) -> Result<(), u16> {
    let client = r.client.clone();
    let Some(facts) = client.tls.get() else {
        log_error!(r, Info, "client sent plain HTTP request to HTTPS port");
        return Err(497);
    };
    let verify = *r.server().conf.ssl.verify_client;
    if verify == VerifyClient::Off {
        return Ok(());
    }
    if facts.server_name.as_deref().is_some_and(|name| name.as_bytes() != r.get(host)) {
        let text = "client attempted to request the server name different from the one that was negotiated";
        log_error!(r, Info, "{text}");
        return Err(421);
    }
    match verify_client(r) {
        Ok(()) => Ok(()),
        Err(Trouble::NotVerified(failure)) => {
            log_error!(r, Info, "client SSL certificate verify error: ({failure})");
            Err(495)
        }
        Err(Trouble::NoCertificate) => {
            log_error!(r, Info, "client sent no required SSL certificate");
            Err(496)
        }
    }
}

/// What is wrong with a client's certificate.
pub enum Trouble {
    /// It is no good.
    NotVerified(Failure),
    /// There must be one, and is none.
    NoCertificate,
}

/// `ssl_verify_client`: judges the client's certificate by the server's settings, and counts it if that is not in order.
pub fn verify_client(r: &Request) -> Result<(), Trouble> {
    let verify = *r.server().conf.ssl.verify_client;
    if verify == VerifyClient::Off {
        return Ok(());
    }
    match r.client.tls.get().and_then(|facts| facts.verified()) {
        Some(Err(failure)) if verify != VerifyClient::OptionalNoCa || !failure.is_unknown_issuer() => {
            status::not_verified(r.server(), failure);
            Err(Trouble::NotVerified(failure))
        }
        None if verify == VerifyClient::On => {
            status::note(r.server(), status::Event::NoCert);
            Err(Trouble::NoCertificate)
        }
        _ => Ok(()),
    }
}
