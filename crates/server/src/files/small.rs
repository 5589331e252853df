//! The contents of small files that are asked for again and again, by thread. An entry is used only while the file's
//! identity is what it was when it was read: one stat in place of open, fstat, read and close.
//!
//! A file changed through a shared mapping keeps its times until the kernel writes the page back: such a change may be
//! seen late.

use super::lru::Lru;
use rustix::fs::Stat;
use rustix::time::{ClockId, clock_gettime};
use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The largest file that is kept: what leaves with its head in one call anyway.
pub const LARGEST: u64 = 16 * 1024;
/// Bytes of contents that a thread keeps.
const MAX_BYTES: usize = 4 * 1024 * 1024;
/// Files that a thread keeps.
const MAX_FILES: usize = 1024;
/// A file may change twice within a tick of the kernel's clock (at most 10 ms) without its times telling. Contents that
/// were read so soon after the last change are not kept.
const SETTLED_MS: i64 = 50;
/// Places for hashes of paths asked for once: only the second request makes a file worth its memory.
const SEEN: usize = 4096;

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
    size: i64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// A file's contents.
#[derive(Debug)]
pub struct Small {
    /// The state that they belong to.
    pub identity: Identity,
    /// All of the file.
    pub bytes: Box<[u8]>,
}

impl Identity {
    /// The identity in a `stat`.
    #[allow(clippy::unnecessary_cast, reason = "the fields' types differ by platform")]
    pub fn of(stat: &Stat) -> Identity {
        Identity {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            size: stat.st_size as i64,
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }

    /// Whether it is the same file, if perhaps in another state.
    pub fn is_same_file(&self, other: &Identity) -> bool {
        (self.device, self.inode, self.size) == (other.device, other.inode, other.size)
    }

    /// Whether the last change was long enough ago for the times to tell of the next one.
    fn is_settled(&self) -> bool {
        let now = clock_gettime(ClockId::Realtime);
        let now_ms = now.tv_sec * 1000 + now.tv_nsec / 1_000_000;
        let ms = |(seconds, nanoseconds): (i64, i64)| seconds.saturating_mul(1000) + nanoseconds / 1_000_000;
        now_ms.saturating_sub(ms(self.modified).max(ms(self.changed))) > SETTLED_MS
    }
}

/// Reads a file of this identity, if it is small, settled, and still as long as it was.
pub fn read(file: BorrowedFd<'_>, identity: Identity) -> Option<Rc<Small>> {
    let size = u64::try_from(identity.size).ok().filter(|n| *n <= LARGEST)? as usize;
    if !identity.is_settled() {
        return None;
    }
    let mut bytes = vec![0; size];
    let mut got = 0;
    while got < size {
        match rustix::io::pread(file, &mut bytes[got..], got as u64) {
            Ok(n) if n > 0 => got += n,
            Ok(_) | Err(_) => return None,
        }
    }
    Some(Rc::new(Small { identity, bytes: bytes.into() }))
}

/// Bytes of contents that all threads keep.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes of contents that are kept, each thread its own.
pub fn bytes() -> u64 {
    BYTES.load(Relaxed)
}

struct Kept {
    files: Lru<Rc<Small>>,
    bytes: usize,
    hasher: RandomState,
    seen: Box<[u32]>,
}

impl Kept {
    fn new() -> Kept {
        Kept { files: Lru::default(), bytes: 0, hasher: RandomState::new(), seen: vec![0; SEEN].into() }
    }

    fn remove(&mut self, path: &[u8]) {
        if let Some(old) = self.files.remove(path) {
            self.gone(old.bytes.len());
        }
    }

    fn gone(&mut self, bytes: usize) {
        self.bytes -= bytes;
        BYTES.fetch_sub(bytes as u64, Relaxed);
    }

