//! What tells programs apart whatever they call themselves: JA4 of a TLS ClientHello, and the order of a request's header lines.

use crate::hash::{Keyed, Running};
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
    out.push_str(&hashed(&joined(&ciphers)));
    out.push('_');
    extensions.retain(|n| !LEFT_OUT.contains(n));
    extensions.sort_unstable();
    let mut text = joined(&extensions);
    let signatures = pairs(hello.signatures);
    if !text.is_empty() && !signatures.is_empty() {
        text.push('_');
        text.push_str(&joined(&signatures));
    }
    out.push_str(&hashed(&text));
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

fn hashed(text: &str) -> String {
    if text.is_empty() {
        return NOTHING.to_owned();
    }
    Sha256::digest(text.as_bytes()).iter().take(6).fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// The order of a request's header lines as it is read: a hash over their names, whatever their case, which is only good beside others of the same key. The caller
/// leaves out those that say nothing of the program, as cookies do, which come and go.
///
/// It is a polynomial at a secret place, with a number for each line: an addition and a multiplication.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    sum: u64,
    begin: Running,
}

impl Order {
    /// Of no line yet.
    #[inline]
    pub fn new(keyed: Keyed) -> Order {
        let begin = keyed.build_hasher();
        Order { sum: begin.state, begin }
    }

    #[inline]
    fn add(&mut self, number: u64) {
        self.sum = self.sum.wrapping_add(number).wrapping_mul(self.begin.multiple);
    }

    /// A line whose name is known to the caller by this number.
    #[inline]
    pub fn known(&mut self, number: u8) {
        self.add(number.into());
    }

    /// A line with another name. One of more than sixteen bytes is told by its length and its ends.
    #[inline]
    pub fn other(&mut self, name: &[u8]) {
        self.add(self.begin.of_name(name));
    }

    /// The hash, with what the program calls itself.
    #[inline]
    pub fn of_agent(self, agent: &[u8]) -> u64 {
        let mut hash = Running { state: self.sum, ..self.begin };
        hash.add(agent);
        hash.finish()
    }
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
        /// Names that begin with `#` are known by the number that follows.
        fn of(names: &[&str]) -> u64 {
            let mut order = Order::new(Keyed::fixed(1));
            for name in names {
                match name.strip_prefix('#') {
                    Some(number) => order.known(number.parse().expect("a number")),
                    None => order.other(name.as_bytes()),
                }
            }
            order.of_agent(b"agent")
        }
        assert_eq!(of(&["X-Host", "#3"]), of(&["x-host", "#3"]));
        assert_ne!(of(&["X-Host", "#3"]), of(&["#3", "X-Host"]));
        assert_ne!(of(&["#3", "#4"]), of(&["#4", "#3"]));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["#3"]), of(&[]));
        assert_ne!(of(&["X-Item-A", "X-Item-B"]), of(&["X-Item-B", "X-Item-A"]));
        let long = "Upgrade-Insecure-Requests-From-Everywhere";
        for len in 1..long.len() {
            assert_eq!(of(&[&long[..len]]), of(&[&long[..len].to_uppercase()]));
            assert_ne!(of(&[&long[..len]]), of(&[&long[..=len]]));
        }
        let modes = ["Sec-Fetch-Mode", "Sec-Fetch-Site", "Sec-Fetch-Dest", "Sec-Fetch-User"];
        let all: std::collections::HashSet<u64> = modes.iter().map(|name| of(&[name])).collect();
        assert_eq!(all.len(), modes.len());
    }

    #[test]
    fn each_byte_of_an_agent_counts() {
        let keyed = Keyed::random();
        let mut seen = std::collections::HashSet::new();
        for len in 0..100 {
            let mut agent = vec![b'a'; len];
            assert!(seen.insert(Order::new(keyed).of_agent(&agent)), "{len}");
            for at in 0..len {
                agent[at] = b'b';
                assert!(seen.insert(Order::new(keyed).of_agent(&agent)), "{len}, {at}");
                agent[at] = b'a';
            }
        }
    }

    #[test]
    fn no_two_orders_of_lines_are_the_same() {
        // Each order of eight known lines, with another one at each place.
        let mut orders = vec![vec![]];
        for number in 1..=8_u8 {
            let longer = orders.iter().flat_map(|order: &Vec<u8>| {
                (0..=order.len()).map(move |at| [&order[..at], &[number], &order[at..]].concat())
            });
            orders = longer.collect();
        }
        let keyed = Keyed::random();
        let mut seen = std::collections::HashSet::new();
        for order in &orders {
            for other in 0..=order.len() {
                let mut hash = Order::new(keyed);
                for (at, number) in order.iter().enumerate() {
                    if at == other {
                        hash.other(b"Sec-Fetch-Mode");
                    }
                    hash.known(*number);
                }
                if other == order.len() {
                    hash.other(b"Sec-Fetch-Mode");
                }
                assert!(seen.insert(hash.of_agent(b"")), "{order:?}, {other}");
            }
        }
        assert_eq!(seen.len(), 40_320 * 9);
    }
}
