//! nginx's resolver (`resolver`, `resolver_timeout`): host names, services and addresses asked of the configured name servers
//! while the server runs. Place in the flow: `upstream` asks it for names known only at run time or marked `resolve`.
//! One `Resolver` per worker thread, without locks; must be used inside a tokio `LocalSet` or `LocalRuntime`, for it starts local
//! tasks. It never blocks: only `ResolverConfig::parse` asks the system, at load.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answer;
mod cache;
mod config;
mod engine;
mod message;
mod query;
mod service;
mod transport;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cell::Cell;
use std::future::Future;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

pub use answer::{
    Addresses, FORMAT_ERROR, FailedTarget, HostName, NOT_FOUND, NOT_IMPLEMENTED, REFUSED, ResolveError, SERVER_FAILURE,
    Service, ServiceAddress, ServiceError, TIMED_OUT,
};
pub use config::ResolverConfig;
pub use engine::Gravity;

use answer::AddressList;
use engine::{Engine, TIMING};
use query::{Kind, Known, Record};
use service::{ResolvedTarget, order, service_name};

/// nginx's default of `resolver_timeout`.
pub const RESOLVER_TIMEOUT: Duration = Duration::from_secs(30);
/// A literal address never expires; a year is never for a refresh timer.
const LITERAL_VALID: Duration = Duration::from_secs(365 * 86_400);

/// The resolver of one worker thread; clones share it. Dropping the last clone closes its sockets.
///
/// A `timeout` of zero waits as long as it takes, as `resolver_timeout 0` does in nginx.
#[derive(Clone)]
pub struct Resolver {
    engine: Rc<Engine>,
}

impl Resolver {
    /// A resolver with an empty cache; sockets are opened when first needed. `log` takes lines.
    pub fn new(config: ResolverConfig, log: engine::Log) -> Resolver {
        Resolver { engine: Engine::new(config, log, TIMING) }
    }

    #[cfg(test)]
    fn with_timing(config: ResolverConfig, log: engine::Log, timing: engine::Timing) -> Resolver {
        Resolver { engine: Engine::new(config, log, timing) }
    }

    /// The addresses of a host name if they are known and valid, or if the name is an address.
    pub fn cached(&self, name: &[u8]) -> Option<Addresses> {
        if let Some(ip) = literal(name) {
            return Some(Addresses::new(AddressList::new(vec![ip]), Instant::now() + LITERAL_VALID));
        }
        self.engine.known(Kind::Name, &normal(name)).map(addresses)
    }

    /// The addresses of a host name. Returns at once what is known; drop the future to stop waiting.
    pub async fn resolve(&self, name: &[u8], timeout: Duration) -> Result<Addresses, ResolveError> {
        if let Some(known) = self.cached(name) {
            return Ok(known);
        }
        self.within(timeout, self.engine.resolve(Kind::Name, &normal(name))).await.map(addresses)
    }

    /// The addresses of a service: `service=http` or `service=_http._tcp` of a domain. `timeout` is for the service, then once more
    /// for its targets, as in nginx.
    pub async fn resolve_srv(&self, service: &[u8], name: &[u8], timeout: Duration) -> Result<Service, ServiceError> {
        let full = service_name(&service.to_ascii_lowercase(), &normal(name));
        let known = self.within(timeout, self.engine.resolve(Kind::Service, &full)).await?;
        let Record::Targets(targets) = known.record else {
            unreachable!("the cache of services holds targets and aliases");
        };
        let answers =
            self.resolve_targets(targets.iter().map(|target| Rc::from(&*target.name)).collect(), timeout).await;
        let mut valid_until = known.valid_until;
        let (mut resolved, mut failed) = (Vec::new(), Vec::new());
        for (target, (name, answer)) in targets.iter().zip(answers) {
            match answer {
                Ok(addresses) => {
                    valid_until = valid_until.min(addresses.valid_until());
                    resolved.push(ResolvedTarget { target: target.clone(), name, addresses: Some(addresses) });
                }
                Err(error) => failed.push(FailedTarget { name, error }),
            }
        }
        if resolved.is_empty() {
            let not_found = failed.iter().any(|target| target.error.code == NOT_FOUND);
            let code = if not_found { NOT_FOUND } else { failed[0].error.code };
            return Err(ServiceError { error: self.engine.failure(code), failed });
        }
        Ok(Service { addresses: order(&resolved, || self.engine.random()), failed, valid_until })
    }

