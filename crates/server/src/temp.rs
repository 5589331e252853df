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
const TRIES: u32 = 1000;

/// Permission bits of folders.
const FOLDER_MODE: u32 = 0o700;

static NEXT: AtomicU64 = AtomicU64::new(0);

/// Creates a file for reading and writing. On error the path that failed.
pub fn create(place: &TempPath) -> Result<(OwnedFd, PathBuf), (PathBuf, io::Error)> {
    let mut last = (place.dir.clone(), io::Error::from(io::ErrorKind::AlreadyExists));
    for _ in 0..TRIES {
        let path = path_of(place, NEXT.fetch_add(1, Ordering::Relaxed));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => return Ok((fd, path)),
            Err(rustix::io::Errno::NOENT) if !place.levels.is_empty() => {
                if let Some(parent) = path.parent()
                    && let Err(e) = std::fs::create_dir_all(parent)
                {
                    return Err((path.clone(), e));
                }
                last = (path, io::Error::from(io::ErrorKind::NotFound));
            }
            Err(rustix::io::Errno::EXIST) => last.0 = path,
            Err(e) => return Err((path, e.into())),
        }
    }
    Err(last)
}

/// Creates a file beside another one, with its name and a number. On error the path that failed.
pub fn create_beside(target: &Path) -> Result<(OwnedFd, PathBuf), (PathBuf, io::Error)> {
    let mut last = (target.to_owned(), io::Error::from(io::ErrorKind::AlreadyExists));
    for _ in 0..TRIES {
        let mut path = target.as_os_str().to_owned();
        path.push(format!(".{:010}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let path = PathBuf::from(path);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => return Ok((fd, path)),
            Err(rustix::io::Errno::NOENT) => {
                if let Some(parent) = path.parent()
                    && let Err(e) = create_folders(parent)
                {
                    return Err((path, e));
                }
                last = (path, io::Error::from(io::ErrorKind::NotFound));
            }
            Err(rustix::io::Errno::EXIST) => last.0 = path,
            Err(e) => return Err((path, e.into())),
        }
    }
    Err(last)
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
