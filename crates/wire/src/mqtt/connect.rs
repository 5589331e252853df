//! A client's CONNECT in MQTT 3.1, 3.1.1 and 5 (section 3.1): as a balancer reads and changes it, who passes on what broker and client alone
//! care for as it came, and as a broker reads it, will and properties too. The caller bounds the buffer; no byte of the packet is looked
//! at before the packet is whole.

use super::{NoPacket, packet, read};
use crate::span::Span;

/// The first byte: the type, and flags that are all zero.
const CONNECT: u8 = 0x10;
/// The level of MQTT 5, the first with properties.
const LEVEL_5: u8 = 5;

mod flag {
    pub(super) const USERNAME: u8 = 0x80;
    pub(super) const PASSWORD: u8 = 0x40;
    pub(super) const WILL_RETAIN: u8 = 0x20;
    pub(super) const WILL_QOS: u8 = 0x18;
    pub(super) const WILL: u8 = 0x04;
    pub(super) const CLEAN: u8 = 0x02;
    pub(super) const RESERVED: u8 = 0x01;
}

/// What a broker says after the client when that is gone (section 3.1.2.5). Spans as in [`Connect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Will {
    /// Properties, without their length; empty before MQTT 5.
    pub properties: Span,
    /// Where it is published.
    pub topic: Span,
    /// What is.
    pub payload: Span,
    /// At which QoS, 0 to 3: 3 is none.
    pub qos: u8,
    /// It is retained.
    pub retain: bool,
}

/// A CONNECT. Spans are offsets into the bytes that it was read from, and of texts do not include their lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Bytes of the whole packet.
    pub size: usize,
    /// The name of the protocol and its level.
    name: Span,
    /// The version: 3 is MQTT 3.1, 4 is 3.1.1.
    pub level: u8,
    flags: u8,
    /// Keep alive, and properties if there are any.
    middle: Span,
    /// The client is heard from in this time, s; 0: it need not be.
    pub keep_alive: u16,
    /// Properties, without their length; empty before MQTT 5.
    pub properties: Span,
    /// The client's identifier.
    pub client: Span,
    /// All of the will.
    will: Span,
    /// The will in its parts.
    pub last_words: Option<Will>,
    /// The user's name.
    pub username: Option<Span>,
    /// The password.
    pub password: Option<Span>,
}

/// What is put in place of what the client says. None: it stays; empty: the field is taken away, but for the identifier, which may be
/// empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes<'c> {
    /// The client's identifier.
    pub client: Option<&'c [u8]>,
    /// The user's name.
    pub username: Option<&'c [u8]>,
    /// The password. Before MQTT 5 there is none without a name.
    pub password: Option<&'c [u8]>,
}

/// Reads the beginning of a connection. `None`: more bytes are needed.
///
/// # Errors
/// It is no CONNECT.
pub fn parse(bytes: &[u8]) -> Result<Option<Connect>, NoPacket> {
    if bytes.first().is_some_and(|first| *first != CONNECT) {
        return Err(NoPacket);
    }
    let Some(head) = read(bytes)? else { return Ok(None) };
    // Four bytes of length come to less than the largest span.
    let size = head.size.header + head.size.payload as usize;
    let Some(whole) = bytes.get(..size) else { return Ok(None) };
    body(whole, head.size.header).map(Some).ok_or(NoPacket)
}

fn body(bytes: &[u8], start: usize) -> Option<Connect> {
    let mut rest = Reader { bytes, at: start };
    let protocol = rest.text()?;
    let level = rest.byte()?;
    let known = match protocol.of(bytes) {
        b"MQTT" => matches!(level, 4 | LEVEL_5),
        b"MQIsdp" => level == 3,
        _ => false,
    };
    known.then_some(())?;
    let name = Span::new(start, rest.at);
    let flags = rest.byte()?;
    let middle = rest.at;
    let keep_alive = u16::from_be_bytes([rest.byte()?, rest.byte()?]);
    let properties = if level == LEVEL_5 { rest.properties()? } else { Span::new(rest.at, rest.at) };
    let middle = Span::new(middle, rest.at);
    let client = rest.text()?;
    let will = rest.at;
    let last_words = match flags & flag::WILL {
        0 => None,
        _ => Some(Will {
            properties: if level == LEVEL_5 { rest.properties()? } else { Span::new(rest.at, rest.at) },
            topic: rest.text()?,
            payload: rest.text()?,
            qos: (flags & flag::WILL_QOS) >> 3,
            retain: flags & flag::WILL_RETAIN != 0,
        }),
    };
    let will = Span::new(will, rest.at);
    let username = if flags & flag::USERNAME != 0 { Some(rest.text()?) } else { None };
    let password = if flags & flag::PASSWORD != 0 { Some(rest.text()?) } else { None };
    // Nothing may follow.
    (rest.at == bytes.len()).then_some(Connect {
        size: bytes.len(),
        name,
        level,
        flags,
        middle,
        keep_alive,
        properties,
        client,
        will,
        last_words,
        username,
        password,
    })
}

impl Connect {
    /// The client begins anew: what is left of a session of its name goes (clean session, clean start).
    pub fn is_clean(&self) -> bool {
        self.flags & flag::CLEAN != 0
    }

    /// Whether the flags make sense together (sections 3.1.2.3 to 3.1.2.9): a broker ends the connection where they do not.
    pub fn has_good_flags(&self) -> bool {
        let will = self.flags & (flag::WILL_RETAIN | flag::WILL_QOS);
        let has = |bit: u8| self.flags & bit != 0;
        !has(flag::RESERVED)
            && (has(flag::WILL) || will == 0)
            && will & flag::WILL_QOS != flag::WILL_QOS
            && (self.level == LEVEL_5 || has(flag::USERNAME) || !has(flag::PASSWORD))
    }

