//! Escapes and unescapes text the way nginx does, with the same sets of characters (`ngx_escape_uri` and its kin).

use super::scan::{contains, hex_digit};

/// Which characters are escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Escape {
    /// For a path: what cannot stand in a URI, and `#`, `%`, `?`.
    Uri,
    /// For a value in a query: those, and `&`, `+`, `;`.
    Args,
    /// All but letters, digits and `-._~`.
    UriComponent,
    /// For a link in a page: what cannot stand in a URI, and `#`, `%`, `'`; `?` stays.
    Html,
    /// For a `Refresh` header: what cannot stand in a URI, and `'`; escapes stay.
    Refresh,
    /// For a memcached key: controls, space and `%`.
    Memcached,
    /// For SMTP's `xtext` (RFC 3461 section 4), which escapes with `+`.
    MailXtext,
}

impl Escape {
    fn table(self) -> &'static [bool; 256] {
        static URI: [bool; 256] = table(b"\"#%<>?\\^`{|}\x7f", true);
        static ARGS: [bool; 256] = table(b"\"#%&+;<>?\\^`{|}\x7f", true);
        static COMPONENT: [bool; 256] = component_table();
        static HTML: [bool; 256] = table(b"\"#%'<>\\^`{|}\x7f", true);
        // nginx's table has `~` where `}` is meant; kept, as the output is compared.
        static REFRESH: [bool; 256] = table(b"\"'<>\\^`{|~\x7f", true);
        static MEMCACHED: [bool; 256] = table(b"%", false);
        static MAIL_XTEXT: [bool; 256] = table(b"+=\x7f", true);
        match self {
            Self::Uri => &URI,
            Self::Args => &ARGS,
            Self::UriComponent => &COMPONENT,
            Self::Html => &HTML,
            Self::Refresh => &REFRESH,
            Self::Memcached => &MEMCACHED,
            Self::MailXtext => &MAIL_XTEXT,
        }
    }
}

/// Controls, space and the bytes of `set`; with `high` those from 0x80 on too.
const fn table(set: &[u8], high: bool) -> [bool; 256] {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = byte <= 0x20 || contains(set, byte as u8) || (high && byte >= 0x80);
        byte += 1;
    }
    table
}

const fn component_table() -> [bool; 256] {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = !(byte as u8).is_ascii_alphanumeric() && !contains(b"-._~", byte as u8);
        byte += 1;
    }
    table
}

