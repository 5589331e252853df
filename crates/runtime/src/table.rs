//! A table that grows in pieces: what stands in it is never moved. A vector that grows copies all of it, stands still for that, and leaves
//! half of what it has empty: with one entry in each of five tables for a connection that was a third of what an idle one took.

use std::ops::{Index, IndexMut};

/// Entries of a piece: some 16 to 40 kB.
const PIECE: usize = 1024;

/// See the module's head.
#[derive(Debug)]
pub struct Table<T> {
    /// All but the last are full.
    pieces: Vec<Vec<T>>,
}

impl<T> Table<T> {
    /// An empty one.
    pub const fn new() -> Table<T> {
        Table { pieces: Vec::new() }
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.pieces.last().map_or(0, |last| (self.pieces.len() - 1) * PIECE + last.len())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Adds an entry. Its number.
    pub fn push(&mut self, entry: T) -> usize {
        if self.pieces.last().is_none_or(|last| last.len() == PIECE) {
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        let before = (self.pieces.len() - 1) * PIECE;
        let last = self.pieces.last_mut().expect("one was just added where there was none");
        last.push(entry);
        before + last.len() - 1
    }

    /// An entry.
    #[inline]
    pub fn get(&self, number: usize) -> Option<&T> {
        self.pieces.get(number / PIECE)?.get(number % PIECE)
    }

    /// An entry, to change it.
    #[inline]
    pub fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.pieces.get_mut(number / PIECE)?.get_mut(number % PIECE)
    }
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table::new()
    }
}

impl<T> Index<usize> for Table<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: usize) -> &T {
        &self.pieces[number / PIECE][number % PIECE]
    }
}

impl<T> IndexMut<usize> for Table<T> {
    #[inline]
    fn index_mut(&mut self, number: usize) -> &mut T {
        &mut self.pieces[number / PIECE][number % PIECE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_numbers() {
        let mut table = Table::new();
        assert!(table.is_empty() && table.get(0).is_none());
        for number in 0..3 * PIECE + 1 {
            assert_eq!((table.push(number), table.len()), (number, number + 1));
        }
        table[PIECE] = 7;
        assert_eq!((table[PIECE - 1], table[PIECE], table[3 * PIECE]), (PIECE - 1, 7, 3 * PIECE));
        assert_eq!(
            (table.get(3 * PIECE), table.get(3 * PIECE + 1), table.get(9 * PIECE)),
            (Some(&(3 * PIECE)), None, None)
        );
        *table.get_mut(0).expect("the first") = 9;
        assert_eq!(table[0], 9);
    }
}
