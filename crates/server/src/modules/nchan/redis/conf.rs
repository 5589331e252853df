//! What the configuration says of Redis: `nchan_redis_*` in locations and in `upstream` blocks. To: `link`.

use super::super::Conf;
use super::backend::Backend;
use super::given::{Given, Mode, Target, parse_url};
use crate::config::{Directive, Scope, http, setters, upstream};
use crate::modules::upstream_block;
use crate::tls::certificate::{self, Source};
use crate::tls::client::{own_certificate, unverified, verified};
use crate::tls::{ciphers, verify};
use conf::{Node, Problem, value};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ClientConfig, RootCertStore};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    http("nchan_use_redis", |s, n| setters::flag(&mut s.level.conf.nchan.use_redis, n)),
    http("nchan_redis_url", url),
    http("nchan_redis_pass", pass),
    http("nchan_redis_pass_inheritable", |s, n| setters::flag(&mut s.level.conf.nchan.redis_inheritable, n)),
    http("nchan_redis_namespace", |s, n| {
        setters::value(&mut s.level.conf.nchan.redis_namespace, n, n.args[0].text.as_slice().into())
    }),
    http("nchan_redis_ping_interval", |s, n| setters::seconds(&mut s.level.conf.nchan.redis_ping, n)),
    http("nchan_redis_storage_mode", |s, n| setters::one_of(&mut s.level.conf.nchan.redis_mode, n, MODES)),
    http("nchan_redis_nostore_fastpublish", |s, n| setters::flag(&mut s.level.conf.nchan.redis_fast, n)),
    http("nchan_redis_idle_channel_cache_timeout", |s, n| setters::seconds(&mut s.level.conf.nchan.redis_idle, n)),
    upstream("nchan_redis_server", server),
    upstream("nchan_redis_namespace", |s, n| text(s, n, |g| &mut g.namespace)),
    upstream("nchan_redis_username", |s, n| text(s, n, |g| &mut g.username)),
    upstream("nchan_redis_password", |s, n| text(s, n, |g| &mut g.password)),
    upstream("nchan_redis_ping_interval", |s, n| time(s, n, |g| &mut g.ping)),
    upstream("nchan_redis_connect_timeout", |s, n| time(s, n, |g| &mut g.connect_timeout)),
    upstream("nchan_redis_reconnect_delay", |s, n| time(s, n, |g| &mut g.reconnect_delay)),
    upstream("nchan_redis_command_timeout", |s, n| time(s, n, |g| &mut g.command_timeout)),
    upstream("nchan_redis_storage_mode", |s, n| {
        let word = n.args[0].text.to_ascii_lowercase();
        let mode = MODES.iter().find(|(name, _)| name.as_bytes() == word);
        given(s).mode = mode.ok_or_else(|| setters::invalid(n))?.1;
        Ok(())
    }),
    upstream("nchan_redis_nostore_fastpublish", |s, n| flag(s, n, |g| &mut g.fast)),
    upstream("nchan_redis_retry_commands", |s, n| flag(s, n, |g| &mut g.retry)),
    upstream("nchan_redis_ssl", |s, n| flag(s, n, |g| &mut g.ssl)),
    upstream("nchan_redis_ssl_verify_certificate", |s, n| flag(s, n, |g| &mut g.verify)),
    upstream("nchan_redis_ssl_server_name", |s, n| text(s, n, |g| &mut g.server_name)),
    upstream("nchan_redis_ssl_trusted_certificate", |s, n| text(s, n, |g| &mut g.trusted)),
    upstream("nchan_redis_ssl_client_certificate", |s, n| text(s, n, |g| &mut g.certificate)),
    upstream("nchan_redis_ssl_client_certificate_key", |s, n| text(s, n, |g| &mut g.certificate_key)),
    upstream("nchan_redis_ssl_ciphers", |s, n| text(s, n, |g| &mut g.ciphers)),
    upstream("nchan_redis_cluster_connect_timeout", |s, n| time(s, n, |g| &mut g.cluster_connect_timeout)),
    upstream("nchan_redis_cluster_max_failing_time", |s, n| time(s, n, |g| &mut g.max_failing_time)),
    upstream("nchan_redis_cluster_check_interval_min", |s, n| time(s, n, |g| &mut g.check_interval_min)),
    upstream("nchan_redis_cluster_check_interval_max", |s, n| time(s, n, |g| &mut g.check_interval_max)),
    upstream("nchan_redis_upstream_stats_enabled", |s, n| flag(s, n, |g| &mut g.stats)),
    // Only masters are asked, so there is nobody to prefer.
    upstream("nchan_redis_subscribe_weights", |s, n| {
        s.build.note(n);
        Ok(())
    }),
    upstream("nchan_redis_optimize_target", |s, n| {
        s.build.note(n);
        Ok(())
    }),
];

const MODES: &[(&str, Mode)] =
    &[("distributed", Mode::Distributed), ("backup", Mode::Backup), ("nostore", Mode::NoStore)];

/// A Redis of the configuration, and the connection to it once somebody needs it.
#[derive(Debug)]
pub struct Redis {
    pub(super) given: Given,
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) backend: OnceLock<Arc<Backend>>,
}

impl Redis {
    fn new(given: Given, tls: Option<Arc<ClientConfig>>) -> Redis {
        Redis { given, tls, backend: OnceLock::new() }
    }

    /// What it takes to connect.
    pub(super) fn target(&self) -> Target<'_> {
        Target { given: &self.given, tls: self.tls.as_ref() }
    }

    /// How long after a connection was lost it is made anew.
    pub(in crate::modules) fn reconnect_delay(&self) -> Duration {
        self.given.reconnect_delay
    }
}

