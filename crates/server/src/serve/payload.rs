//! What the master hands to a worker: which configuration it is, and the texts of its files. Made by `load`; read by the worker, and by a
//! command that compares with it (`plan`).

use crate::config::read::Which;
use conf::Bundle;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

/// Each text has its length before it, in so many bytes.
const LENGTH: usize = 8;

/// As bytes: file, prefix, `-g`, `-e`, each with its length, then the files.
pub(super) fn pack(which: &Which, bundle: &Bundle) -> Arc<[u8]> {
    let error_log = which.error_log.as_ref().map_or(&b""[..], |path| path.as_os_str().as_bytes());
    let mut out = Vec::new();
    for text in [which.file.as_os_str().as_bytes(), which.prefix.as_os_str().as_bytes(), &which.globals, error_log] {
        out.extend_from_slice(&(text.len() as u64).to_le_bytes());
        out.extend_from_slice(text);
    }
    out.extend_from_slice(&bundle.to_bytes());
    out.into()
}

/// Reads what [`pack`] wrote; none: these are not its bytes.
pub fn unpack(mut bytes: &[u8]) -> Option<(Which, Bundle)> {
    let mut text = || {
        let (length, rest) = bytes.split_first_chunk::<LENGTH>()?;
        let (text, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        bytes = rest;
        Some(text.to_vec())
    };
    let path = |bytes: Vec<u8>| PathBuf::from(OsString::from_vec(bytes));
    let (file, prefix, globals, error_log) = (path(text()?), path(text()?), text()?, path(text()?));
    let error_log = Some(error_log).filter(|path| !path.as_os_str().is_empty());
    Some((Which { file, prefix, globals, error_log }, Bundle::from_bytes(bytes).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
        let which =
            Which { file: "/a/b.conf".into(), prefix: "/a".into(), globals: b"user x;".to_vec(), error_log: None };
        let packed = pack(&which, &Bundle::default());
        let (again, _) = unpack(&packed).expect("own bytes");
        assert_eq!(
            (again.file, again.prefix, again.globals, again.error_log),
            (which.file, which.prefix, which.globals, None)
        );
        assert!((0..packed.len() - 1).all(|end| unpack(&packed[..end]).is_none()));
    }
}
