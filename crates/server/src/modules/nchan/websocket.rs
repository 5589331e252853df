//! The handshake of WebSocket (RFC 6455 section 4.2).

use super::{Conf, answer};
use crate::request::headers::KnownHeader as K;
use crate::request::phases::Verdict;
use crate::request::{Request, Text, flow};
use sha1::{Digest, Sha1};
use wire::encoding::{Alphabet, base64_decode, base64_encode};
use wire::permessage_deflate;
use wire::websocket::ACCEPT_GUID;

/// The subprotocol in which messages come with their ids.
pub(super) const META: &str = "ws+meta.nchan";
/// The version of the protocol.
const VERSION: &[u8] = b"13";

/// Whether the client wants messages with their ids.
pub(super) fn wants_meta(r: &Request) -> bool {
    wants(r, META.as_bytes())
}

/// Whether the client names a subprotocol.
pub(super) fn wants(r: &Request, protocol: &[u8]) -> bool {
    let mut named = r.head.headers.lines().iter().filter(|line| line.known == K::SecWebSocketProtocol);
    named.any(|line| r.get(line.value).split(|b| *b == b',').any(|name| name.trim_ascii() == protocol))
}

/// What is answered to a client's offer of `permessage-deflate`, if it is taken.
pub(super) fn extension(r: &Request, conf: &Conf) -> Option<String> {
    let lines = r.head.headers.named(&r.arena, b"sec-websocket-extensions");
    permessage_deflate::agree(lines.map(|line| r.get(line.value)), *conf.deflate_window as u8)
}

/// Refuses what is no handshake. On `Err` the client has been answered.
pub(super) fn check(r: &mut Request) -> Result<(), Verdict> {
    let Some(version) = r.head.headers.find(K::SecWebSocketVersion) else {
        return Err(answer::plain(r, 400, "No Sec-Websocket-Version header present"));
    };
    if r.get(version) != VERSION {
        r.answer.headers.add(K::SecWebSocketVersion, "Sec-WebSocket-Version", "13");
        r.answer.headers.status_line = Some(Text::from("426 Upgrade Required"));
        return Err(answer::plain(r, 426, "Unsupported Sec-Websocket-Version"));
    }
    let Some(key) = r.head.headers.find(K::SecWebSocketKey) else {
        return Err(answer::plain(r, 400, "No Sec-Websocket-Key header present"));
    };
    let mut decoded = Vec::new();
    if base64_decode(r.get(key), Alphabet::Standard, &mut decoded).is_err() || decoded.len() != 16 {
        return Err(answer::plain(r, 400, "Invalid Sec-Websocket-Key header"));
    }
    Ok(())
}

/// Sends 101, and waits until it is written.
pub(super) async fn shake_hands(
    r: &mut Request,
    protocol: Option<&'static str>,
    extension: Option<&str>,
) -> Result<(), Verdict> {
    check(r)?;
    let key = r.head.headers.find(K::SecWebSocketKey).unwrap_or(Text::EMPTY);
    let digest = Sha1::new().chain_update(r.get(key)).chain_update(ACCEPT_GUID).finalize();
    let mut accept = Vec::new();
    base64_encode(&digest, Alphabet::Standard, &mut accept);
    let accept = r.text(&accept);
    if let Some(protocol) = protocol {
        r.answer.headers.add(K::SecWebSocketProtocol, "Sec-WebSocket-Protocol", protocol);
    }
    if let Some(extension) = extension {
        let value = r.text(extension.as_bytes());
        r.answer.headers.push(Text::from("Sec-WebSocket-Extensions"), value);
    }
    r.answer.headers.add(K::SecWebSocketAccept, "Sec-WebSocket-Accept", accept);
    r.answer.headers.add(K::Upgrade, "Upgrade", "websocket");
    r.answer.headers.status = 101;
    r.answer.headers.status_line = Some(Text::from("101 Switching Protocols"));
    r.answer.headers.content_type = None;
    r.send_header()?;
    // What is a frame is no body: nothing may change it.
    r.answer.body_filters.clear();
    r.flow.keepalive = false;
    flow::flush_rest(r).await.map_err(|_| Verdict::Broken)
}
