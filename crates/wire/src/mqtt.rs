//! Packets of MQTT 3.1.1 and 5 as a client reads and writes them, as far as holding a connection needs it: CONNECT, SUBSCRIBE,
//! PINGREQ, and PUBACK for what comes at QoS 1. What a broker reads and writes is in `packet`, `properties` and `answer`. Section
//! numbers are those of MQTT 5.

pub mod answer;
pub mod connect;
pub mod packet;
pub mod properties;
pub mod topic;

use crate::units::Size;

/// The longest packet that is looked into; payloads beyond are passed over.
pub const MAX_LENGTH: usize = 268_435_455;
/// Times the heartbeat: how long the target may think of us as alive (keep alive).
const KEEP_ALIVE: f64 = 2.0;

/// Which MQTT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 3.1.1
    V3,
    /// 5
    V5,
}

/// A packet's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Type and flags.
    pub first: u8,
    /// How long: the fixed header, and what stands behind it.
    pub size: Size,
}

/// The bytes are no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPacket;

/// Types of packets (section 2.1.2).
#[allow(missing_docs, reason = "the names are the specification's")]
pub mod kind {
    pub const CONNACK: u8 = 2;
    pub const PUBLISH: u8 = 3;
    pub const SUBACK: u8 = 9;
    pub const PINGRESP: u8 = 13;
    pub const DISCONNECT: u8 = 14;
}
/// Appended to end a connection in good order (section 3.14).
pub const DISCONNECT: [u8; 2] = [0xe0, 0];
/// Appended to send a PINGREQ (section 3.12).
pub const PINGREQ: [u8; 2] = [0xc0, 0];

/// Reads a fixed header (section 2.1); nothing if it is not complete.
///
/// # Errors
/// If it is none.
pub fn read(bytes: &[u8]) -> Result<Option<Packet>, NoPacket> {
    let Some((&first, rest)) = bytes.split_first() else { return Ok(None) };
    let mut payload = 0_u64;
    for (at, &byte) in rest.iter().take(4).enumerate() {
        payload |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some(Packet { first, size: Size { header: at + 2, payload } }));
        }
    }
    if rest.len() >= 4 { Err(NoPacket) } else { Ok(None) }
}

fn packet(first: u8, body: &[u8], out: &mut Vec<u8>) {
    out.push(first);
    let mut length = body.len().min(MAX_LENGTH);
    loop {
        let more = if length > 127 { 0x80 } else { 0 };
        out.push((length & 0x7f) as u8 | more);
        length >>= 7;
        if more == 0 {
            break;
        }
    }
    out.extend_from_slice(body);
}

fn text(text: &str, out: &mut Vec<u8>) {
    let bytes = &text.as_bytes()[..text.len().min(usize::from(u16::MAX))];
    out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// Appends CONNECT with a clean session (section 3.1).
pub fn connect(version: Version, client: &str, heartbeat_s: Option<f64>, out: &mut Vec<u8>) {
    let keep_alive = heartbeat_s.map_or(0.0, |s| (s * KEEP_ALIVE).clamp(1.0, f64::from(u16::MAX)));
    let mut body = Vec::with_capacity(32 + client.len());
    text("MQTT", &mut body);
    body.extend_from_slice(&[if version == Version::V5 { 5 } else { 4 }, 0x02]);
    body.extend_from_slice(&(keep_alive as u16).to_be_bytes());
    if version == Version::V5 {
        body.push(0);
    }
    text(client, &mut body);
    packet(0x10, &body, out);
}

/// Appends SUBSCRIBE (section 3.8).
pub fn subscribe(version: Version, topic: &str, qos: u8, out: &mut Vec<u8>) {
    let mut body = vec![0, 1];
    if version == Version::V5 {
        body.push(0);
    }
    text(topic, &mut body);
    body.push(qos);
    packet(0x82, &body, out);
}

/// The packet identifier of a PUBLISH at QoS 1 (section 3.3), from the first bytes of its body.
pub fn publish_id(first: u8, body: &[u8]) -> Option<[u8; 2]> {
    if first >> 1 & 3 != 1 {
        return None;
    }
    let topic = usize::from(u16::from_be_bytes([*body.first()?, *body.get(1)?]));
    Some([*body.get(topic + 2)?, *body.get(topic + 3)?])
}

/// Appends PUBACK (section 3.4).
pub fn puback(id: [u8; 2], out: &mut Vec<u8>) {
    out.extend_from_slice(&[0x40, 2, id[0], id[1]]);
}

/// Judges what a server says to a CONNECT (section 3.2): `None`: more bytes are needed. The error is the reason code, 255 if it is no
/// CONNACK.
pub fn connack(bytes: &[u8]) -> Option<Result<(), u8>> {
    match read(bytes) {
        Err(NoPacket) => Some(Err(u8::MAX)),
        Ok(_) if bytes.first().is_some_and(|first| first >> 4 != kind::CONNACK) => Some(Err(u8::MAX)),
        Ok(Some(packet)) if packet.size.payload < 2 => Some(Err(u8::MAX)),
        Ok(Some(packet)) => match bytes.get(packet.size.header + 1)? {
            0 => Some(Ok(())),
            code => Some(Err(*code)),
        },
        Ok(None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets() {
        let mut out = Vec::new();
        connect(Version::V3, "c1", Some(30.0), &mut out);
        assert_eq!(out, b"\x10\x0e\0\x04MQTT\x04\x02\0\x3c\0\x02c1");
        out.clear();
        subscribe(Version::V5, "a/b", 1, &mut out);
        assert_eq!(out, b"\x82\x09\0\x01\0\0\x03a/b\x01");
        assert_eq!(read(b"\x20\x02\0\0"), Ok(Some(Packet { first: 0x20, size: Size { header: 2, payload: 2 } })));
        assert_eq!(read(b"\x30\x80"), Ok(None));
        assert_eq!(read(b"\x30\x80\x01").unwrap().unwrap().size.payload, 128);
        assert!(read(b"\x30\xff\xff\xff\xff\x01").is_err());
        assert_eq!(publish_id(0x32, b"\0\x01t\x12\x34hello"), Some([0x12, 0x34]));
        assert_eq!(publish_id(0x30, b"\0\x01thello"), None);
        assert_eq!((connack(b"\x20\x02\0"), connack(b"\x20\x02\0\0")), (None, Some(Ok(()))));
        assert_eq!((connack(b"\x20\x02\0\x05"), connack(b"HTTP")), (Some(Err(5)), Some(Err(255))));
    }
}
