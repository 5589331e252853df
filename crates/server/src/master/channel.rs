//! Messages between processes of a server, master and worker mostly, over a socket pair: bytes of any length with descriptors, cut into packets.
//! The master's side never blocks. Knows nothing of what the messages mean.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use zeroize::Zeroize;

/// Bytes of a packet: well below the smallest default socket buffer, so that one always fits.
const PACKET: usize = 32 * 1024;
/// Descriptors of a packet: the kernel takes 253 (`SCM_MAX_FD`).
const PACKET_FDS: usize = 250;
/// Bytes of a message: a configuration with its keys; more is a fault.
const MAX_MESSAGE: usize = 256 * 1024 * 1024;
/// Descriptors of a message: 1,000 addresses with 64 threads.
const MAX_FDS: usize = 64_000;

const MORE: u8 = 0;
const LAST: u8 = 1;

/// Something with a descriptor that stays open until it is sent.
pub type Handle = Arc<dyn AsFd + Send + Sync>;

/// A whole message.
#[derive(Debug, Default)]
pub struct Frame {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What came with it. Fewer than were sent where the process has no room for more.
    pub fds: Vec<OwnedFd>,
}

struct Packet {
    bytes: Vec<u8>,
    fds: Files,
    is_secret: bool,
}

/// Descriptors that go with bytes.
enum Files {
    /// Of several owners.
    Each(Vec<Handle>),
    /// Some of those that have one owner.
    Of(Arc<Vec<OwnedFd>>, Range<usize>),
}

impl Files {
    fn borrowed(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Files::Each(all) => all.iter().map(|fd| fd.as_fd()).collect(),
            Files::Of(all, range) => all[range.clone()].iter().map(AsFd::as_fd).collect(),
        }
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        if self.is_secret {
            self.bytes[..].zeroize();
        }
    }
}

/// One end of the pair.
pub struct Channel {
    fd: Arc<OwnedFd>,
    out: VecDeque<Packet>,
    partial: Frame,
    /// Bytes and descriptors of the largest message that is taken.
    limits: (usize, usize),
}

