//! One client connection, from accept to close. From: `listen`. To: `request`.
//! An idle connection is this small task and nothing else: buffers and requests are taken when bytes arrive.

pub mod arrival;
pub mod downstream;
pub mod fields;
pub mod handshake;
pub mod http1;
pub mod http2;
pub mod http3;
pub mod incoming;
pub mod mqtt;
mod order;
pub mod output;
pub mod parked;
pub mod pool;
pub mod proxy_header;
pub mod reuse;
pub mod slow;
pub mod socket;
pub mod stream;
pub mod tls;

use crate::config::cidr::Plain;
use crate::listen::datagram::Flow;
use crate::listen::quic;
use crate::log::error::Level;
use crate::modules;
use crate::request::phases;
use crate::worker::handover::Parcel;
use arrival::Arrival;
pub use downstream::Downstream;
use handshake::{Accepted, Facts};
use http1::Http1;
use incoming::Incoming;
use proxy_header::Header;
use reuse::{ReuseEntry, Seat, has_room};
use socket::Socket;
use std::cell::{Cell, OnceCell, RefCell};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::Poll;
use std::time::Instant;

/// What lines of the error log say after `while`.
pub mod action {
    /// Nothing that has a name.
    pub const NOTHING: &str = "";
    /// A new connection is silent.
    pub const WAITING: &str = "waiting for request";
    /// A kept connection is silent.
    pub const KEPT: &str = "keepalive";
    /// A head began.
    pub const READING_LINE: &str = "reading client request line";
    /// A head began before the one before was answered.
    pub const READING_PIPELINED_LINE: &str = "reading client pipelined request line";
    /// Its first line is there.
    pub const READING_HEADERS: &str = "reading client request headers";
    /// A file is on its way.
    pub const SENDING_RESPONSE: &str = "sending response to client";
    /// A line of the access log is made.
    pub const LOGGING: &str = "logging request";
    /// A peer is chosen and connected to.
    pub const CONNECTING: &str = "connecting to upstream";
    /// A connection to a peer is made secure.
    pub const SHAKING_UPSTREAM: &str = "SSL handshaking to upstream";
    /// The request is on its way to the peer; its answer has not begun.
    pub const SENDING_REQUEST: &str = "sending request to upstream";
    /// The answer's head has begun.
    pub const READING_HEAD: &str = "reading response header from upstream";
    /// The answer's body is read.
    pub const READING_UPSTREAM: &str = "reading upstream";
    /// The answer's body waits for the client, or the upstream's part is over.
    pub const SENDING_TO_CLIENT: &str = "sending to client";
    /// After 101.
    pub const TUNNELING: &str = "proxying upgraded connection";
}

/// Where a connection comes from or goes to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// An IPv4 or IPv6 address with a port.
    Inet(SocketAddr),
    /// A unix socket; clients usually have no path.
    Unix(PathBuf),
}

/// What is known of the client of a connection. Shared by its requests.
pub struct Client {
    /// Counts connections of the process: `$connection`, and `*7` in the error log.
    pub number: u64,
    /// The client's address; `realip` may replace it for a request.
    pub remote: RefCell<Address>,
    /// The address the connection came to, once someone asked the kernel for it.
    pub local: RefCell<Option<Address>>,
    /// Which listener of the thread it came through.
    pub listener: usize,
    /// Wall clock at accept, ms.
    pub started_ms: u64,
    /// Requests so far.
    pub requests: Cell<u64>,
    /// What the PROXY header said, if the listener wants one.
    pub proxy_protocol: OnceCell<Rc<wire::proxy_protocol::Header>>,
    /// What the TLS handshake came to, if there was one.
    pub tls: OnceCell<Rc<Facts>>,
    /// `debug_connection` names it: all that is said about its requests is logged.
    pub debug: Cell<bool>,
    /// For questions to the kernel: `TCP_INFO`, the local address.
    pub socket: Weak<OwnedFd>,
    /// The connection is one of QUIC.
    pub quic: bool,
    /// The canary that it was given to, by its generation; 0: to none.
    pub trial: Cell<u64>,
    /// Whether it could make room for another.
    pub reuse_entry: ReuseEntry,
}

impl Address {
    /// The address without port: `$remote_addr`.
    pub fn host(&self) -> Host<'_> {
        Host(self)
    }

    /// Appends what [`Address::host`] shows. IPv4 by hand: every line of an access log begins with it, and the
    /// formatting machinery takes as long as the rest of the line.
    pub fn write_host(&self, out: &mut Vec<u8>) {
        if let Address::Inet(SocketAddr::V4(a)) = self {
            for (i, octet) in a.ip().octets().into_iter().enumerate() {
                if i > 0 {
                    out.push(b'.');
                }
                crate::request::status::write_decimal(u64::from(octet), out);
            }
            return;
        }
        use std::io::Write;
        let _ = write!(out, "{}", self.host());
    }

    /// The port, 0 for unix sockets.
    pub fn port(&self) -> u16 {
        match self {
            Address::Inet(a) => a.port(),
            Address::Unix(_) => 0,
        }
    }
}

