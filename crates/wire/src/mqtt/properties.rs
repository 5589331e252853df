//! Properties of MQTT 5 (section 2.2.2): what a client says in them, and which of a message go on to its subscribers.

use super::packet::{Wrong, code, is_text};

/// A user property more is refused: each is work for all subscribers.
pub const MAX_USER_PROPERTIES: usize = 64;

/// Identifiers (section 2.2.2.2).
#[allow(missing_docs, reason = "the names are the specification's")]
pub mod id {
    pub const PAYLOAD_FORMAT: u8 = 0x01;
    pub const MESSAGE_EXPIRY: u8 = 0x02;
    pub const CONTENT_TYPE: u8 = 0x03;
    pub const RESPONSE_TOPIC: u8 = 0x08;
    pub const CORRELATION_DATA: u8 = 0x09;
    pub const SUBSCRIPTION_ID: u8 = 0x0b;
    pub const SESSION_EXPIRY: u8 = 0x11;
    pub const ASSIGNED_CLIENT: u8 = 0x12;
    pub const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub const AUTH_METHOD: u8 = 0x15;
    pub const AUTH_DATA: u8 = 0x16;
    pub const REQUEST_PROBLEM: u8 = 0x17;
    pub const WILL_DELAY: u8 = 0x18;
    pub const REQUEST_RESPONSE: u8 = 0x19;
    pub const REASON: u8 = 0x1f;
    pub const RECEIVE_MAXIMUM: u8 = 0x21;
    pub const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
    pub const TOPIC_ALIAS: u8 = 0x23;
    pub const MAXIMUM_QOS: u8 = 0x24;
    pub const USER: u8 = 0x26;
    pub const MAXIMUM_PACKET: u8 = 0x27;
    pub const SHARED_AVAILABLE: u8 = 0x2a;
}

/// The properties of one packet, of whatever kind. Which of them may stand in which packet, [`read`] is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties<'b> {
    /// How long the session stays when its connection is gone, s.
    pub session_expiry: Option<u32>,
    /// So many messages at QoS 1 may be under way to the client.
    pub receive_maximum: Option<u16>,
    /// A packet that is longer is not for the client.
    pub maximum_packet: Option<u32>,
    /// The message is of use for so long, s.
    pub message_expiry: Option<u32>,
    /// The will waits so long, s.
    pub will_delay: u32,
    /// A number in place of the topic.
    pub topic_alias: Option<u16>,
    /// Of a SUBSCRIBE: the client's number for what is subscribed to.
    pub subscription_id: Option<u32>,
    /// The payload's type.
    pub content_type: &'b [u8],
    /// The payload is text in UTF-8.
    pub is_text: bool,
    /// The client wants to prove who it is in several steps.
    pub auth_method: bool,
    /// What goes on with a message as it came, encoded: format, response topic, correlation data, what users say. Not the type, the
    /// expiry and what is about the connection.
    pub passed_on: Vec<u8>,
}

/// Properties of CONNECT (section 3.1.2.11).
pub const OF_CONNECT: &[u8] = &[
    id::SESSION_EXPIRY,
    id::RECEIVE_MAXIMUM,
    id::MAXIMUM_PACKET,
    id::TOPIC_ALIAS_MAXIMUM,
    id::REQUEST_RESPONSE,
    id::REQUEST_PROBLEM,
    id::USER,
    id::AUTH_METHOD,
    id::AUTH_DATA,
];
/// Of a will (section 3.1.3.2).
pub const OF_WILL: &[u8] = &[
    id::WILL_DELAY,
    id::PAYLOAD_FORMAT,
    id::MESSAGE_EXPIRY,
    id::CONTENT_TYPE,
    id::RESPONSE_TOPIC,
    id::CORRELATION_DATA,
    id::USER,
];
/// Of a client's PUBLISH (section 3.3.2.3).
pub const OF_PUBLISH: &[u8] = &[
    id::PAYLOAD_FORMAT,
    id::MESSAGE_EXPIRY,
    id::TOPIC_ALIAS,
    id::CONTENT_TYPE,
    id::RESPONSE_TOPIC,
    id::CORRELATION_DATA,
    id::USER,
];
/// Of SUBSCRIBE (section 3.8.2.1).
pub const OF_SUBSCRIBE: &[u8] = &[id::SUBSCRIPTION_ID, id::USER];
/// Of UNSUBSCRIBE (section 3.10.2.1).
pub const OF_UNSUBSCRIBE: &[u8] = &[id::USER];
/// Of PUBACK (section 3.4.2.2).
pub const OF_PUBACK: &[u8] = &[id::REASON, id::USER];
/// Of a client's DISCONNECT (section 3.14.2.2).
pub const OF_DISCONNECT: &[u8] = &[id::SESSION_EXPIRY, id::REASON, id::USER];

