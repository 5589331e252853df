//! Groups whose peers change while the server runs: lines are edited (`servers`), and names are followed (`server name
//! resolve`, nginx's `ngx_http_upstream_zone`): the service thread asks for them by their time to live. A new list of peers
//! takes the old one's place. What was known of a name before a reload holds until the first answer after it. A failing
//! name server changes nothing.

use super::availability::AtomicAvailability;
use super::group::{Group, Tiers};
use super::names;
use super::servers::{EditError, Servers};
use crate::log::error::Level;
use crate::log::{os_error, process_line};
use resolve::{NOT_FOUND, Resolver, ResolverConfig, Service, ServiceError};
use runtime::{clock, timer};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The shortest time between two questions for a name, whatever its time to live says.
const SHORTEST: Duration = Duration::from_secs(1);
/// How long requests wait for the first answer of all, before they are told that there is nobody.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// Between two looks whether it is there.
const LOOK: Duration = Duration::from_millis(10);

/// What changes in a group while the server runs.
#[derive(Debug)]
pub struct Live {
    /// The block's `server` lines. Whoever makes a list of them holds this until the list is in its place.
    servers: Mutex<Servers>,
    /// Who is asked for names, and how long.
    resolver: Option<(Arc<ResolverConfig>, Duration)>,
    /// Names that a task follows already.
    followed: Mutex<Vec<Weak<Host>>>,
    /// How many lines there may be after one was added.
    room: usize,
    /// `state`: where edited lines are kept.
    state_file: Option<PathBuf>,
    /// It has names, and it is not known yet that each has been answered.
    unanswered: AtomicBool,
    /// Which list this is.
    version: AtomicU32,
    tiers: Mutex<Arc<Tiers>>,
}

/// One name, as long as a configuration follows it. Found again by group, name and service.
#[derive(Debug)]
pub struct Host {
    name: Box<str>,
    service: Option<Box<str>>,
    known: Mutex<Known>,
    /// There has been an answer, whatever it was.
    answered: AtomicBool,
    /// What the operator says of its peers.
    pub(super) availability: AtomicAvailability,
}

#[derive(Debug, Default)]
struct Known {
    places: Vec<Place>,
    /// Counts how often they changed.
    changes: u64,
    /// When to ask again.
    until: Option<Instant>,
}

/// One address that a name stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Port 0: the one the `server` line has.
    pub address: SocketAddr,
    /// The name of a service's target.
    pub target: Option<Box<str>>,
    /// A service's weight.
    pub weight: Option<u32>,
    /// Not of the service's best priority.
    pub backup: bool,
}

type Key = (Box<str>, Box<str>, Option<Box<str>>);

