//! One ring and its table of files. The only file of the crate with `unsafe`: io_uring is handed addresses. All that are handed out here
//! are done with when the call that was given them returns.
#![allow(unsafe_code, reason = "entries of a submission queue name buffers by their addresses")]

use crate::{News, Refused, Side};
use io_uring::squeue::Entry;
use io_uring::types::Fixed;
use io_uring::{IoUring, Probe, opcode};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// Entries that are handed to the kernel at once.
const BATCH: u32 = 256;
/// So many places are set by one call rather than by an entry each.
const TOGETHER: usize = 4;
/// They may lie as far apart: one in so many is set, others are passed over.
const SPARSE: usize = 4;
/// A place that is left as it is (`IORING_REGISTER_FILES_SKIP`), and one that is emptied.
const SKIP: RawFd = -2;
const NO_FILE: RawFd = -1;
/// Room for what has happened: the kernel keeps what is beyond it, and the number of its lists of waits follows from this one.
const NEWS: u32 = 8192;
/// Of `user_data`: it is no wait but a call that is waited for, by its number in its batch.
const CALL: u64 = 1 << 63;
/// Of `user_data`: the wait is one for writing.
const WRITING: u64 = 1 << 32;
/// `IORING_ENTER_GETEVENTS`: what the kernel has put off is done first.
const GET_EVENTS: u32 = 1;

pub(crate) struct Ring {
    ring: IoUring,
    free: Vec<u32>,
    /// Places that were never used begin here.
    fresh: u32,
    files: u32,
    /// There are entries that the kernel has not seen.
    is_dirty: bool,
    results: Vec<i32>,
    /// What is installed, while its places are emptied.
    installed: Vec<i32>,
    /// Waits that are over since they were cancelled.
    cancelled: usize,
}

