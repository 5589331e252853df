//! What the configuration says of Redis: `nchan_redis_*` in locations and in `upstream` blocks. To: `link`.

use super::super::Conf;
use super::backend::Backend;
use crate::config::{Directive, Scope, http, setters, upstream};
use crate::modules::upstream_block;
use crate::tls::certificate::Source;
use crate::tls::client::{unverified, verified};
use crate::tls::verify;
use conf::{Node, Problem, value};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ClientConfig, RootCertStore};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// nchan's default.
const PORT: u16 = 6379;

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
    // Only one server is asked at a time, so there is nobody to prefer.
    upstream("nchan_redis_subscribe_weights", |s, n| {
        s.build.note(n);
        Ok(())
    }),
    upstream("nchan_redis_optimize_target", |s, n| {
        s.build.note(n);
        Ok(())
    }),
];

/// What Redis is there for (`nchan_redis_storage_mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Messages go through it, and are kept in it.
    #[default]
    Distributed,
    /// Messages are kept in it too, for the next start. One server alone uses it.
    Backup,
    /// Messages go through it, and are kept by each server for itself.
    NoStore,
}

const MODES: &[(&str, Mode)] =
    &[("distributed", Mode::Distributed), ("backup", Mode::Backup), ("nostore", Mode::NoStore)];

/// One Redis, and how it is used. What is the same is one connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Given {
    /// Hosts and ports, asked in this order; or paths.
    pub(super) servers: Vec<Place>,
    pub(super) username: Box<[u8]>,
    pub(super) password: Box<[u8]>,
    pub(super) database: u32,
    pub(super) namespace: Box<[u8]>,
    pub(super) ssl: bool,
    pub(super) verify: bool,
    pub(super) server_name: Box<[u8]>,
    pub(super) trusted: Box<[u8]>,
    pub(super) mode: Mode,
    pub(super) fast: bool,
    pub(super) retry: bool,
    pub(super) ping: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) reconnect_delay: Duration,
    pub(super) command_timeout: Duration,
}

impl Default for Given {
    fn default() -> Given {
        Given {
            servers: Vec::new(),
            username: Box::default(),
            password: Box::default(),
            database: 0,
            namespace: Box::default(),
            ssl: false,
            verify: true,
            server_name: Box::default(),
            trusted: Box::default(),
            mode: Mode::Distributed,
            fast: false,
            retry: true,
            ping: Duration::from_secs(240),
            connect_timeout: Duration::from_secs(10),
            reconnect_delay: Duration::from_millis(500),
            command_timeout: Duration::from_secs(5),
        }
    }
}

/// Where a Redis is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Host(Box<str>, u16),
    Path(Box<str>),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Host(host, port) => write!(f, "{host}:{port}"),
            Place::Path(path) => write!(f, "unix:{path}"),
        }
    }
}

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

    /// How long after a connection was lost it is made anew.
    pub(in crate::modules) fn reconnect_delay(&self) -> Duration {
        self.given.reconnect_delay
    }
}

/// `redis://user:password@host:port/database`, `rediss://...`, `host:port`, `unix:/path`.
fn parse_url(text: &str) -> Option<Given> {
    let mut given = Given::default();
    if let Some(path) = text.strip_prefix("unix:") {
        given.servers.push(Place::Path(path.into()));
        return (!path.is_empty()).then_some(given);
    }
    let rest = match text.split_once("://") {
        Some(("redis", rest)) => rest,
        Some(("rediss", rest)) => {
            given.ssl = true;
            rest
        }
        Some(_) => return None,
        None => text,
    };
    let (place, database) = rest.split_once('/').unwrap_or((rest, ""));
    if !database.is_empty() {
        given.database = database.parse().ok()?;
    }
    let place = match place.rsplit_once('@') {
        Some((who, place)) => {
            let (user, password) = who.split_once(':').unwrap_or(("", who));
            (given.username, given.password) = (user.as_bytes().into(), password.as_bytes().into());
            place
        }
        None => place,
    };
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok().filter(|port| *port > 0)?),
        _ => (place, PORT),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    given.servers.push(Place::Host(host.into(), port));
    (!host.is_empty()).then_some(given)
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
    let provider = Arc::new(default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(|e| e.to_string())?;
    if !given.verify {
        let builder = builder.dangerous().with_custom_certificate_verifier(unverified(algorithms));
        return Ok(Some(Arc::new(builder.with_no_client_auth())));
    }
    if given.trusted.is_empty() {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(Some(Arc::new(builder.with_root_certificates(roots).with_no_client_auth())));
    }
    let prefix = scope.build.conf_prefix.clone();
    let read = scope.build.tls_reader();
    let trusted = verify::load(Source { read: &read, prefix: &prefix }, &given.trusted)?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verified(trusted, algorithms)?);
    Ok(Some(Arc::new(builder.with_no_client_auth())))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let shown = |text: &str| {
            parse_url(text).map(|g| {
                let (user, password) = (String::from_utf8_lossy(&g.username), String::from_utf8_lossy(&g.password));
                format!("{} {} {user} {password} {}", g.servers[0], g.ssl, g.database)
            })
        };
        for (text, expected) in [
            ("127.0.0.1", "127.0.0.1:6379 false   0"),
            ("redis://h:7", "h:7 false   0"),
            ("redis://:pw@h/3", "h:6379 false  pw 3"),
            ("rediss://me:p@w@h:7/", "h:7 true me p@w 0"),
            ("redis://[::1]:7", "::1:7 false   0"),
            ("unix:/tmp/r", "unix:/tmp/r false   0"),
        ] {
            assert_eq!(shown(text).as_deref(), Some(expected));
        }
        for bad in ["http://h", "redis://", "redis://h:x", "redis://h/x", "unix:"] {
            assert_eq!(shown(bad), None, "{bad}");
        }
    }
}
