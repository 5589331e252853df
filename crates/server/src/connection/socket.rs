//! A TCP or unix stream that is registered with the thread's runtime only once it has to wait.
//! A connection that asks, is answered and closes needs no registration at all. Knows no protocol.
//! With TLS it stands for the plain bytes above it (`tls`): whoever reads and writes sees no difference.

use super::tls::secrets::Secrets;
use super::tls::{Moving, Tls};
use runtime::io::{Interest, Registration};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

/// A connected, non-blocking stream socket.
pub struct Socket {
    state: State,
    interest: Interest,
    /// Not registered yet, and the kernel had no more when it was last read: whoever reads again registers first, and is told
    /// of what came meanwhile.
    drained: bool,
    /// The kernel waits with the bytes it was given last: for more, or for the end, which then leaves in the same packet.
    held: bool,
    /// The kernel puts off ACKs until something goes out: see [`Socket::acks_are_put_off`].
    late_acks: bool,
    /// TCP_NODELAY is set.
    nodelay: bool,
}

enum State {
    Plain(Rc<OwnedFd>),
    Registered(Rc<OwnedFd>, Registration),
    /// Plain bytes are on top of it; the descriptor is below.
    Tls(Box<Tls>),
    /// Only while it moves from one to the other.
    Gone,
}

impl Socket {
    /// Takes a connected, non-blocking descriptor.
    pub fn new(fd: OwnedFd) -> Socket {
        Socket::of(State::Plain(Rc::new(fd)))
    }

    /// The same for a connection to a peer: its answers are dealt with before new requests are begun.
    pub fn to_peer(fd: OwnedFd) -> Socket {
        let mut socket = Socket::new(fd);
        socket.interest = Interest::Peer;
        socket
    }

    /// The same, of one that has been a connection to a peer before.
    pub fn of_peer(mut self) -> Socket {
        match &mut self.state {
            State::Tls(tls) => tls.socket_mut().interest = Interest::Peer,
            _ => self.interest = Interest::Peer,
        }
        self
    }

    /// `TCP_QUICKACK` is off: it is set again after the first write. The kernel does not do so by itself, and then what comes in pieces
    /// from a side that waits for ACKs (no `TCP_NODELAY` there) is late by a delayed ACK, 40 ms.
    pub fn acks_are_put_off(&mut self) {
        self.late_acks = true;
    }

    /// `tcp_nodelay`: what is written leaves at once. Asks the kernel once a connection.
    pub fn set_nodelay(&mut self) {
        if let State::Tls(tls) = &mut self.state {
            return tls.socket_mut().set_nodelay();
        }
        if !std::mem::replace(&mut self.nodelay, true) {
            // A unix socket has no such option, and needs none.
            let _ = rustix::net::sockopt::set_tcp_nodelay(self.as_fd(), true);
        }
    }

    /// Whether TCP_NODELAY is set.
    pub fn is_nodelay(&self) -> bool {
        self.tls().map_or(self.nodelay, |tls| tls.socket().is_nodelay())
    }

    /// It is set already, or not.
    pub fn note_nodelay(&mut self, is_set: bool) {
        match &mut self.state {
            State::Tls(tls) => tls.socket_mut().note_nodelay(is_set),
            _ => self.nodelay = is_set,
        }
    }

    #[cold]
    fn ack_at_once(&mut self) {
        self.late_acks = false;
        // A unix socket has no such option, and was not asked to put off any.
        let _ = rustix::net::sockopt::set_tcp_quickack(self.as_fd(), true);
    }

    /// A socket that is none: what is left where one was taken away.
    pub fn none() -> Socket {
        Socket::of(State::Gone)
    }

    /// The plain bytes of a TLS connection.
    pub fn encrypted(tls: Box<Tls>) -> Socket {
        Socket::of(State::Tls(tls))
    }

    fn of(state: State) -> Socket {
        Socket { state, interest: Interest::Both, drained: false, held: false, late_acks: false, nodelay: false }
    }

