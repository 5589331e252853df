//! Frames of WebSocket (RFC 6455) as a client reads and writes them, as far as holding a connection needs it.

use crate::units::Size;

/// Any 16 bytes in base64 are a key; targets only hash it.
const KEY: &str = "aXJvbndlaXIgc3RyZXNzIQ==";
/// A frame of a client is masked (RFC 6455 section 5.3); with what does not matter to a load.
const MASK: [u8; 4] = [0x5a, 0xa5, 0x3c, 0xc3];
/// A control frame's payload (RFC 6455 section 5.5).
const MAX_CONTROL: usize = 125;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A message, or the last part of one.
    Message,
    /// A part of a message that goes on.
    Part,
    /// Wants a pong.
    Ping,
    /// Answers a ping.
    Pong,
    /// The end.
    Close,
}

/// A frame's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub kind: Kind,
    /// How long.
    pub size: Size,
}

/// The bytes are no frame that a server may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoFrame;

/// The request that asks for an upgrade.
pub fn upgrade(path: &str, host: &str, headers: &str) -> Vec<u8> {
    format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {KEY}\r\n\
         Sec-WebSocket-Version: 13\r\n{headers}\r\n"
    )
    .into_bytes()
}

/// Reads a frame's header; nothing if it is not complete.
///
/// # Errors
/// If it is none.
pub fn read(bytes: &[u8]) -> Result<Option<Frame>, NoFrame> {
    let &[first, second, ref rest @ ..] = bytes else { return Ok(None) };
    // Targets must not mask, and no extension was asked for that could set the reserved bits.
    if second & 0x80 != 0 || first & 0x70 != 0 {
        return Err(NoFrame);
    }
    let (header, payload) = match (second & 0x7f, rest) {
        (126, [a, b, ..]) => (4, u64::from(u16::from_be_bytes([*a, *b]))),
        (127, [a, b, c, d, e, f, g, h, ..]) => (10, u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h])),
        (126 | 127, _) => return Ok(None),
        (length, _) => (2, u64::from(length)),
    };
    let kind = match (first & 0x0f, first & 0x80 != 0) {
        (0..=2, true) => Kind::Message,
        (0..=2, false) => Kind::Part,
        (8, true) => Kind::Close,
        (9, true) => Kind::Ping,
        (10, true) => Kind::Pong,
        _ => return Err(NoFrame),
    };
    if !matches!(kind, Kind::Message | Kind::Part) && payload > MAX_CONTROL as u64 {
        return Err(NoFrame);
    }
    Ok(Some(Frame { kind, size: Size { header, payload } }))
}

/// Appends a ping without a payload.
pub fn ping(out: &mut Vec<u8>) {
    control(9, &[], out);
}

/// Appends the answer to a ping.
pub fn pong(payload: &[u8], out: &mut Vec<u8>) {
    control(10, &payload[..payload.len().min(MAX_CONTROL)], out);
}

fn control(opcode: u8, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&[0x80 | opcode, 0x80 | payload.len() as u8]);
    out.extend_from_slice(&MASK);
    out.extend(payload.iter().zip(MASK.iter().cycle()).map(|(b, m)| b ^ m));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames() {
        assert_eq!(
            read(&[0x81, 5, b'h']),
            Ok(Some(Frame { kind: Kind::Message, size: Size { header: 2, payload: 5 } }))
        );
        assert_eq!(read(&[0x02, 126, 1]), Ok(None));
        assert_eq!(
            read(&[0x02, 126, 1, 0]),
            Ok(Some(Frame { kind: Kind::Part, size: Size { header: 4, payload: 256 } }))
        );
        let long = read(&[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]).unwrap().unwrap();
        assert_eq!((long.size.header, long.size.payload), (10, 65_536));
        assert!(read(&[0x81, 0x85]).is_err() && read(&[0x89, 126, 1, 0]).is_err() && read(&[0x83, 0]).is_err());
        let mut out = Vec::new();
        pong(b"ab", &mut out);
        assert_eq!(out, [0x8a, 0x82, 0x5a, 0xa5, 0x3c, 0xc3, b'a' ^ 0x5a, b'b' ^ 0xa5]);
    }
}
