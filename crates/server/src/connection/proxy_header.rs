//! Reads the PROXY header (versions 1 and 2) that comes before everything else on `listen ... proxy_protocol`.

use super::Client;
use super::http1::{Filled, Http1};
use crate::log::error::Level;
use std::rc::Rc;

/// How much of what is no header is shown in the log.
const SHOWN: usize = 64;

/// Reads the header. False: there is none, it is broken, or it did not come in time; the connection is to be closed.
pub async fn read(http: &mut Http1, client: &Rc<Client>) -> bool {
    let shot = crate::worker::shot();
    let port = &shot.ports[crate::worker::port_of(&shot, client.listener)];
    let server = shot.server(port.any.default);
    http.timer.set(*server.conf.core.client_header_timeout);
    loop {
        match wire::proxy_protocol::parse(http.unread()) {
            Ok(wire::proxy_protocol::Parsed::Complete { header, len }) => {
                http.consume(len);
                if let Some(header) = header {
                    let _ = client.proxy_protocol.set(Rc::new(header));
                }
                return true;
            }
            Ok(wire::proxy_protocol::Parsed::Partial) => {}
            Err(_) => {
                broken(http, &shot, client);
                return false;
            }
        }
        if !matches!(http.fill(client).await, Filled::Read(Ok(n)) if n > 0) {
            if !http.unread().is_empty() {
                broken(http, &shot, client);
            }
            return false;
        }
    }
}

fn broken(http: &Http1, shot: &crate::snapshot::Shot, client: &Client) {
    let shown = String::from_utf8_lossy(&http.unread()[..http.unread().len().min(SHOWN)]).into_owned();
    complain(shot, client, format_args!("broken header: \"{shown}\" while reading PROXY protocol"));
}

fn complain(shot: &crate::snapshot::Shot, client: &Client, text: std::fmt::Arguments<'_>) {
    let number = crate::worker::port_of(shot, client.listener);
    let (port, listen) = (&shot.ports[number], &shot.listens[number]);
    let root = shot.server(port.any.default).root;
    let log = &shot.location(root).conf.core.error_log;
    log.write(
        Level::Error,
        Some(client.number),
        format_args!("{text}, client: {}, server: {}", client.remote.borrow().host(), listen.address),
    );
}
