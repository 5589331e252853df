//! Files on disk as requests see them: found by path, with their facts, ready to send. In front of the disk stand the
//! contents of small files (`small`, always) and the cache of `open_file_cache` (`cache`, when it is on).
//! From: the modules that answer with files or test for them. Nothing here waits for anything but the disk.

pub mod cache;
pub mod directory;
pub mod lru;
pub mod readers;
pub mod small;
pub mod symlinks;

use crate::log::error::Level;
use crate::request::Request;
use crate::request::chunk::Chunk;
use crate::request::steps::Verdict;
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;
use small::{Identity, Small};
use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use symlinks::{Links, Rule};

/// How files are opened: a FIFO must not make the thread wait.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A socket, a FIFO, a device.
    Other,
}

/// What is known of a file.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// What it is.
    pub kind: Kind,
    /// Its size in bytes.
    pub size: u64,
    /// Its last change, seconds since 1970.
    pub mtime: i64,
    /// Its owner may run it.
    pub executable: bool,
    /// What tells this state of the file from another.
    pub identity: Identity,
    /// Blocks of 512 bytes.
    pub blocks: i64,
}

/// Where a found file's bytes are.
#[derive(Clone, Debug)]
pub enum Data {
    /// Nowhere: it is a directory, or was only tested for.
    Nothing,
    /// In memory.
    Memory(Rc<Small>),
    /// Behind a descriptor.
    File(Rc<OwnedFd>),
}

/// A file that is there.
#[derive(Clone, Debug)]
pub struct OpenedFile {
    /// What it is.
    pub facts: Facts,
    /// Its bytes.
    pub data: Data,
}

/// A system call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why.
    pub errno: Errno,
    /// The call as the log names it: `open()`.
    pub call: &'static str,
}

impl Facts {
    fn of(stat: &Stat) -> Facts {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            _ => Kind::Other,
        };
        let executable = stat.st_mode & 0o100 != 0;
        let identity = Identity::of(stat);
        Facts {
            kind,
            size: stat.st_size.max(0) as u64,
            mtime: stat.st_mtime,
            executable,
            identity,
            blocks: stat.st_blocks,
        }
    }
}

impl Failure {
    /// Whether it means that there is no such file.
    pub fn is_not_found(&self) -> bool {
        matches!(self.errno, Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG)
    }

    /// Whether it means that the file must not be read, for its rights or for a link on the way.
    pub fn is_forbidden(&self) -> bool {
        self.errno == Errno::ACCESS || self.is_link()
    }

    /// Whether it means a link that `disable_symlinks` refuses.
    pub fn is_link(&self) -> bool {
        matches!(self.errno, Errno::LOOP | Errno::MLINK)
    }

    /// `open() "PATH" failed (2: No such file or directory)`
    pub fn log(&self, r: &Request, level: Level, path: &[u8]) {
        if r.logs(level) {
            let text = crate::log::os_error(&self.errno.into());
            r.write_log(level, format_args!("{} \"{}\" failed ({text})", self.call, String::from_utf8_lossy(path)));
        }
    }
}

/// A stat that a request made to find out whether a file is there, so that opening it needs no second one.
struct Probe {
    path: Vec<u8>,
    facts: Option<Facts>,
    /// Connection and number of the request.
    request: (u64, u64),
    at_ms: u64,
}

thread_local! {
    static PROBE: RefCell<Probe> = const { RefCell::new(Probe { path: Vec::new(), facts: None, request: (0, 0), at_ms: 0 }) };
}

/// Finds a file with its bytes.
pub fn open(r: &mut Request, path: &[u8]) -> Result<OpenedFile, Failure> {
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf;
    let rule = conf.disable_symlinks.rule(r, path);
    if let Some(spec) = *conf.open_file_cache.open_file_cache {
        let ask = cache::Ask { conf: &conf.open_file_cache, spec, path, rule, directory: false };
        return cache::find(&snapshot, &ask);
    }
    if rule.links != Links::Follow {
        return read_disk(path, rule, |_, _| None);
    }
    if let Some(known) = small::find(path) {
        let facts = probed(r, path).map_or_else(|| stat(path, rule), Ok);
        match facts {
            Ok(facts) if facts.identity == known.identity => {
                return Ok(OpenedFile { facts, data: Data::Memory(known) });
            }
            _ => small::forget(path),
        }
    }
    read_disk(path, rule, |fd, facts| read_small(path, fd, facts))
}

