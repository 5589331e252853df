//! Takes answers out of a cache by their keys: NGINX Plus' `proxy_cache_purge` and that of `ngx_cache_purge`. What is purged is
//! forgotten at once; a key that ends in `*` means all that begin so, for which every file's head is looked at.

use super::format::{self, BadHead, Digest};
use super::{Cache, key};
use crate::config::Scope;
use crate::config::cidr::{Cidr, Plain};
use crate::config::complex::Complex;
use crate::log_error;
use crate::request::Request;
use conf::{Node, Problem};
use hashbrown::HashSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// What is read of a file at first: most heads are shorter.
const FIRST: usize = 4096;

/// `*_cache_purge`
#[derive(Clone, Debug, Default)]
pub enum Purge {
    /// Never.
    #[default]
    Off,
    /// Plus: when one of these is true. 204, and 404 if there is nothing.
    When(Arc<Vec<Complex>>),
    /// `ngx_cache_purge`: by requests of this method, from these addresses (none: from all). 200 with a page.
    Method(Arc<(Box<[u8]>, Vec<Cidr>)>),
}

/// How a purge is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// 204.
    Plus,
    /// 200 and a page.
    Page,
}

/// Reads `on | off | METHOD [from all | ADDRESS ...]`, or conditions.
pub fn parse(scope: &mut Scope<'_, '_>, node: &Node) -> Result<Purge, Problem> {
    let (first, rest) = node.args.split_first().ok_or_else(|| Problem::invalid_arguments(node))?;
    let is_method = !first.text.is_empty() && first.text.iter().all(u8::is_ascii_uppercase);
    let from = match rest {
        [] => &[][..],
        [word, from @ ..] if *word == "from" && !from.is_empty() => from,
        _ => return conditions(scope, node),
    };
    let method: &[u8] = match first.text.as_slice() {
        b"off" if rest.is_empty() => return Ok(Purge::Off),
        b"on" => b"PURGE",
        text if is_method => text,
        _ => return conditions(scope, node),
    };
    let mut networks = Vec::new();
    if from.iter().all(|word| *word != "all") {
        for word in from {
            let network = Cidr::read(&mut scope.build.problems, node, &word.text);
            let bad = || node.problem(format!("invalid parameter \"{}\"", word.as_str()));
            networks.push(network.ok_or_else(bad)?);
        }
    }
    Ok(Purge::Method(Arc::new((method.into(), networks))))
}

fn conditions(scope: &mut Scope<'_, '_>, node: &Node) -> Result<Purge, Problem> {
    let texts = node.args.iter().map(|word| Complex::compile(scope.build, word));
    Ok(Purge::When(Arc::new(texts.collect::<Result<Vec<_>, _>>()?)))
}

impl Purge {
    /// Whether a request purges, and how that is answered; a status if it would but may not.
    pub fn asked(&self, r: &mut Request) -> Option<Result<Style, u16>> {
        match self {
            Purge::Off => None,
            Purge::When(conditions) => Complex::any_is_true(r, conditions).then_some(Ok(Style::Plus)),
            Purge::Method(rule) => {
                let (method, from) = &**rule;
                if r.get(r.head.method_name) != &**method {
                    return None;
                }
                let address = Plain::of(&r.client.remote.borrow());
                if !from.is_empty() && !from.iter().any(|n| n.contains(address)) {
                    log_error!(r, Error, "purging the cache is forbidden by rule");
                    return Some(Err(403));
                }
                Some(Ok(Style::Page))
            }
        }
    }
}

/// Purges one key.
pub fn exact(cache: &Cache, key: &[u8]) -> bool {
    forget(cache, &key::digest(key))
}

fn forget(cache: &Cache, digest: &Digest) -> bool {
    let index = &cache.zone.index;
    let Some(purged) = index.purge(digest) else { return false };
    let mut path = Vec::new();
    cache.zone.write_path(digest, &mut path);
    // Who reads it now has it open.
    let _ = std::fs::remove_file(Path::new(std::ffi::OsStr::from_bytes(&path)));
    if let Some(grave) = purged {
        index.removed(grave);
    }
    true
}

/// Which keys are meant.
#[derive(Clone, Debug)]
pub enum Keys {
    /// All that begin so.
    From(Vec<u8>),
    /// This one, in all its variants (`Vary`).
    One(Vec<u8>),
    /// The same of several.
    Several(HashSet<Vec<u8>>),
}

impl Keys {
    fn fit(&self, key: &[u8]) -> bool {
        match self {
            Keys::From(prefix) => key.starts_with(prefix),
            Keys::One(one) => key == one,
            Keys::Several(keys) => keys.contains(key),
        }
    }
}

