//! A table from paths to values that knows which was used last: what the caches of files are made of.
//! Look-ups allocate nothing. Knows no file.

use std::collections::HashMap;
use std::rc::Rc;

/// No slot.
const NONE: usize = usize::MAX;

/// The table. Its owner bounds it by [`Lru::pop_oldest`].
#[derive(Debug)]
pub struct Lru<V> {
    index: HashMap<Rc<[u8]>, usize>,
    slots: Vec<Slot<V>>,
    free: Vec<usize>,
    newest: usize,
    oldest: usize,
}

#[derive(Debug)]
struct Slot<V> {
    /// None while the slot is free.
    entry: Option<(Rc<[u8]>, V)>,
    newer: usize,
    older: usize,
}

impl<V> Default for Lru<V> {
    fn default() -> Self {
        Lru { index: HashMap::new(), slots: Vec::new(), free: Vec::new(), newest: NONE, oldest: NONE }
    }
}

impl<V> Lru<V> {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The value for a path, which becomes the newest.
    pub fn get_mut(&mut self, path: &[u8]) -> Option<&mut V> {
        let at = *self.index.get(path)?;
        if at != self.newest {
            self.unlink(at);
            self.link(at);
        }
        self.slots[at].entry.as_mut().map(|(_, v)| v)
    }

    /// Puts a value in as the newest, in place of one that was there.
    pub fn insert(&mut self, path: &[u8], value: V) {
        self.remove(path);
        let path: Rc<[u8]> = path.into();
        let slot = Slot { entry: Some((path.clone(), value)), newer: NONE, older: NONE };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        self.index.insert(path, at);
        self.link(at);
    }

    /// Takes a value out.
    pub fn remove(&mut self, path: &[u8]) -> Option<V> {
        let at = self.index.remove(path)?;
        self.unlink(at);
        self.free.push(at);
        self.slots[at].entry.take().map(|(_, v)| v)
    }

    /// The value that was not used for the longest time.
    pub fn oldest(&self) -> Option<&V> {
        self.slots.get(self.oldest)?.entry.as_ref().map(|(_, v)| v)
    }

    /// Takes that value out.
    pub fn pop_oldest(&mut self) -> Option<V> {
        let path = self.slots.get(self.oldest)?.entry.as_ref().map(|(p, _)| p.clone())?;
        self.remove(&path)
    }

    fn link(&mut self, at: usize) {
        let before = std::mem::replace(&mut self.newest, at);
        self.slots[at].newer = NONE;
        self.slots[at].older = before;
        match self.slots.get_mut(before) {
            Some(s) => s.newer = at,
            None => self.oldest = at,
        }
    }

    fn unlink(&mut self, at: usize) {
        let (newer, older) = (self.slots[at].newer, self.slots[at].older);
        match self.slots.get_mut(newer) {
            Some(s) => s.older = older,
            None => self.newest = older,
        }
        match self.slots.get_mut(older) {
            Some(s) => s.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut lru = Lru::default();
        for (i, name) in [&b"a"[..], b"b", b"c"].into_iter().enumerate() {
            lru.insert(name, i);
        }
        assert_eq!(lru.get_mut(b"a"), Some(&mut 0));
        assert_eq!(lru.oldest(), Some(&1));
        assert_eq!(lru.pop_oldest(), Some(1));
        lru.insert(b"d", 3);
        assert_eq!(lru.get_mut(b"c"), Some(&mut 2));
        let order: Vec<_> = std::iter::from_fn(|| lru.pop_oldest()).collect();
        assert_eq!(order, [0, 3, 2]);
        assert!(lru.is_empty());
        assert_eq!(lru.oldest(), None);
    }

    #[test]
    fn an_entry_can_be_replaced_and_removed() {
        let mut lru = Lru::default();
        lru.insert(b"a", 1);
        lru.insert(b"a", 2);
        assert_eq!(lru.len(), 1);
        assert_eq!(lru.remove(b"a"), Some(2));
        assert_eq!(lru.remove(b"a"), None);
        lru.insert(b"b", 3);
        assert_eq!(lru.slots.len(), 1, "freed slots are used again");
        assert_eq!(lru.pop_oldest(), Some(3));
        assert_eq!(lru.pop_oldest(), None);
    }
}