/// Names as long as some configuration follows them.
static HOSTS: Mutex<Option<HashMap<Key, Weak<Host>>>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    /// The name in a group: what was known of it before a reload, or nothing yet.
    pub fn find(group: &str, name: &str, service: Option<&str>) -> Arc<Host> {
        let mut hosts = lock(&HOSTS);
        let hosts = hosts.get_or_insert_default();
        hosts.retain(|_, host| host.strong_count() > 0);
        let key = (Box::from(group), Box::from(name), service.map(Box::from));
        if let Some(host) = hosts.get(&key).and_then(Weak::upgrade) {
            return host;
        }
        let (name, service) = (key.1.clone(), key.2.clone());
        let (known, answered, availability) = Default::default();
        let host = Arc::new(Host { name, service, known, answered, availability });
        hosts.insert(key, Arc::downgrade(&host));
        host
    }

    /// The addresses known now.
    pub fn places(&self) -> Vec<Place> {
        lock(&self.known).places.clone()
    }

    /// How long what is known holds.
    fn rest(&self) -> Duration {
        lock(&self.known).until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    fn changes(&self) -> u64 {
        lock(&self.known).changes
    }

    /// Takes an answer; `None` for the places: they stay.
    fn take(&self, places: Option<Vec<Place>>, wait: Duration) {
        let mut known = lock(&self.known);
        known.until = Some(Instant::now() + wait);
        if let Some(places) = places
            && places != known.places
        {
            known.places = places;
            known.changes += 1;
        }
        drop(known);
        self.answered.store(true, Release);
    }

    /// Asks once.
    async fn ask(&self, resolver: &Resolver, timeout: Duration) {
        let error = match &self.service {
            None => match resolver.resolve(self.name.as_bytes(), timeout).await {
                Ok(found) => {
                    let mut places: Vec<Place> = found.iter().map(Place::of).collect();
                    places.sort_by_key(|p| p.address);
                    return self.take(Some(places), until(found.valid_until()));
                }
                Err(e) => {
                    process_line(Level::Error, format_args!("{} could not be resolved ({e})", self.name));
                    e
                }
            },
            Some(service) => match resolver.resolve_srv(service.as_bytes(), self.name.as_bytes(), timeout).await {
                Ok(found) => {
                    self.complain(service, &found.failed);
                    return self.take(Some(of_service(&found)), until(found.valid_until));
                }
                Err(ServiceError { error, failed }) => {
                    self.complain(service, &failed);
                    let name = &self.name;
                    process_line(
                        Level::Error,
                        format_args!("service {service} of {name} could not be resolved ({error})"),
                    );
                    error
                }
            },
        };
        if error.code == NOT_FOUND {
            return self.take(Some(Vec::new()), until(error.valid_until));
        }
        self.take(None, timeout.max(SHORTEST));
    }

    fn complain(&self, service: &str, failed: &[resolve::FailedTarget]) {
        for target in failed {
            let (name, error) = (String::from_utf8_lossy(&target.name), &target.error);
            let of = &self.name;
            process_line(
                Level::Error,
                format_args!("{name} could not be resolved ({error}) while resolving service {service} of {of}"),
            );
        }
    }
}

impl Place {
    fn of(ip: std::net::IpAddr) -> Place {
        Place { address: SocketAddr::new(ip, 0), target: None, weight: None, backup: false }
    }
}

/// The targets of the best priority, and the others as backups. In the order of addresses: a resolver turns them.
fn of_service(service: &Service) -> Vec<Place> {
    let best = service.addresses.iter().map(|a| a.priority).min().unwrap_or(0);
    let place = |a: &resolve::ServiceAddress| Place {
        address: a.address,
        target: Some(String::from_utf8_lossy(&a.name).into()),
        weight: Some(u32::from(a.weight)),
        backup: a.priority != best,
    };
    let mut places: Vec<Place> = service.addresses.iter().map(place).collect();
    places.sort_by(|a, b| (a.backup, a.address, &a.target).cmp(&(b.backup, b.address, &b.target)));
    places
}

fn until(valid: tokio::time::Instant) -> Duration {
    valid.saturating_duration_since(tokio::time::Instant::now()).max(SHORTEST)
}

/// A number that no list of peers has had: threads know lists by it, those of the group before a reload as well.
fn fresh() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Relaxed)
}

impl Live {
    /// For a block's lines. The first list is made of what is known already. `resolver`: needed if any is a name.
    pub fn new(
        servers: Servers,
        room: usize,
        resolver: Option<(Arc<ResolverConfig>, Duration)>,
        state_file: Option<PathBuf>,
        tiers: Arc<Tiers>,
    ) -> Live {
        let unanswered = AtomicBool::new(servers.has_names());
        let (servers, tiers) = (Mutex::new(servers), Mutex::new(tiers));
        Live {
            servers,
            room,
            resolver,
            followed: Mutex::default(),
            state_file,
            unanswered,
            version: AtomicU32::new(fresh()),
            tiers,
        }
    }

    /// The number of the current list.
    pub fn version(&self) -> u32 {
        self.version.load(Acquire)
    }

    /// The current list.
    pub fn tiers(&self) -> Arc<Tiers> {
        lock(&self.tiers).clone()
    }

    /// The lines as they are now.
    pub fn servers(&self) -> Servers {
        lock(&self.servers).clone()
    }

