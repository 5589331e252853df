//! Where a Redis is and how it is used, as the configuration says it. Knows neither configuration nor connection. From: `conf`. To: who connects.

use rustls::ClientConfig;
use std::sync::Arc;
use std::time::Duration;

/// nchan's default.
const PORT: u16 = 6379;

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
    /// Shown to a Redis that asks for one (`tls-auth-clients`).
    pub(super) certificate: Box<[u8]>,
    pub(super) certificate_key: Box<[u8]>,
    /// None: all that there are.
    pub(super) ciphers: Box<[u8]>,
    pub(super) mode: Mode,
    pub(super) fast: bool,
    pub(super) retry: bool,
    pub(super) ping: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) reconnect_delay: Duration,
    pub(super) command_timeout: Duration,
    /// For an answer of a node about the cluster.
    pub(super) cluster_connect_timeout: Duration,
    /// What no node can do waits so long.
    pub(super) max_failing_time: Duration,
    /// Between two questions about the cluster: while it changes, and else.
    pub(super) check_interval_min: Duration,
    pub(super) check_interval_max: Duration,
    /// What commands took is counted.
    pub(super) stats: bool,
}

/// What it takes to connect to one.
#[derive(Clone, Copy)]
pub(super) struct Target<'g> {
    pub(super) given: &'g Given,
    pub(super) tls: Option<&'g Arc<ClientConfig>>,
}

impl Given {
    /// Of what makes the channels the same ones: where they are, not who asks and how. FNV-1a, so that each binary comes to the same.
    pub(super) fn number(&self) -> u64 {
        let places: Vec<String> = self.servers.iter().map(Place::to_string).collect();
        let text = format!("{}|{}|{:?}|{}|", places.join(","), self.database, self.mode, self.ssl);
        let bytes = text.bytes().chain(self.namespace.iter().copied());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
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
            certificate: Box::default(),
            certificate_key: Box::default(),
            ciphers: Box::default(),
            mode: Mode::Distributed,
            fast: false,
            retry: true,
            ping: Duration::from_secs(240),
            connect_timeout: Duration::from_secs(10),
            reconnect_delay: Duration::from_millis(500),
            command_timeout: Duration::from_secs(5),
            cluster_connect_timeout: Duration::from_secs(15),
            max_failing_time: Duration::from_secs(30),
            check_interval_min: Duration::from_secs(1),
            check_interval_max: Duration::from_secs(30),
            stats: true,
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

/// `redis://user:password@host:port/database`, `rediss://...`, `host:port`, `unix:/path`.
pub(super) fn parse_url(text: &str) -> Option<Given> {
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
