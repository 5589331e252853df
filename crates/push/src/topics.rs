//! A table by filters of topics (MQTT 5 section 4.7), in which all that name a topic are found without looking at the others.

use crate::limits::LEVEL_BYTES;
use std::collections::HashMap;

/// Filters, each with a value. A tree of their levels, as deep as `wire::mqtt::topic::MAX_LEVELS`.
#[derive(Debug)]
pub(crate) struct Topics<T> {
    root: Node<T>,
    bytes: usize,
}

#[derive(Debug)]
struct Node<T> {
    levels: Levels<T>,
    /// What follows `+`.
    any: Option<Box<Node<T>>>,
    /// `#` stands here.
    rest: Option<T>,
    /// A filter ends here.
    here: Option<T>,
}

/// What follows a level, by name. Mostly it is one, for which a table would be large.
#[derive(Debug)]
#[allow(clippy::box_collection, reason = "most are one: a table would be six words")]
enum Levels<T> {
    None,
    One(Box<(Box<[u8]>, Node<T>)>),
    Many(Box<HashMap<Box<[u8]>, Node<T>>>),
}

impl<T> Default for Topics<T> {
    fn default() -> Self {
        Topics { root: Node::default(), bytes: 0 }
    }
}

impl<T> Default for Node<T> {
    fn default() -> Self {
        Node { levels: Levels::None, any: None, rest: None, here: None }
    }
}

impl<T> Topics<T> {
    /// What its levels cost.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The value of a filter.
    pub(crate) fn get(&self, filter: &[u8]) -> Option<&T> {
        let mut node = &self.root;
        for level in levels(filter) {
            node = match level {
                b"#" => return node.rest.as_ref(),
                b"+" => node.any.as_deref()?,
                level => node.levels.get(level)?,
            };
        }
        node.here.as_ref()
    }

    /// The place of a filter's value.
    pub(crate) fn entry(&mut self, filter: &[u8]) -> &mut Option<T> {
        let mut node = &mut self.root;
        for level in levels(filter) {
            node = match level {
                b"#" => return &mut node.rest,
                b"+" => node.any.get_or_insert_with(|| {
                    self.bytes += LEVEL_BYTES;
                    Box::default()
                }),
                level => {
                    if node.levels.get(level).is_none() {
                        self.bytes += LEVEL_BYTES + level.len();
                    }
                    node.levels.entry(level)
                }
            };
        }
        &mut node.here
    }

    /// Shows the values of all filters that name a topic.
    pub(crate) fn find<'t>(&'t self, topic: &[u8], show: &mut impl FnMut(&'t T)) {
        let is_special = topic.first() == Some(&b'$');
        self.root.walk(Some(topic), !is_special, show);
    }

    /// Shows the values of all filters.
    pub(crate) fn each<'t>(&'t self, show: &mut impl FnMut(&'t T)) {
        self.root.each(show);
    }

    /// Takes a filter's value out, and the levels that nobody else needs.
    pub(crate) fn remove(&mut self, filter: &[u8]) -> Option<T> {
        self.root.remove(&mut levels(filter), &mut self.bytes)
    }

    /// Lets go of values that are not wanted. True: of some.
    pub(crate) fn retain(&mut self, mut wanted: impl FnMut(&T) -> bool) -> bool {
        self.root.keep(&mut wanted, &mut self.bytes)
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_empty()
    }
}

impl<T> Node<T> {
    fn walk<'t>(&'t self, topic: Option<&[u8]>, wildcards: bool, show: &mut impl FnMut(&'t T)) {
        if wildcards && let Some(value) = &self.rest {
            show(value);
        }
        let Some(topic) = topic else {
            self.here.iter().for_each(show);
            return;
        };
        let (level, rest) = match memchr(topic) {
            Some(at) => (&topic[..at], Some(&topic[at + 1..])),
            None => (topic, None),
        };
        if let Some(node) = self.levels.get(level) {
            node.walk(rest, true, show);
        }
        if wildcards && let Some(node) = &self.any {
            node.walk(rest, true, show);
        }
    }

    fn each<'t>(&'t self, show: &mut impl FnMut(&'t T)) {
        self.rest.iter().chain(&self.here).for_each(&mut *show);
        self.any.iter().for_each(|any| any.each(show));
        match &self.levels {
            Levels::None => {}
            Levels::One(one) => one.1.each(show),
            Levels::Many(many) => many.values().for_each(|node| node.each(show)),
        }
    }

    fn remove(&mut self, levels: &mut dyn Iterator<Item = &[u8]>, bytes: &mut usize) -> Option<T> {
        let Some(level) = levels.next() else { return self.here.take() };
        match level {
            b"#" => self.rest.take(),
            b"+" => {
                let value = self.any.as_mut()?.remove(levels, bytes);
                if self.any.take_if(|any| any.is_empty()).is_some() {
                    *bytes -= LEVEL_BYTES;
                }
                value
            }
            level => {
                let node = self.levels.get_mut(level)?;
                let value = node.remove(levels, bytes);
                if node.is_empty() {
                    self.levels.remove(level);
                    *bytes -= LEVEL_BYTES + level.len();
                }
                value
            }
        }
    }

