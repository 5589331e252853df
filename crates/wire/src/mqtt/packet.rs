//! A client's packets as a broker reads them: MQTT 3.1.1 and 5 after CONNECT (sections 3.3 to 3.14). From: bytes of one packet, whole. The
//! caller bounds their number.

use super::properties::{self, Properties};
use super::{Version, topic};

/// Filters of one SUBSCRIBE or UNSUBSCRIBE.
pub const MAX_FILTERS: usize = 256;

/// Reason codes (section 2.4).
#[allow(missing_docs, reason = "the names are the specification's")]
pub mod code {
    pub const SUCCESS: u8 = 0;
    pub const GRANTED_QOS_1: u8 = 1;
    pub const WITH_WILL: u8 = 0x04;
    pub const NO_SUBSCRIBERS: u8 = 0x10;
    pub const NO_SUBSCRIPTION: u8 = 0x11;
    pub const UNSPECIFIED: u8 = 0x80;
    pub const MALFORMED: u8 = 0x81;
    pub const PROTOCOL_ERROR: u8 = 0x82;
    pub const IMPLEMENTATION: u8 = 0x83;
    pub const BAD_CLIENT_ID: u8 = 0x85;
    pub const BAD_USER: u8 = 0x86;
    pub const NOT_AUTHORIZED: u8 = 0x87;
    pub const UNAVAILABLE: u8 = 0x88;
    pub const BUSY: u8 = 0x89;
    pub const SHUTTING_DOWN: u8 = 0x8b;
    pub const BAD_AUTH_METHOD: u8 = 0x8c;
    pub const KEEP_ALIVE: u8 = 0x8d;
    pub const TAKEN_OVER: u8 = 0x8e;
    pub const BAD_FILTER: u8 = 0x8f;
    pub const BAD_TOPIC: u8 = 0x90;
    pub const BAD_ALIAS: u8 = 0x94;
    pub const TOO_LARGE: u8 = 0x95;
    pub const QUOTA_EXCEEDED: u8 = 0x97;
    pub const QOS_NOT_SUPPORTED: u8 = 0x9b;
    pub const SHARED_NOT_SUPPORTED: u8 = 0x9e;
}

/// The client has broken a rule: the reason code that says which. Its connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong(pub u8);

impl Wrong {
    /// The bytes are no such packet.
    pub const MALFORMED: Wrong = Wrong(code::MALFORMED);
    /// It may not say that, or not now.
    pub const PROTOCOL: Wrong = Wrong(code::PROTOCOL_ERROR);
}

/// A packet of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet<'b> {
    /// A message.
    Publish(Publish<'b>),
    /// A message of that number has arrived, or was refused.
    Puback(u16),
    /// It wants messages.
    Subscribe(Subscribe<'b>),
    /// It wants them no more: the packet's number, and filters.
    Unsubscribe(u16, Vec<&'b [u8]>),
    /// It wants a PINGRESP.
    Pingreq,
    /// It goes, with this reason code, and how long its session stays, if it says so (s).
    Disconnect(u8, Option<u32>),
}

/// A message that is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish<'b> {
    /// It comes again.
    pub dup: bool,
    /// 0 to 2.
    pub qos: u8,
    /// It is kept for who subscribes later.
    pub retain: bool,
    /// The packet's number; 0 at QoS 0.
    pub id: u16,
    /// Where to.
    pub topic: &'b [u8],
    /// MQTT 5's.
    pub properties: Properties<'b>,
    /// The message.
    pub payload: &'b [u8],
}

/// What is subscribed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe<'b> {
    /// The packet's number.
    pub id: u16,
    /// The client's number for all of these.
    pub subscription: Option<u32>,
    /// Filters, each with what is wanted. Whether they are filters is not looked at.
    pub filters: Vec<(&'b [u8], Wants)>,
}

/// What a subscriber wants of a filter (section 3.8.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// 0 to 2.
    pub qos: u8,
    /// Not what it has published itself.
    pub no_local: bool,
    /// The flag stays as it was published.
    pub retain_as_published: bool,
    /// Retained messages: 0 at once, 1 if the filter is new, 2 not.
    pub retain_handling: u8,
}

/// Whether bytes are a text of MQTT: UTF-8 without NUL (section 1.5.4).
pub fn is_text(bytes: &[u8]) -> bool {
    memchr::memchr(0, bytes).is_none() && std::str::from_utf8(bytes).is_ok()
}

