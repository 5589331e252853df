//! A cache of upstreams' answers on disk (nginx's `ngx_http_file_cache`), for every module with an upstream.
//!
//! ```text
//!  request ─> lookup ──> hit: entry ─> the module sends it as it sends an upstream's answer
//!               │  └ index: who works on what
//!               └─> miss: the module asks its upstream ─> judge (may it be kept?) ─> fill (a temporary file, renamed)
//!  control thread ─> keeper: loader (what is on disk after a start), manager (inactive, max_size, min_free)
//! ```
//! `format` is the file, `key` its name, `settings` the directives that every module has under its own prefix.

pub mod caching;
pub mod context;
pub mod entry;
pub mod fill;
pub mod format;
pub mod index;
pub mod judge;
pub mod keeper;
pub mod key;
pub mod lookup;
pub mod path;
pub mod purge;
pub mod settings;
pub mod update;

use crate::snapshot::ThreadSnapshot;
use index::Index;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// Bytes of a block where the file system does not tell.
const BLOCK: u64 = 512;

/// `*_cache_path` under one configuration.
#[derive(Debug)]
pub struct Cache {
    /// The module whose directives may use it.
    pub owner: &'static str,
    /// What outlives a reload.
    pub zone: Arc<Zone>,
    /// `use_temp_path=`: files are written where the module's other temporary files are.
    pub use_temp_path: bool,
    /// `inactive=` in milliseconds.
    pub inactive_ms: i64,
    /// `max_size=` in bytes.
    pub max_size: u64,
    /// `min_free=` in bytes, 0 for none.
    pub min_free: u64,
    /// `loader_*`
    pub loader: Pace,
    /// `manager_*`
    pub manager: Pace,
    /// `purger_*`
    pub purger: Option<Pace>,
}

/// How fast the loader or the manager works.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Files in one go.
    pub files: u64,
    /// The rest between two goes.
    pub sleep: Duration,
    /// A go takes no longer than this.
    pub threshold: Duration,
}

/// A keys zone and the directory that it describes.
#[derive(Debug)]
pub struct Zone {
    /// Its name.
    pub name: Box<[u8]>,
    /// The directory.
    pub path: PathBuf,
    /// Digits of the levels of folders.
    pub levels: Box<[u8]>,
    /// Bytes of the zone.
    pub size: u64,
    /// The entries.
    pub index: Index,
    /// Not all that is on disk is in the index yet.
    pub cold: AtomicBool,
    /// A loader is at work.
    pub loading: AtomicBool,
    /// How requests were answered.
    pub counts: crate::status::caches::Counts,
    /// Variants that are to go.
    pub changed: purge::Changed,
    block: OnceLock<u64>,
}

impl Zone {
    /// Bytes of a block of the file system.
    pub fn block(&self) -> u64 {
        *self.block.get_or_init(|| match rustix::fs::statfs(&self.path) {
            Ok(s) if s.f_bsize > 0 && (s.f_bsize as u64).is_multiple_of(BLOCK) => s.f_bsize as u64,
            _ => BLOCK,
        })
    }

    /// How many of its blocks a file takes, from the 512-byte blocks that `stat` tells.
    pub fn blocks_of(&self, stat_blocks: i64) -> u64 {
        (stat_blocks.max(0) as u64 * BLOCK).div_ceil(self.block())
    }

    /// Appends the path of the file of a key.
    pub fn write_path(&self, key: &format::Digest, out: &mut Vec<u8>) {
        out.extend_from_slice(self.path.as_os_str().as_bytes());
        key::write_name(key, &self.levels, out);
    }
}

impl Cache {
    /// `max_size=` in blocks.
    pub fn max_blocks(&self) -> u64 {
        self.max_size / self.zone.block()
    }
}

/// The zones that are alive in this process: a reload finds here what the configuration before it used.
static ZONES: Mutex<Vec<Weak<Zone>>> = Mutex::new(Vec::new());

