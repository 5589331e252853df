//! Upstreams whose names are known only at run time: `proxy_pass` and its like with variables.

use super::group::Group;
use crate::connection::Address;
use crate::log::error::Level;
use crate::log_error;
use crate::request::Request;
use crate::request::steps::Verdict;
use resolve::{Counters, Gravity, Resolver, ResolverConfig};
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

thread_local! {
    /// The service thread's resolvers by what the configuration says: all worker threads share what they know.
    static RESOLVERS: RefCell<Vec<(Arc<ResolverConfig>, Resolver)>> = const { RefCell::new(Vec::new()) };
}

/// The resolver for a configuration. On the service thread only.
pub(crate) fn resolver(config: &Arc<ResolverConfig>) -> Resolver {
    RESOLVERS.with_borrow_mut(|all| {
        all.retain(|(c, _)| Arc::ptr_eq(c, config) || Arc::strong_count(c) > 1);
        if let Some((_, r)) = all.iter().find(|(c, _)| Arc::ptr_eq(c, config)) {
            return r.clone();
        }
        let log = Rc::new(|gravity, text: &str| {
            let level = match gravity {
                Gravity::Error => Level::Error,
                Gravity::Alert => Level::Alert,
            };
            crate::log::process_line(level, format_args!("{text}"));
        });
        let made = Resolver::new((**config).clone(), log);
        all.push((config.clone(), made.clone()));
        made
    })
}

/// Looks at the counters of all resolvers with a `status_zone`. On the service thread only.
pub fn resolvers<T>(show: impl Fn(&[u8], &Counters) -> T) -> Vec<T> {
    RESOLVERS.with_borrow(|all| {
        all.iter().filter_map(|(c, r)| c.status_zone.as_ref().map(|zone| show(zone, r.counters()))).collect()
    })
}

/// The addresses of a name; the text of an error otherwise.
pub(crate) async fn resolve(
    config: &Arc<ResolverConfig>,
    name: &str,
    timeout: Duration,
) -> Result<Vec<IpAddr>, String> {
    let (config, name) = (config.clone(), name.to_owned());
    let asked = crate::service::ask(move || async move {
        let found = resolver(&config).resolve(name.as_bytes(), timeout).await;
        found.map(|a| a.iter().collect()).map_err(|e| e.to_string())
    });
    asked.await.unwrap_or_else(|| Err("the resolver failed".into()))
}

/// The group of that name, or one that is made for the request: a pass without a default port.
pub async fn group(r: &mut Request, target: &str) -> Result<Arc<Group>, Verdict> {
    if let Some(group) = r.snapshot.groups.iter().find(|g| g.name.eq_ignore_ascii_case(target)) {
        return Ok(group.clone());
    }
    let host_end = target.rfind(']').unwrap_or(0);
    if !target.starts_with("unix:") && !target[host_end..].contains(':') {
        log_error!(r, Error, "no port in upstream \"{target}\"");
        return Err(Verdict::Status(500));
    }
    let addresses = addresses(r, target, 0).await?;
    Ok(Arc::new(Group::for_one_request(target, addresses)))
}

/// Addresses of `host[:port]` or `unix:path`.
pub async fn addresses(r: &mut Request, target: &str, default_port: u16) -> Result<Vec<Address>, Verdict> {
    if let Some(path) = target.strip_prefix("unix:") {
        return Ok(vec![Address::Unix(path.into())]);
    }
    let at = if target.starts_with('[') { target.find("]:").map(|i| i + 1) } else { target.rfind(':') };
    let (host, port) = match at {
        Some(i) => (&target[..i], target[i + 1..].parse().unwrap_or(default_port)),
        None => (target, default_port),
    };
    if let Ok(ip) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(vec![Address::Inet(SocketAddr::new(ip, port))]);
    }
    let snapshot = r.snapshot.clone();
    let core = &snapshot.location(r.location).conf.core;
    let Some(config) = &*core.resolver else {
        log_error!(r, Error, "no resolver defined to resolve {host}");
        return Err(Verdict::Status(502));
    };
    match resolve(config, host, *core.resolver_timeout).await {
        Ok(found) => Ok(found.into_iter().map(|ip| Address::Inet(SocketAddr::new(ip, port))).collect()),
        Err(e) => {
            log_error!(r, Error, "{host} could not be resolved ({e})");
            Err(Verdict::Status(502))
        }
    }
}
