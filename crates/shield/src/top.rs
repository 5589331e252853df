//! Which keys come most often, among any number: the space-saving algorithm. A key that is not known takes the place of the rarest, with its count as a doubt.

use crate::hash::Keyed;
use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// The most frequent keys of the last time.
#[derive(Debug)]
pub struct Top<K> {
    size: usize,
    known: HashMap<K, Entry, Keyed>,
    /// When all counts are halved, ms.
    halved_ms: u64,
}

/// What is known of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    count: u64,
    /// So many of them may be others'.
    doubt: u64,
}

/// Counts lose half of their weight in this time, ms.
const HALF_LIFE_MS: u64 = 10_000;

impl<K: Hash + Ord + Clone> Top<K> {
    /// For so many keys.
    pub fn new(size: usize) -> Top<K> {
        Top { size: size.max(1), known: HashMap::with_hasher(Keyed::random()), halved_ms: 0 }
    }

    /// A key has come. Allocates only where it takes another's place.
    pub fn count<Q>(&mut self, key: &Q, by: u64, now_ms: u64)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.age(now_ms);
        if let Some(entry) = self.known.get_mut(key) {
            entry.count += by;
            return;
        }
        let mut entry = Entry { count: by, doubt: 0 };
        if self.known.len() >= self.size {
            let rarest = self.known.iter().min_by_key(|(_, e)| e.count).map(|(k, e)| (k.clone(), e.count));
            if let Some((rarest, count)) = rarest {
                self.known.remove(rarest.borrow());
                entry = Entry { count: count + by, doubt: count };
            }
        }
        self.known.insert(key.to_owned(), entry);
    }

    fn age(&mut self, now_ms: u64) {
        if self.halved_ms == 0 {
            self.halved_ms = now_ms;
        }
        let halves = now_ms.saturating_sub(self.halved_ms) / HALF_LIFE_MS;
        if halves > 0 {
            self.halved_ms += halves * HALF_LIFE_MS;
            let by = halves.min(63) as u32;
            self.known.retain(|_, e| {
                (e.count, e.doubt) = (e.count >> by, e.doubt >> by);
                e.count > 0
            });
        }
    }

    /// Those that came most often, with counts that lose half of their weight in ten seconds: a steady one's is about fifteen times its rate. What may be others' is left out.
    pub fn most(&mut self, at_most: usize, now_ms: u64) -> Vec<(K, u64)> {
        self.age(now_ms);
        let mut all: Vec<_> = self.known.iter().map(|(k, e)| (k.clone(), e.count - e.doubt)).collect();
        all.retain(|(_, n)| *n > 0);
        all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        all.truncate(at_most);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frequent_are_found_among_many() {
        let mut top = Top::<Vec<u8>>::new(16);
        for n in 0..10_000u64 {
            top.count(format!("rare {n}").as_bytes(), 1, 1);
            if n % 4 == 0 {
                top.count(&b"often"[..], 1, 1);
            }
        }
        let most = top.most(1, 1);
        assert_eq!(most[0].0, b"often");
        assert!(most[0].1 >= 2000 && top.known.len() == 16, "{most:?}");
    }

    #[test]
    fn what_was_is_forgotten() {
        let mut top = Top::<u32>::new(4);
        top.count(&7, 100, 5);
        assert_eq!(top.most(9, 5 + HALF_LIFE_MS), [(7, 50)]);
        assert_eq!(top.most(9, 5 + 100 * HALF_LIFE_MS), []);
    }
}
