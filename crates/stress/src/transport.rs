//! One blocking connection to the target, for what is asked before a run. Not the way of the load.

use crate::client::dial::Dialer;
use crate::plan::tls::Tls;
use crate::plan::{Http, Plan};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::{ClientConnection, Stream};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

/// A stream with a time-out on each read.
pub(crate) struct Transport {
    /// Also for a unix socket: reading and writing are the same.
    stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
}

impl Transport {
    /// Connects, and sends the PROXY header if the plan has one.
    pub(crate) fn connect(plan: &Plan, patience: Duration) -> Result<Transport, String> {
        let mut dialer = Dialer::new(plan, 0).map_err(|e| e.to_string())?;
        let socket = dialer.dial().map_err(|e| format!("connecting: {e}"))?;
        if !wait_for(&socket, PollFlags::OUT, patience)? {
            return Err(format!(
                "connecting took longer than {patience:?}: nobody is there, a firewall drops it, or the target has no route back to this machine"
            ));
        }
        let error = rustix::net::sockopt::socket_error(&socket).and_then(|e| e);
        error.map_err(|e| format!("connecting: {}", io::Error::from(e)))?;
        dialer.introduce(&socket).map_err(|e| format!("writing: {e}"))?;
        let stream = TcpStream::from(socket);
        let set = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(patience)));
        set.map_err(|e| e.to_string())?;
        let session = |tls: &Tls| ClientConnection::new(tls.config.clone(), tls.name.clone()).map(Box::new);
        let tls = plan.tls.as_ref().map(session).transpose().map_err(|e| e.to_string())?;
        Ok(Transport { stream, tls })
    }
}

impl Transport {
    /// By ALPN, once the handshake is over; nothing without TLS.
    pub(crate) fn agreed_on_http2(&self) -> Option<bool> {
        self.tls.as_ref().map(|tls| tls.alpn_protocol() == Some(Http::Two.alpn()))
    }
}

/// Whether a bare handshake is answered in time, be it by a refusal.
pub(crate) fn is_connected(plan: &Plan, patience: Duration) -> Result<bool, String> {
    let socket = Dialer::new(plan, 0).and_then(|mut dialer| dialer.dial()).map_err(|e| e.to_string())?;
    wait_for(&socket, PollFlags::OUT, patience)
}

/// Waits until a socket is ready, or for so long; whether it is. An error is a sentence for the user.
pub(crate) fn wait_for(socket: &impl AsFd, what: PollFlags, patience: Duration) -> Result<bool, String> {
    let time = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    let ready = poll(&mut [PollFd::new(socket, what)], Some(&time)).map_err(|e| e.to_string())?;
    Ok(ready > 0)
}

impl Read for Transport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => Stream::new(tls.as_mut(), &mut self.stream).read(buffer),
            None => self.stream.read(buffer),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => Stream::new(tls.as_mut(), &mut self.stream).write(bytes),
            None => self.stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => Stream::new(tls.as_mut(), &mut self.stream).flush(),
            None => self.stream.flush(),
        }
    }
}
