//! Byte classes and the fast search for control characters. The tables are made from sets written as text.

/// Stops the scan of the path part of a request target: the byte needs a decision.
pub(super) const PATH_STOP: u8 = 1;
/// Stops the scan of what follows the path (query, or anything after the first byte that needs normalisation).
pub(super) const REST_STOP: u8 = 2;
/// May stand in a method.
pub(super) const METHOD: u8 = 4;
/// May stand in a scheme after its first letter (RFC 3986 section 3.1).
pub(super) const SCHEME: u8 = 8;
/// May stand in the host of an absolute request target.
pub(super) const HOST: u8 = 16;
/// May stand between the brackets of an IP literal.
pub(super) const LITERAL: u8 = 32;
/// A letter, digit or hyphen: the bytes of a header name that raise no question.
pub(super) const NAME: u8 = 64;
/// Ends or spoils a header name: controls, space and DEL.
pub(super) const NAME_STOP: u8 = 128;

/// The classes of every byte, as a sum of the constants above.
pub(super) static CLASS: [u8; 256] = classes();

/// Whether `byte` is of one of the classes in `class`.
#[inline(always)]
pub(super) fn is(byte: u8, class: u8) -> bool {
    CLASS[byte as usize] & class != 0
}

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = class_of(byte as u8);
        byte += 1;
    }
    table
}

const fn class_of(byte: u8) -> u8 {
    let mut class = 0;
    let control = byte < 0x20 || byte == 0x7f;
    if control || contains(b" #%+./?", byte) {
        class |= PATH_STOP;
    }
    if control || contains(b" #", byte) {
        class |= REST_STOP;
    }
    if byte.is_ascii_uppercase() || contains(b"_-", byte) {
        class |= METHOD;
    }
    if byte.is_ascii_alphanumeric() || contains(b"+-.", byte) {
        class |= SCHEME;
    }
    if byte.is_ascii_alphanumeric() || contains(b".-", byte) {
        class |= HOST;
    }
    if byte.is_ascii_alphanumeric() || contains(b":-._~!$&'()*+,;=", byte) {
        class |= LITERAL;
    }
    if byte.is_ascii_alphanumeric() || byte == b'-' {
        class |= NAME;
    }
    if control || byte == b' ' {
        class |= NAME_STOP;
    }
    class
}

/// Whether `byte` is in `set`, at compile time.
pub(super) const fn contains(set: &[u8], byte: u8) -> bool {
    let mut at = 0;
    while at < set.len() {
        if set[at] == byte {
            return true;
        }
        at += 1;
    }
    false
}

/// Offset of the first byte below 0x20 at or after `from`, or the length of `buf`. Eight bytes a step.
#[inline]
pub(super) fn control(buf: &[u8], from: usize) -> usize {
    // The subtraction borrows out of a byte only where it is below 0x20; the lowest such byte is found exactly.
    first(buf, from, |word| word.wrapping_sub(repeat(0x20)) & !word & repeat(0x80), |byte| byte < 0x20)
}

/// Offset of the first colon at or after `from`, or the length of `buf`. Eight bytes a step.
#[inline]
pub(super) fn colon(buf: &[u8], from: usize) -> usize {
    let zero_where_colon = |word| word ^ repeat(b':');
    let is_zero = |word: u64| word.wrapping_sub(repeat(1)) & !word & repeat(0x80);
    first(buf, from, |word| is_zero(zero_where_colon(word)), |byte| byte == b':')
}

/// A byte, eight times.
pub(super) const fn repeat(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// Offset of the first byte at or after `from` that `stops`, or the length of `buf`. `found` says it of eight bytes: the lowest
/// bit that is set is the highest one of the first such byte.
#[inline(always)]
fn first(buf: &[u8], from: usize, found: impl Fn(u64) -> u64, stops: impl Fn(u8) -> bool) -> usize {
    let mut at = from;
    while let Some(chunk) = buf.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let found = found(u64::from_le_bytes(*chunk));
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while at < buf.len() && !stops(buf[at]) {
        at += 1;
    }
    at
}

/// The value of a hexadecimal digit.
#[inline]
pub(crate) fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

/// Whether a byte may stand in a token (RFC 9110 section 5.6.2).
#[inline]
pub(super) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || contains(b"!#$%&'*+-.^_`|~", byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_finds_the_first() {
        for len in 0..40 {
            for at in 0..=len {
                let mut text = vec![0xa0u8; len];
                if at < len {
                    text[at] = if at % 2 == 0 { 0x1f } else { 0 };
                }
                if at + 1 < len {
                    text[at + 1] = b'\r';
                }
                for from in 0..=at {
                    assert_eq!(control(&text, from), at, "{len} {at} {from}");
                }
            }
        }
        assert_eq!(control(b"    \x7f\xff ~", 0), 8);
    }

    #[test]
    fn colon_finds_the_first() {
        for len in 0..40 {
            for at in 0..=len {
                let mut text = vec![b';'; len];
                text.iter_mut().skip(at).step_by(2).for_each(|b| *b = b':');
                for from in 0..=at {
                    assert_eq!(colon(&text, from), at, "{len} {at} {from}");
                }
            }
        }
    }
}
