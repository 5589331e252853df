//! What a `keyval_zone` holds: keys and values that the API changes and variables look up. Shared by all threads; read under
//! a lock held for one look-up, changed by the API alone. Bounded by the zone's size. A state file has the same as JSON.

use super::keyval_state;
use crate::zone::synced::{Contents, Notes};
use runtime::clock;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use wire::zone_sync::{Keyval, Kind};

/// Bytes that an entry takes beside its key and value, about as in nginx Plus.
const OVERHEAD: usize = 64;
/// The largest state file that is read.
const MAX_STATE: u64 = 256 << 20;

/// The owner of zones of `http`.
pub const OF_HTTP: &str = "keyval";
/// Keys of which it is kept that they were removed, and for how long at least, ms.
const MAX_REMOVED: usize = 65_536;
const REMOVED_FOR_MS: u64 = 60 * 60 * 1000;

/// How keys are matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Matching {
    /// The same text.
    #[default]
    Exact,
    /// A record is a network, or an address; the longest that holds what is looked up counts.
    Network,
    /// A record is the beginning of what is looked up; the longest counts.
    Prefix,
}

/// What a zone is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Whose it is: zones of `http` and `stream` are different ones.
    pub owner: &'static str,
    /// Its name.
    pub name: Box<str>,
    /// In bytes.
    pub size: u64,
    /// `timeout=`: how long an entry stays, in ms.
    pub timeout_ms: Option<u64>,
    /// `type=`
    pub matching: Matching,
    /// `state=`
    pub state: Option<PathBuf>,
    /// `sync`: the nodes of a cluster share it.
    pub sync: bool,
}

/// A zone.
#[derive(Debug)]
pub struct Store {
    /// What it is made of.
    pub spec: Spec,
    table: RwLock<Table>,
    /// There is a state file that could not be read: what stands in it is not to be lost by writing another.
    unread: AtomicBool,
    /// With `sync`: tells other nodes.
    notes: Notes,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Box<str>, Entry>,
    /// With `sync`: when keys were removed, so that no node brings back what another has removed.
    removed: HashMap<Box<str>, u64>,
    used: usize,
    /// Lengths of keys, and how many there are of each (for prefixes).
    lengths: BTreeMap<usize, usize>,
    /// Networks by whether they are IPv6 ones, and the length of their mask.
    networks: BTreeMap<(bool, u8), HashMap<u128, Spellings>>,
}

/// The keys that are one network: nearly always one, but `10.0.0.0/8` is `10.1.0.0/8` too. The last one counts.
type Spellings = Vec<Box<str>>;

#[derive(Clone, Debug)]
struct Entry {
    value: Box<str>,
    /// Wall clock, ms.
    until_ms: Option<u64>,
    /// Of two nodes the later change holds; wall clock, ms; 0: of a state file, or another process.
    changed_ms: u64,
}

impl Entry {
    fn is_over(&self, now_ms: u64) -> bool {
        self.until_ms.is_some_and(|until| until <= now_ms)
    }
}

/// Why a change came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The zone is full.
    Full,
    /// The key is no address or network.
    BadKey,
}

static STORES: Mutex<Vec<Weak<Store>>> = Mutex::new(Vec::new());

/// The zone: the one there is, if it is the same, or a new one.
pub fn open(spec: Spec) -> Arc<Store> {
    let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
    stores.retain(|s| s.strong_count() > 0);
    stores.iter().filter_map(Weak::upgrade).find(|s| s.spec == spec).unwrap_or_else(|| {
        let store = Arc::new(Store::new(spec));
        if store.spec.sync {
            let kind = if store.spec.owner == OF_HTTP { Kind::Keyval } else { Kind::StreamKeyval };
            let contents: Arc<dyn Contents> = store.clone();
            store.notes.join(kind, store.spec.name.as_bytes(), &contents);
        }
        stores.push(Arc::downgrade(&store));
        store
    })
}

