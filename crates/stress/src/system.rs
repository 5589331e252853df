//! The system calls that the libraries do not wrap, each with its errors as values. The only file with `unsafe`.
#![allow(unsafe_code, reason = "epoll_pwait2 and three options have no safe wrapper in the dependencies")]

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Events taken from the kernel at once.
const EVENTS: usize = 512;

/// Bytes may be read.
pub(crate) const READABLE: u32 = libc::EPOLLIN as u32;
/// Bytes may be written, or a connection stands.
pub(crate) const WRITABLE: u32 = libc::EPOLLOUT as u32;
/// The other side has closed, or the connection failed.
pub(crate) const HUNG_UP: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;

/// Edge triggered epoll.
pub(crate) struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
    /// Whether the kernel has `epoll_pwait2` (Linux 5.11); else waits are whole milliseconds.
    nanoseconds: bool,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave it to us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS], nanoseconds: true })
    }

    /// Reports reading, writing and hanging up of `fd` from now on, under the name `data`. It ends when `fd` is closed.
    pub(crate) fn add(&self, fd: RawFd, data: u64) -> io::Result<()> {
        let flags = READABLE | WRITABLE | libc::EPOLLRDHUP as u32 | libc::EPOLLET as u32;
        let mut event = libc::epoll_event { events: flags, u64: data };
        // SAFETY: `event` lives over the call, which copies it.
        let result = unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Reports nothing of `fd` any more: it stays open elsewhere.
    pub(crate) fn remove(&self, fd: RawFd) -> io::Result<()> {
        // SAFETY: no pointers: what is removed needs no event.
        let result = unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits for events, at most `nanoseconds`; `event(i)` reads them.
    pub(crate) fn wait(&mut self, nanoseconds: u64) -> usize {
        let (events, room) = (self.events.as_mut_ptr(), EVENTS as i32);
        if self.nanoseconds {
            let time = libc::timespec {
                tv_sec: (nanoseconds / 1_000_000_000) as _,
                tv_nsec: (nanoseconds % 1_000_000_000) as libc::c_long,
            };
            // SAFETY: the buffer holds EVENTS entries and is ours, `time` lives over the call, no signal mask is given.
            let count = unsafe {
                libc::syscall(
                    libc::SYS_epoll_pwait2,
                    self.fd.as_raw_fd(),
                    events,
                    room,
                    &time as *const libc::timespec,
                    std::ptr::null::<libc::sigset_t>(),
                    size_of::<u64>(),
                )
            };
            if count < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
                self.nanoseconds = false;
            } else {
                return usize::try_from(count).unwrap_or(0);
            }
        }
        let milliseconds = i32::try_from(nanoseconds.div_ceil(1_000_000)).unwrap_or(i32::MAX);
        // SAFETY: the buffer holds EVENTS entries and is ours.
        let count = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), events, room, milliseconds) };
        usize::try_from(count).unwrap_or(0)
    }

    /// The `index`-th event of the last wait: its name and its flags.
    pub(crate) fn event(&self, index: usize) -> (u64, u32) {
        let event = self.events[index];
        (event.u64, event.events)
    }
}

/// The local port is chosen at `connect`, so that each pair of addresses has all ports (IP_BIND_ADDRESS_NO_PORT).
pub(crate) fn choose_port_late(fd: &impl AsRawFd) {
    let on: libc::c_int = 1;
    // SAFETY: `on` lives over the call, its size is given. A kernel without the option binds early, which also works.
    unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
}

/// Lets the kernel choose a socket's local port only from these (Linux 6.3; before it, from all).
pub(crate) fn limit_ports(fd: &impl AsRawFd, low: u16, high: u16) {
    /// `IP_LOCAL_PORT_RANGE` of `linux/in.h`, which the libc crate lacks.
    const IP_LOCAL_PORT_RANGE: libc::c_int = 51;
    let range = u32::from(high) << 16 | u32::from(low);
    // SAFETY: `range` lives over the call, its size is given.
    unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_IP,
            IP_LOCAL_PORT_RANGE,
            (&raw const range).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
}

/// Lets this thread's waits end when they were asked to, not up to 50 microseconds later.
pub(crate) fn sharpen_timers() {
    // SAFETY: no pointers. A kernel that refuses keeps its slack.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0, 0, 0) };
}

/// Ctrl-C and SIGTERM, taken as facts instead of an end.
#[derive(Debug)]
pub struct Interrupts(OwnedFd);

impl Interrupts {
    /// From now on they are only noted. Call it before other threads are started: they inherit it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open() -> io::Result<Interrupts> {
        // SAFETY: a set of bits, which the calls below fill and only read; the result is checked.
        let fd = unsafe {
            let mut set: libc::sigset_t = zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGINT);
            libc::sigaddset(&mut set, libc::SIGTERM);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave it to us.
        Ok(Interrupts(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Whether one has come since the last look.
    pub fn is_raised(&self) -> bool {
        let mut one = [0; size_of::<libc::signalfd_siginfo>()];
        rustix::io::read(&self.0, &mut one).is_ok()
    }
}
