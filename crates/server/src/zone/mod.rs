//! Zones: what all threads of the process share by name, and what outlives a reload (nginx's shared memory zones).
//! `store` holds the states, `by_age` is their order; here stand their names, sizes and who keeps them. Knows no request.

pub mod by_age;
pub mod store;
pub mod synced;

use conf::{Node, Problem, Word, value};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use store::Store;

/// A zone is at least eight pages, as nginx's.
const MIN_SIZE: u64 = 8 * store::PAGE as u64;

/// What is said to another process at once.
const FRAME_BYTES: usize = 256 * 1024;

/// Names of zones while a configuration is read: one name is one zone, whoever uses it.
#[derive(Clone, Debug, Default)]
pub struct Names {
    known: Vec<Name>,
}

#[derive(Clone, Debug)]
struct Name {
    name: Box<[u8]>,
    owner: &'static str,
    /// In bytes; 0 as long as the zone is used but not declared.
    size: u64,
}

impl Names {
    /// Uses or declares a zone: `size` is 0 where it is only used. `owner` is the module. Errors are nginx's texts
    /// (`ngx_shared_memory_add`).
    pub fn add(&mut self, name: &[u8], size: u64, owner: &'static str) -> Result<(), String> {
        let Some(known) = self.known.iter_mut().find(|n| *n.name == *name) else {
            self.known.push(Name { name: name.into(), owner, size });
            return Ok(());
        };
        let shown = String::from_utf8_lossy(name);
        if known.owner != owner {
            return Err(format!("the shared memory zone \"{shown}\" is already declared for a different use"));
        }
        if known.size == 0 {
            known.size = size;
        }
        if size != 0 && size != known.size {
            let before = known.size;
            return Err(format!(
                "the size {size} of shared memory zone \"{shown}\" conflicts with already declared size {before}"
            ));
        }
        Ok(())
    }

    /// Bytes of a zone; 0 if it is nowhere declared.
    pub fn size(&self, name: &[u8]) -> u64 {
        self.known.iter().find(|n| *n.name == *name).map_or(0, |n| n.size)
    }

    /// All of them: name, whose it is, bytes.
    pub fn all(&self) -> impl Iterator<Item = (&[u8], &'static str, u64)> {
        self.known.iter().map(|n| (&*n.name, n.owner, n.size))
    }

    /// Zones that are used and nowhere declared. For the end of the configuration.
    pub fn undeclared(&self) -> impl Iterator<Item = Problem> {
        let missing = self.known.iter().filter(|n| n.size == 0);
        missing.map(|n| Problem::bare(format!("zero size shared memory zone \"{}\"", String::from_utf8_lossy(&n.name))))
    }
}

/// Reads what follows `zone=`: `name:size`. `word` is the whole parameter.
pub fn name_and_size<'w>(node: &Node, word: &Word, text: &'w [u8]) -> Result<(&'w [u8], u64), Problem> {
    let invalid = || node.problem(format!("invalid zone size \"{}\"", word.as_str()));
    let colon = memchr::memchr(b':', text).ok_or_else(invalid)?;
    let size = value::size(&text[colon + 1..]).ok_or_else(invalid)?;
    if size < MIN_SIZE {
        return Err(node.problem(format!("zone \"{}\" is too small", word.as_str())));
    }
    Ok((&text[..colon], size))
}

/// The stores of one kind that are alive in this process: a reload finds here what the configuration before it used.
pub struct Registry<S> {
    known: Mutex<Vec<Known<S>>>,
}

struct Known<S> {
    name: Box<[u8]>,
    key: Box<[u8]>,
    size: u64,
    store: Weak<Store<S>>,
}

/// A zone that somebody uses: its name, what it counts by, and its state.
type Alive<S> = (Box<[u8]>, Box<[u8]>, Arc<Store<S>>);

impl<S: Default> Registry<S> {
    /// An empty one.
    pub const fn new() -> Registry<S> {
        Registry { known: Mutex::new(Vec::new()) }
    }