/// The kind of zones, between processes.
pub const ZONE: &[u8] = b"keyval";

fn alive() -> Vec<Arc<Store>> {
    STORES.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
}

/// For another process: all records, as in a state file.
pub fn leave(say: &mut dyn FnMut(Vec<u8>)) {
    for store in alive() {
        let name = format!("{} {}", store.spec.owner, store.spec.name);
        say(heir::Frame::Zone(ZONE, name.as_bytes(), store.text().as_bytes()).write());
    }
}

/// What another process said of a zone; with a state file too, which that one may have been about to write.
pub fn settle(zone: &[u8], text: &[u8]) {
    let Ok(records) = keyval_state::parse(text, clock::wall_ms()) else { return };
    let is_it = |store: &Arc<Store>| format!("{} {}", store.spec.owner, store.spec.name).as_bytes() == zone;
    for store in alive().into_iter().filter(is_it) {
        if let Err(e) = store.restore(&records) {
            let name = &store.spec.name;
            crate::log::process_line(
                crate::log::error::Level::Warn,
                format_args!("records of keyval zone \"{name}\" did not come along: {e:?}"),
            );
        }
    }
}

impl Table {
    fn insert(&mut self, matching: Matching, key: &str, entry: Entry) -> Result<(), Refused> {
        if matching == Matching::Network {
            let (is_v6, bits, length) = parse_network(key).ok_or(Refused::BadKey)?;
            let spellings = self.networks.entry((is_v6, length)).or_default().entry(bits).or_default();
            spellings.retain(|k| **k != *key);
            spellings.push(key.into());
        }
        self.used += cost(key, &entry.value);
        if let Some(before) = self.entries.insert(key.into(), entry) {
            self.used -= cost(key, &before.value);
        } else {
            *self.lengths.entry(key.len()).or_default() += 1;
        }
        Ok(())
    }

    fn remove(&mut self, matching: Matching, key: &str) -> bool {
        let Some(before) = self.entries.remove(key) else { return false };
        self.used -= cost(key, &before.value);
        if let Some(count) = self.lengths.get_mut(&key.len()) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&key.len());
            }
        }
        if matching == Matching::Network
            && let Some((is_v6, bits, length)) = parse_network(key)
            && let Some(networks) = self.networks.get_mut(&(is_v6, length))
            && let Some(spellings) = networks.get_mut(&bits)
        {
            spellings.retain(|k| **k != *key);
            if spellings.is_empty() {
                networks.remove(&bits);
            }
            if networks.is_empty() {
                self.networks.remove(&(is_v6, length));
            }
        }
        true
    }

    /// When a key was changed last here, or elsewhere as far as is known.
    fn changed_ms(&self, key: &str) -> Option<u64> {
        self.entries.get(key).map(|e| e.changed_ms).max(self.removed.get(key).copied())
    }

    /// Notes that a key was removed. There is room for so many; a node that was away for longer may bring older ones back.
    fn bury(&mut self, key: &str, changed_ms: u64) {
        if self.removed.len() >= MAX_REMOVED {
            let since = changed_ms.saturating_sub(REMOVED_FOR_MS);
            self.removed.retain(|_, at| *at >= since);
            if self.removed.len() >= MAX_REMOVED {
                self.removed.clear();
            }
        }
        self.removed.insert(key.into(), changed_ms);
    }

    fn drop_old(&mut self, matching: Matching, now_ms: u64) {
        let old: Vec<Box<str>> =
            self.entries.iter().filter(|(_, e)| e.is_over(now_ms)).map(|(k, _)| k.clone()).collect();
        old.iter().for_each(|key| {
            self.remove(matching, key);
        });
    }

    fn find(&self, matching: Matching, key: &str, now_ms: u64) -> Option<&str> {
        let alive = |key: &str| self.entries.get(key).filter(|e| !e.is_over(now_ms)).map(|e| &*e.value);
        match matching {
            Matching::Exact => alive(key),
            Matching::Prefix => {
                let lengths = self.lengths.range(..=key.len()).rev();
                lengths.filter_map(|(length, _)| key.get(..*length)).find_map(alive)
            }
            Matching::Network => {
                let (is_v6, bits, length) = parse_network(key)?;
                let networks = self.networks.range((is_v6, 0)..=(is_v6, length)).rev();
                let mut spellings = networks
                    .filter_map(|((_, length), all)| all.get(&mask(bits, is_v6, *length)))
                    .flat_map(|s| s.iter().rev());
                spellings.find_map(|k| alive(k))
            }
        }
    }
}

