//! Frames of WebSocket (RFC 6455): as a client reads and writes them, as far as holding a connection needs it, and as a server does.

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

/// A frame's opcode: a message of text, in UTF-8.
pub const TEXT: u8 = 1;
/// Any other message.
pub const BINARY: u8 = 2;
/// The end.
pub const CLOSE: u8 = 8;
/// Wants a pong.
pub const PING: u8 = 9;
/// Answers a ping.
pub const PONG: u8 = 10;
/// A part of a message that began before.
pub const CONTINUATION: u8 = 0;
/// Beside the opcode of a message's first frame: it is compressed (RFC 7692 section 6).
pub const DEFLATED: u8 = 0x40;
/// A header of a server's frame is as long as this at most.
pub const MAX_HEADER: usize = 10;
/// What a server answers a key with is made of it and this (RFC 6455 section 1.3).
pub const ACCEPT_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Appends the header of a whole, unmasked frame: a server's.
pub fn write_header(opcode: u8, payload: u64, out: &mut Vec<u8>) {
    out.push(0x80 | opcode);
    match payload {
        0..126 => out.push(payload as u8),
        126..0x1_0000 => {
            out.push(126);
            out.extend_from_slice(&(payload as u16).to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend_from_slice(&payload.to_be_bytes());
        }
    }
}

/// Appends a whole frame of a server.
pub fn write_frame(opcode: u8, payload: &[u8], out: &mut Vec<u8>) {
    write_header(opcode, payload.len() as u64, out);
    out.extend_from_slice(payload);
}

/// Appends a server's frame that ends the connection: a code and why (RFC 6455 section 7.4), cut to what fits.
pub fn write_close(code: u16, reason: &[u8], out: &mut Vec<u8>) {
    let reason = &reason[..reason.len().min(MAX_CONTROL - 2)];
    write_header(CLOSE, reason.len() as u64 + 2, out);
    out.extend_from_slice(&code.to_be_bytes());
    out.extend_from_slice(reason);
}

/// A frame that a client has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FromClient {
    /// What it is; [`CONTINUATION`] for a part that is not the first.
    pub opcode: u8,
    /// It is whole, or the last part.
    pub last: bool,
    /// The message that begins with it is compressed; whether that was agreed on is the caller's to look at.
    pub deflated: bool,
    mask: [u8; 4],
    /// How long its header is, and what follows.
    pub size: Size,
}

/// Reads the header of a client's frame; nothing if it is not complete.
///
/// # Errors
/// If it is none: not masked (RFC 6455 section 5.1), reserved bits or opcodes, a control frame in parts or too long (section 5.5), a length
/// of more than 63 bits.
pub fn read_from_client(bytes: &[u8]) -> Result<Option<FromClient>, NoFrame> {
    let &[first, second, ref rest @ ..] = bytes else { return Ok(None) };
    let (opcode, last, deflated) = (first & 0x0f, first & 0x80 != 0, first & DEFLATED != 0);
    if second & 0x80 == 0 || first & 0x30 != 0 || matches!(opcode, 3..=7 | 11..) {
        return Err(NoFrame);
    }
    if deflated && !matches!(opcode, TEXT | BINARY) {
        return Err(NoFrame);
    }
    let (header, payload) = match (second & 0x7f, rest) {
        (126, [a, b, ..]) => (8, u64::from(u16::from_be_bytes([*a, *b]))),
        (127, [a, b, c, d, e, f, g, h, ..]) => (14, u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h])),
        (126 | 127, _) => return Ok(None),
        (length, _) => (6, u64::from(length)),
    };
    if payload >> 63 != 0 || (opcode >= CLOSE && (!last || payload > MAX_CONTROL as u64)) {
        return Err(NoFrame);
    }
    let Some(mask) = bytes.get(header - 4..header) else { return Ok(None) };
    let mask = mask.try_into().expect("it has four bytes");
    Ok(Some(FromClient { opcode, last, deflated, mask, size: Size { header, payload } }))
}

impl FromClient {
    /// Appends the payload, which follows the header.
    pub fn unmask(&self, payload: &[u8], out: &mut Vec<u8>) {
        out.extend(payload.iter().zip(self.mask.iter().cycle()).map(|(b, m)| b ^ m));
    }
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

    #[test]
    fn frames_of_clients() {
        let read = read_from_client;
        let frame = read(&[0x81, 0x82, 1, 2, 3, 4, b'h' ^ 1, b'i' ^ 2]).unwrap().unwrap();
        assert_eq!((frame.opcode, frame.last, frame.size.header, frame.size.payload), (TEXT, true, 6, 2));
        assert!(!frame.deflated && read(&[0xc1, 0x80, 1, 2, 3, 4]).unwrap().unwrap().deflated);
        let mut out = Vec::new();
        frame.unmask(&[b'h' ^ 1, b'i' ^ 2], &mut out);
        assert_eq!(out, b"hi");
        assert_eq!(read(&[0x81, 0xfe, 1]), Ok(None));
        assert_eq!(read(&[0x81, 0x82, 1, 2]), Ok(None));
        let long = read(&[0x02, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 9, 9, 9, 9]).unwrap().unwrap();
        assert_eq!((long.opcode, long.last, long.size.header, long.size.payload), (BINARY, false, 14, 65_536));
        for bad in [
            &[0x81, 2][..],
            &[0xa1, 0x82],
            &[0xc9, 0x80],
            &[0x83, 0x82],
            &[0x8b, 0x80],
            &[0x09, 0x80],
            &[0x89, 0xfe, 0, 126],
        ] {
            assert_eq!(read(bad), Err(NoFrame), "{bad:?}");
        }
        assert_eq!(read(&[0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0]), Err(NoFrame));
        let mut out = Vec::new();
        write_frame(TEXT, &[b'x'; 300], &mut out);
        write_close(1001, b"410 Gone", &mut out);
        assert_eq!((&out[..4], &out[304..]), (&[0x81, 126, 1, 44][..], &b"\x88\x0a\x03\xe9410 Gone"[..]));
    }
}
