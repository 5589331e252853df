//! Netlink as far as facts need it: a question, and answers in many datagrams. From: the kernel. To: `sockets`, `links`.
//! What the kernel says is read with the same care as what a stranger says: lengths are checked, nothing is indexed blindly.

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};
use std::io;
use std::os::fd::OwnedFd;

/// Bytes of one answer. The kernel fills at most 32 KiB for a dump whose reader has that much room, and fewer calls cost less.
const ROOM: usize = 64 << 10;
/// Header of a message: length, kind, flags, sequence, port.
const HEADER: usize = 16;
/// Answers to one dump are at most so many datagrams: 100 million sockets would fit.
const MOST_DATAGRAMS: usize = 1 << 20;

/// Datagrams of the answer to one question.
const MOST_ANSWERS: usize = 16;

const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;

/// A netlink socket. It speaks of the network namespace in which its thread was when it was opened.
pub struct Netlink {
    fd: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

impl Netlink {
    /// One for sockets.
    ///
    /// # Errors
    /// If the kernel does not speak the protocol.
    pub fn sock_diag() -> io::Result<Netlink> {
        Netlink::open(Some(rustix::net::netlink::SOCK_DIAG))
    }

    /// One for interfaces, addresses and routes (its protocol has the number 0).
    ///
    /// # Errors
    /// If the kernel does not speak the protocol.
    pub fn route() -> io::Result<Netlink> {
        Netlink::open(None)
    }

    /// One for what has no protocol of its own.
    ///
    /// # Errors
    /// If the kernel does not speak the protocol.
    pub fn generic() -> io::Result<Netlink> {
        Netlink::open(Some(rustix::net::netlink::GENERIC))
    }

    fn open(protocol: Option<Protocol>) -> io::Result<Netlink> {
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        Ok(Netlink { fd, buffer: vec![0; ROOM], sequence: 0 })
    }

    /// Asks for all of something; `each` gets the kind and the payload of every message.
    ///
    /// # Errors
    /// What the kernel answers, or an answer that is cut.
    pub fn dump(&mut self, kind: u16, payload: &[u8], mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        self.send(kind, REQUEST | DUMP, payload)?;
        for _ in 0..MOST_DATAGRAMS {
            let (_, length) = recv(&self.fd, &mut self.buffer[..], RecvFlags::TRUNC)?;
            let bytes = self.buffer.get(..length).ok_or_else(|| io::Error::other("netlink: an answer was cut"))?;
            for message in Messages(bytes) {
                match message.kind {
                    DONE => return Ok(()),
                    ERROR => return Err(error_of(message.payload)),
                    kind => each(kind, message.payload),
                }
            }
        }
        Err(io::Error::other("netlink: the answer has no end"))
    }

    /// Asks for one thing; `take` gets the payload of what is answered.
    ///
    /// # Errors
    /// What the kernel answers, or an answer that is cut.
    pub fn ask(&mut self, kind: u16, payload: &[u8], mut take: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(kind, REQUEST | ACK, payload)?;
        for _ in 0..MOST_ANSWERS {
            let (_, length) = recv(&self.fd, &mut self.buffer[..], RecvFlags::TRUNC)?;
            let bytes = self.buffer.get(..length).ok_or_else(|| io::Error::other("netlink: an answer was cut"))?;
            for message in Messages(bytes) {
                if message.kind == ERROR {
                    let e = error_of(message.payload);
                    return if e.raw_os_error() == Some(0) { Ok(()) } else { Err(e) };
                }
                take(message.payload);
            }
        }
        Err(io::Error::other("netlink: the answer has no end"))
    }

    /// Orders something, and waits until it is done.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn order(&mut self, kind: u16, flags: u16, payload: &[u8]) -> io::Result<()> {
        self.send(kind, REQUEST | ACK | flags, payload)?;
        let (_, length) = recv(&self.fd, &mut self.buffer[..], RecvFlags::empty())?;
        let answer = Messages(self.buffer.get(..length).unwrap_or_default()).find(|m| m.kind == ERROR);
        match answer.map(|m| error_of(m.payload)) {
            Some(e) if e.raw_os_error() == Some(0) => Ok(()),
            Some(e) => Err(e),
            None => Err(io::Error::other("netlink: no answer to an order")),
        }
    }

    fn send(&mut self, kind: u16, flags: u16, payload: &[u8]) -> io::Result<()> {
        self.sequence += 1;
        let length = (HEADER + payload.len()) as u32;
        let mut message = Vec::with_capacity(length as usize);
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0_u32.to_ne_bytes());
        message.extend(payload);
        sendto(&self.fd, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }
}

fn error_of(payload: &[u8]) -> io::Error {
    io::Error::from_raw_os_error(i32::from_ne_bytes(bytes_at(payload, 0)).wrapping_neg())
}

struct Message<'a> {
    kind: u16,
    payload: &'a [u8],
}

/// The messages of a datagram, as long as they are whole.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let length = u32::from_ne_bytes(bytes_at(self.0, 0)) as usize;
        let whole = self.0.get(..length).filter(|w| w.len() >= HEADER)?;
        let kind = u16::from_ne_bytes(bytes_at(whole, 4));
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind, payload: &whole[HEADER..] })
    }
}

/// The attributes of a message, from where its fixed part ends: their kinds and their values.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes_at(rest, 0)));
        let whole = rest.get(..length).filter(|w| w.len() >= 4)?;
        let kind = u16::from_ne_bytes(bytes_at(whole, 2));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        // The two highest bits say "nested" and "network byte order".
        Some((kind & 0x3fff, &whole[4..]))
    })
}

/// Adds an attribute to a message that is being made.
pub fn put_attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend(((value.len() + 4) as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// The bytes at a place; zeros for what is not there.
pub(crate) fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|b| b.try_into().ok()).unwrap_or([0; N])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_end_where_they_are_cut() {
        let mut bytes = Vec::new();
        for kind in [7_u16, 8] {
            bytes.extend(18_u32.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0; 10]);
            bytes.extend([1, 2, 0, 0]);
        }
        let kinds = |b: &[u8]| Messages(b).map(|m| (m.kind, m.payload.to_vec())).collect::<Vec<_>>();
        assert_eq!(kinds(&bytes), [(7, vec![1, 2]), (8, vec![1, 2])]);
        assert_eq!(kinds(&bytes[..30]).len(), 1);
        assert_eq!(kinds(&[0; 40]).len(), 0, "a length of nothing ends it");
    }

    #[test]
    fn attributes_read_as_they_are_put() {
        let mut message = Vec::new();
        put_attribute(&mut message, 3, b"eth0\0");
        put_attribute(&mut message, 4, &1500_u32.to_ne_bytes());
        let all: Vec<_> = attributes(&message).collect();
        assert_eq!(all, [(3, &b"eth0\0"[..]), (4, &1500_u32.to_ne_bytes()[..])]);
        assert_eq!(attributes(&message[..6]).count(), 0);
    }
}