fn url(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let text = node.args[0].as_str();
    let given = parse_url(&text).ok_or_else(|| node.problem(format!("\"{text}\" is no address of a Redis")))?;
    let tls = tls(scope, &given).map_err(|e| node.problem(e))?;
    setters::value(&mut scope.level.conf.nchan.redis_url, node, Some(Arc::new((given, tls))))
}

fn pass(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    scope.build.main.nchan.redis_named.push(node.clone());
    let name = node.args[0].as_str().into_owned();
    setters::value(&mut scope.level.conf.nchan.redis_pass, node, Some(name.into()))
}

fn given<'s>(scope: &'s mut Scope<'_, '_>) -> &'s mut Given {
    upstream_block::current(scope).redis.get_or_insert_default()
}

fn server(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let text = node.args[0].as_str();
    if let Some(word) = node.args.get(1) {
        return Err(Problem::invalid_parameter(word));
    }
    let parsed = parse_url(&text).ok_or_else(|| node.problem(format!("\"{text}\" is no address of a Redis")))?;
    let given = given(scope);
    given.ssl |= parsed.ssl;
    given.database = parsed.database.max(given.database);
    if !parsed.password.is_empty() {
        (given.username, given.password) = (parsed.username, parsed.password);
    }
    given.servers.extend(parsed.servers);
    Ok(())
}

fn text(scope: &mut Scope<'_, '_>, node: &Node, field: fn(&mut Given) -> &mut Box<[u8]>) -> Result<(), Problem> {
    *field(given(scope)) = node.args[0].text.as_slice().into();
    Ok(())
}

fn flag(scope: &mut Scope<'_, '_>, node: &Node, field: fn(&mut Given) -> &mut bool) -> Result<(), Problem> {
    *field(given(scope)) = node.args[0].text.eq_ignore_ascii_case(b"on");
    Ok(())
}

fn time(scope: &mut Scope<'_, '_>, node: &Node, field: fn(&mut Given) -> &mut Duration) -> Result<(), Problem> {
    let ms = value::milliseconds(&node.args[0].text).ok_or_else(|| setters::invalid(node))?;
    *field(given(scope)) = Duration::from_millis(ms);
    Ok(())
}

/// An `upstream` block has ended: a Redis if it names one. Servers of HTTP have no place beside it.
pub(in crate::modules) fn finish(
    scope: &mut Scope<'_, '_>,
    node: &Node,
    given: Given,
    name: &str,
) -> Result<(), Problem> {
    if given.servers.is_empty() {
        return Err(node.problem(format!("no \"nchan_redis_server\" in upstream \"{name}\"")));
    }
    let tls = tls(scope, &given).map_err(|e| node.problem(e))?;
    scope.build.main.nchan.redis.push((name.into(), Arc::new(Redis::new(given, tls))));
    Ok(())
}

fn tls(scope: &mut Scope<'_, '_>, given: &Given) -> Result<Option<Arc<ClientConfig>>, String> {
    if !given.ssl {
        return Ok(None);
    }
    let mut provider = default_provider();
    if !given.ciphers.is_empty() {
        let list = ciphers::tls12(&String::from_utf8_lossy(&given.ciphers));
        if list.suites.is_empty() {
            let shown = String::from_utf8_lossy(&given.ciphers);
            return Err(format!("none of the ciphers of \"nchan_redis_ssl_ciphers {shown}\" is there"));
        }
        // Those of TLS 1.3 are not named in such a list, as in OpenSSL.
        provider.cipher_suites = ciphers::all_tls13().into_iter().chain(list.suites).collect();
    }
    let provider = Arc::new(provider);
    let algorithms = provider.signature_verification_algorithms;
    let prefix = scope.build.conf_prefix.clone();
    let read = scope.build.tls_reader();
    let source = Source { read: &read, prefix: &prefix };
    let own = match (&*given.certificate, &*given.certificate_key) {
        (b"", b"") => None,
        (b"", _) => return Err("\"nchan_redis_ssl_client_certificate_key\" without a certificate".to_owned()),
        // A file may have both.
        (certificate, b"") => Some(certificate::load(source, certificate, certificate, &[], &provider)?.pair),
        (certificate, key) => Some(certificate::load(source, certificate, key, &[], &provider)?.pair),
    };
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(|e| e.to_string())?;
    let builder = if !given.verify {
        builder.dangerous().with_custom_certificate_verifier(unverified(algorithms))
    } else if given.trusted.is_empty() {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        builder.with_root_certificates(roots)
    } else {
        let trusted = verify::load(source, &given.trusted)?;
        builder.dangerous().with_custom_certificate_verifier(verified(trusted, algorithms)?)
    };
    Ok(Some(Arc::new(builder.with_client_cert_resolver(own_certificate(own)))))
}

impl Conf {
    /// What a level's own words come to, after those of the level around were taken.
    pub(in super::super) fn settle_redis(&mut self) {
        let settings = &self.settings;
        self.redis = match &*settings.redis_url {
            _ if !*settings.use_redis => None,
            url => {
                let (given, tls) = match url {
                    Some(url) => (url.0.clone(), url.1.clone()),
                    None => (parse_url("127.0.0.1").unwrap_or_default(), None),
                };
                let given = Given {
                    namespace: (**settings.redis_namespace).into(),
                    ping: *settings.redis_ping,
                    mode: *settings.redis_mode,
                    fast: *settings.redis_fast,
                    ..given
                };
                Some(Arc::new(Redis::new(given, tls)))
            }
        };
    }
}
