//! Tables between two charsets of one byte a character, or one of them and UTF-8. Made by `charset`'s `charset_map`.
//! Pure: bytes in, bytes out.

use std::io::Write;
use std::sync::Arc;

/// The most bytes of a UTF-8 character in a table: what is above U+FFFF has no place in one.
const UTF8_LENGTH: usize = 3;
/// What stands for a character that the other charset lacks.
const UNKNOWN: u8 = b'?';

type Page = Box<[u8; 256]>;

/// How bytes of one charset become another's.
#[derive(Debug)]
pub enum Recoding {
    /// Byte by byte.
    Bytes(Page),
    /// A byte becomes a UTF-8 sequence.
    ToUtf8(Box<[Sequence; 256]>),
    /// Characters up to U+FFFF by their upper eight bits; 0 in a page: no such character.
    FromUtf8(Vec<Option<Page>>),
}

/// One to three bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    length: u8,
    bytes: [u8; UTF8_LENGTH],
}

impl Recoding {
    /// Whether the result can be longer or shorter than what it is made of.
    pub fn changes_length(&self) -> bool {
        !matches!(self, Recoding::Bytes(_))
    }
}

/// A `charset_map` while it is read: both ways.
pub struct Map {
    there: Recoding,
    back: Recoding,
}

impl Map {
    /// A map in which only ASCII is known.
    pub fn new(utf8: bool) -> Map {
        let ascii = |rest: u8| Box::new(std::array::from_fn(|i| if i < 128 { i as u8 } else { rest }));
        if !utf8 {
            return Map { there: Recoding::Bytes(ascii(UNKNOWN)), back: Recoding::Bytes(ascii(UNKNOWN)) };
        }
        let one = |i| Sequence { length: 1, bytes: [if i < 128 { i as u8 } else { UNKNOWN }, 0, 0] };
        let mut pages = vec![None; 256];
        pages[0] = Some(ascii(0));
        Map { there: Recoding::ToUtf8(Box::new(std::array::from_fn(one))), back: Recoding::FromUtf8(pages) }
    }

    /// A row: a byte, and a byte or a UTF-8 sequence, in hexadecimal. The error is the wrong word.
    pub fn add<'w>(&mut self, from: &'w [u8], to: &'w [u8]) -> Result<(), &'w [u8]> {
        let source = hexadecimal(from).ok_or(from)?;
        match (&mut self.there, &mut self.back) {
            (Recoding::ToUtf8(there), Recoding::FromUtf8(back)) => {
                let (sequence, character) = sequence(to).ok_or(to)?;
                there[usize::from(source)] = sequence;
                let page = back[usize::from(character >> 8)].get_or_insert_with(|| Box::new([0; 256]));
                page[usize::from(character & 0xff)] = source;
            }
            (Recoding::Bytes(there), Recoding::Bytes(back)) => {
                let target = hexadecimal(to).ok_or(to)?;
                there[usize::from(source)] = target;
                back[usize::from(target)] = source;
            }
            _ => unreachable!("both ways are made for the same two charsets"),
        }
        Ok(())
    }

    /// The two ways.
    pub fn finish(self) -> (Recoding, Recoding) {
        (self.there, self.back)
    }
}

/// A number up to 255.
fn hexadecimal(digits: &[u8]) -> Option<u8> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u8, |n, d| {
        let digit = (*d as char).to_digit(16)? as u8;
        n.checked_mul(16)?.checked_add(digit)
    })
}

/// A character's bytes, and the character.
fn sequence(digits: &[u8]) -> Option<(Sequence, u16)> {
    let length = digits.len() / 2;
    if !digits.len().is_multiple_of(2) || !(1..=UTF8_LENGTH).contains(&length) {
        return None;
    }
    let mut bytes = [0; UTF8_LENGTH];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = hexadecimal(pair)?;
    }
    let character = match bytes[0] {
        ascii @ 0..0x80 => u16::from(ascii),
        _ => match decode(&bytes[..length]) {
            Decoded::Character(c, _) => u16::try_from(c).ok()?,
            Decoded::Wrong(_) | Decoded::Incomplete => return None,
        },
    };
    Some((Sequence { length: length as u8, bytes }, character))
}

enum Decoded {
    /// A character of so many bytes.
    Character(u32, usize),
    /// So many bytes that are none.
    Wrong(usize),
    /// The end is missing.
    Incomplete,
}

/// Reads a character that is not ASCII (`ngx_utf8_decode`: a wrong sequence ends with the byte that makes it wrong).
fn decode(bytes: &[u8]) -> Decoded {
    let (length, bits, above) = match bytes[0] {
        b @ 0xc2..0xe0 => (2, b & 0x1f, 0x7f),
        b @ 0xe0..0xf0 => (3, b & 0x0f, 0x7ff),
        b @ 0xf0..0xf8 => (4, b & 0x07, 0xffff),
        _ => return Decoded::Wrong(1),
    };
    let Some(rest) = bytes.get(1..length) else { return Decoded::Incomplete };
    let mut character = u32::from(bits);
    for (i, byte) in rest.iter().enumerate() {
        if *byte < 0x80 {
            return Decoded::Wrong(i + 2);
        }
        character = character << 6 | u32::from(byte & 0x3f);
    }
    if character > above && character <= 0x10_ffff {
        Decoded::Character(character, length)
    } else {
        Decoded::Wrong(length)
    }
}

