//! Checks of single header values, as nginx makes them once a head is complete. What a missing, repeated or contrary
//! header means is decided by the server.

use super::scan::repeat;
use crate::span::Span;

/// What [`validate_host`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostParts {
    /// Length in bytes of the name that was appended: lower case, without port and without a trailing dot.
    pub name_len: usize,
    /// The port; 0 if there is none or it is empty.
    pub port: u16,
}

/// The host is refused: `client sent invalid host header` or `... invalid host in request line`, status 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadHost;

/// Checks a `Host` value or the host of an absolute target, and appends the bare name to `out`.
///
/// # Errors
/// Bytes that RFC 3986 section 3.2.2 does not allow, two dots in a row, an empty name, an open bracket, a port above
/// 65535. As `ngx_http_validate_host`.
pub fn validate_host(host: &[u8], out: &mut Vec<u8>) -> Result<HostParts, BadHost> {
    let start = out.len();
    out.extend_from_slice(host);
    let parts = lower_host(&mut out[start..]);
    out.truncate(start + parts.map_or(0, |p| p.name_len));
    parts
}

/// The same in place: letters become small, and `name_len` says how much of it is the name.
///
/// # Errors
/// As [`validate_host`]; some letters may have become small.
pub fn lower_host(host: &mut [u8]) -> Result<HostParts, BadHost> {
    let name_end = match host.first() {
        Some(b'[') => literal_end(host)?,
        _ => lower(host, &NAME)?,
    };
    let port = match &host[name_end..] {
        [] => 0,
        [b':', digits @ ..] => parse_port(digits)?,
        _ => return Err(BadHost),
    };
    match &host[..name_end] {
        [] | [b'.'] => Err(BadHost),
        [name @ .., b'.'] => Ok(HostParts { name_len: name.len(), port }),
        name => Ok(HostParts { name_len: name.len(), port }),
    }
}

/// What a byte of a name becomes; 0 for those that end it.
const NAME: [u8; 256] = lower_case_of(b"-._~!$&'()*+,;=%");
/// The same within brackets.
const LITERAL: [u8; 256] = lower_case_of(b":-._~!$&'()*+,;=");

/// Letters, digits and `others`.
const fn lower_case_of(others: &[u8]) -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 128 {
        if (byte as u8).is_ascii_alphanumeric() {
            table[byte] = (byte as u8).to_ascii_lowercase();
        }
        byte += 1;
    }
    let mut at = 0;
    while at < others.len() {
        table[others[at] as usize] = others[at];
        at += 1;
    }
    table
}

/// Offset after the closing bracket.
fn literal_end(host: &mut [u8]) -> Result<usize, BadHost> {
    let end = 1 + lower(&mut host[1..], &LITERAL)?;
    if host.get(end) == Some(&b']') { Ok(end + 1) } else { Err(BadHost) }
}

/// How many bytes at the beginning are of the table; they become what it says. Two dots in a row are an error.
fn lower(text: &mut [u8], table: &[u8; 256]) -> Result<usize, BadHost> {
    let mut at = small_host(text);
    let mut previous = at.checked_sub(1).map_or(0, |last| text[last]);
    while let Some(byte) = text.get_mut(at) {
        let lower = table[usize::from(*byte)];
        if lower == 0 {
            return Ok(at);
        }
        if lower == b'.' && previous == b'.' {
            return Err(BadHost);
        }
        *byte = lower;
        previous = lower;
        at += 1;
    }
    Ok(at)
}

