//! What a broker says: packets of MQTT 3.1.1 and 5 (sections 3.2 to 3.14).

use super::Version;
use super::packet::code;
use super::properties::{id, write_number};

/// A CONNACK that lets the client in. What MQTT 3.1.1 has no words for is left out there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Welcome<'a> {
    /// There was a session, which goes on.
    pub session_present: bool,
    /// The name that a client without one has got.
    pub assigned: Option<&'a [u8]>,
    /// How long the session stays, where the client wants it longer, s.
    pub session_expiry: Option<u32>,
    /// The keep alive that holds in place of the client's, s.
    pub keep_alive: Option<u16>,
    /// Longer packets are refused, bytes.
    pub maximum_packet: u32,
    /// So many messages at QoS 1 may be under way to the server.
    pub receive_maximum: u16,
}

/// Appends CONNACK (section 3.2): QoS 1 at most, no shared subscriptions, no topic aliases.
pub fn welcome(version: Version, welcome: &Welcome<'_>, out: &mut Vec<u8>) {
    let mut body = vec![u8::from(welcome.session_present), code::SUCCESS];
    if version == Version::V5 {
        let mut all = vec![id::MAXIMUM_QOS, 1, id::SHARED_AVAILABLE, 0, id::RECEIVE_MAXIMUM];
        all.extend_from_slice(&welcome.receive_maximum.to_be_bytes());
        all.push(id::MAXIMUM_PACKET);
        all.extend_from_slice(&welcome.maximum_packet.to_be_bytes());
        if let Some(seconds) = welcome.session_expiry {
            all.push(id::SESSION_EXPIRY);
            all.extend_from_slice(&seconds.to_be_bytes());
        }
        if let Some(seconds) = welcome.keep_alive {
            all.push(id::SERVER_KEEP_ALIVE);
            all.extend_from_slice(&seconds.to_be_bytes());
        }
        if let Some(name) = welcome.assigned {
            all.push(id::ASSIGNED_CLIENT);
            text(name, &mut all);
        }
        write_number(all.len() as u32, &mut body);
        body.extend_from_slice(&all);
    }
    super::packet(0x20, &body, out);
}

/// Appends a CONNACK that refuses, by a reason code of MQTT 5: 3.1.1 has five of its own (section 3.2.2.3 there).
pub fn refusal(version: Version, reason: u8, out: &mut Vec<u8>) {
    match version {
        Version::V5 => super::packet(0x20, &[0, reason, 0], out),
        Version::V3 => {
            let reason = match reason {
                code::BAD_CLIENT_ID => 2,
                code::BAD_USER => 4,
                code::NOT_AUTHORIZED => 5,
                _ => 3,
            };
            super::packet(0x20, &[0, reason], out);
        }
    }
}

/// The reason code for a status of HTTP that is no success.
pub fn reason_of(status: u16) -> u8 {
    match status {
        400 => code::MALFORMED,
        401 => code::BAD_USER,
        403 | 405 | 444 => code::NOT_AUTHORIZED,
        408 => code::KEEP_ALIVE,
        413 => code::TOO_LARGE,
        414 | 494 => code::BAD_CLIENT_ID,
        429 => code::BUSY,
        502..=504 | 507 => code::UNAVAILABLE,
        500..=599 => code::UNSPECIFIED,
        _ => code::IMPLEMENTATION,
    }
}

/// A message for a subscriber.
#[derive(Clone, Copy, Debug, Default)]
pub struct Message<'a> {
    /// It comes again.
    pub dup: bool,
    /// The packet's number, which a message at QoS 1 has.
    pub id: Option<u16>,
    /// It was kept for who subscribes later, or the subscriber wants to know that it is.
    pub retain: bool,
    /// Where it was published.
    pub topic: &'a [u8],
    /// The message.
    pub payload: &'a [u8],
    /// Of use for so long, s.
    pub expiry: Option<u32>,
    /// Its type; empty for none.
    pub content_type: &'a [u8],
    /// The subscriber's number.
    pub subscription: Option<u32>,
    /// Properties that go on as they came.
    pub properties: &'a [u8],
}

/// How long the packet of a message is at most, bytes.
pub fn publish_size(message: &Message<'_>) -> usize {
    64 + message.topic.len() + message.payload.len() + message.content_type.len() + message.properties.len()
}

