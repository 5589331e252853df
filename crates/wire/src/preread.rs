//! What a TLS client says first, for a balancer that passes its bytes on unread: the name it asks for, its protocols, its
//! version (`ssl_preread`). As tolerant as nginx's `ngx_stream_ssl_preread_module`: what is no ClientHello is no error.
//! The caller bounds the buffer; no byte of a message is looked at before the message is whole.

/// Bytes of a record's head (RFC 8446 section 5.1).
const RECORD_HEAD: usize = 5;
/// Bytes of a handshake message's head.
const MESSAGE_HEAD: usize = 4;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;

mod extension {
    pub(super) const SERVER_NAME: u16 = 0;
    pub(super) const ALPN: u16 = 16;
    pub(super) const SUPPORTED_VERSIONS: u16 = 43;
}

/// How far the bytes were understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preread {
    /// More bytes are needed; call again with a longer buffer that begins with the same bytes.
    Partial,
    /// Not a ClientHello.
    Other,
    /// A ClientHello.
    Hello(Hello),
}

/// A ClientHello, as far as a balancer cares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Major and minor: `[3, 3]` for TLS 1.2.
    pub version: [u8; 2],
    /// The name that is asked for, empty if none.
    pub server_name: Vec<u8>,
    /// Application protocols, separated by commas.
    pub alpn: Vec<u8>,
}

impl Hello {
    /// The version's name, as TLS libraries print it; empty for an unknown one.
    pub fn protocol(&self) -> &'static str {
        match self.version {
            [0, 2] => "SSLv2",
            [3, 0] => "SSLv3",
            [3, 1] => "TLSv1",
            [3, 2] => "TLSv1.1",
            [3, 3] => "TLSv1.2",
            [3, 4] => "TLSv1.3",
            _ => "",
        }
    }
}

/// Reads the start of a connection.
pub fn parse(bytes: &[u8]) -> Preread {
    match message_len(bytes) {
        Scan::Partial => Preread::Partial,
        Scan::Other => Preread::Other,
        Scan::Version2(version) => Preread::Hello(Hello { version, ..Hello::default() }),
        Scan::Whole(len) => {
            let message = gather(bytes, len);
            hello(&message[MESSAGE_HEAD..]).map_or(Preread::Other, Preread::Hello)
        }
    }
}

enum Scan {
    Partial,
    Other,
    /// A ClientHello in the form of SSL version 2, with its version.
    Version2([u8; 2]),
    /// The message of so many bytes, its head included, is there.
    Whole(usize),
}

/// Walks the heads of the records until the first message is whole.
fn message_len(bytes: &[u8]) -> Scan {
    let mut rest = bytes;
    let mut head = [0; MESSAGE_HEAD];
    let mut seen = 0;
    while let Some((record, after)) = rest.split_first_chunk::<RECORD_HEAD>() {
        let [kind, major, minor, high, low] = *record;
        if kind & 0x80 != 0 && minor == CLIENT_HELLO && (high == 0 || high == 3) {
            return Scan::Version2([high, low]);
        }
        if kind != HANDSHAKE || major != 3 {
            return Scan::Other;
        }
        let Some(payload) = after.get(..usize::from(u16::from_be_bytes([high, low]))) else { break };
        for (place, byte) in head.iter_mut().skip(seen).zip(payload) {
            *place = *byte;
        }
        seen += payload.len();
        if seen > 0 && head[0] != CLIENT_HELLO {
            return Scan::Other;
        }
        if seen >= MESSAGE_HEAD {
            let len = MESSAGE_HEAD + u32::from_be_bytes([0, head[1], head[2], head[3]]) as usize;
            if seen >= len {
                return Scan::Whole(len);
            }
        }
        rest = &after[payload.len()..];
    }
    Scan::Partial
}

/// The first `len` bytes of what the records carry.
fn gather(bytes: &[u8], len: usize) -> Vec<u8> {
    let mut message = Vec::with_capacity(len);
    let mut rest = bytes;
    while message.len() < len
        && let Some((record, after)) = rest.split_first_chunk::<RECORD_HEAD>()
        && let Some((payload, after)) = after.split_at_checked(usize::from(u16::from_be_bytes([record[3], record[4]])))
    {
        message.extend_from_slice(&payload[..payload.len().min(len - message.len())]);
        rest = after;
    }
    message
}

