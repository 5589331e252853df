//! Which topics a client may publish and subscribe to (`nchan_mqtt_publish`, `nchan_mqtt_subscribe`).

use super::Filter;
use crate::request::Request;
use wire::mqtt::topic;

/// Filters; none: all topics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules(Vec<Box<[u8]>>);

impl Rules {
    /// As they are for a client. One whose variable brings slashes or wildcards of its own allows nothing.
    pub(super) fn of(r: &mut Request, filters: &[Filter]) -> Rules {
        let mut all = Vec::with_capacity(filters.len());
        for filter in filters {
            let text = filter.value.eval(r);
            let text = r.get(text);
            all.push(if marks(text) == filter.marks { text.into() } else { Box::default() });
        }
        Rules(all)
    }

    /// For another process.
    pub(super) fn write(&self, w: &mut heir::Writer) {
        w.number(self.0.len() as u64);
        self.0.iter().for_each(|filter| w.bytes(filter));
    }

    /// What another process wrote.
    pub(super) fn read(r: &mut heir::Reader<'_>) -> Option<Rules> {
        r.list(heir::MOST_NAMES, |r| r.bytes().map(Box::from)).map(Rules)
    }

    /// Whether all topics that a filter names, or the one that it is, are allowed.
    pub(super) fn allow(&self, filter: &[u8]) -> bool {
        self.0.is_empty() || self.0.iter().any(|allowed| topic::is_filter(allowed) && covers(allowed, filter))
    }
}

/// Slashes and wildcards.
pub(super) fn marks(text: &[u8]) -> usize {
    text.iter().filter(|b| matches!(b, b'/' | b'+' | b'#')).count()
}

/// Whether the one filter names all that the other names.
fn covers(allowed: &[u8], wanted: &[u8]) -> bool {
    let is_special = |filter: &[u8]| filter.first() == Some(&b'$');
    if is_special(wanted) && !is_special(allowed) {
        return false;
    }
    let mut levels = wanted.split(|b| *b == b'/');
    for allowed in allowed.split(|b| *b == b'/') {
        if allowed == b"#" {
            return true;
        }
        match levels.next() {
            Some(b"#") | None => return false,
            Some(level) if allowed == b"+" || allowed == level => {}
            Some(_) => return false,
        }
    }
    levels.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed() {
        for (allowed, wanted, may) in [
            ("#", "a/b", true),
            ("#", "#", true),
            ("#", "$SYS/#", false),
            ("a/#", "a", true),
            ("a/#", "a/+/#", true),
            ("a/#", "b", false),
            ("a/+", "a/b", true),
            ("a/+", "a/+", true),
            ("a/+", "a/#", false),
            ("a/+", "+/b", false),
            ("a/b", "a/b", true),
            ("a/b", "a/+", false),
            ("+/b", "a/b", true),
        ] {
            assert_eq!(Rules(vec![allowed.as_bytes().into()]).allow(wanted.as_bytes()), may, "{allowed} {wanted}");
        }
        assert!(Rules::default().allow(b"anything/#") && !Rules(vec![Box::default()]).allow(b"a"));
    }
}
