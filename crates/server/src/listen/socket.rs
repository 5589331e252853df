//! Listening sockets: opened by the master from what the configuration says, one SO_REUSEPORT socket a thread and
//! address, kept through reloads, changes of the thread count and binary upgrades. Accepts nothing itself.

use super::{holder, steer};
use crate::log::error::Errno;
use crate::master::sys;
use crate::process_settings::{Keepalive, ListenAddress, ListenSpec, SocketKind};
use crate::server_log;
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often an address in use is tried again, and how long each try waits: an old process may be about to go.
const TRIES: usize = 5;
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// The environment variable that names inherited descriptors, `NGINX=6;7;8;`: nginx's own, so either can upgrade to the other.
pub const INHERIT_VARIABLE: &str = "NGINX";

/// One open socket. A clone is the same socket; it closes with its last clone.
#[derive(Clone, Debug)]
pub struct ListenSocket {
    /// The same in master and worker for the socket's whole life.
    pub id: u64,
    /// The socket, non-blocking.
    pub fd: Arc<OwnedFd>,
}

impl ListenSocket {
    fn new(fd: OwnedFd) -> ListenSocket {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        ListenSocket { id: NEXT.fetch_add(1, Ordering::Relaxed), fd: Arc::new(fd) }
    }
}

/// The open sockets of one address.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Where clients connect to.
    pub address: ListenAddress,
    /// Stream or datagram.
    pub kind: SocketKind,
    /// At least one for each thread; for a unix socket one in all.
    pub sockets: Vec<ListenSocket>,
    /// The place of the first of them in the kernel's group.
    pub first: usize,
    /// What stands before it: QUIC sockets of binaries before this one, whose connections stay with them. They are held, and
    /// not read, so that all keep their places.
    pub held: Vec<ListenSocket>,
}

impl Listener {
    /// The sockets that thread number `thread` of `threads` accepts on: its own, or the one all share. Each with its place
    /// in the kernel's group.
    pub fn of_thread(&self, thread: usize, threads: usize) -> impl Iterator<Item = (usize, &ListenSocket)> {
        let shared = matches!(self.address, ListenAddress::Unix(_));
        let own = self.sockets.iter().enumerate().filter(move |(i, _)| shared || i % threads == thread);
        own.map(|(i, socket)| (self.first + i, socket))
    }

    fn is_for(&self, spec: &ListenSpec) -> bool {
        self.address == spec.address && self.kind == spec.kind
    }
}

/// Sockets could not be opened. The reason is in the log.
#[derive(Debug)]
pub struct NotOpened;

/// All listening sockets of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Listeners {
    /// One for each address, in the order of the configuration.
    pub list: Vec<Listener>,
    /// Another binary's process has them too.
    inherited: bool,
}

impl Listeners {
    /// Takes over the sockets a process of another binary left, from the value of [`INHERIT_VARIABLE`].
    pub fn inherited(value: &str) -> Listeners {
        server_log!(Notice, "using inherited sockets from \"{value}\"");
        let mut listeners = Listeners { inherited: true, ..Listeners::default() };
        let mut numbers: Vec<&str> = value.split([':', ';']).collect();
        if let Some(rest) = numbers.pop().filter(|rest| !rest.is_empty()) {
            server_log!(Emerg, "invalid socket number \"{rest}\" in {INHERIT_VARIABLE} environment variable, ignoring");
        }
        for number in numbers {
            let Ok(fd) = number.parse::<RawFd>() else {
                server_log!(
                    Emerg,
                    "invalid socket number \"{number}\" in {INHERIT_VARIABLE} environment variable, ignoring the rest of the variable"
                );
                break;
            };
            match take_over(fd) {
                Ok((address, kind, socket)) => listeners.add(address, kind, socket),
                Err(e) => server_log!(Crit, "getsockname() of the inherited socket #{fd} failed {}", Errno(&e)),
            }
        }
        listeners
    }

    fn add(&mut self, address: ListenAddress, kind: SocketKind, socket: ListenSocket) {
        match self.list.iter_mut().find(|l| l.address == address && l.kind == kind) {
            Some(listener) => listener.sockets.push(socket),
            None => self.list.push(Listener { address, kind, sockets: vec![socket], first: 0, held: Vec::new() }),
        }
    }

    /// The sockets `specs` ask for with `threads` threads. Those open here are used again, with the options of
    /// `specs`; on failure everything is as before. Waits while an address is in use.
    pub fn open(&self, specs: &[ListenSpec], threads: usize) -> Result<Listeners, NotOpened> {
        let mut list: Vec<Listener> = specs.iter().map(|spec| self.kept(spec)).collect();
        let mut told = Vec::new();
        for left in (0..TRIES).rev() {
            let mut in_use = false;
            for (spec, listener) in specs.iter().zip(&mut list) {
                in_use |= !self.complete(spec, listener, threads, &mut told)?;
            }
            if !in_use {
                specs.iter().zip(&list).for_each(|(spec, listener)| configure(spec, listener));
                return Ok(Listeners { list, inherited: false });
            }
            if left > 0 {
                std::thread::sleep(RETRY_AFTER);
            }
        }
        server_log!(Emerg, "still could not bind()");
        Err(NotOpened)
    }