fn cost(key: &str, value: &str) -> usize {
    OVERHEAD + key.len() + value.len()
}

/// `192.0.2.0/24`, `2001:db8::1`: whether it is IPv6, its bits under the mask, the mask's length.
fn parse_network(text: &str) -> Option<(bool, u128, u8)> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length.parse::<u8>().ok()?)),
        None => (text, None),
    };
    let (is_v6, bits, width) = match address.parse().ok()? {
        IpAddr::V4(ip) => (false, u128::from(ip.to_bits()), 32),
        IpAddr::V6(ip) => (true, ip.to_bits(), 128),
    };
    let length = length.unwrap_or(width);
    (length <= width).then(|| (is_v6, mask(bits, is_v6, length), length))
}

fn mask(bits: u128, is_v6: bool, length: u8) -> u128 {
    let width = if is_v6 { 128 } else { 32 };
    let dropped = u32::from(width - length);
    if dropped == 128 { 0 } else { bits >> dropped << dropped }
}

impl Store {
    fn new(spec: Spec) -> Store {
        Store { spec, table: RwLock::default(), unread: AtomicBool::new(false), notes: Notes::default() }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the value for a key to `take`.
    pub fn look_up<T>(&self, key: &str, take: impl FnOnce(&str) -> T) -> Option<T> {
        self.read().find(self.spec.matching, key, clock::wall_ms()).map(take)
    }

    /// The value of exactly this record.
    pub fn record(&self, key: &str) -> Option<String> {
        let now = clock::wall_ms();
        self.read().entries.get(key).filter(|e| !e.is_over(now)).map(|e| e.value.to_string())
    }

    /// All records.
    pub fn all(&self) -> Map<String, Value> {
        let now = clock::wall_ms();
        let table = self.read();
        table
            .entries
            .iter()
            .filter(|(_, e)| !e.is_over(now))
            .map(|(k, e)| (k.to_string(), (&*e.value).into()))
            .collect()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        let now = clock::wall_ms();
        self.read().entries.values().all(|e| e.is_over(now))
    }

    /// Sets a record; `keep_ms`: how long it stays, if not as long as the zone says. All or none of several.
    pub fn set(&self, records: &[(String, String, Option<u64>)]) -> Result<(), Refused> {
        self.put(records, true)?;
        records.iter().for_each(|(key, ..)| self.notes.note(key.as_bytes()));
        Ok(())
    }

    /// The same of records that were here before, in another process: what other nodes know of them is newer.
    fn restore(&self, records: &[(String, String, Option<u64>)]) -> Result<(), Refused> {
        self.put(records, false)
    }

    fn put(&self, records: &[(String, String, Option<u64>)], is_change: bool) -> Result<(), Refused> {
        let now = clock::wall_ms();
        let matching = self.spec.matching;
        if matching == Matching::Network && records.iter().any(|(key, ..)| parse_network(key).is_none()) {
            return Err(Refused::BadKey);
        }
        let mut table = self.write();
        if table.used + records.iter().map(|(key, value, _)| cost(key, value)).sum::<usize>() > self.spec.size as usize
        {
            // Looks at all there is while requests wait: only where that may make room.
            table.drop_old(matching, now);
        }
        let before = |key: &str| table.entries.get(key).map_or(0, |e| cost(key, &e.value));
        let more: usize = records.iter().map(|(key, value, _)| cost(key, value).saturating_sub(before(key))).sum();
        if table.used + more > self.spec.size as usize {
            return Err(Refused::Full);
        }
        for (key, value, keep_ms) in records {
            let until_ms = keep_ms.or(self.spec.timeout_ms).map(|ms| now.saturating_add(ms));
            let known = table.changed_ms(key);
            // Another node has told of it already, before the process that was here has.
            if !is_change && self.spec.sync && known > Some(0) {
                continue;
            }
            // A change is later than what it changes, whatever another node's clock said.
            let after = known.map_or(0, |before| before + 1);
            let changed_ms = if is_change { now.max(after) } else { 0 };
            table.removed.remove(key.as_str());
            table.insert(matching, key, Entry { value: value.as_str().into(), until_ms, changed_ms })?;
        }
        Ok(())
    }

    /// Removes a record; whether there was one.
    pub fn remove(&self, key: &str) -> bool {
        let mut table = self.write();
        let after = table.changed_ms(key).map_or(0, |before| before + 1);
        if !table.remove(self.spec.matching, key) {
            return false;
        }
        if self.spec.sync {
            table.bury(key, clock::wall_ms().max(after));
        }
        drop(table);
        self.notes.note(key.as_bytes());
        true
    }

    /// Removes all records.
    pub fn clear(&self) {
        if self.spec.sync {
            let keys: Vec<Box<str>> = self.read().entries.keys().cloned().collect();
            for key in &keys {
                self.remove(key);
            }
            return;
        }
        *self.write() = Table::default();
    }

    /// Pages in use and free.
    pub fn pages(&self) -> (usize, usize) {
        let page = crate::zone::store::PAGE;
        let used = self.read().used.div_ceil(page);
        (used, (self.spec.size as usize / page).saturating_sub(used))
    }

    /// Reads the state file, if there is one and the zone has no records yet.
    pub fn load(&self) -> Result<(), String> {
        let Some(path) = self.spec.state.as_ref().filter(|_| self.is_empty()) else { return Ok(()) };
        let done = self.read_state(path);
        self.unread.store(done.is_err(), Relaxed);
        done
    }

    fn read_state(&self, path: &Path) -> Result<(), String> {
        let shown = path.display();
        match std::fs::metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(format!("open() \"{shown}\" failed ({})", crate::log::os_error(&e))),
            Ok(m) if m.len() > MAX_STATE => {
                return Err(format!("state file \"{shown}\" is larger than {MAX_STATE} bytes"));
            }
            Ok(_) => {}
        }
        let text =
            std::fs::read(path).map_err(|e| format!("read() \"{shown}\" failed ({})", crate::log::os_error(&e)))?;
        let records =
            keyval_state::parse(&text, clock::wall_ms()).map_err(|e| format!("state file \"{shown}\": {e}"))?;
        self.restore(&records).map_err(|e| match e {
            Refused::Full => format!("state file \"{shown}\" has more than the zone \"{}\" takes", self.spec.name),
            Refused::BadKey => format!("state file \"{shown}\" has a key that is no address"),
        })
    }

