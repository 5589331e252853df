//! Opens sockets towards the target: addresses, options, and the PROXY header.

use crate::plan::{Address, Http, Plan};
use crate::system;
use machine::own;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getpeername, getsockname, send,
    socket_with, sockopt,
};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// Makes sockets for one thread, its source addresses in turn.
pub(crate) struct Dialer<'p> {
    plan: &'p Plan,
    next_source: usize,
    /// A script's choice for this thread, instead of the plan's address.
    target: Option<SocketAddr>,
    /// See [`Dialer::in_windows`].
    windows: Option<Windows>,
    unix: Option<SocketAddrUnix>,
}

impl<'p> Dialer<'p> {
    /// `thread` and its number of connections decide which source address is first.
    pub(crate) fn new(plan: &'p Plan, thread: usize) -> io::Result<Dialer<'p>> {
        let unix = match &plan.address {
            Address::Unix(path) => Some(SocketAddrUnix::new(path)?),
            Address::Tcp(_) => None,
        };
        let target = plan.script.as_ref().and_then(|s| s.address(thread));
        Ok(Dialer { plan, next_source: thread, target, windows: None, unix })
    }

    /// Lets the kernel look for a local port in a small part of the range at a time, each thread beginning at another. Its
    /// search through all of it becomes slow (milliseconds a connection) once half of the ports to one target are taken.
    pub(crate) fn in_windows(mut self, thread: usize) -> Dialer<'p> {
        if let (Address::Tcp(_), Some((first, count))) = (&self.plan.address, own::local_port_range()) {
            let windows = count.div_ceil(WINDOW);
            let begin = thread as u32 * windows / self.plan.threads as u32;
            let sources = self.plan.sources.len().max(1);
            self.windows = Some(Windows { first, count, current: vec![begin; sources], begin });
        }
        self
    }

    /// A socket that is connecting, or connected.
    pub(crate) fn dial(&mut self) -> io::Result<OwnedFd> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = match (&self.plan.address, &self.unix) {
            (Address::Tcp(address), _) => {
                let address = &self.target.unwrap_or(*address);
                let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
                let is_quic = self.plan.http == Http::Three;
                let kind = if is_quic { SocketType::DGRAM } else { SocketType::STREAM };
                let socket = socket_with(family, kind, flags, None)?;
                // With TLS, Nagle's algorithm would hold the request back until the server's delayed ACK of our Finished.
                if !is_quic && (self.plan.close.is_none() || self.plan.tls.is_some()) {
                    sockopt::set_tcp_nodelay(&socket, true)?;
                }
                let source = self.bind(&socket)?;
                match &mut self.windows {
                    Some(windows) => windows.connect(&socket, source, address)?,
                    None => match connect(&socket, address) {
                        // What UDP says when no local port is left.
                        Err(Errno::AGAIN) if is_quic => return Err(Errno::ADDRNOTAVAIL.into()),
                        outcome => pending(outcome)?,
                    },
                }
                socket
            }
            (Address::Unix(_), Some(path)) => {
                let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                pending(connect(&socket, path))?;
                socket
            }
            (Address::Unix(_), None) => return Err(Errno::INVAL.into()),
        };
        Ok(socket)
    }

    /// The target's address; an error if it is none.
    pub(crate) fn target(&self) -> io::Result<SocketAddr> {
        match &self.plan.address {
            Address::Tcp(address) => Ok(self.target.unwrap_or(*address)),
            Address::Unix(_) => Err(Errno::INVAL.into()),
        }
    }

    /// Binds to the next source address; which one.
    fn bind(&mut self, socket: &OwnedFd) -> io::Result<usize> {
        let sources = &self.plan.sources;
        if sources.is_empty() {
            return Ok(0);
        }
        let number = self.next_source % sources.len();
        self.next_source += 1;
        system::choose_port_late(socket);
        bind(socket, &SocketAddr::new(sources[number], 0))?;
        Ok(number)
    }

    /// Sends the PROXY header, if there is to be one. It fits any socket's buffer; the kernel holds it back for the request.
    pub(crate) fn introduce(&self, socket: &OwnedFd) -> io::Result<()> {
        let Some(version) = self.plan.proxy_header else { return Ok(()) };
        let own = SocketAddr::try_from(getsockname(socket)?).ok();
        let peer = getpeername(socket)?.and_then(|a| SocketAddr::try_from(a).ok());
        let mut header = Vec::with_capacity(128);
        if version == 1 {
            wire::proxy_protocol::write_v1(own.zip(peer), &mut header);
        } else {
            wire::proxy_protocol::write_v2(own.zip(peer), &[], None, &mut header);
        }
        send(socket, &header, SendFlags::NOSIGNAL | SendFlags::MORE)?;
        Ok(())
    }
}

fn pending(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Ports looked through at once.
const WINDOW: u32 = 64;

/// The part of the local ports that connections come from now, for each source address.
struct Windows {
    /// First port of all, and how many.
    first: u16,
    count: u32,
    /// Windows from the first one on; they go round.
    current: Vec<u32>,
    begin: u32,
}

impl Windows {
    /// Connects from the current window, or from the next that has a port.
    fn connect(&mut self, socket: &OwnedFd, source: usize, target: &SocketAddr) -> io::Result<()> {
        let windows = self.count.div_ceil(WINDOW);
        while self.current[source] < self.begin + windows {
            let at = self.current[source] % windows * WINDOW;
            let (low, high) = (self.first + at as u16, self.first + (at + WINDOW).min(self.count) as u16 - 1);
            system::limit_ports(socket, low, high);
            match connect(socket, target) {
                Err(Errno::ADDRNOTAVAIL) => self.current[source] += 1,
                other => return pending(other),
            }
        }
        Err(Errno::ADDRNOTAVAIL.into())
    }
}
