//! `proxy_ssl_*`: TLS towards peers (the part of nginx's `ngx_http_proxy_module` that other protocols have under their own
//! prefix). What a request needs of it is made in `tls::client`; the handshake is `upstream::secure`'s.

use crate::config::complex::Complex;
use crate::config::setting::Setting;
use crate::config::{Build, Directive, Scope, http, setters, stream};
use crate::modules::ssl_caches::cache_limits;
use crate::tls::certificate::Source;
use crate::tls::client::{self, Context};
use crate::tls::dynamic::{Dynamic, Pair};
use crate::upstream::settings::SslSettings;
use crate::{
    modules::ssl::{read_passwords, warn_once},
    tls::settings::Protocols,
};
use conf::{Node, Problem};
use std::sync::Arc;

/// The directives under `$prefix`, in `http` or `stream` (`$subsystem`); their values are in the level's `$conf`.
macro_rules! ssl_directives {
    ($subsystem:ident, $prefix:literal, $($conf:ident).+) => {{
        fn conf<'s>(scope: &'s mut Scope<'_, '_>) -> &'s mut SslSettings {
            &mut scope.level.conf.$($conf).+
        }
        &[
            $subsystem(concat!($prefix, "_ssl_certificate"), |s, n| text(&mut conf(s).certificate, n)),
            $subsystem(concat!($prefix, "_ssl_certificate_key"), |s, n| text(&mut conf(s).certificate_key, n)),
            $subsystem(concat!($prefix, "_ssl_certificate_cache"), |s, n| {
                let limits = cache_limits(n)?;
                setters::value(&mut conf(s).certificate_cache, n, limits)
            }),
            $subsystem(concat!($prefix, "_ssl_password_file"), |s, n| {
                if conf(s).passwords.is_set() {
                    return Err(setters::duplicate(n));
                }
                let passwords = read_passwords(s.build, n)?;
                setters::value(&mut conf(s).passwords, n, passwords)
            }),
            $subsystem(concat!($prefix, "_ssl_protocols"), |s, n| {
                let warnings = Protocols::add(&mut conf(s).protocols, n)?;
                s.build.problems.extend(warnings);
                Ok(())
            }),
            $subsystem(concat!($prefix, "_ssl_ciphers"), |s, n| text(&mut conf(s).ciphers, n)),
            $subsystem(concat!($prefix, "_ssl_conf_command"), |s, n| {
                let command = (n.args[0].text.clone(), n.args[1].text.clone());
                Arc::make_mut(conf(s).conf_commands.entry()).push(command);
                Ok(())
            }),
            $subsystem(concat!($prefix, "_ssl_name"), |s, n| {
                let name = Complex::compile(s.build, &n.args[0])?;
                setters::value(&mut conf(s).name, n, Some(name))
            }),
            $subsystem(concat!($prefix, "_ssl_server_name"), |s, n| setters::flag(&mut conf(s).server_name, n)),
            $subsystem(concat!($prefix, "_ssl_verify"), |s, n| setters::flag(&mut conf(s).verify, n)),
            $subsystem(concat!($prefix, "_ssl_verify_depth"), |s, n| setters::number(&mut conf(s).verify_depth, n)),
            $subsystem(concat!($prefix, "_ssl_trusted_certificate"), |s, n| text(&mut conf(s).trusted_certificate, n)),
            $subsystem(concat!($prefix, "_ssl_crl"), |s, n| text(&mut conf(s).crl, n)),
            $subsystem(concat!($prefix, "_ssl_session_reuse"), |s, n| setters::flag(&mut conf(s).session_reuse, n)),
        ]
    }};
}

/// `proxy_ssl_*`
pub const DIRECTIVES: &[Directive] = ssl_directives!(http, "proxy", proxy.upstream.ssl);
/// `uwsgi_ssl_*`
pub const UWSGI_DIRECTIVES: &[Directive] = ssl_directives!(http, "uwsgi", uwsgi.upstream.ssl);
/// `grpc_ssl_*`
pub const GRPC_DIRECTIVES: &[Directive] = ssl_directives!(http, "grpc", grpc.proxy.upstream.ssl);

/// `zone_sync_ssl_*`
pub const ZONE_SYNC_DIRECTIVES: &[Directive] = ssl_directives!(stream, "zone_sync", zone_sync.ssl);
/// `proxy_ssl_*` of `stream`
pub const STREAM_DIRECTIVES: &[Directive] = ssl_directives!(stream, "proxy", stream_proxy.ssl);

fn text(setting: &mut Setting<Arc<[u8]>>, node: &Node) -> Result<(), Problem> {
    setters::value(setting, node, node.args[0].text.as_slice().into())
}

/// Contexts by what they were made of: many locations share one.
#[derive(Debug, Default)]
pub struct Main {
    made: Vec<([u8; 32], Option<Arc<Context>>)>,
}

/// Makes what a level with a pass to TLS needs (`ngx_http_proxy_set_ssl`, `ngx_stream_proxy_set_ssl`). `prefix`: of the directives;
/// `alpn`: what is asked for.
pub fn finish(build: &mut Build<'_>, conf: &SslSettings, prefix: &'static str, alpn: &[&[u8]]) -> Option<Arc<Context>> {
    let key = crate::tls::settings::key(prefix, &(conf, alpn));
    if let Some((_, made)) = build.main.proxy_ssl.made.iter().find(|(k, _)| *k == key) {
        return made.clone();
    }
    let made = make(build, conf, prefix, alpn);
    build.main.proxy_ssl.made.push((key, made.clone()));
    made
}

fn make(build: &mut Build<'_>, conf: &SslSettings, prefix: &'static str, alpn: &[&[u8]]) -> Option<Arc<Context>> {
    let mut dynamic = None;
    if conf.certificate.contains(&b'$') || conf.certificate_key.contains(&b'$') {
        let pair = Complex::compile_bytes(build, &conf.certificate)
            .and_then(|c| Complex::compile_bytes(build, &conf.certificate_key).map(|k| Pair::Named(c, k)));
        match pair {
            Ok(pair) => {
                let (passwords, limits) = ((*conf.passwords).clone(), *conf.certificate_cache);
                dynamic = Some(Dynamic::new(vec![pair], passwords, build.conf_prefix.clone(), limits));
            }
            Err(text) => build.problems.push(Problem::bare(text)),
        }
    }
    let base = build.conf_prefix.clone();
    let read = build.tls_reader();
    let (context, complaints) = client::build(conf, prefix, alpn, Source { read: &read, prefix: &base }, dynamic);
    build.problems.extend(complaints.errors.into_iter().map(Problem::bare));
    complaints.warnings.into_iter().for_each(|w| warn_once(build, w));
    context.map(Arc::new)
}
