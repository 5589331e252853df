//! What a new connection is judged by before it has a session: the address it came to with the servers there, how long its PROXY header
//! and its handshake may take, and where lines about them go. From: `connection` and `stream`. To: `proxy_header`, `handshake`.

use super::Client;
use super::slow::Watch;
use crate::config::Subsystem;
use crate::log::error::Level;
use crate::request::route::Site;
use crate::snapshot::{ServerId, ThreadSnapshot};
use std::fmt::Arguments;
use std::rc::Rc;
use std::time::Duration;

/// See the module's head.
#[derive(Clone, Copy)]
pub struct Arrival<'a> {
    /// The configuration: that of `http`, or of `stream`.
    pub snapshot: &'a Rc<ThreadSnapshot>,
    /// Who came.
    pub client: &'a Rc<Client>,
    /// The servers of the address.
    pub site: &'a Site,
    /// The server that holds as long as no other was asked for.
    pub server: ServerId,
    /// Index of the address among those of the whole configuration.
    listen: usize,
    subsystem: Subsystem,
}

impl<'a> Arrival<'a> {
    /// At an address of `http`.
    pub fn at_http(snapshot: &'a Rc<ThreadSnapshot>, client: &'a Rc<Client>) -> Arrival<'a> {
        let listen = crate::worker::port_of(snapshot, client.listener);
        let site = snapshot.ports[listen].site(client);
        Arrival { snapshot, client, site, server: site.default, listen, subsystem: Subsystem::Http }
    }

    /// At an address of `stream`: `listen` is its index among those of the whole configuration, `snapshot` the part of `stream`.
    pub fn at_stream(snapshot: &'a Rc<ThreadSnapshot>, client: &'a Rc<Client>, listen: usize) -> Arrival<'a> {
        let site = snapshot.ports[listen - snapshot.whole().ports.len()].site(client);
        Arrival { snapshot, client, site, server: site.default, listen, subsystem: Subsystem::Stream }
    }

    /// The same with another server of the address.
    pub fn at_server(self, server: ServerId) -> Arrival<'a> {
        Arrival { server, ..self }
    }

    /// How long the PROXY header may take.
    pub fn proxy_header_timeout(&self) -> Duration {
        match self.subsystem {
            Subsystem::Http => *self.snapshot.server(self.server).conf.core.client_header_timeout,
            Subsystem::Stream => *self.conf().stream_core.proxy_protocol_timeout,
        }
    }

    /// How long the handshake may take.
    pub fn handshake_timeout(&self) -> Duration {
        let server = &self.snapshot.server(self.server).conf;
        match self.subsystem {
            Subsystem::Http => *server.core.client_header_timeout,
            Subsystem::Stream => *server.ssl.handshake_timeout,
        }
    }

    /// How long it may be silent, of `http`: any time, in one of its address's places.
    pub fn silence(&self) -> Option<Box<Watch>> {
        let slow = &self.conf().slow;
        match self.subsystem {
            Subsystem::Http => Watch::of_silence(*slow.client_header_min_rate, slow.places()),
            Subsystem::Stream => None,
        }
    }

    /// `tcp_nodelay`
    pub fn nodelay(&self) -> bool {
        match self.subsystem {
            Subsystem::Http => *self.conf().core.tcp_nodelay,
            Subsystem::Stream => *self.conf().stream_core.tcp_nodelay,
        }
    }

    fn conf(&self) -> &'a crate::modules::LocationConf {
        &self.snapshot.location(self.snapshot.server(self.server).root).conf
    }

    /// Writes a line. `action`: what comes after `while`.
    pub fn line(&self, action: &str, level: Level, text: Arguments<'_>) {
        let log = &self.conf().core.error_log;
        let debug = self.client.debug.get();
        if !debug && !log.enabled(level) {
            return;
        }
        let (number, address) = (Some(self.client.number), &self.snapshot.whole().listens[self.listen].address);
        let client = self.client.remote.borrow();
        let text = format_args!("{text} while {action}, client: {}, server: {address}", client.host());
        if debug { log.write_to_all(level, number, text) } else { log.write(level, number, text) }
    }
}
