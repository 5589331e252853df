//! The locks of WebDAV: for writing, exclusive or shared, on a resource or on all below it. Kept in memory for all threads; a reload finds
//! the zone by its name.

use runtime::clock;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// What a lock takes of a zone, about.
const ENTRY: u64 = 512;
/// Owners are kept up to this length.
const MAX_OWNER: usize = 256;

/// Locks by a name.
#[derive(Debug)]
pub struct Zone {
    pub(super) name: Box<[u8]>,
    most: usize,
    timeout: Duration,
    locks: Mutex<Vec<Lock>>,
}

#[derive(Debug)]
struct Lock {
    uri: Box<[u8]>,
    infinite: bool,
    exclusive: bool,
    token: String,
    owner: Vec<u8>,
    /// Monotonic, ms.
    until: u64,
}

/// A lock as it is told of.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) uri: Vec<u8>,
    pub(super) infinite: bool,
    pub(super) exclusive: bool,
    pub(super) token: String,
    pub(super) owner: Vec<u8>,
    /// How long it lasts.
    pub(super) seconds: u64,
}

impl Zone {
    /// Its name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }
}

/// What a lock is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) uri: &'a [u8],
    /// Also on all below it.
    pub(super) infinite: bool,
    /// Nobody else may have one.
    pub(super) exclusive: bool,
    pub(super) owner: &'a [u8],
}

/// Why there is no lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Somebody has one already.
    Locked,
    /// The zone is full.
    Full,
}

static ZONES: Mutex<Vec<Weak<Zone>>> = Mutex::new(Vec::new());

/// The zone of a name; a new one unless there is one just like it.
pub(super) fn open(name: &[u8], size: u64, timeout: Duration) -> Arc<Zone> {
    let most = (size / ENTRY).max(1) as usize;
    let mut zones = ZONES.lock().unwrap_or_else(PoisonError::into_inner);
    zones.retain(|zone| zone.strong_count() > 0);
    let known = zones.iter().filter_map(Weak::upgrade);
    if let Some(known) = known.into_iter().find(|z| *z.name == *name && z.most == most && z.timeout == timeout) {
        return known;
    }
    let zone = Arc::new(Zone { name: name.into(), most, timeout, locks: Mutex::default() });
    zones.push(Arc::downgrade(&zone));
    zone
}

/// A path without the slash at its end.
fn bare(uri: &[u8]) -> &[u8] {
    uri.strip_suffix(b"/").unwrap_or(uri)
}

/// Whether a path is below another.
fn is_below(uri: &[u8], folder: &[u8]) -> bool {
    uri.strip_prefix(folder).is_some_and(|rest| rest.first() == Some(&b'/'))
}

impl Lock {
    /// Whether it is about a resource.
    fn covers(&self, uri: &[u8]) -> bool {
        let (uri, own) = (bare(uri), bare(&self.uri));
        uri == own || (self.infinite && is_below(uri, own))
    }

    fn told(&self, now: u64) -> Held {
        let (uri, token, owner) = (self.uri.to_vec(), self.token.clone(), self.owner.clone());
        let seconds = self.until.saturating_sub(now) / 1000;
        Held { uri, infinite: self.infinite, exclusive: self.exclusive, token, owner, seconds }
    }
}

/// Whether who has these tokens may change a resource: each exclusive lock on it is his, and of shared ones any (RFC 4918 section 6.2).
fn permits(locks: &[Lock], uri: &[u8], tokens: &[String]) -> bool {
    let his = |lock: &Lock| tokens.contains(&lock.token);
    let mut about = locks.iter().filter(|lock| lock.covers(uri));
    let shares = || locks.iter().any(|lock| !lock.exclusive && lock.covers(uri) && his(lock));
    about.all(|lock| his(lock) || (!lock.exclusive && shares()))
}

