//! Temporary files: bodies of requests and answers that do not fit in memory. Paths as `*_temp_path` lays them out.

use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A directory for temporary files and how deep its folders are nested (`client_body_temp_path path 1 2`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TempPath {
    /// The directory.
    pub dir: PathBuf,
    /// Digits of the file's number that name each level of folders.
    pub levels: Vec<usize>,
}

/// How often a name that exists already is tried again with another number.
const TRIES: u32 = 100;

/// How far numbers jump over one that is taken.
const JUMP: u64 = 123_456;
/// Permission bits of folders.
const FOLDER_MODE: u32 = 0o700;

static NEXT: AtomicU64 = AtomicU64::new(0);

/// Creates a file for reading and writing. On error the path that failed.
pub fn create(place: &TempPath) -> Result<(OwnedFd, PathBuf), (PathBuf, io::Error)> {
    create_numbered(|number| path_of(place, number))
}

/// Creates a file beside another one, with its name and a number. On error the path that failed.
pub fn create_beside(target: &Path) -> Result<(OwnedFd, PathBuf), (PathBuf, io::Error)> {
    create_numbered(|number| {
        let mut path = target.as_os_str().to_owned();
        path.push(format!(".{number:010}"));
        path.into()
    })
}

fn create_numbered(path_of: impl Fn(u64) -> PathBuf) -> Result<(OwnedFd, PathBuf), (PathBuf, io::Error)> {
    let mut path = PathBuf::new();
    for _ in 0..TRIES {
        path = path_of(NEXT.fetch_add(1, Ordering::Relaxed));
        let mut opened = create_new(&path);
        if opened.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
            && let Some(folder) = path.parent()
        {
            opened = create_folders(folder).and_then(|()| create_new(&path));
        }
        match opened {
            Ok(fd) => return Ok((fd, path)),
            // Left behind by a process that was killed, and probably not alone.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => _ = NEXT.fetch_add(JUMP, Ordering::Relaxed),
            Err(e) => return Err((path, e)),
        }
    }
    Err((path, io::ErrorKind::AlreadyExists.into()))
}

fn create_new(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?)
}

/// Creates folders for the server's own files: nobody else may look into them.
pub fn create_folders(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

fn path_of(place: &TempPath, number: u64) -> PathBuf {
    let digits = format!("{number:010}");
    let mut path = place.dir.clone();
    let mut end = digits.len();
    for level in &place.levels {
        let start = end.saturating_sub(*level);
        path.push(&digits[start..end]);
        end = start;
    }
    path.push(Path::new(&digits));
    path
}
