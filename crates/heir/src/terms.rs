//! What numbers of another process's records mean here: both sides name theirs, and what has the same name is the same thing.

use crate::Table;
use std::collections::HashMap;

/// For one configuration of the other process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    listeners: Vec<Option<u32>>,
    variables: Vec<Option<u32>>,
    servers: Vec<Option<u32>>,
    locations: Vec<Option<u32>>,
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
        }
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
}
