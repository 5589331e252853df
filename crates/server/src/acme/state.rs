//! What is kept across restarts (`state_path`): the account's key and URL, under nginx's names, and one file for each
//! certificate with its key. The directory was made by the master and given to the worker's user, who alone can read it.

use super::store::Issued;
use crate::log::os_error;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The account's private key, PEM.
pub(super) const ACCOUNT_KEY: &str = "account.key";
/// The account's URL.
pub(super) const ACCOUNT_URL: &str = "account.url";
/// The largest file that is read, in bytes: a chain with a key of RSA 4096 takes 15 kB.
const MAX_FILE: u64 = 256 * 1024;
/// Where the chain ends and the key begins.
const KEY_MARK: &str = "-----BEGIN PRIVATE KEY-----";

/// The directory of an issuer, if it has one.
#[derive(Clone, Debug)]
pub(super) struct State(pub(super) Option<PathBuf>);

impl State {
    /// What a file holds; nothing where there is none.
    pub(super) fn read(&self, name: &str) -> Result<Option<String>, String> {
        let Some(directory) = &self.0 else { return Ok(None) };
        let path = directory.join(name);
        let read = |path: &Path| -> io::Result<String> {
            let mut text = String::new();
            File::open(path)?.take(MAX_FILE).read_to_string(&mut text)?;
            Ok(text)
        };
        match read(&path) {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(format!("open() \"{}\" failed ({})", path.display(), os_error(&e))),
        }
    }

    /// Replaces a file: whole, or not at all. The disk is waited for away from the service thread.
    pub(super) async fn write(&self, name: &str, text: String) -> Result<(), String> {
        let Some(directory) = &self.0 else { return Ok(()) };
        let path = directory.join(name);
        let shown = path.display().to_string();
        let written = crate::service::blocking(move || crate::temp::replace(&path, text.as_bytes())).await;
        let failed = |e: io::Error| format!("write() \"{shown}\" failed ({})", os_error(&e));
        written.ok_or("the file could not be written")?.map_err(failed)
    }

    /// Removes a file, if it is there.
    pub(super) fn remove(&self, name: &str) {
        if let Some(directory) = &self.0 {
            // Whatever cannot be removed is refused by the authority once more.
            let _ = std::fs::remove_file(directory.join(name));
        }
    }

    /// A certificate that was kept. `name`: see [`super::store::Slot::name`].
    pub(super) fn certificate(&self, name: &str) -> Result<Option<Issued>, String> {
        let Some(text) = self.read(&file(name))? else { return Ok(None) };
        let at = text.find(KEY_MARK).ok_or_else(|| format!("there is no key in \"{}\"", file(name)))?;
        Issued::new(text[..at].to_owned(), text[at..].to_owned()).map(Some)
    }

    /// Keeps a certificate.
    pub(super) async fn keep(&self, name: &str, issued: &Issued) -> Result<(), String> {
        let end = if issued.chain.ends_with('\n') { "" } else { "\n" };
        self.write(&file(name), format!("{}{end}{}", issued.chain, issued.key)).await
    }
}

fn file(name: &str) -> String {
    format!("{name}.pem")
}
