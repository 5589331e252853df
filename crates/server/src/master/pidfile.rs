//! The file with the master's process id. Written when every socket listens, renamed while a new binary takes over.

use crate::log::error::Errno;
use crate::server_log;
use std::io;
use std::path::{Path, PathBuf};

/// What nginx appends to the pid file's name while a new binary runs.
const OLD_SUFFIX: &str = ".oldbin";

/// Writes the calling process's id. The failure is logged.
pub(super) fn write(path: &Path) -> io::Result<()> {
    std::fs::write(path, format!("{}\n", std::process::id()))
        .inspect_err(|e| server_log!(Emerg, "open() \"{}\" failed {}", path.display(), Errno(e)))
}

/// Whether it could be written. What it says stays; the failure is logged.
pub(super) fn try_out(path: &Path) -> io::Result<()> {
    let opened = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
    opened.map(drop).inspect_err(|e| server_log!(Emerg, "open() \"{}\" failed {}", path.display(), Errno(e)))
}

/// Removes the file. The failure is logged.
pub(super) fn remove(path: &Path) {
    if let Err(e) = std::fs::remove_file(path) {
        server_log!(Alert, "unlink() \"{}\" failed {}", path.display(), Errno(&e));
    }
}

/// The name of `path` while a new binary runs.
pub(super) fn old(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(OLD_SUFFIX);
    PathBuf::from(name)
}
