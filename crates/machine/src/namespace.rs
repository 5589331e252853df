//! A network namespace for a while: what happens in it touches nobody else's ports, settings or counters. For laboratories and tests.

use crate::netlink::{Netlink, put_attribute};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// `RTM_NEWLINK` and `RTM_NEWADDR` of `linux/rtnetlink.h`.
const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const CREATE: u16 = 0x400;
const EXCLUSIVE: u16 = 0x200;
const UP: u32 = 1;

/// Runs something on a thread in a network namespace of its own, with its loopback up; nothing if none can be made, which needs root.
/// Threads that it starts are in the same one.
///
/// # Panics
/// If what runs panics.
pub fn inside<T: Send>(run: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            Namespace::enter_new().ok()?;
            Some(run())
        });
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// A namespace that is held open.
pub struct Namespace(OwnedFd);

impl Namespace {
    /// Makes one and moves this thread into it.
    ///
    /// # Errors
    /// Without the right to (`CAP_SYS_ADMIN`).
    pub fn enter_new() -> io::Result<Namespace> {
        crate::system::new_network_namespace()?;
        let own = Namespace::current()?;
        link_up(1)?;
        Ok(own)
    }

    /// This thread's.
    ///
    /// # Errors
    /// If `/proc` is not there.
    pub fn current() -> io::Result<Namespace> {
        Ok(Namespace(std::fs::File::open("/proc/thread-self/ns/net")?.into()))
    }

    /// Moves this thread into it.
    ///
    /// # Errors
    /// Without the right to.
    pub fn enter(&self) -> io::Result<()> {
        let kind = Some(rustix::thread::LinkNameSpaceType::Network);
        Ok(rustix::thread::move_into_link_name_space(self.0.as_fd(), kind)?)
    }

    /// Makes a pair of interfaces, `name` here and `peer` in the other one.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn pair(name: &str, peer: &str, other: &Namespace) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        /// `IFLA_IFNAME`, `IFLA_LINKINFO`, `IFLA_INFO_KIND`, `IFLA_INFO_DATA`, `IFLA_NET_NS_FD`; `VETH_INFO_PEER`.
        const NAME: u16 = 3;
        const INFO: u16 = 18;
        const KIND: u16 = 1;
        const DATA: u16 = 2;
        const NAMESPACE: u16 = 28;
        const PEER: u16 = 1;
        let mut end = link_message(0, 0);
        put_attribute(&mut end, NAME, &zero_ended(peer));
        put_attribute(&mut end, NAMESPACE, &other.0.as_raw_fd().to_ne_bytes());
        let (mut data, mut info) = (Vec::new(), Vec::new());
        put_attribute(&mut data, PEER, &end);
        put_attribute(&mut info, KIND, b"veth\0");
        put_attribute(&mut info, DATA, &data);
        let mut message = link_message(0, 0);
        put_attribute(&mut message, NAME, &zero_ended(name));
        put_attribute(&mut message, INFO, &info);
        Netlink::route()?.order(NEW_LINK, CREATE | EXCLUSIVE, &message)
    }
}

fn zero_ended(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

/// `struct ifinfomsg`
fn link_message(index: i32, flags: u32) -> Vec<u8> {
    let mut message = vec![0; 4];
    message.extend(index.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message
}

/// Sets an interface up.
///
/// # Errors
/// What the kernel says.
pub fn link_up(index: i32) -> io::Result<()> {
    Netlink::route()?.order(NEW_LINK, 0, &link_message(index, UP))
}

/// Gives an interface an IPv4 address, and sets it up.
///
/// # Errors
/// What the kernel says.
pub fn address(interface: &str, address: [u8; 4], bits: u8) -> io::Result<()> {
    let index = crate::links::index(interface).ok_or(io::ErrorKind::NotFound)?;
    let mut message = vec![2, bits, 0, 0];
    message.extend(index.to_ne_bytes());
    // IFA_LOCAL, IFA_ADDRESS
    put_attribute(&mut message, 2, &address);
    put_attribute(&mut message, 1, &address);
    Netlink::route()?.order(NEW_ADDRESS, CREATE | EXCLUSIVE, &message)?;
    link_up(index)
}