    /// Finds out whether `specs` can be bound, for `-t`. Listens nowhere and shares nothing, so that a server that runs loses no
    /// connection and no datagram; an address in use is as it should be. All failures are logged.
    pub fn try_out(specs: &[ListenSpec]) -> Result<(), NotOpened> {
        let mut outcome = Ok(());
        for spec in specs {
            match bind(spec, Sharing::Nobody) {
                Ok(_) => {
                    if let ListenAddress::Unix(path) = &spec.address
                        && !is_abstract(path)
                    {
                        remove(path);
                    }
                }
                Err((_, e)) if e.kind() == io::ErrorKind::AddrInUse => {}
                Err((step, e)) => {
                    server_log!(Emerg, "{step} failed {}", Errno(&e));
                    outcome = Err(NotOpened);
                }
            }
        }
        outcome
    }

    /// What is open here of what `spec` asks for.
    fn kept(&self, spec: &ListenSpec) -> Listener {
        let found = self.list.iter().find(|l| l.is_for(spec));
        let mut listener = found.cloned().unwrap_or_else(|| Listener {
            address: spec.address.clone(),
            kind: spec.kind,
            sockets: Vec::new(),
            first: 0,
            held: Vec::new(),
        });
        // Two processes that read one QUIC socket would take each other's packets: this one opens its own beside those.
        if self.inherited && spec.quic && !spec.unsteered {
            listener.held = std::mem::take(&mut listener.sockets);
            listener.first = listener.held.len();
        }
        listener
    }

    /// Opens what `listener` lacks. `Ok(false)`: the address is in use, which is said once; `told`: what was said already.
    fn complete(
        &self,
        spec: &ListenSpec,
        listener: &mut Listener,
        threads: usize,
        told: &mut Vec<String>,
    ) -> Result<bool, NotOpened> {
        let wanted = if matches!(spec.address, ListenAddress::Unix(_)) { 1 } else { threads.max(1) };
        if listener.sockets.len() >= wanted {
            return Ok(true);
        }
        if wanted > 1 {
            listener.sockets.iter().for_each(|socket| share(socket, spec));
        }
        // Another program's socket must not be shared by accident: the first one is bound without SO_REUSEPORT, and
        // fails if somebody listens. Our own sockets of an overlapping address (`*:80` beside `127.0.0.1:80`) may stay.
        let beside = |l: &&Listener| overlaps(l, spec) || (listener.first > 0 && l.is_for(spec));
        let overlapping: Vec<_> = self.list.iter().filter(beside).collect();
        overlapping.iter().flat_map(|l| &l.sockets).for_each(|socket| share(socket, spec));
        while listener.sockets.len() < wanted {
            let alone = listener.sockets.is_empty() && overlapping.is_empty() && !spec.reuseport;
            let sharing = match (alone, wanted > 1) {
                (false, _) => Sharing::AtOnce,
                (true, true) => Sharing::Later,
                (true, false) => Sharing::Alone,
            };
            match open(spec, sharing) {
                Ok(fd) => listener.sockets.push(ListenSocket::new(fd)),
                Err((step, e)) if e.kind() == io::ErrorKind::AddrInUse => {
                    if !told.contains(&step) {
                        let holder = holder::of(spec).map_or_else(String::new, |who| format!(": {who} has it"));
                        server_log!(Emerg, "{step} failed {}{holder}", Errno(&e));
                        told.push(step);
                    }
                    return Ok(false);
                }
                Err((step, e)) => {
                    server_log!(Emerg, "{step} failed {}", Errno(&e));
                    return Err(NotOpened);
                }
            }
        }
        Ok(true)
    }

    /// Removes the files of unix sockets that `next` does not have.
    pub fn unlink_except(&self, next: &Listeners) {
        for listener in &self.list {
            if next.list.iter().any(|l| l.address == listener.address) {
                continue;
            }
            if let ListenAddress::Unix(path) = &listener.address
                && !is_abstract(path)
            {
                server_log!(Warn, "deleting socket {}", path.display());
                remove(path);
            }
        }
    }