    /// See [`Group::edit`].
    pub(super) fn edit<T>(
        &self,
        group: &Group,
        change: impl FnOnce(&mut Servers) -> Result<T, EditError>,
    ) -> Result<T, EditError> {
        let mut servers = lock(&self.servers);
        // A program may have said something of a peer since (`ngx.upstream`).
        servers.take_roles();
        let mut changed = servers.clone();
        let done = change(&mut changed)?;
        if changed.lines.len() > self.room.max(servers.lines.len()) {
            return Err(EditError::Full(self.room));
        }
        if changed.has_names() && self.resolver.is_none() {
            let text = format!("no resolver defined to resolve names at run time in upstream \"{}\"", group.name);
            return Err(EditError::Invalid(text));
        }
        if let Some(path) = &self.state_file {
            crate::temp::replace(path, changed.text().as_bytes()).map_err(|e| {
                EditError::State(format!("\"{}\" cannot be written ({})", path.display(), os_error(&e)))
            })?;
        }
        match self.state_file {
            // It says so itself.
            Some(_) => servers.forget_roles(),
            None => changed.note_roles(&servers),
        }
        *servers = changed;
        self.renew(group, &mut servers);
        Ok(done)
    }

    /// Makes the list of peers anew.
    fn renew(&self, group: &Group, servers: &mut Servers) {
        let tiers = Arc::new(servers.assemble(&group.method, group.has_sessions()));
        *lock(&self.tiers) = tiers;
        self.version.store(fresh(), Release);
    }

    /// Waits for the first answers after the start: a request that comes before them is not in vain.
    pub async fn first_answer(&self) {
        if !self.unanswered.load(Relaxed) {
            return;
        }
        let end = clock::monotonic_ms() + FIRST_ANSWER.as_millis() as u64;
        let answered = || lock(&self.servers).hosts().all(|h| h.answered.load(Acquire));
        while !answered() && clock::monotonic_ms() < end {
            if self.tiers().iter().any(|t| !t.peers.is_empty()) {
                return;
            }
            timer::sleep(LOOK).await;
        }
        if answered() {
            self.unanswered.store(false, Relaxed);
        }
    }
}

/// Follows the names of all groups, on the service thread, as long as somebody holds the groups.
pub fn follow(groups: &[Arc<Group>]) {
    for group in groups.iter().filter(|g| g.live.is_some()) {
        follow_names(group);
    }
}

/// Follows a group's names that nobody follows for it yet.
pub(super) fn follow_names(group: &Arc<Group>) {
    let Some(live) = &group.live else { return };
    let hosts: Vec<Arc<Host>> = lock(&live.servers).hosts().cloned().collect();
    for host in hosts {
        let mut followed = lock(&live.followed);
        if followed.iter().any(|h| Weak::ptr_eq(h, &Arc::downgrade(&host))) {
            continue;
        }
        followed.retain(|h| h.strong_count() > 0);
        followed.push(Arc::downgrade(&host));
        let group = Arc::downgrade(group);
        crate::service::spawn(move || follow_one(group, Arc::downgrade(&host)));
    }
}

async fn follow_one(group: Weak<Group>, host: Weak<Host>) {
    let mut seen = None;
    loop {
        let Some(rest) = host.upgrade().map(|h| h.rest()) else { return };
        tokio::time::sleep(rest).await;
        let (Some(group), Some(host)) = (group.upgrade(), host.upgrade()) else { return };
        let live = group.live.as_ref().expect("only groups with names are followed");
        let Some((resolver, timeout)) = &live.resolver else { return };
        // After a reload the name is followed for two groups while requests of the old one last: one of them asks.
        if host.rest().is_zero() {
            host.ask(&names::resolver(resolver), *timeout).await;
        }
        let changes = Some(host.changes());
        if seen != changes {
            seen = changes;
            live.renew(&group, &mut lock(&live.servers));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_again_while_it_is_followed() {
        let first = Host::find("g", "a.test", None);
        first.take(Some(vec![Place::of([127, 0, 0, 1].into())]), SHORTEST);
        first.take(Some(vec![Place::of([127, 0, 0, 1].into())]), SHORTEST);
        first.take(None, SHORTEST);
        assert_eq!(first.changes(), 1);
        assert_eq!(Host::find("g", "a.test", None).places().len(), 1);
        assert!(Host::find("other", "a.test", None).places().is_empty());
        assert!(Host::find("g", "a.test", Some("http")).places().is_empty());
        drop(first);
        assert!(Host::find("g", "a.test", None).places().is_empty());
    }
}
