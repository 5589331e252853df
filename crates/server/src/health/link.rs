//! A prober's connection to a peer: TCP or a unix socket, perhaps with TLS. Failures come as the cause they are of.
//!
//! Each step is tried at the next tick of the prober's thread, when on most networks its turn has come; only what is slower is
//! registered with epoll. So a usual check on a new connection is `connect`, `send`, `recv`, `connect` to nobody, with a `setsockopt` before
//! and after `send`: what is sent first says whether the connection stands, and the last ACK of the handshake goes out with it; a socket that has said goodbye by a
//! RST serves the next check.

use super::cause::Cause;
use crate::connection::Address;
use crate::connection::socket::Socket;
use crate::connection::tls::Tls;
use crate::tls::client::Secure;
use crate::upstream::connect;
use runtime::clock;
use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, ErrorKind as Kind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Bytes read at once.
const PIECE: usize = 4096;
/// Sockets that wait for their next connection, for each family: as many as checks of a thousand peers a second end in one tick.
const MAX_SPARE: usize = 64;

thread_local! {
    /// Of IPv4, and of IPv6.
    static SPARE: RefCell<[Vec<OwnedFd>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// A connection.
pub struct ProbeLink {
    socket: Socket,
    /// Something was sent, and no answer was looked for yet.
    asked: bool,
    /// Where its socket waits for the next connection.
    shelf: Option<usize>,
    /// So many bytes of what is sent first went out when the connection was made.
    sent: usize,
    /// Checks made on it.
    pub used: u32,
    /// When it was made (monotonic ms).
    pub since_ms: u64,
}

impl ProbeLink {
    /// Connects.
    ///
    /// # Errors
    /// Refused, unreachable, or this machine's fault.
    pub async fn connect(to: &Address, opening: Opening<'_>) -> Result<ProbeLink, Cause> {
        let made = async {
            let spare = shelf_of(to).and_then(|shelf| SPARE.with_borrow_mut(|spare| spare[shelf].pop()));
            let fd = spare.map_or_else(|| connect::open(SocketType::STREAM, to), Ok)?;
            let puts_off = !matches!(opening, Opening::Theirs) && matches!(to, Address::Inet(_));
            if puts_off {
                connect::put_off_acks(&fd, to)?;
            }
            let mut socket = Socket::new(fd);
            if puts_off {
                socket.acks_are_put_off();
            }
            let first = if let Opening::Bytes(first) = opening { first } else { &[] };
            join(socket, to, first).await
        };
        let (socket, sent) = made.await.map_err(|e| of_connect(&e, to))?;
        Ok(ProbeLink { socket, shelf: shelf_of(to), asked: false, sent, used: 0, since_ms: clock::monotonic_ms() })
    }

    /// Makes it secure: the peer (with this number) is who it must be when this has gone well.
    ///
    /// # Errors
    /// The handshake's, or the certificate's.
    pub async fn shake(&mut self, secure: &Secure, peer: u32) -> Result<(), Cause> {
        let failed = |text: String| Cause::Tls(text.into());
        let plain = std::mem::replace(&mut self.socket, Socket::none());
        let tls = Tls::client(plain, secure.config(), secure.server_name(), peer);
        let mut tls = tls.map_err(|e| failed(e.to_string()))?;
        let shaken = poll_fn(|cx| tls.poll_handshake(cx)).await;
        shaken.map_err(|e| match e.kind() {
            Kind::UnexpectedEof => failed("peer closed connection in SSL handshake".to_owned()),
            Kind::InvalidData => failed(e.to_string()),
            _ => failed(crate::log::os_error(&e)),
        })?;
        let chain = tls.state().peer_certificates().unwrap_or_default();
        secure.verify(chain, clock::wall_seconds()).map_err(|distrust| failed(distrust.to_string()))?;
        self.socket = Socket::encrypted(tls);
        Ok(())
    }

    /// TLS is spoken.
    pub fn is_secure(&self) -> bool {
        self.socket.tls().is_some()
    }

    /// Sends all of it.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), Cause> {
        self.asked = true;
        match &bytes[std::mem::take(&mut self.sent)..] {
            [] => Ok(()),
            rest => self.socket.write_all(rest).await.map_err(|e| of_break(&e)),
        }
    }

    /// Waits for bytes and appends them. 0: the peer has closed.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn receive(&mut self, into: &mut Vec<u8>) -> Result<usize, Cause> {
        if std::mem::take(&mut self.asked) {
            runtime::next_tick().await;
        }
        into.reserve(PIECE);
        self.socket.read(into).await.map_err(|e| of_break(&e))
    }

    /// Says goodbye by a RST: all that was wanted has come, and neither side keeps anything of the connection.
    pub fn abort(self) {
        let (Some(shelf), Some(fd)) = (self.shelf, self.socket.into_fd()) else { return };
        if rustix::net::connect_unspec(&fd).is_ok() {
            SPARE.with_borrow_mut(|spare| {
                if spare[shelf].len() < MAX_SPARE {
                    spare[shelf].push(fd);
                }
            });
        }
    }

    /// Whether the peer has neither closed nor said anything.
    pub fn is_quiet(&mut self) -> bool {
        self.socket.try_read(&mut Vec::with_capacity(1)).is_err_and(|e| e.kind() == Kind::WouldBlock)
    }
}

