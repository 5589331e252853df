//! One client connection, from accept to close. Before: `listen`. After: `request`.
//! An idle connection is this small task and nothing else: buffers and requests are taken when bytes arrive.

pub mod http1;
pub mod output;
pub mod pool;
pub mod socket;

use crate::request::subrequest::SubSession;
use http1::Http1;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;

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
    pub proxy_protocol: RefCell<Option<Box<wire::proxy_protocol::Header>>>,
    /// The descriptor, for questions to the kernel only.
    pub descriptor: i32,
}

/// Where a request's answer goes.
#[derive(Default)]
pub enum Session {
    /// Nowhere: the request is between two owners.
    #[default]
    None,
    /// An HTTP/1 connection.
    Http1(Box<Http1>),
    /// A parent request.
    Sub(SubSession),
}

thread_local! {
    static NEXT_NUMBER: Cell<u64> = const { Cell::new(1) };
}

impl Client {
    /// A client that was just accepted.
    pub fn new(number: u64, remote: Address, listener: usize, descriptor: i32) -> Rc<Client> {
        Rc::new(Client {
            number,
            remote: RefCell::new(remote),
            local: RefCell::new(None),
            listener,
            started_ms: crate::worker::clock::wall_ms(),
            requests: Cell::new(0),
            proxy_protocol: RefCell::new(None),
            descriptor,
        })
    }
}
