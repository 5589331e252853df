//! `zone_sync`: nodes of a cluster share what their zones have (nginx Plus' `ngx_stream_zone_sync_module`): sessions that `sticky learn` has learnt,
//! records of `keyval_zone`, requests that `limit_req_zone` has let in. The zones themselves and what changed in them: `zone::synced`.
//!
//! ```text
//!  this node  ── link (service thread), one for each address of zone_sync_server ──>  the other's `listen` in `stream`
//!             <── the other's link ──  receive (a session of `stream`: its allow, deny, TLS and limits hold)
//! ```
//! Each node tells all others what has changed on itself, every `zone_sync_interval`; what it has heard it does not tell again. A node that comes is
//! told everything. The protocol is our own (`wire::zone_sync`).

mod link;
pub mod receive;

use super::listen::Listen;
use super::stream_core::Handler;
use super::{ignored, proxy};
use crate::config::setters::{self, duplicate};
use crate::config::{Build, ConfigLevel, Directive, Scope, stream};
use crate::log::error::Level;
use crate::merged_values;
use crate::process_settings::ListenAddress;
use crate::service;
use crate::snapshot::Snapshot;
use crate::tls::client::Context;
use crate::tls::settings::VerifyClient;
use crate::upstream::settings::SslSettings;
use conf::{Node, Problem, value};
use resolve::ResolverConfig;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// What the module understands; `zone_sync_ssl_*` but for the switch are [`proxy::ssl::ZONE_SYNC_DIRECTIVES`].
pub const DIRECTIVES: &[Directive] = &[
    stream("zone_sync", |s, n| {
        if s.level.conf.zone_sync.own.servers.is_set() || *s.level.conf.stream_core.handler == Handler::ZoneSync {
            return Err(duplicate(n));
        }
        s.level.conf.zone_sync.own.servers.force(Arc::default());
        s.level.conf.stream_core.handler.force(Handler::ZoneSync);
        Ok(())
    }),
    stream("zone_sync_server", server),
    stream("zone_sync_buffers", |s, n| {
        let buffers = value::buffers(&n.args[0].text, &n.args[1].text).ok_or_else(|| setters::invalid(n))?;
        setters::value(&mut s.level.conf.zone_sync.own.buffers, n, buffers)
    }),
    stream("zone_sync_connect_retry_interval", |s, n| {
        setters::time(&mut s.level.conf.zone_sync.own.connect_retry_interval, n)
    }),
    stream("zone_sync_connect_timeout", |s, n| setters::time(&mut s.level.conf.zone_sync.own.connect_timeout, n)),
    stream("zone_sync_interval", |s, n| setters::time(&mut s.level.conf.zone_sync.own.interval, n)),
    // A session's buffer is as long as what comes.
    stream("zone_sync_recv_buffer_size", ignored::size),
    stream("zone_sync_timeout", |s, n| setters::time(&mut s.level.conf.zone_sync.own.timeout, n)),
    stream("zone_sync_ssl", |s, n| setters::flag(&mut s.level.conf.zone_sync.own.ssl, n)),
];

merged_values! {
    /// Values of one level, but for TLS.
    pub struct Own {
        /// `zone_sync_server`, of a server with `zone_sync`.
        servers: Arc<Vec<Server>> = Arc::default(),
        /// `zone_sync_buffers`: how many bytes of a zone go out before the others have their turn.
        buffers: (u64, u64) = (8, 8192),
        /// `zone_sync_connect_retry_interval`
        connect_retry_interval: Duration = Duration::from_secs(1),
        /// `zone_sync_connect_timeout`
        connect_timeout: Duration = Duration::from_secs(5),
        /// `zone_sync_interval`
        interval: Duration = Duration::from_secs(1),
        /// `zone_sync_timeout`
        timeout: Duration = Duration::from_secs(5),
        /// `zone_sync_ssl`
        ssl: bool = false,
    }
}

crate::inherited!(Conf, |conf| !conf.own.servers.is_set());

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    /// Those of its own.
    pub own: Own,
    /// `zone_sync_ssl_*`
    pub ssl: SslSettings,
}

impl Conf {
    /// Takes from the level around what this one does not set.
    pub fn merge(&mut self, parent: &Conf) {
        self.own.merge(&parent.own);
        self.ssl.merge(&parent.ssl);
    }
}

/// What is kept once for `stream`.
#[derive(Debug, Default)]
pub struct Main {
    /// The cluster, if there is one.
    pub cluster: Option<Arc<Cluster>>,
}

/// One `zone_sync_server`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// As written, without `resolve`.
    pub name: Box<str>,
    /// Where it is.
    pub place: Place,
    /// Its addresses are asked for again and again: each of them is a node.
    pub resolve: bool,
}

/// Where a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `unix:path`
    Unix(PathBuf),
    /// A name or an address, and a port.
    Host(Box<str>, u16),
}

