//! Where configuration files come from: the disk, or what was read from it earlier.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Files larger than this are refused: nobody writes them, and they would be read into memory.
pub const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

/// A way to read files by name.
pub trait Files {
    /// The whole content of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// The files that match a pattern, sorted.
    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>>;
}

/// The file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Files for Disk {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        use std::io::Read;
        let file = std::fs::File::open(path)?;
        let mut text = Vec::new();
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text)?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the file is too large for a configuration"));
        }
        Ok(text)
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        let mut found = vec![PathBuf::from("/")];
        for part in pattern.components().skip(1) {
            let part = part.as_os_str().as_bytes();
            let mut next = Vec::new();
            for dir in found {
                if !has_wildcard(part) {
                    let path = dir.join(std::ffi::OsStr::from_bytes(part));
                    if path.symlink_metadata().is_ok() {
                        next.push(path);
                    }
                    continue;
                }
                let Ok(entries) = std::fs::read_dir(&dir) else { continue };
                for entry in entries.flatten() {
                    let name = entry.file_name();
                    let hidden = name.as_bytes().first() == Some(&b'.') && part.first() != Some(&b'.');
                    if !hidden && matches(part, name.as_bytes()) {
                        next.push(dir.join(name));
                    }
                }
            }
            found = next;
        }
        found.sort();
        Ok(found)
    }
}

/// Whether a path is a pattern.
pub fn has_wildcard(path: &[u8]) -> bool {
    path.iter().any(|b| matches!(b, b'*' | b'?' | b'['))
}

/// `glob(7)` for one name: `*`, `?`, `[a-z]`, `[!a]`.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match pattern {
        [] => name.is_empty(),
        [b'*', rest @ ..] => (0..=name.len()).any(|i| matches(rest, &name[i..])),
        [b'?', rest @ ..] => !name.is_empty() && matches(rest, &name[1..]),
        [b'[', rest @ ..] => {
            let Some((byte, others)) = name.split_first() else { return false };
            let (negated, set) = match rest {
                [b'!' | b'^', set @ ..] => (true, set),
                set => (false, set),
            };
            let Some(end) = set.iter().skip(1).position(|b| *b == b']').map(|i| i + 1) else {
                return *byte == b'[' && matches(rest, others);
            };
            let mut hit = false;
            let mut i = 0;
            while i < end {
                if i + 2 < end && set[i + 1] == b'-' {
                    hit |= (set[i]..=set[i + 2]).contains(byte);
                    i += 3;
                } else {
                    hit |= set[i] == *byte;
                    i += 1;
                }
            }
            hit != negated && matches(&set[end + 1..], others)
        }
        [b'\\', byte, rest @ ..] | [byte, rest @ ..] => name.first() == Some(byte) && matches(rest, &name[1..]),
    }
}

/// Files that were read earlier: the master reads as root and hands a bundle to the worker process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    files: BTreeMap<PathBuf, Vec<u8>>,
    globs: BTreeMap<PathBuf, Vec<PathBuf>>,
}

impl Bundle {
    /// Adds a file.
    pub fn add_file(&mut self, path: impl Into<PathBuf>, text: impl Into<Vec<u8>>) {
        self.files.insert(path.into(), text.into());
    }

    /// As bytes: counts and lengths are 32-bit little endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_count(&mut out, self.files.len());
        for (path, text) in &self.files {
            put(&mut out, path.as_os_str().as_bytes());
            put(&mut out, text);
        }
        put_count(&mut out, self.globs.len());
        for (pattern, paths) in &self.globs {
            put(&mut out, pattern.as_os_str().as_bytes());
            put_count(&mut out, paths.len());
            paths.iter().for_each(|p| put(&mut out, p.as_os_str().as_bytes()));
        }
        out
    }

    /// Reads what [`Bundle::to_bytes`] wrote; `None` when it is cut short.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Bundle> {
        let input = &mut bytes;
        let mut bundle = Bundle::default();
        for _ in 0..take_count(input)? {
            let path = take_path(input)?;
            bundle.files.insert(path, take(input)?.to_vec());
        }
        for _ in 0..take_count(input)? {
            let pattern = take_path(input)?;
            let count = take_count(input)?;
            let paths = (0..count).map(|_| take_path(input)).collect::<Option<_>>()?;
            bundle.globs.insert(pattern, paths);
        }
        Some(bundle)
    }
}

fn put_count(out: &mut Vec<u8>, n: usize) {
    out.extend_from_slice(&(n as u32).to_le_bytes());
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn take_count(input: &mut &[u8]) -> Option<usize> {
    let (head, rest) = input.split_first_chunk::<4>()?;
    *input = rest;
    Some(u32::from_le_bytes(*head) as usize)
}

fn take<'b>(input: &mut &'b [u8]) -> Option<&'b [u8]> {
    let n = take_count(input)?;
    let (head, rest) = input.split_at_checked(n)?;
    *input = rest;
    Some(head)
}

fn take_path(input: &mut &[u8]) -> Option<PathBuf> {
    take(input).map(|b| std::ffi::OsString::from_vec(b.to_vec()).into())
}

impl Files for Bundle {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.files.get(path).cloned().ok_or_else(|| io::Error::from_raw_os_error(2))
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(self.globs.get(pattern).cloned().unwrap_or_default())
    }
}

/// Reads through to other files and remembers what it read.
#[derive(Debug, Default)]
pub struct Recorder<F> {
    files: F,
    seen: Mutex<Bundle>,
}

impl<F: Files> Recorder<F> {
    /// Records what is read from `files`.
    pub fn new(files: F) -> Recorder<F> {
        Recorder { files, seen: Mutex::default() }
    }

    /// What has been read.
    pub fn into_bundle(self) -> Bundle {
        self.seen.into_inner().expect("nothing panics while it is locked")
    }
}

impl<F: Files> Files for Recorder<F> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let text = self.files.read(path)?;
        self.seen.lock().expect("nothing panics while it is locked").files.insert(path.to_owned(), text.clone());
        Ok(text)
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        let paths = self.files.glob(pattern)?;
        self.seen.lock().expect("nothing panics while it is locked").globs.insert(pattern.to_owned(), paths.clone());
        Ok(paths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_survives_its_bytes() {
        let mut b = Bundle::default();
        b.add_file("/a", "x");
        b.globs.insert("/b/*".into(), vec!["/b/1".into(), "/b/2".into()]);
        let bytes = b.to_bytes();
        assert_eq!(Bundle::from_bytes(&bytes), Some(b));
        for cut in 0..bytes.len() {
            assert_eq!(Bundle::from_bytes(&bytes[..cut]), None);
        }
    }

    #[test]
    fn patterns_match_as_glob_does() {
        for (pattern, name, hit) in [
            ("*.conf", "a.conf", true),
            ("*.conf", "a.con", false),
            ("a?c", "abc", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), hit, "{pattern} {name}");
        }
    }
}
