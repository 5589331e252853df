//! Addresses of sockets as the kernel names them.

use crate::connection::address::Address;
use rustix::net::SocketAddrAny;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

/// An address that the kernel has given.
pub fn address(any: SocketAddrAny) -> Address {
    match SocketAddr::try_from(any.clone()) {
        Ok(a) => Address::Inet(a),
        Err(_) => {
            let path = rustix::net::SocketAddrUnix::try_from(any).ok().and_then(|u| u.path().map(|p| p.into_owned()));
            use std::os::unix::ffi::OsStringExt;
            Address::Unix(path.map_or(PathBuf::new(), |p| std::ffi::OsString::from_vec(p.into_bytes()).into()))
        }
    }
}

/// The address that a connected socket has on this side.
pub fn local_address(fd: BorrowedFd<'_>) -> Address {
    match rustix::net::getsockname(fd.as_fd()) {
        Ok(any) => address(any),
        Err(_) => Address::Unix(PathBuf::new()),
    }
}
