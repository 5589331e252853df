//! The threads that keep caches in order, beside the control thread: they wait for the disk so that no worker thread has
//! to. The loader notes what is on disk after a start; the manager unlinks what is idle (`inactive`) or too much
//! (`max_size`, `min_free`, a full keys zone). nginx has a process for each.

use super::format::FIXED;
use super::index::{Grave, Taken};
use super::{Cache, key};
use crate::log::error::Level;
use crate::log::process_line;
use std::ffi::OsStr;
use std::fs::{DirEntry, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The manager looks at least so often (nginx: 10 s).
const LONGEST_REST: Duration = Duration::from_secs(10);
/// ... and not oftener than this, if nothing is urgent.
const SHORTEST_REST: Duration = Duration::from_secs(1);
/// Half-written files of a process that is gone are removed when nobody has touched them for so long.
const LEFT_BEHIND: Duration = Duration::from_secs(24 * 3600);
/// Digits of the number of a half-written file.
const NUMBER: usize = 10;

struct Keeper {
    caches: Vec<Arc<Cache>>,
    running: bool,
    woken: bool,
}

static KEEPER: Mutex<Keeper> = Mutex::new(Keeper { caches: Vec::new(), running: false, woken: false });
static BELL: Condvar = Condvar::new();

fn keeper() -> MutexGuard<'static, Keeper> {
    KEEPER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the manager look now, for caches that cannot wait.
pub fn wake() {
    keeper().woken = true;
    BELL.notify_one();
}

/// Keeps these caches from now on. For the control thread of a worker process. Errors: a thread cannot be started.
pub fn configure(caches: &[Arc<Cache>]) -> io::Result<()> {
    let mut k = keeper();
    k.caches = caches.to_vec();
    if caches.is_empty() {
        return Ok(());
    }
    if !k.running {
        std::thread::Builder::new().name("cache manager".into()).spawn(manage_all)?;
        k.running = true;
    }
    k.woken = true;
    drop(k);
    BELL.notify_one();
    let cold: Vec<_> =
        caches.iter().filter(|c| c.zone.cold.load(Relaxed) && !c.zone.loading.swap(true, Relaxed)).cloned().collect();
    if cold.is_empty() {
        return Ok(());
    }
    let theirs = cold.clone();
    let loader =
        std::thread::Builder::new().name("cache loader".into()).spawn(move || theirs.iter().for_each(|c| load(c)));
    if loader.is_err() {
        // The next configuration tries again.
        cold.iter().for_each(|c| c.zone.loading.store(false, Relaxed));
    }
    loader.map(drop)
}

fn manage_all() {
    // When each cache is due. Known by its place in memory, which its entry here keeps from being another's.
    let mut due: Vec<(Arc<Cache>, Instant)> = Vec::new();
    loop {
        let caches = {
            let mut k = keeper();
            k.woken = false;
            k.caches.clone()
        };
        due.retain(|(c, _)| caches.iter().any(|k| Arc::ptr_eq(k, c)));
        for cache in caches {
            if !due.iter().any(|(c, _)| Arc::ptr_eq(c, &cache)) {
                due.push((cache, Instant::now()));
            }
        }
        for (cache, at) in &mut due {
            if *at <= Instant::now() || is_urgent(cache) {
                *at = Instant::now() + manage(cache);
            }
        }
        let next = due.iter().map(|(_, at)| *at).min();
        let rest = next.map_or(LONGEST_REST, |at| at.saturating_duration_since(Instant::now()));
        let k = keeper();
        if !k.woken {
            let (guard, _) = BELL.wait_timeout(k, rest).unwrap_or_else(PoisonError::into_inner);
            drop(guard);
        }
    }
}

/// Whether a cache cannot wait until it is due: entries wait for their files to be unlinked, or there is much too much.
pub fn is_urgent(cache: &Cache) -> bool {
    let most = cache.max_blocks();
    cache.zone.index.has_graves() || (most > 0 && cache.zone.index.blocks() > most.saturating_add(most / 8))
}

/// Milliseconds since 1970.
fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
}

/// A go at a cache. Gives how long to rest.
fn manage(cache: &Cache) -> Duration {
    let (began, index) = (Instant::now(), &cache.zone.index);
    let mut files = 0;
    let mut is_enough = || {
        files += 1;
        files >= cache.manager.files || began.elapsed() >= cache.manager.threshold
    };
    let now = now();
    let again = now.saturating_add(cache.inactive_ms);
    let rest = loop {
        match index.take_expired(now, again) {
            Taken::Unlink(grave) => unlink(cache, grave),
            Taken::Gone => {}
            Taken::Nothing(next) => {
                // In an empty cache nothing expires before that.
                let wait = next.map_or(cache.inactive_ms, |n| n - now).max(0) as u64;
                break Duration::from_millis(wait).clamp(SHORTEST_REST, LONGEST_REST);
            }
        }
        if is_enough() {
            return cache.manager.sleep;
        }
    };
    while is_too_much(cache) {
        match index.take_oldest() {
            Taken::Unlink(grave) => unlink(cache, grave),
            Taken::Gone => {}
            Taken::Nothing(_) => return LONGEST_REST.min(rest),
        }
        if is_enough() {
            return cache.manager.sleep;
        }
    }
    rest
}

