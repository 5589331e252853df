//! The TLS of one connection: bytes of the socket in, bytes of answers out, and the other way.

use crate::plan::Http;
use crate::plan::tls::Tls;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustls::{ClientConnection, HandshakeKind};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

/// A connection's session.
pub(crate) struct TlsSession(ClientConnection);

impl TlsSession {
    pub(crate) fn new(tls: &Tls) -> Result<TlsSession, rustls::Error> {
        let mut session = ClientConnection::new(tls.config.clone(), tls.name.clone())?;
        // Requests are handed over whole, whatever their size.
        session.set_buffer_limit(None);
        Ok(TlsSession(session))
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.0.is_handshaking()
    }

    /// By ALPN.
    pub(crate) fn agreed_on(&self, http: Http) -> bool {
        self.0.alpn_protocol() == Some(http.alpn())
    }

    pub(crate) fn is_resumed(&self) -> bool {
        self.0.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Takes some bytes of the socket; how many.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> io::Result<usize> {
        let before = bytes.len();
        while !bytes.is_empty() {
            if self.0.read_tls(&mut bytes)? == 0 {
                break;
            }
            self.0.process_new_packets().map_err(io::Error::other)?;
        }
        Ok(before - bytes.len())
    }

    /// Deciphered bytes; 0 if there are none now.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> usize {
        self.0.reader().read(buffer).unwrap_or(0)
    }

    /// Encrypts; [`TlsSession::flush`] sends it.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.writer().write_all(bytes)
    }

    pub(crate) fn say_goodbye(&mut self) {
        self.0.send_close_notify();
    }

    /// Sends what there is to send, as far as the socket takes it; how many bytes.
    pub(crate) fn flush(&mut self, socket: &OwnedFd) -> io::Result<usize> {
        let mut sent = 0;
        while self.0.wants_write() {
            match self.0.write_tls(&mut Sender(socket)) {
                Ok(count) => sent += count,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        Ok(sent)
    }
}

/// The socket as something to write to.
struct Sender<'a>(&'a OwnedFd);

impl Write for Sender<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match send(self.0, bytes, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