/// Reads a packet: its first byte, and what follows the length. CONNECT is `connect`'s.
///
/// # Errors
/// The client may not say that.
pub fn parse(version: Version, first: u8, body: &[u8]) -> Result<Packet<'_>, Wrong> {
    let mut rest = Rest(body);
    match (first >> 4, first & 0x0f) {
        (3, flags) => publish(version, flags, rest).map(Packet::Publish),
        (4, 0) => {
            let id = rest.id()?;
            if version == Version::V5 && !rest.0.is_empty() {
                rest.byte()?;
                if !rest.0.is_empty() {
                    properties::read(rest.properties()?, properties::OF_PUBACK)?;
                }
            }
            rest.end(Packet::Puback(id))
        }
        // What belongs to QoS 2, which nobody is granted.
        (5..=7, _) => Err(Wrong(code::QOS_NOT_SUPPORTED)),
        (8, 2) => subscribe(version, rest).map(Packet::Subscribe),
        (10, 2) => {
            let id = rest.id()?;
            if version == Version::V5 {
                properties::read(rest.properties()?, properties::OF_UNSUBSCRIBE)?;
            }
            let mut filters = Vec::new();
            while !rest.0.is_empty() {
                filters.push(rest.text()?);
                check_number(filters.len())?;
            }
            if filters.is_empty() { Err(Wrong::PROTOCOL) } else { Ok(Packet::Unsubscribe(id, filters)) }
        }
        (12, 0) => rest.end(Packet::Pingreq),
        (14, 0) => {
            let (mut reason, mut expiry) = (code::SUCCESS, None);
            if version == Version::V5 && !rest.0.is_empty() {
                reason = rest.byte()?;
                if !rest.0.is_empty() {
                    expiry = properties::read(rest.properties()?, properties::OF_DISCONNECT)?.session_expiry;
                }
            }
            rest.end(Packet::Disconnect(reason, expiry))
        }
        (4 | 8 | 10 | 12 | 14, _) => Err(Wrong::MALFORMED),
        // A second CONNECT, AUTH, and what only a server says.
        _ => Err(Wrong::PROTOCOL),
    }
}

