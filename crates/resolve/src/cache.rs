//! Names known and names being resolved, bounded. Time is an argument.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::query::{Kind, Known, Query};

/// Answers kept, per worker thread; with a wildcard domain, names come from clients. Some 200 bytes each.
pub(super) const MAX_KNOWN: usize = 8192;
/// Queries under way, per worker thread; beyond, callers are refused.
pub(super) const MAX_PENDING: usize = 4096;
/// An expired answer is dropped after this time without use; nginx's number.
const KEPT: Duration = Duration::from_secs(30);

/// State of one name.
pub(super) enum Entry {
    Pending(Rc<Query>),
    Known { known: Known, last_used: Cell<Instant> },
}

/// What a look at the cache says.
pub(super) enum Looked {
    Known(Known),
    Pending(Rc<Query>),
    Nothing,
}

pub(super) struct Cache {
    names: HashMap<Box<[u8]>, Entry>,
    services: HashMap<Box<[u8]>, Entry>,
    pointers: HashMap<Box<[u8]>, Entry>,
    pending: usize,
    known: usize,
    swept: Instant,
    max_known: usize,
}

impl Cache {
    pub(super) fn new(now: Instant, max_known: usize) -> Self {
        Cache {
            names: HashMap::new(),
            services: HashMap::new(),
            pointers: HashMap::new(),
            pending: 0,
            known: 0,
            swept: now,
            max_known,
        }
    }

    /// The valid answer or the query under way of a name in lower case.
    pub(super) fn find(&self, kind: Kind, name: &[u8], now: Instant) -> Looked {
        match self.map(kind).get(name) {
            Some(Entry::Known { known, last_used }) if now < known.valid_until => {
                last_used.set(now);
                Looked::Known(known.clone())
            }
            Some(Entry::Pending(query)) => Looked::Pending(query.clone()),
            _ => Looked::Nothing,
        }
    }

    /// The query under way of a name.
    pub(super) fn pending(&self, kind: Kind, name: &[u8]) -> Option<Rc<Query>> {
        match self.map(kind).get(name) {
            Some(Entry::Pending(query)) => Some(query.clone()),
            _ => None,
        }
    }

    /// All queries under way.
    pub(super) fn all_pending(&self) -> Vec<Rc<Query>> {
        let entries = [&self.names, &self.services, &self.pointers].into_iter().flat_map(HashMap::values);
        entries
            .filter_map(|entry| match entry {
                Entry::Pending(query) => Some(query.clone()),
                Entry::Known { .. } => None,
            })
            .collect()
    }

    /// Whether one more query would be too many.
    pub(super) fn is_busy(&self) -> bool {
        self.pending >= MAX_PENDING
    }

    /// A new query takes the place of an expired answer.
    pub(super) fn insert(&mut self, query: Rc<Query>) {
        let name = Box::from(&*query.name);
        self.pending += 1;
        if let Some(Entry::Known { .. }) = self.map_mut(query.kind).insert(name, Entry::Pending(query)) {
            self.known -= 1;
        }
    }

    /// A query under way ends, with an answer to keep or without.
    pub(super) fn settle(&mut self, query: &Query, known: Option<Known>, now: Instant) {
        if self.map_mut(query.kind).remove(&query.name[..]).is_some() {
            self.pending -= 1;
        }
        if let Some(known) = known.filter(|known| known.valid_until > now) {
            self.make_room(now);
            self.known += 1;
            let entry = Entry::Known { known, last_used: Cell::new(now) };
            self.map_mut(query.kind).insert(Box::from(&*query.name), entry);
        }
    }

    /// Drops what expired and was left unused; if that is not enough, the least recently used eighth.
    fn make_room(&mut self, now: Instant) {
        let full = self.known >= self.max_known;
        if !full && now < self.swept + KEPT {
            return;
        }
        self.swept = now;
        self.retain(|known, last_used| now < known.valid_until || (!full && now < last_used + KEPT));
        if self.known < self.max_known {
            return;
        }
        let mut uses = Vec::with_capacity(self.known);
        self.retain(|_, last_used| {
            uses.push(last_used);
            true
        });
        let eighth = uses.len() / 8;
        let (_, &mut limit, _) = uses.select_nth_unstable(eighth);
        self.retain(|_, last_used| last_used > limit);
    }

    fn retain(&mut self, mut keep: impl FnMut(&Known, Instant) -> bool) {
        let mut dropped = 0;
        for map in [&mut self.names, &mut self.services, &mut self.pointers] {
            map.retain(|_, entry| match entry {
                Entry::Pending(_) => true,
                Entry::Known { known, last_used } => {
                    let kept = keep(known, last_used.get());
                    dropped += usize::from(!kept);
                    kept
                }
            });
        }
        self.known -= dropped;
    }

    fn map(&self, kind: Kind) -> &HashMap<Box<[u8]>, Entry> {
        match kind {
            Kind::Name => &self.names,
            Kind::Service => &self.services,
            Kind::Pointer => &self.pointers,
        }
    }

    fn map_mut(&mut self, kind: Kind) -> &mut HashMap<Box<[u8]>, Entry> {
        match kind {
            Kind::Name => &mut self.names,
            Kind::Service => &mut self.services,
            Kind::Pointer => &mut self.pointers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::query::Record;
    use super::*;

    fn learn(cache: &mut Cache, name: &str, ttl_s: u64, now: Instant) {
        let query = Query::new(Kind::Name, name.as_bytes(), Vec::new(), 0);
        cache.insert(query.clone());
        let record = Record::Alias(Rc::from(&b"x"[..]));
        cache.settle(&query, Some(Known { record, valid_until: now + Duration::from_secs(ttl_s) }), now);
    }

    fn knows(cache: &Cache, name: &str, now: Instant) -> bool {
        matches!(cache.find(Kind::Name, name.as_bytes(), now), Looked::Known(_))
    }

    #[test]
    fn answers_expire_and_leave() {
        let start = Instant::now();
        let mut cache = Cache::new(start, 100);
        learn(&mut cache, "a", 5, start);
        learn(&mut cache, "zero", 0, start);
        assert_eq!((cache.known, cache.pending), (1, 0));
        assert!(knows(&cache, "a", start + Duration::from_secs(4)));
        assert!(!knows(&cache, "a", start + Duration::from_secs(5)));
        learn(&mut cache, "b", 500, start + Duration::from_secs(36));
        assert_eq!(cache.known, 1);
        assert!(cache.names.contains_key(&b"b"[..]));
    }

    #[test]
    fn a_full_cache_drops_the_least_recently_used() {
        let start = Instant::now();
        let mut cache = Cache::new(start, 16);
        for second in 0..16 {
            learn(&mut cache, &format!("n{second}"), 1000, start + Duration::from_secs(second));
        }
        let later = start + Duration::from_secs(20);
        assert!(knows(&cache, "n0", later));
        learn(&mut cache, "new", 1000, later);
        assert!(cache.known <= 16);
        assert!(knows(&cache, "n0", later) && knows(&cache, "new", later));
        assert!(!knows(&cache, "n1", later));
    }

    #[test]
    fn a_new_query_replaces_an_expired_answer() {
        let start = Instant::now();
        let mut cache = Cache::new(start, 16);
        learn(&mut cache, "a", 1, start);
        let query = Query::new(Kind::Name, b"a", Vec::new(), 0);
        cache.insert(query.clone());
        assert_eq!((cache.known, cache.pending), (0, 1));
        cache.settle(&query, None, start);
        assert_eq!((cache.known, cache.pending), (0, 0));
    }
}
