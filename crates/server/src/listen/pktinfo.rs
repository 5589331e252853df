//! Datagrams with the address they were sent to: a socket for all addresses has to answer from the one that was asked.
//! Wraps `recvmsg` and `sendmsg`, of which no safe form knows `IP_PKTINFO`.
#![allow(unsafe_code, reason = "control messages are read and written as the C library lays them out")]

use socket2::SockAddr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Room for the control messages of one datagram, aligned for their headers.
type Control = [u64; 8];

/// A datagram's facts.
pub struct Received {
    /// Its length.
    pub len: usize,
    /// Who sent it; none for a unix socket without a name.
    pub from: SockAddr,
    /// Where it was sent to, if the socket was told to say.
    pub to: Option<IpAddr>,
}

/// Receives one datagram, as much of it as fits.
pub fn receive(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<Received> {
    let mut control: Control = [0; 8];
    let mut piece = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let mut to = None;
    // SAFETY: the storage is written by the kernel as an address of the length it gives; the message's pointers are to
    // values that live through the call, with their true lengths.
    let (len, from) = unsafe {
        SockAddr::try_init(|name, name_len| {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_name = name.cast();
            message.msg_namelen = *name_len;
            message.msg_iov = &raw mut piece;
            message.msg_iovlen = 1;
            // The C libraries have lengths of different widths here.
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = size_of::<Control>() as _;
            let n = libc::recvmsg(fd.as_raw_fd(), &raw mut message, 0);
            if n < 0 {
                return Err(io::Error::last_os_error());
            }
            *name_len = message.msg_namelen;
            to = destination(&message);
            Ok(n as usize)
        })?
    };
    Ok(Received { len, from, to })
}

/// The address of the first control message that has one.
///
/// # Safety
/// The message's control part must be what the kernel has just written.
unsafe fn destination(message: &libc::msghdr) -> Option<IpAddr> {
    // SAFETY: the control part is the kernel's, so its headers tell true lengths; the data may be unaligned.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info: libc::in_pktinfo = data.cast::<libc::in_pktinfo>().read_unaligned();
                    return Some(Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr)).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info: libc::in6_pktinfo = data.cast::<libc::in6_pktinfo>().read_unaligned();
                    return Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                }
                _ => header = libc::CMSG_NXTHDR(message, header),
            }
        }
        None
    }
}

/// Sends one datagram, from the address `from` if there is one.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8], to: &SockAddr, from: Option<IpAddr>) -> io::Result<usize> {
    let mut control: Control = [0; 8];
    let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all bytes zero are a valid message; its pointers are to values that live through the call, with their true
    // lengths, and the kernel only reads them; the control part has room for the one header written.
    let n = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_name = to.as_ptr().cast_mut().cast();
        message.msg_namelen = to.len();
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        if let Some(from) = from {
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = size_of::<Control>() as _;
            message.msg_controllen = write_source(&message, from) as _;
        }
        libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// Writes the control message that names the source; gives its length.
///
/// # Safety
/// The message's control part must have room for it.
unsafe fn write_source(message: &libc::msghdr, from: IpAddr) -> usize {
    // SAFETY: the caller's room; the data may be unaligned.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(message);
        let data = libc::CMSG_DATA(header);
        match from {
            IpAddr::V4(ip) => {
                let mut info: libc::in_pktinfo = std::mem::zeroed();
                info.ipi_spec_dst.s_addr = u32::from(ip).to_be();
                (*header).cmsg_level = libc::IPPROTO_IP;
                (*header).cmsg_type = libc::IP_PKTINFO;
                (*header).cmsg_len = libc::CMSG_LEN(size_of_val(&info) as u32) as _;
                data.cast::<libc::in_pktinfo>().write_unaligned(info);
                libc::CMSG_SPACE(size_of_val(&info) as u32) as usize
            }
            IpAddr::V6(ip) => {
                let mut info: libc::in6_pktinfo = std::mem::zeroed();
                info.ipi6_addr.s6_addr = ip.octets();
                (*header).cmsg_level = libc::IPPROTO_IPV6;
                (*header).cmsg_type = libc::IPV6_PKTINFO;
                (*header).cmsg_len = libc::CMSG_LEN(size_of_val(&info) as u32) as _;
                data.cast::<libc::in6_pktinfo>().write_unaligned(info);
                libc::CMSG_SPACE(size_of_val(&info) as u32) as usize
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    /// All of 127.0.0.0/8 is this machine: the answer comes from the address that was asked.
    #[test]
    fn answers_come_from_the_address_that_was_asked() {
        let server = UdpSocket::bind("0.0.0.0:0").expect("a port");
        let port = server.local_addr().expect("an address").port();
        crate::master::sys::set_option(server.as_fd(), libc::IPPROTO_IP, libc::IP_PKTINFO, 1).expect("Linux has it");
        let client = UdpSocket::bind("127.0.0.1:0").expect("a port");
        client.send_to(b"question", ("127.0.0.7", port)).expect("loopback");
        let mut buf = [0; 64];
        let got = receive(server.as_fd(), &mut buf).expect("a datagram");
        assert_eq!(&buf[..got.len], b"question");
        assert_eq!(got.to, Some(Ipv4Addr::new(127, 0, 0, 7).into()));
        send(server.as_fd(), b"answer", &got.from, got.to).expect("loopback");
        let (n, from) = client.recv_from(&mut buf).expect("a datagram");
        assert_eq!(&buf[..n], b"answer");
        assert_eq!(from.to_string(), format!("127.0.0.7:{port}"));
    }
}