/// A recoding at work on a body that comes in pieces.
pub struct Decoder {
    recoding: Arc<Recoding>,
    /// The beginning of a character whose end is in the next piece.
    begun: Vec<u8>,
}

impl Decoder {
    /// At the start of a body.
    pub fn new(recoding: Arc<Recoding>) -> Decoder {
        Decoder { recoding, begun: Vec::new() }
    }

    /// Appends what becomes of a piece.
    pub fn recode(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        match &*self.recoding {
            Recoding::Bytes(table) => out.extend(piece.iter().map(|b| table[usize::from(*b)])),
            Recoding::ToUtf8(table) => {
                for byte in piece {
                    let sequence = &table[usize::from(*byte)];
                    out.extend_from_slice(&sequence.bytes[..usize::from(sequence.length)]);
                }
            }
            Recoding::FromUtf8(pages) => from_utf8(pages, &mut self.begun, piece, out),
        }
    }
}

fn from_utf8(pages: &[Option<Page>], begun: &mut Vec<u8>, mut piece: &[u8], out: &mut Vec<u8>) {
    while !begun.is_empty() {
        let Some((next, rest)) = piece.split_first() else { return };
        begun.push(*next);
        piece = rest;
        match decode(begun) {
            Decoded::Incomplete => continue,
            Decoded::Character(c, _) => write_character(pages, c, out),
            Decoded::Wrong(_) => out.push(UNKNOWN),
        }
        begun.clear();
    }
    while let Some(byte) = piece.first() {
        if *byte < 0x80 {
            let plain = piece.iter().take_while(|b| **b < 0x80).count();
            out.extend_from_slice(&piece[..plain]);
            piece = &piece[plain..];
            continue;
        }
        let length = match decode(piece) {
            Decoded::Incomplete => return begun.extend_from_slice(piece),
            Decoded::Character(c, length) => {
                write_character(pages, c, out);
                length
            }
            Decoded::Wrong(length) => {
                out.push(UNKNOWN);
                length
            }
        };
        piece = &piece[length..];
    }
}

/// A character that the charset lacks is written as HTML does: `&#8364;`.
fn write_character(pages: &[Option<Page>], character: u32, out: &mut Vec<u8>) {
    let page = pages.get((character >> 8) as usize).and_then(Option::as_ref);
    match page.map(|p| p[(character & 0xff) as usize]) {
        Some(byte) if byte != 0 => out.push(byte),
        _ => {
            let _ = write!(out, "&#{character};");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn koi8() -> (Arc<Recoding>, Arc<Recoding>) {
        let mut map = Map::new(true);
        for (from, to) in [("E1", "D090"), ("c2", "D0b1"), ("A4", "E282AC")] {
            assert!(map.add(from.as_bytes(), to.as_bytes()).is_ok());
        }
        let (there, back) = map.finish();
        (Arc::new(there), Arc::new(back))
    }

    fn recoded(recoding: &Arc<Recoding>, pieces: &[&[u8]]) -> Vec<u8> {
        let mut decoder = Decoder::new(recoding.clone());
        let mut out = Vec::new();
        pieces.iter().for_each(|p| decoder.recode(p, &mut out));
        out
    }

    #[test]
    fn bytes() {
        let mut map = Map::new(false);
        assert!(map.add(b"58", b"59").is_ok());
        let (there, back) = map.finish();
        assert_eq!(recoded(&Arc::new(there), &[b"aXY\xff"]), b"aYY?");
        assert_eq!(recoded(&Arc::new(back), &[b"aXY"]), b"aXX");
    }

    #[test]
    fn to_utf8() {
        assert_eq!(recoded(&koi8().0, &[b"a\xe1\xc2\xa4\xff"]), "aАб€?".as_bytes());
    }

    #[test]
    fn from_utf8_in_pieces() {
        let back = koi8().1;
        let text = "aА€é😀б".as_bytes();
        let expected = b"a\xe1\xa4&#233;&#128512;\xc2";
        for at in 0..text.len() {
            assert_eq!(recoded(&back, &[&text[..at], b"", &text[at..]]), expected, "{at}");
        }
        let single: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(recoded(&back, &single), expected);
    }

    #[test]
    fn what_is_not_utf8() {
        let back = koi8().1;
        assert_eq!(recoded(&back, &[b"\x80\xffa\xc3b\xf7\xbf\xbf\xbfc\xe0\x80\x80d"]), b"??a??c?d");
        assert_eq!(recoded(&back, &[b"a\xd0"]), b"a");
    }

    #[test]
    fn wrong_rows() {
        let wrong = |utf8, from: &'static str, to: &'static str| {
            Map::new(utf8).add(from.as_bytes(), to.as_bytes()).err().map(String::from_utf8_lossy)
        };
        assert_eq!(wrong(false, "100", "1").as_deref(), Some("100"));
        assert_eq!(wrong(false, "1", "x").as_deref(), Some("x"));
        assert_eq!(wrong(true, "80", "D0901").as_deref(), Some("D0901"));
        assert_eq!(wrong(true, "80", "D0").as_deref(), Some("D0"));
        assert_eq!(wrong(true, "80", "F09F9880").as_deref(), Some("F09F9880"));
    }
}