    fn alive(&self) -> Vec<Alive<S>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let alive = |k: &Known<S>| Some((k.name.clone(), k.key.clone(), k.store.upgrade()?));
        known.iter().filter_map(alive).collect()
    }

    /// Says what all zones have, for another process: `write` writes a state behind its key.
    pub fn leave(&self, kind: &[u8], say: &mut dyn FnMut(Vec<u8>), write: impl Fn(&S, &mut heir::Writer)) {
        for (name, key, store) in self.alive() {
            let mut whole = heir::Writer::default();
            whole.bytes(&name);
            whole.bytes(&key);
            let whole = whole.done();
            let mut rows = heir::Writer::default();
            store.each(|key, state| {
                rows.bytes(key);
                write(state, &mut rows);
                if rows.len() >= FRAME_BYTES {
                    say(heir::Frame::Zone(kind, &whole, &std::mem::take(&mut rows).done()).write());
                }
            });
            if !rows.is_empty() {
                say(heir::Frame::Zone(kind, &whole, &rows.done()).write());
            }
        }
    }

    /// Takes over what another process said of a zone of this name and key; `read` reads a state. What this process knows already stays.
    pub fn settle(
        &self,
        whole: &[u8],
        rows: &[u8],
        policy: &impl store::Policy<S>,
        read: impl Fn(&mut heir::Reader<'_>) -> Option<S>,
    ) {
        let mut of = heir::Reader::new(whole);
        let (Some(name), Some(key)) = (of.bytes(), of.bytes()) else { return };
        let all = self.alive();
        let Some((.., store)) = all.iter().rev().find(|(n, k, _)| **n == *name && **k == *key) else { return };
        let mut rows = heir::Reader::new(rows);
        while let Some(key) = rows.bytes()
            && let Some(state) = read(&mut rows)
        {
            store.enter(key, policy, |known, is_new| {
                if is_new {
                    *known = state;
                }
            });
        }
    }

    /// The store of a zone: the one in use if its name, key and size are the same, else a new one. `overhead`: what
    /// an entry takes beside its key, in bytes.
    pub fn open(&self, name: &[u8], key: &[u8], size: u64, overhead: usize) -> Arc<Store<S>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|k| k.store.strong_count() > 0);
        let same = known.iter().rev().find(|k| *k.name == *name && *k.key == *key && k.size == size);
        if let Some(store) = same.and_then(|k| k.store.upgrade()) {
            return store;
        }
        let store = Arc::new(Store::new(size as usize, overhead));
        known.push(Known { name: name.into(), key: key.into(), size, store: Arc::downgrade(&store) });
        store
    }
}

impl<S: Default> Default for Registry<S> {
    fn default() -> Self {
        Registry::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_zone() {
        let mut names = Names::default();
        assert_eq!(names.add(b"one", 0, "limit_req"), Ok(()));
        assert_eq!(names.undeclared().count(), 1);
        assert_eq!(names.add(b"one", 65536, "limit_req"), Ok(()));
        assert_eq!(names.add(b"one", 65536, "limit_req"), Ok(()));
        assert_eq!(names.undeclared().count(), 0);
        assert!(
            names.add(b"one", 1, "limit_req").is_err_and(|e| e.contains("conflicts with already declared size 65536"))
        );
        assert!(
            names.add(b"one", 0, "limit_conn").is_err_and(|e| e.ends_with("is already declared for a different use"))
        );
    }

    #[test]
    fn a_store_lives_as_long_as_somebody_uses_it() {
        let registry: Registry<u32> = Registry::new();
        let first = registry.open(b"z", b"$k", 65536, 32);
        assert!(Arc::ptr_eq(&first, &registry.open(b"z", b"$k", 65536, 32)));
        assert!(!Arc::ptr_eq(&first, &registry.open(b"z", b"$k", 131072, 32)));
        assert!(!Arc::ptr_eq(&first, &registry.open(b"z", b"$other", 65536, 32)));
        drop(first);
        registry.open(b"y", b"", 65536, 32);
        assert_eq!(registry.known.lock().map(|k| k.len()).unwrap_or(0), 1);
    }
}
