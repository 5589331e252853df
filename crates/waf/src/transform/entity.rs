//! Transformations that undo the escapes of languages: HTML, JavaScript, CSS, C.

use super::decode::narrow;
use super::{hex, hex_pair, is_space};

/// Decodes numeric references, of which the lower byte stays, and the five names that libmodsecurity knows.
pub(super) fn html_entities(input: &[u8], out: &mut Vec<u8>) -> bool {
    if memchr::memchr(b'&', input).is_none() {
        return false;
    }
    let mut changed = false;
    let mut rest = input;
    while let Some(first) = rest.first() {
        let entity = if *first == b'&' { entity(&rest[1..]) } else { None };
        if let Some((byte, mut used)) = entity {
            used += usize::from(rest.get(1 + used) == Some(&b';'));
            out.push(byte);
            rest = &rest[1 + used..];
            changed = true;
        } else {
            out.push(*first);
            rest = &rest[1..];
        }
    }
    changed
}

/// The byte that a reference stands for, and how long it is without `&` and `;`.
fn entity(text: &[u8]) -> Option<(u8, usize)> {
    if let [b'#', rest @ ..] = text {
        let (radix, prefix) = if matches!(rest.first(), Some(b'x' | b'X')) { (16, 1) } else { (10, 0) };
        let digits = &rest[prefix..];
        let count = digits.iter().take_while(|b| (**b as char).is_digit(radix)).count();
        if count == 0 {
            return None;
        }
        let value = digits[..count]
            .iter()
            .fold(0_u32, |sum, b| sum.wrapping_mul(radix).wrapping_add((*b as char).to_digit(radix).unwrap_or(0)));
        return Some((value as u8, 1 + prefix + count));
    }
    const NAMES: [(&[u8], u8); 5] = [(b"quot", b'"'), (b"amp", b'&'), (b"lt", b'<'), (b"gt", b'>'), (b"nbsp", 0xa0)];
    let length = text.iter().take_while(|b| b.is_ascii_alphanumeric()).count();
    let name = &text[..length];
    NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, byte)| (*byte, length))
}

/// Runs a decoder of what follows a backslash over a text: it gives a byte, if any, and how much it used of what follows.
fn unescape(input: &[u8], out: &mut Vec<u8>, decode: impl Fn(&[u8]) -> (Option<u8>, usize)) -> bool {
    if memchr::memchr(b'\\', input).is_none() {
        return false;
    }
    let mut rest = input;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at + 1..];
        let (byte, used) = decode(rest);
        out.extend(byte);
        rest = &rest[used..];
    }
    out.extend_from_slice(rest);
    true
}

/// The byte of `\n` and its like.
fn control(byte: u8) -> Option<u8> {
    Some(match byte {
        b'a' => 0x07,
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 0x0b,
        _ => return None,
    })
}

/// Up to three octal digits; the first of three is at most 3.
fn octal(text: &[u8]) -> Option<(u8, usize)> {
    let mut count = text.iter().take(3).take_while(|b| matches!(b, b'0'..=b'7')).count();
    if count == 3 && text[0] > b'3' {
        count = 2;
    }
    let value = text[..count].iter().fold(0_u8, |sum, b| sum << 3 | (b - b'0'));
    (count > 0).then_some((value, count))
}

/// `\uHHHH`, `\xHH`, octal numbers and C's letters; other backslashes are dropped.
pub(super) fn js_decode(input: &[u8], out: &mut Vec<u8>) -> bool {
    unescape(input, out, |rest| {
        let Some(first) = rest.first() else { return (Some(b'\\'), 0) };
        if *first == b'u'
            && let (Some(high), Some(low)) = (hex_pair(&rest[1..]), rest.get(3..).and_then(hex_pair))
        {
            return (Some(narrow(u16::from(high) << 8 | u16::from(low))), 5);
        }
        if *first == b'x'
            && let Some(byte) = hex_pair(&rest[1..])
        {
            return (Some(byte), 3);
        }
        if let Some((byte, used)) = octal(rest) {
            return (Some(byte), used);
        }
        (Some(control(*first).unwrap_or(*first)), 1)
    })
}

/// The escapes of C; backslashes before other bytes are dropped.
pub(super) fn escape_sequences(input: &[u8], out: &mut Vec<u8>) -> bool {
    unescape(input, out, |rest| {
        let Some(first) = rest.first() else { return (Some(b'\\'), 0) };
        if matches!(first, b'x' | b'X')
            && let Some(byte) = hex_pair(&rest[1..])
        {
            return (Some(byte), 3);
        }
        if let Some((byte, used)) = octal(rest) {
            return (Some(byte), used);
        }
        (Some(control(*first).unwrap_or(*first)), 1)
    })
}

/// The escapes of CSS: up to six digits and one blank behind them, a line that goes on, or any other byte for itself.
pub(super) fn css_decode(input: &[u8], out: &mut Vec<u8>) -> bool {
    unescape(input, out, |rest| {
        let count = rest.iter().take(6).take_while(|b| hex(**b).is_some()).count();
        if count == 0 {
            return match rest.first() {
                None => (None, 0),
                Some(b'\n') => (None, 1),
                Some(byte) => (Some(*byte), 1),
            };
        }
        let value = rest[..count].iter().fold(0_u32, |sum, b| sum << 4 | u32::from(hex(*b).unwrap_or(0)));
        let byte = if value <= 0xffff { narrow(value as u16) } else { value as u8 };
        let blank = rest.get(count).is_some_and(|b| is_space(*b));
        (Some(byte), count + usize::from(blank))
    })
}
