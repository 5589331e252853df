//! Lists a directory: for `autoindex` and `random_index`. Names that begin with a dot are left out.

use super::{Facts, Failure, Kind, READ};
use crate::log::error::Level;
use crate::request::Request;
use crate::request::steps::Verdict;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name, in the bytes of the file system.
    pub name: Vec<u8>,
    /// What it is, or what it links to.
    pub kind: Kind,
    /// Bytes; 0 with [`Detail::Kinds`].
    pub size: u64,
    /// Seconds since 1970; 0 with [`Detail::Kinds`].
    pub mtime: i64,
}

/// What the caller needs to know of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// What they are. Most need no stat.
    Kinds,
    /// Sizes and times. Entries without permission are left out.
    Facts,
}

/// An error was logged: the list cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

/// Opens a directory; what is wrong is logged and becomes a status.
pub fn open(r: &Request, path: &[u8]) -> Result<Dir, Verdict> {
    let opened = rustix::fs::open(path, READ | OFlags::DIRECTORY, Mode::empty()).and_then(Dir::new);
    opened.map_err(|errno| {
        let failure = Failure { errno, call: "opendir()" };
        let (level, status) = match errno {
            _ if failure.is_not_found() => (Level::Error, 404),
            Errno::ACCESS => (Level::Error, 403),
            _ => (Level::Crit, 500),
        };
        failure.log(r, level, path);
        Verdict::Status(status)
    })
}

/// Reads all entries of the directory `path` (without a slash at its end), in the file system's order.
pub fn read(r: &Request, path: &[u8], dir: &mut Dir, detail: Detail) -> Result<Vec<Entry>, Unreadable> {
    read_with(r, path, dir, detail, false)
}

/// The same; `hidden`: those whose names begin with a dot, too.
pub fn read_with(
    r: &Request,
    path: &[u8],
    dir: &mut Dir,
    detail: Detail,
    hidden: bool,
) -> Result<Vec<Entry>, Unreadable> {
    let mut entries = Vec::new();
    while let Some(next) = dir.read() {
        let next = next.map_err(|errno| {
            Failure { errno, call: "readdir()" }.log(r, Level::Crit, path);
            Unreadable
        })?;
        let name = next.file_name().to_bytes();
        if matches!(name, b"." | b"..") || (name.first() == Some(&b'.') && !hidden) {
            continue;
        }
        let mut entry = Entry { name: name.to_vec(), kind: kind_of(next.file_type()), size: 0, mtime: 0 };
        let unclear = matches!(next.file_type(), FileType::Unknown | FileType::Symlink);
        if detail == Detail::Facts || unclear {
            let Some(facts) = facts(r, path, name, detail)? else { continue };
            (entry.kind, entry.size, entry.mtime) = (facts.kind, facts.size, facts.mtime);
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn kind_of(file_type: FileType) -> Kind {
    match file_type {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        _ => Kind::Other,
    }
}

/// The facts of an entry, or of the link itself when it leads nowhere. `None`: leave it out.
fn facts(r: &Request, directory: &[u8], name: &[u8], detail: Detail) -> Result<Option<Facts>, Unreadable> {
    let path = [directory, b"/", name].concat();
    let errno = match rustix::fs::stat(path.as_slice()) {
        Ok(stat) => return Ok(Some(Facts::of(&stat))),
        Err(errno) => errno,
    };
    let loops = detail == Detail::Facts && errno == Errno::LOOP;
    if errno != Errno::NOENT && !loops {
        Failure { errno, call: "stat()" }.log(r, Level::Crit, &path);
        return if detail == Detail::Facts && errno == Errno::ACCESS { Ok(None) } else { Err(Unreadable) };
    }
    match rustix::fs::statat(CWD, path.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(Facts::of(&stat))),
        Err(errno) => {
            Failure { errno, call: "lstat()" }.log(r, Level::Crit, &path);
            Err(Unreadable)
        }
    }
}
