//! Protocols without input or output: bytes and times are arguments.
//!
//! Every parser here takes a slice and says how far it got; none of them reads a socket, asks a clock or starts a
//! thread. What is found is given as [`span::Span`]s into the caller's buffer, so the usual request costs no
//! allocation. Each parser is bounded, either by the buffer it is given or by a named limit.

pub mod date;
pub mod encoding;
pub mod fastcgi;
pub mod geoip;
pub mod http1;
pub mod http2;
pub mod http3;
pub mod jwt;
pub mod memcached;
pub mod mp4;
pub mod mqtt;
pub mod permessage_deflate;
pub mod picture;
pub mod preread;
pub mod priority;
pub mod proxy_protocol;
pub mod range;
pub mod resp;
pub mod scgi;
pub mod span;
pub mod terminal;
pub mod tls;
pub mod trace_context;
pub mod units;
pub mod uwsgi;
pub mod webdav;
pub mod websocket;
pub mod zone_sync;

use std::borrow::Cow;

/// Who is on the other side, in complaints of protocols that either side may speak first.
const PEER: &str = "peer";

/// A complaint of HTTP/2 or HTTP/3 with the word of who reads it for the other side: `client`, `upstream`.
pub fn said_of<'t>(who: &str, text: &'t str) -> Cow<'t, str> {
    match text.strip_prefix(PEER) {
        Some(rest) if rest.starts_with(' ') => Cow::Owned(format!("{who}{rest}")),
        _ => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::said_of;

    #[test]
    fn complaints_name_the_side() {
        assert_eq!(said_of("client", "peer sent PUSH_PROMISE frame"), "client sent PUSH_PROMISE frame");
        assert_eq!(said_of("upstream", "http2 flood detected"), "http2 flood detected");
    }
}