/// A number of one to four bytes (section 1.5.5), and how many those are.
pub(super) fn number(bytes: &[u8]) -> Option<(u32, usize)> {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(4).enumerate() {
        value |= u32::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
    }
    None
}

/// Appends such a number; one that is too large is cut to the largest.
pub(super) fn write_number(value: u32, out: &mut Vec<u8>) {
    let mut rest = value.min(super::MAX_LENGTH as u32);
    loop {
        let more = if rest > 127 { 0x80 } else { 0 };
        out.push((rest & 0x7f) as u8 | more);
        rest >>= 7;
        if more == 0 {
            return;
        }
    }
}

/// Reads properties without their length.
///
/// # Errors
/// One is not of `allowed`, stands there twice, or has a value that it may not have.
pub fn read<'b>(mut bytes: &'b [u8], allowed: &[u8]) -> Result<Properties<'b>, Wrong> {
    let mut all = Properties::default();
    let (mut seen, mut users) = (0_u64, 0);
    while let [id, rest @ ..] = bytes {
        let (value, after) = value(*id, rest).ok_or(Wrong::MALFORMED)?;
        if !allowed.contains(id) {
            return Err(Wrong::PROTOCOL);
        }
        if *id == id::USER {
            users += 1;
        } else if seen & 1 << id != 0 {
            return Err(Wrong::PROTOCOL);
        }
        seen |= 1 << id;
        if users > MAX_USER_PROPERTIES {
            return Err(Wrong(code::QUOTA_EXCEEDED));
        }
        all.take(*id, value)?;
        if matches!(*id, id::PAYLOAD_FORMAT | id::RESPONSE_TOPIC | id::CORRELATION_DATA | id::USER) {
            all.passed_on.extend_from_slice(&bytes[..bytes.len() - after.len()]);
        }
        bytes = after;
    }
    Ok(all)
}

/// The value of a property: of texts without their length. And what follows it.
fn value(id: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let size = match id {
        id::PAYLOAD_FORMAT | id::REQUEST_PROBLEM | id::REQUEST_RESPONSE | id::MAXIMUM_QOS | id::SHARED_AVAILABLE => 1,
        id::SERVER_KEEP_ALIVE | id::RECEIVE_MAXIMUM | id::TOPIC_ALIAS_MAXIMUM | id::TOPIC_ALIAS => 2,
        id::MESSAGE_EXPIRY | id::SESSION_EXPIRY | id::WILL_DELAY | id::MAXIMUM_PACKET => 4,
        id::SUBSCRIPTION_ID => number(bytes)?.1,
        id::CONTENT_TYPE
        | id::RESPONSE_TOPIC
        | id::CORRELATION_DATA
        | id::ASSIGNED_CLIENT
        | id::AUTH_METHOD
        | id::AUTH_DATA
        | id::REASON => {
            let end = text_end(bytes)?;
            return Some((&bytes[2..end], &bytes[end..]));
        }
        id::USER => {
            let end = text_end(bytes)?;
            let end = end + text_end(&bytes[end..])?;
            return Some((&bytes[..end], &bytes[end..]));
        }
        _ => return None,
    };
    bytes.split_at_checked(size)
}

/// Where a text with its length ends.
fn text_end(bytes: &[u8]) -> Option<usize> {
    let length = usize::from(u16::from_be_bytes([*bytes.first()?, *bytes.get(1)?]));
    Some(length + 2).filter(|end| *end <= bytes.len())
}

