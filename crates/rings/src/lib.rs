//! Files of one thread beyond its process's limit of descriptors: they stand in io_uring's tables of registered files, as many a ring as the
//! limit says, in as many rings as it takes (docs/push.md). What they are for is the caller's: it gives each a token, and is told by that.
//!
//! ```text
//!   park: descriptor ──> table of a ring, descriptor closed ──> watch ──> News ──> send, receive ──> bring_back: a descriptor again
//! ```
//! All but `watch` is done when the call returns, so that buffers are borrowed and not owned. Never crosses threads.

mod ring;

use ring::Ring;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A ring has at most so many files, whatever the limit of descriptors is: the kernel looks waits up in 256 lists.
pub const MOST_FILES: u32 = 1 << 15;
/// A thread has at most so many rings.
pub const MOST_RINGS: usize = 1 << 10;
/// With less than this part of a ring left, the next one is opened.
const AHEAD: usize = 8;
/// A ring has at least so many places, however few descriptors there may be: the kernel refuses it if that is too many.
const LEAST_FILES: u32 = 64;

/// Bytes can be read, or the end has come.
pub const READABLE: u32 = libc::POLLIN as u32 | libc::POLLRDHUP as u32;
/// The other side has closed its direction. Bytes before the end are not told of.
pub const CLOSED: u32 = libc::POLLRDHUP as u32;
/// Bytes can be written.
pub const WRITABLE: u32 = libc::POLLOUT as u32;
/// The connection has failed, or is closed both ways. Told of whatever is watched for.
pub const FAILED: u32 = (libc::POLLERR | libc::POLLHUP) as u32;

/// Where a file stands: ring and place in its table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spot(u32);

impl Spot {
    fn new(ring: usize, place: u32) -> Spot {
        Spot((ring as u32) << 16 | place)
    }

    fn ring(self) -> usize {
        (self.0 >> 16) as usize
    }

    fn place(self) -> u32 {
        self.0 & 0xffff
    }
}

/// Closes descriptors: those that follow each other by one call.
pub fn close_all(files: Vec<OwnedFd>) {
    ring::close_all(files);
}

/// How many files a ring takes, and so a descriptor of its own is good for, where a process may have `limit` descriptors.
pub fn files_each(limit: u64) -> u32 {
    u32::try_from(limit).unwrap_or(MOST_FILES).clamp(LEAST_FILES, MOST_FILES)
}

/// Which wait of a file something is about: a file may have one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What the other side says.
    Reading,
    /// Room for what it is to hear.
    Writing,
}

/// What was waited for has come: the wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// Whose, as [`Rings::watch`] was told.
    pub token: u32,
    /// Which of its waits.
    pub side: Side,
    /// [`READABLE`], [`CLOSED`], [`WRITABLE`], [`FAILED`].
    pub events: u32,
}

/// Why there are no rings here.
#[derive(Debug)]
pub enum Refused {
    /// The kernel does not know all that is needed (Linux 6.8).
    Kernel(&'static str),
    /// It does, and may not: seccomp, `kernel.io_uring_disabled`, memory.
    Error(&'static str, io::Error),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Kernel(what) => write!(f, "the kernel has no {what}"),
            Refused::Error(call, e) => write!(f, "{call}: {e}"),
        }
    }
}

/// The rings of one thread.
pub struct Rings {
    rings: Vec<Ring>,
    /// Written to by the kernel when something has happened in any ring.
    bell: OwnedFd,
    news: VecDeque<News>,
    files_each: u32,
    most: usize,
    parked: usize,
    /// The ring that had room last.
    roomy: usize,
}

