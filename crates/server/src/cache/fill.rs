//! A new file of the cache on its way: written beside or in the directory for temporary files, given its name when it is
//! whole. A file that was given up leaves nothing behind; one that was cut off by the end of the process has no head.

use super::format::{Digest, FIXED, Head};
use super::{Cache, Zone};
use crate::log_error;
use crate::request::Request;
use crate::temp::{self, TempPath};
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Bytes that wait for more before they are written.
const BUFFER: usize = 32 * 1024;

/// A file that is being written.
#[derive(Debug)]
pub struct Fill {
    place: TempPath,
    /// Its name is the final one and a number (`use_temp_path=off`).
    beside: bool,
    target: PathBuf,
    /// Made with the first bytes that do not wait.
    open: Option<(Rc<OwnedFd>, PathBuf)>,
    waiting: Vec<u8>,
    written: u64,
    start: u64,
    failed: bool,
}

impl Fill {
    /// Begins the file of a key with its head. Nothing is written yet.
    pub fn new(cache: &Cache, temp: &TempPath, key: &Digest, head: &Head<'_>) -> Fill {
        let mut target = Vec::new();
        cache.zone.write_path(key, &mut target);
        let mut waiting = Vec::with_capacity(head.body_start() + FIXED);
        head.write(&mut waiting);
        // Until the file is whole, its head says that it is none.
        waiting[..FIXED].fill(0);
        Fill {
            place: temp.clone(),
            beside: !cache.use_temp_path,
            target: Path::new(OsStr::from_bytes(&target)).to_owned(),
            open: None,
            start: waiting.len() as u64,
            waiting,
            written: 0,
            failed: false,
        }
    }

    /// Bytes of the body so far.
    pub fn body_len(&self) -> u64 {
        self.written + self.waiting.len() as u64 - self.start
    }

    /// Whether it could be written so far.
    pub fn is_good(&self) -> bool {
        !self.failed
    }

    /// Adds bytes of the body.
    pub fn push(&mut self, r: &Request, bytes: &[u8]) {
        if self.failed {
            return;
        }
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() >= BUFFER {
            self.flush(r);
        }
    }

    /// Adds bytes of the body, and gives the file and where they are in it.
    pub fn push_through(&mut self, r: &Request, bytes: &[u8]) -> Option<(Rc<OwnedFd>, u64)> {
        self.push(r, bytes);
        self.flush(r);
        let (file, _) = self.open.as_ref().filter(|_| !self.failed)?;
        Some((file.clone(), self.written - bytes.len() as u64))
    }

    fn flush(&mut self, r: &Request) {
        if self.failed || self.waiting.is_empty() {
            return;
        }
        if let Err((path, e)) = self.write_waiting() {
            log_error!(r, Crit, "writing \"{}\" failed ({})", path.display(), crate::log::os_error(&e));
            self.failed = true;
        }
    }

    fn write_waiting(&mut self) -> Result<(), (PathBuf, io::Error)> {
        if self.open.is_none() {
            let (fd, path) = self.create()?;
            self.open = Some((Rc::new(fd), path));
        }
        let (fd, path) = self.open.as_ref().expect("it was made above");
        crate::temp::write_file(fd, &self.waiting, self.written).map_err(|e| (path.clone(), e))?;
        self.written += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }

    fn create(&self) -> Result<(OwnedFd, PathBuf), (PathBuf, io::Error)> {
        if self.beside { temp::create_beside(&self.target) } else { temp::create(&self.place) }
    }

    /// Gives the file its name: how many blocks it takes. None: it could not be, which is logged.
    pub fn finish(mut self, r: &Request, zone: &Zone, head: &Head<'_>) -> Option<u64> {
        if self.failed {
            return None;
        }
        if self.open.is_none() {
            self.waiting[..FIXED].copy_from_slice(&head.fixed());
        }
        let whole = self.open.is_none();
        let placed = self.write_waiting().and_then(|()| {
            let (fd, path) = self.open.as_ref().expect("it was made by the writing above");
            if !whole {
                crate::temp::write_file(fd, &head.fixed(), 0).map_err(|e| (path.clone(), e))?;
            }
            place(path, &self.target).map_err(|e| (self.target.clone(), e))?;
            rustix::fs::fstat(fd).map_err(|e| (path.clone(), e.into()))
        });
        match placed {
            Ok(stat) => {
                self.open = None;
                Some(zone.blocks_of(stat.st_blocks))
            }
            Err((path, e)) => {
                log_error!(r, Crit, "writing \"{}\" failed ({})", path.display(), crate::log::os_error(&e));
                None
            }
        }
    }
}

/// Moves a file to its place, making folders on the way. Between file systems it is copied first.
fn place(from: &Path, to: &Path) -> io::Result<()> {
    match rename(from, to) {
        Err(e) if e.kind() == io::ErrorKind::CrossesDevices => {
            let (fd, copy) = temp::create_beside(to).map_err(|(_, e)| e)?;
            let source = rustix::fs::open(from, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            let copied = io::copy(&mut std::fs::File::from(source), &mut std::fs::File::from(fd));
            let placed = copied.and_then(|_| std::fs::rename(&copy, to));
            if placed.is_err() {
                let _ = std::fs::remove_file(&copy);
            } else {
                let _ = std::fs::remove_file(from);
            }
            placed
        }
        other => other,
    }
}

fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::rename(from, to) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            if let Some(parent) = to.parent() {
                temp::create_folders(parent)?;
            }
            std::fs::rename(from, to)
        }
        other => other,
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        if let Some((_, path)) = &self.open {
            let _ = std::fs::remove_file(path);
        }
    }
}
