//! Reads the PROXY header (versions 1 and 2) that comes before everything else on `listen ... proxy_protocol`, in `http` and in `stream`.
//! From: `connection`, `stream`. To: `handshake`, or the session.

use super::arrival::Arrival;
use super::incoming::{Filled, Incoming};
use crate::log::error::Level;
use std::rc::Rc;
use wire::proxy_protocol::{Parsed, ProxyError, parse, quoted_part};

/// What lines of the error log say after `while`.
const ACTION: &str = "reading PROXY protocol";

/// What became of the wait for a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// It is there, and noted with the client.
    Read,
    /// What came is none: the log says so.
    Broken,
    /// The client closed before it said anything.
    Nothing,
    /// It did not come in time, or the connection is gone.
    Gone,
}

/// Reads the header. Unless that has gone well, the connection is to be closed.
pub async fn read(incoming: &mut Incoming, arrival: Arrival<'_>) -> Header {
    let client = arrival.client;
    incoming.timer.set(arrival.proxy_header_timeout());
    loop {
        match parse(incoming.unread()) {
            _ if incoming.unread().is_empty() => {}
            Ok(Parsed::Complete { header, len }) => {
                incoming.consume(len);
                if let Some(header) = header {
                    let _ = client.proxy_protocol.set(Rc::new(header));
                }
                return Header::Read;
            }
            Ok(Parsed::Partial) => {}
            Err(error) => {
                complain(arrival, error, incoming.unread());
                return Header::Broken;
            }
        }
        match incoming.fill(client).await {
            Filled::Read(Ok(n)) if n > 0 => {}
            Filled::Read(Ok(_)) if incoming.unread().is_empty() => return Header::Nothing,
            // Less than a header is none.
            Filled::Read(Ok(_)) => {
                complain(arrival, ProxyError::Broken, incoming.unread());
                return Header::Broken;
            }
            Filled::Read(Err(e)) => {
                arrival.line(ACTION, Level::Info, format_args!("recv() failed ({})", crate::log::os_error(&e)));
                return Header::Gone;
            }
            Filled::Late => {
                arrival.line(ACTION, Level::Info, format_args!("client timed out (110: Connection timed out)"));
                return Header::Gone;
            }
            Filled::Taken => return Header::Gone,
        }
    }
}

/// Says what is wrong with a header.
pub fn complain(arrival: Arrival<'_>, error: ProxyError, bytes: &[u8]) {
    let line = |text: std::fmt::Arguments<'_>| arrival.line(ACTION, Level::Error, text);
    match error {
        ProxyError::Broken => line(format_args!("broken header: \"{}\"", String::from_utf8_lossy(quoted_part(bytes)))),
        ProxyError::UnknownVersion(n) => line(format_args!("unknown PROXY protocol version: {n}")),
        ProxyError::TooLarge => line(format_args!("header is too large")),
        ProxyError::ShortAddresses => {}
    }
}
