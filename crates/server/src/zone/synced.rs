//! Zones that the nodes of a cluster share (`sync`): who has what, and what has changed since another node was told. From: the modules that
//! have zones, which note keys; `modules::zone_sync`, which tells other nodes and hears them.
//!
//! ```text
//!  request or API ──note(key)──> Changes ──> Pending of each link ──every interval──> another node
//!  another node ──> take(kind, name, key, value) ──> Contents
//! ```
//! Where no node is linked, noting a key is one load.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use wire::zone_sync::Kind;

/// Keys that may wait for a link. A link that is so far behind is told everything again.
const MAX_PENDING: usize = 65_536;

/// What a zone has, as other nodes see it.
pub trait Contents: Send + Sync {
    /// All keys that a new node is told of.
    fn keys(&self) -> Vec<Box<[u8]>>;
    /// What there is to say of a key that has changed so many times; none: nothing.
    fn value(&self, key: &[u8], times: u32) -> Option<Vec<u8>>;
    /// Takes what another node has said of a key.
    fn take(&self, key: &[u8], value: &[u8]);
    /// How many records there are.
    fn count(&self) -> u64;
}

/// A zone of this process that is shared.
#[derive(Clone)]
pub struct Member {
    /// What kind of zone it is.
    pub kind: Kind,
    /// Its name.
    pub name: Box<[u8]>,
    /// What has changed.
    pub changes: Arc<Changes>,
    contents: Weak<dyn Contents>,
}

impl Member {
    /// What it has; none: no configuration has it any more.
    pub fn contents(&self) -> Option<Arc<dyn Contents>> {
        self.contents.upgrade()
    }
}

/// What was counted of the conversations with other nodes.
#[derive(Debug, Default)]
pub struct Counts {
    /// Bytes heard.
    pub bytes_in: AtomicU64,
    /// Bytes said.
    pub bytes_out: AtomicU64,
    /// Messages heard.
    pub messages_in: AtomicU64,
    /// Messages said.
    pub messages_out: AtomicU64,
    /// Nodes that this one tells now.
    pub online: AtomicU64,
}

/// Of this process. Counted by its service thread, and by sessions that hear other nodes: not on the way of requests.
pub static COUNTS: LazyLock<Counts> = LazyLock::new(Counts::default);

static MEMBERS: Mutex<Vec<Member>> = Mutex::new(Vec::new());

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where a zone notes its changes: nowhere until it is shared.
#[derive(Debug, Default)]
pub struct Notes(OnceLock<Arc<Changes>>);

impl Notes {
    /// The zone is shared for as long as its contents are in use.
    pub fn join(&self, kind: Kind, name: &[u8], contents: &Arc<dyn Contents>) {
        let changes = self.0.get_or_init(Arc::default).clone();
        let mut members = locked(&MEMBERS);
        members.retain(|m| m.contents.strong_count() > 0);
        members.push(Member { kind, name: name.into(), changes, contents: Arc::downgrade(contents) });
    }

    /// A key has changed here.
    #[inline]
    pub fn note(&self, key: &[u8]) {
        if let Some(changes) = self.0.get() {
            changes.note(key);
        }
    }
}

/// The zones that are shared now. Of two of one name the later one is the newer configuration's.
pub fn members() -> Vec<Member> {
    locked(&MEMBERS).iter().filter(|m| m.contents.strong_count() > 0).cloned().collect()
}

/// Takes what another node says of a zone; nothing happens if there is none like it here.
pub fn take(kind: Kind, name: &[u8], key: &[u8], value: &[u8]) {
    let found = locked(&MEMBERS).iter().rev().find(|m| m.kind == kind && *m.name == *name).and_then(Member::contents);
    if let Some(contents) = found {
        contents.take(key, value);
    }
}

/// What has changed in a zone, for each link.
#[derive(Debug, Default)]
pub struct Changes {
    links: Mutex<Vec<Weak<Pending>>>,
    is_linked: AtomicBool,
}

