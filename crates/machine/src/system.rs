//! The system calls that the libraries do not wrap. The only file of this crate with `unsafe`.
#![allow(unsafe_code, reason = "TCP_INFO and unshare have no safe wrapper in the dependencies")]

use std::mem::{size_of, zeroed};
use std::os::fd::AsRawFd;

/// What the kernel knows of a TCP connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpFacts {
    /// Smoothed round trip, microseconds. Just after the handshake: the handshake's own.
    pub rtt_us: u32,
    /// Segments sent again since it began.
    pub retransmits: u32,
}

/// Asks the kernel about a connection; nothing if it is not TCP.
pub fn tcp_facts(fd: &impl AsRawFd) -> Option<TcpFacts> {
    // SAFETY: a struct of integers, for which zeros are values.
    let mut info: libc::tcp_info = unsafe { zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `info`, and both live over the call.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &mut length)
    };
    (result == 0).then_some(TcpFacts { rtt_us: info.tcpi_rtt, retransmits: info.tcpi_total_retrans })
}

/// Gives this thread a descriptor table of its own, so that the process's limit holds for it alone.
///
/// # Errors
/// What the kernel says.
pub fn own_descriptors() -> std::io::Result<()> {
    // SAFETY: no pointers. Descriptors opened so far stay usable in both tables; the thread uses only its own from now on.
    let result = unsafe { libc::unshare(libc::CLONE_FILES) };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Moves this thread, and no other, into a new network namespace.
///
/// # Errors
/// Without the right to (`CAP_SYS_ADMIN`).
pub fn new_network_namespace() -> std::io::Result<()> {
    // SAFETY: no pointers. The flag changes what sockets this thread opens from now on; descriptors stay what they are.
    let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}
