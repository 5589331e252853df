//! What is known of kernel settings: their form, what they do, and which kernels no longer have them (`settings.tsv`); and the names of others
//! that some kernel has (`names.txt`), so that a name is not taken for a mistake because nothing more is known of it.

use std::collections::HashMap;
use std::sync::LazyLock;

/// A row.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    /// How many numbers; 0: text.
    pub(crate) numbers: usize,
    /// `bytes`, `pages`, `s`, `ports`; empty: none.
    pub(crate) unit: &'static str,
    /// The first kernel without it.
    pub(crate) removed: Option<(u32, u32)>,
    /// The first kernel in which it is there and does nothing.
    pub(crate) idle: Option<(u32, u32)>,
    /// What does its work since, if anything does.
    pub(crate) instead: Option<&'static str>,
    pub(crate) does: &'static str,
}

/// All of them, by name.
pub(crate) static SETTINGS: LazyLock<Vec<Setting>> = LazyLock::new(|| {
    let row = |line: &'static str| {
        let mut fields = line.split('\t');
        let mut next = || fields.next().expect("every row of the table has its five columns");
        let (name, form, removed, instead, does) = (next(), next(), next(), next(), next());
        let (numbers, unit) = form.split_once(' ').unwrap_or((form, ""));
        Setting {
            name,
            numbers: numbers.parse().unwrap_or(0),
            unit,
            removed: version(removed).filter(|_| !removed.starts_with('~')),
            idle: removed.strip_prefix('~').and_then(version),
            instead: Some(instead).filter(|i| *i != "-"),
            does,
        }
    };
    include_str!("settings.tsv").lines().filter(|l| !l.starts_with('#')).map(row).collect()
});

/// Names without more.
static NAMES: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| include_str!("names.txt").lines().filter(|l| !l.starts_with('#')).collect());

/// Every name without a star; and those with one, by their last part, which never is one. A garbled text has very many words to be looked up.
static EXACT: LazyLock<HashMap<&'static str, Option<&'static Setting>>> = LazyLock::new(|| {
    let rows = SETTINGS.iter().map(|s| (s.name, Some(s)));
    NAMES.iter().map(|n| (*n, None)).chain(rows).filter(|(name, _)| !name.contains('*')).collect()
});
static STARRED: LazyLock<HashMap<&'static str, Vec<Known>>> = LazyLock::new(|| {
    let rows = SETTINGS.iter().map(|s| (s.name, Some(s)));
    let mut all: HashMap<_, Vec<Known>> = HashMap::new();
    for known in rows.chain(NAMES.iter().map(|n| (*n, None))).filter(|(name, _)| name.contains('*')) {
        all.entry(last_part(known.0)).or_default().push(known);
    }
    all
});

/// A name, or a pattern of one, with its row if it has one.
type Known = (&'static str, Option<&'static Setting>);

fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or_default()
}

/// The row of a name; `*` in a row's name is any one part.
pub(crate) fn find(name: &str) -> Option<&'static Setting> {
    look(name).flatten()
}

/// Whether some kernel has a setting of this name.
pub(crate) fn is_known(name: &str) -> bool {
    look(name).is_some()
}

fn look(name: &str) -> Option<Option<&'static Setting>> {
    let starred = || STARRED.get(last_part(name))?.iter().find(|(s, _)| matches(s, name)).map(|(_, row)| *row);
    EXACT.get(name).copied().or_else(starred)
}

fn matches(pattern: &str, name: &str) -> bool {
    let (mut parts, mut own) = (pattern.split('.'), name.split('.'));
    loop {
        match (parts.next(), own.next()) {
            (None, None) => return true,
            (Some("*"), Some(part)) if !part.is_empty() => {}
            (Some(a), Some(b)) if a == b => {}
            _ => return false,
        }
    }
}

/// How many letters a name may differ from the one that was meant.
const FAR: usize = 2;