    /// Writes the state file.
    pub fn save(&self) -> io::Result<()> {
        let Some(path) = &self.spec.state else { return Ok(()) };
        if self.unread.load(Relaxed) {
            return Err(io::Error::other("it could not be read, and is left as it is"));
        }
        crate::temp::replace(path, self.text().as_bytes())
    }

    fn text(&self) -> String {
        let table = self.read();
        keyval_state::render(table.entries.iter().map(|(key, e)| (&**key, &*e.value, e.until_ms)))
    }
}

impl Contents for Store {
    fn keys(&self) -> Vec<Box<[u8]>> {
        let table = self.read();
        table.entries.keys().chain(table.removed.keys()).map(|key| key.as_bytes().into()).collect()
    }

    fn value(&self, key: &[u8], _: u32) -> Option<Vec<u8>> {
        let (table, now) = (self.read(), clock::wall_ms());
        let key = std::str::from_utf8(key).ok()?;
        let record = match table.entries.get(key) {
            Some(entry) => Keyval {
                changed_ms: entry.changed_ms,
                stays_ms: entry.until_ms.map(|until| until.saturating_sub(now)),
                value: Some(entry.value.as_bytes()),
            },
            None => Keyval { changed_ms: *table.removed.get(key)?, stays_ms: None, value: None },
        };
        if record.stays_ms == Some(0) {
            return None;
        }
        let mut value = Vec::new();
        record.write(&mut value);
        Some(value)
    }