impl<'b> Properties<'b> {
    fn take(&mut self, id: u8, value: &'b [u8]) -> Result<(), Wrong> {
        let whole = value.iter().take(4).fold(0_u32, |n, b| n << 8 | u32::from(*b));
        let positive = || if whole == 0 { Err(Wrong::PROTOCOL) } else { Ok(whole) };
        let flag = || if whole > 1 { Err(Wrong::PROTOCOL) } else { Ok(whole == 1) };
        match id {
            id::SESSION_EXPIRY => self.session_expiry = Some(whole),
            id::RECEIVE_MAXIMUM => self.receive_maximum = Some(positive()? as u16),
            id::MAXIMUM_PACKET => self.maximum_packet = Some(positive()?),
            id::MESSAGE_EXPIRY => self.message_expiry = Some(whole),
            id::WILL_DELAY => self.will_delay = whole,
            id::TOPIC_ALIAS => self.topic_alias = Some(whole as u16),
            id::SUBSCRIPTION_ID => {
                let (number, _) = number(value).filter(|(n, _)| *n > 0).ok_or(Wrong::PROTOCOL)?;
                self.subscription_id = Some(number);
            }
            id::PAYLOAD_FORMAT => self.is_text = flag()?,
            id::REQUEST_PROBLEM | id::REQUEST_RESPONSE => drop(flag()?),
            id::CONTENT_TYPE if is_text(value) => self.content_type = value,
            id::RESPONSE_TOPIC if super::topic::is_name(value) => {}
            id::AUTH_METHOD => self.auth_method = true,
            id::CONTENT_TYPE | id::RESPONSE_TOPIC => return Err(Wrong::MALFORMED),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_message_says_goes_on() {
        let bytes =
            b"\x01\x01\x02\0\0\0\x3c\x03\0\x04text\x08\0\x01r\x09\0\x02\xff\0\x26\0\x01a\0\x01b\x26\0\x01a\0\x01c";
        let all = read(bytes, OF_PUBLISH).unwrap();
        assert_eq!((all.message_expiry, all.content_type, all.is_text), (Some(60), &b"text"[..], true));
        assert_eq!(all.passed_on, b"\x01\x01\x08\0\x01r\x09\0\x02\xff\0\x26\0\x01a\0\x01b\x26\0\x01a\0\x01c");
        let all = read(b"\x11\0\0\0\x0a\x21\0\x05\x27\0\0\x10\0", OF_CONNECT).unwrap();
        assert_eq!((all.session_expiry, all.receive_maximum, all.maximum_packet), (Some(10), Some(5), Some(4096)));
        assert_eq!(read(b"\x0b\x80\x01", OF_SUBSCRIBE).unwrap().subscription_id, Some(128));
    }

    #[test]
    fn what_is_wrong_with_properties() {
        for (bytes, allowed) in [
            (&b"\x11\0\0\0\x0a\x11\0\0\0\x0a"[..], OF_CONNECT),
            (b"\x21\0\0", OF_CONNECT),
            (b"\x27\0\0\0\0", OF_CONNECT),
            (b"\x0b\x01", OF_PUBLISH),
            (b"\x0b\0", OF_SUBSCRIBE),
            (b"\x01\x02", OF_PUBLISH),
        ] {
            assert_eq!(read(bytes, allowed), Err(Wrong::PROTOCOL), "{}", bytes.escape_ascii());
        }
        for bytes in [&b"\x02\0\0"[..], b"\x7f\0", b"\x03\0\x04te", b"\x08\0\x01#", b"\x26\0\x01a\0\x02b"] {
            assert_eq!(read(bytes, OF_PUBLISH), Err(Wrong::MALFORMED), "{}", bytes.escape_ascii());
        }
        let many = b"\x26\0\0\0\0".repeat(MAX_USER_PROPERTIES + 1);
        assert_eq!(read(&many, OF_PUBLISH), Err(Wrong(code::QUOTA_EXCEEDED)));
    }

    #[test]
    fn numbers_of_one_to_four_bytes() {
        for n in [0, 127, 128, 16_383, 16_384, 268_435_455] {
            let mut out = Vec::new();
            write_number(n, &mut out);
            assert_eq!(number(&out), Some((n, out.len())));
        }
        assert_eq!((number(b"\x80"), number(b"\xff\xff\xff\xff\x01")), (None, None));
    }
}
