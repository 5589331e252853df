//! Registers descriptors with the thread's runtime. The one place where that is `unsafe`.
#![allow(unsafe_code, reason = "the runtime asks its caller to vouch for the descriptor's life")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Shared owners of one descriptor. Sealed: both keep it open, and under the same number, as long as they live.
pub trait Owner: AsRawFd + sealed::Sealed {}

impl Owner for Rc<OwnedFd> {}
impl Owner for Arc<OwnedFd> {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for std::rc::Rc<std::os::fd::OwnedFd> {}
    impl Sealed for std::sync::Arc<std::os::fd::OwnedFd> {}
}

/// Registers a descriptor; on error it is given back.
pub fn register<T: Owner>(owner: T, interest: Interest) -> Result<AsyncFd<T>, (T, io::Error)> {
    // SAFETY: an `Owner` always names the same descriptor and keeps it open until it is dropped, which the registration
    // does only after it has taken the descriptor off the runtime.
    unsafe { AsyncFd::register_with_interest(owner, interest) }.map_err(|e| e.into_parts())
}