impl std::fmt::Display for Address {
    /// With the port: `127.0.0.1:80`, `unix:/path`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Inet(a) => write!(f, "{a}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Shows an address as nginx does in variables and logs.
pub struct Host<'a>(&'a Address);

impl std::fmt::Display for Host<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Address::Inet(a) => write!(f, "{}", a.ip()),
            Address::Unix(_) => f.write_str("unix:"),
        }
    }
}

/// Connections of all threads are counted in one row.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// How many connections this thread has open, for the control thread to read.
    pub static OPEN: RefCell<Option<Arc<AtomicUsize>>> = const { RefCell::new(None) };
}

impl Client {
    /// A client that was just accepted.
    pub fn new(number: u64, remote: Address, listener: usize, socket: Weak<OwnedFd>) -> Rc<Client> {
        Rc::new(Client {
            number,
            remote: RefCell::new(remote),
            local: RefCell::new(None),
            listener,
            started_ms: runtime::clock::wall_ms(),
            requests: Cell::new(0),
            proxy_protocol: OnceCell::new(),
            tls: OnceCell::new(),
            debug: Cell::new(false),
            socket,
            quic: false,
            trial: Cell::new(0),
            reuse_entry: ReuseEntry::new(),
        })
    }
}

impl Client {
    /// The same client on another listener: the connection goes on there.
    pub fn passed_to(&self, listener: usize, local: Address) -> Rc<Client> {
        let other = Rc::new(Client {
            number: self.number,
            remote: self.remote.clone(),
            local: RefCell::new(Some(local)),
            listener,
            started_ms: runtime::clock::wall_ms(),
            requests: Cell::new(0),
            proxy_protocol: self.proxy_protocol.clone(),
            tls: OnceCell::new(),
            debug: self.debug.clone(),
            socket: self.socket.clone(),
            quic: self.quic,
            trial: self.trial.clone(),
            reuse_entry: ReuseEntry::new(),
        });
        self.give_seat_to(&other);
        other
    }
}

/// Begins to serve an accepted socket. `now`: before the next one is accepted, while what the kernel has just touched for this one
/// is in the caches. A request that came with it (`deferred`) is answered then (measured: perf/notes/2026-11-22-loop.md).
pub fn start(fd: OwnedFd, remote: Address, listener: usize, now: bool) {
    if modules::guard::state::is_banned(&remote) {
        return;
    }
    if parked::is_crowded() {
        reuse::park_oldest();
    }
    if !has_room() {
        return;
    }
    crate::status::spent::accepted(|| crate::master::last_packet_ms(fd.as_fd()));
    let socket = Socket::new(fd);
    let client = Client::new(NEXT_NUMBER.fetch_add(1, Relaxed), remote, listener, socket.handle());
    crate::worker::draw(&client);
    look_closely(&client);
    let work = guarded(Seat::take(&client), move || run(Http1::new(Incoming::new(socket)), client));
    if now {
        runtime::spawn_now(work)
    } else {
        runtime::spawn(work)
    };
}

/// Goes on with an idle connection of another thread.
pub fn adopt(parcel: Parcel) {
    if !has_room() {
        return;
    }
    let (client, socket, wait) = parcel.open();
    look_closely(&client);
    let seat = Seat::take_over(&client);
    runtime::spawn(guarded(seat, move || http1::resume(Http1::new(Incoming::new(socket)), client, wait)));
}

/// Goes on with a request whose connection was parked: it has a task, and a seat, again.
pub fn go_on(back: phases::Back, client: Rc<Client>) {
    adopt_again(client.clone(), move || http1::go_on_with(back, client));
}

/// A connection that was parked has a task, which does this, and a seat again.
fn adopt_again<F: Future<Output = ()> + 'static>(client: Rc<Client>, begin: impl FnOnce() -> F + 'static) {
    let seat = Seat::take_over(&client);
    runtime::spawn(guarded(seat, begin));
}

/// Begins a session of datagrams; false: there is no room for one.
pub fn start_flow(flow: Rc<Flow>, remote: Address, local: Address, listener: usize) -> bool {
    if !has_room() {
        return false;
    }
    let client = Client::new(NEXT_NUMBER.fetch_add(1, Relaxed), remote, listener, Weak::new());
    client.local.replace(Some(local));
    look_closely(&client);
    runtime::spawn(guarded(Seat::take(&client), move || crate::stream::udp::serve(flow, client)));
    true
}

