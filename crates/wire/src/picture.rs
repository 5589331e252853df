//! Heads of pictures: of which kind they are and how large, from their first bytes and without unpacking anything. To: the
//! `image_filter` module, which decides by it what may be unpacked at all.

/// How many bytes it takes to tell a kind.
pub const HEAD: usize = 16;

/// A format of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// JPEG (ITU T.81).
    Jpeg,
    /// GIF87a and GIF89a.
    Gif,
    /// PNG (RFC 2083).
    Png,
    /// WebP (RFC 9649).
    Webp,
}

impl Kind {
    /// The kind that the first [`HEAD`] bytes say.
    pub fn of(bytes: &[u8]) -> Option<Kind> {
        match bytes.get(..HEAD)? {
            [0xff, 0xd8, ..] => Some(Kind::Jpeg),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Kind::Gif),
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(Kind::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Kind::Webp),
            _ => None,
        }
    }

    /// Its name, the second half of its media type.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Jpeg => "jpeg",
            Kind::Gif => "gif",
            Kind::Png => "png",
            Kind::Webp => "webp",
        }
    }
}

/// What the head of a picture says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Columns, at least 1.
    pub width: u32,
    /// Rows, at least 1.
    pub height: u32,
    /// The longest segment of application data (a JPEG's thumbnail, its place, its camera), bytes.
    pub application_data: usize,
}

impl Size {
    /// Reads it. `None`: the bytes end before, or are not what they seem.
    pub fn of(kind: Kind, bytes: &[u8]) -> Option<Size> {
        let (width, height, application_data) = match kind {
            Kind::Jpeg => jpeg(bytes)?,
            Kind::Gif => (little(bytes, 6, 2)?, little(bytes, 8, 2)?, 0),
            Kind::Png => (big(bytes, 16, 4)?, big(bytes, 20, 4)?, 0),
            Kind::Webp => {
                let (width, height) = webp(bytes)?;
                (width, height, 0)
            }
        };
        (width > 0 && height > 0).then_some(Size { width, height, application_data })
    }

    /// How many pixels it is.
    pub fn pixels(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }
}

/// Walks over the segments before the picture itself.
fn jpeg(bytes: &[u8]) -> Option<(u32, u32, usize)> {
    const START_OF_SCAN: u8 = 0xda;
    let (mut size, mut application_data) = (None, 0);
    let mut at = 2;
    while let Some(&[0xff, marker]) = bytes.get(at..at + 2) {
        if marker == 0xff {
            // Any number of these may stand before a marker.
            at += 1;
            continue;
        }
        if marker == START_OF_SCAN {
            break;
        }
        let length = big(bytes, at + 2, 2)? as usize;
        match marker {
            // Frames of all processes; C4, C8 and CC are tables and extensions.
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf if size.is_none() => {
                size = Some((big(bytes, at + 7, 2)?, big(bytes, at + 5, 2)?));
            }
            0xe1..=0xef => application_data = application_data.max(length),
            _ => {}
        }
        if length < 2 {
            return None;
        }
        at += 2 + length;
    }
    let (width, height) = size?;
    Some((width, height, application_data))
}

/// The first chunk says which of three forms it is.
fn webp(bytes: &[u8]) -> Option<(u32, u32)> {
    match bytes.get(12..16)? {
        b"VP8 " => {
            let starts = bytes.get(23..26)? == [0x9d, 0x01, 0x2a];
            starts.then_some((little(bytes, 26, 2)? & 0x3fff, little(bytes, 28, 2)? & 0x3fff))
        }
        b"VP8L" => {
            let bits = little(bytes, 21, 4)?;
            (*bytes.get(20)? == 0x2f).then_some(((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1))
        }
        b"VP8X" => Some((little(bytes, 24, 3)? + 1, little(bytes, 27, 3)? + 1)),
        _ => None,
    }
}

fn big(bytes: &[u8], at: usize, len: usize) -> Option<u32> {
    Some(bytes.get(at..at + len)?.iter().fold(0, |n, b| n << 8 | u32::from(*b)))
}

fn little(bytes: &[u8], at: usize, len: usize) -> Option<u32> {
    Some(bytes.get(at..at + len)?.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(bytes: &[u8]) -> Option<(&'static str, u32, u32)> {
        let kind = Kind::of(bytes)?;
        let size = Size::of(kind, bytes)?;
        Some((kind.name(), size.width, size.height))
    }

    #[test]
    fn kinds_and_sizes() {
        assert_eq!(look(b"GIF89a\x64\x00\x78\x00\x80\x00\x00\x00\x00\x00"), Some(("gif", 100, 120)));
        let png = b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR\x00\x00\x00\x64\x00\x00\x00\x78";
        assert_eq!(look(png), Some(("png", 100, 120)));
        assert_eq!(look(&png[..16]), None);
        let jpeg = b"\xff\xd8\xff\xe1\x00\x06abcd\xff\xff\xc2\x00\x0b\x08\x00\x78\x00\x64\x01\x00\x00\x00\xff\xda";
        assert_eq!(look(jpeg), Some(("jpeg", 100, 120)));
        assert_eq!(Size::of(Kind::Jpeg, jpeg).map(|s| s.application_data), Some(6));
        assert_eq!(
            look(b"RIFF\x22\0\0\0WEBPVP8 \x16\0\0\0\x30\x01\0\x9d\x01\x2a\x01\x00\x02\x00"),
            Some(("webp", 1, 2))
        );
        assert_eq!(look(b"RIFF\x1a\0\0\0WEBPVP8L\x0d\0\0\0\x2f\x00\x40\x00\x10\x07"), Some(("webp", 1, 2)));
        assert_eq!(look(b"RIFF\x4a\0\0\0WEBPVP8X\x0a\0\0\0\x10\0\0\0\x02\0\0\x03\0\0"), Some(("webp", 3, 4)));
        for bad in [
            &b"SEE-THIS"[..],
            b"RIFF\x22\0\0\0WEBPERR \x16\0\0\0",
            b"\xff\xd8\xff\xc0\x00\x01\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        ] {
            assert_eq!(look(bad), None);
        }
    }
}
