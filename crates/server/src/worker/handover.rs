//! A thread that a reload has made superfluous hands its idle HTTP/1 connections to threads that stay, over TLS or not: their clients see
//! nothing of it. From: `connection::http1`, where a connection is idle. To: the other thread's loop, which goes on waiting.

use crate::connection::handshake::Facts;
use crate::connection::socket::Socket;
use crate::connection::tls::{Moving, Tls};
use crate::connection::{Address, Client};
use crate::process_settings::{ListenAddress, SocketKind};
use crate::worker::order::Order;
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use wire::proxy_protocol::Header;

/// A connection between two threads.
pub struct Parcel {
    fd: OwnedFd,
    /// Its keys.
    tls: Option<Moving>,
    /// How long it may wait for its next request.
    wait: Duration,
    /// Where it came to.
    address: Option<ListenAddress>,
    number: u64,
    remote: Address,
    local: Option<Box<Address>>,
    started_ms: u64,
    requests: u64,
    proxy_protocol: Option<Header>,
    facts: Option<Facts>,
}

thread_local! {
    /// The threads that stay, and whose turn it is.
    static HEIRS: RefCell<(Vec<UnboundedSender<Order>>, usize)> = const { RefCell::new((Vec::new(), 0)) };
}

/// From now on this thread hands its idle connections to those.
pub fn set_heirs(heirs: Vec<UnboundedSender<Order>>) {
    HEIRS.replace((heirs, 0));
}

fn has_heirs() -> bool {
    HEIRS.with_borrow(|(heirs, _)| !heirs.is_empty())
}

/// Whether this thread ends, and the client's connection goes on at another.
pub fn is_handed_over(client: &Client) -> bool {
    super::draining() && has_heirs() && client.programs.get().is_none()
}

/// Hands a connection over. If nobody takes it any more, it is closed.
pub fn send(fd: OwnedFd, tls: Option<Moving>, client: &Client, wait: Duration) {
    let snapshot = super::snapshot();
    let address = snapshot.listens.get(super::port_of(&snapshot, client.listener)).map(|l| l.address.clone());
    let parcel = Parcel {
        fd,
        tls,
        wait,
        address,
        number: client.number,
        remote: client.remote.borrow().clone(),
        local: client.local.borrow().clone(),
        started_ms: client.started_ms,
        requests: client.requests.get(),
        proxy_protocol: client.proxy_protocol.get().map(|header| Header::clone(header)),
        facts: client.tls.get().map(|facts| Facts::clone(facts)),
    };
    pass_on(Box::new(parcel));
}

/// Gives a connection to the next of the threads that stay. One that has ended meanwhile takes none.
pub fn pass_on(parcel: Box<Parcel>) {
    HEIRS.with_borrow_mut(|(heirs, next)| {
        let mut order = Order::Adopt(parcel);
        for _ in 0..heirs.len() {
            *next += 1;
            match heirs[*next % heirs.len()].send(order) {
                Ok(()) => return,
                Err(refused) => order = refused.0,
            }
        }
    });
}

impl Parcel {
    /// The client on this thread, its connection, and how long that may wait.
    pub fn open(self) -> (Rc<Client>, Socket, Duration) {
        let snapshot = super::snapshot();
        let kind = SocketKind::Stream;
        let place = self.address.and_then(|a| snapshot.listens.iter().position(|l| l.address == a && l.kind == kind));
        // Where this thread has no such address, the first port's settings hold, as for any whose address is gone.
        let listener = place.and_then(super::listener_of).unwrap_or(0);
        let socket = Socket::new(self.fd);
        let client = Client::new(self.number, self.remote, listener, socket.handle());
        let client = Rc::into_inner(client).expect("just made");
        let client = Client { started_ms: self.started_ms, local: RefCell::new(self.local), ..client };
        client.requests.set(self.requests);
        if let Some(header) = self.proxy_protocol {
            let _ = client.proxy_protocol.set(Rc::new(header));
        }
        if let Some(facts) = self.facts {
            let _ = client.tls.set(Rc::new(facts));
        }
        let socket = match self.tls {
            Some(keys) => Socket::encrypted(Tls::moved(socket, keys)),
            None => socket,
        };
        (Rc::new(client), socket, self.wait)
    }
}
