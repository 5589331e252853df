//! The system calls that need `unsafe`, each behind a safe function: processes, signals, users, local time.
//! Used by the master, the worker's start and the logs. The only file of the server's process part with `unsafe`.
#![allow(unsafe_code)]

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// A process id.
pub type Pid = i32;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Where [`fork`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forked {
    /// In the process that called, with the id of the new one.
    Parent(Pid),
    /// In the new process.
    Child,
}

/// Duplicates the process. Must be called while it has one thread: a child of several can only exec or exit.
pub fn fork() -> io::Result<Forked> {
    // SAFETY: no memory is touched; callers fork before they start threads, so no lock is held by a thread that is gone.
    let pid = check(unsafe { libc::fork() })?;
    if pid == 0 {
        crate::log::error::after_fork();
        return Ok(Forked::Child);
    }
    Ok(Forked::Parent(pid))
}

/// The program that is started will hear all signals: threads of this one have blocked those that they read one by one, and a mask is
/// handed on.
pub fn hears_signals(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let unblock = || {
        // SAFETY: an all-zero sigset_t is a valid value, and is initialised by sigemptyset before it is used.
        let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `none` is a valid signal set for both calls; the old mask is not asked for.
        unsafe {
            check(libc::sigemptyset(&mut none))?;
            check(libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut())).map(drop)
        }
    };
    // SAFETY: between fork and exec only two calls are made that may be made there (signal-safety(7)).
    unsafe { command.pre_exec(unblock) };
}

/// Sends `signal` to one process.
pub fn kill(pid: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: plain integers.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Gives `signal` its default action again.
pub fn default_action(signal: i32) -> io::Result<()> {
    // SAFETY: no handler is installed, and no thread relies on the one that is removed.
    if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It exited with this code.
    Exited(i32),
    /// A signal ended it.
    Signaled {
        /// The signal's number.
        signal: i32,
        /// A core file was written.
        core: bool,
    },
}

/// The next child that ended and was not asked for yet: any, or that one. `None`: no more, for now.
pub fn reap(of: Option<Pid>) -> io::Result<Option<(Pid, Ended)>> {
    let mut status = 0;
    // SAFETY: `status` is a valid place for an int.
    let pid = match check(unsafe { libc::waitpid(of.unwrap_or(-1), &mut status, libc::WNOHANG) }) {
        Err(e) if e.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
        other => other?,
    };
    if pid == 0 {
        return Ok(None);
    }
    let ended = if libc::WIFSIGNALED(status) {
        Ended::Signaled { signal: libc::WTERMSIG(status), core: libc::WCOREDUMP(status) }
    } else {
        Ended::Exited(libc::WEXITSTATUS(status))
    };
    Ok(Some((pid, ended)))
}

/// Signals as a descriptor: blocked for the calling thread and those it starts, read one by one.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

/// A signal that came.
#[derive(Clone, Copy, Debug)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// The sender; 0 is the kernel.
    pub sender: Pid,
}

