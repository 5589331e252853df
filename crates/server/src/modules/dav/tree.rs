//! What WebDAV does on the disk: files get their names, trees are copied and removed. Runs on a thread that may wait; knows no
//! request but for the line in its log.

use super::properties;
use crate::log_error;
use crate::request::Request;
use crate::request::phases::Verdict;
use rustix::fs::{Timespec, Timestamps};
use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Trees that are deeper are not copied.
const MAX_DEPTH: usize = 200;

/// A system call that failed.
#[derive(Debug)]
pub(super) struct Fault {
    call: &'static str,
    path: PathBuf,
    error: io::Error,
    /// The status if it means that something is not there.
    not_found: u16,
}

impl Fault {
    pub(super) fn new(call: &'static str, path: &Path, error: io::Error, not_found: u16) -> Fault {
        Fault { call, path: path.to_owned(), error, not_found }
    }

    /// Writes a line about it and gives the status that it means (`ngx_http_dav_error`).
    pub(super) fn log(&self, r: &Request) -> Verdict {
        use io::ErrorKind as E;
        let (call, path, text) = (self.call, self.path.display(), crate::log::os_error(&self.error));
        let status = match self.error.kind() {
            E::NotFound | E::NotADirectory | E::InvalidFilename => self.not_found,
            E::PermissionDenied => 403,
            E::AlreadyExists => 405,
            E::StorageFull | E::QuotaExceeded => 507,
            _ => 500,
        };
        if matches!(status, 500 | 507) {
            log_error!(r, Crit, "{call} \"{path}\" failed ({text})");
        } else {
            log_error!(r, Error, "{call} \"{path}\" failed ({text})");
        }
        Verdict::Status(status)
    }
}

/// How a file is placed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Placement {
    /// Its permission bits.
    pub(super) mode: Option<u32>,
    /// Its last change, seconds since 1970.
    pub(super) mtime: Option<i64>,
    /// Folders on the way are made, with these bits (and those to pass through them).
    pub(super) folders: Option<u32>,
    /// It is new content for what stands there, whose properties stay (PUT).
    pub(super) keeps_properties: bool,
}

/// Who may read a folder may pass through it.
pub(super) fn folder_mode(mode: u32) -> u32 {
    mode | (mode & 0o444) >> 2
}

/// Gives a file another name; across file systems a copy of it, which appears there when it is whole.
pub(super) fn place(from: &Path, fd: Option<&OwnedFd>, to: &Path, how: &Placement) -> Result<(), Fault> {
    if let Some(mode) = how.mode {
        let changed = std::fs::set_permissions(from, Permissions::from_mode(mode));
        changed.map_err(|e| Fault::new("chmod()", from, e, 500))?;
    }
    if let (Some(time), Some(fd)) = (how.mtime, fd) {
        // nginx goes on, too.
        let _ = rustix::fs::futimens(fd, &times(time));
    }
    if how.keeps_properties {
        properties::copy(to, from);
    }
    let mut renamed = std::fs::rename(from, to);
    if let (Err(e), Some(mode), Some(folder)) = (&renamed, how.folders, to.parent())
        && e.kind() == io::ErrorKind::NotFound
    {
        make_folders(folder, folder_mode(mode))?;
        renamed = std::fs::rename(from, to);
    }
    match renamed {
        Err(e) if e.kind() == io::ErrorKind::CrossesDevices => {
            copy_file(from, to)?;
            std::fs::remove_file(from).map_err(|e| Fault::new("unlink()", from, e, 500))
        }
        // RFC 4918 section 9.7.1: a folder that is missing is a conflict.
        other => other.map_err(|e| Fault::new("rename()", to, e, 409)),
    }
}

fn times(time: i64) -> Timestamps {
    let at = Timespec { tv_sec: time, tv_nsec: 0 };
    Timestamps { last_access: at, last_modification: at }
}

