//! Integers of QUIC (RFC 9000 section 16): 1, 2, 4 or 8 bytes, of which the first two bits say how many.

/// The largest value there is.
pub const MAX: u64 = (1 << 62) - 1;

/// The length of the integer that begins with `first`.
pub fn len_of(first: u8) -> usize {
    1 << (first >> 6)
}

/// Reads an integer at `at`. None: more bytes are needed.
pub fn read(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let first = *bytes.get(*at)?;
    let whole = bytes.get(*at..*at + len_of(first))?;
    *at += whole.len();
    let rest = whole[1..].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    Some(u64::from(first & 0x3f) << (8 * (whole.len() - 1)) | rest)
}

/// Writes an integer in its shortest form. Larger ones than [`MAX`] do not exist.
pub fn write(value: u64, out: &mut Vec<u8>) {
    debug_assert!(value <= MAX, "a number of QUIC has 62 bits");
    match value {
        0..=0x3f => out.push(value as u8),
        0x40..=0x3fff => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        0x4000..=0x3fff_ffff => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend_from_slice(&(value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for value in [0, 1, 63, 64, 16_383, 16_384, (1 << 30) - 1, 1 << 30, MAX] {
            let mut out = Vec::new();
            write(value, &mut out);
            let mut at = 0;
            assert_eq!(read(&out, &mut at), Some(value));
            assert_eq!(at, out.len());
            assert_eq!(read(&out[..out.len() - 1], &mut 0), None);
        }
    }

    /// RFC 9000 appendix A.1.
    #[test]
    fn examples_of_the_rfc() {
        let read = |bytes: &[u8]| read(bytes, &mut 0);
        assert_eq!(read(&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c]), Some(151_288_809_941_952_652));
        assert_eq!(read(&[0x9d, 0x7f, 0x3e, 0x7d]), Some(494_878_333));
        assert_eq!(read(&[0x7b, 0xbd]), Some(15_293));
        assert_eq!(read(&[0x40, 0x25]), Some(37));
    }
}