impl Changes {
    /// A key has changed here.
    #[inline]
    pub fn note(&self, key: &[u8]) {
        if self.is_linked.load(Relaxed) {
            self.tell(key);
        }
    }

    #[cold]
    fn tell(&self, key: &[u8]) {
        let mut links = locked(&self.links);
        links.retain(|link| link.upgrade().map(|pending| pending.add(key)).is_some());
        self.is_linked.store(!links.is_empty(), Relaxed);
    }

    /// A link wants to know from now on.
    pub fn link(&self) -> Arc<Pending> {
        let pending = Arc::<Pending>::default();
        locked(&self.links).push(Arc::downgrade(&pending));
        self.is_linked.store(true, Relaxed);
        pending
    }

    /// Keys that wait for the link that is farthest behind.
    pub fn pending(&self) -> usize {
        let links = locked(&self.links);
        links.iter().filter_map(Weak::upgrade).map(|pending| pending.count()).max().unwrap_or(0)
    }
}

/// Keys of a zone that another node has not been told of yet.
#[derive(Debug, Default)]
pub struct Pending {
    keys: Mutex<HashMap<Box<[u8]>, u32>>,
    is_behind: AtomicBool,
}

impl Pending {
    fn add(&self, key: &[u8]) {
        let mut keys = locked(&self.keys);
        if let Some(times) = keys.get_mut(key) {
            *times = times.saturating_add(1);
        } else if keys.len() < MAX_PENDING {
            keys.insert(key.into(), 1);
        } else {
            self.is_behind.store(true, Relaxed);
        }
    }

    fn count(&self) -> usize {
        locked(&self.keys).len()
    }

    /// The keys, with how many times each has changed; and whether there were more than are kept.
    pub fn take(&self) -> (HashMap<Box<[u8]>, u32>, bool) {
        (std::mem::take(&mut *locked(&self.keys)), self.is_behind.swap(false, Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One(Mutex<Vec<(Vec<u8>, Vec<u8>)>>);

    impl Contents for One {
        fn keys(&self) -> Vec<Box<[u8]>> {
            Vec::new()
        }

        fn value(&self, _: &[u8], times: u32) -> Option<Vec<u8>> {
            Some(vec![times as u8])
        }

        fn take(&self, key: &[u8], value: &[u8]) {
            locked(&self.0).push((key.to_vec(), value.to_vec()));
        }

        fn count(&self) -> u64 {
            locked(&self.0).len() as u64
        }
    }

    #[test]
    fn each_link_is_told_what_changed_since_it_came() {
        let one = Arc::new(One(Mutex::default()));
        let as_contents: Arc<dyn Contents> = one.clone();
        let notes = Notes::default();
        notes.note(b"nobody hears it");
        notes.join(Kind::Requests, b"synced test", &as_contents);
        let changes = notes.0.get().expect("it has joined");
        changes.note(b"before");
        let (first, second) = (changes.link(), changes.link());
        (0..3).for_each(|_| changes.note(b"k"));
        assert_eq!(first.take(), (HashMap::from([(b"k".as_slice().into(), 3)]), false));
        changes.note(b"k");
        assert_eq!(changes.pending(), 1);
        drop(first);
        assert_eq!(second.take().0.get(b"k".as_slice()), Some(&4));
        drop(second);
        changes.note(b"k");
        assert!(!changes.is_linked.load(Relaxed), "nobody is left");
        take(Kind::Requests, b"synced test", b"k", b"v");
        take(Kind::Sticky, b"synced test", b"k", b"another kind");
        assert_eq!(*locked(&one.0), [(b"k".to_vec(), b"v".to_vec())]);
        drop((one, as_contents));
        assert!(members().iter().all(|m| *m.name != *b"synced test"));
    }

    #[test]
    fn a_link_that_is_far_behind_is_told_everything() {
        let changes = Changes::default();
        let link = changes.link();
        (0..=MAX_PENDING as u32).for_each(|n| changes.note(&n.to_be_bytes()));
        let (keys, is_behind) = link.take();
        assert_eq!((keys.len(), is_behind), (MAX_PENDING, true));
    }
}
