//! The first message of a TLS connection, read before any TLS library sees it: which server the client asks for, and
//! what it offers (RFC 8446 section 4.1.2, RFC 5246 section 7.4.1.2). Never decides; what is refused is the reader's choice.

use crate::span::Span;

/// Largest first message that is read, in bytes. With post-quantum key shares, tickets and ECH they come to 8 kB.
pub const MAX_HELLO: usize = 32 * 1024;
/// Bytes of a record's head: type, version, length (RFC 8446 section 5.1).
const RECORD_HEAD: usize = 5;
/// Bytes of a handshake message's head: type, length.
const MESSAGE_HEAD: usize = 4;
/// Largest payload of a plain record.
const MAX_RECORD: usize = 16 * 1024;

/// The record type of handshakes: the first byte of any TLS connection.
pub const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;

mod extension {
    pub(super) const SERVER_NAME: u16 = 0;
    pub(super) const SUPPORTED_GROUPS: u16 = 10;
    pub(super) const SIGNATURE_ALGORITHMS: u16 = 13;
    pub(super) const ALPN: u16 = 16;
    pub(super) const SUPPORTED_VERSIONS: u16 = 43;
}

/// Why bytes are no ClientHello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloError {
    /// The record is none of a handshake.
    NotHandshake,
    /// The handshake begins with another message.
    NotClientHello,
    /// It is larger than [`MAX_HELLO`], or a record is empty or too large.
    Size,
    /// A length inside does not fit.
    Malformed,
}

impl HelloError {
    /// The reason for a log line.
    pub fn text(self) -> &'static str {
        match self {
            HelloError::NotHandshake => "wrong version number",
            HelloError::NotClientHello => "unexpected message",
            HelloError::Size => "excessive message size",
            HelloError::Malformed => "length mismatch",
        }
    }
}

/// A ClientHello. Spans are offsets into the message that [`gather`] made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// The version before TLS 1.3 gave it up: 0x0303 for TLS 1.2.
    pub legacy_version: u16,
    /// The session the client wants to resume, or what it put there to look like TLS 1.2.
    pub session_id: Span,
    /// Cipher suites, two bytes each.
    pub ciphers: Span,
    /// `server_name`, if there is one.
    pub server_name: Option<Span>,
    /// Groups for the key exchange, two bytes each.
    pub groups: Span,
    /// Signature algorithms, two bytes each.
    pub signatures: Span,
    /// Application protocols: a length byte before each.
    pub alpn: Span,
    /// Versions, two bytes each; empty before TLS 1.3.
    pub versions: Span,
    /// All extensions as they came: for [`extensions`].
    pub extensions: Span,
}

/// Takes the first handshake message out of the records at the start of a connection. `None`: more bytes are needed.
pub fn gather(bytes: &[u8]) -> Result<Option<Vec<u8>>, HelloError> {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        match rest.first() {
            None => return Ok(None),
            Some(&HANDSHAKE) => {}
            Some(_) => return Err(HelloError::NotHandshake),
        }
        // Every version of SSL 3 and TLS begins with 3 here.
        if rest.get(1).is_some_and(|major| *major != 3) {
            return Err(HelloError::NotHandshake);
        }
        let Some(head) = rest.get(..RECORD_HEAD) else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if len == 0 || len > MAX_RECORD {
            return Err(HelloError::Size);
        }
        let payload = &rest[RECORD_HEAD..rest.len().min(RECORD_HEAD + len)];
        message.extend_from_slice(payload);
        if let Some(whole) = message_len(&message)?
            && message.len() >= whole
        {
            message.truncate(whole);
            return Ok(Some(message));
        }
        match rest.get(RECORD_HEAD + len..) {
            Some(next) => rest = next,
            None => return Ok(None),
        }
    }
}

/// The length of a ClientHello that begins with these bytes, its head included. `None`: more bytes are needed.
pub fn message_len(message: &[u8]) -> Result<Option<usize>, HelloError> {
    if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
        return Err(HelloError::NotClientHello);
    }
    let Some(head) = message.get(..MESSAGE_HEAD) else { return Ok(None) };
    let whole = MESSAGE_HEAD + usize::from(head[1]) * 65536 + usize::from(head[2]) * 256 + usize::from(head[3]);
    if whole > MAX_HELLO { Err(HelloError::Size) } else { Ok(Some(whole)) }
}