    fn keep(&mut self, wanted: &mut impl FnMut(&T) -> bool, bytes: &mut usize) -> bool {
        let mut dropped = false;
        for value in [&mut self.rest, &mut self.here] {
            dropped |= value.take_if(|value| !wanted(value)).is_some();
        }
        if let Some(any) = &mut self.any {
            dropped |= any.keep(wanted, bytes);
        }
        if self.any.take_if(|any| any.is_empty()).is_some() {
            *bytes -= LEVEL_BYTES;
        }
        self.levels.retain(|level, node| {
            dropped |= node.keep(wanted, bytes);
            let stays = !node.is_empty();
            if !stays {
                *bytes -= LEVEL_BYTES + level.len();
            }
            stays
        });
        dropped
    }

    fn is_empty(&self) -> bool {
        matches!(self.levels, Levels::None) && self.any.is_none() && self.rest.is_none() && self.here.is_none()
    }
}

impl<T> Levels<T> {
    fn get(&self, level: &[u8]) -> Option<&Node<T>> {
        match self {
            Levels::None => None,
            Levels::One(one) => (*one.0 == *level).then_some(&one.1),
            Levels::Many(many) => many.get(level),
        }
    }

    fn get_mut(&mut self, level: &[u8]) -> Option<&mut Node<T>> {
        match self {
            Levels::None => None,
            Levels::One(one) => (*one.0 == *level).then_some(&mut one.1),
            Levels::Many(many) => many.get_mut(level),
        }
    }

    fn entry(&mut self, level: &[u8]) -> &mut Node<T> {
        *self = match std::mem::replace(self, Levels::None) {
            Levels::None => Levels::One(Box::new((level.into(), Node::default()))),
            Levels::One(one) if *one.0 != *level => Levels::Many(Box::new(HashMap::from([*one]))),
            same => same,
        };
        match self {
            Levels::Many(many) => many.entry(level.into()).or_default(),
            Levels::One(one) => &mut one.1,
            Levels::None => unreachable!("there is one at least"),
        }
    }

    /// Lets go of a level that is there.
    fn remove(&mut self, level: &[u8]) {
        let is_over = match self {
            Levels::None | Levels::One(_) => true,
            Levels::Many(many) => {
                many.remove(level);
                // The table is of use again at a quarter: what shrinks it is not paid for each time.
                if many.len() * 4 < many.capacity() {
                    many.shrink_to(many.len() * 2);
                }
                many.is_empty()
            }
        };
        if is_over {
            *self = Levels::None;
        }
    }

    fn retain(&mut self, mut wanted: impl FnMut(&[u8], &mut Node<T>) -> bool) {
        let is_over = match self {
            Levels::None => false,
            Levels::One(one) => !wanted(&one.0, &mut one.1),
            Levels::Many(many) => {
                many.retain(|level, node| wanted(level, node));
                if many.len() * 4 < many.capacity() {
                    many.shrink_to_fit();
                }
                many.is_empty()
            }
        };
        if is_over {
            *self = Levels::None;
        }
    }
}

fn levels(filter: &[u8]) -> impl Iterator<Item = &[u8]> {
    filter.split(|b| *b == b'/')
}

fn memchr(topic: &[u8]) -> Option<usize> {
    topic.iter().position(|b| *b == b'/')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::mqtt::topic;

    proptest! {
        /// Found are those that match one by one.
        #[test]
        fn all_that_match_are_found(
            filters in prop::collection::vec("(a|b|\\+|\\$c)(/(a|b|\\+|)){0,3}(/#)?", 0..12),
            name in "(a|b|\\$c|)(/(a|b|)){0,4}",
        ) {
            let mut table = Topics::default();
            for filter in &filters {
                *table.entry(filter.as_bytes()) = Some(filter.clone());
            }
            let mut found = Vec::new();
            table.find(name.as_bytes(), &mut |filter: &String| found.push(filter.clone()));
            let mut expected: Vec<String> = filters.clone();
            expected.retain(|filter| topic::matches(filter.as_bytes(), name.as_bytes()));
            expected.sort();
            expected.dedup();
            found.sort();
            prop_assert_eq!(found, expected);
            let (mut all, mut each) = (filters.clone(), Vec::new());
            table.each(&mut |filter: &String| each.push(filter.clone()));
            all.sort();
            all.dedup();
            each.sort();
            prop_assert_eq!(each, all);
            for filter in &filters {
                prop_assert_eq!(table.get(filter.as_bytes()), Some(filter));
            }
            // One by one, or all at once: nothing is left, and nothing is billed.
            let mut other = Topics::default();
            for filter in &filters {
                *other.entry(filter.as_bytes()) = Some(());
            }
            prop_assert_eq!(other.bytes(), table.bytes());
            for (number, filter) in filters.iter().enumerate() {
                let is_first = !filters[..number].contains(filter);
                prop_assert_eq!(other.remove(filter.as_bytes()).is_some(), is_first);
                prop_assert!(other.get(filter.as_bytes()).is_none());
            }
            prop_assert!(other.is_empty() && other.bytes() == 0);
            table.retain(|_| false);
            prop_assert!(table.is_empty() && table.bytes() == 0);
        }
    }
}