impl Channel {
    /// Two connected ends, closed on exec.
    pub fn pair() -> io::Result<(Channel, Channel)> {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Channel::of(a), Channel::of(b)))
    }

    /// One end of a pair that was made elsewhere.
    pub fn of(fd: OwnedFd) -> Channel {
        Channel { fd: Arc::new(fd), out: VecDeque::new(), partial: Frame::default(), limits: (MAX_MESSAGE, MAX_FDS) }
    }

    /// Takes no larger messages than this.
    pub(super) fn with_limits(self, bytes: usize, fds: usize) -> Channel {
        Channel { limits: (bytes, fds), ..self }
    }

    /// The socket, to send small messages from other threads with [`send_now`].
    pub fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// Puts a message behind those that wait. Sent by [`Channel::flush`].
    pub fn queue(&mut self, bytes: &[u8], fds: Vec<Handle>) {
        self.queue_packets(bytes, fds, false);
    }

    /// The same with a secret, of which nothing is left here when it is sent.
    pub fn queue_secret(&mut self, bytes: &[u8]) {
        self.queue_packets(bytes, Vec::new(), true);
    }

    /// The same with descriptors of one owner, which are its own again when the message has left, or is forgotten.
    pub fn queue_all(&mut self, bytes: &[u8], fds: &Arc<Vec<OwnedFd>>) {
        let ranges = (0..fds.len()).step_by(PACKET_FDS).map(|at| at..fds.len().min(at + PACKET_FDS));
        self.queue_cut(bytes, ranges.map(|range| Files::Of(fds.clone(), range)).collect(), false);
    }

    fn queue_packets(&mut self, bytes: &[u8], fds: Vec<Handle>, is_secret: bool) {
        let mut fds = fds.into_iter().peekable();
        let mut files = Vec::new();
        while fds.peek().is_some() {
            files.push(Files::Each(fds.by_ref().take(PACKET_FDS).collect()));
        }
        self.queue_cut(bytes, files, is_secret);
    }

    fn queue_cut(&mut self, bytes: &[u8], files: Vec<Files>, is_secret: bool) {
        let mut files = files.into_iter().peekable();
        let mut chunks = bytes.chunks(PACKET - 1).peekable();
        loop {
            let chunk = chunks.next().unwrap_or_default();
            let fds = files.next().unwrap_or(Files::Each(Vec::new()));
            let last = chunks.peek().is_none() && files.peek().is_none();
            let mut packet = Vec::with_capacity(chunk.len() + 1);
            packet.push(if last { LAST } else { MORE });
            packet.extend_from_slice(chunk);
            self.out.push_back(Packet { bytes: packet, fds, is_secret });
            if last {
                return;
            }
        }
    }

    /// Lets go of what was not sent: the other end is gone.
    pub fn forget(&mut self) {
        self.out.clear();
    }

    /// Whether something waits for [`Channel::flush`] until the socket is writable.
    pub fn is_waiting(&self) -> bool {
        !self.out.is_empty()
    }

    /// Sends what the socket takes without waiting.
    pub fn flush(&mut self) -> io::Result<()> {
        while let Some(packet) = self.out.front() {
            match send(&self.fd, &packet.bytes, &packet.fds.borrowed(), SendFlags::DONTWAIT) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            self.out.pop_front();
        }
        Ok(())
    }

    /// The next whole message, if it is there. An error of kind `UnexpectedEof`: the other end is gone.
    pub fn receive(&mut self) -> io::Result<Option<Frame>> {
        loop {
            let mut bytes = [0; PACKET];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let received = match recvmsg(&*self.fd, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Err(Errno::AGAIN) => return Ok(None),
                // The other end is gone and has not heard all: said once, before what it has said itself, which is heard behind that.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                other => other?,
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    self.partial.fds.extend(fds);
                }
            }
            let Some((flag, body)) = bytes[..received.bytes].split_first() else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            self.partial.bytes.extend_from_slice(body);
            let is_last = *flag == LAST;
            // It may have been a secret. One of a single packet is nowhere but in its message now.
            bytes[..received.bytes].zeroize();
            if self.partial.bytes.len() > self.limits.0 || self.partial.fds.len() > self.limits.1 {
                return Err(io::Error::other("message too large"));
            }
            if received.flags.contains(ReturnFlags::CTRUNC) {
                // Too many open files: the rest is missing, which whoever reads the message will see.
                crate::server_log!(Alert, "descriptors were lost on the channel: too many open files");
            }
            if is_last {
                return Ok(Some(std::mem::take(&mut self.partial)));
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Sends a message, from any thread, waiting for room. Messages of two threads do not meet.
pub(super) fn send_now(socket: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    static SENDING: Mutex<()> = Mutex::new(());
    let _turn = SENDING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut chunks = bytes.chunks(PACKET - 1).peekable();
    loop {
        let chunk = chunks.next().unwrap_or_default();
        let last = chunks.peek().is_none();
        send(socket, &[&[if last { LAST } else { MORE }], chunk].concat(), &[], SendFlags::empty())?;
        if last {
            return Ok(());
        }
    }
}

fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(fds));
        debug_assert!(fits, "the space is made for a packet's descriptors");
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags | SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_large_message_arrives_whole_and_in_order() {
        let (mut a, mut b) = Channel::pair().unwrap();
        let body: Vec<u8> = (0..3_000_000_u32).map(|i| i as u8).collect();
        let file: Handle = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        a.queue(&body, vec![file; 600]);
        a.queue(b"second", Vec::new());
        let mut frames = Vec::new();
        while frames.len() < 2 {
            a.flush().unwrap();
            frames.extend(b.receive().unwrap());
        }
        assert!(!a.is_waiting());
        assert!(frames[0].bytes == body);
        assert_eq!((frames[0].fds.len(), frames[1].fds.len()), (600, 0));
        assert_eq!(frames[1].bytes, b"second");
        b.queue(b"never heard", Vec::new());
        b.flush().unwrap();
        a.queue(b"the last", Vec::new());
        a.flush().unwrap();
        drop(a);
        assert_eq!(b.receive().unwrap().unwrap().bytes, b"the last");
        assert_eq!(b.receive().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn descriptors_of_one_owner_are_its_own_again() {
        let (mut a, mut b) = Channel::pair().unwrap();
        let open = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let files = Arc::new((0..300).map(|_| open()).collect::<Vec<_>>());
        a.queue_all(b"three hundred", &files);
        let mut frame = None;
        while frame.is_none() {
            a.flush().unwrap();
            frame = b.receive().unwrap();
        }
        let frame = frame.unwrap();
        assert_eq!((&frame.bytes[..], frame.fds.len()), (&b"three hundred"[..], 300));
        drop(b);
        a.queue_all(b"nobody is there", &files);
        assert!(a.flush().is_err());
        a.forget();
        assert_eq!(Arc::into_inner(files).map(|files| files.len()), Some(300));
    }

    #[test]
    fn what_is_larger_than_it_may_be_is_refused() {
        let file: Handle = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        for (bytes, fds, taken) in [(100, 0, true), (101, 0, false), (1, 1, false)] {
            let (mut a, b) = Channel::pair().unwrap();
            let mut b = b.with_limits(100, 0);
            a.queue(&vec![b'x'; bytes], vec![file.clone(); fds]);
            a.flush().unwrap();
            assert_eq!(b.receive().is_ok(), taken, "{bytes} bytes, {fds} descriptors");
        }
    }
}