    /// The TLS connection below, if there is one.
    pub fn tls(&self) -> Option<&Tls> {
        match &self.state {
            State::Tls(tls) => Some(tls),
            _ => None,
        }
    }

    /// See [`Socket::tls`].
    pub fn tls_mut(&mut self) -> Option<&mut Tls> {
        match &mut self.state {
            State::Tls(tls) => Some(tls),
            _ => None,
        }
    }

    /// The descriptor for those who only ask the kernel about it: gone when the socket is.
    pub fn handle(&self) -> Weak<OwnedFd> {
        match &self.state {
            State::Plain(fd) | State::Registered(fd, _) => Rc::downgrade(fd),
            State::Tls(tls) => tls.socket().handle(),
            State::Gone => Weak::new(),
        }
    }

    /// The descriptor itself, without its registration. None of a TLS connection, whose bytes it would not be.
    pub fn into_fd(mut self) -> Option<OwnedFd> {
        let fd = match std::mem::replace(&mut self.state, State::Gone) {
            State::Plain(fd) => fd,
            State::Registered(fd, registration) => {
                registration.remove(&*fd);
                fd
            }
            State::Tls(_) | State::Gone => return None,
        };
        Rc::try_unwrap(fd).ok()
    }

    /// The same, or the socket as it is.
    pub fn try_into_fd(mut self) -> Result<OwnedFd, Socket> {
        let (fd, registration) = match std::mem::replace(&mut self.state, State::Gone) {
            State::Plain(fd) => (fd, None),
            State::Registered(fd, registration) => (fd, Some(registration)),
            other => {
                self.state = other;
                return Err(self);
            }
        };
        match Rc::try_unwrap(fd) {
            Ok(fd) => {
                registration.into_iter().for_each(|r| r.remove(&fd));
                Ok(fd)
            }
            Err(fd) => {
                self.state = match registration {
                    Some(registration) => State::Registered(fd, registration),
                    None => State::Plain(fd),
                };
                Err(self)
            }
        }
    }

    /// Whether [`Socket::freeze`] takes it apart now, as far as it is this socket's business.
    pub fn may_freeze(&mut self) -> bool {
        self.tls_mut().is_none_or(Tls::may_freeze)
    }

    /// Whether [`Socket::may_freeze`] may say so at another time.
    pub fn can_freeze(&self) -> bool {
        self.tls().is_none_or(Tls::can_freeze)
    }

    /// The descriptor, and what is needed to go on with TLS on it, or the socket as it is.
    pub fn freeze(mut self) -> Result<(OwnedFd, Option<Secrets>), Socket> {
        let State::Tls(tls) = &mut self.state else { return self.try_into_fd().map(|fd| (fd, None)) };
        let Some((socket, secrets)) = tls.freeze() else { return Err(self) };
        match socket.try_into_fd() {
            Ok(fd) => Ok((fd, Some(secrets))),
            Err(socket) => Err(Socket::encrypted(Tls::resumed(socket, secrets, Vec::new()))),
        }
    }

    /// The descriptor, and the keys of TLS, without anything of this thread. None: bytes are held that would be lost.
    pub fn into_parts(mut self) -> Option<(OwnedFd, Option<Moving>)> {
        if let State::Tls(tls) = &mut self.state {
            let (socket, keys) = tls.take_apart()?;
            return Some((socket.into_fd()?, Some(keys)));
        }
        Some((self.into_fd()?, None))
    }

    #[inline]
    fn registered(&mut self) -> io::Result<&Registration> {
        if let State::Plain(fd) = &self.state {
            let registration = Registration::new(fd.as_fd(), self.interest)?;
            let State::Plain(fd) = std::mem::replace(&mut self.state, State::Gone) else {
                unreachable!("just matched")
            };
            self.state = State::Registered(fd, registration);
        }
        match &mut self.state {
            State::Registered(_, registration) => Ok(registration),
            State::Tls(tls) => tls.socket_mut().registered(),
            _ => unreachable!("registered above"),
        }
    }

