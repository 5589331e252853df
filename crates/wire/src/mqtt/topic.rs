//! Topics (section 4.7): names that messages are published to, and filters that subscribers name them with.

use super::packet::is_text;

/// Levels of a name or filter; more are refused.
pub const MAX_LEVELS: usize = 64;

/// Whether it is a name: text, not empty, no wildcards, not too deep.
pub fn is_name(topic: &[u8]) -> bool {
    !topic.is_empty() && is_text(topic) && memchr::memchr2(b'+', b'#', topic).is_none() && has_few_levels(topic)
}

/// Whether it is a filter: a wildcard fills its level, and `#` is the last.
pub fn is_filter(filter: &[u8]) -> bool {
    if filter.is_empty() || !is_text(filter) || !has_few_levels(filter) {
        return false;
    }
    let levels = filter.split(|b| *b == b'/').count();
    filter.split(|b| *b == b'/').enumerate().all(|(number, level)| match level {
        b"#" => number + 1 == levels,
        b"+" => true,
        other => memchr::memchr2(b'+', b'#', other).is_none(),
    })
}

/// Whether a filter names more than one topic.
pub fn has_wildcards(filter: &[u8]) -> bool {
    memchr::memchr2(b'+', b'#', filter).is_some()
}

/// Whether a filter names this topic. A wildcard at its beginning names none that begin with `$` (section 4.7.2).
pub fn matches(filter: &[u8], topic: &[u8]) -> bool {
    if topic.first() == Some(&b'$') && matches!(filter.first(), Some(b'+' | b'#')) {
        return false;
    }
    let mut levels = topic.split(|b| *b == b'/');
    for wanted in filter.split(|b| *b == b'/') {
        if wanted == b"#" {
            // `a/#` names `a` too.
            return true;
        }
        match levels.next() {
            Some(level) if wanted == b"+" || wanted == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

fn has_few_levels(topic: &[u8]) -> bool {
    memchr::memchr_iter(b'/', topic).take(MAX_LEVELS).count() < MAX_LEVELS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_filters() {
        for name in [&b"a"[..], b"a/b", b"/", b"a//b", "é/ü".as_bytes()] {
            assert!(is_name(name) && is_filter(name) && matches(name, name), "{}", name.escape_ascii());
        }
        for bad in [&b""[..], b"a\0", b"\xff", &[b'/'; MAX_LEVELS]] {
            assert!(!is_name(bad) && !is_filter(bad), "{}", bad.escape_ascii());
        }
        for bad in [&b"a#"[..], b"a/#/b", b"+a", b"a/b+"] {
            assert!(!is_filter(bad), "{}", bad.escape_ascii());
        }
        assert!(is_filter(b"+/+/#") && !is_name(b"a/+"));
    }

    /// Section 4.7.1.
    #[test]
    fn what_filters_name() {
        for (filter, topic, named) in [
            ("sport/tennis/player1/#", "sport/tennis/player1", true),
            ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", true),
            ("#", "a", true),
            ("#", "$SYS/x", false),
            ("+/x", "$SYS/x", false),
            ("$SYS/#", "$SYS/x", true),
            ("sport/+", "sport", false),
            ("sport/+", "sport/", true),
            ("+/+", "/finance", true),
            ("/+", "/finance", true),
            ("+", "/finance", false),
            ("a/+/c", "a/b/c", true),
            ("a/+/c", "a/b/c/d", false),
        ] {
            assert_eq!(matches(filter.as_bytes(), topic.as_bytes()), named, "{filter} {topic}");
        }
    }
}
