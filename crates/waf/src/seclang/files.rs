//! Where rule files come from: the disk, or whatever a caller hands over (a server whose workers may not read files).

use std::io;
use std::path::{Path, PathBuf};

/// A source of files.
pub trait Files {
    /// Reads a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// The files that a pattern with `*` and `?` in its last part means, in order of their names.
    fn matching(&self, pattern: &Path) -> io::Result<Vec<PathBuf>>;
}

/// The disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Files for Disk {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn matching(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        let name = pattern.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let folder = pattern.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            if matches(name.as_bytes(), entry.file_name().to_string_lossy().as_bytes()) {
                found.push(entry.path());
            }
        }
        found.sort();
        Ok(found)
    }
}

/// Files that are held in memory, by their paths.
#[derive(Clone, Debug, Default)]
pub struct Bundle(pub std::collections::BTreeMap<PathBuf, Vec<u8>>);

impl Files for Bundle {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.0.get(path).cloned().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    fn matching(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        let name = pattern.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let same_folder = |p: &&PathBuf| p.parent() == pattern.parent();
        let named =
            |p: &&PathBuf| matches(name.as_bytes(), p.file_name().unwrap_or_default().to_string_lossy().as_bytes());
        Ok(self.0.keys().filter(same_folder).filter(named).cloned().collect())
    }
}

/// Whether a name is what a pattern means. Takes time linear in the name for each `*`.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == b'?' || *c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((at, from)) = star else { return false };
                star = Some((at, from + 1));
                p = at + 1;
                n = from + 1;
            }
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_names() {
        for (pattern, name, is) in [
            ("*.conf", "a.conf", true),
            ("*.conf", "a.conf~", false),
            ("a?*", "ab", true),
            ("a", "b", false),
            ("*a*b", "xaxab", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), is, "{pattern} {name}");
        }
    }
}
