//! Files that the server writes for itself: temporary ones (bodies of requests and answers that do not fit in memory, with
//! paths as `*_temp_path` lays them out), and those that are replaced whole (what is known over restarts).

use rustix::fs::{Mode, OFlags};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
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

/// Puts a file in the place of another: whoever reads it meanwhile, or after the machine has stopped, finds the old one or the
/// new one whole. Nobody but the server's user may read it. Waits for the disk.
pub fn replace(target: &Path, content: &[u8]) -> io::Result<()> {
    let mut beside = target.as_os_str().to_owned();
    beside.push(".new");
    let beside = Path::new(&beside);
    let file = match create_new(beside) {
        // Left behind by a process that was killed, or a link that somebody else has put there: not to be written through.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(beside)?;
            create_new(beside)?
        }
        created => created?,
    };
    let mut file = std::fs::File::from(file);
    let placed = file.write_all(content).and_then(|()| file.sync_all()).and_then(|()| std::fs::rename(beside, target));
    if placed.is_err() {
        let _ = std::fs::remove_file(beside);
    }
    placed
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

/// Writes all of `bytes` at `offset`.
pub fn write_file(fd: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = rustix::io::pwrite(fd.as_fd(), bytes, offset)?;
        bytes = &bytes[n..];
        offset += n as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_written_through_a_link() {
        let dir = std::env::temp_dir().join(format!("ironweir-replace-{}", std::process::id()));
        create_folders(&dir).expect("a temporary directory");
        let (target, other, beside) = (dir.join("state"), dir.join("other"), dir.join("state.new"));
        std::fs::write(&other, "untouched").expect("it is ours");
        std::os::unix::fs::symlink(&other, &beside).expect("it is ours");
        for text in ["one", "two"] {
            replace(&target, text.as_bytes()).expect("it can be written");
            assert_eq!(std::fs::read_to_string(&target).expect("it is there"), text);
        }
        assert_eq!(std::fs::read_to_string(&other).expect("it is there"), "untouched");
        assert_eq!(target.metadata().expect("it is there").permissions().mode() & 0o777, 0o600);
        assert!(!beside.exists());
        assert!(replace(&dir.join("nowhere/state"), b"x").is_err());
        std::fs::remove_dir_all(&dir).expect("it is ours");
    }
}
