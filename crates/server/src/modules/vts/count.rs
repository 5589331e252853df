//! What is counted of a host, or of a key of `vhost_traffic_status_filter_by_set_key`: numbers that each thread counts for itself, found
//! by name. They outlive reloads.

use crate::cache::Status;
use crate::status::Tally;
use crate::status::caches::STATUSES;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// Classes of answers: 1xx to 5xx.
pub(super) const CLASSES: usize = 5;
/// Bounds that `vhost_traffic_status_histogram_buckets` may have.
pub(super) const MAX_BUCKETS: usize = 32;
/// What a host or a key takes of the zone, about.
pub(super) const NODE_BYTES: u64 = 2048;
/// Longer names are cut: what they are made of comes from clients.
const MAX_NAME: usize = 256;

const REQUESTS: usize = 0;
const RECEIVED: usize = 1;
const SENT: usize = 2;
const MS: usize = 3;
const FIRST_CLASS: usize = 4;
const FIRST_STATUS: usize = FIRST_CLASS + CLASSES;
const FIRST_BUCKET: usize = FIRST_STATUS + STATUSES.len();
const WIDTH: usize = FIRST_BUCKET + MAX_BUCKETS;

/// The numbers of one name.
#[derive(Debug, Default)]
pub(super) struct Node(Tally<WIDTH>);

/// A request that is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    /// Its status.
    pub status: u16,
    /// Bytes that came.
    pub received: u64,
    /// Bytes that went.
    pub sent: u64,
    /// How long it took.
    pub ms: u64,
    /// What the cache said.
    pub cache: Option<Status>,
    /// The first bound that it is not above.
    pub bucket: Option<usize>,
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Requests.
    pub requests: u64,
    /// Bytes of them.
    pub received: u64,
    /// Bytes of their answers.
    pub sent: u64,
    /// The time that they took all together, ms.
    pub ms: u64,
    /// Answers by class.
    pub classes: [u64; CLASSES],
    /// By what a cache said, in the order of [`STATUSES`].
    pub statuses: [u64; STATUSES.len()],
    /// By the first bound that they are not above.
    pub buckets: [u64; MAX_BUCKETS],
}

impl Node {
    fn count(&self, done: &Done) {
        let mine = self.0.mine();
        mine.add(REQUESTS, 1);
        mine.add(RECEIVED, done.received);
        mine.add(SENT, done.sent);
        mine.add(MS, done.ms);
        let class = usize::from(done.status / 100).wrapping_sub(1);
        if class < CLASSES {
            mine.add(FIRST_CLASS + class, 1);
        }
        if let Some(place) = done.cache.and_then(|status| STATUSES.iter().position(|s| *s == status)) {
            mine.add(FIRST_STATUS + place, 1);
        }
        if let Some(bucket) = done.bucket {
            mine.add(FIRST_BUCKET + bucket, 1);
        }
    }

    fn restore(&self, totals: &Totals) {
        let mine = self.0.mine();
        mine.add(REQUESTS, totals.requests);
        mine.add(RECEIVED, totals.received);
        mine.add(SENT, totals.sent);
        mine.add(MS, totals.ms);
        let lists =
            [(FIRST_CLASS, &totals.classes[..]), (FIRST_STATUS, &totals.statuses), (FIRST_BUCKET, &totals.buckets)];
        for (first, list) in lists {
            list.iter().enumerate().for_each(|(place, n)| mine.add(first + place, *n));
        }
    }

    fn totals(&self) -> Totals {
        let n = self.0.sums();
        Totals {
            requests: n[REQUESTS],
            received: n[RECEIVED],
            sent: n[SENT],
            ms: n[MS],
            classes: std::array::from_fn(|i| n[FIRST_CLASS + i]),
            statuses: std::array::from_fn(|i| n[FIRST_STATUS + i]),
            buckets: std::array::from_fn(|i| n[FIRST_BUCKET + i]),
        }
    }
}

impl Totals {
    /// Adds another name's.
    pub(super) fn add(&mut self, other: &Totals) {
        self.requests += other.requests;
        self.received += other.received;
        self.sent += other.sent;
        self.ms += other.ms;
        self.classes.iter_mut().zip(other.classes).for_each(|(n, more)| *n += more);
        self.statuses.iter_mut().zip(other.statuses).for_each(|(n, more)| *n += more);
        self.buckets.iter_mut().zip(other.buckets).for_each(|(n, more)| *n += more);
    }

