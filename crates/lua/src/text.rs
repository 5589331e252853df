//! Texts as programs for ngx_lua make and take them: `ngx.escape_uri`, `ngx.encode_args`, `ngx.quote_sql_str`, digests.
//! Pure functions over bytes.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use hmac::{Hmac, KeyInit, Mac};
use md5::{Digest, Md5};
use sha1::Sha1;

/// Arguments that are read where nobody says how many (`NGX_HTTP_LUA_MAX_ARGS`).
pub const MAX_ARGS: usize = 100;

const HEX: &[u8; 16] = b"0123456789ABCDEF";
const LOWER_HEX: &[u8; 16] = b"0123456789abcdef";

/// What a text is escaped for, with ngx_lua's numbers (nginx's `NGX_ESCAPE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Escape {
    /// A whole URI: its delimiters stay.
    Uri,
    /// The arguments.
    Args,
    /// A part of a URI.
    Component,
    /// HTML.
    Html,
    /// A `Refresh` header.
    Refresh,
    /// A key of memcached.
    Memcached,
    /// Passwords towards a mail server.
    MailAuth,
}

impl Escape {
    /// What a number says.
    pub fn of(number: i64) -> Option<Escape> {
        use Escape::*;
        [Uri, Args, Component, Html, Refresh, Memcached, MailAuth].into_iter().find(|e| *e as i64 == number)
    }

    fn takes(self, byte: u8) -> bool {
        let control = byte <= b' ' || byte >= 0x7f;
        match self {
            Escape::Uri => control || b"#%?".contains(&byte),
            Escape::Args => control || b"#%&+?".contains(&byte),
            Escape::Component => !byte.is_ascii_alphanumeric() && !b"-._~!'()*".contains(&byte),
            Escape::Html => control || b"#\"%'".contains(&byte),
            Escape::Refresh => control || b"\"%'".contains(&byte),
            Escape::Memcached => byte <= b' ' || byte == b'%' || byte == 0x7f,
            Escape::MailAuth => control || b"\"%'".contains(&byte),
        }
    }
}

/// Escapes a text.
pub fn escape_uri(text: &[u8], kind: Escape, out: &mut Vec<u8>) {
    for &byte in text {
        if kind.takes(byte) {
            out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        } else {
            out.push(byte);
        }
    }
}

/// Undoes escapes; `+` is a space. What is no escape stays as it is.
pub fn unescape_uri(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some((&byte, more)) = rest.split_first() {
        rest = more;
        match byte {
            b'+' => out.push(b' '),
            b'%' => match more {
                [high, low, after @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                    out.push(digit(*high) << 4 | digit(*low));
                    rest = after;
                }
                _ => out.push(b'%'),
            },
            other => out.push(other),
        }
    }
}

fn digit(byte: u8) -> u8 {
    match byte {
        b'0'..=b'9' => byte - b'0',
        _ => (byte | 0x20) - b'a' + 10,
    }
}

/// One argument of a query: its name, and its value unless there is no `=`.
pub type Argument = (Vec<u8>, Option<Vec<u8>>);

/// The arguments of a query, at most `max` of them (0: all), and whether there were more. Those without a name are left out.
pub fn decode_args(query: &[u8], max: usize) -> (Vec<Argument>, bool) {
    let mut found = Vec::new();
    let mut parts = query.split(|b| *b == b'&').filter(|part| !part.is_empty()).peekable();
    let mut count = 0;
    while let Some(part) = parts.next() {
        // Those without a name count, too.
        count += 1;
        let is_full = max > 0 && count == max && parts.peek().is_some();
        let (name, value) = match memchr::memchr(b'=', part) {
            Some(at) => (&part[..at], Some(&part[at + 1..])),
            None => (part, None),
        };
        let plain = |text: &[u8]| {
            let mut out = Vec::with_capacity(text.len());
            unescape_uri(text, &mut out);
            out
        };
        if !name.is_empty() {
            found.push((plain(name), value.map(plain)));
        }
        if is_full {
            return (found, true);
        }
    }
    (found, false)
}