/// How many bytes at the beginning, in steps of eight, are small letters, digits, hyphens and single dots: every table has these as they are.
fn small_host(text: &[u8]) -> usize {
    const HIGH: u64 = repeat(0x80);
    // The high bit of each byte from `low` to `high`, where none has it set itself.
    let within = |word: u64, low: u8, high: u8| (word + repeat(0x80 - low)) & !(word + repeat(0x7f - high)) & HIGH;
    let (chunks, _) = text.as_chunks::<8>();
    let mut dot_before = 0;
    for (number, chunk) in chunks.iter().enumerate() {
        let word = u64::from_le_bytes(*chunk);
        let low = word & !HIGH;
        let dots = within(low, b'.', b'.');
        let known = within(low, b'a', b'z') | within(low, b'0', b'9') | within(low, b'-', b'.');
        if known & !word & HIGH != HIGH || dots & (dots << 8 | dot_before) != 0 {
            return 8 * number;
        }
        dot_before = dots >> 56;
    }
    8 * chunks.len()
}

fn parse_port(digits: &[u8]) -> Result<u16, BadHost> {
    digits.iter().try_fold(0u16, |port, &digit| {
        let value = digit.wrapping_sub(b'0');
        if value > 9 {
            return Err(BadHost);
        }
        port.checked_mul(10).and_then(|port| port.checked_add(u16::from(value))).ok_or(BadHost)
    })
}

/// A decimal number as nginx reads sizes (`ngx_atoof`): digits only, at most 2^63 - 1.
pub fn parse_content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |sum, &digit| {
        let digit = u64::from(digit.wrapping_sub(b'0'));
        if digit > 9 {
            return None;
        }
        let sum = sum.checked_mul(10)?.checked_add(digit)?;
        (sum <= LARGEST_LENGTH).then_some(sum)
    })
}

/// The largest length nginx knows, in bytes: that of a signed file offset.
pub const LARGEST_LENGTH: u64 = i64::MAX as u64;

/// What a `Transfer-Encoding` value means to nginx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferEncoding {
    /// `chunked`, in any case and nothing else.
    Chunked,
    /// Anything else: 501 for a request, an invalid answer from an upstream.
    Unknown,
}

/// Reads a `Transfer-Encoding` value. Lists are not understood, as in nginx: they are the stuff of request smuggling.
pub fn parse_transfer_encoding(value: &[u8]) -> TransferEncoding {
    if value.eq_ignore_ascii_case(b"chunked") { TransferEncoding::Chunked } else { TransferEncoding::Unknown }
}

/// What a `Connection` value asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionType {
    /// `close` occurs in it.
    Close,
    /// `keep-alive` occurs in it, and `close` does not.
    KeepAlive,
}

/// Reads a `Connection` value. As in nginx the words are found anywhere in it.
pub fn parse_connection(value: &[u8]) -> Option<ConnectionType> {
    if value.eq_ignore_ascii_case(b"keep-alive") || value.eq_ignore_ascii_case(b"close") {
        let close = value.len() == b"close".len();
        return Some(if close { ConnectionType::Close } else { ConnectionType::KeepAlive });
    }
    if contains_ignoring_case(value, b"close") {
        Some(ConnectionType::Close)
    } else if contains_ignoring_case(value, b"keep-alive") {
        Some(ConnectionType::KeepAlive)
    } else {
        None
    }
}

/// Whether `word` occurs in `value`, in any case.
pub fn contains_ignoring_case(value: &[u8], word: &[u8]) -> bool {
    value.windows(word.len()).any(|window| window.eq_ignore_ascii_case(word))
}

/// The value of `name=value` in a list such as `Cookie` (`separator` `;`) or `Cache-Control` (`,`); the first one wins.
/// Names are compared without case, as `ngx_http_parse_multi_header_lines` does. A name without `=` is passed over.
pub fn find_in_list<'a>(list: &'a [u8], name: &[u8], separator: u8) -> Option<&'a [u8]> {
    list_items(list, separator).find_map(|item| {
        let rest = skip_spaces(strip_name(item, name)?);
        Some(skip_spaces(rest.strip_prefix(b"=")?))
    })
}

/// Whether `name` stands alone in a list, such as `no-store` in `Cache-Control`.
pub fn is_in_list(list: &[u8], name: &[u8], separator: u8) -> bool {
    list_items(list, separator).any(|item| strip_name(item, name).is_some_and(|rest| skip_spaces(rest).is_empty()))
}

