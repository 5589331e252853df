//! Connections that stand and have said nothing yet: with deferred accept the kernel keeps them to itself. Counted for
//! `stub_status`, where nginx (which accepts them) shows them as waiting. Asks the kernel for its table of sockets
//! (sock_diag(7)), so: never on the way of other requests.

use crate::process_settings::{ListenAddress, ListenSpec};
use crate::worker::counters;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};
use std::net::SocketAddr;

/// `SOCK_DIAG_BY_FAMILY`
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST | NLM_F_DUMP`
const DUMP: u16 = 0x301;
/// `NLMSG_DONE`; `NLMSG_ERROR` is less.
const DONE: u16 = 3;
/// `TCP_SYN_RECV`: the state of what was not handed over yet.
const SYN_RECV: u32 = 3;
/// Bytes of a message's head (`nlmsghdr`).
const HEAD: usize = 16;
/// Where the local port stands in an `inet_diag_msg`.
const PORT_AT: usize = HEAD + 4;
/// What one read takes: the kernel fills at most 32k.
const ROOM: usize = 32 * 1024;
/// Reads at most: a million sockets.
const READS: usize = 4096;

/// What the threads count, and these: open, and waiting.
pub fn with(listens: &[ListenSpec]) -> counters::Sum {
    let (mut sum, silent) = (counters::sum(), count(listens));
    sum.active += silent;
    sum.waiting += silent;
    sum
}

/// How many there are at the deferred listeners; 0 where the kernel does not tell.
fn count(listens: &[ListenSpec]) -> i64 {
    let deferred = listens.iter().filter(|l| l.deferred).filter_map(|l| match l.address {
        ListenAddress::Inet(address) => Some(address),
        ListenAddress::Unix(_) => None,
    });
    let addresses: Vec<SocketAddr> = deferred.collect();
    let of = |family: AddressFamily, v6: bool| {
        let mut ports: Vec<u16> = addresses.iter().filter(|a| a.is_ipv6() == v6).map(SocketAddr::port).collect();
        ports.sort_unstable();
        if ports.is_empty() { 0 } else { count_family(family, &ports).unwrap_or(0) }
    };
    of(AddressFamily::INET, false) + of(AddressFamily::INET6, true)
}

fn count_family(family: AddressFamily, ports: &[u16]) -> rustix::io::Result<i64> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
    send(&socket, &question(family), SendFlags::empty())?;
    let mut answer = Vec::with_capacity(ROOM);
    let mut total = 0;
    for _ in 0..READS {
        answer.clear();
        recv(&socket, rustix::buffer::spare_capacity(&mut answer), RecvFlags::empty())?;
        let (found, done) = count_in(&answer, ports);
        total += found;
        if done {
            break;
        }
    }
    Ok(total)
}

/// `nlmsghdr` and `inet_diag_req_v2`.
fn question(family: AddressFamily) -> Vec<u8> {
    const SOCKET_ID: [u8; 48] = [0; 48];
    let len = HEAD + 8 + SOCKET_ID.len();
    let mut bytes = Vec::with_capacity(len);
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(DUMP.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family.as_raw() as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    bytes.extend((1u32 << SYN_RECV).to_ne_bytes());
    bytes.extend(SOCKET_ID);
    bytes
}

/// Sockets with one of `ports` among an answer's messages, and whether it was the last.
fn count_in(mut bytes: &[u8], ports: &[u16]) -> (i64, bool) {
    let mut found = 0;
    while bytes.len() >= HEAD {
        let len = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
        if u16::from_ne_bytes([bytes[4], bytes[5]]) <= DONE || len < HEAD {
            return (found, true);
        }
        if let Some(port) = bytes.get(PORT_AT..PORT_AT + 2) {
            let port = u16::from_be_bytes([port[0], port[1]]);
            found += i64::from(ports.binary_search(&port).is_ok());
        }
        // Messages begin at multiples of four.
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    (found, bytes.is_empty() && found == 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn who_says_nothing_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        crate::master::sys::set_option(listener.as_fd(), libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 1).unwrap();
        let address = listener.local_addr().unwrap();
        let spec = ListenSpec { deferred: true, ..ListenSpec::new(ListenAddress::Inet(address)) };
        assert_eq!(count(std::slice::from_ref(&spec)), 0);
        let first = TcpStream::connect(address).unwrap();
        let _second = TcpStream::connect(address).unwrap();
        assert_eq!(count(std::slice::from_ref(&spec)), 2);
        assert_eq!(count(&[ListenSpec { deferred: false, ..spec.clone() }]), 0);
        drop(first);
    }

    #[test]
    fn broken_answers_end() {
        assert_eq!(count_in(&[], &[80]), (0, true));
        assert_eq!(count_in(&[0; 64], &[80]), (0, true));
        assert_eq!(count_in(&[255; 19], &[80]), (0, true));
    }
}
