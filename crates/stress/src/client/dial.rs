//! Opens sockets towards the target: addresses, options, and the PROXY header.

use crate::machine;
use crate::plan::{Address, Plan};
use crate::system;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getpeername, getsockname, send,
    socket_with, sockopt,
};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

/// Makes sockets for one thread, its source addresses in turn.
pub(crate) struct Dialer<'p> {
    plan: &'p Plan,
    next_source: usize,
    /// See [`Dialer::with_own_ports`].
    ports: Option<Ports>,
    unix: Option<SocketAddrUnix>,
}

impl<'p> Dialer<'p> {
    /// `thread` and its number of connections decide which source address is first.
    pub(crate) fn new(plan: &'p Plan, thread: usize) -> io::Result<Dialer<'p>> {
        let unix = match &plan.address {
            Address::Unix(path) => Some(SocketAddrUnix::new(path)?),
            Address::Tcp(_) => None,
        };
        Ok(Dialer { plan, next_source: thread, ports: None, unix })
    }

    /// Chooses local ports itself, one after the other, each thread a part of them. The kernel's own search becomes slow
    /// (milliseconds a connection) once half of the ports to one target are taken.
    pub(crate) fn with_own_ports(mut self, thread: usize) -> Dialer<'p> {
        let (Address::Tcp(target), Some(range)) = (&self.plan.address, machine::local_port_range()) else {
            return self;
        };
        let sources = match self.plan.sources.is_empty() {
            false => self.plan.sources.clone(),
            true => machine::source_towards(*target).into_iter().collect(),
        };
        if !sources.is_empty() {
            self.ports = Some(Ports { sources, range, next: thread as u64, stride: self.plan.threads as u64 });
        }
        self
    }

    /// A socket that is connecting, or connected.
    pub(crate) fn dial(&mut self) -> io::Result<OwnedFd> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = match (&self.plan.address, &self.unix) {
            (Address::Tcp(address), _) => {
                let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
                let socket = socket_with(family, SocketType::STREAM, flags, None)?;
                if self.plan.close.is_none() {
                    sockopt::set_tcp_nodelay(&socket, true)?;
                }
                match &mut self.ports {
                    Some(ports) => ports.bind(&socket)?,
                    None => self.bind(&socket)?,
                }
                pending(connect(&socket, address))?;
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

    fn bind(&mut self, socket: &OwnedFd) -> io::Result<()> {
        let sources = &self.plan.sources;
        if sources.is_empty() {
            return Ok(());
        }
        let source: IpAddr = sources[self.next_source % sources.len()];
        self.next_source += 1;
        system::choose_port_late(socket);
        Ok(bind(socket, &SocketAddr::new(source, 0))?)
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

/// Local addresses and ports, one after the other.
struct Ports {
    sources: Vec<IpAddr>,
    /// First port, and how many.
    range: (u16, u32),
    next: u64,
    stride: u64,
}

impl Ports {
    fn bind(&mut self, socket: &OwnedFd) -> io::Result<()> {
        // Ports that others hold are passed over; when all were tried, there is none.
        let all = u64::from(self.range.1) * self.sources.len() as u64;
        while self.next < all {
            let (source, port) = (self.next % self.sources.len() as u64, self.next / self.sources.len() as u64);
            self.next += self.stride;
            let address = SocketAddr::new(self.sources[source as usize], self.range.0 + port as u16);
            match bind(socket, &address) {
                Err(Errno::ADDRINUSE) => {}
                other => return Ok(other?),
            }
        }
        Err(Errno::ADDRNOTAVAIL.into())
    }
}