fn is_too_much(cache: &Cache) -> bool {
    let index = &cache.zone.index;
    if index.count() == 0 {
        return false;
    }
    if index.blocks() >= cache.max_blocks() || index.is_crowded() {
        return true;
    }
    if cache.min_free == 0 {
        return false;
    }
    match rustix::fs::statvfs(&cache.zone.path) {
        Ok(s) => s.f_bavail.saturating_mul(s.f_frsize) <= cache.min_free,
        Err(_) => false,
    }
}

fn unlink(cache: &Cache, grave: Grave) {
    let mut path = Vec::new();
    cache.zone.write_path(&grave.key, &mut path);
    remove(Path::new(OsStr::from_bytes(&path)));
    cache.zone.index.removed(grave);
}

fn remove(path: &Path) {
    if let Err(e) = std::fs::remove_file(path)
        && e.kind() != io::ErrorKind::NotFound
    {
        let text = crate::log::os_error(&e);
        process_line(Level::Crit, format_args!("unlink() \"{}\" failed ({text})", path.display()));
    }
}

/// Notes all files of a cache.
fn load(cache: &Cache) {
    let mut walk = Walk { cache, files: 0, began: Instant::now() };
    walk.folder(&cache.zone.path, 0);
    cache.zone.cold.store(false, Release);
    cache.zone.loading.store(false, Relaxed);
    let block = cache.zone.block();
    let megabytes = (cache.zone.index.blocks() * block) as f64 / f64::from(1024 * 1024);
    let path = cache.zone.path.display();
    process_line(Level::Notice, format_args!("http file cache: {path} {megabytes:.3}M, bsize: {block}"));
}

struct Walk<'c> {
    cache: &'c Cache,
    files: u64,
    began: Instant,
}

impl Walk<'_> {
    fn folder(&mut self, path: &Path, depth: usize) {
        let entries = match std::fs::read_dir(path) {
            Ok(entries) => entries,
            Err(e) => {
                let text = crate::log::os_error(&e);
                process_line(Level::Crit, format_args!("opendir() \"{}\" failed ({text})", path.display()));
                return;
            }
        };
        for entry in entries.flatten() {
            match entry.file_type() {
                Ok(t) if t.is_dir() && depth < self.cache.zone.levels.len() => self.folder(&entry.path(), depth + 1),
                Ok(t) if t.is_file() => {
                    self.file(&entry);
                    self.rest();
                }
                _ => {}
            }
        }
    }

    /// Files that are none of ours stay as they are.
    fn file(&mut self, entry: &DirEntry) {
        let (name, path) = (entry.file_name(), entry.path());
        let Ok(facts) = entry.metadata() else { return };
        let Some(key) = key::parse_name(name.as_bytes()) else {
            if is_half_written(name.as_bytes()) && age(&facts) > LEFT_BEHIND {
                remove(&path);
            }
            return;
        };
        let mut expected = Vec::new();
        self.cache.zone.write_path(&key, &mut expected);
        // Of another time, with other levels: nobody would ever find it.
        if expected != path.as_os_str().as_bytes() || facts.len() < FIXED as u64 {
            return remove(&path);
        }
        let blocks = self.cache.zone.blocks_of(facts.blocks() as i64);
        if !self.cache.zone.index.insert_found(&key, blocks, now().saturating_add(self.cache.inactive_ms)) {
            remove(&path);
        }
    }

    fn rest(&mut self) {
        self.files += 1;
        if self.files >= self.cache.loader.files || self.began.elapsed() >= self.cache.loader.threshold {
            std::thread::sleep(self.cache.loader.sleep);
            (self.files, self.began) = (0, Instant::now());
        }
    }
}

fn age(facts: &Metadata) -> Duration {
    facts.modified().ok().and_then(|m| m.elapsed().ok()).unwrap_or_default()
}

/// `KEY.0000000001`
fn is_half_written(name: &[u8]) -> bool {
    let Some(number) = name.len().checked_sub(NUMBER) else { return false };
    let (key, number) = name.split_at(number);
    let Some(key) = key.strip_suffix(b".") else { return false };
    key::parse_name(key).is_some() && number.iter().all(u8::is_ascii_digit)
}
