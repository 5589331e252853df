//! What is known of kernel settings: their form, what they do, and which kernels no longer have them (`settings.tsv`).

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

/// The row of a name; `*` in a row's name is any one part.
pub(crate) fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|s| s.name == name).or_else(|| SETTINGS.iter().find(|s| matches(s.name, name)))
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

/// The known name nearest to one that is not known, at most two letters away.
pub(crate) fn nearest(name: &str) -> Option<String> {
    const FAR: usize = 2;
    // A name that is longer or shorter by more is farther away: most are not looked at.
    let near = |s: &&Setting| s.name.contains('*') || s.name.len().abs_diff(name.len()) <= FAR;
    let candidates = SETTINGS.iter().filter(near).map(|s| concrete(s.name, name));
    let candidates = candidates.filter(|c| c.len().abs_diff(name.len()) <= FAR).map(|c| (distance(&c, name), c));
    candidates.filter(|(d, _)| *d <= FAR).min().map(|(_, name)| name)
}

/// A row's name with the part for which it has a star taken from another name.
fn concrete(pattern: &str, name: &str) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    let own = |(at, part): (usize, &str)| {
        if part == "*" { parts.get(at).copied().unwrap_or("*").to_owned() } else { part.to_owned() }
    };
    pattern.split('.').enumerate().map(own).collect::<Vec<_>>().join(".")
}

/// Letters to change, add or leave out (Levenshtein). Names are short: see `read::LONGEST`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let changed = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
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
    fn names() {
        assert!(SETTINGS.is_sorted_by(|a, b| a.name < b.name), "the table is sorted, and no name stands twice");
        assert_eq!(find("net.ipv4.conf.eth0.rp_filter").unwrap().numbers, 1);
        assert!(find("net.ipv4.conf..rp_filter").is_none() && find("net.ipv4").is_none());
        assert_eq!(nearest("kerntl.shmall").as_deref(), Some("kernel.shmall"));
        assert_eq!(nearest("net.ipv4.conf.al.rp_filte").as_deref(), Some("net.ipv4.conf.al.rp_filter"));
        assert_eq!(nearest("net.ipv4.tcp_nonsense"), None);
        assert_eq!((version("6.1.0-18-amd64"), version("4.9"), version("")), (Some((6, 1)), Some((4, 9)), None));
    }
}