impl Zone {
    fn with<T>(&self, work: impl FnOnce(&mut Vec<Lock>, u64) -> T) -> T {
        let now = clock::monotonic_ms();
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|lock| lock.until > now);
        work(&mut locks, now)
    }

    /// Takes a lock.
    pub(super) fn take(&self, wanted: &Wanted<'_>) -> Result<Held, Refused> {
        let Wanted { uri, infinite, exclusive, owner } = *wanted;
        self.with(|locks, now| {
            let own = bare(uri);
            let meets = |lock: &Lock| lock.covers(uri) || (infinite && is_below(bare(&lock.uri), own));
            let taken = |lock: &Lock| (exclusive || lock.exclusive) && meets(lock);
            if locks.iter().any(taken) {
                return Err(Refused::Locked);
            }
            if locks.len() >= self.most {
                return Err(Refused::Full);
            }
            let until = now.saturating_add(self.timeout.as_millis() as u64);
            let owner = owner[..owner.len().min(MAX_OWNER)].to_vec();
            let lock = Lock { uri: uri.into(), infinite, exclusive, token: token(), owner, until };
            let told = lock.told(now);
            locks.push(lock);
            Ok(told)
        })
    }

    /// Holds a lock for another while.
    pub(super) fn refresh(&self, uri: &[u8], token: &str) -> Option<Held> {
        self.with(|locks, now| {
            let lock = locks.iter_mut().find(|lock| lock.token == token && lock.covers(uri))?;
            lock.until = now.saturating_add(self.timeout.as_millis() as u64);
            Some(lock.told(now))
        })
    }

    /// Gives a lock back; whether there was such a one.
    pub(super) fn release(&self, uri: &[u8], token: &str) -> bool {
        self.with(|locks, _| {
            let before = locks.len();
            locks.retain(|lock| !(lock.token == token && lock.covers(uri)));
            locks.len() < before
        })
    }

    /// The locks on a resource: one, or several that are shared.
    pub(super) fn held(&self, uri: &[u8]) -> Vec<Held> {
        self.with(|locks, now| locks.iter().filter(|lock| lock.covers(uri)).map(|lock| lock.told(now)).collect())
    }

    /// Whether a resource may be changed by who has these tokens; what is below it is left as it is.
    pub(super) fn allows_itself(&self, uri: &[u8], tokens: &[String]) -> bool {
        self.with(|locks, _| permits(locks, uri, tokens))
    }

    /// Whether a resource, and what is below it, may be changed by who has these tokens.
    pub(super) fn allows(&self, uri: &[u8], tokens: &[String]) -> bool {
        self.with(|locks, _| {
            let mut below = locks.iter().filter(|lock| is_below(bare(&lock.uri), bare(uri)));
            permits(locks, uri, tokens) && below.all(|lock| permits(locks, &lock.uri, tokens))
        })
    }
}

/// A token that nobody can guess.
fn token() -> String {
    let mut bytes = [0; 16];
    let _ = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    let mut text = b"opaquelocktoken:".to_vec();
    wire::encoding::hex_encode(&bytes, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(uri: &[u8], infinite: bool, exclusive: bool) -> Wanted<'_> {
        Wanted { uri, infinite, exclusive, owner: b"me" }
    }

    #[test]
    fn several_share_one() {
        let zone = open(b"shared", 4096, Duration::from_secs(60));
        let first = zone.take(&wanted(b"/a/b", false, false)).expect("nobody has it");
        let second = zone.take(&wanted(b"/a/", true, false)).expect("it is shared");
        assert_eq!(zone.take(&wanted(b"/a/b", false, true)).err(), Some(Refused::Locked));
        let with = |held: &Held| std::slice::from_ref(&held.token).to_vec();
        assert!(zone.allows(b"/a/b", &with(&first)) && zone.allows(b"/a/b", &with(&second)));
        assert!(
            !zone.allows(b"/a/b", &[]) && !zone.allows(b"/a/c", &with(&first)) && zone.allows(b"/a", &with(&second))
        );
        assert_eq!(zone.held(b"/a/b").len(), 2);
        let alone = zone.take(&wanted(b"/x", false, true)).expect("nobody has it");
        assert_eq!(zone.take(&wanted(b"/x", false, false)).err(), Some(Refused::Locked));
        assert!(zone.allows_itself(b"/", &[]) && !zone.allows(b"/", &with(&alone)));
    }

    #[test]
    fn one_has_it_until_it_is_given_back() {
        let zone = open(b"test", 1024, Duration::from_secs(60));
        let held = zone.take(&wanted(b"/a/b", false, true)).expect("nobody has it");
        assert_eq!(zone.take(&wanted(b"/a/b", false, true)).err(), Some(Refused::Locked));
        assert_eq!(zone.take(&wanted(b"/a/", true, true)).err(), Some(Refused::Locked));
        assert!(
            !zone.allows(b"/a/b", &[])
                && zone.allows(b"/a/b", std::slice::from_ref(&held.token))
                && zone.allows(b"/a/c", &[])
        );
        // What is above it cannot be taken away with it.
        assert!(!zone.allows(b"/a", &[]) && zone.allows(b"/ab", &[]));
        let folder = zone.take(&wanted(b"/f/", true, true)).expect("nobody has it");
        assert!(!zone.allows(b"/f/x/y", &[]) && !zone.allows(b"/f", &[]) && zone.allows(b"/fx", &[]));
        assert_eq!(zone.take(&wanted(b"/g", false, true)).err(), Some(Refused::Full));
        assert!(zone.refresh(b"/f/x", &folder.token).is_some() && zone.refresh(b"/g", &folder.token).is_none());
        assert!(!zone.release(b"/a/b", &folder.token) && zone.release(b"/a/b", &held.token));
        assert!(zone.allows(b"/a/b", &[]));
    }
}
