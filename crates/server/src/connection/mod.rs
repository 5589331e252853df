//! One client connection, from accept to close. From: `listen`. To: `request`.
//! An idle connection is this small task and nothing else: buffers and requests are taken when bytes arrive.

pub mod address;
pub mod arrival;
pub mod begin;
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

pub use address::{Address, Host};
pub use downstream::Downstream;
use handshake::Facts;
use reuse::ReuseEntry;
use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

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

/// What is known of the client of a connection. Shared by its requests.
pub struct Client {
    /// Counts connections of the process: `$connection`, and `*7` in the error log.
    pub number: u64,
    /// The client's address; `realip` may replace it for a request.
    pub remote: RefCell<Address>,
    /// The address the connection came to, once someone asked the kernel for it.
    pub local: RefCell<Option<Box<Address>>>,
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
    /// What programs of its handshake have left. A connection that has it stays with its thread.
    pub programs: OnceCell<Left>,
    /// Whether it could make room for another.
    pub reuse_entry: ReuseEntry,
}

/// What programs that took part in a handshake have left for the connection's requests. It goes with the connection, though others may know its
/// client for longer.
pub type Left = Rc<RefCell<Option<Box<dyn Any>>>>;

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
            programs: OnceCell::new(),
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
            local: RefCell::new(Some(Box::new(local))),
            listener,
            started_ms: runtime::clock::wall_ms(),
            requests: Cell::new(0),
            proxy_protocol: self.proxy_protocol.clone(),
            tls: OnceCell::new(),
            debug: self.debug.clone(),
            socket: self.socket.clone(),
            quic: self.quic,
            trial: self.trial.clone(),
            programs: OnceCell::new(),
            reuse_entry: ReuseEntry::new(),
        });
        self.give_seat_to(&other);
        other
    }
}
