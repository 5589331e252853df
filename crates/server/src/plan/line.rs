//! A line of an access log, cut by its `log_format`. The bytes are whatever clients sent, escaped by whoever wrote the line. Knows nothing of
//! the server: the fuzz target `access_log_line` has this file alone.

/// A part of a format.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// A text as it stands.
    Text(&'a [u8]),
    /// A variable by its name.
    Variable(&'a str),
}

/// A longer line is nobody's request: heads are shorter (`large_client_header_buffers`), and each byte takes four escaped.
const LONGEST: usize = 256 * 1024;

/// The variables of a line with their values, unescaped; none: it does not have the format's form. Each variable ends where the text after
/// it begins; two that touch cannot be told apart. `-` is the empty value.
pub fn cut<'f>(format: &[Part<'f>], line: &[u8]) -> Option<Vec<(&'f str, Vec<u8>)>> {
    if line.len() > LONGEST {
        return None;
    }
    let mut found = Vec::new();
    let mut rest = line;
    for (at, part) in format.iter().enumerate() {
        let name = match part {
            Part::Text(text) => {
                rest = rest.strip_prefix(*text)?;
                continue;
            }
            Part::Variable(name) => name,
        };
        let end = match format.get(at + 1) {
            Some(Part::Text(text)) => find(rest, text)?,
            Some(Part::Variable(_)) => return None,
            None => rest.len(),
        };
        let value = unescaped(&rest[..end]);
        rest = &rest[end..];
        found.push((*name, if value == b"-" { Vec::new() } else { value }));
    }
    Some(found)
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    if what.is_empty() {
        return Some(0);
    }
    text.windows(what.len()).position(|w| w == what)
}

/// What `escape=default` and `escape=json` wrote, as it was.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        let hex = |digits: Option<&[u8]>| {
            let digits = digits.filter(|d| d.iter().all(u8::is_ascii_hexdigit))?;
            u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
        };
        let (written, taken) = match (byte, after) {
            (b'\\', [b'x', ..]) => (hex(after.get(1..3)).map(|value| vec![value as u8]), 3),
            (b'\\', [b'u', ..]) => {
                let letter = hex(after.get(1..5)).and_then(char::from_u32);
                (letter.map(|c| c.to_string().into_bytes()), 5)
            }
            (b'\\', [b'n', ..]) => (Some(vec![b'\n']), 1),
            (b'\\', [b't', ..]) => (Some(vec![b'\t']), 1),
            (b'\\', [quoted @ (b'"' | b'\\' | b'/'), ..]) => (Some(vec![*quoted]), 1),
            _ => (None, 0),
        };
        match written {
            Some(bytes) => {
                out.extend_from_slice(&bytes);
                rest = &after[taken..];
            }
            None => out.push(*byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_by_their_format() {
        let format = [
            Part::Text(b"IP "),
            Part::Variable("remote_addr"),
            Part::Text(b" \""),
            Part::Variable("request"),
            Part::Text(b"\" host="),
            Part::Variable("host"),
        ];
        let line = br#"IP 10.0.0.7 "GET /a\x22b?c=1 HTTP/1.1" host=-"#;
        let of = |name: &str, value: &[u8]| (name.to_owned(), value.to_vec());
        let found: Vec<_> = cut(&format, line).unwrap().into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
        assert_eq!(found, [of("remote_addr", b"10.0.0.7"), of("request", b"GET /a\"b?c=1 HTTP/1.1"), of("host", b"")]);
        assert_eq!(cut(&format, b"something else"), None);
        assert_eq!(cut(&[Part::Variable("a"), Part::Variable("b")], b"ab"), None);
    }

    #[test]
    fn escapes_are_undone() {
        assert_eq!(unescaped(br#"a\x0Ab\"\\c\u00e4\/"#), "a\nb\"\\c\u{e4}/".as_bytes());
        assert_eq!(
            (unescaped(br"\x4"), unescaped(br"\x+4"), unescaped(b"\\")),
            (br"\x4".to_vec(), br"\x+4".to_vec(), b"\\".to_vec())
        );
    }
}