fn publish(version: Version, flags: u8, mut rest: Rest<'_>) -> Result<Publish<'_>, Wrong> {
    let (dup, qos, retain) = (flags & 8 != 0, flags >> 1 & 3, flags & 1 != 0);
    if qos == 3 || (qos == 0 && dup) {
        return Err(Wrong::MALFORMED);
    }
    let topic = rest.text()?;
    let id = if qos > 0 { rest.id()? } else { 0 };
    let properties = match version {
        Version::V5 => properties::read(rest.properties()?, properties::OF_PUBLISH)?,
        Version::V3 => Properties::default(),
    };
    if properties.topic_alias.is_some() {
        return Err(Wrong(code::BAD_ALIAS));
    }
    if !topic::is_name(topic) {
        return Err(Wrong(code::BAD_TOPIC));
    }
    if qos == 2 {
        return Err(Wrong(code::QOS_NOT_SUPPORTED));
    }
    Ok(Publish { dup, qos, retain, id, topic, properties, payload: rest.0 })
}

fn subscribe(version: Version, mut rest: Rest<'_>) -> Result<Subscribe<'_>, Wrong> {
    let id = rest.id()?;
    let mut subscription = None;
    if version == Version::V5 {
        subscription = properties::read(rest.properties()?, properties::OF_SUBSCRIBE)?.subscription_id;
    }
    let mut filters = Vec::new();
    while !rest.0.is_empty() {
        let filter = rest.text()?;
        let options = rest.byte()?;
        let known = if version == Version::V5 { 0x3f } else { 0x03 };
        if options & !known != 0 || options & 3 == 3 || options >> 4 == 3 {
            return Err(Wrong::MALFORMED);
        }
        let wants = Wants {
            qos: options & 3,
            no_local: options & 4 != 0,
            retain_as_published: options & 8 != 0,
            retain_handling: options >> 4,
        };
        filters.push((filter, wants));
        check_number(filters.len())?;
    }
    if filters.is_empty() { Err(Wrong::PROTOCOL) } else { Ok(Subscribe { id, subscription, filters }) }
}

fn check_number(filters: usize) -> Result<(), Wrong> {
    if filters > MAX_FILTERS { Err(Wrong(code::QUOTA_EXCEEDED)) } else { Ok(()) }
}

/// What is left of a packet.
struct Rest<'b>(&'b [u8]);

impl<'b> Rest<'b> {
    fn take(&mut self, n: usize) -> Result<&'b [u8], Wrong> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(Wrong::MALFORMED)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Wrong> {
        Ok(self.take(1)?[0])
    }

    fn short(&mut self) -> Result<u16, Wrong> {
        Ok(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    /// A packet's number is not 0 (section 2.2.1).
    fn id(&mut self) -> Result<u16, Wrong> {
        match self.short()? {
            0 => Err(Wrong::PROTOCOL),
            id => Ok(id),
        }
    }

    fn text(&mut self) -> Result<&'b [u8], Wrong> {
        let length = self.short()?;
        let text = self.take(usize::from(length))?;
        if is_text(text) { Ok(text) } else { Err(Wrong::MALFORMED) }
    }

    fn properties(&mut self) -> Result<&'b [u8], Wrong> {
        let (length, size) = properties::number(self.0).ok_or(Wrong::MALFORMED)?;
        self.take(size)?;
        self.take(length as usize)
    }

    fn end<T>(&self, what: T) -> Result<T, Wrong> {
        if self.0.is_empty() { Ok(what) } else { Err(Wrong::MALFORMED) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_say() {
        let Ok(Packet::Publish(m)) = parse(Version::V3, 0x33, b"\0\x03a/b\0\x07hello") else { panic!("a PUBLISH") };
        assert_eq!((m.qos, m.retain, m.dup, m.id, m.topic, m.payload), (1, true, false, 7, &b"a/b"[..], &b"hello"[..]));
        let Ok(Packet::Publish(m)) = parse(Version::V5, 0x30, b"\0\x01a\x05\x02\0\0\0\x05x") else {
            panic!("a PUBLISH")
        };
        assert_eq!((m.properties.message_expiry, m.payload), (Some(5), &b"x"[..]));
        let Ok(Packet::Subscribe(s)) = parse(Version::V5, 0x82, b"\0\x01\x02\x0b\x09\0\x01#\x2d\0\x01a\x02") else {
            panic!("a SUBSCRIBE")
        };
        let wants = Wants { qos: 1, no_local: true, retain_as_published: true, retain_handling: 2 };
        assert_eq!((s.id, s.subscription, s.filters[0], s.filters.len()), (1, Some(9), (&b"#"[..], wants), 2));
        assert_eq!(parse(Version::V3, 0xa2, b"\0\x02\0\x01a\0\x01b"), Ok(Packet::Unsubscribe(2, vec![b"a", b"b"])));
        assert_eq!(parse(Version::V3, 0x40, b"\0\x09"), Ok(Packet::Puback(9)));
        assert_eq!(parse(Version::V5, 0x40, b"\0\x09\x10\0"), Ok(Packet::Puback(9)));
        assert_eq!(parse(Version::V5, 0xe0, b""), Ok(Packet::Disconnect(0, None)));
        assert_eq!(parse(Version::V5, 0xe0, b"\x04\x05\x11\0\0\0\x09"), Ok(Packet::Disconnect(4, Some(9))));
        assert_eq!(parse(Version::V3, 0xc0, b""), Ok(Packet::Pingreq));
    }

    #[test]
    fn what_clients_may_not_say() {
        for (first, body, reason) in [
            (0x10, &b""[..], code::PROTOCOL_ERROR),
            (0x20, b"", code::PROTOCOL_ERROR),
            (0xf0, b"", code::PROTOCOL_ERROR),
            (0x36, b"\0\x01a\0\x01", code::MALFORMED),
            (0x38, b"\0\x01a\0", code::MALFORMED),
            (0x34, b"\0\x01a\0\x01\0", code::QOS_NOT_SUPPORTED),
            (0x62, b"\0\x01", code::QOS_NOT_SUPPORTED),
            (0x32, b"\0\x01a\0\0\0", code::PROTOCOL_ERROR),
            (0x30, b"\0\x01+\0", code::BAD_TOPIC),
            (0x30, b"\0\0\0", code::BAD_TOPIC),
            (0x30, b"\0\0\x03\x23\0\x01", code::BAD_ALIAS),
            (0x80, b"\0\x01\0\0\x01a\0", code::MALFORMED),
            (0x82, b"\0\x01\0", code::PROTOCOL_ERROR),
            (0x82, b"\0\x01\0\0\x01a\x03", code::MALFORMED),
            (0x82, b"\0\x01\0\0\x01a\x40", code::MALFORMED),
            (0x82, b"\0\x01\0\0\x02\xff\xff\0", code::MALFORMED),
            (0xa2, b"\0\x01\0", code::PROTOCOL_ERROR),
            (0xc0, b"x", code::MALFORMED),
        ] {
            assert_eq!(parse(Version::V5, first, body), Err(Wrong(reason)), "{first:x} {}", body.escape_ascii());
        }
        let many = [&b"\0\x01\0"[..], &b"\0\x01a\0".repeat(MAX_FILTERS + 1)].concat();
        assert_eq!(parse(Version::V5, 0x82, &many), Err(Wrong(code::QUOTA_EXCEEDED)));
    }
}