/// The cluster as this node sees it.
#[derive(Debug)]
pub struct Cluster {
    servers: Arc<Vec<Server>>,
    batch: usize,
    connect_retry_interval: Duration,
    connect_timeout: Duration,
    interval: Duration,
    timeout: Duration,
    tls: Option<Arc<Context>>,
    resolver: Option<(Arc<ResolverConfig>, Duration)>,
    /// What makes two the same: a reload that changes nothing of it breaks no connection.
    identity: String,
}

/// What this process calls itself.
static NODE: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));

/// The cluster of the present configuration: its links live as long as it does.
static PRESENT: Mutex<Option<Arc<Cluster>>> = Mutex::new(None);

/// `zone_sync_server address [resolve]`
fn server(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if *scope.level.conf.stream_core.handler != Handler::ZoneSync {
        return Err(node.problem("\"zone_sync_server\" needs \"zone_sync\" before it".to_owned()));
    }
    let resolve = match node.args.get(1) {
        None => false,
        Some(word) if *word.text == *b"resolve" => true,
        Some(word) => return Err(node.problem(format!("invalid parameter \"{}\"", word.as_str()))),
    };
    let text = String::from_utf8_lossy(&node.args[0].text).into_owned();
    let place = match text.strip_prefix("unix:") {
        Some("") => None,
        Some(path) => Some(Place::Unix(path.into())),
        None => text.rsplit_once(':').and_then(|(host, port)| {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let port = port.parse().ok().filter(|port| *port > 0)?;
            (!host.is_empty()).then(|| Place::Host(host.into(), port))
        }),
    };
    let Some(place) = place else { return Err(node.problem(format!("no port in zone_sync_server \"{text}\""))) };
    if resolve && matches!(place, Place::Unix(_)) {
        return Err(node.problem("\"resolve\" is for names".to_owned()));
    }
    let servers = scope.level.conf.zone_sync.own.servers.entry();
    Arc::make_mut(servers).push(Server { name: text.into(), place, resolve });
    Ok(())
}

/// Makes the cluster of a server with `zone_sync`.
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel) {
    if *level.conf.stream_core.handler != Handler::ZoneSync || !level.conf.zone_sync.own.servers.is_set() {
        return;
    }
    let (own, ssl) = (&level.conf.zone_sync.own, &level.conf.zone_sync.ssl);
    let tls = if *own.ssl { proxy::ssl::finish(build, ssl, "zone_sync", &[]) } else { None };
    let core = &level.conf.core;
    let resolver = (*core.resolver).clone().map(|config| (config, *core.resolver_timeout));
    if resolver.is_none() && own.servers.iter().any(|server| server.resolve) {
        let text = "no resolver defined to resolve names of \"zone_sync_server ... resolve\"".to_owned();
        build.problems.push(Problem::bare(text));
    }
    let identity = format!("{own:?} {ssl:?} {:?} {resolver:?}", tls.as_ref().map(|tls| tls.identity()));
    let cluster = Cluster {
        servers: (*own.servers).clone(),
        batch: usize::try_from(own.buffers.0.saturating_mul(own.buffers.1)).unwrap_or(usize::MAX),
        connect_retry_interval: *own.connect_retry_interval,
        connect_timeout: *own.connect_timeout,
        interval: (*own.interval).max(Duration::from_millis(1)),
        timeout: *own.timeout,
        tls,
        resolver,
        identity,
    };
    if build.main.zone_sync.cluster.replace(Arc::new(cluster)).is_some() {
        build.problems.push(Problem::bare("\"zone_sync\" is given for more than one server".to_owned()));
    }
}

/// Warns of a server where everybody who reaches it writes into zones, as of `api write=on`.
pub fn check_server(build: &mut Build<'_>, level: &ConfigLevel, verify: VerifyClient) {
    let is_here = |listen: &Listen| match &listen.spec.address {
        ListenAddress::Inet(address) => address.ip().is_loopback(),
        _ => true,
    };
    let is_guarded =
        verify != VerifyClient::Off || !level.conf.access.rules.is_empty() || level.listens.iter().all(is_here);
    if *level.conf.stream_core.handler == Handler::ZoneSync && !is_guarded {
        let text = "\"zone_sync\" without \"allow\", \"deny\" or \"ssl_verify_client\" lets everybody who reaches it change zones";
        build.problems.push(Problem::warn(level.place, text));
    }
}

/// Tells the nodes of this configuration from now on, and no others. In the worker process.
pub fn configure(snapshot: &Snapshot) {
    let wanted = snapshot.stream.as_deref().and_then(|stream| stream.main.zone_sync.cluster.clone());
    let mut present = PRESENT.lock().unwrap_or_else(PoisonError::into_inner);
    if present.as_ref().map(|c| &c.identity) == wanted.as_ref().map(|c| &c.identity) {
        return;
    }
    present.clone_from(&wanted);
    if let Some(cluster) = wanted {
        let cluster = Arc::downgrade(&cluster);
        service::spawn(move || link::run(cluster));
    }
}

fn say(level: Level, text: &str) {
    crate::log::process_line(level, format_args!("{text}"));
}
