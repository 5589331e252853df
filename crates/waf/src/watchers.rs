//! Which rules look at which values: for each variable a bit for each rule. A phase asks these once for all values instead of each rule for each value,
//! and then runs only the rules that some value may match. Most requests leave a tenth of a rule set's rules.

use crate::rule::{ChainId, PHASES, Rule};
use crate::rules::side;
use crate::select::{Select, Target};
use crate::variable::{Collection, Single, Source};

/// A bit for each rule.
pub(crate) type Bits = Box<[u64]>;

/// The rules that look at one thing.
#[derive(Debug)]
pub(crate) struct Watching {
    /// Its number, among all sets of a rule set.
    pub set: u32,
    /// Which they are.
    pub rules: Bits,
}

/// Who looks at what, in the phases of requests or in those of answers.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    /// Rules that run whatever the values are: what they look at is not known beforehand.
    pub always: Bits,
    /// Those that look at a variable of one value.
    pub singles: Vec<(Single, Watching)>,
    /// Those that look at a collection.
    pub collections: Vec<(Collection, OfCollection)>,
    /// Those that are asked of a value after the same chain of transformations, and only then.
    pub by_chain: Vec<(ChainId, Bits)>,
}

/// Who looks at a collection.
#[derive(Debug, Default)]
pub(crate) struct OfCollection {
    /// At all of its values.
    pub values: Option<Watching>,
    /// At all of its names.
    pub names: Option<Watching>,
    /// At the values with a name; sorted by the name's length.
    named: Vec<(Box<[u8]>, Watching)>,
    /// At single names, whose texts are then looked at.
    named_names: Vec<(Box<[u8]>, Watching)>,
}

impl OfCollection {
    /// Who looks at the value with a name.
    #[inline]
    pub(crate) fn of_value(&self, name: &[u8]) -> Option<&Watching> {
        find(&self.named, name)
    }

    /// Who looks at a name as a value.
    #[inline]
    pub(crate) fn of_name(&self, name: &[u8]) -> Option<&Watching> {
        find(&self.named_names, name)
    }
}

fn find<'a, T>(sorted: &'a [(Box<[u8]>, T)], name: &[u8]) -> Option<&'a T> {
    let from = sorted.partition_point(|(known, _)| known.len() < name.len());
    let same_length = sorted[from..].iter().take_while(|(known, _)| known.len() == name.len());
    same_length.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, found)| found)
}

/// Sets a rule's bit.
pub(crate) fn set(bits: &mut Bits, rule: usize) {
    bits[rule / 64] |= 1 << (rule % 64);
}

/// Whether a rule's bit is set.
#[inline]
pub(crate) fn has(bits: &[u64], rule: usize) -> bool {
    bits[rule / 64] >> (rule % 64) & 1 == 1
}

impl Watchers {
    /// Of the rules in these phases' lists that belong to a side; `plain` are more whose answer depends on the value alone. `sets` is how many sets there are
    /// already.
    pub(crate) fn of(
        rules: &[Rule],
        phases: &[Vec<u32>; PHASES + 1],
        (of_side, plain): (usize, &[u64]),
        sets: &mut u32,
    ) -> Watchers {
        let empty = || vec![0; rules.len().div_ceil(64)].into_boxed_slice();
        let mut watchers = Watchers { always: empty(), ..Watchers::default() };
        let lists = phases.iter().enumerate().filter(|(phase, _)| side(*phase as u8) == of_side);
        for at in lists.flat_map(|(_, list)| list.iter().map(|at| *at as usize)) {
            let rule = &rules[at];
            let is_plain = rule.is_plain || plain.get(at / 64).is_some_and(|bits| bits >> (at % 64) & 1 == 1);
            if !is_plain || !is_known_by_values(rule) {
                set(&mut watchers.always, at);
                continue;
            }
            for target in &rule.targets {
                watchers.add(target, at, empty);
            }
            if rule.stages.is_none() {
                set(entry(&mut watchers.by_chain, rule.chain, empty), at);
            }
        }
        for watching in watchers.all_mut() {
            watching.set = *sets;
            *sets += 1;
        }
        for (_, of) in &mut watchers.collections {
            of.named.sort_by_key(|(name, _)| name.len());
            of.named_names.sort_by_key(|(name, _)| name.len());
        }
        watchers
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Watching> {
        let of_collections = self.collections.iter_mut().flat_map(|(_, of)| {
            let named = of.named.iter_mut().chain(&mut of.named_names).map(|(_, watching)| watching);
            named.chain(&mut of.values).chain(&mut of.names)
        });
        self.singles.iter_mut().map(|(_, watching)| watching).chain(of_collections)
    }

    fn add(&mut self, target: &Target, at: usize, empty: impl Fn() -> Bits) {
        let new = || Watching { set: 0, rules: empty() };
        let (lists, is_name) = match target.source {
            Source::Single(single) => return set(&mut entry(&mut self.singles, single, new).rules, at),
            Source::Values(lists) => (lists, false),
            Source::Names(lists) => (lists, true),
            _ => return set(&mut self.always, at),
        };
        for list in lists {
            let of = entry(&mut self.collections, *list, OfCollection::default);
            let watching = match (&target.select, is_name) {
                (Select::Name(name), false) => entry(&mut of.named, name.to_ascii_lowercase().into(), new),
                (Select::Name(name), true) => entry(&mut of.named_names, name.to_ascii_lowercase().into(), new),
                (_, false) => of.values.get_or_insert_with(new),
                (_, true) => of.names.get_or_insert_with(new),
            };
            set(&mut watching.rules, at);
        }
    }

    /// All rules run, whatever the values are.
    pub(crate) fn open_all(&mut self) {
        self.always.fill(u64::MAX);
    }
}

/// Whether a rule, whose answer depends on the value alone, matches nothing unless some value from outside matches it by itself.
fn is_known_by_values(rule: &Rule) -> bool {
    let from_outside = |target: &Target| match target.source {
        _ if target.count => false,
        Source::Single(_) => true,
        Source::Values(lists) | Source::Names(lists) => {
            !lists.iter().any(|list| list.is_set_by_rules()) && matches!(target.select, Select::All | Select::Name(_))
        }
        _ => false,
    };
    !rule.targets.is_empty() && rule.targets.iter().all(from_outside)
}

fn entry<K: PartialEq, V>(all: &mut Vec<(K, V)>, key: K, new: impl Fn() -> V) -> &mut V {
    let at = all.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
        all.push((key, new()));
        all.len() - 1
    });
    &mut all[at].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_whatever_their_case() {
        let bits = |n| vec![n].into_boxed_slice();
        let sorted: Vec<(Box<[u8]>, Bits)> = vec![
            (b"te".as_slice().into(), bits(1)),
            (b"host".as_slice().into(), bits(2)),
            (b"from".as_slice().into(), bits(3)),
        ];
        assert_eq!(find(&sorted, b"From"), Some(&bits(3)));
        assert_eq!(find(&sorted, b"HOST"), Some(&bits(2)));
        assert_eq!(find(&sorted, b"date"), None);
        assert_eq!(find(&sorted, b"x"), None);
    }
}
