//! Transformations between bytes and their encodings: URL, base64, hexadecimal digits, UTF-8.

use super::{hex, hex_pair};
use std::collections::HashMap;

/// Which byte stands for which character beyond Latin: a code page of a file that `SecUnicodeMapFile` names.
#[derive(Clone, Debug, Default)]
pub struct UnicodeMap(HashMap<u16, u8>);

impl UnicodeMap {
    /// Reads the code page of this number from a map file: lines `PAGE (name)`, then `HHHH:HH` pairs between blanks.
    /// None: the file has no such page.
    pub fn read(text: &str, page: u32) -> Option<UnicodeMap> {
        let mut wanted = false;
        let mut map = HashMap::new();
        for line in text.lines().map(str::trim).filter(|l| !l.starts_with('#')) {
            let head = line.split_whitespace().next().unwrap_or_default();
            if !head.contains(':') && !head.is_empty() {
                wanted = head.parse() == Ok(page);
                continue;
            }
            let pairs = line.split_whitespace().filter_map(|pair| pair.split_once(':')).filter(|_| wanted);
            for (from, to) in pairs {
                if let (Ok(from), Ok(to)) = (u16::from_str_radix(from, 16), u8::from_str_radix(to, 16)) {
                    map.insert(from, to);
                }
            }
        }
        (!map.is_empty()).then_some(UnicodeMap(map))
    }
}

/// What decoding a URL's text found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UrlDecoded {
    /// The result differs from the input.
    pub changed: bool,
    /// A `%` without two digits was left as it is.
    pub invalid: bool,
}

/// Decodes `%HH` and `+`; with `unicode` also `%uHHHH`, by the map or to the lower byte (full-width forms to ASCII).
pub(crate) fn url_decode(input: &[u8], unicode: bool, map: Option<&UnicodeMap>, out: &mut Vec<u8>) -> UrlDecoded {
    let mut found = UrlDecoded::default();
    if memchr::memchr2(b'%', b'+', input).is_none() {
        return found;
    }
    let mut at = 0;
    while at < input.len() {
        let rest = &input[at..];
        let (byte, used) = match rest[0] {
            b'+' => (b' ', 1),
            b'%' => {
                if let Some(byte) = hex_pair(&rest[1..]) {
                    (byte, 3)
                } else if let Some(wide) = unicode.then(|| wide(rest)).flatten() {
                    (map.and_then(|m| m.0.get(&wide).copied()).unwrap_or_else(|| narrow(wide)), 6)
                } else {
                    found.invalid = true;
                    (b'%', 1)
                }
            }
            byte => (byte, 1),
        };
        found.changed |= used > 1 || rest[0] == b'+';
        out.push(byte);
        at += used;
    }
    found
}

fn wide(text: &[u8]) -> Option<u16> {
    let digits = text.get(1).filter(|b| matches!(b, b'u' | b'U')).and_then(|_| text.get(2..6))?;
    Some(u16::from(hex_pair(digits)?) << 8 | u16::from(hex_pair(&digits[2..])?))
}

/// One byte for a character: full-width forms (U+FF01 to U+FF5E) are ASCII, of others the lower byte stays.
pub(super) fn narrow(wide: u16) -> u8 {
    let low = wide as u8;
    if wide >> 8 == 0xff && low > 0 && low < 0x5f { low + 0x20 } else { low }
}

pub(super) fn url_encode(input: &[u8], out: &mut Vec<u8>) -> bool {
    for byte in input {
        match byte {
            b' ' => out.push(b'+'),
            b'*' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => out.push(*byte),
            _ => {
                out.push(b'%');
                push_hex(*byte, out);
            }
        }
    }
    out != input
}

fn push_hex(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.push(DIGITS[usize::from(byte >> 4)]);
    out.push(DIGITS[usize::from(byte & 15)]);
}

pub(super) fn hex_encode(input: &[u8], out: &mut Vec<u8>) -> bool {
    input.iter().for_each(|byte| push_hex(*byte, out));
    !input.is_empty()
}

/// Decodes pairs of digits; what is no digit counts as 0, and an odd one at the end is dropped.
pub(super) fn hex_decode(input: &[u8], out: &mut Vec<u8>) -> bool {
    for pair in input.chunks_exact(2) {
        out.push(hex(pair[0]).unwrap_or(0) << 4 | hex(pair[1]).unwrap_or(0));
    }
    !input.is_empty()
}

/// Decodes `0x414243` as databases do.
pub(super) fn sql_hex_decode(input: &[u8], out: &mut Vec<u8>) -> bool {
    if memchr::memmem::find(input, b"0x").is_none() && memchr::memmem::find(input, b"0X").is_none() {
        return false;
    }
    let mut at = 0;
    let mut changed = false;
    while at < input.len() {
        let rest = &input[at..];
        let is_hex = rest[0] == b'0' && matches!(rest.get(1), Some(b'x' | b'X'));
        let digits = if is_hex { rest[2..].iter().take_while(|b| hex(**b).is_some()).count() & !1 } else { 0 };
        if digits == 0 {
            out.push(rest[0]);
            at += 1;
            continue;
        }
        changed = true;
        out.extend(rest[2..2 + digits].chunks_exact(2).filter_map(hex_pair));
        at += 2 + digits;
    }
    changed
}

/// The value of a digit of base64.
fn base64_digit(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

/// Decodes base64 up to the first byte that is none; a forgiving one passes over such bytes.
pub(crate) fn base64_decode(input: &[u8], forgiving: bool, out: &mut Vec<u8>) -> bool {
    let (mut bits, mut held) = (0_u32, 0);
    for byte in input {
        let Some(digit) = base64_digit(*byte) else {
            if forgiving && *byte != b'=' {
                continue;
            }
            break;
        };
        bits = bits << 6 | u32::from(digit);
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    !input.is_empty()
}

pub(super) fn base64_encode(input: &[u8], out: &mut Vec<u8>) -> bool {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for chunk in input.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place)) as usize & 63];
            out.push(if place > chunk.len() { b'=' } else { digit });
        }
    }
    !input.is_empty()
}

/// Writes characters beyond ASCII as `%uHHHH`. What is not UTF-8 stays.
pub(super) fn utf8_to_unicode(input: &[u8], out: &mut Vec<u8>) -> bool {
    if input.is_ascii() {
        return false;
    }
    let mut changed = false;
    for chunk in input.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_ascii() {
                out.push(c as u8);
            } else {
                changed = true;
                out.extend_from_slice(format!("%u{:04x}", u32::from(c)).as_bytes());
            }
        }
        out.extend_from_slice(chunk.invalid());
    }
    changed
}
