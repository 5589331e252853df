//! glob(3) as nginx calls it: no flags, the C locale. `*`, `?` and `[...]` within one path component, `\` before a
//! character that stands for itself; a leading dot must be written out; folders that cannot be read have no entries.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The most paths one pattern yields.
const MAX_MATCHES: usize = 65_536;

/// Whether nginx takes an `include` for a pattern.
pub fn has_wildcard(path: &[u8]) -> bool {
    path.iter().any(|byte| b"*?[".contains(byte))
}

/// The existing paths that match, sorted by bytes.
pub(super) fn glob(pattern: &Path) -> Vec<PathBuf> {
    let pattern = pattern.as_os_str().as_bytes();
    let mut found: Vec<Vec<u8>> = vec![Vec::new()];
    let mut rest = pattern;
    while !rest.is_empty() {
        let slashes = rest.iter().take_while(|&&byte| byte == b'/').count();
        let (separator, after) = rest.split_at(slashes);
        let length = memchr::memchr(b'/', after).unwrap_or(after.len());
        let (component, after) = after.split_at(length);
        rest = after;
        found.iter_mut().for_each(|path| path.extend_from_slice(separator));
        found = found.into_iter().flat_map(|path| expand(path, component)).take(MAX_MATCHES).collect();
    }
    let mut paths: Vec<PathBuf> =
        found.into_iter().map(to_path).filter(|path| path.symlink_metadata().is_ok()).collect();
    paths.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    paths
}

fn to_path(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// `folder` with each entry that matches the component; the component itself if it has no wildcards.
fn expand(folder: Vec<u8>, component: &[u8]) -> Vec<Vec<u8>> {
    let join = |name: &[u8]| [folder.as_slice(), name].concat();
    if !has_wildcard(component) {
        return vec![join(&without_escapes(component))];
    }
    let listed = if folder.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(&folder)) };
    let Ok(entries) = std::fs::read_dir(listed) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name().into_vec()));
    names.filter(|name| matches(component, name)).map(|name| join(&name)).collect()
}

fn without_escapes(component: &[u8]) -> Vec<u8> {
    let mut bytes = component.iter();
    let mut text = Vec::with_capacity(component.len());
    while let Some(&byte) = bytes.next() {
        text.push(if byte == b'\\' { *bytes.next().unwrap_or(&byte) } else { byte });
    }
    text
}

/// Whether a file name matches one component of a pattern. Linear in pattern times name.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    if name.first() == Some(&b'.') && pattern.first() != Some(&b'.') && !pattern.starts_with(b"\\.") {
        return false;
    }
    let (mut at, mut name_at) = (0, 0);
    let mut last_star: Option<(usize, usize)> = None;
    while name_at < name.len() {
        if pattern.get(at) == Some(&b'*') {
            last_star = Some((at + 1, name_at));
            at += 1;
        } else if let Some(length) = matches_one(&pattern[at..], name[name_at]) {
            at += length;
            name_at += 1;
        } else if let Some((after_star, tried)) = last_star {
            at = after_star;
            name_at = tried + 1;
            last_star = Some((after_star, name_at));
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

/// The length of the pattern's first element if it matches the byte.
fn matches_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern.first()? {
        b'?' => Some(1),
        b'[' => match bracket(pattern, byte) {
            Some((length, true)) => Some(length),
            Some((_, false)) => None,
            None => (byte == b'[').then_some(1),
        },
        b'\\' if pattern.len() > 1 => (pattern[1] == byte).then_some(2),
        literal => (literal == byte).then_some(1),
    }
}

/// The length of a bracket expression and whether it contains the byte; `None` if it is never closed.
fn bracket(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    let negated = matches!(pattern.get(1), Some(b'!' | b'^'));
    let first = 1 + usize::from(negated);
    let mut at = first;
    let mut contained = false;
    loop {
        if pattern.get(at) == Some(&b']') && at > first {
            return Some((at + 1, contained != negated));
        }
        if let Some((length, inside)) = class(&pattern[at..], byte) {
            contained |= inside;
            at += length;
            continue;
        }
        let (low, after) = bracket_char(pattern, at)?;
        at = after;
        let mut high = low;
        if pattern.get(at) == Some(&b'-') && pattern.get(at + 1).is_some_and(|&end| end != b']') {
            (high, at) = bracket_char(pattern, at + 1)?;
        }
        contained |= (low..=high).contains(&byte);
    }
}

fn bracket_char(pattern: &[u8], at: usize) -> Option<(u8, usize)> {
    match *pattern.get(at)? {
        b'\\' => Some((*pattern.get(at + 1)?, at + 2)),
        byte => Some((byte, at + 1)),
    }
}

/// `[:alpha:]` and its kin: length, and whether the byte is one.
fn class(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    let name = pattern.strip_prefix(b"[:")?;
    let end = name.windows(2).position(|pair| pair == b":]")?;
    let inside = match &name[..end] {
        b"alnum" => byte.is_ascii_alphanumeric(),
        b"alpha" => byte.is_ascii_alphabetic(),
        b"blank" => matches!(byte, b' ' | b'\t'),
        b"cntrl" => byte.is_ascii_control(),
        b"digit" => byte.is_ascii_digit(),
        b"graph" => byte.is_ascii_graphic(),
        b"lower" => byte.is_ascii_lowercase(),
        b"print" => byte.is_ascii_graphic() || byte == b' ',
        b"punct" => byte.is_ascii_punctuation(),
        b"space" => byte.is_ascii_whitespace() || byte == 0x0b,
        b"upper" => byte.is_ascii_uppercase(),
        b"xdigit" => byte.is_ascii_hexdigit(),
        _ => return None,
    };
    Some((end + 4, inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let yes = [
            ("*.conf", "a.conf"),
            ("*", "x"),
            ("a?c", "abc"),
            ("[a-c]x", "bx"),
            ("[!a]", "b"),
            ("[^a]", "b"),
            ("[]]", "]"),
            ("[[:digit:]]*", "10-x"),
            ("\\*", "*"),
            ("a*b*c", "aXbYbZc"),
            ("[", "["),
            (".*", ".x"),
            ("[a-]", "-"),
            ("**", "x"),
            ("[\\]]", "]"),
        ];
        for (pattern, name) in yes {
            assert!(matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        let no = [
            ("*.conf", "a.conf~"),
            ("*.conf", ".conf"),
            ("?x", ".x"),
            ("[!a]", "a"),
            ("a", ""),
            ("", "a"),
            ("[a", "a"),
            ("[.]x", ".x"),
            ("\\*", "x"),
        ];
        for (pattern, name) in no {
            assert!(!matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
    }

    #[test]
    fn folders_are_walked_and_sorted() {
        let root = std::env::temp_dir().join(format!("conf-glob-{}", std::process::id()));
        for file in ["b/2.conf", "a/1.conf", "a/0.txt", "B/3.conf", "c/.hidden.conf"] {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().expect("it has a folder")).expect("temporary files can be written");
            std::fs::write(path, "").expect("temporary files can be written");
        }
        let found = glob(&root.join("*/*.conf"));
        let expected: Vec<_> = ["B/3.conf", "a/1.conf", "b/2.conf"].iter().map(|file| root.join(file)).collect();
        assert_eq!(found, expected);
        assert_eq!(glob(&root.join("?/1.conf")), [root.join("a/1.conf")]);
        assert_eq!(glob(&root.join("none*/x")), Vec::<PathBuf>::new());
        std::fs::remove_dir_all(&root).expect("own folder");
    }
}
