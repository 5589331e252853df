//! A table by filters of topics (MQTT 5 section 4.7), in which all that name a topic are found without looking at the others.

use std::collections::HashMap;

/// Filters, each with a value. A tree of their levels, as deep as `wire::mqtt::topic::MAX_LEVELS`.
#[derive(Debug)]
pub(crate) struct Topics<T> {
    levels: HashMap<Box<[u8]>, Topics<T>>,
    /// What follows `+`.
    any: Option<Box<Topics<T>>>,
    /// `#` stands here.
    rest: Option<T>,
    /// A filter ends here.
    here: Option<T>,
}

impl<T> Default for Topics<T> {
    fn default() -> Self {
        Topics { levels: HashMap::new(), any: None, rest: None, here: None }
    }
}

impl<T> Topics<T> {
    /// The value of a filter.
    pub(crate) fn get(&self, filter: &[u8]) -> Option<&T> {
        let mut node = self;
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
        let mut node = self;
        for level in levels(filter) {
            node = match level {
                b"#" => return &mut node.rest,
                b"+" => node.any.get_or_insert_default(),
                level => node.levels.entry(level.into()).or_default(),
            };
        }
        &mut node.here
    }

    /// Shows the values of all filters that name a topic.
    pub(crate) fn find<'t>(&'t self, topic: &[u8], show: &mut impl FnMut(&'t T)) {
        let is_special = topic.first() == Some(&b'$');
        self.walk(Some(topic), !is_special, show);
    }

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

    /// Shows the values of all filters.
    pub(crate) fn each<'t>(&'t self, show: &mut impl FnMut(&'t T)) {
        self.rest.iter().chain(&self.here).for_each(&mut *show);
        self.any.iter().for_each(|any| any.each(show));
        self.levels.values().for_each(|node| node.each(show));
    }

    /// Lets go of values that are not wanted. True: of some.
    pub(crate) fn retain(&mut self, mut wanted: impl FnMut(&T) -> bool) -> bool {
        self.keep(&mut wanted)
    }

    fn keep(&mut self, wanted: &mut impl FnMut(&T) -> bool) -> bool {
        let mut dropped = false;
        for value in [&mut self.rest, &mut self.here] {
            dropped |= value.take_if(|value| !wanted(value)).is_some();
        }
        if let Some(any) = &mut self.any {
            dropped |= any.keep(wanted);
        }
        self.any.take_if(|any| any.is_empty());
        self.levels.retain(|_, node| {
            dropped |= node.keep(wanted);
            !node.is_empty()
        });
        dropped
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.levels.is_empty() && self.any.is_none() && self.rest.is_none() && self.here.is_none()
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
            table.retain(|_| false);
            prop_assert!(table.is_empty());
        }
    }
}