/// A text between quotes for MySQL.
pub fn quote_sql(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    out.push(b'\'');
    for &byte in text {
        let escape = match byte {
            0 => b'0',
            b'\n' => b'n',
            b'\r' => b'r',
            8 => b'b',
            b'\t' => b't',
            26 => b'Z',
            b'\\' | b'\'' | b'"' | b'$' => byte,
            _ => {
                out.push(byte);
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', escape]);
    }
    out.push(b'\'');
    out
}

fn base64(padded: bool) -> GeneralPurpose {
    let config = GeneralPurposeConfig::new()
        .with_encode_padding(padded)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    GeneralPurpose::new(&STANDARD, config)
}

/// Base64, with `=` at the end or without.
pub fn encode_base64(bytes: &[u8], padded: bool) -> String {
    base64(padded).encode(bytes)
}

/// The bytes of a text in base64; `None` if it is none.
pub fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    base64(true).decode(text).ok()
}

/// Base64 with `-` and `_`, without `=` (`ngx.base64`).
pub fn encode_base64url(bytes: &[u8]) -> String {
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

/// The bytes of such a text.
pub fn decode_base64url(text: &[u8]) -> Option<Vec<u8>> {
    base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(text).ok()
}

/// Bytes as hexadecimal digits in lower case.
pub fn hex(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|b| [LOWER_HEX[usize::from(b >> 4)], LOWER_HEX[usize::from(b & 15)]]).collect()
}

/// `ngx.md5_bin`
pub fn md5(bytes: &[u8]) -> Vec<u8> {
    Md5::digest(bytes).to_vec()
}

/// `ngx.sha1_bin`
pub fn sha1(bytes: &[u8]) -> Vec<u8> {
    Sha1::digest(bytes).to_vec()
}

/// `ngx.hmac_sha1`
pub fn hmac_sha1(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha1>::new_from_slice(key).expect("a key may be of any length");
    mac.update(bytes);
    mac.finalize().into_bytes().to_vec()
}

/// A digest by its name, as `resty.sha256` and its like want it.
pub fn digest(name: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    Some(match name {
        "md5" => md5(bytes),
        "sha1" => sha1(bytes),
        "sha224" => sha2::Sha224::digest(bytes).to_vec(),
        "sha256" => sha2::Sha256::digest(bytes).to_vec(),
        "sha384" => sha2::Sha384::digest(bytes).to_vec(),
        "sha512" => sha2::Sha512::digest(bytes).to_vec(),
        _ => return None,
    })
}

/// CRC-32 as Ethernet and zlib have it (`ngx.crc32_short`, `ngx.crc32_long`).
pub fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut at = 0;
        while at < 256 {
            let mut value = at as u32;
            let mut bit = 0;
            while bit < 8 {
                value = if value & 1 == 1 { value >> 1 ^ 0xEDB8_8320 } else { value >> 1 };
                bit += 1;
            }
            table[at] = value;
            at += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc, byte| TABLE[(crc as u8 ^ byte) as usize] ^ crc >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(text: &str, kind: Escape) -> String {
        let mut out = Vec::new();
        escape_uri(text.as_bytes(), kind, &mut out);
        String::from_utf8(out).unwrap_or_default()
    }

    #[test]
    fn escapes_a_part_and_a_whole() {
        assert_eq!(escaped("a b/ä?'", Escape::Component), "a%20b%2F%C3%A4%3F'");
        assert_eq!(escaped("a b/?&=", Escape::Uri), "a%20b/%3F&=");
    }

    #[test]
    fn undoes_what_is_an_escape() {
        let mut out = Vec::new();
        unescape_uri(b"a+b%20c%zz%4", &mut out);
        assert_eq!(out, b"a b c%zz%4");
    }

    #[test]
    fn arguments_have_values_or_none_and_an_end() {
        let (all, more) = decode_args(b"a=1&b&=x&c=", 0);
        let of = |name: &[u8], value: Option<&[u8]>| (name.to_vec(), value.map(<[u8]>::to_vec));
        assert_eq!(all, [of(b"a", Some(b"1")), of(b"b", None), of(b"c", Some(b""))]);
        assert!(!more);
        assert_eq!(decode_args(b"a&b&c", 2).0.len(), 2);
        assert!(decode_args(b"a&b&c", 2).1);
    }

    #[test]
    fn digests_are_the_known_ones() {
        assert_eq!(hex(&md5(b"hello")), b"5d41402abc4b2a76b9719d911017c592");
        assert_eq!(hex(&sha1(b"hello")), b"aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d");
        assert_eq!(crc32(b"hello, world"), 0xFFAB_723A);
        assert_eq!(quote_sql(b"a'b\n"), b"'a\\'b\\n'");
    }
}
