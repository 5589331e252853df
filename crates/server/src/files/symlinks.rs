//! Opens a path without following symbolic links, or only those of the file's owner (`disable_symlinks`): component by
//! component, so that none can be exchanged on the way.

use super::Failure;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Which links are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// All.
    #[default]
    Follow,
    /// None.
    Refuse,
    /// Those that belong to the owner of what they point to.
    SameOwner,
}

/// What holds for one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Which links are followed.
    pub links: Links,
    /// The first bytes of the path in which all are followed (`from=`). A `/` comes after them.
    pub from: usize,
}

/// For directories on the way: only a handle, which needs no right to read them.
const SEARCH: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a path under a rule.
pub fn open(path: &[u8], rule: Rule, flags: OFlags) -> Result<OwnedFd, Failure> {
    let plain = |path: &[u8], flags| rustix::fs::open(path, flags, Mode::empty());
    if rule.links == Links::Follow {
        return plain(path, flags).map_err(|errno| Failure { errno, call: "open()" });
    }
    let (mut at, rest) = if rule.from > 0 {
        let start = plain(&path[..rule.from], SEARCH).map_err(|errno| Failure { errno, call: "open()" })?;
        (Some(start), &path[rule.from + 1..])
    } else if path.first() == Some(&b'/') {
        let root = plain(b"/", SEARCH).map_err(|errno| Failure { errno, call: "openat()" })?;
        (Some(root), &path[1..])
    } else {
        (None, path)
    };
    walk(&mut at, rest, rule.links, flags).map_err(|errno| Failure { errno, call: "openat()" })
}

fn walk(at: &mut Option<OwnedFd>, mut rest: &[u8], links: Links, flags: OFlags) -> Result<OwnedFd, Errno> {
    while let Some(slash) = memchr::memchr(b'/', rest) {
        let name = &rest[..slash];
        rest = &rest[slash + 1..];
        if !name.is_empty() {
            *at = Some(step(directory(at), name, links, SEARCH)?);
        }
    }
    if rest.is_empty() {
        // A slash at the end: the path is that of a directory, opened once more as it was asked for.
        return rustix::fs::openat(directory(at), c".", flags, Mode::empty());
    }
    step(directory(at), rest, links, flags)
}

fn directory(at: &Option<OwnedFd>) -> BorrowedFd<'_> {
    at.as_ref().map_or(CWD, |fd| fd.as_fd())
}

fn step(at: BorrowedFd<'_>, name: &[u8], links: Links, flags: OFlags) -> Result<OwnedFd, Errno> {
    if links == Links::Refuse {
        return rustix::fs::openat(at, name, flags | OFlags::NOFOLLOW, Mode::empty());
    }
    let fd = rustix::fs::openat(at, name, flags, Mode::empty())?;
    // Whether a link was opened cannot be told from the descriptor, so owners are compared in any case.
    let link = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let target = rustix::fs::fstat(&fd)?;
    if link.st_uid == target.st_uid { Ok(fd) } else { Err(Errno::LOOP) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn links_are_refused_wherever_they_stand() {
        let dir = std::env::temp_dir().join(format!("ironweir-links-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("real")).expect("the temporary directory can be written to");
        std::fs::write(dir.join("real/file"), b"x").expect("it can be written to");
        let _ = std::os::unix::fs::symlink("real", dir.join("link"));
        let _ = std::os::unix::fs::symlink("file", dir.join("real/tail"));
        let try_open = |name: &str, links, from: bool| {
            let path = dir.join(name);
            let path = path.as_os_str().as_bytes();
            let from = if from { dir.as_os_str().len() } else { 0 };
            open(path, Rule { links, from }, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC)
                .map_err(|f| f.errno)
                .err()
        };
        assert_eq!(try_open("real/file", Links::Refuse, false), None);
        assert_eq!(try_open("real//file", Links::Refuse, true), None);
        assert_eq!(try_open("real/", Links::Refuse, true), None);
        assert_eq!(try_open("real/tail", Links::Refuse, true), Some(Errno::LOOP));
        assert_eq!(try_open("link/file", Links::Refuse, true), Some(Errno::NOTDIR));
        assert_eq!(try_open("link/file", Links::SameOwner, true), None);
        assert_eq!(try_open("link/file", Links::Follow, false), None);
        assert_eq!(try_open("none", Links::SameOwner, true), Some(Errno::NOENT));
        std::fs::remove_dir_all(&dir).expect("it is there");
    }
}