    /// Appends the packet with changes. `bytes`: what it was read from.
    pub fn write(&self, bytes: &[u8], changes: &Changes<'_>, out: &mut Vec<u8>) {
        let username = changes.username.or_else(|| self.username.map(|s| s.of(bytes)));
        let username = username.filter(|f| !f.is_empty() || changes.username.is_none());
        let password = changes.password.or_else(|| self.password.map(|s| s.of(bytes)));
        let password = password.filter(|f| !f.is_empty() || changes.password.is_none());
        let password = password.filter(|_| username.is_some() || self.level == LEVEL_5);
        let mut flags = self.flags & !(flag::USERNAME | flag::PASSWORD);
        for (there, bit) in [(username.is_some(), flag::USERNAME), (password.is_some(), flag::PASSWORD)] {
            flags |= if there { bit } else { 0 };
        }
        let mut body = Vec::with_capacity(self.size);
        body.extend_from_slice(self.name.of(bytes));
        body.push(flags);
        body.extend_from_slice(self.middle.of(bytes));
        text(changes.client.unwrap_or(self.client.of(bytes)), &mut body);
        body.extend_from_slice(self.will.of(bytes));
        username.into_iter().chain(password).for_each(|field| text(field, &mut body));
        packet(CONNECT, &body, out);
    }
}

/// Appends a field; one that is too long for its length is cut.
fn text(field: &[u8], out: &mut Vec<u8>) {
    let field = &field[..field.len().min(usize::from(u16::MAX))];
    out.extend_from_slice(&(field.len() as u16).to_be_bytes());
    out.extend_from_slice(field);
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl Reader<'_> {
    fn skip(&mut self, n: usize) -> Option<Span> {
        let end = self.at.checked_add(n).filter(|end| *end <= self.bytes.len())?;
        let span = Span::new(self.at, end);
        self.at = end;
        Some(span)
    }

    fn byte(&mut self) -> Option<u8> {
        self.skip(1)?.of(self.bytes).first().copied()
    }

    /// What stands behind a length of two bytes (sections 1.5.4, 1.5.6).
    fn text(&mut self) -> Option<Span> {
        let length = [self.byte()?, self.byte()?];
        self.skip(usize::from(u16::from_be_bytes(length)))
    }

    /// A length of one to four bytes (section 1.5.5), and so many bytes.
    fn properties(&mut self) -> Option<Span> {
        let mut length = 0;
        for place in 0..4 {
            let byte = self.byte()?;
            length |= usize::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                return self.skip(length);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MQTT 3.1.1 with a will, a name and a password.
    const FULL: &[u8] = b"\x10\x1e\0\x04MQTT\x04\xc6\0\x3c\0\x02c1\0\x01t\0\x03bye\0\x02me\0\x02pw";
    /// MQTT 5 with properties and nothing else.
    const BARE: &[u8] = b"\x10\x12\0\x04MQTT\x05\x02\0\x3c\x05\x11\0\0\0\x0a\0\0";

    fn changed(bytes: &[u8], changes: &Changes<'_>) -> Vec<u8> {
        let connect = parse(bytes).expect("a packet").expect("whole");
        let mut out = Vec::new();
        connect.write(bytes, changes, &mut out);
        out
    }

    #[test]
    fn who_a_client_says_it_is() {
        let connect = parse(FULL).unwrap().unwrap();
        assert_eq!((connect.size, connect.level, connect.client.of(FULL)), (FULL.len(), 4, &b"c1"[..]));
        assert_eq!(connect.username.map(|s| s.of(FULL)), Some(&b"me"[..]));
        assert_eq!(connect.password.map(|s| s.of(FULL)), Some(&b"pw"[..]));
        let connect = parse(BARE).unwrap().unwrap();
        assert_eq!((connect.level, connect.client.is_empty(), connect.username), (5, true, None));
        for cut in 0..FULL.len() {
            assert_eq!(parse(&FULL[..cut]), Ok(None), "{cut}");
        }
    }

    #[test]
    fn what_is_no_connect() {
        for bytes in [
            &b"GET / HTTP/1.0\r\n"[..],
            b"\x10\x06\0\x04HTTP",
            b"\x10\x0c\0\x04MQTT\x07\x02\0\x3c\0\0",
            b"\x10\x0e\0\x04MQTT\x04\x02\0\x3c\0\x09c1",
            b"\x10\x0f\0\x04MQTT\x04\x02\0\x3c\0\x02c1!",
            b"\x10\xff\xff\xff\xff\x01",
        ] {
            assert_eq!(parse(bytes), Err(NoPacket), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn fields_are_changed_put_in_and_taken_away() {
        assert_eq!(changed(FULL, &Changes::default()), FULL);
        assert_eq!(changed(BARE, &Changes::default()), BARE);
        let (client, username) = (Some(&b"other"[..]), Some(&b""[..]));
        let out = changed(FULL, &Changes { client, username, password: None });
        // Without a name there is no password before MQTT 5.
        assert_eq!(out, b"\x10\x19\0\x04MQTT\x04\x06\0\x3c\0\x05other\0\x01t\0\x03bye");
        let out = changed(BARE, &Changes { username: Some(b"u"), password: Some(b"p"), ..Changes::default() });
        let connect = parse(&out).unwrap().unwrap();
        assert_eq!(connect.username.map(|s| s.of(&out)), Some(&b"u"[..]));
        assert_eq!(connect.password.map(|s| s.of(&out)), Some(&b"p"[..]));
        let long = vec![b'x'; 70_000];
        assert_eq!(
            parse(&changed(BARE, &Changes { client: Some(&long), ..Changes::default() }))
                .unwrap()
                .unwrap()
                .client
                .len(),
            65_535
        );
    }
}
