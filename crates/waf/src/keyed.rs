//! A hash of short texts for tables that one transaction or one rule set has: a few instructions for each eight bytes. Its key is random, so that nobody
//! outside knows which texts collide; the tables are bounded besides.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

/// Makes hashers with the key of this process.
#[derive(Clone, Debug)]
pub(crate) struct Keyed([u64; 2]);

/// The state of one.
#[derive(Debug)]
pub(crate) struct Folded {
    key: [u64; 2],
    state: u64,
}

impl Default for Keyed {
    fn default() -> Keyed {
        static KEY: OnceLock<[u64; 2]> = OnceLock::new();
        Keyed(*KEY.get_or_init(|| [0, 1].map(|n| RandomState::new().hash_one(n))))
    }
}

impl BuildHasher for Keyed {
    type Hasher = Folded;

    fn build_hasher(&self) -> Folded {
        Folded { key: self.0, state: self.0[0] }
    }
}

/// The upper and the lower half of a product, folded into one.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

impl Folded {
    #[inline]
    fn take(&mut self, word: u64) {
        self.state = fold(self.state ^ word, self.key[1] | 1).rotate_left(23);
    }
}

impl Hasher for Folded {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.take(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.take(u64::from_le_bytes(last));
        }
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.take(number as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        fold(self.state ^ self.key[0], self.key[1] | 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_differ_a_little_do_not_collide() {
        let keyed = Keyed::default();
        let hash = |text: &[u8]| keyed.hash_one(text);
        let mut all: Vec<u64> = (0..10_000_u32).map(|n| hash(format!("header-{n}").as_bytes())).collect();
        all.extend((0..64).map(|n| hash(&vec![0; n])));
        let upper = |all: &[u64]| all.iter().map(|h| h >> 57).collect::<std::collections::HashSet<_>>().len();
        assert_eq!(upper(&all), 128, "the upper bits are used");
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 10_064);
        assert_eq!(hash(b"the same"), hash(b"the same"));
    }
}
