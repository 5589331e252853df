//! Files that logs are appended to: opened by the master, written by every thread, reopened under the same
//! descriptor number, so a thread never sees a file that is gone. Knows nothing of lines.

use crate::master::sys;
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Permissions of a new log file, before the umask.
const MODE: u32 = 0o644;

/// A file open for appending.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
    /// The second in which the disk was full: nothing is written during it.
    full_at: AtomicI64,
}

impl LogFile {
    /// Opens `path` for appending, creating it. Outside of every registry.
    pub fn open(path: &Path) -> io::Result<LogFile> {
        Ok(LogFile::adopt(path.to_owned(), OwnedFd::from(open(path)?)))
    }

    /// Takes a descriptor that is open for appending.
    pub fn adopt(path: PathBuf, fd: OwnedFd) -> LogFile {
        LogFile { path, file: File::from(fd), full_at: AtomicI64::new(0) }
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends `bytes` with one write. What does not fit on the disk is dropped, and so is all of that second's.
    /// `now` in seconds, of any clock.
    pub fn append(&self, bytes: &[u8], now: i64) -> io::Result<()> {
        if self.full_at.load(Ordering::Relaxed) == now {
            return Ok(());
        }
        match (&self.file).write(bytes) {
            Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => {
                self.full_at.store(now, Ordering::Relaxed);
                Err(e)
            }
            other => other.map(drop),
        }
    }

    /// Opens the path again, creating the file if it was moved away.
    pub fn reopen(&self) -> io::Result<()> {
        let fresh = open(&self.path)?;
        self.replace(fresh.as_fd())
    }

    /// Goes on in another open file. All threads write to it from now on.
    pub fn replace(&self, fresh: BorrowedFd<'_>) -> io::Result<()> {
        sys::replace(self.file.as_fd(), fresh)
    }
}

impl AsFd for LogFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A log file that was moved away or removed, and the one that its path means now.
#[derive(Debug)]
pub struct Moved {
    file: Arc<LogFile>,
    fresh: File,
}

impl Moved {
    /// All threads of this process go on in the new file.
    pub fn follow(self) -> io::Result<Arc<LogFile>> {
        self.file.replace(self.fresh.as_fd()).map(|()| self.file)
    }

    /// The path of both.
    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

/// A FIFO that nobody reads is an error (ENXIO): the process that opens it, the master, would wait for a reader and hear no signal.
/// Writing to it waits as ever.
fn open(path: &Path) -> io::Result<File> {
    let without_waiting = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().append(true).create(true).mode(MODE).custom_flags(without_waiting).open(path)?;
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(file)
}

/// The log files of a process, one for each path. A clone is the same registry.
#[derive(Clone, Debug, Default)]
pub struct OpenFiles {
    files: Arc<Mutex<BTreeMap<PathBuf, Arc<LogFile>>>>,
}

impl OpenFiles {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Arc<LogFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file of a path that is open already.
    pub fn find(&self, path: &Path) -> Option<Arc<LogFile>> {
        self.lock().get(path).cloned()
    }

    /// The file of `path`, opened now if it is not yet.
    pub fn open(&self, path: &Path) -> io::Result<Arc<LogFile>> {
        if let Some(file) = self.find(path) {
            return Ok(file);
        }
        let file = Arc::new(LogFile::open(path)?);
        self.lock().insert(path.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    /// Opens `path` anew, as nginx does for each configuration: what the path means by now, if that is not the file that is
    /// open already. A file that was not open is opened and kept.
    pub fn open_anew(&self, path: &Path) -> io::Result<Option<Moved>> {
        let Some(file) = self.find(path) else { return self.open(path).map(|_| None) };
        let fresh = open(path)?;
        let identity = |m: std::fs::Metadata| (m.dev(), m.ino());
        let same = identity(fresh.metadata()?) == identity(file.file.metadata()?);
        Ok((!same).then_some(Moved { file, fresh }))
    }

    /// Takes a descriptor another process opened; a file that is there already stays.
    pub fn adopt(&self, path: PathBuf, fd: OwnedFd) {
        self.lock().entry(path).or_insert_with_key(|path| Arc::new(LogFile::adopt(path.clone(), fd)));
    }

    /// Forgets files other than `paths`; one in use elsewhere stays open there.
    pub fn retain(&self, paths: &[PathBuf]) {
        self.lock().retain(|path, _| paths.contains(path));
    }

    /// All files, in the order of their paths.
    pub fn all(&self) -> Vec<Arc<LogFile>> {
        self.lock().values().cloned().collect()
    }
}
