//! Heads and trailers of answers. A head becomes the text that an HTTP/1.1 peer would have sent, so that all that reads heads
//! reads it; therefore nothing may stand in it that ends a line or frames a body. What is refused, and with which words, is
//! nginx's `ngx_http_grpc_process_header`.

use crate::upstream::streams::Trailers;
use std::rc::Rc;
use wire::http1::response::ResponseHead;
use wire::http1::values::parse_content_length;
use wire::http2::hpack::HeaderBlock;
use wire::span::Span;

/// Headers that speak of a connection, not of an answer (RFC 9113 section 8.2.2).
const HOP_BY_HOP: [&[u8]; 5] = [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"];
/// The only status below 200 that is passed on.
const EARLY_HINTS: u16 = 103;

/// What a head says about its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadFacts {
    /// The status.
    pub status: u16,
    /// `Content-Length`
    pub length: Option<u64>,
}

impl HeadFacts {
    /// Whether the answer's own head still comes.
    pub fn is_interim(&self) -> bool {
        self.status == EARLY_HINTS
    }
}

/// Names a header or trailer as the log does.
fn shown(name: &[u8], value: &[u8]) -> String {
    format!("\"{}: {}\"", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
}

fn is_valid(name: &[u8], value: &[u8]) -> bool {
    let odd = |b: &u8| matches!(b, 0..=b' ' | 0x7f | b':' | b'A'..=b'Z');
    !name.is_empty() && !name.iter().any(odd) && !value.iter().any(|b| matches!(b, 0 | b'\r' | b'\n'))
}

/// Appends a head as text. `end`: nothing follows it. The error is for the log.
pub fn write(block: &HeaderBlock, end: bool, is_head: bool, out: &mut Vec<u8>) -> Result<HeadFacts, Rc<str>> {
    if block.nameless {
        return Err("upstream sent header without a name".into());
    }
    let mut fields = block.iter().peekable();
    let mut status = None;
    while let Some((name, value)) = fields.next_if(|(name, _)| name.starts_with(b":")) {
        if name != b":status" {
            return Err(format!("upstream sent invalid header {}", shown(name, value)).into());
        }
        if status.replace(read_status(value)?).is_some() {
            return Err("upstream sent duplicate :status header".into());
        }
    }
    let mut found = HeadFacts { status: status.ok_or("upstream sent no :status header")?, length: None };
    out.extend_from_slice(b"HTTP/2.0 ");
    crate::request::status::write_decimal(u64::from(found.status), out);
    out.extend_from_slice(b"\r\n");
    for (name, value) in fields {
        if !is_valid(name, value) {
            return Err(format!("upstream sent invalid header: {}", shown(name, value)).into());
        }
        if HOP_BY_HOP.contains(&name) {
            continue;
        }
        if name == b"content-length" {
            found.length = parse_content_length(value);
        }
        line(name, value, out);
    }
    if found.is_interim() && end {
        return Err("upstream prematurely closed stream".into());
    }
    if end && found.length.is_none() && !is_head && !matches!(found.status, 204 | 304) {
        line(b"content-length", b"0", out);
    }
    out.extend_from_slice(b"\r\n");
    Ok(found)
}

fn line(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn read_status(value: &[u8]) -> Result<u16, Rc<str>> {
    let shown = || String::from_utf8_lossy(value).into_owned();
    let number = match value {
        [a, b, c] if value.iter().all(u8::is_ascii_digit) => {
            [a, b, c].iter().fold(0, |n, d| n * 10 + u16::from(*d - b'0'))
        }
        _ => return Err(format!("upstream sent invalid :status \"{}\"", shown()).into()),
    };
    if number < 200 && number != EARLY_HINTS {
        return Err(format!("upstream sent unexpected :status \"{}\"", shown()).into());
    }
    Ok(number)
}

/// Completes a head that was read from such text: there is no reason beside the status.
pub fn complete(head: &mut ResponseHead) {
    head.status_line = Span::default();
}

/// Trailers, checked. The error is for the log.
pub(in crate::upstream) fn trailers(block: &HeaderBlock) -> Result<Trailers, Rc<str>> {
    if block.nameless {
        return Err("upstream sent trailer without a name".into());
    }
    let checked = block.iter().map(|(name, value)| match is_valid(name, value) {
        true => Ok((name.into(), value.into())),
        false => Err(format!("upstream sent invalid trailer {}", shown(name, value)).into()),
    });
    checked.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::http2::hpack::Field;

    fn block(fields: &[(&str, &str)]) -> HeaderBlock {
        let mut block = HeaderBlock::default();
        for (name, value) in fields {
            let start = block.bytes.len();
            block.bytes.extend_from_slice(name.as_bytes());
            let middle = block.bytes.len();
            block.bytes.extend_from_slice(value.as_bytes());
            let value = Span::new(middle, block.bytes.len());
            block.fields.push(Field { name: Span::new(start, middle), value });
        }
        block
    }

    fn text(fields: &[(&str, &str)], end: bool) -> Result<String, String> {
        let mut out = Vec::new();
        write(&block(fields), end, false, &mut out).map_err(|e| e.to_string())?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_head_becomes_text_without_what_frames() {
        let fields = [(":status", "200"), ("a", "b"), ("transfer-encoding", "chunked"), ("connection", "close")];
        assert_eq!(text(&fields, false).unwrap(), "HTTP/2.0 200\r\na: b\r\n\r\n");
        assert_eq!(text(&[(":status", "404")], true).unwrap(), "HTTP/2.0 404\r\ncontent-length: 0\r\n\r\n");
        assert_eq!(text(&[(":status", "304")], true).unwrap(), "HTTP/2.0 304\r\n\r\n");
    }

    #[test]
    fn bad_heads_are_refused() {
        for (fields, error) in [
            (&[("a", "b")][..], "upstream sent no :status header"),
            (&[(":status", "200"), (":status", "200")], "upstream sent duplicate :status header"),
            (&[(":status", "2x0")], "upstream sent invalid :status \"2x0\""),
            (&[(":status", "101")], "upstream sent unexpected :status \"101\""),
            (&[(":status", "200"), ("a\nb", "c")], "upstream sent invalid header: \"a\nb: c\""),
            (&[(":status", "200"), ("a", "b\r\nc: d")], "upstream sent invalid header: \"a: b\r\nc: d\""),
            (&[(":status", "200"), ("A", "b")], "upstream sent invalid header: \"A: b\""),
            (&[(":status", "200"), ("a", "b"), (":status", "200")], "upstream sent invalid header: \":status: 200\""),
        ] {
            assert_eq!(text(fields, false).unwrap_err(), error);
        }
        assert!(text(&[(":status", "103")], true).is_err());
        assert!(trailers(&block(&[(":status", "200")])).is_err());
    }
}
