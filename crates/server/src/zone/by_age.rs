//! A table of places that knows which were used last: what the shards of zones and of cache indexes are made of.

use std::ops::{Index, IndexMut};

/// No place: the end of the order.
const NONE: u32 = u32::MAX;

/// Values in numbered places, in order of use. A number is good until its place is freed.
#[derive(Debug)]
pub struct ByAge<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
}

#[derive(Debug)]
struct Place<T> {
    newer: u32,
    older: u32,
    value: T,
}

impl<T> Default for ByAge<T> {
    fn default() -> Self {
        ByAge { places: Vec::new(), free: Vec::new(), newest: NONE, oldest: NONE }
    }
}

impl<T> ByAge<T> {
    /// Bytes of a value with its place.
    pub const PLACE: usize = size_of::<Place<T>>();

    /// Gives a value a place. It is the newest.
    pub fn insert(&mut self, value: T) -> u32 {
        let place = Place { newer: NONE, older: NONE, value };
        let index = match self.free.pop() {
            Some(index) => {
                self.places[index as usize] = place;
                index
            }
            None => {
                self.places.push(place);
                (self.places.len() - 1) as u32
            }
        };
        self.link(index);
        index
    }

    /// Makes a value the newest.
    pub fn touch(&mut self, index: u32) {
        if index != self.newest {
            self.detach(index);
            self.link(index);
        }
    }

    /// Takes a value out of the order; it keeps its place until that is freed.
    pub fn detach(&mut self, index: u32) {
        let Place { newer, older, .. } = self.places[index as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.places[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.places[older as usize].newer = newer,
        }
    }

    /// The place of a detached value may be given to another.
    pub fn free(&mut self, index: u32) {
        self.free.push(index);
    }

    /// The value that was not used for the longest time.
    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// All in the order, the oldest first.
    pub fn from_oldest(&self) -> impl Iterator<Item = u32> {
        std::iter::successors(self.oldest(), |at| {
            let newer = self.places[*at as usize].newer;
            (newer != NONE).then_some(newer)
        })
    }

    fn link(&mut self, index: u32) {
        let before = std::mem::replace(&mut self.newest, index);
        let place = &mut self.places[index as usize];
        (place.newer, place.older) = (NONE, before);
        match before {
            NONE => self.oldest = index,
            before => self.places[before as usize].newer = index,
        }
    }
}

impl<T> Index<u32> for ByAge<T> {
    type Output = T;
    fn index(&self, index: u32) -> &T {
        &self.places[index as usize].value
    }
}

impl<T> IndexMut<u32> for ByAge<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.places[index as usize].value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(table: &ByAge<char>) -> String {
        table.from_oldest().map(|i| table[i]).collect()
    }

    #[test]
    fn use_makes_newest_and_places_are_used_again() {
        let mut table = ByAge::default();
        let [a, b, c] = ['a', 'b', 'c'].map(|v| table.insert(v));
        assert_eq!(order(&table), "abc");
        table.touch(a);
        table.touch(a);
        assert_eq!(order(&table), "bca");
        table.detach(c);
        assert_eq!((order(&table).as_str(), table.oldest(), table[c]), ("ba", Some(b), 'c'));
        table.free(c);
        assert_eq!(table.insert('d'), c);
        assert_eq!(order(&table), "bad");
        for index in [a, b, c] {
            table.detach(index);
        }
        assert_eq!((order(&table).as_str(), table.oldest()), ("", None));
    }
}