impl Signals {
    /// Blocks `numbers` and opens a non-blocking descriptor that reports them. After a fork the child opens its own.
    pub fn open(numbers: &[i32]) -> io::Result<Signals> {
        // SAFETY: an all-zero sigset_t is a valid value, and is initialised by sigemptyset before it is used.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is a valid signal set for all three calls; the old mask is not asked for.
        let fd = unsafe {
            check(libc::sigemptyset(&mut set))?;
            for number in numbers {
                check(libc::sigaddset(&mut set, *number))?;
            }
            check(libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()))?;
            check(libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC))?
        };
        // SAFETY: signalfd returned a new descriptor that nobody else owns.
        Ok(Signals { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// The next pending signal.
    pub fn next(&self) -> Option<Signal> {
        // SAFETY: all-zero is a valid value of this plain C struct.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is `size` bytes long and any bytes are valid for it.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut info).cast(), size) };
        (n == size as isize).then_some(Signal { number: info.ssi_signo as i32, sender: info.ssi_pid as Pid })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Waits until a descriptor of `wanted` is readable (or writable where its flag is set), or the time is over.
/// Returns for each whether something happened. An interrupted wait is an empty answer.
pub fn poll(wanted: &[(BorrowedFd<'_>, bool)], timeout: Option<Duration>) -> io::Result<Vec<bool>> {
    let mut fds: Vec<libc::pollfd> = wanted
        .iter()
        .map(|(fd, write)| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: if *write { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN },
            revents: 0,
        })
        .collect();
    let ms = timeout.map_or(-1, |t| t.as_millis().saturating_add(1).min(i32::MAX as u128) as i32);
    // SAFETY: the array and its length match, and the descriptors are borrowed for the call.
    match check(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ms) }) {
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(vec![false; wanted.len()]),
        Err(e) => Err(e),
        Ok(_) => Ok(fds.iter().map(|fd| fd.revents != 0).collect()),
    }
}

/// Waits until a descriptor takes bytes, or the time has passed.
pub fn poll_writable(fd: BorrowedFd<'_>, at_most: Duration) -> io::Result<()> {
    let mut polled = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    let ms = at_most.as_millis().saturating_add(1).min(i32::MAX as u128) as i32;
    // SAFETY: one place of the right type, and the descriptor is borrowed for the call.
    match check(unsafe { libc::poll(&mut polled, 1, ms) }) {
        Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(e),
        _ => Ok(()),
    }
}

/// Several descriptors watched through one: readable while one of them is. Closed ones leave by themselves.
#[derive(Debug)]
pub struct Watch {
    fd: OwnedFd,
}

impl Watch {
    /// Watches `fds` for input.
    pub fn open(fds: &[BorrowedFd<'_>]) -> io::Result<Watch> {
        // SAFETY: no memory is touched.
        let raw = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: epoll_create1 returned a new descriptor that nobody else owns.
        let watch = Watch { fd: unsafe { OwnedFd::from_raw_fd(raw) } };
        for fd in fds {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            // SAFETY: `event` is valid for the call and both descriptors are open.
            check(unsafe { libc::epoll_ctl(raw, libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &mut event) })?;
        }
        Ok(watch)
    }

    /// No longer watches `fd`.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: a removal takes no event; both descriptors are open.
        let result =
            unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_DEL, fd.as_raw_fd(), std::ptr::null_mut()) };
        check(result).map(drop)
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Makes `target` another name of `source`'s file, at once for every thread that writes to it.
pub fn replace(target: BorrowedFd<'_>, source: BorrowedFd<'_>) -> io::Result<()> {
    let cloexec = if target.as_raw_fd() <= libc::STDERR_FILENO { 0 } else { libc::O_CLOEXEC };
    loop {
        // SAFETY: both are open; the number `target` stays open and owned by whom it was, only its file changes.
        match check(unsafe { libc::dup3(source.as_raw_fd(), target.as_raw_fd(), cloexec) }) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EBUSY | libc::EINTR)) => continue,
            other => return other.map(drop),
        }
    }
}

/// Takes over a descriptor number inherited through exec, if it is open.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_GETFD only asks; a number that is not open gives EBADF.
    check(unsafe { libc::fcntl(number, libc::F_GETFD) })?;
    // SAFETY: it is open, and was handed to this process by the one that started it, for this taker alone.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Sets an integer socket option that has no safe function elsewhere.
pub fn set_option(socket: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    set_raw(socket, level, name, &value)
}

/// Has the kernel choose among the sockets of an address: a program computes the place of one from each datagram.
pub fn choose_socket_by(socket: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    set_raw(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

/// `value` is what the kernel knows the option by: plain data, with pointers only to what is alive.
fn set_raw<T>(socket: BorrowedFd<'_>, level: i32, name: i32, value: &T) -> io::Result<()> {
    let size = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `size` bytes at `value`, which is alive for the call, and copies what it keeps.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), size) })
        .map(drop)
}