    fn insert(&mut self, path: &[u8], small: Rc<Small>) {
        self.remove(path);
        self.bytes += small.bytes.len();
        BYTES.fetch_add(small.bytes.len() as u64, Relaxed);
        self.files.insert(path, small);
        while self.bytes > MAX_BYTES || self.files.len() > MAX_FILES {
            match self.files.pop_oldest() {
                Some(old) => self.gone(old.bytes.len()),
                None => return,
            }
        }
    }

    /// Whether the path was asked for before (or, rarely, another with the same hash).
    fn is_wanted(&mut self, path: &[u8]) -> bool {
        let hash = self.hasher.hash_one(path);
        let mark = (hash >> 32) as u32 | 1;
        std::mem::replace(&mut self.seen[hash as usize % SEEN], mark) == mark
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.gone(self.bytes);
    }
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::new(Kept::new());
}

/// What is kept for a path; the caller compares the identity.
pub fn find(path: &[u8]) -> Option<Rc<Small>> {
    KEPT.with_borrow_mut(|k| k.files.get_mut(path).cloned())
}

/// Drops what is kept for a path: the file is another one now. It is kept again at once.
pub fn forget(path: &[u8]) {
    KEPT.with_borrow_mut(|k| k.remove(path));
}

/// Whether a file that is not kept is worth it. The first question for a path is always answered with no.
pub fn is_wanted(path: &[u8]) -> bool {
    KEPT.with_borrow_mut(|k| k.is_wanted(path))
}

/// Keeps a file's contents.
pub fn keep(path: &[u8], small: Rc<Small>) {
    KEPT.with_borrow_mut(|k| k.insert(path, small));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(size: usize) -> Rc<Small> {
        let identity = Identity { device: 1, inode: 2, size: size as i64, modified: (0, 0), changed: (0, 0) };
        Rc::new(Small { identity, bytes: vec![0; size].into() })
    }

    #[test]
    fn bytes_and_numbers_are_bounded() {
        let mut kept = Kept::new();
        for i in 0..2 * MAX_FILES {
            kept.insert(format!("/{i}").as_bytes(), small(1));
        }
        assert_eq!((kept.files.len(), kept.bytes), (MAX_FILES, MAX_FILES));
        for i in 0..MAX_FILES {
            kept.insert(format!("/{i}").as_bytes(), small(LARGEST as usize));
        }
        assert!(kept.bytes <= MAX_BYTES && kept.bytes > MAX_BYTES - LARGEST as usize);
        assert!(kept.files.get_mut(format!("/{}", MAX_FILES - 1).as_bytes()).is_some());
        assert!(kept.files.get_mut(b"/0").is_none());
    }

    #[test]
    fn the_second_request_makes_a_file_wanted() {
        let mut kept = Kept::new();
        assert!(!kept.is_wanted(b"/a"));
        assert!(kept.is_wanted(b"/a"));
        assert!(!kept.is_wanted(b"/b"));
    }

    #[test]
    fn fresh_and_future_changes_are_not_settled() {
        let now = clock_gettime(ClockId::Realtime);
        let mut identity = small(0).identity;
        assert!(identity.is_settled());
        identity.changed = (now.tv_sec, now.tv_nsec);
        assert!(!identity.is_settled());
        identity.changed = (now.tv_sec + 3600, 0);
        assert!(!identity.is_settled());
    }

    #[test]
    fn reads_what_is_as_long_as_it_was() {
        use std::os::fd::AsFd;
        let path = std::env::temp_dir().join(format!("ironweir-small-{}", std::process::id()));
        std::fs::write(&path, b"hello").expect("the temporary directory can be written to");
        let file = std::fs::File::open(&path).expect("it was just written");
        let mut identity = small(5).identity;
        assert_eq!(&*read(file.as_fd(), identity).expect("it is small and long").bytes, b"hello");
        identity.size = 6;
        assert!(read(file.as_fd(), identity).is_none(), "shorter than it was");
        identity.size = LARGEST as i64 + 1;
        assert!(read(file.as_fd(), identity).is_none(), "too large");
        std::fs::remove_file(&path).expect("it is there");
    }
}