/// Copies a file with its permissions and its time; it appears when it is whole.
pub(super) fn copy_file(from: &Path, to: &Path) -> Result<(), Fault> {
    let mut source = File::open(from).map_err(|e| Fault::new("open()", from, e, 404))?;
    let facts = source.metadata().map_err(|e| Fault::new("fstat()", from, e, 404))?;
    // What is temporary would make the folder; here its absence is a conflict (RFC 4918 section 9.8.5).
    if let Some(folder) = to.parent() {
        std::fs::metadata(folder).map_err(|e| Fault::new("stat()", folder, e, 409))?;
    }
    let (fd, beside) = crate::temp::create_beside(to).map_err(|(path, e)| Fault::new("open()", &path, e, 409))?;
    properties::copy(from, &beside);
    let mut target = File::from(fd);
    let copied = io::copy(&mut source, &mut target)
        .and_then(|_| target.set_permissions(Permissions::from_mode(facts.mode() & 0o7777)))
        .and_then(|()| Ok(rustix::fs::futimens(target.as_fd(), &times(facts.mtime()))?))
        .and_then(|()| std::fs::rename(&beside, to));
    copied.map_err(|e| {
        let _ = std::fs::remove_file(&beside);
        Fault::new("copy to", to, e, 409)
    })
}

/// Makes one folder, with its bits whatever the process masks.
pub(super) fn make_folder(path: &Path, mode: u32, not_found: u16) -> Result<(), Fault> {
    let made = DirBuilder::new().mode(mode).create(path);
    let made = made.and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(mode)));
    made.map_err(|e| Fault::new("mkdir()", path, e, not_found))
}

/// Makes those folders of a path that are missing.
fn make_folders(path: &Path, mode: u32) -> Result<(), Fault> {
    let missing: Vec<&Path> = path.ancestors().take_while(|p| !p.exists()).collect();
    for folder in missing.into_iter().rev() {
        match make_folder(folder, mode, 500) {
            Err(fault) if fault.error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
    }
    Ok(())
}

/// Removes a file, or a folder with all that is in it; links are removed and not followed.
pub(super) fn remove(path: &Path, is_folder: bool) -> Result<(), Fault> {
    let (call, removed) = match is_folder {
        true => ("rmdir()", std::fs::remove_dir_all(path)),
        false => ("unlink()", std::fs::remove_file(path)),
    };
    removed.map_err(|e| Fault::new(call, path, e, 404))
}

/// Copies a folder, with `deep` all that is in it. Links, sockets and devices are left out.
pub(super) fn copy_folder(from: &Path, to: &Path, facts: &Metadata, deep: bool) -> Result<(), Fault> {
    copy_level(from, to, facts, if deep { MAX_DEPTH } else { 0 })
}

fn copy_level(from: &Path, to: &Path, facts: &Metadata, depth: usize) -> Result<(), Fault> {
    // Writable for its owner until it is filled.
    make_folder(to, facts.mode() & 0o7777 | 0o700, 409)?;
    properties::copy(from, to);
    if depth > 0 {
        let entries = std::fs::read_dir(from).map_err(|e| Fault::new("opendir()", from, e, 404))?;
        for entry in entries {
            let entry = entry.map_err(|e| Fault::new("readdir()", from, e, 404))?;
            let (path, target) = (entry.path(), to.join(entry.file_name()));
            let facts = entry.metadata().map_err(|e| Fault::new("lstat()", &path, e, 404))?;
            if facts.is_dir() {
                if depth == 1 {
                    return Err(Fault::new("opendir()", &path, io::Error::other("the tree is too deep"), 500));
                }
                copy_level(&path, &target, &facts, depth - 1)?;
            } else if facts.is_file() {
                copy_file(&path, &target)?;
            }
        }
    }
    let kept = std::fs::set_permissions(to, Permissions::from_mode(facts.mode() & 0o7777));
    kept.map_err(|e| Fault::new("chmod()", to, e, 409))?;
    let _ = rustix::fs::utimensat(rustix::fs::CWD, to, &times(facts.mtime()), rustix::fs::AtFlags::empty());
    Ok(())
}
