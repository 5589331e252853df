//! The system calls, each with its errors as values. The only file with `unsafe`.
#![allow(unsafe_code, reason = "raw system calls: the floor is measured without any library between it and the kernel")]

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Events taken from the kernel at once.
const EVENTS: usize = 512;
/// Connections waiting to be accepted; the kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 65535;
/// Seconds a deferred connection may stay silent before it is accepted all the same.
const DEFER_SECONDS: i32 = 5;

/// When the kernel hands out a new connection.
#[derive(Clone, Copy)]
pub(crate) enum Accept {
    AtOnce,
    WithData,
}

/// What a read or a write came to.
pub(crate) enum Outcome {
    Bytes(usize),
    Later,
    Closed,
}

/// Edge triggered epoll; a connection's events carry its descriptor.
pub(crate) struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

/// One event: the descriptor, and whether the other side has closed (its half of) the connection.
pub(crate) struct Event {
    pub(crate) fd: RawFd,
    pub(crate) hung_up: bool,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        Ok(Epoll { fd: owned(fd)?, events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS] })
    }

    /// Reports reading, writing and hanging up from now on.
    pub(crate) fn add(&self, fd: RawFd) -> io::Result<()> {
        let flags = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        let mut event = libc::epoll_event { events: flags as u32, u64: fd as u64 };
        // SAFETY: `event` lives over the call, which copies it.
        let result = unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits for events; `event(n)` reads them.
    pub(crate) fn wait(&mut self) -> usize {
        // SAFETY: the buffer holds EVENTS entries and is ours.
        let count = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), self.events.as_mut_ptr(), EVENTS as i32, -1) };
        usize::try_from(count).unwrap_or(0)
    }

    pub(crate) fn event(&self, number: usize) -> Event {
        let event = self.events[number];
        let ends = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
        Event { fd: event.u64 as RawFd, hung_up: event.events & ends != 0 }
    }
}

/// A listening socket on 127.0.0.1.
pub(crate) fn listen(port: u16, accept: Accept) -> io::Result<OwnedFd> {
    let socket = stream_socket()?;
    set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    if let Accept::WithData = accept {
        set_option(&socket, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, DEFER_SECONDS)?;
    }
    let address = loopback(port);
    // SAFETY: the address is a sockaddr_in of the given length.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32) };
    // SAFETY: no pointers.
    if bound < 0 || unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// The next waiting connection, if there is one and a descriptor for it.
pub(crate) fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: null for an address that is not wanted is allowed.
    let fd = unsafe { libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) };
    owned(fd).ok()
}

/// Begins to connect to 127.0.0.1.
pub(crate) fn connect(port: u16) -> io::Result<OwnedFd> {
    let socket = stream_socket()?;
    let address = loopback(port);
    // SAFETY: the address is a sockaddr_in of the given length.
    let result =
        unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32) };
    let error = io::Error::last_os_error();
    if result < 0 && error.raw_os_error() != Some(libc::EINPROGRESS) { Err(error) } else { Ok(socket) }
}

/// Connects as checks by HTTP do: by a socket that has served before, if there is one, which says goodbye to its last peer by a
/// RST; the last ACK of the handshake goes out with what is sent. Blocks.
pub(crate) fn connect_quietly(spare: Option<OwnedFd>, to: SocketAddrV4) -> io::Result<OwnedFd> {
    let socket = match spare {
        Some(socket) => {
            let mut nobody = address(to);
            nobody.sin_family = libc::AF_UNSPEC as u16;
            connect_to(&socket, &nobody)?;
            socket
        }
        // SAFETY: no pointers; the result is checked.
        None => owned(unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })?,
    };
    set_option(&socket, libc::IPPROTO_TCP, libc::TCP_QUICKACK, 0)?;
    connect_to(&socket, &address(to))?;
    Ok(socket)
}

fn connect_to(socket: &OwnedFd, to: &libc::sockaddr_in) -> io::Result<()> {
    // SAFETY: the address is a sockaddr_in of the given length.
    let result = unsafe { libc::connect(socket.as_raw_fd(), (&raw const *to).cast(), size_of_val(to) as u32) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub(crate) fn read(fd: RawFd, buffer: &mut [u8]) -> Outcome {
    // SAFETY: the buffer is ours and as long as said.
    let count = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    if count == 0 { Outcome::Closed } else { outcome(count) }
}

pub(crate) fn write(fd: RawFd, bytes: &[u8]) -> Outcome {
    // SAFETY: the bytes are readable and as many as said.
    outcome(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) })
}

/// Writes what nothing follows but the end, which leaves in the same packet.
pub(crate) fn write_last(fd: RawFd, bytes: &[u8]) -> Outcome {
    // SAFETY: the bytes are readable and as many as said.
    let count = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL | libc::MSG_MORE) };
    if count == bytes.len() as isize {
        // SAFETY: no pointers.
        unsafe { libc::shutdown(fd, libc::SHUT_WR) };
    }
    outcome(count)
}

/// Where `needle` begins.
pub(crate) fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    // SAFETY: both are readable and as long as said; the result is null or inside `bytes`.
    let found = unsafe { libc::memmem(bytes.as_ptr().cast(), bytes.len(), needle.as_ptr().cast(), needle.len()) };
    (!found.is_null()).then(|| found as usize - bytes.as_ptr() as usize)
}

fn outcome(count: isize) -> Outcome {
    match usize::try_from(count) {
        Ok(count) => Outcome::Bytes(count),
        Err(_) => match io::Error::last_os_error().raw_os_error() {
            // ENOTCONN: written to while it still connects.
            Some(libc::EAGAIN | libc::EINTR | libc::ENOTCONN) => Outcome::Later,
            _ => Outcome::Closed,
        },
    }
}

fn stream_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the result is checked.
    owned(unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0) })
}

fn set_option(socket: &OwnedFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the value is an int and lives over the call.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), size_of_val(&value) as u32)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn loopback(port: u16) -> libc::sockaddr_in {
    address(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
}

fn address(of: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: of.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(of.ip().octets()) },
        sin_zero: [0; 8],
    }
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor; nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
