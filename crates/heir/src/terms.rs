//! What numbers of another process's records mean here: both sides name theirs, and what has the same name is the same thing.

use crate::Table;
use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

/// For one configuration of the other process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    listeners: Vec<Option<u32>>,
    variables: Vec<Option<u32>>,
    servers: Vec<Option<u32>>,
    locations: Vec<Option<u32>>,
    dictionaries: Vec<Option<Dictionary>>,
}

/// A dictionary of theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Dictionary {
    text: Rc<[u8]>,
    /// Its number here, once that was asked: there may be none.
    here: Cell<Option<Option<u8>>>,
}

/// Of names that occur twice the first one counts on this side.
fn pairs(theirs: &[&[u8]], ours: &[&[u8]]) -> Vec<Option<u32>> {
    let mut numbers = HashMap::with_capacity(ours.len());
    for (number, name) in ours.iter().enumerate() {
        numbers.entry(*name).or_insert(number as u32);
    }
    theirs.iter().map(|name| numbers.get(name).copied()).collect()
}

fn find(all: &[Option<u32>], number: u64) -> Option<u32> {
    all.get(usize::try_from(number).ok()?).copied().flatten()
}

impl Terms {
    /// By the names of both sides.
    pub fn of(theirs: &Table<'_>, ours: &Table<'_>) -> Terms {
        Terms {
            listeners: pairs(&theirs.listeners, &ours.listeners),
            variables: pairs(&theirs.variables, &ours.variables),
            servers: pairs(&theirs.servers, &ours.servers),
            locations: pairs(&theirs.locations, &ours.locations),
            dictionaries: Vec::new(),
        }
    }

    /// Notes what they say of a dictionary.
    pub fn learn(&mut self, number: u8, text: &Rc<[u8]>) {
        let number = usize::from(number);
        if self.dictionaries.len() <= number {
            self.dictionaries.resize(number + 1, None);
        }
        self.dictionaries[number] = Some(Dictionary { text: text.clone(), here: Cell::new(None) });
    }

    /// A dictionary of theirs: its text, and its number here, which `adopt` gives it once. None: they have said nothing of it.
    pub fn dictionary(&self, number: u8, adopt: impl FnOnce(&Rc<[u8]>) -> Option<u8>) -> Option<(&[u8], Option<u8>)> {
        let known = self.dictionaries.get(usize::from(number))?.as_ref()?;
        let here = known.here.get().unwrap_or_else(|| adopt(&known.text));
        known.here.set(Some(here));
        Some((&known.text, here))
    }

    /// Our number for a listener of theirs.
    pub fn listener(&self, number: u64) -> Option<u32> {
        find(&self.listeners, number)
    }

    /// The same for a variable.
    pub fn variable(&self, number: u32) -> Option<u32> {
        find(&self.variables, number.into())
    }

    /// The same for a server.
    pub fn server(&self, number: u64) -> Option<u32> {
        find(&self.servers, number)
    }

    /// The same for a location.
    pub fn location(&self, number: u64) -> Option<u32> {
        find(&self.locations, number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_both_have_are_found_wherever_they_stand() {
        let theirs = Table { servers: vec![&b"a"[..], b"b", b"c"], locations: vec![&b"a /x"[..]], ..Table::default() };
        let ours = Table { servers: vec![&b"c"[..], b"a", b"a"], ..Table::default() };
        let terms = Terms::of(&theirs, &ours);
        assert_eq!([0, 1, 2, 3].map(|n| terms.server(n)), [Some(1), None, Some(0), None]);
        assert_eq!((terms.location(0), terms.variable(0)), (None, None));
    }

    #[test]
    fn a_dictionary_is_taken_once() {
        let mut terms = Terms::default();
        assert_eq!(terms.dictionary(3, |_| Some(1)), None);
        terms.learn(3, &b"text"[..].into());
        assert_eq!(terms.dictionary(2, |_| Some(1)), None);
        for _ in 0..2 {
            let mut asked = 0;
            let found = terms.dictionary(3, |_| {
                asked += 1;
                Some(9)
            });
            assert_eq!(found, Some((&b"text"[..], Some(9))));
            assert!(asked <= 1);
        }
        assert_eq!(terms.dictionary(3, |_| unreachable!()), Some((&b"text"[..], Some(9))));
        terms.learn(4, &b"too many"[..].into());
        assert_eq!(terms.dictionary(4, |_| None), Some((&b"too many"[..], None)));
        assert_eq!(terms.dictionary(4, |_| Some(1)), Some((&b"too many"[..], None)));
    }
}