/// The zone of a name: the one in use, or a new one. Errors are nginx's texts (`ngx_http_file_cache_init`): a zone in
/// use stays where it is.
pub fn open_zone(name: &[u8], path: PathBuf, levels: &[u8], size: u64) -> Result<Arc<Zone>, String> {
    let mut zones = ZONES.lock().unwrap_or_else(PoisonError::into_inner);
    zones.retain(|z| z.strong_count() > 0);
    let known = zones.iter().rev().filter_map(Weak::upgrade).find(|z| *z.name == *name && z.size == size);
    let shown = String::from_utf8_lossy(name);
    if let Some(zone) = known {
        if zone.path != path {
            return Err(format!(
                "cache \"{shown}\" uses the \"{}\" cache path while previously it used the \"{}\" cache path",
                path.display(),
                zone.path.display()
            ));
        }
        if *zone.levels != *levels {
            return Err(format!("cache \"{shown}\" had previously different levels"));
        }
        return Ok(zone);
    }
    let zone = Arc::new(Zone {
        name: name.into(),
        path,
        levels: levels.into(),
        size,
        index: Index::new(size),
        cold: AtomicBool::new(true),
        loading: AtomicBool::new(false),
        counts: Default::default(),
        changed: purge::Changed::default(),
        block: OnceLock::new(),
    });
    zones.push(Arc::downgrade(&zone));
    Ok(zone)
}

/// All caches of a configuration.
#[derive(Debug, Default)]
pub struct Main {
    /// In the order of the text.
    pub caches: Vec<Arc<Cache>>,
    /// Some are missing, which has been said: who uses them need not say so too.
    pub is_incomplete: bool,
}

impl Main {
    /// The number of a module's cache.
    pub fn find(&self, name: &[u8], owner: &str) -> Option<usize> {
        self.caches.iter().position(|c| *c.zone.name == *name && c.owner == owner)
    }
}

/// A cache as a request holds it: counted by its thread alone.
#[derive(Clone)]
pub struct CacheRef {
    snapshot: Rc<ThreadSnapshot>,
    number: usize,
}

impl CacheRef {
    /// The cache of that number.
    pub fn new(snapshot: Rc<ThreadSnapshot>, number: usize) -> CacheRef {
        CacheRef { snapshot, number }
    }

    /// The cache, for another thread.
    pub fn shared(&self) -> Arc<Cache> {
        self.snapshot.main.cache.caches[self.number].clone()
    }
}

impl Deref for CacheRef {
    type Target = Cache;
    fn deref(&self) -> &Cache {
        &self.snapshot.main.cache.caches[self.number]
    }
}

impl std::fmt::Debug for CacheRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CacheRef({})", self.number)
    }
}

/// `$upstream_cache_status`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Not there.
    Miss,
    /// Not looked at, by `*_cache_bypass`.
    Bypass,
    /// Too old; the upstream was asked.
    Expired,
    /// Too old, and sent since the upstream failed or is being asked.
    Stale,
    /// Too old, and sent since another request is updating it.
    Updating,
    /// Too old, and confirmed by the upstream.
    Revalidated,
    /// There.
    Hit,
}

impl Status {
    /// As the variable has it.
    pub fn text(self) -> &'static str {
        match self {
            Status::Miss => "MISS",
            Status::Bypass => "BYPASS",
            Status::Expired => "EXPIRED",
            Status::Stale => "STALE",
            Status::Updating => "UPDATING",
            Status::Revalidated => "REVALIDATED",
            Status::Hit => "HIT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_stays_where_it_is() {
        let open = |path: &str, levels: &[u8], size| open_zone(b"stays", path.into(), levels, size);
        let first = open("/a", &[1, 2], 65536).expect("there is none");
        assert!(Arc::ptr_eq(&first, &open("/a", &[1, 2], 65536).expect("the same")));
        let text = "cache \"stays\" uses the \"/b\" cache path while previously it used the \"/a\" cache path";
        assert_eq!(open("/b", &[1, 2], 65536).err().as_deref(), Some(text));
        let text = "cache \"stays\" had previously different levels";
        assert_eq!(open("/a", &[1], 65536).err().as_deref(), Some(text));
        assert!(open("/b", &[], 131_072).is_ok(), "another size is another zone");
        drop(first);
        assert!(open("/b", &[2], 65536).is_ok());
    }
}
