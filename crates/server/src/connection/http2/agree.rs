//! Whether HTTP/2 is to be spoken on a connection.

use crate::connection::Client;
use wire::http2::PREFACE;

/// Whether a connection may speak HTTP/2 without having agreed on it: `listen ... http2`, or `http2 on` in the server that
/// its address stands for.
/// Where there is TLS, ALPN is the place to agree.
pub fn is_wanted(client: &Client) -> bool {
    let snapshot = crate::worker::snapshot_for(client);
    let site = snapshot.ports[crate::worker::port_of(&snapshot, client.listener)].site(client);
    if site.ssl {
        return false;
    }
    site.http2 || *snapshot.location(snapshot.server(site.default).root).conf.http2.http2
}

/// Whether a client has agreed on HTTP/2 by ALPN.
pub fn is_agreed(client: &Client) -> bool {
    client.tls.get().and_then(|facts| facts.done.get()).is_some_and(|done| done.alpn.as_deref() == Some(b"h2"))
}

/// Whether the bytes are the beginning of HTTP/2. None: they may become it.
pub fn is_preface(bytes: &[u8]) -> Option<bool> {
    match bytes.len() < PREFACE.len() {
        true if PREFACE.starts_with(bytes) => None,
        true => Some(false),
        false => Some(bytes.starts_with(PREFACE)),
    }
}
