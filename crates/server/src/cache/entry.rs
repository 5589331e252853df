//! An entry's file, opened and its head checked. Small ones come from memory (`files::small`) with one stat.

use super::format::{self, BadHead, Head};
use super::{Zone, format::Digest};
use crate::files::small::{Identity, Small};
use crate::files::{Data, Failure};
use crate::request::chunk::Chunk;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// What is read of a large file before its head is known: most heads fit, and it is one page.
const FIRST_READ: usize = 4096;

/// A file of the cache.
#[derive(Clone, Debug)]
pub struct Entry {
    start: Start,
    identity: Identity,
    size: u64,
    body_start: usize,
    /// Its blocks, as `stat` counts them.
    pub stat_blocks: i64,
}

#[derive(Clone, Debug)]
enum Start {
    /// All of it.
    Memory(Rc<Small>),
    /// Its head, and the file for the rest.
    File(Rc<[u8]>, Rc<OwnedFd>),
}

/// Why there is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoEntry {
    /// There is no file.
    Missing,
    /// It cannot be opened.
    Failed(Failure),
    /// It is not an entry: what the error log says of it.
    Bad(&'static str),
    /// It is of an earlier version.
    OtherVersion,
}

/// Opens the file of a key. `key` is the whole key: two keys may have the same digest.
pub fn open(path: &[u8], key: &[u8]) -> Result<Entry, NoEntry> {
    let found = crate::files::open_plain(path).map_err(|f| match f.errno {
        Errno::NOENT | Errno::NOTDIR => NoEntry::Missing,
        _ => NoEntry::Failed(f),
    })?;
    let (size, identity, stat_blocks) = (found.facts.size, found.facts.identity, found.facts.blocks);
    let start = match found.data {
        Data::Memory(small) => Start::Memory(small),
        Data::File(file) => Start::File(read_head(&file, size)?, file),
        Data::Nothing => return Err(NoEntry::Bad("is not a file")),
    };
    let mut entry = Entry { start, identity, size, body_start: 0, stat_blocks };
    let head = format::parse(entry.bytes(), size).map_err(bad)?;
    if head.key != key {
        return Err(NoEntry::Bad("has md5 collision"));
    }
    entry.body_start = head.body_start();
    Ok(entry)
}

fn bad(e: BadHead) -> NoEntry {
    match e {
        BadHead::Version => NoEntry::OtherVersion,
        BadHead::Short(_) => NoEntry::Bad("is too small"),
        BadHead::Broken => NoEntry::Bad("contains invalid header"),
    }
}

/// Reads as much of a file as its head takes.
fn read_head(file: &OwnedFd, size: u64) -> Result<Rc<[u8]>, NoEntry> {
    let mut bytes = vec![0; FIRST_READ.min(usize::try_from(size).unwrap_or(FIRST_READ))];
    let mut got = 0;
    loop {
        while got < bytes.len() {
            match rustix::io::pread(file, &mut bytes[got..], got as u64) {
                Ok(0) => return Err(NoEntry::Bad("is too small")),
                Ok(n) => got += n,
                Err(errno) => return Err(NoEntry::Failed(Failure { errno, call: "pread()" })),
            }
        }
        match format::parse(&bytes, size) {
            Ok(head) => {
                let end = head.body_start();
                return Ok(bytes[..end].into());
            }
            Err(BadHead::Short(more)) if more > bytes.len() => bytes.resize(more, 0),
            Err(e) => return Err(bad(e)),
        }
    }
}

impl Entry {
    fn bytes(&self) -> &[u8] {
        match &self.start {
            Start::Memory(small) => &small.bytes,
            Start::File(head, _) => head,
        }
    }

    /// Its head.
    pub fn head(&self) -> Head<'_> {
        format::parse(self.bytes(), self.size).expect("it was checked when it was opened")
    }

    /// Its body, for [`Entry::chunk`].
    pub fn body_len(&self) -> u64 {
        self.size - self.body_start as u64
    }

    /// The whole body.
    pub fn chunk(&self) -> Chunk<'_> {
        match &self.start {
            Start::Memory(small) => Chunk::Bytes(&small.bytes[self.body_start..]),
            Start::File(_, file) => Chunk::File { file, offset: self.body_start as u64, len: self.body_len() },
        }
    }

    /// Writes other times into the file of a key, unless it is another file by now (`ngx_http_file_cache_update_header`).
    pub fn confirm(&self, zone: &Zone, key: &Digest, head: &Head<'_>) -> Result<(), Failure> {
        let mut path = Vec::new();
        zone.write_path(key, &mut path);
        let file = match rustix::fs::open(&*path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(Failure { errno, call: "open()" }),
        };
        let stat = rustix::fs::fstat(&file).map_err(|errno| Failure { errno, call: "fstat()" })?;
        if !self.identity.is_same_file(&Identity::of(&stat)) || head.body_start() != self.body_start {
            return Ok(());
        }
        let fixed = head.fixed();
        rustix::io::pwrite(&file, &fixed, 0).map_err(|errno| Failure { errno, call: "pwrite()" })?;
        Ok(())
    }
}
