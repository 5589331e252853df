//! Small encodings and hashes, with the results nginx gives: base64, hex, CRC-32, MurmurHash2.

/// The text is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadEncoding;

/// Which alphabet of RFC 4648 is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alphabet {
    /// With `+` and `/`, padded with `=`.
    Standard,
    /// With `-` and `_`, not padded.
    Url,
}

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Appends `data` in base64.
pub fn base64_encode(data: &[u8], alphabet: Alphabet, out: &mut Vec<u8>) {
    let letters = if alphabet == Alphabet::Standard { STANDARD } else { URL };
    for group in data.chunks(3) {
        let bits = group.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - group.len()));
        let letter = |place: u32| letters[(bits >> (6 * place) & 63) as usize];
        out.extend((0..=group.len() as u32).map(|at| letter(3 - at)));
        if alphabet == Alphabet::Standard {
            out.extend(std::iter::repeat_n(b'=', 3 - group.len()));
        }
    }
}

/// Appends what `text` says in base64. The first `=` ends it, whatever follows, as in `ngx_decode_base64`.
///
/// # Errors
/// A byte outside the alphabet, or one letter too many. Nothing is appended then.
pub fn base64_decode(text: &[u8], alphabet: Alphabet, out: &mut Vec<u8>) -> Result<(), BadEncoding> {
    static FROM_STANDARD: [u8; 256] = values(STANDARD);
    static FROM_URL: [u8; 256] = values(URL);
    let values = if alphabet == Alphabet::Standard { &FROM_STANDARD } else { &FROM_URL };
    let text = &text[..memchr::memchr(b'=', text).unwrap_or(text.len())];
    if text.len() % 4 == 1 || text.iter().any(|&letter| values[letter as usize] == NO_VALUE) {
        return Err(BadEncoding);
    }
    for group in text.chunks(4) {
        let bits = group.iter().fold(0u32, |bits, &letter| bits << 6 | u32::from(values[letter as usize]));
        let bytes = (bits << (6 * (4 - group.len()))).to_be_bytes();
        out.extend_from_slice(&bytes[1..group.len()]);
    }
    Ok(())
}

const NO_VALUE: u8 = 0xff;

const fn values(alphabet: &[u8; 64]) -> [u8; 256] {
    let mut values = [NO_VALUE; 256];
    let mut at = 0;
    while at < alphabet.len() {
        values[alphabet[at] as usize] = at as u8;
        at += 1;
    }
    values
}

/// Appends `data` in lower-case hexadecimal.
pub fn hex_encode(data: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.extend(data.iter().flat_map(|&byte| [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]));
}

/// Appends what `text` says in hexadecimal, of either case.
///
/// # Errors
/// An odd number of digits, or a byte that is none. Nothing is appended then.
pub fn hex_decode(text: &[u8], out: &mut Vec<u8>) -> Result<(), BadEncoding> {
    use crate::http1::hex_digit;
    if !text.len().is_multiple_of(2) || text.iter().any(|&digit| hex_digit(digit).is_none()) {
        return Err(BadEncoding);
    }
    let value = |digit| hex_digit(digit).unwrap_or(0);
    out.extend(text.chunks_exact(2).map(|pair| value(pair[0]) << 4 | value(pair[1])));
    Ok(())
}

/// CRC-32 as in zip and Ethernet (polynomial 0xEDB88320), what nginx calls both `ngx_crc32_short` and `_long`.
pub fn crc32(data: &[u8]) -> u32 {
    Crc32::default().update(data).value()
}

/// CRC-32C (Castagnoli, polynomial 0x82F63B78), as the PROXY protocol uses.
pub fn crc32c(data: &[u8]) -> u32 {
    static TABLE: [u32; 256] = crc_table(0x82f6_3b78);
    !crc(&TABLE, !0, data)
}

/// A [`crc32`] of data that comes in pieces.
#[derive(Clone, Copy, Debug)]
pub struct Crc32(u32);