    /// Reads into the spare room of `buf` (which must have some). `Ok(0)` is the end of the stream.
    /// After a short read the kernel is not asked again before it reports more.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        match &mut self.state {
            State::Registered(_, registration) => ready!(registration.poll_readable()),
            State::Tls(tls) => return tls.poll_read(cx, buf),
            State::Plain(_) if self.drained => ready!(self.registered()?.poll_readable()),
            State::Plain(_) | State::Gone => {}
        }
        if !runtime::may_go_on() {
            return Poll::Pending;
        }
        let room = buf.capacity() - buf.len();
        match receive(self.as_fd(), buf) {
            Ok(n) => {
                // Only a short read says that the kernel has no more: until then no new edge would be reported.
                if n > 0 && n < room {
                    match &self.state {
                        State::Registered(_, registration) => registration.clear_readable(),
                        _ => self.drained = true,
                    }
                }
                Poll::Ready(Ok(n))
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.nothing_to_read(),
            Err(e) => Poll::Ready(Err(e)),
        }
    }

    /// A read would have to wait, for an event that has perhaps come meanwhile.
    fn nothing_to_read(&mut self) -> Poll<io::Result<usize>> {
        let registration = self.registered()?;
        registration.clear_readable();
        // Closed, says the kernel, but a read would wait: it is another end of it that has closed.
        registration.poll_readable().map(|()| Err(io::ErrorKind::ConnectionReset.into()))
    }

    /// Reads by `step` in place of a buffer; `Ok(0)` is the end of the stream.
    pub fn poll_read_with(
        &mut self,
        _: &mut Context<'_>,
        mut step: impl FnMut(&Socket) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        if let State::Registered(_, registration) = &self.state {
            ready!(registration.poll_readable());
        }
        if !runtime::may_go_on() {
            return Poll::Pending;
        }
        match step(self) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.nothing_to_read(),
            other => Poll::Ready(other),
        }
    }

    /// Reads what is there now; `WouldBlock` when nothing is.
    pub fn try_read(&mut self, buf: &mut Vec<u8>) -> io::Result<usize> {
        if let State::Tls(tls) = &mut self.state {
            return tls.try_read(buf);
        }
        receive(self.as_fd(), buf)
    }

    /// See [`Socket::poll_read`].
    pub async fn read(&mut self, buf: &mut Vec<u8>) -> io::Result<usize> {
        poll_fn(|cx| self.poll_read(cx, buf)).await
    }

    /// Whether something has come, or is sure to, that nobody has read: closed now, the other side would see a reset. Asks the
    /// kernel nothing.
    pub fn has_unread(&self) -> bool {
        match &self.state {
            State::Registered(_, registration) => registration.is_readable(),
            State::Tls(tls) => tls.expects_more() || tls.socket().has_unread(),
            State::Plain(_) | State::Gone => false,
        }
    }

    /// Ready when a read would not wait. Asks the kernel nothing.
    pub fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let State::Tls(tls) = &mut self.state {
            return tls.poll_readable(cx);
        }
        self.registered()?.poll_readable().map(Ok)
    }

    /// Whether the other side has closed its direction (or all), as far as the kernel has said; the task is
    /// woken when it says more. Data before the end do not count as closed.
    pub fn poll_closed(&mut self, _: &mut Context<'_>) -> Poll<()> {
        let Ok(registration) = self.registered() else { return Poll::Pending };
        registration.poll_closed()
    }

    /// Writes once; `WouldBlock` when the kernel takes nothing now. `more`: further bytes or the close follow at once (MSG_MORE).
    pub fn try_write(&mut self, bytes: &[u8], more: bool) -> io::Result<usize> {
        if let State::Tls(tls) = &mut self.state {
            return tls.try_write(bytes, more);
        }
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, more);
        let sent = retry(|| rustix::net::send(self.as_fd(), bytes, flags))?;
        self.held = more;
        if self.late_acks {
            self.ack_at_once();
        }
        Ok(sent)
    }

    /// The kernel waits with what it was given (TCP_CORK), and is to send it with the end.
    pub fn hold(&mut self) {
        match &mut self.state {
            State::Tls(tls) => tls.socket_mut().hold(),
            _ => self.held = true,
        }
    }

    /// Whether the kernel still waits with bytes: those of [`Socket::try_write`] because `more` was to follow, or [`Socket::hold`].
    pub fn is_held(&self) -> bool {
        match &self.state {
            State::Tls(tls) => tls.socket().is_held(),
            _ => self.held,
        }
    }

    /// Writes two pieces in one call.
    pub fn try_write_two(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        if let State::Tls(tls) = &mut self.state {
            return tls.try_write_two(first, second);
        }
        let pieces = [io::IoSlice::new(first), io::IoSlice::new(second)];
        let sent = retry(|| rustix::io::writev(self.as_fd(), &pieces))?;
        self.held = false;
        if self.late_acks {
            self.ack_at_once();
        }
        Ok(sent)
    }

    /// Lets the kernel send `len` bytes of a file from `offset`, which moves on.
    pub fn try_sendfile(&mut self, file: BorrowedFd<'_>, offset: &mut u64, len: usize) -> io::Result<usize> {
        if let State::Tls(tls) = &mut self.state {
            return tls.try_sendfile(file, offset, len);
        }
        let sent = retry(|| rustix::fs::sendfile(self.as_fd(), file, Some(offset), len))?;
        self.held = false;
        Ok(sent)
    }

    /// Ready when an idle connection is of no use any more: the other side has said something, or closed.
    pub fn poll_noise(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.state {
            State::Tls(tls) => tls.poll_noise(cx),
            _ => self.poll_readable(cx).map(|_| ()),
        }
    }

    /// Says that nothing more is written.
    pub fn shutdown(&mut self) {
        if let State::Tls(tls) = &mut self.state {
            tls.say_goodbye();
            return tls.socket_mut().shutdown();
        }
        self.held = false;
        let _ = rustix::net::shutdown(self.as_fd(), rustix::net::Shutdown::Write);
    }

    /// Ready when the kernel may take bytes: a connection that is being made is there, or has failed.
    pub fn poll_writable(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.registered()?.poll_writable().map(Ok)
    }

    /// Writes as far as the kernel takes `step`'s bytes, waiting where it does not.
    pub fn poll_write_with(
        &mut self,
        _: &mut Context<'_>,
        mut step: impl FnMut(&mut Socket) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        if !runtime::may_go_on() {
            return Poll::Pending;
        }
        match step(self) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            other => return Poll::Ready(other),
        }
        let registration = self.registered()?;
        registration.clear_writable();
        match registration.poll_writable() {
            Poll::Pending => Poll::Pending,
            // Closed, says the kernel: the next try tells how.
            Poll::Ready(()) => Poll::Ready(step(self)),
        }
    }

    /// Writes all of `bytes`, waiting as needed.
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let n = poll_fn(|cx| self.poll_write_with(cx, |s| s.try_write(bytes, false))).await?;
            bytes = &bytes[n..];
        }
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A close alone would throw away what is held if the client has sent something that nobody read.
        if self.held && matches!(self.state, State::Plain(_) | State::Registered(..)) {
            self.shutdown();
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.state {
            State::Plain(fd) | State::Registered(fd, _) => fd.as_fd(),
            State::Tls(tls) => tls.as_fd(),
            State::Gone => unreachable!("a socket keeps its descriptor between calls"),
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> i32 {
        self.as_fd().as_raw_fd()
    }
}

fn receive(fd: BorrowedFd<'_>, buf: &mut Vec<u8>) -> io::Result<usize> {
    debug_assert!(buf.capacity() > buf.len(), "a read needs room");
    retry(|| rustix::net::recv(fd, rustix::buffer::spare_capacity(buf), RecvFlags::empty()).map(|(n, _)| n))
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
            Ok(v) => return Ok(v),
        }
    }
}