fn list_items(list: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut rest, mut is_first) = (Some(list), true);
    std::iter::from_fn(move || {
        let text = rest?;
        let item = match memchr::memchr(separator, text) {
            Some(at) => {
                rest = Some(&text[at + 1..]);
                &text[..at]
            }
            None => {
                rest = None;
                text
            }
        };
        // nginx takes the spaces off after a separator only, so those before the first item stay.
        Some(if std::mem::take(&mut is_first) { item } else { skip_spaces(item) })
    })
}

fn strip_name<'a>(item: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = item.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then_some(rest)
}

fn skip_spaces(text: &[u8]) -> &[u8] {
    let first = text.iter().position(|&byte| byte != b' ').unwrap_or(text.len());
    &text[first..]
}

/// Where the charset of a `Content-Type` stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CharsetAt {
    /// Where the semicolon before it is.
    pub kind_end: usize,
    /// Its value, without quotes.
    pub charset: Span,
    /// Where its parameter ends.
    pub end: usize,
}

/// Finds the first `charset` among the parameters of a `Content-Type` (RFC 9110 section 8.3.1). What stands in quotes belongs to
/// them, whatever it looks like.
pub fn find_charset(value: &[u8]) -> Option<CharsetAt> {
    const NAME: &[u8] = b"charset=";
    if !value.contains(&b';') {
        return None;
    }
    let mut at = parameter_end(value, 0);
    while at < value.len() {
        let kind_end = at;
        let start = at + 1 + value[at + 1..].iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
        let end = parameter_end(value, start);
        let parameter = &value[start..end];
        if parameter.get(..NAME.len()).is_some_and(|name| name.eq_ignore_ascii_case(NAME)) {
            let (mut from, mut to) = (start + NAME.len(), end);
            to -= value[from..to].iter().rev().take_while(|b| matches!(b, b' ' | b'\t')).count();
            from += usize::from(value[from..to].first() == Some(&b'"'));
            to -= usize::from(value[from..to].last() == Some(&b'"'));
            return Some(CharsetAt { kind_end, charset: Span::new(from, to), end });
        }
        at = end;
    }
    None
}