    /// What a request took on average, ms.
    pub(super) fn mean_ms(&self) -> u64 {
        self.ms.checked_div(self.requests).unwrap_or(0)
    }
}

/// Names of one group, and what was counted of each.
type Group = HashMap<Box<str>, Arc<Node>>;

/// All names. The group without a name is that of the hosts.
#[derive(Default)]
struct Names {
    groups: HashMap<Box<str>, Group>,
    len: usize,
}

static NAMES: RwLock<Option<Names>> = RwLock::new(None);

fn read() -> RwLockReadGuard<'static, Option<Names>> {
    NAMES.read().unwrap_or_else(PoisonError::into_inner)
}

fn shown(text: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(&text[..text.len().min(MAX_NAME)])
}

/// Counts a request under a name. False: the zone has no room for another one.
pub(super) fn count(group: &[u8], name: &[u8], done: &Done, most: usize) -> bool {
    let (group, name) = (shown(group), shown(name));
    let known = |names: &Names| names.groups.get(&*group)?.get(&*name).cloned();
    if let Some(node) = read().as_ref().and_then(known) {
        node.count(done);
        return true;
    }
    let mut names = NAMES.write().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    let node = match known(names) {
        Some(node) => node,
        None if names.len >= most => return false,
        None => {
            names.len += 1;
            let node: Arc<Node> = Arc::default();
            names.groups.entry((*group).into()).or_default().insert((*name).into(), node.clone());
            node
        }
    };
    node.count(done);
    true
}

/// What was counted under a name.
pub(super) fn totals_of(group: &[u8], name: &[u8]) -> Option<Totals> {
    let node = read().as_ref()?.groups.get(&*shown(group))?.get(&*shown(name))?.clone();
    Some(node.totals())
}

/// Adds what was counted before this process began; what the zone has no room for is left out.
pub(super) fn restore(group: &str, name: &str, totals: &Totals, most: usize) {
    let mut names = NAMES.write().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    let is_known = names.groups.get(group).is_some_and(|nodes| nodes.contains_key(name));
    if !is_known && names.len >= most {
        return;
    }
    names.len += usize::from(!is_known);
    let node = names.groups.entry(group.into()).or_default().entry(name.into()).or_default();
    node.restore(totals);
}

/// What was counted in a group, by name.
pub(super) type Counted = Vec<(Box<str>, Totals)>;

/// All groups with a name; the hosts are the one without.
pub(super) fn all() -> Vec<(Box<str>, Counted)> {
    let names = read();
    let mut groups: Vec<_> = names
        .iter()
        .flat_map(|n| &n.groups)
        .map(|(group, nodes)| {
            let mut counted: Counted = nodes.iter().map(|(name, node)| (name.clone(), node.totals())).collect();
            counted.sort_by(|a, b| a.0.cmp(&b.0));
            (group.clone(), counted)
        })
        .collect();
    groups.sort_by(|a, b| a.0.cmp(&b.0));
    groups
}

/// How many names there are.
pub(super) fn len() -> usize {
    read().as_ref().map_or(0, |names| names.len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_what_is_counted_is_found() {
        let done = Done { status: 404, received: 10, sent: 20, ms: 3, cache: Some(Status::Hit), bucket: Some(1) };
        let most = len() + 1;
        assert!(count(b"g", b"a", &done, most) && count(b"g", b"a", &done, most));
        assert!(!count(b"g", b"b", &done, most));
        let (_, counted) = all().into_iter().find(|(group, _)| &**group == "g").expect("it is there");
        let [(name, t)] = &counted[..] else { panic!("{counted:?}") };
        assert_eq!((&**name, t.requests, t.received, t.sent, t.mean_ms()), ("a", 2, 20, 40, 3));
        assert_eq!((t.classes, t.statuses[0], t.buckets[1]), ([0, 0, 0, 2, 0], 2, 2));
        restore("g", "a", t, most);
        restore("g", "b", t, most);
        let doubled = totals_of(b"g", b"a").expect("it is there");
        assert_eq!((doubled.requests, doubled.classes, doubled.buckets[1]), (4, [0, 0, 0, 4, 0], 4));
        assert_eq!(totals_of(b"g", b"b"), None, "there is no room");
    }
}
