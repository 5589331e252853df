//! Upstreams: groups of peers, connections to them, exchanges with them.

use crate::snapshot::Shot;
use std::rc::Rc;

/// Tries at upstreams for one request: `$upstream_*`, the error log's `upstream:`.
#[derive(Debug, Default)]
pub struct Attempts {
    url: Option<String>,
}

impl Attempts {
    /// Empties it.
    pub fn clear(&mut self) {
        self.url = None;
    }

    /// Which peer is being asked, as the error log shows it.
    pub fn current_url(&self) -> Option<&str> {
        self.url.as_deref()
    }
}

/// A thread takes a new snapshot: pools of groups that are gone are closed.
pub fn adopt(_shot: &Rc<Shot>) {}