    /// The name of an address (PTR).
    pub async fn resolve_addr(&self, ip: IpAddr, timeout: Duration) -> Result<HostName, ResolveError> {
        let name = message::arpa_name(ip);
        let known = self.within(timeout, self.engine.resolve(Kind::Pointer, &name)).await?;
        let Record::HostName(name) = known.record else {
            unreachable!("the cache of pointers holds names only");
        };
        Ok(HostName { name, valid_until: known.valid_until })
    }

    /// What `status_zone` shows.
    pub fn counters(&self) -> &Counters {
        &self.engine.counters
    }

    /// All names at once, answers in their order.
    async fn resolve_targets(
        &self,
        names: Vec<Rc<[u8]>>,
        timeout: Duration,
    ) -> Vec<(Rc<[u8]>, Result<Addresses, ResolveError>)> {
        let mut tasks = JoinSet::new();
        for (index, name) in names.iter().enumerate() {
            let (resolver, name) = (self.clone(), name.clone());
            tasks.spawn_local(async move { (index, resolver.resolve(&name, timeout).await) });
        }
        let mut answers: Vec<_> =
            names.into_iter().map(|name| (name, Err(self.engine.failure(SERVER_FAILURE)))).collect();
        while let Some(done) = tasks.join_next().await {
            let (index, answer) = done.expect("resolving does not panic and is not cancelled");
            answers[index].1 = answer;
        }
        answers
    }

    async fn within<T>(
        &self,
        timeout: Duration,
        work: impl Future<Output = Result<T, ResolveError>>,
    ) -> Result<T, ResolveError> {
        if timeout.is_zero() {
            return work.await;
        }
        tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| {
            self.engine.counters.count_response(TIMED_OUT);
            Err(self.engine.failure(TIMED_OUT))
        })
    }
}

/// Numbers of NGINX Plus' `resolvers` in the API: queries started by kind, answers by response code.
#[derive(Debug, Default)]
pub struct Counters {
    /// Host names asked.
    pub name: Cell<u64>,
    /// Services asked.
    pub srv: Cell<u64>,
    /// Addresses asked.
    pub addr: Cell<u64>,
    /// Answers without error.
    pub noerror: Cell<u64>,
    /// Code 1.
    pub formerr: Cell<u64>,
    /// Code 2.
    pub servfail: Cell<u64>,
    /// Code 3.
    pub nxdomain: Cell<u64>,
    /// Code 4.
    pub notimp: Cell<u64>,
    /// Code 5.
    pub refused: Cell<u64>,
    /// Callers whose time ran out.
    pub timedout: Cell<u64>,
    /// Other codes.
    pub unknown: Cell<u64>,
}

impl Counters {
    /// Sets all to zero.
    pub fn reset(&self) {
        let Counters { name, srv, addr, noerror, formerr, servfail, nxdomain, notimp, refused, timedout, unknown } =
            self;
        for counter in [name, srv, addr, noerror, formerr, servfail, nxdomain, notimp, refused, timedout, unknown] {
            counter.set(0);
        }
    }

    fn count_request(&self, kind: Kind) {
        let counter = match kind {
            Kind::Name => &self.name,
            Kind::Service => &self.srv,
            Kind::Pointer => &self.addr,
        };
        counter.set(counter.get() + 1);
    }

    fn count_response(&self, code: u16) {
        let counter = match code {
            0 => &self.noerror,
            FORMAT_ERROR => &self.formerr,
            SERVER_FAILURE => &self.servfail,
            NOT_FOUND => &self.nxdomain,
            NOT_IMPLEMENTED => &self.notimp,
            REFUSED => &self.refused,
            TIMED_OUT => &self.timedout,
            _ => &self.unknown,
        };
        counter.set(counter.get() + 1);
    }
}

fn addresses(known: Known) -> Addresses {
    match known.record {
        Record::Addresses(list) => Addresses::new(list, known.valid_until),
        _ => unreachable!("the cache of names holds addresses and aliases"),
    }
}

/// Names are compared in lower case and without the last dot; most come that way.
fn normal(name: &[u8]) -> Cow<'_, [u8]> {
    let name = name.strip_suffix(b".").unwrap_or(name);
    if name.iter().any(u8::is_ascii_uppercase) { Cow::Owned(name.to_ascii_lowercase()) } else { Cow::Borrowed(name) }
}

/// Addresses begin with a digit or hold a colon; the check is cheap for all other names.
fn literal(name: &[u8]) -> Option<IpAddr> {
    if !name.first().is_some_and(u8::is_ascii_digit) && !name.contains(&b':') {
        return None;
    }
    std::str::from_utf8(name).ok()?.parse().ok()
}
