//! A prober's connection to a peer: TCP or a unix socket, perhaps with TLS. Failures come as the cause they are of.
//!
//! Each step is tried at the next beat of the prober's thread, when on most networks its turn has come; only what is slower is
//! registered with epoll. So a usual check on a new connection is `socket`, `connect` two or three times, `send`, `recv`, `close`.

use super::cause::Cause;
use crate::connection::Address;
use crate::connection::socket::Socket;
use crate::connection::tls::Tls;
use crate::engine;
use crate::tls::client::Secure;
use crate::upstream::connect;
use crate::worker::clock;
use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};
use std::future::poll_fn;
use std::io::{self, ErrorKind as Kind};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Bytes read at once.
const PIECE: usize = 4096;

/// A connection.
pub struct Link {
    socket: Socket,
    /// Something was sent, and no answer was looked for yet.
    asked: bool,
    /// Checks made on it.
    pub used: u32,
    /// When it was made (monotonic ms).
    pub since_ms: u64,
}

impl Link {
    /// Connects.
    ///
    /// # Errors
    /// Refused, unreachable, or this machine's fault.
    pub async fn connect(to: &Address) -> Result<Link, Cause> {
        let socket = dial(SocketType::STREAM, to).await.map_err(|e| of_connect(&e, to))?;
        Ok(Link { socket, asked: false, used: 0, since_ms: clock::monotonic_ms() })
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
        secure.verify(chain, clock::wall_seconds()).map_err(failed)?;
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
        self.socket.write_all(bytes).await.map_err(|e| of_break(&e))
    }

    /// Waits for bytes and appends them. 0: the peer has closed.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn receive(&mut self, into: &mut Vec<u8>) -> Result<usize, Cause> {
        if std::mem::take(&mut self.asked) {
            engine::beat().await;
        }
        into.reserve(PIECE);
        self.socket.read(into).await.map_err(|e| of_break(&e))
    }

    /// Says goodbye by a RST: all that was wanted has come, and neither side keeps anything of the connection.
    pub fn abort(self) {
        if !self.is_secure() {
            let _ = sockopt::set_socket_linger(self.socket.as_fd(), Some(Duration::ZERO));
        }
    }

    /// Whether the peer has neither closed nor said anything.
    pub fn is_quiet(&mut self) -> bool {
        self.socket.try_read(&mut Vec::with_capacity(1)).is_err_and(|e| e.kind() == Kind::WouldBlock)
    }
}

/// A socket connected to an address.
pub async fn dial(kind: SocketType, to: &Address) -> io::Result<Socket> {
    join(connect::open(kind, to)?, to).await
}

/// Sends a SYN, and a RST if it is answered: the last ACK of the handshake is put off for as long as the kernel puts off ACKs
/// (200 ms), and the socket is gone before. So the program behind the port never sees a connection, as with a SYN from a raw
/// socket, which would need rights.
///
/// # Errors
/// Refused, unreachable, or this machine's fault.
pub async fn half_open(to: &Address) -> Result<(), Cause> {
    let knock = async {
        let fd = connect::open(SocketType::STREAM, to)?;
        if let Address::Inet(_) = to {
            sockopt::set_tcp_quickack(&fd, false)?;
            sockopt::set_socket_linger(&fd, Some(Duration::ZERO))?;
        }
        join(fd, to).await
    };
    knock.await.map(drop).map_err(|e| of_connect(&e, to))
}

async fn join(fd: OwnedFd, to: &Address) -> io::Result<Socket> {
    // On this host a connection stands when the first call returns, though that does not say so: the second does.
    for number in 0..3 {
        if number == 2 {
            engine::beat().await;
        }
        match connect::call(&fd, to) {
            Ok(()) | Err(Errno::ISCONN) => return Ok(Socket::new(fd)),
            Err(Errno::INPROGRESS | Errno::ALREADY) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let mut socket = Socket::new(fd);
    poll_fn(|cx| socket.poll_writable(cx)).await?;
    sockopt::socket_error(socket.as_fd())??;
    Ok(socket)
}

/// Why a connection could not be made.
pub fn of_connect(e: &io::Error, to: &Address) -> Cause {
    let text = || crate::log::os_error(e).into();
    match e.kind() {
        Kind::ConnectionRefused | Kind::NotFound => Cause::Refused { at: crate::upstream::peer::name_of(to).into() },
        Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::NetworkDown => Cause::Unreachable(text()),
        Kind::ConnectionReset | Kind::TimedOut => Cause::Broken(text()),
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