/// Where a socket that was connected to an address waits, if it may be connected to any other: it keeps the interface of a
/// link-local one, and that it has spoken IPv4.
fn shelf_of(to: &Address) -> Option<usize> {
    match to {
        Address::Inet(SocketAddr::V4(_)) => Some(0),
        Address::Inet(SocketAddr::V6(a)) if a.scope_id() == 0 && a.ip().to_ipv4_mapped().is_none() => Some(1),
        Address::Inet(_) | Address::Unix(_) => None,
    }
}

/// Closes the sockets that wait for their next connection.
pub fn close_spare() {
    SPARE.with_borrow_mut(|spare| spare.iter_mut().for_each(Vec::clear));
}

/// Who says something first on a new connection.
#[derive(Clone, Copy)]
pub enum Opening<'b> {
    /// This side, by these bytes (some, and the first that [`ProbeLink::send`] is given).
    Bytes(&'b [u8]),
    /// This side, if only goodbye.
    Ours,
    /// The peer, which may not know of the connection before the last ACK of the handshake has come.
    Theirs,
}

/// A socket connected to an address.
pub async fn dial(kind: SocketType, to: &Address) -> io::Result<Socket> {
    Ok(join(Socket::new(connect::open(kind, to)?), to, &[]).await?.0)
}

/// Sends a SYN, and a RST if it is answered: the last ACK of the handshake is put off, and the socket is gone before. So the program behind the port never sees a connection, as with a SYN from a raw
/// socket, which would need rights.
///
/// # Errors
/// Refused, unreachable, or this machine's fault.
pub async fn half_open(to: &Address) -> Result<(), Cause> {
    let knock = async {
        let fd = connect::open(SocketType::STREAM, to)?;
        connect::put_off_acks(&fd, to)?;
        sockopt::set_socket_linger(&fd, Some(Duration::ZERO))?;
        join(Socket::new(fd), to, &[]).await
    };
    knock.await.map(drop).map_err(|e| of_connect(&e, to))
}

/// Connects. What of `first` was sent, if there is something: how that goes says whether the connection stands, as a further
/// `connect` does.
async fn join(mut socket: Socket, to: &Address, first: &[u8]) -> io::Result<(Socket, usize)> {
    match connect::call(socket.as_fd(), to) {
        Ok(()) => return Ok((socket, 0)),
        Err(Errno::INPROGRESS) => {}
        Err(e) => return Err(e.into()),
    }
    // On this host a connection stands when the first call returns, though that does not say so.
    for number in 0..2 {
        if number > 0 {
            runtime::next_tick().await;
        }
        if let Some(sent) = stands(&mut socket, to, first)? {
            return Ok((socket, sent));
        }
    }
    poll_fn(|cx| socket.poll_writable(cx)).await?;
    sockopt::socket_error(socket.as_fd())??;
    Ok((socket, 0))
}

/// How many bytes of `first` were sent; none if the connection does not stand yet.
fn stands(socket: &mut Socket, to: &Address, first: &[u8]) -> io::Result<Option<usize>> {
    if !first.is_empty() {
        return match socket.try_write(first, false) {
            Err(e) if matches!(e.kind(), Kind::WouldBlock | Kind::NotConnected) => Ok(None),
            sent => sent.map(Some),
        };
    }
    match connect::call(socket.as_fd(), to) {
        Ok(()) | Err(Errno::ISCONN) => Ok(Some(0)),
        Err(Errno::ALREADY) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Why a connection could not be made.
pub fn of_connect(e: &io::Error, to: &Address) -> Cause {
    let text = || crate::log::os_error(e).into();
    match e.kind() {
        Kind::ConnectionRefused | Kind::NotFound => Cause::Refused { at: crate::upstream::peer::name_of(to).into() },
        Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::NetworkDown => Cause::Unreachable(text()),
        Kind::ConnectionReset | Kind::TimedOut => Cause::Broken(text()),
        _ if connect::is_shortage(e) => Cause::Shortage(text()),
        Kind::WouldBlock => Cause::Broken("its accept queue is full".into()),
        _ => Cause::Local(text()),
    }
}

fn of_break(e: &io::Error) -> Cause {
    match e.kind() {
        Kind::BrokenPipe => Cause::Closed,
        Kind::InvalidData => Cause::Tls(e.to_string().into()),
        _ => Cause::Broken(crate::log::os_error(e).into()),
    }
}