impl Default for Crc32 {
    fn default() -> Self {
        Self(!0)
    }
}

impl Crc32 {
    /// Takes in more data.
    #[must_use]
    pub fn update(self, data: &[u8]) -> Self {
        static TABLE: [u32; 256] = crc_table(0xedb8_8320);
        Self(crc(&TABLE, self.0, data))
    }

    /// The checksum of what was taken in.
    pub fn value(self) -> u32 {
        !self.0
    }
}

fn crc(table: &[u32; 256], state: u32, data: &[u8]) -> u32 {
    data.iter().fold(state, |crc, &byte| table[usize::from(crc as u8 ^ byte)] ^ (crc >> 8))
}

const fn crc_table(polynomial: u32) -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ polynomial } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// MurmurHash2 with seed 0, by which `split_clients` chooses.
pub fn murmur2(data: &[u8]) -> u32 {
    const FACTOR: u32 = 0x5bd1_e995;
    let (words, rest) = data.as_chunks::<4>();
    let mut hash = data.len() as u32;
    for word in words {
        let mixed = u32::from_le_bytes(*word).wrapping_mul(FACTOR);
        let mixed = (mixed ^ mixed >> 24).wrapping_mul(FACTOR);
        hash = hash.wrapping_mul(FACTOR) ^ mixed;
    }
    if !rest.is_empty() {
        let tail = rest.iter().rev().fold(0u32, |tail, &byte| tail << 8 | u32::from(byte));
        hash = (hash ^ tail).wrapping_mul(FACTOR);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(FACTOR);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64() {
        for (data, standard, url) in [
            (&b""[..], "", ""),
            (b"f", "Zg==", "Zg"),
            (b"fo", "Zm8=", "Zm8"),
            (b"foo", "Zm9v", "Zm9v"),
            (b"\xfb\xff\xfe\x00", "+//+AA==", "-__-AA"),
        ] {
            for (alphabet, text) in [(Alphabet::Standard, standard), (Alphabet::Url, url)] {
                let mut out = Vec::new();
                base64_encode(data, alphabet, &mut out);
                assert_eq!(out, text.as_bytes());
                out.clear();
                assert_eq!(base64_decode(text.as_bytes(), alphabet, &mut out), Ok(()));
                assert_eq!(out, data);
            }
        }
        let mut out = Vec::new();
        assert_eq!(base64_decode(b"Zm8=!!!", Alphabet::Standard, &mut out), Ok(()), "after = nginx does not look");
        assert_eq!(base64_decode(b"Zm9vY", Alphabet::Standard, &mut out), Err(BadEncoding));
        assert_eq!(base64_decode(b"Zm 9", Alphabet::Standard, &mut out), Err(BadEncoding));
        assert_eq!(base64_decode(b"-_", Alphabet::Standard, &mut out), Err(BadEncoding));
        assert_eq!(out, b"fo");
    }

    #[test]
    fn hex() {
        let mut out = Vec::new();
        hex_encode(b"\x00\xff\x1a", &mut out);
        assert_eq!(out, b"00ff1a");
        out.clear();
        assert_eq!(hex_decode(b"00Ff1A", &mut out), Ok(()));
        assert_eq!(out, b"\x00\xff\x1a");
        assert_eq!(hex_decode(b"0", &mut out), Err(BadEncoding));
        assert_eq!(hex_decode(b"0g", &mut out), Err(BadEncoding));
    }

    #[test]
    fn checksums() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(Crc32::default().update(b"1234").update(b"56789").value(), 0xcbf4_3926);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32(b""), 0);
        for (data, hash) in
            [("", 0), ("a", 0x9268_5f5e), ("ab", 0x1aa1_4063), ("abc", 0x1357_7c9b), ("abcd", 0x2687_3021)]
        {
            assert_eq!(murmur2(data.as_bytes()), hash, "{data}");
        }
        assert_eq!(murmur2(b"127.0.0.1"), 0xb613_1d91);
    }
}