/// The next semicolon outside of quotes, or the end.
fn parameter_end(value: &[u8], from: usize) -> usize {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in value.iter().enumerate().skip(from) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b';' if !quoted => return at,
            _ => {}
        }
    }
    value.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Option<(String, u16)> {
        let mut out = Vec::new();
        let parts = validate_host(text.as_bytes(), &mut out).ok()?;
        assert_eq!(parts.name_len, out.len());
        Some((String::from_utf8(out).expect("hosts are ASCII"), parts.port))
    }

    #[test]
    fn a_charset_is_found_among_parameters() {
        fn find(value: &str) -> Option<(&str, &str, &str)> {
            let found = find_charset(value.as_bytes())?;
            Some((&value[..found.kind_end], &value[found.charset.range()], &value[found.end..]))
        }
        assert_eq!(find("text/html"), None);
        assert_eq!(find("text/html;"), None);
        assert_eq!(find("text/html; x=y"), None);
        assert_eq!(find("text/html;charset=utf-8"), Some(("text/html", "utf-8", "")));
        assert_eq!(find("text/html; x=y;  CharSet=\"a b\" ; z"), Some(("text/html; x=y", "a b", "; z")));
        assert_eq!(find("text/html; x=\"; charset=a\"; charset=b"), Some(("text/html; x=\"; charset=a\"", "b", "")));
        assert_eq!(find("text/html; charset="), Some(("text/html", "", "")));
        assert_eq!(find("text/html; charset=\""), Some(("text/html", "", "")));
        assert_eq!(find("text/html; xcharset=a"), None);
    }

    #[test]
    fn eight_bytes_at_a_time_say_what_one_does() {
        // Every byte at every place of a chunk, before a dot and behind one, and dots on both sides of an edge.
        for at in 0..20 {
            for byte in 0..=255u8 {
                let mut text = *b"www.example-shop.test";
                text[at] = byte;
                let (mut whole, mut single) = (text, text);
                let mut by_one = Ok(text.len());
                for place in 0..text.len() {
                    let small = NAME[usize::from(single[place])];
                    if small == 0 {
                        by_one = Ok(place);
                        break;
                    }
                    if small == b'.' && place > 0 && single[place - 1] == b'.' {
                        by_one = Err(BadHost);
                        break;
                    }
                    single[place] = small;
                }
                assert_eq!(lower(&mut whole, &NAME), by_one, "{text:?}");
                assert_eq!(whole, single);
            }
        }
    }

    #[test]
    fn hosts() {
        let is = |text: &str, name: &str, port| assert_eq!(host(text), Some((name.into(), port)), "{text}");
        is("Example.COM", "example.com", 0);
        is("example.com.:8080", "example.com", 8080);
        is("example.com.", "example.com", 0);
        is("a_b~%41", "a_b~%41", 0);
        is("a:", "a", 0);
        is("a:00080", "a", 80);
        is("[::1]:443", "[::1]", 443);
        is("[::1]:", "[::1]", 0);
        is("[]", "[]", 0);
        is(".a", ".a", 0);
        is("a:65535", "a", 65535);
        for bad in [
            "", ".", "..", "a..b", "a..", ":80", "a b", "a/b", "a@b", "[::1", "[::1]x", "[a%b]", "a:65536", "a:8x",
            "a:80:80", "\u{e9}", "a\0", "a\t", "a#", "a\\b", "[..]",
        ] {
            assert_eq!(host(bad), None, "{bad}");
        }
    }

    #[test]
    fn content_lengths() {
        assert_eq!(parse_content_length(b"0"), Some(0));
        assert_eq!(parse_content_length(b"0042"), Some(42));
        assert_eq!(parse_content_length(b"9223372036854775807"), Some(LARGEST_LENGTH));
        for bad in
            [&b""[..], b"9223372036854775808", b"99999999999999999999", b"+1", b"-1", b"1 ", b" 1", b"0x1", b"1,1"]
        {
            assert_eq!(parse_content_length(bad), None);
        }
    }

    #[test]
    fn connections() {
        assert_eq!(parse_connection(b"Keep-Alive"), Some(ConnectionType::KeepAlive));
        assert_eq!(parse_connection(b"CLOSE"), Some(ConnectionType::Close));
        assert_eq!(parse_connection(b"keep-alive, close"), Some(ConnectionType::Close));
        assert_eq!(parse_connection(b"upgrade, keep-alive"), Some(ConnectionType::KeepAlive));
        assert_eq!(parse_connection(b"upgrade"), None);
        assert_eq!(parse_connection(b""), None);
        assert_eq!(parse_transfer_encoding(b"Chunked"), TransferEncoding::Chunked);
        assert_eq!(parse_transfer_encoding(b"gzip, chunked"), TransferEncoding::Unknown);
    }

    #[test]
    fn lists() {
        let cookie = b"a=1; bb = 2;A=3; flag; c=";
        assert_eq!(find_in_list(cookie, b"A", b';'), Some(&b"1"[..]));
        assert_eq!(find_in_list(cookie, b"bb", b';'), Some(&b"2"[..]));
        assert_eq!(find_in_list(cookie, b"b", b';'), None);
        assert_eq!(find_in_list(cookie, b"flag", b';'), None);
        assert_eq!(find_in_list(cookie, b"c", b';'), Some(&b""[..]));
        assert!(is_in_list(b"max-age=3, No-Store", b"no-store", b','));
        assert!(!is_in_list(b"no-storey", b"no-store", b','));
    }
}
