//! What is known of a session of `stream`, over and above a request: for variables, lines and the API.

use crate::log::error::Level;
use crate::request::Request;
use std::fmt;

/// What a session is over and above a request.
#[derive(Debug, Default)]
pub struct Facts {
    /// `$status`
    pub status: u16,
    /// Bytes from the client.
    pub received: u64,
    /// Bytes to the client.
    pub sent: u64,
    /// Bytes from the peer that is asked now, and to it.
    pub upstream: (u64, u64),
    /// What is being done, for the error log: `, while ...`.
    pub action: &'static str,
    /// A peer has been looked for.
    pub proxied: bool,
    /// UDP.
    pub datagrams: bool,
    /// What `ssl_preread` found.
    pub hello: Option<wire::preread::Hello>,
    /// What `mqtt_preread` found.
    pub mqtt: Option<Box<Said>>,
    /// By how many bytes `mqtt_set_connect` has made what the client said longer.
    pub changed: i64,
    /// Index of the address that it came to among the configuration's.
    pub listen: usize,
}

impl Facts {
    /// What a line of the error log says of the session (`ngx_stream_log_error`, `ngx_stream_proxy_log_error`).
    pub fn log(&self, r: &Request, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.action.is_empty() {
            write!(f, " while {}", self.action)?;
        }
        let udp = if self.datagrams { "udp " } else { "" };
        write!(f, ", {udp}client: {}", r.client.remote.borrow().host())?;
        if let Some(listen) = r.snapshot.whole().listens.get(self.listen) {
            write!(f, ", server: {}", listen.address)?;
        }
        if !self.proxied {
            return Ok(());
        }
        match r.attempts.all.last().map(|a| (&a.peer, &a.group)) {
            Some((Some(peer), _)) => write!(f, ", upstream: \"{}\"", peer.name)?,
            Some((None, Some(group))) => write!(f, ", upstream: \"{group}\"")?,
            _ => {}
        }
        self.totals(f)
    }

    fn totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = self.upstream;
        write!(f, ", bytes from/to client:{}/{}, bytes from/to upstream:{from}/{to}", self.received, self.sent)
    }
}

/// The sums of a session, as the line of its end shows them.
pub struct Totals<'f>(pub &'f Facts);

impl fmt::Display for Totals<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.totals(f)
    }
}

/// The facts of a session.
pub fn facts(r: &mut Request) -> &mut Facts {
    r.ctx.stream.get_or_insert_default()
}

/// Writes a line that has the connection's number and nothing else of the session.
pub fn note(r: &Request, level: Level, text: fmt::Arguments<'_>) {
    if r.error_log().enabled(level) {
        r.error_log().write(level, Some(r.client.number), text);
    }
}

/// What a client says of itself.
#[derive(Debug)]
pub struct Said {
    /// Its identifier.
    pub client: Box<[u8]>,
    /// The user's name.
    pub username: Option<Box<[u8]>>,
}