    /// Of two changes the later one holds, of two at the same time the greater value, so that all nodes come to the same.
    fn take(&self, key: &[u8], value: &[u8]) {
        let (Ok(key), Some(record)) = (std::str::from_utf8(key), Keyval::read(value)) else { return };
        let Ok(value) = record.value.map(std::str::from_utf8).transpose() else { return };
        let (matching, now) = (self.spec.matching, clock::wall_ms());
        let mut table = self.write();
        let known = table.changed_ms(key).map(|at| (at, table.entries.get(key).map(|e| &*e.value)));
        if known.is_some_and(|known| known >= (record.changed_ms, value)) {
            return;
        }
        let Some(value) = value else {
            table.remove(matching, key);
            return table.bury(key, record.changed_ms);
        };
        let more = cost(key, value).saturating_sub(table.entries.get(key).map_or(0, |e| cost(key, &e.value)));
        if table.used + more > self.spec.size as usize {
            table.drop_old(matching, now);
        }
        if table.used + more > self.spec.size as usize {
            let name = &self.spec.name;
            let text = format_args!("keyval zone \"{name}\" has no room for a record of another node");
            return crate::log::process_line(crate::log::error::Level::Error, text);
        }
        let until_ms = record.stays_ms.map(|ms| now.saturating_add(ms));
        table.removed.remove(key);
        // A key that is no address of a zone of networks was none where it comes from.
        let _ = table.insert(matching, key, Entry { value: value.into(), until_ms, changed_ms: record.changed_ms });
    }

