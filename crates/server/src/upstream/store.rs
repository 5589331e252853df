//! `proxy_store`: answers that are also written to a file, which appears under its name only when it is whole.

use crate::log_error;
use crate::request::Request;
use crate::temp::{self, TempPath};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A file that is being written.
#[derive(Debug)]
pub struct Store {
    fd: OwnedFd,
    temporary: PathBuf,
    target: PathBuf,
    mode: u32,
    written: u64,
    failed: bool,
}

impl Store {
    /// Begins a file.
    pub fn open(place: &TempPath, target: Vec<u8>, mode: u32) -> Option<Store> {
        let (fd, temporary) = temp::create(place).ok()?;
        let target = Path::new(std::ffi::OsStr::from_bytes(&target)).to_owned();
        Some(Store { fd, temporary, target, mode, written: 0, failed: false })
    }

    /// Adds bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        self.failed |= crate::temp::write_file(&self.fd, bytes, self.written).is_err();
        self.written += bytes.len() as u64;
    }

    /// Bytes so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Gives the file its name and, when the answer says so, its time.
    pub fn finish(mut self, r: &Request) {
        if self.failed {
            return;
        }
        if let Some(parent) = self.target.parent() {
            let _ = std::fs::create_dir_all(parent);
        }
        let _ = std::fs::set_permissions(&self.temporary, std::fs::Permissions::from_mode(self.mode));
        if let Some(t) = r.answer.headers.last_modified {
            let at = rustix::fs::Timespec { tv_sec: t, tv_nsec: 0 };
            let _ = rustix::fs::futimens(&self.fd, &rustix::fs::Timestamps { last_access: at, last_modification: at });
        }
        match std::fs::rename(&self.temporary, &self.target) {
            Ok(()) => self.temporary = PathBuf::new(),
            Err(e) => {
                let (from, to) = (self.temporary.display(), self.target.display());
                log_error!(r, Crit, "rename() \"{from}\" to \"{to}\" failed ({})", crate::log::os_error(&e));
            }
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if !self.temporary.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}