/// Appends `text` to `out`, with the bytes of the kind's set as `%XX`.
pub fn escape_uri(text: &[u8], kind: Escape, out: &mut Vec<u8>) {
    let table = kind.table();
    let sign = if kind == Escape::MailXtext { b'+' } else { b'%' };
    let mut rest = text;
    while let Some(stop) = rest.iter().position(|&byte| table[byte as usize]) {
        let byte = rest[stop];
        out.extend_from_slice(&rest[..stop]);
        out.extend_from_slice(&[sign, HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        rest = &rest[stop + 1..];
    }
    out.extend_from_slice(rest);
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// What an unescaped character means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unescape {
    /// Every escape becomes its byte.
    Plain,
    /// The same, up to and with the first `?`, escaped or not.
    Uri,
    /// For a `Location`: only escapes of printable ASCII after `%` become their bytes, up to and with the first `?`.
    Redirect,
}

/// Appends `text` to `out` with its escapes undone. A broken escape loses its `%` and what was read of it. Gives the
/// number of bytes that were read: less than all only if a `?` ended it. As `ngx_unescape_uri`.
pub fn unescape(text: &[u8], kind: Unescape, out: &mut Vec<u8>) -> usize {
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += 1;
        if byte != b'%' {
            out.push(byte);
            if byte == b'?' && kind != Unescape::Plain {
                return at;
            }
            continue;
        }
        let Some(&first) = text.get(at) else { break };
        at += 1;
        let Some(high) = hex_digit(first) else {
            out.push(first);
            continue;
        };
        let Some(&second) = text.get(at) else { break };
        at += 1;
        let Some(low) = hex_digit(second) else { continue };
        let decoded = high << 4 | low;
        if decoded == b'?' && kind != Unescape::Plain {
            out.push(decoded);
            return at;
        }
        if kind == Unescape::Redirect && !(b'&'..0x7f).contains(&decoded) {
            out.extend_from_slice(&[b'%', first, second]);
        } else {
            out.push(decoded);
        }
    }
    at
}

/// Appends `text` with `<`, `>`, `&` and `"` as entities.
pub fn escape_html(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        match byte {
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'&' => out.extend_from_slice(b"&amp;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            _ => out.push(byte),
        }
    }
}

/// A text with `<`, `>`, `&` and `"` as entities.
pub fn html_of(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    escape_html(text.as_bytes(), &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// Appends `text` as the inside of a JSON string. Bytes from 0x7f on stay as they are.
pub fn escape_json(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        match byte {
            b'\\' | b'"' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            0..=0x1f => {
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
            _ => out.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(text: &[u8], kind: Escape) -> String {
        let mut out = Vec::new();
        escape_uri(text, kind, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    fn unescaped(text: &str, kind: Unescape) -> (String, usize) {
        let mut out = Vec::new();
        let read = unescape(text.as_bytes(), kind, &mut out);
        (String::from_utf8_lossy(&out).into_owned(), read)
    }

    #[test]
    fn escapes() {
        let text = b"/a b?c=d&e+f;#%\"<>'~{}\xe9\x01";
        assert_eq!(escaped(text, Escape::Uri), "/a%20b%3Fc=d&e+f;%23%25%22%3C%3E'~%7B%7D%E9%01");
        assert_eq!(escaped(text, Escape::Args), "/a%20b%3Fc=d%26e%2Bf%3B%23%25%22%3C%3E'~%7B%7D%E9%01");
        assert_eq!(escaped(text, Escape::Html), "/a%20b?c=d&e+f;%23%25%22%3C%3E%27~%7B%7D%E9%01");
        assert_eq!(escaped(text, Escape::Refresh), "/a%20b?c=d&e+f;#%%22%3C%3E%27%7E%7B}%E9%01");
        assert_eq!(escaped(b"a b%\xc3\xa9?", Escape::Memcached), "a%20b%25\u{e9}?");
        assert_eq!(escaped(b"a+b=c", Escape::MailXtext), "a+2Bb+3Dc");
        assert_eq!(escaped(b"Az09-._~/@:", Escape::UriComponent), "Az09-._~%2F%40%3A");
        assert_eq!(escaped(b"/plain", Escape::Uri), "/plain");
    }

    #[test]
    fn unescapes() {
        assert_eq!(unescaped("/a%20b%2f%", Unescape::Plain), ("/a b/".into(), 10));
        assert_eq!(unescaped("%zz%4", Unescape::Plain), ("zz".into(), 5));
        assert_eq!(unescaped("%4zz", Unescape::Plain), ("z".into(), 4));
        assert_eq!(unescaped("a%3fb?c", Unescape::Plain), ("a?b?c".into(), 7));
        assert_eq!(unescaped("a%3fb", Unescape::Uri), ("a?".into(), 4));
        assert_eq!(unescaped("a?%41", Unescape::Uri), ("a?".into(), 2));
        assert_eq!(unescaped("%41%25%20%7f%3F%41", Unescape::Redirect), ("A%25%20%7f?".into(), 15));
    }

    #[test]
    fn pages_and_json() {
        let mut out = Vec::new();
        escape_html(b"<a href=\"x\">&", &mut out);
        assert_eq!(out, b"&lt;a href=&quot;x&quot;&gt;&amp;");
        out.clear();
        escape_json(b"a\"\\\n\x1f\x7f", &mut out);
        assert_eq!(out, b"a\\\"\\\\\\n\\u001F\x7f");
    }
}