impl Rings {
    /// With a first ring, and room for at most `most` files in all.
    ///
    /// # Errors
    /// There are none to be had here.
    pub fn open(most: usize) -> Result<Rings, Refused> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let files_each = files_each(limit);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Refused::Error("eventfd()", e.into()))?;
        let first = Ring::open(files_each, bell.as_fd())?;
        let most = most.min(MOST_RINGS * files_each as usize);
        let news = VecDeque::new();
        Ok(Rings { rings: vec![first], bell, news, files_each, most, parked: 0, roomy: 0 })
    }

    /// Readable anew each time something has happened: to be watched edge-triggered; then [`Rings::gather`].
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Files that are parked.
    pub fn parked(&self) -> usize {
        self.parked
    }

    /// How many may be in all.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Parks descriptors, which are closed as such. What did not go in comes back, with why.
    pub fn park(&mut self, files: Vec<OwnedFd>) -> Vec<Result<Spot, (OwnedFd, io::Error)>> {
        let mut done = Vec::with_capacity(files.len());
        let mut rest = files.into_iter().peekable();
        while rest.peek().is_some() {
            let room = self.most.saturating_sub(self.parked);
            let number = match self.with_room() {
                Ok(number) if room > 0 => number,
                other => {
                    let full = || io::Error::from(io::ErrorKind::QuotaExceeded);
                    let why = || other.as_ref().err().and_then(io::Error::raw_os_error);
                    let error = || why().map_or_else(full, io::Error::from_raw_os_error);
                    done.extend(rest.map(|fd| Err((fd, error()))));
                    return done;
                }
            };
            let ring = &mut self.rings[number];
            let batch: Vec<OwnedFd> = rest.by_ref().take(ring.room().min(room)).collect();
            let before = done.len();
            ring.put(batch, &mut self.news, |result| {
                done.push(result.map(|place| Spot::new(number, place)));
            });
            self.parked += done[before..].iter().filter(|r| r.is_ok()).count();
        }
        // The next ring takes a descriptor, of which there may be none left when it is needed.
        let room = self.rings.len() * self.files_each as usize - self.parked;
        if room < self.files_each as usize / AHEAD && self.rings.len() * (self.files_each as usize) < self.most {
            let _ = self.open_next();
        }
        done
    }

    /// A ring with a free place.
    fn with_room(&mut self) -> io::Result<usize> {
        if self.rings[self.roomy].room() > 0 {
            return Ok(self.roomy);
        }
        if let Some(number) = self.rings.iter().position(|ring| ring.room() > 0) {
            self.roomy = number;
            return Ok(number);
        }
        self.open_next()?;
        self.roomy = self.rings.len() - 1;
        Ok(self.roomy)
    }

    fn open_next(&mut self) -> io::Result<()> {
        if self.rings.len() >= MOST_RINGS {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let ring = Ring::open(self.files_each, self.bell.as_fd()).map_err(|refused| match refused {
            Refused::Error(_, e) => e,
            Refused::Kernel(_) => io::ErrorKind::Unsupported.into(),
        })?;
        self.rings.push(ring);
        Ok(())
    }

    /// Waits for one of `events` on a file; the news have `token`. One wait for each side at a time. The kernel hears of it with
    /// [`Rings::flush`].
    pub fn watch(&mut self, spot: Spot, token: u32, side: Side, events: u32) {
        self.rings[spot.ring()].watch(spot.place(), token, side, events, &mut self.news);
    }

    /// Tells the kernel of all new waits.
    pub fn flush(&mut self) {
        self.rings.iter_mut().for_each(|ring| ring.flush());
    }

    /// Ends a wait that is under way. There is no news of it afterwards.
    pub fn unwatch(&mut self, spot: Spot, token: u32, side: Side) {
        self.rings[spot.ring()].unwatch(token, side, &mut self.news);
    }

    /// The same for many waits, which takes a call for each ring.
    pub fn unwatch_all(&mut self, waits: &[(Spot, u32, Side)]) {
        for (number, ring) in self.rings.iter_mut().enumerate() {
            let own = waits.iter().filter(|(spot, ..)| spot.ring() == number).map(|(_, token, side)| (*token, *side));
            let own: Vec<(u32, Side)> = own.collect();
            if !own.is_empty() {
                ring.unwatch_all(&own, &mut self.news);
            }
        }
    }

    /// Looks what has happened. True: there is news.
    pub fn gather(&mut self) -> bool {
        for ring in &mut self.rings {
            ring.gather(&mut self.news);
        }
        !self.news.is_empty()
    }

    /// The next thing that has happened.
    pub fn next_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// Whether there is a next thing.
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Writes to each file what the kernel takes at once: how much of it, or why not (`WouldBlock` where there is no room).
    pub fn send(&mut self, what: &[(Spot, &[u8])], mut sent: impl FnMut(usize, io::Result<usize>)) {
        let mut at = 0;
        while let Some((first, _)) = what.get(at) {
            let number = first.ring();
            let same = what[at..].iter().take_while(|(spot, _)| spot.ring() == number).count();
            let pieces = what[at..at + same].iter().map(|(spot, bytes)| (spot.place(), *bytes));
            self.rings[number].send(pieces, &mut self.news, |n, result| sent(at + n, result));
            at += same;
        }
    }

    /// Reads what is there into the beginning of `buffer`; 0 is the end.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there, and whatever ends a connection.
    pub fn receive(&mut self, spot: Spot, buffer: &mut [u8]) -> io::Result<usize> {
        self.rings[spot.ring()].receive(spot.place(), buffer, &mut self.news)
    }

    /// Makes a parked file a descriptor again; its place is free. No wait of it may be under way.
    ///
    /// # Errors
    /// There is no descriptor for it: it stays parked.
    pub fn bring_back(&mut self, spot: Spot) -> io::Result<OwnedFd> {
        self.bring_back_all(&[spot]).pop().expect("it was asked for one")
    }

    /// The same for many, which takes a call for those of a ring that follow each other: in their order, each a descriptor or why there is none.
    pub fn bring_back_all(&mut self, spots: &[Spot]) -> Vec<io::Result<OwnedFd>> {
        let mut all = Vec::with_capacity(spots.len());
        for same in spots.chunk_by(|a, b| a.ring() == b.ring()) {
            let places: Vec<u32> = same.iter().map(|spot| spot.place()).collect();
            self.rings[same[0].ring()].bring_back(&places, &mut self.news, |result| all.push(result));
        }
        self.parked -= all.iter().filter(|result| result.is_ok()).count();
        all
    }

    /// Closes a parked file. No wait of it may be under way.
    pub fn close(&mut self, spot: Spot) {
        self.rings[spot.ring()].close(spot.place(), &mut self.news);
        self.parked -= 1;
    }
}

impl fmt::Debug for Rings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rings").field("rings", &self.rings.len()).field("parked", &self.parked).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