/// Reads a gathered ClientHello.
pub fn parse(message: &[u8]) -> Result<ClientHello, HelloError> {
    let mut r = Reader { bytes: message, at: MESSAGE_HEAD, end: message.len() };
    let mut hello = ClientHello { legacy_version: r.u16()?, ..ClientHello::default() };
    r.take(32)?;
    hello.session_id = r.list8()?.span();
    hello.ciphers = r.list16()?.span();
    r.list8()?;
    if r.is_empty() {
        return Ok(hello);
    }
    let mut extensions = r.list16()?;
    hello.extensions = extensions.span();
    while !extensions.is_empty() {
        let kind = extensions.u16()?;
        let body = extensions.list16()?;
        hello.extension(kind, body)?;
    }
    Ok(hello)
}

/// Where the client's random bytes stand in a ClientHello.
pub fn random(message: &[u8]) -> Option<&[u8]> {
    let at = MESSAGE_HEAD + 2;
    message.get(at..at + 32)
}

/// All extensions of a ClientHello, in their order: kind and body.
///
/// # Errors
/// See [`parse`].
pub fn extensions(message: &[u8]) -> Result<Vec<(u16, Span)>, HelloError> {
    let mut r = Reader { bytes: message, at: MESSAGE_HEAD, end: message.len() };
    r.u16()?;
    r.take(32)?;
    r.list8()?;
    r.list16()?;
    r.list8()?;
    let mut found = Vec::new();
    if r.is_empty() {
        return Ok(found);
    }
    let mut all = r.list16()?;
    while !all.is_empty() {
        let kind = all.u16()?;
        found.push((kind, all.list16()?.span()));
    }
    Ok(found)
}

impl ClientHello {
    fn extension(&mut self, kind: u16, mut body: Reader<'_>) -> Result<(), HelloError> {
        match kind {
            extension::SERVER_NAME if !body.is_empty() => {
                let mut names = body.list16()?;
                while !names.is_empty() {
                    let kind = names.take(1)?.byte(0);
                    let name = names.list16()?;
                    if kind == 0 {
                        self.server_name = Some(name.span());
                    }
                }
            }
            extension::SUPPORTED_GROUPS => self.groups = body.list16()?.span(),
            extension::SIGNATURE_ALGORITHMS => self.signatures = body.list16()?.span(),
            extension::ALPN => self.alpn = body.list16()?.span(),
            extension::SUPPORTED_VERSIONS => self.versions = body.list8()?.span(),
            _ => {}
        }
        Ok(())
    }

    /// The highest version that the client can speak, as far as it is one of TLS: 0x0303 is TLS 1.2.
    pub fn best_version(&self, message: &[u8]) -> u16 {
        let offered = pairs(self.versions.of(message));
        let known = offered.filter(|v| (0x0300..=0x0304).contains(v)).max();
        known.unwrap_or(self.legacy_version)
    }
}

/// The numbers of extensions, in their order. `list`: as [`parse`] found them.
pub fn extension_numbers(list: &[u8]) -> impl Iterator<Item = u16> + '_ {
    let mut rest = list;
    std::iter::from_fn(move || {
        let head = rest.get(..4)?;
        let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        rest = rest.get(4 + len..).unwrap_or_default();
        Some(u16::from_be_bytes([head[0], head[1]]))
    })
}

/// The two-byte numbers of a list.
pub fn pairs(list: &[u8]) -> impl Iterator<Item = u16> + '_ {
    list.chunks_exact(2).map(|p| u16::from_be_bytes([p[0], p[1]]))
}

/// GREASE (RFC 8701): numbers that clients offer so that servers learn to ignore what they do not know.
pub fn is_grease(number: u16) -> bool {
    number & 0x0f0f == 0x0a0a && number >> 8 == number & 0xff
}

