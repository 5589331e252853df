//! One ring and its table of files. The only file of the crate with `unsafe`: io_uring is handed addresses. All that are handed out here
//! are done with when the call that was given them returns.
#![allow(unsafe_code, reason = "entries of a submission queue name buffers by their addresses")]

use crate::{News, Refused, Side};
use io_uring::squeue::{Entry, Flags};
use io_uring::types::Fixed;
use io_uring::{IoUring, Probe, opcode};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Entries that are handed to the kernel at once.
const BATCH: u32 = 256;
/// Files of which each takes two entries, at once.
const PAIRS: usize = BATCH as usize / 2;
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
        Ok(Ring { ring, free: Vec::new(), fresh: 0, files, is_dirty: false, results: Vec::new() })
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
        let entries = numbers.iter().zip(&places);
        let entries = entries.map(|(fd, place)| opcode::FilesUpdate::new(fd, 1).offset(*place as i32).build());
        // SAFETY: `numbers` is neither moved nor changed before all calls are done.
        unsafe { self.call(entries, news) };
        for (at, (fd, place)) in files.into_iter().zip(places).enumerate() {
            match self.results[at] {
                1 => done(Ok(place)),
                other => {
                    self.free.push(place);
                    done(Err((fd, io::Error::from_raw_os_error(if other < 0 { -other } else { libc::EIO }))));
                }
            }
        }
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
        let entry = opcode::PollRemove::new(name(token, side)).build();
        // SAFETY: it names no address.
        unsafe { self.call([entry].into_iter(), news) };
        if self.results[0] != 0 {
            self.unwatch_owed(token, side, news);
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

    /// The same for many, in one call.
    pub(crate) fn unwatch_all(&mut self, waits: &[(u32, Side)], news: &mut VecDeque<News>) {
        let mut rest = Vec::with_capacity(waits.len());
        for (token, side) in waits {
            match news.iter().position(|n| n.token == *token && n.side == *side) {
                Some(at) => drop(news.remove(at)),
                None => rest.push((*token, *side)),
            }
        }
        let entries = rest.iter().map(|(token, side)| opcode::PollRemove::new(name(*token, *side)).build());
        // SAFETY: they name no address.
        unsafe { self.call(entries, news) };
        let owed = rest.iter().zip(&self.results).filter(|(_, result)| **result != 0);
        let owed: Vec<(u32, Side)> = owed.map(|(wait, _)| *wait).collect();
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
        for places in places.chunks(PAIRS) {
            // What the queue takes at once is not parted: a chain ends where the kernel is handed it.
            self.flush();
            let pair = |place: &u32| {
                // Closed on exec unless that is said otherwise. The second is done only if the first was.
                let install = opcode::FixedFdInstall::new(Fixed(*place), 0).build();
                let close = opcode::Close::new(Fixed(*place)).build();
                [install.flags(Flags::FIXED_FILE | Flags::IO_LINK), close]
            };
            // SAFETY: they name no address.
            unsafe { self.call(places.iter().flat_map(pair), news) };
            for (at, place) in places.iter().enumerate() {
                let fd = outcome(self.results[2 * at]);
                if fd.is_ok() {
                    self.free.push(*place);
                }
                // SAFETY: the kernel has just made it for us.
                done(fd.map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) }));
            }
        }
    }

    pub(crate) fn close(&mut self, place: u32, news: &mut VecDeque<News>) {
        let close = opcode::Close::new(Fixed(place)).build();
        // SAFETY: it names no address.
        unsafe { self.call([close].into_iter(), news) };
        self.free.push(place);
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
            } else if result != -libc::ECANCELED {
                let side = if name & WRITING == 0 { Side::Reading } else { Side::Writing };
                let events = if result < 0 { crate::FAILED } else { result as u32 };
                news.push_back(News { token: name as u32, side, events });
            }
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
