//! What is known of a client, without what it takes to have a seat: for connections between two requests that are parked, or go to another process.

use crate::connection::handshake::Facts;
use crate::connection::socket::Socket;
use crate::connection::{Address, Client};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use wire::proxy_protocol::{Address as Said, Header, MAX_HEADER, Tlvs};

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
            local: client.local.borrow().clone(),
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
        let local = RefCell::new(self.local);
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
        write_header(self.proxy_protocol.as_deref(), w);
    }

    /// What another process wrote; `terms` says what it calls its listeners.
    pub fn read(r: &mut heir::Reader<'_>, terms: &heir::Terms) -> Option<Whose> {
        let (number, started_ms, requests) = (r.number()?, r.number()?, r.number()?);
        let (remote, has_local) = (read_address(r)?, r.flag()?);
        let local = if has_local { Some(Box::new(read_address(r)?)) } else { None };
        let (listener, debug) = (terms.listener(r.number()?)?, r.flag()?);
        let tls = if r.flag()? { Some(Rc::new(Facts::read(r, terms)?)) } else { None };
        let proxy_protocol = read_header(r)?;
        Some(Whose { number, started_ms, requests, remote, local, proxy_protocol, tls, listener, debug })
    }
}

/// What a header of the PROXY protocol said, if there was one, for another process.
pub fn write_header(header: Option<&Header>, w: &mut heir::Writer) {
    w.flag(header.is_some());
    let Some(Header { source, destination, source_port, destination_port, tlvs }) = header else { return };
    for (address, port) in [(source, source_port), (destination, destination_port)] {
        w.flag(matches!(address, Said::Ip(_)));
        w.bytes(address.to_string().as_bytes());
        w.number((*port).into());
    }
    w.bytes(&tlvs.0);
}

/// See [`write_header`].
pub fn read_header(r: &mut heir::Reader<'_>) -> Option<Option<Rc<Header>>> {
    if !r.flag()? {
        return Some(None);
    }
    let mut side = || {
        let (is_ip, text) = (r.flag()?, std::str::from_utf8(r.bytes()?).ok()?);
        let address = if is_ip { Said::Ip(text.parse().ok()?) } else { Said::Text(text.into()) };
        Some((address, u16::try_from(r.number()?).ok()?))
    };
    let ((source, source_port), (destination, destination_port)) = (side()?, side()?);
    let tlvs = r.bytes().filter(|tlvs| tlvs.len() <= MAX_HEADER)?;
    let tlvs = Tlvs(tlvs.into());
    Some(Some(Rc::new(Header { source, destination, source_port, destination_port, tlvs })))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_of_the_proxy_protocol_is_read_as_it_was_written() {
        let header = Header {
            source: Said::Ip("2001:db8::1".parse().unwrap()),
            destination: Said::Text("::FFFF".into()),
            source_port: 65_535,
            destination_port: 80,
            tlvs: Tlvs(b"\x02\0\x01a"[..].into()),
        };
        let mut w = heir::Writer::default();
        write_header(None, &mut w);
        write_header(Some(&header), &mut w);
        let bytes = w.done();
        let mut r = heir::Reader::new(&bytes);
        assert_eq!(read_header(&mut r), Some(None));
        assert_eq!(read_header(&mut r).unwrap().as_deref(), Some(&header));
        assert!(r.is_done());
        (1..bytes.len())
            .for_each(|cut| assert!(read_header(&mut heir::Reader::new(&bytes[1..cut])).is_none(), "{cut}"));
    }
}