#[derive(Clone, Copy)]
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Reader<'a> {
    fn is_empty(&self) -> bool {
        self.at == self.end
    }

    fn take(&mut self, n: usize) -> Result<Reader<'a>, HelloError> {
        if self.end - self.at < n {
            return Err(HelloError::Malformed);
        }
        let part = Reader { bytes: self.bytes, at: self.at, end: self.at + n };
        self.at += n;
        Ok(part)
    }

    fn byte(&self, i: usize) -> u8 {
        self.bytes[self.at + i]
    }

    fn u16(&mut self) -> Result<u16, HelloError> {
        let part = self.take(2)?;
        Ok(u16::from_be_bytes([part.byte(0), part.byte(1)]))
    }

    fn list8(&mut self) -> Result<Reader<'a>, HelloError> {
        let n = self.take(1)?.byte(0);
        self.take(n.into())
    }

    fn list16(&mut self) -> Result<Reader<'a>, HelloError> {
        let n = self.u16()?;
        self.take(n.into())
    }

    fn span(&self) -> Span {
        Span { start: self.at as u32, end: self.end as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_len16(body: &[u8]) -> Vec<u8> {
        [&(body.len() as u16).to_be_bytes()[..], body].concat()
    }

    fn hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([2, 0xaa, 0xbb]);
        body.extend(with_len16(&[0x13, 0x01, 0xc0, 0x2f]));
        body.extend([1, 0]);
        let all: Vec<u8> =
            extensions.iter().flat_map(|(k, b)| [&k.to_be_bytes()[..], &with_len16(b)].concat()).collect();
        body.extend(with_len16(&all));
        let mut message = vec![CLIENT_HELLO, 0];
        message.extend(with_len16(&body));
        message
    }

    fn record(payload: &[u8]) -> Vec<u8> {
        [&[HANDSHAKE, 3, 1][..], &with_len16(payload)].concat()
    }

    fn name(name: &str) -> (u16, Vec<u8>) {
        let entry = [&[0][..], &with_len16(name.as_bytes())].concat();
        (0, with_len16(&entry))
    }

    #[test]
    fn extensions_and_the_random_bytes() {
        let message = hello(&[name("a.example"), (43, vec![2, 3, 4]), (0x0a0a, Vec::new())]);
        let found = extensions(&message).unwrap();
        assert_eq!(found.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [0, 43, 0x0a0a]);
        assert_eq!(found[1].1.of(&message), [2, 3, 4]);
        assert_eq!(random(&message), Some(&[7; 32][..]));
        assert_eq!(extensions(&message[..60]), Err(HelloError::Malformed));
        assert_eq!(random(&message[..20]), None);
    }

    #[test]
    fn a_hello_in_one_record_or_many() {
        let message = hello(&[name("a.example"), (16, with_len16(b"\x02h2\x08http/1.1")), (43, vec![2, 3, 4])]);
        let one = record(&message);
        let many: Vec<u8> = message.chunks(7).flat_map(record).collect();
        for bytes in [one, many] {
            for cut in 0..bytes.len() {
                assert_eq!(gather(&bytes[..cut]), Ok(None), "{cut}");
            }
            let whole = gather(&bytes).expect("well formed").expect("complete");
            assert_eq!(whole, message);
            let hello = parse(&whole).expect("well formed");
            assert_eq!(hello.server_name.map(|s| s.of(&whole)), Some(&b"a.example"[..]));
            assert_eq!(hello.alpn.of(&whole), b"\x02h2\x08http/1.1");
            assert_eq!(hello.session_id.of(&whole), [0xaa, 0xbb]);
            assert_eq!(pairs(hello.ciphers.of(&whole)).collect::<Vec<_>>(), [0x1301, 0xc02f]);
            assert_eq!(hello.best_version(&whole), 0x0304);
            assert_eq!(extension_numbers(hello.extensions.of(&whole)).collect::<Vec<_>>(), [0, 16, 43]);
        }
    }

    #[test]
    fn what_is_no_hello() {
        assert_eq!(gather(b"GET / HTTP/1.1\r\n"), Err(HelloError::NotHandshake));
        assert_eq!(gather(&[HANDSHAKE, 3, 1, 0, 0]), Err(HelloError::Size));
        assert_eq!(gather(&record(&[2, 0, 0, 0])), Err(HelloError::NotClientHello));
        assert_eq!(gather(&record(&[1, 1, 0, 0])), Err(HelloError::Size));
        let message = hello(&[name("x")]);
        for cut in MESSAGE_HEAD..message.len() {
            let short = parse(&message[..cut]);
            // A hello without extensions is whole; everything else that is cut is not.
            assert!(short.is_err() || short.is_ok_and(|h| h.server_name.is_none()), "{cut}");
        }
    }

    #[test]
    fn grease() {
        assert!(is_grease(0x0a0a) && is_grease(0xfafa) && !is_grease(0x0a1a) && !is_grease(0x1301));
    }
}
