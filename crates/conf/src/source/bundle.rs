//! A recording of files and globs that travels between processes as bytes.
//!
//! ```text
//! "IWB1"  files: count, { path, outcome, content }  globs: count, { pattern, outcome, count, { path } }
//! count, outcome: u32, little endian; outcome: 0, or the error number (nothing follows then)
//! path, pattern, content: length u32, bytes
//! ```

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::Files;

/// The largest bundle that is read back, in bytes; more than [`crate::MAX_TOTAL_BYTES`] of configuration and its keys.
pub const MAX_BUNDLE_BYTES: usize = 1 << 30;

const MAGIC: &[u8; 4] = b"IWB1";

/// "No such file or directory": the answer for what was never recorded.
const ENOENT: i32 = 2;
/// "Input/output error": stands for a failure without a number.
const EIO: i32 = 5;

/// Contents by path and paths by pattern; failures as error numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    files: BTreeMap<PathBuf, Result<Vec<u8>, i32>>,
    globs: BTreeMap<PathBuf, Result<Vec<PathBuf>, i32>>,
}

/// The bytes are not a bundle: cut off, of another version or beyond the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadBundle;

impl Bundle {
    /// Adds a file, in place of any of that path.
    pub fn add_file(&mut self, path: impl Into<PathBuf>, content: impl Into<Vec<u8>>) {
        self.files.insert(path.into(), Ok(content.into()));
    }

    /// Adds what came of reading a path.
    pub fn record_file(&mut self, path: &Path, result: &io::Result<Vec<u8>>) {
        self.files.insert(path.to_owned(), result.as_ref().cloned().map_err(errno));
    }

    /// Adds what came of a pattern.
    pub fn record_glob(&mut self, pattern: &Path, result: &io::Result<Vec<PathBuf>>) {
        self.globs.insert(pattern.to_owned(), result.as_ref().cloned().map_err(errno));
    }

    /// The form that travels.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put_u32(&mut out, self.files.len());
        for (path, outcome) in &self.files {
            put_bytes(&mut out, path.as_os_str().as_bytes());
            put_outcome(&mut out, outcome);
            if let Ok(content) = outcome {
                put_bytes(&mut out, content);
            }
        }
        put_u32(&mut out, self.globs.len());
        for (pattern, outcome) in &self.globs {
            put_bytes(&mut out, pattern.as_os_str().as_bytes());
            put_outcome(&mut out, outcome);
            if let Ok(paths) = outcome {
                put_u32(&mut out, paths.len());
                paths.iter().for_each(|path| put_bytes(&mut out, path.as_os_str().as_bytes()));
            }
        }
        out
    }

    /// Reads the form that travels.
    pub fn from_bytes(bytes: &[u8]) -> Result<Bundle, BadBundle> {
        let mut rest = bytes.strip_prefix(MAGIC).filter(|_| bytes.len() <= MAX_BUNDLE_BYTES).ok_or(BadBundle)?;
        let mut bundle = Bundle::default();
        for _ in 0..take_u32(&mut rest)? {
            let path = take_path(&mut rest)?;
            let outcome = match take_u32(&mut rest)? {
                0 => Ok(take_bytes(&mut rest)?.to_vec()),
                errno => Err(errno as i32),
            };
            bundle.files.insert(path, outcome);
        }
        for _ in 0..take_u32(&mut rest)? {
            let pattern = take_path(&mut rest)?;
            let outcome = match take_u32(&mut rest)? {
                0 => Ok((0..take_u32(&mut rest)?).map(|_| take_path(&mut rest)).collect::<Result<_, _>>()?),
                errno => Err(errno as i32),
            };
            bundle.globs.insert(pattern, outcome);
        }
        if rest.is_empty() { Ok(bundle) } else { Err(BadBundle) }
    }
}

impl Files for Bundle {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        replay(self.files.get(path))
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        replay(self.globs.get(pattern))
    }
}

fn replay<T: Clone>(outcome: Option<&Result<T, i32>>) -> io::Result<T> {
    outcome.cloned().unwrap_or(Err(ENOENT)).map_err(io::Error::from_raw_os_error)
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().filter(|&code| code > 0).unwrap_or(EIO)
}

fn put_u32(out: &mut Vec<u8>, number: usize) {
    let number = u32::try_from(number).expect("files are limited to less than 4 GiB");
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_outcome<T>(out: &mut Vec<u8>, outcome: &Result<T, i32>) {
    put_u32(out, outcome.as_ref().err().map_or(0, |&errno| errno as usize));
}

fn take_u32(rest: &mut &[u8]) -> Result<u32, BadBundle> {
    let (number, after) = rest.split_first_chunk::<4>().ok_or(BadBundle)?;
    *rest = after;
    Ok(u32::from_le_bytes(*number))
}

fn take_bytes<'b>(rest: &mut &'b [u8]) -> Result<&'b [u8], BadBundle> {
    let length = take_u32(rest)? as usize;
    let (bytes, after) = rest.split_at_checked(length).ok_or(BadBundle)?;
    *rest = after;
    Ok(bytes)
}

fn take_path(rest: &mut &[u8]) -> Result<PathBuf, BadBundle> {
    take_bytes(rest).map(|bytes| PathBuf::from(OsStr::from_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_is_refused() {
        let mut bundle = Bundle::default();
        bundle.add_file("/etc/nginx.conf", "events {}");
        bundle.record_file(Path::new("/none"), &Err(io::Error::from_raw_os_error(13)));
        bundle.record_glob(Path::new("/etc/*.conf"), &Ok(vec!["/etc/nginx.conf".into()]));
        let bytes = bundle.to_bytes();
        assert_eq!(Bundle::from_bytes(&bytes), Ok(bundle));
        for cut in 0..bytes.len() {
            assert_eq!(Bundle::from_bytes(&bytes[..cut]), Err(BadBundle));
        }
        let longer = [bytes.as_slice(), b"x"].concat();
        assert_eq!(Bundle::from_bytes(&longer), Err(BadBundle));
    }

    #[test]
    fn what_was_not_recorded_does_not_exist() {
        let error = Bundle::default().read(Path::new("/x")).expect_err("an empty bundle has no files");
        assert_eq!(error.raw_os_error(), Some(ENOENT));
    }
}