    /// The value of [`INHERIT_VARIABLE`] for a new binary, and the descriptors that must survive its exec.
    pub fn to_inherit(&self) -> (String, Vec<Arc<OwnedFd>>) {
        let all = self.list.iter().flat_map(|l| l.held.iter().chain(&l.sockets));
        let fds: Vec<_> = all.map(|socket| Arc::clone(&socket.fd)).collect();
        let value = fds.iter().map(|fd| format!("{};", fd.as_raw_fd())).collect();
        (value, fds)
    }
}

fn remove(path: &Path) {
    if let Err(e) = std::fs::remove_file(path) {
        server_log!(Emerg, "unlink() {} failed {}", path.display(), Errno(&e));
    }
}

/// Whether a unix socket's name is no file's.
fn is_abstract(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().first().is_none_or(|b| *b == 0)
}

fn overlaps(listener: &Listener, spec: &ListenSpec) -> bool {
    let (ListenAddress::Inet(a), ListenAddress::Inet(b)) = (&listener.address, &spec.address) else { return false };
    let wildcard = a.ip().is_unspecified() || b.ip().is_unspecified();
    a != b && a.port() == b.port() && listener.kind == spec.kind && wildcard
}

/// Lets further sockets be bound to the address of one that is open.
fn share(socket: &ListenSocket, spec: &ListenSpec) {
    if let Err(e) = rustix::net::sockopt::set_socket_reuseport(&*socket.fd, true) {
        server_log!(Alert, "setsockopt(SO_REUSEPORT) {} failed, ignored {}", spec.address, Errno(&e.into()));
    }
}

fn take_over(number: RawFd) -> io::Result<(ListenAddress, SocketKind, ListenSocket)> {
    let socket = Socket::from(sys::inherited(number)?);
    let name = socket.local_addr()?;
    let address = match (name.as_socket(), name.as_pathname()) {
        (Some(address), _) => ListenAddress::Inet(address),
        (None, Some(path)) => ListenAddress::Unix(path.to_owned()),
        (None, None) => return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
    };
    let kind = if socket.r#type()? == Type::DGRAM { SocketKind::Datagram } else { SocketKind::Stream };
    socket.set_nonblocking(true)?;
    socket.set_cloexec(true)?;
    Ok((address, kind, ListenSocket::new(OwnedFd::from(socket))))
}

/// Whether connections of this kind can have several paths: those of TCP.
fn kind_has_paths(spec: &ListenSpec) -> bool {
    spec.kind == SocketKind::Stream && matches!(spec.address, ListenAddress::Inet(_))
}

/// Who may bind a socket to the same address.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    /// No one, and it takes no address that another still has.
    Nobody,
    /// Our own further sockets, once this one is bound.
    Later,
    /// Sockets bound before it too.
    AtOnce,
    /// No other, but what is left of connections (TIME_WAIT) does not matter.
    Alone,
}

/// Opens one socket and listens. The error names the step in nginx's words.
fn open(spec: &ListenSpec, sharing: Sharing) -> Result<OwnedFd, (String, io::Error)> {
    let socket = bind(spec, sharing)?;
    if let ListenAddress::Unix(path) = &spec.address {
        make_public(path);
    }
    if spec.kind == SocketKind::Stream {
        let failed = |e| (format!("listen() to {}, backlog {}", spec.address, spec.backlog), e);
        socket.listen(spec.backlog).map_err(failed)?;
    }
    Ok(OwnedFd::from(socket))
}

fn bind(spec: &ListenSpec, sharing: Sharing) -> Result<Socket, (String, io::Error)> {
    let address = &spec.address;
    let (domain, name) = match address {
        ListenAddress::Inet(a) => (Domain::for_address(*a), SockAddr::from(*a)),
        ListenAddress::Unix(path) => {
            (Domain::UNIX, SockAddr::unix(path).map_err(|e| (format!("bind() to {address}"), e))?)
        }
    };
    let kind = if spec.kind == SocketKind::Datagram { Type::DGRAM } else { Type::STREAM };
    let kind = kind.nonblocking().cloexec();
    let multipath = spec.multipath && kind_has_paths(spec);
    let socket = match Socket::new(domain, kind, multipath.then_some(Protocol::MPTCP)) {
        // The kernel has none, or `net.mptcp.enabled` is 0: clients fall back in the same way.
        Err(e) if multipath => {
            server_log!(Warn, "{address} is listened on without multipath TCP: socket() failed {}", Errno(&e));
            Socket::new(domain, kind, None)
        }
        opened => opened,
    };
    let socket = socket.map_err(|e| (format!("socket() {address}"), e))?;
    if sharing != Sharing::Nobody {
        socket.set_reuse_address(true).map_err(|e| (format!("setsockopt(SO_REUSEADDR) {address}"), e))?;
    }
    let share = || socket.set_reuse_port(true).map_err(|e| (format!("setsockopt(SO_REUSEPORT) {address}"), e));
    let inet = matches!(address, ListenAddress::Inet(_));
    if inet && sharing == Sharing::AtOnce {
        share()?;
    }
    if domain == Domain::IPV6
        && let Err(e) = socket.set_only_v6(spec.ipv6only)
    {
        server_log!(Emerg, "setsockopt(IPV6_V6ONLY) {address} failed, ignored {}", Errno(&e));
    }
    socket.bind(&name).map_err(|e| (format!("bind() to {address}"), e))?;
    if inet && sharing == Sharing::Later {
        share()?;
    }
    Ok(socket)
}

