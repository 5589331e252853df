//! A prober's connection to a peer: TCP or a unix socket, perhaps with TLS. On the service thread, so on tokio. Failures come
//! as the cause they are of.

use super::cause::Cause;
use crate::connection::Address;
use crate::tls::client::Secure;
use rustls::ClientConnection;
use std::io::{self, ErrorKind as Kind, Read, Write};
use tokio::net::{TcpStream, UnixStream};

/// Bytes read at once.
const PIECE: usize = 4096;

/// A connection.
#[derive(Debug)]
pub struct Link {
    io: Io,
    tls: Option<Box<ClientConnection>>,
    /// Checks made on it.
    pub used: u32,
    /// When it was made.
    pub since: tokio::time::Instant,
}

#[derive(Debug)]
enum Io {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What cannot be done without a wait fails with `WouldBlock`.
impl Read for &Io {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Io::Tcp(s) => s.try_read(buffer),
            Io::Unix(s) => s.try_read(buffer),
        }
    }
}

impl Write for &Io {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Io::Tcp(s) => s.try_write(bytes),
            Io::Unix(s) => s.try_write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Io {
    async fn readable(&self) -> io::Result<()> {
        match self {
            Io::Tcp(s) => s.readable().await,
            Io::Unix(s) => s.readable().await,
        }
    }

    async fn writable(&self) -> io::Result<()> {
        match self {
            Io::Tcp(s) => s.writable().await,
            Io::Unix(s) => s.writable().await,
        }
    }
}

impl Link {
    /// Connects.
    ///
    /// # Errors
    /// Refused, unreachable, or this machine's fault.
    pub async fn connect(to: &Address) -> Result<Link, Cause> {
        let io = match to {
            Address::Inet(a) => TcpStream::connect(a).await.map(Io::Tcp),
            Address::Unix(path) => UnixStream::connect(path).await.map(Io::Unix),
        };
        let io = io.map_err(|e| of_connect(&e, to))?;
        Ok(Link { io, tls: None, used: 0, since: tokio::time::Instant::now() })
    }

    /// Makes it secure: the peer is who it must be when this has gone well.
    ///
    /// # Errors
    /// The handshake's, or the certificate's.
    pub async fn shake(&mut self, secure: &Secure) -> Result<(), Cause> {
        let tls = |text: String| Cause::Tls(text.into());
        let made = ClientConnection::new(secure.config(), secure.server_name());
        let connection = self.tls.insert(Box::new(made.map_err(|e| tls(e.to_string()))?));
        while connection.is_handshaking() {
            match step(&self.io, connection).await {
                Ok(true) => {}
                Ok(false) => return Err(tls("peer closed connection in SSL handshake".to_owned())),
                Err(e) if e.kind() == Kind::InvalidData => return Err(tls(e.to_string())),
                Err(e) => return Err(tls(crate::log::os_error(&e))),
            }
        }
        let chain = connection.peer_certificates().unwrap_or_default();
        secure.verify(chain, crate::worker::clock::wall_seconds()).map_err(tls)
    }

    /// TLS is spoken.
    pub fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Sends all of it.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), Cause> {
        let sent = match &mut self.tls {
            None => write_all(&self.io, bytes).await,
            Some(tls) => match tls.writer().write_all(bytes) {
                Ok(()) => flush(&self.io, tls).await,
                Err(e) => Err(e),
            },
        };
        sent.map_err(|e| of_break(&e))
    }

    /// Waits for bytes and appends them. 0: the peer has closed.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn receive(&mut self, into: &mut Vec<u8>) -> Result<usize, Cause> {
        let mut piece = [0; PIECE];
        loop {
            let read = match &mut self.tls {
                None => (&self.io).read(&mut piece),
                Some(tls) => tls.reader().read(&mut piece),
            };
            match read {
                Ok(n) => {
                    into.extend_from_slice(&piece[..n]);
                    return Ok(n);
                }
                // A peer that ends TLS without a word has closed all the same.
                Err(e) if e.kind() == Kind::UnexpectedEof => return Ok(0),
                Err(e) if e.kind() != Kind::WouldBlock => return Err(of_break(&e)),
                Err(_) => {}
            }
            match &mut self.tls {
                None => self.io.readable().await.map_err(|e| of_break(&e))?,
                Some(tls) => {
                    if !step(&self.io, tls).await.map_err(|e| of_break(&e))? {
                        return Ok(0);
                    }
                }
            }
        }
    }

    /// Whether the peer has neither closed nor said anything.
    pub fn is_quiet(&self) -> bool {
        let mut byte = [0; 1];
        (&self.io).read(&mut byte).is_err_and(|e| e.kind() == Kind::WouldBlock)
    }
}

async fn write_all(io: &Io, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match (&*io).write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == Kind::WouldBlock => io.writable().await?,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

async fn flush(io: &Io, tls: &mut ClientConnection) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(&mut &*io) {
            Ok(_) => {}
            Err(e) if e.kind() == Kind::WouldBlock => io.writable().await?,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes what TLS has to say, then reads once. False: the peer has closed.
async fn step(io: &Io, tls: &mut ClientConnection) -> io::Result<bool> {
    flush(io, tls).await?;
    if !tls.wants_read() {
        return Ok(true);
    }
    loop {
        match tls.read_tls(&mut &*io) {
            Ok(0) => return Ok(false),
            Ok(_) => break,
            Err(e) if e.kind() == Kind::WouldBlock => io.readable().await?,
            Err(e) => return Err(e),
        }
    }
    let state = tls.process_new_packets().map_err(|e| io::Error::new(Kind::InvalidData, e));
    // An alert of ours is worth a try, whatever was wrong.
    flush(io, tls).await?;
    state.map(|_| true)
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
