//! Names, serial numbers and times of certificates as OpenSSL prints them: `$ssl_client_s_dn` and others.

use super::der::{BadDer, Der, tag};
use std::fmt::Write;

/// Attributes with short names (RFC 4514 and OpenSSL's table).
const SHORT: [(&[u8], &str); 24] = [
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 4], "SN"),
    (&[0x55, 4, 5], "serialNumber"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 9], "street"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x55, 4, 12], "title"),
    (&[0x55, 4, 13], "description"),
    (&[0x55, 4, 15], "businessCategory"),
    (&[0x55, 4, 17], "postalCode"),
    (&[0x55, 4, 41], "name"),
    (&[0x55, 4, 42], "GN"),
    (&[0x55, 4, 43], "initials"),
    (&[0x55, 4, 44], "generationQualifier"),
    (&[0x55, 4, 45], "x500UniqueIdentifier"),
    (&[0x55, 4, 46], "dnQualifier"),
    (&[0x55, 4, 65], "pseudonym"),
    (&[0x55, 4, 97], "organizationIdentifier"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1], "emailAddress"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1], "UID"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25], "DC"),
];

struct Attribute<'a> {
    oid: &'a [u8],
    tag: u8,
    value: &'a [u8],
    whole: &'a [u8],
    /// It belongs to the same part of the name as the one before.
    joined: bool,
}

fn attributes(name: &[u8]) -> Result<Vec<Attribute<'_>>, BadDer> {
    let mut all = Vec::new();
    let mut parts = Der::new(name).sequence()?;
    while !parts.is_empty() {
        let mut part = Der::new(parts.expect(tag::SET)?);
        let mut joined = false;
        while !part.is_empty() {
            let mut attribute = part.sequence()?;
            let oid = attribute.expect(tag::OID)?;
            let (tag, value, whole) = attribute.any()?;
            all.push(Attribute { oid, tag, value, whole, joined });
            joined = true;
        }
    }
    Ok(all)
}

/// A name as RFC 2253 writes it: the last part first, `CN=a,O=b`.
pub fn rfc2253(name: &[u8]) -> String {
    let mut out = String::new();
    let Ok(all) = attributes(name) else { return out };
    for (i, a) in all.iter().enumerate().rev() {
        let short = SHORT.iter().find(|(oid, _)| *oid == a.oid).map(|(_, name)| *name);
        match short {
            Some(name) => {
                out.push_str(name);
                out.push('=');
                escape2253(&utf8(a), &mut out);
            }
            None => {
                dotted(a.oid, &mut out);
                out.push_str("=#");
                a.whole.iter().for_each(|b| _ = write!(out, "{b:02X}"));
            }
        }
        if i > 0 {
            out.push(if a.joined { '+' } else { ',' });
        }
    }
    out
}

/// A name in OpenSSL's old form: `/O=b/CN=a`.
pub fn oneline(name: &[u8]) -> String {
    let mut out = String::new();
    let Ok(all) = attributes(name) else { return out };
    for a in all {
        out.push(if a.joined { '+' } else { '/' });
        match SHORT.iter().find(|(oid, _)| *oid == a.oid) {
            Some((_, name)) => out.push_str(name),
            None => dotted(a.oid, &mut out),
        }
        out.push('=');
        for b in a.value {
            match b {
                b'/' | b'+' => _ = write!(out, "\\{}", char::from(*b)),
                b' '..=b'~' => out.push(char::from(*b)),
                _ => _ = write!(out, "\\x{b:02X}"),
            }
        }
    }
    out
}

/// The values of the attribute `CN`.
pub fn common_names(name: &[u8]) -> Vec<Vec<u8>> {
    let all = attributes(name).unwrap_or_default();
    all.iter().filter(|a| a.oid == [0x55, 4, 3]).map(utf8).collect()
}