/// A listening TCP socket's queue: connections in it and its limit; and connections dropped since the socket was opened.
/// No drops with deferred accept: the kernel counts every client's bare ACK among them, which it holds back on purpose.
pub fn accept_queue(socket: BorrowedFd<'_>) -> io::Result<(u32, u32, Option<u32>)> {
    /// Where `tcpi_unacked` stands in `tcp_info`; `tcpi_sacked` follows. Of a listening socket they are the queue and its limit.
    const UNACKED: usize = 6;
    let info = option_words::<26>(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    let memory = option_words::<MEMINFO>(socket, libc::SOL_SOCKET, libc::SO_MEMINFO)?;
    let [deferred] = option_words::<1>(socket, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT)?;
    Ok((info[UNACKED], info[UNACKED + 1], (deferred == 0).then_some(memory[MEMINFO_DROPS])))
}

/// What the kernel has dropped at a socket since it was opened, for whichever reason.
pub fn drops(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let memory = option_words::<MEMINFO>(socket, libc::SOL_SOCKET, libc::SO_MEMINFO)?;
    Ok(memory[MEMINFO_DROPS])
}

/// A datagram socket's receive buffer: bytes in it, its size, and datagrams dropped since the socket was opened.
pub fn datagram_queue(socket: BorrowedFd<'_>) -> io::Result<(u32, u32, Option<u32>)> {
    let memory = option_words::<MEMINFO>(socket, libc::SOL_SOCKET, libc::SO_MEMINFO)?;
    Ok((memory[0], memory[1], Some(memory[MEMINFO_DROPS])))
}

/// What the other side of a TCP connection has acknowledged and sent, bytes since it began (`tcpi_bytes_acked`, `tcpi_bytes_received`).
pub fn tcp_progress(socket: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    /// Where the two stand in `tcp_info`, two words each.
    const ACKED: usize = 30;
    const RECEIVED: usize = 32;
    let info = option_words::<34>(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    let long = |at: usize| {
        let ([a, b, c, d], [e, f, g, h]) = (info[at].to_ne_bytes(), info[at + 1].to_ne_bytes());
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    };
    Ok((long(ACKED), long(RECEIVED)))
}

/// `SK_MEMINFO_VARS`, `SK_MEMINFO_DROPS`: what `SO_MEMINFO` tells begins with the bytes waiting and the buffer's size.
const MEMINFO: usize = 9;
const MEMINFO_DROPS: usize = 8;

/// The first words of a socket option; what the kernel does not fill is 0.
fn option_words<const N: usize>(socket: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<[u32; N]> {
    let mut words = [0u32; N];
    let mut size = size_of_val(&words) as libc::socklen_t;
    // SAFETY: the kernel writes at most `size` bytes to `words`, which is alive for the call; any bits are valid words.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, words.as_mut_ptr().cast(), &raw mut size) })?;
    Ok(words)
}

/// Takes a user's id, group and supplementary groups for the whole process. Errors name the step that failed.
pub fn become_user(name: &str, uid: u32, gid: u32) -> Result<(), (String, io::Error)> {
    let c_name = CString::new(name).map_err(|e| (format!("initgroups({name}, {gid})"), e.into()))?;
    // SAFETY: plain integers; the process has one thread.
    check(unsafe { libc::setgid(gid) }).map_err(|e| (format!("setgid({gid})"), e))?;
    // SAFETY: `c_name` is a C string alive for the call.
    check(unsafe { libc::initgroups(c_name.as_ptr(), gid) }).map_err(|e| (format!("initgroups({name}, {gid})"), e))?;
    // SAFETY: plain integers; the process has one thread.
    check(unsafe { libc::setuid(uid) }).map_err(|e| (format!("setuid({uid})"), e))?;
    Ok(())
}

/// The memory that `ps` shows as the command line: the arguments and, behind them, the environment.
#[derive(Debug)]
pub struct TitleArea {
    start: usize,
    len: usize,
}

impl TitleArea {
    /// Finds it, and moves the environment out of it. Take the arguments before a title is set: they are gone after.
    /// Call once, while the process has one thread.
    pub fn take() -> Option<TitleArea> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        // proc(5): after the name in parentheses comes field 3; arg_start, arg_end, env_start and env_end are 48 to 51.
        let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<usize>().ok();
        let (start, end, env_start, env_end) = (field(48)?, field(49)?, field(50)?, field(51)?);
        if start == 0 || end <= start {
            return None;
        }
        let contiguous = env_start == end && env_end > env_start;
        if contiguous {
            // The C library would refuse a name with an equals sign, which only a broken environment has.
            let usual = |(name, _): &(std::ffi::OsString, _)| !name.as_encoded_bytes().contains(&b'=');
            for (name, value) in std::env::vars_os().filter(usual) {
                // SAFETY: the process has one thread; the C library copies what it is given to memory of its own.
                unsafe { std::env::set_var(name, value) };
            }
        }
        Some(TitleArea { start, len: if contiguous { env_end - start } else { end - start } })
    }

    /// Writes a title; what does not fit is cut.
    pub fn set(&self, title: &str) {
        let n = title.len().min(self.len - 1);
        // SAFETY: the kernel put the arguments and the environment there, writable, for the life of the process; the
        // environment was moved away, and nobody reads the arguments after the start.
        unsafe {
            std::ptr::copy_nonoverlapping(title.as_ptr(), self.start as *mut u8, n);
            std::ptr::write_bytes((self.start + n) as *mut u8, 0, self.len - n);
        }
    }
}

/// The effective user id.
pub fn effective_uid() -> u32 {
    // SAFETY: only asks.
    unsafe { libc::geteuid() }
}

/// User and group id of a user, from the system's user database. Call from a process with one thread.
pub fn user_by_name(name: &str) -> Option<(u32, u32)> {
    let name = CString::new(name).ok()?;
    // SAFETY: a C string alive for the call; the result is read before anyone can ask again.
    let entry = unsafe { libc::getpwnam(name.as_ptr()).as_ref() }?;
    Some((entry.pw_uid, entry.pw_gid))
}

/// Id of a group, from the system's database. Call from a process with one thread.
pub fn group_by_name(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: a C string alive for the call; the result is read before anyone can ask again.
    Some(unsafe { libc::getgrnam(name.as_ptr()).as_ref() }?.gr_gid)
}

/// Replaces the process's environment by `entries`. Call while the process has one thread.
pub fn set_environment<N: AsRef<OsStr>, V: AsRef<OsStr>>(entries: &[(N, V)]) {
    let old: Vec<_> = std::env::vars_os().map(|(name, _)| name).collect();
    // SAFETY: the process has one thread, so nobody reads the environment meanwhile.
    unsafe {
        old.iter().for_each(|name| std::env::remove_var(name));
        entries.iter().for_each(|(name, value)| std::env::set_var(name, value));
    }
}

/// Binds the calling thread to `cpus`. Numbers beyond the kernel's limit are left out.
pub fn pin_thread(cpus: &[usize]) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus.iter().filter(|cpu| **cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: the number is within the set.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    // SAFETY: the set is valid and of the size given; 0 is the calling thread.
    check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) }).map(drop)
}