/// The known name nearest to one that is not known. A suggestion and no more: names of real settings differ by as little (`net.ipv4.`, `net.ipv6.`).
pub(crate) fn nearest(name: &str) -> Option<String> {
    let (length, parts) = (name.len(), name.split('.').count());
    // A name that is longer or shorter by more is farther away: most are not looked at.
    let plain = EXACT.keys().filter(|n| n.len().abs_diff(length) <= FAR).map(|n| (*n).to_owned());
    let starred =
        STARRED.values().flatten().filter(|(n, _)| n.split('.').count() == parts).map(|(n, _)| concrete(n, name));
    let starred = starred.filter(|c| c.len().abs_diff(length) <= FAR);
    plain.chain(starred).map(|c| (distance(&c, name), c)).filter(|(d, _)| *d <= FAR).min().map(|(_, name)| name)
}

/// A row's name with the part for which it has a star taken from another name.
fn concrete(pattern: &str, name: &str) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    let own = |(at, part): (usize, &str)| {
        if part == "*" { parts.get(at).copied().unwrap_or("*").to_owned() } else { part.to_owned() }
    };
    pattern.split('.').enumerate().map(own).collect::<Vec<_>>().join(".")
}

/// Bytes to change, add or leave out (Levenshtein), if they are at most [`FAR`]; else more than that. Only the diagonals that matter are walked.
fn distance(a: &str, b: &str) -> usize {
    const WIDE: usize = 2 * FAR + 1;
    const MORE: usize = FAR + 1;
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len().abs_diff(b.len()) > FAR {
        return MORE;
    }
    // row[k] is the distance of a[..i] and b[..i + k - FAR].
    let mut row = [MORE; WIDE];
    (0..=FAR).for_each(|k| row[FAR + k] = k);
    for i in 1..=a.len() {
        let (mut next, mut beside) = ([MORE; WIDE], MORE);
        for (k, cell) in next.iter_mut().enumerate() {
            let j = (i + k).checked_sub(FAR).filter(|j| *j <= b.len());
            if let Some(j) = j {
                let changed = if j == 0 { i } else { row[k] + usize::from(a[i - 1] != b[j - 1]) };
                let left_out = row.get(k + 1).map_or(MORE, |d| d + 1);
                let added = if j > 0 { beside + 1 } else { MORE };
                *cell = changed.min(left_out).min(added).min(MORE);
            }
            beside = *cell;
        }
        if next.iter().all(|d| *d > FAR) {
            return MORE;
        }
        row = next;
    }
    row[b.len() + FAR - a.len()]
}

/// `6.1.0-18-amd64` as (6, 1).
pub(crate) fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, far) in [("", "", 0), ("abc", "abc", 0), ("abc", "abd", 1), ("abc", "ab", 1), ("abc", "xabc", 1)] {
            assert_eq!((distance(a, b), distance(b, a)), (far, far), "{a} {b}");
        }
        for (a, b, far) in [("abc", "cab", 2), ("", "ab", 2), ("abcd", "badc", 3), ("abc", "xyz", 3), ("a", "wxyz", 3)]
        {
            assert_eq!((distance(a, b), distance(b, a)), (far, far), "{a} {b}");
        }
    }

    #[test]
    fn names() {
        assert!(SETTINGS.is_sorted_by(|a, b| a.name < b.name), "the table is sorted, and no name stands twice");
        assert_eq!(find("net.ipv4.conf.eth0.rp_filter").unwrap().numbers, 1);
        assert!(find("net.ipv4.conf..rp_filter").is_none() && find("net.ipv4").is_none());
        assert_eq!(nearest("kerntl.shmall").as_deref(), Some("kernel.shmall"));
        assert_eq!(nearest("net.ipv4.conf.al.rp_filte").as_deref(), Some("net.ipv4.conf.al.rp_filter"));
        assert_eq!(nearest("net.ipv4.tcp_nonsense"), None);
        let none = |n: &&&str| SETTINGS.iter().all(|s| s.name != **n);
        assert!(NAMES.is_sorted() && NAMES.iter().filter(none).count() == NAMES.len(), "no name has two places");
        assert!(
            is_known("net.ipv6.conf.eth0.forwarding") && is_known("net.ipv4.tcp_retries1") && !is_known("net.ipv4")
        );
        assert_eq!(nearest("net.ipv6.conf.all.forwardng").as_deref(), Some("net.ipv6.conf.all.forwarding"));
        assert_eq!((version("6.1.0-18-amd64"), version("4.9"), version("")), (Some((6, 1)), Some((4, 9)), None));
    }
}
