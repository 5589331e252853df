//! What is known of a client, without what it takes to have a seat: for connections between two requests that are parked, or go to another process.

use crate::connection::handshake::Facts;
use crate::connection::socket::Socket;
use crate::connection::{Address, Client};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use wire::proxy_protocol::Header;

/// See the file's head.
pub struct Whose {
    number: u64,
    started_ms: u64,
    requests: u64,
    remote: Address,
    local: Option<Box<Address>>,
    proxy_protocol: Option<Rc<Header>>,
    tls: Option<Rc<Facts>>,
    listener: u32,
    debug: bool,
}

impl Whose {
    /// A client's.
    pub fn of(client: &Client) -> Whose {
        Whose {
            number: client.number,
            started_ms: client.started_ms,
            requests: client.requests.get(),
            remote: client.remote.borrow().clone(),
            local: client.local.borrow().clone().map(Box::new),
            proxy_protocol: client.proxy_protocol.get().cloned(),
            tls: client.tls.get().cloned(),
            listener: client.listener as u32,
            debug: client.debug.get(),
        }
    }

    /// What it takes beside itself, bytes.
    pub fn bytes(&self) -> usize {
        let local = self.local.as_ref().map_or(0, |_| size_of::<Address>());
        local + self.tls.as_ref().map_or(0, |tls| tls.bytes())
    }

    /// The client again, on its connection.
    pub fn client(self, socket: &Socket) -> Rc<Client> {
        let client = Client::new(self.number, self.remote, self.listener as usize, socket.handle());
        let local = RefCell::new(self.local.map(|local| *local));
        let client = Rc::into_inner(client).expect("just made");
        let client = Rc::new(Client { started_ms: self.started_ms, local, ..client });
        client.requests.set(self.requests);
        client.debug.set(self.debug);
        if let Some(header) = self.proxy_protocol {
            let _ = client.proxy_protocol.set(header);
        }
        if let Some(facts) = self.tls {
            let _ = client.tls.set(facts);
        }
        client
    }

    /// Where it was accepted.
    pub fn listener(&self) -> usize {
        self.listener as usize
    }

    /// Whether another process can go on with it: what is known of a header of the PROXY protocol stays here.
    pub fn may_go(&self) -> bool {
        self.proxy_protocol.is_none()
    }

    /// For another process.
    pub fn write(&self, w: &mut heir::Writer) {
        [self.number, self.started_ms, self.requests].into_iter().for_each(|number| w.number(number));
        write_address(&self.remote, w);
        w.flag(self.local.is_some());
        self.local.iter().for_each(|local| write_address(local, w));
        w.number(self.listener.into());
        w.flag(self.debug);
        w.flag(self.tls.is_some());
        self.tls.iter().for_each(|facts| facts.write(w));
    }

    /// What another process wrote; `terms` says what it calls its listeners.
    pub fn read(r: &mut heir::Reader<'_>, terms: &heir::Terms) -> Option<Whose> {
        let (number, started_ms, requests) = (r.number()?, r.number()?, r.number()?);
        let (remote, has_local) = (read_address(r)?, r.flag()?);
        let local = if has_local { Some(Box::new(read_address(r)?)) } else { None };
        let (listener, debug) = (terms.listener(r.number()?)?, r.flag()?);
        let tls = if r.flag()? { Some(Rc::new(Facts::read(r, terms)?)) } else { None };
        let proxy_protocol = None;
        Some(Whose { number, started_ms, requests, remote, local, proxy_protocol, tls, listener, debug })
    }
}

/// An address, for another process.
pub fn write_address(address: &Address, w: &mut heir::Writer) {
    w.flag(matches!(address, Address::Inet(_)));
    match address {
        Address::Inet(address) => w.bytes(address.to_string().as_bytes()),
        Address::Unix(path) => w.bytes(path.as_os_str().as_bytes()),
    }
}

/// See [`write_address`].
pub fn read_address(r: &mut heir::Reader<'_>) -> Option<Address> {
    let (is_inet, text) = (r.flag()?, r.bytes()?);
    match is_inet {
        true => std::str::from_utf8(text).ok()?.parse().ok().map(Address::Inet),
        false => Some(Address::Unix(OsStr::from_bytes(text).into())),
    }
}