/// Whether a process was stopped by a signal, or by who debugs it (the state in `/proc/PID/stat`, proc(5)).
pub fn is_stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// The kernel's id of the calling thread.
pub fn thread_id() -> u32 {
    // SAFETY: only asks.
    unsafe { libc::gettid() as u32 }
}

/// A moment as the local clock shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalTime {
    /// Four digits.
    pub year: i32,
    /// 1 to 12.
    pub month: u32,
    /// 1 to 31.
    pub day: u32,
    /// 0 to 23.
    pub hour: u32,
    /// 0 to 59.
    pub minute: u32,
    /// 0 to 60.
    pub second: u32,
    /// Minutes the local clock is ahead of UTC.
    pub offset_minutes: i32,
}

/// Seconds since 1970 in the local time zone.
pub fn local_time(seconds: i64) -> LocalTime {
    let time = seconds as _;
    // SAFETY: all-zero is a valid value of this plain C struct (its zone pointer is not read).
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both point to valid values for the call.
    unsafe { libc::localtime_r(&time, &mut tm) };
    LocalTime {
        year: tm.tm_year + 1900,
        month: tm.tm_mon as u32 + 1,
        day: tm.tm_mday as u32,
        hour: tm.tm_hour as u32,
        minute: tm.tm_min as u32,
        second: tm.tm_sec as u32,
        offset_minutes: (tm.tm_gmtoff / 60) as i32,
    }
}

/// The name of the local time zone at a moment in seconds since 1970: `CET`.
pub fn zone_name(seconds: i64) -> String {
    let time = seconds as _;
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both point to valid values for the call.
    unsafe { libc::localtime_r(&time, &mut tm) };
    if tm.tm_zone.is_null() {
        return String::new();
    }
    // SAFETY: not null, so it points to one of the C library's strings, which stay for the life of the process.
    unsafe { std::ffi::CStr::from_ptr(tm.tm_zone) }.to_string_lossy().into_owned()
}

/// How long ago the last packet of a TCP connection came, ms (`TCP_INFO`).
pub fn last_packet_ms(socket: BorrowedFd<'_>) -> Option<u32> {
    tcp_info_of(socket).map(|info| info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv))
}

/// Round-trip time, its variance (us), congestion window and receive space of a TCP connection (`TCP_INFO`).
pub fn tcp_info(socket: BorrowedFd<'_>) -> Option<[u32; 4]> {
    tcp_info_of(socket).map(|info| [info.tcpi_rtt, info.tcpi_rttvar, info.tcpi_snd_cwnd, info.tcpi_rcv_space])
}

fn tcp_info_of(socket: BorrowedFd<'_>) -> Option<libc::tcp_info> {
    // SAFETY: all bytes zero are a valid `tcp_info`.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: `info` is writable for `len` bytes, and both live through the call.
    let done = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut len)
    };
    (done == 0).then_some(info)
}
