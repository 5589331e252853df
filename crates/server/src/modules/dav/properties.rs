//! Properties that clients of WebDAV set (PROPPATCH, "dead properties" of RFC 4918). They are kept with the file or folder that they
//! are about, in one extended attribute of the file system: so they go where it goes, and are gone when it is. Runs on a thread that
//! may wait.

use rustix::fs::{XattrFlags, getxattr, getxattr_query, removexattr, setxattr};
use rustix::io::Errno;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use wire::webdav::{Change, Name};

/// Where they are kept.
const ATTRIBUTE: &str = "user.ironweir.dav";
/// What they may come to for one resource, bytes. File systems often take less (ext4: about 4 kB), which they say themselves.
const MAX_BYTES: usize = 16 * 1024;

/// One at a time: what is read is written again.
static CHANGING: Mutex<()> = Mutex::new(());

/// A property with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Property {
    pub(super) name: Name,
    /// The whole element, with all namespaces that it needs.
    pub(super) element: Vec<u8>,
}

/// The resource's properties; none where none can be had.
pub(super) fn of(path: &Path) -> Vec<Property> {
    decode(&raw(path)).unwrap_or_default()
}

/// The bytes of the attribute, perhaps none.
fn raw(path: &Path) -> Vec<u8> {
    // Most have none: that is asked for first.
    let len = match getxattr_query(path, ATTRIBUTE) {
        Ok(len) if (1..=MAX_BYTES).contains(&len) => len,
        _ => return Vec::new(),
    };
    let mut bytes = vec![0; len];
    match getxattr(path, ATTRIBUTE, &mut bytes[..]) {
        Ok(read) if read == len => bytes,
        _ => Vec::new(),
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Errno> {
    if bytes.is_empty() {
        return match removexattr(path, ATTRIBUTE) {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            other => other,
        };
    }
    setxattr(path, ATTRIBUTE, bytes, XattrFlags::empty())
}

/// What stands with one resource stands with the other, too. What the other's file system does not take is left out, as a copy of
/// the file is worth more than none.
pub(super) fn copy(from: &Path, to: &Path) {
    let bytes = raw(from);
    if !bytes.is_empty() {
        let _ = write(to, &bytes);
    }
}

/// Makes all changes in their order, or none.
///
/// # Errors
/// There is no room for them, or the file system keeps none.
pub(super) fn change(path: &Path, changes: &[Change]) -> io::Result<()> {
    let _alone = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut list = of(path);
    for change in changes {
        list.retain(|known| known.name != *change.name());
        if let Change::Set(name, element) = change {
            list.push(Property { name: name.clone(), element: element.clone() });
        }
    }
    let bytes = encode(&list);
    if bytes.len() > MAX_BYTES {
        return Err(io::ErrorKind::StorageFull.into());
    }
    Ok(write(path, &bytes)?)
}

/// Namespace, name and element of each, with their lengths before them.
fn encode(list: &[Property]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for one in list {
        for text in [&one.name.space, &one.name.local, &one.element] {
            bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
            bytes.extend_from_slice(text);
        }
    }
    bytes
}

/// None: somebody else wrote the attribute.
fn decode(mut bytes: &[u8]) -> Option<Vec<Property>> {
    let mut list = Vec::new();
    while !bytes.is_empty() {
        let mut text = || {
            let (len, rest) = bytes.split_first_chunk()?;
            let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            bytes = rest;
            Some(text.to_vec())
        };
        let name = Name { space: text()?, local: text()? };
        list.push(Property { name, element: text()? });
    }
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_back_as_they_were() {
        let name = |local: &[u8]| Name { space: b"urn:x".to_vec(), local: local.to_vec() };
        let list: Vec<_> =
            [b"a", b"b"].iter().map(|n| Property { name: name(*n), element: b"<x:a/>".to_vec() }).collect();
        let bytes = encode(&list);
        assert_eq!(decode(&bytes), Some(list));
        assert_eq!((decode(&bytes[..bytes.len() - 1]), decode(b"\xff\xff\xff\xffx")), (None, None));
    }
}
