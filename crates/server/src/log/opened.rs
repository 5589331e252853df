//! Log files whose names have variables: opened for each line, or kept open as `open_log_file_cache` says
//! (nginx's `ngx_open_file_cache.c`, as far as logs use it). One thread's. Writes directly, each line with one write.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Permissions of a new log file, before the umask.
const MODE: u32 = 0o644;

/// `open_log_file_cache`
#[derive(Debug)]
pub struct CacheSpec {
    /// Its number among all of the configuration.
    pub index: usize,
    /// Files that are remembered at most.
    pub max: usize,
    /// Files without a line for so many seconds are forgotten.
    pub inactive: u64,
    /// After so many seconds it is checked whether the name still means the same file.
    pub valid: u64,
    /// Lines after which a file is kept open.
    pub min_uses: u64,
}

/// The caches of one thread and snapshot.
#[derive(Default)]
pub struct Opened {
    caches: RefCell<Vec<Cache>>,
}

#[derive(Default)]
struct Cache {
    files: HashMap<Box<[u8]>, Entry>,
    /// Names by their last use, oldest first.
    order: BTreeMap<u64, Box<[u8]>>,
    uses: u64,
}

struct Entry {
    /// Open once it is used often enough.
    fd: Option<OwnedFd>,
    /// Device and inode.
    identity: (u64, u64),
    checked: u64,
    accessed: u64,
    uses: u64,
    place: u64,
}

impl Opened {
    /// Appends a line to the file called `path`. `now` in seconds of the monotonic clock. Errors carry the failed call.
    pub fn append(
        &self,
        cache: Option<&CacheSpec>,
        path: &[u8],
        line: &[u8],
        now: u64,
    ) -> Result<(), (&'static str, Errno)> {
        let Some(spec) = cache else {
            let fd = open(path)?;
            return super::timed::write(|| write(fd.as_fd(), line));
        };
        let mut caches = self.caches.borrow_mut();
        if caches.len() <= spec.index {
            caches.resize_with(spec.index + 1, Cache::default);
        }
        caches[spec.index].append(spec, path, line, now)
    }

    /// Closes all files: their names may mean others now.
    pub fn close_all(&self) {
        self.caches.borrow_mut().clear();
    }
}

impl Cache {
    fn append(&mut self, spec: &CacheSpec, path: &[u8], line: &[u8], now: u64) -> Result<(), (&'static str, Errno)> {
        if let Some(entry) = self.files.get_mut(path) {
            if let Err(e) = entry.freshen(spec, path, now) {
                self.remove(path);
                return Err(e);
            }
        } else {
            let fd = open(path)?;
            let identity = identity(fd.as_fd())?;
            if self.files.len() >= spec.max {
                self.expire(spec, now, 1);
            }
            let entry = Entry { fd: Some(fd), identity, checked: now, accessed: now, uses: 0, place: 0 };
            self.files.insert(path.into(), entry);
        }
        self.uses += 1;
        let entry = self.files.get_mut(path).expect("it was found or inserted just now");
        let name = self.order.remove(&entry.place).unwrap_or_else(|| path.into());
        (entry.place, entry.accessed) = (self.uses, now);
        entry.uses += 1;
        self.order.insert(self.uses, name);
        let fd = entry.fd.as_ref().expect("an entry in use is open");
        let result = super::timed::write(|| write(fd.as_fd(), line));
        if entry.uses < spec.min_uses {
            entry.fd = None;
        }
        self.expire(spec, now, 0);
        result
    }

    fn remove(&mut self, path: &[u8]) {
        if let Some(entry) = self.files.remove(path) {
            self.order.remove(&entry.place);
        }
    }

    /// Forgets the `forced` oldest files whatever their age, and two inactive ones at most.
    fn expire(&mut self, spec: &CacheSpec, now: u64, forced: usize) {
        for n in 0..forced + 2 {
            let Some((_, name)) = self.order.first_key_value() else { return };
            let accessed = self.files.get(name).map_or(0, |e| e.accessed);
            if n >= forced && now.saturating_sub(accessed) <= spec.inactive {
                return;
            }
            let name = name.clone();
            self.remove(&name);
        }
    }
}

impl Entry {
    /// Makes sure that the file is open and still the one that the name means.
    fn freshen(&mut self, spec: &CacheSpec, path: &[u8], now: u64) -> Result<(), (&'static str, Errno)> {
        if self.fd.is_some() {
            if now.saturating_sub(self.checked) < spec.valid {
                return Ok(());
            }
            self.checked = now;
            let same = rustix::fs::stat(path).is_ok_and(|s| (s.st_dev, s.st_ino) == self.identity);
            if same {
                return Ok(());
            }
        }
        let fd = open(path)?;
        self.identity = identity(fd.as_fd())?;
        (self.fd, self.checked) = (Some(fd), now);
        Ok(())
    }
}

fn identity(fd: BorrowedFd<'_>) -> Result<(u64, u64), (&'static str, Errno)> {
    rustix::fs::fstat(fd).map(|s| (s.st_dev, s.st_ino)).map_err(|e| ("fstat()", e))
}

fn open(path: &[u8]) -> Result<OwnedFd, (&'static str, Errno)> {
    // No thread waits for whoever is to read a FIFO.
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::from_raw_mode(MODE)).map_err(|e| ("open()", e))
}

fn write(fd: BorrowedFd<'_>, line: &[u8]) -> Result<(), (&'static str, Errno)> {
    rustix::io::write(fd, line).map(drop).map_err(|e| ("write()", e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn often_used_files_stay_open_and_the_oldest_goes() {
        let dir = std::env::temp_dir().join(format!("ironweir-opened-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let moved = dir.with_extension("moved");
        let spec = CacheSpec { index: 0, max: 3, inactive: 20, valid: 60, min_uses: 2 };
        let opened = Opened::default();
        let add = |name: &str| opened.append(Some(&spec), dir.join(name).as_os_str().as_bytes(), b"x\n", 5);
        for name in ["a", "a", "once", "b", "b", "c", "c"] {
            add(name).unwrap();
        }
        std::fs::rename(&dir, &moved).unwrap();
        assert_eq!(add("a").unwrap_err(), ("open()", Errno::NOENT));
        assert_eq!(add("once").unwrap_err(), ("open()", Errno::NOENT));
        add("b").unwrap();
        add("c").unwrap();
        let lines = |name: &str| std::fs::read_to_string(moved.join(name)).unwrap().lines().count();
        assert_eq!((lines("a"), lines("once"), lines("b"), lines("c")), (2, 1, 3, 3));
        std::fs::remove_dir_all(&moved).unwrap();
    }

    #[test]
    fn a_renamed_file_is_noticed_after_valid() {
        let dir = std::env::temp_dir().join(format!("ironweir-opened-valid-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let spec = CacheSpec { index: 0, max: 3, inactive: 100, valid: 10, min_uses: 1 };
        let opened = Opened::default();
        let add = |now| opened.append(Some(&spec), dir.join("log").as_os_str().as_bytes(), b"x\n", now).unwrap();
        add(1);
        std::fs::rename(dir.join("log"), dir.join("old")).unwrap();
        add(5);
        add(12);
        assert_eq!(std::fs::read(dir.join("old")).unwrap(), b"x\nx\n");
        assert_eq!(std::fs::read(dir.join("log")).unwrap(), b"x\n");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
