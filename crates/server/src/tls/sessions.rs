//! `ssl_session_cache`: sessions kept here for clients to resume, shared by all threads. Zones outlive reloads.

use super::tickets::Scope;
use rustls::server::StoresServerSessions;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// What a session costs beside its bytes: entries of the table and of the row.
const OVERHEAD: usize = 128;

/// Sessions up to a number of bytes; the oldest go first.
pub struct Zone {
    /// In bytes.
    pub size: usize,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    by_key: HashMap<Key, CachedSession>,
    /// In the order in which they came; some may be gone already.
    row: VecDeque<(Key, u64)>,
    bytes: usize,
    count: u64,
}

type Key = (Scope, Vec<u8>);

struct CachedSession {
    value: Vec<u8>,
    since: Instant,
    number: u64,
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zone({})", self.size)
    }
}

/// Bytes of the sessions of all zones, with what they cost beside.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes of all sessions that are kept here.
pub fn bytes() -> u64 {
    BYTES.load(Relaxed)
}

static ZONES: Mutex<Vec<(Box<str>, Weak<Zone>)>> = Mutex::new(Vec::new());

impl Zone {
    /// A zone for one server.
    pub fn private(size: usize) -> Arc<Zone> {
        Arc::new(Zone { size, sessions: Mutex::default() })
    }

    /// The zone of this name and size: the one that is there already, or a new one.
    pub fn shared(name: &str, size: usize) -> Arc<Zone> {
        let mut zones = ZONES.lock().expect("nothing panics while it is locked");
        zones.retain(|(_, z)| z.strong_count() > 0);
        let same = |z: &Arc<Zone>| z.size == size;
        if let Some(zone) = zones.iter().filter(|(n, _)| **n == *name).find_map(|(_, z)| z.upgrade().filter(same)) {
            return zone;
        }
        let zone = Zone::private(size);
        zones.push((name.into(), Arc::downgrade(&zone)));
        zone
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().expect("nothing panics while it is locked")
    }
}

impl Sessions {
    fn put(&mut self, key: Key, value: Vec<u8>, size: usize, now: Instant) -> bool {
        let cost = cost(&key, &value);
        if cost > size {
            return false;
        }
        self.remove(&key);
        while self.bytes + cost > size || self.row.len() > 2 * self.by_key.len() + 64 {
            let Some((oldest, number)) = self.row.pop_front() else { break };
            if self.by_key.get(&oldest).is_some_and(|s| s.number == number) {
                self.remove(&oldest);
            }
        }
        self.count += 1;
        self.bytes += cost;
        BYTES.fetch_add(cost as u64, Relaxed);
        self.row.push_back((key.clone(), self.count));
        self.by_key.insert(key, CachedSession { value, since: now, number: self.count });
        true
    }

    fn remove(&mut self, key: &Key) -> Option<CachedSession> {
        let session = self.by_key.remove(key)?;
        let cost = cost(key, &session.value);
        self.bytes -= cost;
        BYTES.fetch_sub(cost as u64, Relaxed);
        Some(session)
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        BYTES.fetch_sub(self.bytes as u64, Relaxed);
    }
}

fn cost(key: &Key, value: &[u8]) -> usize {
    2 * key.1.len() + value.len() + OVERHEAD
}

/// A server's view of a zone: sessions of others are not found.
#[derive(Debug)]
pub struct Cache {
    zone: Arc<Zone>,
    scope: Scope,
    timeout: Duration,
}

impl Cache {
    /// `timeout`: `ssl_session_timeout`.
    pub fn new(zone: Arc<Zone>, scope: Scope, timeout: Duration) -> Arc<Cache> {
        Arc::new(Cache { zone, scope, timeout })
    }

    fn key(&self, id: &[u8]) -> Key {
        (self.scope, id.to_vec())
    }
}

impl StoresServerSessions for Cache {
    fn put(&self, id: Vec<u8>, value: Vec<u8>) -> bool {
        self.zone.lock().put((self.scope, id), value, self.zone.size, Instant::now())
    }

    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        let key = self.key(id);
        let mut sessions = self.zone.lock();
        let session = sessions.by_key.get(&key)?;
        if session.since.elapsed() > self.timeout {
            sessions.remove(&key);
            return None;
        }
        Some(session.value.clone())
    }

    fn take(&self, id: &[u8]) -> Option<Vec<u8>> {
        let session = self.zone.lock().remove(&self.key(id))?;
        (session.since.elapsed() <= self.timeout).then_some(session.value)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(zone: &Arc<Zone>, scope: u8) -> Arc<Cache> {
        Cache::new(zone.clone(), [scope; 32], Duration::from_secs(300))
    }

    #[test]
    fn sessions_of_one_scope() {
        let zone = Zone::private(4096);
        let (a, b) = (cache(&zone, 1), cache(&zone, 2));
        assert!(a.put(b"id".to_vec(), b"x".to_vec()) && a.put(b"id".to_vec(), b"value".to_vec()));
        assert_eq!(a.get(b"id").as_deref(), Some(&b"value"[..]));
        assert_eq!(b.get(b"id"), None);
        assert_eq!(a.take(b"id").as_deref(), Some(&b"value"[..]));
        assert_eq!(a.take(b"id"), None);
        assert_eq!(zone.lock().bytes, 0);
    }

    #[test]
    fn a_zone_keeps_to_its_size() {
        let zone = Zone::private(2048);
        let cache = cache(&zone, 1);
        for i in 0..1000u16 {
            assert!(cache.put(i.to_be_bytes().to_vec(), vec![0; 100]));
            if i % 2 == 0 {
                cache.take(&i.to_be_bytes());
            }
            let sessions = zone.lock();
            assert!(sessions.bytes <= 2048 && sessions.row.len() <= 2 * sessions.by_key.len() + 65);
        }
        assert!(cache.get(&999u16.to_be_bytes()).is_some() && cache.get(&1u16.to_be_bytes()).is_none());
        assert!(!cache.put(b"large".to_vec(), vec![0; 4096]));
    }

    #[test]
    fn zones_are_found_by_name() {
        let first = Zone::shared("sessions.rs test", 4096);
        assert!(Arc::ptr_eq(&first, &Zone::shared("sessions.rs test", 4096)));
        assert!(!Arc::ptr_eq(&first, &Zone::shared("sessions.rs test", 8192)));
    }
}
