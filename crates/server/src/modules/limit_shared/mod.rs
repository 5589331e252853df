//! Zones of `limit_req` and `limit_conn` that machines share by a Redis (`redis=UPSTREAM`). A request asks and changes the zone of its own machine, and never
//! waits: what was counted is told to Redis in beats, and what the others have counted comes back with the answer (`link`).
//!
//! ```text
//!  request ──note(key)──> pending ──every beat──> link ──script──> Redis
//!     ^                                             │
//!     └── zone: its own counts and the others' <────┘
//! ```
//! So a limit may be passed by what comes within a beat. Without Redis each machine's own limits hold, and the log says so once.

mod link;

use super::nchan::redis::conf::Redis;
use crate::config::{Build, Scope};
use crate::service;
use conf::{Node, Problem};
use runtime::clock::monotonic_ms;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::Notify;

/// Keys that wait to be told, and keys that others' counts are known of; further ones are limited by this machine alone for a while.
const MAX_KEYS: usize = 65_536;
/// Longer keys are not shared, bytes.
const MAX_SHARED_KEY: usize = 255;
/// How long it holds what a machine has said of its places, ms: a machine that is gone has none after this.
const LEASE_MS: u64 = 3_000;

/// What this process calls itself in Redis.
static OWN: LazyLock<String> = LazyLock::new(|| format!("{:016x}", RandomState::new().hash_one("")));

/// What is kept once for all of `http`.
#[derive(Debug, Default)]
pub struct Main {
    wanted: Vec<(Node, Arc<Shared>)>,
}

/// A zone that is shared.
pub struct Shared {
    /// Its name, and that of the upstream.
    zone: Box<str>,
    upstream: Box<str>,
    redis: OnceLock<Arc<Redis>>,
    kind: Kind,
    /// Keys that requests have come with since the last beat, and how many were accounted.
    pending: Mutex<HashMap<Box<[u8]>, u64>>,
    is_started: AtomicBool,
    /// Redis does not answer: nothing is kept for it.
    is_down: AtomicBool,
    told: Notify,
}

/// What is done with a key's number in the zone.
type OnNumber = Box<dyn Fn(&[u8], i64) + Send + Sync>;
/// What the zone has of a key.
type Count = Box<dyn Fn(&[u8]) -> u32 + Send + Sync>;

enum Kind {
    /// `limit_req`: one bucket for all machines. `rate` in thousandths of a request a second; `catch_up` is told what is in the bucket.
    Rate { rate: i64, catch_up: OnNumber },
    /// `limit_conn`: each machine says how many places it has taken. `taken`: of a key, here.
    Places { taken: Count, held: Mutex<HashMap<Box<[u8]>, Told>>, others: Mutex<HashMap<Box<[u8]>, Others>> },
}

/// What Redis was told last of this machine's places.
#[derive(Clone, Copy)]
struct Told {
    count: u32,
    at_ms: u64,
}

/// What other machines have taken.
#[derive(Clone, Copy)]
struct Others {
    count: u32,
    until_ms: u64,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("zone", &self.zone).field("upstream", &self.upstream).finish_non_exhaustive()
    }
}

/// A zone's directive says `redis=UPSTREAM`: which zone it is, and what to do with what is heard. The upstream may stand further down.
pub(super) fn of_rate(
    scope: &mut Scope<'_, '_>,
    node: &Node,
    (zone, upstream): (&[u8], &[u8]),
    rate: i64,
    catch_up: impl Fn(&[u8], i64) + Send + Sync + 'static,
) -> Arc<Shared> {
    want(scope, node, (zone, upstream), Kind::Rate { rate, catch_up: Box::new(catch_up) })
}

/// The same for places.
pub(super) fn of_places(
    scope: &mut Scope<'_, '_>,
    node: &Node,
    (zone, upstream): (&[u8], &[u8]),
    taken: impl Fn(&[u8]) -> u32 + Send + Sync + 'static,
) -> Arc<Shared> {
    want(
        scope,
        node,
        (zone, upstream),
        Kind::Places { taken: Box::new(taken), held: Mutex::default(), others: Mutex::default() },
    )
}

fn want(scope: &mut Scope<'_, '_>, node: &Node, (zone, upstream): (&[u8], &[u8]), kind: Kind) -> Arc<Shared> {
    let shared = Arc::new(Shared {
        zone: String::from_utf8_lossy(zone).into(),
        upstream: String::from_utf8_lossy(upstream).into(),
        redis: OnceLock::new(),
        kind,
        pending: Mutex::default(),
        is_started: AtomicBool::new(false),
        is_down: AtomicBool::new(false),
        told: Notify::new(),
    });
    scope.build.main.limit_shared.wanted.push((node.clone(), shared.clone()));
    shared
}

