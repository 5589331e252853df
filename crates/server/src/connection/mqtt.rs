//! A connection of MQTT (`listen ... mqtt`): its CONNECT becomes the head of a request for `/mqtt`, which goes the way of all requests, so that
//! every module that lets clients in or not does so here. From: `connection`. To: `http1`; after: the location's `nchan_mqtt`, which finds
//! CONNECT behind the head. An answer of any other kind is a CONNACK that refuses.

use super::http1::{self, Http1};
use super::incoming::Filled;
use super::{Client, pool};
use crate::connection::arrival::Arrival;
use crate::log::error::Level;
use std::rc::Rc;
use wire::encoding::{Alphabet, base64_encode};
use wire::mqtt::connect::{Connect, parse};
use wire::mqtt::packet::{code, is_text};
use wire::mqtt::{NoPacket, Version, answer};

/// Bytes of a CONNECT: the identifier, the will and the password of a client together.
pub const MAX_CONNECT: usize = 64 * 1024;
/// What is asked for: the path under which clients look for MQTT over WebSocket.
const PATH: &str = "/mqtt";
const ACTION: &str = "reading MQTT CONNECT packet";
/// Where the version stands in a CONNECT whose length is one byte, behind the protocol's name.
const LEVEL_AT: usize = 8;

/// How a client of MQTT is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// Which MQTT it speaks.
    pub version: Version,
    /// Why it is refused, if that is better known than by a status.
    pub reason: u8,
}

impl Handshake {
    /// Appends the answer that stands for a status. Who is let in, 101, is told by the module.
    pub fn answer(self, status: u16, out: &mut Vec<u8>) {
        if status != 101 {
            let reason = if self.reason > 0 { self.reason } else { answer::reason_of(status) };
            answer::refusal(self.version, reason, out);
        }
    }
}

/// Which MQTT a CONNECT is of.
pub fn version_of(connect: &Connect) -> Version {
    if connect.level == 5 { Version::V5 } else { Version::V3 }
}

/// Serves a connection.
pub async fn serve(mut http: Box<Http1>, client: &Rc<Client>) {
    if Box::pin(open(&mut http, client)).await {
        let _ = http1::serve(http, client).await;
    }
}

/// Puts the head of a request before the CONNECT that comes. False: the connection is over. A future of its own: nothing of it is held as long
/// as the connection lives.
async fn open(http: &mut Http1, client: &Rc<Client>) -> bool {
    let Some(connect) = read(http, client).await else { return false };
    let version = version_of(&connect);
    let bytes = http.incoming.take_unread();
    let head = head(&connect, &bytes, client).map(|mut head| {
        head.extend_from_slice(&bytes);
        head
    });
    pool::give_buffer(bytes);
    match head {
        Ok(input) => {
            http.incoming.input = input;
            http.mqtt = Some(Handshake { version, reason: 0 });
            true
        }
        Err(reason) => {
            say(client, "client sent an MQTT CONNECT packet with words that cannot be passed on");
            let mut out = Vec::new();
            answer::refusal(version, reason, &mut out);
            let _ = http.incoming.timer.guard(http.incoming.socket.write_all(&out)).await;
            false
        }
    }
}

/// Waits for CONNECT. None: the connection is over, and the log says why.
async fn read(http: &mut Http1, client: &Rc<Client>) -> Option<Connect> {
    let timeout = {
        let snapshot = crate::worker::snapshot();
        let port = &snapshot.ports[crate::worker::port_of(&snapshot, client.listener)];
        *snapshot.server(port.site(client).default).conf.core.client_header_timeout
    };
    http.incoming.timer.set(timeout);
    loop {
        match parse(http.unread()) {
            Ok(Some(connect)) => return Some(connect),
            Ok(None) if http.unread().len() <= MAX_CONNECT => {}
            Ok(None) => {
                say(client, "client sent too large an MQTT CONNECT packet");
                return None;
            }
            Err(NoPacket) => {
                say(client, "client sent no valid MQTT CONNECT packet");
                if is_other_level(http.unread()) {
                    // MQTT 3.1.1 section 3.1.2.2: an unacceptable level of the protocol.
                    let _ = http.incoming.timer.guard(http.incoming.socket.write_all(b"\x20\x02\0\x01")).await;
                }
                return None;
            }
        }
        match http.fill(client).await {
            Filled::Read(Ok(n)) if n > 0 => {}
            Filled::Read(_) => return None,
            Filled::Late | Filled::Taken => {
                say(client, "client timed out (110: Connection timed out)");
                return None;
            }
        }
    }
}

fn is_other_level(bytes: &[u8]) -> bool {
    let level = bytes.get(LEVEL_AT).copied();
    bytes.first() == Some(&0x10)
        && bytes.get(2..LEVEL_AT) == Some(b"\0\x04MQTT")
        && !matches!(level, None | Some(4 | 5))
}

fn say(client: &Rc<Client>, text: &str) {
    let snapshot = crate::worker::snapshot();
    Arrival::at_http(&snapshot, client).line(ACTION, Level::Info, format_args!("{text}"));
}

/// The request that stands for a CONNECT. The error is a reason code.
fn head(connect: &Connect, bytes: &[u8], client: &Client) -> Result<Vec<u8>, u8> {
    let name = connect.client.of(bytes);
    let is_fit = |text: &[u8]| is_text(text) && !text.iter().any(u8::is_ascii_control);
    if !is_fit(name) {
        return Err(code::BAD_CLIENT_ID);
    }
    let asked = client.tls.get().and_then(|facts| facts.server_name.as_deref());
    let mut head = format!("GET {PATH} HTTP/1.1\r\nHost: {}\r\n", asked.unwrap_or("mqtt")).into_bytes();
    head.extend_from_slice(b"Connection: Upgrade\r\nUpgrade: mqtt\r\n");
    if !name.is_empty() {
        head.extend_from_slice(b"Mqtt-Client-Id: ");
        head.extend_from_slice(name);
        head.extend_from_slice(b"\r\n");
    }
    let user = connect.username.map(|s| s.of(bytes));
    if user.is_some() || connect.password.is_some() {
        head.extend_from_slice(b"Authorization: ");
        authorization(user, connect.password.map(|s| s.of(bytes)), &mut head)?;
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    Ok(head)
}

/// Appends what a client says of itself as `Basic` (RFC 7617). The error is a reason code: a name with a colon cannot be told from its
/// password.
pub fn authorization(user: Option<&[u8]>, password: Option<&[u8]>, out: &mut Vec<u8>) -> Result<(), u8> {
    let user = user.unwrap_or_default();
    if user.contains(&b':') || !is_text(user) {
        return Err(code::BAD_USER);
    }
    let both = [user, b":", password.unwrap_or_default()].concat();
    out.extend_from_slice(b"Basic ");
    base64_encode(&both, Alphabet::Standard, out);
    Ok(())
}
