//! CRC-32 (IEEE 802.3, reflected), as in zlib and nginx: what `hash` keys and ring points are made of.

/// The reflected polynomial.
const POLYNOMIAL: u32 = 0xedb8_8320;
const TABLE: [u32; 256] = table();

/// The CRC-32 of some bytes.
pub fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = Crc32::new();
    crc.update(bytes);
    crc.finish()
}

/// A CRC-32 under way.
#[derive(Clone, Copy)]
pub(crate) struct Crc32(u32);

impl Crc32 {
    pub(crate) fn new() -> Self {
        Crc32(u32::MAX)
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = TABLE[usize::from(self.0 as u8 ^ byte)] ^ (self.0 >> 8);
        }
    }

    /// The digits of a number.
    pub(crate) fn update_decimal(&mut self, number: u32) {
        let mut place = 1;
        while number / place >= 10 {
            place *= 10;
        }
        while place > 0 {
            self.update(&[b'0' + (number / place % 10) as u8]);
            place /= 10;
        }
    }

    pub(crate) fn finish(self) -> u32 {
        !self.0
    }
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ POLYNOMIAL } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value_of_the_catalogue() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn decimal_digits() {
        for number in [1, 9, 10, 20, 105, u32::MAX] {
            let mut crc = Crc32::new();
            crc.update_decimal(number);
            assert_eq!(crc.finish(), crc32(number.to_string().as_bytes()));
        }
    }
}
