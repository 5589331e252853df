//! What a request has of a cache while it is under way. What is done with it is in `caching` and `lookup`.

use crate::cache::CacheRef;
use crate::cache::entry::Entry;
use crate::cache::fill::Fill;
use crate::cache::format::{Digest, Times};
use crate::cache::index::{Leave, Slot};
use crate::cache::judge::Judgement;
use crate::cache::key;
use crate::request::{Request, Text};

/// What a request does about an entry while its upstream is asked.
#[derive(Debug)]
pub struct Caching {
    pub(super) cache: CacheRef,
    /// The key, in the arena.
    pub(super) key: Text,
    /// The key's name.
    pub(super) main: Digest,
    /// The name of the entry: the key's, or that of a variant.
    pub(super) name: Digest,
    /// The loader had not found all files yet when the index was asked.
    pub(super) cold: bool,
    pub(super) hold: Option<Hold>,
    /// The answer may be kept, as far as is known.
    pub cacheable: bool,
    /// The upstream is asked whether what is too old has changed.
    pub(super) revalidate: bool,
    /// What is too old.
    pub entry: Option<Entry>,
    /// What is too old may be sent if the upstream fails (`stale-if-error`).
    pub stale_error: bool,
    /// The head of the 304 that confirms it, where its header lines count (`*_cache_rfc9111`).
    pub confirming: Vec<u8>,
    /// What the answer's headers say.
    pub(super) judgement: Judgement,
    pub(super) fill: Option<(Fill, Times, Digest)>,
}

/// An entry that is held, until dropped.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) cache: CacheRef,
    pub(super) slot: Slot,
    pub(super) leave: Leave,
    /// Given up already.
    pub(super) done: bool,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.done {
            self.cache.zone.index.release(self.slot, self.leave);
        }
    }
}

/// What a request changes if it is answered.
#[derive(Debug)]
pub struct Change {
    pub(super) cache: CacheRef,
    pub(super) key: Text,
    pub(super) main: Digest,
}

impl Change {
    /// The key of what it changes.
    pub fn key(&self) -> Text {
        self.key
    }

    /// The same change of something else in that cache.
    pub fn other(&self, r: &mut Request, key: &[u8]) -> Change {
        Change { cache: self.cache.clone(), key: r.text(key), main: key::digest(key) }
    }
}
