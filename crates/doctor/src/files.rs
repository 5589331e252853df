//! Files whose names others gave: a pipe that nobody writes to would be waited for for ever, a terminal has no end.

use conf::{Disk, Files};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a pipe may take for all of its text.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens a file, whatever it is, without waiting for anybody.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)
}

/// Opens a file, and nothing but a file.
pub(crate) fn regular(path: &Path) -> io::Result<File> {
    let file = open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a file")) }
}

/// Reads a file or a pipe (`<(command)`), to its end or to one byte more than `most`.
pub(crate) fn read(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let kind = file.metadata()?.file_type();
    let mut text = Vec::new();
    if kind.is_file() {
        file.take(most as u64 + 1).read_to_end(&mut text)?;
        return Ok(text);
    }
    if !kind.is_fifo() {
        return Err(io::Error::other("not a file"));
    }
    let began = Instant::now();
    let mut piece = [0; 4096];
    while text.len() <= most {
        let left = PATIENCE.checked_sub(began.elapsed()).filter(|l| !l.is_zero());
        let left = left.ok_or_else(|| io::Error::new(ErrorKind::TimedOut, "a pipe that nobody writes to"))?;
        let limit = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => text.extend_from_slice(&piece[..length]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(text)
}

/// The disk, as far as it has files: what a configuration includes may be anything.
pub(crate) struct OnDisk;

impl Files for OnDisk {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        regular(path)?;
        Disk.read(path)
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        Disk.glob(pattern)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_without_a_writer_is_not_waited_for() {
        let folder = std::env::temp_dir().join(format!("ironweir-doctor-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let pipe = folder.join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(regular(&pipe).is_err() && OnDisk.read(&pipe).is_err());
        assert_eq!(read(&pipe, 100).unwrap(), b"", "its writers are gone before the first one came");
        let file = folder.join("file");
        std::fs::write(&file, "text").unwrap();
        assert_eq!((read(&file, 100).unwrap(), read(&file, 2).unwrap()), (b"text".to_vec(), b"tex".to_vec()));
        assert!(read(Path::new("/dev/zero"), 10).is_err() && read(&folder, 10).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