/// Clients of every user may connect.
fn make_public(path: &Path) {
    if is_abstract(path) {
        return;
    }
    if let Err(e) = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)) {
        server_log!(Emerg, "chmod() \"{}\" failed {}", path.display(), Errno(&e));
    }
}

/// Sets the options that can change while a socket is open. Failures are logged and change nothing else.
fn configure(spec: &ListenSpec, listener: &Listener) {
    for socket in &listener.sockets {
        let socket = socket2::SockRef::from(&*socket.fd);
        let check = |option: String, result: io::Result<()>| {
            if let Err(e) = result {
                server_log!(Alert, "setsockopt({option}) {} failed, ignored {}", spec.address, Errno(&e));
            }
        };
        if let Some(bytes) = spec.rcvbuf {
            check(format!("SO_RCVBUF, {bytes}"), socket.set_recv_buffer_size(bytes));
        }
        if let Some(bytes) = spec.sndbuf {
            check(format!("SO_SNDBUF, {bytes}"), socket.set_send_buffer_size(bytes));
        }
        if spec.kind == SocketKind::Datagram {
            if let Some((name, result)) = tell_destination(&socket, &spec.address) {
                check(name, result);
            }
            if spec.quic && listener.sockets.len() + listener.first > 1 {
                let own = steer::Own { ahead: listener.first, count: listener.sockets.len() };
                let result = if spec.unsteered { steer::no_more(&socket) } else { steer::steer(&socket, own) };
                check("SO_ATTACH_REUSEPORT_CBPF".to_owned(), result);
            }
            continue;
        }
        if let Some(keepalive) = spec.keepalive {
            check(format!("SO_KEEPALIVE, {}", u8::from(keepalive.on)), set_keepalive(&socket, keepalive));
        }
        if let Err(e) = socket.listen(spec.backlog) {
            let backlog = spec.backlog;
            server_log!(Alert, "listen() to {}, backlog {backlog} failed, ignored {}", spec.address, Errno(&e));
        }
        if let ListenAddress::Inet(_) = spec.address {
            if let Some(length) = spec.fastopen {
                let set = sys::set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_FASTOPEN, length as i32);
                check(format!("TCP_FASTOPEN, {length}"), set);
            }
            // The shortest wait there is: the kernel hands the connection over without data after it.
            let seconds = i32::from(spec.deferred);
            let set = sys::set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, seconds);
            check(format!("TCP_DEFER_ACCEPT, {seconds}"), set);
        }
    }
}

/// A socket for all addresses has each datagram say which one it was sent to: answers come from there.
fn tell_destination(socket: &Socket, address: &ListenAddress) -> Option<(String, io::Result<()>)> {
    let set = |level, option| sys::set_option(socket.as_fd(), level, option, 1);
    match address {
        ListenAddress::Inet(a) if !a.ip().is_unspecified() => None,
        ListenAddress::Inet(SocketAddr::V4(_)) => {
            Some(("IP_PKTINFO".to_owned(), set(libc::IPPROTO_IP, libc::IP_PKTINFO)))
        }
        ListenAddress::Inet(SocketAddr::V6(_)) => {
            Some(("IPV6_RECVPKTINFO".to_owned(), set(libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)))
        }
        ListenAddress::Unix(_) => None,
    }
}

fn set_keepalive(socket: &Socket, keepalive: Keepalive) -> io::Result<()> {
    socket.set_keepalive(keepalive.on)?;
    let mut parameters = TcpKeepalive::new();
    if let Some(idle) = keepalive.idle {
        parameters = parameters.with_time(idle);
    }
    if let Some(interval) = keepalive.interval {
        parameters = parameters.with_interval(interval);
    }
    if let Some(count) = keepalive.count {
        parameters = parameters.with_retries(count);
    }
    if keepalive.on && keepalive != (Keepalive { on: true, ..Keepalive::default() }) {
        socket.set_tcp_keepalive(&parameters)?;
    }
    Ok(())
}

/// The address a socket is bound to, for tests and for `listen ...:0`.
pub fn local_address(socket: &ListenSocket) -> Option<SocketAddr> {
    socket2::SockRef::from(&*socket.fd).local_addr().ok()?.as_socket()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "socket_tests.rs"]
mod tests;