/// Whether what is stored under a key says that there are variants of it.
pub fn varies(cache: &Cache, key: &[u8]) -> bool {
    let mut path = Vec::new();
    cache.zone.write_path(&key::digest(key), &mut path);
    let path = Path::new(std::ffi::OsStr::from_bytes(&path));
    with_head(path, |head| !head.vary.is_empty()).unwrap_or(false)
}

/// Keys whose variants are too old but not found yet, at most.
const MAX_CHANGED: usize = 1024;

/// What requests have changed whose variants are to be purged: by one walk at a time for all that wait, however many change something.
#[derive(Debug, Default)]
pub struct Changed(Mutex<ChangedKeys>);

#[derive(Debug, Default)]
struct ChangedKeys {
    waiting: HashSet<Vec<u8>>,
    is_walking: bool,
}

/// What becomes of a key that is to be purged with its variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// Nobody looks for them yet: [`changed`] is to be called, on a thread that may wait.
    Begin,
    /// Who is at work will do it next.
    Waits,
    /// Too many wait for that already.
    Full,
}

/// Notes a key whose variants are too old: only their files tell whose they are.
pub fn note_changed(cache: &Cache, key: &[u8]) -> Noted {
    let mut changed = cache.zone.changed.0.lock().unwrap_or_else(PoisonError::into_inner);
    if changed.waiting.len() >= MAX_CHANGED && !changed.waiting.contains(key) {
        return Noted::Full;
    }
    changed.waiting.insert(key.to_vec());
    if std::mem::replace(&mut changed.is_walking, true) { Noted::Waits } else { Noted::Begin }
}

/// Purges what was noted, until nothing is left of it.
pub fn changed(cache: &Cache) {
    while let Some(keys) = next_changed(cache) {
        all(cache, &Keys::Several(keys));
    }
}

/// What has come since the last walk began. None: nothing, and the next who comes begins one.
fn next_changed(cache: &Cache) -> Option<HashSet<Vec<u8>>> {
    let mut changed = cache.zone.changed.0.lock().unwrap_or_else(PoisonError::into_inner);
    let keys = std::mem::take(&mut changed.waiting);
    changed.is_walking = !keys.is_empty();
    changed.is_walking.then_some(keys)
}

/// Purges all such keys; how many there were. Reads the heads of all files.
pub fn all(cache: &Cache, keys: &Keys) -> u64 {
    let mut walk = Walk { cache, keys, files: 0, began: Instant::now() };
    walk.folder(&cache.zone.path, 0)
}

/// A look at all files, which rests as often as `purger_files` and its companions say.
struct Walk<'c> {
    cache: &'c Cache,
    keys: &'c Keys,
    /// Of this go.
    files: u64,
    began: Instant,
}

impl Walk<'_> {
    fn folder(&mut self, folder: &Path, depth: usize) -> u64 {
        let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
        let purged = entries.flatten().map(|entry| match entry.file_type() {
            Ok(t) if t.is_dir() && depth < self.cache.zone.levels.len() => self.folder(&entry.path(), depth + 1),
            Ok(t) if t.is_file() => {
                self.rest();
                let digest = key::parse_name(entry.file_name().as_bytes());
                let fits =
                    digest.is_some() && with_head(&entry.path(), |head| self.keys.fit(head.key)).unwrap_or(false);
                u64::from(digest.is_some_and(|digest| fits && forget(self.cache, &digest)))
            }
            _ => 0,
        });
        purged.sum()
    }

    fn rest(&mut self) {
        let Some(pace) = &self.cache.purger else { return };
        self.files += 1;
        if self.files >= pace.files || self.began.elapsed() >= pace.threshold {
            std::thread::sleep(pace.sleep);
            (self.files, self.began) = (0, Instant::now());
        }
    }
}

/// What a file's head comes to; none: it is not readable, or no file of a cache.
fn with_head<V>(path: &Path, look: impl FnOnce(&format::Head<'_>) -> V) -> Option<V> {
    let mut file = File::open(path).ok()?;
    let size = file.metadata().ok()?.len();
    let (mut bytes, mut wanted) = (Vec::new(), FIRST);
    loop {
        let more = wanted.saturating_sub(bytes.len()) as u64;
        file.by_ref().take(more).read_to_end(&mut bytes).ok()?;
        match format::parse(&bytes, size) {
            Ok(head) => return Some(look(&head)),
            Err(BadHead::Short(n)) if n > bytes.len() && bytes.len() == wanted => wanted = n,
            Err(_) => return None,
        }
    }
}