/// The value in UTF-8, whatever it was written in.
fn utf8(a: &Attribute<'_>) -> Vec<u8> {
    let text: String = match a.tag {
        tag::BMP_STRING => char::decode_utf16(a.value.chunks_exact(2).map(|p| u16::from_be_bytes([p[0], p[1]])))
            .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
            .collect(),
        tag::UNIVERSAL_STRING => {
            let number = |p: &[u8]| u32::from_be_bytes([p[0], p[1], p[2], p[3]]);
            let points = a.value.chunks_exact(4).map(number);
            points.map(|n| char::from_u32(n).unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
        }
        tag::UTF8_STRING => return a.value.to_vec(),
        // Latin-1, of which ASCII is a part.
        _ => a.value.iter().map(|b| char::from(*b)).collect(),
    };
    text.into_bytes()
}

fn escape2253(value: &[u8], out: &mut String) {
    let last = value.len().saturating_sub(1);
    for (i, &b) in value.iter().enumerate() {
        match b {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => _ = write!(out, "\\{}", char::from(b)),
            b'#' | b' ' if i == 0 => _ = write!(out, "\\{}", char::from(b)),
            b' ' if i == last => out.push_str("\\ "),
            b' '..=b'~' => out.push(char::from(b)),
            _ => _ = write!(out, "\\{b:02X}"),
        }
    }
}

fn dotted(oid: &[u8], out: &mut String) {
    let mut number = 0u128;
    let mut first = true;
    for b in oid {
        number = (number << 7) | u128::from(b & 0x7f);
        if b & 0x80 != 0 {
            continue;
        }
        if first {
            let top = (number / 40).min(2);
            _ = write!(out, "{top}.{}", number - top * 40);
        } else {
            _ = write!(out, ".{number}");
        }
        (first, number) = (false, 0);
    }
}

/// A serial number in hexadecimal digits.
pub fn serial(bytes: &[u8]) -> String {
    let negative = bytes.first().is_some_and(|b| b & 0x80 != 0);
    let mut magnitude = bytes.to_vec();
    if negative {
        // Two's complement.
        let mut carry = true;
        for b in magnitude.iter_mut().rev() {
            (*b, carry) = (!*b).overflowing_add(u8::from(carry));
        }
    }
    let start = magnitude.iter().position(|b| *b != 0).unwrap_or(magnitude.len().saturating_sub(1));
    let mut out = String::from(if negative { "-" } else { "" });
    magnitude[start..].iter().for_each(|b| _ = write!(out, "{b:02X}"));
    out
}

/// A time as `Sep  9 01:46:40 2001 GMT`.
pub fn time(seconds: i64) -> String {
    let text = wire::date::format_http(seconds);
    // `Sun, 09 Sep 2001 01:46:40 GMT`
    let text = String::from_utf8_lossy(&text).into_owned();
    let day = text[5..7].trim_start_matches('0').to_owned();
    format!("{} {day:>2} {} {} GMT", &text[8..11], &text[17..25], &text[12..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
        [&[tag, content.len() as u8][..], content].concat()
    }

    fn attribute(oid: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        tlv(tag::SEQUENCE, &[tlv(tag::OID, oid), tlv(tag, value)].concat())
    }

    fn part(oid: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        tlv(tag::SET, &attribute(oid, tag, value))
    }

    #[test]
    fn names_in_both_forms() {
        let parts = [
            part(&[0x55, 4, 6], 0x13, b"DE"),
            part(&[0x55, 4, 10], tag::UTF8_STRING, "Bär, \"x\"".as_bytes()),
            part(&[0x55, 4, 3], 0x13, b" a+b "),
            tlv(
                tag::SET,
                &[attribute(&[0x2a, 3, 0x81, 4], 0x13, b"z"), attribute(&[0x55, 4, 11], 0x13, b"a/b")].concat(),
            ),
        ]
        .concat();
        let name = [&[tag::SEQUENCE, parts.len() as u8][..], &parts].concat();
        assert_eq!(rfc2253(&name), "OU=a/b+1.2.3.132=#13017A,CN=\\ a\\+b\\ ,O=B\\C3\\A4r\\, \\\"x\\\",C=DE");
        assert_eq!(oneline(&name), "/C=DE/O=B\\xC3\\xA4r, \"x\"/CN= a\\+b /1.2.3.132=z+OU=a\\/b");
        assert_eq!(common_names(&name), [b" a+b ".to_vec()]);
        assert_eq!(rfc2253(b"broken"), "");
    }

    #[test]
    fn numbers_and_times() {
        assert_eq!(serial(&[0, 0xc0, 1]), "C001");
        assert_eq!(serial(&[0]), "00");
        assert_eq!(serial(&[0xff, 0x01]), "-FF");
        assert_eq!(time(1_000_000_000), "Sep  9 01:46:40 2001 GMT");
        assert_eq!(time(1_731_600_000), "Nov 14 16:00:00 2024 GMT");
    }
}
