//! Opens a connection to a peer.

use super::ports;
use super::settings::UpstreamSettings;
use crate::connection::Address;
use crate::connection::socket::Socket;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

/// A unix socket whose queue is full is asked again after so long, then after twice as long each time ...
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// ... up to this: who waits is short of patience (`proxy_connect_timeout`), not of processor time.
const LONGEST_PAUSE: Duration = Duration::from_millis(32);
/// Connections that found a queue full together do not come back together: by their descriptors they come up to so many milliseconds apart.
const SPREAD_MS: u64 = 7;

/// A connection under way.
pub struct Connecting {
    /// The socket.
    pub socket: Socket,
    /// It stands already.
    pub done: bool,
    /// The queue of this unix socket was full: there is nothing to wait for but time.
    full: Option<Box<Address>>,
}

/// Why a connection could not even be begun; names the call that failed, as nginx's log does.
pub struct Failed {
    /// `socket()`, `bind()`, `connect()`.
    pub call: &'static str,
    /// What the kernel said.
    pub error: io::Error,
    /// It failed without a wait.
    pub at_once: bool,
}

impl Failed {
    /// The peer is not to blame, and others could not be asked either: this machine is short of something, or what was to be done before
    /// `connect()` could not be.
    pub fn is_ours(&self) -> bool {
        self.call != "connect()" || is_shortage(&self.error) && self.error.raw_os_error() != Some(libc::EADDRNOTAVAIL)
    }

    /// The peer is not to blame. Others may still be asked: ports are short for each address by itself.
    pub fn is_local(&self) -> bool {
        self.is_ours() || is_shortage(&self.error)
    }
}

/// Whether this machine is short of something that a connection needs: descriptors, ports, memory, watches.
pub fn is_shortage(error: &io::Error) -> bool {
    let short = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::ENOSPC, libc::EADDRNOTAVAIL];
    error.raw_os_error().is_some_and(|e| short.contains(&e))
}

/// Begins to connect to a peer that is spoken to as soon as the connection stands: the last packet of the handshake is the first with
/// bytes. `local` is the address of `proxy_bind`.
pub fn begin(to: &Address, local: Option<SocketAddr>, conf: &UpstreamSettings) -> Result<Connecting, Failed> {
    let fd = prepare(SocketType::STREAM, to, conf)?;
    put_off_acks(&fd, to).map_err(failed("setsockopt()"))?;
    let mut connecting = counted(to, connect(fd, to, local, conf))?;
    connecting.socket.acks_are_put_off();
    Ok(connecting)
}

/// Begins to connect, by a socket of any type, to a peer that may be the one to speak first.
pub fn begin_as(
    kind: SocketType,
    to: &Address,
    local: Option<SocketAddr>,
    conf: &UpstreamSettings,
) -> Result<Connecting, Failed> {
    let fd = prepare(kind, to, conf)?;
    if kind == SocketType::DGRAM && matches!(to, Address::Unix(_)) {
        // Without a name of its own (the kernel gives one) nobody could answer (`ngx_stream_lua_udp_connect`).
        rustix::net::bind(&fd, &SocketAddrUnix::new_unnamed()).map_err(failed("bind()"))?;
    }
    let connecting = connect(fd, to, local, conf);
    if kind == SocketType::STREAM { counted(to, connecting) } else { connecting }
}

/// A connection over TCP takes a local port.
fn counted(to: &Address, connecting: Result<Connecting, Failed>) -> Result<Connecting, Failed> {
    if let Address::Inet(to) = to {
        // What `bind()` says so of is an address that is not this machine's.
        let is_short = |f: &Failed| f.call == "connect()" && f.error.raw_os_error() == Some(libc::EADDRNOTAVAIL);
        ports::count(*to, !connecting.as_ref().is_err_and(is_short));
    }
    connecting
}

/// An ACK waits for something to go with, for as long as the kernel puts off ACKs (200 ms). Said before the socket is connected, it
/// holds for the ACK that ends the handshake, which goes with the first bytes. It would hold for later ones too: whoever says it has
/// the socket take it back with its first write ([`Socket::acks_are_put_off`]).
pub fn put_off_acks(fd: impl AsFd, to: &Address) -> Result<(), Errno> {
    match to {
        Address::Inet(_) => sockopt::set_tcp_quickack(fd, false),
        Address::Unix(_) => Ok(()),
    }
}

fn prepare(kind: SocketType, to: &Address, conf: &UpstreamSettings) -> Result<OwnedFd, Failed> {
    let fd =
        open(kind, to).or_else(|e| if make_room(e) { open(kind, to) } else { Err(e) }).map_err(failed("socket()"))?;
    options(&fd, kind, to, conf).map_err(failed("setsockopt()"))?;
    Ok(fd)
}

/// Out of descriptors: an idle connection to a peer is closed, for this one, and an idle client's, for the next.
fn make_room(e: Errno) -> bool {
    if !matches!(e, Errno::MFILE | Errno::NFILE) {
        return false;
    }
    crate::connection::reuse::take_one();
    super::pool::drop_idle()
}