/// The client of a new QUIC connection; none: there is no room for one.
pub fn new_quic(remote: Address, local: Address, listener: usize) -> Option<Rc<Client>> {
    if !has_room() {
        return None;
    }
    let client = Client::new(NEXT_NUMBER.fetch_add(1, Relaxed), remote, listener, Weak::new());
    let client = Rc::new(Client { quic: true, local: RefCell::new(Some(local)), ..Rc::into_inner(client)? });
    look_closely(&client);
    Some(client)
}

/// Begins to serve a QUIC connection.
pub fn start_quic(link: Rc<quic::Link>, connection: quinn_proto::Connection, client: Rc<Client>) {
    runtime::spawn(guarded(Seat::take(&client), move || http3::serve(link, connection, client)));
}

/// `debug_connection`
fn look_closely(client: &Client) {
    let snapshot = crate::worker::snapshot();
    let debugged = &snapshot.main.debug_connections;
    if !debugged.is_empty() {
        let address = Plain::of(&client.remote.borrow());
        client.debug.set(debugged.iter().any(|network| network.contains(address)));
    }
}

/// A panic costs this connection and nothing else. What begins the work is given, not its future, for which there would be two places in
/// the task otherwise.
async fn guarded<F: Future<Output = ()>>(seat: Seat, begin: impl FnOnce() -> F) {
    let mut work = std::pin::pin!(begin());
    let result =
        poll_fn(|cx| match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) => Poll::Ready(Ok(())),
            Err(panic) => Poll::Ready(Err(panic)),
        })
        .await;
    if let Err(panic) = result {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
        let number = seat.number();
        crate::log::process_line(Level::Alert, format_args!("*{number} a connection was given up: {text}"));
    }
}

async fn run(mut http: Box<Http1>, client: Rc<Client>) {
    if crate::worker::stream_listen_of(&client).is_some() {
        let incoming = http.take_incoming();
        drop(http);
        return Box::pin(crate::stream::serve(incoming, client)).await;
    }
    serve_http(http, client).await;
}

/// Serves a connection of `http`.
pub async fn serve_http(mut http: Box<Http1>, client: Rc<Client>) {
    let encrypted = match comes_first(&client) {
        (false, false) => false,
        (proxied, encrypted) => {
            if !Box::pin(open(&mut http.incoming, &client, proxied, encrypted)).await {
                return;
            }
            encrypted
        }
    };
    if encrypted && http2::is_agreed(&client) {
        return Box::pin(http2::serve(http, client)).await;
    }
    if speaks_mqtt(&client) {
        return Box::pin(mqtt::serve(http, &client)).await;
    }
    if let Some(http) = http1::serve(http, &client).await {
        Box::pin(http2::serve(http, client)).await;
    }
}

/// Reads the PROXY header, and makes the connection secure, as far as the address wants that. False: it is over. Whoever speaks plain HTTP
/// where TLS is spoken gets an answer that says so.
async fn open(incoming: &mut Incoming, client: &Rc<Client>, proxied: bool, encrypted: bool) -> bool {
    let snapshot = crate::worker::shot_for(client);
    if proxied && proxy_header::read(incoming, Arrival::at_http(&snapshot, client)).await != Header::Read {
        return false;
    }
    if !encrypted {
        return true;
    }
    // The header may have taken a while: the configuration that holds now is asked.
    let snapshot = crate::worker::shot_for(client);
    let began = Instant::now();
    let is_over = handshake::accept(incoming, Arrival::at_http(&snapshot, client), None).await == Accepted::Over;
    if is_over {
        crate::status::trial::failed_handshake(snapshot.generation);
    } else {
        crate::status::spent::shaken(began);
    }
    !is_over
}

/// Whether a PROXY header, and whether TLS comes before the first request.
fn comes_first(client: &Client) -> (bool, bool) {
    let snapshot = crate::worker::shot_for(client);
    let port = &snapshot.ports[crate::worker::port_of(&snapshot, client.listener)];
    (port.proxy_protocol, port.encrypted() && port.site(client).ssl)
}

/// `listen ... mqtt`
fn speaks_mqtt(client: &Client) -> bool {
    let snapshot = crate::worker::snapshot();
    snapshot.ports[crate::worker::port_of(&snapshot, client.listener)].site(client).mqtt
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an idle connection is made of; the whole is measured by perf/hold.py.
    #[test]
    fn idle_connections_are_small() {
        let (tx, rx) = std::os::unix::net::UnixStream::pair().expect("a socket pair");
        let socket = Socket::new(tx.into());
        let client = Client::new(1, Address::Unix(PathBuf::new()), 0, socket.handle());
        let task = std::mem::size_of_val(&guarded(Seat::take(&client), move || {
            run(Http1::new(Incoming::new(socket)), client)
        }));
        drop(rx);
        let (session, client) = (size_of::<Http1>(), size_of::<Client>());
        println!("task {task}, session {session}, client {client}");
        assert!(task <= 500 && size_of::<Http1>() <= 320 && size_of::<Client>() <= 256);
    }
}
