//! What tells programs apart whatever they call themselves: JA4 of a TLS ClientHello, and the order of a request's header lines.

use crate::hash::Keyed;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::hash::{BuildHasher, Hasher};

/// What JA4 is made of.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hello<'a> {
    /// It came over QUIC.
    pub quic: bool,
    /// The highest version offered, as on the wire.
    pub version: u16,
    /// It names a server.
    pub named: bool,
    /// Cipher suites, two bytes each.
    pub ciphers: &'a [u8],
    /// Extensions' numbers, in their order.
    pub extensions: &'a [u16],
    /// Signature algorithms, two bytes each.
    pub signatures: &'a [u8],
    /// The first application protocol; empty if there is none.
    pub alpn: &'a [u8],
}

/// Extensions that are not part of the hash: the server's name, and ALPN.
const LEFT_OUT: [u16; 2] = [0x0000, 0x0010];
/// What stands for a hash of nothing.
const NOTHING: &str = "000000000000";

/// JA4, FoxIO's fingerprint of TLS clients: `t13d1516h2_8daaf6152771_e5627efa2ab1`.
pub fn ja4(hello: Hello<'_>) -> String {
    let pairs = |list: &'_ [u8]| -> Vec<u16> {
        list.chunks_exact(2).map(|p| u16::from_be_bytes([p[0], p[1]])).filter(|n| !is_grease(*n)).collect()
    };
    let mut ciphers = pairs(hello.ciphers);
    let mut extensions: Vec<u16> = hello.extensions.iter().copied().filter(|n| !is_grease(*n)).collect();
    let version = match hello.version {
        0x0304 => "13",
        0x0303 => "12",
        0x0302 => "11",
        0x0301 => "10",
        0x0300 => "s3",
        0x0002 => "s2",
        _ => "00",
    };
    let mut out = String::with_capacity(36);
    let _ = write!(
        out,
        "{}{version}{}{:02}{:02}{}_",
        if hello.quic { 'q' } else { 't' },
        if hello.named { 'd' } else { 'i' },
        ciphers.len().min(99),
        extensions.len().min(99),
        ends(hello.alpn)
    );
    ciphers.sort_unstable();
    out.push_str(&hash(&joined(&ciphers)));
    out.push('_');
    extensions.retain(|n| !LEFT_OUT.contains(n));
    extensions.sort_unstable();
    let mut text = joined(&extensions);
    let signatures = pairs(hello.signatures);
    if !text.is_empty() && !signatures.is_empty() {
        text.push('_');
        text.push_str(&joined(&signatures));
    }
    out.push_str(&hash(&text));
    out
}

/// GREASE (RFC 8701).
fn is_grease(number: u16) -> bool {
    number & 0x0f0f == 0x0a0a && number >> 8 == number & 0xff
}

/// The first and last letter of a protocol's name; of its hexadecimal form where they are no letters or digits.
fn ends(alpn: &[u8]) -> String {
    let (Some(first), Some(last)) = (alpn.first(), alpn.last()) else { return "00".to_owned() };
    if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() {
        return [char::from(*first), char::from(*last)].iter().collect();
    }
    let (first, last) = (format!("{first:02x}"), format!("{last:02x}"));
    format!("{}{}", &first[..1], &last[1..])
}

fn joined(numbers: &[u16]) -> String {
    let all: Vec<String> = numbers.iter().map(|n| format!("{n:04x}")).collect();
    all.join(",")
}

fn hash(text: &str) -> String {
    if text.is_empty() {
        return NOTHING.to_owned();
    }
    Sha256::digest(text.as_bytes()).iter().take(6).fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// A header line's name: most are of few, and have numbers.
#[derive(Clone, Copy, Debug)]
pub enum Name<'n> {
    /// By its number among those that the caller knows, whatever its case.
    Known(u8),
    /// As it was written.
    Other(&'n [u8]),
}

/// The order of header lines: a hash over their names, whatever their case, which is only good beside others of `keyed`. The caller leaves out those that say nothing of
/// the program, as cookies do, which come and go.
pub fn header_order<'n>(names: impl Iterator<Item = Name<'n>>, keyed: Keyed) -> u64 {
    /// The bit that tells small letters from capitals, in each of eight bytes.
    const SMALL: u64 = 0x2020_2020_2020_2020;
    let mut hash = keyed.build_hasher();
    for name in names {
        match name {
            // No name is so short that its length and first bytes are such a number.
            Name::Known(number) => hash.write_u64(u64::from(number) | 1 << 63),
            Name::Other(name) => hash.add(name, |word| word | SMALL),
        }
    }
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(numbers: &[u16]) -> Vec<u8> {
        numbers.iter().flat_map(|n| n.to_be_bytes()).collect()
    }

    /// The example of JA4's description: Chrome.
    #[test]
    fn the_published_example() {
        let ciphers = bytes(&[
            0x0a0a, 0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc013, 0xc014, 0x009c,
            0x009d, 0x002f, 0x0035,
        ]);
        let extensions = [
            0x1a1a, 0x001b, 0x0000, 0x0033, 0x0010, 0x4469, 0x0017, 0x002d, 0x000d, 0x0005, 0x0023, 0x0012, 0x002b,
            0xff01, 0x000b, 0x000a, 0x0015, 0x2a2a,
        ];
        let signatures = bytes(&[0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601]);
        let hello = Hello {
            quic: false,
            version: 0x0304,
            named: true,
            ciphers: &ciphers,
            extensions: &extensions,
            signatures: &signatures,
            alpn: b"h2",
        };
        assert_eq!(ja4(hello), "t13d1516h2_8daaf6152771_e5627efa2ab1");
        assert_eq!(&ja4(Hello { quic: true, alpn: b"h3", ..hello })[..11], "q13d1516h3_");
    }

    #[test]
    fn little_is_said_of_little() {
        assert_eq!(ja4(Hello::default()), "t00i000000_000000000000_000000000000");
        assert_eq!(ends(b"\xab"), "ab");
        assert_eq!(ends(b"\x30\xab\xcd\x31"), "01");
        assert_eq!(ends(b"\xab\xcd"), "ad");
        assert_eq!(ends(b"http/1.1"), "h1");
    }

    #[test]
    fn order_matters_and_case_does_not() {
        let of = |names: &[Name<'_>]| header_order(names.iter().copied(), Keyed::fixed(1));
        let other = |name: &'static str| Name::Other(name.as_bytes());
        assert_eq!(of(&[other("X-Host"), Name::Known(3)]), of(&[other("x-host"), Name::Known(3)]));
        assert_ne!(of(&[other("X-Host"), Name::Known(3)]), of(&[Name::Known(3), other("X-Host")]));
        assert_ne!(of(&[Name::Known(3), Name::Known(4)]), of(&[Name::Known(4), Name::Known(3)]));
        assert_ne!(of(&[other("ab"), other("c")]), of(&[other("a"), other("bc")]));
        assert_ne!(of(&[Name::Known(3)]), of(&[]));
    }
}
