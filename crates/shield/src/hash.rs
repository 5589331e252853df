//! A keyed hash for sketches: a multiplication for each sixteen bytes, since several keys of each request are hashed. Nobody outside knows the seed, so nobody
//! finds keys that share cells. It is no cryptographic one: whoever sees hashes could, and nobody does.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Odd, and half of its bits are set.
const MULTIPLE: u64 = 0x9e37_79b9_7f4a_7c15;

/// Seeds, of which hashes begin.
#[derive(Clone, Copy, Debug)]
pub struct Keyed {
    state: u64,
    /// Odd.
    multiple: u64,
}

/// A hash that is being made.
#[derive(Clone, Copy, Debug)]
pub struct Running {
    pub(crate) state: u64,
    pub(crate) multiple: u64,
}

impl Keyed {
    /// Seeds at random.
    pub fn random() -> Keyed {
        let random = RandomState::new();
        Keyed { state: random.hash_one(1), multiple: random.hash_one(2) | 1 }
    }

    /// The same hashes in each process.
    pub const fn fixed(seed: u64) -> Keyed {
        Keyed { state: seed ^ MULTIPLE, multiple: MULTIPLE }
    }
}

impl Keyed {
    /// The hash of a number.
    #[inline]
    pub fn number(self, number: u128) -> u64 {
        let mut hash = self.build_hasher();
        hash.write_u128(number);
        hash.finish()
    }

    /// A word that only those who know the seeds could have made: no hash, but enough to compare by.
    #[inline]
    pub fn masked(self, word: u64) -> u64 {
        word ^ self.state
    }

    /// The hash of a number and a text.
    #[inline]
    pub fn numbered(self, number: u64, text: &[u8]) -> u64 {
        let mut hash = self.build_hasher();
        hash.word(number);
        hash.add(text);
        hash.finish()
    }
}

impl BuildHasher for Keyed {
    type Hasher = Running;

    #[inline]
    fn build_hasher(&self) -> Running {
        Running { state: self.state, multiple: self.multiple }
    }
}

/// Both halves of the product: each bit of it depends on all bits of both.
#[inline]
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// A length, spread over a word, so that no byte of a text makes up for it.
#[inline]
fn of_length(bytes: &[u8]) -> u64 {
    (bytes.len() as u64).wrapping_mul(MULTIPLE)
}

#[inline]
fn halves(bytes: &[u8; 16]) -> (u64, u64) {
    let whole = u128::from_le_bytes(*bytes);
    (whole as u64, (whole >> 64) as u64)
}

/// The first and the last eight bytes as numbers: up to sixteen bytes are what these and their length say.
#[inline]
fn ends(bytes: &[u8]) -> (u64, u64) {
    match (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        (Some(first), Some(last)) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
        _ => (short(bytes), 0),
    }
}

/// Less than eight bytes as a number, which with their length says what they are.
#[inline]
fn short(bytes: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        return u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32;
    }
    match *bytes {
        [] => 0,
        [a] => u64::from(a),
        [a, b] => u64::from(a) | u64::from(b) << 8,
        [a, b, c, ..] => u64::from(a) | u64::from(b) << 8 | u64::from(c) << 16,
    }
}

impl Running {
    /// Adds bytes, sixteen at a time, and their length.
    #[inline]
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        // The last bytes once more where they are no piece of their own: cheaper than to copy the rest, or a loop for it, and with the length no less is known
        // of the text.
        let (a, b) = if let (Some(last), Some(end)) = (bytes.last_chunk::<32>(), bytes.last_chunk::<16>()) {
            let (pieces, _) = bytes[..bytes.len() - 1].as_chunks::<32>();
            for piece in pieces {
                self.first_half(piece);
                let (a, b) = halves(piece.last_chunk().unwrap_or(&[0; 16]));
                self.pair(a, b);
            }
            self.first_half(last);
            halves(end)
        } else if let (Some(first), Some(last)) = (bytes.first_chunk::<16>(), bytes.last_chunk::<16>()) {
            let (a, b) = halves(first);
            self.pair(a, b);
            halves(last)
        } else {
            ends(bytes)
        };
        self.pair(a ^ of_length(bytes), b);
    }

    #[inline]
    fn first_half(&mut self, piece: &[u8; 32]) {
        let (a, b) = halves(piece.first_chunk().unwrap_or(&[0; 16]));
        self.pair(a, b);
    }

    /// The hash of a name whatever its case, apart from what was added; of more than sixteen bytes those at its ends count.
    #[inline]
    pub(crate) fn of_name(self, name: &[u8]) -> u64 {
        /// The bit that tells small letters from capitals, in each of eight bytes.
        const SMALL: u64 = 0x2020_2020_2020_2020;
        let (first, last) = ends(name);
        folded(self.state ^ (first | SMALL) ^ of_length(name), self.multiple ^ (last | SMALL))
    }

    /// Two words by one multiplication.
    #[inline]
    fn pair(&mut self, a: u64, b: u64) {
        self.state = folded(self.state ^ a, self.multiple ^ b);
    }

    #[inline]
    fn word(&mut self, word: u64) {
        self.state = folded(self.state ^ word, self.multiple).wrapping_add(MULTIPLE);
    }
}

impl Hasher for Running {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.add(bytes);
    }

    #[inline]
    fn write_u8(&mut self, n: u8) {
        self.word(u64::from(n));
    }

    #[inline]
    fn write_u64(&mut self, n: u64) {
        self.word(n);
    }

    #[inline]
    fn write_u128(&mut self, n: u128) {
        self.pair(n as u64, (n >> 64) as u64);
    }

    #[inline]
    fn write_usize(&mut self, n: usize) {
        self.word(n as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        folded(self.state, MULTIPLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_differ_and_are_spread() {
        let keyed = Keyed::random();
        let texts = [&b""[..], b"\0", b"a", b"a\0", b"abcdefgh", b"abcdefgh\0", b"bbcdefgh", b"abcdefghi", b"hgfedcba"];
        let hashes: std::collections::HashSet<u64> = texts.iter().map(|text| keyed.hash_one(text)).collect();
        assert_eq!(hashes.len(), texts.len());
        let all: Vec<Vec<u8>> =
            (0..40).flat_map(|len| (0..len).map(move |at| (0..len).map(|i| u8::from(i == at)).collect())).collect();
        let hashes: std::collections::HashSet<u64> = all.iter().map(|text| keyed.hash_one(text.as_slice())).collect();
        assert_eq!(hashes.len(), all.len(), "each byte counts, of texts of each length");
        let hashes: std::collections::HashSet<u64> = all.iter().map(|text| keyed.numbered(1, text)).collect();
        assert_eq!(hashes.len(), all.len());
        assert_ne!(keyed.numbered(1, b"a"), keyed.numbered(2, b"a"));
        assert_ne!(keyed.numbered(1, b"aaaab"), keyed.numbered(1, b"aaaaaa"), "no byte makes up for a length");
        assert_eq!(keyed.hash_one(7), keyed.hash_one(7));
        assert_ne!(Keyed::fixed(1).hash_one(7), Keyed::fixed(2).hash_one(7));
        // Numbers in a row fill columns evenly, by either half of the hash.
        for shift in [0, 32] {
            let mut columns = [0_u32; 64];
            (0..64_000_u128).for_each(|n| columns[(keyed.hash_one((1_u8, n << 32)) >> shift & 63) as usize] += 1);
            assert!(columns.iter().all(|n| (800..1200).contains(n)), "{columns:?}");
        }
    }
}