    fn count(&self) -> u64 {
        self.read().entries.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(matching: Matching, records: &[(&str, &str)]) -> Store {
        let spec =
            Spec { owner: "t", name: "t".into(), size: 32768, timeout_ms: None, matching, state: None, sync: false };
        let store = Store::new(spec);
        let records: Vec<_> = records.iter().map(|(k, v)| (k.to_string(), v.to_string(), None)).collect();
        store.set(&records).expect("they fit");
        store
    }

    #[test]
    fn the_best_match_counts() {
        let of = |s: &Store, key: &str| s.look_up(key, str::to_owned);
        let networks =
            [("10.0.0.0/8", "a"), ("10.1.0.0/16", "b"), ("10.1.2.3", "c"), ("::/0", "d"), ("2001:db8::/32", "e")];
        let s = store(Matching::Network, &networks);
        let cases = [("10.9.9.9", Some("a")), ("10.1.9.9", Some("b")), ("10.1.2.3", Some("c")), ("11.0.0.1", None)];
        for (key, value) in cases.into_iter().chain([("2001:db8::1", Some("e")), ("::1", Some("d")), ("x", None)]) {
            assert_eq!(of(&s, key).as_deref(), value, "{key}");
        }
        assert_eq!(of(&s, "10.1.0.0/12").as_deref(), Some("a"), "a range belongs to what holds all of it");
        assert!(s.remove("10.1.0.0/16"));
        assert_eq!(of(&s, "10.1.9.9").as_deref(), Some("a"));
        assert_eq!(s.set(&[("10.0.0.0/33".into(), String::new(), None)]), Err(Refused::BadKey));
        for key in ["10.1.0.0/16", "10.1.9.9/16"] {
            s.set(&[(key.into(), key.into(), None)]).expect("it fits");
        }
        assert_eq!(of(&s, "10.1.9.9").as_deref(), Some("10.1.9.9/16"), "the last of two spellings");
        assert!(s.remove("10.1.9.9/16"));
        assert_eq!(of(&s, "10.1.9.9").as_deref(), Some("10.1.0.0/16"), "the other is still there");
        let s = store(Matching::Prefix, &[("/a", "1"), ("/a/b", "2"), ("", "0")]);
        assert_eq!(of(&s, "/a/b/c").as_deref(), Some("2"));
        assert_eq!(of(&s, "/a/c").as_deref(), Some("1"));
        assert_eq!(of(&s, "/x").as_deref(), Some("0"));
    }

    #[test]
    fn nodes_come_to_the_same() {
        let store = |records: &[(&str, &str)]| {
            let mut store = store(Matching::Exact, records);
            store.spec.sync = true;
            store
        };
        let tell = |from: &Store, to: &Store, key: &str| {
            to.take(key.as_bytes(), &from.value(key.as_bytes(), 1).expect("something"))
        };
        let (a, b) = (store(&[("k", "old")]), store(&[]));
        tell(&a, &b, "k");
        assert_eq!(b.record("k").as_deref(), Some("old"));
        // A change is later than what it changes, though both may be of one millisecond.
        b.set(&[("k".into(), "new".into(), None)]).expect("it fits");
        tell(&a, &b, "k");
        assert_eq!(b.record("k").as_deref(), Some("new"), "what is older says nothing");
        tell(&b, &a, "k");
        assert_eq!(a.record("k").as_deref(), Some("new"));
        assert!(a.remove("k"));
        tell(&b, &a, "k");
        assert_eq!(a.record("k"), None, "nobody brings it back");
        tell(&a, &b, "k");
        assert_eq!((b.record("k"), b.keys().len()), (None, 1));
        // What a state file had is older than anything.
        let c = store(&[]);
        c.restore(&[("k".into(), "stale".into(), None), ("only".into(), "here".into(), Some(50_000))])
            .expect("it fits");
        tell(&c, &a, "k");
        assert_eq!(a.record("k"), None);
        tell(&a, &c, "k");
        assert_eq!(c.record("k"), None);
        tell(&c, &a, "only");
        assert_eq!(a.record("only").as_deref(), Some("here"));
        // Nor does what the process before had come over what another node has told meanwhile.
        b.set(&[("only".into(), "newer".into(), None)]).expect("it fits");
        tell(&b, &c, "only");
        c.restore(&[("only".into(), "here".into(), None), ("k".into(), "stale".into(), None)]).expect("it fits");
        assert_eq!((c.record("only").as_deref(), c.record("k")), (Some("newer"), None));
        // Both at once: the greater value, on both sides.
        let (x, y) = (store(&[]), store(&[]));
        for (value, to) in [("1", &x), ("2", &y), ("2", &x), ("1", &y)] {
            let mut bytes = Vec::new();
            Keyval { changed_ms: 77, stays_ms: None, value: Some(value.as_bytes()) }.write(&mut bytes);
            to.take(b"both", &bytes);
        }
        assert_eq!((x.record("both"), y.record("both")), (Some("2".into()), Some("2".into())));
    }

    #[test]
    fn a_zone_is_bounded_and_what_is_over_makes_room() {
        let s = store(Matching::Exact, &[]);
        let large = "x".repeat(20_000);
        assert_eq!(s.set(&[("a".into(), large.clone(), Some(0))]), Ok(()));
        assert_eq!(s.look_up("a", |_| ()), None, "its time is over");
        assert_eq!(s.set(&[("b".into(), large.clone(), None)]), Ok(()));
        assert_eq!(s.set(&[("c".into(), large.clone(), None)]), Err(Refused::Full));
        assert_eq!(s.set(&[("b".into(), large, None)]), Ok(()), "in the place of itself");
        s.clear();
        assert!(s.is_empty());
    }
}