/// Finds the upstreams that were named. For the end of the configuration.
pub fn finish(build: &mut Build<'_>) {
    for (node, shared) in std::mem::take(&mut build.main.limit_shared.wanted) {
        let known = build.main.nchan.redis.iter().find(|(name, _)| *name == shared.upstream);
        match known {
            Some((_, redis)) => drop(shared.redis.set(redis.clone())),
            None => {
                let text = format!("there is no upstream \"{}\" with \"nchan_redis_server\"", shared.upstream);
                let problem: Problem = node.problem(text);
                build.problems.push(problem);
            }
        }
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// A request with this key was accounted, so many times; none where it is only to be known what others have.
    pub(super) fn note(self: &Arc<Self>, key: &[u8], times: u64) {
        if !self.is_started.swap(true, Relaxed)
            && let Some(redis) = self.redis.get().cloned()
        {
            let shared = Arc::downgrade(self);
            service::spawn(move || link::run(shared, redis));
        }
        if self.is_down.load(Relaxed) || key.len() > MAX_SHARED_KEY {
            return;
        }
        let mut pending = locked(&self.pending);
        let is_first = pending.is_empty();
        if let Some(known) = pending.get_mut(key) {
            *known += times;
        } else if pending.len() < MAX_KEYS {
            pending.insert(key.into(), times);
        }
        drop(pending);
        if is_first {
            self.told.notify_one();
        }
    }

    /// Places that other machines have taken, as far as is known.
    pub(super) fn others(&self, key: &[u8]) -> u32 {
        let Kind::Places { others, .. } = &self.kind else { return 0 };
        let known = locked(others).get(key).copied();
        known.filter(|known| known.until_ms > monotonic_ms()).map_or(0, |known| known.count)
    }
}

/// What `link` asks.
impl Shared {
    /// Whether Redis is to be asked in the next beat.
    fn has_news(&self) -> bool {
        let holds = match &self.kind {
            Kind::Rate { .. } => false,
            Kind::Places { held, .. } => !locked(held).is_empty(),
        };
        holds || !locked(&self.pending).is_empty()
    }

    /// The keys to speak of, with a number each: requests, or places that are taken here.
    fn news(&self) -> Vec<(Box<[u8]>, u64)> {
        let mut pending = std::mem::take(&mut *locked(&self.pending));
        let Kind::Places { taken, held, others } = &self.kind else {
            return pending.into_iter().filter(|(_, times)| *times > 0).collect();
        };
        let now_ms = monotonic_ms();
        locked(others).retain(|_, known| known.until_ms > now_ms);
        let mut news = Vec::new();
        let mut held = locked(held);
        held.retain(|key, told| {
            let count = taken(key);
            let is_asked = pending.remove(key).is_some();
            if is_asked || count != told.count || now_ms >= told.at_ms + LEASE_MS / 3 {
                news.push((key.clone(), u64::from(count)));
                *told = Told { count, at_ms: now_ms };
            }
            count > 0
        });
        for (key, _) in pending {
            let count = taken(&key);
            news.push((key.clone(), u64::from(count)));
            if count > 0 && held.len() < MAX_KEYS {
                held.insert(key, Told { count, at_ms: now_ms });
            }
        }
        news
    }

    /// Redis has answered: what is in the key's bucket, or what others have taken.
    fn heard(&self, key: &[u8], number: i64) {
        match &self.kind {
            Kind::Rate { catch_up, .. } => {
                // What came meanwhile is not in that number.
                let more = locked(&self.pending).get(key).copied().unwrap_or(0) as i64;
                catch_up(key, number.saturating_add(more.saturating_mul(1000)));
            }
            Kind::Places { others, .. } => {
                let mut others = locked(others);
                let count = u32::try_from(number).unwrap_or(0);
                if count == 0 {
                    others.remove(key);
                } else if others.len() < MAX_KEYS || others.contains_key(key) {
                    others.insert(key.into(), Others { count, until_ms: monotonic_ms() + LEASE_MS });
                }
            }
        }
    }

    /// Redis is gone, or back.
    fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Relaxed);
        if is_down {
            locked(&self.pending).clear();
            if let Kind::Places { others, .. } = &self.kind {
                locked(others).clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    fn shared(kind: Kind) -> Arc<Shared> {
        Arc::new(Shared {
            zone: "z".into(),
            upstream: "u".into(),
            redis: OnceLock::new(),
            kind,
            pending: Mutex::default(),
            is_started: AtomicBool::new(false),
            is_down: AtomicBool::new(false),
            told: Notify::new(),
        })
    }

    #[test]
    fn what_came_while_redis_was_asked_is_added_to_its_answer() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = seen.clone();
        let catch_up = Box::new(move |key: &[u8], excess| sink.lock().unwrap().push((key.to_vec(), excess)));
        let shared = shared(Kind::Rate { rate: 1000, catch_up });
        shared.note(b"a", 1);
        shared.note(b"a", 1);
        shared.note(&[b'x'; MAX_SHARED_KEY + 1], 1);
        assert!(shared.has_news());
        assert_eq!(shared.news(), [(b"a"[..].into(), 2)]);
        shared.note(b"a", 1);
        shared.heard(b"a", 5000);
        assert_eq!(*seen.lock().unwrap(), [(b"a".to_vec(), 6000)]);
        shared.set_down(true);
        shared.note(b"a", 1);
        assert!(!shared.has_news(), "nothing is kept for a Redis that is gone");
    }

    #[test]
    fn places_are_told_when_they_change_and_when_their_lease_ends() {
        let here = Arc::new(AtomicU32::new(2));
        let count = here.clone();
        let taken: Count = Box::new(move |_| count.load(Relaxed));
        let shared = shared(Kind::Places { taken, held: Mutex::default(), others: Mutex::default() });
        shared.note(b"a", 0);
        assert_eq!(shared.news(), [(b"a"[..].into(), 2)]);
        assert!(shared.has_news() && shared.news().is_empty(), "nothing has changed");
        here.store(0, Relaxed);
        assert_eq!(shared.news(), [(b"a"[..].into(), 0)]);
        assert!(!shared.has_news());
        shared.heard(b"a", 3);
        assert_eq!((shared.others(b"a"), shared.others(b"b")), (3, 0));
        shared.heard(b"a", 0);
        assert_eq!(shared.others(b"a"), 0);
    }
}