/// Appends PUBLISH (section 3.3).
pub fn publish(version: Version, message: &Message<'_>, out: &mut Vec<u8>) {
    let mut properties = Vec::new();
    if version == Version::V5 {
        if let Some(seconds) = message.expiry {
            properties.push(id::MESSAGE_EXPIRY);
            properties.extend_from_slice(&seconds.to_be_bytes());
        }
        if !message.content_type.is_empty() {
            properties.push(id::CONTENT_TYPE);
            text(message.content_type, &mut properties);
        }
        properties.extend_from_slice(message.properties);
        if let Some(number) = message.subscription {
            properties.push(id::SUBSCRIPTION_ID);
            write_number(number, &mut properties);
        }
    }
    let mut head = Vec::with_capacity(message.topic.len() + properties.len() + 10);
    text(message.topic, &mut head);
    head.extend(message.id.iter().flat_map(|id| id.to_be_bytes()));
    if version == Version::V5 {
        write_number(properties.len() as u32, &mut head);
        head.extend_from_slice(&properties);
    }
    let qos = if message.id.is_some() { 2 } else { 0 };
    out.push(0x30 | u8::from(message.dup) << 3 | qos | u8::from(message.retain));
    write_number((head.len() + message.payload.len()) as u32, out);
    out.extend_from_slice(&head);
    out.extend_from_slice(message.payload);
}

/// Appends PUBACK (section 3.4). MQTT 3.1.1 has no reason codes.
pub fn puback(version: Version, number: u16, reason: u8, out: &mut Vec<u8>) {
    let [a, b] = number.to_be_bytes();
    match (version, reason) {
        (Version::V5, 1..) => super::packet(0x40, &[a, b, reason], out),
        _ => super::packet(0x40, &[a, b], out),
    }
}

/// Appends SUBACK (section 3.9): a reason code for each filter.
pub fn suback(version: Version, number: u16, reasons: &[u8], out: &mut Vec<u8>) {
    let mut body = number.to_be_bytes().to_vec();
    if version == Version::V5 {
        body.push(0);
        body.extend_from_slice(reasons);
    } else {
        body.extend(reasons.iter().map(|reason| if *reason >= 0x80 { 0x80 } else { *reason }));
    }
    super::packet(0x90, &body, out);
}

/// Appends UNSUBACK (section 3.11).
pub fn unsuback(version: Version, number: u16, reasons: &[u8], out: &mut Vec<u8>) {
    let mut body = number.to_be_bytes().to_vec();
    if version == Version::V5 {
        body.push(0);
        body.extend_from_slice(reasons);
    }
    super::packet(0xb0, &body, out);
}

/// Appends PINGRESP (section 3.13).
pub fn pingresp(out: &mut Vec<u8>) {
    super::packet(0xd0, &[], out);
}

/// Appends a server's DISCONNECT (section 3.14). In MQTT 3.1.1 a server only closes.
pub fn disconnect(version: Version, reason: u8, out: &mut Vec<u8>) {
    if version == Version::V5 {
        super::packet(0xe0, &[reason, 0], out);
    }
}

fn text(text: &[u8], out: &mut Vec<u8>) {
    let text = &text[..text.len().min(usize::from(u16::MAX))];
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::packet::{Packet, parse};

    fn written(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        out.escape_ascii().to_string()
    }

    #[test]
    fn what_a_broker_says() {
        let hello = Welcome { session_present: true, maximum_packet: 1024, receive_maximum: 16, ..Welcome::default() };
        assert_eq!(written(|out| welcome(Version::V3, &hello, out)), r" \x02\x01\x00");
        let five = r" \x0f\x01\x00\x0c$\x01*\x00!\x00\x10\'\x00\x00\x04\x00";
        assert_eq!(written(|out| welcome(Version::V5, &hello, out)), five);
        assert_eq!(written(|out| refusal(Version::V3, code::BAD_USER, out)), r" \x02\x00\x04");
        assert_eq!(written(|out| refusal(Version::V5, reason_of(403), out)), r" \x03\x00\x87\x00");
        assert_eq!(written(|out| suback(Version::V3, 1, &[0, 1, 0x8f], out)), r"\x90\x05\x00\x01\x00\x01\x80");
        assert_eq!(written(|out| unsuback(Version::V5, 1, &[0x11], out)), r"\xb0\x04\x00\x01\x00\x11");
        assert_eq!(written(|out| disconnect(Version::V3, 0x8e, out)), "");
    }

    #[test]
    fn messages_are_read_as_they_are_written() {
        let message = Message {
            id: Some(7),
            topic: b"a/b",
            payload: b"hello",
            expiry: Some(9),
            content_type: b"text/plain",
            properties: b"\x26\0\x01a\0\x01b",
            ..Message::default()
        };
        for version in [Version::V3, Version::V5] {
            let mut out = Vec::new();
            publish(version, &message, &mut out);
            assert!(out.len() <= publish_size(&message));
            let Ok(Packet::Publish(read)) = parse(version, out[0], &out[2..]) else { panic!("a PUBLISH") };
            assert_eq!((read.qos, read.id, read.topic, read.payload), (1, 7, &b"a/b"[..], &b"hello"[..]));
            if version == Version::V5 {
                assert_eq!(read.properties.passed_on, message.properties);
                assert_eq!(
                    (read.properties.message_expiry, read.properties.content_type),
                    (Some(9), &b"text/plain"[..])
                );
            }
        }
    }
}
