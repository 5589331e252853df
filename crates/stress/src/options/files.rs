//! Where the files that options name are read: on the disk, or, on an agent, among those that its controller has sent.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// All files that a controller sends, in bytes: what fits into a message beside the rest.
const MAX_SENT: usize = 32 << 20;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Files {
    /// This machine's own.
    #[default]
    Disk,
    /// A controller's, by the names it has for them. An agent reads nothing else for it.
    Sent(BTreeMap<PathBuf, Vec<u8>>),
}

impl Files {
    /// Reads one.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn read(&self, path: &Path) -> Result<Vec<u8>, String> {
        match self {
            Files::Disk => std::fs::read(path).map_err(|e| format!("{}: {e}", path.display())),
            Files::Sent(all) => all.get(path).cloned().ok_or_else(|| format!("{}: it was not sent", path.display())),
        }
    }

    /// The same, as text.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn read_text(&self, path: &Path) -> Result<String, String> {
        String::from_utf8(self.read(path)?).map_err(|_| format!("{}: not UTF-8", path.display()))
    }

    /// Reads what is to be sent.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn gather<'a>(&self, paths: impl Iterator<Item = &'a PathBuf>) -> Result<BTreeMap<PathBuf, Vec<u8>>, String> {
        let all: BTreeMap<PathBuf, Vec<u8>> =
            paths.map(|path| Ok((path.clone(), self.read(path)?))).collect::<Result<_, String>>()?;
        let size: usize = all.values().map(Vec::len).sum();
        if size > MAX_SENT { Err(format!("{size} bytes of files are too much to send to agents")) } else { Ok(all) }
    }
}
