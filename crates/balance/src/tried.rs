//! What one request has tried so far, and how far its walk through hashes or random draws has come.

/// Tried peers kept without a heap allocation. A request that tries more than four is rare: `proxy_next_upstream` has
/// by then seen four failures.
const INLINE: usize = 4;

/// The peers one request has tried, and the place in its walk. Small; allocates from the fifth peer on.
#[derive(Clone, Debug, Default)]
pub struct Tried {
    first: [u32; INLINE],
    inlined: u8,
    /// A bit for every peer, once `first` is full.
    rest: Vec<u64>,
    pub(crate) walk: Walk,
}

/// The state of the hashing and random methods between the tries of one request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Walk {
    /// Looks in vain so far.
    pub(crate) looks: u8,
    pub(crate) begun: bool,
    /// The last hash (`ip_hash`), the sum of hashes (`hash`) or the ring's point (`hash ... consistent`).
    pub(crate) hash: u32,
    /// Times a key was hashed.
    pub(crate) hashed: u32,
}

impl Tried {
    /// Nothing tried.
    pub const fn new() -> Self {
        Tried {
            first: [0; INLINE],
            inlined: 0,
            rest: Vec::new(),
            walk: Walk { looks: 0, begun: false, hash: 0, hashed: 0 },
        }
    }

    /// Notes a peer. A second time changes nothing.
    pub fn insert(&mut self, peer: usize) {
        if self.contains(peer) {
            return;
        }
        if usize::from(self.inlined) < INLINE {
            self.first[usize::from(self.inlined)] = u32::try_from(peer).expect("a group has fewer than 2^32 peers");
            self.inlined += 1;
            return;
        }
        let word = peer / 64;
        if self.rest.len() <= word {
            self.rest.resize(word + 1, 0);
        }
        self.rest[word] |= 1 << (peer % 64);
    }

    /// Whether the request tried this peer.
    #[inline]
    pub fn contains(&self, peer: usize) -> bool {
        if self.inlined == 0 {
            return false;
        }
        self.first[..usize::from(self.inlined)].iter().any(|&tried| tried as usize == peer)
            || self.rest.get(peer / 64).is_some_and(|word| word & (1 << (peer % 64)) != 0)
    }

    /// Number of peers tried.
    pub fn len(&self) -> usize {
        let rest: usize = self.rest.iter().map(|word| word.count_ones() as usize).sum();
        usize::from(self.inlined) + rest
    }

    /// Nothing tried so far.
    pub fn is_empty(&self) -> bool {
        self.inlined == 0
    }

    /// Forgets everything: for the backup group, and for the next request on the same connection.
    pub fn clear(&mut self) {
        *self = Tried::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_any_number_of_peers_and_each_once() {
        let mut tried = Tried::new();
        assert!(tried.is_empty());
        for peer in (0..1000).step_by(3).chain((0..1000).step_by(3)) {
            tried.insert(peer);
        }
        for peer in 0..1100 {
            assert_eq!(tried.contains(peer), peer < 1000 && peer % 3 == 0, "peer {peer}");
        }
        assert_eq!(tried.len(), 334);
        tried.clear();
        assert!(tried.is_empty() && !tried.contains(999));
    }
}
