//! `traceparent`: which trace a request belongs to (W3C Trace Context, section 3.2).

use crate::encoding::hex_encode;

/// A trace's identifier; all zero is none.
pub type TraceId = [u8; 16];
/// A span's identifier; all zero is none.
pub type SpanId = [u8; 8];

/// Length of a header of version 00: `00-` trace `-` span `-` flags.
const LENGTH: usize = 55;
/// The flag "sampled".
const SAMPLED: u8 = 1;

/// What a parent said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The trace.
    pub trace: TraceId,
    /// The parent's span.
    pub span: SpanId,
    /// It is recorded.
    pub sampled: bool,
}

/// Reads a `traceparent`. Of later versions the part that is known is taken, as the standard says.
pub fn parse(header: &[u8]) -> Option<Parent> {
    let version = byte(header.get(..2)?)?;
    let rest = header.get(LENGTH..)?;
    let is_long = !rest.is_empty();
    if version == 0xff || (version == 0 && is_long) || (is_long && rest[0] != b'-') {
        return None;
    }
    if header[2] != b'-' || header[35] != b'-' || header[52] != b'-' {
        return None;
    }
    let (mut trace, mut span) = ([0; 16], [0; 8]);
    digits(&header[3..35], &mut trace)?;
    digits(&header[36..52], &mut span)?;
    let flags = byte(&header[53..55])?;
    (trace != [0; 16] && span != [0; 8]).then_some(Parent { trace, span, sampled: flags & SAMPLED != 0 })
}

/// Two digits. The standard wants them in lower case.
fn byte(text: &[u8]) -> Option<u8> {
    let digit = |b: u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        _ => None,
    };
    Some(digit(text[0])? << 4 | digit(text[1])?)
}

fn digits(text: &[u8], out: &mut [u8]) -> Option<()> {
    for (place, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        *place = byte(pair)?;
    }
    Some(())
}

/// The header for what comes after this span.
pub fn format(trace: &TraceId, span: &SpanId, sampled: bool) -> Vec<u8> {
    let mut out = b"00-".to_vec();
    hex_encode(trace, &mut out);
    out.push(b'-');
    hex_encode(span, &mut out);
    out.extend_from_slice(if sampled { b"-01" } else { b"-00" });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_read_as_the_standard_says() {
        let good = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let parent = parse(good).expect("the standard's own");
        assert_eq!((parent.trace[0], parent.span[7], parent.sampled), (0x4b, 0xb7, true));
        assert_eq!(format(&parent.trace, &parent.span, true), good);
        assert!(
            parse(b"cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-the-future-will-be-like").is_some()
        );
        let bad: [&[u8]; 8] = [
            b"",
            b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
            b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            b"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            b"00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            b"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            b"01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.x",
        ];
        for header in bad {
            assert_eq!(parse(header), None, "{}", header.escape_ascii());
        }
    }
}