impl Ring {
    pub(crate) fn open(files: u32, bell: BorrowedFd<'_>) -> Result<Ring, Refused> {
        let ring = IoUring::builder()
            .dontfork()
            .setup_clamp()
            .setup_cqsize(NEWS)
            .setup_submit_all()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(BATCH)
            .map_err(|e| match e.raw_os_error() {
                Some(libc::ENOSYS) => Refused::Kernel("io_uring"),
                Some(libc::EINVAL) => Refused::Kernel("IORING_SETUP_DEFER_TASKRUN"),
                _ => Refused::Error("io_uring_setup()", e),
            })?;
        let mut probe = Probe::new();
        let submitter = ring.submitter();
        submitter.register_probe(&mut probe).map_err(|e| Refused::Error("io_uring_register()", e))?;
        if !probe.is_supported(opcode::FixedFdInstall::CODE) {
            return Err(Refused::Kernel("IORING_OP_FIXED_FD_INSTALL"));
        }
        submitter.register_files_sparse(files).map_err(|e| Refused::Error("IORING_REGISTER_FILES2", e))?;
        let bell = bell.as_raw_fd();
        submitter.register_eventfd(bell).map_err(|e| Refused::Error("IORING_REGISTER_EVENTFD", e))?;
        let (free, results, installed) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Ring { ring, free, fresh: 0, files, is_dirty: false, results, installed, cancelled: 0 })
    }

    /// Free places.
    pub(crate) fn room(&self) -> usize {
        self.free.len() + (self.files - self.fresh) as usize
    }

    /// Puts files into the table, of which there are at most as many as there is room. Their descriptors are closed.
    pub(crate) fn put(
        &mut self,
        files: Vec<OwnedFd>,
        news: &mut VecDeque<News>,
        mut done: impl FnMut(Result<u32, (OwnedFd, io::Error)>),
    ) {
        let numbers: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
        let places: Vec<u32> = numbers.iter().map(|_| self.take_place()).collect();
        let end = self.set_together(&places, |at| numbers[at]);
        let entries = numbers.iter().zip(&places).filter(|(_, place)| **place >= end);
        let entries = entries.map(|(fd, place)| opcode::FilesUpdate::new(fd, 1).offset(*place as i32).build());
        // SAFETY: `numbers` is neither moved nor changed before all calls are done.
        unsafe { self.call(entries, news) };
        let mut parked = Vec::with_capacity(files.len());
        let mut results = self.results.iter().copied();
        for (place, fd) in places.into_iter().zip(files) {
            match if place < end { 1 } else { results.next().unwrap_or(-libc::EIO) } {
                1 => {
                    parked.push(fd);
                    done(Ok(place));
                }
                other => {
                    self.free.push(place);
                    done(Err((fd, io::Error::from_raw_os_error(if other < 0 { -other } else { libc::EIO }))));
                }
            }
        }
        close_all(parked);
    }

    /// Sets places that lie close together, or empties them ([`NO_FILE`]), by one call: all before the place that is given back.
    fn set_together(&self, places: &[u32], file_of: impl Fn(usize) -> RawFd) -> u32 {
        let (Some(first), Some(last)) = (places.iter().min(), places.iter().max()) else { return 0 };
        let width = (last - first) as usize + 1;
        if places.len() < TOGETHER || width > SPARSE * places.len() {
            return *first;
        }
        let mut files = vec![SKIP; width];
        places.iter().enumerate().for_each(|(at, place)| files[(place - first) as usize] = file_of(at));
        first + self.ring.submitter().register_files_update(*first, &files).unwrap_or(0) as u32
    }

    fn take_place(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            assert!(self.fresh < self.files, "asked for more places than there are");
            self.fresh += 1;
            self.fresh - 1
        })
    }

    pub(crate) fn watch(&mut self, place: u32, token: u32, side: Side, events: u32, news: &mut VecDeque<News>) {
        let entry = opcode::PollAdd::new(Fixed(place), events).build().user_data(name(token, side));
        // SAFETY: it names no address.
        unsafe { self.push(&entry, news) };
        self.is_dirty = true;
    }

    pub(crate) fn flush(&mut self) {
        if std::mem::take(&mut self.is_dirty) {
            // What the kernel does not take now (EBUSY, EINTR) it takes with the next call.
            self.is_dirty = self.ring.submit().is_err();
        }
    }

    /// Ends a wait: it is cancelled, or what it was for has come and is taken out of the news.
    pub(crate) fn unwatch(&mut self, token: u32, side: Side, news: &mut VecDeque<News>) {
        let is_it = |n: &News| n.token == token && n.side == side;
        if let Some(at) = news.iter().position(is_it) {
            news.remove(at);
            return;
        }
        self.cancelled = 0;
        let entry = opcode::PollRemove::new(name(token, side)).build();
        // SAFETY: it names no address.
        unsafe { self.call([entry].into_iter(), news) };
        match self.results[0] {
            0 => self.wait_cancelled(1, news),
            _ => self.unwatch_owed(token, side, news),
        }
    }

    /// Waits until so many waits are over that were cancelled. Each has its file until then, and the kernel deals with a few at a time unless more is waited for.
    fn wait_cancelled(&mut self, count: usize, news: &mut VecDeque<News>) {
        while self.cancelled < count && self.wait(count - self.cancelled).is_ok() {
            self.take(news);
        }
    }

    /// A wait could not be cancelled: what it was for was about to come, and the kernel owes it to us.
    fn unwatch_owed(&mut self, token: u32, side: Side, news: &mut VecDeque<News>) {
        let is_it = |n: &News| n.token == token && n.side == side;
        loop {
            if let Some(at) = news.iter().position(is_it) {
                news.remove(at);
                return;
            }
            if self.wait(1).is_err() {
                return;
            }
            self.take(news);
        }
    }

    /// The same for many, in a call or two.
    pub(crate) fn unwatch_all(&mut self, waits: &[(u32, Side)], news: &mut VecDeque<News>) {
        let mut rest = Vec::with_capacity(waits.len());
        for (token, side) in waits {
            match news.iter().position(|n| n.token == *token && n.side == *side) {
                Some(at) => drop(news.remove(at)),
                None => rest.push((*token, *side)),
            }
        }
        self.cancelled = 0;
        let entries = rest.iter().map(|(token, side)| opcode::PollRemove::new(name(*token, *side)).build());
        // SAFETY: they name no address.
        unsafe { self.call(entries, news) };
        let owed = rest.iter().zip(&self.results).filter(|(_, result)| **result != 0);
        let owed: Vec<(u32, Side)> = owed.map(|(wait, _)| *wait).collect();
        self.wait_cancelled(rest.len() - owed.len(), news);
        owed.into_iter().for_each(|(token, side)| self.unwatch_owed(token, side, news));
    }

    /// Takes what has happened.
    pub(crate) fn gather(&mut self, news: &mut VecDeque<News>) {
        let (is_due, is_over) = {
            let queue = self.ring.submission();
            (queue.taskrun(), queue.cq_overflow())
        };
        if is_due || is_over || self.is_dirty {
            self.is_dirty = false;
            let waiting = self.ring.submission().len() as u32;
            // SAFETY: waits are all that can be in the queue, and they name no address.
            let entered = unsafe { self.ring.submitter().enter::<libc::sigset_t>(waiting, 0, GET_EVENTS, None) };
            self.is_dirty = entered.is_err() && waiting > 0;
        }
        self.take(news);
    }

    pub(crate) fn send<'b>(
        &mut self,
        pieces: impl Iterator<Item = (u32, &'b [u8])>,
        news: &mut VecDeque<News>,
        mut sent: impl FnMut(usize, io::Result<usize>),
    ) {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let entries = pieces.map(|(place, bytes)| {
            let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            opcode::Send::new(Fixed(place), bytes.as_ptr(), len).flags(flags).build()
        });
        // SAFETY: the bytes are borrowed until this function returns, and all calls are done before.
        unsafe { self.call(entries, news) };
        for (at, result) in self.results.iter().enumerate() {
            sent(at, outcome(*result));
        }
    }

    pub(crate) fn receive(&mut self, place: u32, buffer: &mut [u8], news: &mut VecDeque<News>) -> io::Result<usize> {
        let len = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
        let entry = opcode::Recv::new(Fixed(place), buffer.as_mut_ptr(), len).flags(libc::MSG_DONTWAIT).build();
        // SAFETY: the buffer is borrowed until this function returns, and the call is done before.
        unsafe { self.call([entry].into_iter(), news) };
        outcome(self.results[0])
    }

    pub(crate) fn bring_back(
        &mut self,
        places: &[u32],
        news: &mut VecDeque<News>,
        mut done: impl FnMut(io::Result<OwnedFd>),
    ) {
        // Closed on exec unless that is said otherwise.
        let install = |place: &u32| opcode::FixedFdInstall::new(Fixed(*place), 0).build();
        // SAFETY: they name no address.
        unsafe { self.call(places.iter().map(install), news) };
        std::mem::swap(&mut self.results, &mut self.installed);
        if self.installed.iter().all(|result| *result >= 0) {
            self.empty(places, news);
        } else {
            let back = places.iter().zip(&self.installed).filter(|(_, result)| **result >= 0);
            let back: Vec<u32> = back.map(|(place, _)| *place).collect();
            self.empty(&back, news);
        }
        for result in self.installed.drain(..) {
            // SAFETY: the kernel has just made it for us.
            done(outcome(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) }));
        }
    }

    /// Takes files out of the table.
    fn empty(&mut self, places: &[u32], news: &mut VecDeque<News>) {
        let end = self.set_together(places, |_| NO_FILE);
        let rest = places.iter().filter(|place| **place >= end);
        // SAFETY: they name no address.
        unsafe { self.call(rest.map(|place| opcode::Close::new(Fixed(*place)).build()), news) };
        self.free.extend(places);
    }

    pub(crate) fn close(&mut self, place: u32, news: &mut VecDeque<News>) {
        self.empty(&[place], news);
    }

    /// Hands calls to the kernel and waits until all of them are done: `results` has what each came to.
    ///
    /// # Safety
    /// What the entries name by address has to be there until this returns.
    unsafe fn call(&mut self, entries: impl Iterator<Item = Entry>, news: &mut VecDeque<News>) {
        self.results.clear();
        for entry in entries {
            let number = self.results.len() as u64;
            self.results.push(i32::MIN);
            // SAFETY: as the caller has promised.
            unsafe { self.push(&entry.user_data(CALL | number), news) };
        }
        if self.results.is_empty() {
            // Waits that are in the queue stay there until they are flushed.
            return;
        }
        self.take(news);
        while self.results.contains(&i32::MIN) {
            // A kernel that takes nothing any more has been told of buffers that must not go away.
            self.wait(1).expect("a ring that was opened takes calls");
            self.take(news);
        }
        self.is_dirty = false;
    }

    /// # Safety
    /// What the entry names by address has to be there until it is done.
    unsafe fn push(&mut self, entry: &Entry, news: &mut VecDeque<News>) {
        // SAFETY: as the caller has promised.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            // It is full: the kernel takes what is in it.
            let _ = self.ring.submit();
            self.take(news);
        }
    }

    /// Hands all entries to the kernel and waits until there is news.
    fn wait(&self, want: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(want) {
            Err(e) if !matches!(e.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => Err(e),
            _ => Ok(()),
        }
    }

    /// Takes what the kernel has to say: results of calls, and news.
    fn take(&mut self, news: &mut VecDeque<News>) {
        for entry in self.ring.completion() {
            let (name, result) = (entry.user_data(), entry.result());
            if name & CALL != 0 {
                if let Some(place) = self.results.get_mut((name & !CALL) as usize) {
                    *place = result;
                }
            } else if result == -libc::ECANCELED {
                self.cancelled += 1;
            } else {
                let side = if name & WRITING == 0 { Side::Reading } else { Side::Writing };
                let events = if result < 0 { crate::FAILED } else { result as u32 };
                news.push_back(News { token: name as u32, side, events });
            }
        }
    }
}

/// Closes descriptors: those that follow each other by one call.
pub(crate) fn close_all(files: Vec<OwnedFd>) {
    if files.len() < TOGETHER {
        return drop(files);
    }
    let mut numbers: Vec<RawFd> = files.into_iter().map(IntoRawFd::into_raw_fd).collect();
    numbers.sort_unstable();
    for run in numbers.chunk_by(|a, b| a + 1 == *b) {
        let (first, last) = (run[0], run[run.len() - 1]);
        // SAFETY: all of them were handed to us to be closed. It is called by number, since not all C libraries know it.
        let closed = run.len() > 1 && unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0;
        if !closed {
            // SAFETY: as above.
            run.iter().for_each(|fd| drop(unsafe { OwnedFd::from_raw_fd(*fd) }));
        }
    }
}

/// `user_data` of a wait.
fn name(token: u32, side: Side) -> u64 {
    u64::from(token) | if side == Side::Writing { WRITING } else { 0 }
}

fn outcome(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}