/// Finds a file of the server's own, such as a cache's: small ones from memory if they are asked for often.
pub fn open_plain(path: &[u8]) -> Result<OpenedFile, Failure> {
    let rule = Rule::default();
    if let Some(known) = small::find(path) {
        match stat(path, rule) {
            Ok(facts) if facts.identity == known.identity => {
                return Ok(OpenedFile { facts, data: Data::Memory(known) });
            }
            _ => small::forget(path),
        }
    }
    read_disk(path, rule, |fd, facts| read_small(path, fd, facts))
}

/// Reads a small file that is worth keeping.
fn read_small(path: &[u8], fd: &OwnedFd, facts: &Facts) -> Option<Rc<Small>> {
    let worth = facts.size <= small::LARGEST && small::is_wanted(path);
    let small = if worth { small::read(fd.as_fd(), facts.identity) } else { None };
    small.inspect(|s| small::keep(path, s.clone()))
}

/// Finds out whether and what a file is. With `open_file_cache` it is opened and kept, as it will be asked for next.
pub fn test(r: &mut Request, path: &[u8]) -> Result<Facts, Failure> {
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf;
    let rule = conf.disable_symlinks.rule(r, path);
    if let Some(spec) = *conf.open_file_cache.open_file_cache {
        let ask = cache::Ask { conf: &conf.open_file_cache, spec, path, rule, directory: false };
        return cache::find(&snapshot, &ask).map(|f| f.facts);
    }
    let facts = stat(path, rule)?;
    if rule.links == Links::Follow {
        remember(r, path, facts);
    }
    Ok(facts)
}

/// Finds out whether a directory is there.
pub fn test_directory(r: &mut Request, path: &[u8]) -> Result<Facts, Failure> {
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf;
    let rule = conf.disable_symlinks.rule(r, path);
    if let Some(spec) = *conf.open_file_cache.open_file_cache {
        let ask = cache::Ask { conf: &conf.open_file_cache, spec, path, rule, directory: true };
        return cache::find(&snapshot, &ask).map(|f| f.facts);
    }
    stat(path, rule)
}

/// Sends a found file's bytes as the whole body of the answer.
pub fn send(r: &mut Request, found: &OpenedFile) -> Verdict {
    let sent = match &found.data {
        Data::Nothing => r.send_body(Chunk::Bytes(b""), true),
        Data::Memory(small) => r.send_body(Chunk::Bytes(&small.bytes), true),
        Data::File(file) => r.send_body(Chunk::File { file, offset: 0, len: found.facts.size }, true),
    };
    match sent {
        Ok(()) => Verdict::Answered,
        Err(verdict) => verdict,
    }
}

fn identity_of(r: &Request) -> (u64, u64) {
    (r.client.number, r.client.requests.get())
}

fn remember(r: &Request, path: &[u8], facts: Facts) {
    PROBE.with_borrow_mut(|p| {
        p.path.clear();
        p.path.extend_from_slice(path);
        p.facts = Some(facts);
        p.request = identity_of(r);
        p.at_ms = runtime::clock::monotonic_ms();
    });
}

/// What the same request has found out about the path within this tick of the coarse clock.
fn probed(r: &Request, path: &[u8]) -> Option<Facts> {
    PROBE.with_borrow_mut(|p| {
        let facts = p.facts.take()?;
        let same = p.path == path && p.request == identity_of(r);
        (same && p.at_ms == runtime::clock::monotonic_ms()).then_some(facts)
    })
}

fn stat(path: &[u8], rule: Rule) -> Result<Facts, Failure> {
    if rule.links == Links::Follow {
        let stat = rustix::fs::stat(path).map_err(|errno| Failure { errno, call: "stat()" })?;
        return Ok(Facts::of(&stat));
    }
    let fd = symlinks::open(path, rule, READ)?;
    fstat(&fd)
}

fn fstat(fd: &OwnedFd) -> Result<Facts, Failure> {
    let stat = rustix::fs::fstat(fd).map_err(|errno| Failure { errno, call: "fstat()" })?;
    Ok(Facts::of(&stat))
}

/// Opens a file. `load` may read it at once.
fn read_disk(
    path: &[u8],
    rule: Rule,
    load: impl FnOnce(&OwnedFd, &Facts) -> Option<Rc<Small>>,
) -> Result<OpenedFile, Failure> {
    let fd = symlinks::open(path, rule, READ)?;
    let facts = fstat(&fd)?;
    let data = match facts.kind {
        Kind::Directory => Data::Nothing,
        Kind::Other => Data::File(Rc::new(fd)),
        Kind::File => match load(&fd, &facts) {
            Some(small) => Data::Memory(small),
            None => Data::File(Rc::new(fd)),
        },
    };
    Ok(OpenedFile { facts, data })
}