/// The body of a ClientHello (RFC 8446 section 4.1.2). `None`: a length inside does not fit.
fn hello(body: &[u8]) -> Option<Hello> {
    let mut rest = Reader(body);
    let version = *rest.take(2)?.first_chunk::<2>()?;
    let mut hello = Hello { version, ..Hello::default() };
    rest.take(32)?;
    let session_id = rest.number::<1>()?;
    rest.take(session_id)?;
    let ciphers = rest.number::<2>()?;
    rest.take(ciphers)?;
    let methods = rest.number::<1>()?;
    rest.take(methods)?;
    if rest.0.is_empty() {
        return Some(hello);
    }
    rest.number::<2>()?;
    while !rest.0.is_empty() {
        let kind = rest.number::<2>()? as u16;
        let len = rest.number::<2>()?;
        // As in nginx, lists tell their own length, whatever their extension says.
        match kind {
            extension::SERVER_NAME if hello.server_name.is_empty() => hello.server_name = server_name(&mut rest)?,
            extension::ALPN if hello.alpn.is_empty() => hello.alpn = protocols(&mut rest)?,
            extension::SUPPORTED_VERSIONS => {
                hello.version = [3, 4];
                let len = rest.number::<1>()?;
                rest.take(len)?;
            }
            _ => {
                rest.take(len)?;
            }
        }
    }
    Some(hello)
}

/// RFC 6066 section 3: the first name, which must be a host's.
fn server_name(data: &mut Reader<'_>) -> Option<Vec<u8>> {
    let len = data.number::<2>()?;
    let mut list = Reader(data.take(len)?);
    let kind = list.number::<1>()?;
    let len = list.number::<2>()?;
    (kind == 0).then_some(())?;
    list.take(len).map(<[u8]>::to_vec)
}

/// RFC 7301 section 3.1.
fn protocols(data: &mut Reader<'_>) -> Option<Vec<u8>> {
    let len = data.number::<2>()?;
    let mut list = Reader(data.take(len)?);
    let mut all = Vec::with_capacity(len);
    loop {
        let len = list.number::<1>()?;
        (len > 0).then_some(())?;
        all.extend_from_slice(list.take(len)?);
        if list.0.is_empty() {
            return Some(all);
        }
        all.push(b',');
    }
}

struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, n: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of `N` bytes, at most four.
    fn number<const N: usize>(&mut self) -> Option<usize> {
        Some(self.take(N)?.iter().fold(0, |n, byte| n << 8 | usize::from(*byte)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ClientHello with these extensions, in one record.
    fn record(extensions: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 1, 1, 0]);
        let mut all = Vec::new();
        for (kind, data) in extensions {
            all.extend(kind.to_be_bytes());
            all.extend((data.len() as u16).to_be_bytes());
            all.extend(*data);
        }
        body.extend((all.len() as u16).to_be_bytes());
        body.extend(all);
        let mut message = vec![CLIENT_HELLO];
        message.extend(&(body.len() as u32).to_be_bytes()[1..]);
        message.extend(body);
        let mut out = vec![HANDSHAKE, 3, 1];
        out.extend((message.len() as u16).to_be_bytes());
        out.extend(message);
        out
    }

    const NAME: &[u8] = b"\0\x06\0\0\x03foo";

    #[test]
    fn name_protocols_and_version() {
        let bytes = record(&[(0, NAME), (16, b"\0\x0c\x02h2\x08http/1.1"), (43, &[2, 3, 4])]);
        let Preread::Hello(hello) = parse(&bytes) else { panic!("a hello") };
        assert_eq!(hello.server_name, b"foo");
        assert_eq!(hello.alpn, b"h2,http/1.1");
        assert_eq!(hello.protocol(), "TLSv1.3");
        for cut in 0..bytes.len() {
            assert_eq!(parse(&bytes[..cut]), Preread::Partial, "{cut}");
        }
    }

    #[test]
    fn a_message_may_be_cut_into_records() {
        let whole = record(&[(0, NAME)]);
        let mut pieces = Vec::new();
        for piece in whole[RECORD_HEAD..].chunks(3) {
            pieces.extend([HANDSHAKE, 3, 1, 0, piece.len() as u8]);
            pieces.extend(piece);
        }
        assert_eq!(parse(&pieces), parse(&whole));
    }

    #[test]
    fn what_is_no_hello_is_passed_on() {
        assert_eq!(parse(b"GET / HTTP/1.1\r\n"), Preread::Other);
        assert_eq!(parse(&[HANDSHAKE, 2, 0, 0, 1, 1]), Preread::Other);
        assert_eq!(parse(&[HANDSHAKE, 3, 0, 0, 1, 2]), Preread::Other);
        // Lengths that do not fit.
        assert_eq!(parse(&record(&[(0, b"\0\x09\0\0\x03foo")])), Preread::Other);
        assert_eq!(parse(&record(&[(0, b"\0\x06\x01\0\x03foo")])), Preread::Other);
        assert_eq!(parse(&record(&[(16, b"\0\x03\x02h")])), Preread::Other);
        assert_eq!(parse(&record(&[(16, b"\0\x01\0")])), Preread::Other);
    }

    #[test]
    fn version_2_hellos_have_a_version() {
        let Preread::Hello(hello) = parse(&[0x80, 0x1c, 1, 0, 2, 0, 3]) else { panic!("a hello") };
        assert_eq!(hello.protocol(), "SSLv2");
    }
}