fn connect(
    fd: OwnedFd,
    to: &Address,
    local: Option<SocketAddr>,
    conf: &UpstreamSettings,
) -> Result<Connecting, Failed> {
    if let Some(local) = local {
        if conf.bind.as_ref().is_some_and(|b| b.transparent) {
            let (level, name) = match local {
                SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TRANSPARENT),
                SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT),
            };
            let set = crate::master::sys::set_option(fd.as_fd(), level, name, 1);
            set.map_err(|error| Failed { call: "setsockopt(IP_TRANSPARENT)", error, at_once: true })?;
        }
        // The port is chosen at connect, when the kernel knows the whole four-tuple: no shortage of ports per address.
        let _ = crate::master::sys::set_option(fd.as_fd(), libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
        rustix::net::bind(&fd, &local).map_err(failed("bind()"))?;
    }
    match call(&fd, to) {
        Ok(()) => Ok(Connecting { socket: Socket::to_peer(fd), done: true, full: None }),
        Err(Errno::INPROGRESS) => Ok(Connecting { socket: Socket::to_peer(fd), done: false, full: None }),
        // Where TCP would send its SYN again, a unix socket says that its queue is full (unix(7), connect).
        Err(Errno::AGAIN) if matches!(to, Address::Unix(_)) => {
            Ok(Connecting { socket: Socket::to_peer(fd), done: false, full: Some(Box::new(to.clone())) })
        }
        Err(e) => Err(failed("connect()")(e)),
    }
}

/// A socket for such an address that does not block.
pub fn open(kind: SocketType, to: &Address) -> Result<OwnedFd, Errno> {
    let family = match to {
        Address::Inet(SocketAddr::V4(_)) => AddressFamily::INET,
        Address::Inet(SocketAddr::V6(_)) => AddressFamily::INET6,
        Address::Unix(_) => AddressFamily::UNIX,
    };
    rustix::net::socket_with(family, kind, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)
}

/// `connect()`, once. A second call on a socket says how the first one went.
pub fn call(fd: impl AsFd, to: &Address) -> Result<(), Errno> {
    match to {
        Address::Inet(a) => rustix::net::connect(fd, a),
        Address::Unix(path) => SocketAddrUnix::new(path).and_then(|a| rustix::net::connect(fd, &a)),
    }
}

fn failed(call: &'static str) -> impl Fn(Errno) -> Failed {
    move |e| Failed { call, error: e.into(), at_once: true }
}

fn options(fd: &OwnedFd, kind: SocketType, to: &Address, conf: &UpstreamSettings) -> Result<(), Errno> {
    if *conf.socket_rcvbuf > 0 {
        sockopt::set_socket_recv_buffer_size(fd, *conf.socket_rcvbuf as usize)?;
    }
    if *conf.socket_sndbuf > 0 {
        sockopt::set_socket_send_buffer_size(fd, *conf.socket_sndbuf as usize)?;
    }
    if kind != SocketType::STREAM {
        return Ok(());
    }
    if *conf.socket_keepalive {
        sockopt::set_socket_keepalive(fd, true)?;
    }
    if matches!(to, Address::Inet(_)) {
        sockopt::set_tcp_nodelay(fd, true)?;
    }
    Ok(())
}

/// Waits until the connection stands; how long is up to who asks.
pub async fn finish(connecting: Connecting) -> Result<Socket, Failed> {
    let Connecting { mut socket, done, full } = connecting;
    if done {
        return Ok(socket);
    }
    if let Some(to) = full {
        // Boxed: nobody else's task has room for it.
        return Box::pin(ask_again(socket, &to)).await;
    }
    let wait = poll_fn(|cx| socket.poll_writable(cx)).await;
    wait.map_err(|error| Failed { call: "connect()", error, at_once: false })?;
    match sockopt::socket_error(socket.as_fd()) {
        Ok(Ok(())) => Ok(socket),
        Ok(Err(e)) | Err(e) => Err(Failed { at_once: false, ..failed("connect()")(e) }),
    }
}

/// Asks a full unix socket until it has room.
async fn ask_again(socket: Socket, to: &Address) -> Result<Socket, Failed> {
    let spread = Duration::from_millis(socket.as_fd().as_raw_fd().unsigned_abs() as u64 % SPREAD_MS);
    let mut pause = FIRST_PAUSE;
    loop {
        runtime::timer::sleep(pause + spread).await;
        match call(socket.as_fd(), to) {
            Ok(()) => return Ok(socket),
            Err(Errno::AGAIN) => pause = (pause * 2).min(LONGEST_PAUSE),
            Err(e) => return Err(Failed { at_once: false, ..failed("connect()")(e) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::cause::Cause;
    use crate::health::link::of_connect;

    /// A call, what it failed with, and whether no peer could be asked, and whether this one is not to blame.
    #[test]
    fn whose_fault_it_is() {
        let to = Address::Inet(SocketAddr::from(([127, 0, 0, 1], 1)));
        for (call, error, is_ours, is_local) in [
            ("socket()", libc::EMFILE, true, true),
            ("socket()", libc::ENFILE, true, true),
            ("bind()", libc::EADDRNOTAVAIL, true, true),
            ("connect()", libc::ENOBUFS, true, true),
            ("connect()", libc::ENOMEM, true, true),
            ("connect()", libc::EADDRNOTAVAIL, false, true),
            ("connect()", libc::ECONNREFUSED, false, false),
            ("connect()", libc::ETIMEDOUT, false, false),
            ("connect()", libc::EAGAIN, false, false),
        ] {
            let failed = Failed { call, error: io::Error::from_raw_os_error(error), at_once: true };
            assert_eq!((failed.is_ours(), failed.is_local()), (is_ours, is_local), "{call} {error}");
            let is_shortage = matches!(of_connect(&failed.error, &to), Cause::Shortage(_));
            assert_eq!(is_shortage, is_local, "a check that fails with {error}");
        }
    }
}
