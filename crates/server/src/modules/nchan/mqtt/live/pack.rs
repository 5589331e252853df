//! A session and its client in few bytes, as long as nothing is under way between them. From and to: `small`.

use super::{Live, MAX_ALLOWED, Peer};
use crate::modules::nchan::mqtt::session::Session;
use crate::modules::nchan::mqtt::table::{self, Owner};
use crate::modules::nchan::redis::backend::Backend;
use heir::{Reader, Writer};
use std::rc::Rc;
use std::sync::Arc;

/// What is not written down, since others have the same.
pub(in super::super) struct Shared {
    pub(in super::super) peer: Rc<Peer>,
    pub(in super::super) group: Box<[u8]>,
    pub(in super::super) backend: Option<Arc<Backend>>,
}

impl Live {
    /// Whether it can be packed. Its owner is asked when it is.
    pub(in super::super) fn is_at_rest(&self) -> bool {
        self.scans.is_empty() && self.session.is_at_rest()
    }

    /// Writes it down, whose owner rests.
    pub(in super::super) fn pack(self: Box<Live>, w: &mut Writer) -> Shared {
        let Live { mut session, owner, peer, allowed, noted_ms, .. } = *self;
        session.pack(w);
        w.number(noted_ms);
        w.number(allowed.len() as u64);
        allowed.iter().for_each(|topic| w.bytes(topic));
        let (user, client) = table::parts(owner.key()).unwrap_or_default();
        w.bytes(user);
        w.bytes(client);
        Shared { peer, group: std::mem::take(&mut session.group), backend: session.backend.take() }
    }

    /// What was packed by this thread for the client that is parked at this place. None: it was something else.
    pub(in super::super) fn unpack(r: &mut Reader<'_>, place: u32, shared: Shared) -> Option<Box<Live>> {
        let Shared { peer, group, backend } = shared;
        let session = Session::unpack(r, place, group, backend)?;
        let noted_ms = r.number()?;
        let allowed: Vec<Box<[u8]>> = r.list(MAX_ALLOWED, |r| r.bytes().map(Box::from))?;
        let key = table::key(&session.group, r.bytes()?, r.bytes()?);
        let (scans, allowed) = (Default::default(), allowed.into());
        Some(Box::new(Live { session, owner: Owner::wake(key, place), peer, scans, allowed, noted_ms }))
    }
}
